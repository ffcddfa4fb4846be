#include "device/cuda.hpp"

#include <new>

#include "arena/layout.hpp"
#include "device/cuda_context.hpp"

namespace kvshm {
namespace {

using namespace cuda;

int translate(Result rc) {
  switch (rc) {
    case kSuccess:
      return KVSHM_DEVICE_OK;
    case kAlreadyRegistered:
      return KVSHM_DEVICE_ALREADY;
    case kNotInitialized:
    case kDeinitialized:
    case kNoDevice:
    case kInvalidContext:
    case kContextDestroyed:
      return KVSHM_DEVICE_GONE;
    default:
      return rc > 0 ? -rc : rc;
  }
}

int add(void* user, void* data, std::size_t bytes) {
  Session& s = *static_cast<Session*>(user);
  Current now(s);
  if (now.rc() != kSuccess) return translate(now.rc());
  return translate(s.driver->host_register(data, bytes, kPortable | kDeviceMap));
}

int remove(void* user, void* data) {
  Session& s = *static_cast<Session*>(user);
  Current now(s);
  if (now.rc() != kSuccess) return translate(now.rc());
  const Result rc = s.driver->host_unregister(data);
  return rc == kNotRegistered ? KVSHM_DEVICE_GONE : translate(rc);
}

// From range to range; where the driver tells no range that has this address in it, by pages.
int covers(void* user, const void* data, std::size_t bytes) {
  Session& s = *static_cast<Session*>(user);
  Current now(s);
  if (now.rc() != kSuccess) return 0;
  const Pointer end = Pointer(data) + bytes;
  for (Pointer p = Pointer(data); p < end;) {
    unsigned type = 0;
    if (s.driver->pointer_attribute(&type, kMemoryType, p) != kSuccess || type != kHostMemory)
      return 0;
    Pointer start = 0;
    std::size_t size = 0;
    const bool told = s.driver->pointer_attribute(&start, kRangeStart, p) == kSuccess &&
                      s.driver->pointer_attribute(&size, kRangeSize, p) == kSuccess;
    p = told && start <= p && p - start < size ? start + size : p + kPage;
  }
  return 1;
}

const char* error_text(void* user, int code) {
  const char* text = nullptr;
  if (code >= 0) return nullptr;
  static_cast<Session*>(user)->driver->error_string(-code, &text);
  return text;
}

void finish(void* user) {
  Session* s = static_cast<Session*>(user);
  give_up(*s);
  delete s;
}

}  // namespace

bool open_cuda(std::int32_t device, kvshm_device_backend* out, std::string* why) {
  const char* missing = nullptr;
  const Driver* d = driver(&missing);
  if (!d) {
    *why = missing;
    return false;
  }
  Session* s = new (std::nothrow) Session{d};
  if (!s) {
    *why = "out of memory";
    return false;
  }
  if (const Result rc = choose_context(*s, device)) {
    *why = "CUDA: " + text_of(*d, rc);
    delete s;
    return false;
  }
  *out = {sizeof *out, "cuda", s, 0, add, remove, covers, nullptr, error_text, finish};
  return true;
}

}  // namespace kvshm
