// Whether the memory for a new arena is there: on the host and in each control group above this
// process. Asked before the first page is touched, since the kernel's own answer is SIGKILL.
#pragma once
#include <cstddef>
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

// 0, or -ENOMEM with a text that names who has the limit. Unreadable limits are no limits.
int check_memory(const Arena& a, std::uint64_t wanted);
// The control group that pays for what this process touches first; "" if there is none to be seen.
void charged_group(char* out, std::size_t cap);

}  // namespace kvshm
