/* SPDX-License-Identifier: MIT
 * gate_bwd.c - tgl_engram_gate_bwd: the gradients of the gate. */
#include "engram/gate_bwd.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "engram/common/gate_cpu.h"
#include "engram/common/gate_host.h"

typedef gate_bwd_args problem;

/* ---- CPU ---- */

static float at(const uint16_t *row, int64_t i) { return tgl_bf16_to_f32(row[i]); }

static void plain_gradients(const problem *p, int64_t t, int64_t h, const gate_slopes *s, float *grad_w)
{
    const uint16_t *go = gate_row_in(p->grad_out, t, h), *x = gate_row_in(p->x, t, h), *k = gate_row_in(p->k, t, h);
    uint16_t *grad_x = gate_row_out(p->grad_x, t, h), *grad_k = gate_row_out(p->grad_k, t, h);
    for (int64_t i = 0; i < p->hidden; i++) {
        const float xi = at(x, i), ki = at(k, i);
        const float w = gate_weight_at(&p->weights, p->weights.kind, p->weights.is_zero_centered, h, i);
        if (grad_x) grad_x[i] = tgl_bf16_from_f32(gate_grad_x(s, at(go, i), xi, ki, w, p->has_residual));
        if (grad_k) grad_k[i] = tgl_bf16_from_f32(gate_grad_k(s, xi, ki, w));
        if (grad_w) grad_w[i] = gate_grad_w(s, xi, ki, grad_w[i]);
    }
}

static void run_row(const problem *p, int64_t t, int64_t h, float *grad_w)
{
    const uint16_t *go = gate_row_in(p->grad_out, t, h), *v = gate_row_in(p->v, t, 0);
    const float grad_gate = TGL_CHOOSE(tgl_plain_row_products, tgl_row_products)(go, v, p->hidden);
    const int64_t row = t * p->num_streams + h;
    gate_slopes s = gate_slopes_of(&p->numbers, p->dot[row], p->gate_score[row], p->rstd_x[row], p->rstd_k[row]);
    gate_set_q(&s, grad_gate);
    TGL_CHOOSE(plain_gradients, tgl_gate_gradients)(p, t, h, &s, grad_w);
}

static void plain_grad_v(const problem *p, int64_t t)
{
    uint16_t *grad_v = gate_row_out(p->grad_v, t, 0);
    for (int64_t i = 0; i < p->hidden; i++) {
        float sum = 0;
        for (int64_t h = 0; h < p->num_streams; h++)
            sum = fmaf(at(gate_row_in(p->grad_out, t, h), i), p->gate_score[t * p->num_streams + h], sum);
        grad_v[i] = tgl_bf16_from_f32(sum);
    }
}

static void run_masked(const problem *p, int64_t t)
{
    for (int64_t h = 0; h < p->num_streams; h++) {
        const uint16_t *go = gate_row_in(p->grad_out, t, h);
        uint16_t *grad_x = gate_row_out(p->grad_x, t, h), *grad_k = gate_row_out(p->grad_k, t, h);
        for (int64_t i = 0; grad_x && i < p->hidden; i++) grad_x[i] = p->has_residual ? go[i] : 0;
        for (int64_t i = 0; grad_k && i < p->hidden; i++) grad_k[i] = 0;
    }
    uint16_t *grad_v = gate_row_out(p->grad_v, t, 0);
    for (int64_t i = 0; grad_v && i < p->hidden; i++) grad_v[i] = 0;
}

