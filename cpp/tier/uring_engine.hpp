// Transfers by an io_uring whose device bytes outlive its process until the last of them has landed.
#pragma once
#include <atomic>

#include "device/guarded_ring.hpp"
#include "tier/engine.hpp"

namespace kvshm::tier {

class UringEngine final : public Engine {
 public:
  // Its ring moves something before it is handed out. *why: who refused what.
  static int open(const EngineOptions& o, std::unique_ptr<Engine>* out, std::string* why);
  ~UringEngine() override;

  std::uint32_t kind() const override;
  int start(const Transfer& t) override;
  int wait(Landed* out, unsigned cap, unsigned limit_ms) override;
  void kick() override;
  unsigned in_flight() const override { return in_flight_.load(std::memory_order_relaxed); }
  unsigned entries() const override { return entries_; }
  bool idle() override;
  bool registered() const override { return slices_ && slices_registered_ == slices_; }
  int abandon() override;

 private:
  // Places of the table of files.
  enum : unsigned { kFence = 2, kBell = 3, kData = 4 };

  UringEngine() = default;
  int open_ring(const EngineOptions& o, std::string* why);
  int open_bell();
  int usable() const;
  int probe();
  unsigned collect(Landed* out, unsigned cap);
  bool ready() const;
  void listen();
  int slice_of(const Transfer& t) const;
  void explain(int rc);

  std::unique_ptr<GuardedRing> ring_;
  File fence_;
  std::atomic<unsigned> in_flight_{0};  // a count alone, it publishes nothing
  unsigned entries_ = 0, nfiles_ = 0;

  // The bell: a pipe whose read end is the ring's, so that a kick lands like a transfer.
  File bell_;
  Known bell_known_;
  std::atomic<bool> kicked_{false};  // acq_rel: what came before a kick is seen after the wait
  std::uint32_t fork_generation_ = 0;
  bool listening_ = false;

  std::byte* memory_ = nullptr;
  std::uint64_t memory_bytes_ = 0, slice_bytes_ = 0;
  unsigned slices_ = 0, slices_registered_ = 0;  // in order
  bool table_ = false, refused_ = false;
};

}  // namespace kvshm::tier
