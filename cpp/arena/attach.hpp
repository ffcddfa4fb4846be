// From a name to a working attachment, and back.
#pragma once
#include <memory>

#include "arena/arena.hpp"

namespace kvshm {

enum class Mode { kOpen, kCreate, kAttach };
int bring_up(Mode mode, const char* name, const kvshm_options& o, std::unique_ptr<Arena>* out);
// Gives everything back, stops the helper, unmaps. No other call runs.
void take_down(Arena& a);
int remove_object(const char* name, const char* dir, bool force);

// Helper thread: reaps the dead twice a second.
void start_helper(Arena& a);
void stop_helper(Arena& a);

}  // namespace kvshm
