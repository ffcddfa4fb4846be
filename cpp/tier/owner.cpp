// Whose the files of a tier are.
#include <errno.h>
#include <sys/random.h>

#include <cstdio>
#include <cstring>

#include "arena/error.hpp"
#include "tier/files.hpp"

namespace kvshm::tier {
namespace {
constexpr off_t kOwnerByte = off_t{1} << 62;
}

int Files::lock_all(bool write, std::int64_t deadline_ms) {
  for (const int fd : raw_)
    if (int rc = lock_byte_until(fd, write, kOwnerByte, deadline_ms)) return rc;
  return 0;
}

// Of a file that is there: may it be adopted?
int Files::check(const Superblock& s, unsigned file, const std::uint8_t* fingerprint) const {
  const char* path = paths_[file].c_str();
  if (s.file != file || s.files != files_.size() ||
      std::memcmp(s.set, blocks_[0].set, sizeof s.set) != 0)
    return fail(-KVSHM_EGEOMETRY,
                "tier file %s is number %u of %u of another set, wanted number %u of %zu: name all "
                "files of a tier in their order",
                path, s.file + 1, s.files, file + 1, files_.size());
  if (s.block_bytes != shape_.block_bytes)
    return fail(-KVSHM_EGEOMETRY, "tier file %s has blocks of %llu bytes, the arena of %llu", path,
                (unsigned long long)s.block_bytes, (unsigned long long)shape_.block_bytes);
  if (std::memcmp(s.fingerprint, fingerprint, sizeof s.fingerprint) != 0)
    return fail(-KVSHM_EIDENTITY,
                "tier file %s holds blocks of another identity, %s: name another file for this "
                "one, or remove it",
                path, s.identity[0] ? s.identity : "raw");
  if (s.codec)
    return fail(-KVSHM_ELAYOUT,
                "tier file %s is packed by codec %u, which this version does not know", path,
                s.codec);
  return 0;
}

int Files::own(const Owner& o, std::int64_t deadline_ms) {
  for (;;) {
    // As an owner's process: read locks, and every superblock names our image.
    int rc = lock_all(false, now_ms() + 20);
    if (rc && rc != -ETIMEDOUT)
      return fail(-KVSHM_EUNSUPPORTED, "tier file %s: no locks on its file system: %s",
                  path_.c_str(), std::strerror(-rc));
    bool ours = rc == 0;
    for (unsigned i = 0; i < files_.size(); i++) {
      if (int r = read_superblock(i, &blocks_[i])) return r;
      ours &= blocks_[i].magic && std::memcmp(blocks_[i].owner, o.uuid, 16) == 0;
    }
    if (ours) {
      // An image may outlive its arena: another of that name may want other blocks.
      for (unsigned i = 0; i < files_.size(); i++)
        if (int r = check(blocks_[i], i, o.fingerprint)) return r;
      const Superblock& s = blocks_[0];
      epoch_ = s.epoch;
      shape_ = {s.block_bytes, s.slot_bytes, s.slots, s.records_offset, s.data_offset, s.files};
      return 0;
    }
    for (const int fd : raw_) unlock_byte(fd, kOwnerByte);
    rc = lock_all(true, now_ms() + 20);
    if (rc == 0) break;
    for (const int fd : raw_) unlock_byte(fd, kOwnerByte);
    if (now_ms() < deadline_ms) continue;  // its last transfers may still land; or our own arena is
                                           // adopting it in another process
    const Superblock& s = blocks_[0];
    return fail(
        -KVSHM_EINUSE,
        "tier file %s belongs to arena %s, which is in use, and arena %s wants it: give each "
        "arena a file of its own, or end the processes of that one",
        path_.c_str(), s.magic ? s.owner_name : "(being made)", o.name);
  }
  // Alone with the files.
  bool fresh = !blocks_[0].magic;
  for (unsigned i = 0; i < files_.size(); i++) {
    if (blocks_[i].magic && fresh && i)
      return fail(-KVSHM_EGEOMETRY, "tier file %s belongs to a set whose first file is not %s",
                  paths_[i].c_str(), paths_[0].c_str());
    if (!fresh && blocks_[i].magic)
      if (int rc = check(blocks_[i], i, o.fingerprint)) return rc;
  }
  if (int rc = o.before_adoption()) return rc;
  if (int rc = reserve()) return rc;
  Superblock s = blocks_[0];
  if (fresh) {
    s = {};
    if (getrandom(s.set, sizeof s.set, 0) != sizeof s.set) return -EIO;
    s.epoch = o.epoch;
  }
  s.magic = kMagic;
  s.version = kFormatVersion;
  s.bytes = sizeof s;
  std::memcpy(s.owner, o.uuid, 16);
  std::memcpy(s.fingerprint, o.fingerprint, 16);
  s.block_bytes = shape_.block_bytes;
  s.slot_bytes = shape_.slot_bytes;
  s.slots = shape_.slots;
  s.records_offset = shape_.records_offset;
  s.data_offset = shape_.data_offset;
  s.files = shape_.files;
  std::snprintf(s.owner_name, sizeof s.owner_name, "%s", o.name);
  std::snprintf(s.identity, sizeof s.identity, "%s", o.identity);
  epoch_ = s.epoch;
  for (unsigned i = unsigned(files_.size()); i-- > 0;) {  // the first file last: it says "ours"
    s.file = i;
    s.sequence = blocks_[i].sequence + 1;
    s.check = superblock_check(s);
    if (int rc = write_superblock(i, s)) return rc;
  }
  return lock_all(false, deadline_ms);  // the same description: write becomes read
}

void Files::with_epoch(unsigned file, std::uint32_t epoch, std::byte* page, std::uint64_t* offset) {
  Superblock s = blocks_[file];
  s.epoch = epoch;
  s.sequence++;
  s.check = superblock_check(s);
  std::memset(page, 0, kPageBytes);
  std::memcpy(page, &s, sizeof s);
  *offset = s.sequence % 2 * kPageBytes;
}

void Files::wrote_epoch(unsigned file, std::uint32_t epoch) {
  Superblock& s = blocks_[file];
  s.epoch = epoch;
  s.sequence++;
  s.check = superblock_check(s);
  epoch_ = blocks_[0].epoch;
}

}  // namespace kvshm::tier
