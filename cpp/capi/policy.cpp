#include <errno.h>

#include <cstring>
#include <thread>

#include "arena/lock.hpp"
#include "arena/posts.hpp"
#include "capi/call.hpp"
#include "evict/evict.hpp"

using namespace kvshm;

namespace {
constexpr std::int64_t kWriterMs = 20;  // for another process to write a table
}

extern "C" {

const kvshm_block_record* kvshm_block_table(kvshm_arena* h, uint64_t* n) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return nullptr;
  if (n) *n = call->nblocks;
  return reinterpret_cast<const kvshm_block_record*>(call->hot);
}

int kvshm_get_policy(kvshm_arena* h, kvshm_policy* out) {
  if (int rc = check_size(out)) return rc;
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  const PolicyTable& t = call->sb->policy;
  Policy p;
  // Name and parameters of one version; a writer that died half-way leaves a mixture. A live one is
  // waited for: by the clock, since a turn takes as long as the machine is busy.
  for (const std::int64_t deadline = now_ms() + kWriterMs;;) {
    const std::uint64_t before = t.version.load(std::memory_order_acquire);
    p = read_policy(*call);
    for (int i = 0; i < 4; i++) {
      const std::uint64_t w = t.name[i].load(std::memory_order_acquire);
      std::memcpy(out->name + 8 * i, &w, 8);
    }
    out->version = before / 2;
    if (!(before & 1) && t.version.load(std::memory_order_relaxed) == before) break;
    if (now_ms() >= deadline) break;
    std::this_thread::yield();
  }
  out->name[31] = 0;
  out->sample = p.sample;
  out->second_chance = p.second_chance;
  out->age_period = p.age_period;
  for (int i = 0; i < 16; i++) out->shift[i] = p.shift[i];
  out->zero = 0;
  return 0;
}

int kvshm_set_policy(kvshm_arena* h, const kvshm_policy* in) {
  if (int rc = check_size(in)) return rc;
  if (in->sample < 1 || in->sample > 64)
    return fail(-EINVAL, "policy: sample %u, wanted 1-64", in->sample);
  for (std::uint32_t s : in->shift)
    if (s > 31) return fail(-EINVAL, "policy: shift %u, wanted 0-31", s);
  Call call(h);
  if (call.rc()) return call.rc();
  PolicyTable& t = call->sb->policy;
  // Odd while written: the next writer waits a moment for this one. If it died there, or takes that
  // long, it is overtaken; the worst is a mixture of two tables, a poorer choice of victims.
  std::uint64_t v = t.version.load(std::memory_order_acquire);
  for (const std::int64_t deadline = now_ms() + kWriterMs; (v & 1) && now_ms() < deadline;) {
    std::this_thread::yield();
    v = t.version.load(std::memory_order_acquire);
  }
  std::uint64_t odd;
  KVSHM_STEP("policy.odd");
  do {
    odd = (v | 1) + (v & 1 ? 2 : 0);
  } while (!t.version.compare_exchange_weak(v, odd, std::memory_order_seq_cst));
  constexpr auto release = std::memory_order_release;
  char name[32] = {};
  std::memcpy(name, in->name, strnlen(in->name, 31));
  for (int i = 0; i < 4; i++) {
    std::uint64_t w;
    std::memcpy(&w, name + 8 * i, 8);
    t.name[i].store(w, release);
  }
  KVSHM_STEP("policy.half");
  t.sample.store(in->sample, release);
  t.second_chance.store(in->second_chance ? 1 : 0, release);
  t.age_period.store(in->age_period, release);
  for (int i = 0; i < 16; i++) t.shift[i].store(in->shift[i], release);
  KVSHM_STEP("policy.even");
  std::uint64_t expected = odd;
  t.version.compare_exchange_strong(expected, odd + 1, std::memory_order_seq_cst);
  return 0;
}

int64_t kvshm_mark_victims(kvshm_arena* h, const kvshm_handle* b, uint32_t n) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (n && !b) return -EINVAL;
  return push_marks(*call, b, n);
}

int64_t kvshm_marks_left(kvshm_arena* h) {
  Call call(h);
  if (call.rc()) return call.rc();
  return int64_t(marks_left(*call));
}

int kvshm_elect(kvshm_arena* h, uint32_t post) {
  if (post >= kPosts) return fail(-EINVAL, "post %u: expected 0 to %u", post, kPosts - 1);
  Call call(h);
  if (call.rc()) return call.rc();
  return take_post(*call, post);
}

int kvshm_resign(kvshm_arena* h, uint32_t post) {
  if (post >= kPosts) return fail(-EINVAL, "post %u: expected 0 to %u", post, kPosts - 1);
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  leave_post(*call, post);
  return 0;
}
}
