// The system calls of the library, answered by the host in memory. The linker sends each here
// (--wrap, see CMakeLists.txt); what does not concern the arena object goes on to the real host.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>

#include "host.hpp"
#include "host_tables.hpp"
#include "poison.hpp"

using namespace kvshm_fuzz::host;

namespace {

const char* const kPath = "/dev/shm/kvshm.fuzz";
constexpr std::uint64_t kLateNs = 8'000'000, kTurnNs = 10'000;  // after a sleep; of a yield
constexpr const char* kStat =
    "4242 (fuzz) R 1 1 1 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 777 1000000 100 1 1 1";

bool ours(int fd) { return fd >= kFirstFd && fd < kFirstFd + kDescriptors; }
Descriptor& at(int fd) { return tables().descriptors[fd - kFirstFd]; }

int give(Descriptor d) {
  Tables& t = tables();
  for (int i = 0; i < kDescriptors; i++)
    if (!t.descriptors[i].used) {
      d.used = true;
      t.descriptors[i] = d;
      return kFirstFd + i;
    }
  std::abort();  // the library has closed none of 32
}

int no(int error) {
  errno = error;
  return -1;
}

void fill_stat(struct stat* st) {
  *st = {};
  st->st_mode = S_IFREG | 0600;
  st->st_size = off_t(tables().size);
  st->st_ino = tables().ino;
  st->st_dev = 77;
}

std::uint64_t ns_of(const struct timespec* t) {
  return std::uint64_t(t->tv_sec) * 1000000000u + std::uint64_t(t->tv_nsec);
}

}  // namespace

