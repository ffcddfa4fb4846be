// SPDX-License-Identifier: Apache-2.0
// The scorer: which block of a sample goes, by the policy table.
#include "evict/choose.hpp"

#include "evict/touches.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::uint32_t kLookAtAll = Few::kRoom, kMaxScan = 65536;

// Those that an earlier look found and that are evictable still. False: there is none.
template <class See>
bool look_again(Arena& a, Few& few, See see) {
  std::uint32_t left = 0;
  a.evictor.looks += few.n;
  for (std::uint32_t i = 0; i < few.n; i++) {
    const std::uint32_t id = few.ids[i];
    if (!evictable(a, id)) continue;
    few.ids[left++] = id;
    see(id, a.hot[id]);
  }
  few.n = left;
  return left;
}

// Looks along the hand at evictable blocks until `see` has seen enough of them.
template <class See>
void look_along(Arena& a, const Policy& p, Few& few, See see) {
  if (look_again(a, few, see)) return;
  const std::uint32_t n = a.nblocks;
  Hand hand(a);
  std::uint32_t seen = 0, steps = 1;
  bool chosen = false;
  for (; steps <= n; steps++) {
    const std::uint32_t id = hand.next();
    if (!evictable(a, id)) continue;
    if (seen < Few::kRoom) few.ids[seen] = id;
    seen++;
    chosen |= see(id, a.hot[id]);
    // Few evictable ones: look at all. Many: a sample will do.
    const std::uint64_t estimate = std::uint64_t{n} * seen / steps;
    if (seen >= p.sample && chosen && (estimate > kLookAtAll || steps >= kMaxScan)) break;
  }
  if (steps > n && seen <= Few::kRoom) few.n = seen;
  a.evictor.looks += steps < n ? steps : n;
}

// M's bit in the flags: a hint of s3fifo alone.
bool in_main(const Hot& h) { return h.flags.load(kRelaxed) & kMain; }

void clear_clock(Hot& h) {
  word_t w = h.word.load(kRelaxed);
  KVSHM_STEP("evict.chance");
  h.word.compare_exchange_strong(w, w & ~kClockMask, std::memory_order_acq_rel);
}

// The queues of S3-FIFO (Yang et al., SOSP'23), each in the order of stamps, of which a sample is
// seen: what was used in the small one moves to the main one, what was used in the main one begins
// it again, and the oldest unused one of a queue goes. All in one queue it is CLOCK (Corbato 1968): a
// second chance is another turn.
std::uint32_t of_queues(Arena& a, const Policy& p, Few& few) {
  struct Oldest {
    std::uint32_t id = kNone, age = 0;
    void take(std::uint32_t i, std::uint32_t a) {
      if (id == kNone || a > age) id = i, age = a;
    }
  } unused[2], used[2];
  const bool one = p.small >= 1024;
  std::uint32_t count[2] = {0, 0}, ids[64], nids = 0, over_age = kNone, least = ~std::uint32_t{0};
  const std::uint32_t now = a.sb->tick.load(kRelaxed);
  look_along(a, p, few, [&](std::uint32_t id, Hot& h) {
    const bool main = !one && in_main(h), was_used = clock_of(h.word.load(kRelaxed));
    count[main]++;
    const Score s = score(a, p, id, now);
    if (s.age == kOverAge) return over_age = id, true;
    if (s.reluctance > least) return true;  // the queues are of the least reluctant ones
    if (s.reluctance < least) {
      least = s.reluctance;
      for (Oldest* o : {unused, unused + 1, used, used + 1}) *o = {};
    }
    (was_used ? used : unused)[main].take(id, age_of(now, h.stamp.load(kRelaxed)));
    if (was_used && nids < 64) ids[nids++] = id;
    return !was_used;
  });
  const std::uint32_t total = count[0] + count[1];
  if (!total) return kNone;
  if (over_age != kNone) return over_age;
  unsigned& share = a.evictor.small_share;  // over some 16 samples
  share = share - share / 16 + count[0] * 64 / total;
  bool from = !one && share <= p.small;  // true: from the main queue
  if (unused[from].id == kNone && used[from].id == kNone) from = !from;
  for (std::uint32_t i = 0; i < nids; i++) {
    Hot& h = a.hot[ids[i]];
    if ((!one && in_main(h) != from) || age_of(now, h.stamp.load(kRelaxed)) <= unused[from].age)
      continue;
    clear_clock(h);
    if (!from && !one) {
      KVSHM_STEP("evict.promote");
      h.flags.fetch_or(kMain, kRelaxed);
    }
    h.stamp.store(now, kRelaxed);
  }
  if (unused[from].id != kNone) return unused[from].id;
  return unused[!from].id != kNone ? unused[!from].id : used[from].id;
}

