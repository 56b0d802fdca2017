/* SPDX-License-Identifier: MIT
 * hash_gate_wide.cu - hash_gate for any number of slots: a block per token.
 *   computes  as tegula/moe.h says
 *   launch    grid num_tokens in x and y, block HASH_GATE_WIDE_THREADS
 *   moves     as hash_gate.cu; weights and indices are written twice and read once
 *   macros    SCORING 0 .. 3; INDEX_BYTES, ID_BYTES, TABLE_BYTES 4 or 8 */
#include "moe/common/gate_wide.cuh"
#include "moe/hash_gate.h"

extern "C" __global__ void __launch_bounds__(HASH_GATE_WIDE_THREADS)
    hash_gate_wide(const __grid_constant__ hash_gate_args a)
{
    const tgl_gate &gate = a.gate;
    const i64 t = block_index();
    pdl_wait();
    if (t >= gate.num_tokens) return;
    const i64 id = tgl_integer_at(a.input_ids, t, ID_BYTES);
    if ((gate.mask && !gate.mask[t]) || id < 0 || id >= a.vocabulary) {
        mask_token(gate, t);
    } else {
#pragma unroll 1
        for (u32 k = threadIdx.x; k < gate.num_topk; k += HASH_GATE_WIDE_THREADS) {
            const index_type e = as_index(tgl_integer_at(a.tid2eid, id * gate.num_topk + k, TABLE_BYTES));
            indices_of(gate, t)[k] = e;
            if (gate.unmapped_topk_idx) unmapped_of(gate, t)[k] = e;
        }
        finish_token(gate, t, gate.logits + t * gate.logits_stride);
    }
    pdl_trigger();
}
