/* SPDX-License-Identifier: MIT
 * per_token_cast.cu - blocks of 1 x BLOCK_COLS that a warp holds whole.
 *   computes  per block: a factor of its largest magnitude (or a given one), and the codes of x / factor
 *   launch    grid row tiles x column tiles, block 32 * TOKEN_WARPS: a warp a row, TOKEN_WARP_COLS of it
 *   moves     x, out and all factors, each once
 *   macros    per_token_cast.cuh's and BLOCK_COLS 16, 32, 64, 128, 256
 *
 * A block of values is GROUP_LANES lanes of a step, or (f32) all lanes of several steps. Rows and columns are
 * below 2^31, and so are tiles; addresses allow vectors. */
#ifndef BLOCK_COLS
#ifdef __CUDACC_RTC__
#error "BLOCK_COLS is not defined"
#endif
#define BLOCK_COLS 128
#endif
#include "quant/per_token_cast.cuh"

static_assert(BLOCK_COLS >= 16 && BLOCK_COLS <= 256 && (BLOCK_COLS & (BLOCK_COLS - 1)) == 0,
              "BLOCK_COLS is 16, 32, 64, 128 or 256");

enum {
    GROUP_STEPS = BLOCK_COLS > STEP_COLS ? BLOCK_COLS / STEP_COLS : 1,
    GROUP_LANES = BLOCK_COLS / GROUP_STEPS / VALUES,
    GROUPS = 32 / GROUP_LANES,                  /* side by side in a step */
    ROUNDS = VECTORS / GROUP_STEPS,             /* factors that a lane gets to know */
    /* a word of packed factors is made of so many groups of so many rounds */
    WORD_GROUPS = GROUPS < 4 ? GROUPS : 4,
    WORD_ROUNDS = 4 / WORD_GROUPS
};
static_assert(ROUNDS % WORD_ROUNDS == 0, "a warp has whole words");

DEV void find_amax(const warp_tile &t, u32 (&amax)[ROUNDS])
{
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        amax[r] = tile_amax(t, r * GROUP_STEPS);
#pragma unroll
        for (int j = 1; j < GROUP_STEPS; j++) amax[r] = max(amax[r], tile_amax(t, r * GROUP_STEPS + j));
    }
    if (X == X_BF16 && GROUP_LANES < 32) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r += 2) max_of_lanes_bf16<GROUP_LANES>(amax[r], amax[r + 1]);
    } else {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) amax[r] = max_of_lanes<GROUP_LANES>(amax[r]);
    }
}

/* In each of COUNT rounds LANES lanes side by side have the same value, the next ones that of the next index.
 * Lane l of them stores that of round l, so that a single instruction stores the values of all rounds. */
template <int LANES, int COUNT>
DEV void store_rounds(const tgl_token_cast &c, u32 row, u32 first, u32 end, const u32 (&value)[COUNT],
                      u32 lane)
{
#pragma unroll
    for (int r = 0; r < COUNT; r += LANES) {
        const u32 mine = lane % LANES, i = first + (r + mine) * (32 / LANES) + lane / LANES;
        u32 v = value[r];
#pragma unroll
        for (int l = 1; l < LANES && r + l < COUNT; l++) v = mine == l ? value[r + l] : v;
        if (r + mine < COUNT && i < end) store_factor(c, row, i, v);
    }
}

DEV void store_factors(const tgl_token_cast &c, u32 row, u32 first, const float (&sf)[ROUNDS], u32 lane)
{
    const u32 num_sf = (u32)c.num_sf;
    if (SF_KIND != TGL_SF_PACKED) {
        u32 bits[ROUNDS];
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) bits[r] = __float_as_uint(sf[r]);
        store_rounds<GROUP_LANES>(c, row, first, num_sf, bits, lane);
        return;
    }
    u32 words[ROUNDS / WORD_ROUNDS];
    const u32 group = lane / GROUP_LANES, shift = group % WORD_GROUPS * 8;
#pragma unroll
    for (int i = 0; i < ROUNDS / WORD_ROUNDS; i++) {
        u32 word = 0;
#pragma unroll
        for (int r = 0; r < WORD_ROUNDS; r++) {
            const int round = i * WORD_ROUNDS + r;
            word |= code_to_store(sf[round], first + round * GROUPS + group, num_sf) << (8 * WORD_GROUPS * r);
        }
        word <<= shift;
#pragma unroll
        for (int offset = GROUP_LANES; offset < GROUP_LANES * WORD_GROUPS; offset *= 2)
            word |= __shfl_xor_sync(FULL, word, offset);
        words[i] = word;
    }
    store_rounds<GROUP_LANES * WORD_GROUPS>(c, row, first / 4, (num_sf + 3) / 4, words, lane);
}

DEV void cast_tile(const tgl_token_cast &c, u32 row, u32 tile, u32 staged, u32 lane)
{
    const u32 col = tile * WARP_COLS + lane * VALUES, end = (u32)c.num_cols;
    const u32 first_sf = tile * (WARP_COLS / BLOCK_COLS);
    warp_tile t;
    load_tile(t, c, row, col, end);
    float inv[ROUNDS];
    if (IS_GIVEN) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const u32 k = first_sf + r * GROUPS + lane / GROUP_LANES;
            inv[r] = k < (u32)c.num_sf ? given_inverse(c, row, k) : 0;
        }
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
        store_factors(c, row, first_sf, sf, lane);
    }
    if (HAS_OUT) store_tile(t, inv, c.out + row * c.out_row_bytes, col, end, staged, lane);
}

/* 48 registers, or 64: left alone the compiler takes a few more than that, or goes for 32 and spills. */
enum {
    MIN_BLOCKS = VECTORS > 4 ? 1
                 : BLOCK_COLS <= 32 && FORMAT == TGL_FORMAT_E4M3 ? 4 : __CUDA_ARCH__ >= 900 ? 5 : 1
};

extern "C" __global__ void __launch_bounds__(32 * TOKEN_WARPS, MIN_BLOCKS) per_token_cast(
    const tgl_token_cast c)
{
    enum { STAGED_BYTES = TOKEN_STAGED_BYTES(FORMAT, WARP_COLS) };
    SHARED(u8[STAGED_BYTES ? TOKEN_WARPS * STAGED_BYTES : 1], staged);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 row_tile = tgl_divide(blockIdx.x, c.by_units), tile = blockIdx.x - row_tile * (u32)c.num_units;
    const u32 row = row_tile * TOKEN_WARPS + warp;
    pdl_wait();
    if (row < c.num_rows) cast_tile(c, row, tile, shared_address(staged) + warp * STAGED_BYTES, lane);
    pdl_trigger();
}
