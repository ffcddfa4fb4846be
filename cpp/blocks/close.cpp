#include "blocks/close.hpp"

#include "blocks/futex.hpp"
#include "blocks/tenants.hpp"
#include "index/index.hpp"

namespace kvshm {

void end_life(Arena& a, std::uint32_t id, bool counted) {
  Hot& h = a.hot[id];
  if (counted)
    discharge(a, h);
  else
    h.priority.store(0, std::memory_order_relaxed);  // of a pin that was not counted
  KVSHM_STEP("close.erase");
  // M:core.6 M:index.6
  erase_entries(a, id, h.load_key());
  KVSHM_STEP("close.erased");
  // M:core.7 M:index.7 M:pending.3
  if (!KVSHM_BROKEN(key_not_zeroed)) h.store_key({});
  // Before FREE: who joins the next life by a guessed handle, before its allocator has reset the
  // descriptor, must not find it ANNOUNCED and publish what is left of this one.
  h.flags.store(0, std::memory_order_relaxed);
  KVSHM_STEP("close.unkeyed");
  // release: who reads the new seq sees key 0 or the next life's key, never the old one
  // M:fill.3 M:fill.17 M:pending.3
  h.seq.store(h.seq.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  KVSHM_STEP("close.seq");
}

void close_block(Arena& a, std::uint32_t id, bool counted) {
  Hot& h = a.hot[id];
  end_life(a, id, counted);
  // seq_cst: a waiter of this fill sees it, or wake_fill sees the waiter's bit
  // M:fill.18 M:core.14 M:freemap.5
  h.word.store(make_word(h.seq.load(std::memory_order_relaxed), kFree, 0),
               std::memory_order_seq_cst);
  KVSHM_STEP("close.free");
  // M:freemap.5
  mark_free(a, id);
  wake_fill(a, id);
  wake_space(a);
}

void mark_free(Arena& a, std::uint32_t id) {
  KVSHM_STEP("free.mark");
  // seq_cst, bit before summary: pairs with claim_free, which clears the summary and looks again
  a.free_map[id / 64].fetch_or(std::uint64_t{1} << (id % 64), std::memory_order_seq_cst);
  KVSHM_STEP("free.bit");
  const std::uint32_t r = id / kRegionBlocks;
  const std::uint64_t bit = std::uint64_t{1} << (r % 64);
  auto& s = a.summary[r / 64];
  if (s.load(std::memory_order_seq_cst) & bit) return;
  KVSHM_STEP("free.summary");
  s.fetch_or(bit, std::memory_order_seq_cst);
}

void summarize(Arena& a, std::uint32_t region) {
  constexpr std::uint32_t kWords = kRegionBlocks / 64;
  const std::uint64_t bit = std::uint64_t{1} << (region % 64);
  for (std::uint32_t i = region * kWords; i < (region + 1) * kWords; i++)
    if (a.free_map[i].load(std::memory_order_seq_cst)) {
      KVSHM_STEP("free.summarize");
      a.summary[region / 64].fetch_or(bit, std::memory_order_seq_cst);
      return;
    }
}

void wake_fill(Arena& a, std::uint32_t id) {
  auto& fut = a.hot[id].fut;
  // A waiter sets bit 0, looks once more at the word, then sleeps: it sees our store or we its bit.
  // M:wait.6
  if (!(fut.load(std::memory_order_seq_cst) & 1)) return;
  KVSHM_STEP("wake.fill");
  // M:wait.7
  fut.fetch_add(2, std::memory_order_seq_cst);
  KVSHM_STEP("wake.fill_counted");
  // M:wait.8
  fut.fetch_and(~1u, std::memory_order_seq_cst);
  KVSHM_STEP("wake.fill_cleared");
  // M:wait.9
  futex_wake_all(&fut);
}

void wake_space(Arena& a) {
  auto& space = a.sb->space;
  // A waiter sets bit 0, tries again, then sleeps: it sees our block or we see its bit.
  // M:wait.6
  if (!(space.load(std::memory_order_seq_cst) & 1)) return;
  KVSHM_STEP("wake.space");
  // M:wait.7
  space.fetch_add(2, std::memory_order_seq_cst);
  KVSHM_STEP("wake.space_counted");
  // M:wait.8
  space.fetch_and(~1u, std::memory_order_seq_cst);
  KVSHM_STEP("wake.space_cleared");
  // M:wait.9
  futex_wake_all(&space);
}

}  // namespace kvshm
