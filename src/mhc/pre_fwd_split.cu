/* SPDX-License-Identifier: MIT
 * pre_fwd_split.cu - the input of a sublayer from the residual, for few tokens: a block per chunk of columns.
 *   computes  as pre_fwd.cu
 *   launch    grid CHUNKS = 8 * SEGMENTS, cooperative: blocks wait for each other; block PRE_SPLIT_THREADS, shared
 *             memory of PRE_SPLIT_BYTES; num_tokens <= CHUNKS
 *   moves     2 bytes per column of a token, with GROUPS twice, once from L2, and 2 per column of out; fn once; words
 *   macros    PIECES of a chunk 4..7, SEGMENTS 4, 8, 16: hidden is 64 * PIECES * SEGMENTS; ROWS 1..24: rows of fn;
 *             GROUPS 0 (mixes alone), 1 (pre), 2 (and post), 3 (and comb); HAS_WEIGHT 0, 1: with a gain; PARTS 0,
 *             1: sums in parts instead of mixes, with GROUPS 0
 *
 * Block c multiplies chunk c of all tokens, and sends each sum to its token's owner, block t. The owner adds the
 * chunks, makes the gates and sends those of pre to all blocks that have columns of the input, 64 each, which they have
 * loaded meanwhile; then it runs Sinkhorn. With the input's RMSNorm, blocks send their sums of squares to the owner,
 * and get its factor.
 * Words travel through the workspace, without counters or flags: 0 is one that has not come; readers put zeros back. A
 * word is the complement of a float's bits, which is 0 for no float once NaN have no sign.
 * On an H200 (2026-11) 1 x 7168 takes 8.3 us, 64 x 7168 13 and 128 x 7168 17. */
#include "device/reduce.cuh"
#include "mhc/common/projection.cuh"
#include "mhc/pre_fwd.cuh"

static_assert(PIECES >= PRE_STREAM_MIN_PIECES && PIECES <= PRE_STREAM_MAX_PIECES &&
                  (SEGMENTS == 4 || SEGMENTS == 8 || SEGMENTS == 16) && ROWS >= 1 && ROWS <= 24 && GROUPS >= 0 &&
                  GROUPS <= 3 && (HAS_WEIGHT == 0 || HAS_WEIGHT == 1) && (PARTS == 0 || (PARTS == 1 && GROUPS == 0)),
              "a macro is out of range");

enum {
    STREAMS = PRE_STREAM_STREAMS,
    HIDDEN = 64 * PIECES * SEGMENTS,
    CHUNKS = PRE_SPLIT_CHUNKS(SEGMENTS),
    BLOCKS = PRE_SPLIT_BLOCKS(PIECES, SEGMENTS),
    COLUMNS = 32 * PIECES,
    ROW_TILES = PRE_STREAM_ROW_TILES(ROWS),
    WIDTH = PRE_SPLIT_WIDTH(ROWS),
    SQUARES = 8 * ROW_TILES,
    THREADS = PRE_SPLIT_THREADS,
    WARPS = THREADS / 32,
    APPLIERS = THREADS - 32,
    STEP = PRE_SPLIT_STEP(ROWS),
    X_ROW = PRE_SPLIT_X_ROW(PIECES),
    AT_TOTALS = PRE_SPLIT_AT_TOTALS(PIECES, ROWS),
    AT_X = PRE_SPLIT_AT_X(PIECES, SEGMENTS, ROWS)
};

/* ---- words ---- */

DEV u32 word_of(float v) { return ~__float_as_uint(tgl_one_nan(v)); }
DEV float float_of(u32 word) { return __uint_as_float(~word); }
DEV float wait_for(const u32 *p)
{
    u32 word;
    do word = load_relaxed_u32(p);
    while (word == 0);
    return float_of(word);
}

/* ---- sums ---- */

