/* SPDX-License-Identifier: Apache-2.0 */
/* What the actors share: lock bytes as the arena uses them, and one line of report to the test. */
#ifndef KVSHM_TESTS_KERNEL_LOCK_H
#define KVSHM_TESTS_KERNEL_LOCK_H

#include <stddef.h>

#define LIFE_BYTE(slot) ((1LL << 62) + (slot))
#define DEVICE_BYTE(slot) ((1LL << 62) + 64 + (slot))

enum { LIMIT_S = 60 }; /* no actor outlives its test by more than this */

/* 0 or errno. `type` is F_WRLCK, F_RDLCK or F_UNLCK; the lock belongs to the open description. */
int lock_byte(int fd, int type, long long byte);

/* 1 when some other description would refuse a write lock, 0 when none, -errno. */
int byte_is_held(int fd, long long byte);

/* Opens `path` for the lock alone. -errno on failure. */
int open_for_lock(const char* path, int flags);

/* One page of the file that cannot be touched, only to keep its description; NULL: see errno. */
void* anchor(int fd, int protection, int flags, int inherit);

/* Writes one line to the test and flushes it. */
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the actor with "error WHAT ERRNO". */
void fail(const char* what, int error) __attribute__((noreturn));

/* Until killed, or the limit. */
void stay(void) __attribute__((noreturn));

#endif
