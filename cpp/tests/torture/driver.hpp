// SPDX-License-Identifier: Apache-2.0
// Round after round: workers on one arena, killed and replaced; then everything is looked at.
#pragma once
#include <string>

#include "devices.hpp"
#include "nursery.hpp"
#include "options.hpp"
#include "planner.hpp"

namespace torture {

class Driver {
 public:
  Driver(Shared& shared, const Options& options, std::uint64_t seed);
  void run();  // until enough have died, time is over, or something is wrong

  const Deaths& deaths() const { return nursery_.deaths; }
  const std::vector<std::string>& words() const { return nursery_.words; }
  double seconds() const;
  std::uint64_t rounds = 0, checks = 0;
  std::uint64_t late_writes() const { return devices_.late; }
  std::string kept;  // name of the arena of a violation

 private:
  bool over() const;
  void round(const Shape& shape);
  void fill_places(const Shape& shape);
  void kill_some();
  void busy_devices();
  void idle_devices();
  void check_paused(const Shape& shape);
  void check_end(const Shape& shape);
  bool wait_paused(std::uint32_t pause);
  void remove(const Shape& shape);
  void keep();
  void tell();

  Shared& shared_;
  const Options& options_;
  Nursery nursery_;
  Planner planner_;
  Rng rng_;
  std::string name_;
  double began_, told_ = 0;
  std::uint32_t pauses_ = 0;
  bool hot_ = false;     // this round's workers want the same two keys
  bool drains_ = false;  // this round has workers with device memory
  Devices devices_;
};

}  // namespace torture
