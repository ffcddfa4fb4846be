// Rows copied by a kernel of our own: for layouts of many small pieces, where a copy of the driver's
// each costs more to begin than to do. Its source is compiled at run time by NVRTC where that is
// found, in the background; until then, and everywhere else, copies do it.
#pragma once
#include <kvshm.h>

#include <string>

#include "device/cuda_copy.hpp"

namespace kvshm::cuda {

// Pieces on average shorter than this are worth it.
constexpr std::uint64_t kKernelPiece = 32 << 10, kKernelLongest = 1 << 20;

struct KernelState {
  void* function = nullptr;
  std::string why;  // there is none, in words; "" = being made
};
// Of a context. The first call for it begins the work and says that it is being made.
KernelState kernel_of(const Driver& d, Context context);
// For tests: until none is being made.
void wait_kernels();

// Launches for all rows on the table's stream, in order. *begun: some of them are enqueued, so that
// after an error the rows are lost. The slices must be registered host memory.
Result launch_rows(const Driver& d, void* function, const kvshm_pages& p,
                   const std::vector<CudaRow>& rows, bool into_blocks, bool* begun);

}  // namespace kvshm::cuda
