/* SPDX-License-Identifier: MIT
 * reduce_fused.c - tgl_moe_reduce_fused: every token's rows, weighted and added. */
#include "moe/reduce_fused.h"

#include <inttypes.h>
#include <math.h>

#include "core/log.h"
#include "core/math.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "tegula/moe.h"

/* ---- CPU ---- */

static void cpu(const void *context, int64_t begin, int64_t end)
{
    const reduce_typed *typed = context;
    const reduce_problem *p = &typed->p;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < p->hidden; i++) {
            float sum = 0;
            for (int64_t k = 0; k < p->num_topk; k++) {
                const int64_t at = p->token_topk_to_pos[t * p->num_topk + k];
                if (at < 0 || at >= p->num_positions) continue;
                const float weight = p->topk_weights ? p->topk_weights[t * p->weights_stride + k] : 1;
                const float s = p->x_sf ? weight * p->x_sf[at] : weight;
                sum = fmaf(reduce_load(p->x, typed->x_type, at * p->x_stride + i), s, sum);
            }
            if (p->sf) sum *= *p->sf;
            reduce_store(p->out, typed->out_type, t * p->out_stride + i, sum);
        }
}

static tgl_status run_on_cpu(const void *context)
{
    const reduce_typed *typed = context;
    const int64_t column_bytes = typed->p.num_topk * REDUCE_BYTES(typed->x_type) + REDUCE_BYTES(typed->out_type);
    const int64_t row_bytes = tgl_saturating_product(column_bytes, typed->p.hidden);
    return tgl_parallel_rows(typed->p.num_tokens, row_bytes, TGL_CHOOSE(cpu, tgl_reduce_rows), typed);
}

/* ---- checks ---- */

enum { FLOATS = TGL_F32 | TGL_BF16 | TGL_F16 | TGL_E4M3 };

static tgl_status check(const DLTensor *x, const DLTensor *x_sf, const DLTensor *topk_weights,
                        const DLTensor *token_topk_to_pos, const DLTensor *sf, const DLTensor *out)
{
    TGL_TRY(tgl_expect("x", x, FLOATS, 2, TGL_ROWS));
    if (x_sf) TGL_TRY(tgl_expect("x_sf", x_sf, TGL_F32, 1, TGL_PACKED));
    if (topk_weights) TGL_TRY(tgl_expect("topk_weights", topk_weights, TGL_F32, 2, TGL_ROWS));
    TGL_TRY(tgl_expect("token_topk_to_pos", token_topk_to_pos, TGL_I32, 2, TGL_PACKED));
    if (sf) TGL_TRY(tgl_expect("sf", sf, TGL_F32, 1, TGL_PACKED));
    TGL_TRY(tgl_expect("out", out, FLOATS, 2, TGL_ROWS));

    if (x_sf) TGL_TRY(tgl_expect_same_device("x_sf", x_sf, x));
    if (topk_weights) TGL_TRY(tgl_expect_same_device("topk_weights", topk_weights, x));
    TGL_TRY(tgl_expect_same_device("token_topk_to_pos", token_topk_to_pos, x));
    if (sf) TGL_TRY(tgl_expect_same_device("sf", sf, x));
    TGL_TRY(tgl_expect_same_device("out", out, x));

    const int64_t num_positions = x->shape[0], hidden = x->shape[1];
    const int64_t num_tokens = token_topk_to_pos->shape[0], num_topk = token_topk_to_pos->shape[1];
    const tgl_dim pairs[2] = { { num_tokens, num_tokens }, { num_topk, num_topk } };
    if (x_sf) TGL_TRY(tgl_expect_shape("x_sf", x_sf, (tgl_dim[]){ { num_positions, num_positions } }));
    if (topk_weights) TGL_TRY(tgl_expect_shape("topk_weights", topk_weights, pairs));
    if (sf) TGL_TRY(tgl_expect_shape("sf", sf, (tgl_dim[]){ { 1, 1 } }));
    TGL_TRY(tgl_expect_shape("out", out, (tgl_dim[]){ { num_tokens, num_tokens }, { hidden, hidden } }));
    const int64_t out_stride = tgl_stride(out, 0);
    if (num_tokens > 1 && hidden > 0 && out_stride < hidden)
        return tgl_fail(TGL_ERR_ARGUMENT, "out: strides are [%" PRId64 ", 1], want >= %" PRId64
                        " between rows", out_stride, hidden);

    TGL_TRY(tgl_expect_no_overlap("out", out, "x", x));
    if (x_sf) TGL_TRY(tgl_expect_no_overlap("out", out, "x_sf", x_sf));
    if (topk_weights) TGL_TRY(tgl_expect_no_overlap("out", out, "topk_weights", topk_weights));
    TGL_TRY(tgl_expect_no_overlap("out", out, "token_topk_to_pos", token_topk_to_pos));
    return sf ? tgl_expect_no_overlap("out", out, "sf", sf) : TGL_OK;
}

