// Batched look-ups: a three-stage pipeline (buckets of key i + 16, blocks of key i + 8, acquire and
// verify key i). `ids` gets one hold per hit.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

struct MatchCounts {
  std::uint32_t hits = 0, misses = 0, pending = 0;
};

// Longest READY prefix; *pending: the fill that the first miss waits for, or {0}. *over: it is not
// longer because of the quota.
std::uint32_t match_prefix(Arena& a, const kvshm_key* keys, std::uint32_t n, bool touch,
                           std::uint32_t* ids, kvshm_handle* pending, bool* over);
// Every key by itself: ids[i] or kNone. Returns the hits. *over: the quota kept some out.
std::uint32_t match_each(Arena& a, const kvshm_key* keys, std::uint32_t n, bool touch,
                         std::uint32_t* ids, bool* over);

}  // namespace kvshm
