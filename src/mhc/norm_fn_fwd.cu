/* SPDX-License-Identifier: MIT
 * norm_fn_fwd.cu - mixes: RMSNorm of a token's streams times the rows of fn.
 *   computes  as common/projection.h says; mixes = out_mul * rsqrt(sqrsum / columns + eps)
 *   launch    grid (segments, tiles of tokens up to 65535, over which blocks stride), block 64 * STREAMS: a warp per
 *             chunk; shared memory for the chunks' sums. Blocks leave sums of groups of chunks in the workspace; the
 *             last of a tile adds them up
 *   moves     2 bytes per column of a token; fn once per tile of tokens and segment, mostly from L2; partial sums
 *   macros    STREAMS 1..8; ROWS 1..80: rows of fn; SEGMENTS 1, 2, 4, 8, 16; HAS_WEIGHT 0, 1: with a gain; HAS_VECTORS
 *             0, 1: as common/rows.cuh says, and rows of fn too */
#include "mhc/common/rows.cuh"
#include "mhc/norm_fn_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && ROWS >= 1 && ROWS <= PROJECTION_MAX_ROWS &&
              SEGMENTS >= 1 && SEGMENTS <= PROJECTION_MAX_SEGMENTS && (SEGMENTS & (SEGMENTS - 1)) == 0 &&
              (HAS_WEIGHT == 0 || HAS_WEIGHT == 1) && (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

enum { THREADS = 64 * STREAMS, TILES = NORM_FN_TILES(STREAMS), TOKENS = NORM_FN_TOKENS(STREAMS),
       ROW_TILES = (ROWS + 7) / 8, PASS = ROW_TILES < NORM_FN_PASS ? ROW_TILES : NORM_FN_PASS,
       WIDTH = 8 * NORM_FN_PASS + 1,
       GROUP = NORM_FN_GROUP(STREAMS), GROUPS = NORM_FN_GROUPS(STREAMS), ENTRIES = SEGMENTS * GROUPS,
       PADDED = ENTRIES <= 1 ? 1 : ENTRIES <= 2 ? 2 : ENTRIES <= 4 ? 4 : ENTRIES <= 8 ? 8 : ENTRIES <= 16 ? 16
                : ENTRIES <= 32 ? 32 : ENTRIES <= 64 ? 64 : 128 };

struct fragments { u32 step[2][4]; };           /* of 8 rows: hi and lo of four columns per lane, in two steps */

DEV void load_fn(const norm_fn_fwd_args &a, i64 row, i64 stream, i64 column, float (&f)[8])
{
    const i64 at = row * a.num_streams * a.hidden + stream * a.hidden + column;
#if HAS_VECTORS
    if (row < ROWS && column < a.hidden) {
        const float4 x = *(const float4 *)(a.fn + at), y = *(const float4 *)(a.fn + at + 4);
        f[0] = x.x, f[1] = x.y, f[2] = x.z, f[3] = x.w, f[4] = y.x, f[5] = y.y, f[6] = y.z, f[7] = y.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) f[i] = 0;
    }
#else
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = row < ROWS && column + i < a.hidden ? a.fn[at + i] : 0;
#endif
}

DEV fragments load_fragments(const norm_fn_fwd_args &a, i64 row, i64 stream, i64 column, const float (&weight)[8])
{
    float f[8];
    fragments made;
    load_fn(a, row, stream, column, f);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const projection_parts x = projection_split(HAS_WEIGHT ? f[i] * weight[i] : f[i]);
        const projection_parts y = projection_split(HAS_WEIGHT ? f[i + 1] * weight[i + 1] : f[i + 1]);
        made.step[i / 4][i % 4] = x.hi >> 16 | y.hi;
        made.step[i / 4][i % 4 + 1] = x.lo >> 16 | y.lo;
    }
    return made;
}

/* A chunk's sums of TOKENS tokens, with rows 8 * first_tile .. of fn, to `to`, [TOKENS][WIDTH]; squares are last. */
DEV void sum_chunk(const norm_fn_fwd_args &a, i64 first_token, i64 stream, i64 first_column, int first_tile, float *to)
{
    const int lane = (int)threadIdx.x % 32, quad = lane / 4, q = lane % 4;
    float sums[TILES][PASS][4], squares[TILES][2];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        squares[t][0] = squares[t][1] = 0;
#pragma unroll
        for (int r = 0; r < PASS; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[t][r][i] = 0;
    }
#pragma unroll 1
    for (i64 piece = 0; piece < a.pieces; piece++) {
        const i64 column = first_column + piece * PROJECTION_PIECE + 8 * q;
        uint4 x[TILES];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const i64 token = first_token + 8 * t + quad;
            x[t] = make_uint4(0, 0, 0, 0);
            if (token < a.num_tokens && column < a.hidden)
                x[t] = load_unit(a.residual.data + token * a.residual.token + stream * a.residual.stream, column,
                                 a.hidden);
        }
        float weight[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            weight[i] = HAS_WEIGHT && column + i < a.hidden ? a.norm_weight[stream * a.hidden + column + i] : 0;
#pragma unroll
        for (int r = 0; r < PASS; r++) {
            const fragments f = load_fragments(a, 8 * (first_tile + r) + quad, stream, column, weight);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                mma_bf16(sums[t][r], f.step[0], x[t].x, x[t].y);
                mma_bf16(sums[t][r], f.step[1], x[t].z, x[t].w);
            }
        }
        if (first_tile == 0)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float v = ::column(x[t], i);
                    squares[t][i % 2] = fmaf(v, v, squares[t][i % 2]);
                }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int r = 0; r < PASS; r++)          /* a lane has hi and lo of row `quad` for tokens 2q and 2q + 1 */
