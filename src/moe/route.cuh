/* SPDX-License-Identifier: MIT
 * route.cuh - what the kernels of route share: a token's experts as 16-bit codes, eight in a word of 16
 * bytes.
 *   macros    NUM_SLOTS = NUM_TOPK + num_shared, up to 32 */
#ifndef TEGULA_MOE_ROUTE_CUH
#define TEGULA_MOE_ROUTE_CUH

#include "moe/common/map.cuh"
#include "moe/route.h"

static_assert(NUM_SLOTS >= NUM_TOPK && NUM_SLOTS <= 32, "NUM_SLOTS is NUM_TOPK .. 32");

enum { WORDS = ROUTE_WORDS(NUM_SLOTS) };

DEV u32 code_of(const tgl_map &m, i32 index) { return (u32)index < (u32)m.num_experts ? (u32)index : ROUTE_NO_EXPERT; }

/* From lanes with a code each: two codes in every even lane; then a word of four such pairs. */
DEV u32 pack_codes(u32 code)
{
    return code | __shfl_down_sync(FULL, code, 1) << 16 | ROUTE_PUBLISHED | ROUTE_PUBLISHED << 16;
}
DEV uint4 word_of(u32 two, u32 w)
{
    return make_uint4(__shfl_sync(FULL, two, 8 * w), __shfl_sync(FULL, two, 8 * w + 2),
                      __shfl_sync(FULL, two, 8 * w + 4), __shfl_sync(FULL, two, 8 * w + 6));
}
DEV float4 as_floats(uint4 v)
{
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

/* The pairs of half a word, four codes; h counts halves over all tokens. */
DEV map_pairs pairs_of(const tgl_map &m, u32 h, uint2 half)
{
    const u32 token = h / (2 * WORDS), slot = 4 * (h % (2 * WORDS));
    const u32 code[MAP_AT_ONCE] = { half.x, half.x >> 16, half.y, half.y >> 16 };
    map_pairs p;
#pragma unroll
    for (u32 v = 0; v < MAP_AT_ONCE; v++) { /* ROUTE_NO_EXPERT is above all experts */
        const bool is_pair = slot + v < NUM_SLOTS;
        p.pair[v] = is_pair ? token * NUM_SLOTS + slot + v : 0xffffffff;
        p.expert[v] = is_pair ? min(code[v] & ROUTE_NO_EXPERT, map_nobody(m)) : map_nobody(m) + 1;
    }
    return p;
}

#endif
