// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

namespace torture {

struct Options {
  std::uint64_t kills = 2000;  // ends when so many have died,
  double seconds = 0;          // or so many seconds are over; 0 = no limit
  std::uint64_t seed = 0;      // 0 = from the clock
  unsigned workers = 8;        // at once
  unsigned threads = 0;        // of each worker; 0 = one, and two in every tenth
  unsigned round_kills = 120;  // deaths between two checks of the whole arena
  std::string control;         // a wrong step of the protocol, switched on
  std::string fault;           // of kFaults: how a worker ends, to see it reported
  std::string shape;           // one shape of arena in place of all of them
  bool require_steps = false;  // a step at which nobody died is a failure
  bool list = false;           // names of steps, controls and shapes; tortures nothing
  bool progress = true;
};

// Exits with a text for --help and for what it does not understand.
Options read_options(int argc, char** argv);

}  // namespace torture
