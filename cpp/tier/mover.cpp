#include "tier/mover.hpp"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "arena/lock.hpp"
#include "arena/slots.hpp"
#include "blocks/counts.hpp"
#include "blocks/registration.hpp"
#include "evict/controller.hpp"

namespace kvshm::tier {
namespace {
constexpr std::uint32_t kPiece = 2 << 20;  // larger transfers gain nothing, and keep others waiting
// Demand reads: no deeper than four large pieces, or as many small ones as make one. More in flight
// only makes each of them later.
constexpr unsigned kReads = 4, kManyReads = 32, kWrites = 16;
constexpr std::uint64_t kReadBytes = std::uint64_t{kReads} * kPiece;
constexpr std::uint64_t kWriteBytes = std::uint64_t{kWrites} * kPiece;
constexpr std::int64_t kTickMs = 500;
constexpr unsigned kRetries = 100;
constexpr double kClocked = 16 << 20;   // bytes before a speed is said
constexpr std::int64_t kTryMs = 10000;  // a slow tier is tried again

std::int64_t now_us() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t(t.tv_sec) * 1000000 + t.tv_nsec / 1000;
}
}  // namespace

Mover::Mover(Tier& t)
    : t_(t), engine_kick_(std::make_unique<Kick>()), intake_(t.g2), admission_(t.options.admit) {}

Mover::~Mover() = default;

int Mover::start() {
  running_ = start_quiet_thread(&thread_, "kvshm-tier", run, this);
  if (!running_) return fail(-EAGAIN, "no thread for the tier of arena %s", t_.g2.name.c_str());
  std::unique_lock<std::mutex> lock(mutex_);
  const std::int64_t deadline = now_ms() + 10000;
  while (!engine_kind_ && !ended_ && now_ms() < deadline) idle_.wait(lock, deadline);
  return engine_kind_ ? 0 : fail(-KVSHM_EUNSUPPORTED, "%s", why_.c_str());
}

bool Mover::stop(std::int64_t deadline_ms) {
  if (!running_) return true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  state_.store(KVSHM_TIER_NONE, std::memory_order_relaxed);  // no look-up counts on it any more
  kick();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ended_) {
    if (now_ms() >= deadline_ms) return false;
    idle_.wait(lock, deadline_ms);
  }
  lock.unlock();
  pthread_join(thread_, nullptr);
  running_ = false;
  return true;
}

void* Mover::run(void* self) {
  Mover& m = *static_cast<Mover*>(self);
  m.flying_.reserve(256);  // what flies must never be lost for want of memory
  if (m.open_engine(m.t_.options.engine) == 0) {
    for (bool ended = false; !ended;) try {
        m.loop();
        ended = true;
      } catch (const std::bad_alloc&) {
        log_line(KVSHM_LOG_ERROR, "tier of arena %s: out of memory: some blocks were not moved",
                 m.t_.g2.name.c_str());
        m.resign();  // tickets may be lost: a successor has them all
        m.stand_at_ = now_ms() + 5000;
        sleep_ms(10);
      }
  }
  std::lock_guard<std::mutex> lock(m.mutex_);
  m.ended_ = true;
  m.idle_.wake();
  return nullptr;
}

void Mover::loop() {
  Landed landed[64];
  for (;;) {
    const std::int64_t now = now_ms();
    if (now >= tick_at_) tick(now);
    take_work();
    if (!engine_) {  // none is to be had any more
      look_at_fences();
      fail_all();
      if (ended()) break;
      sleep_ms(10);
      continue;
    }
    if (!awaited_.empty()) look_at_awaited();
    if (rebuilding_) read_records();
    wipe_pages();
    stand(now);
    begin_fetches();
    bool more = begin_stores();
    flush_pages(false);
    issue();
    if (ended()) break;
    const bool busy = in_flight_.load(std::memory_order_relaxed) != 0;
    std::int64_t wait = tick_at_ - now_ms();
    if (!awaited_.empty() || (!written_.empty() && !busy)) wait = 1;
    if (!limbo_.empty() && wait > 10) wait = 10;
    if (!more && !busy && engine_->idle()) more = true;
    if (wait > nap()) wait = nap();
    more |= wait <= 0 || !fall_asleep();
    const int n = engine_->wait(landed, 64, more ? 0 : unsigned(wait));
    wake_up();
    if (n < 0) {
      change_engine(n);
      continue;
    }
    for (int i = 0; i < n; i++) land(landed[i]);
    if (const int rc = check_loads()) change_engine(rc);
    if (n) tell();
  }
  resign();
  leave_engine();
}

