#include <cstddef>

#include "index/index.hpp"

namespace kvshm {
namespace {

// Position of an entry among the sixteen of its key: also its rank.
struct Ways {
  std::atomic<std::uint64_t>* e[2 * kIndexWays];
  unsigned n;
  Ways(Arena& a, const Spot& s) : n(s.b1 == s.b2 ? kIndexWays : 2 * kIndexWays) {
    for (unsigned i = 0; i < kIndexWays; i++) {
      e[i] = a.index + s.b1 * kIndexWays + i;
      e[i + kIndexWays] = a.index + s.b2 * kIndexWays + i;
    }
  }
};

bool has_key(Arena& a, std::uint64_t v, Key key) {
  const std::uint32_t id = entry::id(v);
  return a.in_range(id) && a.hot[id].load_key() == key;
}

[[maybe_unused]] bool is_evicting(Arena& a, std::uint64_t v) {
  return state(a.hot[entry::id(v)].word.load(std::memory_order_relaxed)) == kEvicting;
}

// Step 1: an empty place. Returns its rank or n.
unsigned place(Ways& w, std::uint64_t mine, std::uint64_t buckets) {
  for (int attempt = 0; attempt < 4; attempt++) {
    unsigned used[2] = {0, 0}, hole[2] = {w.n, w.n};
    for (unsigned i = 0; i < w.n; i++) {
      if (w.e[i]->load(std::memory_order_relaxed))
        used[i / kIndexWays]++;
      else if (hole[i / kIndexWays] == w.n)
        hole[i / kIndexWays] = i;
    }
    // The first bucket while it has room to spare: a look-up that hits then reads one line and
    // takes no unforeseen branch. Else the emptier one. A small index, all of it in cache, fills
    // its buckets less evenly: it spares more.
    const unsigned spare = buckets < 8192 ? 4 : 2;
    const unsigned side = w.n > kIndexWays && used[0] + spare >= kIndexWays && used[1] < used[0];
    unsigned at = hole[side] != w.n ? hole[side] : hole[!side];
    if (at == w.n) return w.n;
    std::uint64_t empty = 0;
    KVSHM_STEP("insert.place");
    // seq_cst, as the rescan's loads: of two inserters at least one sees the other's entry
    // M:index.13 M:tentative.1
    if (w.e[at]->compare_exchange_strong(empty, mine | entry::kTentative,
                                         std::memory_order_seq_cst))
      return at;
  }
  return w.n;
}

void withdraw(Ways& w, unsigned at, std::uint64_t mine) {
  std::uint64_t v = mine | entry::kTentative;  // a lower rank may have cleared it
  KVSHM_STEP("insert.withdraw");
  // M:index.16
  w.e[at]->compare_exchange_strong(v, 0, std::memory_order_acq_rel);
}

}  // namespace

Insert insert_if_absent(Arena& a, std::uint32_t id, Key key, std::uint32_t* other) {
  const Spot s = spot_of(key, a.nbuckets);
  Ways ways(a, s);
  const std::uint64_t mine = entry::make(s.tag, id);
  for (int attempt = 0; attempt < 64; attempt++) {
    const unsigned at = place(ways, mine, a.nbuckets);
    if (at == ways.n) return Insert::kFull;
    KVSHM_STEP("insert.tentative");
    bool again = false;
    for (unsigned i = 0; i < ways.n && !again;) {
      // M:index.14
      std::uint64_t v = ways.e[i]->load(std::memory_order_seq_cst);
      // M:index.15
      if (i == at || entry::tag(v) != s.tag || !v || !has_key(a, v, key)) {
        i++;
        continue;
      }
      if (KVSHM_BROKEN(no_tentative) && (v & entry::kTentative)) {
        i++;
        continue;
      }
      if (KVSHM_BROKEN(overwrites_evicting) && is_evicting(a, v) &&
          ways.e[i]->compare_exchange_strong(v, mine)) {
        withdraw(ways, at, mine);
        return Insert::kDone;
      }
      if (!(v & entry::kTentative) || i < at) {  // committed, or of lower rank
        withdraw(ways, at, mine);
        *other = entry::id(v);
        return Insert::kExists;
      }
      // tentative of higher rank: it gives way; if that fails, look at the place once more
      KVSHM_STEP("insert.outrank");
      // M:index.17
      if (ways.e[i]->compare_exchange_strong(v, 0, std::memory_order_acq_rel)) i++;
    }
    KVSHM_STEP("insert.commit");
    std::uint64_t v = mine | entry::kTentative;
    // M:index.18 M:tentative.2
    if (ways.e[at]->compare_exchange_strong(v, mine, std::memory_order_acq_rel))
      return Insert::kDone;
  }
  return Insert::kFull;  // rivals kept clearing it: stay private
}

void erase_entries(Arena& a, std::uint32_t id, Key key) {
  if (key.none()) return;
  const Spot s = spot_of(key, a.nbuckets);
  Ways ways(a, s);
  const std::uint64_t mine = entry::make(s.tag, id);
  for (unsigned i = 0; i < ways.n; i++) {
    std::uint64_t v = ways.e[i]->load(std::memory_order_relaxed);
    if ((v & ~entry::kTentative) != mine) continue;
    KVSHM_STEP("erase.entry");
    ways.e[i]->compare_exchange_strong(v, 0, std::memory_order_acq_rel);
  }
}

void erase_tentative(Arena& a, std::uint32_t id, Key key) {
  if (key.none()) return;
  const Spot s = spot_of(key, a.nbuckets);
  Ways ways(a, s);
  for (unsigned i = 0; i < ways.n; i++) {
    std::uint64_t v = entry::make(s.tag, id) | entry::kTentative;
    if (ways.e[i]->load(std::memory_order_relaxed) != v) continue;
    KVSHM_STEP("erase.tentative");
    ways.e[i]->compare_exchange_strong(v, 0, std::memory_order_acq_rel);
  }
}

}  // namespace kvshm
