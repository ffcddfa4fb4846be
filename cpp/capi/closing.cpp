#include "capi/closing.hpp"

#include "arena/attach.hpp"
#include "arena/lock.hpp"

namespace kvshm {

Closing::~Closing() {
  if (joinable_) pthread_join(thread_, nullptr);
}

void* Closing::run(void* self) {
  Closing& c = *static_cast<Closing*>(self);
  take_down(*c.arena_);
  c.arena_.reset();
  std::lock_guard<std::mutex> lock(c.mutex_);
  c.done_ = true;
  c.changed_.wake();
  return nullptr;
}

void Closing::start() {
  joinable_ = start_quiet_thread(&thread_, "kvshm-close", run, this);
  if (!joinable_) run(this);
}

bool Closing::wait(std::int64_t deadline_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!done_)
    if (!changed_.wait(lock, deadline_ms) && !done_ && now_ms() >= deadline_ms) return false;
  return true;
}

}  // namespace kvshm
