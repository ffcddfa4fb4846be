// The device byte of this slot: who may still write into its blocks when the process is dead.
//
// After a SIGKILL the kernel lets the transfers of an io_uring land, some after the process has
// gone. So every ring that writes into blocks keeps, as a registered file, a description of the
// arena object with a read lock on the slot's device byte. The kernel lets that file go when the
// ring is torn down, which is after its last transfer has landed. Until then the blocks that the
// dead process was filling stay FILLING (blocks/reap.cpp), and its slot is nobody's.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"
#include "arena/lock.hpp"

namespace kvshm {

// A fresh description with the lock, to be registered with a ring before its first request and
// then closed. Forks must be held off meanwhile (ForkGuard): a child's copy prolongs the lock.
int open_guard(const Arena& a, File* out);

// The same for a ring that somebody else made: a table of its own (index = KVSHM_NONE), or a place
// of the one that it has. 0; -EBUSY, -EINVAL and others with a text.
int guard_ring(Arena& a, int ring_fd, std::uint32_t index);

// No ring of this attachment is left whose transfers could still land.
bool device_idle(const Arena& a);

}  // namespace kvshm
