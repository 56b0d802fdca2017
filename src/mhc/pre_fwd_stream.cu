/* SPDX-License-Identifier: MIT
 * pre_fwd_stream.cu - the input of a sublayer from the residual, for many tokens: columns are read once, and stay in
 * shared memory until they are used up; sm_90 to sm_110.
 *   computes  as pre_fwd.cu
 *   launch    cluster SEGMENTS, grid SEGMENTS * clusters, of which each takes every clusters-th tile of 8 tokens, block
 *             PRE_STREAM_THREADS, PRE_STREAM_BYTES of shared memory; no cluster waits for another
 *   moves     2 bytes per column of a token, 2 per column of out; fn once, then per cluster from L2
 *   macros    PIECES of a chunk 4..7, SEGMENTS 4, 8, 16: hidden is 64 * PIECES * SEGMENTS; ROWS 1..24: rows of fn;
 *             GROUPS 0 (mixes alone), 1 (pre), 2 (and post), 3 (and comb); PARTS 0, 1: sums in parts instead of
 *             mixes, with GROUPS 0; NORM 0, 1: with the input's RMSNorm, with GROUPS > 0. No gain of fn: it would take
 *             registers that are not there
 *
 * Block r of a cluster has segment r of all streams, and keeps its part of fn in registers: eight warps have a chunk
 * each, as fragments for tensor cores (24 registers per piece), so fn costs neither shared memory nor L2 per tile. A
 * tile is one tensor copy into a stage of the ring; the products' warps read it; their sums go to the tile's owner, one
 * of the blocks in turn; gates come back; the applying warps read the stage again.
 *   warps 0..7    products and squares of a chunk
 *   warps 8..11   the weighted sum of streams; the first then refills the stage
 *   warps 12, 13  add the block's eight chunks, send them to the tile's owner; every other tile. With a norm: also
 *                 normalise inputs, a few tiles later
 *   warp 14       of tiles that this block owns: adds all segments, makes the pre gates, sends them to all blocks
 *   warp 15       of tiles that this block owns: all outputs but `out`
 * With a norm the applying warps keep a tile's input in shared memory and send its squares to the owner; warp 14 adds
 * them, and sends factors to all blocks. 4096 x 7168 then takes 118 us, 4096 x 5120 87, 4096 x 4096 69 (pre_fwd.cu:
 * 391, 301, 243). Applying warps that normalise, each thread its own columns: 104, 94, 69; inputs that wait in out, not
 * in shared memory, with the ring as without a norm: 157, 129, 93.
 * An owner has one slot for sums, and tells all blocks when both warps have read it. Gates need no more than the stages
 * have: those of tile k + STAGES are made after all blocks have sent its sums, so have applied tile k.
 * On an H200 (2026-11) 7 clusters of 16 fit; 4096 x 7168 takes 86 us, with mixes alone 73; 4096 x 4096 51 and 43 (70
 * when sums went to all blocks and each made all gates). Further tokens come at 3.9 TB/s, of 4.3 that a copy has. */
#include "device/integer.cuh"
#include "device/reduce.cuh"
#include "mhc/common/projection.cuh"
#include "mhc/pre_fwd.cuh"

static_assert(PIECES >= PRE_STREAM_MIN_PIECES && PIECES <= PRE_STREAM_MAX_PIECES &&
                  (SEGMENTS == 4 || SEGMENTS == 8 || SEGMENTS == 16) && ROWS >= 1 && ROWS <= 24 && GROUPS >= 0 &&
                  GROUPS <= 3 && (PARTS == 0 || (PARTS == 1 && GROUPS == 0)) &&
                  (NORM == 0 || (NORM == 1 && GROUPS > 0)),
              "a macro is out of range");

