// The parameter table and the victim marks: how decisions made elsewhere (kvshm.eviction) reach
// every process as data.
#include <cstring>
#include <thread>

#include "arena/lock.hpp"
#include "evict/choose.hpp"
#include "evict/controller.hpp"
#include "evict/evict.hpp"
#include "evict/uses.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::int64_t kWriterMs = 20;  // for another process to write a table

// A block's life and its last release: one that was used since it was marked is no victim.
std::uint64_t mark_of(const Arena& a, std::uint32_t id, std::uint64_t seq) {
  const std::uint32_t stamp = a.in_range(id) ? a.hot[id].stamp.load(kRelaxed) : 0;
  return std::uint64_t{stamp} << 32 | std::uint32_t(seq);
}

// All but the version, which the caller has made odd, or nobody has seen yet.
void store_table(PolicyTable& t, const kvshm_policy& in, std::uint64_t blocks) {
  constexpr auto release = std::memory_order_release;
  char name[32] = {};
  std::memcpy(name, in.name, strnlen(in.name, 31));
  for (int i = 0; i < 4; i++) {
    std::uint64_t w;
    std::memcpy(&w, name + 8 * i, 8);
    t.name[i].store(w, release);
  }
  KVSHM_STEP("policy.half");
  t.sample.store(in.sample, release);
  t.flags.store(in.flags, release);
  t.age_period.store(in.age_period, release);
  t.young.store(in.young, release);
  t.small.store(in.small, release);
  t.touch_mask.store(
      in.flags & KVSHM_POLICY_TOUCHES ? (1u << shadow_bits(blocks)) - 1 : ~std::uint32_t{0},
      release);
  for (int i = 0; i < 16; i++) t.levels[i].store(in.shift[i] | in.rank[i] << 8, release);
}

}  // namespace

// The weight of kStartWeight, until a controller knows better: a block of the next level of use (2, 6,
// 15) may be four times as old, so that a scan does not take what is used.
void default_policy(PolicyTable& t, std::uint64_t blocks) {
  kvshm_policy p = KVSHM_POLICY_INIT;
  std::strcpy(p.name, "adaptive");
  p.sample = 24;
  p.flags = KVSHM_POLICY_MEMORY | KVSHM_POLICY_TOUCHES;
  p.age_period = 7;
  p.small = 512;
  for (std::uint32_t i = 0; i < 16; i++) p.shift[i] = 2 * ((i >= 2) + (i >= 6) + (i >= 15));
  store_table(t, p, blocks);
  t.version.store(2, std::memory_order_release);
}

Policy read_policy(const Arena& a) {
  const PolicyTable& t = a.sb->policy;
  Policy p{};
  // Few attempts: it is read for every choice of victims, and a writer that died half-way leaves the
  // version odd until the next one comes. A mixture is only a poorer choice.
  for (int attempt = 0; attempt < 30; attempt++) {
    const std::uint64_t before = t.version.load(std::memory_order_acquire);
    // acquire on each: none may move behind the second look at the version
    p.sample = t.sample.load(std::memory_order_acquire);
    const std::uint32_t flags = p.flags = t.flags.load(std::memory_order_acquire);
    p.second_chance = flags & KVSHM_POLICY_SECOND_CHANCE;
    p.leaf_queue = flags & KVSHM_POLICY_LEAF_QUEUE;
    p.queues = flags & KVSHM_POLICY_QUEUES;
    p.age_period = t.age_period.load(std::memory_order_acquire);
    p.young_share = t.young.load(std::memory_order_acquire);
    p.small = t.small.load(std::memory_order_acquire);
    for (int i = 0; i < 16; i++) {
      const std::uint32_t level = t.levels[i].load(std::memory_order_acquire);
      p.shift[i] = std::uint8_t(level & 31);
      p.rank[i] = std::uint8_t(level >> 8);
    }
    if (!(before & 1) && t.version.load(kRelaxed) == before) break;
  }
  if (p.sample < 1 || p.sample > 64) p.sample = 24;
  // At least a tick, so that admission never takes what was given back this moment.
  if (p.young_share)
    p.young = std::uint32_t(std::uint64_t{a.nblocks} * (p.young_share & 1023) / 1024) + 1;
  return p;
}

