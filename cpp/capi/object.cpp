#include <errno.h>

#include <new>

#include "blocks/objects.hpp"
#include "blocks/quota.hpp"
#include "capi/call.hpp"
#include "capi/options.hpp"
#include "device/copy.hpp"

using namespace kvshm;

struct kvshm_object {
  kvshm_arena* arena;
  Object object;
};

namespace {

// Runs f(kvshm_object*) on a new handle and hands it out if that says 0.
template <class F>
int make(Arena& a, kvshm_arena* h, kvshm_object** out, F f) {
  try {
    auto o = std::make_unique<kvshm_object>();
    o->arena = h;
    const int rc = f(o->object);
    if (rc == 0) *out = o.release();
    if (rc == -KVSHM_EQUOTA) over_quota(a);
    return rc;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

int check(const kvshm_object* o, std::uint64_t offset, const void* p, std::uint64_t n) {
  if (!o || (n && !p)) return -EINVAL;
  if (offset > o->object.bytes || n > o->object.bytes - offset)
    return fail(-ERANGE, "bytes %llu + %llu reach beyond the object of %llu",
                (unsigned long long)offset, (unsigned long long)n,
                (unsigned long long)o->object.bytes);
  return 0;
}

}  // namespace

extern "C" {

int kvshm_object_create(kvshm_arena* h, const uint8_t key[16], uint64_t bytes,
                        const kvshm_fill_options* opts, kvshm_object** out) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (!key || !out || !bytes || Key::load(key).none())
    return fail(-EINVAL, "an object needs a key that is not all zero, and at least one byte");
  *out = nullptr;
  FillSpec spec;
  if (int rc = read_fill_options(*call, 0, opts, &spec)) return rc;
  spec.parts = 1;
  return make(*call, h, out,
              [&](Object& o) { return create_object(*call, Key::load(key), bytes, spec, &o); });
}

int kvshm_object_commit(kvshm_object* o) {
  if (!o) return -EINVAL;
  Call call(o->arena);
  if (call.rc()) return call.rc();
  return misuse(*call, commit_object(*call, o->object));
}

int kvshm_object_get(kvshm_arena* h, const uint8_t key[16], kvshm_object** out) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (!key || !out || Key::load(key).none()) return -EINVAL;
  *out = nullptr;
  return make(*call, h, out, [&](Object& o) { return get_object(*call, Key::load(key), &o); });
}

uint64_t kvshm_object_bytes(const kvshm_object* o) { return o ? o->object.bytes : 0; }

void* kvshm_object_data(const kvshm_object* o) {
  kvshm_piece p;
  return kvshm_object_pieces(o, &p, 1) == 1 ? p.data : nullptr;
}

int64_t kvshm_object_pieces(const kvshm_object* o, kvshm_piece* pieces, size_t cap) {
  if (!o || (cap && !pieces)) return -EINVAL;
  Call call(o->arena, Dead::kAllow);
  if (call.rc()) return call.rc();
  std::size_t n = 0;
  each_piece(*call, o->object, 0, o->object.bytes, [&](std::byte* p, std::uint64_t bytes) {
    if (n < cap) pieces[n] = {p, bytes};
    n++;
  });
  return int64_t(n);
}

int kvshm_object_write(kvshm_object* o, uint64_t offset, const void* src, uint64_t n) {
  if (int rc = check(o, offset, src, n)) return rc;
  Call call(o->arena);
  if (call.rc()) return call.rc();
  if (o->object.committed) return misuse(*call, -KVSHM_ESTATE);
  const char* from = static_cast<const char*>(src);
  each_piece(*call, o->object, offset, n, [&](std::byte* p, std::uint64_t bytes) {
    stream_copy(p, from, bytes);
    from += bytes;
  });
  call->count(kStat_copy_in_bytes_total, n);
  return 0;
}

int kvshm_object_read(const kvshm_object* o, uint64_t offset, void* dst, uint64_t n) {
  if (int rc = check(o, offset, dst, n)) return rc;
  Call call(o->arena, Dead::kAllow);
  if (call.rc()) return call.rc();
  char* to = static_cast<char*>(dst);
  each_piece(*call, o->object, offset, n, [&](std::byte* p, std::uint64_t bytes) {
    stream_copy(to, p, bytes);
    to += bytes;
  });
  call->count(kStat_copy_out_bytes_total, n);
  return 0;
}

void kvshm_object_close(kvshm_object* o) {
  if (!o) return;
  {
    Call call(o->arena, Dead::kAllow);
    if (call.rc() == 0) drop_object(*call, o->object);
  }
  delete o;
}
}
