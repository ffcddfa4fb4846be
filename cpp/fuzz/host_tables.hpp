// The state of the host in memory; host.cpp looks after it, host_calls.cpp answers from it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvshm_fuzz::host {

inline constexpr int kFirstFd = 5000, kDescriptors = 32, kDescriptions = 64, kMappings = 64;
inline constexpr unsigned kLocks = 256;

struct Descriptor {
  bool used = false;
  int description = -1;        // of the object
  const char* text = nullptr;  // of a file of /proc: what is left to read
};
struct Mapping {
  void* address = nullptr;
  int description = -1;
  void* heap = nullptr;
};
struct Lock {
  int description;
  std::int64_t at;
  bool write;
};

struct Tables {
  std::byte* memory = nullptr;
  std::size_t size = 0;
  bool there = false;
  std::uint64_t ino = 1, clock_ns = 1'000'000'000'000;
  Descriptor descriptors[kDescriptors];
  int references[kDescriptions] = {};  // descriptors and mappings of each description
  Mapping mappings[kMappings];
  Lock locks[kLocks];
  unsigned nlocks = 0;
  int crowd = -1;                // the description of host::hold_lives
  std::byte* anchors = nullptr;  // addresses without memory

  int describe();
  void let_go(int description);
  bool conflict(int description, std::int64_t at, bool write) const;
  bool lock(int description, std::int64_t at, bool write);
  void unlock(int description, std::int64_t at);
  bool map(void* p, int description, void* heap);
  bool unmap(void* p);
  bool mapped(const void* p) const;
};

Tables& tables();
bool inside();

}  // namespace kvshm_fuzz::host
