#include "index/match.hpp"

#include "evict/links.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {

constexpr std::uint32_t kFar = 16, kNear = 8;

void run_in(Arena& a, const kvshm_key* keys, std::uint32_t n) {
  for (std::uint32_t i = 0; i < kFar && i < n; i++) prefetch_buckets(a, Key::load(keys[i]));
  for (std::uint32_t i = 0; i < kNear && i < n; i++) prefetch_blocks(a, Key::load(keys[i]));
}

void run_ahead(Arena& a, const kvshm_key* keys, std::uint32_t n, std::uint32_t i) {
  if (i + kFar < n) prefetch_buckets(a, Key::load(keys[i + kFar]));
  if (i + kNear < n) prefetch_blocks(a, Key::load(keys[i + kNear]));
}

void count(Arena& a, const MatchCounts& c, bool touch) {
  a.count(kStat_lookups_total, c.hits + c.misses + c.pending);
  a.count(kStat_hits_total, c.hits);
  a.count(kStat_misses_total, c.misses);
  a.count(kStat_pending_total, c.pending);
  if (touch) a.count(kStat_touches_total, c.hits);
}

}  // namespace

std::uint32_t match_prefix(Arena& a, const kvshm_key* keys, std::uint32_t n, bool touch,
                           std::uint32_t* ids, kvshm_handle* pending) {
  MatchCounts c;
  *pending = {0, KVSHM_NONE, 0};
  run_in(a, keys, n);
  for (std::uint32_t i = 0; i < n; i++) {
    run_ahead(a, keys, n, i);
    const Found f = lookup(a, Key::load(keys[i]), touch);
    if (f.how != Take::kHeld) {
      if (f.how == Take::kPending) *pending = {f.seq, f.id, 0};
      c.misses += f.how == Take::kMiss;
      c.pending += f.how == Take::kPending;
      break;
    }
    ids[c.hits++] = f.id;
    if (i) relink(a, f.id, ids[i - 1]);
  }
  count(a, c, touch);
  return c.hits;
}

std::uint32_t match_each(Arena& a, const kvshm_key* keys, std::uint32_t n, bool touch,
                         std::uint32_t* ids) {
  MatchCounts c;
  run_in(a, keys, n);
  for (std::uint32_t i = 0; i < n; i++) {
    run_ahead(a, keys, n, i);
    const Found f = lookup(a, Key::load(keys[i]), touch);
    ids[i] = f.how == Take::kHeld ? f.id : kNone;
    c.hits += f.how == Take::kHeld;
    c.misses += f.how == Take::kMiss;
    c.pending += f.how == Take::kPending;
  }
  count(a, c, touch);
  return c.hits;
}

}  // namespace kvshm
