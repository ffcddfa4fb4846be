#include "tier/pool_engine.hpp"

#include <errno.h>
#include <kvshm_tier.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <vector>

#include "arena/error.hpp"
#include "arena/fork.hpp"
#include "device/condition.hpp"
#include "device/guarded_ring.hpp"

namespace kvshm::tier {
namespace {

constexpr unsigned kThreads = 16;
constexpr unsigned kPartingMs = 1000;  // for the threads to end
constexpr std::int64_t kLongMs = 3600000;

// A file whose descriptor leads to another one by now is left alone.
std::int32_t move(const Transfer& t, const Known& file) {
  if (!file.still()) return -EBADF;
  for (;;) {
    ssize_t n;
    if (t.kind == Transfer::kSync)
      n = fdatasync(file.fd);
    else if (t.kind == Transfer::kWrite)
      n = pwrite(file.fd, t.data, t.bytes, off_t(t.offset));
    else
      n = pread(file.fd, t.data, t.bytes, off_t(t.offset));
    if (n >= 0) return std::int32_t(n);
    if (errno != EINTR) return -errno;
  }
}

}  // namespace

struct PoolEngine::Shared {
  std::mutex mutex;      // over all but in_flight
  Condition work, news;  // for the threads; for the owner
  // With room for all entries from the start: nothing allocates later.
  std::vector<Transfer> queued;  // the urgent ones first
  std::vector<Landed> landed;
  std::vector<Known> files;
  std::vector<pthread_t> threads;
  unsigned urgent = 0, running = 0, busy = 0;
  bool stop = false, kicked = false;
  // Shut when nothing can land any more: a socket, since a forked child may have a copy.
  File fence;
  Known fence_known;
  std::atomic<unsigned> in_flight{0};  // a count alone, it publishes nothing

  void shut() {
    if (fence_known.still()) shutdown(fence.get(), SHUT_RDWR);
  }
};

int PoolEngine::open(const EngineOptions& o, std::unique_ptr<Engine>* out) try {
  std::unique_ptr<PoolEngine> e(new PoolEngine);
  e->shared_ = std::make_shared<Shared>();
  Shared& s = *e->shared_;
  e->entries_ = o.entries;
  e->fork_generation_ = fork_generation();
  s.queued.reserve(o.entries);
  s.landed.reserve(o.entries);
  for (unsigned i = 0; i < o.nfiles; i++) s.files.push_back(Known::of(o.files[i]));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
    return fail(-ENOMEM, "a pool of threads: no descriptors left");
  e->fence_.reset(ends[0]);
  s.fence.reset(ends[1]);
  s.fence_known = Known::of(ends[1]);
  const unsigned n = std::min(o.entries, kThreads);
  s.threads.reserve(n);
  for (unsigned i = 0; i < n; i++) {
    auto arg = std::make_unique<std::shared_ptr<Shared>>(e->shared_);
    pthread_t thread;
    std::lock_guard lock(s.mutex);
    if (!start_quiet_thread(&thread, "kvshm-io", run, arg.get())) break;
    arg.release();  // the thread's
    s.threads.push_back(thread);
    s.running++;
  }
  if (s.threads.empty()) return fail(-ENOMEM, "a pool of threads: the system gives none");
  *out = std::move(e);
  return 0;
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

void* PoolEngine::run(void* arg) {
  const std::unique_ptr<std::shared_ptr<Shared>> own(static_cast<std::shared_ptr<Shared>*>(arg));
  Shared& s = **own;
  std::unique_lock lock(s.mutex);
  for (;;) {
    while (!s.stop && s.queued.empty()) s.work.wait(lock, now_ms() + kLongMs);
    if (s.stop) break;
    const Transfer t = s.queued.front();
    s.queued.erase(s.queued.begin());
    if (s.urgent) s.urgent--;
    s.busy++;
    lock.unlock();
    const std::int32_t result = move(t, s.files[t.file]);
    lock.lock();
    s.landed.push_back({t.token, result});
    if (--s.busy == 0 && s.stop) s.shut();
    s.news.wake();
  }
  if (--s.running == 0) s.news.wake();
  return nullptr;
}

// What has not begun never will. True: nothing can land any more.
bool PoolEngine::stop() {
  Shared& s = *shared_;
  std::lock_guard lock(s.mutex);
  s.stop = true;
  s.queued.clear();
  s.in_flight.store(0, std::memory_order_relaxed);
  s.work.wake();
  return s.busy == 0;
}

PoolEngine::~PoolEngine() {
  if (!shared_ || fork_generation_ != fork_generation()) return;  // a child has no such threads
  const bool abandoned = !fence_;                                 // then somebody else waits
  stop();
  Shared& s = *shared_;
  bool ended;
  {
    std::unique_lock lock(s.mutex);
    const std::int64_t deadline = now_ms() + (abandoned ? 0 : kPartingMs);
    while (s.running && now_ms() < deadline) s.news.wait(lock, deadline);
    ended = s.running == 0;
  }
  for (pthread_t t : s.threads) ended ? pthread_join(t, nullptr) : pthread_detach(t);
  if (!ended && !abandoned)
    log_line(KVSHM_LOG_WARN, "tier: threads were left with transfers that hang");
}

std::uint32_t PoolEngine::kind() const { return KVSHM_TIER_THREADS; }

int PoolEngine::usable() const {
  return fork_generation_ == fork_generation() ? 0 : -KVSHM_EFORKED;
}

unsigned PoolEngine::in_flight() const {
  return shared_->in_flight.load(std::memory_order_relaxed);
}

int PoolEngine::start(const Transfer& t) {
  if (int rc = usable()) return rc;
  Shared& s = *shared_;
  if (t.file >= s.files.size()) return -EINVAL;
  if (in_flight() >= entries_) return -EAGAIN;
  std::lock_guard lock(s.mutex);
  if (s.stop) return -KVSHM_ECLOSED;
  s.queued.insert(t.urgent ? s.queued.begin() + s.urgent++ : s.queued.end(), t);
  s.in_flight.fetch_add(1, std::memory_order_relaxed);
  s.work.wake_one();
  return 0;
}

int PoolEngine::wait(Landed* out, unsigned cap, unsigned limit_ms) {
  if (int rc = usable()) return rc;
  Shared& s = *shared_;
  const std::int64_t deadline = now_ms() + limit_ms;
  std::unique_lock lock(s.mutex);
  if (s.stop) return -KVSHM_ECLOSED;
  while (s.landed.empty() && !s.kicked && now_ms() < deadline) s.news.wait(lock, deadline);
  s.kicked = false;
  const auto n = std::min(std::size_t{cap}, s.landed.size());
  std::copy_n(s.landed.begin(), n, out);
  s.landed.erase(s.landed.begin(), s.landed.begin() + std::ptrdiff_t(n));
  s.in_flight.fetch_sub(unsigned(n), std::memory_order_relaxed);
  return int(n);
}

void PoolEngine::kick() {
  if (usable()) return;
  std::lock_guard lock(shared_->mutex);
  shared_->kicked = true;
  shared_->news.wake();
}

int PoolEngine::abandon() {
  if (usable()) return -1;
  return stop() ? -1 : fence_.release();
}

}  // namespace kvshm::tier