namespace {

// Odd while written. A writer that died there, or takes that long, is overtaken: the worst is a
// mixture of two tables, a poorer choice of victims.
std::uint64_t begin_table(PolicyTable& t, std::uint64_t expected) {
  for (const std::int64_t deadline = now_ms() + kWriterMs;;) {
    std::uint64_t v = t.version.load(std::memory_order_acquire);
    if (expected && v != expected) return 0;
    if (!expected && (v & 1) && now_ms() < deadline) {
      std::this_thread::yield();
      continue;
    }
    KVSHM_STEP("policy.odd");
    const std::uint64_t odd = (v | 1) + (v & 1 ? 2 : 0);
    if (t.version.compare_exchange_strong(v, odd, std::memory_order_seq_cst)) return odd;
  }
}

}  // namespace

std::uint64_t write_policy(Arena& a, const kvshm_policy& in, std::uint64_t expected) {
  PolicyTable& t = a.sb->policy;
  const std::uint64_t odd = begin_table(t, expected);
  if (!odd) return 0;
  const bool form = (t.flags.load(kRelaxed) ^ in.flags) & KVSHM_POLICY_SKETCH;
  store_table(t, in, a.nblocks);
  // Counters and places of the memory of uses are read as each other: with another form it is empty.
  if (form) forget_uses(a);
  KVSHM_STEP("policy.even");
  std::uint64_t mine = odd;
  return t.version.compare_exchange_strong(mine, odd + 1, std::memory_order_seq_cst) ? odd + 1 : 0;
}

std::uint32_t push_marks(Arena& a, const kvshm_handle* h, std::uint32_t n) {
  std::uint32_t done = 0;
  while (done < n) {
    // tail first: it only grows, so head - tail is never negative
    const std::uint64_t tail = a.sb->marks_tail.load(std::memory_order_acquire);
    std::uint64_t head = a.sb->marks_head.load(std::memory_order_acquire);
    if (head - tail >= kMarks) break;
    KVSHM_STEP("mark.claim");
    if (!a.sb->marks_head.compare_exchange_strong(head, head + 1, std::memory_order_acq_rel))
      continue;
    Mark& m = a.marks[head % kMarks];
    m.seq.store(mark_of(a, h[done].id, h[done].seq), kRelaxed);
    m.id.store(h[done].id, kRelaxed);
    KVSHM_STEP("mark.turn");
    m.turn.store(std::uint32_t(head / kMarks) + 1, std::memory_order_release);
    done++;
  }
  return done;
}

bool pop_mark(Arena& a, std::uint32_t* id, std::uint64_t* seq) {
  for (int attempt = 0; attempt < 64; attempt++) {
    std::uint64_t tail = a.sb->marks_tail.load(std::memory_order_acquire);
    if (tail == a.sb->marks_head.load(std::memory_order_acquire)) return false;
    Mark& m = a.marks[tail % kMarks];
    // Not written yet (its writer is slow, or dead): this place is lost, which costs one mark.
    const bool ready = m.turn.load(std::memory_order_acquire) == std::uint32_t(tail / kMarks) + 1;
    const std::uint64_t mark = m.seq.load(kRelaxed);
    *id = m.id.load(kRelaxed);
    KVSHM_STEP("mark.take");
    if (a.sb->marks_tail.compare_exchange_strong(tail, tail + 1, std::memory_order_acq_rel) &&
        ready && a.in_range(*id)) {
      *seq = a.hot[*id].seq.load(kRelaxed);
      if (mark == mark_of(a, *id, *seq)) return true;
    }
  }
  return false;
}

std::uint64_t marks_left(const Arena& a) {
  const std::uint64_t tail = a.sb->marks_tail.load(std::memory_order_acquire);
  const std::uint64_t head = a.sb->marks_head.load(std::memory_order_acquire);
  if (head <= tail) return 0;
  return head - tail < kMarks ? head - tail : kMarks;  // more: damage, or a look in two moments
}

}  // namespace kvshm
