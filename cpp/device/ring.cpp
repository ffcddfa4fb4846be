#include "device/ring.hpp"

#include <errno.h>

#include "arena/lock.hpp"

#ifdef KVSHM_HAVE_IO_URING
#include <liburing.h>

#include <cstring>
#include <new>

namespace kvshm {
namespace {

struct __kernel_timespec span(std::int64_t ms) { return {ms / 1000, ms % 1000 * 1000000}; }

int refusal(int rc, const char* call) {
  if (!call) return rc;  // not the kernel's: it has a text
  if (rc == -ENOMEM) return fail(rc, "io_uring: no memory, or RLIMIT_MEMLOCK is too low");
  return fail(-KVSHM_EUNSUPPORTED, "io_uring is not to be had here: %s: %s", call,
              std::strerror(-rc));
}

}  // namespace

int Ring::open(Arena& a, unsigned entries, std::unique_ptr<Ring>* out) {
  std::unique_ptr<Ring> r(new (std::nothrow) Ring);
  if (!r) return -ENOMEM;
  Arena* const arenas[] = {&a};
  const char* refused;
  if (int rc =
          GuardedRing::open({.arenas = arenas, .narenas = 1, .places = kFiles, .entries = entries},
                            &r->ring_, &refused))
    return refusal(rc, refused);
  r->entries_ = r->ring_->entries();
  r->flags_ = r->ring_->flags();
  *out = std::move(r);
  return 0;
}

Ring::~Ring() {
  if (ring_ && !usable() && in_flight())
    log_line(KVSHM_LOG_WARN, "a ring was dropped with %u transfers in flight", in_flight());
}

int Ring::usable() const { return ring_ ? ring_->usable() : -KVSHM_ECLOSED; }

int Ring::set_file(unsigned place, int fd) {
  if (int rc = usable()) return rc;
  if (!place || place >= kFiles) return -EINVAL;  // place 0 is the guard's
  return ring_->set_file(place, fd);
}

int Ring::start(const Transfer& t) {
  if (int rc = usable()) return rc;
  if (!t.file || t.file >= kFiles) return -EINVAL;
  if (in_flight() >= entries_) return -EAGAIN;
  struct io_uring_sqe* e = io_uring_get_sqe(ring_->get());
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
  return io_uring_submit(ring_->get());
}

int Ring::wait(Landed* out, unsigned cap, unsigned limit_ms) {
  if (int rc = usable()) return rc;
  const std::int64_t deadline = now_ms() + limit_ms;
  for (;;) {
    unsigned n = 0;
    struct io_uring_cqe* c;
    while (n < cap && io_uring_cq_ready(ring_->get()) && !io_uring_peek_cqe(ring_->get(), &c)) {
      out[n++] = {io_uring_cqe_get_data64(c), c->res};
      io_uring_cqe_seen(ring_->get(), c);
    }
    in_flight_.fetch_sub(n, std::memory_order_relaxed);
    if (n || !in_flight() || !cap) return int(n);
    const std::int64_t left = deadline - now_ms();
    auto t = span(left > 0 ? left : 0);
    const int rc = io_uring_submit_and_wait_timeout(ring_->get(), &c, 1, &t, nullptr);
    if (rc < 0 && !passing(rc)) return rc;
    if (left <= 0 && !io_uring_cq_ready(ring_->get())) return -ETIMEDOUT;
  }
}

int Ring::drain(unsigned limit_ms) {
  if (int rc = usable()) return rc;
  const std::int64_t deadline = now_ms() + limit_ms;
  // All of them fit into the completion queue, which is at least as long as entries_.
  while (io_uring_cq_ready(ring_->get()) < in_flight()) {
    const std::int64_t left = deadline - now_ms();
    auto t = span(left > 0 ? left : 0);
    struct io_uring_cqe* c;
    const int rc = io_uring_submit_and_wait_timeout(ring_->get(), &c, in_flight(), &t, nullptr);
    if (rc < 0 && !passing(rc)) return rc;
    if (left <= 0 && io_uring_cq_ready(ring_->get()) < in_flight()) return -ETIMEDOUT;
  }
  return 0;
}

int Ring::end(unsigned limit_ms) {
  if (int rc = drain(limit_ms)) return rc;
  in_flight_.store(0, std::memory_order_relaxed);
  ring_.reset();
  return 0;
}

}  // namespace kvshm

#else  // built without liburing

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
