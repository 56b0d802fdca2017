/* SPDX-License-Identifier: MIT
 * gate_host.h - what the gates share on the host: signatures, kernel macros, CPU steps around the choice of
 * experts. */
#ifndef TEGULA_MOE_GATE_HOST_H
#define TEGULA_MOE_GATE_HOST_H

#include "core/cpu.h"
#include "core/index.h"
#include "cuda/op.h"
#include "moe/common/gate.h"
#include "tegula/moe.h"

/* ---- what gates take ---- */

/* Parts of their signatures. */
#define GATE_MAP                                                             \
    "to_physical_map: i32[num_experts + num_shared_experts, num_replicas]?," \
    " logical_count: i32[num_experts + num_shared_experts]?"
#define GATE_SCALARS                                                                           \
    "scoring: {sigmoid|sqrtsoftplus|softmax|identity}, num_groups: int, num_topk_groups: int," \
    " num_shared_experts: int, has_routed_scaling_factor: bool,"                               \
    " routed_scaling_factor: float with has_routed_scaling_factor, has_shared_weight: bool,"   \
    " shared_weight: float with has_shared_weight, no_renormalize: bool, ep_rank: int,"        \
    " num_ep_ranks: int = 1, num_tp_ranks: int = 1, tp_rank: int in 0..num_tp_ranks - 1"
#define GATE_OUTPUTS                                                \
    "topk_idx: i64|i32[num_tokens, num_topk + num_shared_experts]," \
    " topk_weights: f32[num_tokens, num_topk + num_shared_experts]"
#define GATE_RULES                                                                            \
    "num_shared_experts < 2^31, num_experts <= 2^31 - 1 - num_shared_experts,"                \
    " num_replicas in num_shared_experts + 1..2^31 - 1, to_physical_map needs logical_count," \
    " logical_count needs to_physical_map, num_shared_experts needs to_physical_map"

/* Of top2_sum_gate, and of route, which begins with it. */
#define TOP2_INPUTS                                                                                \
    "logits: f32[num_tokens, num_experts] rows, bias: f32[num_experts]?, mask: bool[num_tokens]?," \
    " fix_routing_mask: bool[num_tokens]?, " GATE_MAP ","                                          \
    " unmapped_topk_idx: topk_idx[num_tokens, num_topk]?! rows, " GATE_SCALARS
#define TOP2_RULES                                                                                       \
    GATE_RULES ", num_topk_groups in (num_groups > 0)..num_groups, num_groups divides num_experts,"      \
               " num_topk <= num_experts / num_groups * num_topk_groups if num_groups else num_experts," \
               " fix_routing_mask needs unmapped_topk_idx"

extern const tgl_params TGL_GATE_PARAMS;

/* The tensors of top2_sum_gate, in its order. Another gate passes NULL for those it lacks. */
enum {
    TGL_GATE_LOGITS,
    TGL_GATE_BIAS,
    TGL_GATE_MASK,
    TGL_GATE_FIX_ROUTING_MASK,
    TGL_GATE_TO_PHYSICAL_MAP,
    TGL_GATE_LOGICAL_COUNT,
    TGL_GATE_UNMAPPED_TOPK_IDX,
    TGL_GATE_TOPK_IDX,
    TGL_GATE_TOPK_WEIGHTS,
    TGL_GATE_TENSORS
};

/* For a call that passed its signature. Checks the one rule left: no more expert-parallel ranks than
 * experts. */
tgl_status tgl_gate_of(const DLTensor *const *tensors, const tgl_moe_gate_params *params, tgl_gate *out);

/* ---- on CUDA ---- */

/* top2_sum_gate; its problem is a tgl_gate. */
enum { TGL_GATE_MAPPED, TGL_GATE_MANY, TGL_GATE_FEW, TGL_GATE_WIDE, TGL_GATE_KERNELS };
extern const tgl_op tgl_top2_sum_gate_op;

/* The macros of gate.cuh: how a warp holds a token's experts and slots. False if it cannot: use the wide
 * kernel. */
enum { TGL_GATE_MACROS = 5 };
bool tgl_gate_macros(const tgl_gate *gate, tgl_macro macros[TGL_GATE_MACROS]);

/* ---- on the CPU ---- */

/* Chooses expert `index` for slot k < num_topk of token t: writes topk_idx and unmapped_topk_idx. */
static inline void tgl_gate_choose(const tgl_gate *gate, int64_t t, int64_t k, int64_t index)
{
    const int64_t slots = (int64_t)gate->num_topk + gate->num_shared;
    if (gate->index_bytes == 4 && index != (int32_t)index) index = -1; /* no expert */
    tgl_index_put(gate->topk_idx, t * slots + k, gate->index_bytes, index);
    if (gate->unmapped_topk_idx)
        tgl_index_put(gate->unmapped_topk_idx, t * gate->unmapped_stride + k, gate->index_bytes, index);
}

/* Turns logits into raw scores (score.h), in place. */
TGL_DECLARE_FAST(void, tgl_gate_score, int scoring, float *x, int64_t count, tgl_softmax row);
void tgl_gate_score(int scoring, float *x, int64_t count, tgl_softmax row);

/* Max and sum of exponentials of a row. Expert e is added to partial sum e % TGL_SOFTMAX_SUMS; the partial
 * sums are added in order. */
enum { TGL_SOFTMAX_SUMS = 16 };
TGL_DECLARE_FAST(tgl_softmax, tgl_gate_softmax, const float *x, int64_t num_experts);

/* Makes weights and indices of the chosen experts of tokens begin .. end - 1, at most TGL_GATE_TOKENS; tokens
 * that are not routed are masked. Several tokens at once, so that their loads overlap and scores are
 * vectorised. */
enum { TGL_GATE_TOKENS = 32 };
void tgl_gate_finish(const tgl_gate *gate, int64_t begin, int64_t end, const bool *is_routed);

/* Cost of a token in bytes, for tgl_parallel_rows; a score costs as much as the bytes moved in its time. */
int64_t tgl_gate_token_bytes(const tgl_gate *gate, int64_t num_scores);

#endif
