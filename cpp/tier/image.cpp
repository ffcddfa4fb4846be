#include "tier/image.hpp"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "arena/attach.hpp"
#include "arena/error.hpp"
#include "arena/lock.hpp"
#include "arena/object.hpp"

namespace kvshm::tier {
namespace {

constexpr unsigned kWords = kRecordBytes / 8;

std::uint64_t* words_of(const Arena& image, std::uint32_t slot) {
  return reinterpret_cast<std::uint64_t*>(image.data + std::uint64_t(slot) * kRecordBytes);
}

}  // namespace

int open_image(const Arena& g2, std::uint64_t slots, std::unique_ptr<Arena>* out) {
  const std::string name = g2.name + "-g3";
  if (name.size() > KVSHM_NAME_MAX)
    return fail(-EINVAL, "arena %s: with a tier its name has at most %d characters",
                g2.name.c_str(), KVSHM_NAME_MAX - 3);
  const std::string dir = g2.path.substr(0, g2.path.rfind('/'));
  struct stat st = {};
  char group[256] = "", buffer[1024];
  if (stat(g2.path.c_str(), &st) == 0 && (st.st_mode & S_IWGRP)) {  // shared with a group: so is it
    struct group g, *found = nullptr;
    if (getgrgid_r(st.st_gid, &g, buffer, sizeof buffer, &found) == 0 && found)
      std::snprintf(group, sizeof group, "%s", g.gr_name);
  }
  kvshm_options o = KVSHM_OPTIONS_INIT;
  o.block_bytes = kRecordBytes;
  o.blocks = slots;
  o.dir = dir.c_str();
  o.group = group;
  o.label = g2.mine->label;
  o.pin = KVSHM_OFF;
  o.flags = KVSHM_NO_HELPER;  // the tier's thread does its work
  int rc = bring_up(Mode::kOpen, name.c_str(), o, out);
  if (rc == 0 && (*out)->nblocks != slots) {
    take_down(**out);
    out->reset();
    rc = -KVSHM_EGEOMETRY;
  }
  if (rc != -KVSHM_EGEOMETRY) return rc;
  // The file has another size now: the image is made anew, if nobody uses it.
  if (remove_object(name.c_str(), dir.c_str(), false) == 0)
    return bring_up(Mode::kOpen, name.c_str(), o, out);
  return fail(-KVSHM_EGEOMETRY,
              "the tier of arena %s is in use with another number of slots than %llu: end its "
              "processes first",
              g2.name.c_str(), (unsigned long long)slots);
}

int remove_image(const char* name, const char* dir, bool force) {
  const std::string image = std::string(name) + "-g3";
  if (image.size() > KVSHM_NAME_MAX) return 0;
  File f(::open(object_path(dir, image.c_str()).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::uint64_t magic = 0;
  char path = 0;  // an arena of that name that is no image has none
  if (!f || pread(f.get(), &magic, sizeof magic, 0) != ssize_t(sizeof magic) ||
      magic != ::kvshm::kMagic ||
      pread(f.get(), &path, 1, offsetof(::kvshm::Superblock, tier) + offsetof(TierNote, path)) !=
          1 ||
      !path)
    return 0;
  return remove_object(image.c_str(), dir, force);
}

bool alone(const Arena& image) {
  File f(open_object(image, O_RDONLY));
  if (!f) return false;
  for (unsigned s = 0; s < kSlots; s++)
    if (s != image.slot && byte_locked(f.get(), life_byte(s)) != 0) return false;
  return true;
}

Record load_record(const Arena& image, std::uint32_t slot) {
  std::uint64_t words[kWords];
  std::uint64_t* from = words_of(image, slot);
  for (unsigned i = 0; i < kWords; i++)
    words[i] = std::atomic_ref<std::uint64_t>(from[i]).load(std::memory_order_relaxed);
  Record r;
  std::memcpy(&r, words, sizeof r);
  return r;
}

void store_record(Arena& image, std::uint32_t slot, const Record& r) {
  std::uint64_t words[kWords];
  std::memcpy(words, &r, sizeof r);
  std::uint64_t* to = words_of(image, slot);
  for (unsigned i = 0; i < kWords; i++)
    std::atomic_ref<std::uint64_t>(to[i]).store(words[i], std::memory_order_relaxed);
}

void copy_page(const Arena& image, std::uint64_t p, const std::uint32_t* done, std::uint32_t n,
               std::byte* out) {
  std::memset(out, 0, kPageBytes);
  const std::uint64_t first = p * kRecordsPerPage;
  for (std::uint64_t s = first; s < first + kRecordsPerPage && s < image.nblocks; s++) {
    // acquire: the record of who published it
    const word_t w = image.hot[s].word.load(std::memory_order_acquire);
    const Record r = load_record(image, std::uint32_t(s));
    // One that is being filled and has a record has its data in the file, and its page was written,
    // or is being: its owner waits for a sync, and must not find it overwritten.
    if (!is_ready(w) && std::find(done, done + n, std::uint32_t(s)) == done + n &&
        !(state(w) == kFilling && sound(r, s)))
      continue;
    std::memcpy(out + (s - first) * kRecordBytes, &r, sizeof r);
  }
}

// A slot is never an object's head, whose bytes this field counts elsewhere.
std::atomic<std::uint64_t>& page_version(Arena& image, std::uint64_t p) {
  return image.cold[p * kRecordsPerPage].user;
}

}  // namespace kvshm::tier
