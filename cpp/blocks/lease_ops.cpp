#include "blocks/lease_ops.hpp"

#include <errno.h>
#include <time.h>

#include "blocks/counts.hpp"
#include "blocks/registration.hpp"

namespace kvshm {
namespace {

// The line in the slot's record: a hint, written by this process alone.
void mirror(Arena& a, std::uint32_t index, std::uint64_t tag, std::uint32_t count) {
  if (index >= kLeaseLines) return;
  LeaseLine& l = a.mine->leases[index];
  KVSHM_STEP("lease.line");
  if (count) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    l.tag.store(tag, std::memory_order_relaxed);
    l.start.store(std::uint32_t(t.tv_sec), std::memory_order_relaxed);
  }
  KVSHM_STEP("lease.count");
  l.count.store(count, std::memory_order_release);
}

void give_back_from(Arena& a, LeaseEntry* e, std::uint32_t keep) {
  Ticks ticks(a, e->count > keep ? e->count - keep : 0);
  while (e->count > keep) release_hold(a, e->ids[--e->count], ticks);  // tail first
}

}  // namespace

int make_lease(Arena& a, const std::uint32_t* ids, std::uint32_t n, std::uint64_t tag,
               kvshm_lease* out) {
  std::uint32_t index;
  LeaseEntry* e = a.leases.take(n, &index);
  if (!e) return fail(-ENOMEM, "no memory for a lease of %u blocks", n);
  for (std::uint32_t i = 0; i < n; i++)
    if (ids[i] != kNone) e->ids[e->count++] = ids[i];
  mirror(a, index, tag, e->count);
  *out = a.leases.commit(e, index);
  return 0;
}

int release_lease(Arena& a, kvshm_lease lease) {
  std::uint32_t index;
  LeaseEntry* e = a.leases.win(lease, &index);
  if (!e) return -EBADF;
  give_back_from(a, e, 0);
  mirror(a, index, 0, 0);
  a.leases.put(index);
  return 0;
}

int trim_lease(Arena& a, kvshm_lease lease, std::uint32_t keep) {
  std::uint32_t index;
  LeaseEntry* e = a.leases.borrow(lease, &index);  // nobody else releases it meanwhile
  if (!e) return -EBADF;
  give_back_from(a, e, keep);
  KVSHM_STEP("lease.trim");
  if (index < kLeaseLines) a.mine->leases[index].count.store(e->count, std::memory_order_relaxed);
  a.leases.give_back(e, lease);
  return 0;
}

}  // namespace kvshm
