// Which engine runs: opened by the mover's thread, and exchanged when its calls begin to fail.
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>

#include "arena/lock.hpp"
#include "tier/mover.hpp"

namespace kvshm::tier {
namespace {
constexpr unsigned kEntries = 64;
}

int Mover::open_engine(std::uint32_t want) {
  EngineOptions o{};
  o.files = t_.files.descriptors().data();
  o.nfiles = unsigned(t_.files.descriptors().size());
  o.arenas[0] = &t_.g2;
  o.arenas[1] = t_.image.get();
  o.entries = kEntries;
  o.memory = t_.g2.data;
  o.memory_bytes = std::uint64_t(t_.g2.nblocks) * t_.g2.block_bytes;
  o.block_bytes = t_.g2.block_bytes;
  std::unique_ptr<Engine> e;
  std::string why;
  const int rc = ::kvshm::tier::open_engine(want, o, &e, &why);
  std::lock_guard<std::mutex> lock(mutex_);
  if (rc) {
    why_ = why.empty() ? last_error() : why;
    return rc;
  }
  why_ = why;
  engine_ = std::move(e);
  engine_kind_ = engine_->kind();
  flights_.assign(engine_->entries(), {});
  free_flights_.clear();
  for (std::uint32_t i = engine_->entries(); i-- > 0;) free_flights_.push_back(i);
  {
    std::lock_guard<std::mutex> k(engine_kick_->mutex);
    engine_kick_->engine = engine_.get();
  }
  idle_.wake();
  return 0;
}

// The engine is of no use any more. What flew may still land: its operations wait for that in limbo,
// memory and slots as they are, and then begin anew.
void Mover::change_engine(int cause) {
  Limbo l{-1, now_ms(), {}};
  {
    std::lock_guard<std::mutex> k(engine_kick_->mutex);
    engine_kick_->engine = nullptr;
  }
  const std::uint32_t was = engine_->kind();
  l.fence = engine_->abandon();
  for (OpPtr& op : flying_) l.ops.push_back(std::move(op));
  flying_.clear();
  for (auto* queue : {&ready_loads_, &ready_fetches_, &ready_writes_})
    for (std::size_t i = 0; i < queue->size();) {
      if (!(*queue)[i]->flying) {
        i++;
        continue;
      }
      l.ops.push_back(std::move((*queue)[i]));
      queue->erase(queue->begin() + std::ptrdiff_t(i));
    }
  again_.clear();
  reads_ = writes_ = 0;
  read_bytes_ = write_bytes_ = 0;
  in_flight_.store(0, std::memory_order_relaxed);
  engine_.reset();
  cause_ = std::uint32_t(-cause);
  t_.g2.count(kStat_tier_switches_total);
  log_line(KVSHM_LOG_WARN, "tier of arena %s: %s failed in operation (%s): going on with threads",
           t_.g2.name.c_str(), kvshm_tier_engine_name(was), std::strerror(-cause));
  limbo_.push_back(std::move(l));
  const int rc = open_engine(KVSHM_TIER_THREADS);
  std::lock_guard<std::mutex> lock(mutex_);
  why_ =
      std::string(kvshm_tier_engine_name(was)) + " failed in operation: " + std::strerror(-cause);
  if (rc) broken_ = true;
}

void Mover::look_at_fences() {
  for (std::size_t i = 0; i < limbo_.size();) {
    Limbo& l = limbo_[i];
    struct pollfd p = {l.fence, POLLIN, 0};
    if (l.fence >= 0 && poll(&p, 1, 0) == 0) {
      i++;
      continue;
    }
    if (l.fence >= 0) close(l.fence);
    std::vector<OpPtr> ops = std::move(l.ops);
    limbo_.erase(limbo_.begin() + std::ptrdiff_t(i));
    for (OpPtr& op : ops) {
      op->issued = 0;
      op->flying = op->retries = 0;
      op->rc = 0;
      if (broken_) {
        op->rc = -EIO;
        finish(std::move(op));
      } else {
        (op->write() || op->kind == Op::kSync ? ready_writes_ : ready_loads_)
            .push_back(std::move(op));
      }
    }
  }
}

// Without an engine everything that was begun fails.
void Mover::fail_all() {
  resign();  // first: another process may have an engine, and does again what fails here
  for (; !come_.empty(); come_.pop_front()) finish(std::move(come_.front()));
  look_at_awaited();
  for (auto* queue : {&ready_loads_, &ready_fetches_, &ready_writes_})
    while (!queue->empty()) {
      OpPtr op = std::move(queue->front());
      queue->pop_front();
      op->rc = -EIO;
      op->issued = op->bytes;
      finish(std::move(op));
    }
  flush_pages(true);
  wipe_pages();
}

void Mover::leave_engine() {
  std::lock_guard<std::mutex> k(engine_kick_->mutex);
  engine_kick_->engine = nullptr;
  engine_.reset();
}

}  // namespace kvshm::tier
