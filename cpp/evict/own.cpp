// SPDX-License-Identifier: Apache-2.0
#include "evict/own.hpp"

#include <algorithm>

#include "evict/choose.hpp"
#include "evict/evict.hpp"
#include "evict/links.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::uint32_t kEnough = 1024;    // seen: the best of them will do
constexpr std::uint32_t kMaxLook = 65536;  // in vain, once some were seen; the next look goes on

std::uint32_t tenant_of(const Arena& a, std::uint32_t id) {
  return a.hot[id].tenant.load(kRelaxed);
}

// Best first: the next to go stands at the end.
void look_around(Arena& a, std::uint32_t tenant) {
  struct Seen {
    Score score;
    Kept kept;
  } best[OwnKept::kRoom];
  const auto better = [](const Seen& x, const Seen& y) { return x.score.worse_than(y.score); };
  Evictor& ev = a.evictor;
  const Policy policy = read_policy(a);
  const std::uint32_t n = a.nblocks, now = a.sb->tick.load(kRelaxed);
  Hand hand(a);
  unsigned kept = 0;
  std::uint32_t seen = 0;
  for (std::uint32_t i = 0; i < n && seen < kEnough && !(seen && i > kMaxLook); i++) {
    const std::uint32_t id = hand.next();
    if (tenant_of(a, id) != tenant || !evictable(a, id)) continue;
    seen++;
    const Hot& h = a.hot[id];
    const Seen s{score(a, policy, id, now), {id, h.stamp.load(kRelaxed)}};
    // A heap with the least willing on top, which goes when a better one comes.
    if (kept == OwnKept::kRoom) {
      if (!better(s, best[0])) continue;
      std::pop_heap(best, best + kept--, better);
    }
    best[kept++] = s;
    std::push_heap(best, best + kept, better);
  }
  std::sort_heap(best, best + kept, better);  // best first
  ev.own.tenant = tenant;
  ev.own.n = kept;
  for (unsigned i = 0; i < kept; i++) ev.own.list[kept - 1 - i] = best[i].kept;
}

// The leaf below it, if that is the tenant's own; else, where nothing better is left, itself.
std::uint32_t claim_below(Arena& a, std::uint32_t tenant, std::uint32_t id, bool strand,
                          std::uint64_t* steps) {
  const std::uint32_t leaf = walk_to_leaf(a, id, steps);
  if (leaf != kNone && tenant_of(a, leaf) == tenant && claim_evictable(a, leaf)) return leaf;
  return strand && claim_evictable(a, id) ? id : kNone;
}

}  // namespace

std::uint32_t claim_own(Arena& a, std::uint32_t tenant, std::uint32_t n, std::uint32_t* ids) {
  std::lock_guard<std::mutex> lock(a.evictor.mutex);
  OwnKept& own = a.evictor.own;
  if (own.tenant != tenant) own.n = 0;
  std::uint32_t got = 0;
  std::uint64_t steps = 0;
  for (int looks = 0; got < n; looks++) {
    const std::uint32_t before = got;
    for (int strand = 0; strand < 2 && got < n; strand++) {
      Kept passed[OwnKept::kRoom];  // looked at in vain, the next to go last
      unsigned npassed = 0;
      while (got < n && own.n) {
        const Kept k = own.list[--own.n];
        const bool as_seen = tenant_of(a, k.id) == tenant && evictable(a, k.id) &&
                             a.hot[k.id].stamp.load(kRelaxed) == k.stamp;
        if (!as_seen) continue;
        const std::uint32_t id = claim_below(a, tenant, k.id, strand, &steps);
        if (id == kNone)
          passed[npassed++] = k;
        else
          ids[got++] = id;
        if (id != kNone && id != k.id) own.n++;  // what is above that leaf comes next
      }
      while (npassed) own.list[own.n++] = passed[--npassed];
    }
    if (got == n || (looks > 2 && got == before)) break;
    look_around(a, tenant);
    if (!own.n) break;
  }
  a.count(kStat_evict_steps_total, steps);
  return got;
}

}  // namespace kvshm
