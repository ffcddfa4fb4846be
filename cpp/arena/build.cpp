#include "arena/build.hpp"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "arena/foreign.hpp"
#include "arena/memory.hpp"
#include "arena/object.hpp"
#include "arena/pages.hpp"
#include "evict/evict.hpp"

namespace kvshm {
namespace {

int write_identity(Superblock& sb, const kvshm_identity* id) {
  sb.raw = id == nullptr;
  if (!id) return 0;
  std::uint8_t key[32];
  if (int rc = kvshm_identity_derive(id, key, sb.fingerprint)) return rc;
  const std::int64_t n = kvshm_identity_text(id, sb.identity, sizeof sb.identity);
  if (n < 0)
    return fail(-EINVAL, "the identity's fields are too long: at most %zu bytes as JSON",
                sizeof sb.identity - 1);
  sb.identity_length = std::uint32_t(n);
  return 0;
}

// Lives are counted from a random number on: a handle of an arena that was replaced by this one
// fits none of its blocks.
void init_blocks(Arena& a) {
  std::uint64_t first;
  std::memcpy(&first, a.sb->uuid, sizeof first);
  first = (first >> 16) + 1;
  for (std::uint32_t id = 0; id < a.nblocks; id++) {
    Hot& h = a.hot[id];
    h.seq.store(first, std::memory_order_relaxed);
    h.word.store(make_word(first, kFree, 0), std::memory_order_relaxed);
    h.parent.store(kNone, std::memory_order_relaxed);
    h.child.store(kNone, std::memory_order_relaxed);
    h.sibling.store(kNone, std::memory_order_relaxed);
    a.cold[id].primary.store(kNone, std::memory_order_relaxed);
    a.free_map[id / 64].fetch_or(std::uint64_t{1} << (id % 64), std::memory_order_relaxed);
  }
  for (std::uint32_t r = 0; r * std::uint64_t{kRegionBlocks} < a.nblocks; r++)
    a.summary[r / 64].fetch_or(std::uint64_t{1} << (r % 64), std::memory_order_relaxed);
}

int set_mode(const Arena& a, int fd, const char* group) {
  if (!group || !*group)
    return fchmod(fd, 0600) ? fail(-errno, "fchmod %s: %s", a.path.c_str(), std::strerror(errno))
                            : 0;
  struct group g, *found = nullptr;
  char buf[4096];
  if (getgrnam_r(group, &g, buf, sizeof buf, &found) != 0 || !found)
    return fail(-EINVAL, "group '%s' does not exist on this host", group);
  if (fchown(fd, uid_t(-1), g.gr_gid) != 0 || fchmod(fd, 0660) != 0)
    return fail(-errno, "cannot give %s to group %s: %s", a.path.c_str(), group,
                std::strerror(errno));
  return 0;
}

}  // namespace

int bind_sections(Arena& a) {
  const Geometry& g = a.geometry;
  a.sb = reinterpret_cast<Superblock*>(a.base);
  a.slots = reinterpret_cast<SlotRecord*>(a.base + g.slots_off);
  a.hot = reinterpret_cast<Hot*>(a.base + g.hot_off);
  a.cold = reinterpret_cast<Cold*>(a.base + g.cold_off);
  a.index = reinterpret_cast<std::atomic<std::uint64_t>*>(a.base + g.index_off);
  a.free_map = reinterpret_cast<std::atomic<std::uint64_t>*>(a.base + g.free_off);
  a.summary = reinterpret_cast<std::atomic<std::uint64_t>*>(a.base + g.summary_off);
  a.marks = reinterpret_cast<Mark*>(a.base + g.marks_off);
  a.queues = reinterpret_cast<Queues*>(a.base + g.queues_off);
  a.ghosts = reinterpret_cast<Ghost*>(a.base + g.ghost_off);
  a.tenants = reinterpret_cast<Tenant*>(a.base + g.tenants_off);
  a.uses = reinterpret_cast<UsesLine*>(a.base + g.uses_off);
  a.shadow = reinterpret_cast<ShadowHeader*>(a.base + g.shadow_off);
  a.data = a.base + g.data_off;
  a.nblocks = std::uint32_t(g.blocks);
  a.block_bytes = g.block_bytes;
  a.nbuckets = g.buckets;
  void* p = KVSHM_STEP_ERROR("attach.counts")
                ? MAP_FAILED
                : mmap(nullptr, g.blocks * 4, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return fail(-ENOMEM, "no memory for the private counts");
  madvise(p, g.blocks * 4, MADV_DONTFORK);
  madvise(p, g.blocks * 4, MADV_HUGEPAGE);  // one TLB miss less a look-up where it is granted
  a.counts = static_cast<std::atomic<std::uint32_t>*>(p);
  return 0;
}

int build_object(Arena& a, int fd, const kvshm_options& o, std::int64_t deadline_ms) {
  const std::uint64_t page = mount_page(fd);
  if (!compute_geometry(o.bytes, o.block_bytes, o.blocks, page, &a.geometry)) {
    Geometry least{};
    if (o.block_bytes % 64 == 0 &&
        compute_geometry(0, o.block_bytes, o.blocks ? o.blocks : 1, page, &least))
      return fail(-EINVAL,
                  "size %llu is too small: %llu block(s) of %llu bytes with metadata need %llu",
                  (unsigned long long)o.bytes, (unsigned long long)(o.blocks ? o.blocks : 1),
                  (unsigned long long)o.block_bytes, (unsigned long long)least.bytes);
    return fail(-EINVAL,
                "size %llu, block_bytes %llu, blocks %llu: wanted a size or a number of "
                "blocks, and block_bytes a multiple of 64",
                (unsigned long long)o.bytes, (unsigned long long)o.block_bytes,
                (unsigned long long)o.blocks);
  }
  if (int rc = set_mode(a, fd, o.group)) return rc;
  KVSHM_STEP("create.named");
  if (KVSHM_STEP_ERROR("create.size") || ftruncate(fd, off_t(a.geometry.bytes)) != 0)
    return fail(-errno, "cannot size %s to %llu bytes: %s", a.path.c_str(),
                (unsigned long long)a.geometry.bytes, std::strerror(errno));
  KVSHM_STEP("create.sized");
  if (int rc = map_object(a, fd)) return rc;
  if (int rc = reserve_pages(a, fd, o, deadline_ms)) return rc;
  KVSHM_STEP("create.populated");
  if (int rc = bind_sections(a)) return rc;
  Superblock& sb = *a.sb;
  sb.layout_version = KVSHM_LAYOUT_VERSION;
  sb.superblock_bytes = sizeof sb;
  sb.layout_hash = layout_hash();
  if (getrandom(sb.uuid, sizeof sb.uuid, 0) != sizeof sb.uuid)
    return fail(-EIO, "no random bytes for the arena's uuid");
  sb.created_at = std::uint64_t(time(nullptr));
  sb.creator_pid = std::uint64_t(getpid());
  sb.page_bytes = a.page_bytes;
  sb.geometry = a.geometry;
  sb.numa = measured_node(a);
  std::snprintf(sb.name, sizeof sb.name, "%s", a.name.c_str());
  if (int rc = write_identity(sb, o.identity)) return rc;
  charged_group(sb.charged_group, sizeof sb.charged_group);
  default_policy(sb.policy, a.geometry.blocks);
  a.shadow->weight.store(kStartWeight, std::memory_order_relaxed);
  init_blocks(a);
  KVSHM_STEP("create.filled");
  a.created = true;
  // release, last: who sees the magic sees all of the above
  sb.magic.store(kMagic, std::memory_order_release);
  KVSHM_STEP("create.ready");
  return 0;
}

Look inspect_object(Arena& a, int fd, const kvshm_options& o, int* rc) {
  struct stat st;
  if (fstat(fd, &st) != 0) return *rc = -errno, Look::kBad;
  if (!S_ISREG(st.st_mode)) {
    *rc = fail(-KVSHM_ELAYOUT, "%s is no kvshm arena, and no file; remove it with `rm`",
               a.path.c_str());
    return Look::kBad;
  }
  auto copy = std::make_unique<Superblock>();
  Superblock& sb = *copy;
  const ssize_t n = pread(fd, static_cast<void*>(copy.get()), sizeof sb, 0);
  if (n < 0) {  // no reason to take it for a dead creator's remains
    *rc = fail(-errno, "cannot read %s: %s", a.path.c_str(), std::strerror(errno));
    return Look::kBad;
  }
  if (n != ssize_t(sizeof sb)) {
    if (st.st_size == 0) return Look::kUnfinished;
    *rc =
        fail(-KVSHM_ELAYOUT, "%s is no kvshm arena (%lld bytes); remove it with `kvshm rm --force`",
             a.path.c_str(), (long long)st.st_size);
    return Look::kBad;
  }
  const std::uint64_t magic = sb.magic.load(std::memory_order_relaxed);
  if (magic == 0) return Look::kUnfinished;
  if (sb.dead.load(std::memory_order_relaxed) && magic == kMagic) return Look::kDead;
  if (magic != kMagic || sb.superblock_bytes != sizeof sb) {
    *rc = fail(-KVSHM_ELAYOUT, "%s is no kvshm arena; remove it with `kvshm rm --force`",
               a.path.c_str());
    return Look::kBad;
  }
  if (sb.layout_version != KVSHM_LAYOUT_VERSION || sb.layout_hash != layout_hash()) {
    *rc = fail(-KVSHM_ELAYOUT,
               "%s has layout %u (hash %016llx), this library has %u (%016llx); use the same kvshm "
               "in all processes, or remove the arena",
               a.path.c_str(), sb.layout_version, (unsigned long long)sb.layout_hash,
               KVSHM_LAYOUT_VERSION, (unsigned long long)layout_hash());
    return Look::kBad;
  }
  Geometry g{};
  if (!compute_geometry(0, sb.geometry.block_bytes, sb.geometry.blocks, mount_page(fd), &g) ||
      (g.bytes = sb.geometry.bytes, !same_geometry(g, sb.geometry)) ||
      g.data_off + g.blocks * g.block_bytes > g.bytes || std::uint64_t(st.st_size) < g.bytes) {
    *rc = fail(-EBADMSG, "%s is damaged: its geometry does not add up (%lld bytes on the mount)",
               a.path.c_str(), (long long)st.st_size);
    return Look::kBad;
  }
  if (o.block_bytes && o.block_bytes != g.block_bytes) {
    *rc =
        fail(-KVSHM_EGEOMETRY,
             "arena %s has blocks of %llu bytes, %llu wanted; one arena has one block size: take "
             "another name for the other model",
             a.name.c_str(), (unsigned long long)g.block_bytes, (unsigned long long)o.block_bytes);
    return Look::kBad;
  }
  if (o.identity) {
    std::uint8_t key[32], fingerprint[16];
    if ((*rc = kvshm_identity_derive(o.identity, key, fingerprint))) return Look::kBad;
    if (sb.raw || std::memcmp(fingerprint, sb.fingerprint, sizeof fingerprint) != 0) {
      char mine[sizeof sb.identity] = "?";
      kvshm_identity_text(o.identity, mine, sizeof mine);
      note_foreign(fd, mine);
      sb.identity[sizeof sb.identity - 1] = 0;
      *rc = fail(-KVSHM_EIDENTITY,
                 "arena %s belongs to %.240s, this process is %.240s; take another name",
                 a.name.c_str(), sb.raw ? "no model (raw)" : sb.identity, mine);
      return Look::kBad;
    }
  }
  a.geometry = g;
  a.page_bytes = sb.page_bytes;
  return Look::kGood;
}

}  // namespace kvshm
