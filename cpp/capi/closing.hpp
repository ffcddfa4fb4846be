// Taking an attachment down where a device may take its time: in a thread of its own, which goes on
// when the caller's patience ends.
#pragma once
#include <pthread.h>

#include <memory>
#include <mutex>

#include "arena/arena.hpp"
#include "device/condition.hpp"

namespace kvshm {

class Closing {
 public:
  explicit Closing(std::unique_ptr<Arena> a) : arena_(std::move(a)) {}
  Closing(const Closing&) = delete;
  ~Closing();  // after wait() said true
  void start();
  bool wait(std::int64_t deadline_ms);  // true: the arena is taken down

 private:
  static void* run(void* self);
  std::unique_ptr<Arena> arena_;
  std::mutex mutex_;
  Condition changed_;
  pthread_t thread_{};
  bool joinable_ = false, done_ = false;
};

}  // namespace kvshm
