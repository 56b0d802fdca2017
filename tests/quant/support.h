/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the casts share beside ops.h: floats as bits, data that is close to a tie,
 * errors of parameters. */
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

/* What every op checks of a tensor: `member` is it in `call`, `pointer` what is passed. An optional one may
 * be NULL. */
#define TENSOR_ERRORS(member, pointer, name, rank, bytes, dtypes) \
    ERROR(c.pointer = NULL, name ": is NULL, want a tensor");     \
    OPTIONAL_ERRORS(member, name, rank, bytes, dtypes)

#define OPTIONAL_ERRORS(member, name, rank, bytes, dtypes)                                       \
    ERROR(c.member.t.dtype = tgl_dtype_to_dlpack(TGL_F64), name ": dtype is f64, want " dtypes); \
    GIVEN_ERRORS(member, name, rank, bytes)

/* Rows may be strided, and must not be in another way; data may be anything but packed. */
#define ROWS_ERRORS(member, name, row)                                                             \
    ERROR(c.member.strides[1] = 2,                                                                 \
          name ": strides are [" row ", 2], want 1 in the last dimension and >= 0 in the others"); \
    ERROR(c.member.strides[0] = -256,                                                              \
          name ": strides are [-256, 1], want 1 in the last dimension and >= 0 in the others");    \
    ERROR(c.member.shape[0] = -1, name ": shape is [-1, " row "], want sizes >= 0");               \
    ERROR(c.member.strides[0] = (int64_t)1 << 60,                                                  \
          name ": strides are [1152921504606846976, 1], want offsets below 2^56 bytes");           \
    ERROR(c.member.strides[0] = INT64_MAX,                                                         \
          name ": strides are [9223372036854775807, 1], want offsets below 2^56 bytes")

/* Params that every op reads. */
#define PARAMS_ERRORS()                                                   \
    ERROR(c.pparams = NULL, "params: is NULL, want a struct");            \
    ERROR(c.params.reserved[0] = 1, "reserved[0]: is 1, want 0");         \
    ERROR(c.params.reserved[7] = (uint64_t)1 << 63, "reserved[7]: is 9223372036854775808, want 0")

#endif
