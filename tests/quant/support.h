/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the casts share beside ops.h: floats as bits, data that is close to a tie. */
#ifndef TEGULA_QUANT_SUPPORT_H
#define TEGULA_QUANT_SUPPORT_H

#include <math.h>
#include <stdlib.h>

#include "cases/quant/common/quant.h"
#include "ops.h"
#include "tegula/quant.h"

#define PARAMS(...) (&(tgl_quant_params){ __VA_ARGS__ })

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

static inline uint16_t to_bf16(float value)         /* of numbers that bf16 has */
{
    return (uint16_t)(bits_of(value) >> 16);
}

#define F32S(...) ((const float[]){ __VA_ARGS__ })
#define BYTES(...) ((const uint8_t[]){ __VA_ARGS__ })
#define COUNT_OF(array) ((int64_t)(sizeof(array) / sizeof *(array)))

/* Floats that bf16 has, as a tensor of either dtype. */
static inline DLTensor *place_floats(const backend *b, tensor *t, tgl_dtype dtype, int64_t rows, int64_t cols,
                                     const float *values)
{
    uint16_t *narrow = malloc((size_t)(rows * cols + 1) * sizeof *narrow);
    if (!narrow) abort();
    for (int64_t i = 0; i < rows * cols; i++) narrow[i] = to_bf16(values[i]);
    place(b, t, dtype, 2, SHAPE(rows, cols), dtype == TGL_F32 ? (const void *)values : narrow);
    free(narrow);
    return &t->t;
}

/* A code of e4m3 and two factors: of the largest code, which stands first in its block, and of this one, such
 * that code * factor * inv lies at the middle of two codes and the order of the products often decides. */
typedef struct { uint8_t code; float factors[2]; } close_pair;
static inline close_pair make_close_pair(test_random *r)
{
    const unsigned at = (unsigned)test_below(r, 0x30) + 0x20;
    const double middle =
        ((double)quant_decode(TGL_QUANT_E4M3, at) + (double)quant_decode(TGL_QUANT_E4M3, at + 1)) / 2;
    close_pair p = { .code = (uint8_t)(test_below(r, 0x38) + 0x38) };
    p.factors[0] = float_of((uint32_t)test_below(r, 0x01000000) + 0x3f000000);
    const float inv = 448 / (448 * p.factors[0]);
    const float exact = (float)(middle / inv / (double)quant_decode(TGL_QUANT_E4M3, p.code));
    p.factors[1] = float_of(bits_of(exact) + (uint32_t)test_below(r, 5) - 2);
    return p;
}

/* What becomes of the second code, by the rule and with one factor for both products. */
static inline unsigned code_of_pair(close_pair p, bool is_combined)
{
    const float inv = 448 / (448 * p.factors[0]), value = quant_decode(TGL_QUANT_E4M3, p.code);
    return quant_encode(TGL_QUANT_E4M3,
                        is_combined ? value * (p.factors[1] * inv) : value * p.factors[1] * inv);
}

/* ---- errors ---- */

/* The params of a call of errors.h. */
#define PARAMS_OF(call) ((tgl_quant_params *)(void *)(call)->params)

#endif
