#include "evict/evict.hpp"

#include "blocks/tenants.hpp"
#include "evict/links.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::uint32_t kLookAtAll = 64, kMaxScan = 65536;
constexpr unsigned kRun = 8, kTries = 8;

// seq_cst: who waits for space has set its bit and looks once more (pairs with wake_space)
word_t look(const Hot& h) { return h.word.load(std::memory_order_seq_cst); }

// The best-scored of a sample, or kNone if nothing is evictable.
std::uint32_t candidate(Arena& a, const Policy& p, std::uint32_t step) {
  const std::uint32_t n = a.nblocks, now = a.sb->tick.load(kRelaxed);
  std::uint32_t best = kNone, spared = kNone, seen = 0, limit = n;
  Score best_score{}, spared_score{};
  auto next = [&](std::uint64_t at) { return at + step >= n ? at + step - n : at + step; };
  std::uint64_t& hand = a.evictor.hand;
  std::uint64_t ahead = hand;  // a sample is as many cache misses: keep some of them in flight
  for (int i = 0; i < 8; i++, ahead = next(ahead)) __builtin_prefetch(&a.hot[ahead]);
  for (std::uint32_t steps = 1; steps <= limit; steps++) {
    const std::uint32_t id = std::uint32_t(hand);
    hand = next(hand);
    __builtin_prefetch(&a.hot[ahead]);
    ahead = next(ahead);
    Hot& h = a.hot[id];
    if (!evictable(a, id)) continue;
    seen++;
    const Score s = score(a, p, id, now);
    word_t w = h.word.load(kRelaxed);
    if (p.second_chance && clock_of(w) && s.age != kOverAge) {
      KVSHM_STEP("evict.chance");
      h.word.compare_exchange_strong(w, w - (word_t{1} << kClockShift), std::memory_order_acq_rel);
      if (spared == kNone || s.worse_than(spared_score)) spared = id, spared_score = s;
    } else if (best == kNone || s.worse_than(best_score)) {
      best = id, best_score = s;
    }
    // Few evictable ones: look at all. Many: a sample will do.
    const std::uint64_t estimate = std::uint64_t{n} * seen / steps;
    if (seen >= p.sample && best != kNone && (estimate > kLookAtAll || steps >= kMaxScan)) break;
  }
  // A second chance is among equals: it does not spare who is above its share.
  if (best != kNone && spared != kNone &&
      spared_score.reluctance + kWithinShare / 2 < best_score.reluctance)
    return spared;
  return best != kNone ? best : spared;
}

// A kept leaf is taken only as it was seen: not used since, and still without a child.
bool still_leaf(Arena& a, const Kept& k) {
  const Hot& h = a.hot[k.id];
  return evictable(a, k.id) && h.stamp.load(kRelaxed) == k.stamp && first_child(a, k.id) == kNone;
}

// From a leaf upwards: blocks that become leaves and are no younger than the candidate. Up to 8 are
// claimed, up to 8 more are kept for the next eviction, the deepest to be taken first.
std::uint32_t take_run(Arena& a, const Over& over, std::uint32_t leaf, std::uint32_t from,
                       std::uint32_t n, std::uint32_t* ids) {
  const bool only_over = over.any && over.has(a.hot[from].tenant.load(kRelaxed));
  const std::uint32_t limit_stamp = a.hot[from].stamp.load(kRelaxed);
  std::uint32_t got = 0, x = leaf;
  Kept more[kRun];
  unsigned nmore = 0;
  while (a.in_range(x)) {
    Hot& h = a.hot[x];
    const std::uint32_t up = h.parent.load(kRelaxed), stamp = h.stamp.load(kRelaxed);
    if (only_over && !over.has(h.tenant.load(kRelaxed))) break;  // its chain goes on in another's
    if (got < n && got < kRun) {
      if (!claim_evictable(a, x)) break;
      ids[got++] = x;
    } else {
      if (nmore == kRun || !evictable(a, x)) break;
      more[nmore++] = {x, stamp};
    }
    if (!a.in_range(up) || std::int32_t(a.hot[up].stamp.load(kRelaxed) - limit_stamp) > 0) break;
    const std::uint32_t other = first_child(a, up);
    if (other != kNone && other != x) break;
    x = up;
  }
  while (nmore && a.evictor.nkept < kRun) a.evictor.kept[a.evictor.nkept++] = more[--nmore];
  return got;
}

}  // namespace

