#include "tier/cufile.hpp"

#include <dlfcn.h>
#include <string.h>

#include <mutex>

#include "arena/lock.hpp"
#include "device/condition.hpp"

namespace kvshm::cufile {
namespace {

enum class State { kNew, kOpening, kOpen, kRefused };

// Never destroyed: a thread that does not come back may still look at it when the process ends.
struct Opening {
  std::mutex mutex;
  Condition changed;
  Library library;
  State state = State::kNew;
  std::string why;
};

Opening& opening() {
  static Opening* const one = new Opening;
  return *one;
}

std::string load(Library* l) {
  void* lib = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!lib)
    return "libcufile.so.0 cannot be loaded: NVIDIA GPUDirect Storage is not on this host, or "
           "(containers) not in this container";
#define KVSHM_CUFILE_LOAD(type, name, symbol, args)                  \
  l->name = reinterpret_cast<decltype(l->name)>(dlsym(lib, symbol)); \
  if (!l->name) return "libcufile.so.0 has no " symbol ": it is too old";
  KVSHM_CUFILE_FUNCTIONS(KVSHM_CUFILE_LOAD)
#undef KVSHM_CUFILE_LOAD
  return "";
}

void* open_driver(void*) {
  Opening& o = opening();
  const Error e = o.library.driver_open();
  std::lock_guard<std::mutex> lock(o.mutex);
  const bool fine = e.err == 0 || e.err == kAlreadyOpen;
  o.state = fine ? State::kOpen : State::kRefused;
  if (!fine) o.why = "cuFileDriverOpen: " + text_of(e);
  o.changed.wake();
  return nullptr;
}

const char* words(int code) {
  switch (code) {
    case 5001:
      return "the nvidia-fs driver is not loaded";
    case 5004:
      return "another version of the nvidia-fs driver is wanted";
    case 5007:
      return "not supported on this platform";
    case 5008:
      return "not supported on this file";
    case 5009:
      return "not supported on this GPU";
    case 5010:
      return "the nvidia-fs driver failed";
    case kCudaError:
      return "an error of the CUDA driver";
    case 5012:
    case 5013:
    case 5014:
      return "not memory of a device, or not all of it";
    case 5015:
      return "memory of another CUDA context";
    case 5018:
    case 5019:
      return "not a file, or flags, that it takes";
    case 5020:
      return "the file is not open with O_DIRECT";
    case 5023:
      return "memory that is registered already";
    case 5025:
      return "permission denied";
    case 5029:
      return "no GPU";
    case 5034:
      return "switched off for this file by its configuration";
    case 5036:
      return "memory of the GPU cannot be pinned";
    case 5043:
      return "out of memory";
    case 5044:
      return "an I/O error";
    default:
      return "an error of cuFile";
  }
}

}  // namespace

std::string text_of(Error e) {
  std::string text = std::string(words(e.err)) + " (" + std::to_string(e.err);
  if (e.err == kCudaError) text += ", CUDA " + std::to_string(e.cuda);
  return text + ")";
}

std::string text_of(ssize_t result, int error) {
  char room[128];
  if (result == -1) return strerror_r(error, room, sizeof room);
  return result < -1 ? text_of(Error{int(-result), 0}) : "it moved nothing";
}

const Library* library(unsigned limit_ms, std::string* why) {
  Opening& o = opening();
  std::unique_lock<std::mutex> lock(o.mutex);
  if (o.state == State::kNew || o.state == State::kRefused) {
    o.why = load(&o.library);
    pthread_t thread;
    if (!o.why.empty())
      o.state = State::kRefused;
    else if (start_quiet_thread(&thread, "kvshm-cufile", open_driver, nullptr))
      pthread_detach(thread), o.state = State::kOpening;
    else
      o.state = State::kRefused, o.why = "there is no thread for cuFileDriverOpen";
  }
  const std::int64_t deadline = now_ms() + limit_ms;
  while (o.state == State::kOpening)
    if (!o.changed.wait(lock, deadline) && o.state == State::kOpening) {
      *why = "cuFileDriverOpen has not returned in " + std::to_string(limit_ms) + " ms";
      return nullptr;
    }
  *why = o.why;
  return o.state == State::kOpen ? &o.library : nullptr;
}

}  // namespace kvshm::cufile
