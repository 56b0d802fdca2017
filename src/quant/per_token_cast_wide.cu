/* SPDX-License-Identifier: MIT
 * per_token_cast_wide.cu - blocks of 1 x block_cols, each in several warps: mostly whole rows.
 *   computes  as per_token_cast.cu
 *   launch    grid num_rows * factors of a row, or words of packed ones; block a warp per TOKEN_WARP_COLS
 *             columns, at most TOKEN_MAX_WARPS, each with TOKEN_STAGED_BYTES of dynamic shared memory or more
 *   moves     x, out and all factors, each once
 *   macros    per_token_cast.cuh's
 *
 * block_cols is a multiple of vectors, and addresses allow them. Packed factors of a word are made one by
 * one. */
#define BLOCK_COLS 0 /* known at run time */
#include "quant/per_token_cast.cuh"

static_assert(!IS_JOINED, "IS_JOINED is for per_token_cast");

enum { UNIT_GROUPS = SF_KIND == TGL_SF_PACKED ? 4 : 1 };

DEV u32 max_of_warps(u32 amax, u32 (&of_warp)[TOKEN_MAX_WARPS], u32 warp, u32 lane)
{
    amax = warp_max_u32(amax);
    if (blockDim.x == 32) return amax;
    if (lane == 0) of_warp[warp] = amax;
    __syncthreads();
    return warp_max_u32(lane < blockDim.x / 32 ? of_warp[lane] : 0);
}

/* bf16 gets 32 registers on SMs with 2048 threads; by default the compiler takes more, and gains nothing.
 * From sm_100 on only e5m6 needs no more than that. */
#define HAS_TWO (__CUDA_ARCH__ == 900 || (__CUDA_ARCH__ < 1200 && FORMAT == TGL_FORMAT_E5M6))
enum { MIN_BLOCKS = X == X_BF16 && __CUDA_ARCH__ >= 900 && HAS_TWO ? 2 : 1 };

extern "C" __global__ void __launch_bounds__(32 * TOKEN_MAX_WARPS, MIN_BLOCKS)
    per_token_cast_wide(const tgl_token_cast c)
{
    SHARED_DYNAMIC(staged, 16);
    SHARED(u32[2][TOKEN_MAX_WARPS], of_warp);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 row = tgl_divide(blockIdx.x, c.by_units), unit = blockIdx.x - row * (u32)c.num_units;
    pdl_wait();
    pdl_trigger();
    u32 word = 0, g = 0;
#pragma unroll 1
    do {
        const u32 k = unit * UNIT_GROUPS + g, begin = k * (u32)c.block_cols;
        const u32 end = (u32)min((i64)c.num_cols, (i64)begin + (i64)c.block_cols);
        const u32 col = begin + warp * WARP_COLS + lane * VALUES;
        warp_tile t;
        load_tile(t, c, row, col, end);
        float inv[1];
        if (IS_GIVEN) {
            inv[0] = inverse_of_element(factors_of(c), load_element(factors_of(c), row, k), k);
        } else {
            u32 amax = tile_amax(t, 0);
#pragma unroll
            for (int j = 1; j < STEPS; j++) amax = max(amax, tile_amax(t, j));
            amax = max_of_warps(amax, of_warp[g % 2], warp, lane);
            const tgl_scale scale = scale_of<FORMAT, IS_ROUNDED>(__uint_as_float(amax));
            inv[0] = scale.inv;
            if (SF_KIND == TGL_SF_PACKED) word = word_with(word, g, scale.sf);
            else if (threadIdx.x == 0) store_element(factors_of(c), row, k, __float_as_uint(scale.sf));
        }
        if (HAS_OUT)
            store_tile(t, inv, c.out + row * c.out_row_bytes, col, end, shared_address(staged) + warp * STAGED_BYTES,
                       lane);
    } while (++g < UNIT_GROUPS && unit * UNIT_GROUPS + g < (u32)c.num_sf);
    if (!IS_GIVEN && SF_KIND == TGL_SF_PACKED && threadIdx.x == 0)
        store_element(factors_of(c), row, (i64)unit * UNIT_GROUPS, word);
}
