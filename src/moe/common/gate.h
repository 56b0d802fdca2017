/* SPDX-License-Identifier: MIT
 * gate.h - a gate's call as CPU loops and kernels see it: its arguments, the index and weight of a chosen
 * expert. */
#ifndef TEGULA_MOE_GATE_H
#define TEGULA_MOE_GATE_H

#include "moe/common/score.h"
#include "moe/common/token_warps.h"
#include "moe/common/tp_mask.h"

#define GATE_MAX_EXPERTS 1024 /* a lane holds 32 keys; more: the wide kernels */
#define GATE_MAX_LISTS 8      /* of 4 keys each */
#define GATE_MAX_GROUPS 32    /* a group has at least one lane */
#define GATE_MAX_SLOTS 32     /* a lane holds a slot */

#define GATE_EPSILON 1e-20f     /* initial value of a sum of scores */
#define GATE_REPLICA_STEP 23333 /* from the replica of token t to that of token t + 1 */

/* Tensors are those of top2_sum_gate (tegula/moe.h), optional ones NULL; bools are bytes. */
typedef struct {
    const float *logits, *bias;
    const uint8_t *mask, *fix_routing_mask;
    const int32_t *to_physical_map, *logical_count;
    void *unmapped_topk_idx, *topk_idx; /* of index_bytes */
    float *topk_weights;
    int64_t num_tokens, logits_stride, unmapped_stride, ep_rank;
    int32_t scoring, index_bytes; /* macros in kernels */
    uint32_t num_experts, num_topk, num_shared, num_replicas;
    uint32_t num_groups, group_size, num_topk_groups; /* a single group if no group is left out */
    uint32_t renormalize;
    uint32_t is_plain;  /* no map and no ranks: an expert is its own index */
    uint32_t is_vector; /* rows, bias and their groups begin at multiples of 16 bytes */
    float routed_scaling_factor, shared_weight;
    tgl_tp_mask tp_mask;
} tgl_gate;

/* Replicas of an expert with this logical_count: clamped to 1 .. num_replicas. */
TGL_INLINE uint32_t tgl_gate_replicas(const tgl_gate *gate, int32_t count)
{
    const uint32_t some = count < 1 ? 1 : (uint32_t)count;
    return some < gate->num_replicas ? some : gate->num_replicas;
}

/* Token t takes this replica, modulo the number of replicas. */
TGL_INLINE uint64_t tgl_gate_turn(const tgl_gate *gate, int64_t t)
{
    return (uint64_t)gate->ep_rank + (uint64_t)t * GATE_REPLICA_STEP;
}

/* Index of logical expert e (shared ones follow num_experts) for token t: with a map that of one of its
 * replicas, then its number on the tensor-parallel rank, or -1 if it is on another rank. */
TGL_INLINE int64_t tgl_gate_index(const tgl_gate *gate, int64_t t, uint32_t e)
{
    int64_t index = e;
    if (gate->is_plain) return index;
    if (gate->to_physical_map) {
        const uint32_t replicas = tgl_gate_replicas(gate, gate->logical_count[e]);
        const uint64_t turn = tgl_gate_turn(gate, t);
        const uint32_t replica = turn >> 32 ? (uint32_t)(turn % replicas) : (uint32_t)turn % replicas;
        index = gate->to_physical_map[(int64_t)e * gate->num_replicas + replica];
    }
    return tgl_tp_mask_narrow(&gate->tp_mask, index);
}

/* The weight of a score; `sum` is that of the token's scores. Dividing by 1 changes no bit. */
TGL_INLINE float tgl_gate_weight(const tgl_gate *gate, float score, float sum)
{
    return score / (gate->renormalize ? sum : 1.0f) * gate->routed_scaling_factor;
}

#endif
