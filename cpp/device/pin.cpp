#include "device/pin.hpp"

#include <errno.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "arena/lock.hpp"
#include "device/cuda.hpp"

namespace kvshm {

Pin::~Pin() {
  if (joinable_) pthread_join(thread_, nullptr);
}

int Pin::acquire(const kvshm_device_options& o) {
  const std::int64_t deadline = now_ms() + o.timeout_ms;
  Lock lock(mutex_);
  if (int rc = begin(lock, o)) return rc;
  if (running_ && !o.timeout_ms) return 0;
  if (int rc = wait_idle(lock, deadline)) return rc;
  const int rc = answer(o.mode);
  // Not the first, and it wants more than the first one got: that one keeps what it has.
  if (rc && references_) references_--;
  return rc;
}

int Pin::begin(Lock& lock, const kvshm_device_options& o) {
  if (undo_wanted_) return fail(-EBUSY, "the registration before is still being undone: wait");
  if (references_) {
    if (o.backend ? cuda_ || !backend_ || !backend_->same(*o.backend) : !cuda_)
      return fail(-EBUSY, "registered with another backend (%s): unregister first", name_.c_str());
    references_++;
    return 0;
  }
  state_ = KVSHM_DEVICE_REGISTERING;
  mode_ = o.mode;
  drain_ms_ = o.drain_ms ? o.drain_ms : 2000;
  piece_blocks_ = registered_ = foreign_ = 0;
  failed_ = false;
  code_ = 0;
  reason_.clear();
  cuda_ = !o.backend;
  std::string why;
  if (!open(o, &why)) {
    reason_ = "no device: " + why;
    state_ = KVSHM_DEVICE_REFUSED;
    show(state_);
    if (mode_ == KVSHM_REQUIRE)
      return fail(-KVSHM_EUNSUPPORTED, "registration with a device required; %s", reason_.c_str());
    references_ = 1;
    tell();
    return 0;
  }
  const std::uint64_t wanted = o.piece_bytes ? o.piece_bytes : std::uint64_t{1} << 30;
  piece_blocks_ = blocks_per_piece(a_, wanted < backend_->most() ? wanted : backend_->most());
  references_ = 1;
  add_wanted_ = true;
  show(state_);  // the mark: before the first registration
  KVSHM_STEP("pin.marked");
  start(lock);
  return 0;
}

bool Pin::open(const kvshm_device_options& o, std::string* why) {
  kvshm_device_backend cuda = KVSHM_DEVICE_BACKEND_INIT;
  name_ = "cuda";
  if (cuda_ && !open_cuda(o.device, &cuda, why)) return false;
  backend_ = std::make_unique<Backend>(cuda_ ? cuda : *o.backend);
  name_ = backend_->name();
  return true;
}

int Pin::wait_idle(Lock& lock, std::int64_t deadline_ms) {
  while (running_)
    if (!changed_.wait(lock, deadline_ms) && running_ && now_ms() >= deadline_ms)
      return fail(-ETIMEDOUT, "%s: %llu of %llu bytes are registered; it goes on", name_.c_str(),
                  (unsigned long long)registered_,
                  (unsigned long long)(std::uint64_t{a_.nblocks} * a_.block_bytes));
  return 0;
}

int Pin::answer(std::uint32_t mode) const {
  if (failed_ || (mode == KVSHM_REQUIRE && references_ && state_ != KVSHM_DEVICE_REGISTERED))
    return fail(-KVSHM_EUNSUPPORTED, "registration of all blocks with a device required; %s",
                reason_.c_str());
  return 0;
}

int Pin::wait(std::int64_t deadline_ms) {
  Lock lock(mutex_);
  if (int rc = wait_idle(lock, deadline_ms)) return rc;
  return answer(KVSHM_AUTO);
}

int Pin::release(std::int64_t deadline_ms) {
  Lock lock(mutex_);
  if (!references_)
    return undo_wanted_ ? wait_idle(lock, deadline_ms)
                        : fail(-KVSHM_ESTATE, "there is no registration to give back");
  if (--references_) return 0;
  undo_wanted_ = true;
  if (!running_) start(lock);
  return wait_idle(lock, deadline_ms);
}

void Pin::undo_all() {
  Lock lock(mutex_);
  references_ = 0;
  if (backend_ || state_ != KVSHM_DEVICE_NONE) {
    undo_wanted_ = true;
    if (!running_) {
      running_ = true;
      lock.unlock();
      work();
      lock.lock();
    }
  }
  while (running_) changed_.wait(lock, now_ms() + 1000);
  if (!std::exchange(joinable_, false)) return;
  lock.unlock();
  pthread_join(thread_, nullptr);
}

void Pin::start(Lock& lock) {
  if (joinable_) pthread_join(thread_, nullptr);  // running_ is false: it is at its end
  running_ = true;
  joinable_ = start_quiet_thread(&thread_, "kvshm-device", run, this);
  if (joinable_) return;
  lock.unlock();
  work();
  lock.lock();
}

bool Pin::active() {
  Lock lock(mutex_);
  return running_ || backend_ || state_ != KVSHM_DEVICE_NONE;
}

bool Pin::may_unmap() {
  Lock lock(mutex_);
  return stuck_ == 0;
}

void Pin::show(std::uint32_t state) {
  state_ = state;
  const bool mark = backend_ || stuck_ || foreign_left_;
  // relaxed: a figure. seq_cst: before the backend is called; a reaper reads it under the life byte
  a_.mine->device_bytes.store(registered_, std::memory_order_relaxed);
  a_.mine->device_memory.store(DeviceWord::make(mark, state, drain_ms_), std::memory_order_seq_cst);
}

void Pin::tell() {
  if (state_ == KVSHM_DEVICE_REGISTERED) return;
  log_line(KVSHM_LOG_WARN,
           "arena %s: %llu of %llu bytes are registered with %s, %s; copies of the other blocks "
           "are slower",
           a_.name.c_str(), (unsigned long long)registered_,
           (unsigned long long)(std::uint64_t{a_.nblocks} * a_.block_bytes), name_.c_str(),
           reason_.c_str());
}

void Pin::describe(kvshm_device* out) {
  Lock lock(mutex_);
  out->state = state_;
  out->references = references_;
  out->bytes = std::uint64_t{a_.nblocks} * a_.block_bytes;
  out->bytes_registered = registered_;
  out->bytes_foreign = foreign_;
  out->pieces = std::uint32_t(pieces_.size());
  out->piece_blocks = piece_blocks_;
  out->stuck = stuck_;
  out->code = code_;
  std::snprintf(out->backend, sizeof out->backend, "%s",
                state_ == KVSHM_DEVICE_NONE ? "" : name_.c_str());
  std::snprintf(out->reason, sizeof out->reason, "%s", reason_.c_str());
}

std::vector<kvshm_device_range> Pin::ranges() {
  Lock lock(mutex_);
  std::vector<kvshm_device_range> found;
  for (const Piece& p : pieces_) {
    if (!found.empty() && found.back().foreign == std::uint32_t(p.foreign) &&
        found.back().first + found.back().blocks == p.first)
      found.back().blocks += p.blocks;
    else
      found.push_back({p.first, p.blocks, p.foreign, 0});
  }
  return found;
}

bool Pin::holds_cuda(const std::vector<std::uint32_t>& blocks) {
  Lock lock(mutex_);
  if (!cuda_ || undo_wanted_) return false;
  for (std::uint32_t block : blocks) {
    auto p = std::upper_bound(pieces_.begin(), pieces_.end(), block,
                              [](std::uint32_t b, const Piece& x) { return b < x.first; });
    if (p == pieces_.begin() || (--p)->foreign || block - p->first >= p->blocks) return false;
  }
  return true;
}

}  // namespace kvshm
