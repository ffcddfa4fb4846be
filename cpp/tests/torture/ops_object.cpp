// SPDX-License-Identifier: Apache-2.0
// Objects: of one put as a whole, or not there.
#include <cerrno>
#include <cstring>

#include "ops.hpp"
#include "payload.hpp"

namespace torture {

void do_object_put(Hand& w) {
  if (!w.shape.objects || !w.room()) return;
  const std::uint32_t which = w.rng.below(w.shape.objects);
  const block_key key = object_key(which);
  const std::uint32_t most = w.shape.blocks < 64 ? w.shape.blocks / 2 : 12;
  const std::uint64_t bytes = w.rng.between(8, most * w.shape.block_bytes);
  kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
  if (w.rng.percent(20)) o.flags = KVSHM_NO_CACHE;
  if (w.rng.percent(20)) o.flags |= KVSHM_NO_EVICT;
  kvshm_object* object = nullptr;
  const int rc = kvshm_object_create(w.a, key.data(), bytes, &o, &object);
  if (!w.expect(rc, {EEXIST, KVSHM_EPENDING, KVSHM_ENOSPACE}, "object_create")) return;
  const std::vector<std::uint8_t> whole = object_bytes(key, w.rng.next(), bytes);
  w.expect(kvshm_object_write(object, 0, whole.data(), bytes), {}, "object_write");
  if (w.rng.percent(80) && w.expect(kvshm_object_commit(object), {}, "object_commit"))
    w.tally(k_objects_put);
  kvshm_object_close(object);
}

void do_object_get(Hand& w) {
  if (!w.shape.objects) return;
  const block_key key = object_key(w.rng.below(w.shape.objects));
  kvshm_object* object = nullptr;
  if (!w.expect(kvshm_object_get(w.a, key.data(), &object), {ENOENT}, "object_get")) return;
  std::vector<std::uint8_t> bytes(kvshm_object_bytes(object));
  for (int round = 0; round < 2; round++) {  // and once more a moment later
    w.expect(kvshm_object_read(object, 0, bytes.data(), bytes.size()), {}, "object_read");
    if (!object_right(key, bytes))
      violation(w.shared, "an object of %zu bytes is not of one put", bytes.size());
  }
  w.tally(k_objects_read);
  kvshm_object_close(object);
}

}  // namespace torture
