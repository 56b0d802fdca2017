/* SPDX-License-Identifier: MIT
 * gate_fast.c - gate.c's loops over scores, in forms that compilers vectorise. */
#include "moe/common/gate_host.h"

TGL_ALWAYS_INLINE void score(int scoring, float *x, int64_t count, tgl_softmax row)
{
    for (int64_t i = 0; i < count; i++) x[i] = tgl_raw_score(scoring, x[i], row);
}

void TGL_FAST(tgl_gate_score)(int scoring, float *x, int64_t count, tgl_softmax row)
{
    if (scoring == TGL_SIGMOID) score(TGL_SIGMOID, x, count, row);
    else if (scoring == TGL_SQRTSOFTPLUS) score(TGL_SQRTSOFTPLUS, x, count, row);
    else if (scoring == TGL_SOFTMAX) score(TGL_SOFTMAX, x, count, row);
}

TGL_ALWAYS_INLINE void raise(float *restrict max, const float *restrict x, int count)
{
    for (int i = 0; i < count; i++) max[i] = tgl_select_f32(x[i] > max[i], x[i], max[i]);
}

TGL_ALWAYS_INLINE void add_exps(float *restrict sums, const float *restrict x, int count, float max)
{
    for (int i = 0; i < count; i++) sums[i] += tgl_select_f32(x[i] == x[i], tgl_score_exp(x[i] - max), 0.0f);
}

tgl_softmax TGL_FAST(tgl_gate_softmax)(const float *x, int64_t num_experts)
{
    enum { N = TGL_SOFTMAX_SUMS };
    const int64_t whole = num_experts / N * N;
    const int rest = (int)(num_experts - whole);
    tgl_softmax all = { -INFINITY, 0 };
    float max[N], sums[N] = { 0 };
    for (int i = 0; i < N; i++) max[i] = -INFINITY;
    for (int64_t e = 0; e < whole; e += N) raise(max, x + e, N);
    raise(max, x + whole, rest);
    for (int i = 0; i < N; i++) all.max = max[i] > all.max ? max[i] : all.max;
    for (int64_t e = 0; e < whole; e += N) add_exps(sums, x + e, N, all.max);
    add_exps(sums, x + whole, rest, all.max);
    for (int i = 0; i < N; i++) all.sum += sums[i];
    return all;
}
