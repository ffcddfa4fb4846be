// Fork: a child inherits nothing. The claim mutex is taken over every fork, so that no child copies
// the description of a claim or reap that is under way.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

namespace kvshm {

std::mutex& claim_mutex();
struct ForkGuard {
  ForkGuard() : lock(claim_mutex()) {}
  std::lock_guard<std::mutex> lock;
};

// Counted up in every forked child; a handle remembers the value of its birth.
extern std::atomic<std::uint32_t> fork_count;
inline std::uint32_t fork_generation() { return fork_count.load(std::memory_order_relaxed); }
void watch_forks();  // once per process
// fn runs in every child from now on, under the claim mutex of the parent: async-signal-safe calls
// only. At most kForkHooks different ones, each once.
inline constexpr unsigned kForkHooks = 4;
void on_fork_in_child(void (*fn)());

}  // namespace kvshm
