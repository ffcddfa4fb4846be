// Posts: work that one process does for all. Who holds the write lock on a post's byte has it, by a
// description kept like a life byte's: no child inherits it, no close loses it, and the kernel lets
// it go when the holder ends, however it ends.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

// 0: this attachment has the post, now or since earlier; -EAGAIN: another one has; else -errno with
// a text. Any thread.
int take_post(Arena& a, unsigned post);
// Lets it go, if it was held.
void leave_post(Arena& a, unsigned post);

}  // namespace kvshm
