/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of an engine's KV into slices of blocks, and back: many small pieces in one launch, where a
 * copy each would cost more to begin than to do. The blocks are host memory that is registered, so
 * that a device reads and writes it at the host's own addresses.
 *
 * One thread block takes pieces of a row in turn: blockIdx.x of them, blockIdx.y is the row. Its
 * threads go over a piece side by side, `unit` bytes each.
 *
 * The same text, behind that of work.h, is compiled by NVRTC at run time, by nvcc in the tests, and
 * as C for a driver without a GPU (KVSHM_ON_HOST). */
#ifdef KVSHM_ON_HOST
#define KVSHM_PART static
#else
#define KVSHM_PART static __device__ __forceinline__
#endif

#define KVSHM_COPY(type)                                                           \
  do {                                                                             \
    const kvshm_u32 n = bytes / (kvshm_u32)sizeof(type);                           \
    type* d = (type*)to;                                                           \
    const type* s = (const type*)from;                                             \
    for (kvshm_u32 i = thread; i < n; i += threads) d[i] = s[i];                   \
  } while (0)

typedef struct kvshm_unit16 {
  kvshm_u64 x, y;
}
#ifndef KVSHM_ON_HOST
__align__(16)
#endif
    kvshm_unit16;

KVSHM_PART void kvshm_copy_piece(kvshm_u64 to, kvshm_u64 from, kvshm_u32 bytes, kvshm_u32 unit,
                                 kvshm_u32 thread, kvshm_u32 threads) {
  if (unit == 16)
    KVSHM_COPY(kvshm_unit16);
  else if (unit == 8)
    KVSHM_COPY(kvshm_u64);
  else if (unit == 4)
    KVSHM_COPY(kvshm_u32);
  else
    KVSHM_COPY(unsigned char);
}

KVSHM_PART void kvshm_copy_rows(const kvshm_work* w, kvshm_u32 block, kvshm_u32 blocks,
                                kvshm_u32 row, kvshm_u32 thread, kvshm_u32 threads) {
  kvshm_u32 g = 0, first = 0; /* of group g's pieces */
  for (kvshm_u32 piece = block; piece < w->pieces; piece += blocks) {
    while (piece - first >= w->group[g].count) first += w->group[g++].count;
    const kvshm_group* x = &w->group[g];
    const kvshm_u64 i = piece - first;
    const kvshm_u64 there = x->address + x->stride * w->row[row] + x->step * i;
    const kvshm_u64 here = w->slice[row] + x->offset + x->offset_step * i;
    kvshm_copy_piece(w->into_blocks ? here : there, w->into_blocks ? there : here, x->bytes,
                     w->unit, thread, threads);
  }
}

#ifndef KVSHM_ON_HOST
extern "C" __global__ void __launch_bounds__(256) kvshm_rows(const __grid_constant__ kvshm_work w) {
  kvshm_copy_rows(&w, blockIdx.x, gridDim.x, blockIdx.y, threadIdx.x, blockDim.x);
}
#endif
