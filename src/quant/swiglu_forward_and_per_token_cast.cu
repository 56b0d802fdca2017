/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast.cu - SwiGLU, weighted and cast in blocks of 8 to 128 columns, in
 * registers.
 *   computes  v = silu(gate) * up * weight (swiglu.h), clamped before if CLAMP says so; a factor for every
 *             BLOCK_COLS columns of a row, codes of v / factor; what was clamped is counted
 *   launch    any grid, block of 1 .. FORWARD_WARPS warps
 *   moves     per row that counts: 2 * X_BYTES * num_cols bytes of x, num_cols (e4m3) or num_cols / 2 (e2m1)
 *             bytes of codes, its factors, 4 bytes per map
 *   macros    X, FORMAT, IS_ROUNDED, CLAMP; BLOCK_COLS 8, 16, 32, 64, 128; BLOCK_LANES, a power of two: so
 *             many lanes share a block of columns. Few of them find most of a maximum by themselves, many
 *             have less to do each
 *
 * A piece of work is tile_cols columns of as many rows as a block has warps; a warp has one row and goes
 * through it in steps. It asks for the next step's vectors as soon as it needs this one's no more. Rows of a
 * block are neighbours, as are their factors where these lie in columns. x is aligned to 16 bytes and out to
 * a vector's codes, num_cols is a multiple of VECTOR and below 2^31, tile_cols a multiple of STEP; it is STEP
 * where that has no whole words of packed factors. */
#include "numerics/divide.h"
#include "quant/swiglu_forward_and_per_token_cast.cuh"

#if !defined(BLOCK_COLS) || !defined(BLOCK_LANES)
#ifdef __CUDACC_RTC__
#error "BLOCK_COLS or BLOCK_LANES is not defined"
#endif
#define BLOCK_COLS 128
#define BLOCK_LANES 8
#endif
static_assert(BLOCK_COLS >= 8 && BLOCK_COLS <= FORWARD_MAX_BLOCK && (BLOCK_COLS & (BLOCK_COLS - 1)) == 0,
              "BLOCK_COLS is 8, 16, 32, 64 or 128");
static_assert(BLOCK_LANES >= 1 && BLOCK_LANES <= BLOCK_COLS / VECTOR &&
                  (BLOCK_LANES & (BLOCK_LANES - 1)) == 0,
              "BLOCK_LANES is 1, 2, 4 ... BLOCK_COLS / VECTOR");

enum {
    LANES = BLOCK_LANES,
    SPAN = BLOCK_COLS / VECTOR / LANES,         /* vectors of a lane in a block of columns, */
    NEXT = LANES * VECTOR,                      /* so many columns from one to the next */
    STEP_BLOCKS = 32 / LANES,                   /* of a warp at a time */
    STEP = STEP_BLOCKS * BLOCK_COLS,
    RESIDENT = (X == X_BF16 ? 4 : 3) - (CLAMP ? 1 : 0)  /* blocks of an SM, whose registers then suffice */
};

/* Where a lane is in a row: its first vector of a step, its factor. */
typedef struct {
    const char *gates, *ups;
    u8 *out, *factor;
    u32 block;
} place;

/* The vectors of a lane in the step that begins AHEAD columns from here; the row has `left` columns from
 * there on. A vector that does not exist is the last once more: it adds nothing to the maximum of its block,
 * if that exists. */
template <int AHEAD>
DEV void load_vectors(const place &at, u32 in_step, u32 left, vector_of<X> (&gate)[SPAN],
                      vector_of<X> (&up)[SPAN])
{
    if (left >= STEP) {
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            load_vector(at.gates + (AHEAD + j * NEXT) * X_BYTES, gate[j]);
            load_vector(at.ups + (AHEAD + j * NEXT) * X_BYTES, up[j]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            const i64 from = AHEAD + (i64)min(in_step + j * NEXT, left - VECTOR) - in_step;
            load_vector(at.gates + from * X_BYTES, gate[j]);
            load_vector(at.ups + from * X_BYTES, up[j]);
        }
    }
}

/* `left` columns of a row from `begin` on; they are the row's last if they are not whole steps. */
DEV void cast_tile(const forward_args &a, i64 row, i32 slot, u32 begin, u32 left, clamp_counts &counts)
{
    const u32 lane = threadIdx.x % 32, in_step = lane / LANES * BLOCK_COLS + lane % LANES * VECTOR;
    place at;
    at.gates = a.x + row * a.row_bytes + (i64)(begin + in_step) * X_BYTES;
    at.ups = at.gates + a.num_cols * X_BYTES;
    vector_of<X> gate[SPAN], up[SPAN];
    load_vectors<0>(at, in_step, left, gate, up);
    const float weight = weight_at(a, slot);
    at.out = a.out + row * bytes_of_codes(a.num_cols) + bytes_of_codes(begin + in_step);
    at.block = begin / BLOCK_COLS + lane / LANES;
    at.factor = factor_address(a.sf, row, at.block);
    const i64 factor_step = factor_address(a.sf, row, at.block + STEP_BLOCKS) - at.factor;
    for (;;) {
        float v[SPAN][VECTOR];
        bool exists[SPAN];
#pragma unroll
        for (int j = 0; j < SPAN; j++) exists[j] = in_step + j * NEXT < left;
        activations_of(gate, up, a.clamp, exists, counts, v);
        if (STEP_BLOCKS % 4 == 0 && left > STEP) load_vectors<STEP>(at, in_step, left - STEP, gate, up);
        if (a.pos_to_token_topk) weigh(v, weight);
        const u32 amax = max_of_lanes<LANES>(amax_of_values(v));
        const tgl_scale scale = scale_of<FORMAT, IS_ROUNDED>(__uint_as_float(amax), a.floor);
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            const codes_of_vector codes = encode(v[j], scale.inv);
            if (exists[j]) store_codes(at.out + bytes_of_codes(j * NEXT), codes);
        }
        if (lane % LANES == 0 && exists[0]) {
            const bool is_last = (at.block + 1) * BLOCK_COLS >= (u32)a.num_cols;
            store_factor_at(a.sf, at.factor, at.block, is_last, scale.sf);
        }
        if (STEP_BLOCKS % 4 || left <= STEP) break;
        left -= STEP;
        at.gates += STEP * X_BYTES;
        at.ups += STEP * X_BYTES;
        at.out += bytes_of_codes(STEP);
        at.block += STEP_BLOCKS;
        at.factor += factor_step;
    }
}

extern "C" __global__ void __launch_bounds__(32 * FORWARD_WARPS, RESIDENT) swiglu_forward_and_per_token_cast(
    const forward_args a, u32 tile_cols, u32 num_tiles, tgl_divisor by_tiles, u32 num_pieces)
{
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    clamp_counts counts = { 0, 0, 0 };
    pdl_wait();
#pragma unroll 1
    for (u32 piece = blockIdx.x; piece < num_pieces; piece += gridDim.x) {
        const u32 group = tgl_divide(piece, by_tiles), begin = (piece - group * num_tiles) * tile_cols;
        const i64 row = (i64)group * warps + warp;
        if (row >= a.num_rows) continue;
        const i32 slot = slot_of_row(a, row);
        if (row_counts(a, row))
            cast_tile(a, row, slot, begin, min(tile_cols, (u32)a.num_cols - begin), counts);
    }
    if (CLAMP == FORWARD_COUNT) add_counts(counts, a.clamped_count);
    pdl_trigger();
}
