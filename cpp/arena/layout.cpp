#include "arena/layout.hpp"

#include <cstring>

namespace kvshm {
namespace {

constexpr std::uint64_t up(std::uint64_t v, std::uint64_t to) { return (v + to - 1) / to * to; }

// Lays the sections out for n blocks; returns the end of the data.
std::uint64_t lay_out(Geometry& g, std::uint64_t n, std::uint64_t page) {
  g.blocks = n;
  g.buckets = n / 4 + 2;  // 2 entries a block: load <= 0.5
  g.region_words = up((n + kRegionBlocks - 1) / kRegionBlocks, 64 * 8) / 64;
  std::uint64_t at = sizeof(Superblock);
  auto take = [&](std::uint64_t size) {
    std::uint64_t here = at;
    at = up(at + size, kPage);
    return here;
  };
  g.slots_off = take(sizeof(SlotRecord) * kSlots);
  g.regions_off = take(g.region_words * 8 * kSlots);
  g.hot_off = take(n * sizeof(Hot));
  g.cold_off = take(n * sizeof(Cold));
  g.index_off = take(g.buckets * kIndexWays * 8);
  g.free_off = take(up((n + 63) / 64, 64) * 8);
  g.summary_off = take(g.region_words * 8);
  g.ghost_off = take(ghost_places(n) * sizeof(Ghost));
  g.uses_off = take(uses_lines(n) * sizeof(UsesLine));
  g.shadow_off = take(shadow_bytes(n));
  g.tenants_off = take(kTenants * sizeof(Tenant));
  g.marks_off = take(kMarks * sizeof(Mark));
  g.events_off = take(kEvents * sizeof(Event));
  g.queues_off = take(sizeof(Queues));
  // Data on a huge-page boundary where that costs little: a block never straddles needlessly.
  std::uint64_t align = n * g.block_bytes >= 16 * kHugePage ? kHugePage : kPage;
  if (page > align) align = page;
  g.data_off = up(at, align);
  return up(g.data_off + n * g.block_bytes, page);
}

}  // namespace

bool compute_geometry(std::uint64_t bytes, std::uint64_t block_bytes, std::uint64_t blocks,
                      std::uint64_t page, Geometry* out) {
  constexpr std::uint64_t kMost = 0xfffffff0u, kLimit = std::uint64_t{1} << 56;
  if (block_bytes % 64 || block_bytes > kLimit || bytes > kLimit || blocks > kMost) return false;
  Geometry g{};
  g.block_bytes = block_bytes;
  if (blocks) {
    if (block_bytes && blocks > kLimit / block_bytes) return false;
    std::uint64_t end = lay_out(g, blocks, page);
    if (bytes && end > up(bytes, page)) return false;
    g.bytes = end;
    *out = g;
    return true;
  }
  if (!bytes) return false;
  const std::uint64_t room = up(bytes, page);
  std::uint64_t lo = 0, hi = bytes / (block_bytes + 160) + 1;  // 160: metadata of a block
  if (hi > kMost) hi = kMost;
  while (lo < hi) {
    std::uint64_t mid = lo + (hi - lo + 1) / 2;
    if (lay_out(g, mid, page) <= room)
      lo = mid;
    else
      hi = mid - 1;
  }
  if (!lo) return false;
  lay_out(g, lo, page);
  g.bytes = room;
  *out = g;
  return true;
}

bool same_geometry(const Geometry& a, const Geometry& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

std::uint64_t layout_hash() {
  const std::uint64_t facts[] = {KVSHM_LAYOUT_VERSION,
                                 kSlots,
                                 sizeof(Superblock),
                                 sizeof(SlotRecord),
                                 sizeof(Hot),
                                 sizeof(Cold),
                                 sizeof(Geometry),
                                 sizeof(PolicyTable),
                                 sizeof(Tenant),
                                 sizeof(Mark),
                                 sizeof(Event),
                                 sizeof(Queues),
                                 sizeof(Ghost),
                                 sizeof(UsesLine),
                                 sizeof(ShadowHeader),
                                 kShadows,
                                 kShadowWays,
                                 kRegionBlocks,
                                 kLeaseLines,
                                 kTouchRing,
                                 kHistograms * kBuckets,
                                 kIndexWays,
                                 kTenants,
                                 kMarks,
                                 kEvents,
                                 kStatRoom,
                                 offsetof(Superblock, policy),
                                 offsetof(Superblock, identity),
                                 offsetof(SlotRecord, stats),
                                 offsetof(SlotRecord, leases)};
  std::uint64_t h = 1469598103934665603ULL;  // FNV-1a, by 64-bit steps
  for (std::uint64_t f : facts) h = (h ^ f) * 1099511628211ULL;
  return h;
}

}  // namespace kvshm
