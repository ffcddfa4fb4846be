// Registered buffers: the kernel looks up the pages of a block once, not at each transfer.
#include "tier/uring_engine.hpp"

#ifdef KVSHM_HAVE_IO_URING
#include <errno.h>
#include <liburing.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "arena/error.hpp"

namespace kvshm::tier {
namespace {

// Registering takes the thread about 50 us a MiB, in which nothing else lands.
constexpr std::uint64_t kSliceBytes = std::uint64_t{64} << 20, kSliceMost = std::uint64_t{1} << 30;
constexpr std::uint64_t kSlicesMost = 16384;  // the kernel's limit

}  // namespace

// No block straddles two slices: a transfer has one buffer.
void UringEngine::cut(const EngineOptions& o) {
  if (!o.memory || !o.block_bytes || o.block_bytes > kSliceMost) return;
  std::uint64_t bytes = std::max(kSliceBytes, (o.memory_bytes + kSlicesMost - 1) / kSlicesMost);
  bytes = (bytes + o.block_bytes - 1) / o.block_bytes * o.block_bytes;
  if (bytes > kSliceMost) bytes = kSliceMost / o.block_bytes * o.block_bytes;
  memory_ = o.memory;
  memory_bytes_ = o.memory_bytes;
  slice_bytes_ = bytes;
  slices_ = unsigned(std::min((o.memory_bytes + bytes - 1) / bytes, kSlicesMost));
}

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

}  // namespace kvshm::tier
#endif
