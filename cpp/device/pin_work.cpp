// What the thread of a registration does.
#include <cstdio>
#include <new>

#include "device/pin.hpp"

namespace kvshm {
namespace {

// A refusal of the very first piece may mean that the driver takes no such size: smaller ones are
// tried down to this.
constexpr std::uint64_t kLeastTry = 1 << 20;

}  // namespace

void* Pin::run(void* self) {
  static_cast<Pin*>(self)->work();
  return nullptr;
}

void Pin::work() {
  Lock lock(mutex_);
  if (add_wanted_) {
    add_wanted_ = false;
    try {
      add_all(lock);
    } catch (const std::bad_alloc&) {  // thrown before the backend is called: nothing is lost
      code_ = 0;
      failed_ = mode_ == KVSHM_REQUIRE;
      if (failed_) references_ = 0;
      show(pieces_.empty() ? KVSHM_DEVICE_REFUSED : KVSHM_DEVICE_PARTLY);
    }
  }
  if (undo_wanted_ || failed_) undo(lock);
  undo_wanted_ = false;
  running_ = false;
  changed_.wake();
}

void Pin::add_all(Lock& lock) {
  Added added = Added::kYes;
  for (std::uint32_t first = 0; first < a_.nblocks && !undo_wanted_ && added != Added::kRefused;) {
    const std::uint32_t left = a_.nblocks - first, n = left < piece_blocks_ ? left : piece_blocks_;
    added = add(lock, first, n);
    if (added == Added::kYes) first += n;
  }
  if (undo_wanted_) return;
  const bool all = registered_ == std::uint64_t{a_.nblocks} * a_.block_bytes;
  if (!all && mode_ == KVSHM_REQUIRE) {
    failed_ = true;
    references_ = 0;
    return;  // rolled back by work()
  }
  show(all               ? KVSHM_DEVICE_REGISTERED
       : pieces_.empty() ? KVSHM_DEVICE_REFUSED
                         : KVSHM_DEVICE_PARTLY);
  tell();
}

Pin::Added Pin::add(Lock& lock, std::uint32_t first, std::uint32_t blocks) {
  const Span span = span_of(a_, first, blocks);
  if (pieces_.size() == pieces_.capacity()) pieces_.reserve(pieces_.size() * 2 + 64);
  lock.unlock();
  KVSHM_STEP("pin.register");
  const int rc = backend_->add(span.at, span.bytes);
  KVSHM_STEP("pin.registered");
  const bool covered = rc == KVSHM_DEVICE_ALREADY && backend_->covers(span.at, span.bytes);
  lock.lock();
  if (rc == KVSHM_DEVICE_OK || covered) {
    keep(first, blocks, covered);
    return Added::kYes;
  }
  const std::uint32_t unit = blocks_per_unit(a_);
  if (rc != KVSHM_DEVICE_ALREADY) {
    // Not a hole in the middle, and not where there is no device at all.
    if (rc == KVSHM_DEVICE_GONE || !pieces_.empty() || first || blocks <= unit ||
        span.bytes <= kLeastTry)
      return refused(first, rc);
    a_.count(kStat_device_refused_total);
    piece_blocks_ = blocks / 2 / unit * unit;
    if (piece_blocks_ < unit) piece_blocks_ = unit;
    return Added::kSmaller;
  }
  // Somebody else has registered a part of it: all but the blocks that this part touches.
  if (blocks <= unit) {
    char text[128];
    std::snprintf(text, sizeof text, "blocks %u to %u are registered in part by somebody else",
                  first, first + blocks - 1);
    reason_ = text;
    return Added::kYes;
  }
  const std::uint32_t half = (blocks / 2 + unit - 1) / unit * unit;
  const Added low = undo_wanted_ ? Added::kRefused : add(lock, first, half);
  if (low == Added::kRefused || blocks == half) return low;
  return undo_wanted_ ? Added::kRefused : add(lock, first + half, blocks - half);
}

Pin::Added Pin::refused(std::uint32_t first, int code) {
  a_.count(kStat_device_refused_total);
  code_ = code;
  char where[64];
  std::snprintf(where, sizeof where, "refused from block %u of %u on: ", first, a_.nblocks);
  reason_ = where + backend_->text(code);
  return Added::kRefused;
}

void Pin::keep(std::uint32_t first, std::uint32_t blocks, bool foreign) {
  pieces_.push_back({first, blocks, foreign});
  registered_ += bytes_of(a_, pieces_.back());
  if (foreign) foreign_ += bytes_of(a_, pieces_.back());
  a_.count(foreign ? kStat_device_foreign_total : kStat_device_registered_total);
  show(KVSHM_DEVICE_REGISTERING);
}

void Pin::undo(Lock& lock) {
  show(KVSHM_DEVICE_UNREGISTERING);
  while (!pieces_.empty()) {
    const Piece p = pieces_.back();
    int rc = KVSHM_DEVICE_OK;
    if (p.foreign) {
      foreign_left_ = true;
      foreign_ -= bytes_of(a_, p);
    } else {
      lock.unlock();
      KVSHM_STEP("pin.unregister");
      rc = backend_->remove(span_of(a_, p.first, p.blocks).at);
      KVSHM_STEP("pin.unregistered");
      lock.lock();
      // Gone with its context: as good as undone.
      const bool undone = rc == KVSHM_DEVICE_OK || rc == KVSHM_DEVICE_GONE;
      a_.count(undone ? kStat_device_undone_total : kStat_device_stuck_total);
      if (!undone) stuck_++;
    }
    if (rc != KVSHM_DEVICE_OK && rc != KVSHM_DEVICE_GONE) {
      code_ = rc;
      reason_ = "a piece was not given back: " + backend_->text(rc);
      log_line(KVSHM_LOG_ERROR,
               "arena %s: %s did not unregister blocks %u to %u: %s; they stay "
               "mapped until this process ends",
               a_.name.c_str(), name_.c_str(), p.first, p.first + p.blocks - 1,
               backend_->text(rc).c_str());
    }
    pieces_.pop_back();
    registered_ -= bytes_of(a_, p);
    show(KVSHM_DEVICE_UNREGISTERING);
  }
  if (backend_) {
    Backend done = *backend_;
    backend_.reset();
    lock.unlock();
    done.finish();
    lock.lock();
  }
  show(failed_ ? KVSHM_DEVICE_REFUSED : KVSHM_DEVICE_NONE);
}

}  // namespace kvshm
