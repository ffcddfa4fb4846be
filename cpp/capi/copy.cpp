#include "device/copy.hpp"

#include <errno.h>

#include "blocks/counts.hpp"
#include "capi/call.hpp"

using namespace kvshm;

namespace {

int check(Arena& a, kvshm_handle b, std::uint64_t offset, const void* p, std::uint64_t n) {
  if (!a.in_range(b.id) || !b.seq || (n && !p)) return -EINVAL;
  if (offset > a.block_bytes || n > a.block_bytes - offset)
    return fail(-ERANGE, "bytes %llu + %llu reach beyond the block of %llu",
                (unsigned long long)offset, (unsigned long long)n,
                (unsigned long long)a.block_bytes);
  return 0;
}

}  // namespace

extern "C" {

int kvshm_copy_in(kvshm_arena* h, kvshm_handle b, uint64_t offset, const void* src, uint64_t n) {
  Call call(h);
  if (call.rc()) return call.rc();
  Arena& a = *call;
  if (int rc = check(a, b, offset, src, n)) return rc;
  if (!fills(a, b.id, b.seq))
    return misuse(a, holds_ready(a, b.id, b.seq) ? -KVSHM_ESTATE : -KVSHM_ENOTMINE);
  stream_copy(a.data + b.id * a.block_bytes + offset, src, n);
  a.count(kStat_copy_in_bytes_total, n);
  return 0;
}

int kvshm_copy_out(kvshm_arena* h, kvshm_handle b, uint64_t offset, void* dst, uint64_t n) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  Arena& a = *call;
  if (int rc = check(a, b, offset, dst, n)) return rc;
  if (!holds_ready(a, b.id, b.seq))
    return misuse(a, fills(a, b.id, b.seq) ? -KVSHM_ESTATE : -KVSHM_ENOTMINE);
  stream_copy(dst, a.data + b.id * a.block_bytes + offset, n);
  a.count(kStat_copy_out_bytes_total, n);
  return 0;
}

void kvshm_stream_copy(void* dst, const void* src, size_t n) { stream_copy(dst, src, n); }
const char* kvshm_stream_copy_variant(void) { return stream_copy_variant(); }
}
