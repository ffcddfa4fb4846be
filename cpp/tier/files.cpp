#include "tier/files.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "arena/error.hpp"
#include "arena/fork.hpp"

namespace kvshm::tier {
namespace {

constexpr std::uint64_t up(std::uint64_t v, std::uint64_t to) { return (v + to - 1) / to * to; }
constexpr std::uint64_t kHead = 2 * kPageBytes;

// What the file system says of O_DIRECT; 0 where it says nothing (before Linux 6.1, some others).
void direct_alignment(int fd, std::uint32_t* memory, std::uint32_t* offset) {
  *memory = *offset = 0;
#ifdef STATX_DIOALIGN
  struct statx x = {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) == 0 && (x.stx_mask & STATX_DIOALIGN)) {
    *memory = x.stx_dio_mem_align;
    *offset = x.stx_dio_offset_align;
  }
#else
  (void)fd;
#endif
}

int read_all(int fd, void* to, std::size_t n, std::uint64_t at) {
  std::size_t done = 0;
  while (done < n) {
    const ssize_t r = pread(fd, static_cast<char*>(to) + done, n - done, off_t(at + done));
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) return -errno;
    if (r == 0) break;  // shorter than it was made: the rest reads as nothing
    done += std::size_t(r);
  }
  std::memset(static_cast<char*>(to) + done, 0, n - done);
  return 0;
}

// 0600 whatever the umask; 0660 of the arena's group where that is shared with one.
void set_rights(int fd, const char* share) {
  struct stat st;
  const bool group =
      stat(share, &st) == 0 && (st.st_mode & S_IWGRP) && fchown(fd, uid_t(-1), st.st_gid) == 0;
  fchmod(fd, group ? 0660 : 0600);
}

// What a file that is to be made finds none of.
const char* wanting(const std::string& path) {
  struct statvfs s;
  const std::string dir = path.substr(0, path.rfind('/') + 1);
  return statvfs(dir.c_str(), &s) == 0 && s.f_files && !s.f_favail
             ? "inode is left in its file system"
             : "room is left in its file system";
}

Files* all = nullptr;  // under the claim mutex, so that a fork finds it whole

}  // namespace

Bounce::Bounce(std::size_t bytes) : p_(nullptr), bytes_(up(bytes, kPageBytes)) {
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return;
  // A child must not hold, or split, pages that a device is writing to.
  madvise(p, bytes_, MADV_DONTFORK);
  p_ = static_cast<std::byte*>(p);
}
Bounce::~Bounce() {
  if (p_) munmap(p_, bytes_);
}

int Files::open_one(const char* path, std::uint32_t direct, const char* share, File* out) {
  const int how = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (direct == KVSHM_OFF ? 0 : O_DIRECT);
  bool made = false;
  int fd = ::open(path, how);
  if (fd < 0 && errno == ENOENT) {
    fd = ::open(path, how | O_CREAT | O_EXCL, 0600);
    if (fd >= 0) {
      made = true;
      set_rights(fd, share);
    } else if (errno == EEXIST) {
      fd = ::open(path, how);  // another process was faster
    }
  }
  int e = fd < 0 ? errno : 0;
  if (e == EINVAL && !(direct == KVSHM_OFF)) {  // EINVAL of open(2): no O_DIRECT there
    if (made) unlink(path);
    return -EOPNOTSUPP;
  }
  if (e == ENOSPC) return fail(-e, "tier file %s cannot be made: no %s", path, wanting(path));
  if (fd < 0) return fail(-e, "tier file %s: %s", path, std::strerror(e));
  out->reset(fd);
  struct stat st;
  if (fstat(fd, &st) != 0 || !(S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)))
    return fail(-KVSHM_ELAYOUT, "tier file %s is no regular file and no block device", path);
  std::uint32_t memory = 0, offset = 0;
  direct_alignment(fd, &memory, &offset);
  if (direct != KVSHM_OFF) {
    // A file system that takes the flag and then refuses transfers shows it here.
    Bounce page(kPageBytes);
    if (!page.get()) return -ENOMEM;
    ssize_t n;
    do n = pread(fd, page.get(), kPageBytes, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EINVAL) return -EOPNOTSUPP;
    if (n < 0) return fail(-errno, "tier file %s: read: %s", path, std::strerror(errno));
    if (!offset) memory = offset = 512;           // it says nothing: the least that devices have
    if (offset > kPageBytes) return -EOPNOTSUPP;  // descriptor pages could not be written
  }
  align_ = std::max(align_.load(), offset ? offset : 1);
  memory_align_ = std::max(memory_align_.load(), memory ? memory : 1);
  return 0;
}

