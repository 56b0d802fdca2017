/* SPDX-License-Identifier: MIT
 * sinkhorn.cuh - rows of a scaled matrix: what sinkhorn_step.cu and sinkhorn_finalize.cu share. A block has ROWS rows
 * at once; thread t has columns 4 t .. 4 t + 3 and those 4 THREADS further on, VECTORS times. The scales of columns are
 * in shared memory.
 *
 *     stage_col_scale(m, scales);
 *     batch next = load_batch(m, row, end);
 *     for (...) {
 *         float x[ROWS][VECTORS][4];
 *         scale_batch(m, next, scales, x);
 *         next = load_batch(m, following row, its end);        loads are under way
 *         const float sum = sum_of_row(x, of_warps[turn ^= 1]);    of row lane % ROWS
 *     }
 *
 *   macros    THREADS 32, 64, 128, 256; VECTORS 1 .. SINKHORN_MAX_VECTORS, 0: rows of any length, read twice */
#ifndef TEGULA_ENGRAM_SINKHORN_CUH
#define TEGULA_ENGRAM_SINKHORN_CUH

#include "device/ptx.cuh"
#include "engram/common/sinkhorn.h"

static_assert(THREADS == 32 || THREADS == 64 || THREADS == 128 || THREADS == 256, "THREADS is 32, 64, 128 or 256");
static_assert(VECTORS >= 0 && VECTORS <= SINKHORN_MAX_VECTORS, "VECTORS is 0 .. SINKHORN_MAX_VECTORS");
static_assert(THREADS == SINKHORN_MAX_THREADS || VECTORS == 1, "few threads have one vector each");

enum {
    WARPS = THREADS / 32,
    WIDTH = 4 * THREADS, /* columns of a step */
    HELD = VECTORS ? VECTORS : 1,
    ROWS = SINKHORN_ROWS(THREADS, VECTORS)
};
static_assert(32 % ROWS == 0, "a lane has the scale of one row");

/* Lane r < ROWS of every warp has the scale of row r. */
struct batch {
    float4 m[ROWS][HELD];
    float row_scale;
};
typedef float partial_sums[WARPS][ROWS];

/* `left` columns are there. HAS_VECTORS is m.has_vectors, decided once for many: branches between loads would keep the
 * compiler from issuing them together. */
template <bool HAS_VECTORS> DEV float4 load_vector(const float *row, i32 left)
{
    if (HAS_VECTORS) return left > 0 ? *(const float4 *)row : make_float4(0, 0, 0, 0);
    return make_float4(left > 0 ? row[0] : 0, left > 1 ? row[1] : 0, left > 2 ? row[2] : 0, left > 3 ? row[3] : 0);
}
template <bool HAS_VECTORS> DEV void store_vector(float *row, const float (&v)[4], i32 left)
{
    if (HAS_VECTORS) {
        if (left > 0) *(float4 *)row = make_float4(v[0], v[1], v[2], v[3]);
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (e < left) row[e] = v[e];
    }
}

/* Columns that are left from this thread's vector v on. Rows that a block holds are short. */
DEV i32 first_column(int v) { return 4 * (i32)threadIdx.x + v * WIDTH; }
DEV i32 columns_left(const sinkhorn_matrix &m, int v) { return (i32)m.dim - first_column(v); }

DEV void stage_col_scale(const sinkhorn_matrix &m, float *scales)
{
#pragma unroll 1
    for (i32 i = (i32)threadIdx.x; i < HELD * WIDTH; i += THREADS) scales[i] = i < m.dim ? m.col_scale[i] : 0;
    __syncthreads();
}

/* Rows row .. row + ROWS - 1 that are before `end`; the others are 0. */
template <bool HAS_VECTORS> DEV void load_rows(const sinkhorn_matrix &m, i64 row, i64 end, batch &b)
{
    const float *const first = m.matrix + row * m.row_stride;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int v = 0; v < HELD; v++)
            b.m[r][v] = load_vector<HAS_VECTORS>(first + r * m.row_stride + first_column(v),
                                                 row + r < end ? columns_left(m, v) : 0);
}
DEV batch load_batch(const sinkhorn_matrix &m, i64 row, i64 end)
{
    batch b;
    const i32 lane = (i32)threadIdx.x % 32;
    if (m.has_vectors) load_rows<true>(m, row, end, b);
    else load_rows<false>(m, row, end, b);
    b.row_scale = lane < ROWS && row + lane < end ? m.row_scale[row + lane] : 0;
    return b;
}

