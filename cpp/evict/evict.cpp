#include "evict/evict.hpp"

#include "blocks/tenants.hpp"
#include "evict/choose.hpp"
#include "evict/links.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr unsigned kRun = 8, kTries = 8;

// A kept leaf is taken only as it was seen: not used since, and still without a child.
bool still_leaf(Arena& a, const Kept& k) {
  const Hot& h = a.hot[k.id];
  return evictable(a, k.id) && h.stamp.load(kRelaxed) == k.stamp && first_child(a, k.id) == kNone;
}

// From a leaf upwards: blocks that become leaves and are no younger than the candidate. Up to 8 are
// claimed, up to 8 more are kept for the next eviction, the deepest to be taken first.
std::uint32_t take_run(Arena& a, const Policy& p, std::uint32_t leaf, std::uint32_t from,
                       std::uint32_t n, std::uint32_t* ids) {
  const Over& over = p.over;
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
    if (!a.in_range(up)) break;
    const std::uint32_t other = first_child(a, up);
    if (other != kNone && other != x) break;
    // Leaves go in the order in which they became one: now, behind all others.
    if (p.leaf_queue) a.hot[up].stamp.store(a.sb->tick.fetch_add(1, kRelaxed) + 1, kRelaxed);
    if (std::int32_t(a.hot[up].stamp.load(kRelaxed) - limit_stamp) > 0) break;
    x = up;
  }
  while (nmore && a.evictor.nkept < kRun) a.evictor.kept[a.evictor.nkept++] = more[--nmore];
  return got;
}

}  // namespace

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

std::uint32_t claim_victims(Arena& a, std::uint32_t n, std::uint32_t* ids, bool* exhausted) {
  *exhausted = false;
  std::lock_guard<std::mutex> lock(a.evictor.mutex);
  std::uint32_t got = 0, id;
  std::uint64_t seq;
  while (got < n && pop_mark(a, &id, &seq)) {
    if (!claim_evictable(a, id)) continue;
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
  Few few;
  std::uint64_t steps = 0;
  ev.looks = 0;
  for (unsigned failed = 0; got < n && failed < kTries;) {
    const std::uint32_t c = candidate(a, policy, few);
    if (c == kNone) {
      *exhausted = true;
      break;
    }
    const std::uint32_t leaf = walk_to_leaf(a, c, &steps);
    std::uint32_t more = leaf == kNone ? 0 : take_run(a, policy, leaf, c, n - got, ids + got);
    // A held leaf, or too long a chain, again and again: rather strand a tail than refuse.
    if (!more && ++failed >= kTries / 2 && claim_evictable(a, c)) ids[got] = c, more = 1;
    if (more) failed = 0;
    got += more;
  }
  a.count(kStat_evict_steps_total, steps);
  if (got) a.count(kStat_evict_looks_total, ev.looks);
  return got;
}

}  // namespace kvshm
