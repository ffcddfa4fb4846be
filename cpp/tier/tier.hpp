// One attachment's tier: the files, the image of their slots, and the thread that moves blocks.
//
//   register ──► offer ──► lanes in the arena ──► the elected process's mover ──► write data
//                                                  ──► write record page ──► slot READY
//   match_load ──► slot held, block FILLING ──► own mover ──► read ──► check ──► block READY
//   prefetch ──► lane in the arena ──► the elected process's mover ──► the same
//
// Invariants
//   T1  a slot's data and record are written only by who fills the slot, its record cleared first
//   T2  a slot becomes READY after its data is written, and its record page (with sync: both are
//       on the medium)
//   T3  a block is registered after its bytes have been compared with the record's checksum
//   T4  memory and slot of a transfer stay FILLING, or held, until it has landed, in the kernel's
//       sense: a ring holds the device byte of both arenas
#pragma once
#include <memory>
#include <string>

#include "arena/arena.hpp"
#include "tier/files.hpp"
#include "tier/image.hpp"
#include "tier/load.hpp"

namespace kvshm::tier {

class Gds;
class Mover;

#ifdef KVSHM_STEPS
inline std::atomic<bool> serve_unchecked{false};  // the control of the tests: T3 is not kept
inline bool unchecked() { return serve_unchecked.load(std::memory_order_relaxed); }
#else
constexpr bool unchecked() { return false; }
#endif

struct Options {
  std::uint32_t engine = 0, sync = 0, write = 0, admit = 0, queue = 1024, deadline_ms = 5000;
  std::uint64_t min_speed = 0, gather = 64 << 20;
  std::uint32_t age_ms = 1000, low = 250, mover = 0, stores = 16, min_prefix = 0, min_priority = 0;
};

struct Tier {
  explicit Tier(Arena& a);
  Tier(const Tier&) = delete;
  ~Tier();  // after stop() said true

  // *out may be set beside an error: a thread that does not end yet, for stop().
  static int open(Arena& a, const kvshm_tier_options& o, std::unique_ptr<Tier>* out);
  bool stop(std::int64_t deadline_ms);  // no transfer is left; false: not yet

  bool serving() const;  // look-ups may find, and load
  bool may_load();       // the same, but for a slow tier one try now and then
  // Of what this handle has offered: one past the last ticket of each lane, for drain().
  void remember(unsigned lane, std::uint64_t ticket) {
    std::uint64_t was = mine[lane].load(std::memory_order_relaxed);
    while (was <= ticket &&
           !mine[lane].compare_exchange_weak(was, ticket + 1, std::memory_order_relaxed)) {
    }
  }
  int drain(std::uint32_t timeout_ms);
  std::int64_t clear(std::uint32_t timeout_ms);
  void describe(kvshm_tier* out) const;

  Arena& g2;
  std::unique_ptr<Arena> image;
  Files files;
  Options options;
  std::unique_ptr<Mover> mover;
  std::atomic<std::uint64_t> mine[kLanes] = {};  // see remember(); relaxed: of this process alone
  std::mutex gds_mutex;
  std::unique_ptr<Gds> gds_owner;  // under gds_mutex
  std::atomic<Gds*> gds{nullptr};  // the same, for calls: acquire, of the one release store
};

// The look-up of kvshm_match_load, memory hits held, transfers handed to the mover. t may be null.
// Returns the length of the prefix, or -errno with nothing held.
struct LoadSpec {
  std::uint32_t flags;
  kvshm_handle* pending;
};
std::int64_t match_load(Arena& a, Tier* t, const kvshm_key* keys, std::uint32_t n,
                        const LoadSpec& spec, std::shared_ptr<LoadState>* out);

}  // namespace kvshm::tier