/* fn to fragments in shared memory: a vector is a lane's part of one step, four columns of a row. */
enum { VECTORS = COLUMNS / 4, LOADS = (8 * ROW_TILES * VECTORS + THREADS - 1) / THREADS };
DEV void load_fn(const pre_fwd_args &a, i64 column, uint4 (&f)[LOADS])
{
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int at = (int)threadIdx.x + THREADS * i, row = at / VECTORS;
        f[i] = make_uint4(0, 0, 0, 0);
        if (row < ROWS) f[i] = load_stream_u32x4(a.fn + row * (i64)(STREAMS * HIDDEN) + column + at % VECTORS * 4);
    }
}
DEV void store_fn(const pre_fwd_args &a, i64 column, u32 fragments, const uint4 (&f)[LOADS])
{
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int at = (int)threadIdx.x + THREADS * i, row = at / VECTORS, v = at % VECTORS;
        if (row >= 8 * ROW_TILES) continue;
        float4 columns = make_float4(__uint_as_float(f[i].x), __uint_as_float(f[i].y), __uint_as_float(f[i].z),
                                     __uint_as_float(f[i].w));
        if (HAS_WEIGHT) {
            const uint4 gain = load_stream_u32x4(a.norm_weight + column + v * 4);
            columns.x *= __uint_as_float(gain.x), columns.y *= __uint_as_float(gain.y);
            columns.z *= __uint_as_float(gain.z), columns.w *= __uint_as_float(gain.w);
        }
        const int step = v / 8 * 2 + v % 2, lane = row % 8 * 4 + v / 2 % 4;
        shared_store_u32x4(fragments + step * STEP + row / 8 * 512 + lane * 16, split_columns(columns));
    }
}

/* Sums of 8 * TILES tokens from `first` on with the block's chunk, to their owners. */
template <int TILES> DEV void multiply(const pre_fwd_args &a, u32 fragments, u32 x_rows, int first)
{
    const int lane = (int)threadIdx.x % 32, num_tokens = (int)a.num_tokens;
    float sums[TILES][ROW_TILES][4] = {}, squares[TILES][2] = {};
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        uint4 x[TILES];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const int token = first + 8 * t + lane / 4;
            x[t] = make_uint4(0, 0, 0, 0);
            if (token < num_tokens) x[t] = shared_load_u32x4(x_rows + token * X_ROW + i * 64 + lane % 4 * 16);
        }
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                const uint4 v = shared_load_u32x4(fragments + (2 * i + step) * STEP + m * 512 + lane * 16);
                const u32 f[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
                for (int t = 0; t < TILES; t++) mma_bf16(sums[t][m], f, step ? x[t].z : x[t].x, step ? x[t].w : x[t].y);
            }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const u32 words[4] = { x[t].x, x[t].y, x[t].z, x[t].w };
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const float low = __uint_as_float(words[w] << 16), high = __uint_as_float(words[w] & 0xffff0000u);
                squares[t][0] = fmaf(low, low, squares[t][0]);
                squares[t][1] = fmaf(high, high, squares[t][1]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int side = 0; side < 2; side++) { /* a lane has hi and lo of row lane / 4 for two tokens */
            const int token = first + 8 * t + 2 * (lane % 4) + side;
            u32 *const to = a.words + ((i64)token * CHUNKS + blockIdx.x) * WIDTH + lane / 4;
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
                if (token < num_tokens) store_relaxed_u32(to + 8 * m, word_of(sums[t][m][side] + sums[t][m][side + 2]));
        }
        const float square = lanes_sum<4>(squares[t][0] + squares[t][1]);
        const int token = first + 8 * t + lane / 4;
        if (lane % 4 == 0 && token < num_tokens)
            store_relaxed_u32(a.words + ((i64)token * CHUNKS + blockIdx.x) * WIDTH + SQUARES, word_of(square));
    }
}

/* The tree of COUNT words, `stride` bytes apart. */
template <int COUNT> struct words {
    static __device__ __forceinline__ float sum(u32 from, u32 stride)
    {
        const float left = words<COUNT / 2>::sum(from, stride);
        return left + words<COUNT / 2>::sum(from + COUNT / 2 * stride, stride);
    }
};
template <> struct words<1> {
    static __device__ __forceinline__ float sum(u32 from, u32 stride) { return float_of(shared_load_u32(from)); }
};

