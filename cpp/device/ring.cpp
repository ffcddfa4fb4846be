#include "device/ring.hpp"

#include <errno.h>

#include "arena/fork.hpp"
#include "arena/lock.hpp"
#include "device/guard.hpp"

#ifdef KVSHM_HAVE_IO_URING
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>

namespace kvshm {
namespace {

Ring* all = nullptr;  // under the claim mutex, so that a fork finds it whole

struct __kernel_timespec span(std::int64_t ms) { return {ms / 1000, ms % 1000 * 1000000}; }

// Nothing is wrong: the kernel was interrupted, or has no room or no news yet.
bool passing(int rc) { return rc == -ETIME || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY; }

// A closerange() of somebody's may have freed the number for another file.
bool same_file(int fd, dev_t dev, ino_t ino) {
  struct stat st;
  return fstat(fd, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

}  // namespace

int Ring::open(Arena& a, unsigned entries, std::unique_ptr<Ring>* out) {
  std::unique_ptr<Ring> r(new (std::nothrow) Ring);
  if (!r) return -ENOMEM;
  ForkGuard no_fork;  // no child may copy the ring or the guard before they are closed to it
  on_fork_in_child(forget_in_child);
  if (int rc = r->set_up(entries)) return rc;
  int rc = io_uring_ring_dontfork(r->ring_.get());
  if (rc) rc = fail(-KVSHM_EUNSUPPORTED, "ring memory: madvise: %s", std::strerror(-rc));
  if (!rc) rc = r->adopt_guard(a);
  if (rc) {
    io_uring_queue_exit(r->ring_.get());
    r->ring_.reset();
    return rc;
  }
  r->fd_ = r->ring_->ring_fd;
  struct stat st;
  if (fstat(r->fd_, &st) == 0) r->dev_ = st.st_dev, r->ino_ = st.st_ino;
  r->fork_generation_ = fork_generation();
  r->next_ = all;
  if (all) all->previous_ = r.get();
  all = r.get();
  *out = std::move(r);
  return 0;
}

int Ring::set_up(unsigned entries) {
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
    if (rc == -EINVAL && want) continue;
    ring_.reset();
    if (rc == -ENOMEM) return fail(rc, "io_uring: no memory, or RLIMIT_MEMLOCK is too low");
    return fail(-KVSHM_EUNSUPPORTED, "io_uring is not to be had here: %s", std::strerror(-rc));
  }
  return -KVSHM_EUNSUPPORTED;
}

// Before the first request: what is sent later cannot outlive the lock.
int Ring::adopt_guard(Arena& a) {
  File guard;
  if (int rc = open_guard(a, &guard)) return rc;
  int files[kFiles];
  for (int& f : files) f = -1;
  files[0] = guard.get();
  if (int rc = io_uring_register_files(ring_.get(), files, kFiles))
    return fail(-KVSHM_EUNSUPPORTED, "io_uring takes no registered files here: %s",
                std::strerror(-rc));
  return 0;
}

Ring::~Ring() {
  if (!ring_) return;
  if (fork_generation_ != fork_generation()) return;  // a child: nothing of it is here
  if (in_flight())
    log_line(KVSHM_LOG_WARN, "a ring was dropped with %u transfers in flight", in_flight());
  tear_down();
}

void Ring::tear_down() {
  ForkGuard no_fork;
  if (next_) next_->previous_ = previous_;
  (previous_ ? previous_->next_ : all) = next_;
  io_uring_queue_exit(ring_.get());
  ring_.reset();
}

// The memory is not here (MADV_DONTFORK); the descriptor would keep the ring, and its lock.
void Ring::forget_in_child() {
  for (Ring* r = all; r; r = r->next_)
    if (same_file(r->fd_, r->dev_, r->ino_)) close(r->fd_);
  all = nullptr;
}

int Ring::usable() const {
  if (!ring_) return -KVSHM_ECLOSED;
  return fork_generation_ == fork_generation() ? 0 : -KVSHM_EFORKED;
}

int Ring::set_file(unsigned place, int fd) {
  if (int rc = usable()) return rc;
  if (!place || place >= kFiles) return -EINVAL;  // place 0 is the guard's
  const int rc = io_uring_register_files_update(ring_.get(), place, &fd, 1);
  return rc < 0 ? rc : 0;
}

int Ring::start(const Transfer& t) {
  if (int rc = usable()) return rc;
  if (!t.file || t.file >= kFiles) return -EINVAL;
  if (in_flight() >= entries_) return -EAGAIN;
  struct io_uring_sqe* e = io_uring_get_sqe(ring_.get());
  if (!e) return -EAGAIN;
  if (t.write)
    io_uring_prep_write(e, int(t.file), t.data, t.bytes, t.offset);
  else
    io_uring_prep_read(e, int(t.file), t.data, t.bytes, t.offset);
  e->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(e, t.token);
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

int Ring::submit() {
  if (int rc = usable()) return rc;
  return io_uring_submit(ring_.get());
}

int Ring::wait(Landed* out, unsigned cap, unsigned limit_ms) {
  if (int rc = usable()) return rc;
  const std::int64_t deadline = now_ms() + limit_ms;
  for (;;) {
    unsigned n = 0;
    struct io_uring_cqe* c;
    while (n < cap && io_uring_cq_ready(ring_.get()) && !io_uring_peek_cqe(ring_.get(), &c)) {
      out[n++] = {io_uring_cqe_get_data64(c), c->res};
      io_uring_cqe_seen(ring_.get(), c);
    }
    in_flight_.fetch_sub(n, std::memory_order_relaxed);
    if (n || !in_flight() || !cap) return int(n);
    const std::int64_t left = deadline - now_ms();
    auto t = span(left > 0 ? left : 0);
    const int rc = io_uring_submit_and_wait_timeout(ring_.get(), &c, 1, &t, nullptr);
    if (rc < 0 && !passing(rc)) return rc;
    if (left <= 0 && !io_uring_cq_ready(ring_.get())) return -ETIMEDOUT;
  }
}

int Ring::drain(unsigned limit_ms) {
  if (int rc = usable()) return rc;
  const std::int64_t deadline = now_ms() + limit_ms;
  // All of them fit into the completion queue, which is at least as long as entries_.
  while (io_uring_cq_ready(ring_.get()) < in_flight()) {
    const std::int64_t left = deadline - now_ms();
    auto t = span(left > 0 ? left : 0);
    struct io_uring_cqe* c;
    const int rc = io_uring_submit_and_wait_timeout(ring_.get(), &c, in_flight(), &t, nullptr);
    if (rc < 0 && !passing(rc)) return rc;
    if (left <= 0 && io_uring_cq_ready(ring_.get()) < in_flight()) return -ETIMEDOUT;
  }
  return 0;
}

int Ring::end(unsigned limit_ms) {
  if (int rc = drain(limit_ms)) return rc;
  in_flight_.store(0, std::memory_order_relaxed);
  tear_down();
  return 0;
}

}  // namespace kvshm

#else  // built without liburing

struct io_uring {};

namespace kvshm {

int Ring::open(Arena&, unsigned, std::unique_ptr<Ring>*) {
  return fail(-KVSHM_EUNSUPPORTED, "this libkvshm was built without io_uring");
}
Ring::~Ring() = default;
int Ring::usable() const { return -KVSHM_EUNSUPPORTED; }
int Ring::set_file(unsigned, int) { return usable(); }
int Ring::start(const Transfer&) { return usable(); }
int Ring::submit() { return usable(); }
int Ring::wait(Landed*, unsigned, unsigned) { return usable(); }
int Ring::drain(unsigned) { return usable(); }
int Ring::end(unsigned) { return usable(); }

}  // namespace kvshm
#endif
