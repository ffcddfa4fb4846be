#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "arena/attach.hpp"
#include "arena/foreign.hpp"
#include "arena/lock.hpp"
#include "arena/object.hpp"
#include "arena/pages.hpp"
#include "capi/call.hpp"
#include "capi/closing.hpp"
#include "device/guard.hpp"
#include "device/pin.hpp"
#include "tier/tier.hpp"

using namespace kvshm;

namespace {

// Shells are never freed, and a leak checker shall find them.
std::atomic<kvshm_arena*> shells{nullptr};

kvshm_arena* keep(kvshm_arena* h) {
  h->next = shells.load(std::memory_order_relaxed);
  while (!shells.compare_exchange_weak(h->next, h, std::memory_order_release)) {
  }
  return h;
}

int open_as(Mode mode, kvshm_arena** out, const char* name, const kvshm_options* opts) {
  const int saved = errno;
  forget_error();
  if (!out || !name) return fail(-EINVAL, "out and name must not be NULL");
  *out = nullptr;
  kvshm_options o = KVSHM_OPTIONS_INIT;
  if (opts) {
    if (opts->size < offsetof(kvshm_options, quota) || opts->size > 4096)
      return fail(-EINVAL, "kvshm_options.size is %zu, wanted %zu: use KVSHM_OPTIONS_INIT",
                  opts->size, sizeof o);
    std::memcpy(&o, opts, opts->size < sizeof o ? opts->size : sizeof o);
  }
  if (o.pin > KVSHM_OFF || o.huge > KVSHM_OFF)
    return fail(-EINVAL, "pin and huge take KVSHM_AUTO, KVSHM_REQUIRE or KVSHM_OFF");
  char automatic[KVSHM_NAME_MAX + 1];
  if (std::strcmp(name, "auto") == 0) {
    const std::int64_t n = kvshm_auto_name(o.identity, automatic, sizeof automatic);
    if (n < 0) return int(n);
    name = automatic;
  }
  if (int rc = check_name(name)) return rc;
  int rc;
  try {
    std::unique_ptr<kvshm_arena> shell(new kvshm_arena);
    shell->fork_generation = fork_generation();
    rc = bring_up(mode, name, o, &shell->impl);
    if (rc == 0 && shell->impl->quota) shell->solo.never();  // the short way counts no quota
    if (rc == 0) *out = keep(shell.release());
  } catch (const std::bad_alloc&) {
    rc = fail(-ENOMEM, "out of memory");
  } catch (...) {
    rc = fail(-EIO, "unexpected failure while opening arena %s", name);
  }
  errno = saved;
  return rc;
}

std::int64_t calls_running(kvshm_arena* h) {
  std::int64_t n = 0;
  for (auto& s : h->stripes) n += s.calls.load(std::memory_order_seq_cst);
  return n;
}

// Under close_mutex, when no call runs any more.
int end_of(kvshm_arena* h, std::int64_t deadline) {
  if (!h->taking_down) {
    if (!h->impl->pin->active()) {
      take_down(*h->impl);
      h->impl.reset();
      return 0;
    }
    h->taking_down.reset(new (std::nothrow) Closing(std::move(h->impl)));
    if (!h->taking_down) return -ENOMEM;
    h->taking_down->start();
  }
  if (!h->taking_down->wait(deadline))
    return fail(-EBUSY,
                "its memory is still being unregistered with a device; all else is given "
                "back, and closing once more waits for the end");
  h->taking_down.reset();
  return 0;
}

}  // namespace

kvshm_arena::kvshm_arena() = default;
kvshm_arena::~kvshm_arena() = default;