/* Columns past the end are 0, whatever the scales are. */
DEV void scale_batch(const sinkhorn_matrix &m, const batch &b, const float *scales, float (&x)[ROWS][HELD][4])
{
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        const float4 by = *(const float4 *)(scales + first_column(v));
        const i32 left = columns_left(m, v);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float row_scale = __shfl_sync(FULL, b.row_scale, r);
            x[r][v][0] = left > 0 ? sinkhorn_scaled(row_scale, b.m[r][v].x, by.x) : 0;
            x[r][v][1] = left > 1 ? sinkhorn_scaled(row_scale, b.m[r][v].y, by.y) : 0;
            x[r][v][2] = left > 2 ? sinkhorn_scaled(row_scale, b.m[r][v].z, by.z) : 0;
            x[r][v][3] = left > 3 ? sinkhorn_scaled(row_scale, b.m[r][v].w, by.w) : 0;
        }
    }
}

/* Of N rows, keeps those of one half and gives the others to the lane DISTANCE away; then the same with N / 2 rows.
 * A template: if loops say it, some compilers keep the sums in local memory. */
template <int N, int DISTANCE> struct halves {
    static __device__ __forceinline__ float total(const float (&sum)[N], i32 lane)
    {
        const bool is_second = lane & DISTANCE;
        float half[N / 2];
#pragma unroll
        for (int r = 0; r < N / 2; r++) {
            const float given = is_second ? sum[r] : sum[r + N / 2], kept = is_second ? sum[r + N / 2] : sum[r];
            half[r] = kept + __shfl_xor_sync(FULL, given, DISTANCE);
        }
        return halves<N / 2, 2 * DISTANCE>::total(half, lane);
    }
};
template <int DISTANCE> struct halves<1, DISTANCE> {
    static __device__ __forceinline__ float total(const float (&sum)[1], i32 lane)
    {
        float all = sum[0];
#pragma unroll
        for (int d = DISTANCE; d < 32; d *= 2) all += __shfl_xor_sync(FULL, all, d);
        return all;
    }
};

/* Sums over a warp's lanes, neighbours pair by pair. Lanes that have been added to each other need only one result per
 * row, so in the end every lane has one row: r is in the lane whose bits are those of r in reverse. -> that of row
 * lane % ROWS */
DEV float total_of_warp(const float (&sum)[ROWS], i32 lane)
{
    const float total = halves<ROWS, 1>::total(sum, lane);
    const i32 reversed = (i32)((u64)__brev((u32)lane % ROWS) * ROWS >> 32);
    return ROWS == 1 ? total : __shfl_sync(FULL, total, reversed);
}

/* The same over a block. Two sets of sums take turns: a warp that is one row ahead does not disturb one that still
 * reads. */
DEV float total_of_row(const float (&sum)[ROWS], partial_sums of_warps)
{
    const i32 lane = (i32)threadIdx.x % 32, warp = (i32)threadIdx.x / 32;
    const float mine = total_of_warp(sum, lane);
    if (WARPS == 1) return mine;
    if (lane < ROWS) of_warps[warp][lane] = mine;
    __syncthreads();
    float total[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) total[w] = of_warps[w][lane % ROWS];
#pragma unroll
    for (int d = 1; d < WARPS; d *= 2)
#pragma unroll
        for (int w = 0; w < WARPS; w += 2 * d) total[w] += total[w + d];
    return total[0];
}

DEV float sum_of_row(const float (&x)[ROWS][HELD][4], partial_sums of_warps)
{
    float sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float own[4] = { 0, 0, 0, 0 };
#pragma unroll
        for (int v = 0; v < HELD; v++)
#pragma unroll
            for (int e = 0; e < 4; e++) own[e] += x[r][v][e] * x[r][v][e];
        sum[r] = (own[0] + own[1]) + (own[2] + own[3]);
    }
    return total_of_row(sum, of_warps);
}

/* ---- rows of any length ---- */

DEV void scale_wide(const sinkhorn_matrix &m, const float *row, float row_scale, i64 col, float (&x)[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        x[e] = col + e < m.dim ? sinkhorn_scaled(row_scale, row[col + e], m.col_scale[col + e]) : 0;
}
DEV float sum_of_wide_row(const sinkhorn_matrix &m, const float *row, float row_scale, partial_sums of_warps)
{
    float own[4] = { 0, 0, 0, 0 };
#pragma unroll 4
    for (i64 col = 4 * (i64)threadIdx.x; col < m.dim; col += WIDTH) {
        float x[4];
        scale_wide(m, row, row_scale, col, x);
#pragma unroll
        for (int e = 0; e < 4; e++) own[e] += x[e] * x[e];
    }
    const float sum[ROWS] = { (own[0] + own[1]) + (own[2] + own[3]) };
    return total_of_row(sum, of_warps);
}

#endif
