#include <errno.h>

#include <cstring>
#include <new>

#include "arena/lock.hpp"
#include "capi/call.hpp"
#include "device/pin.hpp"

using namespace kvshm;

namespace {

int read_options(const kvshm_device_options* given, kvshm_device_options* o) {
  if (given) {
    if (given->size < sizeof *o)
      return fail(-EINVAL, "kvshm_device_options.size: use the INIT macro");
    *o = *given;
  }
  if (o->mode != KVSHM_AUTO && o->mode != KVSHM_REQUIRE)
    return fail(-EINVAL, "mode of a registration: KVSHM_AUTO or KVSHM_REQUIRE");
  if (o->drain_ms > 3600000) return fail(-EINVAL, "drain_ms: at most 3600000");
  const kvshm_device_backend* b = o->backend;
  if (b && (b->size < sizeof *b || !b->register_memory || !b->unregister_memory))
    return fail(-EINVAL,
                "a backend needs its size (use the INIT macro), register_memory and "
                "unregister_memory");
  return 0;
}

// The only calls that may be out of memory in the middle of words.
template <class F>
auto guarded(F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

}  // namespace

extern "C" {

int kvshm_register_device(kvshm_arena* h, const kvshm_device_options* opts) {
  Call call(h);
  if (call.rc()) return call.rc();
  kvshm_device_options o = KVSHM_DEVICE_OPTIONS_INIT;
  if (int rc = read_options(opts, &o)) return rc;
  if (!call->block_bytes) return fail(-EINVAL, "the arena's blocks have no data to register");
  return guarded([&] { return call->pin->acquire(o); });
}

int kvshm_wait_device(kvshm_arena* h, uint32_t timeout_ms) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  return call->pin->wait(now_ms() + timeout_ms);
}

int kvshm_unregister_device(kvshm_arena* h, uint32_t timeout_ms) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  return misuse(*call, guarded([&] { return call->pin->release(now_ms() + timeout_ms); }));
}

int kvshm_get_device(kvshm_arena* h, kvshm_device* out) {
  if (int rc = check_size(out)) return rc;
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  const std::size_t size = out->size;
  *out = {};
  out->size = size;
  call->pin->describe(out);
  return 0;
}

int64_t kvshm_device_ranges(kvshm_arena* h, kvshm_device_range* out, size_t cap) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (cap && !out) return -EINVAL;
  return guarded([&]() -> int64_t {
    const auto found = call->pin->ranges();
    if (cap && !found.empty())
      std::memcpy(out, found.data(), (found.size() < cap ? found.size() : cap) * sizeof found[0]);
    return int64_t(found.size());
  });
}
}