#pragma unroll
            for (int i = 0; i < 2; i++)
                to[(8 * t + 2 * q + i) * WIDTH + 8 * r + quad] = sums[t][r][i] + sums[t][r][i + 2];
        float sum = squares[t][0] + squares[t][1];
        sum += __shfl_xor_sync(FULL, sum, 1);
        sum += __shfl_xor_sync(FULL, sum, 2);
        if (q == 0) to[(8 * t + quad) * WIDTH + WIDTH - 1] = sum;
    }
}

/* The tree of COUNT chunks of a block. */
template <int COUNT> struct chunk_tree {
    static __device__ __forceinline__ float sum(const float *from)
    {
        const float left = chunk_tree<COUNT / 2>::sum(from);
        return left + chunk_tree<COUNT / 2>::sum(from + COUNT / 2 * TOKENS * WIDTH);
    }
};
template <> struct chunk_tree<1> {
    static __device__ __forceinline__ float sum(const float *from) { return *from; }
};

/* The tree of COUNT entries from FIRST on, `stride` apart; +0 for those past the last. */
template <int FIRST, int COUNT> struct entry_tree {
    static __device__ __forceinline__ float sum(float *from, i64 stride)
    {
        const float left = entry_tree<FIRST, COUNT / 2>::sum(from, stride);
        return left + entry_tree<FIRST + COUNT / 2, COUNT / 2>::sum(from, stride);
    }
};
template <int FIRST> struct entry_tree<FIRST, 1> {
    static __device__ __forceinline__ float sum(float *from, i64 stride)
    {
        return FIRST < ENTRIES ? __uint_as_float(load_relaxed_u32(from + FIRST * stride)) : 0.0f;
    }
};
DEV float take_entries(float *from, i64 stride)         /* and leaves zeros */
{
    const float sum = entry_tree<0, PADDED>::sum(from, stride);
#pragma unroll
    for (int i = 0; i < ENTRIES; i++) from[i * stride] = 0;
    return sum;
}

/* All blocks have left their sums of the tile. */
DEV void finish_tile(const norm_fn_fwd_args &a, i64 first, int count, float *of_token)
{
    enum { ENTRY = ROWS + 1 };
#pragma unroll 1
    for (int t = (int)threadIdx.x; t < count; t += THREADS) {
        const float sum = take_entries(a.partial + (first + t) * ENTRIES * ENTRY + ROWS, ENTRY);
        of_token[t] = projection_rms(sum, a.columns, a.eps);
        if (a.sqrsum) a.sqrsum[first + t] = tgl_one_nan(sum);
    }
    __syncthreads();
#pragma unroll 1
    for (int k = (int)threadIdx.x; k < count * ROWS; k += THREADS) {
        const int t = k / ROWS, j = k % ROWS;
        const float sum = take_entries(a.partial + (first + t) * ENTRIES * ENTRY + j, ENTRY);
        if (a.out_mul) a.out_mul[first * ROWS + k] = tgl_one_nan(sum);
        a.mixes[first * ROWS + k] = tgl_one_nan(sum * of_token[t]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) norm_fn_fwd(const __grid_constant__ norm_fn_fwd_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(u32, is_last);
    float *const sums = (float *)memory;        /* [chunks of a segment][TOKENS][WIDTH] */
    const int warp = (int)threadIdx.x / 32;
    const i64 segment = blockIdx.x, chunk_columns = a.pieces * PROJECTION_PIECE;
    pdl_wait();
#pragma unroll 1
    for (i64 tile = blockIdx.y; tile * TOKENS < a.num_tokens; tile += gridDim.y) {
        const i64 first = tile * TOKENS;
        const int count = (int)min((i64)TOKENS, a.num_tokens - first);
#pragma unroll 1
        for (int pass = 0; pass < ROW_TILES; pass += PASS) {
            sum_chunk(a, first, warp / 2, (2 * segment + warp % 2) * chunk_columns, pass, sums + warp * TOKENS * WIDTH);
            __syncthreads();
#pragma unroll 1
            for (int k = (int)threadIdx.x; k < count * GROUPS * WIDTH; k += THREADS) {
                const int w = k % WIDTH, group = k / WIDTH % GROUPS, t = k / (WIDTH * GROUPS);
                const bool is_square = w == WIDTH - 1;
                const int row = is_square ? ROWS : 8 * pass + w;
                if (is_square ? pass > 0 : w >= 8 * PASS || row >= ROWS) continue;
                a.partial[((first + t) * ENTRIES + segment * GROUPS + group) * (ROWS + 1) + row] =
                    chunk_tree<GROUP>::sum(sums + (group * GROUP * TOKENS + t) * WIDTH + w);
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) is_last = atomic_inc_acq_rel(a.arrived + tile, SEGMENTS - 1) == SEGMENTS - 1;
        __syncthreads();
        if (is_last) finish_tile(a, first, count, sums);
        __syncthreads();
    }
    pdl_trigger();
}
