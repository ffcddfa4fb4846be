/* SPDX-License-Identifier: Apache-2.0
 *
 * kvshm_device.h - registration with a device: a part of kvshm.h, which includes it.
 *
 * A GPU copies at full speed, and beside the CPU, only to and from memory that its driver has
 * registered, in each process. The blocks' bytes are registered in pieces: no block straddles two.
 * A thread does it piece by piece, while blocks are used. Once per handle; it may be asked for
 * again, and is undone when it was given back as often, or by close: each piece once, before the
 * memory is unmapped, and never a piece that somebody else registered. From the first registration
 * on the slot is marked: if the process dies, its fills are given back only `drain_ms` later, since
 * copies that the device has begun may still land. */
#ifndef KVSHM_DEVICE_H
#define KVSHM_DEVICE_H

#include "kvshm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* what a backend's functions return; any other negative number is
                                 the device's own code, negated */
       KVSHM_DEVICE_OK = 0,
       KVSHM_DEVICE_ALREADY = 1, /* register: (a part of) it is registered, not by this call */
       KVSHM_DEVICE_GONE = 2     /* there is no device or context any more; nor are registrations */
};
typedef struct kvshm_device_backend { /* CUDA is built in; others, and tests, bring their own */
  size_t size;
  const char *name;
  void *user;         /* the first argument of each */
  uint64_t max_bytes; /* that one call may register; 0 = no limit known */
  /* From any thread, one call at a time. After a failure no error may be left pending for other
   * users of the device: clear_error is called for that (may be NULL). */
  int (*register_memory)(void *user, void *data, size_t bytes);
  int (*unregister_memory)(void *user, void *data);
  int (*covers)(void *user, const void *data, size_t bytes); /* after ALREADY: 1 = all of it is
                                                                registered; NULL = always 1 */
  void (*clear_error)(void *user);
  const char *(*error_text)(void *user, int code); /* NULL = the number */
  void (*finish)(void *user);                      /* no further call will come; may be NULL */
} kvshm_device_backend;
#define KVSHM_DEVICE_BACKEND_INIT {sizeof(kvshm_device_backend), 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct kvshm_device_options {
  size_t size;
  const kvshm_device_backend *backend; /* copied; NULL = CUDA: libcuda.so.1, the calling thread's
                                          context, or else the primary context of `device` */
  uint64_t piece_bytes; /* at most; 0 = 1 GiB. Never less than whole blocks on whole pages */
  uint32_t mode;        /* KVSHM_AUTO: what cannot be registered stays as it is, and all works, but
                           slower. KVSHM_REQUIRE: all, or -KVSHM_EUNSUPPORTED and none */
  uint32_t timeout_ms;  /* to wait for its end; 0 = come back at once */
  uint32_t drain_ms;    /* 0 = 2000; at most 3600000 */
  int32_t device;       /* -1 = 0 */
} kvshm_device_options;
#define KVSHM_DEVICE_OPTIONS_INIT {sizeof(kvshm_device_options), 0, 0, KVSHM_AUTO, 60000, 0, -1}

enum {
  KVSHM_DEVICE_NONE = 0,
  KVSHM_DEVICE_REGISTERING = 1,
  KVSHM_DEVICE_REGISTERED = 2, /* every block */
  KVSHM_DEVICE_PARTLY = 3,     /* some blocks: kvshm_device_ranges() says which */
  KVSHM_DEVICE_REFUSED = 4,    /* none */
  KVSHM_DEVICE_UNREGISTERING = 5
};
typedef struct kvshm_device {
  size_t size;
  uint32_t state, references;
  uint64_t bytes;            /* of all blocks */
  uint64_t bytes_registered; /* usable so far, those of others included */
  uint64_t bytes_foreign;    /* of these, registered by others */
  uint32_t pieces, piece_blocks;
  uint32_t stuck; /* pieces that the device would not give back: they stay mapped */
  int32_t code;   /* of the last refusal, as the backend gave it; 0 = none */
  char backend[16];
  char reason[192]; /* why not all of it, in words */
} kvshm_device;
#define KVSHM_DEVICE_INIT {sizeof(kvshm_device), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}}
typedef struct kvshm_device_range {
  uint32_t first, blocks;
  uint32_t foreign; /* 1 = registered by somebody else */
  uint32_t zero;
} kvshm_device_range;

/* 0: it is as `mode` wants it (or, with AUTO, refused, in whole or in part: kvshm_get_device()
 * says how, and one line of the log). -KVSHM_EUNSUPPORTED; -ETIMEDOUT: it goes on, see
 * kvshm_wait_device(); -EBUSY: registered with another backend, or being undone. */
KVSHM_API int kvshm_register_device(kvshm_arena *a, const kvshm_device_options *opts);
/* Until no thread registers or undoes: 0, -ETIMEDOUT, or -KVSHM_EUNSUPPORTED where all of it was
 * required and refused. */
KVSHM_API int kvshm_wait_device(kvshm_arena *a, uint32_t timeout_ms);
/* Give one reference back; the last undoes it. No copy may be under way. -KVSHM_ESTATE: there is
 * none. -ETIMEDOUT: it goes on. */
KVSHM_API int kvshm_unregister_device(kvshm_arena *a, uint32_t timeout_ms);
KVSHM_API int kvshm_get_device(kvshm_arena *a, kvshm_device *out);
/* What is registered, in order, neighbours of one kind joined (a copy over blocks of two pieces may
 * be refused by a device, one within a block never). Returns their number; fills at most cap. */
KVSHM_API int64_t kvshm_device_ranges(kvshm_arena *a, kvshm_device_range *out, size_t cap);

#ifdef __cplusplus
}
#endif
#endif