/* The owner's warps add a part of the chunks each. */
DEV void add_chunks(const pre_fwd_args &a, u32 totals)
{
    enum { MINE = CHUNKS / WARPS, PACKETS = MINE * WIDTH / 4, ROUNDS = (PACKETS + 31) / 32 };
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    u32 *const from = a.words + ((i64)blockIdx.x * CHUNKS + warp * MINE) * WIDTH;
    const u32 to = totals + warp * (MINE * WIDTH * 4);
    uint4 v[ROUNDS];
    u32 missing = 0;
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) missing |= lane + 32 * i < PACKETS ? 1u << i : 0u;
#pragma unroll 1
    while (missing) {
#pragma unroll
        for (int i = 0; i < ROUNDS; i++)
            if (missing >> i & 1) v[i] = load_relaxed_u32x4(from + (lane + 32 * i) * 4);
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const bool is_last = (lane + 32 * i) % (WIDTH / 4) == WIDTH / 4 - 1; /* it has squares alone */
            if ((missing >> i & 1) && v[i].x && (is_last || (v[i].y && v[i].z && v[i].w))) missing &= ~(1u << i);
        }
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; i++)
        if (lane + 32 * i < PACKETS) {
            shared_store_u32x4(to + (lane + 32 * i) * 16, v[i]);
            store_relaxed_u32x4(from + (lane + 32 * i) * 4, make_uint4(0, 0, 0, 0));
        }
    __syncwarp();
    if (PARTS == 0 && lane <= SQUARES)
        shared_store_f32(totals + (CHUNKS * WIDTH + warp * 32 + lane) * 4, words<MINE>::sum(to + lane * 4, WIDTH * 4));
}

#if GROUPS == 3
/* Lane 2 n + n i + o has a logit -> its element of comb. All lanes compute the same steps, without shuffles. */
DEV float sinkhorn(float z, int lane, int repeat, float eps)
{
    float top = fmaxf(z, __shfl_xor_sync(FULL, z, 1));
    top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
    const float e = tgl_exp(z - top);
    const float mine = tgl_fma(e, mhc_rcp(lanes_sum<4>(e)), eps);
    mhc_matrix m;
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++)
        m.e[i / STREAMS][i % STREAMS] = __shfl_sync(FULL, mine, 2 * STREAMS + i);
    mhc_sinkhorn_begin(&m, STREAMS, eps);
#pragma unroll 1
    for (int r = 1; r < repeat; r++) mhc_sinkhorn_repeat(&m, STREAMS, eps);
    float made = 0;
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++)
        if (lane == 2 * STREAMS + i) made = (mine * m.u[i / STREAMS]) * m.v[i % STREAMS];
    return made;
}
#endif

#if PARTS
/* `count` words, a power of two up to COUNT. */
template <int COUNT> struct some_words {
    static __device__ __forceinline__ float sum(u32 from, u32 stride, int count)
    {
        return count == COUNT ? words<COUNT>::sum(from, stride) : some_words<COUNT / 2>::sum(from, stride, count);
    }
};
template <> struct some_words<4> { /* a segment has eight chunks */
    static __device__ __forceinline__ float sum(u32 from, u32 stride, int count) { return 0; }
};

/* The owner of a token: subtrees of its chunks are the parts. */
DEV void finish_parts(const pre_fwd_args &a, u32 totals)
{
    enum { ENTRY = ROWS + 1 };
    const int parts = min(a.num_splits, (int)SEGMENTS), mine = CHUNKS / parts;
#pragma unroll 1
    for (int k = (int)threadIdx.x; k < a.num_splits * ENTRY; k += THREADS) {
        const int j = k % ENTRY, part = k / ENTRY;
        const i64 row = part * a.num_tokens + blockIdx.x;
        const u32 from = totals + (part * mine * WIDTH + (j < ROWS ? j : SQUARES)) * 4;
        const float sum = part < parts ? some_words<CHUNKS>::sum(from, WIDTH * 4, mine) : 0.0f;
        *(j < ROWS ? &a.out_mul[row * ROWS + j] : &a.sqrsum[row]) = tgl_one_nan(sum);
    }
}
#else
/* The first warp of the owner of token t, which is its block's number: lane j has row j, then the squares. */
DEV void finish_token(const pre_fwd_args &a, u32 totals)
{
    const int lane = (int)threadIdx.x % 32;
    const i64 t = blockIdx.x;
    const u32 from = totals + (CHUNKS * WIDTH + min(lane, (int)SQUARES)) * 4;
    float sums[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++) sums[i] = shared_load_f32(from + i * 128);
    const float sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    const float square = __shfl_sync(FULL, sum, SQUARES);
    const float mix = tgl_one_nan(sum * projection_rms(square, a.columns, a.rms_eps));
#if GROUPS
    const int group = min(lane / STREAMS, GROUPS - 1);
    const float z = mhc_logit(mix, a.scale[group], a.base[min(lane, ROWS - 1)]), gate = gates_of(&a.numbers, group, z);
    const u32 word = word_of(gate);
    const uint4 gates = make_uint4(__shfl_sync(FULL, word, 0), __shfl_sync(FULL, word, 1), __shfl_sync(FULL, word, 2),
                                   __shfl_sync(FULL, word, 3));
#pragma unroll
    for (int i = 0; i < BLOCKS; i += 32)
        if (BLOCKS % 32 == 0 || i + lane < BLOCKS)
            store_relaxed_u32x4(a.words + PRE_SPLIT_AT_GATES(PIECES, SEGMENTS, ROWS, a.num_tokens) +
                                    ((i + lane) * a.num_tokens + t) * 4,
                                gates);
    if (lane < 2 * STREAMS && lane < ROWS && a.gates[group]) a.gates[group][t * STREAMS + lane % STREAMS] = gate;
#endif
    if (lane < ROWS && a.mixes) a.mixes[t * ROWS + lane] = mix;
    if (lane < ROWS && a.out_mul) a.out_mul[t * ROWS + lane] = tgl_one_nan(sum);
    if (lane == 0 && a.sqrsum) a.sqrsum[t] = tgl_one_nan(square);
#if GROUPS == 3
    if (a.gates[2]) {
        const float made = sinkhorn(gate, lane, a.repeat, a.sinkhorn_eps);
        if (lane >= 2 * STREAMS && lane < ROWS)
            a.gates[2][t * (STREAMS * STREAMS) + lane - 2 * STREAMS] = tgl_one_nan(made);
    }
#endif
}
#endif

