/* SPDX-License-Identifier: MIT
 * map.h - a mapping (struct tgl_moe_mapping of tegula/moe.h) as kernels and CPU loops take it. */
#ifndef TEGULA_MOE_MAP_H
#define TEGULA_MOE_MAP_H

#include "numerics/divide.h"

typedef struct {
    int32_t *pos_to_expert, *pos_to_token, *pos_to_token_topk, *token_topk_to_pos;
    int32_t *expert_start, *expert_end, *num_tokens_per_expert;
    int32_t *count, *psum_end, *num_tokens_per_expert_host; /* may be NULL */
    int64_t num_positions;
    int32_t num_pairs, num_topk, num_experts;
    uint32_t alignment;
    uint32_t is_aligned; /* are the arrays by position at multiples of 16 bytes? */
    tgl_divisor by_alignment, by_topk;
} tgl_map;

/* The length of a segment with `count` pairs. */
TGL_INLINE uint32_t tgl_map_aligned(const tgl_map *m, uint32_t count)
{
    return tgl_divide(count + (m->alignment - 1), m->by_alignment) * m->alignment;
}

/* map_write() of map.cuh: a block writes at most MAP_OWNED experts at a time; the shared memory it needs, for
 * at most 8192 pairs. */
#define MAP_OWNED 16
#define MAP_SHARED(num_experts, owned, num_pairs) (4 * ((num_experts) + (owned) * (((num_pairs) + 31) / 32)))

#endif
