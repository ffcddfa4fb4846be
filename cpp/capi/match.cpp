#include "index/match.hpp"

#include <errno.h>

#include <algorithm>
#include <unordered_map>

#include "blocks/counts.hpp"
#include "blocks/lease_ops.hpp"
#include "blocks/quota.hpp"
#include "blocks/registration.hpp"
#include "capi/call.hpp"
#include "index/index.hpp"
#include "tier/tier.hpp"

using namespace kvshm;

namespace {

int check(const kvshm_key* keys, std::uint32_t n, const void* ids, const kvshm_lease* lease) {
  if (!lease || (n && (!keys || !ids))) return fail(-EINVAL, "keys, ids and lease must be given");
  return 0;
}

// The ids' holds become one lease; KVSHM_NONE entries are left out of it.
std::int64_t into_lease(Arena& a, const std::uint32_t* ids, std::uint32_t n, std::uint32_t hits,
                        std::uint64_t tag, kvshm_lease* lease, bool over) {
  *lease = 0;
  if (!hits) return over ? over_quota(a) : 0;
  if (int rc = make_lease(a, ids, n, tag, lease)) {
    Ticks ticks(a, hits);
    for (std::uint32_t i = n; i-- > 0;)
      if (ids[i] != kNone) release_hold(a, ids[i], ticks);
    return rc;
  }
  return hits;
}

}  // namespace

extern "C" {

int64_t kvshm_match_with(kvshm_arena* h, const kvshm_key* keys, uint32_t n, uint32_t flags,
                         uint64_t tag, uint32_t* ids, kvshm_lease* lease, kvshm_handle* pending) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check(keys, n, ids, lease)) return rc;
  kvshm_handle first;
  bool over;
  const std::uint32_t hits = match_prefix(*call, keys, n, !(flags & KVSHM_NO_TOUCH), ids,
                                          pending ? pending : &first, &over);
  return into_lease(*call, ids, hits, hits, tag, lease, over);
}

int64_t kvshm_match(kvshm_arena* h, const kvshm_key* keys, uint32_t n, uint32_t* ids,
                    kvshm_lease* lease) {
  return kvshm_match_with(h, keys, n, 0, 0, ids, lease, nullptr);
}

int64_t kvshm_match_scattered(kvshm_arena* h, const kvshm_key* keys, uint32_t n, uint32_t flags,
                              uint64_t tag, uint32_t* ids, kvshm_lease* lease) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check(keys, n, ids, lease)) return rc;
  bool over;
  const std::uint32_t hits = match_each(*call, keys, n, !(flags & KVSHM_NO_TOUCH), ids, &over);
  return into_lease(*call, ids, n, hits, tag, lease, over);
}

int64_t kvshm_scan(kvshm_arena* h, const kvshm_key* keys, uint32_t n, uint32_t flags, uint64_t tag,
                   uint32_t* ids, uint32_t* which, kvshm_lease* lease) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check(keys, n, ids, lease)) return rc;
  Arena& a = *call;
  bool over;
  match_each(a, keys, n, !(flags & KVSHM_NO_TOUCH), ids, &over);
  std::uint32_t distinct = 0, i = 0;
  Ticks ticks(a, n);
  try {
    std::unordered_map<std::uint32_t, std::uint32_t> seen;
    seen.reserve(n);
    for (; i < n; i++) {
      if (ids[i] == kNone) continue;
      const std::uint32_t id = ids[i];
      if (!seen.emplace(id, distinct).second) {
        release_hold(a, id, ticks);  // held once for all occurrences
        continue;
      }
      if (which) which[distinct] = i;
      ids[distinct++] = id;
    }
  } catch (const std::bad_alloc&) {
    // Held: the distinct ones, moved to the front, and those that were not yet looked at.
    for (std::uint32_t j = n; j-- > 0;)
      if ((j < distinct || j >= i) && ids[j] != kNone) release_hold(a, ids[j], ticks);
    return -ENOMEM;
  }
  return into_lease(a, ids, distinct, distinct, tag, lease, over);
}

int64_t kvshm_presence(kvshm_arena* h, const kvshm_key* keys, uint32_t n, uint8_t* mask) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (n && (!keys || !mask)) return -EINVAL;
  Arena& a = *call;
  tier::Tier* t = h->tier.load(std::memory_order_acquire);
  if (t && !t->serving()) t = nullptr;
  int64_t present = 0;
  for (std::uint32_t i = 0; i < n && i < 16; i++) prefetch_buckets(a, Key::load(keys[i]));
  for (std::uint32_t i = 0; i < n; i++) {
    if (i + 16 < n) prefetch_buckets(a, Key::load(keys[i + 16]));
    const unsigned p = peek(a, Key::load(keys[i]));
    mask[i] = std::uint8_t((p & 1 ? KVSHM_IN_G2 : 0) | (p & 2 ? KVSHM_IS_FILLING : 0));
    if (t && (peek(*t->image, Key::load(keys[i])) & 1)) mask[i] |= KVSHM_IN_G3;
    present += mask[i] != 0;
  }
  return present;
}
}
