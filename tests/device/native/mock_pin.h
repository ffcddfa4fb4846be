/* SPDX-License-Identifier: Apache-2.0
 *
 * A device that registers memory, for tests: it has a cap, a speed and moods, keeps a record of
 * each range, and notices what a real one would punish. */
#ifndef MOCK_PIN_H
#define MOCK_PIN_H

#include <kvshm.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MOCK_TOO_LARGE = -1, MOCK_NO_MEMORY = -2, MOCK_UNKNOWN = -713, MOCK_BROKEN = -700 };

struct mock_setting {        /* what a test sets */
  uint64_t cap;              /* bytes a call, not told to the library; 0 = none */
  uint64_t bytes_per_second; /* of registering; 0 = at once */
  uint64_t unregister_ms;
  uint64_t fail_from;   /* the n-th range is refused, and all behind it; 0 = never */
  uint64_t fail_only;   /* the n-th call is refused, once; 0 = never */
  uint64_t gone;        /* 1 = its context is no more */
  uint64_t broken;      /* 1 = nothing can be unregistered */
  uint64_t blind;       /* 1 = cannot say whether a range is covered */
  uint64_t block_bytes; /* to look for blocks that straddle two pieces; 0 = do not look */
};
struct mock_seen { /* what it tells */
  uint64_t registers, refusals, already, unregisters;
  uint64_t ranges, bytes, foreign_ranges; /* registered now */
  uint64_t pending;                       /* an error that somebody else would be blamed for */
  uint64_t leaked;                        /* calls that met one */
  uint64_t unknown;                       /* undone twice, or never done */
  uint64_t foreign_undone;
  uint64_t straddles; /* pieces that begin or end within a block */
  uint64_t unaligned; /* pieces that begin or end within a page */
  uint64_t unmapped;  /* undone after the memory was gone */
  uint64_t largest;   /* bytes of a call */
  uint64_t finished;
  uint64_t busy; /* 1 = in a call */
};

struct mock_setting* mock_set(void);
struct mock_seen mock_look(void);
void mock_reset(void); /* as new; what is registered is forgotten */
/* Where the blocks lie, for the check of straddles. */
void mock_blocks(const void* data, uint64_t bytes, uint64_t block_bytes);
/* "Another component": registers a range that the library does not know of. */
void mock_foreign(const void* at, size_t bytes);
/* Called at the begin of each registration, in the thread that makes it. */
void mock_on_register(void (*fn)(void));

int mock_register(void* user, void* data, size_t bytes);
int mock_unregister(void* user, void* data);
int mock_covers(void* user, const void* data, size_t bytes);
void mock_clear_error(void* user);
const char* mock_error_text(void* user, int code);
void mock_finish(void* user);

extern kvshm_device_backend mock_backend;

#ifdef __cplusplus
}
#endif
#endif
