/* SPDX-License-Identifier: Apache-2.0
 *
 * kvshm_pages.h - copies between an engine's paged KV tensors and blocks: a part of kvshm.h, which
 * includes it.
 *
 * An engine keeps its KV in rows (its own blocks), and one row lies in many places: a piece a
 * layer, or one a layer and head. A run says where such a piece lies in every row, and where it
 * goes in the slice of a block. A table of runs is made once, when the engine's caches are known;
 * then each call copies many rows, whole, with one check a block.
 *
 * Host memory is copied when the call returns; a fill must not be left before. Device memory is
 * copied in the order of a stream, by the CUDA driver of this process, or, where pieces are short
 * and the blocks are registered, by a kernel (compiled by NVRTC, if that is found, in the background
 * of the first such call): the call only enqueues. Record an event behind it, and
 *   store  call kvshm_pages_finish() or kvshm_abort() when the event has passed, not before;
 *   load   keep the blocks held until it has passed.
 * Copies to and from device memory want the arena registered (kvshm_register_device): it makes them
 * run beside the CPU, and keeps what a killed process had under way out of others' blocks. */
#ifndef KVSHM_PAGES_H
#define KVSHM_PAGES_H

#include "kvshm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvshm_run { /* engine row r: `bytes` at address + r * stride */
  uint64_t address, stride, bytes;
  uint64_t offset; /* where they lie in the slice */
} kvshm_run;

enum { KVSHM_MEMORY_HOST = 0, KVSHM_MEMORY_CUDA = 1 };
typedef struct kvshm_pages {
  size_t size;
  const kvshm_run *runs; /* as kvshm_pages_prepare() leaves them */
  uint32_t nruns;
  uint32_t rows;        /* of the engine */
  uint64_t slice_bytes; /* part p of a block is the bytes from p * slice_bytes on */
  uint32_t memory;      /* KVSHM_MEMORY_...: of the engine's rows */
  uint32_t zero;
  void *stream; /* CUDA: the CUstream; NULL = the default stream */
} kvshm_pages;
#define KVSHM_PAGES_INIT {sizeof(kvshm_pages), 0, 0, 0, 0, KVSHM_MEMORY_HOST, 0, 0}

/* Checks runs, puts them into the order of their offsets and joins those that are neighbours both
 * in the engine's rows and in the slice. Returns their number then. -ERANGE: beyond the slice or
 * the address space; -EINVAL: none, an empty one, one without an address, or two that overlap, in
 * the slice or in the rows (of runs of different strides that lie within each other's reach it is
 * not looked whether they do: refused). Then nothing has changed, and *bad (may be NULL) is the
 * index of the run at fault, or KVSHM_NONE. -ENOMEM. */
KVSHM_API int64_t kvshm_pages_prepare(kvshm_run *runs, uint32_t n, uint32_t rows,
                                      uint64_t slice_bytes, uint32_t *bad);
/* Is the host memory of all rows there, and writable if `writing`, at this moment? -EFAULT: a part
 * is not mapped or not readable; -EACCES: not writable. It reads /proc/self/maps: once, not a copy.
 * Memory that goes later cannot be noticed: its use ends the process as any use of it does. */
KVSHM_API int kvshm_pages_check(const kvshm_pages *p, int writing, uint32_t *bad);

/* For each i: begin part `part` of block h[i] (kvshm_fill_begin), then copy engine row rows[i] into
 * it. codes[i]: 0, or why not: -KVSHM_EPART (begun before), -KVSHM_ENOTMINE (not filled by this
 * process), -EINVAL (a senseless handle or part), -ERANGE (no such row), -EIO (a device refused it;
 * kvshm_last_error() says more). What failed has not arrived, so the block is never published.
 * Returns how many codes are 0; a negative one, which all codes have then, for a senseless table
 * (-EINVAL, -ERANGE: the slice reaches beyond the block) or device (-KVSHM_EUNSUPPORTED): nothing
 * was begun. */
KVSHM_API int64_t kvshm_pages_store(kvshm_arena *a, const kvshm_pages *p, const kvshm_handle *h,
                                    const uint32_t *rows, uint32_t n, uint32_t part,
                                    int32_t *codes);
/* The other way, from blocks that this process holds READY (else -KVSHM_ENOTMINE, -KVSHM_ESTATE).
 * A row whose code is not 0 has undefined contents where a device refused it, or where the block
 * was given back while it was copied (-KVSHM_ENOTMINE); with any other code it is untouched. */
KVSHM_API int64_t kvshm_pages_load(kvshm_arena *a, const kvshm_pages *p, const kvshm_handle *h,
                                   const uint32_t *rows, uint32_t n, uint32_t part, int32_t *codes);
enum { KVSHM_PAGES_WAITS = 1 }; /* a code of finish: arrived, other parts are missing */
/* When all bytes of a store are in place: for each i whose codes[i] is 0 on entry, arrive with the
 * part, and publish if it was the last one; one above 0 was not stored, and becomes -EINVAL. Of every i the caller's membership is given back, of a
 * READY block its hold. codes[i] becomes 0 (READY), KVSHM_PAGES_WAITS (whoever stores the other
 * parts must be a member by now), or the negative code of the step that failed. Returns how many
 * are not negative. Of announced fills; others are registered by their allocator:
 * -KVSHM_ESTATE, given back nevertheless. */
KVSHM_API int64_t kvshm_pages_finish(kvshm_arena *a, const kvshm_handle *h, uint32_t n,
                                     uint32_t part, int32_t *codes);

#ifdef __cplusplus
}
#endif
#endif
