/* SPDX-License-Identifier: MIT
 * per_token_cast.cu - blocks of 1 x BLOCK_COLS, each within a warp.
 *   computes  per block a factor from its amax (or a given one), and the codes of x / factor
 *   launch    grid row tiles x column tiles, block 32 * TOKEN_WARPS: a warp has TOKEN_WARP_COLS of a row;
 *             with IS_FEW grid (rows, tiles / warps), block of 1 .. TOKEN_WARPS warps: adjacent tiles
 *   moves     x, out and all factors, each once
 *   macros    per_token_cast.cuh's and BLOCK_COLS 16, 32, 64, 128, 256
 *
 * GROUP_LANES lanes of a step have a block, or (f32) all lanes of several steps. Rows, columns and tiles are
 * below 2^31; addresses allow vectors. */
#include "device/integer.cuh"
#include "quant/per_token_cast.cuh"

static_assert(BLOCK_COLS >= 16 && BLOCK_COLS <= 256 && (BLOCK_COLS & (BLOCK_COLS - 1)) == 0,
              "BLOCK_COLS is 16, 32, 64, 128 or 256");

enum {
    GROUP_STEPS = BLOCK_COLS > STEP_COLS ? BLOCK_COLS / STEP_COLS : 1,
    GROUP_LANES = BLOCK_COLS / GROUP_STEPS / (VALUES * JOINED),
    GROUPS = 32 / GROUP_LANES,    /* across a step */
    ROUNDS = STEPS / GROUP_STEPS, /* factors of a lane */
    /* Factors of a warp, or words of them. If a row's are not contiguous, those of a thread block go through
     * shared memory, so that whole sectors are stored. (Not with IS_FEW: it would take longer.) */
    ELEMENTS = WARP_COLS / BLOCK_COLS / (SF_KIND == TGL_SF_PACKED ? 4 : 1),
    COLUMN_STEP = 4 * TOKEN_WARPS, /* bytes there */
    HAS_COLUMNS = SF_KIND != TGL_SF_ROWS && !IS_GIVEN && !IS_FEW
};
static_assert(WARP_COLS % (4 * BLOCK_COLS) == 0, "a warp has whole words");

DEV void find_amax(const warp_tile &t, u32 (&amax)[ROUNDS])
{
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        amax[r] = tile_amax(t, r * GROUP_STEPS);
#pragma unroll
        for (int j = 1; j < GROUP_STEPS; j++) amax[r] = max(amax[r], tile_amax(t, r * GROUP_STEPS + j));
    }
    if (IS_FEW && GROUP_LANES == 16) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) amax[r] = max_of_half(amax[r]);
    } else if (X == X_BF16 && GROUP_LANES < 32) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r += 2) max_of_lanes_bf16<GROUP_LANES>(amax[r], amax[r + 1]);
    } else {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) amax[r] = max_of_lanes<GROUP_LANES>(amax[r]);
    }
}

/* In each round GROUP_LANES adjacent lanes have the same factor. Lane l of them stores that of round l, so
 * that a single instruction stores all rounds: in place, or consecutively in `column`. Codes are bytes of
 * words, 0 past the last. */
DEV void store_factors(const tgl_token_cast &c, u32 row, u32 first, u32 num_sf, const float (&sf)[ROUNDS], u32 column,
                       u32 lane)
{
    const u32 mine = lane % GROUP_LANES;
#pragma unroll
    for (int r = 0; r < ROUNDS; r += GROUP_LANES) {
        const u32 i = (r + mine) * GROUPS + lane / GROUP_LANES;
        float v = sf[r];
#pragma unroll
        for (int l = 1; l < GROUP_LANES && r + l < ROUNDS; l++) v = mine == l ? sf[r + l] : v;
        const bool exists = first + i < num_sf;
        const u32 code = exists ? tgl_sf_code_of(v) : 0;
        if (r + mine >= ROUNDS) continue;
        if (SF_KIND == TGL_SF_PACKED) {
            if (HAS_COLUMNS) shared_store_u8(column + i / 4 * COLUMN_STEP + i % 4, code);
            else if (first + i < (num_sf + 3) / 4 * 4) *factor_at(factors_of(c), row, first + i) = (u8)code;
        } else {
            if (HAS_COLUMNS) shared_store_f32(column + i * COLUMN_STEP, v);
            else if (exists) store_element(factors_of(c), row, first + i, __float_as_uint(v));
        }
    }
}

/* Adjacent threads store the factors of consecutive rows. */
DEV void store_columns(const tgl_token_cast &c, u32 first_row, u32 tile, const u32 (&columns)[ELEMENTS][TOKEN_WARPS])
{
    const u32 each = SF_KIND == TGL_SF_PACKED ? 4 : 1, num_elements = ((u32)c.num_sf + each - 1) / each;
#pragma unroll
    for (u32 t = threadIdx.x; t < ELEMENTS * TOKEN_WARPS; t += 32 * TOKEN_WARPS) {
        const u32 e = t / TOKEN_WARPS, r = t % TOKEN_WARPS, i = tile * ELEMENTS + e, row = first_row + r;
        if (i < num_elements && row < (u32)c.num_rows) store_element(factors_of(c), row, (i64)i * each, columns[e][r]);
    }
}

