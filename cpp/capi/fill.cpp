#include <errno.h>

#include "blocks/alloc.hpp"
#include "blocks/counts.hpp"
#include "blocks/quota.hpp"
#include "blocks/registration.hpp"
#include "capi/call.hpp"
#include "capi/offers.hpp"
#include "capi/options.hpp"

using namespace kvshm;

namespace {

int check_keys(const kvshm_key* keys, std::uint32_t n) {
  for (std::uint32_t i = 0; keys && i < n; i++)
    if (Key::load(keys[i]).none()) return fail(-EINVAL, "key %u is all zero: no key", i);
  return 0;
}

}  // namespace

extern "C" {

int kvshm_allocate(kvshm_arena* h, uint32_t n, const kvshm_key* keys,
                   const kvshm_fill_options* opts, kvshm_handle* out, uint8_t* status,
                   kvshm_evicted* evicted) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (n && !out) return -EINVAL;
  if (evicted && (evicted->size < sizeof *evicted || (evicted->cap && !evicted->keys)))
    return -EINVAL;
  FillSpec spec;
  if (int rc = read_fill_options(*call, n, opts, &spec)) return rc;
  if (int rc = check_keys(keys, n)) return rc;
  return allocate(*call, n, keys, spec, out, status, evicted);
}

int kvshm_fill_join(kvshm_arena* h, kvshm_handle b) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check_handle(*call, b)) return rc;
  const int rc = join_fill(*call, b.id, b.seq);
  return rc == -KVSHM_EQUOTA ? over_quota(*call) : rc;
}

int kvshm_fill_begin(kvshm_arena* h, kvshm_handle b, uint32_t part) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check_handle(*call, b)) return rc;
  return misuse(*call, begin_part(*call, b, part));
}

int kvshm_fill_arrive(kvshm_arena* h, kvshm_handle b, uint32_t part) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check_handle(*call, b)) return rc;
  return misuse(*call, arrive_part(*call, b, part));
}

int kvshm_publish(kvshm_arena* h, kvshm_handle b) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check_handle(*call, b)) return rc;
  const int rc = misuse(*call, publish(*call, b));
  if (!rc) offer_to_tier(h, &b, 1);
  return rc;
}

int64_t kvshm_register(kvshm_arena* h, const kvshm_handle* b, uint32_t n, const kvshm_key* keys,
                       int policy, kvshm_handle* out, uint8_t* results) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (n && !b) return -EINVAL;
  if (policy != KVSHM_ALLOW && policy != KVSHM_REJECT)
    return fail(-EINVAL, "policy %d: wanted KVSHM_ALLOW or KVSHM_REJECT", policy);
  if (int rc = check_keys(keys, n)) return rc;
  Arena& a = *call;
  kvshm_handle before = {0, KVSHM_NONE, 0}, held = before;  // the last block, and what it became
  for (uint32_t i = 0; i < n; i++) {
    const kvshm_handle mine = b[i];
    int rc = check_handle(a, mine);
    if (rc) return i ? int64_t(i) : rc;
    Hot& hot = a.hot[mine.id];
    const Key own = hot.load_key();
    const Key key = keys ? Key::load(keys[i]) : own;
    if (key.none()) rc = fail(-EINVAL, "block %u has no key: give it to allocate or here", i);
    const bool told = hot.flags.load(std::memory_order_relaxed) & kAnnounced;
    if (!rc && told && !(key == own))
      rc = fail(-EINVAL, "block %u was announced under another key", i);
    if (rc) return i ? int64_t(i) : rc;
    // The parent may have become another block: the present one instead of mine.
    if (i && hot.parent.load(std::memory_order_relaxed) == before.id)
      hot.parent.store(held.id, std::memory_order_relaxed);
    kvshm_handle now = mine;
    uint8_t result = KVSHM_ST_NONE;
    rc = misuse(a, register_block(a, mine, key, policy, &now, &result));
    if (rc) return i ? int64_t(i) : rc;
    if (result == KVSHM_ST_PRIMARY) offer_to_tier(h, &now, 1);
    before = mine;
    held = now;
    if (result == KVSHM_ST_DUPLICATE) {  // children belong below the primary
      const std::uint32_t p = a.cold[now.id].primary.load(std::memory_order_relaxed);
      if (a.in_range(p)) held.id = p;
    }
    if (out) out[i] = now;
    if (results) results[i] = result;
  }
  return n;
}

int kvshm_abort(kvshm_arena* h, const kvshm_handle* b, uint32_t n) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (n && !b) return -EINVAL;
  int first = 0;
  Ticks ticks(*call, n);
  for (uint32_t i = n; i-- > 0;) {
    int rc = check_handle(*call, b[i]);
    if (!rc) rc = leave_fill(*call, b[i], ticks);
    if (rc) first = misuse(*call, rc);
  }
  offer_released(h, b, n);  // what was published before it was left
  return first;
}
}
