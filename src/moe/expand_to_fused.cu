/* SPDX-License-Identifier: MIT
 * expand_to_fused.cu - copies every token's row, and its scale factors, to the token's positions; padding
 * gets zeros.
 *   computes  out[i] = 0 where pos_to_expert[i] < 0; else out[i] = x[t] where i is token_topk_to_pos[t][k];
 *             the same for scale factors
 *   launch    grid (padding_blocks + blocks for tokens, blocks for the chunks of a row), block up to
 *             EXPAND_THREADS
 *   moves     (row_bytes + 4 * num_sf) * (num_tokens + num_positions) + 4 * num_tokens * num_topk + 4 *
 *             num_positions bytes, each once; with fewer positions than
 *             tokens, rows without a position are not read
 *
 * A chunk is read into registers once and stored to one position after the other, so that simultaneous stores
 * are contiguous. Padding comes first: it is known sooner. */
#include "device/warp.cuh"
#include "moe/expand_to_fused.h"

/* A thread's part of a chunk: units blockDim.x apart, and a scale factor. */
template <class T> struct piece {
    T units[EXPAND_UNITS];
    u32 sf;
};

/* Its place: offset in the row in bytes, units from there to the end of the chunk, which scale factor, if
 * any. */
typedef struct {
    i64 offset;
    int units;
    bool has_sf;
    i64 sf;
} place;

DEV place place_of(const expand_args &a, i64 chunk)
{
    const int threads = (int)blockDim.x, tid = (int)threadIdx.x;
    const i64 unit = chunk * a.chunk_units + tid, sf = chunk * threads + tid;
    const i64 units = min(a.row_units - unit, (i64)(a.chunk_units - tid));
    const place at = { unit * a.unit_bytes, (int)max(units, (i64)0), sf < a.num_sf, sf };
    return at;
}

template <class T> DEV void load(const expand_args &a, i64 t, const place &at, piece<T> &v)
{
    const T *from = (const T *)(a.x + t * a.x_stride + at.offset);
#pragma unroll
    for (int i = 0; i < EXPAND_UNITS; i++)
        if (i * (int)blockDim.x < at.units) v.units[i] = from[i * (int)blockDim.x];
    if (at.has_sf) v.sf = a.x_sf[t * a.x_sf_row + at.sf * a.x_sf_col];
}

template <class T> DEV void store(const expand_args &a, i64 position, const place &at, const piece<T> &v)
{
    T *to = (T *)(a.out + position * a.row_bytes + at.offset);
#pragma unroll
    for (int i = 0; i < EXPAND_UNITS; i++)
        if (i * (int)blockDim.x < at.units) to[i * (int)blockDim.x] = v.units[i];
    if (at.has_sf) a.out_sf[position * a.out_sf_row + at.sf * a.out_sf_col] = v.sf;
}

template <class T> DEV void zero_padding(const expand_args &a, i64 first)
{
    const int lane = threadIdx.x % 32;
    const bool is_mine = lane < a.positions && first + lane < a.num_positions;
    const u32 padding = __ballot_sync(FULL, (is_mine ? a.pos_to_expert[first + lane] : 0) < 0);
    const piece<T> zeros = {};
#pragma unroll 1
    for (i64 chunk = blockIdx.y; chunk < a.chunks; chunk += gridDim.y) {
        const place at = place_of(a, chunk);
#pragma unroll 1
        for (u32 lanes = padding; lanes;) store(a, first + take_lane(lanes), at, zeros);
    }
}

template <class T> DEV void copy_row(const expand_args &a, i64 t)
{
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (i64 k = 0; k < a.num_topk; k += 32) {
        const i64 slot = k + lane;
        const i32 position = slot < a.num_topk ? a.token_topk_to_pos[t * a.num_topk + slot] : -1;
#pragma unroll 1
        for (i64 chunk = blockIdx.y; chunk < a.chunks; chunk += gridDim.y) {
            const place at = place_of(a, chunk);
            piece<T> v;
            if (a.reads_early) load(a, t, at, v);
            const bool is_there = position >= 0 && position < a.num_positions;
            if (!a.reads_early && __any_sync(FULL, is_there)) load(a, t, at, v);
            /* loaded after the row, which does not depend on the position */
            u32 lanes = __ballot_sync(FULL, is_there && a.pos_to_expert[position] >= 0);
#pragma unroll 1
            while (lanes) store(a, __shfl_sync(FULL, position, take_lane(lanes)), at, v);
        }
    }
}

template <class T> DEV void expand(const expand_args &a)
{
    if (blockIdx.x < (u32)a.padding_blocks) {
        const i64 step = (i64)a.padding_blocks * a.positions;
#pragma unroll 1
        for (i64 i = (i64)blockIdx.x * a.positions; i < a.num_positions; i += step) zero_padding<T>(a, i);
    } else {
        const i64 step = gridDim.x - a.padding_blocks;
#pragma unroll 1
        for (i64 t = blockIdx.x - a.padding_blocks; t < a.num_tokens; t += step) copy_row<T>(a, t);
    }
}

extern "C" __global__ void __launch_bounds__(EXPAND_THREADS) expand_to_fused(const expand_args a)
{
    pdl_wait();
    switch (a.unit_bytes) {
    case 16: expand<uint4>(a); break;
    case 8: expand<uint2>(a); break;
    case 4: expand<u32>(a); break;
    case 2: expand<u16>(a); break;
    default: expand<u8>(a); break;
    }
    pdl_trigger();
}
