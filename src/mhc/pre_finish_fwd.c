/* SPDX-License-Identifier: MIT
 * pre_finish_fwd.c - tgl_mhc_pre_finish_fwd: parts of a projection, and the residual, to a sublayer's input. */
#include "mhc/pre_finish_fwd.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef pre_finish_fwd_args problem;

/* ---- CPU ---- */

static void run_token(const problem *p, int64_t t)
{
    const int n = (int)p->num_streams, rows = p->num_rows;
    const float r = projection_rms(pre_finish_sum(p, t, rows, rows), p->columns, p->rms_eps);
    float pre[MHC_MAX_STREAMS];
    mhc_matrix comb;
    for (int j = 0; j < rows; j++) {
        const int group = gates_group(j, n), k = j - group * n;
        const float made = pre_finish_gate(p, j, n, pre_finish_sum(p, t, j, rows), r);
        if (group == 0) pre[k] = made;
        if (group == 2) comb.e[k / n][k % n] = made;
        else if (p->gates[group]) p->gates[group][t * n + k] = made;
    }
    if (p->gates[2]) {
        mhc_sinkhorn(&comb, n, p->repeat, p->sinkhorn_eps);
        for (int i = 0; i < n * n; i++) p->gates[2][t * n * n + i] = tgl_one_nan(comb.e[i / n][i % n]);
    }
    for (int64_t c = 0; c < p->hidden; c++) {
        float x[MHC_MAX_STREAMS];
        for (int i = 0; i < n; i++) x[i] = tgl_bf16_to_f32(tgl_row_in(p->residual, t, i)[c]);
        tgl_row_out(p->out, t, 0)[c] = tgl_bf16_from_f32(rows_apply(pre, x, n));
    }
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) run_token(context, t);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t of_columns = tgl_saturating_product(4 * p->num_streams, p->hidden);
    const int64_t of_rows = tgl_saturating_product(8 * p->num_rows, p->in.num_splits + p->repeat);
    return tgl_parallel_rows(p->num_tokens, tgl_max(of_columns, of_rows), run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams, hidden, num_splits, num_groups);
tgl_signature tgl_mhc_pre_finish_fwd_signature = TGL_SIGNATURE(
    "mhc_pre_finish_fwd(residual: " ROWS_STREAMS " rows, out_mul_parts: f32[num_splits, num_tokens, " MHC_MIXES "],"
    " sqrsum_parts: f32[num_splits, num_tokens], scale: f32[num_groups], base: f32[" MHC_MIXES "],"
    " has_rms_eps: bool, rms_eps: float >= 0 with has_rms_eps, " MHC_PRE ", " MHC_POST ", " MHC_SINKHORN ")"
    " -> pre_mix: f32[num_tokens, num_streams]?, post_mix: f32[num_tokens, num_streams]?, comb_mix: " MHC_SQUARE "?,"
    " out: bf16[num_tokens, hidden] rows"
    " where " MHC_RULES ", hidden >= 1, num_groups in 1..3, num_splits in " PARTIALS_SPLITS,
    &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro streams = { "STREAMS", p->num_streams }, groups = { "GROUPS", p->num_groups };
    kernels[VECTORS] = (tgl_kernel){ "mhc/pre_finish_fwd", { streams, groups, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/pre_finish_fwd", { streams, groups, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->hidden % ROWS_UNIT == 0 && tgl_rows_have_vectors(p->residual) && tgl_rows_out_have_vectors(p->out);
}

/* Adds the blocks that compute gates: 32 tokens per block if there are many tokens, 4 if few, so that all SMs have work. */
static tgl_shape with_gates(problem *p, tgl_shape s)
{
    p->tile = p->num_tokens > 1024 ? PRE_FINISH_TILE : 4;
    if (p->gates[0] || p->gates[1] || p->gates[2])
        p->gate_rows = tgl_strided_grid(tgl_ceil_div(tgl_ceil_div(p->num_tokens, p->tile), s.grid[0]), 32767);
    s.grid[1] = p->gate_rows + tgl_strided_grid(p->num_tokens, 32768);
    return tgl_shape_with(s, p, sizeof *p);
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    tgl_shape s = tgl_rows_shape_of(p->num_tokens, p->hidden, PRE_FINISH_THREADS - 32);
    s.block += 32;
    return with_gates(p, s);
}

static tgl_shape vectors_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t units = p->hidden / ROWS_UNIT, bytes = 2 * ROWS_UNIT * p->num_streams;
    const int64_t slices = tgl_ceil_div(units * bytes, PRE_FINISH_SLICE);
    if (target->architecture < 90) return any_shape(p, target);
    p->slice = (int32_t)tgl_ceil_div(units, slices);
    const int64_t sweeps = tgl_ceil_div(p->slice, PRE_FINISH_SLICE_THREADS);
    return with_gates(p, (tgl_shape){ { slices },
                                      .block = (int)tgl_ceil_div(tgl_ceil_div(p->slice, sweeps), 32) * 32,
                                      .shared_bytes = p->slice * bytes });
}

static const tgl_op OP = { cpu,
                           plan,
                           { [VECTORS] = { has_vectors, NULL, vectors_shape }, [ANY] = { NULL, NULL, any_shape } } };

tgl_status tgl_mhc_pre_finish_fwd(const DLTensor *residual, const DLTensor *out_mul_parts, const DLTensor *sqrsum_parts,
                                  const DLTensor *scale, const DLTensor *base, DLTensor *pre_mix, DLTensor *post_mix,
                                  DLTensor *comb_mix, DLTensor *out, const tgl_mhc_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = {
        residual, out_mul_parts, sqrsum_parts, scale, base, pre_mix, post_mix, comb_mix, out
    };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_pre_finish_fwd_signature, tensors, params, &n.num_tokens));
    if ((post_mix && n.num_groups < 2) || (comb_mix && n.num_groups < 3))
        return tgl_fail(TGL_ERR_ARGUMENT, "scale: shape is [%d], want [%s] with %s", (int)n.num_groups,
                        comb_mix ? "3" : "2 or 3", comb_mix ? "comb_mix" : "post_mix");
    problem p = { .in = { tgl_data(out_mul_parts), tgl_data(sqrsum_parts), n.num_splits },
                  .residual = tgl_rows_in(residual),
                  .scale = tgl_data(scale),
                  .base = tgl_data(base),
                  .gates = { tgl_data_or_null(pre_mix), tgl_data_or_null(post_mix), tgl_data_or_null(comb_mix) },
                  .out = tgl_rows_out(out),
                  .num_tokens = n.num_tokens,
                  .num_streams = n.num_streams,
                  .hidden = n.hidden,
                  .num_groups = (int32_t)n.num_groups,
                  .num_rows = gates_columns((int)n.num_streams, (int)n.num_groups),
                  .repeat = tgl_mhc_sinkhorn_repeat(params),
                  .columns = (float)(n.num_streams * n.hidden),
                  .rms_eps = tgl_mhc_rms_eps(params),
                  .sinkhorn_eps = tgl_mhc_sinkhorn_eps(params),
                  .numbers = tgl_mhc_gates(params) };
    return tgl_run(&tgl_mhc_pre_finish_fwd_signature, &OP, tensors, &p, stream);
}
