/* SPDX-License-Identifier: Apache-2.0
 *
 * The public header and the shared library from strict C99: a block through its whole life, single
 * and in batches, and the errors on the way. No test framework: a count of what was wrong. */
#include <errno.h>
#include <kvshm.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS 8
#define BLOCK_BYTES 1024

static int bad;

static void expect(int line, const char* what, int64_t got, int64_t want) {
  if (got == want) return;
  bad++;
  fprintf(stderr, "line %d: %s = %lld, not %lld: %s\n", line, what, (long long)got, (long long)want,
          kvshm_last_error());
}
#define EXPECT(expression, want) expect(__LINE__, #expression, (int64_t)(expression), (want))

static void key_of(unsigned n, kvshm_key key) {
  memset(key, 0, KVSHM_KEY_BYTES);
  key[0] = (uint8_t)(n + 1);
  key[15] = (uint8_t)(n * 7 + 3);
}

static uint64_t free_blocks(kvshm_arena* a) {
  kvshm_stats s;
  s.size = sizeof s;
  EXPECT(kvshm_get_stats(a, &s), 0);
  return s.blocks_free;
}

static void one_block(kvshm_arena* a) {
  kvshm_key key;
  kvshm_handle block, again;
  char text[] = "written in C99", back[sizeof text];
  uint8_t result, mask;

  key_of(1, key);
  EXPECT(kvshm_acquire(a, key, 0, &again), -ENOENT);
  EXPECT(kvshm_allocate(a, 1, (const kvshm_key*)&key, NULL, &block, &result, NULL), 0);
  EXPECT(result, KVSHM_ST_ANNOUNCED);
  EXPECT(kvshm_presence(a, (const kvshm_key*)&key, 1, &mask), 1);
  EXPECT(mask, KVSHM_IS_FILLING);
  EXPECT(kvshm_acquire(a, key, 0, &again), -KVSHM_EPENDING);
  EXPECT(again.id, block.id);
  EXPECT(kvshm_wait(a, again, 5), -ETIMEDOUT);
  EXPECT(kvshm_drop(a, &block, 1), -KVSHM_ESTATE);
  EXPECT(kvshm_copy_out(a, block, 0, back, sizeof back), -KVSHM_ESTATE);
  EXPECT(kvshm_copy_in(a, block, BLOCK_BYTES, text, 1), -ERANGE);
  EXPECT(kvshm_copy_in(a, block, 16, text, sizeof text), 0);
  EXPECT(kvshm_register(a, &block, 1, NULL, KVSHM_ALLOW, &block, &result), 1);
  EXPECT(result, KVSHM_ST_PRIMARY);
  EXPECT(kvshm_wait(a, block, 0), 0);
  EXPECT(kvshm_copy_in(a, block, 0, text, 1), -KVSHM_ESTATE);
  EXPECT(kvshm_copy_out(a, block, 16, back, sizeof back), 0);
  EXPECT(strcmp(text, back), 0);
  EXPECT(strcmp((const char*)kvshm_block_data(a, block.id) + 16, text), 0);
  EXPECT(kvshm_upgrade(a, block, 0), 0);
  EXPECT(kvshm_drop(a, &block, 1), 0);
  EXPECT(kvshm_drop(a, &block, 1), 0);
  EXPECT(kvshm_drop(a, &block, 1), -KVSHM_ENOTMINE);
  EXPECT(kvshm_upgrade(a, block, KVSHM_NO_TOUCH), 0);
  EXPECT(kvshm_set_no_cache(a, block, 1), 0);
  EXPECT(kvshm_drop(a, &block, 1), 0);
  EXPECT(kvshm_upgrade(a, block, 0), -ENOENT);
  EXPECT(free_blocks(a), BLOCKS);
}