#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200 /* later ones have too little shared memory */
enum {
    STREAMS = PRE_STREAM_STREAMS,
    TILE = PRE_STREAM_TILE,
    HIDDEN = 64 * PIECES * SEGMENTS,
    COLUMNS = 64 * PIECES,
    ROW_TILES = PRE_STREAM_ROW_TILES(ROWS),
    STAGES = PRE_STREAM_STAGES(PIECES, NORM),
    STAGE = PRE_STREAM_STAGE(PIECES),
    BOX = 4096,
    SUMS = PRE_STREAM_SUMS(ROWS),
    PRODUCTS = 8,
    APPLIERS = 4, /* warps */
    /* Tiles that are loaded at once; fn turns in the last two stages before they are in use. fn arrives after tiles
     * whose loads were issued before its own; so each of the other tiles is prefetched when a piece of fn has come
     * (H200, 2026-11, 4096 x 7168: 85.7 us; three at once, and the others after fn: 87.4). With mixes alone and few
     * pieces, tiles are what takes longer: all at once (4096 x 4096: 43 us, not 47). */
    EARLY = GROUPS || PIECES > 5 ? 1 : STAGES - 2,
    AT_SUMS = PRE_STREAM_AT_SUMS(PIECES, NORM),
    AT_OWNED = PRE_STREAM_AT_OWNED(PIECES, ROWS, NORM),
    AT_GATES = PRE_STREAM_AT_GATES(PIECES, SEGMENTS, ROWS, NORM),
    BEHIND = PIECES > 5 ? 4 : 6, /* tiles that are sent before one is normalised: an even number */
    KEPT = PRE_STREAM_KEPT(PIECES),
    INPUT = PRE_STREAM_INPUT(PIECES),
    SQUARES = PRE_STREAM_SQUARES(PIECES, SEGMENTS),
    AT_KEPT = PRE_STREAM_AT_KEPT(PIECES, SEGMENTS, ROWS, NORM),
    AT_SQUARES = AT_KEPT + KEPT * INPUT,
    AT_FACTORS = AT_SQUARES + SQUARES,
    AT_GAINS = AT_FACTORS + KEPT * TILE * 4,
    AT_BARS = PRE_STREAM_AT_BARS(PIECES, SEGMENTS, ROWS, NORM),
    FN_KEPT = NORM && KEPT * INPUT + SQUARES >= PRODUCTS * 1024 * ROW_TILES, /* fn turns where inputs are kept */
    AT_FN = FN_KEPT ? (int)AT_KEPT : (STAGES - 2) * STAGE,
    AT_NOWHERE = AT_BARS - 16,
    GATES = TILE * STREAMS * 4, /* bytes of a tile's */
    HOT = GROUPS ? 2 * STREAMS + 2 : 0,
    VECTORS = SUMS / 16,                        /* vectors of sums: what gates need, all */
    LANE_ROWS = (ROWS + STREAMS - 1) / STREAMS, /* of a token's, when four lanes share them */
    UNITS = COLUMNS / 8,
    PASS = PRE_STREAM_PASS(PIECES), /* tokens at a time */
    /* Registers of a thread. On an H200 (2026-11) the compiler loads the next piece ahead of products from 208 on, not
     * at 200 (1024 x 7168: 30.1 us, not 33.8), and the applying warps need 56 (at 48: 33.9). */
    PRODUCT_REGISTERS = (PIECES > 6   ? 208
                         : PIECES > 5 ? 192
                                      : 160),
    APPLY_REGISTERS = (PIECES > 6   ? 56
                       : PIECES > 5 ? 72
                                    : 96),
    OTHER_REGISTERS = (PIECES > 6   ? 40
                       : PIECES > 5 ? 56
                                    : 96)
};

/* mbarriers, by their number */
enum {
    LOADED = 0,
    GATED = STAGES,
    SUMMED = 2 * STAGES,
    SENT = SUMMED + 2,
    HOT_OWNED = SENT + 2,
    OWNED,
    TURNED,
    HERE,
    READ = HERE + PIECES,
    SQUARED = READ + SEGMENTS,
    SCALED,
    NORMED = SCALED + KEPT,
    NUM_BARS = NORM ? NORMED + KEPT : SQUARED
};
/* GATED: gates of the stage are there, or without gates: the stage has been read. SUMMED, SENT: of two buffers of sums.
 * HOT_OWNED: sums of pre and of squares of an owned tile; OWNED: the others. HERE: a piece of fn has come, to all
 * warps; TURNED: they have all of it in registers.
 * READ: of each block: it has read the sums that it owns. SQUARED: squares of the input of an owned tile; SCALED: a
 * tile's input is kept, and its factors are there; NORMED: it is no longer needed. */
static_assert(EARLY <= STAGES - 2 && (FN_KEPT ? KEPT * INPUT + SQUARES : 2 * STAGE) >= PRODUCTS * 1024 * ROW_TILES,
              "fn turns in the last two stages, or where inputs are kept");

typedef struct {
    u32 memory, bars;
    int rank, clusters, first, tiles;
} place;
DEV u32 bar(const place &p, int number) { return p.bars + 8 * number; }
/* Tile k of the cluster; its first token. */
DEV int token_of(const place &p, int k) { return (p.first + k * p.clusters) * TILE; }

DEV float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
DEV float4 sum_chunks(u32 from) /* of the block, for four tokens */
{
    float4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = add(shared_load_f32x4(from + 2 * i * SUMS), shared_load_f32x4(from + (2 * i + 1) * SUMS));
    return add(add(v[0], v[1]), add(v[2], v[3]));
}
/* The tree of COUNT floats, depth first: few registers. */
template <int COUNT> struct segments {
    static __device__ __forceinline__ float sum(u32 from, u32 stride)
    {
        const float left = segments<COUNT / 2>::sum(from, stride);
        return left + segments<COUNT / 2>::sum(from + COUNT / 2 * stride, stride);
    }
};
template <> struct segments<1> {
    static __device__ __forceinline__ float sum(u32 from, u32 stride) { return shared_load_f32(from); }
};

/* ---- products ---- */

struct fragments { u32 of[2 * PIECES][ROW_TILES][4]; }; /* hi and lo of four columns in eight rows, a step each */

