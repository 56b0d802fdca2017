/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast.cu - SwiGLU, weighted and cast in blocks of 8 to 128 columns, in
 * registers.
 *   computes  v = silu(gate) * up * weight (swiglu.h), of clamped gates and ups if CLAMP; a factor per BLOCK_COLS
 *             columns of a row, codes of v / factor; counts what was clamped
 *   launch    grid num_pieces, or any grid if CLAMP is FORWARD_COUNT; block of 1 .. FORWARD_WARPS warps
 *   moves     per row that counts: 2 * X_BYTES * num_cols bytes of x, num_cols (e4m3) or num_cols / 2 (e2m1)
 *             bytes of codes, its factors, 4 bytes per map
 *   macros    X, FORMAT, IS_ROUNDED, CLAMP; BLOCK_COLS 8, 16, 32, 64, 128; BLOCK_LANES, a power of two: lanes
 *             that share a block (few need fewer shuffles for the amax, many have less to do each); SF_KIND,
 *             TGL_SF_*; TILES, of a part of a row
 *
 * A piece of work is a part of as many adjacent rows as a block has warps; a warp has a row, tile after tile
 * of WARP_COLS columns. Usually a part is one tile: all its loads are in flight at once, and many small
 * pieces end together. If rows have maps, every part waits for them, and parts are longer. Column-major
 * factors of a block are adjacent. x is aligned to 16 bytes and out to a vector's codes, rows and columns are
 * below 2^31, num_cols is a multiple of VECTOR. */
#include "numerics/divide.h"
#include "quant/swiglu_forward_and_per_token_cast.cuh"

static_assert(BLOCK_COLS >= 8 && BLOCK_COLS <= FORWARD_MAX_BLOCK && (BLOCK_COLS & (BLOCK_COLS - 1)) == 0,
              "BLOCK_COLS is 8, 16, 32, 64 or 128");
static_assert(BLOCK_LANES >= 1 && BLOCK_LANES <= BLOCK_COLS / VECTOR && (BLOCK_LANES & (BLOCK_LANES - 1)) == 0,
              "BLOCK_LANES is 1, 2, 4 ... BLOCK_COLS / VECTOR");
static_assert(SF_KIND >= TGL_SF_ROWS && SF_KIND <= TGL_SF_PACKED, "SF_KIND is TGL_SF_*");
static_assert(TILES >= 1, "TILES is 1, 2 ...");

enum {
    LANES = BLOCK_LANES,
    SPAN = BLOCK_COLS / VECTOR / LANES, /* vectors of a lane in a block, */
    NEXT = LANES * VECTOR,              /* this many columns apart */
    WARP_COLS = 32 / LANES * BLOCK_COLS,
    /* blocks per SM that registers allow */
    RESIDENT = X == X_BF16 ? (CLAMP ? 4 : 5) : (CLAMP ? 3 : 4)
};

/* A lane's vectors from `gates` and `ups` on. The row has `left` columns from the tile's start on, `in_tile`
 * of them before the lane's. Past the end the last vector is loaded again: it changes no amax. */
DEV void load_vectors(const char *gates, const char *ups, u32 in_tile, u32 left, vector_of<X> (&gate)[SPAN],
                      vector_of<X> (&up)[SPAN])
{
    if (left >= WARP_COLS) {
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            load_vector(gates + j * NEXT * X_BYTES, gate[j]);
            load_vector(ups + j * NEXT * X_BYTES, up[j]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            const i64 from = (i64)min(in_tile + j * NEXT, left - VECTOR) - in_tile;
            load_vector(gates + from * X_BYTES, gate[j]);
            load_vector(ups + from * X_BYTES, up[j]);
        }
    }
}

/* The columns of a row from `begin` on. */
DEV void cast_tile(const forward_args &a, u32 row, i32 slot, u32 begin, clamp_counts &counts)
{
    const u32 lane = threadIdx.x % 32, in_tile = lane / LANES * BLOCK_COLS + lane % LANES * VECTOR;
    const u32 col = begin + in_tile, left = (u32)a.num_cols - begin;
    const char *gates = a.x + row * a.row_bytes + (i64)col * X_BYTES;
    vector_of<X> gate[SPAN], up[SPAN];
    load_vectors(gates, gates + a.num_cols * X_BYTES, in_tile, left, gate, up);
    const float weight = weight_at(a, slot);
    bool exists[SPAN];
#pragma unroll
    for (int j = 0; j < SPAN; j++) exists[j] = in_tile + j * NEXT < left;
    float v[SPAN][VECTOR];
    activations_of(gate, up, a.clamp, exists, counts, v);
    if (a.pos_to_token_topk) weigh(v, weight);
    const u32 amax = max_of_lanes<LANES>(amax_of<SPAN * VECTOR>(v[0]));
    const tgl_scale scale = scale_of<FORMAT, IS_ROUNDED>(__uint_as_float(amax), a.floor);
    if (!exists[0]) return;
    u8 *out = a.out + row * bytes_of_codes(a.num_cols) + bytes_of_codes(col);
#pragma unroll
    for (int j = 0; j < SPAN; j++) {
        const codes_of_vector codes = encode(v[j], scale.inv);
        if (exists[j]) store_words<CODE_BYTES>(out + bytes_of_codes(j * NEXT), codes.w);
    }
    const u32 block = col / BLOCK_COLS;
    if (lane % LANES == 0)
        store_factor(row_of_factors<SF_KIND>(a.sf, row), 0, block, (block + 1) * BLOCK_COLS >= (u32)a.num_cols,
                     scale.sf);
}

DEV void cast_piece(const forward_args &a, u32 piece, clamp_counts &counts)
{
    const u32 group = tgl_divide(piece, a.by_parts), part = piece - group * a.num_parts;
    const u32 row = group * (blockDim.x / 32) + threadIdx.x / 32;
    /* warps without a row load maps too: the compiler keeps addresses in uniform registers only if all
     * threads execute the first load */
    const u32 existing_row = min(row, (u32)a.num_rows - 1);
    const i32 slot = slot_of_row(a, existing_row);
    if (row_counts(a, existing_row) && row == existing_row) {
        u32 col = part * (TILES * WARP_COLS);
        const u32 end = min((u32)a.num_cols, col + TILES * WARP_COLS);
#pragma unroll 1
        do {
            cast_tile(a, row, slot, col, counts);
            col += WARP_COLS;
        } while (TILES > 1 && col < end);
    }
}

extern "C" __global__ void __launch_bounds__(32 * FORWARD_WARPS, RESIDENT)
    swiglu_forward_and_per_token_cast(const forward_args a)
{
    clamp_counts counts = { 0, 0, 0 };
    pdl_wait();
    if (CLAMP == FORWARD_COUNT) {
#pragma unroll 1
        for (u32 piece = blockIdx.x; piece < a.num_pieces; piece += gridDim.x) cast_piece(a, piece, counts);
        add_counts(counts, a.clamped_count);
    } else {
        cast_piece(a, blockIdx.x, counts);
    }
    pdl_trigger();
}
