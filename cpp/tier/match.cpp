// The look-up over both tiers. Memory comes first: what is there is held; what is being filled there
// and lies on disk is awaited (one transfer, whoever asked first); what lies on disk is read into
// blocks that are announced under its key.
#include "index/match.hpp"

#include <errno.h>

#include <vector>

#include "arena/lock.hpp"
#include "blocks/alloc.hpp"
#include "blocks/counts.hpp"
#include "blocks/quota.hpp"
#include "blocks/registration.hpp"
#include "index/index.hpp"
#include "tier/mover.hpp"
#include "tier/offer.hpp"

namespace kvshm::tier {
namespace {

class Plan {
 public:
  Plan(Arena& a, Tier& t, const kvshm_key* keys, std::uint32_t n, bool touch)
      : a_(a),
        image_(*t.image),
        keys_(keys),
        touch_(touch),
        load_(std::make_shared<LoadState>(n)),
        slots_(n, kvshm_handle{0, kNone, 0}),
        memory_(n, kvshm_handle{0, kNone, 0}) {}

  // Behind `hits` blocks that are held in ids.
  std::uint32_t find(std::uint32_t hits, const std::vector<std::uint32_t>& ids, std::uint32_t n) {
    for (std::uint32_t i = 0; i < hits; i++)
      load_->status[i] = KVSHM_LD_MEMORY, load_->ids[i] = ids[i];
    std::uint32_t i = hits;
    for (; i < n && look(i); i++) {
    }
    return i;
  }
  // Blocks for what is to be read; where there is no room the prefix ends. Returns its length.
  std::uint32_t allocate_for(std::uint32_t n) {
    for (std::uint32_t i = 0; i < n;) {
      if (load_->status[i] != KVSHM_LD_LOADING) {
        i++;
        continue;
      }
      std::uint32_t run = 1;
      while (i + run < n && load_->status[i + run] == KVSHM_LD_LOADING) run++;
      const std::uint32_t got = take(i, run);
      i += got;
      if (got < run) {
        cut(i, n);
        return i;
      }
    }
    return n;
  }
  std::vector<LoadJob> jobs(std::uint32_t n) {
    std::vector<LoadJob> out;
    const std::int64_t now = now_ms();
    for (std::uint32_t i = 0; i < n; i++) {
      const std::uint8_t s = load_->status[i];
      if (s != KVSHM_LD_LOADING && s != KVSHM_LD_AWAITED) continue;
      out.push_back({load_, i, key(i), memory_[i], slots_[i], now});
    }
    load_->left = std::uint32_t(out.size());
    return out;
  }
  std::shared_ptr<LoadState> load() { return load_; }

 private:
  Key key(std::uint32_t i) const { return Key::load(keys_[i]); }

  bool look(std::uint32_t i) {
    const Found m = lookup(a_, key(i), touch_);
    if (m.how == Take::kHeld) {
      load_->status[i] = KVSHM_LD_MEMORY;
      load_->ids[i] = m.id;
      return true;
    }
    if (m.how == Take::kOver) return false;
    const Found d = lookup(image_, key(i), touch_);
    if (d.how != Take::kHeld) return false;
    a_.count(kStat_tier_hits_total);
    if (m.how == Take::kPending) {
      give_back(image_, d.id);
      load_->status[i] = KVSHM_LD_AWAITED;
      memory_[i] = {m.seq, m.id, 0};
      return true;
    }
    load_->status[i] = KVSHM_LD_LOADING;
    slots_[i] = {image_.hot[d.id].seq.load(std::memory_order_relaxed), d.id, 0};
    return true;
  }

