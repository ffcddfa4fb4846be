// What one look-up brings from the disk. Its caller and the tier's thread share it.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "arena/arena.hpp"
#include "device/condition.hpp"

namespace kvshm::tier {

struct LoadState {
  explicit LoadState(std::uint32_t n) : status(n, KVSHM_LD_NONE), ids(n, kNone) {}

  // One transfer has ended; id (kNone: none) is held, and goes back at once if nobody wants it.
  void settle(Arena& a, std::uint32_t i, std::uint8_t what, std::uint32_t id);
  bool wanted();
  int wait(Arena& a, std::uint32_t timeout_ms);
  void notify(kvshm_load_fn f, void* user);

  std::mutex mutex;
  Condition changed;
  // under `mutex`
  std::vector<std::uint8_t> status;
  std::vector<std::uint32_t> ids;  // held
  std::uint32_t left = 0;          // transfers and awaited fills under way
  bool freed = false, calling = false;
  bool ahead = false;  // for nobody yet: wanted, and held by none
  kvshm_load_fn fn = nullptr;
  void* user = nullptr;
  pthread_t caller{};
};

}  // namespace kvshm::tier
