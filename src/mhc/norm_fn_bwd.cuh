/* SPDX-License-Identifier: MIT
 * norm_fn_bwd.cuh - what the kernels of norm_fn_bwd share. */
#ifndef TEGULA_MHC_NORM_FN_BWD_CUH
#define TEGULA_MHC_NORM_FN_BWD_CUH

#include "mhc/common/rows.cuh"
#include "mhc/norm_fn_bwd.h"

DEV float fn_at(const norm_fn_bwd_args &a, int row, i64 at, bool is_there)
{
    if (row >= ROWS || !is_there) return 0;
    const float fn = a.fn[row * a.num_streams * a.hidden + at];
    return HAS_WEIGHT ? fn * a.norm_weight[at] : fn;
}

/* norm_fn_lane_tree of the lanes of a token. */
DEV float lane_tree(float v) { return lanes_sum<NORM_FN_BWD_LANES>(v); }

/* Adds the groups of a slice of COLUMNS columns in order, and leaves zeros. */
template <int COLUMNS, int AT_ONCE> DEV void finish_slice(const norm_fn_bwd_args &a, i64 stream, i64 column)
{
    const i64 columns = a.num_streams * a.hidden, c = column + threadIdx.x, at = stream * a.hidden + c;
    if (threadIdx.x >= COLUMNS || c >= a.hidden) return;
    const float weight = HAS_WEIGHT ? a.norm_weight[at] : 1;
    float of_weight = 0;
#pragma unroll 1
    for (int first = 0; first < ROWS; first += AT_ONCE) {
        float v[AT_ONCE][NORM_FN_BWD_GROUPS]; /* all loads before the first store, which they would wait for */
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++)
#pragma unroll
            for (int g = 0; g < NORM_FN_BWD_GROUPS; g++)
                v[r][g] = g < a.num_groups && first + r < ROWS
                              ? __uint_as_float(load_relaxed_u32(a.partial + (g * ROWS + first + r) * columns + at))
                              : 0.0f;
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            const int j = first + r;
            if (j >= ROWS) continue;
            float sum = v[r][0];
#pragma unroll
            for (int g = 0; g < NORM_FN_BWD_GROUPS; g++) {
                if (g >= a.num_groups) continue;
                if (g > 0) sum = sum + v[r][g];
                a.partial[(g * ROWS + j) * columns + at] = 0;
            }
            a.grad_fn[j * columns + at] = tgl_one_nan(HAS_WEIGHT ? sum * weight : sum);
            if (HAS_WEIGHT) of_weight = fmaf(sum, a.fn[j * columns + at], of_weight);
        }
    }
    if (HAS_WEIGHT && a.grad_norm_weight) a.grad_norm_weight[at] = tgl_one_nan(of_weight);
}

#endif
