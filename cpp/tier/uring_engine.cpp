#include "tier/uring_engine.hpp"

#include <errno.h>
#include <kvshm_tier.h>

#ifdef KVSHM_HAVE_IO_URING
#include <liburing.h>
#include <unistd.h>

#include <algorithm>

#include "arena/error.hpp"
#include "arena/fork.hpp"

namespace kvshm::tier {
namespace {

// What completions are of: a slot, or
constexpr std::uint64_t kBellToken = std::uint64_t{1} << 32, kCheckToken = kBellToken * 2;
constexpr unsigned kPauseUs = 1000;
constexpr std::int64_t kFrozenMs = 50;

// Where kicks are read to. Never freed: a read may be under way when the engine goes.
char sink[64];

}  // namespace

UringEngine::~UringEngine() {
  if (ring_ && !ring_->usable() && in_flight())
    log_line(KVSHM_LOG_WARN, "tier: a ring was dropped with %u transfers in flight", in_flight());
}

std::uint32_t UringEngine::kind() const { return KVSHM_TIER_URING; }

int UringEngine::usable() const { return ring_ ? ring_->usable() : -KVSHM_ECLOSED; }

// All go to the device at once: nothing is before anything.
int UringEngine::start(const Transfer& t) {
  if (int rc = usable()) return rc;
  if (t.file >= nfiles_) return -EINVAL;
  if (free_.empty()) return -EAGAIN;
  const unsigned slot = free_.back();
  free_.pop_back();
  slots_[slot] = t;
  if (t.kind == Transfer::kWrite && checkable_ >> t.file & 1)
    held_.push_back(slot);
  else
    queue(slot);
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

// The queue has room for every slot, a check of every file and the bell.
void UringEngine::queue(unsigned slot) {
  const Transfer& t = slots_[slot];
  const int file = int(kData + t.file), slice = t.kind == Transfer::kSync ? -1 : slice_of(t);
  struct io_uring_sqe* e = io_uring_get_sqe(ring_->get());
  if (t.kind == Transfer::kSync)
    io_uring_prep_fsync(e, file, IORING_FSYNC_DATASYNC);
  else if (t.kind == Transfer::kWrite && slice >= 0)
    io_uring_prep_write_fixed(e, file, t.data, t.bytes, t.offset, slice);
  else if (t.kind == Transfer::kWrite)
    io_uring_prep_write(e, file, t.data, t.bytes, t.offset);
  else if (slice >= 0)
    io_uring_prep_read_fixed(e, file, t.data, t.bytes, t.offset, slice);
  else
    io_uring_prep_read(e, file, t.data, t.bytes, t.offset);
  e->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(e, slot);
}

void UringEngine::prepare_check(unsigned file) {
  struct io_uring_sqe* e = io_uring_get_sqe(ring_->get());
  io_uring_prep_write(e, int(kData + file), sink, 0, 0);
  e->rw_flags = RWF_NOWAIT;
  e->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(e, kCheckToken + file);
}

// One for all writes that wait for it.
void UringEngine::check_files() {
  if (held_.empty() || now_ms() < frozen_until_) return;
  for (const unsigned slot : held_) {
    const std::uint32_t file = 1u << slots_[slot].file;
    if (checking_ & file) continue;
    checking_ |= file;
    prepare_check(slots_[slot].file);
  }
}

void UringEngine::checked(unsigned file, int result) {
  checking_ &= ~(1u << file);
  if (result == -EAGAIN) {  // frozen; or in the way of another call for a moment
    frozen_ms_ = std::min(kFrozenMs, frozen_ms_ * 2 + 1);
    frozen_until_ = now_ms() + frozen_ms_;
    return;
  }
  frozen_ms_ = 0;
  if (result) checkable_ &= ~(1u << file);  // then the writes say what is wrong
  std::size_t kept = 0;
  for (const unsigned slot : held_)
    if (slots_[slot].file == file)
      queue(slot), released_ = true;
    else
      held_[kept++] = slot;
  held_.resize(kept);
}

// One read of the bell is always under way; it does not count as a transfer.
void UringEngine::listen() {
  if (listening_) return;
  struct io_uring_sqe* e = io_uring_get_sqe(ring_->get());
  io_uring_prep_read(e, kBell, sink, sizeof sink, std::uint64_t(-1));
  e->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(e, kBellToken);
  listening_ = true;
}

unsigned UringEngine::collect(Landed* out, unsigned cap) {
  struct io_uring* r = ring_->get();
  struct io_uring_cqe* c;
  unsigned n = 0;
  while (io_uring_cq_ready(r) && !io_uring_peek_cqe(r, &c)) {
    const std::uint64_t of = io_uring_cqe_get_data64(c);
    if (of < kBellToken && n == cap) break;
    const std::int32_t result = c->res;
    io_uring_cqe_seen(r, c);
    if (of == kBellToken) {
      listening_ = false;
    } else if (of >= kCheckToken) {
      checked(unsigned(of - kCheckToken), result);
    } else {
      out[n++] = {slots_[of].token, result};
      free_.push_back(unsigned(of));
    }
  }
  in_flight_.fetch_sub(n, std::memory_order_relaxed);
  return n;
}

// Hands over what is queued, and waits for one completion.
int UringEngine::enter(std::int64_t limit_ms) {
  struct io_uring* r = ring_->get();
  int rc = 0;
  if (io_uring_cq_ready(r)) {
    if (io_uring_sq_ready(r)) rc = io_uring_submit_and_get_events(r);
  } else {
    struct __kernel_timespec t = {limit_ms / 1000, limit_ms % 1000 * 1000000};
    struct io_uring_cqe* c;
    rc = io_uring_submit_and_wait_timeout(r, &c, 1, &t, nullptr);
  }
  if (rc == -EAGAIN || rc == -EBUSY) usleep(kPauseUs);  // no memory for requests
  return rc < 0 && !passing(rc) ? rc : 0;
}

int UringEngine::wait(Landed* out, unsigned cap, unsigned limit_ms) {
  if (int rc = usable()) return rc;
  const std::int64_t deadline = now_ms() + limit_ms;
  unsigned n = 0;
  bool kicked = false;
  for (;;) {
    listen();
    check_files();
    const std::int64_t now = now_ms(), left = std::max(std::int64_t{0}, deadline - now);
    const bool frozen = !held_.empty() && frozen_until_ > now;
    if (int rc = enter(released_ || n ? 0 : frozen ? std::min(left, frozen_until_ - now) : left))
      return n ? int(n) : rc;
    released_ = false;
    n += collect(out + n, cap - n);
    // Cleared after the bell was read, and before what it is rung for is looked at.
    kicked |= kicked_.exchange(false, std::memory_order_acq_rel);
    if (!released_ && (n || kicked || !left || !cap)) return int(n);
  }
}

// Files through the page cache cannot be asked whether they are frozen: they would say so always.
void UringEngine::buffered() {
  checkable_ = 0;
  if (usable()) return;
  for (const unsigned slot : held_) queue(slot), released_ = true;
  held_.clear();
}

void UringEngine::kick() {
  if (fork_generation_ != fork_generation()) return;
  if (kicked_.exchange(true, std::memory_order_acq_rel)) return;
  // Full: then it rings as well. Another file by now: the next limit ends the wait.
  if (bell_known_.still() && write(bell_.get(), "", 1) < 0) return;
}

int UringEngine::abandon() {
  if (usable()) return -1;
  const bool none = in_flight() == 0;
  ring_.reset();
  in_flight_.store(0, std::memory_order_relaxed);
  return none ? -1 : fence_.release();
}

}  // namespace kvshm::tier

#else  // built without liburing

namespace kvshm::tier {

int UringEngine::open(const EngineOptions&, std::unique_ptr<Engine>*, std::string* why) {
  *why = "";
  return -ENOSYS;
}
UringEngine::~UringEngine() = default;
std::uint32_t UringEngine::kind() const { return KVSHM_TIER_URING; }
int UringEngine::start(const Transfer&) { return -KVSHM_EUNSUPPORTED; }
int UringEngine::wait(Landed*, unsigned, unsigned) { return -KVSHM_EUNSUPPORTED; }
void UringEngine::kick() {}
void UringEngine::buffered() {}
bool UringEngine::idle() { return false; }
int UringEngine::abandon() { return -1; }

}  // namespace kvshm::tier
#endif
