/* SPDX-License-Identifier: MIT
 * unpack_from_e2m1fn_x2_fast.c - by integers, through bf16, in loops that compilers vectorise. */
#include "numerics/f16.h"
#include "quant/common/lanes.h"

void TGL_FAST(tgl_unpack)(const uint8_t *x, int64_t num_pairs, tgl_dtype dtype, void *out)
{
    uint16_t *restrict f16 = out;
    uint8_t *restrict e4m3 = out;
    if (dtype == TGL_F32) tgl_run_from_e2m1x2(x, num_pairs, false, out);
    else if (dtype == TGL_BF16) tgl_run_from_e2m1x2(x, num_pairs, true, out);
    else if (dtype == TGL_F16)
        for (int64_t i = 0; i < num_pairs; i++) {
            f16[2 * i] = tgl_f16_from_f32(tgl_bf16_to_f32(tgl_e2m1_to_bf16(x[i])));
            f16[2 * i + 1] = tgl_f16_from_f32(tgl_bf16_to_f32(tgl_e2m1_to_bf16(x[i] >> 4)));
        }
    else
        for (int64_t i = 0; i < num_pairs; i++) {
            e4m3[2 * i] = tgl_e4m3_from_small_f32(tgl_bf16_to_f32(tgl_e2m1_to_bf16(x[i])));
            e4m3[2 * i + 1] = tgl_e4m3_from_small_f32(tgl_bf16_to_f32(tgl_e2m1_to_bf16(x[i] >> 4)));
        }
}
