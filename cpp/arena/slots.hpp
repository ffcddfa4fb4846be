// Slots: who lives, who may reap.
//
// A process owns slot s while it holds the write lock on life byte s of the arena object. The
// lock's
// description is opened for this alone, is kept by a private one-page mapping that no child
// inherits (PROT_NONE, MADV_DONTFORK), and its descriptor is closed at once: no close, closerange,
// fork, clone or exec can lose or prolong it.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

struct ReapCounts {
  std::uint64_t holds = 0, fills = 0, evictions = 0;
  bool clean = true;  // false: a fill waits for its device
};

// Takes a free, drained, scrubbed slot and writes its identity line. -KVSHM_ENOSLOT with a text
// that names who holds and who drains.
int claim_slot(Arena& a, const kvshm_options& o);
// A private one-page mapping that keeps the description behind fd, and is in no child. 0 or -errno
// with a text.
int keep_description(Arena& a, int fd, void** page);
// Gives everything back. No other call of this process runs.
void give_back(Arena& a);
// The same, and lets the slot go.
void leave_slot(Arena& a);
// Every slot in use whose life byte is free. report may be nullptr. 0 or -ESTALE.
int reap_dead(Arena& a, kvshm_reap_report* report);

// Under the life byte of `slot` (dead, or mine): region by region, by its region bits.
ReapCounts scrub_slot(Arena& a, unsigned slot, bool device_free);

void fill_process(Arena& a, unsigned slot, kvshm_process* out);

}  // namespace kvshm
