/* SPDX-License-Identifier: Apache-2.0
 *
 * A user of an installed kvshm: includes the header, links the library, and takes one block through
 * its life. argv[1] is the arena's name. Prints the version of the library. */
#include <kvshm.h>
#include <stdio.h>
#include <string.h>

static int check(const char* what, int64_t result, int64_t expected) {
  if (result == expected) return 0;
  fprintf(stderr, "%s: %lld, not %lld: %s (%s)\n", what, (long long)result, (long long)expected,
          result < 0 ? kvshm_strerror((int)result) : "no error", kvshm_last_error());
  return 1;
}

static int life_of_a_block(kvshm_arena* arena) {
  static const kvshm_key key = {1, 2, 3};
  const char text[] = "written in C99";
  kvshm_handle block;
  kvshm_lease lease;
  uint32_t id;
  const char* found;
  int bad = 0;

  bad += check("allocate", kvshm_allocate(arena, 1, &key, NULL, &block, NULL, NULL), 0);
  bad += check("copy_in", kvshm_copy_in(arena, block, 0, text, sizeof text), 0);
  bad += check("register", kvshm_register(arena, &block, 1, NULL, KVSHM_ALLOW, NULL, NULL), 1);
  bad += check("drop", kvshm_drop(arena, &block, 1), 0);
  bad += check("match", kvshm_match(arena, &key, 1, &id, &lease), 1);
  if (bad) return bad;
  found = kvshm_block_data(arena, id);
  bad += check("the text found", found == NULL ? -1 : strcmp(found, text), 0);
  bad += check("release", kvshm_release(arena, lease), 0);
  bad += check("second release", kvshm_release(arena, lease) < 0, 1);
  return bad;
}

int main(int argc, char** argv) {
  kvshm_options options = KVSHM_OPTIONS_INIT;
  kvshm_arena* arena = NULL;
  int bad = 0;

  if (argc != 2) return 2;
  options.block_bytes = 4096;
  options.blocks = 8;
  bad += check("create", kvshm_create(&arena, argv[1], &options), 0);
  if (bad) return 1;
  bad += life_of_a_block(arena);
  bad += check("is_valid", kvshm_is_valid(arena, NULL, NULL), 0);
  bad += check("close", kvshm_close(arena, 1000), 0);
  bad += check("remove", kvshm_remove(argv[1], NULL, 0), 0);
  if (strcmp(kvshm_version(), KVSHM_VERSION) != 0) {
    fprintf(stderr, "header %s, library %s\n", KVSHM_VERSION, kvshm_version());
    bad++;
  }
  puts(kvshm_version());
  return bad != 0;
}
