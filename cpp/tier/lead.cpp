// Who moves for all processes of the arena, and what comes next.
//
// The post is a lock byte of the arena (arena/posts.hpp): the kernel vacates it when its holder ends,
// however that comes. Those who stand by try it every 20 ms while something waits, else twice a
// second: one system call.
#include <algorithm>
#include <utility>

#include "arena/lock.hpp"
#include "arena/posts.hpp"
#include "arena/slots.hpp"
#include "blocks/alloc.hpp"
#include "blocks/counts.hpp"
#include "blocks/deadlines.hpp"
#include "blocks/registration.hpp"
#include "evict/choose.hpp"
#include "evict/links.hpp"
#include "index/index.hpp"
#include "tier/mover.hpp"

namespace kvshm::tier {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::int64_t kStandMs = 20, kRestMs = 500;
constexpr std::int64_t kLookMs = 10;   // another process's offer is seen after so long
constexpr std::int64_t kAgainMs = 20;  // a predecessor's unfinished slot is looked at so often
constexpr std::int64_t kAgainForMs = 10000;
constexpr std::int64_t kAheadMs = 10000;  // nobody wants it any more
constexpr std::int64_t kWaterMs = 50;
constexpr std::uint32_t kWaterSample = 256, kWaterBatch = 16;
constexpr unsigned kFetchLooks = 16;  // keys in one go
constexpr std::size_t kFetches = 4;   // loads ahead at once, so that one of demand comes soon

std::uint64_t key_of(unsigned lane, std::uint64_t ticket) { return ticket * kLanes + lane; }

bool anything_waits(const Arena& a) {
  for (unsigned lane = 0; lane < kLanes; lane++)
    if (waiting(a, lane)) return true;
  return false;
}
}  // namespace

void Mover::stand(std::int64_t now) {
  if (leads_.load(kRelaxed)) {
    if (broken_ || stop_seen_) resign();
    return;
  }
  if (t_.options.mover == KVSHM_OFF || broken_ || now < stand_at_ || stop_seen_) return;
  if (t_.image->sb->tier.state.load(std::memory_order_acquire) != KVSHM_TIER_OK) return;
  stand_at_ = now + (anything_waits(t_.g2) ? kStandMs : kRestMs);
  if (take_post(t_.g2, KVSHM_POST_MOVER)) return;
  if (intake_.begin()) reap_dead(*t_.image, nullptr);  // what it was writing comes back
  MoverNote& note = t_.g2.queues->mover;
  note.rule.store(t_.options.write + 1, kRelaxed);
  note.slot.store(t_.g2.slot + 1, kRelaxed);
  t_.image->queues->mover.slot.store(t_.image->slot + 1, kRelaxed);  // where its line is
  t_.g2.count(kStat_tier_takeovers_total);
  leads_.store(true, kRelaxed);
}

// Who leads has transfers that do not come back: ours would not, either.
bool Mover::leader_stalls() const {
  const std::uint32_t who = t_.image->queues->mover.slot.load(kRelaxed);
  if (leads_.load(kRelaxed) || !who || who > kSlots || who - 1 == t_.image->slot) return false;
  const SlotRecord& r = t_.image->slots[who - 1];
  return r.used.load(kRelaxed) && (r.tier.word.load(kRelaxed) & 0xff) == KVSHM_TIER_STALLED;
}

// Nothing is under way, so nothing is owed: an operation may have been lost to want of memory, and its
// ticket must not keep the lane for ever.
void Mover::look_at_owed() {
  if (!leads_.load(kRelaxed) || stores_flying_ || !written_.empty() || !at_work_.empty() ||
      !todo_.empty() || !later_.empty() || !ready_writes_.empty() || !flying_.empty() ||
      !come_.empty() || !again_.empty() || !limbo_.empty())
    return;
  shared_.clear();
  owed_.clear();
  intake_.end_all();
}

