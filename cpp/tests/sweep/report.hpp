// SPDX-License-Identifier: Apache-2.0
// What came of it: figures and violations, as one JSON document.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "drive.hpp"

namespace kvshm_sweep {

std::string quoted(const std::string& s);  // as a JSON string

class Report {
 public:
  Report();  // from now on only the document goes to stdout
  void add(const std::string& op, const Outcome& out, const std::string& where);
  void violation(const std::string& op, const std::string& what);
  void progress(const char* what, std::size_t done, std::size_t of);
  // Writes it; 0 if nothing was violated and (whole) a process died at every step there is.
  int write(bool whole);
  bool send(const std::string& document);

  std::uint64_t reaper_deaths = 0, pairs = 0;

 private:
  int out_;
  std::uint64_t runs_ = 0, violations_ = 0;
  std::map<std::string, std::uint64_t> deaths_;
  std::vector<std::string> texts_;
};

}  // namespace kvshm_sweep
