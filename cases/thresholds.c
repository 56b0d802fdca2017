/* SPDX-License-Identifier: MIT
 * thresholds.c - sizes at which an op's plan changes kernel or launch shape, if none of its lists has them: most are read
 * from the headers that op.c and op.cu share. Random cases are drawn at them, one below and one above, beside the values
 * of the lists.
 * For a product (tokens * topk, rows * columns), one factor is given for a common value of the other. */
#include "random.h"

#include "src/engram/gate_bwd.h"
#include "src/engram/gate_fwd.h"
#include "src/engram/grad_w_reduce.h"
#include "src/engram/ngram_windows.h"
#include "src/moe/expand_to_fused.h"
#include "src/moe/common/gate.h"
#include "src/moe/get_fused_mapping.h"
#include "src/moe/common/histogram_kernel.h"
#include "src/moe/inplace_unique_group_indices.h"
#include "src/moe/common/map.h"
#include "src/moe/common/token_warps.h"
#include "src/moe/normalize_weight.h"
#include "src/moe/reduce_fused.h"
#include "src/moe/route.h"
#include "src/moe/top2_sum_gate.h"
#include "src/quant/common/channel.h"
#include "src/quant/common/group.h"
#include "src/quant/common/strip.h"
#include "src/quant/per_block_cast_lossless.h"
#include "src/quant/per_token_cast.h"
#include "src/quant/swiglu_backward_and_per_token_cast.h"
#include "src/quant/swiglu_forward_and_per_token_cast.h"
#include "src/quant/unpack_from_e2m1fn_x2.h"

#define WARP 32

