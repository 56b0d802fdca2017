/* SPDX-License-Identifier: MIT
 * expand_bwd.cu - the sum of a token's streams.
 *   computes  grad_x[t] = sum over i of grad_out[t][i], in order, in f32, rounded once
 *   launch    grid (blocks of columns, at most 65535 tokens, over which blocks stride), block up to
 *             ROWS_COLUMN_THREADS, a unit of 8 columns per thread
 *   moves     2 * (1 + STREAMS) bytes per column; of f32, a number is two columns
 *   macros    STREAMS 1..8; GRAD_TYPE EXPAND_BF16, _F16, _F32; HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/expand_bwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");
static_assert(GRAD_TYPE >= EXPAND_BF16 && GRAD_TYPE <= EXPAND_F32, "GRAD_TYPE is one of expand_bwd.h's");

enum { NUMBERS = GRAD_TYPE == EXPAND_F32 ? 4 : 8 }; /* of a unit */
DEV float number(const uint4 &v, int i)
{
#if GRAD_TYPE == EXPAND_BF16
    return column(v, i);
#else
    const u32 words[] = { v.x, v.y, v.z, v.w };
    if (GRAD_TYPE == EXPAND_F32) return __uint_as_float(words[i]);
    return i % 2 ? high_f16(words[i / 2]) : low_f16(words[i / 2]);
#endif
}
DEV uint4 unit_of(const float (&sum)[NUMBERS])
{
#if GRAD_TYPE == EXPAND_BF16
    return pack(sum);
#elif GRAD_TYPE == EXPAND_F16
    return make_uint4(pack_f16(sum[0], sum[1]), pack_f16(sum[2], sum[3]), pack_f16(sum[4], sum[5]),
                      pack_f16(sum[6], sum[7]));
#else
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = __float_as_uint(tgl_one_nan(sum[i]));
    return make_uint4(words[0], words[1], words[2], words[3]);
#endif
}

extern "C" __global__ void __launch_bounds__(ROWS_COLUMN_THREADS) expand_bwd(const __grid_constant__ expand_bwd_args a)
{
    const i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * ROWS_UNIT;
    pdl_wait();
    if (first < a.columns)
#pragma unroll 1
        for (i64 t = blockIdx.y; t < a.num_tokens; t += gridDim.y) {
            uint4 v[STREAMS];
#pragma unroll
            for (int i = 0; i < STREAMS; i++)
                v[i] =
                    load_unit_ahead(a.grad_out.data + t * a.grad_out.token + i * a.grad_out.stream, first, a.columns);
            float sum[NUMBERS];
#pragma unroll
            for (int c = 0; c < NUMBERS; c++) {
                sum[c] = 0;
#pragma unroll
                for (int i = 0; i < STREAMS; i++) sum[c] += number(v[i], c);
            }
            store_unit(a.grad_x.data + t * a.grad_x.token, first, a.columns, unit_of(sum));
        }
    pdl_trigger();
}
