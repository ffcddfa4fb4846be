// SPDX-License-Identifier: Apache-2.0
// What a thread of a worker holds, and whether that is still what it was.
#include <cerrno>

#include "death.hpp"
#include "ops.hpp"
#include "payload.hpp"
#include "worker.hpp"

namespace torture {

Hand::Hand(Shared& s, Record& r, const Shape& sh, const std::string& n, std::uint64_t seed,
           unsigned t)
    : shared(s), record(r), shape(sh), name(n), rng(seed), thread(t) {}

void Hand::forget() {
  held.clear();
  leases.clear();
  fills.clear();
}

bool Hand::check(const kvshm_handle& h, const block_key& key, const char* when) {
  tally(k_hits_checked);
  kvshm_block_info b = KVSHM_BLOCK_INFO_INIT;
  kvshm_get_block(a, h.id, &b);
  const std::uint64_t bit = std::uint64_t{1} << record.slot.load(std::memory_order_relaxed);
  const bool ready = b.state == KVSHM_READY || b.state == KVSHM_READY_LAST;
  if (!ready || b.seq != h.seq || !(b.holders & bit) || !b.own_holds) {
    violation(shared,
              "%s: block %u, life %llu, is held, but is in state %u, life %llu, holders %llx, own "
              "%u (mine: %llx; in %s)",
              when, h.id, (unsigned long long)h.seq, b.state, (unsigned long long)b.seq,
              (unsigned long long)b.holders, b.own_holds, (unsigned long long)bit,
              op_name(record.tracks[thread].op.load()));
    return false;
  }
  const std::int64_t at = wrong_word(kvshm_block_data(a, h.id), shape.block_bytes, key, h.seq);
  if (at < 0) return true;
  tally(k_hits_wrong);
  violation(shared, "%s: block %u, life %llu: word %lld is not that of its key", when, h.id,
            (unsigned long long)h.seq, (long long)at);
  return false;
}

void Hand::check_everything(const char* when) {
  for (const Held& h : held) check(h.h, h.key, when);
  for (const Leased& l : leases)
    for (const Held& h : l.blocks) check(h.h, h.key, when);
}

bool Hand::expect(std::int64_t rc, std::initializer_list<int> also, const char* call) {
  if (rc >= 0) return true;
  for (const int code : also)
    if (rc == -code) return false;
  violation(shared, "%s: %s (%s)", call, kvshm_strerror(int(rc)), kvshm_last_error());
  return false;
}

void Hand::note(std::uint32_t what, const kvshm_handle& h, std::int64_t rc) {
  Track& t = record.tracks[thread];
  const std::uint32_t n = t.lines.fetch_add(1, std::memory_order_relaxed);
  t.log[n % kLogLines] = {h.seq, h.id, what, std::int32_t(rc),
                          t.op.load(std::memory_order_relaxed)};
}

void Hand::transfer(const Fill& f, std::uint32_t part) {
  auto& t = record.transfers[thread];
  t.store(transfer_of(f.h.id, part, f.parts), std::memory_order_relaxed);
  write_slice(kvshm_block_data(a, f.h.id), shape.block_bytes, f.key, f.h.seq, part, f.parts);
  const std::uint64_t busy = shared.devices.load(std::memory_order_relaxed);
  if (busy >> record.slot.load(std::memory_order_relaxed) & 1 && rng.percent(25))
    Death::now(Way::kAlarm, kNoStep);
  t.store(0, std::memory_order_relaxed);
}

// Half the arena for each, so that together they want more than there is.
std::uint32_t Hand::room() const {
  std::size_t n = held.size() + fills.size();
  for (const Leased& l : leases) n += l.blocks.size();
  const std::size_t share = shape.blocks < 64 ? (shape.blocks + 1) / 2 : 48;
  return n < share ? std::uint32_t(share - n) : 0;
}

// A few keys are wanted by all, the others by chance.
std::uint32_t Hand::some_chain() {
  if (record.plan.hot) return 0;
  return rng.percent(50) ? rng.below(shape.chains < 4 ? 1 : 3) : rng.below(shape.chains);
}

std::uint32_t Hand::some_place() { return rng.below(record.plan.hot ? 2 : shape.length); }

block_key Hand::some_key() {
  const std::uint32_t c = some_chain();
  return chain_key(c, some_place());
}

void Hand::remember(std::vector<Seen>& where, const kvshm_handle& h, const block_key& key) {
  if (!h.seq || h.id == KVSHM_NONE) return;
  if (where.size() < 16)
    where.push_back({h, key});
  else
    where[rng.below(16)] = {h, key};
}

Held Hand::take(std::vector<Held>& from) {
  const std::uint32_t i = rng.below(std::uint32_t(from.size()));
  const Held h = from[i];
  from[i] = from.back();
  from.pop_back();
  return h;
}

}  // namespace torture
