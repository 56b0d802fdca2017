/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the casts share: the table of cases on every device, calls on tensors written
 * by hand, errors with their whole message. */
#ifndef TEGULA_QUANT_SUPPORT_H
#define TEGULA_QUANT_SUPPORT_H

#include <math.h>
#include <stdlib.h>

#include "bench/quant_common.h"
#include "cases.h"
#include "tegula/quant.h"

/* ---- the table of cases ---- */

/* The blocks that every op has. */
#define TESTS_OF_TABLE(op_name)                                                                          \
    TEST(check_list) { FOR_BACKENDS(b) check_lines(op_name, case_find(op_name)->lists[CASE_CHECK], b); } \
    TEST(slow_list)                                                                                      \
    {                                                                                                    \
        if (!test_slow()) SKIP("TEGULA_TEST_SLOW is not set");                                           \
        FOR_BACKENDS(b)                                                                                  \
            if (!b->is_emulated) check_lines(op_name, case_find(op_name)->lists[CASE_SLOW], b);          \
    }

/* ---- tensors made by hand ---- */

typedef struct { DLTensor t; int64_t shape[3], strides[3]; } tensor;
#define SHAPE(...) ((int64_t[]){ __VA_ARGS__ })
#define PARAMS(...) (&(tgl_quant_params){ __VA_ARGS__ })
static const DLDevice cpu = { (DLDeviceType)TGL_DL_CPU, 0 };

static inline DLTensor *make(tensor *t, void *data, DLDevice device, tgl_dtype dtype, int ndim,
                             const int64_t *shape)
{
    *t = (tensor){ .t = { data, device, ndim, tgl_dtype_to_dlpack(dtype), t->shape, t->strides, 0 } };
    int64_t stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        t->shape[d] = shape[d];
        t->strides[d] = stride;
        stride *= shape[d];
    }
    return &t->t;
}

/* Slots that a tensor reaches over, gaps included. */
static inline size_t bytes_of(const tensor *t)
{
    size_t slots = 1;
    for (int d = 0; d < t->t.ndim; d++) {
        if (t->shape[d] == 0) return 0;
        slots += (size_t)((t->shape[d] - 1) * t->strides[d]);
    }
    return slots * (size_t)tgl_dtype_bits(t->t.dtype) / 8;
}

/* A tensor on a device with these contents, gaps included, until discard(). Strides NULL: packed. Contents
 * NULL: bytes of 0xa5. */
static inline DLTensor *place_strided(const backend *b, tensor *t, tgl_dtype dtype, int ndim,
                                      const int64_t *shape, const int64_t *strides, const void *contents)
{
    make(t, NULL, b->device, dtype, ndim, shape);
    if (strides) memcpy(t->strides, strides, (size_t)ndim * sizeof *strides);
    const size_t bytes = bytes_of(t);
    void *poison = contents ? NULL : malloc(bytes + 1);
    if (poison) memset(poison, 0xa5, bytes);
    CHECK_OK(backend_alloc(b, bytes, &t->t.data));
    CHECK_OK(backend_upload(b, t->t.data, contents ? contents : poison, bytes));
    free(poison);
    return &t->t;
}

static inline DLTensor *place(const backend *b, tensor *t, tgl_dtype dtype, int ndim, const int64_t *shape,
                              const void *contents)
{
    return place_strided(b, t, dtype, ndim, shape, NULL, contents);
}

static inline void discard(const backend *b, tensor *t) { backend_free(b, t->t.data); }

/* The bytes of a tensor, gaps included, after the stream's work; then discards it. */
static inline void fetch(const backend *b, tensor *t, void *to)
{
    CHECK_OK(backend_wait(b, b->stream));
    CHECK_OK(backend_download(b, to, t->t.data, bytes_of(t)));
    discard(b, t);
}

/* Checks all bytes of a tensor and discards it. */
static inline void check_contents(const backend *b, tensor *t, const void *want, const char *name)
{
    const size_t element = (size_t)tgl_dtype_bits(t->t.dtype) / 8, bytes = bytes_of(t);
    unsigned char *seen = malloc(bytes + 1);
    if (!seen) abort();
    fetch(b, t, seen);
    for (size_t i = 0; i < bytes / element; i++) {
        uint64_t s = 0, w = 0;
        memcpy(&s, seen + i * element, element);
        memcpy(&w, (const unsigned char *)want + i * element, element);
        if (!CHECK_THAT(s == w, "%s: %s: slot %zu is 0x%" PRIx64 ", want 0x%" PRIx64, b->name, name, i, s, w))
            break;
    }
    free(seen);
}

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

