// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "bench.hpp"

int main(int argc, char** argv) {
  const struct {
    const char* name;
    int (*run)(const bench::Args&);
  } roles[] = {
      {"store", bench::store},     {"point", bench::point},           {"match", bench::match},
      {"copy", bench::copy},       {"read", bench::read_in_place},    {"insert", bench::insert},
      {"keys", bench::keys},       {"attach", bench::attach},         {"worker", bench::worker},
      {"victim", bench::victim},   {"reaper", bench::reaper},         {"sizes", bench::sizes},
      {"map", bench::map_alone},   {"map_shared", bench::map_shared}, {"redis", bench::redis},
      {"latency", bench::latency}, {"paged", bench::paged},           {"disk", bench::disk},
  };
  for (const auto& role : roles)
    if (argc > 1 && std::strcmp(argv[1], role.name) == 0)
      return role.run(bench::Args(argc - 2, argv + 2));
  bench::die("which role? (docs: cpp/bench/bench.hpp)");
}
