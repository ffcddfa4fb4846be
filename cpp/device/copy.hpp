// Copies with non-temporal stores where they pay, chosen once at run time.
#pragma once
#include <cstddef>

namespace kvshm {

// Fenced: a later release store publishes the bytes.
void stream_copy(void* dst, const void* src, std::size_t n);
const char* stream_copy_variant();

}  // namespace kvshm
