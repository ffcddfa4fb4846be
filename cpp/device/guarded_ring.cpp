#include "device/guarded_ring.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arena/fork.hpp"
#include "device/guard.hpp"

namespace kvshm {

Known Known::of(int fd) {
  struct stat st;
  if (fstat(fd, &st)) return {};
  return {fd, st.st_dev, st.st_ino};
}

bool Known::still() const {
  struct stat st;
  return fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

bool passing(int rc) { return rc == -ETIME || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY; }

}  // namespace kvshm

#ifdef KVSHM_HAVE_IO_URING
#include <liburing.h>

#include <new>
#include <vector>

namespace kvshm {
namespace {
GuardedRing* all = nullptr;  // under the claim mutex, so that a fork finds it whole
}

int GuardedRing::open(const Options& o, std::unique_ptr<GuardedRing>* out, const char** refused) {
  *refused = nullptr;
  std::unique_ptr<GuardedRing> r(new (std::nothrow) GuardedRing);
  if (!r) return -ENOMEM;
  ForkGuard no_fork;  // no child may copy the ring or the guards before they are closed to it
  on_fork_in_child(forget_in_child);
  *refused = "io_uring_setup";
  if (int rc = r->set_up(o.entries)) return rc;
  *refused = "madvise";
  int rc = io_uring_ring_dontfork(r->ring_.get());
  if (!rc) rc = r->register_files(o, refused);
  if (rc) {
    io_uring_queue_exit(r->ring_.get());
    return rc;
  }
  r->fd_ = Known::of(r->ring_->ring_fd);
  r->fork_generation_ = fork_generation();
  r->set_up_ = true;
  r->next_ = all;
  if (all) all->previous_ = r.get();
  all = r.get();
  *out = std::move(r);
  return 0;
}

int GuardedRing::set_up(unsigned entries) {
  ring_.reset(new (std::nothrow) io_uring{});
  if (!ring_) return -ENOMEM;
  // One thread, and completions only when it asks for them: the cheapest; not before Linux 6.1.
  for (unsigned want : {unsigned(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN), 0u}) {
    struct io_uring_params p = {};
    p.flags = want | IORING_SETUP_CLAMP;
    const int rc = io_uring_queue_init_params(entries, ring_.get(), &p);
    if (rc == 0) {
      entries_ = p.sq_entries;
      flags_ = p.flags;
      return 0;
    }
    if (rc != -EINVAL || !want) return rc;
  }
  return -EINVAL;
}

// Before the first request: what is sent later cannot outlive the locks.
int GuardedRing::register_files(const Options& o, const char** refused) {
  std::vector<File> guards(o.narenas);
  std::vector<int> table(o.places, -1);
  *refused = nullptr;
  for (unsigned i = 0; i < o.narenas; i++) {
    if (int rc = open_guard(*o.arenas[i], &guards[i])) return rc;
    if (!unguarded()) table[i] = guards[i].get();
  }
  File fence;
  if (o.fence_out) {
    int ends[2];
    *refused = "pipe";
    if (pipe2(ends, O_CLOEXEC)) return -errno;
    o.fence_out->reset(ends[0]);
    fence.reset(ends[1]);
    table[o.fence] = fence.get();
  }
  *refused = "io_uring_register";
  return io_uring_register_files(ring_.get(), table.data(), o.places);
}

GuardedRing::~GuardedRing() {
  if (!set_up_ || fork_generation_ != fork_generation()) return;  // a child: nothing of it is here
  ForkGuard no_fork;
  if (next_) next_->previous_ = previous_;
  (previous_ ? previous_->next_ : all) = next_;
  io_uring_queue_exit(ring_.get());
}

// The memory is not here (MADV_DONTFORK); the descriptor would keep the ring, and its locks.
void GuardedRing::forget_in_child() {
  for (GuardedRing* r = all; r; r = r->next_)
    if (r->fd_.still()) close(r->fd_.fd);
  all = nullptr;
}

int GuardedRing::usable() const {
  return fork_generation_ == fork_generation() ? 0 : -KVSHM_EFORKED;
}

int GuardedRing::set_file(unsigned place, int fd) {
  const int rc = io_uring_register_files_update(ring_.get(), place, &fd, 1);
  return rc < 0 ? rc : 0;
}

}  // namespace kvshm

#else  // built without liburing

struct io_uring {};

namespace kvshm {

int GuardedRing::open(const Options&, std::unique_ptr<GuardedRing>*, const char** refused) {
  *refused = "";  // nobody was asked
  return -ENOSYS;
}
GuardedRing::~GuardedRing() = default;
int GuardedRing::usable() const { return -KVSHM_EUNSUPPORTED; }
int GuardedRing::set_file(unsigned, int) { return usable(); }

}  // namespace kvshm
#endif
