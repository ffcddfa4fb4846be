/* SPDX-License-Identifier: Apache-2.0
 *
 * Publishes blocks and looks at those that others publish, as fast as it can, in an arena so small
 * that every block is soon in its next life. What it sees of a block must be of one life: the index
 * entry that led to it, the key and the life number in its header, and every word of its payload,
 * which is a function of both.
 *
 *   order NAME CPU SECONDS [early]
 *
 * Goes on until a byte comes on stdin, or SECONDS are over; a line of JSON about five times a
 * second and at the end. "early": publishes first and writes then, which must be noticed.
 */
#define _GNU_SOURCE
#include <kvshm.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEYS = 32, WORDS = 32, PUBLISHED_A_TURN = 12, BLOCKS_MAX = 1024 };

static struct {
  uint64_t published, observed, fresh; /* fresh: first sight of a life that another process made */
  uint64_t stale, torn, header, backwards, failed;
} seen;
static uint64_t last_life[BLOCKS_MAX], last_count[KEYS][KVSHM_SLOTS], my_count[KEYS];
static kvshm_key keys[KEYS];
static kvshm_arena *arena;
static kvshm_info info;

static uint64_t mix(uint64_t v) { /* the finaliser of splitmix64 */
  v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9u;
  v = (v ^ (v >> 27)) * 0x94d049bb133111ebu;
  return v ^ (v >> 31);
}

static uint64_t random_state;
static uint64_t random_number(void) { return mix(random_state += 0x9e3779b97f4a7c15u); }

/* Payload: life, key, who wrote it, its how-manieth of that key, and the rest by these four. */
static void fill_in(volatile uint64_t *to, uint64_t life, unsigned key) {
  const uint64_t who = info.slot, count = ++my_count[key];
  unsigned i;
  to[0] = life;
  to[1] = key;
  to[2] = who;
  to[3] = count;
  for (i = 4; i < WORDS; i++) to[i] = mix(life + (key << 8) + (who << 16) + (count << 24) + i);
}

static void check(const volatile uint64_t *p, const kvshm_handle *h, unsigned key) {
  const uint64_t life = p[0], who = p[2], count = p[3];
  kvshm_block_info block = KVSHM_BLOCK_INFO_INIT;
  unsigned i;
  seen.observed++;
  if (life != h->seq || p[1] != key) {
    seen.stale++;
    return;
  }
  for (i = 4; i < WORDS; i++)
    if (p[i] != mix(life + (key << 8) + (who << 16) + (count << 24) + i)) {
      seen.torn++;
      return;
    }
  if (who == info.slot || last_life[h->id] == life) return;
  seen.fresh++;
  last_life[h->id] = life;
  /* A key has one block at a time: who saw a later one never sees an earlier one again. */
  if (count < last_count[key][who]) seen.backwards++;
  last_count[key][who] = count;
  if (kvshm_get_block(arena, h->id, &block) || block.seq != life ||
      memcmp(block.key, keys[key], sizeof(kvshm_key)) || block.state != KVSHM_READY ||
      !(block.holders >> info.slot & 1))
    seen.header++;
}

static void publish(int early) {
  const unsigned key = (unsigned)(random_number() % KEYS);
  kvshm_handle h;
  uint64_t *data;
  uint8_t status;
  if (kvshm_allocate(arena, 1, (const kvshm_key *)keys[key], NULL, &h, &status, NULL)) return;
  if (status != KVSHM_ST_ANNOUNCED) { /* another process has it, or is at it */
    if (kvshm_abort(arena, &h, 1)) seen.failed++;
    return;
  }
  data = kvshm_block_data(arena, h.id);
  if (!early) fill_in(data, h.seq, key);
  if (kvshm_register(arena, &h, 1, NULL, KVSHM_REJECT, &h, &status) != 1) {
    seen.failed++;
    return;
  }
  if (early) fill_in(data, h.seq, key);
  seen.published += status == KVSHM_ST_PRIMARY;
  if (kvshm_drop(arena, &h, 1)) seen.failed++;
}

static void look(unsigned key) {
  kvshm_handle h;
  uint32_t id;
  kvshm_lease lease;
  if (random_number() & 1) { /* one by one, or as a prefix of one */
    if (kvshm_acquire(arena, keys[key], KVSHM_NO_TOUCH, &h)) return;
    check(kvshm_block_data(arena, h.id), &h, key);
    if (kvshm_drop(arena, &h, 1)) seen.failed++;
  } else {
    if (kvshm_match(arena, (const kvshm_key *)keys[key], 1, &id, &lease) != 1) return;
    if (kvshm_handle_of(arena, id, &h)) seen.failed++;
    check(kvshm_block_data(arena, id), &h, key);
    if (kvshm_release(arena, lease)) seen.failed++;
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void report(int last) {
#define N(name) (unsigned long long)seen.name
  printf("{\"published\": %llu, \"observed\": %llu, \"fresh\": %llu, \"stale\": %llu, "
         "\"torn\": %llu, \"header\": %llu, \"backwards\": %llu, \"failed\": %llu, \"last\": %d}\n",
         N(published), N(observed), N(fresh), N(stale), N(torn), N(header), N(backwards),
         N(failed), last);
#undef N
  fflush(stdout);
}

int main(int argc, char **argv) {
  kvshm_options options = KVSHM_OPTIONS_INIT;
  struct pollfd input = {0, POLLIN, 0};
  const struct timespec moment = {0, 20000};
  cpu_set_t cpus;
  double end, next;
  int early, turns, i;
  if (argc < 4) return 2;
  early = argc > 4 && strcmp(argv[4], "early") == 0;
  CPU_ZERO(&cpus);
  CPU_SET(atoi(argv[2]), &cpus);
  sched_setaffinity(0, sizeof cpus, &cpus); /* where it may not: wherever it runs */
  options.flags = KVSHM_NO_HELPER;
  if (kvshm_attach(&arena, argv[1], &options) || (info.size = sizeof info, 0) ||
      kvshm_get_info(arena, &info) || info.blocks > BLOCKS_MAX ||
      info.block_bytes != WORDS * sizeof(uint64_t)) {
    fprintf(stderr, "order: %s\n", kvshm_last_error());
    return 1;
  }
  for (i = 0; i < KEYS; i++) {
    const uint64_t key[2] = {mix((uint64_t)i + 1), mix((uint64_t)i + 1001)};
    memcpy(keys[i], key, sizeof key);
  }
  random_state = info.slot * 0x1234567u;
  report(0); /* attached */
  if (poll(&input, 1, 60000) != 1 || getchar() != 'g') return 1; /* all begin together */
  end = now() + atof(argv[3]);
  for (next = now() + 0.2; now() < end && poll(&input, 1, 0) == 0;) {
    for (turns = 0; turns < 50; turns++) {
      const uint64_t before = seen.fresh;
      for (i = 0; i < PUBLISHED_A_TURN; i++) publish(early);
      for (i = 0; i < KEYS; i++) look((unsigned)i);
      /* Who shares this processor gets on in the midst of it, and sees what came since. Where
       * nobody else has published anything, they all wait for a processor: make room. */
      if (seen.fresh != before)
        sched_yield();
      else
        nanosleep(&moment, NULL);
    }
    if (now() >= next) {
      report(0);
      next = now() + 0.2;
    }
  }
  report(1);
  return kvshm_close(arena, 5000) ? 1 : 0;
}
