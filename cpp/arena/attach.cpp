#include "arena/attach.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "arena/build.hpp"
#include "arena/fork.hpp"
#include "arena/object.hpp"
#include "arena/pages.hpp"
#include "arena/slots.hpp"
#include "device/pin.hpp"

namespace kvshm {
namespace {

// What one attempt says: done with *rc, or look again.
enum class Next { kDone, kAgain };

void note_object(Arena& a, int fd) {
  struct stat st;
  fstat(fd, &st);
  a.dev = st.st_dev;
  a.ino = st.st_ino;
}

int join_in(Arena& a, const kvshm_options& o) {
  if (int rc = claim_slot(a, o)) return rc;
  return pin_pages(a, o.pin);
}

Next create_here(Arena& a, int fd, const kvshm_options& o, std::int64_t deadline, int* rc) {
  *rc = lock_byte_until(fd, true, kCreationByte, deadline);
  if (*rc) return Next::kDone;
  if (!same_object(fd, a.path.c_str())) return Next::kAgain;  // taken for a dead creator's
  KVSHM_STEP("create.locked");
  note_object(a, fd);
  *rc = build_object(a, fd, o, deadline);
  if (*rc == 0) *rc = join_in(a, o);
  if (*rc) {
    const int e = *rc;
    KVSHM_STEP("create.failed");
    if (a.sb) a.sb->dead.store(1, std::memory_order_release);
    KVSHM_STEP("create.unlink");
    unlink(a.path.c_str());
    *rc = e;
  }
  KVSHM_STEP("create.joined");
  // The mapping keeps this description alive: the byte must be given back by hand.
  unlock_byte(fd, kCreationByte);
  return Next::kDone;
}

// Nobody holds the creation byte and the object is not finished: its creator died, or has not come
// to take the byte yet. Or it is dead: whoever removed it died before the unlink. It is given a
// moment, then its remains are removed.
Next clear_remains(Arena& a, int fd, Look seen, Mode mode, std::int64_t deadline, int* rc) {
  unlock_byte(fd, kCreationByte);
  sleep_ms(20);
  if (now_ms() >= deadline) {
    *rc = fail(-KVSHM_ENOTREADY,
               "arena %s is not ready: its creator has not finished in time, or died; open it "
               "without attach, or remove it with `kvshm rm`",
               a.name.c_str());
    return Next::kDone;
  }
  if (mode == Mode::kAttach && seen == Look::kUnfinished) return Next::kAgain;
  sleep_ms(30);
  if (lock_byte(fd, true, kCreationByte) != 0) return Next::kAgain;
  kvshm_options none{};
  if (same_object(fd, a.path.c_str()) && inspect_object(a, fd, none, rc) == seen) {
    log_line(KVSHM_LOG_WARN, "arena %s: whoever was %s it died; its remains are removed",
             a.name.c_str(), seen == Look::kDead ? "removing" : "making");
    KVSHM_STEP("attach.clear");
    unlink(a.path.c_str());
  }
  *rc = 0;
  return Next::kAgain;
}

Next attach_there(Arena& a, int fd, Mode mode, const kvshm_options& o, std::int64_t deadline,
                  int* rc) {
  *rc = lock_byte_until(fd, false, kCreationByte, deadline);
  if (*rc == -ETIMEDOUT)
    *rc = fail(-KVSHM_ENOTREADY, "arena %s is still being made or removed by another process",
               a.name.c_str());
  if (*rc) return Next::kDone;
  if (!same_object(fd, a.path.c_str())) return Next::kAgain;
  KVSHM_STEP("attach.locked");
  note_object(a, fd);
  const Look seen = inspect_object(a, fd, o, rc);
  switch (seen) {
    case Look::kUnfinished:
    case Look::kDead:  // and the creation byte is ours
      return clear_remains(a, fd, seen, mode, deadline, rc);
    case Look::kBad:
      return Next::kDone;
    case Look::kGood:
      break;
  }
  *rc = map_object(a, fd);
  if (*rc == 0) *rc = bind_sections(a);
  if (*rc == 0) *rc = join_in(a, o);
  KVSHM_STEP("attach.joined");
  unlock_byte(fd, kCreationByte);  // the mapping keeps the description alive
  return Next::kDone;
}

Next attempt(Arena& a, Mode mode, const kvshm_options& o, std::int64_t deadline, int* rc) {
  if (mode != Mode::kCreate) {
    File f(open(a.path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (f) return attach_there(a, f.get(), mode, o, deadline, rc);
    if (errno != ENOENT || mode == Mode::kAttach) {
      *rc = fail(-errno, "arena %s (%s): %s", a.name.c_str(), a.path.c_str(),
                 errno == ENOENT ? "there is none; `kvshm list` shows those that are"
                                 : std::strerror(errno));
      return Next::kDone;
    }
  }
  File f(open(a.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (f) return create_here(a, f.get(), o, deadline, rc);
  if (errno == EEXIST && mode == Mode::kOpen) return Next::kAgain;
  *rc = fail(-errno, "cannot create arena %s (%s): %s", a.name.c_str(), a.path.c_str(),
             std::strerror(errno));
  return Next::kDone;
}

void unmap(Arena& a) {
  if (a.counts) munmap(a.counts, std::size_t(a.nblocks) * 4);
  // What a device would not give back must not be mapped anew at its address.
  if (a.base && a.pin->may_unmap()) munmap(a.base, a.geometry.bytes);
  if (a.anchor) munmap(a.anchor, a.anchor_bytes);
  for (void*& post : a.posts) {
    if (post) munmap(post, a.anchor_bytes);
    post = nullptr;
  }
  a.counts = nullptr;
  a.base = nullptr;
  a.anchor = nullptr;
  a.sb = nullptr;
}

}  // namespace

Arena::Arena() : pin(std::make_unique<Pin>(*this)) {}
Arena::~Arena() { unmap(*this); }

int bring_up(Mode mode, const char* name, const kvshm_options& o, std::unique_ptr<Arena>* out) {
  watch_forks();
  const std::int64_t deadline = now_ms() + (o.timeout_ms ? o.timeout_ms : 10000);
  for (;;) {
    auto a = std::make_unique<Arena>();
    a->name = name;
    a->path = object_path(o.dir, name);
    if (o.reap_ms) a->reap_ms = o.reap_ms;
    a->quota = o.quota;
    int rc = 0;
    const Next next = attempt(*a, mode, o, deadline, &rc);
    if (next == Next::kDone && rc == 0) {
      a->evictor.hand = (std::uint64_t(a->slot) * 2654435761u) % a->nblocks;
      a->free_cursor = std::uint32_t(std::uint64_t(a->slot) * a->nblocks / kSlots);
      if (!(o.flags & KVSHM_NO_HELPER)) start_helper(*a);
      *out = std::move(a);
      return 0;
    }
    if (a->anchor) leave_slot(*a);  // a slot was claimed, pinning then failed
    if (next == Next::kDone) return rc;
    if (now_ms() >= deadline)
      return fail(-KVSHM_ENOTREADY, "arena %s: it kept changing until the time-out", name);
  }
}

void take_down(Arena& a) {
  stop_helper(a);
  if (a.pin->active()) {
    give_back(a);  // the others do not wait for a device
    a.pin->undo_all();
  }
  leave_slot(a);
  unmap(a);
}

int remove_object(const char* name, const char* dir, bool force) {
  if (int rc = check_name(name)) return rc;
  const std::string path = object_path(dir, name);
  File f(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!f) return fail(-errno, "arena %s (%s): %s", name, path.c_str(), std::strerror(errno));
  if (int rc = lock_byte_until(f.get(), true, kCreationByte, now_ms() + 5000))
    return fail(rc == -ETIMEDOUT ? -EBUSY : rc, "arena %s is being made, joined or removed", name);
  if (!same_object(f.get(), path.c_str())) return -ENOENT;
  unsigned live = 0;
  for (unsigned s = 0; s < kSlots; s++) live += byte_locked(f.get(), life_byte(s)) == 1;
  if (live && !force)
    return fail(-KVSHM_EINUSE, "arena %s: %u process(es) are attached; end them, or use --force",
                name, live);
  KVSHM_STEP("remove.locked");
  std::uint64_t magic = 0;
  if (pread(f.get(), &magic, sizeof magic, 0) == ssize_t(sizeof magic) && magic == kMagic) {
    struct stat st;
    void* p =
        fstat(f.get(), &st) == 0 && st.st_size >= off_t(sizeof(Superblock))
            ? mmap(nullptr, mount_page(f.get()), PROT_READ | PROT_WRITE, MAP_SHARED, f.get(), 0)
            : MAP_FAILED;
    if (p != MAP_FAILED) {
      // release: who reads it afterwards answers -ESTALE
      static_cast<Superblock*>(p)->dead.store(1, std::memory_order_release);
      munmap(p, mount_page(f.get()));
    }
  }
  KVSHM_STEP("remove.dead");
  if (unlink(path.c_str()) != 0)
    return fail(-errno, "cannot unlink %s: %s", path.c_str(), std::strerror(errno));
  return 0;
}

}  // namespace kvshm