int Files::open(const kvshm_tier_options& o, std::uint64_t block_bytes, const char* share) {
  if (!o.npaths || o.npaths > KVSHM_TIER_FILES || !o.paths)
    return fail(-EINVAL, "a tier has 1 to %d files", KVSHM_TIER_FILES);
  direct_wish_ = o.direct;
  direct_ = o.direct != KVSHM_OFF;
  for (std::uint32_t i = 0; i < o.npaths; i++) {
    const char* path = o.paths[i];
    if (!path || *path != '/') return fail(-EINVAL, "tier file %u: an absolute path is wanted", i);
    for (const std::string& other : paths_)
      if (other == path) return fail(-EINVAL, "tier file %s is named twice", path);
    File f;
    int rc = open_one(path, direct_ ? o.direct : std::uint32_t(KVSHM_OFF), share, &f);
    if (rc == -EOPNOTSUPP && o.direct == KVSHM_REQUIRE)
      return fail(-KVSHM_EUNSUPPORTED,
                  "tier file %s: O_DIRECT is required, and its file system refuses it", path);
    if (rc == -EOPNOTSUPP) {
      why_ = std::string("buffered: O_DIRECT is refused for ") + path;
      log_line(KVSHM_LOG_WARN,
               "tier file %s: O_DIRECT is refused; transfers go through the page "
               "cache",
               path);
      direct_ = false;
      align_ = 1;
      memory_align_ = 1;
      rc = open_one(path, KVSHM_OFF, share, &f);
      for (const File& before : files_) fcntl(before.get(), F_SETFL, 0);
    }
    if (rc) return rc;
    files_.push_back(std::move(f));
    paths_.push_back(path);
    path_ += (i ? ":" : "") + paths_.back();
  }
  for (const File& f : files_) raw_.push_back(f.get());
  watch();
  return measure(o, block_bytes);
}

// A child that kept the descriptors would keep the locks on the files.
void Files::watch() {
  ForkGuard no_fork;
  on_fork_in_child(forget_in_child);
  for (const int fd : raw_) known_.push_back(Known::of(fd));
  next_ = all;
  if (all) all->previous_ = this;
  all = this;
}

void Files::forget_in_child() {
  for (Files* f = all; f; f = f->next_)
    for (Known& k : f->known_)
      if (k.still()) close(k.fd);
  all = nullptr;
}

Files::~Files() {
  if (known_.empty()) return;
  ForkGuard no_fork;
  if (next_) next_->previous_ = previous_;
  (previous_ ? previous_->next_ : all) = next_;
}

void Files::go_buffered(int cause) {
  if (!direct_) return;
  direct_ = false;
  align_ = 1;
  memory_align_ = 1;
  {
    std::lock_guard<std::mutex> lock(why_mutex_);
    why_ = std::string("buffered: direct transfers were refused in operation (") +
           std::strerror(-cause) + ")";
  }
  log_line(KVSHM_LOG_WARN, "tier file %s: %s", path_.c_str(), why().c_str());
  for (const int fd : raw_) fcntl(fd, F_SETFL, 0);  // of the description: a ring's copy, too
}

// From the superblocks that are there, or from the budget.
int Files::measure(const kvshm_tier_options& o, std::uint64_t block_bytes) {
  blocks_.resize(files_.size());
  for (unsigned i = 0; i < files_.size(); i++)
    if (int rc = read_superblock(i, &blocks_[i])) return rc;
  const Superblock& s = blocks_[0];
  if (s.magic && s.files == files_.size() && s.block_bytes == block_bytes && s.slots) {
    shape_ = {s.block_bytes, s.slot_bytes, s.slots, s.records_offset, s.data_offset, s.files};
    if (!o.bytes) return 0;
    const Shape there = shape_;
    if (int rc = lay_out(o.bytes, block_bytes)) return rc;
    // A smaller budget: the first slots stay where they are. A larger one begins anew only if the
    // records would not fit in front of the data.
    if (shape_.slots <= there.slots || shape_.data_offset > there.data_offset) {
      const std::uint64_t slots = std::min(shape_.slots, there.slots);
      shape_ = there;
      shape_.slots = slots;
    } else {
      const std::uint64_t slots = shape_.slots;
      shape_ = there;
      shape_.slots = slots;
    }
    return 0;
  }
  if (!s.magic && !o.bytes) {
    struct stat st;
    if (fstat(raw_[0], &st) == 0 && st.st_size > 0 && S_ISREG(st.st_mode))
      return lay_out(std::uint64_t(st.st_size) * files_.size(), block_bytes);
    return fail(-EINVAL, "tier file %s is new: say how large it may be (bytes)", paths_[0].c_str());
  }
  return lay_out(o.bytes ? o.bytes : s.slots * s.slot_bytes, block_bytes);
}

int Files::lay_out(std::uint64_t budget, std::uint64_t block_bytes) {
  Shape g;
  g.block_bytes = block_bytes;
  g.files = unsigned(files_.size());
  g.slot_bytes = up(block_bytes, kPageBytes);
  g.records_offset = kHead;
  const std::uint64_t align = std::min<std::uint64_t>(g.slot_bytes, 2 << 20) & -kPageBytes;
  const std::uint64_t each = budget / g.files;
  std::uint64_t slots = each / g.slot_bytes * g.files;
  for (;; slots -= g.files) {  // a few rounds: the records take little
    g.data_offset = up(kHead + up(slots * kRecordBytes, kPageBytes), align);
    if (slots < g.files || g.data_offset + slots / g.files * g.slot_bytes <= each) break;
    const std::uint64_t over = g.data_offset + slots / g.files * g.slot_bytes - each;
    const std::uint64_t back = over / g.slot_bytes * g.files;
    if (back && back < slots) slots -= back;
  }
  if (slots < g.files)
    return fail(-ENOSPC, "a tier of %llu bytes has no room for one block of %llu in each file",
                (unsigned long long)budget, (unsigned long long)block_bytes);
  if (slots > 0xfffffff0u) slots = 0xfffffff0u / g.files * g.files;
  g.slots = slots;
  shape_ = g;
  return 0;
}

