#include "blocks/registration.hpp"

#include <errno.h>

#include "blocks/close.hpp"
#include "blocks/counts.hpp"
#include "blocks/deadlines.hpp"
#include "evict/links.hpp"
#include "evict/uses.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;

std::uint64_t arrived_bit(std::uint32_t part) { return std::uint64_t{1} << (32 + part); }
std::uint64_t begun_bit(std::uint32_t part) { return std::uint64_t{1} << part; }

// 0, so that nothing of it begins or counts as arrived: a number that no allocation wrote.
std::uint32_t parts_of(const Cold& c) {
  const std::uint32_t n = c.nparts.load(kRelaxed);
  return n <= KVSHM_MAX_PARTS ? n : 0;
}

// A one-part block needs no explicit begin and arrive.
int imply_parts(Arena& a, std::uint32_t id) {
  Cold& c = a.cold[id];
  if (c.nparts.load(kRelaxed) == 1) {
    const std::uint64_t p = c.parts.load(kRelaxed);
    if ((p & begun_bit(0)) && !(p & arrived_bit(0))) return -KVSHM_EPART;  // begun, under way
    KVSHM_STEP("register.parts");
    // M:fill.8 M:fill.11
    c.parts.fetch_or(begun_bit(0) | arrived_bit(0), std::memory_order_release);
  }
  return all_arrived(a, id) ? 0 : -KVSHM_EPART;
}

struct Verdict {
  std::uint8_t result = KVSHM_ST_PRIVATE;
  std::uint32_t primary = kNone;  // held
};

// Index entry for `id`, or whom it stands behind.
Verdict enter_index(Arena& a, std::uint32_t id, Key key, int policy) {
  for (int attempt = 0; attempt < 3; attempt++) {
    std::uint32_t other = kNone;
    switch (insert_if_absent(a, id, key, &other)) {
      case Insert::kDone:
        return {KVSHM_ST_PRIMARY, kNone};
      case Insert::kFull:
        return {};
      case Insert::kExists:
        break;
    }
    KVSHM_STEP("register.exists");
    Hot& o = a.hot[other];
    if (over(a, other)) {  // nothing to stand behind, or to be handed out
      if (evict_expired(a, other, key)) continue;
      break;
    }
    // M:index.19 M:dup.1
    switch (take_ready(a, other, false, true)) {  // beside or in place of mine
      case Take::kHeld:
        // M:index.20 M:index.21 M:index.22 M:dup.2
        if (o.load_key() == key && !(o.flags.load(kRelaxed) & kDuplicate))
          return {policy == KVSHM_REJECT ? std::uint8_t(KVSHM_ST_PRESENT)
                                         : std::uint8_t(KVSHM_ST_DUPLICATE),
                  other};
        give_back(a, other);
        break;  // another life
      case Take::kPending: {
        // still our key: a duplicate without primary, whatever the policy
        if (o.load_key() == key) {
          a.count(kStat_dup_pending_total);
          // M:index.23
          return {KVSHM_ST_DUPLICATE, kNone};
        }
        break;
      }
      case Take::kOver:
      case Take::kMiss:
        break;  // EVICTING or gone: once more, then private
    }
  }
  // M:index.24
  return {};
}

Stat counter_of(std::uint8_t result) {
  return result == KVSHM_ST_PRIMARY     ? kStat_registered_total
         : result == KVSHM_ST_DUPLICATE ? kStat_duplicates_total
                                        : kStat_private_total;
}

}  // namespace

int begin_part(Arena& a, kvshm_handle h, std::uint32_t part) {
  if (!fills(a, h.id, h.seq)) return -KVSHM_ENOTMINE;
  Cold& c = a.cold[h.id];
  if (part >= parts_of(c)) return -EINVAL;
  // Begun once a life: who dies in a slice makes the fill unpublishable.
  KVSHM_STEP("begin.before");
  // M:fill.8
  const std::uint64_t before = c.parts.fetch_or(begun_bit(part), std::memory_order_acq_rel);
  KVSHM_STEP("begin.begun");
  if (KVSHM_BROKEN(slice_without_begin)) return 0;
  return before & begun_bit(part) ? -KVSHM_EPART : 0;
}

