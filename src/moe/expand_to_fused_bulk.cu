/* SPDX-License-Identifier: MIT
 * expand_to_fused_bulk.cu - expand_to_fused by bulk stores: for rows of whole vectors (16 bytes).
 *   computes  as expand_to_fused.cu
 *   launch    grid (chunks of a row, y, z) with y * z >= padding_blocks + num_tokens, block one warp;
 *             num_topk <= 32; positions <= 32; padding_blocks * positions >= num_positions, or
 *             y * z * positions if padding_blocks is 0; at least 16 * chunk_units bytes of dynamic shared
 *             memory; sm_90 and up
 *   moves     as expand_to_fused.cu
 *
 * Blocks for padding come first: they wait for no row. With many rows every block does both, with a few
 * positions each: that spreads the zeros over the whole run. Chunks of a row are neighbours in time and in
 * memory. */
#include "moe/expand_to_fused_bulk.cuh"

#if __CUDA_ARCH__ >= 900
/* ---- scale factors: the blocks of a row take turns of 64, two per lane ---- */

enum { LANE_SF = 2, WARP_SF = 32 * LANE_SF };
/* `to`: address in the row of position 0; is_there: within the row. */
typedef struct {
    u32 v[LANE_SF], *to[LANE_SF];
    bool is_there[LANE_SF];
} lane_sf;

DEV lane_sf zeros_of_sf(const expand_args &a, i64 first)
{
    lane_sf sf = {};
#pragma unroll
    for (int j = 0; j < LANE_SF; j++) {
        const i64 i = first + 32 * j + threadIdx.x;
        sf.to[j] = a.out_sf + i * a.out_sf_col;
        sf.is_there[j] = i < a.num_sf;
    }
    return sf;
}

DEV lane_sf load_sf(const expand_args &a, i64 t, i64 first)
{
    lane_sf sf = zeros_of_sf(a, first);
    const u32 *from = a.x_sf + t * a.x_sf_row + (first + threadIdx.x) * a.x_sf_col;
#pragma unroll
    for (int j = 0; j < LANE_SF; j++)
        if (sf.is_there[j]) sf.v[j] = from[32 * j * a.x_sf_col];
    return sf;
}

DEV void store_sf(const lane_sf &sf, i64 row) /* offset of a position's row, in words */
{
#pragma unroll
    for (int j = 0; j < LANE_SF; j++)
        if (sf.is_there[j]) sf.to[j][row] = sf.v[j];
}

/* Stores to the positions of the lanes in `valid`. */
DEV void store_all_sf(const expand_args &a, const lane_sf &sf, i32 position, u32 valid)
{
    enum { AT_ONCE = 4 }; /* independent shuffles */
    const i64 lane_row = position * a.out_sf_row;
#pragma unroll 1
    for (int k = 0; k < (int)a.num_topk; k += AT_ONCE) {
        i64 row[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) row[i] = __shfl_sync(FULL, lane_row, k + i);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (valid >> (k + i) & 1) store_sf(sf, row[i]);
    }
}

/* Positions from `first` on, one per lane; `padding`: the lanes that zero theirs. */
DEV void zero_sf(const expand_args &a, i64 first, u32 padding)
{
    const int lane = threadIdx.x;
    if (a.out_sf_row == 1) { /* columns: lanes store neighbours */
        for (i64 i = blockIdx.x; i < a.num_sf; i += gridDim.x)
            if (padding >> lane & 1) a.out_sf[first + lane + i * a.out_sf_col] = 0;
        return;
    }
#pragma unroll 1
    for (i64 i = blockIdx.x * WARP_SF; i < a.num_sf; i += gridDim.x * WARP_SF) {
        const lane_sf zeros = zeros_of_sf(a, i);
#pragma unroll 1
        for (u32 left = padding; left;) store_sf(zeros, (first + take_lane(left)) * a.out_sf_row);
    }
}

/* ---- rows ---- */

/* Copies the row of token t to the lanes' positions. */
DEV void copy_row(const expand_args &a, const chunk &c, i64 t, i32 position)
{
    i64 first_sf = blockIdx.x * WARP_SF;
    lane_sf sf = load_sf(a, t, first_sf);
    const u8 *from = a.x + t * a.x_stride + c.offset;
    if (a.reads_early) load_chunk(c, from);
    const bool is_there = position >= 0 && position < a.num_positions;
    if (!a.reads_early) {
        if (!__any_sync(FULL, is_there)) return;
        load_chunk(c, from);
    }
    /* loaded after the row, which does not depend on the position */
    const bool is_valid = is_there && a.pos_to_expert[position] >= 0;
    const u32 valid = __ballot_sync(FULL, is_valid);
#pragma unroll 1
    while (first_sf < a.num_sf) {
        store_all_sf(a, sf, position, valid);
        first_sf += gridDim.x * WARP_SF;
        if (first_sf < a.num_sf) sf = load_sf(a, t, first_sf);
    }
    store_chunk(a, c, position, is_valid);
}

/* Zeros position first + lane, if is_padding. */
DEV void zero_padding(const expand_args &a, const chunk &c, i64 first, bool is_padding)
{
    const u32 padding = __ballot_sync(FULL, is_padding);
    if (!padding) return;
    store_zeros(a, c, first, is_padding);
    zero_sf(a, first, padding);
    bulk_wait_read<0>();
}
#endif

extern "C" __global__ void __launch_bounds__(32) expand_to_fused_bulk(const expand_args a)
{
#if __CUDA_ARCH__ >= 900
    SHARED_DYNAMIC(memory, 128);
    const int lane = threadIdx.x;
    const chunk c = chunk_of(a, blockIdx.x, shared_address(memory));
    const i64 block = (i64)blockIdx.z * gridDim.y + blockIdx.y;
    const i64 t = block - a.padding_blocks, first = block * a.positions;
    const bool is_token = t >= 0 && t < a.num_tokens;
    pdl_wait();
    i32 position = -1;
    if (is_token && lane < a.num_topk) position = a.token_topk_to_pos[t * a.num_topk + lane];
    /* loaded even if unused: under a condition the compiler would wait for it here, before the row is read */
    const i64 last = a.num_positions - 1;
    const i32 expert = a.pos_to_expert[min(first + lane, last)];
    if (is_token) copy_row(a, c, t, position);
    zero_padding(a, c, first, lane < a.positions && first + lane <= last && expert < 0);
    pdl_trigger();
#endif
}
