#include "device/cuda_context.hpp"

namespace kvshm::cuda {

static Result retain(Session& s, int device) {
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

void give_up(Session& s) {
  if (s.retained >= 0) s.driver->primary_release(s.retained);  // fails at exit: no matter
  s.retained = -1;
}

std::string text_of(const Driver& d, Result rc) {
  const char* text = nullptr;
  d.error_string(rc, &text);
  return std::string(text ? text : "error") + " (" + std::to_string(rc) + ")";
}

}  // namespace kvshm::cuda
