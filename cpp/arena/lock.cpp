#include "arena/lock.hpp"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

namespace kvshm {
namespace {

struct flock byte_of(short type, off_t at) {
  struct flock f = {};
  f.l_type = type;
  f.l_whence = SEEK_SET;
  f.l_start = at;
  f.l_len = 1;
  return f;
}

int set(int fd, short type, off_t at) {
  struct flock f = byte_of(type, at);
  while (fcntl(fd, F_OFD_SETLK, &f) != 0) {
    if (errno == EINTR) continue;
    return errno == EACCES ? -EAGAIN : -errno;
  }
  return 0;
}

std::int64_t clock_ms(clockid_t c) {
  struct timespec t;
  clock_gettime(c, &t);
  return t.tv_sec * std::int64_t{1000} + t.tv_nsec / 1000000;
}

}  // namespace

File& File::operator=(File&& o) noexcept {
  if (this != &o) {
    reset(o.fd_);
    o.fd_ = -1;
  }
  return *this;
}

void File::reset(int fd) {
  // M:slots.10
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

int lock_byte(int fd, bool write, off_t at) { return set(fd, write ? F_WRLCK : F_RDLCK, at); }
int unlock_byte(int fd, off_t at) { return set(fd, F_UNLCK, at); }

int lock_byte_until(int fd, bool write, off_t at, std::int64_t deadline_ms,
                    const std::atomic<bool>* stop) {
  for (unsigned wait = 1;; wait = wait < 8 ? wait * 2 : 8) {
    int rc = lock_byte(fd, write, at);
    if (rc != -EAGAIN) return rc;
    if (now_ms() >= deadline_ms || (stop && stop->load(std::memory_order_relaxed)))
      return -ETIMEDOUT;
    sleep_ms(wait);
  }
}

int byte_locked(int fd, off_t at) {
  struct flock f = byte_of(F_WRLCK, at);
  if (fcntl(fd, F_OFD_GETLK, &f) != 0) return -errno;
  return f.l_type != F_UNLCK;
}

std::int64_t now_ms() { return clock_ms(CLOCK_MONOTONIC); }
std::int64_t boottime_ms() { return clock_ms(CLOCK_BOOTTIME); }

void sleep_ms(unsigned ms) {
  struct timespec t = {time_t(ms / 1000), long(ms % 1000) * 1000000};
  nanosleep(&t, nullptr);
}

}  // namespace kvshm
