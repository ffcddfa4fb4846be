// The parameter table and the victim marks: how decisions made elsewhere (kvshm.eviction) reach
// every process as data.
#include <cstring>

#include "evict/evict.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
}

void default_policy(PolicyTable& t) {
  char name[32] = "clock";
  for (int i = 0; i < 4; i++) {
    std::uint64_t w;
    std::memcpy(&w, name + 8 * i, 8);
    t.name[i].store(w, kRelaxed);
  }
  t.sample.store(20, kRelaxed);
  t.second_chance.store(1, kRelaxed);
  t.age_period.store(10, kRelaxed);
  for (auto& s : t.shift) s.store(0, kRelaxed);
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
    p.second_chance = t.second_chance.load(std::memory_order_acquire);
    p.age_period = t.age_period.load(std::memory_order_acquire);
    for (int i = 0; i < 16; i++)
      p.shift[i] = std::uint8_t(t.shift[i].load(std::memory_order_acquire) & 31);
    if (!(before & 1) && t.version.load(kRelaxed) == before) break;
  }
  if (p.sample < 1 || p.sample > 64) p.sample = 20;
  return p;
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
    m.seq.store(h[done].seq, kRelaxed);
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
    *seq = m.seq.load(kRelaxed);
    *id = m.id.load(kRelaxed);
    KVSHM_STEP("mark.take");
    if (a.sb->marks_tail.compare_exchange_strong(tail, tail + 1, std::memory_order_acq_rel) &&
        ready)
      return true;
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
