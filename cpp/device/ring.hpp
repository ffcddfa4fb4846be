// An io_uring that moves bytes between files and blocks, fenced by the device byte (guard.hpp).
//
// It belongs to the thread that made it, which alone may call it (in_flight() apart). Its child
// after a fork has neither its memory nor its descriptor. Files are named by their place in its
// table, so that nothing that happens to descriptors of the process touches them.
//
// A block must stay FILLING until its transfers have landed: no abort, register or publish before.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "arena/arena.hpp"
#include "device/guarded_ring.hpp"

namespace kvshm {

struct Transfer {
  bool write = false;      // from memory to the file
  std::uint32_t file = 1;  // place in the table, 1 .. Ring::kFiles - 1
  std::uint32_t bytes = 0;
  void* data = nullptr;
  std::uint64_t offset = 0, token = 0;
};

struct Landed {
  std::uint64_t token;
  std::int32_t result;  // bytes, or -errno
};

class Ring {
 public:
  static constexpr unsigned kFiles = 8;  // place 0 is the guard's

  // entries: transfers in flight at most. -KVSHM_EUNSUPPORTED (no io_uring here), -ESTALE, -ENOMEM.
  static int open(Arena& a, unsigned entries, std::unique_ptr<Ring>* out);
  Ring(const Ring&) = delete;
  // Call end() first. With transfers in flight the kernel goes on to tear the ring down by itself,
  // and the device byte is held until they have landed: their blocks must stay FILLING till then.
  ~Ring();

  // The table keeps the open file; fd may be closed afterwards. -1 empties the place.
  int set_file(unsigned place, int fd);
  // Queue one. -EAGAIN: as many are in flight as may be.
  int start(const Transfer& t);
  // Hand what is queued to the kernel. Returns how many, or -errno; those not taken stay queued.
  int submit();
  // Up to cap of those that have landed; waits limit_ms for the first. -ETIMEDOUT, 0: none flies.
  int wait(Landed* out, unsigned cap, unsigned limit_ms);
  // Until everything has landed; wait() then yields the results without waiting. -ETIMEDOUT.
  int drain(unsigned limit_ms);
  // drain, then give the ring up, with results not yet asked for. -ETIMEDOUT: it is as before.
  int end(unsigned limit_ms);

  // Queued or handed over, and not yet given out by wait(). Any thread.
  unsigned in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  unsigned entries() const { return entries_; }
  unsigned setup_flags() const { return flags_; }  // as granted, IORING_SETUP_...

 private:
  Ring() = default;
  int usable() const;

  std::unique_ptr<GuardedRing> ring_;
  std::atomic<unsigned> in_flight_{0};  // a count alone, it publishes nothing
  unsigned entries_ = 0, flags_ = 0;
};

}  // namespace kvshm
