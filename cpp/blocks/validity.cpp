// is_valid: the invariants, numbered as in docs/protocol.md. On a quiet arena none is broken; on a
// live one a cross-word invariant may look broken for a moment.
#include <fcntl.h>

#include <bit>
#include <cstdio>
#include <memory>
#include <new>

#include "arena/lock.hpp"
#include "arena/object.hpp"
#include "blocks/deadlines.hpp"
#include "blocks/sweep.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {

struct Checker {
  Arena& a;
  kvshm_broken_fn fn;
  void* user;
  std::int64_t broken = 0;
  std::unique_ptr<std::uint8_t[]> entries;  // committed entries per block, saturating
  word_t live = 0;

  void report(int invariant, std::uint32_t id, const char* what) {
    broken++;
    if (fn) fn(invariant, id, what, user);
  }

  void slots() {
    File f(open_object(a, O_RDONLY));
    for (unsigned s = 0; s < kSlots; s++) {
      const bool alive = !f || byte_locked(f.get(), life_byte(s)) == 1 || s == a.slot;
      if (alive) live |= holder_bit(s);
    }
  }

  void index() {
    for (std::uint64_t i = 0; i < a.nbuckets * kIndexWays; i++) {
      const std::uint64_t v = a.index[i].load(std::memory_order_acquire);
      if (!v) continue;
      const std::uint32_t id = entry::id(v);
      if (!a.in_range(id)) {
        report(3, kNone, "an index entry names no block");
        continue;
      }
      const Hot& h = a.hot[id];
      const word_t w = h.word.load(std::memory_order_acquire);
      if (v & entry::kTentative) {
        if (state(w) != kFilling || !(holders(w) & live))
          report(12, id, "a tentative entry without a live filler");
        continue;
      }
      if (entries[id] < 255) entries[id]++;
      const Key k = h.load_key();
      if (state(w) == kFree || k.none()) {
        report(3, id, "an index entry of a block without a key");
        continue;
      }
      const Spot s = spot_of(k, a.nbuckets);
      const std::uint64_t b = i / kIndexWays;
      if (entry::tag(v) != s.tag || (b != s.b1 && b != s.b2))
        report(3, id, "an index entry does not fit its block's key");
      rivals(s, i, v, k);
    }
  }

  // Another committed entry of the same key, counted once.
  void rivals(const Spot& s, std::uint64_t i, std::uint64_t v, Key k) {
    for (std::uint64_t b : {s.b1, s.b2})
      for (unsigned j = 0; j < kIndexWays; j++) {
        const std::uint64_t at = b * kIndexWays + j;
        const std::uint64_t o = a.index[at].load(std::memory_order_acquire);
        if (at <= i || !o || (o & entry::kTentative) || o == v || entry::tag(o) != s.tag) continue;
        if (a.in_range(entry::id(o)) && a.hot[entry::id(o)].load_key() == k)
          report(4, entry::id(o), "two index entries for one key");
      }
  }

  void block(std::uint32_t id) {
    const Hot& h = a.hot[id];
    const word_t w = h.word.load(std::memory_order_acquire), who = holders(w);
    const State s = state(w);
    const std::uint64_t seq = h.seq.load(std::memory_order_relaxed);
    const std::uint8_t flags = h.flags.load(std::memory_order_relaxed);
    if (s != kFree && s != kFilling && s != kReady && s != kEvicting && s != kReadyLast)
      report(1, id, "a state that does not exist");
    if (s == kFree && who) report(1, id, "FREE with holders");
    if ((s == kFilling || s == kReadyLast) && !who)
      report(1, id, "FILLING or READY_LAST without holder");
    if (s == kEvicting && std::popcount(who) != 1) report(1, id, "EVICTING without one holder");
    if ((w & kGenMask) != gen_bits(seq)) report(2, id, "generation is not the low bits of seq");
    if (is_ready(w)) {
      if (entries[id] > 1) report(5, id, "READY with more than one index entry");
      if ((flags & (kDuplicate | kPrivate)) && entries[id])
        report(5, id, "a duplicate or private block has an index entry");
      if ((flags & (kDuplicate | kPrivate)) && s != kReadyLast)
        report(5, id, "a duplicate or private block is not READY_LAST");
      if (h.load_key().none()) report(9, id, "READY without a key");
    }
    if (s == kEvicting) report(6, id, "EVICTING on a quiet arena");
    if (who & ~live) report(7, id, "held by a dead process");
    if (s == kFree && !h.load_key().none()) report(9, id, "FREE with a key");
    if (s == kFree && !(a.free_map[id / 64].load() >> (id % 64) & 1))
      report(10, id, "FREE without its bit in the free map");
    if (s != kFree && s != kEvicting) hints(id, h, flags);
    regions(id, who);
    if (is_ready(w) && (flags & kDuplicate)) duplicate(id, who);
  }

  // A claim between word and descriptor is over on a quiet arena, or was given back.
  void hints(std::uint32_t id, const Hot& h, std::uint8_t flags) {
    const std::uint32_t t = h.tenant.load(std::memory_order_relaxed);
    const std::uint8_t priority = h.priority.load(std::memory_order_relaxed);
    if (t >= kTenants ||
        !(a.sb->tenants_seen[t / 64].load(std::memory_order_relaxed) >> (t % 64) & 1))
      report(14, id, "its tenant is none that has blocks");
    if ((priority & ~kForAWhile) > kPinnedPriority) report(15, id, "a priority above 100");
    if ((flags & kMortal) && !a.cold[id].expires.load(std::memory_order_relaxed))
      report(15, id, "it is to expire, and nothing says when");
    if ((priority & kForAWhile) && !a.cold[id].calms.load(std::memory_order_relaxed))
      report(15, id, "its priority is to end, and nothing says when");
  }

  void regions(std::uint32_t id, word_t who) {
    const std::uint32_t r = id / kRegionBlocks;
    for (; who; who &= who - 1) {
      const unsigned s = unsigned(std::countr_zero(who));
      if (!(a.regions_of(s)[r / 64].load() >> (r % 64) & 1))
        report(11, id, "a holder without its region bit");
    }
  }

  void duplicate(std::uint32_t id, word_t who) {
    const std::uint32_t p = a.cold[id].primary.load(std::memory_order_relaxed);
    if (p == kNone) return;
    if (!a.in_range(p)) return report(13, id, "a duplicate's primary is no block");
    const word_t w = a.hot[p].word.load(std::memory_order_acquire);
    if (!is_ready(w) || (who & ~holders(w)) || !(a.hot[p].load_key() == a.hot[id].load_key()))
      report(13, id, "a duplicate's holders do not hold its primary");
  }
};

}  // namespace

std::int64_t check_arena(Arena& a, kvshm_broken_fn fn, void* user) {
  Checker c{
      a, fn, user, 0, std::unique_ptr<std::uint8_t[]>(new (std::nothrow) std::uint8_t[a.nblocks]()),
      0};
  if (!c.entries) return -ENOMEM;
  c.slots();
  c.index();
  for (std::uint32_t id = 0; id < a.nblocks; id++) c.block(id);
  kvshm_stats s{};
  count_blocks(a, &s);
  if (s.blocks_free + s.blocks_filling + s.blocks_held + s.blocks_inactive + s.blocks_evicting !=
      s.blocks_total)
    c.report(8, kNone, "used + free is not the total");
  return c.broken;
}

}  // namespace kvshm
