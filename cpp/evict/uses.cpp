// SPDX-License-Identifier: Apache-2.0
#include "evict/uses.hpp"

#include "index/index.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;  // hints: see uses.hpp
constexpr unsigned kSketchCounters = 15, kHashes = 4;

std::uint64_t mix(std::uint64_t x) {  // finalizer of splitmix64 (Steele, Lea, Flood 2014)
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Not of the bits that the index goes by alone, since a raw arena's keys may be counted numbers.
std::uint64_t hash_of(Key k) { return mix(k.lo ^ mix(k.hi + 0x9e3779b97f4a7c15)); }

bool is_sketch(const Arena& a) { return a.sb->policy.flags.load(kRelaxed) & KVSHM_POLICY_SKETCH; }

std::uint32_t now(const Arena& a) { return a.sb->age_epoch.load(kRelaxed); }

// ---- the tagged table

UsesLine& line_of(const Arena& a, std::uint64_t hash) {
  return a.uses[bucket_of(hash, uses_lines(a.nblocks))];
}
std::uint64_t tag_of(std::uint64_t hash) { return hash & 0xfff ? hash & 0xfff : 1; }

unsigned halvings(std::uint64_t then, std::uint32_t at) {
  const std::uint32_t behind = at - std::uint32_t(then);
  return behind > 4 ? 4 : behind;
}

unsigned table_recall(const Arena& a, std::uint64_t hash) {
  const UsesLine& line = line_of(a, hash);
  const std::uint64_t tag = tag_of(hash);
  for (unsigned i = 1; i < 8; i++) {
    const std::uint64_t w = line.words[i].load(kRelaxed);
    for (unsigned at = 0; at < 64; at += 16)
      if ((w >> (at + 4) & 0xfff) == tag)
        return (w >> at & 15) >> halvings(line.words[0].load(kRelaxed), now(a));
  }
  return 0;
}

void table_age(UsesLine& line, std::uint32_t at) {
  const std::uint64_t then = line.words[0].load(kRelaxed);
  if (std::uint32_t(then) == at) return;
  KVSHM_STEP("uses.age");
  line.words[0].store(at, kRelaxed);
  constexpr std::uint64_t kCounts = 0x000f000f000f000f;
  const unsigned by = halvings(then, at);
  const std::uint64_t keep = (0xf >> by) * 0x0001000100010001;
  for (unsigned i = 1; i < 8; i++) {
    const std::uint64_t w = line.words[i].load(kRelaxed);
    line.words[i].store((w & ~kCounts) | ((w & kCounts) >> by & keep), kRelaxed);
  }
}

void table_remember(Arena& a, std::uint64_t hash, unsigned uses) {
  UsesLine& line = line_of(a, hash);
  table_age(line, now(a));
  const std::uint64_t tag = tag_of(hash);
  // Its own place, else the least used; of equal ones not always the same.
  unsigned to = 0, least = 16;
  const unsigned first = unsigned(hash >> 12) % 28;
  for (unsigned i = 0; i < 28; i++) {
    const unsigned place = (first + i) % 28;
    const std::uint64_t e = line.words[1 + place / 4].load(kRelaxed) >> place % 4 * 16 & 0xffff;
    if (e >> 4 == tag) {
      to = place;
      break;
    }
    const unsigned n = unsigned(e & 15);
    if (n < least) to = place, least = n;
  }
  auto& word = line.words[1 + to / 4];
  std::uint64_t w = word.load(kRelaxed);
  const unsigned at = to % 4 * 16;
  const std::uint64_t with = (w & ~(std::uint64_t{0xffff} << at)) | (tag << 4 | uses) << at;
  KVSHM_STEP("uses.place");
  word.compare_exchange_strong(w, with, kRelaxed);
}

// ---- the sketch

struct Counter {
  std::atomic<std::uint64_t>* word;
  unsigned shift;
};

Counter counter_of(const Arena& a, std::uint64_t hash, unsigned i) {
  const std::uint64_t r = mix(hash + (i + 1) * 0x9e3779b97f4a7c15);
  const std::uint64_t word = bucket_of(r, a.nblocks);
  // The high half chose the word, the low half chooses the counter.
  return {&a.uses[word / 8].words[word % 8],
          unsigned((r & 0xffffffff) * kSketchCounters >> 32) * 4};
}

std::uint64_t aged(std::uint64_t w, std::uint32_t at) {
  const unsigned behind = (at - unsigned(w >> 60)) & 15, by = behind > 4 ? 4 : behind;
  const std::uint64_t keep = (0xf >> by) * 0x0111111111111111;
  return std::uint64_t(at & 15) << 60 | ((w & ~(std::uint64_t{15} << 60)) >> by & keep);
}

unsigned sketch_recall(const Arena& a, std::uint64_t hash) {
  unsigned least = 15;
  for (unsigned i = 0; i < kHashes; i++) {
    const Counter c = counter_of(a, hash, i);
    const unsigned n = aged(c.word->load(kRelaxed), now(a)) >> c.shift & 15;
    if (n < least) least = n;
  }
  return least;
}

void sketch_remember(Arena& a, std::uint64_t hash, unsigned uses) {
  for (unsigned i = 0; i < kHashes; i++) {
    const Counter c = counter_of(a, hash, i);
    std::uint64_t w = c.word->load(kRelaxed);
    const std::uint64_t fresh = aged(w, now(a));
    if ((fresh >> c.shift & 15) >= uses) continue;
    const std::uint64_t with = (fresh & ~(std::uint64_t{15} << c.shift)) | std::uint64_t{uses}
                                                                               << c.shift;
    KVSHM_STEP("uses.count");
    c.word->compare_exchange_strong(w, with, kRelaxed);
  }
}

}  // namespace

unsigned recall(const Arena& a, Key key) {
  const std::uint64_t hash = hash_of(key);
  return is_sketch(a) ? sketch_recall(a, hash) : table_recall(a, hash);
}

void remember(Arena& a, Key key, unsigned uses) {
  const std::uint64_t hash = hash_of(key);
  if (uses > 15) uses = 15;
  is_sketch(a) ? sketch_remember(a, hash, uses) : table_remember(a, hash, uses);
}

void prefetch_uses(const Arena& a, Key key) {
  if (!is_sketch(a)) __builtin_prefetch(&line_of(a, hash_of(key)), 1);
}

void forget_uses(Arena& a) {
  for (std::uint64_t i = 0; i < uses_lines(a.nblocks); i++)
    for (auto& w : a.uses[i].words) w.store(0, kRelaxed);
}

void age(Arena& a) {
  const std::uint32_t period = a.sb->policy.age_period.load(kRelaxed);
  if (!period) return;
  const std::uint64_t span = std::uint64_t{period} * a.nblocks;
  const std::uint32_t limit = span > (1u << 30) ? 1u << 30 : std::uint32_t(span);
  std::uint32_t at = a.sb->aged_at.load(kRelaxed);
  const std::uint32_t now = a.sb->tick.load(kRelaxed), behind = now - at;
  if (behind < limit) return;
  // Far behind (a policy that does not age, damage): four halvings leave nothing anyway.
  const std::uint32_t steps = behind / limit > 4 ? 4 : 1;
  KVSHM_STEP("alloc.age");
  // Who moves the mark moves the epoch. Killed between the two it stays: one halving less.
  if (!a.sb->aged_at.compare_exchange_strong(at, steps > 1 ? now : at + limit, kRelaxed)) return;
  KVSHM_STEP("alloc.epoch");
  a.sb->age_epoch.fetch_add(steps, kRelaxed);
}

}  // namespace kvshm
