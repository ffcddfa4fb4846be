// The free map: one bit a block, one summary bit per 4096. A bit is a hint, the claim is the
// compare-and-swap on the word. Who dies between the two leaves a missing hint; scrub sets it
// again.
#include <bit>

#include "blocks/alloc.hpp"
#include "blocks/close.hpp"

namespace kvshm {
namespace {

constexpr std::uint32_t kRegionWords = kRegionBlocks / 64;

bool claim_one(Arena& a, std::uint32_t id) {
  Hot& h = a.hot[id];
  word_t w = h.word.load(std::memory_order_relaxed);
  if (state(w) != kFree) return false;
  KVSHM_STEP("alloc.claim");
  // M:fill.1 M:pending.1 M:aon.1 M:counts.1 M:freemap.4 M:slots.5
  return h.word.compare_exchange_strong(w, with_state(w, kFilling) | a.me,
                                        std::memory_order_acq_rel);
}

// The region looks empty: drop its summary bit, then look again (pairs with mark_free).
void summarize_empty(Arena& a, std::uint32_t region) {
  auto& s = a.summary[region / 64];
  const std::uint64_t bit = std::uint64_t{1} << (region % 64);
  KVSHM_STEP("free.unsummarize");
  // M:freemap.6
  s.fetch_and(~bit, std::memory_order_seq_cst);
  KVSHM_STEP("free.unsummarized");
  if (KVSHM_BROKEN(no_second_look)) return;
  // M:freemap.6
  summarize(a, region);
}

std::uint32_t claim_in_region(Arena& a, std::uint32_t region, std::uint32_t start, std::uint32_t n,
                              std::uint32_t* ids) {
  std::uint32_t got = 0;
  bool empty = true;
  // Before the first bit goes: who dies after it leaves a hint missing that only scrub finds.
  // M:freemap.2
  a.enter_region(region * kRegionBlocks);
  for (std::uint32_t i = 0; i < kRegionWords && got < n; i++) {
    const std::uint32_t at = region * kRegionWords + (start + i) % kRegionWords;
    auto& map = a.free_map[at];
    // relaxed: who finds too little looks again in summarize(), in order, and is tried once more
    std::uint64_t bits = map.load(std::memory_order_relaxed);
    while (bits && got < n) {
      const std::uint32_t id = at * 64 + std::uint32_t(std::countr_zero(bits));
      const std::uint64_t bit = bits & -bits;
      bits ^= bit;
      KVSHM_STEP("alloc.unmap");
      // M:freemap.3
      if (!(map.fetch_and(~bit, std::memory_order_acq_rel) & bit)) continue;  // taken meanwhile
      KVSHM_STEP("alloc.unmapped");
      if (a.in_range(id) && claim_one(a, id)) {
        KVSHM_STEP("alloc.claimed");
        ids[got++] = id;
        a.free_cursor.store(id, std::memory_order_relaxed);
      }
    }
    if (bits) empty = false;
  }
  if (got < n && empty) summarize_empty(a, region);
  return got;
}

}  // namespace

std::uint32_t claim_free(Arena& a, std::uint32_t n, std::uint32_t* ids) {
  const std::uint32_t regions = (a.nblocks + kRegionBlocks - 1) / kRegionBlocks;
  const std::uint32_t cursor = a.free_cursor.load(std::memory_order_relaxed);
  const std::uint32_t first = cursor / kRegionBlocks % regions;
  std::uint32_t got = 0;
  for (std::uint32_t i = 0; i < regions && got < n; i++) {
    const std::uint32_t r = (first + i) % regions;
    // M:freemap.1
    const std::uint64_t s = a.summary[r / 64].load(std::memory_order_seq_cst);
    if (!(s >> (r % 64) & 1)) continue;
    const std::uint32_t start = i ? 0 : cursor % kRegionBlocks / 64;
    got += claim_in_region(a, r, start, n - got, ids + got);
  }
  return got;
}

void unclaim_free(Arena& a, std::uint32_t n, const std::uint32_t* ids) {
  for (std::uint32_t i = n; i-- > 0;) {
    Hot& h = a.hot[ids[i]];
    KVSHM_STEP("alloc.rollback");
    word_t w = h.word.load(std::memory_order_acquire);
    // Nobody was told, but kvshm_handle_of names the seq of a coming life: who joined stays alone.
    for (;;) {
      const word_t others = holders(w) & ~a.me;
      const word_t to = others ? with_holders(w, others) : with_state(w, kEvicting);
      // M:fill.16 M:aon.4
      if (!h.word.compare_exchange_weak(w, to, std::memory_order_acq_rel,
                                        std::memory_order_acquire))
        continue;
      KVSHM_STEP("alloc.unclaimed");
      // Its tenant was charged for the claim as a whole, and is paid back so.
      if (!others) close_block(a, ids[i], false);
      break;
    }
  }
}

bool claim_at(Arena& a, std::uint32_t id) {
  const std::uint64_t bit = std::uint64_t{1} << (id % 64);
  a.enter_region(id);
  KVSHM_STEP("run.unmap");
  if (!(a.free_map[id / 64].fetch_and(~bit, std::memory_order_acq_rel) & bit)) return false;
  if (!claim_one(a, id)) return false;
  KVSHM_STEP("run.claimed");
  return true;
}

bool claim_run(Arena& a, std::uint32_t n, std::uint32_t* ids) {
  std::uint32_t run = 0;
  for (std::uint32_t id = 0; id < a.nblocks; id++) {
    const std::uint64_t bits = a.free_map[id / 64].load(std::memory_order_relaxed);
    if (!bits) {
      run = 0;
      id |= 63;
      continue;
    }
    run = bits >> (id % 64) & 1 ? run + 1 : 0;
    if (run < n) continue;
    std::uint32_t got = 0;
    for (; got < n; got++) {
      const std::uint32_t at = id - n + 1 + got;
      if (!claim_at(a, at)) break;
      ids[got] = at;
    }
    if (got == n) return true;
    unclaim_free(a, got, ids);
    run = 0;
  }
  return false;
}

}  // namespace kvshm
