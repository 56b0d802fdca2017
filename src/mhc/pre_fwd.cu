/* SPDX-License-Identifier: MIT
 * pre_fwd.cu - the input of a sublayer from the residual, for any sizes; also the mixes alone.
 *   computes  as common/projection.h says; mixes = out_mul * rsqrt(sqrsum / columns + rms_eps); gates, Sinkhorn, the
 *             weighted sum of streams and its RMSNorm as the ops that have them
 *   launch    grid (segments, tiles of tokens up to 65535, over which blocks stride), block 64 * STREAMS: a warp per
 *             chunk; shared memory for the chunks' sums. Blocks leave sums of groups of chunks in the workspace; the
 *             last of a tile adds them up and does the rest of the tile
 *   moves     2 bytes per column of a token; fn once per tile of tokens and segment, mostly from L2; partial sums; with
 *             GROUPS the columns once more, mostly from L2, and 2 bytes per column of out
 *   macros    STREAMS 1..8; ROWS 1..80: rows of fn; SEGMENTS 1, 2, 4, 8, 16; HAS_WEIGHT 0, 1: with a gain; GROUPS 0
 *             (mixes alone), 1 (pre), 2 (and post), 3 (and comb); PARTS 0, 1: sums in parts instead of mixes, with
 *             GROUPS 0; HAS_VECTORS 0, 1: as common/rows.cuh says, and rows of fn too */
#include "device/integer.cuh"
#include "mhc/common/rows.cuh"
#include "mhc/pre_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && ROWS >= 1 && ROWS <= PROJECTION_MAX_ROWS && SEGMENTS >= 1 &&
                  SEGMENTS <= PROJECTION_MAX_SEGMENTS && (SEGMENTS & (SEGMENTS - 1)) == 0 && GROUPS >= 0 &&
                  GROUPS <= 3 && (PARTS == 0 || (PARTS == 1 && GROUPS == 0)) && (HAS_WEIGHT == 0 || HAS_WEIGHT == 1) &&
                  (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

enum {
    THREADS = 64 * STREAMS,
    TILES = PRE_TILES(STREAMS),
    TOKENS = PRE_TOKENS(STREAMS),
    ROW_TILES = (ROWS + 7) / 8,
    PASS = ROW_TILES < PRE_PASS ? ROW_TILES : PRE_PASS,
    WIDTH = 8 * PRE_PASS + 1,
    SUBTREE = PRE_SUBTREE(STREAMS),
    SUBTREES = PRE_SUBTREES(STREAMS),
    ENTRIES = SEGMENTS * SUBTREES,
    PADDED = (ENTRIES <= 1    ? 1
              : ENTRIES <= 2  ? 2
              : ENTRIES <= 4  ? 4
              : ENTRIES <= 8  ? 8
              : ENTRIES <= 16 ? 16
              : ENTRIES <= 32 ? 32
              : ENTRIES <= 64 ? 64
                              : 128)
};

struct fragments { u32 step[2][4]; }; /* of 8 rows: hi and lo of four columns per lane, in two steps */

DEV void load_fn(const pre_fwd_args &a, i64 row, i64 stream, i64 column, float (&f)[8])
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

DEV fragments load_fragments(const pre_fwd_args &a, i64 row, i64 stream, i64 column, const float (&weight)[8])
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
DEV void sum_chunk(const pre_fwd_args &a, i64 first_token, i64 stream, i64 first_column, int first_tile, float *to)
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
        for (int r = 0; r < PASS; r++) /* a lane has hi and lo of row `quad` for tokens 2q and 2q + 1 */
#pragma unroll
            for (int i = 0; i < 2; i++)
                to[(8 * t + 2 * q + i) * WIDTH + 8 * r + quad] = sums[t][r][i] + sums[t][r][i + 2];
        const float sum = lanes_sum<4>(squares[t][0] + squares[t][1]);
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

/* The tree of COUNT entries from `first` on, `stride` apart; +0 for those past the last. */
template <int COUNT> struct entry_tree {
    static __device__ __forceinline__ float sum(float *from, int first, i64 stride)
    {
        const float left = entry_tree<COUNT / 2>::sum(from, first, stride);
        return left + entry_tree<COUNT / 2>::sum(from, first + COUNT / 2, stride);
    }
};
template <> struct entry_tree<1> {
    static __device__ __forceinline__ float sum(float *from, int first, i64 stride)
    {
        return first < ENTRIES ? __uint_as_float(load_relaxed_u32(from + first * stride)) : 0.0f;
    }
};
/* And leaves zeros. */
template <int COUNT> DEV float take_entries(float *from, int first, i64 stride)
{
    const float sum = entry_tree<COUNT>::sum(from, first, stride);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (first + i < ENTRIES) from[(first + i) * stride] = 0;
    return sum;
}

#if GROUPS
/* What a tile's tokens need of each other's threads: after their mixes. */
typedef struct {
    float pre[TOKENS][STREAMS], logits[GROUPS == 3 ? TOKENS : 1][STREAMS * STREAMS];
    row_sums<1> squares;
    float sum; /* of a token's squares */
} tile_state;

DEV void take_mix(const pre_fwd_args &a, i64 first, int t, int j, float mix, tile_state &s)
{
    const int group = gates_group(j, STREAMS), k = j - group * STREAMS;
    const float made = gates_of(&a.numbers, group, mhc_logit(mix, a.scale[group], a.base[j]));
    if (group == 0) s.pre[t][k] = made;
    if (group == 2) s.logits[GROUPS == 3 ? t : 0][k] = made;
    else if (a.gates[group]) a.gates[group][(first + t) * STREAMS + k] = made;
}

DEV void make_comb(const pre_fwd_args &a, i64 token, const float *logits)
{
    mhc_matrix m;
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++) m.e[i / STREAMS][i % STREAMS] = logits[i];
    mhc_sinkhorn(&m, STREAMS, a.repeat, a.sinkhorn_eps);
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++)
        a.gates[2][token * (STREAMS * STREAMS) + i] = tgl_one_nan(m.e[i / STREAMS][i % STREAMS]);
}

