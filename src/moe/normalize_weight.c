/* SPDX-License-Identifier: MIT
 * normalize_weight.c - tgl_moe_normalize_weight: every row divided by its sum. */
#include "moe/normalize_weight.h"

#include <string.h>

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "numerics/base.h"
#include "tegula/moe.h"

typedef normalize_weight_args problem;

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

static void run_rows(const void *context, int64_t begin, int64_t end)
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

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, 8 * p->num_topk + 4, run_rows, p);
}

tgl_signature tgl_moe_normalize_weight_signature = TGL_SIGNATURE(
    "moe_normalize_weight(topk_weights: f32[num_tokens, num_topk] rows)"
    " -> denominator: f32[num_tokens], normalized_weights: f32[num_tokens, num_topk]"
    " where normalized_weights may be topk_weights", NULL);

/* ---- launch ---- */

/* num_topk is fixed by the model, and chooses the plan; tokens, strides and addresses choose in it. */
enum { MANY, VECTORS, ANY, WIDE, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const int64_t num_topk = ((const problem *)context)->num_topk;
    const tgl_macro topk = { "NUM_TOPK", num_topk };
    for (int i = 0; i < NUM_KERNELS; i++) kernels[i].name = NULL;
    if (num_topk == 0 || num_topk > NORMALIZE_MAX_TOPK) {
        kernels[WIDE] = (tgl_kernel){ .name = "moe/normalize_weight_wide" };
        return NUM_KERNELS;
    }
    if (num_topk % 4 == 0 && num_topk <= NORMALIZE_VECTORS_TOPK) {
        const char *name = "moe/normalize_weight_vectors";
        kernels[MANY] = (tgl_kernel){ name, { topk, { "ELEMENTS", NORMALIZE_MANY_ELEMENTS } } };
        kernels[VECTORS] = (tgl_kernel){ name, { topk, { "ELEMENTS", 1 } } };
    }
    kernels[ANY] = (tgl_kernel){ "moe/normalize_weight", { topk } };
    return ANY + 1;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    return (((uintptr_t)p->weights | (uintptr_t)p->normalized | 4 * (uint64_t)p->row_stride) & 15) == 0;
}

static bool many_pays(const void *context, const tgl_target *target)
{
    (void)target;
    return ((const problem *)context)->num_tokens >= NORMALIZE_MANY_TOKENS;
}

/* Of a kernel whose lanes have `elements` of a row. */
static tgl_shape rows_shape(const problem *p, int64_t elements)
{
    const int64_t rows = 32 / (p->num_topk / elements), warps = tgl_ceil_div(p->num_tokens, rows);
    const int64_t per_block = tgl_min(tgl_ceil_div(warps, NORMALIZE_BLOCKS), NORMALIZE_MAX_WARPS);
    return (tgl_shape){ { tgl_ceil_div(warps, per_block) }, .block = (int)(32 * per_block), TGL_ARGS(*p) };
}
static tgl_shape many_shape(void *p, const tgl_target *target)
{
    (void)target;
    return rows_shape(p, NORMALIZE_MANY_ELEMENTS);
}
static tgl_shape any_shape(void *p, const tgl_target *target) { (void)target; return rows_shape(p, 1); }

static tgl_shape wide_shape(void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    const int64_t blocks = tgl_ceil_div(p->num_tokens, NORMALIZE_WIDE_WARPS);
    return (tgl_shape){ { blocks }, .block = 32 * NORMALIZE_WIDE_WARPS, TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan,
                           { [MANY] = { has_vectors, many_pays, many_shape },
                             [VECTORS] = { has_vectors, NULL, any_shape },
                             [ANY] = { NULL, NULL, any_shape },
                             [WIDE] = { NULL, NULL, wide_shape } } };

tgl_status tgl_moe_normalize_weight(const DLTensor *topk_weights, DLTensor *denominator,
                                    DLTensor *normalized_weights, tgl_stream stream)
{
    const DLTensor *tensors[] = { topk_weights, denominator, normalized_weights };
    TGL_TRY(tgl_take(&tgl_moe_normalize_weight_signature, tensors, NULL, NULL));
    problem p = { tgl_data(topk_weights), tgl_data(denominator), tgl_data(normalized_weights),
                  topk_weights->shape[0], tgl_is_empty(topk_weights) ? 0 : tgl_stride(topk_weights, 0),
                  topk_weights->shape[1] };                 /* 0: there are denominators all the same */
    return tgl_run(&tgl_moe_normalize_weight_signature, &OP, tensors, &p, stream);
}
