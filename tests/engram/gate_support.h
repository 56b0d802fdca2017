/* SPDX-License-Identifier: MIT
 * gate_support.h - what the tests of the gate's ops share. */
#ifndef TEGULA_TEST_ENGRAM_GATE_H
#define TEGULA_TEST_ENGRAM_GATE_H

#include <math.h>

#include "calls.h"
#include "replay.h"
#include "tegula/engram.h"

static inline uint16_t bf16(float x)
{
    uint16_t code;
    case_encode(TGL_BF16, (double)x, &code);
    return code;
}
static inline float value(uint16_t code) { return (float)case_decode(TGL_BF16, &code); }

/* Numbers as a tensor of bf16 or f32. */
enum { MAX = 8192 };
static inline DLTensor *put(const backend *b, tensor *t, tgl_dtype dtype, int ndim, const int64_t *shape,
                            const float *from)
{
    static uint16_t codes[MAX];
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    for (int64_t i = 0; i < n; i++) codes[i] = bf16(from[i]);
    return place(b, t, dtype, ndim, shape, dtype == TGL_BF16 ? (const void *)codes : from);
}

/* A hash of the outputs of a case, which must be right. */
static inline uint64_t hash_of_case(const char *op_name, const backend *b, const char *line)
{
    const case_op *op = case_find(op_name);
    case_params params;
    case_instance *k;
    case_report report;
    uint64_t hash = 0;
    CHECK_OK(case_at(op, (const char *const[]){ line, NULL }, 0, &params));
    if (!CHECK_OK(case_open(op, &params, b, &k))) return 0;
    CHECK_OK(case_poison(k, 0));
    CHECK_OK(case_call(k));
    CHECK_OK(case_verify(k, 0, &report, &hash));
    CHECK_THAT(report.result == CASE_PASSED, "%s: %s: %s", b->name, line, report.text);
    case_close(k);
    return hash;
}

/* The CPU and every kernel give the same bits, where tolerances of the table would hide a difference. */
static inline void check_same_bits(const char *op_name, const char *const *lines, int num_kernels)
{
    backend first;
    REQUIRE(CHECK_OK(backend_open("cpu", &first)));
    for (int i = 0; lines[i]; i++) {
        const uint64_t want = hash_of_case(op_name, &first, lines[i]);
        FOR_BACKENDS(b)
            for (int kernel = 0; kernel < num_kernels; kernel++) {
                char number[8];
                snprintf(number, sizeof number, "%d", kernel);
                setenv("TEGULA_TEST_KERNEL", number, 1);
                CHECK_THAT(hash_of_case(op_name, b, lines[i]) == want, "%s, kernel %d: %s", b->name, kernel, lines[i]);
                unsetenv("TEGULA_TEST_KERNEL");
            }
    }
    backend_close(&first);
}

#endif
