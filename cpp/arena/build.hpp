// Making a new arena in an empty object, and checking one that is there.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

// Points the members of a into its mapping (geometry and base are set).
int bind_sections(Arena& a);
// The creator: size, map, pages, superblock, descriptors; magic last. Holds the creation byte.
int build_object(Arena& a, int fd, const kvshm_options& o, std::int64_t deadline_ms);

enum class Look { kGood, kUnfinished, kDead, kBad };
// Reads the superblock by pread (a short file cannot hurt) and checks all of it against what is
// wanted; sets a.geometry. kBad: *rc and a text.
Look inspect_object(Arena& a, int fd, const kvshm_options& o, int* rc);

}  // namespace kvshm
