/* SPDX-License-Identifier: MIT */
#include "core/math.h"
#include "core/threads.h"
#include "mhc/common/gates_host.h"
#include "mhc/common/mhc_host.h"

/* ---- forward, CPU ---- */

static float *out_at(float *const *out, int64_t t, int column, int n)
{
    const int group = gates_group(column, n);
    return out[group] + (group == 2 ? t * n * n : t * n) + column - group * n;
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const gates_fwd_args *a = context;
    const int n = a->num_streams, columns = gates_columns(n, a->num_groups);
    for (int64_t t = begin; t < end; t++)
        for (int j = 0; j < columns; j++) {
            const int group = gates_group(j, n);
            const float z = mhc_logit(a->mixes[t * a->row_stride + j], a->scale[group], a->base[j]);
            *out_at(a->out, t, j, n) = gates_of(&a->numbers, group, z);
        }
}

static tgl_status cpu_fwd(const void *context)
{
    const gates_fwd_args *a = context;
    return tgl_parallel_rows(a->num_tokens, 16 * gates_columns(a->num_streams, a->num_groups), run_tokens, a);
}

/* ---- backward, CPU ---- */

typedef struct {
    const gates_bwd_args *a;
    int64_t comb_stride;
    double (*sums)[2];
} backward;

static float slope_at(const backward *b, int64_t t, int column)
{
    const gates_bwd_args *a = b->a;
    const int n = a->num_streams, group = gates_group(column, n);
    const float *grad = a->grad_out[group];
    const float d = grad ? grad[t * (group == 2 ? b->comb_stride : n) + column - group * n] : 0.0f;
    const float z = mhc_logit(a->mixes[t * a->row_stride + column], a->scale[group], a->base[column]);
    return gates_slope(&a->numbers, group, z, d);
}

static void run_tokens_bwd(const void *context, int64_t begin, int64_t end)
{
    const backward *b = context;
    const gates_bwd_args *a = b->a;
    const int columns = gates_columns(a->num_streams, a->num_groups);
    for (int64_t t = begin; t < end; t++)
        for (int j = 0; j < columns; j++)
            a->grad_mixes[t * columns + j] = tgl_one_nan(slope_at(b, t, j) * a->scale[gates_group(j, a->num_streams)]);
}

static void run_columns(const void *context, int64_t begin, int64_t end)
{
    const backward *b = context;
    const gates_bwd_args *a = b->a;
    for (int64_t j = begin; j < end; j++) {
        double of_base[GATES_CHUNK_STRANDS] = { 0 }, of_scale[GATES_CHUNK_STRANDS] = { 0 };
        for (int64_t first = 0; first < a->num_tokens; first += GATES_CHUNK) {
            const int64_t strand = first / GATES_CHUNK % GATES_CHUNK_STRANDS;
            float g_sums[GATES_STRANDS] = { 0 }, product_sums[GATES_STRANDS] = { 0 };
            for (int64_t t = first; t < tgl_min(first + GATES_CHUNK, a->num_tokens); t++) {
                const float g = slope_at(b, t, (int)j);
                float *of = &product_sums[t % GATES_STRANDS];
                g_sums[t % GATES_STRANDS] += g;
                *of = tgl_fma(g, a->mixes[t * a->row_stride + j], *of);
            }
            of_base[strand] += (double)(mhc_tree(g_sums, 8) + mhc_tree(g_sums + 8, 8));
            of_scale[strand] += (double)(mhc_tree(product_sums, 8) + mhc_tree(product_sums + 8, 8));
        }
        b->sums[j][0] = gates_chunk_tree(of_base, 1);
        b->sums[j][1] = gates_chunk_tree(of_scale, 1);
    }
}

tgl_status tgl_gates_bwd_on_cpu(const gates_bwd_args *a, int64_t comb_stride)
{
    const int n = a->num_streams, columns = gates_columns(n, a->num_groups);
    double sums[GATES_MAX_COLUMNS][2], of_scale[3] = { 0, 0, 0 };
    const backward b = { a, comb_stride, sums };
    TGL_TRY(tgl_parallel_rows(columns, tgl_saturating_product(24, a->num_tokens), run_columns, &b));
    TGL_TRY(tgl_parallel_rows(a->num_tokens, 24 * columns, run_tokens_bwd, &b)); /* last: maybe over grad_out[2] */
    for (int j = 0; j < columns; j++) {
        a->grad_base[j] = tgl_one_nan((float)sums[j][0]);
        of_scale[gates_group(j, n)] += sums[j][1];
    }
    for (int group = 0; group < a->num_groups; group++) a->grad_scale[group] = tgl_one_nan((float)of_scale[group]);
    return TGL_OK;
}

static tgl_status cpu_bwd(const void *context)
{
    const gates_bwd_args *a = context;
    return tgl_gates_bwd_on_cpu(a, (int64_t)a->num_streams * a->num_streams);
}

/* ---- launch ---- */

static int plan_fwd(const void *context, tgl_kernel *kernels)
{
    const gates_fwd_args *a = context;
    kernels[0] =
        (tgl_kernel){ "mhc/pre_split_mixes_fwd", { { "STREAMS", a->num_streams }, { "GROUPS", a->num_groups } } };
    return 1;
}

