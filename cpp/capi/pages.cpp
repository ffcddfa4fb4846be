#include "device/pages.hpp"

#include <errno.h>

#include <new>

#include "blocks/counts.hpp"
#include "blocks/registration.hpp"
#include "capi/call.hpp"
#include "capi/offers.hpp"
#include "device/cuda_copy.hpp"
#include "device/pin.hpp"

using namespace kvshm;

namespace {

enum class Way { kIn, kOut };  // into blocks, out of them

int check_call(const Arena& a, const kvshm_pages& p, std::uint32_t part) {
  if (p.memory > KVSHM_MEMORY_CUDA)
    return fail(-EINVAL, "memory %u: wanted KVSHM_MEMORY_...", p.memory);
  if (part >= KVSHM_MAX_PARTS) return fail(-EINVAL, "part %u: at most %d", part, KVSHM_MAX_PARTS);
  if (int rc = check_runs(p)) return rc;
  // In this order nothing overflows.
  if (p.slice_bytes > a.block_bytes || (part + 1) > a.block_bytes / p.slice_bytes)
    return fail(-ERANGE, "part %u of %llu bytes reaches beyond the block of %llu", part,
                (unsigned long long)p.slice_bytes, (unsigned long long)a.block_bytes);
  return 0;
}

char* slice_of(const Arena& a, const kvshm_pages& p, kvshm_handle h, std::uint32_t part) {
  return reinterpret_cast<char*>(a.data) + std::uint64_t(h.id) * a.block_bytes +
         part * p.slice_bytes;
}

int check_held(Arena& a, kvshm_handle h) {
  if (holds_ready(a, h.id, h.seq)) return 0;
  return fills(a, h.id, h.seq) ? -KVSHM_ESTATE : -KVSHM_ENOTMINE;
}

// Everything that can be said before the first byte.
int admit(Arena& a, const kvshm_pages& p, kvshm_handle h, std::uint32_t row, std::uint32_t part,
          Way way) {
  if (int rc = check_handle(a, h)) return rc;
  if (row >= p.rows) return fail(-ERANGE, "row %u: the engine has %u", row, p.rows);
  return misuse(a, way == Way::kIn ? begin_part(a, h, part) : check_held(a, h));
}

struct Batch {
  const kvshm_pages& p;
  const kvshm_handle* h;
  const std::uint32_t* rows;
  std::uint32_t n, part;
  std::int32_t* codes;
};

void copy_host(Arena& a, const Batch& b, Way way) {
  const RowCopies copies(b.p, b.n);
  for (std::uint32_t i = 0; i < b.n; i++) {
    const kvshm_handle h = b.h[i];
    const std::uint32_t row = b.rows[i];
    b.codes[i] = admit(a, b.p, h, row, b.part, way);
    if (b.codes[i]) continue;
    char* slice = slice_of(a, b.p, h, b.part);
    if (way == Way::kIn) {
      copies.in(row, slice, i + 1 < b.n ? b.rows[i + 1] : KVSHM_NONE);
    } else {
      copies.out(row, slice);
      // Another thread may have given the block back meanwhile: then these may be another's bytes.
      b.codes[i] = misuse(a, check_held(a, h));
    }
  }
}

int copy_device(Arena& a, const Batch& b, Way way) {
  CudaCopies copies;
  if (int rc = copies.open(b.p)) return rc;
  std::vector<CudaRow> list;
  std::vector<std::uint32_t> blocks;
  list.reserve(b.n), blocks.reserve(b.n);
  for (std::uint32_t i = 0; i < b.n; i++) {
    b.codes[i] = admit(a, b.p, b.h[i], b.rows[i], b.part, way);
    if (b.codes[i]) continue;
    list.push_back({b.rows[i], i, slice_of(a, b.p, b.h[i], b.part)});
    blocks.push_back(b.h[i].id);
  }
  copies.enqueue(b.p, list, way == Way::kIn, a.pin->holds_cuda(blocks), b.codes);
  return 0;
}

std::uint64_t bytes_of(const kvshm_pages& p) {
  std::uint64_t n = 0;
  for (std::uint32_t i = 0; i < p.nruns; i++) n += p.runs[i].bytes;
  return n;
}

std::int64_t done_of(const std::int32_t* codes, std::uint32_t n) {
  std::int64_t done = 0;
  for (std::uint32_t i = 0; i < n; i++) done += codes[i] == 0;
  return done;
}

std::int64_t copy(Arena& a, const Batch& b, Way way) {
  int rc = check_call(a, b.p, b.part);
  try {
    if (!rc && b.p.memory == KVSHM_MEMORY_HOST)
      copy_host(a, b, way);
    else if (!rc)
      rc = copy_device(a, b, way);
  } catch (const std::bad_alloc&) {
    rc = fail(-ENOMEM, "out of memory");
  }
  for (std::uint32_t i = 0; rc && i < b.n; i++) b.codes[i] = rc;
  if (rc) return rc;
  const std::int64_t done = done_of(b.codes, b.n);
  a.count(way == Way::kIn ? kStat_copy_in_bytes_total : kStat_copy_out_bytes_total,
          std::uint64_t(done) * bytes_of(b.p));
  return done;
}

// `stored`: codes[i] of the store before it. What did not get in must not arrive.
int finish_one(Arena& a, kvshm_handle h, std::uint32_t part, int stored) {
  if (stored) return stored < 0 ? stored : -EINVAL;
  if (int rc = arrive_part(a, h, part)) return misuse(a, rc);
  const int rc = publish(a, h);
  return rc == -KVSHM_EPART ? KVSHM_PAGES_WAITS : misuse(a, rc);
}

}  // namespace

