/* SPDX-License-Identifier: MIT
 * split_sinkhorn_fwd.c - tgl_mhc_split_sinkhorn_fwd: mixes to gates and comb. */
#include "mhc/split_sinkhorn_fwd.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "mhc/common/mhc_host.h"

typedef split_sinkhorn_fwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const gates_fwd_args *g = &p->gates;
    const int n = g->num_streams;
    for (int64_t t = begin; t < end; t++) {
        mhc_matrix m;
        for (int j = 0; j < n * (n + 2); j++) {
            const int group = gates_group(j, n), k = j - group * n;
            const float z = mhc_logit(g->mixes[t * g->row_stride + j], g->scale[group], g->base[j]);
            if (group == 2) m.e[k / n][k % n] = z;
            else g->out[group][t * n + k] = gates_of(&g->numbers, group, z);
        }
        mhc_sinkhorn(&m, n, p->repeat, p->eps);
        for (int i = 0; i < n * n; i++) g->out[2][t * n * n + i] = tgl_one_nan(m.e[i / n][i % n]);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int n = p->gates.num_streams;
    return tgl_parallel_rows(p->gates.num_tokens, tgl_saturating_product(8 * n * (n + 2), p->repeat), run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams);
tgl_signature tgl_mhc_split_sinkhorn_fwd_signature = TGL_SIGNATURE(
    "mhc_split_sinkhorn_fwd(mixes: f32[num_tokens, num_streams * (num_streams + 2)] rows, scale: f32[3],"
    " base: f32[num_streams * (num_streams + 2)], " MHC_PRE ", " MHC_POST ", " MHC_SINKHORN ")"
    " -> pre_mix: f32[num_tokens, num_streams], post_mix: f32[num_tokens, num_streams], comb_mix: " MHC_SQUARE
    " where " MHC_RULES,
    &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] = (tgl_kernel){ "mhc/split_sinkhorn_fwd", { { "STREAMS", p->gates.num_streams } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const gates_fwd_args *g = &p->gates;
    const uintptr_t rows = (uintptr_t)g->mixes | (uintptr_t)g->base | (uintptr_t)g->out[2];
    p->has_vectors = (rows | 4 * (uint64_t)g->row_stride) % 16 == 0;
    return (tgl_shape){ { tgl_strided_grid(tgl_ceil_div(g->num_tokens, MHC_SINKHORN_TOKENS), INT32_MAX) },
                        .block = MHC_SINKHORN_THREADS(g->num_streams),
                        TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_mhc_split_sinkhorn_fwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                      DLTensor *pre_mix, DLTensor *post_mix, DLTensor *comb_mix,
                                      const tgl_mhc_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { mixes, scale, base, pre_mix, post_mix, comb_mix };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_split_sinkhorn_fwd_signature, tensors, params, &n.num_tokens));
    problem p = { .gates = { .mixes = tgl_data(mixes),
                             .scale = tgl_data(scale),
                             .base = tgl_data(base),
                             .out = { tgl_data(pre_mix), tgl_data(post_mix), tgl_data(comb_mix) },
                             .num_tokens = n.num_tokens,
                             .row_stride = tgl_step_of(mixes, 0),
                             .num_streams = (int32_t)n.num_streams,
                             .num_groups = 3,
                             .numbers = tgl_mhc_gates(params) },
                  .repeat = tgl_mhc_sinkhorn_repeat(params),
                  .eps = tgl_mhc_sinkhorn_eps(params) };
    return tgl_run(&tgl_mhc_split_sinkhorn_fwd_signature, &OP, tensors, &p, stream);
}
