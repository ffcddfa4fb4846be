#include "capi/options.hpp"

#include <errno.h>

#include <cstddef>

#include "blocks/deadlines.hpp"
#include "blocks/refusal.hpp"

namespace kvshm {

int read_fill_options(Arena& a, std::uint32_t n, const kvshm_fill_options* o, FillSpec* s) {
  forget_refusal();
  if (n > a.nblocks)
    return refuse(a,
                  fail(-KVSHM_ETOOLARGE, "%u blocks wanted, arena %s has %u: it never fits", n,
                       a.name.c_str(), a.nblocks),
                  KVSHM_REFUSED_SIZE);
  if (!o) return 0;
  constexpr std::size_t kFirst = offsetof(kvshm_fill_options, ttl_ms);  // of 0.1, before it grew
  if (o->size < kFirst) return fail(-EINVAL, "kvshm_fill_options.size: use the INIT macro");
  if (o->size >= sizeof *o) {
    s->ttl_ms = o->ttl_ms;
    s->priority_ms = o->priority_ms;
  }
  if (s->ttl_ms) s->expires = deadline_in(s->ttl_ms);
  if (s->priority_ms) s->calms = deadline_in(s->priority_ms);
  s->flags = o->flags;
  s->parts = o->parts ? o->parts : 1;
  s->priority = o->priority ? o->priority : 50;
  s->tenant = o->tenant;
  s->timeout_ms = o->timeout_ms;
  s->parent = o->parent;
  if (s->parts > KVSHM_MAX_PARTS)
    return fail(-EINVAL, "%u parts wanted, at most %u", s->parts, KVSHM_MAX_PARTS);
  if (s->priority > 100) return fail(-EINVAL, "priority %u: wanted 0-100", s->priority);
  if (s->tenant >= kTenants)
    return fail(-EINVAL, "tenant %u: wanted 0-%u", s->tenant, kTenants - 1);
  if (s->flags & ~std::uint32_t(KVSHM_QUIET | KVSHM_NO_CACHE | KVSHM_UNCHAINED | KVSHM_NO_EVICT))
    return fail(-EINVAL, "unknown flags %#x", s->flags);
  if (s->parent.seq) {
    if (!a.in_range(s->parent.id)) return fail(-EINVAL, "parent id %u out of range", s->parent.id);
    if (a.hot[s->parent.id].seq.load(std::memory_order_relaxed) != s->parent.seq)
      s->parent = {0, KVSHM_NONE, 0};  // gone: a lost link is a hint lost
  }
  return 0;
}

}  // namespace kvshm