/* ---- the input ---- Warps 1 .. 7; a thread has 8 columns of a token, eight neighbours its 64 of the block. */

#if GROUPS
/* The words of RMSNorm: sums of squares [token][BLOCKS], for the owner; factors [BLOCKS][token]. */
DEV u32 *squares_of(const pre_fwd_args &a)
{
    return a.words + PRE_SPLIT_AT_SQUARES(PIECES, SEGMENTS, ROWS, a.num_tokens);
}
DEV u32 *factors_of(const pre_fwd_args &a) { return squares_of(a) + a.num_tokens * BLOCKS; }

/* One warp of the owner: the sum of all blocks' squares, to its factor. */
DEV void send_factor(const pre_fwd_args &a)
{
    const int lane = (int)threadIdx.x % 32;
    const i64 t = blockIdx.x;
    u32 *const from = squares_of(a) + t * BLOCKS;
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sums[i] = 0;
        if (32 * i + lane < BLOCKS) {
            sums[i] = wait_for(from + 32 * i + lane);
            store_relaxed_u32(from + 32 * i + lane, 0);
        }
        __syncwarp();
        sums[i] = lanes_sum<32>(sums[i]);
    }
    const float rstd = pre_rstd(&a, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    if (lane == 0 && a.rstd) a.rstd[t] = tgl_one_nan(rstd);
#pragma unroll
    for (int i = 0; i < BLOCKS; i += 32)
        if (BLOCKS % 32 == 0 || i + lane < BLOCKS)
            store_relaxed_u32(factors_of(a) + (i + lane) * a.num_tokens + t, word_of(rstd));
}

/* The input's unit; the sum of its squares. */
DEV uint4 collapse(u32 from, const float (&mix)[STREAMS], float &square)
{
    uint4 x[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++) x[i] = shared_load_u32x4(from + i * 128);
    const uint4 v = mix_units(x, mix);
    const u32 made[4] = { v.x, v.y, v.z, v.w };
    square = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const float first = __uint_as_float(made[w] << 16), second = __uint_as_float(made[w] & 0xffff0000u);
        square = fmaf(first, first, square);
        square = fmaf(second, second, square);
    }
    return v;
}

DEV uint4 normed(const pre_fwd_args &a, const uint4 &v, float rstd, i64 column)
{
    const u32 words[4] = { v.x, v.y, v.z, v.w };
    u32 made[4];
#pragma unroll
    for (int w = 0; w < 4; w++)
        made[w] = pack_bf16(pre_normed(__uint_as_float(words[w] << 16), rstd, pre_input_weight(&a, column + 2 * w)),
                            pre_normed(__uint_as_float(words[w] & 0xffff0000u), rstd,
                                       pre_input_weight(&a, column + 2 * w + 1)));
    return make_uint4(made[0], made[1], made[2], made[3]);
}

