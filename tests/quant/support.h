/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the casts share: calls, floats as bits, products close to a tie. */
#ifndef TEGULA_QUANT_SUPPORT_H
#define TEGULA_QUANT_SUPPORT_H

#include <math.h>
#include <stdlib.h>

#include "calls.h"
#include "cases/quant/common/quant.h"
#include "tegula/quant.h"

#define PARAMS(...) (&(tgl_quant_params){ __VA_ARGS__ })
#define F32S(...) ((const float[]){ __VA_ARGS__ })
#define BYTES(...) ((const uint8_t[]){ __VA_ARGS__ })
#define COUNT_OF(array) ((int64_t)(sizeof(array) / sizeof *(array)))

/* ---- floats ---- */

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint16_t to_bf16(float value) { return (uint16_t)(bits_of(value) >> 16); } /* truncates */
static inline float of_bf16(uint16_t bits) { return float_of((uint32_t)bits << 16); }

/* ---- calls ---- */

OP(quant_cast_back, t[0], t[1], t[2], params)
OP(quant_per_block_cast, t[0], t[1], t[2], params)
OP(quant_per_block_cast_lossless, t[0], t[1], t[2], t[3], t[4], params)
OP(quant_per_block_cast_with_precomputed_sf, t[0], t[1], t[2], params)
OP(quant_per_channel_cast, t[0], t[1], t[2], t[3], t[4], params)
OP(quant_per_channel_cast_and_transpose, t[0], t[1], t[2], params)
OP(quant_per_token_cast, t[0], t[1], t[2], t[3], params)
OP(quant_per_token_cast_with_precomputed_sf, t[0], t[1], t[2], t[3], params)
OP(quant_swiglu_backward_and_per_token_cast, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], params)
OP(quant_swiglu_forward_and_per_channel_cast_and_transpose, t[0], t[1], t[2], params)
OP(quant_swiglu_forward_and_per_token_cast, t[0], t[1], t[2], t[3], t[4], t[5], t[6], params)
OP(quant_unpack_from_e2m1fn_x2, t[0], t[1])

/* On one SM, for which few rows are many. */
static inline void use_one_sm(const backend *b, bool is_one)
{
    if (!backend_is_cpu(b)) CHECK_OK(tgl_set_num_sms(b->device.device_id, is_one));
}

/* The lines on one SM, with number `kernel` of the kernels that can do a call, whether it pays or not (launch_alone.c):
 * so small cases reach the kernels for large ones. */
static inline void check_kernel(const char *op_name, int kernel, const char *const *lines)
{
    char number[16];
    snprintf(number, sizeof number, "%d", kernel);
    setenv("TEGULA_TEST_KERNEL", number, 1);
    FOR_BACKENDS(b) {
        use_one_sm(b, true);
        check_lines(op_name, lines, b);
        use_one_sm(b, false);
    }
    unsetenv("TEGULA_TEST_KERNEL");
}

/* ---- errors ---- */

/* The params of a call of errors.h. */
#define PARAMS_OF(call) ((tgl_quant_params *)(void *)(call)->params)

/* ---- products close to a tie ---- */

/* A code of e4m3 and two factors: that of the largest code, which stands first in its block, and that of this
 * one. code * factor * inv is halfway between two codes, so that the order of the products often decides. */
typedef struct {
    uint8_t code;
    float factors[2];
} close_pair;
static inline close_pair make_close_pair(test_random *r)
{
    const unsigned at = (unsigned)test_below(r, 0x30) + 0x20;
    const double middle = ((double)quant_decode(TGL_QUANT_E4M3, at) + (double)quant_decode(TGL_QUANT_E4M3, at + 1)) / 2;
    close_pair p = { .code = (uint8_t)(test_below(r, 0x38) + 0x38) };
    p.factors[0] = float_of((uint32_t)test_below(r, 0x01000000) + 0x3f000000);
    const float inv = 448 / (448 * p.factors[0]);
    const float exact = (float)(middle / inv / (double)quant_decode(TGL_QUANT_E4M3, p.code));
    p.factors[1] = float_of(bits_of(exact) + (uint32_t)test_below(r, 5) - 2);
    return p;
}

/* The second code's result: by the rule, or with both factors multiplied first. */
static inline unsigned code_of_pair(close_pair p, bool is_combined)
{
    const float inv = 448 / (448 * p.factors[0]), value = quant_decode(TGL_QUANT_E4M3, p.code);
    return quant_encode(TGL_QUANT_E4M3, is_combined ? value * (p.factors[1] * inv) : value * p.factors[1] * inv);
}

#endif
