// SPDX-License-Identifier: Apache-2.0
// What the tests of the tier's engines share.
#pragma once
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "capi/call.hpp"
#include "disk_support.hpp"
#include "kvshm_tier.h"
#include "tier/engine.hpp"

namespace kvshm_test {

using kvshm::File;
using kvshm::tier::Engine;
using kvshm::tier::EngineOptions;
using kvshm::tier::Landed;
using kvshm::tier::open_engine;
using kvshm::tier::Transfer;

constexpr int kNone = 251;  // exit code: no such engine here; CHILD_CHECK has the others

inline kvshm::Arena& inside(kvshm_arena* a) { return *a->impl; }

// Pages of this process, blank.
class Memory {
 public:
  explicit Memory(std::size_t n) : bytes(n) {
    at = static_cast<std::uint8_t*>(mmap(nullptr, n, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    blank();
  }
  Memory(const Memory&) = delete;
  ~Memory() { munmap(at, bytes); }
  void blank() { std::memset(at, kBlank, bytes); }
  bool is_blank() const { return std::count(at, at + bytes, kBlank) == std::ptrdiff_t(bytes); }
  std::uint8_t* at;
  std::size_t bytes;
};

inline File scratch(int flags = 0) {  // no name, goes with its descriptor
  const auto path = std::filesystem::temp_directory_path() / fresh_name("tier");
  File f(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600));
  unlink(path.c_str());
  return f;
}

struct Opened {
  std::unique_ptr<Engine> engine;
  std::string why;
  int rc;
};
inline Opened open_it(std::uint32_t want, kvshm_arena* a, const std::vector<int>& files,
                      unsigned entries = 32, kvshm_arena* second = nullptr) {
  EngineOptions o{.files = files.data(),
                  .nfiles = unsigned(files.size()),
                  .arenas = {&inside(a), second ? &inside(second) : nullptr},
                  .entries = entries};
  Opened r;
  r.rc = open_engine(want, o, &r.engine, &r.why);
  return r;
}

// Waits for all that is in flight: results by token.
inline std::map<std::uint64_t, std::int32_t> land(Engine& e, int limit_ms = 20000) {
  std::map<std::uint64_t, std::int32_t> all;
  const std::int64_t end = now_ms() + limit_ms;
  while (e.in_flight() && now_ms() < end) {
    Landed out[4];
    const int n = e.wait(out, 4, 1000);
    EXPECT_GE(n, 0) << std::strerror(-n);
    if (n < 0) break;
    for (int i = 0; i < n; i++) EXPECT_TRUE(all.emplace(out[i].token, out[i].result).second);
  }
  EXPECT_EQ(e.in_flight(), 0u);
  return all;
}

inline std::int32_t one(Engine& e, Transfer t) {
  t.token = 77;
  EXPECT_EQ(e.start(t), 0);
  const auto all = land(e);
  return all.count(77) ? all.at(77) : -1000;
}

inline bool hangs_up(int fd, int limit_ms) {
  struct pollfd p = {fd, POLLIN, 0};
  char c;
  return poll(&p, 1, limit_ms) == 1 && read(fd, &c, 1) == 0;
}

inline void fill_random(std::uint8_t* p, std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < n; i++) p[i] = std::uint8_t(random() % kBlank);
}

}  // namespace kvshm_test
