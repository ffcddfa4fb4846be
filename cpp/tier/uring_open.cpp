// Making a ring: what is tried out before it is handed out.
#include "tier/uring_engine.hpp"

#ifdef KVSHM_HAVE_IO_URING
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "arena/error.hpp"
#include "arena/fork.hpp"

namespace kvshm::tier {
namespace {

constexpr unsigned kFewest = 8, kMost = 16384;  // entries: below, threads are as good
constexpr unsigned kProbeMs = 2000;

}  // namespace

int UringEngine::open(const EngineOptions& o, std::unique_ptr<Engine>* out, std::string* why) try {
  if (o.nfiles > 32) return -EINVAL;
  std::unique_ptr<UringEngine> e(new UringEngine);
  e->fork_generation_ = fork_generation();
  if (int rc = e->open_ring(o, why)) return rc;
  if (int rc = e->probe()) {
    *why = "io_uring_enter";
    return rc;
  }
  e->nfiles_ = o.nfiles;
  for (unsigned i = 0; i < o.nfiles; i++)
    if (int rc = e->ring_->set_file(kData + i, o.files[i])) {
      *why = "io_uring_register";
      return rc;
    }
  if (int rc = e->open_bell()) {
    *why = "pipe";
    return rc;
  }
  e->slots_.resize(e->entries_);
  e->held_.reserve(e->entries_);
  for (unsigned i = e->entries_; i-- > 0;) e->free_.push_back(i);
  e->probe_files(o.files);
  e->cut(o);
  *out = std::move(e);
  return 0;
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

int UringEngine::open_ring(const EngineOptions& o, std::string* why) {
  const char* refused = nullptr;
  unsigned entries = std::min(o.entries, kMost);
  int rc;
  do {
    rc = GuardedRing::open({.arenas = o.arenas,
                            .narenas = o.arenas[1] ? 2u : 1u,
                            .places = kData + o.nfiles,
                            .entries = entries + o.nfiles + kBells,
                            .fence = kFence,
                            .fence_out = &fence_},
                           &ring_, &refused);
    entries /= 2;
  } while (rc == -ENOMEM && refused && entries >= kFewest);
  if (rc) {
    if (refused) *why = refused;
    return rc;
  }
  entries_ = std::min(o.entries, ring_->entries() - o.nfiles - kBells);
  if (entries_ < o.entries)
    log_line(KVSHM_LOG_WARN, "tier: a ring of %u entries in place of %u: no memory for more",
             entries_, o.entries);
  return 0;
}

// One request, waited for: its result, or what enter says.
int UringEngine::ask() {
  struct io_uring* r = ring_->get();
  const std::int64_t deadline = now_ms() + kProbeMs;
  for (;;) {
    struct __kernel_timespec t = {0, 100000000};
    struct io_uring_cqe* c;
    const int rc = io_uring_submit_and_wait_timeout(r, &c, 1, &t, nullptr);
    if (rc < 0 && !passing(rc)) return rc;
    if (io_uring_cq_ready(r) && !io_uring_peek_cqe(r, &c)) {
      const int result = c->res;
      io_uring_cqe_seen(r, c);
      return result;
    }
    if (now_ms() > deadline) return -ETIMEDOUT;
  }
}

// A filter of system calls may let a ring be made, and refuse its use.
int UringEngine::probe() {
  io_uring_prep_nop(io_uring_get_sqe(ring_->get()));
  return ask();
}

// Which files can be asked. Buffered writes are refused whenever they may not wait, so their file
// would seem frozen for good.
void UringEngine::probe_files(const int* files) {
  for (unsigned i = 0; i < nfiles_; i++) {
    const int flags = fcntl(files[i], F_GETFL);
    if (flags < 0 || !(flags & O_DIRECT) || (flags & O_ACCMODE) == O_RDONLY) continue;
    prepare_check(i);
    if (ask() == 0) checkable_ |= 1u << i;
  }
}

int UringEngine::open_bell() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) return -errno;
  File in(ends[0]);
  bell_.reset(ends[1]);
  bell_known_ = Known::of(ends[1]);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);  // of this end alone: the other one is to wait
  return ring_->set_file(kBell, in.get());
}

}  // namespace kvshm::tier
#endif
