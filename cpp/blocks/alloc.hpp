// All or nothing: free blocks first, then victims whose entries stay untouched until all n are
// claimed. A claim that fell short gives everything back, reaps the dead, and is tried once more
// under the allocation byte, so that of several short allocators one wins.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

struct FillSpec {
  std::uint32_t flags = 0, parts = 1, priority = 50, tenant = 0;
  std::uint32_t timeout_ms = 0;
  std::uint64_t ttl_ms = 0, priority_ms = 0;  // 0 = for good
  std::uint32_t expires = 0, calms = 0;       // the same as deadlines (blocks/deadlines.hpp)
  kvshm_handle parent{0, KVSHM_NONE, 0};
  bool contiguous = false;  // neighbours, where the free map has enough of them
};

// 0, -KVSHM_ENOSPACE, -KVSHM_EQUOTA, -KVSHM_EPINNED, -KVSHM_ETOOLARGE, -ETIMEDOUT, -KVSHM_ECANCELED,
// -ESTALE; with a text, and a reason for last_refusal().
int allocate(Arena& a, std::uint32_t n, const kvshm_key* keys, const FillSpec& spec,
             kvshm_handle* out, std::uint8_t* status, kvshm_evicted* evicted);

// Index entry of a block that this call's thread fills, its key written: KVSHM_ST_ANNOUNCED, or
// EXISTS, PENDING, FULL, kHeldExpired: no entry was made.
inline constexpr std::uint8_t kHeldExpired = 255;  // by a block that is over, but held
std::uint8_t announce(Arena& a, std::uint32_t id, Key key);

// This one block, if it is free: -EBUSY. Not announced; spec.parent as for allocate.
int allocate_at(Arena& a, std::uint32_t id, Key key, const FillSpec& spec, kvshm_handle* out);

// FREE -> FILLING{me} of this block; false: it is not free, or another claims it.
bool claim_at(Arena& a, std::uint32_t id);
// n neighbours, FREE -> FILLING{me}, in order; false: none found, nothing changed.
bool claim_run(Arena& a, std::uint32_t n, std::uint32_t* ids);
// FILLING{me}, nobody told -> FREE.
void unclaim_free(Arena& a, std::uint32_t n, const std::uint32_t* ids);
// Reads and drops stale free-map hints; claims FREE -> FILLING{me}. Returns how many.
std::uint32_t claim_free(Arena& a, std::uint32_t n, std::uint32_t* ids);

}  // namespace kvshm