static int type_of(const DLTensor *t)
{
    if (tgl_dtype_is(t->dtype, TGL_F32)) return REDUCE_F32;
    if (tgl_dtype_is(t->dtype, TGL_BF16)) return REDUCE_BF16;
    return tgl_dtype_is(t->dtype, TGL_F16) ? REDUCE_F16 : REDUCE_E4M3;
}

/* ---- launch ---- */

/* The kernels of a configuration. Few tokens get one unit a thread, and the loads of 8 rows before the first is
 * added. Many get BULK, or before sm_90 MANY: two units and 4 rows, which takes fewer instructions. COLUMNS is
 * for rows that are not made of vectors. */
enum { FEW, BULK, MANY, COLUMNS, NUM_KERNELS, BULK_STAGES = 3 };
static int bulk_units(int x_type) { return x_type == REDUCE_E4M3 ? 2 : 4; }     /* 32 columns at most */

static int plan(const void *context, tgl_kernel *kernels)
{
    const reduce_typed *typed = context;
    const tgl_macro x = { "X_TYPE", typed->x_type }, out = { "OUT_TYPE", typed->out_type };
    kernels[FEW] = (tgl_kernel){ "moe/reduce_fused",
        { x, out, { "UNITS", 1 }, { "ROWS", 8 }, { "HAS_VECTORS", 1 }, { "THREADS", 128 } } };
    kernels[BULK] = (tgl_kernel){ "moe/reduce_fused_bulk",
        { x, out, { "UNITS", bulk_units(typed->x_type) }, { "STAGES", BULK_STAGES } } };
    kernels[MANY] = (tgl_kernel){ "moe/reduce_fused",
        { x, out, { "UNITS", 2 }, { "ROWS", 4 }, { "HAS_VECTORS", 1 }, { "THREADS", 256 } } };
    kernels[COLUMNS] = (tgl_kernel){ "moe/reduce_fused",
        { x, out, { "UNITS", 1 }, { "ROWS", 8 }, { "HAS_VECTORS", 0 }, { "THREADS", 256 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    (void)target;
    const reduce_typed *typed = context;
    const reduce_problem *p = &typed->p;
    const int64_t x_bytes = REDUCE_BYTES(typed->x_type), out_bytes = REDUCE_BYTES(typed->out_type);
    const int64_t vector = 16 / x_bytes, out_vector = tgl_min(16, vector * out_bytes);
    const uint64_t x_bits = (uintptr_t)p->x | (uint64_t)(p->x_stride * x_bytes);
    const uint64_t out_bits = (uintptr_t)p->out | (uint64_t)(p->out_stride * out_bytes);
    return x_bits % 16 == 0 && out_bits % out_vector == 0 && p->hidden % vector == 0;
}

static bool can_bulk(const void *context, const tgl_target *target)
{
    const int64_t num_topk = ((const reduce_typed *)context)->p.num_topk;
    return target->architecture >= 90 && num_topk >= 1 && num_topk <= 32 && has_vectors(context, target);
}

static bool has_few_tokens(const void *context, const tgl_target *target)
{
    (void)target;
    return ((const reduce_typed *)context)->p.num_tokens < REDUCE_FEW_TOKENS;
}

/* A row has `row_units` units. */
static tgl_shape shape_of(reduce_typed *typed, int64_t row_units, int64_t units, int64_t max_threads)
{
    reduce_problem *p = &typed->p;
    const int64_t chunks = tgl_ceil_div(row_units, max_threads * units);
    const int64_t threads = tgl_ceil_div(tgl_ceil_div(row_units, chunks * units), 32) * 32;
    const int64_t fitting = p->num_topk ? tgl_max(1, 32 / p->num_topk) : 1;
    const int64_t enough = tgl_max(1, p->num_tokens * chunks / REDUCE_BLOCKS);
    p->tokens = (int32_t)tgl_min(tgl_min(fitting, enough), REDUCE_TOKENS);
    return (tgl_shape){ { chunks, tgl_strided_grid(tgl_ceil_div(p->num_tokens, p->tokens), 65535) },
                        .block = (int)threads, TGL_ARGS(*p) };
}

static int64_t row_vectors(const reduce_typed *typed)
{
    return typed->p.hidden / (16 / REDUCE_BYTES(typed->x_type));
}

static tgl_shape few_shape(void *context, const tgl_target *target)
{
    (void)target;
    return shape_of(context, row_vectors(context), 1, 128);
}

static tgl_shape bulk_shape(void *context, const tgl_target *target)
{
    (void)target;
    const int units = bulk_units(((const reduce_typed *)context)->x_type);
    tgl_shape shape = shape_of(context, row_vectors(context), units, REDUCE_BULK_THREADS);
    shape.shared_bytes = BULK_STAGES * shape.block * units * 16;
    return shape;
}

static tgl_shape many_shape(void *context, const tgl_target *target)
{
    (void)target;
    return shape_of(context, row_vectors(context), 2, 256);
}

static tgl_shape columns_shape(void *context, const tgl_target *target)
{
    (void)target;
    return shape_of(context, ((const reduce_typed *)context)->p.hidden, 1, 256);
}

static const tgl_op OP = {
    run_on_cpu, plan,
    {
        [FEW] = { has_vectors, has_few_tokens, few_shape },
        [BULK] = { can_bulk, NULL, bulk_shape },
        [MANY] = { has_vectors, NULL, many_shape },
        [COLUMNS] = { NULL, NULL, columns_shape },
    }
};

tgl_status tgl_moe_reduce_fused(const DLTensor *x, const DLTensor *x_sf, const DLTensor *topk_weights,
                                const DLTensor *token_topk_to_pos, const DLTensor *sf, DLTensor *out,
                                tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_reduce_fused", "x", x, "x_sf", x_sf, "topk_weights", topk_weights,
                     "token_topk_to_pos", token_topk_to_pos, "sf", sf, "out", out, NULL);
    TGL_TRY(check(x, x_sf, topk_weights, token_topk_to_pos, sf, out));
    tgl_log_indices("token_topk_to_pos", token_topk_to_pos, x->shape[0]);
    const int x_type = type_of(x), out_type = type_of(out);
    if (tgl_is_empty(out) && !tgl_preparing()) return TGL_OK;   /* data may be NULL */
    const int64_t num_tokens = out->shape[0], num_positions = x->shape[0];
    reduce_typed typed = {
        {
            .x = tgl_data(x),
            .x_sf = x_sf ? tgl_data(x_sf) : NULL,
            .topk_weights = topk_weights ? tgl_data(topk_weights) : NULL,
            .token_topk_to_pos = tgl_data(token_topk_to_pos),
            .sf = sf ? tgl_data(sf) : NULL,
            .out = tgl_data(out),
            .num_positions = num_positions,
            .num_tokens = num_tokens,
            .num_topk = token_topk_to_pos->shape[1],
            .hidden = out->shape[1],
            .x_stride = num_positions > 1 ? tgl_stride(x, 0) : 0,
            .weights_stride = topk_weights && num_tokens > 1 ? tgl_stride(topk_weights, 0) : 0,
            .out_stride = num_tokens > 1 ? tgl_stride(out, 0) : 0,
        },
        x_type, out_type
    };
    return tgl_on_cpu(x) ? run_on_cpu(&typed) : tgl_run_on_cuda(&OP, &typed, x, stream);
}