/* ---- errors ----
 * A test defines `call`, a struct with its tensors and parameters; valid(), which makes a good one of tensors
 * in `memory`; and invoke(). The arguments are wrong in the same way wherever they are said to be: no driver
 * is asked and no memory is touched. */

enum { MEMORY_BYTES = 16384 };
static _Alignas(256) unsigned char memory[MEMORY_BYTES];

static inline void fill_memory(void)
{
    for (int i = 0; i < MEMORY_BYTES; i++) memory[i] = (unsigned char)(i * 7);
}

static inline void check_refused(const char *change, tgl_status status, const char *message)
{
    CHECK_THAT(status == TGL_ERR_ARGUMENT, "%s: status is %s", change, tgl_status_name(status));
    if (status != TGL_OK)
        CHECK_THAT(!strcmp(tgl_last_error(), message), "%s: says \"%s\", want \"%s\"", change,
                   tgl_last_error(), message);
    for (int i = 0; i < MEMORY_BYTES; i++) REQUIRE(memory[i] == (unsigned char)(i * 7));
}

#define ERROR(change, message)                                                         \
    for (int on_cuda = 0; on_cuda < 2; on_cuda++) {                                    \
        const DLDevice on = { (DLDeviceType)(on_cuda ? TGL_DL_CUDA : TGL_DL_CPU), 0 }; \
        call c;                                                                        \
        valid(&c, on);                                                                 \
        change;                                                                        \
        fill_memory();                                                                 \
        check_refused(#change, invoke(&c), message);                                   \
    }

/* What every op checks of a tensor: `member` is it in `call`, `pointer` what is passed. An optional one may
 * be NULL. */
#define TENSOR_ERRORS(member, pointer, name, rank, bytes, dtypes)                                \
    ERROR(c.pointer = NULL, name ": is NULL, want a tensor");                                    \
    OPTIONAL_ERRORS(member, name, rank, bytes, dtypes)

#define OPTIONAL_ERRORS(member, name, rank, bytes, dtypes)                                       \
    ERROR(c.member.t.dtype = tgl_dtype_to_dlpack(TGL_F64), name ": dtype is f64, want " dtypes); \
    ERROR(c.member.t.shape = NULL, name ": shape is NULL, want " rank " sizes");                 \
    ERROR(c.member.t.data = NULL, name ": data is NULL, want " bytes " bytes");                  \
    ERROR(c.member.t.ndim = 4, name ": rank is 4, want " rank);                                  \
    ERROR(c.member.t.ndim = 0, name ": rank is 0, want " rank);                                  \
    ERROR(c.member.t.device.device_type = (DLDeviceType)7,                                       \
          name ": device is type 7, want cpu or cuda:0..63")

#define OTHER_DEVICE(member, name)                                       \
    ERROR(c.member.t.device = ((DLDevice){ (DLDeviceType)TGL_DL_CUDA, 1 }), \
          on_cuda ? name ": device is cuda:1, want cuda:0" : name ": device is cuda:1, want cpu")

/* Rows may be strided, and must not be in another way; data may be anything but packed. */
#define ROWS_ERRORS(member, name, row)                                                             \
    ERROR(c.member.strides[1] = 2,                                                                 \
          name ": strides are [" row ", 2], want 1 in the last dimension and >= 0 in the others"); \
    ERROR(c.member.strides[0] = -256,                                                              \
          name ": strides are [-256, 1], want 1 in the last dimension and >= 0 in the others");    \
    ERROR(c.member.shape[0] = -1, name ": shape is [-1, " row "], want sizes >= 0");               \
    ERROR(c.member.strides[0] = INT64_MAX,                                                         \
          name ": strides are [9223372036854775807, 1], want offsets that fit in 63 bits")

/* Params that every op reads. */
#define PARAMS_ERRORS()                                                   \
    ERROR(c.pparams = NULL, "params: is NULL, want a struct");            \
    ERROR(c.params.reserved[0] = 1, "reserved[0]: is 1, want 0");         \
    ERROR(c.params.reserved[7] = (uint64_t)1 << 63, "reserved[7]: is 9223372036854775808, want 0")

/* Without a device a good call is refused for want of one. */
#define TEST_NO_DRIVER()                                      \
    TEST(no_driver)                                           \
    {                                                         \
        backend b;                                            \
        if (backend_open("cuda", &b) == TGL_OK) {             \
            backend_close(&b);                                \
            SKIP("there is a CUDA device");                   \
        }                                                     \
        call c;                                               \
        valid(&c, (DLDevice){ (DLDeviceType)TGL_DL_CUDA, 0 }); \
        CHECK_FAILS(invoke(&c), TGL_ERR_DEVICE, NULL);        \
    }

#endif
