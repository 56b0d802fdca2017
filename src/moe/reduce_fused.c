/* SPDX-License-Identifier: MIT
 * reduce_fused.c - tgl_moe_reduce_fused: the weighted sum of every token's rows. */
#include "moe/reduce_fused_cpu.h"

#include <math.h>

#include "core/log_indices.h"
#include "core/math.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "tegula/moe.h"

typedef reduce_args problem;

/* ---- CPU ---- */

static void reduce_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < p->hidden; i++) {
            float sum = 0;
            for (int64_t k = 0; k < p->num_topk; k++) {
                const int64_t at = p->token_topk_to_pos[t * p->num_topk + k];
                if (at < 0 || at >= p->num_positions) continue;
                const float weight = p->topk_weights ? p->topk_weights[t * p->weights_stride + k] : 1;
                const float s = p->x_sf ? weight * p->x_sf[at] : weight;
                sum = fmaf(reduce_load(p->x, p->x_type, at * p->x_stride + i), s, sum);
            }
            if (p->sf) sum *= *p->sf;
            reduce_store(p->out, p->out_type, t * p->out_stride + i, sum);
        }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t column_bytes = p->num_topk * REDUCE_BYTES(p->x_type) + REDUCE_BYTES(p->out_type);
    const int64_t row_bytes = tgl_saturating_product(column_bytes, p->hidden);
    return tgl_parallel_rows(p->num_tokens, row_bytes, TGL_CHOOSE(reduce_rows, tgl_reduce_rows), p);
}

