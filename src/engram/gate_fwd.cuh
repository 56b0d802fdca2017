/* SPDX-License-Identifier: MIT
 * gate_fwd.cuh - what the kernels of gate_fwd share: sums of a row in the order of gate_fwd.h, its gate, its results.
 *   macros    as gate.cuh; THREADS 32, 64, 128, 256, which have one row at a time. Thread i has vectors i, i + THREADS,
 *             ..., so that it adds the slots i, i + THREADS, ... */
#ifndef TEGULA_ENGRAM_GATE_FWD_CUH
#define TEGULA_ENGRAM_GATE_FWD_CUH

#include "engram/common/gate.cuh"
#include "engram/common/row_sum.cuh"
#include "engram/gate_fwd.h"

static_assert(THREADS >= 32 && GATE_SLOTS % THREADS == 0, "THREADS is 32, 64, 128 or 256");
enum { SLOTS = GATE_SLOTS / THREADS, GROUPS = GATE_SLOTS / GATE_GROUP }; /* slots of a thread, groups of a row */

typedef struct { float squares_x, squares_k, dot; } sums;

DEV void add_column(sums &s, float x, float k, float w)
{
    s.squares_x = fmaf(x, x, s.squares_x);
    s.squares_k = fmaf(k, k, s.squares_k);
    s.dot = fmaf(x * w, k, s.dot);
}

DEV void add_vector(sums &s, const uint4 &x, const uint4 &k, const float (&w)[GATE_VECTOR])
{
#pragma unroll
    for (int i = 0; i < GATE_VECTOR; i++) add_column(s, column(x, i), column(k, i), w[i]);
}

/* Writes the sums of the slots of thread tid by groups; a barrier follows, then row_sums(). */
DEV void put_groups(const sums (&slot)[SLOTS], float4 *groups, int tid)
{
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        const float4 group =
            make_float4(group_sum(slot[i].squares_x), group_sum(slot[i].squares_k), group_sum(slot[i].dot), 0);
        if (tid % 32 == 0) groups[tid / 32 + i * (THREADS / 32)] = group;
    }
}

DEV sums row_sums(const float4 *groups)
{
    sums total = { 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        const float4 group = groups[i];
        total.squares_x += group.x;
        total.squares_k += group.y;
        total.dot += group.z;
    }
    return total;
}

DEV void put_saved(const gate_fwd_args &a, i64 row, float dot, float gate_score, float rstd_x, float rstd_k)
{
    if (!a.dot || threadIdx.x != 0) return;
    a.dot[row] = tgl_one_nan(dot);
    a.gate_score[row] = tgl_one_nan(gate_score);
    a.rstd_x[row] = tgl_one_nan(rstd_x);
    a.rstd_k[row] = tgl_one_nan(rstd_k);
}

/* The gate of a row, by whole warps: even lanes compute one reciprocal, odd lanes the other. */
DEV float gate_of(const gate_fwd_args &a, i64 row, const sums &s)
{
    const float rstd = gate_rstd(&a.numbers, threadIdx.x % 2 ? s.squares_k : s.squares_x);
    const float rstd_x = __shfl_sync(FULL, rstd, 0), rstd_k = __shfl_sync(FULL, rstd, 1);
    const float gate = gate_score_of(&a.numbers, gate_scaled(&a.numbers, s.dot, rstd_x, rstd_k));
    put_saved(a, row, s.dot, gate, rstd_x, rstd_k);
    return gate;
}

DEV uint4 result_of(const uint4 &x, const uint4 &v, float gate, bool has_residual)
{
    float out[GATE_VECTOR];
#pragma unroll
    for (int i = 0; i < GATE_VECTOR; i++) out[i] = gate_result(column(x, i), column(v, i), gate, has_residual);
    return pack(out);
}

/* What a masked row becomes; is it written at all? */
DEV uint4 masked_result(const uint4 &x, bool has_residual) { return has_residual ? x : make_uint4(0, 0, 0, 0); }
DEV bool has_masked_result(const gate_fwd_args &a) { return a.out.data && !(a.is_in_place && a.has_residual); }

#endif
