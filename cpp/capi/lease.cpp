#include <errno.h>

#include <memory>
#include <new>
#include <vector>

#include "blocks/counts.hpp"
#include "blocks/lease_ops.hpp"
#include "blocks/quota.hpp"
#include "blocks/registration.hpp"
#include "capi/call.hpp"
#include "capi/offers.hpp"

using namespace kvshm;

namespace {

using handles_t = std::vector<kvshm_handle>;

int lease_of(Arena& a, const kvshm_handle* h, std::uint32_t n, std::uint64_t tag,
             kvshm_lease* lease) {
  std::unique_ptr<std::uint32_t[]> ids(new (std::nothrow) std::uint32_t[n]);
  if (!ids) return -ENOMEM;
  for (std::uint32_t i = 0; i < n; i++) ids[i] = h[i].id;
  return make_lease(a, ids.get(), n, tag, lease);
}

// The blocks of a lease that is to be given back from `keep` on, where that is when they are offered.
handles_t to_offer(kvshm_arena* h, Arena& a, kvshm_lease lease, std::uint32_t keep) {
  handles_t out;
  if (!offers_at_release(h)) return out;
  std::uint32_t index;
  LeaseEntry* e = a.leases.borrow(lease, &index);
  if (!e) return out;
  try {
    for (std::uint32_t i = keep; i < e->count; i++)
      out.push_back({a.hot[e->ids[i]].seq.load(std::memory_order_relaxed), e->ids[i], 0});
  } catch (const std::bad_alloc&) {
    out.clear();
  }
  a.leases.give_back(e, lease);
  return out;
}

}  // namespace

extern "C" {

int kvshm_release(kvshm_arena* h, kvshm_lease lease) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  const handles_t offers = to_offer(h, *call, lease, 0);
  const int rc = misuse(*call, release_lease(*call, lease));
  offer_released(h, offers.data(), std::uint32_t(offers.size()));
  return rc;
}

int kvshm_lease_trim(kvshm_arena* h, kvshm_lease lease, uint32_t keep) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  const handles_t offers = to_offer(h, *call, lease, keep);
  const int rc = misuse(*call, trim_lease(*call, lease, keep));
  offer_released(h, offers.data(), std::uint32_t(offers.size()));
  return rc;
}

int64_t kvshm_lease_ids(kvshm_arena* h, kvshm_lease lease, uint32_t* ids, uint32_t cap) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (cap && !ids) return -EINVAL;
  std::uint32_t index;
  LeaseEntry* e = call->leases.borrow(lease, &index);
  if (!e) return misuse(*call, -EBADF);
  const std::uint32_t n = e->count;
  for (std::uint32_t i = 0; i < n && i < cap; i++) ids[i] = e->ids[i];
  call->leases.give_back(e, lease);
  return n;
}

int kvshm_lease_make(kvshm_arena* h, const kvshm_handle* b, uint32_t n, uint64_t tag,
                     kvshm_lease* lease) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (!lease || !b || !n) return fail(-EINVAL, "a lease is made of at least one hold");
  for (std::uint32_t i = 0; i < n; i++) {
    if (int rc = check_handle(*call, b[i])) return rc;
    if (!holds_ready(*call, b[i].id, b[i].seq)) return misuse(*call, -KVSHM_ENOTMINE);
  }
  return lease_of(*call, b, n, tag, lease);
}

int kvshm_pin(kvshm_arena* h, const kvshm_handle* b, uint32_t n, uint64_t tag, kvshm_lease* lease) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (!lease || !b || !n) return fail(-EINVAL, "a pin needs at least one block");
  for (std::uint32_t i = 0; i < n; i++)
    if (int rc = check_handle(*call, b[i])) return rc;
  std::uint32_t got = 0;
  int rc = 0;
  while (got < n && (rc = upgrade(*call, b[got], false)) == 0) got++;
  if (got == n && (rc = lease_of(*call, b, n, tag, lease)) == 0) return 0;
  Ticks ticks(*call, got);
  if (rc == -KVSHM_EQUOTA) over_quota(*call);  // the text is of the moment
  while (got > 0) release_hold(*call, b[--got].id, ticks);
  return rc;
}
}
