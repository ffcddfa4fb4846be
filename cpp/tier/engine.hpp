// What moves bytes between a tier's files and memory: an io_uring, or a pool of threads. Both have
// this interface; which one runs is decided by a probe, and again when calls begin to fail.
//
// An engine belongs to the thread that made it, which alone calls it, kick() and in_flight() apart.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "arena/arena.hpp"

namespace kvshm::tier {

struct Transfer {
  enum Kind : std::uint8_t { kRead, kWrite, kSync };  // kSync: fdatasync of the file
  Kind kind = kRead;
  bool urgent = false;     // somebody waits: before the others, where there is a choice
  std::uint32_t file = 0;  // index into the files given to open
  std::uint32_t bytes = 0;
  void* data = nullptr;
  std::uint64_t offset = 0, token = 0;
};

struct Landed {
  std::uint64_t token;
  std::int32_t result;  // bytes moved (may be fewer than asked for), 0 for kSync, or -errno
};

struct EngineOptions {
  const int* files;  // descriptors, which outlive the engine
  unsigned nfiles;
  Arena* arenas[2];             // whose device bytes a ring must hold; the second may be null
  unsigned entries;             // transfers in flight at most
  std::byte* memory = nullptr;  // to register as buffers; null: none
  std::uint64_t memory_bytes = 0, block_bytes = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::uint32_t kind() const = 0;  // KVSHM_TIER_URING or KVSHM_TIER_THREADS
  // Queue one: 0, -EAGAIN (as many are in flight as may be). Memory and file stay as they are until
  // it has landed.
  virtual int start(const Transfer& t) = 0;
  // Up to cap that have landed; hands over what is queued, waits limit_ms at most, and less after a
  // kick(). Returns how many, 0 when none, or -errno: the engine is of no use any more.
  virtual int wait(Landed* out, unsigned cap, unsigned limit_ms) = 0;
  virtual void kick() = 0;  // wait() returns soon. Any thread.
  virtual unsigned in_flight() const = 0;
  virtual unsigned entries() const = 0;
  // Work for a moment when nothing else is to do (registering buffers slice by slice); true: there
  // is more of it.
  virtual bool idle() { return false; }
  virtual bool registered() const { return false; }  // all of `memory` is
  virtual void buffered() {}                         // the files have lost O_DIRECT
  // Give it up with transfers that may still land. Returns a descriptor that reads end-of-file (or
  // hangs up) once the last of them has, to be polled and closed; -1: nothing can land any more.
  virtual int abandon() = 0;
};

// want: KVSHM_TIER_AUTO, _URING or _THREADS. *why: the cause where it is not an io_uring as wished,
// with the sysctl's or the filter's name. -KVSHM_EUNSUPPORTED with a text, -ENOMEM.
int open_engine(std::uint32_t want, const EngineOptions& o, std::unique_ptr<Engine>* out,
                std::string* why);

}  // namespace kvshm::tier
