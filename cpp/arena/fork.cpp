#include "arena/fork.hpp"

#include <pthread.h>

#include <atomic>
#include <new>

namespace kvshm {
constinit std::atomic<std::uint32_t> fork_count{0};

namespace {
// relaxed: set under the claim mutex, which the fork holds
std::atomic<void (*)()> child_hooks[kForkHooks] = {};
// Never destroyed: helper threads may outlive static destructors.
alignas(std::mutex) unsigned char storage[sizeof(std::mutex)];
std::mutex* mutex = new (storage) std::mutex;

void before() { mutex->lock(); }
void in_parent() { mutex->unlock(); }
void in_child() {
  fork_count.fetch_add(1, std::memory_order_relaxed);
  for (auto& hook : child_hooks)
    if (auto* fn = hook.load(std::memory_order_relaxed)) fn();
  mutex->unlock();  // the thread that forked has locked it: its copy here is this one
}
}  // namespace

std::mutex& claim_mutex() { return *mutex; }

void on_fork_in_child(void (*fn)()) {
  for (auto& hook : child_hooks) {
    auto* there = hook.load(std::memory_order_relaxed);
    if (!there) hook.store(fn, std::memory_order_relaxed);
    if (!there || there == fn) return;
  }
}

void watch_forks() {
  static const int once = pthread_atfork(before, in_parent, in_child);
  (void)once;
}

}  // namespace kvshm
