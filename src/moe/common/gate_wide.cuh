/* SPDX-License-Identifier: MIT
 * gate_wide.cuh - gate_slots.cuh for any number of slots: a block per token.
 *   macros    SCORING 0 .. 3; INDEX_BYTES 4 or 8 */
#ifndef TEGULA_MOE_GATE_WIDE_CUH
#define TEGULA_MOE_GATE_WIDE_CUH

#include "moe/common/gate.h"
#include "moe/common/index.cuh"
#include "moe/common/score.cuh"

DEV i64 num_slots(const tgl_gate &gate) { return (i64)gate.num_topk + gate.num_shared; }
DEV index_type *indices_of(const tgl_gate &gate, i64 t) { return (index_type *)gate.topk_idx + t * num_slots(gate); }
DEV index_type *unmapped_of(const tgl_gate &gate, i64 t)
{
    return (index_type *)gate.unmapped_topk_idx + t * gate.unmapped_stride;
}

DEV void mask_token(const tgl_gate &gate, i64 t)
{
#pragma unroll 1
    for (i64 k = threadIdx.x; k < num_slots(gate); k += blockDim.x) {
        indices_of(gate, t)[k] = -1;
        gate.topk_weights[t * num_slots(gate) + k] = 0.0f;
        if (gate.unmapped_topk_idx && k < gate.num_topk) unmapped_of(gate, t)[k] = -1;
    }
}

/* Called by all threads. topk_idx holds the logical experts (or any numbers) of all but the shared slots. */
DEV void finish_token(const tgl_gate &gate, i64 t, const float *row)
{
    SHARED(float, sum_of_scores);
    index_type *indices = indices_of(gate, t);
    float *weights = gate.topk_weights + t * num_slots(gate);
    const tgl_softmax softmax = softmax_if_wanted(row, gate.num_experts, threadIdx.x % 32);
    __syncthreads();
#pragma unroll 1
    for (u32 k = threadIdx.x; k < gate.num_topk; k += blockDim.x) {
        const i64 e = indices[k];
        weights[k] = e >= 0 && e < gate.num_experts ? tgl_score(SCORING, row[e], softmax) : 0.0f;
    }
    __syncthreads();
    if (threadIdx.x == 0) { /* in this order */
        float sum = GATE_EPSILON;
#pragma unroll 4
        for (u32 k = 0; k < gate.num_topk; k++) sum += weights[k];
        sum_of_scores = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (i64 k = threadIdx.x; k < num_slots(gate); k += blockDim.x) {
        const bool is_shared = k >= gate.num_topk;
        const i64 e = is_shared ? gate.num_experts + (k - gate.num_topk) : indices[k];
        const bool is_expert = is_shared || (e >= 0 && e < gate.num_experts);
        weights[k] = is_shared   ? gate.shared_weight
                     : is_expert ? tgl_gate_weight(&gate, weights[k], sum_of_scores)
                                 : 0.0f;
        indices[k] = is_expert ? (index_type)tgl_gate_index(&gate, t, (u32)e) : -1;
    }
}

#endif
