/* SPDX-License-Identifier: Apache-2.0
 *
 * kvshm_gds.h - GPU-direct storage: blocks of the tier into the memory of a CUDA device without
 * host memory between (G3 -> G1), by NVIDIA cuFile, which is looked for at run time. A part of
 * kvshm.h, which includes it.
 *
 * Where cuFile is missing, refuses, or would copy by way of the host itself, the host path is taken
 * from the start; after the first failure in operation it is taken from then on, and the load that
 * failed is done again by it: into the arena's block, as kvshm_match_load does, and from there.
 * kvshm_get_gds() says which path, and why.
 *
 * Checksums are verified on every load here, too: what a load has brought to the device is copied to
 * the host once more and hashed. That costs the link to the device, not the drive. KVSHM_GDS_TRUST
 * goes without it on the direct path; then a slot that a power cut or the drive has spoilt is wrong
 * KV, not a miss.
 *
 * The other way blocks go by memory (kvshm_pages_store, and the tier's own thread writes them down):
 * the checksum of a block that is stored is made on the host, which has its bytes then. */
#ifndef KVSHM_GDS_H
#define KVSHM_GDS_H

#include "kvshm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvshm_gds_piece { /* bytes of a block, and where they are on the device */
  uint64_t address, bytes;
  uint64_t offset; /* in the block */
} kvshm_gds_piece;
typedef struct kvshm_gds_buffer { /* device memory that pieces will lie in */
  uint64_t address, bytes;
} kvshm_gds_buffer;

enum {
  KVSHM_GDS_TRUST = 1 /* a load by the direct path is not verified */
};
typedef struct kvshm_gds_options {
  size_t size;
  const kvshm_gds_buffer *buffers; /* registered with cuFile; what lies in none goes by buffers of
                                      its own on the device */
  uint32_t nbuffers;
  uint32_t load;       /* KVSHM_AUTO, KVSHM_REQUIRE: direct, or an error; KVSHM_OFF: by the host */
  uint32_t store;      /* KVSHM_OFF: see above */
  uint32_t flags;      /* KVSHM_GDS_... */
  uint32_t timeout_ms; /* for cuFile to start; 0 = 10000 */
  int32_t device;      /* where the calling thread has no CUDA context: of this one; -1 = 0 */
} kvshm_gds_options;
#define KVSHM_GDS_OPTIONS_INIT {sizeof(kvshm_gds_options), 0, 0, KVSHM_AUTO, KVSHM_OFF, 0, 0, -1}

enum { KVSHM_GDS_NONE = 0, KVSHM_GDS_HOST = 1, KVSHM_GDS_DIRECT = 2 }; /* paths */
typedef struct kvshm_gds {
  size_t size;
  uint32_t load, store;         /* KVSHM_GDS_...: the path of each direction now */
  uint64_t loads[3], stores[3]; /* blocks, by path; NONE: they were in memory */
  uint64_t load_bytes[3], store_bytes[3];
  uint32_t switches;     /* directions that were direct and are not any more */
  uint32_t buffers;      /* registered with cuFile */
  uint32_t may_stage;    /* 1: where a file system does not take part cuFile copies by the host
                          * itself, by its configuration, and does not say so */
  uint32_t stage_pinned; /* 1: the staging buffers are registered with the driver */
  char why[256];         /* why a direction that might be direct is not; "" = it is */
} kvshm_gds;
#define KVSHM_GDS_INIT {sizeof(kvshm_gds), 0, 0, {0}, {0}, {0}, {0}, 0, 0, 0, 0, {0}}

/* Once for a handle, which has a tier; in the thread, or with the context, of the device. Waits for
 * cuFile. Errors: -KVSHM_EUNSUPPORTED (required, and why not), -ENOENT (no tier), -EEXIST. */
KVSHM_API int kvshm_gds_open(kvshm_arena *a, const kvshm_gds_options *opts);
/* -ENOENT: it is not open. */
KVSHM_API int kvshm_get_gds(kvshm_arena *a, kvshm_gds *out);
/* A block, or parts of it, into device memory that nothing else uses, and all of it has arrived when
 * the call returns: 0. -ENOENT: a miss, also where the tier's bytes are not those that were stored;
 * -EIO: a device refused it; -ETIMEDOUT: of the host path. Then the pieces' contents are undefined.
 * The direct path waits for drive and device as long as they take: call it from a thread that may. */
KVSHM_API int kvshm_gds_load(kvshm_arena *a, const kvshm_key *key, const kvshm_gds_piece *p,
                             uint32_t n, uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
