/* SPDX-License-Identifier: MIT
 * reduce_fused_fast.c - reduce_fused.c's loop row by row, so that columns are vectorised and fmaf() is an
 * instruction where the CPU has one. Rows are taken in pieces whose sums stay in L1. */
#include <math.h>

#include "moe/reduce_fused_cpu.h"

enum { PIECE = 1024 };

TGL_ALWAYS_INLINE void add(const void *x, int type, int64_t first, int64_t count, float s, float *restrict sum)
{
    for (int64_t i = 0; i < count; i++) sum[i] = fmaf(reduce_load(x, type, first + i), s, sum[i]);
}

TGL_ALWAYS_INLINE void store(const float *restrict sum, int64_t count, void *out, int type, int64_t first)
{
    for (int64_t i = 0; i < count; i++) reduce_store(out, type, first + i, sum[i]);
}

/* The types as constants. */
static void add_row(const void *x, int type, int64_t first, int64_t count, float s, float *sum)
{
    switch (type) {
    case REDUCE_F32: add(x, REDUCE_F32, first, count, s, sum); break;
    case REDUCE_BF16: add(x, REDUCE_BF16, first, count, s, sum); break;
    case REDUCE_F16: add(x, REDUCE_F16, first, count, s, sum); break;
    default: add(x, REDUCE_E4M3, first, count, s, sum); break;
    }
}
static void store_row(const float *sum, int64_t count, void *out, int type, int64_t first)
{
    switch (type) {
    case REDUCE_F32: store(sum, count, out, REDUCE_F32, first); break;
    case REDUCE_BF16: store(sum, count, out, REDUCE_BF16, first); break;
    case REDUCE_F16: store(sum, count, out, REDUCE_F16, first); break;
    default: store(sum, count, out, REDUCE_E4M3, first); break;
    }
}

void TGL_FAST(tgl_reduce_rows)(const void *context, int64_t begin, int64_t end)
{
    const reduce_args *p = context;
    for (int64_t t = begin; t < end; t++)
        for (int64_t first = 0; first < p->hidden; first += PIECE) {
            const int64_t count = p->hidden - first < PIECE ? p->hidden - first : PIECE;
            float sum[PIECE] = { 0 };
            for (int64_t k = 0; k < p->num_topk; k++) {
                const int64_t at = p->token_topk_to_pos[t * p->num_topk + k];
                if (at < 0 || at >= p->num_positions) continue;
                float s = p->topk_weights ? p->topk_weights[t * p->weights_stride + k] : 1;
                if (p->x_sf) s *= p->x_sf[at];
                add_row(p->x, p->x_type, at * p->x_stride + first, count, s, sum);
            }
            if (p->sf)
                for (int64_t i = 0; i < count; i++) sum[i] *= *p->sf;
            store_row(sum, count, p->out, p->out_type, t * p->out_stride + first);
        }
}
