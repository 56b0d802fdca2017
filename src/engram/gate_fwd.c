/* SPDX-License-Identifier: MIT
 * gate_fwd.c - tgl_engram_gate_fwd: the gate of every stream of every token, and the value that it lets in. */
#include "engram/gate_fwd.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "engram/common/gate_host.h"

typedef gate_fwd_args problem;

/* ---- CPU ---- */

static void put_saved(const problem *p, int64_t row, float dot, float gate_score, float rstd_x, float rstd_k)
{
    if (!p->dot) return;
    p->dot[row] = tgl_one_nan(dot);
    p->gate_score[row] = tgl_one_nan(gate_score);
    p->rstd_x[row] = tgl_one_nan(rstd_x);
    p->rstd_k[row] = tgl_one_nan(rstd_k);
}

static void run_row(const problem *p, int64_t t, int64_t h)
{
    const int64_t row = t * p->num_streams + h;
    const uint16_t *x = p->x.data + t * p->x.token + h * p->x.stream;
    const uint16_t *k = p->k.data + t * p->k.token + h * p->k.stream, *v = p->v.data + t * p->v.token;
    uint16_t *out = p->out.data ? p->out.data + t * p->out.token + h * p->out.stream : NULL;
    if (p->image_token_mask && p->image_token_mask[t]) {
        put_saved(p, row, 0, 0, 0, 0);
        const bool has_result = p->is_in_place && p->has_residual;
        for (int64_t i = 0; out && !has_result && i < p->hidden; i++) out[i] = p->has_residual ? x[i] : 0;
        return;
    }
    const gate_sums s = tgl_gate_sums(&p->weights, p->hidden, h, x, k);
    const float rstd_x = gate_rstd(&p->numbers, s.squares_x), rstd_k = gate_rstd(&p->numbers, s.squares_k);
    const float gate = gate_score_of(&p->numbers, gate_scaled(&p->numbers, s.dot, rstd_x, rstd_k));
    put_saved(p, row, s.dot, gate, rstd_x, rstd_k);
    if (out) tgl_gate_results(x, v, gate, p->has_residual, p->hidden, out);
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < p->num_streams; h++) run_row(p, t, h);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t row_bytes = tgl_saturating_product(6 * p->num_streams + 2, p->hidden);
    return tgl_parallel_rows(p->num_tokens, row_bytes, run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams, hidden);
tgl_signature tgl_engram_gate_fwd_signature =
    TGL_SIGNATURE("engram_gate_fwd(" GATE_INPUTS ", eps: float >= 0, clamp_value: float >= 0, no_residual: bool,"
                  " zero_centered: bool, constant_weights: bool, sign: {zero|bit})"
                  " -> output: " GATE_ROWS
                  "? strided, dot: f32[num_tokens, num_streams]?, gate_score: f32[num_tokens, num_streams]?,"
                  " rstd_x: f32[num_tokens, num_streams]?, rstd_k: f32[num_tokens, num_streams]?"
                  " where " GATE_RULES
                  ", dot needs gate_score, gate_score needs rstd_x, rstd_x needs rstd_k, rstd_k needs dot,"
                  " output may be hidden_states",
                  &TGL_ENGRAM_GATE_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* FEW has a block for every row, all resident at once; RING has blocks that stay on one stream, so that its weights are
 * loaded once, while bulk copies bring the next rows; PIPELINE has such blocks, too, and finds the gate of a row while the
 * next is added up; ROW has a block for every row, which it holds in registers; ANY reads a row twice, column by column. */
enum { FEW, PIPELINE, RING, ROW, ANY, NUM_KERNELS };

static int64_t vectors_of(const problem *p) { return tgl_ceil_div(p->hidden, GATE_VECTOR); }
static int ring_threads(const problem *p)
{
    return p->hidden <= GATE_RING_SHORT ? GATE_RING_FEW_THREADS : GATE_RING_MANY_THREADS;
}

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro kind = { "WEIGHTS", p->weights.kind }, center = { "ZERO_CENTERED", p->weights.is_zero_centered };
    const int64_t row_vectors = tgl_ceil_div(vectors_of(p), GATE_SLOTS);
    const int64_t ring_vectors = tgl_ceil_div(vectors_of(p), ring_threads(p));
    const bool is_whole = p->hidden % GATE_VECTOR == 0;
    const bool is_few = is_whole && ring_vectors <= GATE_FEW_VECTORS;
    kernels[FEW] = (tgl_kernel){ is_few ? "engram/gate_fwd_few" : NULL,
                                 { kind, center, { "THREADS", ring_threads(p) }, { "COUNT", vectors_of(p) } } };
    const bool is_ring = is_whole && ring_vectors <= GATE_RING_VECTORS;
    const tgl_kernel ring = { NULL, { kind, center, { "THREADS", ring_threads(p) }, { "VECTORS", ring_vectors } } };
    kernels[PIPELINE] = kernels[RING] = ring;
    kernels[PIPELINE].name = is_ring ? "engram/gate_fwd_pipeline" : NULL;
    kernels[RING].name = is_ring ? "engram/gate_fwd_ring" : NULL;
    kernels[ROW] = (tgl_kernel){ is_whole && row_vectors <= GATE_ROW_VECTORS ? "engram/gate_fwd" : NULL,
                                 { kind, center, { "VECTORS", row_vectors } } };
    kernels[ANY] = (tgl_kernel){ "engram/gate_fwd", { kind, center, { "VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return tgl_gate_has_vectors(p->x) && tgl_gate_has_vectors(p->k) && tgl_gate_has_vectors(p->v) &&
           tgl_gate_out_has_vectors(p->out) && tgl_gate_weights_have_vectors(&p->weights);
}

static int64_t stage_bytes(const problem *p) { return (p->out.data ? 3 : 2) * 2 * p->hidden; }

/* Blocks per SM, if a block has two stages at least; 0: none has. */
static int64_t ring_blocks(const problem *p, const tgl_target *target)
{
    const int64_t max_blocks = GATE_RING_BLOCKS * GATE_RING_MANY_THREADS / ring_threads(p);
    return tgl_min(max_blocks, target->max_smem_per_block / (2 * stage_bytes(p) + 2048));
}

static bool can_ring(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return target->architecture >= 90 && has_vectors(p, target) &&
           ring_blocks(p, target) * target->num_sms >= p->num_streams;
}

/* Rows that are resident at once. */
static int64_t few_rows(const problem *p, const tgl_target *target)
{
    const int64_t room = target->max_smem_per_block / (stage_bytes(p) + 2048);
    return tgl_min(GATE_FEW_THREADS / ring_threads(p), room) * target->num_sms;
}

static bool can_few(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return target->architecture >= 90 && has_vectors(p, target) && p->num_streams <= few_rows(p, target) &&
           p->num_tokens * p->num_streams <= few_rows(p, target);
}

static tgl_shape few_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return (tgl_shape){
        { p->num_tokens * p->num_streams }, .block = ring_threads(p), .shared_bytes = stage_bytes(p), TGL_ARGS(*p)
    };
}

static bool ring_pays(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->hidden < GATE_RING_LONG || p->num_tokens * p->num_streams < GATE_RING_MANY;
}

static bool pipeline_pays(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->num_tokens * p->num_streams >= GATE_PIPELINE_ROWS * target->num_sms && p->hidden < GATE_RING_LONG;
}

/* As many blocks as are resident at once, with up to max_stages each. */
static tgl_shape shape_of_blocks(problem *p, const tgl_target *target, int64_t min_stages, int64_t max_stages,
                                 int block)
{
    const int64_t per_sm = ring_blocks(p, target);
    const int64_t resident = per_sm * target->num_sms / p->num_streams; /* blocks of a stream */
    const int64_t of_stream = tgl_strided_grid(tgl_min(p->num_tokens, resident), 65535);
    const int64_t rows = tgl_ceil_div(p->num_tokens, of_stream);
    const int64_t room = (target->max_smem_per_block / per_sm - 2048) / stage_bytes(p);
    p->stages = (int32_t)tgl_max(min_stages, tgl_min(tgl_min(rows, room), max_stages));
    return (tgl_shape){
        { of_stream * p->num_streams }, .block = block, .shared_bytes = p->stages * stage_bytes(p), TGL_ARGS(*p)
    };
}

static tgl_shape ring_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t enough = tgl_max(2, tgl_min(GATE_RING_BYTES / stage_bytes(p), GATE_RING_STAGES));
    return shape_of_blocks(p, target, 1, enough, ring_threads(p));
}

/* Two stages at least: a row is still in its own when the next one is added up. */
static tgl_shape pipeline_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return shape_of_blocks(p, target, 2, GATE_RING_STAGES, ring_threads(p) + 32);
}

