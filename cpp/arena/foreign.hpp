// A note in the arena about processes that came with another identity and were refused: without it
// only they would know, and an operator wonders why a worker shares nothing.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

// fd: of an arena of this layout. `text` is their identity. Failing to note it changes nothing.
void note_foreign(int fd, const char* text);
// The text of the last one into out[1024], "" for none or while it is being written.
void read_foreign(const ForeignNote& note, char* out);

}  // namespace kvshm
