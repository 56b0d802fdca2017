/* SPDX-License-Identifier: MIT
 * index.cuh - indices of experts and groups in kernels: INDEX_BYTES is 4 or 8. */
#ifndef TEGULA_MOE_INDEX_CUH
#define TEGULA_MOE_INDEX_CUH

#include "device/ptx.cuh"

static_assert(INDEX_BYTES == 4 || INDEX_BYTES == 8, "INDEX_BYTES is 4 or 8");

#if INDEX_BYTES == 4
typedef i32 index_type;
#else
typedef i64 index_type;
#endif

/* 16 bytes of indices. */
enum { VECTOR = 16 / INDEX_BYTES };
typedef struct __align__(16) { index_type e[VECTOR]; } vector_type;

/* In a grid over x and y (tgl_shape_of_blocks), which may have blocks past the last token. */
DEV i64 block_index(void) { return (i64)blockIdx.y * gridDim.x + blockIdx.x; }

#endif