int arrive_part(Arena& a, kvshm_handle h, std::uint32_t part) {
  if (!fills(a, h.id, h.seq)) return -KVSHM_ENOTMINE;
  Cold& c = a.cold[h.id];
  if (part >= parts_of(c)) return -EINVAL;
  if (!(c.parts.load(kRelaxed) & begun_bit(part))) return -KVSHM_EPART;
  KVSHM_STEP("arrive.before");
  // release: the slice's bytes before the bit; pairs with the acquire in all_arrived
  // M:fill.11
  c.parts.fetch_or(arrived_bit(part), std::memory_order_release);
  KVSHM_STEP("arrive.arrived");
  return 0;
}

bool all_arrived(const Arena& a, std::uint32_t id) {
  const Cold& c = a.cold[id];
  const std::uint32_t n = parts_of(c);
  const std::uint64_t want = ((std::uint64_t{1} << n) - 1) << 32;
  // M:fill.12
  return n && (c.parts.load(std::memory_order_acquire) & want) == want;
}

namespace {

// A key that comes back is worth what it was.
void begin_uses(Arena& a, std::uint32_t id, Key key) {
  const std::uint32_t flags = a.sb->policy.flags.load(kRelaxed);
  if (!(flags & KVSHM_POLICY_MEMORY)) return;
  const unsigned uses = recall(a, key);
  if (!uses) return;
  Hot& h = a.hot[id];
  const std::uint32_t epoch = a.sb->age_epoch.load(kRelaxed) & 15;
  h.freq_depth.store((h.freq_depth.load(kRelaxed) & ~0xffu) | epoch << 4 | uses, kRelaxed);
  if (flags & KVSHM_POLICY_QUEUES) h.flags.fetch_or(kMain, kRelaxed);
}

}  // namespace

int publish(Arena& a, kvshm_handle h) {
  // FILLING first, then READY: another member may publish between the two looks.
  if (!fills(a, h.id, h.seq)) {
    if (!holds_ready(a, h.id, h.seq)) return -KVSHM_ENOTMINE;
    publish_fill(a, h.id, false);  // another member was first
    return 0;
  }
  const std::uint8_t flags = a.hot[h.id].flags.load(std::memory_order_acquire);
  // M:tentative.6
  if (!(flags & kAnnounced)) return -KVSHM_ESTATE;  // its allocator registers it
  if (!all_arrived(a, h.id) && !KVSHM_BROKEN(parts_unchecked)) return -KVSHM_EPART;
  const std::uint32_t up = a.hot[h.id].parent.load(kRelaxed);
  link_child(a, h.id, up);
  begin_uses(a, h.id, a.hot[h.id].load_key());
  // FAILED: a reaper found only dead members and erased its entry before we joined.
  const Published p = publish_fill(a, h.id, flags & (kLastWanted | kFailed));
  if (p == Published::kNotMine) return -KVSHM_ENOTMINE;
  if (p != Published::kBefore) a.count(kStat_registered_total);
  return 0;
}

