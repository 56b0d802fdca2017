/* SPDX-License-Identifier: MIT */
#include "engram/common/short_conv_cpu.h"

static void plain_results(const conv_row *r, const conv_tap *taps)
{
    const int32_t last = r->kernel_size - 1;
    for (int64_t i = 0; i < r->hidden; i++) {
        const int64_t channel = r->h * r->hidden + i;
        float z = r->bias->data ? conv_weight_at(r->bias, channel) : 0;
        for (int64_t j = 0; j <= last; j++)
            z = fmaf(conv_weight_at(r->conv, channel * r->kernel_size + j), conv_value_at(r, &taps[j], i), z);
        if (r->rounds_each) z = conv_rounded(z);
        r->out[i] = tgl_bf16_from_f32(conv_result(r->numbers, z, 1.0f / conv_sigmoid_divisor(z),
                                                  conv_input_at(r, &taps[last], i), r->residual != NULL,
                                                  r->residual ? tgl_bf16_to_f32(r->residual[i]) : 0, r->rounds_each));
    }
}

void tgl_conv_results(const conv_row *r, const conv_tap *taps)
{
    TGL_CHOOSE(plain_results, tgl_conv_fast_results)(r, taps);
}
