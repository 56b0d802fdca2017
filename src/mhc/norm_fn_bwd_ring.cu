/* SPDX-License-Identifier: MIT
 * norm_fn_bwd_ring.cu - gradients of the projection, as norm_fn_bwd.cu has them, bit for bit: for few rows of fn and
 * columns that are whole vectors.
 *   computes  as norm_fn_bwd.cu
 *   launch    grid slices of COLUMNS columns of a stream times groups of tokens, the latter fastest; block
 *             NORM_FN_BWD_RING_THREADS: a warp has 32 columns, of which it keeps fn and the sums over tokens in
 *             registers. Tiles of TOKENS tokens of residual, and of grad_residual if it accumulates, are copied to a
 *             ring of STAGES; results take the place of the residual and leave from there. The last block of a slice
 *             adds the groups
 *   moves     4 bytes per column of a token, 6 if it accumulates; partial sums; every slice reads the numbers of all
 *             tokens, from L2
 *   macros    ROWS 1..32: rows of fn; ACCUMULATE, HAS_WEIGHT 0, 1 */
#define HAS_VECTORS 1
#include "device/integer.cuh"
#include "mhc/norm_fn_bwd.cuh"

static_assert(ROWS >= 1 && ROWS <= NORM_FN_BWD_RING_ROWS && (ACCUMULATE == 0 || ACCUMULATE == 1) &&
                  (HAS_WEIGHT == 0 || HAS_WEIGHT == 1),
              "a macro is out of range");

enum {
    COLUMNS = NORM_FN_BWD_RING_COLUMNS,
    TOKENS = NORM_FN_BWD_RING_TOKENS,
    STAGES = NORM_FN_BWD_RING_STAGES,
    UNITS = COLUMNS / 8,
    THREADS = NORM_FN_BWD_RING_THREADS,
    ROW_TILES = (ROWS + 7) / 8,
    PADDED = NORM_FN_BWD_PADDED(ROWS),
    DMUL_STRIDE = NORM_FN_BWD_DMUL_STRIDE(ROWS),
    PARTS_STRIDE = NORM_FN_BWD_PARTS_STRIDE(ROWS),
    ROW_BYTES = 2 * COLUMNS,
    TILE_BYTES = TOKENS * ROW_BYTES,
    OLD = STAGES * TILE_BYTES,
    COPY_ROWS = THREADS / UNITS,
    COPIES = TOKENS / COPY_ROWS
};
static_assert(THREADS == COLUMNS && TOKENS % 16 == 0 && TOKENS * NORM_FN_BWD_LANES <= THREADS && COPY_ROWS % 8 == 0 &&
                  COPIES * COPY_ROWS == TOKENS,
              "a thread has the same place in all rows of a tile");

struct prepared {
    float dmul[TOKENS / 16][8][DMUL_STRIDE][2]; /* tokens t and t + 8 side by side, as fragments have them */
    u16 parts[TOKENS][PARTS_STRIDE];            /* of dmul: hi of all rows, then lo */
    float slope[TOKENS];
};
struct shared {
    u16 tiles[STAGES * (1 + ACCUMULATE)][TOKENS][COLUMNS]; /* of residual, then of grad_residual */
    prepared tokens[2];
};
static_assert(sizeof(shared) == NORM_FN_BWD_RING_BYTES(ROWS, ACCUMULATE), "the host reserves as much");

/* Where a unit lies in its row of a tile: units of a column are spread over the banks. */
DEV u32 unit_offset(u32 row, u32 unit) { return (unit ^ row % 8) * 16; }

/* What a block works on: the same for all its threads, so that the compiler keeps it in uniform registers. */
struct slice {
    i64 first; /* token */
    int count;
    const u16 *x; /* of the first token, from the first column on */
    u16 *grad;
    i64 columns; /* from that one on */
};
DEV int tokens_from(const slice &w, int tile) { return w.count - tile * TOKENS; }

/* ---- copies: a thread always has the same units of a slot, so it needs no barrier between taking results and filling
 * the slot again ---- */
DEV u32 own_units(void)
{
    return threadIdx.x / UNITS * ROW_BYTES + unit_offset(threadIdx.x / UNITS, threadIdx.x % UNITS);
}

/* From the tile's first token and column. Columns past the last are copies of it, whose products nobody takes. */
DEV i64 own_offset(const slice &w, i64 token_stride)
{
    return (i64)(threadIdx.x / UNITS) * token_stride + min((i64)(threadIdx.x % UNITS * 8), w.columns - 8);
}

