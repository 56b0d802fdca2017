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
    uint32_t is_aligned; /* the arrays by position begin at multiples of 16 bytes */
    tgl_divisor by_alignment, by_topk;
    uint32_t hist_begin, per_unit; /* of map_write(), see below */
} tgl_map;

/* The length of a segment with `count` pairs. */
TGL_INLINE uint32_t tgl_map_aligned(const tgl_map *m, uint32_t count)
{
    return tgl_divide(count + (m->alignment - 1), m->by_alignment) * m->alignment;
}

/* map_write() of map.cuh, for at most MAP_MAX_PAIRS pairs. A block writes 1 << owned_bits experts at a time,
 * each by at least one warp. Its shared memory: a histogram of pairs by expert, padded to two vectors per
 * lane of a warp, then bins for pairs without an expert and for slots that are no pair; a bit per pair for
 * each of its experts. */
#define MAP_MAX_PAIRS 8192
#define MAP_OWNED_BITS 4
#define MAP_AT_ONCE 4 /* pairs per thread */
#define MAP_RUNS(num_pairs) (((num_pairs) + 31) / 32)
#define MAP_HIST(num_experts) (((num_experts) + 255) / 256 * 256)
#define MAP_MARKS(owned_bits, num_pairs) (((MAP_RUNS(num_pairs) << (owned_bits)) + 3) / 4 * 4)
#define MAP_BINS(num_experts) (MAP_HIST(num_experts) + 4)
#define MAP_SHARED(num_experts, owned_bits, num_pairs) (4 * (MAP_BINS(num_experts) + MAP_MARKS(owned_bits, num_pairs)))

/* Bins start at hist_begin, so that the high word of bin * per_unit is the segment's length in units of the
 * alignment, rounded up. Let d be the alignment, or MAP_MAX_PAIRS if that is less (the result is the same).
 * hist_begin is d - 1, so bins stay below 2^14. per_unit is 2^32 / d rounded up, too large by less than 1, so
 * a product is too large by less than 2^14 <= 2^32 / d: not enough to reach the next multiple of 2^32. For d
 * = 1, 2^32 does not fit; hist_begin 1 and per_unit 2^32 - 1 give the same. */
#define MAP_UNIT(alignment) ((alignment) < MAP_MAX_PAIRS ? (alignment) : MAP_MAX_PAIRS)
#define MAP_HIST_BEGIN(d) ((d) > 1 ? (d) - 1 : 1)
#define MAP_PER_UNIT(d) ((d) > 1 ? (uint32_t)((((uint64_t)1 << 32) + (d) - 1) / (d)) : 0xffffffff)

#endif
