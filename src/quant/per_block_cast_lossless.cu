/* SPDX-License-Identifier: MIT
 * per_block_cast_lossless.cu - e2m1 with fine factors as e4m3 with one for BLOCK_ROWS x BLOCK_COLS values.
 *   computes  per block of out its factor, from the largest of x's; out = code * 2^(difference of exponents)
 *   launch    grid rows of tiles * tiles across, block LOSSLESS_THREADS; addresses allow vectors; blocks of x
 *             are at least LOSSLESS_VALUES wide, and their sides powers of two
 *   moves     x, out and all factors, each once
 *   macros    BLOCK_ROWS  1, 16, 32, 64, 128
 *             BLOCK_COLS  16, 32, 64, 128
 *             X_SF_KIND, SF_KIND  TGL_SF_*
 *
 * All warps have the same columns: LANES lanes are a row of the tile, a thread has vectors STEP_ROWS rows
 * apart, each with one exponent. Codes become bytes by a table of eight entries in two registers, made for
 * that exponent. */
#include "quant/lossless.h"
#include "quant/per_block_cast.cuh"
#include "quant/per_block_cast_lossless.h"

static_assert(LOSSLESS_HAS(BLOCK_ROWS, BLOCK_COLS), "the block is one of those above");

enum {
    THREADS = LOSSLESS_THREADS,
    WARPS = THREADS / 32,
    TILE_ROWS = LOSSLESS_TILE_ROWS(BLOCK_ROWS),
    TILE_COLS = LOSSLESS_TILE_COLS(BLOCK_ROWS),
    VALUES = LOSSLESS_VALUES,
    LANES = TILE_COLS / VALUES,
    STEP_ROWS = THREADS / LANES,
    VECTORS = TILE_ROWS / STEP_ROWS,
    BLOCK_LANES = BLOCK_COLS / VALUES,
    BLOCKS = TILE_COLS / BLOCK_COLS,    /* across a tile */
    OWN = BLOCK_ROWS == 1 ? VECTORS : 1 /* factors of a thread's vectors */
};
static_assert(LANES <= 32 && VECTORS * STEP_ROWS == TILE_ROWS, "threads cover the tile");
static_assert(BLOCK_ROWS > 1 || LANES == 32, "a row of the tile is a warp");

/* The codes of a thread's factors. If a block has several rows, all warps have a part of it. */
DEV void find_factors(const u32 (&exponents)[VECTORS], int (&factors)[OWN])
{
    const u32 tid = threadIdx.x;
    u32 largest[OWN];
#pragma unroll
    for (int j = 0; j < VECTORS; j++) largest[j % OWN] = j < OWN ? exponents[j] : max(largest[j % OWN], exponents[j]);
#pragma unroll
    for (int j = 0; j < OWN; j++) largest[j] = max_of_lanes<BLOCK_LANES>(largest[j]);
    if constexpr (BLOCK_ROWS > 1) {
        SHARED(u32[BLOCKS * WARPS], parts);
        const u32 lane = tid % 32, block = lane % LANES / BLOCK_LANES;
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2)
            largest[0] = max(largest[0], __shfl_xor_sync(FULL, largest[0], offset));
        if (lane < LANES && lane % BLOCK_LANES == 0) parts[block * WARPS + tid / 32] = largest[0];
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; w += 4) {
            const uint4 four = *(const uint4 *)&parts[block * WARPS + w];
            largest[0] = max(max(largest[0], max(four.x, four.y)), max(four.z, four.w));
        }
    }
#pragma unroll
    for (int j = 0; j < OWN; j++) factors[j] = tgl_lossless_sf((int)largest[j]);
}