// What it has taken and not ended, its successor does again.
void Mover::resign() {
  if (!leads_.exchange(false, kRelaxed)) return;
  todo_.clear();
  later_.clear();
  shared_.clear();
  owed_.clear();
  t_.g2.queues->mover.slot.store(0, kRelaxed);
  t_.image->queues->mover.slot.store(0, kRelaxed);
  leave_post(t_.g2, KVSHM_POST_MOVER);
}

void Mover::item_over(unsigned lane, std::uint64_t ticket) {
  if (lane == kNoLane || !leads_.load(kRelaxed)) return;
  if (const auto more = shared_.find(key_of(lane, ticket)); more != shared_.end()) {
    if (!--more->second) shared_.erase(more);
    return;  // a parent's, or the block's with parents left
  }
  intake_.end(lane, ticket);
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.wake();
}

// How long to sleep at most: nobody kicks a mover from another process.
std::int64_t Mover::nap() const {
  if (leads_.load(kRelaxed)) return kLookMs;
  return t_.options.mover != KVSHM_OFF && anything_waits(t_.g2) ? kStandMs : kRestMs;
}

// The ticket of a block that brings n parents along ends with the last of them.
void Mover::share(unsigned lane, std::uint64_t ticket, std::size_t n) {
  if (lane != kNoLane) shared_[key_of(lane, ticket)] += unsigned(n);
}

// What was to be gathered is due: told so, enough of it, or old enough.
bool Mover::gathered() const {
  if (!intake_.left(kLater)) return false;
  if (intake_.due(kLater)) return true;
  if (t_.options.write == KVSHM_TIER_WRITE_IDLE) return false;
  if (intake_.left(kLater) * t_.g2.block_bytes >= t_.options.gather) return true;
  const std::int64_t since = intake_.oldest(kLater);
  return since && now_ms() - since >= std::int64_t(t_.options.age_ms);
}

bool Mover::next_store(Store* s) {
  const std::int64_t now = now_ms();
  if (!later_.empty() && now >= later_at_) {
    later_at_ = now + kAgainMs;
    for (Store& one : later_) todo_.push_back(one);
    later_.clear();
  }
  if (todo_.empty() && !intake_.left(kAsked)) look_at_water(now);
  if (!todo_.empty()) {
    *s = todo_.front();
    todo_.pop_front();
    return true;
  }
  for (unsigned looked = 0; looked < kLaneRoom; looked++) {
    Waiting w;
    if (!intake_.take(kAsked, &w) && !intake_.take(kUsual, &w)) {
      if (!gathered()) return false;
      flush(t_.g2);  // all of it
      if (!intake_.take(kLater, &w)) return false;
    }
    *s = Store{{w.what[0], std::uint32_t(w.what[1]), 0}};
    s->lane = w.lane;
    s->ticket = w.ticket;
    if (w.again) s->again_until = now + kAgainForMs;
    if (admitted(*s)) return true;
    t_.g2.count(kStat_tier_rejected_total);
    item_over(s->lane, s->ticket);
  }
  return false;  // loads and landings come in between
}

// Worth a write for its own sake. By a look: who is not held may be another block by now.
bool Mover::admitted(const Store& s) {
  Arena& a = t_.g2;
  if (!a.in_range(s.block.id)) return false;
  const Hot& h = a.hot[s.block.id];
  const Options& o = t_.options;
  if (o.min_prefix > 1 && (h.freq_depth.load(kRelaxed) >> 8) + 1 < o.min_prefix) return false;
  if (o.min_priority && priority_now(a, s.block.id) < o.min_priority) return false;
  return s.again_until || admission_.offer(h.load_key());
}

