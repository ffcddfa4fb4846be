// Copies with non-temporal stores where they pay, chosen once at run time.
#pragma once
#include <cstddef>
#include <span>

namespace kvshm {

// Fenced: a later release store publishes the bytes.
void stream_copy(void* dst, const void* src, std::size_t n);
const char* stream_copy_variant();

// Less than this fits a cache that its reader may share: not worth a stream.
constexpr std::size_t kCached = 256 << 10;
// One run of many, always streamed: `next` is where the following run's bytes will be read. Not
// fenced: stream_fence() once, behind the last. Lines that a run fills in part are not streamed.
void stream_run(void* dst, const void* src, std::size_t n, const void* next);
void stream_fence();  // streaming stores are not ordered by a release store

struct CopyVariant {
  const char* name;
  // d on 64 bytes, n a multiple of 64
  void (*body)(char* d, const char* s, std::size_t n, const char* next);
  bool works;  // on this processor
};
// All that this build has, best first; stream_copy takes the first that works.
std::span<const CopyVariant> copy_variants();
// Any n and any alignment, by this variant from the first byte that it can take.
void stream_copy_by(const CopyVariant& v, void* dst, const void* src, std::size_t n);
void stream_run_by(const CopyVariant& v, void* dst, const void* src, std::size_t n,
                   const void* next);

}  // namespace kvshm