int register_block(Arena& a, kvshm_handle h, Key key, int policy, kvshm_handle* out,
                   std::uint8_t* result) {
  Hot& hot = a.hot[h.id];
  // Another member may have published it, also between these two looks: FILLING first.
  const bool ready = !fills(a, h.id, h.seq);
  if (ready && !holds_ready(a, h.id, h.seq)) return -KVSHM_ENOTMINE;
  std::uint8_t flags = hot.flags.load(std::memory_order_acquire);
  *out = h;
  Verdict v{KVSHM_ST_PRIMARY, kNone};
  if (ready) {
    *result = KVSHM_ST_PRIMARY;
    publish_fill(a, h.id, false);
    return 0;
  }
  if (int rc = imply_parts(a, h.id)) return rc;
  if (!(flags & kAnnounced)) {
    KVSHM_STEP("register.claim");
    // One inserter a life: two members that register at once would make two entries.
    // M:tentative.6
    if (hot.flags.fetch_or(kInserting, std::memory_order_acq_rel) & kInserting)
      return -KVSHM_ESTATE;
    KVSHM_STEP("register.key");
    // M:core.9 M:index.9 M:pending.2
    hot.store_key(key);
    KVSHM_STEP("register.keyed");
    // M:core.11
    v = enter_index(a, h.id, key, policy);
    if (v.result == KVSHM_ST_PRESENT) {
      KVSHM_STEP("register.reject");
      a.count(kStat_rejected_total);
      // M:index.22
      give_back(a, h.id);
      touch_frequency(a, a.hot[v.primary]);
      *out = {a.hot[v.primary].seq.load(kRelaxed), v.primary, 0};
      *result = v.result;
      return 0;
    }
    KVSHM_STEP("register.flags");
    // Fixed before publish: who holds the block afterwards goes by them.
    // M:dup.3 M:index.11
    if (v.result == KVSHM_ST_DUPLICATE) hot.flags.fetch_or(kDuplicate, kRelaxed);
    if (v.result == KVSHM_ST_PRIVATE) hot.flags.fetch_or(kPrivate, kRelaxed);
  }
  if (v.result == KVSHM_ST_PRIMARY) {
    link_child(a, h.id, hot.parent.load(kRelaxed));
    begin_uses(a, h.id, hot.load_key());
  }
  // FAILED: its entry was erased by a reaper before we joined.
  // M:aon.10
  const bool last = v.result != KVSHM_ST_PRIMARY || (flags & (kLastWanted | kFailed));
  const Published p = publish_fill(a, h.id, last, v.primary);
  KVSHM_STEP("register.published");
  if (v.primary != kNone && p != Published::kByMeAlone) give_back(a, v.primary);
  if (p == Published::kNotMine) return -KVSHM_ENOTMINE;
  if (p != Published::kBefore) a.count(counter_of(v.result));
  *result = v.result;
  return 0;
}

int release_hold(Arena& a, std::uint32_t id, Ticks& ticks) {
  const Hot& h = a.hot[id];
  // Fixed before publish and I hold it: flags and primary are of this life.
  const bool dup = h.flags.load(kRelaxed) & kDuplicate;
  // M:index.26 M:dup.5
  const std::uint32_t primary = dup ? a.cold[id].primary.load(kRelaxed) : kNone;
  // M:index.27 M:dup.6
  const int rc = give_back(a, id, ticks);
  if (rc || !a.in_range(primary)) return rc;
  KVSHM_STEP("drop.primary");
  // M:index.28 M:dup.7
  return give_back(a, primary, ticks);
}

int leave_fill(Arena& a, kvshm_handle h, Ticks& ticks) {
  // FILLING first: another member may publish it between the two looks.
  if (fills(a, h.id, h.seq)) return give_back(a, h.id, ticks);
  if (holds_ready(a, h.id, h.seq)) return release_hold(a, h.id, ticks);
  return -KVSHM_ENOTMINE;
}

int upgrade(Arena& a, kvshm_handle h, bool touch) {
  Hot& hot = a.hot[h.id];
  // M:dup.8
  switch (take_ready(a, h.id, touch)) {
    case Take::kMiss:
      return -ENOENT;
    case Take::kOver:
      return -KVSHM_EQUOTA;
    case Take::kPending:
      return hot.seq.load(std::memory_order_acquire) == h.seq ? -KVSHM_EPENDING : -ENOENT;
    case Take::kHeld:
      break;
  }
  KVSHM_STEP("upgrade.compare");
  // M:dup.9 M:counts.13
  if (hot.seq.load(kRelaxed) != h.seq || (expired(a, h.id) && own_count(a, h.id) == 1)) {
    give_back(a, h.id);
    return -ENOENT;
  }
  if (hot.flags.load(kRelaxed) & kDuplicate) {
    const std::uint32_t primary = a.cold[h.id].primary.load(kRelaxed);
    if (a.in_range(primary)) {
      KVSHM_STEP("upgrade.primary");
      // M:dup.10
      const Take how = take_ready(a, primary, touch);
      const bool held = how == Take::kHeld;
      if (KVSHM_BROKEN(primary_unchecked) && held) return 0;
      // M:dup.11
      if (!held || !(a.hot[primary].load_key() == hot.load_key())) {
        if (held) give_back(a, primary);
        give_back(a, h.id);
        return how == Take::kOver ? -KVSHM_EQUOTA : -ENOENT;
      }
    }
  }
  if (touch) touch_frequency(a, hot);
  return 0;
}

}  // namespace kvshm
