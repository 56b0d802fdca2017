/* SPDX-License-Identifier: MIT
 * rows_host.h - the parts of ops on the residual that only the host needs. */
#ifndef TEGULA_MHC_ROWS_HOST_H
#define TEGULA_MHC_ROWS_HOST_H

#include "core/math.h"
#include "cuda/op.h"
#include "mhc/common/rows.h"

#define ROWS_STREAMS "bf16" ROWS_STREAMS_SHAPE
#define ROWS_STREAMS_SHAPE "[num_tokens, num_streams, hidden]"

static inline rows_in tgl_rows_in(const DLTensor *t)
{
    return (rows_in){ tgl_data(t), tgl_step_of(t, 0), t->ndim > 2 ? tgl_step_of(t, 1) : 0 };
}
static inline rows_out tgl_rows_out(const DLTensor *t)
{
    return (rows_out){ tgl_data(t), tgl_step_of(t, 0), t->ndim > 2 ? tgl_step_of(t, 1) : 0 };
}

/* For elements of 2 or 4 bytes: strides in units of 2 bytes. */
static inline int64_t tgl_rows_halves(const DLTensor *t) { return tgl_dtype_bits(t->dtype) / 16; }
static inline rows_in tgl_rows_in_halves(const DLTensor *t)
{
    const rows_in r = tgl_rows_in(t);
    return (rows_in){ r.data, tgl_rows_halves(t) * r.token, tgl_rows_halves(t) * r.stream };
}
static inline rows_out tgl_rows_out_halves(const DLTensor *t)
{
    const rows_out r = tgl_rows_out(t);
    return (rows_out){ r.data, tgl_rows_halves(t) * r.token, tgl_rows_halves(t) * r.stream };
}

/* Row (t, i). Rows without columns have no memory. */
static inline const uint16_t *tgl_row_in(rows_in r, int64_t t, int64_t i)
{
    return r.data ? r.data + t * r.token + i * r.stream : NULL;
}
static inline uint16_t *tgl_row_out(rows_out r, int64_t t, int64_t i)
{
    return r.data ? r.data + t * r.token + i * r.stream : NULL;
}

/* Are all rows whole vectors (16 bytes) at aligned addresses? */
static inline bool tgl_rows_have_vectors(rows_in r)
{
    return ((uintptr_t)r.data | 2 * (uint64_t)r.token | 2 * (uint64_t)r.stream) % 16 == 0;
}
static inline bool tgl_rows_out_have_vectors(rows_out r)
{
    return tgl_rows_have_vectors((rows_in){ r.data, r.token, r.stream });
}

/* Columns of a token in blocks of at most as many threads, tokens along y. */
static inline tgl_shape tgl_rows_shape_of(int64_t num_tokens, int64_t hidden, int max_threads)
{
    const int64_t units = tgl_max(1, tgl_ceil_div(hidden, ROWS_UNIT));
    const int64_t blocks = tgl_ceil_div(units, max_threads);
    return (tgl_shape){ { blocks, tgl_strided_grid(num_tokens, 65535) },
                        .block = (int)tgl_ceil_div(tgl_ceil_div(units, blocks), 32) * 32 };
}
static inline tgl_shape tgl_rows_shape(int64_t num_tokens, int64_t hidden)
{
    return tgl_rows_shape_of(num_tokens, hidden, ROWS_COLUMN_THREADS);
}

/* A block a token, of at most ROWS_MAX_THREADS threads: as few warps as take the same number of sweeps. */
static inline tgl_shape tgl_rows_token_shape(int64_t num_tokens, int64_t hidden)
{
    const int64_t warps = tgl_max(1, tgl_ceil_div(hidden, ROWS_UNIT * 32)); /* without columns sums are 0 */
    const int64_t sweeps = tgl_ceil_div(warps, ROWS_MAX_THREADS / 32);
    return (tgl_shape){ { tgl_strided_grid(num_tokens, INT32_MAX) }, .block = (int)tgl_ceil_div(warps, sweeps) * 32 };
}

/* The sum of a[i] * b[i] over a row, as rows.h says. */
float tgl_rows_dot(const uint16_t *a, const uint16_t *b, int64_t count);

#endif
