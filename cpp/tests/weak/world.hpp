// SPDX-License-Identifier: Apache-2.0
// A small arena for simulated processes (one per thread of a scenario), built anew in each run.
// Each process has its own Arena with its own counts; all share the words below.
#pragma once
#include "weak/relacy.hpp"
#include "weak/shim.hpp"
//
#include "arena/lock.hpp"
#include "arena/object.hpp"
#include "arena/slots.hpp"
#include "blocks/alloc.hpp"
#include "blocks/close.hpp"
#include "blocks/counts.hpp"
#include "blocks/holds.hpp"
#include "blocks/registration.hpp"
#include "blocks/waiting.hpp"
#include "evict/evict.hpp"
#include "index/index.hpp"
#include "weak/memory.hpp"

namespace weak {

using namespace kvshm;

inline constexpr unsigned kProcesses = 3, kBlocksHere = 2;
inline constexpr Key kA{1, 1}, kB{2, 1};       // both in bucket 0, of which two ways are watched
inline constexpr std::uint64_t kFirst = 1000;  // the first life number

struct World {
  Arena of[kProcesses];
  Hot* hot;
  Cold* cold;
  std::atomic<std::uint64_t>*index, *free_map, *summary;

  World();
  void begin();  // all blocks FREE, nothing watched
  // FILLING{p} with key k, its entry committed, or without an entry.
  kvshm_handle filling(unsigned p, std::uint32_t id, Key k, bool announced, unsigned members = 0);
  kvshm_handle ready(std::uint32_t id, Key k);  // READY{}, committed entry

  void watch_word(std::uint32_t id) { watch(hot[id].word); }
  void watch_key(std::uint32_t id) { watch(hot[id].key[0]), watch(hot[id].key[1]); }
  template <class T>
  void watch(std::atomic<T>& a) {
    weak::watch(&a, sizeof a);
  }
  std::uint64_t entry(unsigned way) { return index[way].load(std::memory_order_relaxed); }
};

World& world();
void enter(Arena& a, std::uint32_t id);  // enter_fill, nobody in the way

}  // namespace weak
