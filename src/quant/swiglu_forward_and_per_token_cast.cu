/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast.cu - SwiGLU, weighted and cast in blocks of 8 to 128 columns, in
 * registers.
 *   computes  v = silu(gate) * up * weight (swiglu.h), clamped before if CLAMP says so; a factor for every
 *             BLOCK_COLS columns of a row, codes of v / factor; what was clamped is counted
 *   launch    any grid, block of 1 .. FORWARD_WARPS warps
 *   moves     per row that counts: 2 * X_BYTES * num_cols bytes of x, num_cols (e4m3) or num_cols / 2 (e2m1)
 *             bytes of codes, its factors, 4 bytes per map
 *   macros    X, FORMAT, IS_ROUNDED, CLAMP; BLOCK_COLS 8, 16, 32, 64, 128
 *
 * A piece of work is FORWARD_TILE columns of as many rows as a block has warps; a warp has one row. It asks
 * for all of its tile before it begins with the first vector. Rows of a block are neighbours, as are their
 * factors where these lie in columns. x is aligned to 16 bytes and out to a vector's codes, num_cols is a
 * multiple of VECTOR and below 2^31. */
#include "numerics/divide.h"
#include "quant/swiglu_forward_and_per_token_cast.cuh"

#ifndef BLOCK_COLS
#ifdef __CUDACC_RTC__
#error "BLOCK_COLS is not defined"
#endif
#define BLOCK_COLS 128
#endif
static_assert(BLOCK_COLS >= 8 && BLOCK_COLS <= FORWARD_MAX_BLOCK && (BLOCK_COLS & (BLOCK_COLS - 1)) == 0,
              "BLOCK_COLS is 8, 16, 32, 64 or 128");

enum {
    STEP = 32 * VECTOR,                 /* columns of a vector per lane */
    STEPS = FORWARD_TILE / STEP,
    LANES = BLOCK_COLS / VECTOR,        /* of a block of columns */
    STEP_BLOCKS = 32 / LANES,
    RESIDENT = X == X_BF16 ? 4 : 3      /* blocks of an SM, whose registers then suffice */
};

/* Stores the factors of a step's blocks. Four codes make a word: those of one step, or of several that come
 * one after the other. Codes of blocks that do not exist are 0. */
DEV void store_factors(const forward_args &a, i64 row, u32 tile, int step, bool exists, float factor,
                       u32 &word)
{
    const u32 lane = threadIdx.x % 32, in_tile = (u32)step * STEP_BLOCKS + lane / LANES;
    const u32 block = tile * (FORWARD_TILE / BLOCK_COLS) + in_tile;
    if (a.sf.kind != TGL_SF_PACKED) {
        if (exists && lane % LANES == 0) ((float *)a.sf.data)[tgl_sf_offset(&a.sf, row, block)] = factor;
        return;
    }
    if (exists) word |= tgl_sf_code_of(factor) << (8 * (in_tile % 4));
    if ((step + 1) * STEP_BLOCKS % 4) return;
    if (LANES <= 16) word |= __shfl_xor_sync(FULL, word, LANES % 32);
    if (LANES <= 8) word |= __shfl_xor_sync(FULL, word, 2 * LANES % 32);
    if (lane % (4 * LANES) == 0 && block / 4 * 4 * BLOCK_COLS < (u32)a.num_cols)
        ((u32 *)a.sf.data)[tgl_sf_offset(&a.sf, row, block)] = word;
    word = 0;
}

DEV void cast_tile(const forward_args &a, i64 row, u32 tile, clamp_counts &counts)
{
    const u32 first = tile * FORWARD_TILE + threadIdx.x % 32 * VECTOR, num_cols = (u32)a.num_cols;
    const char *gates = a.x + row * a.row_bytes, *ups = gates + a.num_cols * X_BYTES;
    vector_of<X> gate[STEPS], up[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const u32 col = first + s * STEP;
        clear_vector(gate[s]);
        clear_vector(up[s]);
        if (col < num_cols) {
            load_vector(gates + (i64)col * X_BYTES, gate[s]);
            load_vector(ups + (i64)col * X_BYTES, up[s]);
        }
    }
    const float weight = weight_of_row(a, row);
    u8 *out = a.out + row * bytes_of_row(a.num_cols);
    u32 word = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const u32 col = first + s * STEP;
        const bool exists = col < num_cols;
        float v[VECTOR];
        activations_of(gate[s], up[s], a.clamp, weight, counts, v);
        const u32 amax = max_of_lanes<LANES>(amax_of_values(v));
        const tgl_scale scale = scale_of<FORMAT, IS_ROUNDED>(__uint_as_float(amax), a.floor);
        if (exists) store_codes(out, col, v, scale.inv);
        store_factors(a, row, tile, s, exists, scale.sf, word);
    }
}

extern "C" __global__ void __launch_bounds__(32 * FORWARD_WARPS, RESIDENT) swiglu_forward_and_per_token_cast(
    const forward_args a, u32 num_tiles, tgl_divisor by_tiles, u32 num_pieces)
{
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    clamp_counts counts = { 0, 0, 0 };
    pdl_wait();
#pragma unroll 1
    for (u32 piece = blockIdx.x; piece < num_pieces; piece += gridDim.x) {
        const u32 group = tgl_divide(piece, by_tiles), tile = piece - group * num_tiles;
        const i64 row = (i64)group * warps + warp;
        if (row < a.num_rows && row_counts(a, row)) cast_tile(a, row, tile, counts);
    }
    if (CLAMP == FORWARD_COUNT) add_counts(counts, a.clamped_count);
    pdl_trigger();
}