DEV float4 floats_of(uint4 v)
{
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

/* fn from memory into L2, each line by one of the blocks that need it (H200, 2026-11, 4096 x 7168: 87.4 us, not
 * 88.5). */
DEV void prefetch_fn(const pre_fwd_args &a, const place &p)
{
    enum { LINES = 2 * PIECES }; /* of 128 bytes: of a row of fn, in a stream, those of the segment */
#pragma unroll 1
    for (int i = p.first + p.clusters * (int)threadIdx.x; i < ROWS * STREAMS * LINES;
         i += p.clusters * PRE_STREAM_THREADS)
        prefetch_l2(a.fn + i / LINES * (i64)HIDDEN + p.rank * COLUMNS + i % LINES * PROJECTION_PIECE);
}

/* Whole 128-byte parts of rows come in, are split and turn in shared memory. (Fragments straight from memory touched 32
 * lines a load: twice the time for few tokens.) */
DEV void load_fragments(const pre_fwd_args &a, const place &p, fragments &f)
{
    enum { LOADS = 2 * ROW_TILES, FLIGHT = PIECES < 4 ? PIECES : 4 }; /* pieces under way */
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, row = lane / 8;
    const i64 column = (warp / 2) * HIDDEN + p.rank * COLUMNS + (warp % 2) * (COLUMNS / 2) + lane % 8 * 4;
    const float *const from = a.fn + row * (i64)(STREAMS * HIDDEN) + column;
    const u32 staging = p.memory + AT_FN + warp * (1024 * ROW_TILES);
    const u32 put = staging + row * 128, get = staging + lane / 4 * 128;
    uint4 raw[PIECES][LOADS];
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        if (i < FLIGHT) {
#pragma unroll
            for (int l = 0; l < LOADS; l++) {
                raw[i][l] = make_uint4(0, 0, 0, 0);
                if (ROWS == 8 * ROW_TILES || 4 * l + row < ROWS)
                    raw[i][l] = load_stream_u32x4(from + 4 * l * (i64)(STREAMS * HIDDEN) + i * PROJECTION_PIECE);
            }
        }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        __syncwarp();
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            shared_store_u32x4(put + l * 512 + ((lane % 8 ^ (l % 2 * 4 + row)) << 4),
                               split_columns(floats_of(raw[i][l])));
            if (i + FLIGHT < PIECES) {
                const int next = i + FLIGHT < PIECES ? i + FLIGHT : 0;
                raw[next][l] = make_uint4(0, 0, 0, 0);
                if (ROWS == 8 * ROW_TILES || 4 * l + row < ROWS)
                    raw[next][l] = load_stream_u32x4(from + 4 * l * (i64)(STREAMS * HIDDEN) + next * PROJECTION_PIECE);
            }
        }
        __syncwarp();
        if (lane == 0) mbar_arrive(bar(p, HERE + i));
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int step = 0; step < 2; step++) {
                const uint4 v = shared_load_u32x4(get + m * 1024 + ((lane % 4 * 2 + step ^ lane / 4) << 4));
                u32 (&to)[4] = f.of[2 * i + step][m];
                to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
            }
    }
}

/* Where a lane's 16 bytes of piece `i` of its chunk are in a stage: unit u of row r (token r / 4, stream r % 4) of a
 * box of 64 columns is at u ^ r % 8. */
DEV u32 unit_of_piece(int warp, int lane, int i)
{
    const int row = lane / 4 * STREAMS + warp / 2, piece = warp % 2 * PIECES + i;
    return piece / 2 * BOX + row * 128 + ((piece % 2 * 4 + lane % 4 ^ row % 8) << 4);
}

DEV void run_products(const pre_fwd_args &a, const place &p)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    fragments f;
    load_fragments(a, p, f);
    bulk_fence(); /* tiles will be copied to where fn turned */
    __syncwarp();
    if (lane == 0) mbar_arrive(bar(p, TURNED));
    const u32 even = p.memory + unit_of_piece(warp, lane, 0), odd = p.memory + unit_of_piece(warp, lane, 1);
    const u32 sums = p.memory + AT_SUMS + warp * SUMS + lane / 4 * (TILE * 4) + lane % 4 * 8;
    const u32 squares = p.memory + AT_SUMS + warp * SUMS + ROW_TILES * 8 * TILE * 4 + lane / 4 * 4;
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (int k = 0; k < p.tiles; k++) {
        mbar_wait(bar(p, LOADED + stage), parity);
        const u32 from[2] = { even + stage * STAGE, odd + stage * STAGE };
        float of_rows[ROW_TILES][4] = {}, of_squares[2] = {};
        uint4 next = shared_load_u32x4(from[0]);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const uint4 x = next;
            if (i + 1 < PIECES) next = shared_load_u32x4(from[(i + 1) % 2] + (i + 1) / 2 * BOX);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) mma_bf16(of_rows[m], f.of[2 * i][m], x.x, x.y);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) mma_bf16(of_rows[m], f.of[2 * i + 1][m], x.z, x.w);
            const u32 words[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const float low = __uint_as_float(words[w] << 16), high = __uint_as_float(words[w] & 0xffff0000u);
                of_squares[0] = fmaf(low, low, of_squares[0]);
                of_squares[1] = fmaf(high, high, of_squares[1]);
            }
        }
        const float square = lanes_sum<4>(of_squares[0] + of_squares[1]);
        const int b = k % 2;
        if (GROUPS == 0) { /* no one reads the stage again */
            __syncwarp();
            if (lane == 0) mbar_arrive(bar(p, GATED + stage));
        }
        if (k >= 2) mbar_wait(bar(p, SENT + b), k / 2 - 1 & 1);
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) /* a lane has hi and lo of row lane / 4 for two tokens */
            shared_store_f32x2(sums + b * (PRODUCTS * SUMS) + m * (8 * TILE * 4), of_rows[m][0] + of_rows[m][2],
                               of_rows[m][1] + of_rows[m][3]);
        if (lane % 4 == 0) shared_store_f32(squares + b * (PRODUCTS * SUMS), square);
        __syncwarp();
        if (lane == 0) mbar_arrive(bar(p, SUMMED + b));
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

