// The functions of libcufile.so.0 in use (NVIDIA GPUDirect Storage), declared here: their binary
// interface is its promise, and its header is on few hosts.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvshm::cufile {

struct Error {  // by value; cuda: the driver's code where err is kCudaError
  int err, cuda;
};
using Handle = void*;
struct Descriptor {
  int type;  // 1: a file descriptor
  union {
    int fd;
    void* other;
  } handle;
  const void* operations;
};
static_assert(sizeof(Descriptor) == 24 && offsetof(Descriptor, handle) == 8);
struct Properties {
  unsigned major, minor;  // of nvidia-fs; zeros: it is not loaded
  std::size_t poll_bytes, direct_bytes;
  unsigned file_systems, control;  // bits
  unsigned features;               // bits
  unsigned cache, buffer_cache, pinned, batch, batch_ms;
  unsigned room[32];  // what later versions put behind
};
static_assert(offsetof(Properties, file_systems) == 24 && offsetof(Properties, features) == 32);
enum : int { kCudaError = 5011, kAlreadyOpen = 5026 };
// Bits: it may copy by way of host memory, and does not say so of a file; DMA between devices
// without nvidia-fs.
enum : unsigned { kAllowsHost = 1u << 1, kPeerToPeer = 1u << 4 };

// X(returned type, name in this struct, symbol, arguments)
#define KVSHM_CUFILE_FUNCTIONS(X)                                                               \
  X(Error, driver_open, "cuFileDriverOpen", ())                                                 \
  X(Error, properties, "cuFileDriverGetProperties", (Properties * out))                         \
  X(Error, handle_register, "cuFileHandleRegister", (Handle * out, Descriptor * d))             \
  X(void, handle_deregister, "cuFileHandleDeregister", (Handle h))                              \
  X(Error, buffer_register, "cuFileBufRegister", (const void* p, std::size_t bytes, int flags)) \
  X(Error, buffer_deregister, "cuFileBufDeregister", (const void* p))                           \
  X(ssize_t, read, "cuFileRead",                                                                \
    (Handle h, void* base, std::size_t bytes, off_t file, off_t buffer))                        \
  X(ssize_t, write, "cuFileWrite",                                                              \
    (Handle h, const void* base, std::size_t bytes, off_t file, off_t buffer))

struct Library {
#define KVSHM_CUFILE_MEMBER(type, name, symbol, args) type(*name) args = nullptr;
  KVSHM_CUFILE_FUNCTIONS(KVSHM_CUFILE_MEMBER)
#undef KVSHM_CUFILE_MEMBER
};

// Loaded, and its driver open: for good, since others of the process may use it. nullptr: *why. Only where there is a CUDA device: without one cuFileDriverOpen of 1.19 does not return,
// which is also why it is called in a thread of its own, and given up after limit_ms.
const Library* library(unsigned limit_ms, std::string* why);

std::string text_of(Error e);
std::string text_of(ssize_t result,
                    int error);  // of read or write: -1 is errno, lower is an Error's

}  // namespace kvshm::cufile
