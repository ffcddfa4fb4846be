/* SPDX-License-Identifier: Apache-2.0 */
#include "mock_pin.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096u
#define RANGES 8192

struct range {
  uintptr_t from, to; /* whole pages */
  int foreign;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct mock_setting setting;
static struct mock_seen seen;
static struct range ranges[RANGES];
static unsigned nranges;
static uintptr_t data_from, data_to;
static void (*on_register)(void);

static void sleep_ns(uint64_t ns) {
  struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  while (nanosleep(&t, &t)) {
  }
}

static int refuse(int code) {
  seen.pending = 1;
  return code;
}

static struct range* overlapping(uintptr_t from, uintptr_t to) {
  for (unsigned i = 0; i < nranges; i++)
    if (ranges[i].from < to && from < ranges[i].to) return &ranges[i];
  return 0;
}

static void add(uintptr_t from, uintptr_t to, int foreign) {
  if (nranges == RANGES) return;
  ranges[nranges].from = from;
  ranges[nranges].to = to;
  ranges[nranges++].foreign = foreign;
  seen.ranges += !foreign;
  seen.foreign_ranges += foreign != 0;
  if (!foreign) seen.bytes += to - from;
}

struct mock_setting* mock_set(void) { return &setting; }

struct mock_seen mock_look(void) {
  struct mock_seen s;
  pthread_mutex_lock(&mutex);
  s = seen;
  pthread_mutex_unlock(&mutex);
  return s;
}

void mock_reset(void) {
  pthread_mutex_lock(&mutex);
  memset(&setting, 0, sizeof setting);
  memset(&seen, 0, sizeof seen);
  nranges = 0;
  data_from = data_to = 0;
  on_register = 0;
  pthread_mutex_unlock(&mutex);
}

void mock_blocks(const void* data, uint64_t bytes, uint64_t block_bytes) {
  data_from = (uintptr_t)data;
  data_to = data_from + bytes;
  setting.block_bytes = block_bytes;
}

void mock_foreign(const void* at, size_t bytes) {
  uintptr_t from = (uintptr_t)at / PAGE * PAGE;
  uintptr_t to = ((uintptr_t)at + bytes + PAGE - 1) / PAGE * PAGE;
  pthread_mutex_lock(&mutex);
  add(from, to, 1);
  pthread_mutex_unlock(&mutex);
}

void mock_on_register(void (*fn)(void)) { on_register = fn; }

static int decide(uintptr_t at, size_t bytes) {
  uintptr_t from = at / PAGE * PAGE, to = (at + bytes + PAGE - 1) / PAGE * PAGE;
  seen.registers++;
  seen.leaked += seen.pending;
  seen.unaligned += at % PAGE != 0 || bytes % PAGE != 0;
  if (bytes > seen.largest) seen.largest = bytes;
  if (setting.block_bytes && data_from <= at && at < data_to) {
    uintptr_t end = at + bytes;
    seen.straddles += (at - data_from) % setting.block_bytes != 0 ||
                      (end < data_to && (end - data_from) % setting.block_bytes != 0);
  }
  if (setting.gone) return refuse(KVSHM_DEVICE_GONE);
  if (setting.cap && bytes > setting.cap) return refuse(MOCK_TOO_LARGE);
  if (overlapping(from, to)) {
    seen.already++;
    return refuse(KVSHM_DEVICE_ALREADY);
  }
  if (setting.fail_only == seen.registers) return refuse(MOCK_NO_MEMORY);
  if (setting.fail_from && seen.ranges + 1 >= setting.fail_from) return refuse(MOCK_NO_MEMORY);
  add(from, to, 0);
  return KVSHM_DEVICE_OK;
}

int mock_register(void* user, void* data, size_t bytes) {
  int rc;
  (void)user;
  if (on_register) on_register();
  pthread_mutex_lock(&mutex);
  seen.busy = 1;
  rc = decide((uintptr_t)data, bytes);
  if (rc != KVSHM_DEVICE_OK && rc != KVSHM_DEVICE_ALREADY) seen.refusals++;
  pthread_mutex_unlock(&mutex);
  if (rc == KVSHM_DEVICE_OK && setting.bytes_per_second)
    sleep_ns(bytes * 1000 / setting.bytes_per_second * 1000000u);
  pthread_mutex_lock(&mutex);
  seen.busy = 0;
  pthread_mutex_unlock(&mutex);
  return rc;
}

static int forget(uintptr_t at) {
  unsigned char there;
  seen.unregisters++;
  seen.unmapped += mincore((void*)at, PAGE, &there) != 0;
  seen.leaked += seen.pending;
  if (setting.gone) return refuse(KVSHM_DEVICE_GONE);
  if (setting.broken) return refuse(MOCK_BROKEN);
  for (unsigned i = 0; i < nranges; i++) {
    if (ranges[i].from != at) continue;
    if (ranges[i].foreign) seen.foreign_undone++;
    seen.ranges -= !ranges[i].foreign;
    if (!ranges[i].foreign) seen.bytes -= ranges[i].to - ranges[i].from;
    ranges[i] = ranges[--nranges];
    return KVSHM_DEVICE_OK;
  }
  seen.unknown++;
  return refuse(MOCK_UNKNOWN);
}

int mock_unregister(void* user, void* data) {
  int rc;
  (void)user;
  pthread_mutex_lock(&mutex);
  seen.busy = 1;
  pthread_mutex_unlock(&mutex);
  sleep_ns(setting.unregister_ms * 1000000u);
  pthread_mutex_lock(&mutex);
  rc = forget((uintptr_t)data);
  seen.busy = 0;
  pthread_mutex_unlock(&mutex);
  return rc;
}

int mock_covers(void* user, const void* data, size_t bytes) {
  uintptr_t at = (uintptr_t)data, end = at + bytes;
  int all = 1;
  (void)user;
  if (setting.blind) return -1;
  pthread_mutex_lock(&mutex);
  while (at < end) {
    struct range* r = overlapping(at, at + 1);
    if (!r) {
      all = 0;
      break;
    }
    at = r->to;
  }
  pthread_mutex_unlock(&mutex);
  return all;
}

void mock_clear_error(void* user) {
  (void)user;
  pthread_mutex_lock(&mutex);
  seen.pending = 0;
  pthread_mutex_unlock(&mutex);
}

const char* mock_error_text(void* user, int code) {
  (void)user;
  return code == MOCK_TOO_LARGE   ? "larger than the cap"
         : code == MOCK_NO_MEMORY ? "out of device memory"
         : code == MOCK_BROKEN    ? "the context is broken"
                                  : 0;
}

void mock_finish(void* user) {
  (void)user;
  pthread_mutex_lock(&mutex);
  seen.finished++;
  pthread_mutex_unlock(&mutex);
}

kvshm_device_backend mock_backend = {sizeof(kvshm_device_backend),
                                     "mock",
                                     0,
                                     0,
                                     mock_register,
                                     mock_unregister,
                                     mock_covers,
                                     mock_clear_error,
                                     mock_error_text,
                                     mock_finish};
