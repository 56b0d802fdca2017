/* SPDX-License-Identifier: MIT
 * short_conv.h - what forward and backward of the short convolution share: their tensors, the order of sums, the
 * arithmetic of an element. A row is one stream of one token. Read by C and by kernels: both give the same bits. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_H
#define TEGULA_ENGRAM_SHORT_CONV_H

#include "engram/common/gate.h"
#include "engram/common/windows.h"

#define CONV_MAX_TAPS 64
#define CONV_VECTOR 8               /* columns of a vector, the last one of a row maybe shorter */
#define CONV_GROUP 32               /* vectors whose sums are added as a tree */

/* f32 or bf16 */
typedef struct { const void *data; int64_t stride; int32_t is_bf16; } conv_weights;

TGL_INLINE float conv_weight_at(const conv_weights *w, int64_t i)
{
    return w->is_bf16 ? tgl_bf16_to_f32(((const uint16_t *)w->data)[i]) : ((const float *)w->data)[i];
}

typedef struct {
    float hidden;                   /* columns of a row */
    float eps;
    int32_t is_zero_centered;       /* norm_weight is stored minus 1 */
    int32_t has_activation, adds_input;
} conv_numbers;

/* Of a row: the sum of squares has an order that depends on the number of columns alone. The columns of a vector are
 * added one after the other, with one fma each; vectors of a group of CONV_GROUP as a tree, vector i and i + 16, then
 * i + 8, 4, 2, 1; then the groups in order. */
TGL_INLINE float conv_rstd(const conv_numbers *n, float sum_of_squares)
{
    return tgl_rsqrt(sum_of_squares / n->hidden + n->eps);
}

TGL_INLINE float conv_norm_weight(const conv_numbers *n, float w) { return n->is_zero_centered ? 1.0f + w : w; }

/* What is convolved: rounded to bf16, as the ring keeps it, so that no result depends on where a sequence is cut. */
TGL_INLINE float conv_normed(float x, float rstd, float norm_weight) { return x * rstd * norm_weight; }

TGL_INLINE float conv_rounded(float v) { return tgl_bf16_to_f32(tgl_bf16_from_f32(v)); }

/* SiLU of less than this is that of this: -1.4e-33. */
#define CONV_LOWEST (-80.0f)
TGL_INLINE float conv_bounded(float z) { return tgl_select_f32(z < CONV_LOWEST, CONV_LOWEST, z); }

/* 1 + e^-z, of which the reciprocal is sigmoid(z), with a relative error of at most 2^-21. e^-z = 2^n * 2^f, n the integer
 * nearest to -z / ln 2; 2^f is a polynomial with a relative error of 2^-23. A NaN gives any number: its product with z is
 * a NaN. */
TGL_INLINE float conv_sigmoid_divisor(float z)
{
#ifdef __CUDACC__
    const float c = fminf(conv_bounded(z), -CONV_LOWEST);
#else
    const float low = conv_bounded(z), c = tgl_select_f32(low < -CONV_LOWEST, low, -CONV_LOWEST);
#endif
    const float shift = 0x1.8p23f, shifted = fmaf(c, -0x1.715476p0f, shift), n = shifted - shift;
    const float f = fmaf(c, -0x1.4ae0cp-26f, fmaf(c, -0x1.715476p0f, -n));
    float p = fmaf(f, 0x1.5bba14p-10f, 0x1.3cea88p-7f);
    p = fmaf(f, p, 0x1.c6b752p-5f);
    p = fmaf(f, p, 0x1.ebf9bcp-3f);
    p = fmaf(f, p, 0x1.62e42ap-1f);
    p = fmaf(f, p, 1.0f);
    return 1.0f + tgl_f32_from_bits(tgl_f32_to_bits(p) + (tgl_f32_to_bits(shifted) << 23));
}

/* From z to the result, given the sigmoid of z; round_each: after every step. */
TGL_INLINE float conv_result(const conv_numbers *n, float z, float sigmoid, float x, int has_residual, float residual,
                             int round_each)
{
    float y = n->has_activation ? conv_bounded(z) * sigmoid : z;
    if (round_each) y = conv_rounded(y);
    if (n->adds_input) y += x;
    if (round_each) y = conv_rounded(y);
    return has_residual ? y + residual : y;
}

#endif
