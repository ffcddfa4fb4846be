// SPDX-License-Identifier: Apache-2.0
// What every run begins with, made by the surviving process, and what must be true at its end
// whoever died in between.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "arena/arena.hpp"
#include "tally.hpp"

namespace kvshm_sweep {

kvshm::Arena& core(kvshm_arena* a);

inline constexpr std::uint64_t kBlocks = 12, kBytes = 128;
inline constexpr int kWrong = 100;  // exit codes from here on: a process saw what must not be

class Scene {
 public:
  Scene();
  ~Scene();
  Scene(const Scene&) = delete;

  // Everything that others have is given back: is all as it must be? may_go: cached keys that may
  // be gone, one bit each.
  void check(unsigned may_go);
  // The dead are cleared away: by kvshm_reap, or (other) by the next process that takes the slot.
  void clear_up(bool by_next_owner);
  // A second attachment in this process, which is like another process; closed by close_second.
  kvshm_arena* second();
  void close_second();
  void open_spare();  // the other arena is whole, whoever died in making or removing it

  Pool pool{{.blocks = kBlocks, .block_bytes = kBytes}};
  kvshm_arena* const a = pool.a;
  const std::string spare;           // the name of another arena, for those who make one
  keys_t cached = keys_of(0, 4);     // a chain, inactive
  block_key held_key = key_of(100);  // held by the survivor
  block_key fill_key = key_of(200);  // a shared fill of two slices, the first is there
  block_key mine_key = key_of(300);  // a fill of the survivor's
  kvshm_handle held, fill, mine;
  bool mine_given_up = false;  // the survivor has aborted `mine`

 private:
  kvshm_arena* second_ = nullptr;
  void finish_fill();
  void all_blocks_usable();
};

void write_half(kvshm_arena* a, std::uint32_t id, const block_key& key, unsigned half);
// The block's bytes are those of its key: 0, or kWrong.
int right_bytes(kvshm_arena* a, std::uint32_t id, const block_key& key);

using Act = std::function<int(kvshm_arena*, Scene&)>;  // 0, or where it did not go as it must

struct Op {
  std::string name;
  Act act;
  Act prepare = {};                             // by the process itself, before its steps count
  std::function<void(Scene&)> setup = {};       // by the survivor, before
  std::function<int(kvshm_arena*)> after = {};  // by the survivor, before all is checked
  unsigned may_go = 0;                          // cached keys that may be gone if it died
  unsigned goes = 0;                            // ... or after it ended
  bool from_attach = false;                     // its steps count from its attach on
  bool spare = false;                           // it makes or removes the spare arena
  bool repeats = false;  // as often as its time allows: its first steps will do
  bool alone = false;    // not beside another operation that is held up
};

std::vector<Op> fill_ops(), hold_ops(), object_ops(), life_ops(), reap_ops(), tenant_ops(),
    control_ops();
std::vector<Op> all_ops();
const Op& op_named(const std::string& name);

// Is every free block's region known to have one? The free map's summary is a hint, but a lost one
// is never found again.
bool summary_whole(kvshm_arena* a);
bool any_tentative(kvshm_arena* a);  // index entries that are not committed

// Allocates, fills and registers one block and drops it.
int put(kvshm_arena* a, const block_key& key, int policy, std::uint32_t flags = 0,
        kvshm_handle parent = {0, KVSHM_NONE, 0});

}  // namespace kvshm_sweep
