// Is the memory of an engine's rows there, as the kernel lists it?
#include <errno.h>

#include <cstdio>
#include <vector>

#include "arena/error.hpp"
#include "device/pages.hpp"

namespace kvshm {
namespace {

struct Mapping {
  std::uint64_t from, to;
  bool readable, writable;
};

std::vector<Mapping> mappings() {
  std::vector<Mapping> out;
  FILE* f = std::fopen("/proc/self/maps", "re");
  if (!f) return out;
  char line[512];
  bool begins = true;  // a long path goes on in the next piece
  while (std::fgets(line, sizeof line, f)) {
    unsigned long long from, to;
    char may[5];
    if (begins && std::sscanf(line, "%llx-%llx %4s", &from, &to, may) == 3)
      out.push_back({from, to, may[0] == 'r', may[1] == 'w'});
    begins = false;
    for (const char* c = line; *c; c++) begins = begins || *c == '\n';
  }
  std::fclose(f);
  return out;
}

int check_span(const std::vector<Mapping>& all, std::uint64_t from, std::uint64_t to,
               bool writing) {
  for (const Mapping& m : all) {  // by address
    if (m.to <= from) continue;
    if (m.from > from || !m.readable) break;
    if (writing && !m.writable)
      return fail(-EACCES, "memory at 0x%llx is not writable", (unsigned long long)from);
    if (m.to >= to) return 0;
    from = m.to;
  }
  return fail(-EFAULT, "memory at 0x%llx is not mapped, or not readable", (unsigned long long)from);
}

}  // namespace

int check_mapped(const kvshm_pages& p, bool writing, std::uint32_t* bad) {
  *bad = KVSHM_NONE;
  const std::vector<Mapping> all = mappings();
  if (all.empty()) return 0;  // no /proc: nothing is known
  for (std::uint32_t i = 0; i < p.nruns; i++) {
    const kvshm_run& r = p.runs[i];
    const std::uint64_t end = r.address + r.stride * (p.rows - 1) + r.bytes;
    if (int rc = check_span(all, r.address, end, writing)) return *bad = i, rc;
  }
  return 0;
}

}  // namespace kvshm
