// Copies with non-temporal stores where they pay, chosen once at run time.
#pragma once
#include <cstddef>
#include <span>

namespace kvshm {

// Fenced: a later release store publishes the bytes.
void stream_copy(void* dst, const void* src, std::size_t n);
const char* stream_copy_variant();

struct CopyVariant {
  const char* name;
  void (*body)(char* d, const char* s, std::size_t n);  // d on 64 bytes, n a multiple of 256
  bool works;                                           // on this processor
};
// All that this build has, best first; stream_copy takes the first that works.
std::span<const CopyVariant> copy_variants();
// Any n and any alignment, by this variant from the first byte that it can take.
void stream_copy_by(const CopyVariant& v, void* dst, const void* src, std::size_t n);

}  // namespace kvshm
