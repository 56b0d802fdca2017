/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the routing ops share: the table of cases on every device, calls on small
 * tensors written by hand, errors with their whole message. */
#ifndef TEGULA_MOE_SUPPORT_H
#define TEGULA_MOE_SUPPORT_H

#include "cases.h"
#include "tegula/moe.h"

/* ---- the table of cases ---- */

/* The blocks that every op has. */
#define TESTS_OF_TABLE(op_name)                                                                   \
    TEST(check_list) { FOR_BACKENDS(b) check_lines(op_name, case_find(op_name)->lists[CASE_CHECK], b); } \
    TEST(slow_list)                                                                               \
    {                                                                                             \
        if (!test_slow()) SKIP("TEGULA_TEST_SLOW is not set");                                    \
        FOR_BACKENDS(b)                                                                           \
            if (!b->is_emulated) check_lines(op_name, case_find(op_name)->lists[CASE_SLOW], b);   \
    }

/* ---- tensors made by hand ---- */

typedef struct { DLTensor t; int64_t shape[3], strides[3]; } tensor;
#define SHAPE(...) ((int64_t[]){ __VA_ARGS__ })
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

/* A packed tensor on a device with these contents, until discard(). */
static inline DLTensor *place(const backend *b, tensor *t, tgl_dtype dtype, int ndim, const int64_t *shape,
                              const void *contents)
{
    size_t bytes = (size_t)tgl_dtype_bits(tgl_dtype_to_dlpack(dtype)) / 8;
    for (int d = 0; d < ndim; d++) bytes *= (size_t)shape[d];
    void *data = NULL;
    CHECK_OK(backend_alloc(b, bytes, &data));
    CHECK_OK(backend_upload(b, data, contents, bytes));
    return make(t, data, b->device, dtype, ndim, shape);
}

static inline void discard(const backend *b, tensor *t) { backend_free(b, t->t.data); }

/* Checks a packed tensor's contents and discards it. */
static inline void check_contents(const backend *b, tensor *t, const void *want, const char *name)
{
    const size_t element = (size_t)tgl_dtype_bits(t->t.dtype) / 8;
    size_t count = 1;
    for (int d = 0; d < t->t.ndim; d++) count *= (size_t)t->shape[d];
    unsigned char seen[4096];
    REQUIRE(count * element <= sizeof seen);
    CHECK_OK(backend_download(b, seen, t->t.data, count * element));
    for (size_t i = 0; i < count; i++) {
        const unsigned char *w = (const unsigned char *)want + i * element, *s = seen + i * element;
        const tgl_dtype dtype = tgl_dtype_of(t->t.dtype);
        if (!CHECK_THAT(!memcmp(w, s, element), "%s: %s: element %zu is %.9g, want %.9g", b->name, name, i,
                        case_decode(dtype, s), case_decode(dtype, w)))
            break;
    }
    discard(b, t);
}

/* ---- errors ----
 * A test defines `call`, a struct with its tensors and scalars; valid(), which makes a good one of tensors in
 * `memory`; and invoke(). The arguments are wrong in the same way wherever they are said to be: no driver is
 * asked and no memory is touched. */

enum { MEMORY_BYTES = 4096 };
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

/* What every op checks of a tensor: `member` is it in `call`, `pointer` what is passed. */
#define F32 "f32", "code 2 with 32 bits", "4"
#define INDEX "i32 or i64", "code 0 with 64 bits", "8"      /* given as i64 */
#define TENSOR_ERRORS(...) TENSOR_ERRORS_OF(__VA_ARGS__)
#define TENSOR_ERRORS_OF(member, pointer, name, rank, bytes, dtypes, dtype_text, alignment)             \
    ERROR(c.pointer = NULL, name ": is NULL, want a tensor");                                           \
    ERROR(c.member.t.shape = NULL, name ": shape is NULL, want " rank " sizes");                        \
    ERROR(c.member.t.data = NULL, name ": data is NULL, want " bytes " bytes");                         \
    ERROR(c.member.t.ndim = 4, name ": rank is 4, want " rank);                                         \
    ERROR(c.member.t.ndim = -1, name ": rank is -1, want " rank);                                       \
    ERROR(c.member.t.dtype = tgl_dtype_to_dlpack(TGL_F16), name ": dtype is f16, want " dtypes);        \
    ERROR(c.member.t.dtype = tgl_dtype_to_dlpack(TGL_U32), name ": dtype is u32, want " dtypes);        \
    ERROR(c.member.t.dtype.lanes = 0, name ": dtype is " dtype_text " and 0 lanes, want " dtypes);      \
    ERROR(c.member.t.device.device_type = (DLDeviceType)7,                                              \
          name ": device is type 7, want cpu or cuda:0..63");                                           \
    ERROR(c.member.t.device = ((DLDevice){ (DLDeviceType)TGL_DL_CUDA, 64 }),                            \
          name ": device is cuda:64, want cpu or cuda:0..63");                                          \
    ERROR(c.member.t.byte_offset = 1, name ": data is 1 bytes past a multiple of " alignment ", want 0")

#endif