/* ---- tiles in, inputs of the sublayer out ---- */

DEV void load_tile(const pre_stream_args &a, const place &p, int k, int stage, u64 policy)
{
    mbar_expect(bar(p, LOADED + stage), STAGE); /* tokens past the last arrive as zeros, and count */
    tensor_load_4d(p.memory + stage * STAGE, (const tensor_map *)a.map, 0, 0, token_of(p, k), p.rank * PIECES,
                   bar(p, LOADED + stage), policy);
}

#if GROUPS
/* A unit of all streams, from where that of stream 0 is. */
DEV void load_unit_of_streams(u32 at, uint4 (&x)[STREAMS])
{
#pragma unroll
    for (int i = 0; i < STREAMS; i++) x[i] = shared_load_u32x4((at ^ i << 4) + i * 128);
}

/* ---- the input's norm ---- Inputs are kept until the owner of their tile has added all squares. */

DEV float square_unit(const uint4 &v)
{
    const u32 words[4] = { v.x, v.y, v.z, v.w };
    float sum = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const float low = __uint_as_float(words[w] << 16), high = __uint_as_float(words[w] & 0xffff0000u);
        sum = fmaf(low, low, sum);
        sum = fmaf(high, high, sum);
    }
    return sum;
}
DEV u32 kept_at(const place &p, int k, int token, int unit)
{
    return p.memory + AT_KEPT + k % KEPT * INPUT + (token * UNITS + unit) * 16;
}

/* Sums of 64 columns, of every PASS-th token. */
DEV void send_squares(const place &p, int k, int tid, float (&squares)[4])
{
    const int owner = k % SEGMENTS, unit = tid % UNITS, token = tid / UNITS;
#pragma unroll
    for (int i = 0; i < TILE / PASS; i++) squares[i] = lanes_sum<8>(squares[i]);
    if (unit % 8 == 0 && tid < PASS * UNITS)
        cluster_store_async(cluster_map(p.memory + AT_SQUARES + ((p.rank * PIECES + unit / 8) * PASS + token) * 16,
                                        owner),
                            make_float4(squares[0], squares[1], squares[2], squares[3]),
                            cluster_map(bar(p, SQUARED), owner));
    __syncwarp();
    if (tid == 0) mbar_expect(bar(p, SCALED + k % KEPT), TILE * 4);
    else if (tid % 32 == 0) mbar_arrive(bar(p, SCALED + k % KEPT));
}

/* The tree of COUNT sums of 64 columns from `first` on, +0 past the last. */
template <int COUNT> struct squares_tree {
    static __device__ __forceinline__ float sum(u32 from, int first)
    {
        const float left = squares_tree<COUNT / 2>::sum(from, first);
        return left + squares_tree<COUNT / 2>::sum(from, first + COUNT / 2);
    }
};
template <> struct squares_tree<1> {
    static __device__ __forceinline__ float sum(u32 from, int first)
    {
        return first < PIECES * SEGMENTS ? shared_load_f32(from + first * (PASS * 16)) : 0.0f;
    }
};

