/* SPDX-License-Identifier: MIT
 * expand_to_fused.cu - every token's row, and its scale factors, to the token's positions; zeros to the
 * padding.
 *   computes  out[i] = 0 where pos_to_expert[i] < 0; else out[i] = x[t] where i is token_topk_to_pos[t][k];
 *             the same for scale factors
 *   launch    grid (padding_blocks + blocks for tokens, blocks for the chunks of a row), block up to
 *             EXPAND_THREADS
 *   moves     (row_bytes + 4 * num_sf) * (num_tokens + num_positions) + 4 * num_tokens * num_topk + 4 *
 *             num_positions bytes, each once (with fewer positions than tokens not the rows that go nowhere)
 *
 * A chunk is read into registers once and written to one position after the other: what is written next to
 * each other in time is next to each other in memory, too. Padding comes first, being known sooner. */
#include "device/ptx.cuh"
#include "moe/expand_to_fused.h"

/* What a thread has of a chunk: units as far apart as the block has threads, a scale factor. */
template <class T> struct piece { T units[EXPAND_UNITS]; u32 sf; };

/* Where: bytes from the start of a row, units from there to the end of the chunk, if any; which
 * scale factor, if there is one. */
typedef struct { i64 offset; int units; bool has_sf; i64 sf; } place;

DEV place place_of(const expand_problem &p, const expand_shape &s, i64 chunk)
{
    const int threads = (int)blockDim.x, tid = (int)threadIdx.x;
    const i64 unit = chunk * s.chunk_units + tid, sf = chunk * threads + tid;
    const i64 units = min(s.row_units - unit, (i64)(s.chunk_units - tid));
    const place at = { unit * s.unit_bytes, (int)max(units, (i64)0), sf < p.num_sf, sf };
    return at;
}

template <class T> DEV void load(const expand_problem &p, i64 t, const place &at, piece<T> &v)
{
    const T *from = (const T *)(p.x + t * p.x_stride + at.offset);
#pragma unroll
    for (int i = 0; i < EXPAND_UNITS; i++)
        if (i * (int)blockDim.x < at.units) v.units[i] = from[i * (int)blockDim.x];
    if (at.has_sf) v.sf = p.x_sf[t * p.x_sf_row + at.sf * p.x_sf_col];
}

template <class T> DEV void store(const expand_problem &p, i64 position, const place &at, const piece<T> &v)
{
    T *to = (T *)(p.out + position * p.row_bytes + at.offset);
#pragma unroll
    for (int i = 0; i < EXPAND_UNITS; i++)
        if (i * (int)blockDim.x < at.units) to[i * (int)blockDim.x] = v.units[i];
    if (at.has_sf) p.out_sf[position * p.out_sf_row + at.sf * p.out_sf_col] = v.sf;
}

/* The lowest lane of a mask, which loses it. */
DEV int take_lane(u32 &lanes)
{
    const int lane = __ffs(lanes) - 1;
    lanes &= lanes - 1;
    return lane;
}

template <class T> DEV void zero_padding(const expand_problem &p, const expand_shape &s, i64 first)
{
    const int lane = threadIdx.x % 32;
    const bool is_mine = lane < s.positions && first + lane < p.num_positions;
    const u32 padding = __ballot_sync(FULL, (is_mine ? p.pos_to_expert[first + lane] : 0) < 0);
    const piece<T> zeros = {};
#pragma unroll 1
    for (i64 chunk = blockIdx.y; chunk < s.chunks; chunk += gridDim.y) {
        const place at = place_of(p, s, chunk);
#pragma unroll 1
        for (u32 lanes = padding; lanes;) store(p, first + take_lane(lanes), at, zeros);
    }
}

template <class T> DEV void copy_row(const expand_problem &p, const expand_shape &s, i64 t)
{
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (i64 k = 0; k < p.num_topk; k += 32) {
        const i64 slot = k + lane;
        const i32 position = slot < p.num_topk ? p.token_topk_to_pos[t * p.num_topk + slot] : -1;
#pragma unroll 1
        for (i64 chunk = blockIdx.y; chunk < s.chunks; chunk += gridDim.y) {
            const place at = place_of(p, s, chunk);
            piece<T> v;
            if (s.reads_early) load(p, t, at, v);
            const bool is_there = position >= 0 && position < p.num_positions;
            if (!s.reads_early && __any_sync(FULL, is_there)) load(p, t, at, v);
            /* asked for behind the row, which need not wait for the position */
            u32 lanes = __ballot_sync(FULL, is_there && p.pos_to_expert[position] >= 0);
#pragma unroll 1
            while (lanes) store(p, __shfl_sync(FULL, position, take_lane(lanes)), at, v);
        }
    }
}

template <class T> DEV void expand(const expand_problem &p, const expand_shape &s)
{
    if (blockIdx.x < (u32)s.padding_blocks) {
        const i64 step = (i64)s.padding_blocks * s.positions;
#pragma unroll 1
        for (i64 i = (i64)blockIdx.x * s.positions; i < p.num_positions; i += step) zero_padding<T>(p, s, i);
    } else {
        const i64 step = gridDim.x - s.padding_blocks;
#pragma unroll 1
        for (i64 t = blockIdx.x - s.padding_blocks; t < p.num_tokens; t += step) copy_row<T>(p, s, t);
    }
}

extern "C" __global__ void __launch_bounds__(EXPAND_THREADS) expand_to_fused(
    const expand_problem problem, const expand_shape shape)
{
    pdl_wait();
    switch (shape.unit_bytes) {
    case 16: expand<uint4>(problem, shape); break;
    case 8: expand<uint2>(problem, shape); break;
    case 4: expand<u32>(problem, shape); break;
    case 2: expand<u16>(problem, shape); break;
    default: expand<u8>(problem, shape); break;
    }
    pdl_trigger();
}
