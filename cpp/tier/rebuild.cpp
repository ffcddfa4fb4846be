// After a reboot: the records of the file become slots of the image again. One process does it, by
// a post of the image; meanwhile look-ups find memory only, and other processes come and go. Killed
// in the midst, the next one begins anew and passes over what is there.
#include <errno.h>

#include <cstring>

#include "arena/lock.hpp"
#include "arena/posts.hpp"
#include "blocks/alloc.hpp"
#include "blocks/counts.hpp"
#include "blocks/registration.hpp"
#include "tier/mover.hpp"

namespace kvshm::tier {
namespace {
constexpr std::uint64_t kChunkPages = 64;
constexpr unsigned kChunks = 4;
constexpr auto kRelaxed = std::memory_order_relaxed;
}  // namespace

void Mover::look_at_rebuild() {
  TierNote& note = t_.image->sb->tier;
  if (rebuilding_ || broken_ || note.state.load(std::memory_order_acquire) == KVSHM_TIER_OK) return;
  if (take_post(*t_.image, KVSHM_POST_MOVER)) return;
  // Another process may have ended it between the two looks.
  if (note.state.load(std::memory_order_acquire) == KVSHM_TIER_OK)
    return leave_post(*t_.image, KVSHM_POST_MOVER);
  note.done.store(0, kRelaxed);
  note.kept.store(0, kRelaxed);
  note.total.store(t_.files.shape().slots, kRelaxed);
  note.state.store(KVSHM_TIER_REBUILDING, std::memory_order_release);
  rebuilding_ = true;
  rebuild_next_ = 0;
  rebuild_since_ = now_ms();
}

void Mover::read_records() {
  const std::uint64_t pages = t_.files.pages();
  const bool stopping = this->stopping();
  while (!stopping && rebuild_flying_ < kChunks && rebuild_next_ < pages) {
    const std::uint64_t n = std::min(kChunkPages, pages - rebuild_next_);
    auto op = std::make_unique<Op>();
    op->kind = Op::kRecords;
    op->bounce = std::make_unique<Bounce>(n * kPageBytes);
    if (!op->bounce->get()) return;
    const Place at = t_.files.page(rebuild_next_);
    op->file = at.file;
    op->offset = at.offset;
    op->data = op->bounce->get();
    op->bytes = n * kPageBytes;
    op->number = rebuild_next_;
    rebuild_next_ += n;
    rebuild_flying_++;
    ready_loads_.push_back(std::move(op));
  }
  if (!rebuild_flying_ && (stopping || rebuild_next_ >= pages)) {
    if (!stopping) end_rebuild();
    rebuilding_ = false;
    leave_post(*t_.image, KVSHM_POST_MOVER);
    tell();
  }
}

void Mover::adopt_records(Op& op) {
  TierNote& note = t_.image->sb->tier;
  const std::uint64_t first = op.number * kRecordsPerPage;
  const std::uint64_t n = std::min(op.bytes / kRecordBytes, t_.files.shape().slots - first);
  if (op.rc) {
    log_line(KVSHM_LOG_WARN,
             "tier of arena %s: the records of slots %llu to %llu cannot be read "
             "(%s): they are empty now",
             t_.g2.name.c_str(), (unsigned long long)first, (unsigned long long)(first + n - 1),
             std::strerror(-op.rc));
  } else {
    for (std::uint64_t i = 0; i < n; i++) {
      Record r;
      std::memcpy(&r, op.bounce->get() + i * kRecordBytes, sizeof r);
      if (sound(r, first + i)) adopt(std::uint32_t(first + i), r);
    }
  }
  note.done.fetch_add(n, kRelaxed);
}

void Mover::adopt(std::uint32_t slot, const Record& r) {
  Arena& image = *t_.image;
  if (r.codec || r.length != t_.g2.block_bytes) return;
  if (r.expires && r.expires <= std::uint32_t(time(nullptr))) return;
  FillSpec spec;
  spec.priority = r.priority < 100 ? r.priority : 50;
  if (r.parent < image.nblocks && r.parent != slot)
    spec.parent = {image.hot[r.parent].seq.load(kRelaxed), r.parent, 0};
  const Key key{r.key[0], r.key[1]};
  kvshm_handle h, out;
  if (allocate_at(image, slot, key, spec, &h)) return;  // there, or in use already
  store_record(image, slot, r);
  std::uint8_t result = KVSHM_ST_NONE;
  const int rc = register_block(image, h, key, KVSHM_REJECT, &out, &result);
  Ticks ticks(image);
  if (rc) {
    leave_fill(image, h, ticks);
    return;
  }
  if (result == KVSHM_ST_PRIMARY) {
    image.hot[slot].freq_depth.fetch_or(r.uses ? (r.uses - 1u) & 15 : 0, kRelaxed);
    image.sb->tier.kept.fetch_add(1, kRelaxed);
  }
  release_hold(image, out.id, ticks);
}

void Mover::end_rebuild() {
  TierNote& note = t_.image->sb->tier;
  note.state.store(KVSHM_TIER_OK, std::memory_order_release);
  log_line(KVSHM_LOG_INFO, "tier of arena %s: %llu of %llu slots are there, read back in %lld ms",
           t_.g2.name.c_str(), (unsigned long long)note.kept.load(kRelaxed),
           (unsigned long long)note.total.load(kRelaxed), (long long)(now_ms() - rebuild_since_));
}

// An epoch that was bumped in memory must not come back as the old one after a reboot.
void Mover::look_at_epoch(bool last) {
  const std::uint32_t now = t_.g2.sb->space_epoch.load(std::memory_order_acquire);
  if (now <= t_.files.epoch() || epoch_flying_ || broken_ || stalled_) return;
  if (last && epoch_asked_ == now) return;  // tried once, and this is the end
  epoch_asked_ = now;
  for (unsigned i = unsigned(t_.files.descriptors().size()); i-- > 0;) {
    auto op = std::make_unique<Op>();
    op->kind = Op::kSuper;
    op->bounce = std::make_unique<Bounce>(kPageBytes);
    if (!op->bounce->get()) return;  // the next tick tries again
    op->number = i;
    op->version = now;
    op->file = i;
    op->data = op->bounce->get();
    op->bytes = kPageBytes;
    t_.files.with_epoch(i, now, op->data, &op->offset);
    epoch_flying_++;
    ready_loads_.push_front(std::move(op));  // not behind the loads of a busy time
  }
}

// Written, and then on the medium.
void Mover::end_epoch(OpPtr op) {
  if (op->rc == 0 && op->kind == Op::kSuper) {
    op->kind = Op::kSync;
    op->super = true;
    op->data = nullptr;
    op->bytes = op->offset = op->issued = 0;
    op->retries = 0;
    ready_loads_.push_front(std::move(op));
    return;
  }
  epoch_flying_--;
  if (op->rc == 0) t_.files.wrote_epoch(unsigned(op->number), std::uint32_t(op->version));
}

// clear(): every page once, so that nothing comes back that was evicted.
int Mover::write_pages(std::int64_t deadline_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (pages_wanted_) {  // another thread's
    if (now_ms() >= deadline_ms) return -ETIMEDOUT;
    idle_.wait(lock, deadline_ms);
  }
  pages_wanted_ = true;
  pages_rc_ = 0;
  lock.unlock();
  kick();
  lock.lock();
  while (pages_wanted_ && !ended_) {
    if (now_ms() >= deadline_ms) return -ETIMEDOUT;
    idle_.wait(lock, deadline_ms);
  }
  return pages_wanted_ ? -KVSHM_ECLOSED : pages_rc_;
}

void Mover::wipe_pages() {
  if (wipe_next_ == kNoWipe) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!pages_wanted_ || rebuilding_) return;
    wipe_next_ = 0;
  }
  while (wipe_flying_ < 8 && wipe_next_ < t_.files.pages() && !broken_) {
    auto op = std::make_unique<Op>();
    op->kind = Op::kPage;
    op->number = wipe_next_++;
    wipe_flying_++;
    begin_page(std::move(op));
  }
  if (wipe_flying_ || (wipe_next_ < t_.files.pages() && !broken_)) return;
  if (!wipe_synced_ && !broken_) {  // what was forgotten stays so over a power cut
    auto op = std::make_unique<Op>();
    op->kind = Op::kSync;
    op->number = t_.files.descriptors().size() - 1;  // records are in the first file alone
    wipe_synced_ = true;
    wipe_flying_++;
    ready_writes_.push_front(std::move(op));
    return;
  }
  wipe_synced_ = false;
  wipe_next_ = kNoWipe;
  std::lock_guard<std::mutex> lock(mutex_);
  if (broken_) pages_rc_ = -EIO;
  pages_wanted_ = false;
  idle_.wake();
}

void Mover::wiped(int rc) {
  wipe_flying_--;
  if (!rc) return;
  std::lock_guard<std::mutex> lock(mutex_);
  pages_rc_ = rc;
}

}  // namespace kvshm::tier
