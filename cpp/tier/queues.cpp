#include "tier/queues.hpp"

#include <unordered_map>

#include "arena/lock.hpp"

namespace kvshm::tier {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::uint64_t kWaits = 0, kTaken = 1, kCancelled = 2, kStateMask = 3;
constexpr std::int64_t kFillMs = 100;  // a place claimed so long ago, and not filled, is lost

std::uint64_t turn_of(std::uint64_t ticket) { return ticket / kLaneRoom + 1; }

LaneEntry& entry(const Arena& a, unsigned lane, std::uint64_t ticket) {
  return a.queues->entries[lane][ticket % kLaneRoom];
}
}  // namespace

bool push(Arena& a, unsigned lane, std::uint64_t what0, std::uint64_t what1, std::uint32_t most,
          std::uint64_t* ticket) {
  Lane& l = a.queues->lanes[lane];
  if (most > kLaneRoom) most = kLaneRoom;
  std::uint64_t tail = l.tail.load(kRelaxed);
  do {
    // acquire: the place's last reader has ended with it. An old value: refused once too early.
    if (tail - l.done.load(std::memory_order_acquire) >= most) return false;
  } while (!l.tail.compare_exchange_weak(tail, tail + 1, kRelaxed));
  LaneEntry& e = entry(a, lane, tail);
  e.what[0].store(what0, kRelaxed);
  e.what[1].store(what1, kRelaxed);
  e.state.store(std::uint64_t(now_ms()) << 2 | kWaits, kRelaxed);
  e.turn.store(turn_of(tail), std::memory_order_release);  // pairs with the acquire of ready()
  if (ticket) *ticket = tail;
  return true;
}

std::uint32_t cancel(Arena& a, const kvshm_handle* h, std::uint32_t n) {
  std::unordered_multimap<std::uint32_t, std::uint64_t> wanted;
  for (std::uint32_t i = 0; i < n; i++) wanted.emplace(h[i].id, h[i].seq);
  std::uint32_t gone = 0;
  for (unsigned lane = 0; lane < kFetch; lane++) {
    Lane& l = a.queues->lanes[lane];
    const std::uint64_t tail = l.tail.load(std::memory_order_acquire);
    std::uint64_t at = l.head.load(std::memory_order_acquire);
    if (tail - at > kLaneRoom) at = tail - kLaneRoom;  // damage, or two moments
    for (; at != tail; at++) {
      LaneEntry& e = entry(a, lane, at);
      // acquire: the words below are of this state's entry, or the exchange fails
      std::uint64_t s = e.state.load(std::memory_order_acquire);
      if (e.turn.load(std::memory_order_acquire) != turn_of(at)) continue;
      const auto [from, to] = wanted.equal_range(std::uint32_t(e.what[1].load(kRelaxed)));
      bool named = false;
      for (auto i = from; i != to; ++i) named |= i->second == e.what[0].load(kRelaxed);
      if (named && (s & kStateMask) == kWaits &&
          e.state.compare_exchange_strong(s, (s & ~kStateMask) | kCancelled, kRelaxed))
        gone++;
    }
  }
  return gone;
}

void flush(Arena& a) {
  Lane& l = a.queues->lanes[kLater];
  const std::uint64_t tail = l.tail.load(kRelaxed);
  std::uint64_t due = l.due.load(kRelaxed);
  while (due < tail && !l.due.compare_exchange_weak(due, tail, kRelaxed)) {
  }
}

std::uint64_t waiting(const Arena& a, unsigned lane) {
  const Lane& l = a.queues->lanes[lane];
  const std::uint64_t done = l.done.load(std::memory_order_acquire);
  const std::uint64_t tail = l.tail.load(std::memory_order_acquire);
  return tail - done < kLaneRoom ? tail - done : kLaneRoom;
}

bool ended(const Arena& a, unsigned lane, std::uint64_t ticket) {
  return a.queues->lanes[lane].done.load(std::memory_order_acquire) > ticket;
}

