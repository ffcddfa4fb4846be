#include "tier/uring_engine.hpp"

#include <errno.h>
#include <kvshm_tier.h>

#ifdef KVSHM_HAVE_IO_URING
#include <fcntl.h>
#include <liburing.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "arena/error.hpp"
#include "arena/fork.hpp"

namespace kvshm::tier {
namespace {

constexpr unsigned kFewest = 8;  // entries: below, threads are as good
// Registering takes the thread about 50 us a MiB, in which nothing else lands.
constexpr std::uint64_t kSliceBytes = std::uint64_t{64} << 20, kSliceMost = std::uint64_t{1} << 30;
constexpr std::uint64_t kSlicesMost = 16384;  // the kernel's limit
constexpr std::uint64_t kBellToken = ~std::uint64_t{0};
constexpr unsigned kProbeMs = 2000, kPauseUs = 1000;

// Where kicks are read to. Never freed: a read may be under way when the engine goes.
char sink[64];

}  // namespace

int UringEngine::open(const EngineOptions& o, std::unique_ptr<Engine>* out, std::string* why) {
  std::unique_ptr<UringEngine> e(new (std::nothrow) UringEngine);
  if (!e) return -ENOMEM;
  if (int rc = e->open_ring(o, why)) return rc;
  if (int rc = e->probe()) {
    *why = "io_uring_enter";
    return rc;
  }
  e->fork_generation_ = fork_generation();
  e->nfiles_ = o.nfiles;
  for (unsigned i = 0; i < o.nfiles; i++)
    if (int rc = e->ring_->set_file(kData + i, o.files[i])) {
      *why = "io_uring_register";
      return rc;
    }
  if (int rc = e->open_bell()) {
    *why = "pipe";
    return rc;
  }
  if (o.memory && o.block_bytes && o.block_bytes <= kSliceMost) {
    // No block straddles two slices: a transfer has one buffer.
    std::uint64_t bytes = std::max(kSliceBytes, (o.memory_bytes + kSlicesMost - 1) / kSlicesMost);
    bytes = (bytes + o.block_bytes - 1) / o.block_bytes * o.block_bytes;
    if (bytes > kSliceMost) bytes = kSliceMost / o.block_bytes * o.block_bytes;
    e->memory_ = o.memory;
    e->memory_bytes_ = o.memory_bytes;
    e->slice_bytes_ = bytes;
    e->slices_ = unsigned(std::min((o.memory_bytes + bytes - 1) / bytes, kSlicesMost));
  }
  *out = std::move(e);
  return 0;
}

int UringEngine::open_ring(const EngineOptions& o, std::string* why) {
  const char* refused = nullptr;
  unsigned entries = o.entries;
  int rc;
  do {
    rc = GuardedRing::open({.arenas = o.arenas,
                            .narenas = o.arenas[1] ? 2u : 1u,
                            .places = kData + o.nfiles,
                            .entries = entries + 1,  // the bell's
                            .fence = kFence,
                            .fence_out = &fence_},
                           &ring_, &refused);
    entries /= 2;
  } while (rc == -ENOMEM && refused && entries >= kFewest);
  if (rc) {
    if (refused) *why = refused;
    return rc;
  }
  entries_ = std::min(o.entries, ring_->entries() - 1);
  if (entries_ < o.entries)
    log_line(KVSHM_LOG_WARN, "tier: a ring of %u entries in place of %u: no memory for more",
             entries_, o.entries);
  return 0;
}

// A filter of system calls may let a ring be made, and refuse its use.
int UringEngine::probe() {
  struct io_uring* r = ring_->get();
  io_uring_prep_nop(io_uring_get_sqe(r));
  const std::int64_t deadline = now_ms() + kProbeMs;
  for (;;) {
    struct __kernel_timespec t = {0, 100000000};
    struct io_uring_cqe* c;
    const int rc = io_uring_submit_and_wait_timeout(r, &c, 1, &t, nullptr);
    if (rc < 0 && !passing(rc)) return rc;
    if (io_uring_cq_ready(r) && !io_uring_peek_cqe(r, &c)) {
      io_uring_cqe_seen(r, c);
      return 0;
    }
    if (now_ms() > deadline) return -ETIMEDOUT;
  }
}

int UringEngine::open_bell() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) return -errno;
  File in(ends[0]);
  bell_.reset(ends[1]);
  bell_known_ = Known::of(ends[1]);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);  // of this end alone: the other one is to wait
  return ring_->set_file(kBell, in.get());
}

UringEngine::~UringEngine() {
  if (ring_ && !ring_->usable() && in_flight())
    log_line(KVSHM_LOG_WARN, "tier: a ring was dropped with %u transfers in flight", in_flight());
}

std::uint32_t UringEngine::kind() const { return KVSHM_TIER_URING; }

int UringEngine::usable() const { return ring_ ? ring_->usable() : -KVSHM_ECLOSED; }

// The registered buffer that holds all of it, or -1.
int UringEngine::slice_of(const Transfer& t) const {
  const auto* p = static_cast<const std::byte*>(t.data);
  if (!slices_registered_ || p < memory_ || p >= memory_ + memory_bytes_) return -1;
  const std::uint64_t at = std::uint64_t(p - memory_), slice = at / slice_bytes_;
  if (slice >= slices_registered_ || at + t.bytes > memory_bytes_ ||
      at % slice_bytes_ + t.bytes > slice_bytes_)
    return -1;
  return int(slice);
}