Score score(Arena& a, const Policy& p, std::uint32_t id, std::uint32_t now) {
  const Hot& h = a.hot[id];
  const std::uint32_t age = now - h.stamp.load(kRelaxed);
  const unsigned f = frequency(h.freq_depth.load(kRelaxed), a.sb->age_epoch.load(kRelaxed));
  const bool within = p.over.any && !p.over.has(h.tenant.load(kRelaxed));
  if (expired(a, id)) return {0, kOverAge};
  return {priority_now(a, id) + (within ? kWithinShare : 0), age >> p.shift[f]};
}

bool evictable(Arena& a, std::uint32_t id) {
  const Hot& h = a.hot[id];
  const word_t w = look(h);
  return state(w) == kReady && !holders(w) && !pinned(a, id);
}

bool claim_evictable(Arena& a, std::uint32_t id, bool any_priority) {
  Hot& h = a.hot[id];
  word_t w = look(h);
  if (state(w) != kReady || holders(w) || (!any_priority && pinned(a, id))) return false;
  a.enter_region(id);
  KVSHM_STEP("evict.claim");
  if (KVSHM_BROKEN(two_step_evict)) w = h.word.load(kRelaxed);
  // M:fill.2 M:core.5 M:aon.2 M:word.4 M:slots.5
  if (!h.word.compare_exchange_strong(w, with_state(w, kEvicting) | a.me,
                                      std::memory_order_acq_rel))
    return false;
  if (KVSHM_BROKEN(entries_early)) erase_entries(a, id, h.load_key());
  KVSHM_STEP("evict.claimed");
  return true;
}

void give_back_victim(Arena& a, std::uint32_t id) {
  Hot& h = a.hot[id];
  const word_t w = h.word.load(kRelaxed);
  KVSHM_STEP("evict.return");
  // seq_cst: pairs with look()
  // M:aon.3
  h.word.store(with_holders(with_state(w, kReady), 0), std::memory_order_seq_cst);
  KVSHM_STEP("evict.returned");
}

std::uint32_t hand_step(std::uint32_t n) {
  if (n < 3) return 1;
  std::uint32_t step = std::uint32_t(n * 0.6180339887) | 1;
  auto gcd = [](std::uint32_t x, std::uint32_t y) {
    while (y) {
      const std::uint32_t r = x % y;
      x = y;
      y = r;
    }
    return x;
  };
  while (gcd(step, n) != 1) step++;
  return step % n;
}

std::uint32_t claim_victims(Arena& a, std::uint32_t n, std::uint32_t* ids, bool* exhausted) {
  *exhausted = false;
  std::lock_guard<std::mutex> lock(a.evictor.mutex);
  std::uint32_t got = 0, id;
  std::uint64_t seq;
  while (got < n && pop_mark(a, &id, &seq)) {
    if (!a.in_range(id) || a.hot[id].seq.load(kRelaxed) != seq || !claim_evictable(a, id)) continue;
    if (a.hot[id].seq.load(kRelaxed) != seq)
      give_back_victim(a, id);  // reused between the two looks
    else
      ids[got++] = id;
  }
  Evictor& ev = a.evictor;
  const Over over = limits(a) ? over_share(a) : Over{};
  while (got < n && ev.nkept) {
    const Kept k = ev.kept[--ev.nkept];
    if (over.any && !over.has(a.hot[k.id].tenant.load(kRelaxed))) continue;
    if (still_leaf(a, k) && claim_evictable(a, k.id)) ids[got++] = k.id;
  }
  if (got == n) return got;
  Policy policy = read_policy(a);
  policy.over = over;
  const std::uint32_t step = hand_step(a.nblocks);
  if (ev.hand >= a.nblocks) ev.hand = 0;
  std::uint64_t steps = 0;
  for (unsigned failed = 0; got < n && failed < kTries;) {
    const std::uint32_t c = candidate(a, policy, step);
    if (c == kNone) {
      *exhausted = true;
      break;
    }
    const std::uint32_t leaf = walk_to_leaf(a, c, &steps);
    std::uint32_t more = leaf == kNone ? 0 : take_run(a, policy.over, leaf, c, n - got, ids + got);
    // A held leaf, or too long a chain, again and again: rather strand a tail than refuse.
    if (!more && ++failed >= kTries / 2 && claim_evictable(a, c)) ids[got] = c, more = 1;
    if (more) failed = 0;
    got += more;
  }
  a.count(kStat_evict_steps_total, steps);
  return got;
}

}  // namespace kvshm
