/* SPDX-License-Identifier: MIT
 * split_sinkhorn_bwd.c - tgl_mhc_split_sinkhorn_bwd: gradients of mixes, scale and base. */
#include "mhc/split_sinkhorn_bwd.h"

#include "core/math.h"
#include "core/threads.h"
#include "mhc/common/gates_host.h"
#include "mhc/common/mhc_host.h"

typedef split_sinkhorn_bwd_args problem;

/* ---- CPU ---- */

/* The gradient of logits, to where that of their mixes will be. */
static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const gates_bwd_args *g = &p->gates;
    const int n = g->num_streams, columns = gates_columns(n, 3);
    for (int64_t t = begin; t < end; t++) {
        float logits[MHC_MAX_STREAMS * MHC_MAX_STREAMS];
        for (int k = 0; k < n * n; k++) {
            const int j = 2 * n + k;
            logits[k] = gates_of(&g->numbers, 2, mhc_logit(g->mixes[t * g->row_stride + j], g->scale[2], g->base[j]));
        }
        sinkhorn_bwd_token(g->grad_out[2] + t * n * n, logits, n, p->repeat, p->eps,
                           g->grad_mixes + t * columns + 2 * n);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    gates_bwd_args g = p->gates;
    if (g.grad_out[2]) {
        const int64_t steps = tgl_saturating_product(24 * g.num_streams * g.num_streams, p->repeat);
        TGL_TRY(tgl_parallel_rows(g.num_tokens, steps, run_tokens, p));
        g.grad_out[2] = g.grad_mixes + 2 * g.num_streams;
    }
    return tgl_gates_bwd_on_cpu(&g, gates_columns(g.num_streams, 3));
}

TGL_SIZES(sizes, num_tokens, num_columns, num_streams);
tgl_signature tgl_mhc_split_sinkhorn_bwd_signature = TGL_SIGNATURE(
    "mhc_split_sinkhorn_bwd(mixes: f32[num_tokens, num_columns] rows, scale: f32[3], base: f32[num_columns],"
    " grad_pre_mix: f32[num_tokens, num_streams]?, grad_post_mix: f32[num_tokens, num_streams]?,"
    " grad_comb_mix: " MHC_SQUARE "?, " MHC_POST ", " MHC_SINKHORN ")"
    " -> grad_mixes: f32[num_tokens, num_columns], grad_scale: f32[3], grad_base: f32[num_columns]",
    &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] = (tgl_kernel){ "mhc/split_sinkhorn_bwd", { { "STREAMS", p->gates.num_streams } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const gates_bwd_args *g = &p->gates;
    const uintptr_t rows = (uintptr_t)g->mixes | (uintptr_t)g->base | (uintptr_t)g->grad_out[2];
    p->has_vectors = (rows | 4 * (uint64_t)g->row_stride) % 16 == 0;
    return tgl_gates_bwd_shape(g, SPLIT_SINKHORN_BWD_THREADS(g->num_streams),
                               split_sinkhorn_bwd_bytes(g->num_streams, p->repeat), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_mhc_split_sinkhorn_bwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                      const DLTensor *grad_pre_mix, const DLTensor *grad_post_mix,
                                      const DLTensor *grad_comb_mix, DLTensor *grad_mixes, DLTensor *grad_scale,
                                      DLTensor *grad_base, const tgl_mhc_params *params, void *workspace,
                                      size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { mixes,         scale,      base,       grad_pre_mix, grad_post_mix,
                                  grad_comb_mix, grad_mixes, grad_scale, grad_base };
    sizes s;
    TGL_TRY(tgl_take(&tgl_mhc_split_sinkhorn_bwd_signature, tensors, params, &s.num_tokens));
    problem p = { .repeat = tgl_mhc_sinkhorn_repeat(params), .eps = tgl_mhc_sinkhorn_eps(params) };
    TGL_TRY(tgl_gates_take_grads(&p.gates, tensors, "grad_comb_mix", s.num_tokens, s.num_columns, s.num_streams,
                                 params));
    TGL_TRY(tgl_gates_take_workspace(&p.gates, mixes, workspace, workspace_bytes));
    return tgl_run(&tgl_mhc_split_sinkhorn_bwd_signature, &OP, tensors, &p, stream);
}

size_t tgl_mhc_split_sinkhorn_bwd_workspace_size(const DLTensor *mixes) { return tgl_gates_bwd_workspace_size(mixes); }
