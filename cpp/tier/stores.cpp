// Down: from memory to the disk.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "arena/lock.hpp"
#include "blocks/alloc.hpp"
#include "blocks/counts.hpp"
#include "blocks/deadlines.hpp"
#include "blocks/registration.hpp"
#include "evict/links.hpp"
#include "index/index.hpp"
#include "tier/mover.hpp"

namespace kvshm::tier {
namespace {
constexpr unsigned kPageSlots = 16;     // a page is written for so many slots, or when it is quiet
constexpr std::int64_t kPageMs = 20;    // or so old
constexpr std::int64_t kParkMs = 4000;  // slots without room are tried again, a few at first
constexpr std::size_t kTries = 4;
constexpr unsigned kKeptPages = 32;  // buffers: to map one takes as long as to write it
constexpr unsigned kParents = 256;
constexpr unsigned kBatch = 4;               // begun before the disk is looked at again
constexpr unsigned kThere = 1, kComing = 2;  // as peek() says it

// Held by this process for a moment. False: gone, or not for the disk: closed at its last release,
// of a limited life, or one that nobody finds by its key.
bool hold_source(Arena& a, kvshm_handle h) {
  if (take_ready(a, h.id, false, true) != Take::kHeld) return false;
  const Hot& b = a.hot[h.id];
  const std::uint8_t flags = b.flags.load(std::memory_order_relaxed);
  if (b.seq.load(std::memory_order_relaxed) == h.seq && !b.load_key().none() &&
      !(flags & (kDuplicate | kPrivate | kMortal)) &&
      ::kvshm::state(b.word.load(std::memory_order_relaxed)) == kReady)
    return true;
  give_back(a, h.id);
  return false;
}

}  // namespace

int Mover::drain(std::int64_t deadline_ms) {
  constexpr std::int64_t kSlice = 2;  // another process's mover tells nobody
  flush(t_.g2);
  std::unique_lock<std::mutex> lock(mutex_);
  for (unsigned lane = 0; lane < kFetch; lane++) {
    const std::uint64_t end = t_.mine[lane].load(std::memory_order_relaxed);
    while (end && !tier::ended(t_.g2, lane, end - 1)) {
      if (ended_ || stopping_) return -KVSHM_ECLOSED;
      const std::int64_t now = now_ms();
      if (now >= deadline_ms) return -ETIMEDOUT;
      idle_.wait(lock, now + kSlice < deadline_ms ? now + kSlice : deadline_ms);
    }
  }
  return 0;
}

bool Mover::may_store() const {
  if (broken_ || stalled_ || rebuilding_ || stop_seen_ || !ready_loads_.empty()) return false;
  if (t_.image->sb->tier.state.load(std::memory_order_acquire) != KVSHM_TIER_OK) return false;
  // Their blocks are held meanwhile: of a small arena only a few, lest allocations find no room.
  const unsigned few = t_.g2.nblocks / 8, all = t_.options.stores;
  const unsigned most = few < 1 ? 1 : few < all ? few : all;
  return stores_flying_ < most;
}

bool Mover::begin_stores() {
  if (!leads_.load(std::memory_order_relaxed)) return false;
  for (unsigned i = 0; i < kBatch; i++) {
    Store s;
    if (!may_store() || !next_store(&s)) return false;
    Begun how = Begun::kOver;
    try {
      how = begin_store(s);
    } catch (const std::bad_alloc&) {
      item_over(s.lane, s.ticket);
      throw;
    }
    if (how == Begun::kOver) item_over(s.lane, s.ticket);
  }
  return true;
}

// The chain above a block that is not on disk either comes first: a tail alone cannot be found.
// True: its parents were put in front, and it behind them.
bool Mover::queue_parents(const Store& s) {
  Arena& a = t_.g2;
  std::vector<kvshm_handle> up;
  std::uint32_t x = s.block.id;
  while (up.size() < kParents) {
    const std::uint32_t p = a.hot[x].parent.load(std::memory_order_relaxed);
    if (p == kNone || !a.in_range(p) || !is_child(a, x, p)) break;
    if (peek(*t_.image, a.hot[p].load_key())) break;
    up.push_back({a.hot[p].seq.load(std::memory_order_relaxed), p, 0});
    x = p;
  }
  if (up.empty()) return false;
  // Once: one of them may be refused, and all behind it then, too.
  Store behind = s;
  behind.first = false;
  todo_.push_front(behind);
  for (const kvshm_handle& p : up) todo_.push_front({p, false, s.lane, s.ticket});
  share(s.lane, s.ticket, up.size());
  return true;
}

Begun Mover::begin_store(Store& s) {
  Arena& a = t_.g2;
  Arena& image = *t_.image;
  const kvshm_handle h = s.block;
  if (!hold_source(a, h)) {
    a.count(kStat_tier_dropped_total);
    return Begun::kOver;
  }
  const Key key = a.hot[h.id].load_key();
  FillSpec spec;
  spec.priority = priority_now(a, h.id);
  if (spec.priority >= kPinnedPriority) spec.priority = kPinnedPriority - 1;
  unsigned there = peek(image, key);
  if (!there) {
    const std::uint32_t p = a.hot[h.id].parent.load(std::memory_order_relaxed);
    if (p != kNone && a.in_range(p) && is_child(a, h.id, p)) {
      const Found up = lookup(image, a.hot[p].load_key(), false);
      if (up.how == Take::kHeld) give_back(image, up.id);
      if (up.how == Take::kMiss) {
        const bool behind = s.first && queue_parents(s);
        if (!behind) a.count(kStat_tier_dropped_total);
        give_back(a, h.id);
        return behind ? Begun::kLater : Begun::kOver;
      }
      if (up.how == Take::kPending && s.again_until > now_ms()) {
        later_.push_back(s);  // the parent may be a dead one's, and go yet
        give_back(a, h.id);
        return Begun::kLater;
      }
      if (up.how != Take::kOver)
        spec.parent = {image.hot[up.id].seq.load(std::memory_order_relaxed), up.id, 0};
    }
  }
  kvshm_handle slot{0, kNone, 0};
  if (!there) {
    std::uint8_t st = KVSHM_ST_NONE;
    kvshm_key k;
    key.store(k);
    if (allocate(image, 1, &k, spec, &slot, &st, nullptr)) {
      a.count(kStat_tier_dropped_total);
      give_back(a, h.id);
      return Begun::kOver;
    }
    if (st != KVSHM_ST_ANNOUNCED) {  // another process is writing it
      there = st == KVSHM_ST_EXISTS ? kThere : st == KVSHM_ST_PENDING ? kComing : 0;
      if (!there) a.count(kStat_tier_dropped_total);
      give_back(image, slot.id);
      slot.seq = 0;
    }
  }
  // A predecessor that died had begun it: its slot comes back when the kernel has landed the write.
  if (there == kComing && s.again_until > now_ms()) {
    give_back(a, h.id);
    later_.push_back(s);
    return Begun::kLater;
  }
  if (!slot.seq) {
    if (there) a.count(kStat_tier_present_total);
    give_back(a, h.id);
    return Begun::kOver;
  }
  store_record(image, slot.id, Record{});  // before its data is overwritten
  auto op = std::make_unique<Op>();
  op->kind = Op::kStore;
  op->memory = h;
  op->slot = slot;
  op->key = key;
  op->lane = s.lane;
  op->ticket = s.ticket;
  const std::byte* data = a.data + std::uint64_t(h.id) * a.block_bytes;
  if (!aim(*op)) {
    a.count(kStat_tier_dropped_total);
    give_back(image, slot.id);
    give_back(a, h.id);
    return Begun::kOver;
  }
  Record& r = op->record;
  key.store(reinterpret_cast<std::uint8_t*>(r.key));
  payload_check(data, a.block_bytes, r.check);
  r.length = std::uint32_t(a.block_bytes);
  r.epoch = a.sb->space_epoch.load(std::memory_order_relaxed);
  r.parent = spec.parent.id;
  r.priority = std::uint8_t(spec.priority);
  r.uses = std::uint8_t(uses_of(a.hot[h.id].freq_depth.load(std::memory_order_relaxed)));
  r.self = self_check(r, slot.id);
  ready_writes_.push_back(std::move(op));
  stores_flying_++;
  return Begun::kYes;
}

void Mover::end_store(Op& op) {
  Arena& a = t_.g2;
  stores_flying_--;
  give_back(a, op.memory.id);
  if (op.rc == 0) {
    if (std::find(tried_.begin(), tried_.end(), op.slot.id) != tried_.end()) unpark();
    store_record(*t_.image, op.slot.id, op.record);
    if (written_.empty()) written_since_ = now_ms();
    written_.push_back(op.slot);
    if (op.lane != kNoLane) owed_[op.slot.id] = {op.lane, op.ticket};
    return;
  }
  a.count(kStat_tier_store_failed_total);
  if (op.rc == -ENOSPC || op.rc == -EDQUOT) {
    // The slot is kept out of the way, so that others are taken: the budget becomes what is there.
    if (!no_space_)
      log_line(KVSHM_LOG_WARN, "tier of arena %s: no room in %s: it goes on with the slots it has",
               a.name.c_str(), t_.files.path().c_str());
    no_space_ = true;
    full_at_ = now_ms();
    tries_ = kTries;
    if (parked_.empty()) parked_until_ = full_at_ + kParkMs;
    parked_.push_back(op.slot);
  } else {
    log_line(KVSHM_LOG_WARN, "tier of arena %s: write: %s", a.name.c_str(), std::strerror(-op.rc));
    give_back(*t_.image, op.slot.id);
  }
  item_over(op.lane, op.ticket);
}

// There is room again, or an end.
void Mover::unpark() {
  for (const kvshm_handle& h : parked_) give_back(*t_.image, h.id);
  parked_.clear();
  tried_.clear();
  no_space_ = false;
}

// Whose turn it is with one of these slots, finds out; if nobody comes, nobody wants for room.
void Mover::try_parked(std::int64_t now) {
  if (no_space_ && now - full_at_ > 3 * kParkMs / 2) no_space_ = false;
  if (parked_.empty() || now < parked_until_) return;
  parked_until_ = now + kParkMs;
  tried_.clear();
  for (std::size_t i = 0; i < tries_ && !parked_.empty(); i++) {
    tried_.push_back(parked_.back().id);
    give_back(*t_.image, parked_.back().id);
    parked_.pop_back();
  }
  tries_ *= 2;
}

void Mover::flush_pages(bool all) {
  if (written_.empty()) return;
  const bool quiet = !stores_flying_;
  if (!all && !quiet && written_.size() < kPageSlots && now_ms() - written_since_ < kPageMs) return;
  std::vector<kvshm_handle> slots;
  slots.swap(written_);
  // In the order of their writes, heads first; what begins last stands in front of the queue.
  std::vector<OpPtr> pages;
  while (!slots.empty()) {
    auto op = std::make_unique<Op>();
    op->kind = Op::kPage;
    op->number = slots.front().id / kRecordsPerPage;
    std::erase_if(slots, [&](const kvshm_handle& h) {
      if (h.id / kRecordsPerPage != op->number) return false;
      op->slots.push_back(h);
      return true;
    });
    pages.push_back(std::move(op));
  }
  for (; !pages.empty(); pages.pop_back()) {
    OpPtr& op = pages.back();
    // One write of a page at a time: two would overtake each other, and each be done again for it.
    const auto [place, fresh] = at_work_.try_emplace(op->number, op.get());
    if (fresh)
      begin_page(std::move(op));
    else
      place->second->next.insert(place->second->next.end(), op->slots.begin(), op->slots.end());
  }
}

void Mover::begin_page(OpPtr op) {
  if (!op->bounce && !pages_.empty()) {
    op->bounce = std::move(pages_.back());
    pages_.pop_back();
  }
  if (!op->bounce) op->bounce = std::make_unique<Bounce>(kPageBytes);
  if (!op->bounce->get()) {
    op->rc = -ENOMEM;
    return end_page(std::move(op));
  }
  std::vector<std::uint32_t> done;
  for (const kvshm_handle& h : op->slots) done.push_back(h.id);
  // acq_rel: who comes later copies later, and sees what is READY by then
  op->version = std::uint64_t{t_.image->slot + 1} << 48 | ++copies_;
  page_version(*t_.image, op->number).exchange(op->version, std::memory_order_acq_rel);
  copy_page(*t_.image, op->number, done.data(), std::uint32_t(done.size()), op->bounce->get());
  const Place at = t_.files.page(op->number);
  op->file = at.file;
  op->offset = at.offset;
  op->data = op->bounce->get();
  op->bytes = kPageBytes;
  op->issued = 0;
  ready_writes_.push_front(std::move(op));
}

void Mover::end_page(OpPtr op) {
  if (op->kind == Op::kPage) {
    // Another process copied the page meanwhile, and the two writes may have landed in any order.
    const std::uint64_t now = page_version(*t_.image, op->number).load(std::memory_order_acquire);
    if (!op->rc && now != op->version && op->copied_again++ < 16) return begin_page(std::move(op));
    if (!op->rc && pages_.size() < kKeptPages) pages_.push_back(std::move(op->bounce));
    if (!op->slots.empty()) {
      at_work_.erase(op->number);
      if (!op->next.empty()) written_since_ = now_ms();
      written_.insert(written_.end(), op->next.begin(), op->next.end());
    }
    if (!op->rc && t_.options.sync && !op->slots.empty()) {
      auto sync = std::make_unique<Op>();
      sync->kind = Op::kSync;
      sync->slots = std::move(op->slots);
      sync->number = 0;
      ready_writes_.push_front(std::move(sync));
      return;
    }
  }
  if (op->kind == Op::kSync && !op->rc && ++op->number < t_.files.descriptors().size()) {
    op->file = unsigned(op->number);  // the next file
    op->retries = 0;
    ready_writes_.push_front(std::move(op));
    return;
  }
  if (op->slots.empty()) return wiped(op->rc);
  publish(op->slots, op->rc == 0);
}

void Mover::publish(const std::vector<kvshm_handle>& slots, bool well) {
  Arena& image = *t_.image;
  for (const kvshm_handle& h : slots) {
    kvshm_handle out;
    std::uint8_t result = KVSHM_ST_NONE;
    const Key key = image.hot[h.id].load_key();
    const bool good = well && register_block(image, h, key, KVSHM_ALLOW, &out, &result) == 0;
    t_.g2.count(good ? kStat_tier_stored_total : kStat_tier_store_failed_total);
    Ticks ticks(image);
    leave_fill(image, h, ticks);  // the hold that it has become, or the fill
    const auto owed = owed_.find(h.id);
    if (owed == owed_.end()) continue;
    item_over(owed->second.lane, owed->second.ticket);
    owed_.erase(owed);
  }
}

}  // namespace kvshm::tier
