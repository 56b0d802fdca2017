/* SPDX-License-Identifier: MIT
 * pre_fwd.h - what the kernels of pre_fwd and norm_fn_fwd and the code that launches them agree on. norm_fn_fwd is the
 * part of pre_fwd up to the mixes: GROUPS is 0 in its kernels. */
#ifndef TEGULA_MHC_PRE_FWD_H
#define TEGULA_MHC_PRE_FWD_H

#include "mhc/common/gates.h"
#include "mhc/common/projection.h"

typedef struct {
    rows_in residual;
    const float *fn, *norm_weight;          /* [num_rows, num_streams * hidden], packed; NULL: no gain */
    const float *scale, *base;
    const void *input_weight;               /* [hidden], packed; NULL: no gain */
    float *mixes, *out_mul, *sqrsum;        /* each NULL: not wanted */
    float *gates[3];                        /* pre_mix, post_mix, comb_mix; each NULL: not wanted */
    rows_out out, raw;                      /* raw: no data: not wanted */
    float *rstd;                            /* NULL: not wanted */
    int64_t num_tokens, num_streams, hidden, num_rows;
    int64_t pieces;
    uint32_t *arrived;                      /* of each tile of tokens: blocks; 0 before and after */
    float *partial;                         /* [num_tokens][groups][num_rows + 1]; 0 before and after */
    int32_t segments, num_groups, repeat;   /* num_groups 0: mixes alone */
    int32_t is_normed, has_bf16_weight;     /* of the input */
    float columns, rms_eps, sinkhorn_eps, norm_eps, norm_scale;     /* columns: num_streams * hidden */
    gates_numbers numbers;
} pre_fwd_args;

/* The gain of the input in a column. */
TGL_INLINE float pre_input_weight(const pre_fwd_args *a, int64_t column)
{
    if (!a->input_weight) return a->norm_scale;
    const float w = a->has_bf16_weight ? tgl_bf16_to_f32(((const uint16_t *)a->input_weight)[column])
                                       : ((const float *)a->input_weight)[column];
    return w * a->norm_scale;
}
TGL_INLINE float pre_rstd(const pre_fwd_args *a, float squares)
{
    return tgl_rsqrt(squares / (float)a->hidden + a->norm_eps);
}
TGL_INLINE float pre_normed(float v, float rstd, float weight) { return (v * rstd) * weight; }

/* A warp has a chunk of 8 * PRE_TILES tokens, a block those of a segment. So that a block fits, fewer tokens if there
 * are many warps. */
#define PRE_TILES(streams) ((streams) <= 4 ? 4 : 2)     /* 8 took 148 us on an H200, 4 138 (4096 x 7168) */
#define PRE_TOKENS(streams) (8 * PRE_TILES(streams))
#define PRE_PASS 3                          /* tiles of 8 rows of fn at a time */
/* Chunks of a segment that are a subtree, and such groups in a segment. */
#define PRE_SUBTREE(streams) (2 * ((streams) & -(streams)))
#define PRE_SUBTREES(streams) (2 * (streams) / PRE_SUBTREE(streams))
#define PRE_SHARED_BYTES(streams) (2 * (streams) * PRE_TOKENS(streams) * (8 * PRE_PASS + 1) * 4)

#endif