DEV void fill_slot(const norm_fn_bwd_args &a, const slice &w, int tile, u32 slot)
{
    const int count = tokens_from(w, tile) - (int)threadIdx.x / UNITS;
    const u16 *const x = w.x + tile * TOKENS * a.residual.token + own_offset(w, a.residual.token);
    const u16 *const old = w.grad + tile * TOKENS * a.grad_residual.token + own_offset(w, a.grad_residual.token);
    const u32 to = slot + own_units();
    if (tokens_from(w, tile) >= TOKENS) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            copy_async_16(to + i * COPY_ROWS * ROW_BYTES, x + i * COPY_ROWS * a.residual.token);
            if (ACCUMULATE)
                copy_async_16(to + OLD + i * COPY_ROWS * ROW_BYTES, old + i * COPY_ROWS * a.grad_residual.token);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < COPIES; i++) { /* zeros past the last token */
            const u32 bytes = i * COPY_ROWS < count ? 16 : 0;
            copy_async_zfill_16(to + i * COPY_ROWS * ROW_BYTES,
                                bytes ? x + i * COPY_ROWS * a.residual.token : a.residual.data, bytes);
            if (ACCUMULATE)
                copy_async_zfill_16(to + OLD + i * COPY_ROWS * ROW_BYTES,
                                    bytes ? old + i * COPY_ROWS * a.grad_residual.token : a.grad_residual.data, bytes);
        }
    }
}
DEV void take_results(const norm_fn_bwd_args &a, const slice &w, int tile, u32 slot)
{
    const int count = tokens_from(w, tile) - (int)threadIdx.x / UNITS;
    u16 *const to = w.grad + tile * TOKENS * a.grad_residual.token + own_offset(w, a.grad_residual.token);
    const u32 from = slot + own_units();
    if (threadIdx.x % UNITS * 8 >= w.columns) return;
    if (tokens_from(w, tile) >= TOKENS) {
        uint4 v[COPIES];
#pragma unroll
        for (int i = 0; i < COPIES; i++) v[i] = shared_load_u32x4(from + i * COPY_ROWS * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < COPIES; i++) store_u32x4(to + i * COPY_ROWS * a.grad_residual.token, v[i]);
    } else {
#pragma unroll 1
        for (int i = 0; i < COPIES; i++)
            if (i * COPY_ROWS < count)
                store_u32x4(to + i * COPY_ROWS * a.grad_residual.token,
                            shared_load_u32x4(from + i * COPY_ROWS * ROW_BYTES));
    }
}

/* ---- tokens: 8 lanes have one, rows l, l + 8, ... each, which they load a tile ahead ---- */
struct numbers { float grad_mixes[ROW_TILES], out_mul[ROW_TILES], sqrsum; };
enum { LANES = NORM_FN_BWD_LANES };
DEV bool has_row(u32 r, u32 l) { return LANES * (r + 1) <= ROWS || LANES * r + l < ROWS; }

DEV void load_token(const norm_fn_bwd_args &a, const slice &w, int tile, numbers &n)
{
    const u32 token = threadIdx.x / LANES, l = threadIdx.x % LANES;
    const i64 first = w.first + tile * TOKENS;
    n.sqrsum = 1; /* past the last token: all zeros, and a factor that is finite */
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) n.grad_mixes[r] = n.out_mul[r] = 0;
    if ((int)token < min((int)TOKENS, tokens_from(w, tile))) {
        const float *const grad_mixes = a.grad_mixes + first * ROWS + (token * ROWS + l);
        const float *const out_mul = a.out_mul + first * ROWS + (token * ROWS + l);
        n.sqrsum = (a.sqrsum + first)[token];
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++)
            if (has_row(r, l)) n.grad_mixes[r] = grad_mixes[LANES * r], n.out_mul[r] = out_mul[LANES * r];
    }
}
DEV void prepare_token(const norm_fn_bwd_args &a, const numbers &n, prepared &to)
{
    const u32 token = threadIdx.x / LANES, l = threadIdx.x % LANES;
    const float rms = projection_rms(n.sqrsum, a.columns, a.eps);
    float dr = 0;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++)
        if (has_row(r, l)) dr = fmaf(n.grad_mixes[r], n.out_mul[r], dr);
    const float slope = norm_fn_slope(lane_tree(dr), rms, n.sqrsum, a.eps_columns);
    if (TOKENS * LANES < THREADS && token >= TOKENS) return;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        const float dmul = tgl_tf32_from_f32(n.grad_mixes[r] * rms);
        const projection_parts parts = projection_split_tf32(dmul);
        to.dmul[token / 16][token % 8][LANES * r + l][token / 8 % 2] = dmul;
        to.parts[token][LANES * r + l] = (u16)(parts.hi >> 16);
        to.parts[token][PADDED + LANES * r + l] = (u16)(parts.lo >> 16);
    }
    if (l == 0) to.slope[token] = slope;
}

