/* SPDX-License-Identifier: MIT
 * normalize_weight.c - tgl_moe_normalize_weight: every row divided by its sum. */
#include "moe/normalize_weight_cpu.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "tegula/moe.h"

typedef normalize_weight_args problem;

/* ---- CPU ---- */

static void normalize_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        float sum = NORMALIZE_EPSILON;
        for (int64_t k = 0; k < p->num_topk; k++) sum += p->weights[t * p->row_stride + k];
        for (int64_t k = 0; k < p->num_topk; k++)
            p->normalized[t * p->num_topk + k] = tgl_one_nan(p->weights[t * p->row_stride + k] / sum);
        p->denominator[t] = tgl_one_nan(sum);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, 8 * p->num_topk + 4, TGL_CHOOSE(normalize_rows, tgl_normalize_rows), p);
}

tgl_signature tgl_moe_normalize_weight_signature =
    TGL_SIGNATURE("moe_normalize_weight(topk_weights: f32[num_tokens, num_topk] rows)"
                  " -> denominator: f32[num_tokens], normalized_weights: f32[num_tokens, num_topk]"
                  " where normalized_weights may be topk_weights",
                  NULL);

/* ---- launch ---- */

/* The model fixes num_topk, which decides the plan; the number of tokens, strides and addresses choose
 * within it. */
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
    const problem *p = context;
    return (((uintptr_t)p->weights | (uintptr_t)p->normalized | 4 * (uint64_t)p->row_stride) & 15) == 0;
}

static bool many_pays(const void *context, const tgl_target *target)
{
    return ((const problem *)context)->num_tokens >= NORMALIZE_MANY_TOKENS;
}

/* For a kernel whose lanes have `elements` elements of a row each. */
static tgl_shape rows_shape(const problem *p, int64_t elements)
{
    const int64_t rows = 32 / (p->num_topk / elements), warps = tgl_ceil_div(p->num_tokens, rows);
    const int64_t per_block = tgl_min(tgl_ceil_div(warps, NORMALIZE_BLOCKS), NORMALIZE_MAX_WARPS);
    return (tgl_shape){ { tgl_ceil_div(warps, per_block) }, .block = (int)(32 * per_block), TGL_ARGS(*p) };
}
static tgl_shape many_shape(void *p, const tgl_target *target) { return rows_shape(p, NORMALIZE_MANY_ELEMENTS); }
static tgl_shape any_shape(void *p, const tgl_target *target) { return rows_shape(p, 1); }

static tgl_shape wide_shape(void *context, const tgl_target *target)
{
    const problem *p = context;
    const int64_t blocks = tgl_ceil_div(p->num_tokens, NORMALIZE_WIDE_WARPS);
    return (tgl_shape){ { blocks }, .block = 32 * NORMALIZE_WIDE_WARPS, TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu,
                           plan,
                           { [MANY] = { has_vectors, many_pays, many_shape },
                             [VECTORS] = { has_vectors, NULL, any_shape },
                             [ANY] = { NULL, NULL, any_shape },
                             [WIDE] = { NULL, NULL, wide_shape } } };

tgl_status tgl_moe_normalize_weight(const DLTensor *topk_weights, DLTensor *denominator, DLTensor *normalized_weights,
                                    tgl_stream stream)
{
    const DLTensor *tensors[] = { topk_weights, denominator, normalized_weights };
    TGL_TRY(tgl_take(&tgl_moe_normalize_weight_signature, tensors, NULL, NULL));
    problem p = { tgl_data(topk_weights),
                  tgl_data(denominator),
                  tgl_data(normalized_weights),
                  topk_weights->shape[0],
                  tgl_is_empty(topk_weights) ? 0 : tgl_stride(topk_weights, 0),
                  topk_weights->shape[1] }; /* with 0 there still are denominators */
    return tgl_run(&tgl_moe_normalize_weight_signature, &OP, tensors, &p, stream);
}
