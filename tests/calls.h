/* SPDX-License-Identifier: MIT
 * calls.h - an op called on arrays of C.
 *
 *     OP(quant_cast_back, t[0], t[1], t[2], params)    // how it takes the tensors of its signature; the stream follows
 *     CALL(quant_cast_back, b, &params, IN(TGL_E4M3, codes, 1, 2), IN(TGL_F32, &sf, 1, 1), OUT(TGL_F32, want, 1, 2));
 *     check_errors(CALL_OF(quant_cast_back, "num_rows=3 num_cols=32"));
 *
 * CALL makes the tensors on a device, in the order of the op's signature, calls the op and compares. */
#ifndef TEGULA_TEST_CALLS_H
#define TEGULA_TEST_CALLS_H

#include <math.h>

#include "errors.h"
#include "ops.h"

/* ---- ops ---- */

static const backend *call_on; /* NULL: a call of errors.h, on no device */

#define OP(name, ...)                                                            \
    extern tgl_signature tgl_##name##_signature;                                 \
    static inline tgl_status call_##name(DLTensor *const *t, const void *params) \
    {                                                                            \
        return tgl_##name(__VA_ARGS__, call_on ? call_on->stream : NULL);        \
    }
#define CALL_OF(name, sample) &tgl_##name##_signature, sample, call_##name

static inline void *call_workspace(const backend *b, size_t bytes)
{
    void *workspace = NULL;
    if (!backend_is_cpu(b)) CHECK_OK(tgl_workspace_get(b->device.device_id, bytes, b->stream, &workspace));
    return workspace;
}

/* As OP, but the workspace follows the arguments; `of` are those of its size, such as (t[0], t[1]). The size is asked only
 * of calls that are made: those of errors.h may have tensors without a shape. */
#define OP_WITH_WORKSPACE(name, of, ...)                                                                             \
    extern tgl_signature tgl_##name##_signature;                                                                     \
    static inline size_t size_of_##name(DLTensor *const *t) { return tgl_##name##_workspace_size of; }               \
    static inline tgl_status call_with_##name(DLTensor *const *t, const void *params, void *workspace, size_t bytes) \
    {                                                                                                                \
        return tgl_##name(__VA_ARGS__, workspace, bytes, call_on ? call_on->stream : NULL);                          \
    }                                                                                                                \
    static inline tgl_status call_##name(DLTensor *const *t, const void *params)                                     \
    {                                                                                                                \
        if (!call_on) return call_with_##name(t, params, memory + MEMORY_BYTES / 2, MEMORY_BYTES / 2);               \
        const size_t bytes = size_of_##name(t);                                                                      \
        return call_with_##name(t, params, call_workspace(call_on, bytes), bytes);                                   \
    }
#define WORKSPACE_OF(name) &(workspace_op){ &tgl_##name##_signature, call_##name, call_with_##name, size_of_##name }

/* ---- arguments ---- */

typedef struct {
    tgl_dtype dtype; /* 0: not given */
    int ndim;
    int64_t shape[3], strides[3]; /* all strides 0: packed */
    const void *contents;         /* before the call; NULL: bytes of 0xa5 */
    const float *floats;          /* or these, rounded to the dtype */
    const void *want;             /* after the call, gaps included; NULL: any */
    const float *near;            /* or these, within atol + rtol * |near| */
    double atol, rtol;
    void *to;    /* gets what is there after the call */
    int same_as; /* i + 1: the tensor of argument i */
} call_arg;
#define SIZES(...) .ndim = sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t), .shape = { __VA_ARGS__ }
#define IN(type, contents_, ...) { .dtype = (type), .contents = (contents_), SIZES(__VA_ARGS__) }
#define FLOATS(type, floats_, ...) { .dtype = (type), .floats = (floats_), SIZES(__VA_ARGS__) }
#define OUT(type, want_, ...) { .dtype = (type), .want = (want_), SIZES(__VA_ARGS__) }
#define NEAR(type, want_, atol_, rtol_, ...) \
    { .dtype = (type), .near = (want_), .atol = (atol_), .rtol = (rtol_), SIZES(__VA_ARGS__) }
#define GET(type, to_, ...) { .dtype = (type), .to = (to_), SIZES(__VA_ARGS__) }
#define CHANGED(type, from, to_, ...) { .dtype = (type), .floats = (from), .near = (to_), SIZES(__VA_ARGS__) }
#define SAME_AS(i) { .same_as = (i) + 1 }
#define ABSENT { 0 }

static inline int64_t call_count(const call_arg *a)
{
    int64_t n = 1;
    for (int d = 0; d < a->ndim; d++) n *= a->shape[d];
    return n;
}

/* Rounded to the dtype; a float of bf16 keeps its bits, those of a NaN too. */
static inline void call_encode(tgl_dtype dtype, float value, void *to)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == TGL_BF16 && !(bits & 0xffff)) memcpy(to, &(uint16_t){ (uint16_t)(bits >> 16) }, 2);
    else case_encode(dtype, (double)value, to);
}

static inline void place_arg(const backend *b, const call_arg *a, tensor *t)
{
    const int64_t count = call_count(a), bytes = tgl_dtype_bits(tgl_dtype_to_dlpack(a->dtype)) / 8;
    const bool is_encoded = a->floats && a->dtype != TGL_F32;
    make(t, NULL, b->device, a->dtype, a->ndim, a->shape);
    if (count == 0) return; /* what is empty has no data */
    char *encoded = is_encoded ? case_memory(count, (size_t)bytes) : NULL;
    for (int64_t i = 0; is_encoded && i < count; i++) call_encode(a->dtype, a->floats[i], encoded + i * bytes);
    place_strided(b, t, a->dtype, a->ndim, a->shape, a->strides[0] || a->strides[1] ? a->strides : NULL,
                  is_encoded  ? encoded
                  : a->floats ? (const void *)a->floats
                              : a->contents);
    free(encoded);
}

