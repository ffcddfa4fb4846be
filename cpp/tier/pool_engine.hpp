// Transfers by threads with pread and pwrite, where there is no io_uring.
//
// No device byte is needed: a thread that is in the kernel with a transfer keeps its process from
// coming to the end of its death, and so its life byte held.
#pragma once
#include "arena/lock.hpp"
#include "tier/engine.hpp"

namespace kvshm::tier {

class PoolEngine final : public Engine {
 public:
  static int open(const EngineOptions& o, std::unique_ptr<Engine>* out);
  ~PoolEngine()
      override;  // waits for a disk that hangs a second at most, after abandon() not at all

  std::uint32_t kind() const override;
  int start(const Transfer& t) override;
  int wait(Landed* out, unsigned cap, unsigned limit_ms) override;
  void kick() override;
  unsigned in_flight() const override;
  unsigned entries() const override { return entries_; }
  int abandon() override;

 private:
  struct Shared;  // outlives the engine where a thread is stuck with a transfer
  PoolEngine() = default;
  int usable() const;
  bool stop();
  static void* run(void* arg);

  std::shared_ptr<Shared> shared_;
  File fence_;
  unsigned entries_ = 0;
  std::uint32_t fork_generation_ = 0;
};

}  // namespace kvshm::tier
