// Transfers by an io_uring whose device bytes outlive its process until the last of them has landed.
//
// A write to a frozen file system would hold a thread of the kernel that belongs to this process, so
// that it could not die: its life byte would stay held, and all that it holds in memory. So before
// writes go an empty one is sent that must not wait (RWF_NOWAIT): it fails where the file system is
// frozen, and the writes are held back here until it does not. Files without O_DIRECT cannot be
// asked so, and before Linux 6.12 the kernel waits all the same.
#pragma once
#include <atomic>
#include <vector>

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
  void buffered() override;
  int abandon() override;

 private:
  // Places of the table of files.
  enum : unsigned { kFence = 2, kBell = 3, kData = 4 };

  static constexpr unsigned kBells = 1;  // requests of it

  UringEngine() = default;
  // uring_open.cpp
  int open_ring(const EngineOptions& o, std::string* why);
  int open_bell();
  int probe();
  int ask();
  void probe_files(const int* files);
  int usable() const;
  void queue(unsigned slot);
  void prepare_check(unsigned file);
  void check_files();
  void checked(unsigned file, int result);
  void listen();
  unsigned collect(Landed* out, unsigned cap);
  int enter(std::int64_t limit_ms);
  // uring_buffers.cpp
  void cut(const EngineOptions& o);
  int slice_of(const Transfer& t) const;
  void explain(int rc);

  std::unique_ptr<GuardedRing> ring_;
  File fence_;
  std::atomic<unsigned> in_flight_{0};  // a count alone, it publishes nothing
  unsigned entries_ = 0, nfiles_ = 0;

  std::vector<Transfer> slots_;
  std::vector<unsigned> free_, held_;           // slots; held: writes whose file is being asked
  std::uint32_t checkable_ = 0, checking_ = 0;  // files, bit by bit
  std::int64_t frozen_until_ = 0, frozen_ms_ = 0;
  bool released_ = false;  // writes are queued that were held

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