/* A unit of the weighted sum of streams -> its squares. */
DEV float collapse_unit(const pre_fwd_args &a, i64 token, i64 first, const float *pre)
{
    uint4 x[STREAMS];
    float made[8], sum = 0;
#pragma unroll
    for (int i = 0; i < STREAMS; i++)
        x[i] = load_unit(a.residual.data + token * a.residual.token + i * a.residual.stream, first, a.hidden);
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float in[STREAMS];
#pragma unroll
        for (int i = 0; i < STREAMS; i++) in[i] = column(x[i], c);
        made[c] = rows_apply(pre, in, STREAMS);
    }
    const uint4 v = pack(made);
    store_unit(a.out.data + token * a.out.token, first, a.hidden, v);
    if (a.raw.data) store_unit(a.raw.data + token * a.raw.token, first, a.hidden, v);
#pragma unroll
    for (int c = 0; c < 8; c++)
        if (HAS_VECTORS || first + c < a.hidden) sum = fmaf(column(v, c), column(v, c), sum);
    return sum;
}

DEV void norm_unit(const pre_fwd_args &a, i64 token, i64 first, float rstd)
{
    u16 *const row = a.out.data + token * a.out.token;
    const uint4 v = load_own_unit(row, first, a.hidden);
    float made[8];
#pragma unroll
    for (int c = 0; c < 8; c++)
        made[c] = HAS_VECTORS || first + c < a.hidden ? pre_normed(column(v, c), rstd, pre_input_weight(&a, first + c))
                                                      : 0.0f;
    store_unit(row, first, a.hidden, pack(made));
}

/* A token's sum of streams, and its RMSNorm: a thread's units are the same in both sweeps. */
DEV void collapse(const pre_fwd_args &a, i64 token, const float *pre, tile_state &s)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = THREADS / 32;
    const i64 units = ceil_div(a.hidden, ROWS_UNIT), spans = ceil_div(units, ROWS_SPAN);
#pragma unroll 1
    for (i64 span = 0; span < spans; span++) {
#pragma unroll 1
        for (int group = warp; group < ROWS_WARPS; group += warps) {
            const i64 unit = span * ROWS_SPAN + group * 32 + lane;
            float sum = unit < units ? collapse_unit(a, token, unit * ROWS_UNIT, pre) : 0.0f;
            if (!a.is_normed) continue;
            sum = lanes_sum<32>(sum);
            if (lane == 0) s.squares.of_warp[0][group] = sum;
        }
        if (!a.is_normed) continue;
        __syncthreads();
        add_span<1>(s.squares, span, spans, &s.sum, &s.sum);
        __syncthreads();
    }
    if (!a.is_normed) return;
    const float rstd = pre_rstd(&a, s.sum);
    if (a.rstd && threadIdx.x == 0) a.rstd[token] = tgl_one_nan(rstd);
