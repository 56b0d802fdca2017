/* SPDX-License-Identifier: MIT
 * sinkhorn.h - what the kernels of sinkhorn_step, _step_reduce and _finalize, their launches and the CPU loops agree
 * on. An element of the scaled matrix is x = (row_scale * matrix) * col_scale, rounded after each product.
 *
 * A row's sum of squares has one order, so that every device gives the same bits: SINKHORN_SUMS sums, of which sum q
 * adds columns q, q + SINKHORN_SUMS ... in ascending order; then neighbours are added, pair by pair, until one is
 * left. On a GPU a thread has four neighbouring sums, and a warp 128. */
#ifndef TEGULA_ENGRAM_SINKHORN_H
#define TEGULA_ENGRAM_SINKHORN_H

#include "numerics/base.h"

#define SINKHORN_SUMS 1024
#define SINKHORN_MAX_THREADS (SINKHORN_SUMS / 4)
#define SINKHORN_MAX_VECTORS 8 /* of 4 columns, of a thread: longer rows are read twice */

/* Rows that a block has at once, by threads and vectors: 16 kB are on their way while it works on as many, and
 * registers hold both. */
#define SINKHORN_ROWS(threads, vectors) \
    ((vectors) == 0 ? 1 : (threads) <= 64 ? 16 : (threads) == 128 ? 8 : (vectors) > 2 ? 1 : 4 / (vectors))
/* Blocks of an SM: registers and shared memory of all architectures have room for these. */
#define SINKHORN_SM_BLOCKS(threads) ((threads) == 256 ? 2 : (threads) == 32 ? 8 : 4)

/* A column's sum over partial rows: a block has this many columns, and a tile of SINKHORN_LOADS values per thread. */
#define SINKHORN_LOADS 32
#define SINKHORN_REDUCE_THREADS 256
#define SINKHORN_REDUCE_COLUMNS 8
#define SINKHORN_TILE_BYTES(threads) (4 * SINKHORN_LOADS * (threads))

typedef struct {
    const float *matrix, *col_scale;
    float *row_scale;
    int64_t row_stride, num_rows, dim;
    int32_t has_vectors; /* rows of `matrix` (and `out`) are aligned to 16 bytes */
} sinkhorn_matrix;

typedef struct {
    sinkhorn_matrix m;
    float *row_norm, *partial;
    float *sumsq;                /* NULL: partial rows only */
    uint32_t *workspace;         /* SINKHORN_BARRIER_WORDS */
    int64_t num_partials, chunk; /* partial row p is of rows p * chunk .. p * chunk + chunk - 1 */
    float eps;
} sinkhorn_step_args;
#define SINKHORN_BARRIER_WORDS 3

typedef struct {
    const float *partial;
    float *sumsq;
    int64_t stride, num_partials, dim;
} sinkhorn_reduce_args;

typedef struct {
    sinkhorn_matrix m;
    float *out;
    int64_t out_stride;
    float eps, alpha;
} sinkhorn_finalize_args;

TGL_INLINE float sinkhorn_scaled(float row_scale, float value, float col_scale)
{
    const float row_scaled = row_scale * value;
    return row_scaled * col_scale;
}

#endif