/* ---- products of 16 tokens with a warp's 32 columns ---- */

/* Shared-memory addresses of a lane, for tokens 0 .. 15 of stage 0: few, since registers are short. */
struct places {
    u32 tile;        /* a row of ldmatrix: tokens 0-7, 8-15 of a unit, then of the next */
    u32 parts;       /* the same: hi, lo of tokens 0-7, then of tokens 8-15 */
    u32 dmul, slope; /* of tokens `quad` and `quad` + 8; of the first */
};
DEV places lane_places(const shared &s)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, q = lane % 4;
    places at;
    at.tile = shared_address(s.tiles) + lane % 16 * ROW_BYTES + unit_offset(lane, 4 * warp + lane / 16);
    at.parts = shared_address(&s.tokens[0].parts[lane / 16 * 8 + lane % 8][lane / 8 % 2 * PADDED]);
    at.dmul = shared_address(&s.tokens[0].dmul[0][quad][2 * q]);
    at.slope = shared_address(&s.tokens[0].slope[quad]);
    return at;
}
DEV u32 unit_pair(u32 tile, int pair) { return tile ^ pair * 32; } /* see unit_offset */

/* Adds those with dmul to the sums over tokens: of each tile of 8 rows and 8 columns, of hi and of lo. */
DEV void add_tokens(u32 tile, u32 parts_at, float (&sums)[ROW_TILES][4][4])
{
    u32 x[2][4];
#pragma unroll
    for (int pair = 0; pair < 2; pair++) ldmatrix_x4_trans(x[pair], unit_pair(tile, pair));
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        u32 parts[4];
        ldmatrix_x4_trans(parts, parts_at + 16 * r);
#pragma unroll
        for (int n = 0; n < 4; n++) mma_bf16(sums[r][n], parts, x[n / 2][n % 2 * 2], x[n / 2][n % 2 * 2 + 1]);
    }
}

DEV u32 grad_pair(u32 old, float first, float second, u32 x, float slope)
{
    return pack_bf16(norm_fn_grad(__uint_as_float(old << 16), first, __uint_as_float(x << 16), slope),
                     norm_fn_grad(__uint_as_float(old & 0xffff0000u), second, __uint_as_float(x & 0xffff0000u), slope));
}

/* grad_residual, in the place of the residual. */
DEV void put_tokens(u32 tile, u32 dmul_at, u32 slope_at, const u32 (&fn)[4][ROW_TILES][2])
{
    const float slope = shared_load_f32(slope_at), slope_8 = shared_load_f32(slope_at + 8 * 4);
    u32 dmul[ROW_TILES][4];
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        const uint4 v = shared_load_u32x4(dmul_at + 64 * r);
        dmul[r][0] = v.x, dmul[r][1] = v.y, dmul[r][2] = v.z, dmul[r][3] = v.w;
    }
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        const u32 at = unit_pair(tile, pair);
        u32 x[4], old[4] = { 0, 0, 0, 0 };
        ldmatrix_x4(x, at);
        if (ACCUMULATE) ldmatrix_x4(old, at + OLD);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float sum[4] = { 0, 0, 0, 0 };
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) mma_tf32(sum, dmul[r], fn[2 * pair + n][r][0], fn[2 * pair + n][r][1]);
            x[2 * n] = grad_pair(old[2 * n], sum[0], sum[1], x[2 * n], slope);
            x[2 * n + 1] = grad_pair(old[2 * n + 1], sum[2], sum[3], x[2 * n + 1], slope_8);
        }
#if __CUDA_ARCH__ >= 900
        stmatrix_x4(at, x);
#else
        /* A lane's place in matrix 0 from its row's address: row quad instead of lane % 16, unit lane / 16 = 0. */
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4;
        const u32 first = at - lane % 16 * ROW_BYTES - unit_offset(lane, 4 * warp + 2 * pair + lane / 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
            shared_store_u32(first + (quad + i % 2 * 8) * ROW_BYTES + unit_offset(quad, 4 * warp + 2 * pair + i / 2) +
                                 lane % 4 * 4,
                             x[i]);
#endif
    }
}

