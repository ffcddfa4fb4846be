// A block's two descriptors. Look-up and reaping touch only the hot line; in a tier file the cold
// line with its key is the on-disk descriptor.
//
// hot: `word` is the truth. `key` is complete between the moment its index entry can be seen and
// the moment it is zeroed in EVICTING; `seq` changes only in EVICTING. The rest are hints: a stale
// link or stamp costs a poorer victim, a stale frequency a touch.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena/step.hpp"
#include "blocks/word.hpp"
#include "kvshm.h"

namespace kvshm {

struct Key {
  std::uint64_t lo = 0, hi = 0;
  static Key load(const std::uint8_t* p) {
    Key k;
    std::memcpy(&k, p, sizeof k);
    return k;
  }
  void store(std::uint8_t* p) const { std::memcpy(p, this, sizeof *this); }
  bool none() const { return (lo | hi) == 0; }
  friend bool operator==(const Key& a, const Key& b) {
    return ((a.lo ^ b.lo) | (a.hi ^ b.hi)) == 0;
  }
};
static_assert(sizeof(Key) == KVSHM_KEY_BYTES);

enum Flags : std::uint8_t {
  kDuplicate = KVSHM_F_DUPLICATE,  // fixed before publish
  kAnnounced = KVSHM_F_ANNOUNCED,  // its index entry is committed
  kFailed = KVSHM_F_FAILED,
  kPrivate = KVSHM_F_PRIVATE,  // published without an entry
  kLastWanted = 16,            // NO_CACHE asked for before publish
  kMortal = KVSHM_F_MORTAL,    // Cold.expires says until when it can be found
  kInserting = 32,             // somebody makes, or has made, its entry: one inserter a life
  kMain = 64,                  // in the main queue of s3fifo: a hint, set at any time
};

struct alignas(64) Hot {
  std::atomic<word_t> word;
  std::atomic<std::uint64_t> key[2];
  std::atomic<std::uint64_t> seq;
  std::atomic<std::uint32_t> fut;    // bit 0: somebody waits for this fill
  std::atomic<std::uint32_t> stamp;  // arena tick of its last release to nobody
  std::atomic<std::uint32_t> parent, parent_check, child, sibling;
  std::atomic<std::uint16_t> tenant;
  std::atomic<std::uint8_t> flags, priority;  // priority: kForAWhile (blocks/deadlines.hpp) + 0-100
  std::atomic<std::uint32_t> freq_depth;      // [depth:24][epoch:4][count:4]

  Key load_key() const {
    return {key[0].load(std::memory_order_relaxed), key[1].load(std::memory_order_relaxed)};
  }
  void store_key(Key k) {
    key[0].store(k.lo, std::memory_order_relaxed);
    KVSHM_STEP("key.half");
    key[1].store(k.hi, std::memory_order_relaxed);
  }
};
static_assert(sizeof(Hot) == 64 && sizeof(Hot) == sizeof(kvshm_block_record));
#define KVSHM_SAME(f) static_assert(offsetof(Hot, f) == offsetof(kvshm_block_record, f))
KVSHM_SAME(word);
KVSHM_SAME(key);
KVSHM_SAME(seq);
KVSHM_SAME(fut);
KVSHM_SAME(stamp);
KVSHM_SAME(parent);
KVSHM_SAME(parent_check);
KVSHM_SAME(child);
KVSHM_SAME(sibling);
KVSHM_SAME(tenant);
KVSHM_SAME(flags);
KVSHM_SAME(priority);
KVSHM_SAME(freq_depth);
#undef KVSHM_SAME

// Of a freq_depth, by the policy's tables: being stored is the first use. As it stands, not aged.
inline unsigned uses_of(std::uint32_t freq_depth) {
  return (freq_depth & 15) < 15 ? (freq_depth & 15) + 1 : 15;
}

struct alignas(64) Cold {
  std::uint64_t check[2];            // XXH3-128 of the payload (tier: always; memory: when asked)
  std::atomic<std::uint64_t> parts;  // low 32: slices begun, high 32: arrived
  std::atomic<std::uint8_t> nparts;
  std::uint8_t reserved[3];
  std::atomic<std::uint32_t> primary;  // of a duplicate; held by whoever holds the duplicate
  std::uint32_t length;                // bytes in use
  std::atomic<std::uint32_t> expires;  // with kMortal: see blocks/deadlines.hpp
  std::uint32_t identity;              // fingerprint, its first bytes
  std::atomic<std::uint32_t> calms;    // with kForAWhile: when its priority is the normal one again
  std::atomic<std::uint64_t> user;     // of an object's head: its bytes
  std::uint64_t self_check;            // XXH3-64 of bytes 0-55 and the key (on disk)
};
static_assert(sizeof(Cold) == 64 && offsetof(Cold, parts) == 16 && offsetof(Cold, nparts) == 24 &&
              offsetof(Cold, primary) == 28 && offsetof(Cold, length) == 32 &&
              offsetof(Cold, expires) == 36 && offsetof(Cold, identity) == 40 &&
              offsetof(Cold, calms) == 44 && offsetof(Cold, self_check) == 56);

}  // namespace kvshm
