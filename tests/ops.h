/* SPDX-License-Identifier: MIT
 * ops.h - what the tests of ops share: the table of cases on every device, calls on tensors written by hand. */
#ifndef TEGULA_TEST_OPS_H
#define TEGULA_TEST_OPS_H

#include <stdlib.h>

#include "cases.h"

/* ---- the table of cases ---- */

/* The blocks that every op has. */
#define TESTS_OF_TABLE(op_name)                                                                 \
    TEST(check_list)                                                                            \
    {                                                                                           \
        FOR_BACKENDS(b) check_lines(op_name, case_find(op_name)->lists[CASE_CHECK], b);         \
    }                                                                                           \
    TEST(slow_list)                                                                             \
    {                                                                                           \
        if (!test_slow()) SKIP("TEGULA_TEST_SLOW is not set");                                  \
        FOR_BACKENDS(b)                                                                         \
            if (!b->is_emulated) check_lines(op_name, case_find(op_name)->lists[CASE_SLOW], b); \
    }

/* ---- tensors made by hand ---- */

typedef struct {
    DLTensor t;
    int64_t shape[3], strides[3];
} tensor;
#define SHAPE(...) ((int64_t[]){ __VA_ARGS__ })
static const DLDevice cpu = { (DLDeviceType)TGL_DL_CPU, 0 };

static inline DLTensor *make(tensor *t, void *data, DLDevice device, tgl_dtype dtype, int ndim, const int64_t *shape)
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

/* The bytes that a tensor reaches over, gaps included. */
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
static inline DLTensor *place_strided(const backend *b, tensor *t, tgl_dtype dtype, int ndim, const int64_t *shape,
                                      const int64_t *strides, const void *contents)
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
    for (size_t i = 0; i < bytes; i += element) {
        const unsigned char *is = seen + i, *wanted = (const unsigned char *)want + i;
        uint64_t words[2] = { 0, 0 }; /* of wider elements the first half */
        memcpy(&words[0], is, element < 8 ? element : 8);
        memcpy(&words[1], wanted, element < 8 ? element : 8);
        if (!CHECK_THAT(!memcmp(is, wanted, element), "%s: %s: slot %zu is 0x%" PRIx64 ", want 0x%" PRIx64, b->name,
                        name, i / element, words[0], words[1]))
            break;
    }
    free(seen);
}

/* For calls that are refused: nothing reads or writes it. */
enum { MEMORY_BYTES = 16384 };
__attribute__((unused)) static _Alignas(256) unsigned char memory[MEMORY_BYTES];

#endif
