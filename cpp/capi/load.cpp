#include <errno.h>

#include <cstring>
#include <new>

#include "blocks/counts.hpp"
#include "blocks/lease_ops.hpp"
#include "blocks/registration.hpp"
#include "capi/call.hpp"
#include "tier/tier.hpp"

using namespace kvshm;

struct kvshm_load {
  kvshm_arena* arena;
  std::shared_ptr<tier::LoadState> state;
  std::uint32_t n;
  std::uint64_t tag;
};

namespace {

bool inherited(const kvshm_load* l) { return l->arena->fork_generation != fork_generation(); }

// Of what has ended, under the load's mutex.
std::uint32_t held_prefix(const tier::LoadState& s, std::uint32_t n) {
  std::uint32_t i = 0;
  while (i < n && s.ids[i] != kNone) i++;
  return i;
}

void release_from(Arena& a, tier::LoadState& s, std::uint32_t from) {
  Ticks ticks(a, std::uint32_t(s.ids.size()) - from);
  for (std::size_t i = s.ids.size(); i-- > from;) {
    if (s.ids[i] != kNone) release_hold(a, s.ids[i], ticks);
    s.ids[i] = kNone;
  }
}

}  // namespace

extern "C" {

int64_t kvshm_match_load(kvshm_arena* h, const kvshm_key* keys, uint32_t n, uint32_t flags,
                         uint64_t tag, kvshm_load** load, kvshm_handle* pending) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (!load || (n && !keys)) return fail(-EINVAL, "keys and load must be given");
  *load = nullptr;
  kvshm_handle first;
  tier::LoadSpec spec{flags, pending ? pending : &first};
  try {
    std::unique_ptr<kvshm_load> l(new kvshm_load{h, nullptr, 0, tag});
    const std::int64_t got =
        tier::match_load(*call, h->tier.load(std::memory_order_acquire), keys, n, spec, &l->state);
    if (got <= 0) return got;
    l->n = std::uint32_t(got);
    *load = l.release();
    return got;
  } catch (const std::bad_alloc&) {
    return fail(-ENOMEM, "no memory for a look-up of %u keys", n);
  }
}

int kvshm_load_wait(kvshm_load* l, uint32_t timeout_ms) {
  if (!l) return -EINVAL;
  Call call(l->arena, Dead::kAllow);
  if (call.rc()) return call.rc();
  return l->state->wait(*call, timeout_ms);
}

int kvshm_load_notify(kvshm_load* l, kvshm_load_fn fn, void* user) {
  if (!l) return -EINVAL;
  if (inherited(l)) return -KVSHM_EFORKED;
  l->state->notify(fn, user);
  return 0;
}

int64_t kvshm_load_status(kvshm_load* l, uint8_t* status, uint32_t* ids) {
  if (!l) return -EINVAL;
  if (inherited(l)) return -KVSHM_EFORKED;
  std::lock_guard<std::mutex> lock(l->state->mutex);
  for (uint32_t i = 0; i < l->n; i++) {
    if (status) status[i] = l->state->status[i];
    if (ids) ids[i] = l->state->ids[i];
  }
  return held_prefix(*l->state, l->n);
}

int64_t kvshm_load_lease(kvshm_load* l, kvshm_lease* lease) {
  if (!l || !lease) return -EINVAL;
  *lease = 0;
  Call call(l->arena);
  if (call.rc()) return call.rc();
  tier::LoadState& s = *l->state;
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.left) return -EBUSY;
  const std::uint32_t n = held_prefix(s, l->n);
  release_from(*call, s, n);
  if (!n) return 0;
  if (int rc = make_lease(*call, s.ids.data(), n, l->tag, lease)) return rc;
  for (uint32_t i = 0; i < n; i++) s.ids[i] = kNone;  // the lease's now
  return n;
}

void kvshm_load_free(kvshm_load* l) {
  if (!l || inherited(l)) return;  // a child's copy owns nothing, and its mutex may be locked
  l->state->notify(nullptr, nullptr);
  {
    // Closed or forked: all holds went with the attachment.
    Call call(l->arena, Dead::kAllow);
    std::lock_guard<std::mutex> lock(l->state->mutex);
    l->state->freed = true;
    if (!call.rc()) release_from(*call, *l->state, 0);
  }
  delete l;
}
}
