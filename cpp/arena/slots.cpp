#include "arena/slots.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "arena/fork.hpp"
#include "arena/object.hpp"
#include "blocks/close.hpp"
#include "blocks/reap.hpp"
#include "blocks/tenants.hpp"

namespace kvshm {
namespace {

std::uint64_t start_time_of_self() {
  char buf[1024] = {};
  File f(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  if (!f || read(f.get(), buf, sizeof buf - 1) <= 0) return 0;
  const char* p = std::strrchr(buf, ')');  // the command name may hold anything
  for (int field = 2; p && field < 22; field++) {
    p = std::strchr(p + 1, ' ');
  }
  return p ? std::strtoull(p + 1, nullptr, 10) : 0;
}

std::uint64_t pid_namespace() {
  struct stat st;
  return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

void write_identity(Arena& a, const kvshm_options& o) {
  SlotRecord& r = *a.mine;
  KVSHM_STEP("slot.identity");
  r.pid = getpid();
  r.uid = getuid();
  r.start_time = start_time_of_self();
  r.attached_at = std::uint64_t(time(nullptr));
  r.pid_ns = pid_namespace();
  r.device_memory.store(0, std::memory_order_relaxed);
  r.device_bytes.store(0, std::memory_order_relaxed);
  r.tier.word.store(0, std::memory_order_relaxed);
  r.drain_until.store(0, std::memory_order_relaxed);
  r.quota.store(a.quota, std::memory_order_relaxed);
  char name[sizeof r.label] = {};
  if (o.label && *o.label) {
    std::snprintf(name, sizeof name, "%s", o.label);
  } else {
    File f(open("/proc/self/comm", O_RDONLY | O_CLOEXEC));
    ssize_t n = f ? read(f.get(), name, sizeof name - 1) : 0;
    if (n > 0 && name[n - 1] == '\n') name[n - 1] = 0;
  }
  std::memcpy(r.label, name, sizeof name);
  a.sb->epochs[&r - a.slots].store(o.identity ? std::uint64_t{1} << 32 | o.identity->epoch : 0,
                                   std::memory_order_relaxed);
  for (auto& l : r.leases) l.count.store(0, std::memory_order_relaxed);
  for (unsigned i = 0; i < kStatRoom; i++)
    a.stats_at_attach[i] = r.stats[i].load(std::memory_order_relaxed);
  KVSHM_STEP("slot.use");
  r.used.store(1, std::memory_order_release);
  KVSHM_STEP("slot.used");
}

// Both ways in which a dead slot may still be waiting for a device.
bool device_done(int fd, unsigned slot, const SlotRecord& r) {
  if (KVSHM_BROKEN(device_ignored)) return true;
  // M:slots.2 M:fill.22
  if (byte_locked(fd, device_byte(slot)) != 0) return false;
  const std::uint64_t until = r.drain_until.load(std::memory_order_acquire);
  return !until || std::uint64_t(boottime_ms()) >= until;
}

// A dead process that had registered device memory: its copies may still land for a while. acquire:
// pairs with the store of the mark before the first registration.
void start_drain(SlotRecord& r) {
  const std::uint32_t device = r.device_memory.load(std::memory_order_acquire);
  if (!(device & DeviceWord::kMark)) return;
  std::uint64_t none = 0;
  KVSHM_STEP("reap.drain");
  r.drain_until.compare_exchange_strong(
      none, std::uint64_t(boottime_ms()) + DeviceWord::drain_ms(device), std::memory_order_acq_rel);
}

// "pid 1 one, pid 2 two and 3 more", within 200 characters or so.
struct Names {
  unsigned n = 0, left_out = 0;
  std::string text;
  void add(const kvshm_process& p) {
    n++;
    if (text.size() > 160) {
      left_out++;
      return;
    }
    text += (text.empty() ? "pid " : ", pid ") + std::to_string(p.pid) + " ";
    text.append(p.label, strnlen(p.label, 24));
  }
  std::string all() const {
    return left_out ? text + " and " + std::to_string(left_out) + " more" : text;
  }
};

int no_slot(Arena& a) {
  Names hold, drain;
  for (unsigned s = 0; s < kSlots; s++) {
    kvshm_process p{};
    fill_process(a, s, &p);
    if (p.used) (p.alive ? hold : drain).add(p);
  }
  const std::string dead = drain.n ? "; " + std::to_string(drain.n) +
                                         " drain, dead ones for which a device may still " +
                                         "write (" + drain.all() + "): try again in a moment"
                                   : "";
  const std::string live =
      hold.n ? std::to_string(hold.n) + " are held by " + hold.all() + ": end one of them" : "";
  return fail(-KVSHM_ENOSLOT, "all %u slots of arena %s are taken: %s%s, or use a second arena",
              kSlots, a.name.c_str(), live.c_str(),
              dead.c_str() + (live.empty() && !dead.empty() ? 2 : 0));
}

// Under the slot's life byte: its last owner's name still stands there.
void tell_gone(const Arena& a, const SlotRecord& r, const ReapCounts& c) {
  log_line(KVSHM_LOG_WARN,
           "arena %s: process %d (%.63s) is gone; gave back %llu holds, %llu fills, %llu evictions",
           a.name.c_str(), r.pid, r.label, (unsigned long long)c.holds, (unsigned long long)c.fills,
           (unsigned long long)c.evictions);
}

void count_again(Arena& a) {
  if (limits(a) || a.sb->pinned.load(std::memory_order_relaxed)) recount(a, 0);
}

}  // namespace

int keep_description(Arena& a, int fd, void** page) {
  a.anchor_bytes = mount_page(fd);
  void* p = KVSHM_STEP_ERROR("slot.keep")
                ? MAP_FAILED
                : mmap(nullptr, a.anchor_bytes, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED)
    return fail(-errno, "cannot map the page that keeps a lock of %s: %s", a.path.c_str(),
                std::strerror(errno));
  if (madvise(p, a.anchor_bytes, MADV_DONTFORK) != 0) {
    const int e = errno;
    munmap(p, a.anchor_bytes);
    return fail(-KVSHM_EUNSUPPORTED, "madvise(MADV_DONTFORK) refused: %s", std::strerror(e));
  }
  *page = p;
  return 0;
}

int claim_slot(Arena& a, const kvshm_options& o) {
  ForkGuard no_fork;
  File f(open_object(a, O_RDWR));
  if (!f && (errno == EMFILE || errno == ENFILE))
    return fail(-errno, "no descriptor is left to attach to arena %s", a.name.c_str());
  if (!f) return -ESTALE;
  for (unsigned s = 0; s < kSlots; s++) {
    // M:slots.1 M:life.2
    int rc = lock_byte(f.get(), true, life_byte(s));
    if (rc == -EAGAIN) continue;
    if (rc)
      return fail(-KVSHM_EUNSUPPORTED,
                  "open-file-description locks do not work on %s: %s; use a tmpfs or hugetlbfs",
                  a.path.c_str(), std::strerror(-rc));
    SlotRecord& r = a.slots[s];
    if (r.used.load(std::memory_order_acquire)) start_drain(r);
    const bool done = device_done(f.get(), s, r);
    KVSHM_STEP("slot.locked");
    // M:slots.3
    const ReapCounts c = scrub_slot(a, s, done);
    // M:slots.2 M:fill.22
    if (!done || !c.clean) {
      unlock_byte(f.get(), life_byte(s));
      continue;
    }
    if (int e = keep_description(a, f.get(), &a.anchor)) return e;
    KVSHM_STEP("slot.kept");
    a.slot = s;
    a.me = holder_bit(s);
    a.mine = &r;
    a.my_regions = a.regions_of(s);
    if (r.used.load(std::memory_order_relaxed)) {  // its owner died: this was a reap
      a.count(kStat_reaped_slots_total);
      a.count(kStat_reaped_holds_total, c.holds);
      a.count(kStat_reaped_fills_total, c.fills);
      tell_gone(a, r, c);
      count_again(a);
    }
    write_identity(a, o);
    return 0;
  }
  return no_slot(a);
}

void give_back(Arena& a) {
  scrub_slot(a, a.slot, true);  // no ring, no copy of ours runs any more: all of it is given back
  for (auto& l : a.mine->leases) l.count.store(0, std::memory_order_relaxed);
}

void leave_slot(Arena& a) {
  if (!a.anchor) return;
  ForkGuard no_fork;
  KVSHM_STEP("slot.leave");
  give_back(a);
  KVSHM_STEP("slot.unuse");
  a.mine->used.store(0, std::memory_order_release);
  KVSHM_STEP("slot.unused");
  munmap(a.anchor, a.anchor_bytes);  // the kernel drops the life byte
  a.anchor = nullptr;
}

int reap_dead(Arena& a, kvshm_reap_report* report) {
  bool any = false;
  for (unsigned s = 0; s < kSlots && !any; s++)
    any = s != a.slot && a.slots[s].used.load(std::memory_order_acquire);
  if (!any) return 0;
  bool cleared = false;
  ForkGuard no_fork;
  File f(open_object(a, O_RDWR));
  if (!f) return -ESTALE;
  for (unsigned s = 0; s < kSlots; s++) {
    SlotRecord& r = a.slots[s];
    if (s == a.slot || !r.used.load(std::memory_order_acquire)) continue;
    if (byte_locked(f.get(), life_byte(s)) != 0) continue;
    // A description of its own for each reap: it never conflicts with itself.
    File own(open_object(a, O_RDWR));
    // M:slots.8 M:life.3
    if (!own || lock_byte(own.get(), true, life_byte(s)) != 0) continue;
    if (!r.used.load(std::memory_order_acquire)) continue;
    if (KVSHM_BROKEN(reap_unlocked)) unlock_byte(own.get(), life_byte(s));
    KVSHM_STEP("reap.locked");
    start_drain(r);
    const bool done = device_done(own.get(), s, r);
    // M:slots.9
    const ReapCounts c = scrub_slot(a, s, done);
    if (report) {
      report->slots_dead++;
      report->holds += c.holds;
      report->fills += c.fills;
      report->evictions += c.evictions;
      ++(c.clean && done ? report->slots_cleared : report->slots_draining);
    }
    a.count(kStat_reaped_holds_total, c.holds);
    a.count(kStat_reaped_fills_total, c.fills);
    if (!c.clean || !done) continue;
    KVSHM_STEP("reap.drained");
    r.drain_until.store(0, std::memory_order_relaxed);
    KVSHM_STEP("reap.unuse");
    r.used.store(0, std::memory_order_release);
    KVSHM_STEP("reap.done");
    a.count(kStat_reaped_slots_total);
    tell_gone(a, r, c);
    cleared = true;
  }
  // Who died between a count and its block left the count wrong.
  if (cleared) count_again(a);
  return 0;
}

ReapCounts scrub_slot(Arena& a, unsigned slot, bool device_free) {
  ReapCounts total;
  auto* regions = a.regions_of(slot);
  for (std::uint64_t word = 0; word < a.geometry.region_words; word++) {
    std::uint64_t bits = regions[word].load(std::memory_order_seq_cst);
    while (bits) {
      const std::uint64_t bit = bits & -bits;
      const std::uint32_t region = std::uint32_t(word * 64 + __builtin_ctzll(bits));
      bits ^= bit;
      ReapCounts here;
      const std::uint64_t first = std::uint64_t{region} * kRegionBlocks;
      if (first >= a.nblocks) {  // damage: nobody enters a region that does not exist
        regions[word].fetch_and(~bit, std::memory_order_seq_cst);
        continue;
      }
      for (std::uint64_t id = first; id < first + kRegionBlocks && id < a.nblocks; id++) {
        Hot& h = a.hot[id];
        const word_t w = h.word.load(std::memory_order_acquire);
        if (w & holder_bit(slot)) {
          reap_block(a, std::uint32_t(id), slot, device_free, &here);
        } else if (!KVSHM_BROKEN(hints_not_scrubbed) && state(w) == kFree &&
                   !(a.free_map[id / 64].load(std::memory_order_relaxed) >> (id % 64) & 1)) {
          KVSHM_STEP("scrub.hint");
          // M:freemap.7
          mark_free(a, std::uint32_t(id));  // who died between hint and claim left it missing
        }
      }
      // M:freemap.8
      if (!KVSHM_BROKEN(summary_not_scrubbed)) summarize(a, region);
      total.holds += here.holds;
      total.fills += here.fills;
      total.evictions += here.evictions;
      if (!here.clean) {
        total.clean = false;
        continue;
      }
      KVSHM_STEP("scrub.region");
      // M:freemap.9
      regions[word].fetch_and(~bit, std::memory_order_seq_cst);
    }
  }
  return total;
}

void fill_process(Arena& a, unsigned slot, kvshm_process* out) {
  const SlotRecord& r = a.slots[slot];
  const std::size_t size = out->size;
  *out = {};
  out->size = size;
  out->slot = slot;
  out->used = r.used.load(std::memory_order_acquire);
  out->self = slot == a.slot;
  out->pid = r.pid;
  out->uid = r.uid;
  out->start_time = r.start_time;
  out->attached_at = r.attached_at;
  out->pid_ns = r.pid_ns;
  std::memcpy(out->label, r.label, sizeof out->label);
  out->label[sizeof out->label - 1] = 0;
  const std::uint32_t device = r.device_memory.load(std::memory_order_relaxed);
  out->device_memory = device & DeviceWord::kMark;
  out->device_state = DeviceWord::state(device);
  out->device_bytes = r.device_bytes.load(std::memory_order_relaxed);
  const std::uint64_t epoch = a.sb->epochs[slot].load(std::memory_order_relaxed);
  out->with_identity = epoch >> 32 != 0;
  out->epoch = std::uint32_t(epoch);
  File f(open_object(a, O_RDONLY));
  if (!f) return;
  out->alive = byte_locked(f.get(), life_byte(slot)) == 1;
  out->device_busy = byte_locked(f.get(), device_byte(slot)) == 1;
  const std::uint64_t until = r.drain_until.load(std::memory_order_acquire);
  out->draining = out->used && !out->alive && until && std::uint64_t(boottime_ms()) < until;
}

}  // namespace kvshm
