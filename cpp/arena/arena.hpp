// One attachment of one process: where the arena is mapped here, which slot is ours, and what is
// private to the process (in-process counts, leases, the evictor's hand).
#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "arena/breaks.hpp"
#include "arena/error.hpp"
#include "arena/layout.hpp"
#include "arena/lock.hpp"
#include "arena/step.hpp"
#include "blocks/leases.hpp"
#include "blocks/waits.hpp"

namespace kvshm {

struct Kept {  // a cached leaf seen by the last eviction: a candidate for the next
  std::uint32_t id, stamp;
};

struct OwnKept {  // the same of one tenant, the next to go at the end
  static constexpr unsigned kRoom = 64;
  std::uint32_t tenant = 0;
  unsigned n = 0;
  Kept list[kRoom];
};

struct Evictor {  // under `mutex`; all of it are hints
  std::mutex mutex;
  std::uint64_t hand = 0;
  std::uint32_t step = 0;  // of the hand; 0: not worked out yet
  Kept kept[8];
  unsigned nkept = 0;
  OwnKept own;
  std::uint64_t looks = 0;     // descriptors looked at by this call
  unsigned small_share = 512;  // of the blocks seen last, in 1/1024 (s3fifo)
};

class Pin;

struct Arena {
  Arena();
  // where things are in this process
  std::byte* base = nullptr;
  Superblock* sb = nullptr;
  SlotRecord* slots = nullptr;
  SlotRecord* mine = nullptr;
  Hot* hot = nullptr;
  Cold* cold = nullptr;
  std::atomic<std::uint64_t>* index = nullptr;
  std::atomic<std::uint64_t>*free_map = nullptr, *summary = nullptr;
  std::atomic<std::uint64_t>* my_regions = nullptr;
  Mark* marks = nullptr;
  Queues* queues = nullptr;
  Ghost* ghosts = nullptr;
  Tenant* tenants = nullptr;
  UsesLine* uses = nullptr;
  ShadowHeader* shadow = nullptr;
  std::byte* data = nullptr;
  std::uint32_t nblocks = 0;
  std::uint64_t block_bytes = 0, nbuckets = 0;
  unsigned slot = kSlots;
  word_t me = 0;  // my holder bit

  // private to the process
  std::atomic<std::uint32_t>* counts = nullptr;  // see blocks/counts.hpp
  std::atomic<std::uint32_t> regions_entered{0};
  std::atomic<bool> in_all_regions{false};       // enter_region() has nothing left to do
  std::atomic<std::uint32_t> count_sleepers{0};  // threads that wait for a cell's T
  std::atomic<std::uint32_t> free_cursor{0};
  std::uint64_t quota = 0;                // blocks held or filled at most; 0 = none
  std::atomic<std::uint64_t> holding{0};  // counted only with a quota (blocks/quota.hpp)
  Leases leases;
  Evictor evictor;
  std::mutex controller_mutex;    // one step at a time
  std::uint64_t odd_version = 0;  // of the policy table, at the last step
  Waits waits;
  std::uint64_t stats_at_attach[kStatRoom] = {};

  // the object
  Geometry geometry{};
  std::string name, path;
  dev_t dev = 0;
  ino_t ino = 0;
  void* anchor = nullptr;  // keeps the life byte's description (arena/slots.hpp)
  std::size_t anchor_bytes = 0;
  void* posts[kPosts] = {};  // the same for a post's byte (arena/posts.hpp); under the claim mutex
  std::uint64_t page_bytes = kPage;
  bool pinned = false, created = false;
  std::unique_ptr<Pin> pin;  // registration with a device (device/pin.hpp)

  // helper thread
  pthread_t helper{};
  bool helper_runs = false;
  std::uint32_t reap_ms = 500;
  std::mutex helper_mutex;
  pthread_cond_t helper_wake;
  bool helper_stop = false;

  std::atomic<std::uint64_t>* regions_of(unsigned s) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(base + geometry.regions_off) +
           s * geometry.region_words;
  }
  bool in_range(std::uint32_t id) const { return id < nblocks; }
  void count(Stat s, std::uint64_t n = 1) {
    // relaxed: a figure; the line belongs to this process alone
    if (n) mine->stats[s].fetch_add(n, std::memory_order_relaxed);
  }
  bool in_region(std::uint32_t id) const {
    const std::uint32_t r = id / kRegionBlocks;
    return my_regions[r / 64].load(std::memory_order_relaxed) >> (r % 64) & 1;
  }
  // Before the first compare-and-swap of this process in a region, so that whoever reaps it finds
  // the region. seq_cst: the reaper must not see the word bit without this one.
  void enter_region(std::uint32_t id) {
    if (in_region(id)) return;
    const std::uint32_t r = id / kRegionBlocks;
    auto& w = my_regions[r / 64];
    const std::uint64_t bit = std::uint64_t{1} << (r % 64);
    KVSHM_STEP("region.set");
    // M:slots.4
    const std::uint64_t before = w.fetch_or(bit, std::memory_order_seq_cst);
    // relaxed: who still sees false looks at the bit
    if (!(before & bit) && regions_entered.fetch_add(1, std::memory_order_relaxed) + 1 ==
                               (nblocks + kRegionBlocks - 1) / kRegionBlocks)
      in_all_regions.store(true, std::memory_order_relaxed);
  }
  ~Arena();
};

}  // namespace kvshm
