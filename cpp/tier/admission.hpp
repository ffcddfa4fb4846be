// SPDX-License-Identifier: Apache-2.0
// Which blocks are worth a write: those whose key was offered often enough, of late.
//
// A table of counters by the key's hash, private to the process. Every 8 offers a place on average
// all counts halve, lazily, by an epoch beside each. Two keys with one place and one tag count
// together: one write too many.
#pragma once
#include <cstdint>
#include <vector>

#include "blocks/descriptor.hpp"

namespace kvshm::tier {

class Admission {
 public:
  // needed: offers, this one included; 0 and 1 let everything pass.
  explicit Admission(std::uint32_t needed, std::uint32_t places = 1 << 16);
  bool offer(Key key);

 private:
  struct Place {
    std::uint32_t tag = 0;
    std::uint16_t epoch = 0, count = 0;
  };
  std::uint32_t needed_;
  std::uint64_t offers_ = 0;
  std::vector<Place> places_;
};

}  // namespace kvshm::tier
