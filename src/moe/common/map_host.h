/* SPDX-License-Identifier: MIT
 * map_host.h - what get_fused_mapping and route share on the host to make a mapping. */
#ifndef TEGULA_MOE_MAP_HOST_H
#define TEGULA_MOE_MAP_HOST_H

#include "core/tensor.h"
#include "cuda/launch.h"
#include "moe/common/map.h"
#include "tegula/moe.h"

/* A mapping in a signature, for `slots` slots per token; its rules, behind `where`. */
#define TGL_MAP_TEXT(slots)                                                                  \
    "mapping{pos_to_expert: i32[num_positions], pos_to_token: i32[num_positions],"           \
    " pos_to_token_topk: i32[num_positions], token_topk_to_pos: i32[num_tokens, " slots "]," \
    " expert_start: i32[num_local_experts], expert_end: i32[num_local_experts],"             \
    " num_tokens_per_expert: i32[num_local_experts], count: i32[num_local_experts]?,"        \
    " psum_end: i32[num_local_experts]?, num_tokens_per_expert_host: i32[num_local_experts]? host}"
#define TGL_MAP_RULES "num_positions < 2^31, num_local_experts < 2^31"

/* Its tensors in the order of the text and of the struct; all NULL if there is no mapping. */
enum { TGL_MAP_TENSORS = 10 };
void tgl_map_list(const tgl_moe_mapping *mapping, const DLTensor *out[TGL_MAP_TENSORS]);

/* What a signature cannot say: the struct is given, its reserved words are 0; positions fit in an i32. */
tgl_status tgl_map_check_struct(const tgl_moe_mapping *mapping);
tgl_status tgl_map_check_total(int64_t num_pairs, int64_t num_experts, int64_t alignment);

/* For tensors that passed the checks. On CUDA num_tokens_per_expert_host becomes its device address; memory
 * that is not page-locked is an error. */
tgl_status tgl_map_of(const DLTensor *topk_idx, const tgl_moe_mapping *mapping, int64_t alignment, tgl_stream stream,
                      tgl_map *out);

/* The kernels of get_fused_mapping: for few pairs, for more in a single tile, for any number.
 * tgl_map_expert_bits() is their macro EXPERT_BITS. */
enum { TGL_MAP_KERNELS = 3 };
int tgl_map_expert_bits(int64_t num_experts);
void tgl_map_plan(int index_bytes, int64_t num_experts, tgl_kernel plan[TGL_MAP_KERNELS]);

/* For map_write() of map.cuh: blocks, experts of a block at a time, threads. */
int64_t tgl_map_blocks(const tgl_map *m, int num_sms, int32_t *owned_bits, int *threads);

#endif