/* The owner of tile k: lane l has a quarter of the sums of token l % 8; factors go to all blocks. */
DEV void send_factors(const pre_fwd_args &a, const place &p, int k)
{
    enum {
        SUMS_OF_ROW = PIECES * SEGMENTS,
        QUARTER = SUMS_OF_ROW > 64 ? 32
        : SUMS_OF_ROW > 32         ? 16
        : SUMS_OF_ROW > 16         ? 8
                                   : 4
    };
    const int lane = (int)threadIdx.x % 32, t = lane % TILE;
    if (lane == 0) mbar_expect(bar(p, SQUARED), SQUARES);
    mbar_wait_cluster(bar(p, SQUARED), k / SEGMENTS & 1);
    float sum = squares_tree<QUARTER>::sum(p.memory + AT_SQUARES + t % PASS * 16 + t / PASS * 4, lane / TILE * QUARTER);
    sum += __shfl_xor_sync(FULL, sum, TILE);
    sum += __shfl_xor_sync(FULL, sum, 2 * TILE);
    const float rstd = pre_rstd(&a, sum);
    const i64 token = token_of(p, k) + t;
    if (a.rstd && lane < TILE && token < a.num_tokens) a.rstd[token] = tgl_one_nan(rstd);
    float of_four[4]; /* tokens: lane 2 b + i has those of half i, for block b */
#pragma unroll
    for (int i = 0; i < 4; i++) of_four[i] = __shfl_sync(FULL, rstd, lane % 2 * 4 + i);
    if (lane < 2 * SEGMENTS) {
        const u32 to = cluster_map(p.memory, lane / 2) - p.memory;
        cluster_store_async(p.memory + AT_FACTORS + k % KEPT * (TILE * 4) + lane % 2 * 16 + to,
                            make_float4(of_four[0], of_four[1], of_four[2], of_four[3]),
                            bar(p, SCALED + k % KEPT) + to);
    }
}

/* The block's gains, in the order in which norm_tile() reads them: the first four of all units, then the others. */
DEV void store_gains(const pre_fwd_args &a, const place &p, int tid)
{
#pragma unroll 1
    for (int i = tid; i < COLUMNS; i += 32 * APPLIERS)
        shared_store_f32(p.memory + AT_GAINS + (i / 4 % 2 * UNITS + i / 8) * 16 + i % 4 * 4,
                         pre_input_weight(&a, p.rank * COLUMNS + i));
}

