// SPDX-License-Identifier: Apache-2.0
// Devices that go on writing for a process after its death, while they hold its slot's device byte.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "arena/lock.hpp"
#include "shared.hpp"

namespace torture {

class Devices {
 public:
  ~Devices() { idle(); }
  // As if rings of these slots had transfers under way. Nothing happens if there is no arena yet.
  void busy(const std::string& name, const std::vector<unsigned>& slots);
  // This process is dead: what it had under way goes on, if its slot is a busy one.
  void died(const Record& r);
  void write();                 // all that goes on
  std::uint64_t late = 0;       // slices that were written for the dead
  std::uint64_t slots() const;  // a bit each
  void idle();                  // the last transfer is over: the device bytes go

 private:
  kvshm::File file_;
  std::vector<unsigned> slots_;
  std::vector<std::uint64_t> transfers_;
  void* map_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace torture
