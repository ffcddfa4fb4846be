// SPDX-License-Identifier: Apache-2.0
// latency: what the machine gives in this very run: one load that depends on the last, anywhere in
// as many bytes as the descriptors of the blocks take, on 2 MiB pages where they are to be had.
#include <sys/mman.h>

#include "bench.hpp"

namespace bench {

int latency(const Args& args) {
  constexpr std::uint64_t kLine = 64, kHuge = 2 << 20;
  const std::uint64_t lines = args.number("blocks"),
                      bytes = (lines * kLine + kHuge) / kHuge * kHuge;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) die("no memory for %llu bytes", (unsigned long long)bytes);
  madvise(p, bytes, MADV_HUGEPAGE);
  auto* words = static_cast<std::uint64_t*>(p);
  const std::vector<std::uint32_t> order = shuffled(lines, 11);
  for (std::uint64_t i = 0; i < lines; i++)  // one ring through all lines
    words[order[i] * (kLine / 8)] = order[(i + 1) % lines] * (kLine / 8);
  std::uint64_t at = 0;
  Line facts;
  return serve(facts, [&](const Order& wanted, Line& out) {
    std::vector<double> batches;
    const std::uint64_t end = now_ns() + wanted.number * 1000000;
    for (std::uint64_t last = now_ns(); last < end;) {
      for (unsigned i = 0; i < 1000; i++) at = static_cast<volatile std::uint64_t*>(words)[at];
      const std::uint64_t now = now_ns();
      batches.push_back(double(now - last) / 1000);
      last = now;
    }
    out.add("ns", median(batches));
  });
}

}  // namespace bench
