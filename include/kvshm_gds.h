/* SPDX-License-Identifier: Apache-2.0
 *
 * kvshm_gds.h - GPU-direct storage: blocks of the tier to and from the memory of a CUDA device
 * without host memory between (G1 <-> G3), by NVIDIA cuFile, which is looked for at run time. A part
 * of kvshm.h, which includes it.
 *
 * Each direction has its path: direct, or by the host (a staging buffer that the device's driver has
 * registered). Where cuFile is missing, refuses, or would copy by way of the host itself, the host
 * path is taken from the start; after the first failure in operation it is taken from then on, and
 * the request that failed is done again by it. kvshm_get_gds() says which, and why.
 *
 * Checksums are verified on every load here, too: what a load has brought to the device is copied to
 * the host once more and hashed. That costs the link to the device, not the drive: KVSHM_GDS_TRUST
 * goes without it on the direct path, and then a slot that a power cut or the drive has spoilt is
 * wrong KV, not a miss. A store by the direct path is hashed likewise, always: its gain over the
 * host path is small, and it is off unless asked for. */
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
  uint32_t load, store; /* KVSHM_AUTO, KVSHM_REQUIRE: direct, or an error; KVSHM_OFF: by the host */
  uint32_t flags;       /* KVSHM_GDS_... */
  uint32_t timeout_ms;  /* for cuFile to start; 0 = 10000 */
  int32_t device;       /* where the calling thread has no CUDA context: of this one; -1 = 0 */
} kvshm_gds_options;
#define KVSHM_GDS_OPTIONS_INIT {sizeof(kvshm_gds_options), 0, 0, KVSHM_AUTO, KVSHM_OFF, 0, 0, -1}

enum { KVSHM_GDS_NONE = 0, KVSHM_GDS_HOST = 1, KVSHM_GDS_DIRECT = 2 }; /* paths */
typedef struct kvshm_gds {
  size_t size;
  uint32_t load, store;         /* KVSHM_GDS_...: the path of each direction now */
  uint64_t loads[3], stores[3]; /* blocks, by path */
  uint64_t load_bytes[3], store_bytes[3];
  uint32_t switches;     /* directions that were direct and are not any more */
  uint32_t buffers;      /* registered with cuFile */
  uint32_t may_stage;    /* 1: where a file system does not take part cuFile copies by the host
                          * itself, by its configuration, and does not say so */
  uint32_t stage_pinned; /* 1: the staging buffers are registered with the driver */
  char why[256];         /* why a direction that might be direct is not; "" = it is */
} kvshm_gds;
#define KVSHM_GDS_INIT {sizeof(kvshm_gds), 0, 0, {0}, {0}, {0}, {0}, 0, 0, 0, 0, {0}}

#ifdef __cplusplus
}
#endif
#endif
