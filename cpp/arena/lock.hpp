// Open-file-description locks on bytes far beyond the end of the arena object itself.
//
//   2^62 + s        life byte, write    free: the process in slot s is dead or gone
//   2^62 + 64 + s   device byte, read   free: no device can write for slot s any more
//   2^62 + 128      creation byte       the object is being made or removed (write) or joined
// (read)
//   2^62 + 129      allocation byte     a short allocator, for fairness
//   2^62 + 130 + p  post p, write   vacant: mover, evictor, controller (arena/posts.hpp)
//
// An OFD lock never conflicts with itself: each claim and each reap opens a description of its own.
// POSIX locks (F_SETLK) are never used: closing any descriptor of the file would drop them.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace kvshm {

inline constexpr off_t kLockBase = off_t{1} << 62;
constexpr off_t life_byte(unsigned slot) { return kLockBase + slot; }
constexpr off_t device_byte(unsigned slot) { return kLockBase + 64 + slot; }
inline constexpr off_t kCreationByte = kLockBase + 128, kAllocationByte = kLockBase + 129;
inline constexpr unsigned kPosts = 3;  // KVSHM_POST_...
constexpr off_t post_byte(unsigned post) { return kLockBase + 130 + post; }

class File {  // a descriptor, closed at the end of the scope
 public:
  explicit File(int fd = -1) : fd_(fd) {}
  File(File&& o) noexcept : fd_(o.fd_) { o.fd_ = -1; }
  File& operator=(File&& o) noexcept;
  ~File() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1);
  int release() {  // the caller closes it
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

// Non-blocking; 0, -EAGAIN (somebody else holds it) or another -errno.
int lock_byte(int fd, bool write, off_t at);
int unlock_byte(int fd, off_t at);
// Tries until deadline_ms (CLOCK_MONOTONIC), or until *stop; -ETIMEDOUT.
int lock_byte_until(int fd, bool write, off_t at, std::int64_t deadline_ms,
                    const std::atomic<bool>* stop = nullptr);
// Would a write lock conflict? 1 locked, 0 free, -errno. Never takes anything.
int byte_locked(int fd, off_t at);

std::int64_t now_ms();       // CLOCK_MONOTONIC
std::int64_t boottime_ms();  // CLOCK_BOOTTIME: goes on over suspend
void sleep_ms(unsigned ms);

}  // namespace kvshm