/* Two blocks an SM where shared memory has room for them, unless more rows take more registers: none is spilled. */
enum { BLOCKS = ROWS <= 24 && (__CUDA_ARCH__ / 100 == 9 || __CUDA_ARCH__ / 100 == 10) ? 2 : 1 };

extern "C" __global__ void __launch_bounds__(NORM_FN_BWD_RING_THREADS, BLOCKS)
    norm_fn_bwd_ring(const __grid_constant__ norm_fn_bwd_args a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(u32, is_last);
    shared &s = *(shared *)memory;
    const u32 tiles = shared_address(s.tiles);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, quad = lane / 4, q = lane % 4;
    const u32 groups = (u32)a.num_groups, group = blockIdx.x % groups, number = blockIdx.x / groups;
    const u32 slices = (u32)ceil_div(a.hidden, COLUMNS), stream = number / slices;
    const i64 first_column = (i64)(number % slices) * COLUMNS;
    slice w;
    w.first = group * a.group;
    w.count = (int)max(min(a.group, a.num_tokens - w.first), (i64)0);
    w.x = a.residual.data + w.first * a.residual.token + stream * a.residual.stream + first_column;
    w.grad = a.grad_residual.data + w.first * a.grad_residual.token + stream * a.grad_residual.stream + first_column;
    w.columns = a.hidden - first_column;
    const int num_tiles = ceil_div(w.count, TOKENS);
    float sums[ROW_TILES][4][4];
    u32 fn[4][ROW_TILES][2];
    numbers of_token;
    const places at = lane_places(s);
    pdl_wait();
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < num_tiles) fill_slot(a, w, stage, tiles + stage * TILE_BYTES);
        copy_async_commit();
    }
    load_token(a, w, 0, of_token);
    prepare_token(a, of_token, s.tokens[0]);
    load_token(a, w, 1, of_token);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const i64 c = first_column + 32 * warp + 8 * n + quad;
#pragma unroll
            for (int i = 0; i < 2; i++)
                fn[n][r][i] = __float_as_uint(tgl_tf32_from_f32(fn_at(a, 8 * r + 2 * q + i, stream * a.hidden + c,
                                                                      c < a.hidden)));
#pragma unroll
            for (int i = 0; i < 4; i++) sums[r][n][i] = 0;
        }
    int stage = 0, before = STAGES - 1; /* of this tile and the one before it */
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; tile++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads(); /* the tile is there, and its tokens; the one before it is done */
        if (tile > 0) take_results(a, w, tile - 1, tiles + before * TILE_BYTES);
        if (tile + STAGES - 1 < num_tiles) fill_slot(a, w, tile + STAGES - 1, tiles + before * TILE_BYTES);
        copy_async_commit();
        prepare_token(a, of_token, s.tokens[(tile + 1) % 2]);
#pragma unroll
        for (int token = 0; token < TOKENS; token += 16) {
            const u32 x = at.tile + stage * TILE_BYTES + token * ROW_BYTES, buffer = tile % 2 * (u32)sizeof(prepared);
            add_tokens(x, at.parts + buffer + token * 2 * PARTS_STRIDE, sums);
            put_tokens(x, at.dmul + buffer + token * 4 * DMUL_STRIDE, at.slope + buffer + token * 4, fn);
        }
        load_token(a, w, tile + 2, of_token); /* not before: registers are short */
        before = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    copy_async_wait<0>();
    __syncthreads();
    if (num_tiles > 0) take_results(a, w, num_tiles - 1, tiles + before * TILE_BYTES);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) /* a lane has hi and lo of row `quad` for columns 2q and 2q + 1 */
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const i64 c = first_column + 32 * warp + 8 * n + 2 * q;
            const int row = 8 * r + quad;
            if (row < ROWS && c < a.hidden)
                *(float2 *)(a.partial + ((i64)group * ROWS + row) * a.num_streams * a.hidden + stream * a.hidden + c) =
                    make_float2(sums[r][n][0] + sums[r][n][2], sums[r][n][1] + sums[r][n][3]);
        }
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomic_inc_acq_rel(a.arrived + number, groups - 1) == groups - 1;
    __syncthreads();
    if (is_last) finish_slice<COLUMNS, 4>(a, stream, first_column);
    pdl_trigger();
}
