/* SPDX-License-Identifier: MIT
 * hash_gate.cu - experts from a table by token id, weights from scores: TOKEN_LANES lanes per token, one slot
 * each.
 *   computes  as tegula/moe.h says
 *   launch    grid ceil(num_tokens * TOKEN_LANES / block), block of 1 .. HASH_GATE_WARPS warps
 *   moves     per token: its id, NUM_TOPK entries of the table, as many logits (for softmax its whole row),
 *             (INDEX_BYTES + 4) * slots bytes; mask, map, count and unmapped indices, if given
 *   macros    TOKEN_LANES 8, 16, 32, not fewer than slots, 32 for softmax; SCORING 0 .. 3;
 *             NUM_TOPK 1 .. TOKEN_LANES; INDEX_BYTES, ID_BYTES, TABLE_BYTES 4 or 8 */
#include "moe/common/gate_slots.cuh"
#include "moe/hash_gate.h"

static_assert(TOKEN_LANES == 8 || TOKEN_LANES == 16 || TOKEN_LANES == 32, "TOKEN_LANES is 8, 16 or 32");
static_assert(NUM_TOPK <= TOKEN_LANES, "NUM_TOPK is 1 .. TOKEN_LANES");

extern "C" __global__ void __launch_bounds__(32 * HASH_GATE_WARPS) hash_gate(const __grid_constant__ hash_gate_args a)
{
    const tgl_gate &gate = a.gate;
    const i64 t = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / TOKEN_LANES;
    const u32 lane = threadIdx.x % 32, k = threadIdx.x % TOKEN_LANES;
    pdl_wait();
    const bool is_token = t < gate.num_tokens; /* lanes without a token stay: shuffles need them */
    i64 id = -1;
    if (is_token && !(gate.mask && !gate.mask[t])) id = tgl_integer_at(a.input_ids, t, ID_BYTES);
    const bool is_routed = id >= 0 && id < a.vocabulary;
    i64 e = -1;
    if (is_routed && k < NUM_TOPK) e = tgl_integer_at(a.tid2eid, id * NUM_TOPK + k, TABLE_BYTES);
    const float *row = gate.logits + (is_token ? t * gate.logits_stride : 0);
    const choice c = choose_slot<TOKEN_LANES>(gate, row, e, lane);
    const auto index_of = [&](u32 expert) { return (i32)tgl_gate_index(&gate, t, expert); };
    slot s = finish_slot<TOKEN_LANES>(gate, c, k, true, index_of, see_nothing);
    if (!is_routed) s = { -1, 0.0f };
    if (is_token) {
        if (gate.unmapped_topk_idx && k < NUM_TOPK)
            ((index_type *)gate.unmapped_topk_idx)[t * gate.unmapped_stride + k] = as_index(e);
        store_slot(gate, t, s, k);
    }
    pdl_trigger();
}