#pragma unroll 1
    for (i64 group = warp; group * 32 < units; group += warps) /* of any warp: a barrier was since */
        if (group * 32 + lane < units) norm_unit(a, token, (group * 32 + lane) * ROWS_UNIT, rstd);
    __syncthreads(); /* all have read the sum */
}
#endif

#if PARTS
/* `count` entries, a power of two up to COUNT. */
template <int COUNT> struct some_entries {
    static __device__ __forceinline__ float take(float *from, int first, i64 stride, int count)
    {
        return count == COUNT ? take_entries<COUNT>(from, first, stride)
                              : some_entries<COUNT / 2>::take(from, first, stride, count);
    }
};
template <> struct some_entries<0> {
    static __device__ __forceinline__ float take(float *from, int first, i64 stride, int count) { return 0; }
};

/* All blocks have left their sums of the tile: subtrees of them are the parts. */
DEV void finish_tile(const pre_fwd_args &a, i64 first, int count, float *of_token)
{
    enum { ENTRY = ROWS + 1 };
    const int parts = min(a.num_splits, (int)PADDED), mine = PADDED / parts;
#pragma unroll 1
    for (int k = (int)threadIdx.x; k < a.num_splits * count * ENTRY; k += THREADS) {
        const int j = k % ENTRY, t = k / ENTRY % count, part = k / (count * ENTRY);
        const i64 row = part * a.num_tokens + first + t;
        float *const from = a.partial + (first + t) * ENTRIES * ENTRY + j;
        const float sum = part < parts ? some_entries<PADDED>::take(from, part * mine, ENTRY, mine) : 0.0f;
        *(j < ROWS ? &a.out_mul[row * ROWS + j] : &a.sqrsum[row]) = tgl_one_nan(sum);
    }
}
#else
/* All blocks have left their sums of the tile. */
DEV void finish_tile(const pre_fwd_args &a, i64 first, int count, float *of_token)
{
    enum { ENTRY = ROWS + 1 };
#if GROUPS
    SHARED(tile_state, s);
#endif
#pragma unroll 1
    for (int t = (int)threadIdx.x; t < count; t += THREADS) {
        const float sum = take_entries<PADDED>(a.partial + (first + t) * ENTRIES * ENTRY + ROWS, 0, ENTRY);
        of_token[t] = projection_rms(sum, a.columns, a.rms_eps);
        if (a.sqrsum) a.sqrsum[first + t] = tgl_one_nan(sum);
    }
    __syncthreads();
#pragma unroll 1
    for (int k = (int)threadIdx.x; k < count * ROWS; k += THREADS) {
        const int t = k / ROWS, j = k % ROWS;
        const float sum = take_entries<PADDED>(a.partial + (first + t) * ENTRIES * ENTRY + j, 0, ENTRY);
        const float mix = tgl_one_nan(sum * of_token[t]);
        if (a.out_mul) a.out_mul[first * ROWS + k] = tgl_one_nan(sum);
        if (a.mixes) a.mixes[first * ROWS + k] = mix;
#if GROUPS
        take_mix(a, first, t, j, mix, s);
#endif
    }
#if GROUPS
    __syncthreads();
    if (GROUPS == 3 && a.gates[2] && (int)threadIdx.x < count)
        make_comb(a, first + threadIdx.x, s.logits[GROUPS == 3 ? threadIdx.x : 0]);
#pragma unroll 1
    for (int t = 0; t < count; t++) collapse(a, first + t, s.pre[t], s);
#endif
}
#endif

/* Without vectors, and with one or two streams, 1: the compiler then does not save registers and spill. 0 says nothing. */
extern "C" __global__ void __launch_bounds__(THREADS, STREAMS > 2 && HAS_VECTORS ? 0 : 1)
    pre_fwd(const __grid_constant__ pre_fwd_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(u32, is_last);
    float *const sums = (float *)memory; /* [chunks of a segment][TOKENS][WIDTH] */
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
            for (int k = (int)threadIdx.x; k < count * SUBTREES * WIDTH; k += THREADS) {
                const int w = k % WIDTH, group = k / WIDTH % SUBTREES, t = k / (WIDTH * SUBTREES);
                const bool is_square = w == WIDTH - 1;
                const int row = is_square ? ROWS : 8 * pass + w;
                if (is_square ? pass > 0 : w >= 8 * PASS || row >= ROWS) continue;
                a.partial[((first + t) * ENTRIES + segment * SUBTREES + group) * (ROWS + 1) + row] =
                    chunk_tree<SUBTREE>::sum(sums + (group * SUBTREE * TOKENS + t) * WIDTH + w);
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
