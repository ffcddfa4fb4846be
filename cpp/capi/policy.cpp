#include <errno.h>

#include <cstring>
#include <thread>

#include "arena/lock.hpp"
#include "arena/posts.hpp"
#include "capi/call.hpp"
#include "evict/choose.hpp"
#include "evict/controller.hpp"
#include "evict/evict.hpp"
#include "tier/tier.hpp"

using namespace kvshm;

namespace {
constexpr std::int64_t kWriterMs = 20;  // for another process to write a table

int has_thread(kvshm_arena* h, std::uint32_t post) {
  const tier::Tier* t = h->tier.load(std::memory_order_acquire);
  if (post != KVSHM_POST_MOVER || !t || t->options.mover == KVSHM_OFF) return 0;
  return fail(-EBUSY, "the tier of this handle of arena %s stands for that post",
              h->impl->name.c_str());
}
}  // namespace

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
  for (const std::int64_t deadline = now_ms() + kWriterMs;; std::this_thread::yield()) {
    const std::uint64_t before = t.version.load(std::memory_order_acquire);
    const bool late = now_ms() >= deadline;
    if (before & 1 && !late) continue;
    p = read_policy(*call);
    for (int i = 0; i < 4; i++) {
      const std::uint64_t w = t.name[i].load(std::memory_order_acquire);
      std::memcpy(out->name + 8 * i, &w, 8);
    }
    out->version = before / 2;
    if (late || t.version.load(std::memory_order_relaxed) == before) break;
  }
  out->name[31] = 0;
  out->sample = p.sample;
  out->age_period = p.age_period;
  out->flags = p.flags;
  out->young = p.young_share;
  out->small = p.small;
  for (int i = 0; i < 16; i++) out->shift[i] = p.shift[i], out->rank[i] = p.rank[i];
  return 0;
}

int kvshm_set_policy(kvshm_arena* h, const kvshm_policy* in) {
  if (int rc = check_size(in)) return rc;
  if (in->sample < 1 || in->sample > 64)
    return fail(-EINVAL, "policy: sample %u, wanted 1-64", in->sample);
  for (std::uint32_t s : in->shift)
    if (s > 31) return fail(-EINVAL, "policy: shift %u, wanted 0-31", s);
  for (std::uint32_t r : in->rank)
    if (r > 100) return fail(-EINVAL, "policy: rank %u, wanted 0-100", r);
  if (in->flags & ~std::uint32_t{KVSHM_POLICY_ALL})
    return fail(-EINVAL, "policy: flags %#x, wanted some of %#x", in->flags, KVSHM_POLICY_ALL);
  if (in->young > 1023 || in->small > 1024)
    return fail(-EINVAL, "policy: young %u, small %u: wanted 0-1023, 0-1024 (1/1024 of the blocks)",
                in->young, in->small);
  Call call(h);
  if (call.rc()) return call.rc();
  write_policy(*call, *in);
  return 0;
}

int64_t kvshm_step_policy(kvshm_arena* h) {
  Call call(h);
  if (call.rc()) return call.rc();
  return step_controller(*call);
}

void kvshm_set_controller(kvshm_controller_fn fn, void* user) { set_controller(fn, user); }

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
  if (int rc = has_thread(h, post)) return rc;
  return take_post(*call, post);
}

int kvshm_resign(kvshm_arena* h, uint32_t post) {
  if (post >= kPosts) return fail(-EINVAL, "post %u: expected 0 to %u", post, kPosts - 1);
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (int rc = has_thread(h, post)) return rc;
  leave_post(*call, post);
  return 0;
}
}
