#include "tier/tier.hpp"

#include <errno.h>

#include <cstdio>
#include <cstring>

#include "arena/attach.hpp"
#include "arena/lock.hpp"
#include "blocks/sweep.hpp"
#include "device/guard.hpp"
#include "tier/gds.hpp"
#include "tier/mover.hpp"

namespace kvshm::tier {
namespace {
constexpr std::int64_t kOwnMs = 3000;
// The file is about to be adopted: an image that is not new was of another one.
int forget_other_file(Arena& image, const char* name) {
  TierNote& note = image.sb->tier;
  if (note.state.load(std::memory_order_acquire) == KVSHM_TIER_NONE) return 0;
  if (!alone(image))
    return fail(-KVSHM_EINUSE,
                "the tier file was replaced while processes of arena %s use the old one: end them "
                "first",
                name);
  evict_all(image);  // first: who dies between the two leaves it to the next one
  note.state.store(KVSHM_TIER_NONE, std::memory_order_release);
  return 0;
}

}  // namespace

Tier::Tier(Arena& a) : g2(a) {}
Tier::~Tier() {
  mover.reset();
  if (image) take_down(*image);
}

int Tier::open(Arena& a, const kvshm_tier_options& o, std::unique_ptr<Tier>* out) {
  if (!a.block_bytes) return fail(-EINVAL, "arena %s has blocks without data", a.name.c_str());
  if (a.block_bytes > 0xffffffffu) return fail(-EINVAL, "blocks of 4 GiB or more have no tier");
  auto t = std::make_unique<Tier>(a);
  const Options usual;
  t->options = {o.engine,
                o.sync,
                o.write,
                o.admit,
                o.queue ? o.queue : usual.queue,
                o.deadline_ms ? o.deadline_ms : usual.deadline_ms,
                o.min_speed,
                o.gather ? o.gather : usual.gather,
                o.age_ms ? o.age_ms : usual.age_ms,
                o.low ? o.low : usual.low,
                o.mover,
                o.stores ? o.stores : usual.stores,
                o.min_prefix,
                o.min_priority};
  if (int rc = t->files.open(o, a.block_bytes, a.path.c_str())) return rc;
  if (int rc = open_image(a, t->files.shape().slots, &t->image)) return rc;
  Arena& image = *t->image;
  TierNote& note = image.sb->tier;
  const Files::Owner owner = {image.sb->uuid,
                              a.sb->fingerprint,
                              a.name.c_str(),
                              a.sb->identity,
                              a.sb->space_epoch.load(std::memory_order_acquire),
                              [&] { return forget_other_file(image, a.name.c_str()); }};
  if (int rc = t->files.own(owner, now_ms() + kOwnMs)) return rc;
  if (t->files.shape().slots != image.nblocks)
    return fail(-KVSHM_EGEOMETRY,
                "tier file %s has %llu slots, its image %u: end all processes of "
                "arena %s first",
                t->files.path().c_str(), (unsigned long long)t->files.shape().slots, image.nblocks,
                a.name.c_str());
  // What was flushed before a reboot stays so.
  auto& epoch = a.sb->space_epoch;
  std::uint32_t now = epoch.load(std::memory_order_acquire);
  while (now < t->files.epoch() &&
         !epoch.compare_exchange_weak(now, t->files.epoch(), std::memory_order_acq_rel)) {
  }
  if (note.state.load(std::memory_order_acquire) != KVSHM_TIER_OK)
    std::snprintf(note.path, sizeof note.path, "%s", t->files.path().c_str());
  t->mover = std::make_unique<Mover>(*t);
  if (int rc = t->mover->start()) {
    // A thread that hangs in its first transfer keeps what it works on: closing waits for it.
    if (!t->mover->stop(now_ms() + 1000)) *out = std::move(t);
    return rc;
  }
  *out = std::move(t);
  return 0;
}

bool Tier::stop(std::int64_t deadline_ms) {
  if (mover && !mover->stop(deadline_ms)) return false;
  while (image && !device_idle(*image)) {  // a ring that was given up
    if (now_ms() >= deadline_ms) return false;
    sleep_ms(1);
  }
  return true;
}

bool Tier::serving() const {
  const std::uint32_t s = mover->state();
  return s == KVSHM_TIER_OK || s == KVSHM_TIER_NO_SPACE || s == KVSHM_TIER_SLOW;
}

bool Tier::may_load() { return serving() && !(options.min_speed && mover->too_slow()); }

int Tier::drain(std::uint32_t timeout_ms) {
  const int rc = mover->drain(now_ms() + timeout_ms);
  if (rc == -ETIMEDOUT)
    return fail(rc, "blocks of arena %s are still queued for tier file %s after %u ms",
                g2.name.c_str(), files.path().c_str(), timeout_ms);
  return rc;
}

std::int64_t Tier::clear(std::uint32_t timeout_ms) {
  const std::int64_t deadline = now_ms() + timeout_ms;
  // What is being read back would come after us.
  while (image->sb->tier.state.load(std::memory_order_acquire) != KVSHM_TIER_OK) {
    if (now_ms() >= deadline)
      return fail(-ETIMEDOUT, "tier file %s is still being read back: nothing was cleared",
                  files.path().c_str());
    sleep_ms(5);
  }
  const std::uint64_t gone = evict_all(*image);
  if (int rc = mover->write_pages(deadline))
    return fail(rc,
                "the slots are forgotten, but tier file %s could not be written (%s): they would "
                "come back after a reboot",
                files.path().c_str(), kvshm_strerror(rc));
  kvshm_stats s{};
  count_blocks(*image, &s);
  if (s.blocks_free != s.blocks_total)
    return fail(-EBUSY, "%llu slots are being read or written, and stay",
                (unsigned long long)(s.blocks_total - s.blocks_free));
  return std::int64_t(gone);
}

void Tier::describe(kvshm_tier* out) const {
  mover->describe(out);
  for (unsigned lane = 0; lane < kFetch; lane++) out->queued += std::uint32_t(waiting(g2, lane));
  out->fetching = std::uint32_t(waiting(g2, kFetch));
  const std::uint32_t who = g2.queues->mover.slot.load(std::memory_order_relaxed);
  if (who && who <= kSlots && g2.slots[who - 1].used.load(std::memory_order_relaxed)) {
    out->mover = who - 1 == g2.slot ? 1 : 2;
    out->mover_pid = std::uint32_t(g2.slots[who - 1].pid);
  }
  const Shape& g = files.shape();
  out->direct = files.direct();
  out->files = g.files;
  out->slots = g.slots;
  out->slot_bytes = g.slot_bytes;
  out->align = files.align();
  kvshm_stats s{};
  count_blocks(*image, &s);
  out->slots_ready = s.blocks_held + s.blocks_inactive;
  const TierNote& note = image->sb->tier;
  out->rebuild_done = note.done.load(std::memory_order_relaxed);
  out->rebuild_total = note.total.load(std::memory_order_relaxed);
  std::snprintf(out->image, sizeof out->image, "%s", image->name.c_str());
  std::snprintf(out->path, sizeof out->path, "%s", files.path().c_str());
}

}  // namespace kvshm::tier