// All go to the device at once: nothing is before anything.
int UringEngine::start(const Transfer& t) {
  if (int rc = usable()) return rc;
  if (t.file >= nfiles_) return -EINVAL;
  if (in_flight() >= entries_) return -EAGAIN;
  struct io_uring_sqe* e = io_uring_get_sqe(ring_->get());
  if (!e) return -EAGAIN;
  const int file = int(kData + t.file);
  const int slice = t.kind == Transfer::kSync ? -1 : slice_of(t);
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
  io_uring_sqe_set_data64(e, t.token);
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

// One read of the bell is always under way; it does not count as a transfer.
void UringEngine::listen() {
  if (listening_) return;
  struct io_uring_sqe* e = io_uring_get_sqe(ring_->get());
  if (!e) return;  // full of transfers: when they are handed over
  io_uring_prep_read(e, kBell, sink, sizeof sink, std::uint64_t(-1));
  e->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(e, kBellToken);
  listening_ = true;
}

bool UringEngine::ready() const { return io_uring_cq_ready(ring_->get()) != 0; }

unsigned UringEngine::collect(Landed* out, unsigned cap) {
  struct io_uring* r = ring_->get();
  struct io_uring_cqe* c;
  unsigned n = 0;
  while (n < cap && io_uring_cq_ready(r) && !io_uring_peek_cqe(r, &c)) {
    if (io_uring_cqe_get_data64(c) == kBellToken)
      listening_ = false;
    else
      out[n++] = {io_uring_cqe_get_data64(c), c->res};
    io_uring_cqe_seen(r, c);
  }
  in_flight_.fetch_sub(n, std::memory_order_relaxed);
  return n;
}

int UringEngine::wait(Landed* out, unsigned cap, unsigned limit_ms) {
  if (int rc = usable()) return rc;
  struct io_uring* r = ring_->get();
  const std::int64_t deadline = now_ms() + limit_ms;
  for (;;) {
    listen();
    const std::int64_t left = std::max(std::int64_t{0}, deadline - now_ms());
    int rc = 0;
    if (ready()) {
      if (io_uring_sq_ready(r)) rc = io_uring_submit_and_get_events(r);
    } else {
      struct __kernel_timespec t = {left / 1000, left % 1000 * 1000000};
      struct io_uring_cqe* c;
      rc = io_uring_submit_and_wait_timeout(r, &c, 1, &t, nullptr);
    }
    if (rc < 0 && !passing(rc)) return rc;
    const unsigned n = collect(out, cap);
    // Cleared after the bell was read, and before what it is rung for is looked at.
    const bool kicked = kicked_.exchange(false, std::memory_order_acq_rel);
    if (n || kicked || !left || !cap) return int(n);
    if (rc == -EAGAIN || rc == -EBUSY) usleep(kPauseUs);
  }
}

void UringEngine::kick() {
  if (fork_generation_ != fork_generation()) return;
  if (kicked_.exchange(true, std::memory_order_acq_rel)) return;
  // Full: then it rings as well. Another file by now: the next limit ends the wait.
  if (bell_known_.still() && write(bell_.get(), "", 1) < 0) return;
}

bool UringEngine::idle() {
  if (usable() || refused_ || slices_registered_ == slices_) return false;
  struct io_uring* r = ring_->get();
  if (!table_) {
    if (int rc = io_uring_register_buffers_sparse(r, slices_)) {
      explain(rc);
      return false;
    }
    table_ = true;
  }
  const std::uint64_t at = slices_registered_ * slice_bytes_;
  const struct iovec piece = {memory_ + at, std::min(slice_bytes_, memory_bytes_ - at)};
  const __u64 tag = 0;
  const int rc = io_uring_register_buffers_update_tag(r, slices_registered_, &piece, &tag, 1);
  if (rc == -EINTR || rc == -EAGAIN) return true;
  if (rc != 1) {
    explain(rc ? rc : -EINVAL);
    return false;
  }
  slices_registered_++;
  return slices_registered_ < slices_;
}

// Transfers work without; they cost the kernel a look at their pages each time.
void UringEngine::explain(int rc) {
  refused_ = true;
  struct rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const auto need = static_cast<unsigned long long>(memory_bytes_);
  const auto have = static_cast<unsigned long long>(slices_registered_ * slice_bytes_);
  if (rc == -ENOMEM && limit.rlim_cur != RLIM_INFINITY)
    log_line(KVSHM_LOG_INFO,
             "tier: %llu of %llu bytes are registered as buffers: RLIMIT_MEMLOCK is %llu bytes, of "
             "all rings of this user together. Slower, else well; ulimit -l, LimitMEMLOCK= or "
             "docker's --ulimit memlock=-1 raises it",
             have, need, static_cast<unsigned long long>(limit.rlim_cur));
  else
    log_line(KVSHM_LOG_INFO,
             "tier: %llu of %llu bytes are registered as buffers (%s). Slower, else well", have,
             need, std::strerror(-rc));
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
bool UringEngine::idle() { return false; }
int UringEngine::abandon() { return -1; }

}  // namespace kvshm::tier
#endif
