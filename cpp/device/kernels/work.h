/* SPDX-License-Identifier: Apache-2.0
 *
 * What one launch of the kernel copies: its argument, by value, so that no memory of it must outlive
 * the call. Read by the C++ that fills it, by CUDA, and by the C of the tests' driver. */
#ifndef KVSHM_KERNEL_WORK_H
#define KVSHM_KERNEL_WORK_H

typedef unsigned int kvshm_u32;
typedef unsigned long long kvshm_u64;

/* `count` pieces of `bytes` as far apart as `step` in a row, and as `offset_step` in the slice. */
typedef struct kvshm_group {
  kvshm_u64 address, stride, step, offset, offset_step;
  kvshm_u32 bytes, count;
} kvshm_group;

enum { KVSHM_WORK_ROWS = 112, KVSHM_WORK_GROUPS = 56 };
typedef struct kvshm_work {
  kvshm_u32 rows, groups, pieces; /* pieces of a row: of all groups */
  kvshm_u32 unit;                 /* 16, 8, 4 or 1: divides every address, length and distance */
  kvshm_u32 into_blocks, zero;
  kvshm_u64 slice[KVSHM_WORK_ROWS];
  kvshm_u32 row[KVSHM_WORK_ROWS];
  kvshm_group group[KVSHM_WORK_GROUPS];
} kvshm_work; /* at most 4 KiB: what every device takes as an argument */

#endif
