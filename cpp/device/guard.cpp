#include "device/guard.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "arena/fork.hpp"
#include "arena/object.hpp"

namespace kvshm {
namespace {

// The kernel's interface, as it has been since 5.5: it is needed without liburing, too.
constexpr unsigned kRegisterFiles = 2, kRegisterFilesUpdate = 6;
struct FilesUpdate {
  std::uint32_t offset, reserved;
  std::uint64_t fds;
};

int registered(int ring_fd, std::uint32_t index, int fd) {
  std::int32_t one = fd;
  long rc;
  if (index == KVSHM_NONE) {
    rc = syscall(SYS_io_uring_register, ring_fd, kRegisterFiles, &one, 1u);
  } else {
    FilesUpdate update = {index, 0, reinterpret_cast<std::uint64_t>(&one)};
    rc = syscall(SYS_io_uring_register, ring_fd, kRegisterFilesUpdate, &update, 1u);
    if (rc == 0) return -EINVAL;  // none updated
  }
  return rc < 0 ? -errno : 0;
}

const char* reason(int rc, std::uint32_t index) {
  switch (rc) {
    case -EBUSY:
      return "it has a table of files: say which free place of it the guard may have";
    case -EEXIST:
      return "it takes requests from one thread only: call this in that thread";
    case -ENXIO:
      return "it has no table of files";
    case -EINVAL:
      return index == KVSHM_NONE ? "refused" : "its table of files has no such place";
    case -EBADF:
    case -EOPNOTSUPP:
      return "that is no io_uring";
    default:
      return std::strerror(-rc);
  }
}

}  // namespace

int open_guard(const Arena& a, File* out) {
  File f(open_object(a, O_RDONLY));
  if (!f && (errno == EMFILE || errno == ENFILE))
    return fail(-errno, "no descriptor is left to guard a ring of arena %s", a.name.c_str());
  if (!f) return -ESTALE;
  if (int rc = lock_byte(f.get(), false, device_byte(a.slot)))
    return fail(rc, "cannot lock the device byte of slot %u of arena %s: %s", a.slot,
                a.path.c_str(), std::strerror(-rc));
  *out = std::move(f);
  return 0;
}

int guard_ring(Arena& a, int ring_fd, std::uint32_t index) {
  ForkGuard no_fork;
  File f;
  if (int rc = open_guard(a, &f)) return rc;
  const int rc = registered(ring_fd, index, f.get());
  if (rc) return fail(rc, "cannot guard ring %d: %s", ring_fd, reason(rc, index));
  return 0;  // the ring holds the description; our descriptor goes
}

bool device_idle(const Arena& a) {
  File f(open_object(a, O_RDONLY));
  // Removed: no call hands its blocks out again.
  return !f || byte_locked(f.get(), device_byte(a.slot)) != 1;
}

}  // namespace kvshm