// Few blocks are free: those that the policy would take next go down before it does.
void Mover::look_at_water(std::int64_t now) {
  if (t_.options.write != KVSHM_TIER_WRITE_WATERMARK || now < water_at_) return;
  Arena& a = t_.g2;
  const std::uint32_t n = std::min(a.nblocks, kWaterSample), step = hand_step(a.nblocks);
  const Policy policy = read_policy(a);
  const std::uint32_t tick = a.sb->tick.load(kRelaxed);
  std::vector<std::pair<Score, std::uint32_t>> found;
  std::uint32_t free = 0;
  for (std::uint32_t i = 0; i < n; i++) {
    water_hand_ = (water_hand_ + step) % a.nblocks;
    const std::uint32_t id = std::uint32_t(water_hand_);
    if (::kvshm::state(a.hot[id].word.load(kRelaxed)) == kFree) free++;
    if (!evictable(a, id) || a.hot[id].load_key().none()) continue;
    if (!peek(*t_.image, a.hot[id].load_key())) found.push_back({score(a, policy, id, tick), id});
  }
  const bool low = std::uint64_t{free} * 1000 < std::uint64_t{t_.options.low} * n;
  water_at_ = low && !found.empty() ? now + 1 : now + kWaterMs;
  if (!low) return;
  const std::size_t most = std::min<std::size_t>(found.size(), kWaterBatch);
  std::partial_sort(found.begin(), found.begin() + most, found.end(),
                    [](const auto& x, const auto& y) { return y.first.worse_than(x.first); });
  for (std::size_t i = 0; i < most; i++) {
    Store s;
    s.block = {a.hot[found[i].second].seq.load(kRelaxed), found[i].second, 0};
    if (admitted(s)) todo_.push_back(s);
  }
  a.count(kStat_tier_offered_total, todo_.size());
}

void Mover::begin_fetches() {
  if (!leads_.load(kRelaxed) || !t_.serving() || !ready_loads_.empty() || stop_seen_) return;
  if (state() == KVSHM_TIER_SLOW) return;  // computing is faster
  Waiting w;
  for (unsigned i = 0; i < kFetchLooks && ready_fetches_.size() < kFetches; i++) {
    if (!intake_.take(kFetch, &w)) return;
    intake_.end(kFetch, w.ticket);  // whatever comes of it: nobody waits for it
    if (now_ms() - w.since >= kAheadMs)
      t_.g2.count(kStat_tier_dropped_total);
    else if (!begin_fetch(w))
      return;
  }
}

// False: there is no room; to look for some takes long.
bool Mover::begin_fetch(const Waiting& w) {
  Arena& a = t_.g2;
  Arena& image = *t_.image;
  const Key key{w.what[0], w.what[1]};
  if (key.none() || peek(a, key)) return true;  // in memory, or on its way
  const Found d = lookup(image, key, true);
  if (d.how != Take::kHeld) return true;
  LoadJob j{std::make_shared<LoadState>(1), 0, key, {0, kNone, 0}, {0, d.id, 0}, now_ms()};
  j.slot.seq = image.hot[d.id].seq.load(kRelaxed);
  j.load->ahead = j.load->freed = true;
  j.load->left = 1;
  FillSpec spec;
  // Its parent came before it, if it was asked for, too.
  const std::uint32_t up = load_record(image, d.id).parent;
  if (up < image.nblocks && is_child(image, d.id, up)) {
    const Found p = lookup(a, image.hot[up].load_key(), false);
    if (p.how == Take::kHeld) give_back(a, p.id);
    if (p.how == Take::kHeld || p.how == Take::kPending)
      spec.parent = {a.hot[p.id].seq.load(kRelaxed), p.id, 0};
  }
  kvshm_key k;
  key.store(k);
  std::uint8_t st = KVSHM_ST_NONE;
  if (allocate(a, 1, &k, spec, &j.memory, &st, nullptr)) {
    give_back(image, d.id);
    a.count(kStat_tier_dropped_total);
    return false;
  }
  if (st != KVSHM_ST_ANNOUNCED) {  // somebody was faster
    give_back(a, j.memory.id);
    give_back(image, d.id);
    return true;
  }
  a.count(kStat_tier_prefetched_total);
  begin_read(std::move(j));
  return true;
}

}  // namespace kvshm::tier