// The head of the first file must be there; slots that find no room in the file system are found
// out when they are written (blocks that are dropped, "no space").
int Files::reserve() {
  for (unsigned i = 0; i < files_.size(); i++) {
    struct stat st;
    if (fstat(raw_[i], &st) != 0) return fail(-errno, "tier file: %s", std::strerror(errno));
    if (S_ISBLK(st.st_mode)) continue;
    const std::uint64_t per = (shape_.slots + shape_.files - 1) / shape_.files;
    const off_t head = off_t(i ? kHead : shape_.data_offset);
    const off_t want = off_t(shape_.data_offset + per * shape_.slot_bytes);
    int rc = fallocate(raw_[i], 0, 0, head) == 0 ? 0 : errno;
    if (rc == EOPNOTSUPP) rc = 0;
    if (rc)
      return fail(-rc, "tier file %s: no room for its head of %lld bytes: %s", paths_[i].c_str(),
                  (long long)head, std::strerror(rc));
    if (fallocate(raw_[i], 0, 0, want) != 0) {
      rc = errno;
      if (st.st_size < want && ftruncate(raw_[i], want) != 0)
        return fail(-errno, "tier file %s: cannot size it to %lld bytes: %s", paths_[i].c_str(),
                    (long long)want, std::strerror(errno));
      if (rc != EOPNOTSUPP)
        log_line(KVSHM_LOG_WARN,
                 "tier file %s: %lld bytes are not to be had now (%s); it uses what it gets",
                 paths_[i].c_str(), (long long)want, std::strerror(rc));
    } else if (st.st_size > want) {
      if (ftruncate(raw_[i], want) != 0)  // a smaller budget than before
        log_line(KVSHM_LOG_WARN, "tier file %s: ftruncate: %s", paths_[i].c_str(),
                 std::strerror(errno));
    }
  }
  return 0;
}

int Files::read_superblock(unsigned file, Superblock* out) const {
  Bounce two(2 * kPageBytes);
  if (!two.get()) return -ENOMEM;
  if (int rc = read_all(raw_[file], two.get(), 2 * kPageBytes, 0))
    return fail(rc, "tier file %s: %s", paths_[file].c_str(), std::strerror(-rc));
  *out = {};
  std::uint32_t version = 0;
  for (unsigned copy = 0; copy < 2; copy++) {
    Superblock s;
    std::memcpy(&s, two.get() + copy * kPageBytes, sizeof s);
    if (s.magic != kMagic) continue;
    version = s.version;
    if (s.version != kFormatVersion || s.bytes != sizeof s || s.check != superblock_check(s))
      continue;
    // An epoch never goes back. Sequences may: each process counts on from what it has read.
    if (!out->magic || s.epoch > out->epoch ||
        (s.epoch == out->epoch && s.sequence > out->sequence))
      *out = s;
  }
  if (!out->magic && version && version != kFormatVersion)
    return fail(-KVSHM_ELAYOUT,
                "tier file %s has format version %u, wanted %u: name another file, or remove it",
                paths_[file].c_str(), version, kFormatVersion);
  if (!out->magic && !version) {
    // Somebody else's data is not ours to overwrite. (One that was cut within the magic is ours.)
    struct stat st;
    if (fstat(raw_[file], &st) == 0 && st.st_size < off_t(sizeof kMagic) &&
        std::memcmp(two.get(), &kMagic, std::size_t(st.st_size)) == 0)
      return 0;
    for (std::size_t i = 0; i < 2 * kPageBytes; i++)
      if (two.get()[i] != std::byte{0})
        return fail(-KVSHM_ELAYOUT,
                    "%s is no tier file: it is left alone; name another, or remove it",
                    paths_[file].c_str());
  }
  return 0;
}

int Files::write_superblock(unsigned file, const Superblock& s) {
  Bounce page(kPageBytes);
  if (!page.get()) return -ENOMEM;
  std::memcpy(page.get(), &s, sizeof s);
  const off_t at = off_t(s.sequence % 2 * kPageBytes);
  int e = 0;
  // Once more: the first fdatasync may tell of another program's failed buffered write.
  for (int attempt = 0; attempt < 3; attempt++) {
    const ssize_t n = pwrite(raw_[file], page.get(), kPageBytes, at);
    e = n < 0 ? errno : n != ssize_t(kPageBytes) ? EIO : fdatasync(raw_[file]) ? errno : 0;
    if (!e) break;
  }
  if (e)
    return fail(-e, "tier file %s: its superblock cannot be written: %s", paths_[file].c_str(),
                std::strerror(e));
  blocks_[file] = s;
  return 0;
}

}  // namespace kvshm::tier
