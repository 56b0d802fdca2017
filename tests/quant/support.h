/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the casts share: calls on arrays of C, floats as bits, products close to a
 * tie.
 *
 *     CALL(cast_back, b, PARAMS(0), IN(TGL_E4M3, codes, 1, 2), IN(TGL_F32, &sf, 1, 1), OUT(TGL_F32, want, 1, 2));
 *
 * makes the tensors on a device, in the order of the op's signature, calls the op, and compares each
 * output. */
#ifndef TEGULA_QUANT_SUPPORT_H
#define TEGULA_QUANT_SUPPORT_H

#include <math.h>
#include <stdlib.h>

#include "cases/quant/common/quant.h"
#include "errors.h"
#include "ops.h"
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

static tgl_stream call_stream;
#define QUANT_OP(name, ...)                                                      \
    extern tgl_signature tgl_quant_##name##_signature;                           \
    static inline tgl_status call_##name(DLTensor *const *t, const void *params) \
    {                                                                            \
        return tgl_quant_##name(__VA_ARGS__, call_stream);                       \
    }
QUANT_OP(cast_back, t[0], t[1], t[2], params)
QUANT_OP(per_block_cast, t[0], t[1], t[2], params)
QUANT_OP(per_block_cast_lossless, t[0], t[1], t[2], t[3], t[4], params)
QUANT_OP(per_block_cast_with_precomputed_sf, t[0], t[1], t[2], params)
QUANT_OP(per_channel_cast, t[0], t[1], t[2], t[3], t[4], params)
QUANT_OP(per_channel_cast_and_transpose, t[0], t[1], t[2], params)
QUANT_OP(per_token_cast, t[0], t[1], t[2], t[3], params)
QUANT_OP(per_token_cast_with_precomputed_sf, t[0], t[1], t[2], t[3], params)
QUANT_OP(swiglu_backward_and_per_token_cast, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], params)
QUANT_OP(swiglu_forward_and_per_channel_cast_and_transpose, t[0], t[1], t[2], params)
QUANT_OP(swiglu_forward_and_per_token_cast, t[0], t[1], t[2], t[3], t[4], t[5], t[6], params)
QUANT_OP(unpack_from_e2m1fn_x2, t[0], t[1])

/* An argument of a call. */
typedef struct {
    tgl_dtype dtype; /* 0: not given */
    int ndim;
    int64_t shape[3], strides[3]; /* all strides 0: packed */
    const void *contents;         /* before the call; NULL: bytes of 0xa5 */
    const float *floats;          /* or these; a tensor of bf16 gets their upper halves */
    const void *want;             /* after the call, gaps included; NULL: any */
    void *to;                     /* gets what is there after the call, unless it is compared */
} call_arg;
#define SIZES(...) .ndim = sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t), .shape = { __VA_ARGS__ }
#define IN(type, contents_, ...) { .dtype = (type), .contents = (contents_), SIZES(__VA_ARGS__) }
#define FLOATS(type, floats_, ...) { .dtype = (type), .floats = (floats_), SIZES(__VA_ARGS__) }
#define OUT(type, want_, ...) { .dtype = (type), .want = (want_), SIZES(__VA_ARGS__) }
#define GET(type, to_, ...) { .dtype = (type), .to = (to_), SIZES(__VA_ARGS__) }
#define ABSENT { 0 }

static inline void place_arg(const backend *b, const call_arg *a, tensor *t)
{
    const int64_t count = a->shape[0] * (a->ndim > 1 ? a->shape[1] : 1);
    make(t, NULL, b->device, a->dtype, a->ndim, a->shape);
    if (count == 0) return; /* what is empty has no data */
    const bool is_narrow = a->floats && a->dtype == TGL_BF16, is_packed = !a->strides[0] && !a->strides[1];
    uint16_t *narrow = calloc(is_narrow ? (size_t)count + 1 : 1, sizeof *narrow);
    if (!narrow) abort();
    for (int64_t i = 0; is_narrow && i < count; i++) narrow[i] = to_bf16(a->floats[i]);
    place_strided(b, t, a->dtype, a->ndim, a->shape, is_packed ? NULL : a->strides,
                  is_narrow   ? narrow
                  : a->floats ? (const void *)a->floats
                              : a->contents);
    free(narrow);
}

static inline void check_call(const backend *b, tgl_signature *s, errors_invoke call, const void *params,
                              const call_arg *args, int count)
{
    const tgl_table *table = tgl_signature_table(s);
    tensor tensors[TGL_MAX_TENSORS];
    DLTensor *t[TGL_MAX_TENSORS] = { NULL };
    REQUIRE(table && table->num_tensors == count);
    for (int i = 0; i < count; i++) {
        if (!args[i].dtype) continue;
        place_arg(b, &args[i], &tensors[i]);
        t[i] = &tensors[i].t;
    }
    call_stream = b->stream;
    CHECK_OK(call(t, params));
    call_stream = NULL;
    for (int i = 0; i < count; i++) {
        if (!t[i]) continue;
        if (args[i].want) check_contents(b, &tensors[i], args[i].want, table->tensors[i].name);
        else if (args[i].to) fetch(b, &tensors[i], args[i].to);
        else discard(b, &tensors[i]);
    }
}
#define CALL_ARGS(...) (const call_arg[]){ __VA_ARGS__ }, sizeof((const call_arg[]){ __VA_ARGS__ }) / sizeof(call_arg)
#define CALL(name, b, params, ...) \
    check_call(b, &tgl_quant_##name##_signature, call_##name, params, CALL_ARGS(__VA_ARGS__))

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

/* For check_errors() and its like. */
#define CALL_OF(name, sample) &tgl_quant_##name##_signature, sample, call_##name

/* The params of a call of errors.h. */
#define PARAMS_OF(call) ((tgl_quant_params *)(void *)(call)->params)

/* A call whose outputs are empty needs no driver, and empty tensors need no data. */
static inline void check_empty(tgl_signature *s, const char *sample, errors_invoke call)
{
    for (int on_cuda = 0; on_cuda < 2; on_cuda++) {
        errors_call *const c = errors_open(s, sample, call, on_cuda);
        REQUIRE(c);
        for (int i = 0; i < c->t->num_tensors; i++)
            if (c->tensors[i] && tgl_is_empty(c->tensors[i])) c->own[i].data = NULL;
        CHECK_OK(call(c->tensors, c->given));
    }
}

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
