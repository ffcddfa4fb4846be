// Copies between blocks and the memory of a CUDA device, in the order of a stream. Nothing waits.
#pragma once
#include <kvshm.h>

#include <cstdint>
#include <vector>

#include "device/cuda_driver.hpp"

namespace kvshm {

struct CudaRow {
  std::uint32_t row, item;  // engine row; which of the caller's items it is
  char* slice;
};

// For one call: the driver, and the stream's context made this thread's where it has none.
class CudaCopies {
 public:
  CudaCopies() = default;
  CudaCopies(const CudaCopies&) = delete;
  ~CudaCopies();
  int open(const kvshm_pages& p);  // 0 or -KVSHM_EUNSUPPORTED
  // Enqueues them; codes[item] = -EIO for each that may not be whole. -ENOMEM never: throws
  // std::bad_alloc, before anything of it is enqueued.
  // `registered`: every slice lies in memory that we have registered with CUDA.
  void enqueue(const kvshm_pages& p, const std::vector<CudaRow>& rows, bool into_blocks,
               bool registered, std::int32_t* codes);

 private:
  bool by_kernel(const kvshm_pages& p, const std::vector<CudaRow>& rows, bool into_blocks,
                 std::int32_t* codes);
  const cuda::Driver* driver_ = nullptr;
  bool pushed_ = false;
};

}  // namespace kvshm
