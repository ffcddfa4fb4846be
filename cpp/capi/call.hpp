// Around every call of the C API: is the handle usable, and may it be closed meanwhile?
//
// A handle's shell is never freed (about 1 KiB each), so that a stale pointer says -KVSHM_ECLOSED
// instead of crashing. Calls are counted in stripes, so that threads do not share a line.
#pragma once
#include <errno.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "arena/arena.hpp"
#include "arena/fork.hpp"
#include "arena/solo.hpp"

namespace kvshm {
class Closing;
namespace tier {
struct Tier;
}
}  // namespace kvshm

struct kvshm_arena {
  kvshm_arena();
  ~kvshm_arena();
  static constexpr std::uint64_t kAlive = 0x6b767368616e646cULL;
  struct alignas(64) Stripe {
    std::atomic<std::int64_t> calls{0};
  };
  std::atomic<std::uint64_t> magic{kAlive};
  std::atomic<bool> closing{false};
  std::uint32_t fork_generation = 0;
  std::mutex close_mutex;
  std::unique_ptr<kvshm::Arena> impl;
  std::mutex tier_mutex;
  std::unique_ptr<kvshm::tier::Tier> tier_owner;  // under tier_mutex, or when no call runs
  std::atomic<kvshm::tier::Tier*> tier{nullptr};  // the same, for calls
  std::unique_ptr<kvshm::Closing> taking_down;    // a close that a device keeps waiting
  kvshm_arena* next = nullptr;                    // of all that were ever opened
  alignas(64) kvshm::Solo solo;
  Stripe stripes[16];
};

namespace kvshm {

inline int stale(const Arena& a) {
  return fail(-ESTALE, "arena %s was removed or replaced: release what you hold and open again",
              a.name.c_str());
}

enum class Dead { kRefuse, kAllow };  // giving back works on a removed arena, too

class Call {
 public:
  explicit Call(kvshm_arena* h, Dead dead = Dead::kRefuse) : errno_(errno) {
    forget_error();  // a text is of the last call, never of one before it
    if (!h || h->magic.load(std::memory_order_relaxed) != kvshm_arena::kAlive) {
      rc_ = fail(-EINVAL, "not an arena handle");
      return;
    }
    if (h->fork_generation != fork_generation()) {
      rc_ = fail(-KVSHM_EFORKED, "this arena was attached before a fork: attach anew in the child");
      return;
    }
    // By the thread's own address: threads do not share a line.
    const auto address = reinterpret_cast<std::uintptr_t>(&thread_state);
    calls_ = &h->stripes[address * 0x9e3779b97f4a7c15u >> 60].calls;
    // seq_cst: either close sees this call, or the call sees `closing`
    calls_->fetch_add(1, std::memory_order_seq_cst);
    if (h->closing.load(std::memory_order_seq_cst)) {
      rc_ = fail(-KVSHM_ECLOSED, "the arena handle is closed");
      return;
    }
    if (!h->solo.share(&thread_state, kSoloLimitMs)) {
      rc_ = fail(-ETIMEDOUT, "another thread of this process did not come out of its call in %u ms",
                 kSoloLimitMs);
      return;
    }
    a_ = h->impl.get();
    if (dead == Dead::kRefuse && a_->sb->dead.load(std::memory_order_relaxed)) rc_ = stale(*a_);
  }
  Call(const Call&) = delete;
  ~Call() {
    if (calls_) calls_->fetch_sub(1, std::memory_order_release);
    errno = errno_;
  }
  int rc() const { return rc_; }
  Arena& operator*() const { return *a_; }
  Arena* operator->() const { return a_; }

 private:
  // Over it, that thread is stopped or starved.
  static constexpr std::uint32_t kSoloLimitMs = 10000;
  Arena* a_ = nullptr;
  std::atomic<std::int64_t>* calls_ = nullptr;
  int rc_ = 0;
  int errno_;
};

// A call that is made alone (arena/solo.hpp), if this thread can; solo.leave() ends it. Who owns the
// handle's bias knows it for a handle.
[[gnu::always_inline]] inline bool enter_alone(kvshm_arena* h) {
  if (!h || h->fork_generation != fork_generation() || !h->solo.enter(&thread_state)) return false;
  forget_error();
  return true;
}

// A struct that a caller passes begins with its size.
template <class T>
int check_size(const T* s) {
  if (s && s->size >= sizeof *s) return 0;
  return fail(-EINVAL, "a struct is NULL or its size is not set: use its INIT macro");
}

template <class T>
void clear_sized(T* s) {  // all but the size that the caller gave
  const auto size = s->size;
  *s = {};
  s->size = size;
}

inline int misuse(Arena& a, int rc) {  // counted, so that a leak of discipline shows
  if (rc == -KVSHM_ENOTMINE || rc == -KVSHM_ESTATE || rc == -EBADF) a.count(kStat_misuse_total);
  return rc;
}

// Every entry that takes a handle: 0, or -EINVAL with a text.
inline int check_handle(const Arena& a, kvshm_handle h) {
  if (a.in_range(h.id) && h.seq) return 0;
  return fail(-EINVAL, "block %u out of range (%u blocks), or no life number", h.id, a.nblocks);
}

}  // namespace kvshm
