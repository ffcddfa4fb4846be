// The slots of a tier in shared memory: an arena of its own, NAME-g3, whose block i is slot i of the
// file, and whose block data is the slot's record. It has words, index, eviction and reaping of its
// own processes by being an arena; nothing here knows a state of a slot that the word does not say.
//
// A record is written by who fills the slot, and read by who holds it. A page for the file is
// copied without holds: what is torn or of another life fails its self check, or the payload's.
#pragma once
#include <memory>

#include "arena/arena.hpp"
#include "tier/record.hpp"

namespace kvshm::tier {

// Attaches the image of g2's tier, or makes it with so many slots. -KVSHM_EGEOMETRY: it has another
// number, and processes are attached to it.
int open_image(const Arena& g2, std::uint64_t slots, std::unique_ptr<Arena>* out);
// The image of an arena that is removed goes with it, if it is one. 0, also where there is none.
int remove_image(const char* name, const char* dir, bool force);
// Nobody but this process is attached.
bool alone(const Arena& image);

Record load_record(const Arena& image, std::uint32_t slot);
void store_record(Arena& image, std::uint32_t slot, const Record& r);
// The records of page p as the file shall have them: those of READY slots, of `done` (n slots whose
// data is in the file, and which this process fills), and of others that are filled as far as that.
void copy_page(const Arena& image, std::uint64_t p, const std::uint32_t* done, std::uint32_t n,
               std::byte* out);
// Set to a number of the copier's own before each copy of the page, so that of two writers one sees
// that it was overtaken. A new life of the page's first slot sets it to 0: one copy more.
std::atomic<std::uint64_t>& page_version(Arena& image, std::uint64_t p);

}  // namespace kvshm::tier
