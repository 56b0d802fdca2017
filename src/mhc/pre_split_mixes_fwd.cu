/* SPDX-License-Identifier: MIT
 * pre_split_mixes_fwd.cu - gates and logits from mixes; also the gate of a head.
 *   computes  as common/gates.h says, a column per thread. (Four took up to 0.8 us longer on an H200 (2026-11), 2.4
 *             instead of 1.6 for 128 tokens: a kernel that is not in the caches waits for its code, and four gates are
 *             more of it)
 *   launch    grid of blocks with as many tokens as fit, block GATES_THREADS. (Without a loop over tokens: 2.43 instead
 *             of 2.69 us for 8192 tokens of 24 columns, H200, 2026-11)
 *   moves     8 bytes per column
 *   macros    STREAMS 1..8; GROUPS 1 (pre), 2 (and post), 3 (and comb) */
#include "device/ptx.cuh"
#include "mhc/common/gates.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && GROUPS >= 1 && GROUPS <= 3, "a macro is out of range");

enum { COLUMNS = GROUPS == 3 ? STREAMS * (STREAMS + 2) : GROUPS * STREAMS, TOKENS = GATES_THREADS / COLUMNS };

extern "C" __global__ void __launch_bounds__(GATES_THREADS)
    pre_split_mixes_fwd(const __grid_constant__ gates_fwd_args a)
{
    const u32 token = threadIdx.x / COLUMNS;
    const int column = (int)(threadIdx.x % COLUMNS);
    const int group = GROUPS == 1 ? 0 : gates_group(column, STREAMS), width = group == 2 ? STREAMS * STREAMS : STREAMS;
    const i64 t = (i64)blockIdx.x * TOKENS + token;
    pdl_wait();
    pdl_trigger();
    if ((GATES_THREADS % COLUMNS != 0 && token >= TOKENS) || t >= a.num_tokens) return;
    const float mix = a.mixes[t * a.row_stride + column], scale = a.scale[group], base = a.base[column];
    float *const out = (group == 0 ? a.out[0] : group == 1 ? a.out[1] : a.out[2]) + (column - group * STREAMS);
    out[t * width] = gates_of(&a.numbers, group, mhc_logit(mix, scale, base));
}
