// SPDX-License-Identifier: Apache-2.0
// The places of workers: forks them, kills them, counts how they died.
#pragma once
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "last_words.hpp"
#include "options.hpp"
#include "shape.hpp"
#include "shared.hpp"

namespace torture {

struct Deaths {
  std::uint64_t kills = 0, ended = 0;  // by SIGKILL; in order
  std::uint64_t by_way[4] = {}, by_state[kStateBits] = {}, by_op[64] = {};
  std::uint64_t by_step[kMaxSteps] = {};
};

class Nursery {
 public:
  Nursery(Shared& shared, const Options& options);
  void start(unsigned place, const Plan& plan, const Shape& shape, const std::string& name);
  // Waits up to limit_ms for deaths and counts them; the places that are free now.
  std::vector<unsigned> collect(int limit_ms);
  void kill(unsigned place);
  void kill_all();  // and waits for them
  bool alive(unsigned place) const { return pids_[place] > 0; }
  unsigned living() const;
  void stop_all();  // SIGSTOP: so that the arena stays as it is

  Deaths deaths;
  std::vector<std::string> words;  // of workers that did not end as planned

 private:
  void count(unsigned place, int status);
  Shared& shared_;
  std::vector<pid_t> pids_;
  LastWords last_words_;
};

}  // namespace torture
