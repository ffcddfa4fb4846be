#include "device/guard.hpp"

#include "arena/fork.hpp"
#include "capi/call.hpp"

using namespace kvshm;

extern "C" {

int kvshm_ring_guard(kvshm_arena* h, int ring_fd, uint32_t index) {
  Call call(h);
  if (call.rc()) return call.rc();
  return guard_ring(*call, ring_fd, index);
}

int kvshm_guard_fd(kvshm_arena* h) {
  Call call(h);
  if (call.rc()) return call.rc();
  ForkGuard no_fork;
  File f;
  if (int rc = open_guard(*call, &f)) return rc;
  return f.release();
}
}
