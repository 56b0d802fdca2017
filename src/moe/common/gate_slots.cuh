/* SPDX-License-Identifier: MIT
 * gate_slots.cuh - indices and weights of a token's slots once their experts are known: LANES (8, 16 or 32)
 * lanes per token, one slot each.
 *   macros    SCORING 0 .. 3; NUM_TOPK 1 .. LANES; INDEX_BYTES 4 or 8 */
#ifndef TEGULA_MOE_GATE_SLOTS_CUH
#define TEGULA_MOE_GATE_SLOTS_CUH

#include "moe/common/gate.h"
#include "moe/common/index.cuh"
#include "moe/common/score.cuh"

static_assert(NUM_TOPK >= 1 && NUM_TOPK <= GATE_MAX_SLOTS, "NUM_TOPK is 1 .. 32");

typedef struct {
    i32 expert;
    float score;
} choice; /* expert < 0: none, and its score is 0 */
typedef struct {
    i32 index;
    float weight;
} slot; /* as in topk_idx and topk_weights */

/* The choice of expert e, which may be any number. Softmax takes a warp per token. */
DEV choice choose_slot(const tgl_gate &gate, const float *row, i64 e, tgl_softmax softmax)
{
    if (e < 0 || e >= gate.num_experts) return { -1, 0.0f };
    return { (i32)e, tgl_score(SCORING, row[e], softmax) };
}
template <int LANES> DEV choice choose_slot(const tgl_gate &gate, const float *row, i64 e, u32 lane)
{
    static_assert(SCORING != TGL_SOFTMAX || LANES == 32, "softmax takes a warp");
    return choose_slot(gate, row, e, softmax_if_wanted(row, gate.num_experts, lane));
}

/* Called by a whole warp. Lane k of the token has the choice of slot k < NUM_TOPK; shared slots follow.
 * index_of(expert) is tgl_gate_index(). see(index) is called before the weight is computed, which is done
 * only if the warp has_weights. */
DEV void see_nothing(i32) { }
template <int LANES, class INDEX_OF, class SEE>
DEV slot finish_slot(const tgl_gate &gate, choice c, u32 k, bool has_weights, const INDEX_OF &index_of, const SEE &see)
{
    const bool is_shared = k >= NUM_TOPK;
    const i32 expert = is_shared ? (i32)(gate.num_experts + (k - NUM_TOPK)) : c.expert;
    const bool is_empty = expert < 0 || k >= NUM_TOPK + gate.num_shared;
    const i32 index = is_empty ? -1 : index_of((u32)expert);
    see(index);
    if (!has_weights) return { index, 0.0f };
    float sum = GATE_EPSILON;
#pragma unroll
    for (int i = 0; i < NUM_TOPK; i++) sum += __shfl_sync(FULL, c.score, i, LANES);
    /* lanes without a weight divide 1: dividing 0 takes the slow path, and all lanes wait for it */
    const float weight = tgl_gate_weight(&gate, is_empty | is_shared ? 1.0f : c.score, sum);
    return { index, is_empty ? 0.0f : is_shared ? gate.shared_weight : weight };
}

DEV void store_slot(const tgl_gate &gate, i64 t, slot s, u32 k)
{
    const u32 num_slots = NUM_TOPK + gate.num_shared;
    if (k >= num_slots) return;
    ((index_type *)gate.topk_idx)[t * num_slots + k] = s.index;
    gate.topk_weights[t * num_slots + k] = s.weight;
}

#endif