TGL_SIZES(sizes, num_positions, hidden, num_tokens, num_topk);
tgl_signature tgl_moe_reduce_fused_signature =
    TGL_SIGNATURE("moe_reduce_fused(x: f32|bf16|f16|e4m3[num_positions, hidden] rows,"
                  " x_sf: f32[num_positions]?, topk_weights: f32[num_tokens, num_topk]? rows,"
                  " token_topk_to_pos: i32[num_tokens, num_topk], sf: f32[1]?)"
                  " -> out: f32|bf16|f16|e4m3[num_tokens, hidden] rows",
                  NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* FEW tokens get one unit per thread, and 8 rows are loaded before the first is added. Many get BULK, or
 * before sm_90 MANY: two units and 4 rows, which takes fewer instructions. COLUMNS is for rows that are not
 * whole vectors. */
enum { FEW, BULK, MANY, COLUMNS, NUM_KERNELS, BULK_STAGES = 3 };
static int bulk_units(int x_type) { return x_type == REDUCE_E4M3 ? 2 : 4; } /* max 32 columns */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro x = { "X_TYPE", p->x_type }, out = { "OUT_TYPE", p->out_type };
    kernels[FEW] = (tgl_kernel){ "moe/reduce_fused",
                                 { x, out, { "UNITS", 1 }, { "ROWS", 8 }, { "HAS_VECTORS", 1 }, { "THREADS", 128 } } };
    kernels[BULK] = (tgl_kernel){ "moe/reduce_fused_bulk",
                                  { x, out, { "UNITS", bulk_units(p->x_type) }, { "STAGES", BULK_STAGES } } };
    kernels[MANY] = (tgl_kernel){ "moe/reduce_fused",
                                  { x, out, { "UNITS", 2 }, { "ROWS", 4 }, { "HAS_VECTORS", 1 }, { "THREADS", 256 } } };
    kernels[COLUMNS] =
        (tgl_kernel){ "moe/reduce_fused",
                      { x, out, { "UNITS", 1 }, { "ROWS", 8 }, { "HAS_VECTORS", 0 }, { "THREADS", 256 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const int64_t x_bytes = REDUCE_BYTES(p->x_type), out_bytes = REDUCE_BYTES(p->out_type);
    const int64_t vector = 16 / x_bytes, out_vector = tgl_min(16, vector *out_bytes);
    const uint64_t x_bits = (uintptr_t)p->x | (uint64_t)(p->x_stride * x_bytes);
    const uint64_t out_bits = (uintptr_t)p->out | (uint64_t)(p->out_stride * out_bytes);
    return x_bits % 16 == 0 && out_bits % out_vector == 0 && p->hidden % vector == 0;
}

static bool can_bulk(const void *context, const tgl_target *target)
{
    const int64_t num_topk = ((const problem *)context)->num_topk;
    return target->architecture >= 90 && num_topk >= 1 && num_topk <= 32 && has_vectors(context, target);
}

static bool has_few_tokens(const void *context, const tgl_target *target)
{
    return ((const problem *)context)->num_tokens < REDUCE_FEW_TOKENS;
}

/* A row has `row_units` units. */
static tgl_shape shape_of(problem *p, int64_t row_units, int64_t units, int64_t max_threads)
{
    const int64_t chunks = tgl_ceil_div(row_units, max_threads * units);
    const int64_t threads = tgl_ceil_div(tgl_ceil_div(row_units, chunks * units), 32) * 32;
    const int64_t fitting = p->num_topk ? tgl_max(1, 32 / p->num_topk) : 1;
    const int64_t enough = tgl_max(1, p->num_tokens * chunks / REDUCE_BLOCKS);
    p->tokens = (int32_t)tgl_min(tgl_min(fitting, enough), REDUCE_TOKENS);
    return (tgl_shape){ { chunks, tgl_strided_grid(tgl_ceil_div(p->num_tokens, p->tokens), 65535) },
                        .block = (int)threads,
                        TGL_ARGS(*p) };
}

static int64_t row_vectors(const problem *p) { return p->hidden / (16 / REDUCE_BYTES(p->x_type)); }

static tgl_shape few_shape(void *context, const tgl_target *target)
{
    return shape_of(context, row_vectors(context), 1, 128);
}

static tgl_shape bulk_shape(void *context, const tgl_target *target)
{
    const int units = bulk_units(((const problem *)context)->x_type);
    tgl_shape shape = shape_of(context, row_vectors(context), units, REDUCE_BULK_THREADS);
    shape.shared_bytes = BULK_STAGES * shape.block * units * 16;
    return shape;
}

static tgl_shape many_shape(void *context, const tgl_target *target)
{
    return shape_of(context, row_vectors(context), 2, 256);
}

static tgl_shape columns_shape(void *context, const tgl_target *target)
{
    return shape_of(context, ((const problem *)context)->hidden, 1, 256);
}

static const tgl_op OP = { cpu,
                           plan,
                           {
                               [FEW] = { has_vectors, has_few_tokens, few_shape },
                               [BULK] = { can_bulk, NULL, bulk_shape },
                               [MANY] = { has_vectors, NULL, many_shape },
                               [COLUMNS] = { NULL, NULL, columns_shape },
                           } };

static int type_of(const DLTensor *t)
{
    if (tgl_dtype_is(t->dtype, TGL_F32)) return REDUCE_F32;
    if (tgl_dtype_is(t->dtype, TGL_BF16)) return REDUCE_BF16;
    return tgl_dtype_is(t->dtype, TGL_F16) ? REDUCE_F16 : REDUCE_E4M3;
}

tgl_status tgl_moe_reduce_fused(const DLTensor *x, const DLTensor *x_sf, const DLTensor *topk_weights,
                                const DLTensor *token_topk_to_pos, const DLTensor *sf, DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, x_sf, topk_weights, token_topk_to_pos, sf, out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_moe_reduce_fused_signature, tensors, NULL, &n.num_positions));
    tgl_log_indices("token_topk_to_pos", token_topk_to_pos, n.num_positions);
    problem p = {
        .x = tgl_data(x),
        .x_sf = tgl_data_or_null(x_sf),
        .topk_weights = tgl_data_or_null(topk_weights),
        .token_topk_to_pos = tgl_data(token_topk_to_pos),
        .sf = tgl_data_or_null(sf),
        .out = tgl_data(out),
        .num_positions = n.num_positions,
        .num_tokens = n.num_tokens,
        .num_topk = n.num_topk,
        .hidden = n.hidden,
        .x_stride = tgl_step_of(x, 0),
        .weights_stride = tgl_step_of(topk_weights, 0),
        .out_stride = tgl_step_of(out, 0),
        .x_type = type_of(x),
        .out_type = type_of(out),
    };
    return tgl_run(&tgl_moe_reduce_fused_signature, &OP, tensors, &p, stream);
}
