// SPDX-License-Identifier: Apache-2.0
#include "weak/world.hpp"

#include <cstdlib>

#include "device/pin.hpp"

namespace weak {
namespace {

// What the sources under test call of the rest of the core. Nothing here dies or is reaped.
template <class T>
T* zeroed(std::size_t n) {
  void* p = std::aligned_alloc(4096, (n * sizeof(T) + 4095) / 4096 * 4096);
  std::memset(p, 0, n * sizeof(T));
  return static_cast<T*>(p);
}

}  // namespace

World::World() {
  auto* sb = zeroed<Superblock>(1);
  auto* slots = zeroed<SlotRecord>(kProcesses);
  auto* regions = zeroed<std::atomic<std::uint64_t>>(kProcesses);
  auto* marks = zeroed<Mark>(kMarks);
  auto* tenants = zeroed<Tenant>(kTenants);
  auto* ghosts = zeroed<Ghost>(ghost_places(kBlocksHere));
  auto* uses = zeroed<UsesLine>(uses_lines(kBlocksHere));
  hot = zeroed<Hot>(kBlocksHere);
  cold = zeroed<Cold>(kBlocksHere);
  index = zeroed<std::atomic<std::uint64_t>>(kIndexWays);
  free_map = zeroed<std::atomic<std::uint64_t>>(kRegionBlocks / 64);
  summary = zeroed<std::atomic<std::uint64_t>>(1);
  default_policy(sb->policy, kBlocksHere);
  for (unsigned p = 0; p < kProcesses; p++) {
    Arena& a = of[p];
    a.sb = sb;
    a.slots = slots;
    a.mine = slots + p;
    a.hot = hot;
    a.cold = cold;
    a.index = index;
    a.free_map = free_map;
    a.summary = summary;
    a.my_regions = regions + p;
    a.marks = marks;
    a.ghosts = ghosts;
    a.tenants = tenants;
    a.uses = uses;
    a.counts = zeroed<std::atomic<std::uint32_t>>(kBlocksHere);
    a.nblocks = kBlocksHere;
    a.nbuckets = 1;
    a.slot = p;
    a.me = holder_bit(p);
  }
}

void World::begin() {
  constexpr auto kPlain = std::memory_order_relaxed;  // nothing is watched yet
  abandon_all();
  for (unsigned p = 0; p < kProcesses; p++) {
    for (unsigned i = 0; i < kBlocksHere; i++) of[p].counts[i].store(0, kPlain);
    of[p].free_cursor.store(0, kPlain);
    of[p].evictor.nkept = 0;
    of[p].evictor.hand = 0;
  }
  of[0].sb->space.store(0, kPlain);
  for (unsigned i = 0; i < kIndexWays; i++) index[i].store(0, kPlain);
  for (unsigned i = 0; i < kBlocksHere; i++) {
    std::memset(static_cast<void*>(&hot[i]), 0, sizeof(Hot));
    std::memset(static_cast<void*>(&cold[i]), 0, sizeof(Cold));
    hot[i].word.store(make_word(kFirst, kFree, 0), kPlain);
    hot[i].seq.store(kFirst, kPlain);
    hot[i].parent.store(kNone, kPlain);
    hot[i].child.store(kNone, kPlain);
    hot[i].sibling.store(kNone, kPlain);
    hot[i].priority.store(50, kPlain);
    cold[i].primary.store(kNone, kPlain);
    cold[i].nparts.store(1, kPlain);
  }
  free_map[0].store((1u << kBlocksHere) - 1, kPlain);
  summary[0].store(1, kPlain);
}

kvshm_handle World::filling(unsigned p, std::uint32_t id, Key k, bool announced, unsigned members) {
  constexpr auto kPlain = std::memory_order_relaxed;
  word_t holders = of[p].me;
  enter(of[p], id);
  for (unsigned q = 0; q < kProcesses; q++)
    if (members >> q & 1) {
      holders |= of[q].me;
      enter(of[q], id);
    }
  hot[id].word.store(make_word(kFirst, kFilling, holders), kPlain);
  hot[id].store_key(k);
  free_map[0].fetch_and(~(std::uint64_t{1} << id), kPlain);
  if (announced) {
    index[id].store(entry::make(k.lo & 0x7fffffff, id), kPlain);
    hot[id].flags.store(kInserting | kAnnounced, kPlain);
  }
  return {kFirst, id, 0};
}

kvshm_handle World::ready(std::uint32_t id, Key k) {
  constexpr auto kPlain = std::memory_order_relaxed;
  hot[id].word.store(make_word(kFirst, kReady, 0), kPlain);
  hot[id].store_key(k);
  free_map[0].fetch_and(~(std::uint64_t{1} << id), kPlain);
  index[id].store(entry::make(k.lo & 0x7fffffff, id), kPlain);
  return {kFirst, id, 0};
}

void enter(Arena& a, std::uint32_t id) {
  std::int64_t deadline = 0;
  enter_fill(a, id, 0, &deadline);
}

World& world() {
  static World w;
  return w;
}

}  // namespace weak

namespace kvshm {
Pin::~Pin() = default;
Arena::Arena() = default;
Arena::~Arena() = default;
int reap_dead(Arena&, kvshm_reap_report*) { return 0; }
File open_object(const Arena&, int) { return File(); }
std::int64_t now_ms() { return 0; }
std::int64_t boottime_ms() { return 0; }
bool evict_life(Arena&, kvshm_handle) { return false; }
void sleep_ms(unsigned) {}
File& File::operator=(File&& o) noexcept {
  fd_ = o.fd_;
  return *this;
}
void File::reset(int) {}
int lock_byte_until(int, bool, off_t, std::int64_t, const std::atomic<bool>*) { return -ETIMEDOUT; }
int fail(int rc, const char*, ...) { return rc; }
int unlock_byte(int, off_t) { return 0; }
}  // namespace kvshm
