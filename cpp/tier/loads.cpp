// Up: from the disk into blocks of memory.
#include <errno.h>

#include <cstring>

#include "arena/lock.hpp"
#include "blocks/alloc.hpp"
#include "blocks/counts.hpp"
#include "blocks/holds.hpp"
#include "blocks/registration.hpp"
#include "index/index.hpp"
#include "tier/mover.hpp"

namespace kvshm::tier {

void Mover::begin_load(LoadJob&& j) {
  if (!j.slot.seq)
    awaited_.push_back(std::move(j));
  else
    begin_read(std::move(j));
}

void Mover::begin_read(LoadJob&& j) {
  Arena& a = t_.g2;
  auto op = std::make_unique<Op>();
  op->kind = Op::kLoad;
  op->memory = j.memory;
  op->slot = j.slot;
  op->key = j.key;
  op->load = std::move(j.load);
  op->index = j.index;
  op->since = j.since;
  op->record = load_record(*t_.image, j.slot.id);
  const Record& r = op->record;
  if (!sound(r, j.slot.id) || !(Key{r.key[0], r.key[1]} == j.key) || r.codec ||
      r.length != a.block_bytes)
    return fail_load(*op, true);
  if (stalled_ || broken_ || stopping() || !op->load->wanted()) return fail_load(*op, false);
  if (!aim(*op)) return fail_load(*op, false);
  // Begun, so that no other member of the fill takes it for whole before it is.
  if (begin_part(a, op->memory, 0)) return fail_load(*op, false);
  ready_loads_.push_back(std::move(op));
}

void Mover::end_load(Op& op) {
  Arena& a = t_.g2;
  if (op.rc) {
    log_line(KVSHM_LOG_WARN, "tier of arena %s: read of slot %u: %s", a.name.c_str(), op.slot.id,
             op.rc == -ENODATA ? "the file ends before it" : std::strerror(-op.rc));
    return fail_load(op, op.rc == -ENODATA);
  }
  std::byte* block = a.data + std::uint64_t(op.memory.id) * a.block_bytes;
  if (op.bounce) std::memcpy(block, op.bounce->get(), a.block_bytes);
  std::uint64_t check[2];
  payload_check(block, a.block_bytes, check);
  if (!unchecked() && (check[0] != op.record.check[0] || check[1] != op.record.check[1])) {
    log_line(KVSHM_LOG_WARN,
             "tier of arena %s: slot %u does not have the bytes that were stored: a "
             "miss, and the slot is freed",
             a.name.c_str(), op.slot.id);
    return fail_load(op, true);
  }
  kvshm_handle out = op.memory;
  std::uint8_t result = KVSHM_ST_NONE;
  arrive_part(a, op.memory, 0);
  const int rc = register_block(a, op.memory, op.key, KVSHM_ALLOW, &out, &result);
  if (rc) {
    op.rc = rc;
    return fail_load(op, false);
  }
  give_back(*t_.image, op.slot.id);
  a.count(kStat_tier_loaded_total);
  if (op.load) return op.load->settle(a, op.index, KVSHM_LD_LOADED, out.id);
  Ticks ticks(a);
  release_hold(a, out.id, ticks);  // who asked has given up
}

// damaged: nobody shall try that slot again; it is closed when its last reader lets it go.
void Mover::fail_load(Op& op, bool damaged) {
  Arena& a = t_.g2;
  a.count(kStat_tier_load_failed_total);
  if (damaged) {
    a.count(kStat_tier_damaged_total);
    set_no_cache(*t_.image, op.slot, true);
  }
  give_back(*t_.image, op.slot.id);
  Ticks ticks(a);
  leave_fill(a, op.memory, ticks);
  if (op.load) op.load->settle(a, op.index, KVSHM_LD_FAILED, kNone);
}

// Another process, or thread, is filling the key: looked at every millisecond while there are any.
void Mover::look_at_awaited() {
  const std::int64_t now = now_ms();
  for (std::size_t i = 0; i < awaited_.size();) {
    LoadJob& j = awaited_[i];
    if (now - j.since <= std::int64_t(t_.options.deadline_ms) && j.load->wanted() &&
        look_again(j)) {
      i++;
      continue;
    }
    if (j.load) j.load->settle(t_.g2, j.index, KVSHM_LD_FAILED, kNone);
    awaited_[i] = std::move(awaited_.back());
    awaited_.pop_back();
  }
}

// True: go on waiting. False with load taken away: it is settled, or being read by this process.
bool Mover::look_again(LoadJob& j) {
  Arena& a = t_.g2;
  const word_t w = a.hot[j.memory.id].word.load(std::memory_order_acquire);
  const bool same = a.hot[j.memory.id].seq.load(std::memory_order_acquire) == j.memory.seq;
  if (same && ::kvshm::state(w) == kFilling &&
      !(a.hot[j.memory.id].flags.load(std::memory_order_relaxed) & kFailed))
    return true;
  const Found f = lookup(a, j.key, true);
  if (f.how == Take::kHeld) {
    j.load->settle(a, j.index, KVSHM_LD_LOADED, f.id);
    j.load.reset();
    return false;
  }
  if (f.how == Take::kPending) {
    j.memory = {f.seq, f.id, 0};
    return true;
  }
  // It was given up: read it here, once.
  const Found d = lookup(*t_.image, j.key, true);
  if (d.how != Take::kHeld) return false;
  kvshm_key k;
  j.key.store(k);
  std::uint8_t st = KVSHM_ST_NONE;
  if (allocate(a, 1, &k, FillSpec{}, &j.memory, &st, nullptr)) {
    give_back(*t_.image, d.id);
    return false;
  }
  j.slot = {t_.image->hot[d.id].seq.load(std::memory_order_relaxed), d.id, 0};
  if (st == KVSHM_ST_ANNOUNCED) {
    begin_read(std::move(j));
    j.load.reset();
    return false;
  }
  // Somebody was faster: awaited on.
  give_back(*t_.image, d.id);
  give_back(a, j.memory.id);
  j.slot = {0, kNone, 0};
  return st == KVSHM_ST_EXISTS || st == KVSHM_ST_PENDING;
}

// Who waits for a transfer that does not come back gets a miss; the transfer keeps its memory.
void Mover::give_up_late(std::int64_t now) {
  auto late = [&](Op& op) {
    if (op.kind != Op::kLoad || !op.load || now - op.since < t_.options.deadline_ms) return;
    op.load->settle(t_.g2, op.index, KVSHM_LD_FAILED, kNone);
    op.load.reset();
    t_.g2.count(kStat_tier_load_failed_total);
  };
  for (OpPtr& op : flying_) late(*op);
  for (OpPtr& op : ready_loads_) late(*op);
  for (Limbo& l : limbo_)
    for (OpPtr& op : l.ops) late(*op);
}

}  // namespace kvshm::tier
