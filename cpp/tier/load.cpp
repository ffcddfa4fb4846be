#include "tier/load.hpp"

#include <errno.h>
#include <pthread.h>

#include "arena/lock.hpp"
#include "blocks/counts.hpp"
#include "blocks/registration.hpp"

namespace kvshm::tier {

void LoadState::settle(Arena& a, std::uint32_t i, std::uint8_t what, std::uint32_t id) {
  std::unique_lock<std::mutex> lock(mutex);
  if (freed) {
    lock.unlock();
    Ticks ticks(a);
    if (id != kNone) release_hold(a, id, ticks);
    return;
  }
  status[i] = what;
  ids[i] = id;
  if (--left) return;
  changed.wake();
  if (!fn) return;
  const kvshm_load_fn call = fn;
  fn = nullptr;
  calling = true;
  caller = pthread_self();
  lock.unlock();
  call(user);
  lock.lock();
  calling = false;
  changed.wake();
}

bool LoadState::wanted() {
  std::lock_guard<std::mutex> lock(mutex);
  return !freed || ahead;
}

int LoadState::wait(Arena& a, std::uint32_t timeout_ms) {
  constexpr std::int64_t kSlice = 20;  // cancel_waits() is looked for
  const std::int64_t deadline = now_ms() + timeout_ms;
  std::unique_lock<std::mutex> lock(mutex);
  while (left) {
    if (a.waits.cancelled.load(std::memory_order_seq_cst)) return -KVSHM_ECANCELED;
    const std::int64_t now = now_ms();
    if (now >= deadline) return -ETIMEDOUT;
    changed.wait(lock, now + kSlice < deadline ? now + kSlice : deadline);
  }
  return 0;
}

void LoadState::notify(kvshm_load_fn f, void* u) {
  std::unique_lock<std::mutex> lock(mutex);
  if (f && !left) {
    lock.unlock();
    f(u);
    return;
  }
  fn = f;
  user = u;
  // Taken back: it must not run afterwards. From within fn itself there is nothing to wait for.
  const std::int64_t deadline = now_ms() + 10000;
  while (!f && calling && !pthread_equal(caller, pthread_self()) && now_ms() < deadline)
    changed.wait(lock, deadline);
}

}  // namespace kvshm::tier
