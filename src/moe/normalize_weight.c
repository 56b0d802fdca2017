/* SPDX-License-Identifier: MIT
 * normalize_weight.c - tgl_moe_normalize_weight: every row divided by its sum. */
#include "moe/normalize_weight.h"

#include <string.h>

#include "core/log.h"
#include "core/math.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "numerics/base.h"
#include "tegula/moe.h"

typedef struct {
    const float *weights;
    float *denominator, *normalized;
    int64_t num_tokens, num_topk, row_stride;
} problem;

/* ---- CPU ---- */

/* The additions of a row wait for one another, in an order that is given: SIDE rows are added side by side,
 * in squares that are turned over, so that a vector holds a column of them. */
enum { SIDE = 4, LINE = 64 / sizeof(float) };
typedef float floats __attribute__((vector_size(SIDE * sizeof(float))));
typedef int32_t lanes __attribute__((vector_size(SIDE * sizeof(int32_t))));
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (lanes){ __VA_ARGS__ })
#endif

static floats load(const float *from)
{
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

static void store(float *to, floats x)         /* NaN as tgl_one_nan() */
{
    const lanes is_nan = x != x, nan = { INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX };
    const lanes bits = ((lanes)x & ~is_nan) | (nan & is_nan);
    memcpy(to, &bits, sizeof bits);
}

static floats add_square(floats sums, const float *from, int64_t stride)
{
    const floats a = load(from), b = load(from + stride);
    const floats c = load(from + 2 * stride), d = load(from + 3 * stride);
    const floats ab01 = SHUFFLE(a, b, 0, 4, 1, 5), ab23 = SHUFFLE(a, b, 2, 6, 3, 7);
    const floats cd01 = SHUFFLE(c, d, 0, 4, 1, 5), cd23 = SHUFFLE(c, d, 2, 6, 3, 7);
    sums += SHUFFLE(ab01, cd01, 0, 1, 4, 5);
    sums += SHUFFLE(ab01, cd01, 2, 3, 6, 7);
    sums += SHUFFLE(ab23, cd23, 0, 1, 4, 5);
    return sums + SHUFFLE(ab23, cd23, 2, 3, 6, 7);
}

static void divide(float *to, const float *from, float sum)
{
    store(to, load(from) / sum);
}

/* Divisions leave time to prefetch a row that comes later. */
static void divide_row(const problem *p, int64_t t, int64_t later)
{
    const float *from = p->weights + t * p->row_stride, *next = p->weights + later * p->row_stride;
    const float sum = p->denominator[t];
    float *to = p->normalized + t * p->num_topk;
    int64_t k = 0;
    for (; k + LINE <= p->num_topk; k += LINE) {
        __builtin_prefetch(next + k);
        for (int i = 0; i < LINE; i += SIDE) divide(to + k + i, from + k + i, sum);
    }
    for (; k + SIDE <= p->num_topk; k += SIDE) divide(to + k, from + k, sum);
    for (; k < p->num_topk; k++) to[k] = tgl_one_nan(from[k] / sum);
}

static void add_rows(const problem *p, int64_t t)
{
    const float *from = p->weights + t * p->row_stride;
    floats sums = { NORMALIZE_EPSILON, NORMALIZE_EPSILON, NORMALIZE_EPSILON, NORMALIZE_EPSILON };
    int64_t k = 0;
    for (; k + SIDE <= p->num_topk; k += SIDE) sums = add_square(sums, from + k, p->row_stride);
    for (; k < p->num_topk; k++)
        for (int i = 0; i < SIDE; i++) sums[i] += from[i * p->row_stride + k];
    store(p->denominator + t, sums);
}

static void add_row(const problem *p, int64_t t)
{
    float sum = NORMALIZE_EPSILON;
    for (int64_t k = 0; k < p->num_topk; k++) sum += p->weights[t * p->row_stride + k];
    p->denominator[t] = tgl_one_nan(sum);
}

static void cpu(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    int64_t t = begin;
    for (; t < end && p->num_topk == 0; t++) p->denominator[t] = NORMALIZE_EPSILON;     /* no rows */
    for (; t + SIDE <= end; t += SIDE) {
        add_rows(p, t);
        for (int64_t i = t; i < t + SIDE; i++) divide_row(p, i, i + SIDE < end ? i + SIDE : i);
    }
    for (; t < end; t++) {
        add_row(p, t);
        divide_row(p, t, t);
    }
}

/* ---- checks ---- */

static tgl_status check(const DLTensor *weights, const DLTensor *denominator, const DLTensor *normalized)
{
    TGL_TRY(tgl_expect("topk_weights", weights, TGL_F32, 2, TGL_ROWS));
    TGL_TRY(tgl_expect("denominator", denominator, TGL_F32, 1, TGL_PACKED));
    TGL_TRY(tgl_expect("normalized_weights", normalized, TGL_F32, 2, TGL_PACKED));
    TGL_TRY(tgl_expect_same_device("denominator", denominator, weights));
    TGL_TRY(tgl_expect_same_device("normalized_weights", normalized, weights));
    const int64_t num_tokens = weights->shape[0], num_topk = weights->shape[1];
    const tgl_dim want[2] = { { num_tokens, num_tokens }, { num_topk, num_topk } };
    TGL_TRY(tgl_expect_shape("denominator", denominator, want));
    TGL_TRY(tgl_expect_shape("normalized_weights", normalized, want));
    TGL_TRY(tgl_expect_no_overlap("denominator", denominator, "topk_weights", weights));
    TGL_TRY(tgl_expect_no_overlap("denominator", denominator, "normalized_weights", normalized));
    return tgl_expect_same_or_no_overlap("normalized_weights", normalized, "topk_weights", weights);
}

/* ---- launch ---- */

static bool is_wide(int64_t num_topk) { return num_topk == 0 || num_topk > NORMALIZE_MAX_TOPK; }

/* num_topk is fixed by the model, and chooses the plan; tokens, strides and addresses choose in it. */
enum { ANY, VECTORS, VECTORS_MANY, NUM_KERNELS, MANY_ELEMENTS = 4 };
static tgl_status launch(int which, int64_t num_topk, const DLTensor *on, const tgl_shape *shape,
                         tgl_stream stream, void **args)
{
    const tgl_macro topk = { "NUM_TOPK", num_topk };
    const tgl_kernel wide = { .name = "moe/normalize_weight_wide" };
    const tgl_kernel narrow[NUM_KERNELS] = {
        [ANY] = { "moe/normalize_weight", { topk } },
        [VECTORS] = { "moe/normalize_weight_vectors", { topk, { "ELEMENTS", 1 } } },
        [VECTORS_MANY] = { "moe/normalize_weight_vectors", { topk, { "ELEMENTS", MANY_ELEMENTS } } },
    };
    if (is_wide(num_topk)) return tgl_launch(&wide, 1, 0, on, shape, stream, args);
    const bool may_be_vectors = num_topk % 4 == 0 && num_topk <= NORMALIZE_VECTORS_TOPK;
    return tgl_launch(narrow, may_be_vectors ? NUM_KERNELS : ANY + 1, which, on, shape, stream, args);
}

static tgl_status run_wide(problem *p, const DLTensor *on, tgl_stream stream)
{
    const int64_t blocks = tgl_ceil_div(p->num_tokens, NORMALIZE_WIDE_WARPS);
    const tgl_shape shape = { { blocks }, .block = 32 * NORMALIZE_WIDE_WARPS };
    void *args[] = { &p->weights, &p->denominator, &p->normalized, &p->num_tokens, &p->num_topk,
                     &p->row_stride };
    return launch(ANY, p->num_topk, on, &shape, stream, args);
}

static tgl_status run_on_cuda(problem *p, const DLTensor *on, tgl_stream stream)
{
    if (is_wide(p->num_topk)) return run_wide(p, on, stream);
    const uint64_t bits = (uintptr_t)p->weights | (uintptr_t)p->normalized |
                          4 * (uint64_t)(p->row_stride | p->num_topk);
    const bool has_vectors = p->num_topk <= NORMALIZE_VECTORS_TOPK && bits % 16 == 0;
    const int which = !has_vectors ? ANY : p->num_tokens < NORMALIZE_MANY_TOKENS ? VECTORS : VECTORS_MANY;
    const int64_t elements = which == VECTORS_MANY ? MANY_ELEMENTS : 1;
    const int64_t rows = 32 / (p->num_topk / elements), warps = tgl_ceil_div(p->num_tokens, rows);
    const int64_t per_sm = tgl_ceil_div(warps, NORMALIZE_BLOCKS);
    const int64_t per_block = per_sm < NORMALIZE_MAX_WARPS ? per_sm : NORMALIZE_MAX_WARPS;
    const tgl_shape shape = { { tgl_ceil_div(warps, per_block) }, .block = (int)(32 * per_block) };
    void *args[] = { &p->weights, &p->denominator, &p->normalized, &p->num_tokens, &p->row_stride };
    return launch(which, p->num_topk, on, &shape, stream, args);
}

tgl_status tgl_moe_normalize_weight(const DLTensor *topk_weights, DLTensor *denominator,
                                    DLTensor *normalized_weights, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_normalize_weight", "topk_weights", topk_weights, "denominator", denominator,
                     "normalized_weights", normalized_weights, NULL);
    TGL_TRY(check(topk_weights, denominator, normalized_weights));
    problem p = { tgl_data(topk_weights), tgl_data(denominator), tgl_data(normalized_weights),
                  topk_weights->shape[0], topk_weights->shape[1],
                  tgl_is_empty(topk_weights) ? 0 : tgl_stride(topk_weights, 0) };
    if (tgl_preparing() && !tgl_on_cpu(topk_weights))
        return launch(ANY, p.num_topk, topk_weights, NULL, stream, NULL);
    if (p.num_tokens == 0) return TGL_OK;               /* with num_topk == 0 there are still denominators */
    if (tgl_on_cpu(topk_weights)) return tgl_parallel_rows(p.num_tokens, 8 * p.num_topk + 4, cpu, &p);
    return run_on_cuda(&p, topk_weights, stream);
}
