/* SPDX-License-Identifier: MIT
 * get_fused_mapping.h - what host and kernels of get_fused_mapping agree on. */
#ifndef TEGULA_MOE_GET_FUSED_MAPPING_H
#define TEGULA_MOE_GET_FUSED_MAPPING_H

#include "moe/common/map.h"

typedef struct {
    const void *topk_idx;
    int64_t row_stride;
    tgl_map map;
    int32_t owned_bits;            /* get_fused_mapping: a block writes 1 << owned_bits experts at a time */
    int32_t tile_pairs, num_tiles; /* get_fused_mapping_large: per block */
    uint32_t *workspace;
} get_fused_mapping_args;

#define MAP_THREADS 512
#define MAP_WARPS (MAP_THREADS / 32)

/* get_fused_mapping: every block reads all pairs and counts them in shared memory, which limits the experts.
 * Fastest up to MAP_SMALL_PAIRS (H200, 2026-11-15). */
#define MAP_SMALL_PAIRS 4096
#define MAP_SMALL_EXPERTS 8192
/* Its blocks, and route's: MAP_SMALL_BLOCKS write the experts' parts at least as fast as 128 (H200, 2026-11). With many
 * positions for few pairs, more blocks share the filling, MAP_FILL_POSITIONS each. Blocks have MAP_SMALL_THREADS if
 * each then loads all its pairs at once. Of the last two there is no measurement on record. */
#define MAP_SMALL_BLOCKS 64
#define MAP_FILL_POSITIONS 2048
#define MAP_SMALL_THREADS 256

/* get_fused_mapping_large: each block has a chunk of the pairs, in tiles that fit in registers; 1 <<
 * expert_bits experts at a time, more in several rounds. For one round and one tile of two pairs per thread
 * there is a variant with 60 % of the instructions, which a cold call must fetch. Shared memory: counts by
 * warp (u16), positions (u32) and local starts (u16) by expert, the sorted tile (u32). Workspace: a matrix of
 * counts and one of sums (two words), a row per block; up to MAP_DIRECT_EXPERTS a ticket instead of sums. */
#define MAP_LARGE_BLOCKS 160
/* Few pairs take fewer blocks, whose counts are summed sooner, but at least 32 to share the writing (H200,
 * 2026-11-15: 4096 tokens, 8 of 256 experts, 7.6 us with 64 blocks, 6.8 with 32). */
#define MAP_LARGE_MIN_BLOCKS 32
#define MAP_LARGE_BLOCK_PAIRS 1024
#define MAP_SINGLE_VALUES 2
#define MAP_LARGE_VALUES 5
#define MAP_LARGE_TILE (MAP_LARGE_VALUES * MAP_THREADS)
#define MAP_LARGE_BITS 11
#define MAP_DIRECT_EXPERTS 32
#define MAP_LARGE_SHARED(expert_bits) ((2 * MAP_WARPS + 6) * (1 << (expert_bits)) + 4 * MAP_LARGE_TILE)
#define MAP_LARGE_WORKSPACE(expert_bits) (12 * MAP_LARGE_BLOCKS * (1 << (expert_bits)))

#endif
