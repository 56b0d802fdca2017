/* SPDX-License-Identifier: MIT
 * gate.cuh - what the gate's kernels share: rows, weights.
 *   macros    WEIGHTS GATE_FUSED, GATE_BF16, GATE_F32; ZERO_CENTERED 0, 1 */
#ifndef TEGULA_ENGRAM_GATE_CUH
#define TEGULA_ENGRAM_GATE_CUH

#include "device/vector.cuh"
#include "engram/common/gate.h"

static_assert(WEIGHTS == GATE_FUSED || WEIGHTS == GATE_BF16 || WEIGHTS == GATE_F32, "WEIGHTS is a kind of gate.h");
static_assert(ZERO_CENTERED == 0 || (ZERO_CENTERED == 1 && WEIGHTS != GATE_FUSED), "ZERO_CENTERED is 0 or 1");

DEV const u16 *row_of(const gate_in &rows, i64 t, i64 h) { return rows.data + t * rows.token + h * rows.stream; }
DEV u16 *row_of(const gate_out &rows, i64 t, i64 h) { return rows.data + t * rows.token + h * rows.stream; }

DEV void load_floats(const float *from, float (&to)[GATE_VECTOR])
{
    const float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

/* The weights of vector c of stream h. */
DEV void load_weights(const gate_weights &w, i64 h, i64 c, float (&to)[GATE_VECTOR])
{
    const i64 a = h * w.hidden_stride + c * GATE_VECTOR, b = h * w.embed_stride + c * GATE_VECTOR;
#if WEIGHTS == GATE_FUSED
    (void)b;
    load_floats((const float *)w.hidden + a, to);
#elif WEIGHTS == GATE_F32
    float hidden[GATE_VECTOR], embed[GATE_VECTOR];
    load_floats((const float *)w.hidden + a, hidden);
    load_floats((const float *)w.embed + b, embed);
#pragma unroll
    for (int i = 0; i < GATE_VECTOR; i++) to[i] = gate_weight(hidden[i], embed[i], ZERO_CENTERED);
#else
    const uint4 hidden = *(const uint4 *)((const u16 *)w.hidden + a);
    const uint4 embed = *(const uint4 *)((const u16 *)w.embed + b);
#pragma unroll
    for (int i = 0; i < GATE_VECTOR; i++) to[i] = gate_weight(column(hidden, i), column(embed, i), ZERO_CENTERED);
#endif
}

#endif
