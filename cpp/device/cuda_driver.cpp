#include "device/cuda_driver.hpp"

#include <dlfcn.h>

namespace kvshm::cuda {
namespace {

struct Loaded {
  Driver driver;
  const char* missing = nullptr;
};

Loaded load() {
  Loaded l;
  void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    l.missing =
        "libcuda.so.1 cannot be loaded: no NVIDIA driver on this host, or (containers) not "
        "in this container";
    return l;
  }
#define KVSHM_CUDA_LOAD(name, symbol, args)                                      \
  l.driver.name = reinterpret_cast<decltype(l.driver.name)>(dlsym(lib, symbol)); \
  if (!l.driver.name) l.missing = "libcuda.so.1 has no " symbol ": the driver is too old";
  KVSHM_CUDA_FUNCTIONS(KVSHM_CUDA_LOAD)
#undef KVSHM_CUDA_LOAD
#define KVSHM_CUDA_LOAD(name, symbol, args) \
  l.driver.name = reinterpret_cast<decltype(l.driver.name)>(dlsym(lib, symbol));
  KVSHM_CUDA_COPIES(KVSHM_CUDA_LOAD)
#undef KVSHM_CUDA_LOAD
  return l;
}

}  // namespace

const Driver* driver(const char** why) {
  static const Loaded once = load();
  *why = once.missing;
  return once.missing ? nullptr : &once.driver;
}

}  // namespace kvshm::cuda
