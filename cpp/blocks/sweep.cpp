#include "blocks/sweep.hpp"

#include "blocks/close.hpp"
#include "blocks/counts.hpp"
#include "evict/evict.hpp"
#include "evict/ghost.hpp"
#include "evict/links.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {

// EVICTING{me} -> FREE, counted.
void remove_claimed(Arena& a, std::uint32_t id, std::uint32_t now) {
  unlink_head(a, id);
  keep_ghost(a, id, Gone::kRemoved, now);
  close_block(a, id);
  a.count(kStat_removed_total);
}

}  // namespace

std::uint64_t evict_all(Arena& a) {
  const std::uint32_t now = arena_seconds(a);
  std::uint64_t n = 0;
  for (std::uint32_t id = 0; id < a.nblocks; id++) {
    if (!claim_evictable(a, id, true)) continue;
    remove_claimed(a, id, now);
    n++;
  }
  return n;
}

bool evict_key(Arena& a, Key key) {
  const Found f = lookup(a, key, false, true);  // held for a moment
  if (f.how != Take::kHeld) return false;
  const std::uint64_t seq = a.hot[f.id].seq.load(std::memory_order_relaxed);
  give_back(a, f.id);
  return evict_life(a, {seq, f.id, 0});
}

bool evict_life(Arena& a, kvshm_handle b) {
  // Meanwhile somebody may hold, evict or refill it: the claim or the life number says so.
  if (!claim_evictable(a, b.id, true)) return false;
  if (a.hot[b.id].seq.load(std::memory_order_relaxed) != b.seq) {
    give_back_victim(a, b.id);
    return false;
  }
  remove_claimed(a, b.id, arena_seconds(a));
  return true;
}

void count_blocks(const Arena& a, kvshm_stats* out) {
  out->blocks_total = a.nblocks;
  for (std::uint32_t id = 0; id < a.nblocks; id++) {
    const word_t w = a.hot[id].word.load(std::memory_order_relaxed);
    switch (state(w)) {
      case kFree:
        out->blocks_free++;
        break;
      case kFilling:
        out->blocks_filling++;
        break;
      case kEvicting:
        out->blocks_evicting++;
        break;
      default:
        ++(holders(w) ? out->blocks_held : out->blocks_inactive);
    }
  }
  for (unsigned s = 0; s < kSlots; s++)
    out->slots_used += a.slots[s].used.load(std::memory_order_relaxed) != 0;
}

}  // namespace kvshm
