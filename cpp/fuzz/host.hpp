// A host in memory: one arena object, its descriptors, mappings, locks and a clock of its own.
//
// The library's system calls are led here by the linker (--wrap), so that an execution costs
// microseconds, leaves nothing behind, sleeps without waiting, and runs the same way each time.
// What is beyond the object's end is poisoned: touching it, a SIGBUS on a real host, is a finding.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvshm_fuzz::host {

inline constexpr std::size_t kRoom = 64 << 20;  // the largest object
inline constexpr const char* kName = "fuzz";

// Calls of this thread come here while one of these lives.
class Inside {
 public:
  Inside();
  Inside(const Inside&) = delete;
  ~Inside();
};

std::byte* memory();
std::size_t size();
void resize(std::size_t n);  // like ftruncate; what was cut off reads 0 when it comes back
bool exists();
// The object is there (again), or not, as another one than before.
void replace(bool there);
// The object as it was at a mark: there, of that size, and the same one.
struct Mark {
  bool there;
  std::uint64_t ino;
  std::size_t size;
};
Mark mark();
void restore(const Mark& m);

std::uint64_t now_ms();  // of the clock that the library sees
unsigned descriptors();  // open ones
unsigned mappings();
unsigned locks();

// Processes that hold what is free of the first n life bytes, and their end.
void hold_lives(unsigned n);
void release_lives();
// A process dies: its anchor goes, nothing else happens.
void drop_mapping(void* p);

}  // namespace kvshm_fuzz::host
