#include "tier/gds.hpp"

#include <errno.h>

#include <new>

#include "blocks/counts.hpp"
#include "blocks/holds.hpp"
#include "capi/call.hpp"
#include "index/index.hpp"
#include "tier/tier.hpp"

using namespace kvshm;

namespace {

int check(const kvshm_gds_options& o) {
  if (o.load > KVSHM_OFF || o.store > KVSHM_OFF || o.flags & ~unsigned{KVSHM_GDS_TRUST} ||
      (o.nbuffers && !o.buffers))
    return fail(-EINVAL, "options of GPU-direct storage: load 0-2, flags KVSHM_GDS_TRUST, buffers");
  if (o.store != KVSHM_OFF)
    return fail(-KVSHM_EUNSUPPORTED,
                "stores from a device go by memory: kvshm_pages_store, and the tier writes them");
  return 0;
}

// A slot of the key, held while the drive writes into the device. -ENOENT: there is none.
int load_slot(tier::Tier& t, tier::Gds& gds, Key key, const kvshm_gds_piece* p, std::uint32_t n) {
  Arena& image = *t.image;
  const Found d = lookup(image, key, true);
  if (d.how != Take::kHeld) return -ENOENT;
  const tier::Record r = tier::load_record(image, d.id);
  const tier::Place at = t.files.slot(d.id);
  int rc = -EBADMSG;
  if (sound(r, d.id) && Key{r.key[0], r.key[1]} == key && !r.codec && r.length == t.g2.block_bytes)
    rc = gds.load({at.file, at.offset, r.length, {r.check[0], r.check[1]}}, p, n);
  if (rc == -EBADMSG) {
    t.g2.count(kStat_tier_load_failed_total);
    t.g2.count(kStat_tier_damaged_total);
    set_no_cache(image, {image.hot[d.id].seq.load(std::memory_order_relaxed), d.id, 0}, true);
    rc = -ENOENT;
  } else if (rc == 0) {
    t.g2.count(kStat_tier_hits_total);
    t.g2.count(kStat_tier_loaded_total);
  }
  give_back(image, d.id);
  return rc;
}

// Through memory, where others find it afterwards.
int load_by_host(kvshm_arena* h, Arena& a, tier::Gds& gds, const kvshm_key* key,
                 const kvshm_gds_piece* p, std::uint32_t n, std::uint32_t timeout_ms) {
  kvshm_load* load = nullptr;
  const std::int64_t found = kvshm_match_load(h, key, 1, 0, 0, &load, nullptr);
  if (found <= 0) return found ? int(found) : -ENOENT;
  int rc = kvshm_load_wait(load, timeout_ms);
  std::uint32_t id = kNone;
  if (!rc && kvshm_load_status(load, nullptr, &id) != 1) rc = -ENOENT;
  if (!rc)
    rc = gds.load_from(a.data + std::uint64_t(id) * a.block_bytes, std::uint32_t(a.block_bytes), p,
                       n, KVSHM_GDS_HOST);
  kvshm_load_free(load);
  return rc;
}

}  // namespace

extern "C" {

int kvshm_gds_open(kvshm_arena* h, const kvshm_gds_options* opts) {
  if (int rc = check_size(opts)) return rc;
  if (int rc = check(*opts)) return rc;
  Call call(h);
  if (call.rc()) return call.rc();
  tier::Tier* t = h->tier.load(std::memory_order_acquire);
  if (!t) return fail(-ENOENT, "this handle of arena %s has no tier", call->name.c_str());
  std::lock_guard<std::mutex> lock(t->gds_mutex);
  if (t->gds_owner) return fail(-EEXIST, "GPU-direct storage is open for this handle");
  try {
    tier::GdsFiles files;
    files.files = t->files.descriptors();
    files.slot_bytes = t->files.shape().slot_bytes;
    if (int rc = tier::Gds::open(files, *opts, &t->gds_owner)) return rc;
  } catch (const std::bad_alloc&) {
    return fail(-ENOMEM, "out of memory");
  }
  t->gds.store(t->gds_owner.get(), std::memory_order_release);
  return 0;
}

int kvshm_get_gds(kvshm_arena* h, kvshm_gds* out) {
  if (int rc = check_size(out)) return rc;
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  tier::Tier* t = h->tier.load(std::memory_order_acquire);
  tier::Gds* gds = t ? t->gds.load(std::memory_order_acquire) : nullptr;
  if (!gds) return fail(-ENOENT, "GPU-direct storage is not open for this handle");
  clear_sized(out);
  gds->describe(out);
  return 0;
}

int kvshm_gds_load(kvshm_arena* h, const kvshm_key* key, const kvshm_gds_piece* p, uint32_t n,
                   uint32_t timeout_ms) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (!key || !p || !n) return fail(-EINVAL, "a key and pieces must be given");
  tier::Tier* t = h->tier.load(std::memory_order_acquire);
  tier::Gds* gds = t ? t->gds.load(std::memory_order_acquire) : nullptr;
  if (!gds) return fail(-ENOENT, "GPU-direct storage is not open for this handle");
  Arena& a = *call;
  try {
    const Key k = Key::load(*key);
    const Found m = lookup(a, k, true);
    if (m.how == Take::kHeld) {
      const int rc = gds->load_from(a.data + std::uint64_t(m.id) * a.block_bytes,
                                    std::uint32_t(a.block_bytes), p, n, KVSHM_GDS_NONE);
      give_back(a, m.id);
      return rc;
    }
    if (m.how != Take::kPending && gds->loads_direct() && t->serving())
      return load_slot(*t, *gds, k, p, n);
    return load_by_host(h, a, *gds, key, p, n, timeout_ms);
  } catch (const std::bad_alloc&) {
    return fail(-ENOMEM, "out of memory");
  }
}
}