static void run_partials(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t size = p->num_streams * p->hidden;
    for (int64_t partial = begin; partial < end; partial++) {
        float *grad_w = p->grad_w_partial ? p->grad_w_partial + partial * size : NULL;
        for (int64_t i = 0; grad_w && i < size; i++) grad_w[i] = 0;
        for (int64_t t = partial; t < p->num_tokens; t += p->num_partials) {
            if (p->image_token_mask && p->image_token_mask[t]) {
                run_masked(p, t);
                continue;
            }
            for (int64_t h = 0; h < p->num_streams; h++) run_row(p, t, h, grad_w ? grad_w + h * p->hidden : NULL);
            if (p->grad_v.data) TGL_CHOOSE(plain_grad_v, tgl_gate_grad_v)(p, t);
        }
        for (int64_t i = 0; grad_w && i < size; i++) grad_w[i] = tgl_one_nan(grad_w[i]);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t token_bytes = tgl_saturating_product(10 * p->num_streams + 4, p->hidden);
    const int64_t tokens = p->num_partials ? tgl_ceil_div(p->num_tokens, p->num_partials) : 0;
    return tgl_parallel_rows(p->num_partials, tgl_saturating_product(token_bytes, tokens + 1), run_partials, p);
}

TGL_SIZES(sizes, num_tokens, num_streams, hidden, num_partials);
tgl_signature tgl_engram_gate_bwd_signature = TGL_SIGNATURE(
    "engram_gate_bwd(grad_out: " GATE_ROWS " rows, " GATE_INPUTS ", dot: f32[num_tokens, num_streams],"
    " gate_score: f32[num_tokens, num_streams], rstd_x: f32[num_tokens, num_streams],"
    " rstd_k: f32[num_tokens, num_streams], clamp_value: float >= 0, no_residual: bool, zero_centered: bool,"
    " constant_weights: bool)"
    " -> grad_hidden_states: " GATE_ROWS "? strided, grad_k: " GATE_ROWS "? strided,"
    " grad_v: bf16[num_tokens, hidden]? strided, grad_w_partial: f32[num_partials, num_streams, hidden]?"
    " where " GATE_RULES,
    &TGL_ENGRAM_GATE_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* CLUSTER has a cluster of blocks for every partial, which splits the columns; ANY has a block for every partial and
 * stream, and reads column by column. */
enum { CLUSTER, ANY, NUM_KERNELS };

static int64_t groups_of(const problem *p) { return tgl_ceil_div(p->hidden, GATE_GROUP * GATE_VECTOR); }
/* Blocks of a cluster, and groups of each but the last. */
static int64_t cluster_blocks(const problem *p)
{
    int64_t blocks = 1;
    while (tgl_ceil_div(groups_of(p), blocks) * GATE_GROUP > GATE_CLUSTER_THREADS) blocks *= 2;
    return blocks;
}
static int64_t block_groups(const problem *p) { return tgl_ceil_div(groups_of(p), cluster_blocks(p)); }

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro kind = { "WEIGHTS", p->weights.kind }, center = { "ZERO_CENTERED", p->weights.is_zero_centered };
    const bool has_cluster = p->hidden % GATE_VECTOR == 0 && p->num_streams >= 1 &&
                             p->num_streams <= GATE_CLUSTER_STREAMS && cluster_blocks(p) <= GATE_CLUSTER_BLOCKS;
    kernels[CLUSTER] = (tgl_kernel){ has_cluster ? "engram/gate_bwd_cluster" : NULL,
                                     { kind, center, { "STREAMS", p->num_streams }, { "BLOCKS", cluster_blocks(p) } } };
    kernels[ANY] = (tgl_kernel){ "engram/gate_bwd", { kind, center } };
    return NUM_KERNELS;
}

static int64_t stage_bytes(const problem *p)
{
    return (3 * p->num_streams + 1) * block_groups(p) * GATE_GROUP * GATE_VECTOR * 2;
}
static int64_t cluster_stages(const problem *p, const tgl_target *target)
{
    return tgl_min(GATE_CLUSTER_STAGES, (target->max_smem_per_block - 8192) / stage_bytes(p));
}

static bool can_cluster(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return target->architecture >= 90 && tgl_gate_has_vectors(p->grad_out) && tgl_gate_has_vectors(p->x) &&
           tgl_gate_has_vectors(p->k) && tgl_gate_has_vectors(p->v) && tgl_gate_out_has_vectors(p->grad_x) &&
           tgl_gate_out_has_vectors(p->grad_k) && tgl_gate_out_has_vectors(p->grad_v) &&
           (uintptr_t)p->grad_w_partial % 16 == 0 && tgl_gate_weights_have_vectors(&p->weights) &&
           cluster_stages(p, target) >= 1;
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return (tgl_shape){ { p->num_partials, tgl_strided_grid(p->num_streams, 65535) },
                        .block = GATE_BWD_THREADS,
                        TGL_ARGS(*p) };
}

static tgl_shape cluster_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t blocks = cluster_blocks(p);
    p->stages = (int32_t)cluster_stages(p, target);
    return (tgl_shape){ { p->num_partials * blocks },
                        .cluster = blocks > 1 ? (int)blocks : 0,
                        .block = (int)(block_groups(p) + 1) * 32,
                        .shared_bytes = p->stages * stage_bytes(p),
                        TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu,
                           plan,
                           { [CLUSTER] = { can_cluster, NULL, cluster_shape }, [ANY] = { NULL, NULL, any_shape } } };

int64_t tgl_engram_gate_num_partials(int64_t hidden)
{
    return tgl_min(tgl_ceil_div(GATE_PARTIALS_COLUMNS, tgl_max(hidden, 1)) * GATE_PARTIALS, GATE_MAX_PARTIALS);
}

tgl_status tgl_engram_gate_bwd(const DLTensor *grad_out, const DLTensor *hidden_states, const DLTensor *k,
                               const DLTensor *v, const DLTensor *weight_hidden, const DLTensor *weight_embed,
                               const DLTensor *image_token_mask, const DLTensor *dot, const DLTensor *gate_score,
                               const DLTensor *rstd_x, const DLTensor *rstd_k, DLTensor *grad_hidden_states,
                               DLTensor *grad_k, DLTensor *grad_v, DLTensor *grad_w_partial,
                               const tgl_engram_gate_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { grad_out,     hidden_states,      k,      v,          weight_hidden,
                                  weight_embed, image_token_mask,   dot,    gate_score, rstd_x,
                                  rstd_k,       grad_hidden_states, grad_k, grad_v,     grad_w_partial };
    sizes n;
    TGL_TRY(tgl_take(&tgl_engram_gate_bwd_signature, tensors, params, &n.num_tokens));
    TGL_TRY(tgl_expect_rows_apart("grad_hidden_states", grad_hidden_states));
    TGL_TRY(tgl_expect_rows_apart("grad_k", grad_k));
    TGL_TRY(tgl_expect_rows_apart("grad_v", grad_v));
    /* Without partial sums nothing depends on their number: no block need be without a token. */
    const int64_t num_partials =
        grad_w_partial ? n.num_partials : tgl_min(n.num_tokens, tgl_engram_gate_num_partials(n.hidden));
    if (num_partials == 0 && n.num_tokens > 0)
        return tgl_fail(TGL_ERR_ARGUMENT, "grad_w_partial: shape is [0, ...], want [>= 1, ...]");
    problem p = {
        .grad_out = tgl_gate_in(grad_out),
        .x = tgl_gate_in(hidden_states),
        .k = tgl_gate_in(k),
        .v = tgl_gate_in(v),
        .weights = tgl_gate_weights(weight_hidden, weight_embed, params),
        .image_token_mask = tgl_data_or_null(image_token_mask),
        .dot = tgl_data(dot),
        .gate_score = tgl_data(gate_score),
        .rstd_x = tgl_data(rstd_x),
        .rstd_k = tgl_data(rstd_k),
        .grad_x = tgl_gate_out(grad_hidden_states),
        .grad_k = tgl_gate_out(grad_k),
        .grad_v = tgl_gate_out(grad_v),
        .grad_w_partial = tgl_data_or_null(grad_w_partial),
        .numbers = tgl_gate_numbers(n.hidden, params),
        .num_tokens = n.num_tokens,
        .num_streams = n.num_streams,
        .hidden = n.hidden,
        .num_partials = num_partials,
        .has_residual = !params->no_residual,
    };
    return tgl_run(&tgl_engram_gate_bwd_signature, &OP, tensors, &p, stream);
}