// False: there is work. Else whoever brings some kicks, and nobody does otherwise: a kick is a system
// call, which a thread that registers blocks shall not make for each of them.
bool Mover::fall_asleep() {
  bool work = false;
  if (leads_.load(std::memory_order_relaxed) && may_store())
    work = !todo_.empty() || intake_.left(kAsked) || intake_.left(kUsual) || gathered();
  std::lock_guard<std::mutex> lock(mutex_);
  if (work || !jobs_.empty()) return false;
  return asleep_ = true;
}

bool Mover::stopping() {
  std::lock_guard<std::mutex> lock(mutex_);
  return stopping_;
}

void Mover::wake_up() {
  std::lock_guard<std::mutex> lock(mutex_);
  asleep_ = false;
}

// Stopping, and nothing is left that must be waited for.
bool Mover::ended() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_ || !jobs_.empty()) return false;
  }
  return flying_.empty() && ready_loads_.empty() && ready_writes_.empty() &&
         ready_fetches_.empty() && limbo_.empty() && written_.empty() && !rebuild_flying_;
}

// The extent of a block and its slot, by an aligned copy where memory is not aligned. False: there is
// no memory for one.
bool Mover::aim(Op& op) {
  const Arena& a = t_.g2;
  op.data = a.data + std::uint64_t(op.memory.id) * a.block_bytes;
  op.bytes = a.block_bytes;
  const Place at = t_.files.slot(op.slot.id);
  op.file = at.file;
  op.offset = at.offset;
  if (!t_.files.direct() || !(a.block_bytes % kPageBytes ||
                              reinterpret_cast<std::uintptr_t>(op.data) % t_.files.memory_align()))
    return true;
  op.bounce = std::make_unique<Bounce>(t_.files.shape().slot_bytes);
  if (!op.bounce->get()) return false;
  if (op.write()) std::memcpy(op.bounce->get(), op.data, a.block_bytes);
  op.data = op.bounce->get();
  op.bytes = t_.files.shape().slot_bytes;
  return true;
}

void Mover::take_work() {
  std::deque<LoadJob> jobs;
  bool stopping;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs.swap(jobs_);
    stopping = stopping_;
  }
  for (LoadJob& j : jobs) begin_load(std::move(j));
  stop_seen_ = stopping;
  if (!stopping) return;
  for (LoadJob& j : awaited_) j.load->settle(t_.g2, j.index, KVSHM_LD_FAILED, kNone);
  awaited_.clear();
  unpark();
  flush_pages(true);
  look_at_epoch(true);
}

void Mover::refuse(LoadJob& j) {
  if (j.slot.seq) {
    give_back(*t_.image, j.slot.id);
    Ticks ticks(t_.g2);
    leave_fill(t_.g2, j.memory, ticks);
  }
  j.load->settle(t_.g2, j.index, KVSHM_LD_FAILED, kNone);
}

void Mover::wake_for_stores() {
  if (!leads_.load(std::memory_order_relaxed)) return;  // the other process looks by itself
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!std::exchange(asleep_, false)) return;
  }
  kick();
}

void Mover::load(std::vector<LoadJob>&& jobs) {
  bool asleep, stopping;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping = stopping_;
    for (LoadJob& j : jobs)
      if (!stopping) jobs_.push_back(std::move(j));
    asleep = std::exchange(asleep_, false);
  }
  if (asleep) kick();
  if (!stopping) return;
  for (LoadJob& j : jobs) refuse(j);  // nobody would read it
}

bool Mover::room(const Op& op) const {
  if (free_flights_.empty()) return false;
  if (op.write() || op.kind == Op::kSync) return writes_ < kWrites && write_bytes_ < kWriteBytes;
  return reads_ < kReads || (reads_ < kManyReads && read_bytes_ < kReadBytes);
}