extern "C" {

int kvshm_open(kvshm_arena** out, const char* name, const kvshm_options* opts) {
  return open_as(Mode::kOpen, out, name, opts);
}
int kvshm_create(kvshm_arena** out, const char* name, const kvshm_options* opts) {
  return open_as(Mode::kCreate, out, name, opts);
}
int kvshm_attach(kvshm_arena** out, const char* name, const kvshm_options* opts) {
  return open_as(Mode::kAttach, out, name, opts);
}

int kvshm_close(kvshm_arena* h, uint32_t timeout_ms) {
  forget_error();
  if (!h || h->magic.load(std::memory_order_relaxed) != kvshm_arena::kAlive) return -EINVAL;
  if (h->fork_generation != fork_generation()) return -KVSHM_EFORKED;
  const int saved = errno;
  const std::int64_t deadline = now_ms() + timeout_ms;
  std::unique_lock<std::mutex> lock(h->close_mutex, std::defer_lock);
  while (!lock.try_lock()) {  // another thread's close, which may have been given more time
    if (now_ms() >= deadline) {
      errno = saved;
      return fail(-EBUSY, "another thread is closing this handle");
    }
    sleep_ms(1);
  }
  if (h->closing.exchange(true, std::memory_order_seq_cst) && !h->taking_down)
    return -KVSHM_ECLOSED;
  bool ended = false;
  while (!h->taking_down && (!(ended = ended || h->solo.end(1)) || calls_running(h))) {
    if (now_ms() >= deadline) {
      h->closing.store(false, std::memory_order_seq_cst);
      errno = saved;
      return fail(-EBUSY, "%lld call(s) still run on this handle", (long long)calls_running(h));
    }
    sleep_ms(1);
  }
  // No transfer of its tier may be left; a tier that cannot end yet goes on ending by itself.
  if (h->tier_owner) {
    if (!h->tier_owner->stop(deadline)) {
      h->closing.store(false, std::memory_order_seq_cst);
      errno = saved;
      return fail(-EBUSY, "transfers of the tier of arena %s are still under way",
                  h->impl->name.c_str());
    }
    h->tier.store(nullptr, std::memory_order_relaxed);
    h->tier_owner.reset();
  }
  // Its fills are given back below: no ring may write into them any more.
  while (!h->taking_down && !device_idle(*h->impl)) {
    if (now_ms() >= deadline) {
      h->closing.store(false, std::memory_order_seq_cst);
      errno = saved;
      return fail(-EBUSY, "an io_uring that was guarded for arena %s is still there: end it first",
                  h->impl->name.c_str());
    }
    sleep_ms(1);
  }
  const int rc = end_of(h, deadline);
  if (rc == -ENOMEM) h->closing.store(false, std::memory_order_seq_cst);
  errno = saved;
  return rc;
}

int kvshm_remove(const char* name, const char* dir, int force) {
  const int saved = errno;
  forget_error();
  int rc;
  try {
    rc = remove_object(name, dir, force != 0);
    if (!rc) rc = tier::remove_image(name, dir, force != 0);
  } catch (...) {
    rc = -ENOMEM;
  }
  errno = saved;
  return rc;
}

int64_t kvshm_auto_name(const kvshm_identity* id, char* buf, size_t cap) {
  if (!buf) return -EINVAL;
  char tail[17] = "raw";
  if (id) {
    std::uint8_t key[32], fingerprint[16];
    if (int rc = kvshm_identity_derive(id, key, fingerprint)) return rc;
    for (int i = 0; i < 8; i++) std::snprintf(tail + 2 * i, 3, "%02x", fingerprint[i]);
  }
  const int n = std::snprintf(buf, cap, "u%u-%s", unsigned(getuid()), tail);
  return n >= int(cap) ? -ENOSPC : n;
}

int kvshm_get_info(kvshm_arena* h, kvshm_info* out) {
  if (int rc = check_size(out)) return rc;
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  const Arena& a = *call;
  clear_sized(out);
  out->bytes = a.geometry.bytes;
  out->block_bytes = a.block_bytes;
  out->blocks = a.nblocks;
  out->data_offset = a.geometry.data_off;
  out->metadata_bytes = a.geometry.data_off;
  out->private_bytes = std::uint64_t(a.nblocks) * 4;
  std::memcpy(out->uuid, a.sb->uuid, 16);
  std::memcpy(out->fingerprint, a.sb->fingerprint, 16);
  out->page_bytes = a.page_bytes;
  out->slot = a.slot;
  for (unsigned s = 0; s < kSlots; s++) out->slots_used += a.slots[s].used.load() != 0;
  out->pinned = a.pinned;
  out->created = a.created;
  out->raw = a.sb->raw;
  out->numa = measured_node(a);
  std::snprintf(out->name, sizeof out->name, "%s", a.name.c_str());
  std::snprintf(out->path, sizeof out->path, "%s", a.path.c_str());
  std::snprintf(out->identity, sizeof out->identity, "%.*s", int(sizeof a.sb->identity),
                a.sb->identity);
  std::snprintf(out->charged_group, sizeof out->charged_group, "%.*s",
                int(sizeof a.sb->charged_group), a.sb->charged_group);
  out->foreign_at = a.sb->foreign.at.load(std::memory_order_relaxed);
  out->foreign_pid = a.sb->foreign.pid.load(std::memory_order_relaxed);
  read_foreign(a.sb->foreign, out->foreign_identity);
  return 0;
}
}
