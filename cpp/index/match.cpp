#include "index/match.hpp"

#include "evict/links.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {

// Stages 1 and 2 run ahead of the third; the block that stage 2 saw is remembered as its guess.
class Pipeline {
 public:
  Pipeline(Arena& a, const kvshm_key* keys, std::uint32_t n) : a_(a), keys_(keys), n_(n) {
    for (std::uint32_t i = 0; i < kFar && i < n; i++) prefetch_buckets(a, key(i));
    for (std::uint32_t i = 0; i < kNear && i < n; i++) guess_[i] = prefetch_block(a, key(i));
  }
  Found look(std::uint32_t i, bool touch) {
    if (i + kFar < n_) prefetch_buckets(a_, key(i + kFar));
    const std::uint32_t guess = guess_[i % kNear];
    if (i + kNear < n_) guess_[i % kNear] = prefetch_block(a_, key(i + kNear));
    return lookup_at(a_, key(i), touch, guess);
  }

 private:
  static constexpr std::uint32_t kFar = 16, kNear = 8;
  Key key(std::uint32_t i) const { return Key::load(keys_[i]); }
  Arena& a_;
  const kvshm_key* keys_;
  std::uint32_t n_;
  std::uint32_t guess_[kNear];
};

void count(Arena& a, const MatchCounts& c, bool touch) {
  a.count(kStat_lookups_total, c.hits + c.misses + c.pending);
  a.count(kStat_hits_total, c.hits);
  a.count(kStat_misses_total, c.misses);
  a.count(kStat_pending_total, c.pending);
  if (touch) a.count(kStat_touches_total, c.hits);
}

}  // namespace

std::uint32_t match_prefix(Arena& a, const kvshm_key* keys, std::uint32_t n, bool touch,
                           std::uint32_t* ids, kvshm_handle* pending, bool* over) {
  MatchCounts c;
  *over = false;
  *pending = {0, KVSHM_NONE, 0};
  Pipeline line(a, keys, n);
  for (std::uint32_t i = 0; i < n; i++) {
    const Found f = line.look(i, touch);
    if (f.how != Take::kHeld) {
      *over = f.how == Take::kOver;
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
                         std::uint32_t* ids, bool* over) {
  MatchCounts c;
  *over = false;
  Pipeline line(a, keys, n);
  for (std::uint32_t i = 0; i < n; i++) {
    const Found f = line.look(i, touch);
    ids[i] = f.how == Take::kHeld ? f.id : kNone;
    *over |= f.how == Take::kOver;
    c.hits += f.how == Take::kHeld;
    c.misses += f.how == Take::kMiss;
    c.pending += f.how == Take::kPending;
  }
  count(a, c, touch);
  return c.hits;
}

}  // namespace kvshm