  // Blocks for i .. i + run; how many of them there were.
  std::uint32_t take(std::uint32_t i, std::uint32_t run) {
    FillSpec spec;
    if (i) {
      const std::uint32_t up = load_->ids[i - 1] != kNone ? load_->ids[i - 1] : memory_[i - 1].id;
      if (up != kNone) spec.parent = {a_.hot[up].seq.load(std::memory_order_relaxed), up, 0};
    }
    std::vector<std::uint8_t> st(run, KVSHM_ST_NONE);
    std::uint32_t n = run;
    while (n && allocate(a_, n, keys_ + i, spec, &memory_[i], st.data(), nullptr)) n /= 2;
    for (std::uint32_t k = 0; k < n; k++) resolve(i + k, st[k]);
    return n;
  }

  // Another process was faster between look and allocate: its block, or its fill.
  void resolve(std::uint32_t i, std::uint8_t st) {
    if (st != KVSHM_ST_EXISTS && st != KVSHM_ST_PENDING) return;
    give_back(a_, memory_[i].id);
    memory_[i] = {0, kNone, 0};
    give_back(image_, slots_[i].id);
    slots_[i] = {0, kNone, 0};
    const Found m = lookup(a_, key(i), touch_);
    if (m.how == Take::kHeld) {
      load_->status[i] = KVSHM_LD_MEMORY;
      load_->ids[i] = m.id;
    } else {
      // Awaited, also where it has gone meanwhile: the mover looks again.
      load_->status[i] = KVSHM_LD_AWAITED;
      memory_[i] = {m.how == Take::kPending ? m.seq : 0, m.how == Take::kPending ? m.id : 0, 0};
    }
  }

  void cut(std::uint32_t from, std::uint32_t to) {
    Ticks ticks(a_, to - from);
    for (std::uint32_t i = to; i-- > from;) {
      if (load_->ids[i] != kNone) release_hold(a_, load_->ids[i], ticks);
      if (slots_[i].seq) give_back(image_, slots_[i].id);
      load_->ids[i] = kNone;
      slots_[i] = {0, kNone, 0};
      load_->status[i] = KVSHM_LD_NONE;
    }
  }

  Arena& a_;
  Arena& image_;
  const kvshm_key* keys_;
  bool touch_;
  std::shared_ptr<LoadState> load_;
  std::vector<kvshm_handle> slots_, memory_;
};

}  // namespace

std::int64_t match_load(Arena& a, Tier* t, const kvshm_key* keys, std::uint32_t n,
                        const LoadSpec& spec, std::shared_ptr<LoadState>* out) {
  const bool touch = !(spec.flags & KVSHM_NO_TOUCH);
  std::vector<std::uint32_t> ids(n, kNone);
  bool over;
  const std::uint32_t hits = match_prefix(a, keys, n, touch, ids.data(), spec.pending, &over);
  const bool wanted = t && !(spec.flags & KVSHM_NO_LOAD) && hits < n && !over;
  const bool disk = wanted && t->may_load();
  if (wanted && !disk) a.count(kStat_tier_skipped_total);
  if (t && t->options.admit > 1 && t->options.write != KVSHM_TIER_WRITE_OFF && hits) {
    std::vector<kvshm_handle> used;
    for (std::uint32_t i = 0; i < hits; i++)
      if (!peek(*t->image, Key::load(keys[i])))
        used.push_back({a.hot[ids[i]].seq.load(std::memory_order_relaxed), ids[i], 0});
    // One use more: it may be worth a write by now.
    offer(a, t, used.data(), std::uint32_t(used.size()), false);
  }
  if (!disk) {
    if (!hits) return over ? over_quota(a) : 0;
    *out = std::make_shared<LoadState>(hits);
    for (std::uint32_t i = 0; i < hits; i++)
      (*out)->status[i] = KVSHM_LD_MEMORY, (*out)->ids[i] = ids[i];
    return hits;
  }
  Plan plan(a, *t, keys, n, touch);
  const std::uint32_t found = plan.find(hits, ids, n);
  const std::uint32_t got = plan.allocate_for(found);
  if (!got) return 0;
  *out = plan.load();
  std::vector<LoadJob> jobs = plan.jobs(got);
  if (!jobs.empty()) t->mover->load(std::move(jobs));
  return got;
}

}  // namespace kvshm::tier
