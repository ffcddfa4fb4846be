// SPDX-License-Identifier: Apache-2.0
// What driver and workers tell each other: one anonymous mapping that every fork shares. Figures
// and hints: all of it is relaxed unless it says otherwise.
#pragma once
#include <kvshm.h>

#include <atomic>
#include <cstdint>

#include "arena/step.hpp"

namespace torture {

inline constexpr unsigned kMaxSteps = kvshm::kStepCount, kMaxWorkers = 32, kMaxThreads = 2,
                          kLogLines = 24;
inline constexpr unsigned kMaxViolations = 64, kNoStep = kMaxSteps;

// How a worker dies: at a step, by its own alarm at some instruction, or by the driver's signal.
enum class Way : std::uint8_t { kNone, kStep, kAlarm, kOutside };
inline constexpr const char* kWayNames[] = {"none", "step", "alarm", "outside"};

// What a dying worker's bit was in: a death may count for several.
enum StateBit : std::uint32_t {
  kHeldFilling = 1,
  kHeldReady = 2,
  kHeldLast = 4,
  kHeldEvicting = 8,
  kHeldNothing = 16,
  kNotAttached = 32,
  kUnseen = 64,  // killed from outside: nobody looked
};
inline constexpr unsigned kStateBits = 7;
inline constexpr const char* kStateNames[kStateBits] = {
    "FILLING", "READY", "READY_LAST", "EVICTING", "holding nothing", "not attached", "not seen"};

#define TORTURE_TALLIES(X)                                                        \
  X(hits_checked, "held blocks whose every word was compared")                    \
  X(hits_wrong, "of these, with a wrong word")                                    \
  X(duplicates_seen, "blocks that became the duplicate of another of their key")  \
  X(published, "blocks registered or published")                                  \
  X(joined, "shared fills joined")                                                \
  X(shared_published, "shared fills published")                                   \
  X(all_or_nothing, "allocations of a third of the arena or more that succeeded") \
  X(refused, "allocations refused for want of space")                             \
  X(objects_put, "objects committed")                                             \
  X(objects_read, "objects read and compared")                                    \
  X(evicted, "blocks evicted on request")                                         \
  X(audits, "searches for two READY primaries of one key")

enum Tally : unsigned {
#define X(name, text) k_##name,
  TORTURE_TALLIES(X)
#undef X
      kTallies
};

struct Plan {  // of one life; the driver writes it before the fork
  std::uint64_t seed = 0, life = 0;
  std::uint32_t step = kNoStep;  // die at this step, or at any
  std::uint32_t count = 0;       // at the count-th pass of it; 0 = not at a step
  std::uint32_t alarm_us = 0;    // die so long after the start; 0 = not by itself
  std::uint32_t jitter = 0;      // percent of the steps that are delayed
  std::uint8_t favourite = 0;    // an operation to be done more often; 0 = none
  std::uint8_t threads = 1;
  bool hot = false;             // asks for two keys only
  bool helper = false;          // with the library's helper thread
  bool before_open = false;     // step counting begins before the arena is opened
  bool closes = false;          // ends in order, after a while
  const char* fails = nullptr;  // a step whose call fails: the arena cannot be opened
  bool device = false;     // has registered memory with a device: its fills drain after its death
  bool removes = false;    // its one operation: the arena's removal
  std::uint8_t fault = 0;  // of kFaults: what its last thread begins with
};

struct LogLine {
  std::uint64_t seq;
  std::uint32_t id, what;
  std::int32_t rc;
  std::uint8_t op;
};

// A slice between its begin and its arrival.
constexpr std::uint64_t transfer_of(std::uint32_t block, std::uint32_t part, std::uint32_t parts) {
  return std::uint64_t{parts} << 48 | std::uint64_t{part} << 32 | block;
}
constexpr std::uint32_t transfer_block(std::uint64_t t) { return std::uint32_t(t); }
constexpr std::uint32_t transfer_part(std::uint64_t t) { return t >> 32 & 0xffff; }
constexpr std::uint32_t transfer_parts(std::uint64_t t) { return std::uint32_t(t >> 48); }

struct Track {  // of one thread: what it does, and did last
  std::atomic<std::uint8_t> op;
  std::atomic<std::uint32_t> lines;
  LogLine log[kLogLines];
};

struct alignas(64) Record {                       // of a worker's place; lives follow one another
  Plan plan;                                      // of one life at a time
  std::atomic<std::uint32_t> acked[kMaxThreads];  // the pause that each thread is in
  std::atomic<std::uint64_t> transfers[kMaxThreads];  // the slice that a thread writes; 0 = none
  std::atomic<std::uint32_t> states, slot;
  std::atomic<std::uint16_t> step;
  std::atomic<std::uint8_t> op, way;  // the operation begun last, by whichever thread
  Track tracks[kMaxThreads];
  std::atomic<std::uint64_t> tallies[kTallies];
};

struct Shared {
  std::atomic<std::uint32_t> pause;    // odd: wait between two operations until it changes
  std::atomic<std::uint32_t> ending;   // 1: this round ends in order
  std::atomic<std::uint64_t> devices;  // slots with busy rings: it is worth dying in a transfer
  std::atomic<std::uint32_t> opened;   // by how many lives in this round
  std::atomic<std::uint32_t> violations, told;
  char texts[kMaxViolations][320];

  std::atomic<std::uint32_t> passes[kMaxSteps][64];  // by operation
  std::atomic<std::uint64_t> runs[64];               // of an operation
  Record workers[kMaxWorkers];
};

Shared* make_shared();  // nullptr if there is no memory

// Somebody saw what must not be. The first ones' texts are kept.
void violation(Shared& s, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace torture