static void a_batch(kvshm_arena* a) {
  kvshm_key keys[5];
  kvshm_handle blocks[5], pending;
  kvshm_lease lease, pin;
  uint32_t ids[5], which[5], epoch = 9;
  uint8_t results[5];
  unsigned i;

  for (i = 0; i < 5; i++) key_of(10 + i, keys[i]);
  EXPECT(kvshm_allocate(a, 4, (const kvshm_key*)keys, NULL, blocks, NULL, NULL), 0);
  for (i = 0; i < 4; i++) memset(kvshm_block_data(a, blocks[i].id), (int)i + 1, BLOCK_BYTES);
  EXPECT(kvshm_register(a, blocks, 4, NULL, KVSHM_REJECT, blocks, results), 4);
  EXPECT(kvshm_drop(a, blocks, 4), 0);
  EXPECT(kvshm_match(a, (const kvshm_key*)keys, 5, ids, &lease), 4);
  for (i = 0; i < 4; i++) {
    EXPECT(ids[i], blocks[i].id);
    EXPECT(((unsigned char*)kvshm_block_data(a, ids[i]))[BLOCK_BYTES - 1], i + 1);
  }
  EXPECT(kvshm_lease_ids(a, lease, NULL, 0), 4);
  EXPECT(kvshm_lease_trim(a, lease, 3), 0);
  EXPECT(kvshm_lease_ids(a, lease, ids, 5), 3);
  EXPECT(kvshm_pin(a, blocks, 4, 99, &pin), 0);
  EXPECT(kvshm_release(a, lease), 0);
  EXPECT(kvshm_release(a, lease), -EBADF);
  EXPECT(kvshm_evict(a, (const kvshm_key*)keys, 5), 0);
  EXPECT(kvshm_release(a, pin), 0);
  EXPECT(kvshm_match_with(a, (const kvshm_key*)keys, 5, KVSHM_NO_TOUCH, 1, ids, &lease, &pending),
         4);
  EXPECT(pending.seq, 0);
  EXPECT(kvshm_release(a, lease), 0);
  memcpy(keys[1], keys[0], sizeof keys[0]);
  EXPECT(kvshm_scan(a, (const kvshm_key*)keys, 5, 0, 0, ids, which, &lease), 3);
  EXPECT(which[1], 2);
  EXPECT(kvshm_release(a, lease), 0);
  EXPECT(kvshm_match_scattered(a, (const kvshm_key*)keys, 5, 0, 0, ids, &lease), 4);
  EXPECT(ids[4], KVSHM_NONE);
  EXPECT(kvshm_release(a, lease), 0);
  EXPECT(kvshm_space_epoch(a, &epoch), 0);
  EXPECT(epoch, 0);
  EXPECT(kvshm_bump_epoch(a), 1);
  EXPECT(kvshm_bump_epoch(a), 2);
  EXPECT(kvshm_space_epoch(a, &epoch), 0);
  EXPECT(epoch, 2);
  EXPECT(kvshm_space_epoch(a, NULL), -EINVAL);
  EXPECT(kvshm_clear(a), 4);
  EXPECT(free_blocks(a), BLOCKS);
}

static void a_full_arena(kvshm_arena* a) {
  kvshm_handle blocks[BLOCKS], more;
  kvshm_fill_options options = KVSHM_FILL_OPTIONS_INIT;
  kvshm_key keys[BLOCKS], gone[BLOCKS];
  kvshm_evicted evicted;
  uint64_t expected, actual;
  unsigned i;

  for (i = 0; i < BLOCKS; i++) key_of(40 + i, keys[i]);
  EXPECT(kvshm_allocate(a, BLOCKS, NULL, NULL, blocks, NULL, NULL), 0);
  EXPECT(kvshm_allocate(a, 1, NULL, NULL, &more, NULL, NULL), -KVSHM_ENOSPACE);
  EXPECT(strlen(kvshm_last_error()) > 0, 1);
  options.timeout_ms = 20;
  EXPECT(kvshm_allocate(a, 1, NULL, &options, &more, NULL, NULL), -ETIMEDOUT);
  EXPECT(kvshm_allocate(a, BLOCKS + 1, NULL, NULL, blocks, NULL, NULL), -KVSHM_ETOOLARGE);
  EXPECT(kvshm_last_refusal(), KVSHM_REFUSED_SIZE);
  EXPECT(kvshm_register(a, blocks, BLOCKS, (const kvshm_key*)keys, KVSHM_ALLOW, NULL, NULL),
         BLOCKS);
  EXPECT(kvshm_reset_inactive(a, &expected, &actual), -EBUSY);
  EXPECT(expected, BLOCKS);
  EXPECT(actual, 0);
  EXPECT(kvshm_drop(a, blocks, BLOCKS), 0);
  evicted.size = sizeof evicted;
  evicted.keys = gone;
  evicted.cap = BLOCKS;
  EXPECT(kvshm_allocate(a, 2, NULL, NULL, blocks, NULL, &evicted), 0);
  EXPECT(evicted.count, 2);
  EXPECT(kvshm_abort(a, blocks, 2), 0);
  EXPECT(kvshm_reset_inactive(a, &expected, &actual), 0);
  EXPECT(actual, BLOCKS);
}

