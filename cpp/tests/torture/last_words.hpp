// SPDX-License-Identifier: Apache-2.0
// What a worker says before an end that nobody planned: the C library's message, that of an
// exception which nobody caught, the signal and where it met the thread. Neither the library nor
// the torture writes to stderr: whatever stands there is worth a report, however the worker ended.
#pragma once
#include <string>
#include <vector>

#include "arena/lock.hpp"

namespace torture {

class LastWords {
 public:
  explicit LastWords(unsigned places);   // throws std::runtime_error
  void clear(unsigned place);            // before the fork of a life
  std::string of(unsigned place) const;  // "": nothing was said
  void listen(unsigned place) const;     // in the worker: its stderr, and the signals

 private:
  std::vector<kvshm::File> files_;  // in memory: whoever dies leaves none behind
};

// In each thread of a worker, by its number: a stack for the signal that says that its own is full.
void spare_stack(unsigned thread);

}  // namespace torture