DEV void apply(const pre_fwd_args &a, u32 rows)
{
    const int tid = (int)threadIdx.x - 32, unit = tid % 8, num_tokens = (int)a.num_tokens;
    const i64 column = (i64)blockIdx.x * 64 + unit * 8;
    u32 *const gates =
        a.words + PRE_SPLIT_AT_GATES(PIECES, SEGMENTS, ROWS, a.num_tokens) + (i64)blockIdx.x * num_tokens * 4;
    u32 *const factors = factors_of(a) + (i64)blockIdx.x * num_tokens;
    if (blockIdx.x < BLOCKS)
#pragma unroll 1
        for (int first = 0; first < num_tokens; first += APPLIERS / 8) {
            const int t = first + tid / 8;
            float square = 0;
            if (t < num_tokens) {
                const u32 from = rows + t * 512 + unit * 16;
                uint4 g;
                do g = load_relaxed_u32x4(gates + t * 4);
                while (!g.x || !g.y || !g.z || !g.w);
                const float mix[STREAMS] = { float_of(g.x), float_of(g.y), float_of(g.z), float_of(g.w) };
                const uint4 v = collapse(from, mix, square);
                if (a.raw.data) store_u32x4(a.raw.data + t * a.raw.token + column, v);
                if (a.is_normed) shared_store_u32x4(from, v); /* only this thread reads it again */
                else store_u32x4(a.out.data + t * a.out.token + column, v);
            }
            if (a.is_normed) {
                __syncwarp();
                square = lanes_sum<8>(square);
                if (unit == 0 && t < num_tokens)
                    store_relaxed_u32(squares_of(a) + (i64)t * BLOCKS + blockIdx.x, word_of(square));
            }
        }
    if (a.is_normed && tid < 32 && blockIdx.x < a.num_tokens) send_factor(a);
    if (blockIdx.x >= BLOCKS) return;
    if (a.is_normed)
#pragma unroll 1
        for (int t = tid / 8; t < num_tokens; t += APPLIERS / 8) {
            const float rstd = wait_for(factors + t);
            const uint4 v = shared_load_u32x4(rows + t * 512 + unit * 16);
            store_u32x4(a.out.data + t * a.out.token + column, normed(a, v, rstd, column));
        }
    barrier_sync<1>(APPLIERS); /* all have read the words */
#pragma unroll 1
    for (int t = tid; t < num_tokens; t += APPLIERS) {
        store_relaxed_u32x4(gates + t * 4, make_uint4(0, 0, 0, 0));
        if (a.is_normed) store_relaxed_u32(factors + t, 0);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(PRE_SPLIT_THREADS, 1) pre_fwd_split(const __grid_constant__ pre_fwd_args a)
{
    SHARED_DYNAMIC(memory, 128);
    const int warp = (int)threadIdx.x / 32, num_tokens = (int)a.num_tokens, chunk = (int)blockIdx.x;
    const u32 fragments = shared_address(memory), totals = fragments + AT_TOTALS, x_rows = fragments + AT_X;
    const int stream = chunk / 2 % STREAMS, first = chunk / 8 * (2 * COLUMNS) + chunk % 2 * COLUMNS;
    uint4 f[LOADS];
    pdl_wait();
    load_fn(a, (i64)stream * HIDDEN + first, f);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < num_tokens * (COLUMNS / 8); i += THREADS) {
        const int t = i / (COLUMNS / 8), unit = i % (COLUMNS / 8);
        copy_async_16(x_rows + t * X_ROW + unit * 16,
                      a.residual.data + t * a.residual.token + stream * a.residual.stream + first + unit * 8);
    }
    copy_async_commit();
#if GROUPS
    const u32 rows = x_rows + num_tokens * X_ROW; /* of the block's columns of the input: [token][stream][64] */
    if (chunk < BLOCKS)
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < num_tokens * (STREAMS * 8); i += THREADS)
            copy_async_16(rows + i * 16, a.residual.data + i / (STREAMS * 8) * a.residual.token +
                                             i / 8 % STREAMS * a.residual.stream + chunk * 64 + i % 8 * 8);
#endif
    copy_async_commit();
    store_fn(a, (i64)stream * HIDDEN + first, fragments, f);
    copy_async_wait<1>();
    __syncthreads();
    if (num_tokens <= 8 * WARPS) {
        if (warp * 8 < num_tokens) multiply<1>(a, fragments, x_rows, warp * 8);
    } else if (warp * 16 < num_tokens) multiply<2>(a, fragments, x_rows, warp * 16);
    copy_async_wait<0>();
    __syncthreads();
    if (chunk < num_tokens) {
        add_chunks(a, totals);
        __syncthreads();
#if PARTS
        finish_parts(a, totals);
#else
        if (warp == 0) finish_token(a, totals);
#endif
    }
#if GROUPS
    if (warp > 0) apply(a, rows);
#endif
    pdl_trigger();
}