static void a_shared_fill(kvshm_arena* a, kvshm_arena* b) {
  kvshm_fill_options options = KVSHM_FILL_OPTIONS_INIT;
  kvshm_handle block;
  kvshm_key key;

  key_of(70, key);
  options.parts = 2;
  EXPECT(kvshm_allocate(a, 1, (const kvshm_key*)&key, &options, &block, NULL, NULL), 0);
  EXPECT(kvshm_fill_join(b, block), 0);
  EXPECT(kvshm_fill_begin(a, block, 0), 0);
  EXPECT(kvshm_fill_begin(b, block, 0), -KVSHM_EPART);
  EXPECT(kvshm_fill_begin(b, block, 1), 0);
  EXPECT(kvshm_fill_arrive(a, block, 0), 0);
  EXPECT(kvshm_publish(a, block), -KVSHM_EPART);
  EXPECT(kvshm_fill_arrive(b, block, 1), 0);
  EXPECT(kvshm_publish(b, block), 0);
  EXPECT(kvshm_publish(a, block), 0);
  EXPECT(kvshm_drop(a, &block, 1), 0);
  EXPECT(kvshm_drop(b, &block, 1), 0);
  EXPECT(kvshm_evict(a, (const kvshm_key*)&key, 1), 1);
}

static void an_object(kvshm_arena* a) {
  kvshm_object *object = NULL, *found = NULL;
  kvshm_key key;
  char bytes[3 * BLOCK_BYTES - 100], back[sizeof bytes];

  key_of(90, key);
  memset(bytes, 'o', sizeof bytes);
  EXPECT(kvshm_object_get(a, key, &found), -ENOENT);
  EXPECT(kvshm_object_create(a, key, sizeof bytes, NULL, &object), 0);
  EXPECT(kvshm_object_write(object, 0, bytes, sizeof bytes), 0);
  EXPECT(kvshm_object_write(object, 1, bytes, sizeof bytes), -ERANGE);
  EXPECT(kvshm_object_commit(object), 0);
  EXPECT(kvshm_object_create(a, key, 8, NULL, &found), -EEXIST);
  EXPECT(kvshm_object_get(a, key, &found), 0);
  EXPECT(kvshm_object_bytes(found), (int64_t)sizeof bytes);
  EXPECT(kvshm_object_read(found, 0, back, sizeof back), 0);
  EXPECT(memcmp(bytes, back, sizeof bytes), 0);
  kvshm_object_close(found);
  kvshm_object_close(object);
  EXPECT(kvshm_clear(a), 3);
}

int main(void) {
  kvshm_options options = KVSHM_OPTIONS_INIT;
  kvshm_identity identity = KVSHM_IDENTITY_INIT;
  kvshm_arena *a = NULL, *b = NULL;
  kvshm_handle none = {0, KVSHM_NONE, 0};
  char name[64];

  identity.model = "c99";
  identity.weights = "w";
  identity.block_tokens = 16;
  options.block_bytes = BLOCK_BYTES;
  options.blocks = BLOCKS;
  options.identity = &identity;
  options.pin = KVSHM_OFF;
  /* A name that no other run of this test has: the address space is laid out at random. */
  snprintf(name, sizeof name, "test-c99-%lx", (unsigned long)((uintptr_t)&name / 16));
  EXPECT(kvshm_attach(&a, name, &options), -ENOENT);
  EXPECT(kvshm_create(&a, "No Such Name", &options), -EINVAL);
  EXPECT(kvshm_create(&a, name, &options), 0);
  if (bad) return 1;
  EXPECT(kvshm_create(&b, name, &options), -EEXIST);
  EXPECT(kvshm_attach(&b, name, &options), 0);
  EXPECT(kvshm_upgrade(a, none, 0), -EINVAL);

  one_block(a);
  a_batch(a);
  a_full_arena(a);
  a_shared_fill(a, b);
  an_object(a);

  EXPECT(kvshm_is_valid(a, NULL, NULL), 0);
  EXPECT(kvshm_remove(name, NULL, 0), -KVSHM_EINUSE);
  EXPECT(kvshm_close(b, 1000), 0);
  EXPECT(kvshm_close(a, 1000), 0);
  EXPECT(kvshm_tick(a), -KVSHM_ECLOSED);
  EXPECT(kvshm_close(a, 1000), -KVSHM_ECLOSED);
  EXPECT(kvshm_tick(NULL), -EINVAL);
  EXPECT(kvshm_remove(name, NULL, 0), 0);
  EXPECT(strcmp(kvshm_version(), KVSHM_VERSION), 0);
  if (bad) fprintf(stderr, "%d of the checks failed\n", bad);
  return bad != 0;
}
