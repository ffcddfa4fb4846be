#include "device/cuda.hpp"

#include <new>

#include "arena/layout.hpp"
#include "device/cuda_driver.hpp"

namespace kvshm {
namespace {

using namespace cuda;

struct Session {
  const Driver* driver;
  Context context = nullptr;
  int retained = -1;  // device whose primary context is kept
};

// Each call comes from a thread that may have another context, or none.
class Current {
 public:
  explicit Current(Session& s) : s_(s), rc_(s.driver->ctx_push(s.context)) {}
  Current(const Current&) = delete;
  ~Current() {
    Context was;
    if (rc_ == kSuccess) s_.driver->ctx_pop(&was);
  }
  Result rc() const { return rc_; }

 private:
  Session& s_;
  Result rc_;
};

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
  if (s->retained >= 0) s->driver->primary_release(s->retained);  // fails at exit: no matter
  delete s;
}

Result retain(Session& s, int device) {
  const Result rc = s.driver->primary_retain(&s.context, device);
  if (rc == kSuccess) s.retained = device;
  return rc;
}

// A primary context is kept, so that it does not go before our registrations. Any other belongs to
// whoever made it.
Result choose_context(Session& s, std::int32_t ordinal) {
  const Driver& d = *s.driver;
  if (Result rc = d.init(0)) return rc;
  Context current = nullptr;
  int device = 0, active = 0;
  unsigned flags;
  if (Result rc = d.ctx_get_current(&current)) return rc;
  if (!current) {
    if (Result rc = d.device_get(&device, ordinal < 0 ? 0 : ordinal)) return rc;
    return retain(s, device);
  }
  if (d.ctx_get_device(&device) == kSuccess &&
      d.primary_state(device, &flags, &active) == kSuccess && active && retain(s, device) == 0 &&
      s.context != current) {
    d.primary_release(device);
    s.retained = -1;
  }
  s.context = current;
  return kSuccess;
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
    const char* text = error_text(s, -rc);
    *why = "CUDA: " + std::string(text ? text : "error") + " (" + std::to_string(rc) + ")";
    delete s;
    return false;
  }
  *out = {sizeof *out, "cuda", s, 0, add, remove, covers, nullptr, error_text, finish};
  return true;
}

}  // namespace kvshm