extern "C" {

int __real_open(const char*, int, ...);
int __real_close(int);
int __real_fstat(int, struct stat*);
int __real_stat(const char*, struct stat*);
int __real_fstatfs(int, struct statfs*);
int __real_fstatvfs(int, struct statvfs*);
ssize_t __real_pread(int, void*, size_t, off_t);
ssize_t __real_read(int, void*, size_t);
int __real_fcntl(int, int, ...);
void* __real_mmap(void*, size_t, int, int, int, off_t);
int __real_munmap(void*, size_t);
int __real_madvise(void*, size_t, int);
int __real_ftruncate(int, off_t);
int __real_fallocate(int, int, off_t, off_t);
int __real_fchmod(int, mode_t);
int __real_unlink(const char*);
int __real_nanosleep(const struct timespec*, struct timespec*);
int __real_clock_gettime(clockid_t, struct timespec*);
int __real_sched_yield();
ssize_t __real_getrandom(void*, size_t, unsigned);
long __real_syscall(long, ...);

int __wrap_open(const char* path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = flags & O_CREAT ? mode_t(va_arg(args, int)) : 0;
  va_end(args);
  if (!inside()) return __real_open(path, flags, mode);
  Tables& t = tables();
  if (std::strcmp(path, kPath) == 0) {
    if ((flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL)) {
      if (t.there) return no(EEXIST);
      if (t.mapped(t.memory) && mappings()) return no(ENOSPC);  // there is room for one object
      replace(true);
      resize(0);
    }
    if (!t.there) return no(ENOENT);
    const int d = t.describe();
    return d < 0 ? no(EMFILE) : give({true, d, nullptr});
  }
  if (std::strcmp(path, "/proc/self/stat") == 0) return give({true, -1, kStat});
  if (std::strcmp(path, "/proc/self/comm") == 0) return give({true, -1, "fuzz\n"});
  return std::strncmp(path, "/dev/shm/", 9) == 0 ? no(ENOENT) : __real_open(path, flags, mode);
}

int __wrap_close(int fd) {
  if (!ours(fd)) return __real_close(fd);
  if (!at(fd).used) std::abort();  // closed twice
  tables().let_go(at(fd).description);
  at(fd) = {};
  return 0;
}

int __wrap_fstat(int fd, struct stat* st) {
  if (!ours(fd)) return __real_fstat(fd, st);
  fill_stat(st);
  return 0;
}

int __wrap_stat(const char* path, struct stat* st) {
  if (!inside()) return __real_stat(path, st);
  if (std::strcmp(path, kPath) == 0) {
    if (!tables().there) return no(ENOENT);
    fill_stat(st);
    return 0;
  }
  if (std::strcmp(path, "/proc/self/ns/pid") != 0) return __real_stat(path, st);
  *st = {};
  st->st_ino = 4026531836;
  return 0;
}

int __wrap_fstatfs(int fd, struct statfs* s) {
  if (!ours(fd)) return __real_fstatfs(fd, s);
  *s = {};
  s->f_type = TMPFS_MAGIC;
  s->f_bsize = 4096;
  return 0;
}

int __wrap_fstatvfs(int fd, struct statvfs* s) {
  if (!ours(fd)) return __real_fstatvfs(fd, s);
  *s = {};
  s->f_bsize = 4096;
  s->f_blocks = s->f_bavail = kRoom / 4096;
  return 0;
}

ssize_t __wrap_pread(int fd, void* to, size_t n, off_t from) {
  if (!ours(fd)) return __real_pread(fd, to, n, from);
  const std::size_t end = size();
  if (from < 0 || std::size_t(from) >= end) return 0;
  if (n > end - std::size_t(from)) n = end - std::size_t(from);
  std::memcpy(to, memory() + from, n);
  return ssize_t(n);
}

ssize_t __wrap_read(int fd, void* to, size_t n) {
  if (!ours(fd)) return __real_read(fd, to, n);
  const char*& text = at(fd).text;
  if (!text) return no(EINVAL);
  const std::size_t there = std::strlen(text);
  if (n > there) n = there;
  std::memcpy(to, text, n);
  text += n;
  return ssize_t(n);
}

int __wrap_fcntl(int fd, int what, ...) {
  va_list args;
  va_start(args, what);
  void* argument = va_arg(args, void*);
  va_end(args);
  if (!ours(fd)) return __real_fcntl(fd, what, argument);
  auto* f = static_cast<struct flock*>(argument);
  Tables& t = tables();
  const int me = at(fd).description;
  if (what == F_OFD_GETLK) {
    if (!t.conflict(me, f->l_start, f->l_type == F_WRLCK)) f->l_type = F_UNLCK;
    return 0;
  }
  if (what != F_OFD_SETLK) return no(EINVAL);
  if (f->l_type == F_UNLCK)
    t.unlock(me, f->l_start);
  else if (!t.lock(me, f->l_start, f->l_type == F_WRLCK))
    return no(EAGAIN);
  return 0;
}

void* __wrap_mmap(void* hint, size_t n, int prot, int flags, int fd, off_t from) {
  Tables& t = tables();
  void* p = nullptr;
  if (inside() && fd < 0) {  // on the heap, where AddressSanitizer sees its bounds
    if (posix_memalign(&p, 4096, n) != 0) return no(ENOMEM), MAP_FAILED;
    std::memset(p, 0, n);
    if (!t.map(p, -1, p)) std::abort();
    return p;
  }
  if (!ours(fd)) return __real_mmap(hint, n, prot, flags, fd, from);
  if (flags & MAP_SHARED) {
    if (n > kRoom) return no(ENOMEM), MAP_FAILED;
    p = memory();
  } else {
    if (!t.anchors)
      t.anchors = static_cast<std::byte*>(
          __real_mmap(nullptr, kMappings * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < kMappings && !p; i++)
      if (!t.mapped(t.anchors + i * 4096)) p = t.anchors + i * 4096;
  }
  if (!p || !t.map(p, at(fd).description, nullptr)) std::abort();  // none of 64 was given back
  return p;
}

int __wrap_munmap(void* p, size_t n) { return tables().unmap(p) ? 0 : __real_munmap(p, n); }

int __wrap_madvise(void* p, size_t n, int what) {
  return inside() && tables().mapped(p) ? 0 : __real_madvise(p, n, what);
}

int __wrap_ftruncate(int fd, off_t n) {
  if (!ours(fd)) return __real_ftruncate(fd, n);
  if (n < 0 || std::size_t(n) > kRoom) return no(EFBIG);
  resize(std::size_t(n));
  return 0;
}

int __wrap_fallocate(int fd, int how, off_t from, off_t n) {
  return ours(fd) ? 0 : __real_fallocate(fd, how, from, n);
}

int __wrap_fchmod(int fd, mode_t mode) { return ours(fd) ? 0 : __real_fchmod(fd, mode); }

int __wrap_unlink(const char* path) {
  if (!inside() || std::strcmp(path, kPath) != 0) return __real_unlink(path);
  if (!tables().there) return no(ENOENT);
  tables().there = false;
  return 0;
}

// Sleeps end late, as on a busy machine: what waits with short ones turns tens of times within its
// limit, not hundreds.
int __wrap_nanosleep(const struct timespec* t, struct timespec* left) {
  if (!inside()) return __real_nanosleep(t, left);
  tables().clock_ns += ns_of(t) + kLateNs;
  return 0;
}

// Each look takes a moment, so that who waits by looking comes to an end.
int __wrap_clock_gettime(clockid_t which, struct timespec* t) {
  if (!inside() || which == CLOCK_REALTIME) return __real_clock_gettime(which, t);
  const std::uint64_t now = tables().clock_ns += 1000;
  t->tv_sec = time_t(now / 1000000000);
  t->tv_nsec = long(now % 1000000000);
  return 0;
}

int __wrap_sched_yield() {
  if (!inside()) return __real_sched_yield();
  tables().clock_ns += kTurnNs;
  return 0;
}

ssize_t __wrap_getrandom(void* to, size_t n, unsigned flags) {
  if (!inside()) return __real_getrandom(to, n, flags);
  std::memset(to, 0x5a, n);
  return ssize_t(n);
}

// Reads six arguments, however many there are.
KVSHM_UNCHECKED long __wrap_syscall(long number, ...) {
  va_list args;
  va_start(args, number);
  long a[6];
  for (long& x : a) x = va_arg(args, long);
  va_end(args);
  if (!inside()) return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  switch (number) {
    case SYS_futex: {
      if ((a[1] & 127) == FUTEX_WAKE) return 0;
      const auto* limit = reinterpret_cast<const struct timespec*>(a[3]);
      if (!limit) std::abort();  // would wait for ever
      tables().clock_ns += ns_of(limit);
      return no(ETIMEDOUT);
    }
    case SYS_mlock2:
    case SYS_mbind:
      return 0;
    case SYS_get_mempolicy:
      return no(ENOSYS);
    default:
      return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
}
}
