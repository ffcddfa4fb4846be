// The functions of libcuda.so.1 in use, declared here: their binary interface is the driver's
// promise, and its headers are on few hosts.
//
// The driver, not the runtime: a call that fails leaves nothing pending for the process's next
// runtime call (cudaGetLastError), and the several runtimes of a process share the one driver.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvshm::cuda {

using Result = int;
using Context = void*;
using Pointer = std::uint64_t;

enum : Result {
  kSuccess = 0,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidContext = 201,
  kContextDestroyed = 709,
  kAlreadyRegistered = 712,
  kNotRegistered = 713
};
enum : unsigned { kPortable = 1, kDeviceMap = 2 };                  // flags of a registration
enum : int { kMemoryType = 2, kRangeStart = 11, kRangeSize = 12 };  // pointer attributes
enum : unsigned { kHostMemory = 1 };
// Attributes of a device; the last: it takes registered memory by the host's own addresses.
enum : int { kComputeMajor = 75, kComputeMinor = 76, kHostAddresses = 91 };
enum : unsigned { kNonBlocking = 1 };  // a stream that does not wait for the default one
struct Location {
  int type, id;  // 0 = no hint
};
struct CopyAttributes {
  int source_order;  // 1 = in stream order
  Location source, target;
  unsigned flags;
};

// X(name in this struct, symbol, arguments)
#define KVSHM_CUDA_FUNCTIONS(X)                                                              \
  X(init, "cuInit", (unsigned flags))                                                        \
  X(ctx_get_current, "cuCtxGetCurrent", (Context * out))                                     \
  X(ctx_get_device, "cuCtxGetDevice", (int* out))                                            \
  X(ctx_push, "cuCtxPushCurrent_v2", (Context c))                                            \
  X(ctx_pop, "cuCtxPopCurrent_v2", (Context * out))                                          \
  X(device_get, "cuDeviceGet", (int* out, int ordinal))                                      \
  X(primary_state, "cuDevicePrimaryCtxGetState", (int device, unsigned* flags, int* active)) \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (Context * out, int device))                 \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (int device))                           \
  X(host_register, "cuMemHostRegister_v2", (void* p, std::size_t bytes, unsigned flags))     \
  X(host_unregister, "cuMemHostUnregister", (void* p))                                       \
  X(pointer_attribute, "cuPointerGetAttribute", (void* out, int attribute, Pointer p))       \
  X(error_string, "cuGetErrorString", (Result code, const char** out))

// Those that only copies need.
#define KVSHM_CUDA_COPIES(X)                                                                \
  X(stream_create, "cuStreamCreate", (void** out, unsigned flags))                          \
  X(stream_destroy, "cuStreamDestroy_v2", (void* stream))                                   \
  X(stream_wait, "cuStreamSynchronize", (void* stream))                                     \
  X(copy, "cuMemcpyAsync", (Pointer to, Pointer from, std::size_t bytes, void* stream))     \
  X(stream_context, "cuStreamGetCtx", (void* stream, Context* out))                         \
  /* as of CUDA 12.8; its _v2 has other arguments */                                        \
  X(copy_batch, "cuMemcpyBatchAsync",                                                       \
    (Pointer * to, Pointer * from, std::size_t* bytes, std::size_t n, CopyAttributes* what, \
     std::size_t* first, std::size_t attributes, std::size_t* failed, void* stream))        \
  X(device_attribute, "cuDeviceGetAttribute", (int* out, int attribute, int device))        \
  X(module_load, "cuModuleLoadData", (void** module, const void* image))                    \
  X(module_function, "cuModuleGetFunction", (void** out, void* module, const char* name))   \
  X(launch, "cuLaunchKernel",                                                               \
    (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,   \
     unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** arguments,   \
     void** extra))

struct Driver {
#define KVSHM_CUDA_MEMBER(name, symbol, args) Result(*name) args = nullptr;
  KVSHM_CUDA_FUNCTIONS(KVSHM_CUDA_MEMBER)
  KVSHM_CUDA_COPIES(KVSHM_CUDA_MEMBER)  // may be missing, each: nullptr
#undef KVSHM_CUDA_MEMBER
};

// Loaded once, never unloaded. nullptr: *why says what is missing.
const Driver* driver(const char** why);

}  // namespace kvshm::cuda
