// The registration of one attachment's memory with a device: started, counted, undone once.
//
// A thread of its own registers and undoes; every other thread only asks for it and waits, within a
// limit. What is registered is seen by others in the slot's record.
#pragma once
#include <pthread.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/backend.hpp"
#include "device/condition.hpp"
#include "device/pieces.hpp"

namespace kvshm {

class Pin {
 public:
  explicit Pin(Arena& a) : a_(a) {}
  Pin(const Pin&) = delete;
  ~Pin();  // after undo_all()

  int acquire(const kvshm_device_options& o);
  int wait(std::int64_t deadline_ms);
  int release(std::int64_t deadline_ms);
  bool active();     // something is registered, or on its way
  void undo_all();   // at detach, in a thread that may wait for a device; whatever the references
  bool may_unmap();  // false: a device would not give a piece back
  void describe(kvshm_device* out);
  std::vector<kvshm_device_range> ranges();
  bool holds_cuda(const std::vector<std::uint32_t>& blocks);  // all, registered by us, with CUDA

 private:
  using Lock = std::unique_lock<std::mutex>;
  enum class Added { kYes, kSmaller, kRefused };

  // pin.cpp: under mutex_
  int begin(Lock& lock, const kvshm_device_options& o);
  bool open(const kvshm_device_options& o, std::string* why);
  int wait_idle(Lock& lock, std::int64_t deadline_ms);
  int answer(std::uint32_t mode) const;
  void start(Lock& lock);
  void show(std::uint32_t state);  // to others, in the slot's record
  void tell();

  // pin_work.cpp: in the thread, mutex_ held but while the backend is called
  static void* run(void* self);
  void work();
  void add_all(Lock& lock);
  Added add(Lock& lock, std::uint32_t first, std::uint32_t blocks);
  Added refused(std::uint32_t first, int code);
  void keep(std::uint32_t first, std::uint32_t blocks, bool foreign);
  void undo(Lock& lock);

  Arena& a_;
  std::mutex mutex_;
  Condition changed_;
  pthread_t thread_{};
  bool joinable_ = false, running_ = false, add_wanted_ = false, undo_wanted_ = false;

  std::unique_ptr<Backend> backend_;
  std::string name_;
  bool cuda_ = false;
  std::uint32_t state_ = KVSHM_DEVICE_NONE, mode_ = KVSHM_AUTO, drain_ms_ = 0, references_ = 0;
  std::uint32_t piece_blocks_ = 0, stuck_ = 0;
  std::vector<Piece> pieces_;  // in order of address
  std::uint64_t registered_ = 0, foreign_ = 0;
  bool foreign_left_ = false;  // somebody else's registration outlasts ours
  bool failed_ = false;        // required, and refused
  int code_ = 0;
  std::string reason_;
};

}  // namespace kvshm