bool Intake::begin() {
  bool left = false;
  for (unsigned lane = 0; lane < kLanes; lane++) {
    Lane& l = a_.queues->lanes[lane];
    // acquire: what the last holder of the post stored, which the kernel's lock orders, too
    std::uint64_t done = l.done.load(std::memory_order_acquire);
    const std::uint64_t head = l.head.load(std::memory_order_acquire);
    const std::uint64_t tail = l.tail.load(std::memory_order_acquire);
    if (tail - done > kLaneRoom) {  // damage: what is in the ring
      done = tail > kLaneRoom ? tail - kLaneRoom : 0;
      l.done.store(done, std::memory_order_release);
    }
    const bool sound = head - done <= kLaneRoom && head - done <= tail - done;
    lanes_[lane] = {};
    lanes_[lane].first = done;
    lanes_[lane].had_taken = sound ? head : done;
    left |= sound && head != done;
    l.head.store(forget_taken() ? lanes_[lane].had_taken : done, std::memory_order_release);
    if (forget_taken()) {
      lanes_[lane].first = lanes_[lane].had_taken;
      l.done.store(lanes_[lane].first, std::memory_order_release);
    }
  }
  return left;
}

std::uint64_t Intake::left(unsigned lane) const {
  const Lane& l = a_.queues->lanes[lane];
  const std::uint64_t left = l.tail.load(std::memory_order_acquire) - l.head.load(kRelaxed);
  return left < kLaneRoom ? left : kLaneRoom;
}

bool Intake::due(unsigned lane) const {
  const Lane& l = a_.queues->lanes[lane];
  return l.due.load(kRelaxed) > l.head.load(kRelaxed);
}

std::int64_t Intake::oldest(unsigned lane) const {
  const std::uint64_t head = a_.queues->lanes[lane].head.load(kRelaxed);
  if (!left(lane)) return 0;
  const LaneEntry& e = entry(a_, lane, head);
  if (e.turn.load(std::memory_order_acquire) != turn_of(head)) return 0;
  return std::int64_t(e.state.load(kRelaxed) >> 2);
}

// The place at the head is claimed and not filled. True: its producer has had its time.
bool Intake::passed_over(unsigned lane) {
  auto& mine = lanes_[lane];
  const std::int64_t now = now_ms();
  if (!mine.unfilled_since) mine.unfilled_since = now;
  return now - mine.unfilled_since >= kFillMs;
}

// The words are damaged: what is in the lane is given up.
void Intake::mend(unsigned lane) {
  Lane& l = a_.queues->lanes[lane];
  const std::uint64_t tail = l.tail.load(std::memory_order_acquire);
  lanes_[lane] = {};
  lanes_[lane].first = tail;
  l.head.store(tail, std::memory_order_release);
  l.done.store(tail, std::memory_order_release);
  l.due.store(0, kRelaxed);
}

bool Intake::take(unsigned lane, Waiting* out) {
  Lane& l = a_.queues->lanes[lane];
  auto& mine = lanes_[lane];
  if (l.tail.load(std::memory_order_acquire) - l.head.load(kRelaxed) > kLaneRoom) mend(lane);
  for (unsigned i = 0; i < kLaneRoom && left(lane); i++) {
    const std::uint64_t at = l.head.load(kRelaxed);
    LaneEntry& e = entry(a_, lane, at);
    const bool filled = e.turn.load(std::memory_order_acquire) == turn_of(at);
    if (!filled && !passed_over(lane)) return false;
    if (filled) mine.unfilled_since = 0;  // else the next one has had its time, too
    std::uint64_t s = e.state.load(kRelaxed);
    *out = {{e.what[0].load(kRelaxed), e.what[1].load(kRelaxed)},
            std::int64_t(s >> 2),
            lane,
            at,
            at < mine.had_taken};
    // relaxed: the words were ordered by `turn`; here only one of two wins
    const bool taken = filled && (s & kStateMask) != kCancelled &&
                       e.state.compare_exchange_strong(s, (s & ~kStateMask) | kTaken, kRelaxed);
    mine.ended.push_back(false);
    l.head.store(at + 1, std::memory_order_release);
    if (taken) return true;
    end(lane, at);
  }
  return false;
}

void Intake::end_all() {
  for (unsigned lane = 0; lane < kLanes; lane++)
    while (!lanes_[lane].ended.empty()) {
      lanes_[lane].ended.back() = true;
      end(lane, lanes_[lane].first);
    }
}

void Intake::end(unsigned lane, std::uint64_t ticket) {
  auto& mine = lanes_[lane];
  const std::uint64_t i = ticket - mine.first;
  if (i >= mine.ended.size()) return;
  mine.ended[i] = true;
  if (i) return;
  while (!mine.ended.empty() && mine.ended.front()) {
    mine.ended.pop_front();
    mine.first++;
  }
  // release: producers may fill the place; who waits for it sees what became of it
  a_.queues->lanes[lane].done.store(mine.first, std::memory_order_release);
}

}  // namespace kvshm::tier
