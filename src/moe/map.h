/* SPDX-License-Identifier: MIT
 * map.h - a mapping (struct tgl_moe_mapping of tegula/moe.h) as kernels and CPU loops take it, and its
 * checks. get_fused_mapping makes one of indices in memory, route of those it has just chosen. */
#ifndef TEGULA_MOE_MAP_H
#define TEGULA_MOE_MAP_H

#include "numerics/divide.h"

typedef struct {
    int32_t *pos_to_expert, *pos_to_token, *pos_to_token_topk, *token_topk_to_pos;
    int32_t *expert_start, *expert_end, *num_tokens_per_expert;
    int32_t *count, *psum_end, *num_tokens_per_expert_host; /* may be NULL */
    int64_t num_positions;
    int32_t num_pairs, num_experts;
    uint32_t alignment;
    tgl_divisor by_alignment, by_topk;
} tgl_map;

/* The length of a segment with `count` pairs. */
TGL_INLINE uint32_t tgl_map_aligned(const tgl_map *m, uint32_t count)
{
    return tgl_divide(count + (m->alignment - 1), m->by_alignment) * m->alignment;
}

/* map.cuh's blocks write at most this many experts at a time. */
#define MAP_OWNED 16

#ifndef __CUDACC__
#include "core/tensor.h"
#include "tegula/moe.h"

/* All checks of get_fused_mapping but the workspace's; topk_idx may be an output of the call. */
tgl_status tgl_map_check(const DLTensor *topk_idx, const tgl_moe_mapping *mapping, int64_t alignment);

/* Of tensors that passed. On CUDA num_tokens_per_expert_host becomes the address that kernels know the
 * memory by; memory that is not page-locked is an error. */
tgl_status tgl_map_of(const DLTensor *topk_idx, const tgl_moe_mapping *mapping, int64_t alignment,
                      tgl_stream stream, tgl_map *out);
#endif

#endif
