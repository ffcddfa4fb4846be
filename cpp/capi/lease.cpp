#include <errno.h>

#include <memory>
#include <new>

#include "blocks/counts.hpp"
#include "blocks/lease_ops.hpp"
#include "blocks/quota.hpp"
#include "blocks/registration.hpp"
#include "capi/call.hpp"

using namespace kvshm;

namespace {

int lease_of(Arena& a, const kvshm_handle* h, std::uint32_t n, std::uint64_t tag,
             kvshm_lease* lease) {
  std::unique_ptr<std::uint32_t[]> ids(new (std::nothrow) std::uint32_t[n]);
  if (!ids) return -ENOMEM;
  for (std::uint32_t i = 0; i < n; i++) ids[i] = h[i].id;
  return make_lease(a, ids.get(), n, tag, lease);
}

}  // namespace

extern "C" {

int kvshm_release(kvshm_arena* h, kvshm_lease lease) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  return misuse(*call, release_lease(*call, lease));
}

int kvshm_lease_trim(kvshm_arena* h, kvshm_lease lease, uint32_t keep) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  return misuse(*call, trim_lease(*call, lease, keep));
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