const case_threshold case_thresholds[] = {
    { "transpose", "num_rows", { 32, 64, 128 } },
    { "transpose", "num_cols", { 32, 64, 256 } },
    { "batched_transpose", "num_rows", { 32 } },
    { "batched_transpose", "num_cols", { 32, 128 } },

    { "engram_gate_bwd", "hidden", { GATE_VECTOR, GATE_VECTOR * GATE_GROUP, GATE_VECTOR * GATE_BWD_THREADS } },
    { "engram_gate_fwd", "hidden", { GATE_VECTOR, GATE_VECTOR * GATE_SLOTS, GATE_RING_SHORT, GATE_RING_LONG } },
    { "engram_grad_w_reduce", "num_partials", { GRAD_W_CHAINS, GRAD_W_CHAINS * GRAD_W_AHEAD } },
    { "engram_hash", "max_ngram", { COLUMN_UNROLLED } },
    { "engram_hash", "num_tokens", { WARP, COLUMN_THREADS } },
    { "engram_ngram_windows", "num_tokens", { WINDOW_THREADS } },
    { "engram_ngram_windows", "requests", { WINDOW_THREADS, 4 * WINDOW_THREADS } },
    { "engram_rows", "max_ngram", { COLUMN_UNROLLED } },
    { "engram_rows", "num_tokens", { WARP, COLUMN_THREADS } },
    { "engram_rows", "requests", { COLUMN_THREADS, 4 * COLUMN_THREADS } },

    { "moe_topk_gate", "num_experts", { GATE_MAX_EXPERTS } },
    { "moe_topk_gate", "num_topk", { GATE_MAX_SLOTS } },
    { "moe_topk_gate", "num_tokens", { TOKEN_FEW, TOKEN_SOME } },
    { "moe_topk_sum_and_topk_group_idx", "num_groups", { GATE_MAX_GROUPS } },
    { "moe_topk_sum_and_topk_group_idx", "experts_per_group", { WARP } },
    { "moe_mask_indices_by_tp", "num_tokens", { 128 } },
    { "moe_normalize_weight", "num_topk", { NORMALIZE_VECTORS_TOPK, NORMALIZE_MAX_TOPK } },
    { "moe_normalize_weight", "num_tokens", { NORMALIZE_MANY_TOKENS } },
    { "moe_inplace_unique_group_indices", "num_tokens", { UNIQUE_ROWS } },
    { "moe_inplace_unique_group_indices", "num_topk", { UNIQUE_MAX_TOPK } },
    { "moe_top2_sum_gate", "num_experts", { GATE_MAX_EXPERTS, GATE_MANY_EXPERTS, GATE_MANY_FEW_EXPERTS } },
    { "moe_top2_sum_gate", "num_groups", { GATE_MAX_GROUPS } },
    { "moe_top2_sum_gate", "num_topk", { GATE_MAX_SLOTS, GATE_MANY_TOPK } },
    { "moe_top2_sum_gate",
      "num_tokens",
      { GATE_MAPPED_TOKENS, TOKEN_FEW /* and GATE_MANY_TOKENS */, GATE_MANY_FEW_TOKENS, TOKEN_SOME,
        GATE_MANY_GROUPED_TOKENS } },
    { "moe_hash_gate", "num_experts", { GATE_MAX_EXPERTS } },
    { "moe_hash_gate", "num_topk", { GATE_MAX_SLOTS } },
    { "moe_hash_gate", "num_tokens", { 512, 2048 } },
    { "moe_route",
      "num_tokens",
      { ROUTE_ALONE, ROUTE_SMALL_CLUSTER_TOKENS, ROUTE_CLUSTER_TOKENS, ROUTE_MAX_TOKENS, MAP_MAX_PAIRS / 32 } },
    { "moe_route", "num_experts", { GATE_MAX_EXPERTS } },
    { "moe_route", "num_topk", { GATE_MAX_SLOTS } },
    { "moe_route", "num_mapped_experts", { MAP_SMALL_EXPERTS } },
    { "moe_group_count", "num_groups", { HISTOGRAM_SHARED_BINS } },
    { "moe_aux_fi", "num_experts", { HISTOGRAM_SHARED_BINS } },
    { "moe_get_fused_mapping",
      "num_tokens",
      { MAP_AT_ONCE * MAP_SMALL_THREADS / 8, MAP_SMALL_PAIRS / 8, MAP_MAX_PAIRS / 8, MAP_LARGE_TILE / 8 } },
    { "moe_get_fused_mapping", "num_experts", { MAP_DIRECT_EXPERTS, MAP_SMALL_EXPERTS, 1 << MAP_LARGE_BITS } },
    { "moe_expand_to_fused", "num_tokens", { EXPAND_EARLY_TOKENS, EXPAND_FEW_ROWS / 2, EXPAND_BULK_MANY / 2 } },
    { "moe_expand_to_fused", "num_topk", { WARP } },
    { "moe_expand_to_fused", "hidden", { EXPAND_BULK_FEW_BYTES / 2 } },
    { "moe_expand_to_fused_with_sf", "num_tokens", { EXPAND_EARLY_TOKENS, EXPAND_FEW_ROWS / 2, EXPAND_SF_SLOTS / 8 } },
    { "moe_expand_to_fused_with_sf", "hidden", { EXPAND_BULK_FEW_BYTES } },
    { "moe_reduce_fused", "num_tokens", { REDUCE_FEW_TOKENS, REDUCE_BLOCKS } },
    { "moe_reduce_fused", "num_topk", { 8, WARP } },
    { "moe_reduce_fused", "hidden", { REDUCE_BULK_THREADS } },

    { "quant_per_token_cast", "num_rows", { TOKEN_WARPS } },
    { "quant_per_token_cast", "num_cols", { 256, GROUP_LARGE, TOKEN_ANY_GROUPS } },
    { "quant_per_token_cast_with_precomputed_sf", "num_rows", { TOKEN_WARPS } },
    { "quant_per_token_cast_with_precomputed_sf", "num_cols", { GROUP_LARGE } },
    { "quant_per_block_cast", "num_rows", { 128 } },
    { "quant_per_block_cast", "num_per_channels", { GROUP_LARGE } },
    { "quant_per_block_cast_with_precomputed_sf", "num_rows", { 128 } },
    { "quant_per_block_cast_lossless", "num_cols", { LOSSLESS_VALUES, LOSSLESS_VALUES * LOSSLESS_THREADS } },
    { "quant_per_channel_cast", "num_rows", { CHANNEL_TILE_ROWS, CHANNEL_LONG_ROWS, CHANNEL_TALL_ROWS } },
    { "quant_per_channel_cast", "num_cols", { STRIP_THREADS } },
    { "quant_per_channel_cast_and_transpose", "num_rows", { CHANNEL_TILE_ROWS, CHANNEL_LONG_ROWS } },
    { "quant_per_channel_cast_and_transpose", "num_cols", { STRIP_THREADS } },
    { "quant_cast_back", "num_rows", { 128 } },
    { "quant_cast_back", "num_cols", { 1024 } },
    { "quant_unpack_from_e2m1fn_x2",
      "num_bytes",
      { UNPACK_THREADS, UNPACK_THREADS * UNPACK_UNITS, UNPACK_THREADS * UNPACK_MIN_BLOCKS } },
    { "quant_swiglu_forward_and_per_token_cast", "num_rows", { FORWARD_WARPS } },
    { "quant_swiglu_forward_and_per_token_cast", "num_per_channels", { FORWARD_MAX_BLOCK } },
    { "quant_swiglu_forward_and_per_token_cast",
      "num_cols",
      { FORWARD_ROW_THREADS, FORWARD_ROW_THREADS * FORWARD_ROW_VALUES } },
    { "quant_swiglu_forward_and_per_channel_cast_and_transpose", "num_rows", { CHANNEL_TILE_ROWS, CHANNEL_LONG_ROWS } },
    { "quant_swiglu_forward_and_per_channel_cast_and_transpose", "num_cols", { STRIP_THREADS } },
    { "quant_swiglu_backward_and_per_token_cast",
      "num_cols",
      { BACKWARD_STEP, BACKWARD_STEP * BACKWARD_WARPS, BACKWARD_STEP * BACKWARD_MAX_STEPS } },
    { "quant_swiglu_backward_and_per_token_cast", "num_per_channels", { BACKWARD_MAX_BLOCK } },
    { "quant_swiglu_backward_and_per_token_cast", "num_tokens", { BACKWARD_SLOTS / 8 } },
    { NULL, NULL, { 0 } },
};
