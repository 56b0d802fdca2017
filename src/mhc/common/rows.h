/* SPDX-License-Identifier: MIT
 * rows.h - streams of h columns: what ops on the residual share. A row is cut into units of 8 columns, the last one
 * maybe shorter: a thread has a unit in all streams.
 *
 * A sum over a row has an order that depends on h alone: in a unit by fma, in order, from +0; units as a tree, padded
 * with +0 to a power of two of at least ROWS_SPAN. */
#ifndef TEGULA_MHC_ROWS_H
#define TEGULA_MHC_ROWS_H

#include "mhc/common/mhc.h"

#define ROWS_UNIT 8
#define ROWS_SPAN 1024          /* units that a block sums at a time */
#define ROWS_MAX_THREADS 256    /* of a block that has a token */
#define ROWS_COLUMN_THREADS 256 /* of a block that has columns of tokens */

/* bf16; strides in elements, 0 where a dimension has size 1. Rows of one stream: stream is 0. */
typedef struct {
    const uint16_t *data;
    int64_t token, stream;
} rows_in;
typedef struct {
    uint16_t *data;
    int64_t token, stream;
} rows_out;

/* ---- columns ---- x and d are those of all streams in a column. */

TGL_INLINE float rows_apply(const float *mix, const float *x, int n)
{
    float sum = 0.0f;
    MHC_UNROLL
    for (int i = 0; i < n; i++) sum = tgl_fma(mix[i], x[i], sum);
    return sum;
}
/* comb is [input, output]; of output stream o. */
TGL_INLINE float rows_post(float gate, float y, const float *comb, const float *x, int n, int o)
{
    float sum = gate * y;
    MHC_UNROLL
    for (int i = 0; i < n; i++) sum = tgl_fma(comb[i * n + o], x[i], sum);
    return sum;
}

#endif