static tgl_shape row_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_shape_of_blocks(p->num_tokens * p->num_streams, GATE_SLOTS), p, sizeof *p);
}

static const tgl_op OP = { cpu,
                           plan,
                           { [FEW] = { can_few, NULL, few_shape },
                             [PIPELINE] = { can_ring, pipeline_pays, pipeline_shape },
                             [RING] = { can_ring, ring_pays, ring_shape },
                             [ROW] = { has_vectors, NULL, row_shape },
                             [ANY] = { NULL, NULL, row_shape } } };

tgl_status tgl_engram_gate_fwd(const DLTensor *hidden_states, const DLTensor *k, const DLTensor *v,
                               const DLTensor *weight_hidden, const DLTensor *weight_embed,
                               const DLTensor *image_token_mask, DLTensor *output, DLTensor *dot, DLTensor *gate_score,
                               DLTensor *rstd_x, DLTensor *rstd_k, const tgl_engram_gate_params *params,
                               tgl_stream stream)
{
    const DLTensor *tensors[] = { hidden_states, k,   v,          weight_hidden, weight_embed, image_token_mask,
                                  output,        dot, gate_score, rstd_x,        rstd_k };
    sizes n;
    TGL_TRY(tgl_take(&tgl_engram_gate_fwd_signature, tensors, params, &n.num_tokens));
    TGL_TRY(tgl_expect_rows_apart("output", output));
    problem p = {
        .x = tgl_gate_in(hidden_states),
        .k = tgl_gate_in(k),
        .v = tgl_gate_in(v),
        .weights = tgl_gate_weights(weight_hidden, weight_embed, params),
        .image_token_mask = tgl_data_or_null(image_token_mask),
        .out = tgl_gate_out(output),
        .dot = tgl_data_or_null(dot),
        .gate_score = dot ? tgl_data(gate_score) : NULL,
        .rstd_x = dot ? tgl_data(rstd_x) : NULL,
        .rstd_k = dot ? tgl_data(rstd_k) : NULL,
        .numbers = tgl_gate_numbers(n.hidden, params),
        .num_tokens = n.num_tokens,
        .num_streams = n.num_streams,
        .hidden = n.hidden,
        .has_residual = !params->no_residual,
        .is_in_place = output && tgl_data(output) && tgl_data(output) == tgl_data(hidden_states),
    };
    if (p.is_in_place && p.dot)
        return tgl_fail(TGL_ERR_ARGUMENT, "output: is hidden_states, want another tensor with dot (the backward reads "
                                          "hidden_states)");
    return tgl_run(&tgl_engram_gate_fwd_signature, &OP, tensors, &p, stream);
}
