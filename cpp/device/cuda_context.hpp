// A context of the driver that is kept, and made current in whichever thread calls.
#pragma once
#include <string>

#include "device/cuda_driver.hpp"

namespace kvshm::cuda {

struct Session {
  const Driver* driver = nullptr;
  Context context = nullptr;
  int retained = -1;  // device whose primary context is kept
};

// Initialises the driver. Takes the calling thread's context; where it has none, keeps the primary
// context of `device` (-1 = 0).
Result choose_context(Session& s, std::int32_t device);
void give_up(Session& s);
std::string text_of(const Driver& d, Result rc);  // the driver's words, and the number

// Each call comes from a thread that may have another context, or none.
class Current {
 public:
  explicit Current(const Session& s) : s_(s), rc_(s.driver->ctx_push(s.context)) {}
  Current(const Current&) = delete;
  ~Current() {
    Context was;
    if (rc_ == kSuccess) s_.driver->ctx_pop(&was);
  }
  Result rc() const { return rc_; }

 private:
  const Session& s_;
  Result rc_;
};

}  // namespace kvshm::cuda
