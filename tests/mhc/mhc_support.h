/* SPDX-License-Identifier: MIT
 * mhc_support.h - what the tests of the mHC ops share. */
#ifndef TEGULA_TEST_MHC_SUPPORT_H
#define TEGULA_TEST_MHC_SUPPORT_H

#include <math.h>

#include "errors.h"
#include "replay.h"
#include "tegula/mhc.h"

/* A call whose outputs are empty needs no driver, and empty tensors need no data. */
static inline void check_empty(tgl_signature *s, errors_invoke invoke, const char *sample)
{
    for (int on_cuda = 0; on_cuda < 2; on_cuda++) {
        errors_call *const c = errors_open(s, sample, invoke, on_cuda);
        REQUIRE(c);
        for (int i = 0; i < c->t->num_tensors; i++)
            if (c->tensors[i] && tgl_is_empty(c->tensors[i])) c->own[i].data = NULL;
        CHECK_OK(invoke(c->tensors, c->given));
    }
}

/* The i-th of a sequence of numbers with mean 0 and deviation 1. */
static inline double normal(uint64_t seed, int64_t i)
{
    double sum = -6;
    for (int k = 0; k < 12; k++) sum += (double)(case_random(seed + (uint64_t)k, i) >> 11) * 0x1p-53;
    return sum;
}

/* Within a bound, or both NaN. */
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

/* The blocks of an op and its gradient. */
#define TESTS_OF_TABLES(op_name)                                                                      \
    TEST(check_list)                                                                                  \
    {                                                                                                 \
        FOR_BACKENDS(b) check_lines(op_name "_fwd", case_find(op_name "_fwd")->lists[CASE_CHECK], b); \
    }                                                                                                 \
    TEST(check_list_bwd)                                                                              \
    {                                                                                                 \
        FOR_BACKENDS(b) check_lines(op_name "_bwd", case_find(op_name "_bwd")->lists[CASE_CHECK], b); \
    }                                                                                                 \
    TEST(slow_list)                                                                                   \
    {                                                                                                 \
        if (!test_slow()) SKIP("TEGULA_TEST_SLOW is not set");                                        \
        FOR_BACKENDS(b) {                                                                             \
            if (b->is_emulated) continue;                                                             \
            check_lines(op_name "_fwd", case_find(op_name "_fwd")->lists[CASE_SLOW], b);              \
            check_lines(op_name "_bwd", case_find(op_name "_bwd")->lists[CASE_SLOW], b);              \
        }                                                                                             \
    }

/* Numbers as a tensor of bf16, and back. */
static inline DLTensor *put(const backend *b, tensor *t, int ndim, const int64_t *shape, const float *from)
{
    uint16_t codes[4096];
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    if (n > 4096) abort();
    for (int64_t i = 0; i < n; i++) case_encode(TGL_BF16, (double)from[i], &codes[i]);
    return place(b, t, TGL_BF16, ndim, shape, codes);
}
static inline void check_bf16(const backend *b, tensor *t, const char *name, const float *want, int64_t count)
{
    uint16_t codes[4096];
    if (count > 4096) abort();
    fetch(b, t, codes);
    for (int64_t i = 0; i < count; i++) {
        const float seen = (float)case_decode(TGL_BF16, &codes[i]);
        CHECK_THAT(seen == want[i] || (isnan(seen) && isnan(want[i])), "%s: %s[%lld] is %.9g, want %.9g", b->name, name,
                   (long long)i, (double)seen, (double)want[i]);
    }
}
static inline void check_f32(const backend *b, tensor *t, const char *name, const float *want, int64_t count)
{
    float seen[4096];
    if (count > 4096) abort();
    fetch(b, t, seen);
    check_near(name, seen, want, count, 2e-6, 1e-6);
}

static inline void sinkhorn(const backend *b, int64_t tokens, int64_t n, const float *x, int repeat, float eps,
                            const float *want, double bound)
{
    const tgl_mhc_params params = { .has_sinkhorn_eps = true, .sinkhorn_eps = eps, .sinkhorn_repeat = repeat };
    tensor in, out;
    float *seen = malloc((size_t)(tokens * n * n) * sizeof *seen);
    place(b, &in, TGL_F32, 3, SHAPE(tokens, n, n), x);
    place(b, &out, TGL_F32, 3, SHAPE(tokens, n, n), NULL);
    CHECK_OK(tgl_mhc_sinkhorn_fwd(&in.t, &out.t, &params, b->stream));
    fetch(b, &out, seen);
    discard(b, &in);
    char where[96];
    snprintf(where, sizeof where, "%s: n %d, %d repeats, eps %g", b->name, (int)n, repeat, (double)eps);
    check_near(where, seen, want, tokens * n * n, bound, 0);
    free(seen);
}

#endif
