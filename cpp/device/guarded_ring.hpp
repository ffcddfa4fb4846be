// What every io_uring of the library has in common: device bytes that fence it (guard.hpp), and no
// child that inherits it. Its user queues and reaps by liburing.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "arena/arena.hpp"
#include "arena/lock.hpp"

struct io_uring;

namespace kvshm {

// A descriptor, and what it was for: a closerange() of somebody's may have freed its number for
// another file.
struct Known {
  int fd = -1;
  dev_t dev = 0;
  ino_t ino = 0;
  static Known of(int fd);
  bool still() const;
};

#ifdef KVSHM_STEPS
inline std::atomic<bool> leave_unguarded{false};  // the control of the tests: rings hold no guards
inline bool unguarded() { return leave_unguarded.load(std::memory_order_relaxed); }
#else
constexpr bool unguarded() { return false; }
#endif

class GuardedRing {
 public:
  struct Options {
    Arena* const* arenas;  // their guards have the first places of its table of files
    unsigned narenas;
    unsigned places;            // of the table
    unsigned entries;           // of the submission queue; rounded up, or down to what is possible
    unsigned fence = 0;         // a place for the fence, if one is asked for
    File* fence_out = nullptr;  // hangs up when the kernel has torn the ring down: all has landed
  };
  // Belongs to the calling thread. 0 or -errno; *refused: the call that the kernel refused, or null:
  // the arena did, with a text.
  static int open(const Options& o, std::unique_ptr<GuardedRing>* out, const char** refused);
  GuardedRing(const GuardedRing&) = delete;
  // Never waits: what is in flight then is torn down by the kernel, which holds the guards meanwhile.
  ~GuardedRing();

  int usable() const;  // -KVSHM_EFORKED in a child: touch nothing
  io_uring* get() { return ring_.get(); }
  int set_file(unsigned place, int fd);  // which may be closed afterwards; -1 empties the place
  unsigned entries() const { return entries_; }
  unsigned flags() const { return flags_; }  // as granted, IORING_SETUP_...

 private:
  GuardedRing() = default;
  int set_up(unsigned entries);
  int register_files(const Options& o, const char** refused);
  static void forget_in_child();

  std::unique_ptr<io_uring> ring_;
  unsigned entries_ = 0, flags_ = 0;
  std::uint32_t fork_generation_ = 0;
  bool set_up_ = false;
  Known fd_;
  GuardedRing *next_ = nullptr, *previous_ = nullptr;  // of all here, under the claim mutex
};

// Nothing is wrong: the kernel was interrupted, or has no room or no news yet.
bool passing(int rc);

}  // namespace kvshm
