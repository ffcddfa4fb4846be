// Layout 1: what lies in the arena object, by offsets only.
//
//   superblock | slots | regions | hot | cold | index | free map, summary | ghost | uses | shadow
//   | tenants | marks | events | queues | data
//
// The geometry is a pure function of (bytes, block_bytes, blocks): attach recomputes it and trusts
// nothing that it reads. All sections start at a multiple of 4096.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "blocks/descriptor.hpp"

namespace kvshm {

inline constexpr std::uint64_t kMagic = 0x314d4853564bULL << 16 | 0x6e61;  // "an" "KVSHM1"
inline constexpr std::uint64_t kPage = 4096, kHugePage = 2 << 20;
inline constexpr std::uint32_t kRegionBlocks = 4096;  // blocks per region bit and summary bit
inline constexpr std::uint32_t kNone = KVSHM_NONE;
inline constexpr unsigned kLeaseLines = 1024, kTouchRing = 2048, kHistograms = 8, kBuckets = 64;
inline constexpr unsigned kTenants = 256, kMarks = 8192, kEvents = 4096, kIndexWays = 8;
inline constexpr unsigned kLanes = 4, kLaneRoom = 2048;

#define KVSHM_COUNT_ONE(name, text) kStat_##name,
enum Stat : unsigned { KVSHM_COUNTER_FIELDS(KVSHM_COUNT_ONE) kStatCount };
#undef KVSHM_COUNT_ONE
inline constexpr unsigned kStatRoom = 64;
static_assert(kStatCount <= kStatRoom);

struct Geometry {
  std::uint64_t bytes, block_bytes, blocks, buckets;
  std::uint64_t slots_off, regions_off, hot_off, cold_off, index_off, free_off, summary_off,
      ghost_off, uses_off, shadow_off, tenants_off, marks_off, events_off, queues_off, data_off;
  std::uint64_t region_words;  // u64 words of region bits per slot
};

// The eviction scorer's parameters; guarded by `version` as a seqlock (odd: being written).
struct alignas(64) PolicyTable {
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> name[4];
  std::atomic<std::uint32_t> sample, flags, age_period;  // flags: KVSHM_POLICY_...
  std::atomic<std::uint32_t> young, small;               // in 1/1024 of the blocks
  std::atomic<std::uint32_t> touch_mask;                 // see evict/touches.hpp; all ones: none
  std::atomic<std::uint32_t> levels[16];                 // by uses: [ rank: 8 | shift: 8 ]
};
static_assert(sizeof(PolicyTable) == 128);

// Who came last with another identity. `version` guards the text as in PolicyTable.
struct ForeignNote {
  std::atomic<std::uint64_t> count, version, at, pid;
  std::atomic<std::uint64_t> identity[128];  // JSON
};

// Of the image of a tier, whose blocks are the slots of a file (tier/tier.hpp); zeros elsewhere.
struct TierNote {
  std::atomic<std::uint64_t> state;              // KVSHM_TIER_NONE, _REBUILDING or _OK
  std::atomic<std::uint64_t> done, total, kept;  // records read back, of how many; slots kept
  char path[512];  // its files, ':' between them; written before `state`
};

struct alignas(4096) Superblock {
  // Written once by the creator; magic last.
  std::atomic<std::uint64_t> magic;
  std::uint32_t layout_version, superblock_bytes;
  std::uint64_t layout_hash;
  std::uint8_t uuid[16];
  std::uint64_t created_at, creator_pid, page_bytes;
  // Read at every call, written at most once or rarely.
  alignas(64) std::atomic<std::uint32_t> dead;
  std::atomic<std::uint32_t> age_epoch;    // frequencies of older epochs count for less
  std::atomic<std::uint32_t> space_epoch;  // of the namespace; keys of older ones are not asked for
  std::atomic<std::uint32_t> limits;       // Limits (blocks/tenants.hpp): 0 = no tenant has any
  std::atomic<std::uint64_t> pin_budget;   // blocks that may be pinned, + 1; 0 = no limit
  std::atomic<std::uint64_t> tenants_seen[kTenants / 64];  // whoever has, or had, a block
  // Eventcount "space": bit 0 = an allocator waits.
  alignas(64) std::atomic<std::uint32_t> space;
  // Ticks: counted up by every release to nobody; a stamp is one of them.
  alignas(64) std::atomic<std::uint32_t> tick;
  alignas(64) std::atomic<std::uint32_t> aged_at;  // tick of the last step of age_epoch
  std::atomic<std::uint64_t> marks_head, marks_tail, events_head;
  alignas(64) Geometry geometry;
  std::uint8_t fingerprint[16];
  std::uint32_t raw;  // 1 = no identity
  std::int32_t numa;
  std::uint32_t identity_length;
  char name[64];
  char identity[1024];
  alignas(64) PolicyTable policy;
  // For people; zeros where an older library made the arena.
  char charged_group[256];  // control group of the creator, who touched all pages first
  ForeignNote foreign;
  // Of the identity that each slot's process came with: 1 << 32 | epoch, 0 = it came without one.
  std::atomic<std::uint64_t> epochs[kSlots];
  // Counted when a block of priority 100 comes or goes: a hint, see blocks/tenants.hpp.
  alignas(64) std::atomic<std::uint64_t> pinned;
  std::atomic<std::uint64_t> recounted_at;  // ms of CLOCK_BOOTTIME
  alignas(64) TierNote tier;
};
static_assert(sizeof(Superblock) == kPage && offsetof(Superblock, tier) == 3520);
static_assert(offsetof(Superblock, dead) == 64 && offsetof(Superblock, space_epoch) == 72 &&
              offsetof(Superblock, limits) == 76 && offsetof(Superblock, pin_budget) == 80 &&
              offsetof(Superblock, tenants_seen) == 88 && offsetof(Superblock, pinned) == 3456 &&
              offsetof(Superblock, space) == 128 && offsetof(Superblock, tick) == 192 &&
              offsetof(Superblock, aged_at) == 256 && offsetof(Superblock, geometry) == 320 &&
              offsetof(Superblock, charged_group) == 1728 &&
              offsetof(Superblock, foreign) == 1984 && offsetof(Superblock, epochs) == 3040);

// device_memory of a slot: what a reaper must know of its GPU memory.
struct DeviceWord {
  static constexpr std::uint32_t kMark = 1;  // registered: its device may write after its death
  static constexpr std::uint32_t make(bool mark, std::uint32_t state, std::uint32_t drain_ms) {
    return (mark ? kMark : 0) | state << 1 | drain_ms << 8;
  }
  static constexpr std::uint32_t state(std::uint32_t w) { return w >> 1 & 7; }
  static constexpr std::uint32_t drain_ms(std::uint32_t w) { return w >> 8 ? w >> 8 : 2000; }
};

struct LeaseLine {  // single writer; a hint for the inspector
  std::atomic<std::uint64_t> tag;
  std::atomic<std::uint32_t> start, count;  // seconds of CLOCK_MONOTONIC; holds
};

// Written by the tier's thread of the slot alone (tier/mover.cpp).
struct alignas(64) TierLine {
  // [ state: 8 | engine: 8 | direct: 8 | registered: 8 | cause: 32 ], cause: -errno, 0 = as wished
  std::atomic<std::uint64_t> word;
  std::atomic<std::uint64_t> queued, in_flight, parked;  // parked: slots without room in the file
  std::uint64_t reserved[4];
};
static_assert(sizeof(TierLine) == 64);

struct alignas(64) SlotRecord {
  std::atomic<std::uint32_t> used;
  std::int32_t pid;
  std::uint32_t uid;
  std::atomic<std::uint32_t> device_memory;  // see DeviceWord
  std::uint64_t start_time, attached_at, pid_ns;
  std::atomic<std::uint64_t> drain_until;  // ms of CLOCK_BOOTTIME
  std::atomic<std::uint64_t> quota;        // blocks; 0 = none
  char label[64];
  std::atomic<std::uint64_t> device_bytes;      // registered with its device, for the inspector
  TierLine tier;                                // how its tier does, for the inspector
  std::atomic<std::uint64_t> stats[kStatRoom];  // totals go on over lives of the slot
  std::atomic<std::uint64_t> histograms[kHistograms][kBuckets];
  LeaseLine leases[kLeaseLines];
  std::atomic<std::uint64_t> touches[kTouchRing];
};
static_assert(offsetof(SlotRecord, device_bytes) == 120 && offsetof(SlotRecord, tier) == 128 &&
              offsetof(SlotRecord, stats) == 192);
static_assert(sizeof(SlotRecord) % 64 == 0 && sizeof(SlotRecord) <= 40 * 1024);

// Rows of the table; row 0 is who names none. `used` is a hint, see blocks/tenants.hpp.
struct alignas(64) Tenant {
  std::atomic<std::uint64_t> name_hash, quota, used;  // hash 0: no name; quota in blocks, 0 = none
  std::atomic<std::uint32_t> weight, reserved;        // of its share; 0 = none was set
  std::atomic<std::uint64_t> name[4];                 // its first 31 bytes
};
static_assert(sizeof(Tenant) == 64 && offsetof(Tenant, weight) == 24 &&
              offsetof(Tenant, name) == 32);

struct Mark {  // a victim chosen beforehand
  std::atomic<std::uint64_t> seq;
  std::atomic<std::uint32_t> id, turn;
};
static_assert(sizeof(Mark) == 16);

struct alignas(64) Event {
  std::atomic<std::uint64_t> turn, op, key[2], parent[2], reserved[2];
};

// What waits to be moved between the tiers, by priority: see tier/queues.hpp.
struct LaneEntry {
  // what: number of the life and id of a block, or a key. state: [ ms: 62 | taken, cancelled: 2 ]
  std::atomic<std::uint64_t> what[2], state, turn;
};
struct alignas(64) Lane {
  std::atomic<std::uint64_t> tail;  // entries ever made
  // Of these: taken by the mover; ended, all up to here; due although they were to be gathered.
  alignas(64) std::atomic<std::uint64_t> head;
  std::atomic<std::uint64_t> done, due;
};
struct alignas(64) MoverNote {  // of who moves for all, for those who have no tier of their own
  std::atomic<std::uint32_t> rule, slot;  // KVSHM_TIER_WRITE_... + 1; its slot + 1; 0 = none yet
};
struct Queues {
  MoverNote mover;
  Lane lanes[kLanes];
  LaneEntry entries[kLanes][kLaneRoom];
};
static_assert(sizeof(LaneEntry) == 32 && sizeof(Lane) == 128 &&
              sizeof(Queues) == 64 + kLanes * (128 + 32 * kLaneRoom));

// How often keys that left were used: see evict/uses.hpp.
struct alignas(64) UsesLine {
  std::atomic<std::uint64_t> words[8];
};

inline constexpr unsigned kShadows = 5, kShadowWays = 32, kStartWeight = 2;

// What the controller of the adaptive policy works with; who has that post alone writes.
struct alignas(64) ShadowHeader {
  std::atomic<std::uint64_t> cursors[kSlots];  // records of each slot's ring taken so far
  std::atomic<std::uint64_t> records, lost;    // taken in; overwritten before they were
  std::atomic<std::uint64_t> hits[kShadows];   // doubles: hits by weight, discounted
  std::atomic<std::uint64_t> weight;           // the one in force
  std::atomic<std::uint64_t> switches, at;     // how often it changed; seconds of the last step
  std::atomic<std::uint64_t> published;        // version of the table that it last wrote
};
static_assert(sizeof(ShadowHeader) == 512);

struct Ghost {  // a key that left, and how: see evict/ghost.hpp
  std::atomic<std::uint64_t> tag, gone;
};
static_assert(sizeof(Ghost) == 16);

// False: does not fit (bytes too small, or blocks == 0 results). page = size of the mount's pages.
bool compute_geometry(std::uint64_t bytes, std::uint64_t block_bytes, std::uint64_t blocks,
                      std::uint64_t page, Geometry* out);
// Places of the memory of keys that left, in sets of four: one for each block up to 4096, then one
// for every fourth. Lines of the memory of their uses.
constexpr std::uint64_t ghost_places(std::uint64_t blocks) {
  const std::uint64_t few = blocks < 4096 ? blocks : 4096, some = blocks / 4;
  return ((some > few ? some : few) + 3) / 4 * 4;
}
constexpr std::uint64_t uses_lines(std::uint64_t blocks) { return (blocks * 3 + 15) / 16; }
// The shadow caches see the keys whose hash has so many zero bits: one in 2^n.
constexpr unsigned shadow_bits(std::uint64_t blocks) {
  return blocks <= 4096 ? 0 : blocks <= 65536 ? 3 : 5;
}
struct ShadowShape {  // of each of the kShadows caches
  std::uint64_t sets;
  unsigned ways;
};
constexpr ShadowShape shadow_shape(std::uint64_t blocks) {
  const std::uint64_t n = blocks >> shadow_bits(blocks);
  const std::uint64_t sets = n < kShadowWays ? 1 : n / kShadowWays;
  return {sets, unsigned(n / sets)};
}
constexpr std::uint64_t shadow_bytes(std::uint64_t blocks) {
  const ShadowShape s = shadow_shape(blocks);
  return sizeof(ShadowHeader) + s.sets * s.ways * kShadows * 8;
}
bool same_geometry(const Geometry& a, const Geometry& b);
// Changes whenever a size, alignment or constant of this layout does.
std::uint64_t layout_hash();

}  // namespace kvshm
