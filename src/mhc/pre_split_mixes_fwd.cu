/* SPDX-License-Identifier: MIT
 * pre_split_mixes_fwd.cu - gates and logits from mixes; also the gate of a head.
 *   computes  as common/gates.h says, a column, or four neighbours, per thread
 *   launch    grid of blocks with as many tokens as fit (blocks stride over tokens), block GATES_THREADS
 *   moves     8 bytes per column
 *   macros    STREAMS 1..8; GROUPS 1 (pre), 2 (and post), 3 (and comb); HAS_VECTORS 0, 1: four columns (16 bytes) per
 *             thread, for STREAMS 4 and 8 */
#include "device/ptx.cuh"
#include "mhc/common/gates.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && GROUPS >= 1 && GROUPS <= 3 &&
              (HAS_VECTORS == 0 || (HAS_VECTORS == 1 && STREAMS % 4 == 0)), "a macro is out of range");

enum { COLUMNS = GROUPS == 3 ? STREAMS * (STREAMS + 2) : GROUPS * STREAMS, UNIT = HAS_VECTORS ? 4 : 1,
       UNITS = COLUMNS / UNIT, TOKENS = GATES_THREADS / UNITS };

extern "C" __global__ void __launch_bounds__(GATES_THREADS) pre_split_mixes_fwd(
    const __grid_constant__ gates_fwd_args a)
{
    const int token = (int)threadIdx.x / UNITS, column = (int)threadIdx.x % UNITS * UNIT;
    const int group = gates_group(column, STREAMS), width = group == 2 ? STREAMS * STREAMS : STREAMS;
    pdl_wait();
    pdl_trigger();
    if (token >= TOKENS) return;
    const float scale = a.scale[group];
    float *const out = (group == 0 ? a.out[0] : group == 1 ? a.out[1] : a.out[2]) + (column - group * STREAMS);
    float base[UNIT];
#pragma unroll
    for (int i = 0; i < UNIT; i++) base[i] = a.base[column + i];
#pragma unroll 1
    for (i64 t = (i64)blockIdx.x * TOKENS + token; t < a.num_tokens; t += (i64)gridDim.x * TOKENS) {
        const float *from = a.mixes + t * a.row_stride + column;
        float *to = out + t * width;
#if HAS_VECTORS
        const float4 m = *(const float4 *)from;
        *(float4 *)to = make_float4(gates_of(&a.numbers, group, mhc_logit(m.x, scale, base[0])),
                                    gates_of(&a.numbers, group, mhc_logit(m.y, scale, base[1])),
                                    gates_of(&a.numbers, group, mhc_logit(m.z, scale, base[2])),
                                    gates_of(&a.numbers, group, mhc_logit(m.w, scale, base[3])));
#else
        *to = gates_of(&a.numbers, group, mhc_logit(*from, scale, base[0]));
#endif
    }
}
