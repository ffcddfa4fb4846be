// NVIDIA's driver as a backend, found at run time: nothing of CUDA is needed to build or to load.
#pragma once
#include <cstdint>
#include <string>

#include "kvshm.h"

namespace kvshm {

// Takes the calling thread's context; where it has none, keeps the primary context of `device`
// (-1 = 0). False: no driver or device, and why.
bool open_cuda(std::int32_t device, kvshm_device_backend* out, std::string* why);

}  // namespace kvshm