/* The results for magnitudes 0 .. 7, in bytes; bit c of `changed`: the result of c is not exact. */
typedef struct { u32 low, high, changed; } table;
DEV table table_of(int shift)
{
    table t = { 0x3C383000u + (u32)shift * 0x08080800u, 0x4C484440u + (u32)shift * 0x08080808u, 0 };
    if (shift >= TGL_LOSSLESS_MIN_SHIFT) return t;
    t.low = t.high = 0; /* some are subnormal or rounded */
#pragma unroll 1
    for (u32 c = 0; c < 4; c++) {
        t.low |= (u32)tgl_lossless(c, shift) << (8 * c);
        t.high |= (u32)tgl_lossless(c + 4, shift) << (8 * c);
        t.changed |= (u32)tgl_lossless_changes(c, shift) << c;
        t.changed |= (u32)tgl_lossless_changes(c + 4, shift) << (c + 4);
    }
    return t;
}

/* Four codes in the lower half of `codes`. */
DEV u32 translate(u32 codes, const table &t)
{
    return __byte_perm(t.low, t.high, codes & 0x7777) | __byte_perm(0, 0x80808080u, codes >> 1 & 0x4444);
}

DEV bool has_changed(uint2 codes, const table &t)
{
    bool has = false;
#pragma unroll 1
    for (int i = 0; i < 32; i += 4) has |= (t.changed >> (codes.x >> i & 7) | t.changed >> (codes.y >> i & 7)) & 1;
    return has;
}

extern "C" __global__ void __launch_bounds__(THREADS) per_block_cast_lossless(lossless_args a)
{
    tgl_lossless_cast &c = a.cast;
    const u32 tile_row = tgl_divide(blockIdx.x, a.by_num_tiles), tid = threadIdx.x;
    const i64 first_row = (i64)tile_row * TILE_ROWS;
    const i64 first_col = (i64)(blockIdx.x - tile_row * a.num_tiles) * TILE_COLS;
    const int rows = (int)min(c.num_rows - first_row, (i64)TILE_ROWS);
    const int cols = (int)min(c.num_cols - first_col, (i64)TILE_COLS);
    const int row = (int)(tid / LANES), col = (int)(tid % LANES) * VALUES;
    const int row_shift = (int)c.by_x_block_rows.shift, col_shift = (int)c.by_x_block_cols.shift;
    c.x_sf.kind = X_SF_KIND;
    c.sf.kind = SF_KIND;

    /* past the end, the last row or vector is loaded again: it is in the same blocks, and only stores are
     * checked */
    const i64 col_there = first_col + min(col, cols - VALUES), k = col_there >> col_shift;
    const u8 *from = c.x + first_row * c.x_row_bytes + col_there / 2;
    uint2 codes[VECTORS];
    u32 elements[VECTORS], exponents[VECTORS];
    pdl_wait();
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        const int r = min(row + j * STEP_ROWS, rows - 1);
        codes[j] = load_stream_u32x2(from + r * c.x_row_bytes);
        elements[j] = load_element(c.x_sf, (first_row + r) >> row_shift, k);
    }
#pragma unroll
    for (int j = 0; j < VECTORS; j++) exponents[j] = code_of_element(c.x_sf, elements[j], (u32)k);
    int factors[OWN];
    find_factors(exponents, factors);

    const bool is_first = tid % BLOCK_LANES == 0 && (BLOCK_ROWS == 1 || tid < LANES); /* of a block */
    u8 *to = c.out + first_row * c.num_cols + first_col + col;
    bool is_inexact = false;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        const int r = row + j * STEP_ROWS, factor = factors[j % OWN];
        const bool is_there = r < rows && col < cols;
        const table t = table_of(tgl_lossless_shift((int)exponents[j], factor));
        const uint4 translated = make_uint4(translate(codes[j].x, t), translate(codes[j].x >> 16, t),
                                            translate(codes[j].y, t), translate(codes[j].y >> 16, t));
        if (is_there) *(uint4 *)(to + r * c.num_cols) = translated;
        if (t.changed) is_inexact |= has_changed(codes[j], t);
        if (j < OWN && is_first && is_there) {
            const i64 of = (first_col + col) / BLOCK_COLS;
            store_factor(c.sf, (first_row + r) / BLOCK_ROWS, of, of == c.num_sf - 1, tgl_ue8m0_to_f32((u8)factor));
        }
    }
    if (is_inexact && c.inexact) store_relaxed_u32(c.inexact, 1);
    pdl_trigger();
}