/* Within bounds, or both NaN. */
static inline void check_near(const char *where, const float *seen, const float *want, int64_t count, double atol,
                              double rtol)
{
    for (int64_t i = 0; i < count; i++) {
        const double gap = fabs((double)seen[i] - (double)want[i]), bound = atol + rtol * fabs((double)want[i]);
        const bool is_same = seen[i] == want[i] || (isnan(seen[i]) && isnan(want[i]));
        if (!CHECK_THAT(is_same || gap <= bound, "%s: element %lld is %.9g, want %.9g", where, (long long)i,
                        (double)seen[i], (double)want[i]))
            return;
    }
}

/* Compares, copies or ignores an argument after the call, and discards it. */
static inline void end_arg(const backend *b, const call_arg *a, tensor *t, const char *name)
{
    if (a->want) check_contents(b, t, a->want, name);
    else if (a->to) fetch(b, t, a->to);
    else if (a->near) {
        const int64_t count = call_count(a), bytes = tgl_dtype_bits(t->t.dtype) / 8;
        char *seen = case_memory(count, (size_t)bytes), where[128];
        float *values = case_memory(count, sizeof *values);
        fetch(b, t, seen);
        for (int64_t i = 0; i < count; i++) values[i] = (float)case_decode(a->dtype, seen + i * bytes);
        snprintf(where, sizeof where, "%s: %s", b->name, name);
        check_near(where, values, a->near, count, a->atol, a->rtol);
        free(seen), free(values);
    } else discard(b, t);
}

static inline void check_call(const backend *b, tgl_signature *s, errors_invoke call, const void *params,
                              const call_arg *args, int count)
{
    const tgl_table *table = tgl_signature_table(s);
    tensor tensors[TGL_MAX_TENSORS];
    DLTensor *t[TGL_MAX_TENSORS] = { NULL };
    REQUIRE(table && table->num_tensors == count);
    for (int i = 0; i < count; i++) {
        if (args[i].dtype) place_arg(b, &args[i], &tensors[i]);
        if (args[i].dtype || args[i].same_as) t[i] = &tensors[args[i].same_as ? args[i].same_as - 1 : i].t;
    }
    call_on = b;
    CHECK_OK(call(t, params));
    call_on = NULL;
    for (int i = 0; i < count; i++)
        if (args[i].dtype) end_arg(b, &args[i], &tensors[i], table->tensors[i].name);
}
#define CALL_ARGS(...) (const call_arg[]){ __VA_ARGS__ }, sizeof((const call_arg[]){ __VA_ARGS__ }) / sizeof(call_arg)
#define CALL(name, b, params, ...) check_call(b, &tgl_##name##_signature, call_##name, params, CALL_ARGS(__VA_ARGS__))

/* ---- workspaces ---- */

/* An op that takes a workspace, by the tensors of its signature. */
typedef struct {
    tgl_signature *signature;
    errors_invoke invoke;
    tgl_status (*call)(DLTensor *const *t, const void *params, void *workspace, size_t bytes);
    size_t (*size)(DLTensor *const *t);
} workspace_op;

/* Reported before anything is touched: the tensors have addresses that belong to nobody. The CPU needs no
 * workspace. */
static inline void check_workspace_errors(const workspace_op *op, const char *sample)
{
    errors_call *c = errors_open(op->signature, sample, op->invoke, 1);
    REQUIRE(c);
    for (int i = 0; i < c->t->num_tensors; i++) c->own[i].data = (void *)((uintptr_t)(i + 1) << 40);
    char text[128];
    const size_t want = op->size(c->tensors);
    REQUIRE(want > 0);
    snprintf(text, sizeof text, "workspace: is NULL, want %zu bytes of device memory", want);
    CHECK_FAILS(op->call(c->tensors, c->given, NULL, want), TGL_ERR_WORKSPACE, text);
    snprintf(text, sizeof text, "workspace_bytes: is %zu, want >= %zu", want - 1, want);
    CHECK_FAILS(op->call(c->tensors, c->given, memory, want - 1), TGL_ERR_WORKSPACE, text);
    snprintf(text, sizeof text, "workspace: address is %p, want a multiple of 256", (void *)(memory + 128));
    CHECK_FAILS(op->call(c->tensors, c->given, memory + 128, want), TGL_ERR_WORKSPACE, text);
    c = errors_open(op->signature, sample, op->invoke, 0);
    REQUIRE(c);
    CHECK_INT(op->size(c->tensors), 0);
}

/* The size never shrinks as tokens are added, so that the largest batch decides. `sizes` are the others. */
static inline void check_workspace_grows(const workspace_op *op, const char *sizes)
{
    size_t before = 0;
    for (int64_t tokens = 0; tokens < 1000000; tokens += 1 + tokens / 8) {
        char sample[256];
        snprintf(sample, sizeof sample, "num_tokens=%" PRId64 " %s", tokens, sizes);
        errors_call *const c = errors_open(op->signature, sample, op->invoke, 1);
        REQUIRE(c);
        const size_t bytes = op->size(c->tensors);
        CHECK_THAT(bytes >= before, "%s: %zu bytes, fewer tokens need %zu", sample, bytes, before);
        before = bytes;
    }
}

#endif
