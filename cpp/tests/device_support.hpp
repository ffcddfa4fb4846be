// SPDX-License-Identifier: Apache-2.0
// Arenas whose memory is registered with the mock device of tests/device/native.
#pragma once
#include <kvshm.h>

#include <string>

#include "mock_pin.h"
#include "support.hpp"

namespace kvshm_test {

inline constexpr std::uint64_t kMiB = 1 << 20;

inline kvshm_device_options mock_options(std::uint64_t piece_bytes = 0,
                                         std::uint32_t mode = KVSHM_AUTO) {
  kvshm_device_options o = KVSHM_DEVICE_OPTIONS_INIT;
  o.backend = &mock_backend;
  o.piece_bytes = piece_bytes;
  o.mode = mode;
  o.timeout_ms = 20000;
  return o;
}

inline kvshm_device device(kvshm_arena* a) {
  auto d = sized<kvshm_device>();
  EXPECT_EQ(kvshm_get_device(a, &d), 0);
  return d;
}

inline kvshm_process process(kvshm_arena* a, std::uint32_t slot) {
  auto p = sized<kvshm_process>();
  EXPECT_EQ(kvshm_get_process(a, slot, &p), 0);
  return p;
}

inline std::uint32_t slot_of(kvshm_arena* a) {
  auto i = sized<kvshm_info>();
  EXPECT_EQ(kvshm_get_info(a, &i), 0);
  return i.slot;
}

// Block counts of the ranges, "f" behind those of somebody else: "4 2f".
inline std::string ranges(kvshm_arena* a) {
  kvshm_device_range r[64];
  const std::int64_t n = kvshm_device_ranges(a, r, 64);
  std::string text;
  for (std::int64_t i = 0; i < n && i < 64; i++)
    text += (i ? " " : "") + std::to_string(r[i].first) + "+" + std::to_string(r[i].blocks) +
            (r[i].foreign ? "f" : "");
  return text;
}

// The mock as it must be left: nothing registered by us, nothing pending, no misuse.
inline std::string untidy() {
  const mock_seen s = mock_look();
  std::string text;
  if (s.ranges) text += std::to_string(s.ranges) + " ranges registered; ";
  if (s.pending) text += "an error is pending; ";
  if (s.leaked) text += std::to_string(s.leaked) + " calls met a pending error; ";
  if (s.unknown) text += std::to_string(s.unknown) + " undone twice; ";
  if (s.foreign_undone) text += "somebody else's was undone; ";
  if (s.straddles) text += std::to_string(s.straddles) + " blocks straddle; ";
  if (s.unaligned) text += std::to_string(s.unaligned) + " pieces off a page; ";
  if (s.unmapped) text += std::to_string(s.unmapped) + " undone after the unmap; ";
  if (s.busy) text += "a call is under way; ";
  return text;
}

}  // namespace kvshm_test
