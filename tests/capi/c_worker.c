/* SPDX-License-Identifier: Apache-2.0
 *
 * A process in C99 that shares blocks with others, told what to do line by line on stdin. Each
 * command is answered by one line: "ok ..." or "error CODE what".
 *
 *   open NAME         attach                            ok BLOCKS BLOCK_BYTES
 *   put KEY BYTE      a block full of BYTE (0-255)      ok ID
 *   get KEY           is it there, and the same all through?   ok BYTE | ok miss | ok torn
 *   hold KEY          hold it until the end             ok ID
 *   evictloop N       N new blocks, one after the other: the oldest must give way
 *                                                       ok NEW_EVICTIONS
 *   stat              ok TOTAL FREE INACTIVE HELD FILLING SLOTS REAPED_SLOTS
 *   valid             ok BROKEN_INVARIANTS
 *   quit              detach                            ok
 */
#include <kvshm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvshm_arena* arena;
static kvshm_info info;

static int failed(const char* what, int64_t rc) {
  printf("error %d %s: %s (%s)\n", (int)rc, what, kvshm_strerror((int)rc), kvshm_last_error());
  return 1;
}

static int key_from_hex(const char* hex, kvshm_key key) {
  size_t i;

  if (strlen(hex) != 2 * KVSHM_KEY_BYTES) return -1;
  for (i = 0; i < KVSHM_KEY_BYTES; i++) {
    unsigned byte;
    if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return -1;
    key[i] = (uint8_t)byte;
  }
  return 0;
}

static int put(const kvshm_key key, int byte, uint32_t* id, kvshm_evicted* evicted) {
  kvshm_handle block;
  kvshm_fill_options options = KVSHM_FILL_OPTIONS_INIT;
  int64_t rc;

  options.timeout_ms = 5000;
  rc = kvshm_allocate(arena, 1, (const kvshm_key*)key, &options, &block, NULL, evicted);
  if (rc) return failed("allocate", rc);
  memset(kvshm_block_data(arena, block.id), byte, (size_t)info.block_bytes);
  rc = kvshm_register(arena, &block, 1, NULL, KVSHM_REJECT, &block, NULL);
  if (rc != 1) return failed("register", rc);
  *id = block.id;
  rc = kvshm_drop(arena, &block, 1);
  return rc ? failed("drop", rc) : 0;
}

static void do_open(const char* name) {
  kvshm_options options = KVSHM_OPTIONS_INIT;
  int rc = kvshm_attach(&arena, name, &options);

  if (rc) {
    failed("attach", rc);
    return;
  }
  info.size = sizeof info;
  rc = kvshm_get_info(arena, &info);
  if (rc)
    failed("info", rc);
  else
    printf("ok %llu %llu\n", (unsigned long long)info.blocks, (unsigned long long)info.block_bytes);
}

static void do_put(const char* hex, const char* byte) {
  kvshm_key key;
  uint32_t id;

  if (key_from_hex(hex, key))
    puts("error 0 not a key");
  else if (put((const uint8_t*)key, atoi(byte), &id, NULL) == 0)
    printf("ok %u\n", (unsigned)id);
}

static void do_get(const char* hex) {
  kvshm_key key;
  kvshm_lease lease;
  uint32_t id;
  const unsigned char* p;
  uint64_t i;
  int64_t rc;

  if (key_from_hex(hex, key)) {
    puts("error 0 not a key");
    return;
  }
  rc = kvshm_match(arena, (const kvshm_key*)&key, 1, &id, &lease);
  if (rc < 0) {
    failed("match", rc);
    return;
  }
  if (rc == 0) {
    puts("ok miss");
    return;
  }
  p = kvshm_block_data(arena, id);
  for (i = 1; i < info.block_bytes && p[i] == p[0]; i++) {
  }
  if (i == info.block_bytes)
    printf("ok %u\n", (unsigned)p[0]);
  else
    puts("ok torn");
  rc = kvshm_release(arena, lease);
  if (rc) failed("release", rc);
}

static void do_hold(const char* hex) {
  kvshm_key key;
  kvshm_handle block;
  int rc;

  if (key_from_hex(hex, key)) {
    puts("error 0 not a key");
    return;
  }
  rc = kvshm_acquire(arena, key, 0, &block);
  if (rc)
    failed("acquire", rc);
  else
    printf("ok %u\n", (unsigned)block.id);
}

static void do_evictloop(int n) {
  static uint64_t next = 1;
  uint64_t gone = 0;
  int i;

  for (i = 0; i < n; i++, next++) {
    kvshm_key key, went[4];
    kvshm_evicted evicted;
    uint32_t id;

    memset(key, 0xc9, sizeof key);
    memcpy(key, &next, sizeof next);
    evicted.size = sizeof evicted;
    evicted.keys = went;
    evicted.cap = 4;
    evicted.count = 0;
    if (put((const uint8_t*)key, (int)(next & 255), &id, &evicted)) return;
    gone += evicted.count;
  }
  printf("ok %llu\n", (unsigned long long)gone);
}

static void do_stat(void) {
  kvshm_stats s;
  int rc;

  s.size = sizeof s;
  rc = kvshm_get_stats(arena, &s);
  if (rc)
    failed("stats", rc);
  else
    printf("ok %llu %llu %llu %llu %llu %llu %llu\n", (unsigned long long)s.blocks_total,
           (unsigned long long)s.blocks_free, (unsigned long long)s.blocks_inactive,
           (unsigned long long)s.blocks_held, (unsigned long long)s.blocks_filling,
           (unsigned long long)s.slots_used, (unsigned long long)s.reaped_slots_total);
}

int main(void) {
  char line[256], verb[32], first[128], second[32];

  while (fgets(line, sizeof line, stdin)) {
    const int words = sscanf(line, "%31s %127s %31s", verb, first, second);

    if (words >= 2 && strcmp(verb, "open") == 0) {
      do_open(first);
    } else if (words >= 1 && strcmp(verb, "quit") == 0) {
      const int rc = kvshm_close(arena, 2000);
      if (rc) return failed("close", rc);
      puts("ok");
      return 0;
    } else if (words == 3 && strcmp(verb, "put") == 0) {
      do_put(first, second);
    } else if (words >= 2 && strcmp(verb, "get") == 0) {
      do_get(first);
    } else if (words >= 2 && strcmp(verb, "hold") == 0) {
      do_hold(first);
    } else if (words >= 2 && strcmp(verb, "evictloop") == 0) {
      do_evictloop(atoi(first));
    } else if (words >= 1 && strcmp(verb, "stat") == 0) {
      do_stat();
    } else if (words >= 1 && strcmp(verb, "valid") == 0) {
      printf("ok %d\n", (int)kvshm_is_valid(arena, NULL, NULL));
    } else {
      puts("error 0 what?");
    }
    fflush(stdout);
  }
  return 0;
}
