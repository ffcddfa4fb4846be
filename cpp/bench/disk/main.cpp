// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "disk.hpp"

int main(int argc, char** argv) {
  const struct {
    const char* name;
    int (*run)(const bench::Args&);
  } roles[] = {{"engine", bench::engine}};
  for (const auto& role : roles)
    if (argc > 1 && std::strcmp(argv[1], role.name) == 0)
      return role.run(bench::Args(argc - 2, argv + 2));
  bench::die("which role? (docs: cpp/bench/disk/)");
}