/* A warp without a row loads the last row and stores nothing: the compiler keeps addresses in uniform
 * registers only if all threads execute the loads. */
DEV void cast_tile(const tgl_token_cast &c, u32 own_row, u32 tile, u32 staged, u32 column, u32 lane)
{
    const bool has_row = IS_FEW || own_row < (u32)c.num_rows;
    const u32 row = IS_FEW ? own_row : min(own_row, (u32)c.num_rows - 1);
    const u32 num_sf = has_row ? (u32)c.num_sf : 0;
    const u32 col = tile * WARP_COLS + lane * (VALUES * JOINED), end = has_row ? (u32)c.num_cols : 0;
    const u32 first_sf = tile * (WARP_COLS / BLOCK_COLS);
    warp_tile t;
    load_tile(t, c, row, col, (u32)c.num_cols);
    float inv[ROUNDS];
    if (IS_GIVEN) {
        u32 k[ROUNDS], elements[ROUNDS];
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            /* past the end the last one: with a branch, each load would wait for the one before */
            k[r] = min(first_sf + r * GROUPS + lane / GROUP_LANES, (u32)c.num_sf - 1);
            elements[r] = load_element(factors_of(c), row, k[r]);
        }
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) inv[r] = inverse_of_element(factors_of(c), elements[r], k[r]);
    } else {
        u32 amax[ROUNDS];
        float sf[ROUNDS];
        find_amax(t, amax);
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const tgl_scale scale = scale_of<FORMAT, IS_ROUNDED>(__uint_as_float(amax[r]));
            sf[r] = scale.sf;
            inv[r] = scale.inv;
        }
        store_factors(c, row, first_sf, num_sf, sf, column, lane);
    }
    if (HAS_OUT) store_tile(t, inv, c.out + row * c.out_row_bytes, col, end, staged, lane);
}

/* 48 registers, or 64: by default the compiler takes a few more, or 32 and spills. */
enum {
    MIN_BLOCKS = (VECTORS > 4                                     ? 1
                  : BLOCK_COLS <= 32 && FORMAT == TGL_FORMAT_E4M3 ? 4
                  : __CUDA_ARCH__ >= 900                          ? 5
                                                                  : 1)
};

#if IS_FEW
typedef tgl_few_cast arguments;
DEV tgl_token_cast token_cast_of(const tgl_few_cast &f)
{
    tgl_token_cast c = {};
    c.x = f.x;
    c.x_row_bytes = f.x_row_bytes;
    c.num_cols = f.num_cols;
    c.out = f.out;
    c.out_row_bytes = tgl_code_bytes(FORMAT, f.num_cols);
    c.sf = { f.sf, f.sf_stride, SF_KIND };
    c.num_sf = ceil_div(f.num_cols, BLOCK_COLS);
    c.x_sf = f.x_sf;
    c.by_x_block_rows = f.by_x_block_rows;
    c.by_x_block_cols = f.by_x_block_cols;
    return c;
}

/* Few rows mostly wait for arguments and instructions, so there are few of both before the first load. */
DEV void run(const tgl_few_cast &f)
{
    SHARED(u8[STAGED_BYTES ? TOKEN_WARPS * STAGED_BYTES : 1], staged);
    const u32 thread = blockIdx.y * blockDim.x + threadIdx.x;
    pdl_wait();
    pdl_trigger();
    cast_tile(token_cast_of(f), blockIdx.x, thread / 32, shared_address(staged) + threadIdx.x / 32 * STAGED_BYTES, 0,
              thread % 32);
}
#else
typedef tgl_token_cast arguments;
DEV void run(const tgl_token_cast &c)
{
    SHARED(u8[STAGED_BYTES ? TOKEN_WARPS * STAGED_BYTES : 1], staged);
    SHARED(u32[ELEMENTS][TOKEN_WARPS], columns);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 row_tile = tgl_divide(blockIdx.x, c.by_units), tile = blockIdx.x - row_tile * (u32)c.num_units;
    const u32 row = row_tile * TOKEN_WARPS + warp;
    pdl_wait();
    pdl_trigger();
    cast_tile(c, row, tile, shared_address(staged) + warp * STAGED_BYTES, shared_address(&columns[0][warp]), lane);
    if (HAS_COLUMNS) {
        __syncthreads();
        store_columns(c, row_tile * TOKEN_WARPS, tile, columns);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(32 * TOKEN_WARPS, MIN_BLOCKS) per_token_cast(const arguments a) { run(a); }