int Mover::start_piece(Op* op, std::uint64_t at, std::uint32_t bytes) {
  const std::uint32_t f = free_flights_.back();
  Transfer t;
  t.kind = op->kind == Op::kSync ? Transfer::kSync
           : op->write()         ? Transfer::kWrite
                                 : Transfer::kRead;
  t.urgent = op->kind == Op::kLoad;
  t.file = op->file;
  t.bytes = bytes;
  t.data = op->data ? op->data + at : nullptr;
  t.offset = op->offset + at;
  t.token = f;
  if (int rc = engine_->start(t)) return rc;
  free_flights_.pop_back();
  flights_[f] = {op, at, bytes, t_.files.direct(), now_ms()};
  op->flying++;
  if (op->kind == Op::kLoad && !reads_) reading_since_us_ = now_us();
  (t.kind == Transfer::kRead ? reads_ : writes_)++;
  (t.kind == Transfer::kRead ? read_bytes_ : write_bytes_) += bytes;
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

void Mover::issue_from(std::deque<OpPtr>& queue) {
  while (!queue.empty()) {
    Op* op = queue.front().get();
    if (op->kind == Op::kLoad && !op->issued && !(op->load && op->load->wanted())) {
      OpPtr given_up = std::move(queue.front());
      queue.pop_front();
      fail_load(*given_up, false);
      continue;
    }
    while (!op->begun()) {
      if (!room(*op)) return;
      const std::uint64_t left = op->bytes - op->issued;
      const std::uint32_t bytes = left < kPiece ? std::uint32_t(left) : kPiece;
      if (int rc = start_piece(op, op->issued, bytes)) {
        if (rc == -EAGAIN) return;
        op->rc = rc;
        op->issued = op->bytes;
        break;
      }
      op->issued += bytes;
    }
    OpPtr mine = std::move(queue.front());
    queue.pop_front();
    if (op->flying) {
      flying_.push_back(std::move(mine));
    } else {
      finish(std::move(mine));  // refused at once
    }
  }
}

void Mover::issue() {
  while (!again_.empty()) {
    const Piece p = again_.front();
    if (free_flights_.empty()) return;
    p.op->flying--;  // it counted while it waited here
    const int rc = start_piece(p.op, p.at, p.bytes);
    if (rc == -EAGAIN) {
      p.op->flying++;
      return;
    }
    again_.pop_front();
    if (rc) {
      p.op->rc = rc;
      settle(p.op);
    }
  }
  issue_from(ready_loads_);
  if (ready_loads_.empty()) issue_from(ready_fetches_);
  if (ready_loads_.empty()) issue_from(ready_writes_);
}

void Mover::again(Op* op, std::uint64_t at, std::uint32_t bytes) {
  op->retries++;
  op->flying++;
  again_.push_back({op, at, bytes});
}

void Mover::land(const Landed& l) {
  Flight f = flights_[l.token];
  flights_[l.token] = {};
  free_flights_.push_back(std::uint32_t(l.token));
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  Op* op = f.op;
  const bool read = !op->write() && op->kind != Op::kSync;
  (read ? reads_ : writes_)--;
  (read ? read_bytes_ : write_bytes_) -= f.bytes;
  if (op->kind == Op::kLoad) clock_reads(l.result > 0 ? std::uint64_t(l.result) : 0);
  op->flying--;
  stalled_ = false;  // something comes back; tick() says otherwise if others do not
  const std::int32_t r = l.result;
  if (r >= 0) t_.g2.count(read ? kStat_tier_read_bytes_total : kStat_tier_write_bytes_total, r);
  if (r < 0) {
    const bool passing = r == -EINTR || r == -EAGAIN || r == -EBUSY;
    if (r == -EINVAL && f.direct && t_.files.allows_buffered()) {
      t_.files.go_buffered(r);
      engine_->buffered();
      again(op, f.offset, f.bytes);
    } else if (passing && op->retries < kRetries) {
      again(op, f.offset, f.bytes);
    } else {
      op->rc = r;
    }
  } else if (std::uint32_t(r) < f.bytes) {
    // Short. Nothing at all: the end of a file that was cut, or a device without room.
    if (r == 0 || op->retries >= kRetries)
      op->rc = read ? -ENODATA : -ENOSPC;
    else
      again(op, f.offset + std::uint32_t(r), f.bytes - std::uint32_t(r));
  }
  settle(op);
}

// Bytes of loads over the time in which some were under way, of late.
void Mover::clock_reads(std::uint64_t bytes) {
  const std::int64_t now = now_us();
  clocked_us_ += double(now - reading_since_us_);
  clocked_bytes_ += double(bytes);
  reading_since_us_ = now;
  if (clocked_bytes_ < kClocked) return;
  read_speed_.store(std::uint64_t(clocked_bytes_ * 1e6 / (clocked_us_ + 1)),
                    std::memory_order_relaxed);
  clocked_bytes_ /= 2;
  clocked_us_ /= 2;
}

bool Mover::too_slow() {
  const std::uint64_t speed = read_speed();
  if (!speed || speed >= t_.options.min_speed) return false;
  const std::int64_t now = now_ms();
  std::int64_t at = try_at_.load(std::memory_order_relaxed);
  return now < at || !try_at_.compare_exchange_strong(at, now + kTryMs, std::memory_order_relaxed);
}

// Finishes the operation if nothing of it flies or is left to issue.
void Mover::settle(Op* op) {
  if (op->rc) op->issued = op->bytes;
  if (op->flying || op->issued < op->bytes) return;
  for (std::size_t i = 0; i < flying_.size(); i++) {
    if (flying_[i].get() != op) continue;
    OpPtr mine = std::move(flying_[i]);
    flying_[i] = std::move(flying_.back());
    flying_.pop_back();
    if (mine->kind == Op::kLoad && !mine->rc)
      come_.push_back(std::move(mine));
    else
      finish(std::move(mine));
    return;
  }
  // Else it stands in a queue of those with pieces left to issue, which finishes it.
}

// Blocks land in bursts, and to check many takes longer than to read one: the disk is given the next
// before each. The engine's code if it is of no use any more.
int Mover::check_loads() {
  Landed landed[64];
  int rc = 0;
  while (!come_.empty()) {
    if (!rc && come_.size() > 1 && !ready_loads_.empty()) {
      issue();
      const int n = engine_->wait(landed, 64, 0);
      if (n < 0) rc = n;
      for (int i = 0; i < n; i++) land(landed[i]);
    }
    OpPtr op = std::move(come_.front());
    come_.pop_front();
    finish(std::move(op));
  }
  return rc;
}

void Mover::finish(OpPtr op) {
  switch (op->kind) {
    case Op::kLoad:
      return end_load(*op);
    case Op::kStore:
      return end_store(*op);
    case Op::kSync:
    case Op::kPage:
      return op->super ? end_epoch(std::move(op)) : end_page(std::move(op));
    case Op::kSuper:
      return end_epoch(std::move(op));
    case Op::kRecords:
      rebuild_flying_--;
      return adopt_records(*op);
  }
}

void Mover::tick(std::int64_t now) {
  tick_at_ = now + kTickMs;
  Arena& image = *t_.image;
  if (image.sb->dead.load(std::memory_order_relaxed) ||
      t_.g2.sb->dead.load(std::memory_order_relaxed)) {
    broken_ = true;
  } else {
    reap_dead(image, nullptr);
    step_controller(image);
  }
  bool late = false;
  for (const Flight& f : flights_) late |= f.op && now - f.since > t_.options.deadline_ms;
  for (const Limbo& l : limbo_) late |= !l.ops.empty() && now - l.since > t_.options.deadline_ms;
  if (late && !stalled_)
    log_line(KVSHM_LOG_WARN,
             "tier of arena %s: transfers do not come back within %u ms; it is left "
             "out until they do",
             t_.g2.name.c_str(), t_.options.deadline_ms);
  stalled_ = late;
  if (late) give_up_late(now);
  try_parked(now);
  look_at_fences();
  look_at_rebuild();
  look_at_epoch(false);
  look_at_owed();
  tell();
}

void Mover::describe(kvshm_tier* out) {
  out->state = state();
  out->in_flight = in_flight_.load(std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(mutex_);
  out->engine = engine_kind_;
  out->registered = registered_;
  out->read_speed = read_speed();
  std::string why = why_;
  if (!t_.files.why().empty()) why += (why.empty() ? "" : "; ") + t_.files.why();
  std::snprintf(out->why, sizeof out->why, "%s", why.c_str());
}

void Mover::tell() {
  std::uint32_t s = KVSHM_TIER_OK;
  const std::uint64_t note = t_.image->sb->tier.state.load(std::memory_order_acquire);
  if (broken_)
    s = KVSHM_TIER_FAILED;
  else if (stalled_ || leader_stalls())
    s = KVSHM_TIER_STALLED;
  else if (note != KVSHM_TIER_OK)
    s = KVSHM_TIER_REBUILDING;
  else if (no_space_)
    s = KVSHM_TIER_NO_SPACE;
  else if (t_.options.min_speed && read_speed() && read_speed() < t_.options.min_speed)
    s = KVSHM_TIER_SLOW;
  if (stopping()) s = KVSHM_TIER_NONE;
  state_.store(s, std::memory_order_relaxed);
  // In the line stands what was seen here: others go by it, and must not go by themselves.
  if (s == KVSHM_TIER_STALLED && !stalled_) s = KVSHM_TIER_OK;
  TierLine& line = t_.image->mine->tier;
  std::uint64_t queued = 0;
  for (unsigned lane = 0; leads_.load(std::memory_order_relaxed) && lane < kFetch; lane++)
    queued += waiting(t_.g2, lane);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    registered_ = engine_ && engine_->registered();
  }
  const std::uint64_t word = s | std::uint64_t(engine_ ? engine_->kind() : 0) << 8 |
                             std::uint64_t(t_.files.direct()) << 16 |
                             std::uint64_t(registered_) << 24 | std::uint64_t(cause_) << 32;
  line.word.store(word, std::memory_order_relaxed);
  line.queued.store(queued, std::memory_order_relaxed);
  line.in_flight.store(in_flight_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  line.parked.store(parked_.size(), std::memory_order_relaxed);
}

}  // namespace kvshm::tier