/* One warp. */
DEV void norm_tile(const pre_fwd_args &a, const place &p, int k)
{
    const int lane = (int)threadIdx.x % 32, first = token_of(p, k), left = (int)a.num_tokens - first;
    /* A wait tells a phase from the next one alone. If KEPT is odd, the other warp has the phase before. */
    if (KEPT % 2 && k >= KEPT) mbar_wait(bar(p, NORMED + k % KEPT), k / KEPT - 1 & 1);
    mbar_wait_cluster(bar(p, SCALED + k % KEPT), k / KEPT & 1);
#pragma unroll 1
    for (int i = lane; i < TILE * UNITS; i += 32) {
        const int t = i / UNITS, unit = i % UNITS;
        const float4 low = shared_load_f32x4(p.memory + AT_GAINS + unit * 16);
        const float4 high = shared_load_f32x4(p.memory + AT_GAINS + (UNITS + unit) * 16);
        const float gain[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
        const uint4 v = shared_load_u32x4(p.memory + AT_KEPT + k % KEPT * INPUT + i * 16);
        const float rstd = shared_load_f32(p.memory + AT_FACTORS + (k % KEPT * TILE + t) * 4);
        const u32 words[4] = { v.x, v.y, v.z, v.w };
        u32 made[4];
#pragma unroll
        for (int w = 0; w < 4; w++)
            made[w] = pack_bf16(pre_normed(__uint_as_float(words[w] << 16), rstd, gain[2 * w]),
                                pre_normed(__uint_as_float(words[w] & 0xffff0000u), rstd, gain[2 * w + 1]));
        if (t < left)
            store_u32x4(a.out.data + (first + t) * a.out.token + p.rank * COLUMNS + unit * 8,
                        make_uint4(made[0], made[1], made[2], made[3]));
    }
    __syncwarp();
    if (lane == 0) mbar_arrive(bar(p, NORMED + k % KEPT));
}
#endif

DEV void run_appliers(const pre_stream_args &a, const place &p)
{
    const int tid = (int)threadIdx.x - 32 * PRODUCTS;
    const u64 policy = policy_evict_first();
    int stage = 0;
    u32 parity = 0;
    if (tid == 0) {
#pragma unroll 1
        for (int k = 0; k < p.tiles && k < STAGES; k++) {
            if (k >= EARLY && k < EARLY + PIECES) mbar_wait(bar(p, HERE + k - EARLY), 0);
            if (!FN_KEPT && k == STAGES - 2) mbar_wait(bar(p, TURNED), 0);
            load_tile(a, p, k, k, policy);
        }
    }
    __syncwarp();
    cluster_wait();
#if GROUPS
    if (NORM) store_gains(a.args, p, tid); /* read after a tile's input is kept */
    /* A thread has a unit of every PASS-th token; those that are left over have one of another thread's. */
    const int unit = tid % UNITS, token = min(tid / UNITS, PASS - 1);
    const u32 at = p.memory + unit / 8 * BOX + token * (STREAMS * 128) + ((unit % 8 ^ token % 2 * 4) << 4);
#pragma unroll 1
    for (int k = 0; k < p.tiles; k++) {
        mbar_wait(bar(p, LOADED + stage), parity); /* long since; but it is what makes the columns visible here */
        mbar_wait_cluster(bar(p, GATED + stage), parity);
        if (NORM && k >= KEPT) mbar_wait(bar(p, NORMED + k % KEPT), k / KEPT - 1 & 1);
        const u32 from = at + stage * STAGE, gates = p.memory + AT_GATES + (stage * TILE + token) * 16;
        const int first = token_of(p, k) + token, left = tid < PASS * UNITS ? (int)a.args.num_tokens - first : 0;
        uint4 x[STREAMS];
        float4 gate = shared_load_f32x4(gates);
        float squares[4] = {};
        load_unit_of_streams(from, x);
#pragma unroll
        for (int t = 0; t < TILE; t += PASS) { /* the next loads are under way while this is computed */
            uint4 next[STREAMS];
            float4 next_gate;
            if (t + PASS < TILE) {
                load_unit_of_streams(from + (t + PASS) * (STREAMS * 128), next);
                next_gate = shared_load_f32x4(gates + (t + PASS) * 16);
            }
            const float mix[STREAMS] = { gate.x, gate.y, gate.z, gate.w };
            const uint4 v = mix_units(x, mix);
            if (NORM) {
                squares[t / PASS] = square_unit(v);
                if (tid < PASS * UNITS) shared_store_u32x4(kept_at(p, k, token + t, unit), v);
            }
            if (t < left) {
                const i64 row = first + t, column = p.rank * COLUMNS + unit * 8;
                if (!NORM) store_u32x4(a.args.out.data + row * a.args.out.token + column, v);
                if (a.args.raw.data) store_u32x4(a.args.raw.data + row * a.args.raw.token + column, v);
            }
            if (t + PASS < TILE) {
#pragma unroll
                for (int i = 0; i < STREAMS; i++) x[i] = next[i];
                gate = next_gate;
            }
        }
        if (NORM) send_squares(p, k, tid, squares);
        barrier_sync<1>(32 * APPLIERS); /* all of the stage has been read */
        if (tid == 0 && k + STAGES < p.tiles) load_tile(a, p, k + STAGES, stage, policy);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
#else
    if (tid == 0)
#pragma unroll 1
        for (int k = 0; k + STAGES < p.tiles; k++) {
            mbar_wait(bar(p, GATED + stage), parity);
            load_tile(a, p, k + STAGES, stage, policy);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    __syncwarp();
#endif
}

/* ---- sums and gates ---- */

/* Every other tile, from `mine` on. What gates need goes first. */
DEV void send_to_owners(const pre_fwd_args &a, const place &p, int mine)
{
    const int lane = (int)threadIdx.x % 32;
    const u32 from = p.memory + AT_SUMS + mine * (PRODUCTS * SUMS);
    cluster_wait();
#pragma unroll 1
    for (int k = mine; k < p.tiles; k += 2) {
        const int owner = k % SEGMENTS;
        if (k >= SEGMENTS) {
            if (lane == 0) mbar_expect(bar(p, READ + owner), GROUPS ? 32 : 16);
            mbar_wait_cluster(bar(p, READ + owner), k / SEGMENTS - 1 & 1);
        }
        mbar_wait(bar(p, SUMMED + mine), k / 2 & 1);
        if (GROUPS && lane == 0) mbar_expect(bar(p, GATED + k % STAGES), GATES); /* tile k - STAGES has been applied */
        const u32 to = cluster_map(p.memory + AT_OWNED + p.rank * SUMS, owner),
                  then = cluster_map(bar(p, OWNED), owner);
#pragma unroll
        for (int i = 0; i < VECTORS; i += 32) {
            const int n = i + lane;
            const int vector = n < HOT - 2 ? n : n < HOT ? n + VECTORS - HOT : n - 2 * (HOT > 0);
            if (n < VECTORS)
                cluster_store_async(to + vector * 16, sum_chunks(from + vector * 16), n < HOT ? then - 8 : then);
        }
        __syncwarp();
        if (lane == 0) mbar_arrive(bar(p, SENT + mine));
#if NORM
        if (k >= BEHIND) norm_tile(a, p, k - BEHIND);
    }
    const int last = p.tiles - 1 - (p.tiles - 1 - mine & 1); /* of this warp's tiles, if there is one */
#pragma unroll 1
    for (int k = max(last - BEHIND + 2, mine); k <= last; k += 2) norm_tile(a, p, k);
#else
    }
#endif
}

/* To all blocks: this one has read an owned tile's sums. It is the arrival that counts, not the bytes. */
DEV void tell_read(const place &p, int k)
{
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
    if (k + SEGMENTS < p.tiles && lane < SEGMENTS) {
        const u32 to = cluster_map(p.memory, lane) - p.memory;
        cluster_store_async(p.memory + AT_NOWHERE + to, make_float4(0, 0, 0, 0), bar(p, READ + p.rank) + to);
    }
}

#if GROUPS
/* Lane l has gate l % 4 of token l / 4; then lanes 0..7 have the gates of a token, as do 8..15 and so on. */
DEV void make_gates(const pre_fwd_args &a, const place &p)
{
    const int lane = (int)threadIdx.x % 32, token = lane / STREAMS, i = lane % STREAMS;
    const float scale = a.scale[0], base = a.base[i];
    cluster_wait();
#pragma unroll 1
    for (int k = p.rank; k < p.tiles; k += SEGMENTS) {
        if (lane == 0) mbar_expect(bar(p, HOT_OWNED), SEGMENTS * HOT * 16);
        mbar_wait_cluster(bar(p, HOT_OWNED), k / SEGMENTS & 1);
        const u32 from = p.memory + AT_OWNED + token * 4;
        const float sum = segments<SEGMENTS>::sum(from + i * (TILE * 4), SUMS);
        const float r =
            projection_rms(segments<SEGMENTS>::sum(from + ROW_TILES * 8 * TILE * 4, SUMS), a.columns, a.rms_eps);
        const float gate = gates_of(&a.numbers, 0, mhc_logit(tgl_one_nan(sum * r), scale, base));
        float gates[STREAMS];
#pragma unroll
        for (int g = 0; g < STREAMS; g++) gates[g] = __shfl_sync(FULL, gate, lane % TILE * STREAMS + g);
        const u32 slot = p.memory + AT_GATES + (k % STAGES * TILE + lane % TILE) * 16;
#pragma unroll
        for (int b = 0; b < SEGMENTS; b += 32 / TILE) {
            const u32 to = cluster_map(p.memory, b + lane / TILE) - p.memory;
            cluster_store_async(slot + to, make_float4(gates[0], gates[1], gates[2], gates[3]),
                                bar(p, GATED + k % STAGES) + to);
        }
        tell_read(p, k);
        if (NORM) send_factors(a, p, k);
    }
}
#endif

#if GROUPS == 3
/* Four lanes have a token's logits, a column each -> its columns of comb. A lane has row and column o of E, and the
 * factors of both: few registers. */
DEV void sinkhorn(float (&column)[STREAMS], int o, int repeat, float eps)
{
    float row[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        float top = fmaxf(column[i], __shfl_xor_sync(FULL, column[i], 1));
        top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
        column[i] = tgl_exp(column[i] - top);
        column[i] = tgl_fma(column[i], mhc_rcp(lanes_sum<4>(column[i])), eps);
    }
#pragma unroll
    for (int k = 0; k < STREAMS; k++) { /* element o of column k is that of row o in lane k */
        row[k] = 0;
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            const float e = __shfl_sync(FULL, column[i], k, STREAMS);
            row[k] = i == o ? e : row[k];
        }
    }
    float w = mhc_tree(column, STREAMS) + eps, v = mhc_rcp(w), p = 1, u = 1;
#pragma unroll 1
    for (int r = 1; r < repeat; r++) {
        p = eps * p;
#pragma unroll
        for (int k = 0; k < STREAMS; k++) p = tgl_fma(row[k], __shfl_sync(FULL, v, k, STREAMS), p);
        u = mhc_rcp(p);
        w = eps * w;
#pragma unroll
        for (int k = 0; k < STREAMS; k++) w = tgl_fma(column[k], __shfl_sync(FULL, u, k, STREAMS), w);
        v = mhc_rcp(w);
    }
#pragma unroll
    for (int i = 0; i < STREAMS; i++) column[i] = (column[i] * __shfl_sync(FULL, u, i, STREAMS)) * v;
}
#endif

#if PARTS
/* A tile's sums in parts, of which each has MINE segments; past those of the cluster, zeros. Lanes have rows and tokens
 * as in finish_tiles(). (Neighbouring rows in neighbouring lanes, which read sums with conflicts: 112 us for 16 parts
 * of 4096 x 7168, not 77, H200, 2026-11.) */
template <int MINE> DEV void store_parts(const pre_fwd_args &a, const place &p, i64 token, bool is_there)
{
    const int lane = (int)threadIdx.x % 32, q = lane % STREAMS;
    u32 from = p.memory + AT_OWNED + lane / STREAMS * 4;
#pragma unroll 1
    for (int part = 0; part < a.num_splits; part++, token += a.num_tokens, from += MINE * SUMS) {
        const bool is_part = part < SEGMENTS / MINE;
#pragma unroll
        for (int m = 0; m < LANE_ROWS; m++) {
            const int row = STREAMS * m + q;
            const float sum = is_part ? segments<MINE>::sum(from + row * (TILE * 4), SUMS) : 0.0f;
            if (is_there && (ROWS % STREAMS == 0 || row < ROWS)) a.out_mul[token * ROWS + row] = tgl_one_nan(sum);
        }
        const float square = is_part ? segments<MINE>::sum(from + ROW_TILES * 8 * TILE * 4, SUMS) : 0.0f;
        if (is_there && q == 0) a.sqrsum[token] = tgl_one_nan(square);
    }
}
#endif

/* Lane l has every fourth row, from l % 4 on, of token l / 4. */
DEV void finish_tiles(const pre_fwd_args &a, const place &p)
{
    const int lane = (int)threadIdx.x % 32, q = lane % STREAMS;
    cluster_wait();
#pragma unroll 1
    for (int k = p.rank; k < p.tiles; k += SEGMENTS) {
        if (lane == 0) mbar_expect(bar(p, OWNED), SEGMENTS * (VECTORS - HOT) * 16);
        if (GROUPS) mbar_wait_cluster(bar(p, HOT_OWNED), k / SEGMENTS & 1);
        mbar_wait_cluster(bar(p, OWNED), k / SEGMENTS & 1);
        const i64 token = token_of(p, k) + lane / STREAMS;
        const bool is_there = token < a.num_tokens;
#if PARTS
        switch (SEGMENTS / min(a.num_splits, (int)SEGMENTS)) {
        case 1: store_parts<1>(a, p, token, is_there); break;
        case 2: store_parts<2>(a, p, token, is_there); break;
        case 4: store_parts<4>(a, p, token, is_there); break;
        case 8: store_parts<8>(a, p, token, is_there); break;
        default: store_parts<16>(a, p, token, is_there);
        }
        tell_read(p, k);
#else
        const u32 from = p.memory + AT_OWNED + lane / STREAMS * 4;
        const float square = segments<SEGMENTS>::sum(from + ROW_TILES * 8 * TILE * 4, SUMS);
        const float r = projection_rms(square, a.columns, a.rms_eps);
        float column[STREAMS]; /* of comb's logits */
        if (is_there && q == 0 && a.sqrsum) a.sqrsum[token] = tgl_one_nan(square);
#pragma unroll
        for (int m = 0; m < LANE_ROWS; m++) {
            const int row = STREAMS * m + q, group = m < 2 ? m : 2;
            const float sum = segments<SEGMENTS>::sum(from + row * (TILE * 4), SUMS), mix = tgl_one_nan(sum * r);
            const bool is_row = is_there && (ROWS % STREAMS == 0 || row < ROWS);
            if (is_row && a.out_mul) a.out_mul[token * ROWS + row] = tgl_one_nan(sum);
            if (is_row && a.mixes) a.mixes[token * ROWS + row] = mix;
#if GROUPS
            const float gate = gates_of(&a.numbers, group, mhc_logit(mix, a.scale[group], a.base[row]));
            if (m >= 2) column[m < 2 ? 0 : m - 2] = gate;
            else if (is_there && a.gates[group]) a.gates[group][token * STREAMS + q] = gate;
#endif
        }
        tell_read(p, k);
#if GROUPS == 3
        if (a.gates[2]) {
            sinkhorn(column, q, a.repeat, a.sinkhorn_eps);
#pragma unroll
            for (int i = 0; i < STREAMS; i++)
                if (is_there) a.gates[2][token * (STREAMS * STREAMS) + i * STREAMS + q] = tgl_one_nan(column[i]);
        }
#endif
#endif
    }
}

DEV void run(const pre_stream_args &a)
{
    SHARED_DYNAMIC(memory, 1024);
    const int warp = (int)threadIdx.x / 32, clusters = (int)gridDim.x / SEGMENTS, cluster = (int)blockIdx.x / SEGMENTS;
    const int tiles = (int)ceil_div(a.args.num_tokens, TILE);
    const u32 base = shared_address(memory);
    const place p = { base,     base + AT_BARS, (int)blockIdx.x % SEGMENTS,
                      clusters, cluster,        cluster < tiles ? ceil_div(tiles - cluster, clusters) : 0 };
    const int i = (int)threadIdx.x - 32 * PRODUCTS; /* the mbarrier that this thread makes */
    prefetch_fn(a.args, p);                         /* it reads nothing, so may come before the wait */
    if (i == 0) tensor_prefetch((const tensor_map *)a.map);
    if (i >= 0 && i < NUM_BARS) {
        mbar_init(bar(p, i),
                  (GROUPS == 0 && i >= GATED && i < SUMMED) || (i >= SUMMED && i < SENT) || (i >= TURNED && i < READ)
                      ? PRODUCTS
                  : NORM && i >= SCALED && i < NORMED ? APPLIERS
                                                      : 1);
        mbar_init_fence();
    }
    __syncthreads();
    cluster_arrive_relaxed(); /* warps that send to other blocks wait for theirs */
    pdl_wait();
    if (warp < PRODUCTS) {
        registers_up<PRODUCT_REGISTERS>();
        run_products(a.args, p);
        __syncwarp();
        cluster_wait();
    } else if (warp < PRODUCTS + APPLIERS) {
        registers_down<APPLY_REGISTERS>();
        run_appliers(a, p);
    } else {
        registers_down<OTHER_REGISTERS>();
        if (warp <= 13) send_to_owners(a.args, p, warp - 12);
#if GROUPS
        else if (warp == 14) make_gates(a.args, p);
#endif
        else if (warp == 15) finish_tiles(a.args, p);
        else cluster_wait();
    }
    pdl_trigger();
    __syncwarp();
    cluster_arrive_relaxed(); /* none leaves while others may write to it */
    cluster_wait();
}
#else
DEV void run(const pre_stream_args &a) { }
#endif

extern "C" __global__ void __launch_bounds__(PRE_STREAM_THREADS, 1)
    pre_fwd_stream(const __grid_constant__ pre_stream_args a)
{
    run(a);
}
