/* SPDX-License-Identifier: MIT
 * gate_host.h - what the gates share on the host: checks, and on the CPU the steps before and after the
 * choice of experts. */
#ifndef TEGULA_MOE_GATE_HOST_H
#define TEGULA_MOE_GATE_HOST_H

#include "core/cpu.h"
#include "core/tensor.h"
#include "cuda/op.h"
#include "moe/common/gate.h"
#include "tegula/moe.h"

typedef struct {
    const DLTensor *logits, *bias, *mask, *fix_routing_mask, *to_physical_map, *logical_count;
    DLTensor *unmapped_topk_idx, *topk_idx, *topk_weights;
} tgl_gate_tensors;

/* In the struct's order, inputs first. */
enum { TGL_GATE_TENSORS = 9 };
void tgl_gate_names(const tgl_gate_tensors *x, tgl_named out[TGL_GATE_TENSORS]);

/* The params that do not depend on tensors. First of all checks: the others read them. */
tgl_status tgl_gate_check_params(const tgl_moe_gate_params *params);

/* Tensors, and the params that depend on them; `num_topk` is what topk_idx may have beside shared slots. */
tgl_status tgl_gate_check(const tgl_gate_tensors *x, const tgl_moe_gate_params *params, tgl_dim num_topk);

/* An input beside those above, which no output may overlap. */
tgl_status tgl_gate_check_input(const tgl_gate_tensors *x, const char *name, const DLTensor *input);

/* Of a call that passed the checks; without groups. */
tgl_gate tgl_gate_of(const tgl_gate_tensors *x, const tgl_moe_gate_params *params);

/* All checks of top2_sum_gate, and the call with its groups. */
tgl_status tgl_top2_sum_gate_of(const tgl_gate_tensors *x, const tgl_moe_gate_params *params, tgl_gate *out);

/* ---- on CUDA ---- */

/* Its problem is a tgl_gate with groups. */
enum { TGL_GATE_MAPPED, TGL_GATE_MANY, TGL_GATE_FEW, TGL_GATE_WIDE, TGL_GATE_KERNELS };
extern const tgl_op tgl_top2_sum_gate_op;

/* The macros of gate.cuh: how a warp holds a token's experts and slots. False: it cannot, the wide kernel is
 * for it. */
enum { TGL_GATE_MACROS = 5 };
bool tgl_gate_macros(const tgl_gate *gate, tgl_macro macros[TGL_GATE_MACROS]);

/* ---- on the CPU ---- */

static inline int64_t tgl_gate_get(const void *indices, int64_t i, int index_bytes)
{
    return index_bytes == 4 ? ((const int32_t *)indices)[i] : ((const int64_t *)indices)[i];
}
static inline void tgl_gate_put(void *indices, int64_t i, int index_bytes, int64_t index)
{
    if (index_bytes == 4) ((int32_t *)indices)[i] = (int32_t)index;
    else ((int64_t *)indices)[i] = index;
}

/* Token t goes to expert `index` in slot k < num_topk. Only noted, in topk_idx and unmapped_topk_idx. */
static inline void tgl_gate_choose(const tgl_gate *gate, int64_t t, int64_t k, int64_t index)
{
    const int64_t slots = (int64_t)gate->num_topk + gate->num_shared;
    if (gate->index_bytes == 4 && index != (int32_t)index) index = -1;      /* no expert, whatever it is */
    tgl_gate_put(gate->topk_idx, t * slots + k, gate->index_bytes, index);
    if (gate->unmapped_topk_idx)
        tgl_gate_put(gate->unmapped_topk_idx, t * gate->unmapped_stride + k, gate->index_bytes, index);
}

/* Each of the logits becomes its raw score (score.h). */
TGL_DECLARE_FAST(void, tgl_gate_score, int scoring, float *x, int64_t count, tgl_softmax row);
void tgl_gate_score(int scoring, float *x, int64_t count, tgl_softmax row);

/* What the softmax of a row needs: its largest logit, and the sum of exponentials, that of expert e among sum
 * e % TGL_SOFTMAX_SUMS; then these are added in order. */
enum { TGL_SOFTMAX_SUMS = 16 };
TGL_DECLARE_FAST(tgl_softmax, tgl_gate_softmax, const float *x, int64_t num_experts);

/* Of tokens begin .. end - 1 those that are routed have experts in all slots: makes weights and indices of
 * them. The others go nowhere. Several at a time, TGL_GATE_TOKENS at most: their loads overlap, and their
 * scores are vector code. */
enum { TGL_GATE_TOKENS = 32 };
void tgl_gate_finish(const tgl_gate *gate, int64_t begin, int64_t end, const bool *is_routed);

/* About what a token reads and writes, for tgl_parallel_rows; a score counts as the bytes that could be moved
 * in its time. */
int64_t tgl_gate_token_bytes(const tgl_gate *gate, int64_t num_scores);

#endif