static tgl_shape shape_fwd(void *context, const tgl_target *target)
{
    gates_fwd_args *a = context;
    const int tokens = GATES_THREADS / gates_columns(a->num_streams, a->num_groups);
    /* INT32_MAX blocks are enough: more tokens would take terabytes. */
    return (tgl_shape){ { tgl_ceil_div(a->num_tokens, tokens) }, .block = GATES_THREADS, TGL_ARGS(*a) };
}

const tgl_op TGL_GATES_FWD = { cpu_fwd, plan_fwd, { { .shape = shape_fwd } } };

static int plan_bwd(const void *context, tgl_kernel *kernels)
{
    const gates_bwd_args *a = context;
    kernels[0] =
        (tgl_kernel){ "mhc/pre_split_mixes_bwd", { { "STREAMS", a->num_streams }, { "GROUPS", a->num_groups } } };
    return 1;
}

static int64_t chunks_of(int64_t num_tokens) { return tgl_ceil_div(num_tokens, GATES_CHUNK); }

tgl_shape tgl_gates_bwd_shape(const gates_bwd_args *a, int block, int64_t shared_bytes, const void *args, size_t size)
{
    const int64_t grid = tgl_strided_grid(tgl_max(1, chunks_of(a->num_tokens)), INT32_MAX); /* sums of none, too */
    return tgl_shape_with((tgl_shape){ { grid }, .block = block, .shared_bytes = shared_bytes }, args, size);
}
static tgl_shape shape_bwd(void *context, const tgl_target *target)
{
    const gates_bwd_args *a = context;
    return tgl_gates_bwd_shape(a, GATES_BWD_THREADS(gates_columns(a->num_streams, a->num_groups)), 0, a, sizeof *a);
}

const tgl_op TGL_GATES_BWD = { cpu_bwd, plan_bwd, { { .shape = shape_bwd } } };

size_t tgl_gates_bwd_workspace_size(const DLTensor *mixes)
{
    if (!mixes || mixes->ndim != 2 || tgl_on_cpu(mixes) || mixes->shape[0] < 0 || mixes->shape[1] < 0) return 0;
    const int64_t row = tgl_saturating_product(8, mixes->shape[1]);
    const int64_t bytes = tgl_saturating_product(row, chunks_of(mixes->shape[0]));
    return (size_t)tgl_min(bytes, INT64_MAX - TGL_WORKSPACE_ALIGNMENT) + TGL_WORKSPACE_ALIGNMENT;
}

tgl_status tgl_gates_take_grads(gates_bwd_args *a, const DLTensor *const *tensors, const char *comb, int64_t num_tokens,
                                int64_t num_columns, int64_t num_streams, const tgl_mhc_params *params)
{
    enum { MIXES, SCALE, BASE, GRAD_PRE, GRAD_POST, GRAD_COMB, GRAD_MIXES, GRAD_SCALE, GRAD_BASE };
    const char *const names[] = { "grad_pre_mix", "grad_post_mix", comb };
    const int num_groups = (int)tensors[SCALE]->shape[0];
    int n = 1;
    while (n < MHC_MAX_STREAMS && gates_columns(n, num_groups) < num_columns) n++;
    if (gates_columns(n, num_groups) != num_columns)
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "mixes: shape is [%lld, %lld], want [%lld, %s] for n in 1.." TGL_TEXT(MHC_MAX_STREAMS),
                        (long long)num_tokens, (long long)num_columns, (long long)num_tokens,
                        num_groups == 3 ? "n * (n + 2)" : "2 * n");
    if (tensors[GRAD_COMB] && num_groups == 2)
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: is given, want NULL for mixes without comb", comb);
    for (int i = 0; i < 3; i++)
        if (tensors[GRAD_PRE + i] && num_streams != n)
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: shape is [..., %lld], want [..., %d]", names[i],
                            (long long)num_streams, n);
    *a = (gates_bwd_args){ .mixes = tgl_data(tensors[MIXES]),
                           .scale = tgl_data(tensors[SCALE]),
                           .base = tgl_data(tensors[BASE]),
                           .grad_mixes = tgl_data(tensors[GRAD_MIXES]),
                           .grad_scale = tgl_data(tensors[GRAD_SCALE]),
                           .grad_base = tgl_data(tensors[GRAD_BASE]),
                           .num_tokens = num_tokens,
                           .row_stride = tgl_step_of(tensors[MIXES], 0),
                           .num_streams = n,
                           .num_groups = num_groups,
                           .numbers = tgl_mhc_gates(params) };
    for (int i = 0; i < 3; i++) a->grad_out[i] = tgl_data_or_null(tensors[GRAD_PRE + i]);
    return TGL_OK;
}

tgl_status tgl_gates_take_workspace(gates_bwd_args *a, const DLTensor *mixes, void *workspace, size_t workspace_bytes)
{
    TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, tgl_gates_bwd_workspace_size(mixes)));
    a->started = workspace;
    a->partial = workspace ? a->started + TGL_WORKSPACE_ALIGNMENT / sizeof *a->partial : NULL;
    return TGL_OK;
}