extern "C" {

int64_t kvshm_pages_prepare(kvshm_run* runs, uint32_t n, uint32_t rows, uint64_t slice_bytes,
                            uint32_t* bad) {
  forget_error();
  uint32_t unwanted;
  if (n && !runs) return -EINVAL;
  try {
    return prepare_runs(runs, n, rows, slice_bytes, bad ? bad : &unwanted);
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

int kvshm_pages_check(const kvshm_pages* p, int writing, uint32_t* bad) {
  forget_error();
  uint32_t unwanted;
  if (int rc = check_size(p)) return rc;
  if (int rc = check_runs(*p)) return rc;
  if (p->memory != KVSHM_MEMORY_HOST) return fail(-EINVAL, "this memory is a device's");
  try {
    return check_mapped(*p, writing != 0, bad ? bad : &unwanted);
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

int64_t kvshm_pages_store(kvshm_arena* h, const kvshm_pages* p, const kvshm_handle* b,
                          const uint32_t* rows, uint32_t n, uint32_t part, int32_t* codes) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check_size(p)) return rc;
  if (n && (!b || !rows || !codes)) return -EINVAL;
  return copy(*call, {*p, b, rows, n, part, codes}, Way::kIn);
}

int64_t kvshm_pages_load(kvshm_arena* h, const kvshm_pages* p, const kvshm_handle* b,
                         const uint32_t* rows, uint32_t n, uint32_t part, int32_t* codes) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (int rc = check_size(p)) return rc;
  if (n && (!b || !rows || !codes)) return -EINVAL;
  return copy(*call, {*p, b, rows, n, part, codes}, Way::kOut);
}

int64_t kvshm_pages_finish(kvshm_arena* h, const kvshm_handle* b, uint32_t n, uint32_t part,
                           int32_t* codes) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (n && (!b || !codes)) return -EINVAL;
  Arena& a = *call;
  // Removed meanwhile: nobody finds its blocks any more, and what is held is only given back.
  const bool dead = a.sb->dead.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < n; i++) {
    if (int rc = check_handle(a, b[i]))
      codes[i] = rc;
    else
      codes[i] = dead ? -ESTALE : finish_one(a, b[i], part, codes[i]);
    if (codes[i] == 0) offer_to_tier(h, &b[i], 1);
  }
  Ticks ticks(a, n);
  std::int64_t fine = 0;
  for (uint32_t i = n; i-- > 0;) {  // tail first, as kvshm_drop
    const int rc = check_handle(a, b[i]) ? 0 : misuse(a, leave_fill(a, b[i], ticks));
    if (rc && codes[i] >= 0) codes[i] = rc;
    fine += codes[i] >= 0;
  }
  offer_released(h, b, n);
  return fine;
}
}