std::uint32_t of_scores(Arena& a, const Policy& p, Few& few) {
  std::uint32_t best = kNone, spared = kNone;
  Score best_score{}, spared_score{};
  const std::uint32_t now = a.sb->tick.load(kRelaxed);
  look_along(a, p, few, [&](std::uint32_t id, Hot& h) {
    const Score s = score(a, p, id, now);
    word_t w = h.word.load(kRelaxed);
    if (p.second_chance && clock_of(w) && s.age != kOverAge) {
      KVSHM_STEP("evict.chance");
      h.word.compare_exchange_strong(w, w - (word_t{1} << kClockShift), std::memory_order_acq_rel);
      if (spared == kNone || s.worse_than(spared_score)) spared = id, spared_score = s;
    } else if (best == kNone || s.worse_than(best_score)) {
      best = id, best_score = s;
    }
    return best != kNone;
  });
  // A second chance is among equals: it does not spare who is above its share.
  if (best != kNone && spared != kNone &&
      spared_score.reluctance + kWithinShare / 2 < best_score.reluctance)
    return spared;
  return best != kNone ? best : spared;
}

}  // namespace

Score score(Arena& a, const Policy& p, std::uint32_t id, std::uint32_t now) {
  const Hot& h = a.hot[id];
  const std::uint32_t age = age_of(now, h.stamp.load(kRelaxed));
  if (expired(a, id)) return {0, kOverAge};
  const bool within = p.over.any && !p.over.has(h.tenant.load(kRelaxed));
  const std::uint32_t reluctance =
      (within ? kWithinShare : 0) + (std::uint32_t{priority_now(a, id)} << kPriorityShift);
  // The count as it stands: ageing it here, too, would forget twice.
  const unsigned uses = uses_of(h.freq_depth.load(kRelaxed));
  if (p.young && !p.rank[uses]) {
    // Admission: of what was hardly used the youngest goes, past its first moments.
    if (age > p.young) return {reluctance, kOverAge - 1 - age};
    return {reluctance + 1, age};
  }
  return {reluctance + p.rank[uses], age >> p.shift[uses]};
}

// seq_cst: who waits for space has set its bit and looks once more (pairs with wake_space)
word_t look(const Hot& h) { return h.word.load(std::memory_order_seq_cst); }

bool evictable(Arena& a, std::uint32_t id) {
  const word_t w = look(a.hot[id]);
  return state(w) == kReady && !holders(w) && !pinned(a, id);
}

std::uint32_t candidate(Arena& a, const Policy& p, Few& few) {
  return p.queues ? of_queues(a, p, few) : of_scores(a, p, few);
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

Hand::Hand(Arena& a) : hot_(a.hot), at_(a.evictor.hand), n_(a.nblocks) {
  if (!a.evictor.step) a.evictor.step = hand_step(n_);
  step_ = a.evictor.step;
  ahead_ = at_;
  for (int i = 0; i < 16; i++, advance(&ahead_)) __builtin_prefetch(&hot_[ahead_]);
}

std::uint32_t Hand::next() {
  const auto id = std::uint32_t(at_);
  advance(&at_);
  __builtin_prefetch(&hot_[ahead_]);
  advance(&ahead_);
  return id;
}

}  // namespace kvshm
