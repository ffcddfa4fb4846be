// SPDX-License-Identifier: Apache-2.0
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "arena/breaks.hpp"
#include "arena/step.hpp"
#include "driver.hpp"
#include "faults.hpp"
#include "ops.hpp"
#include "report.hpp"

using namespace torture;

namespace {

void list() {
  for (const Shape& s : shapes())
    std::printf("shape    %-18s %u blocks of %u bytes\n", s.name, s.blocks, s.block_bytes);
  for (const auto& b : kvshm::kBreaks) std::printf("control  %-18s %s\n", b.name, b.control);
  for (const auto& name : kvshm::kStepNames) std::printf("step     %s\n", name.data());
}

}  // namespace

int main(int argc, char** argv) {
  Options options = read_options(argc, argv);
  if (!options.shape.empty() && !shape_named(options.shape)) {
    std::fprintf(stderr, "torture: there is no shape %s; --list names them\n",
                 options.shape.c_str());
    return 2;
  }
  if (!options.fault.empty() && !fault_named(options.fault)) {
    std::fprintf(stderr, "torture: there is no fault %s; --help names them\n",
                 options.fault.c_str());
    return 2;
  }
  if (options.list) {
    list();
    return 0;
  }
  if (!options.control.empty() && !kvshm::set_broken(options.control.c_str(), true)) {
    std::fprintf(stderr, "torture: there is no control %s; --list names them\n",
                 options.control.c_str());
    return 2;
  }
  Shared* shared = make_shared();
  if (!shared) {
    std::perror("torture: memory");
    return 2;
  }
  const std::uint64_t seed =
      options.seed ? options.seed : mix(std::uint64_t(time(nullptr)) << 20 ^ getpid());
  try {
    Driver driver(*shared, options, seed);
    driver.run();
    return report(*shared, options, seed, driver);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "torture: %s\n", e.what());
    return 2;
  }
}
