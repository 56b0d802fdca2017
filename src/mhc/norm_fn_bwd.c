/* SPDX-License-Identifier: MIT
 * norm_fn_bwd.c - tgl_mhc_norm_fn_bwd: gradients of the projection. */
#include "mhc/norm_fn_bwd.h"

#include <string.h>

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef norm_fn_bwd_args problem;

/* ---- CPU ---- */

static float dmul_at(const problem *p, int64_t t, int64_t j)
{
    return tgl_tf32_from_f32(p->grad_mixes[t * p->num_rows + j] * projection_rms(p->sqrsum[t], p->columns, p->eps));
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t rows = p->num_rows, n = p->num_streams, columns = n * p->hidden;
    for (int64_t t = begin; t < end; t++) {
        float dmul[PROJECTION_MAX_ROWS], of_lane[NORM_FN_BWD_LANES] = { 0 };
        for (int64_t j = 0; j < rows; j++) {
            dmul[j] = dmul_at(p, t, j);
            float *dr = of_lane + j % NORM_FN_BWD_LANES;
            *dr = tgl_fma(p->grad_mixes[t * rows + j], p->out_mul[t * rows + j], *dr);
        }
        const float r = projection_rms(p->sqrsum[t], p->columns, p->eps);
        const float slope = norm_fn_slope(norm_fn_lane_tree(of_lane), r, p->sqrsum[t], p->eps_columns);
        for (int64_t k = 0; k < columns; k++) {
            const int64_t i = k / p->hidden, c = k % p->hidden;
            float sum = 0;
            for (int64_t first = 0; first < rows; first += 8) { /* a step of a tensor core */
                double step = (double)sum;
                for (int64_t j = first; j < tgl_min(first + 8, rows); j++) {
                    const float fn = p->fn[j * columns + k];
                    step += (double)dmul[j] * (double)tgl_tf32_from_f32(p->norm_weight ? fn * p->norm_weight[k] : fn);
                }
                sum = (float)step;
            }
            const float x = tgl_bf16_to_f32(p->residual.data[t * p->residual.token + i * p->residual.stream + c]);
            uint16_t *to = p->grad_residual.data + t * p->grad_residual.token + i * p->grad_residual.stream + c;
            *to = tgl_bf16_from_f32(norm_fn_grad(p->accumulate ? tgl_bf16_to_f32(*to) : 0.0f, sum, x, slope));
        }
    }
}

/* grad_fn of some columns: of each row and column the sums with hi and lo of a group, and that of the groups before. */
enum { BLOCK = 16 };
typedef float block[PROJECTION_MAX_ROWS][BLOCK];
typedef struct { block hi, lo, all; } sums;

static void add_step(const problem *p, sums *s, int64_t first, int64_t end, int64_t column, int64_t count)
{
    for (int64_t j = 0; j < p->num_rows; j++) {
        double hi[16], lo[16];
        for (int64_t t = first; t < end; t++) {
            const projection_parts parts = projection_split(dmul_at(p, t, j));
            hi[t - first] = (double)tgl_f32_from_bits(parts.hi), lo[t - first] = (double)tgl_f32_from_bits(parts.lo);
        }
        for (int64_t k = 0; k < count; k++) {
            const int64_t i = (column + k) / p->hidden, c = (column + k) % p->hidden;
            const uint16_t *x = p->residual.data + i * p->residual.stream + c;
            double sum_hi = (double)s->hi[j][k], sum_lo = (double)s->lo[j][k];
            for (int64_t t = first; t < end; t++) {
                const double v = (double)tgl_bf16_to_f32(x[t * p->residual.token]);
                sum_hi += hi[t - first] * v, sum_lo += lo[t - first] * v;
            }
            s->hi[j][k] = (float)sum_hi, s->lo[j][k] = (float)sum_lo;
        }
    }
}

static void run_columns(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t columns = p->num_streams * p->hidden;
    for (int64_t column = begin * BLOCK; column < tgl_min(end * BLOCK, columns); column += BLOCK) {
        const int64_t count = tgl_min(BLOCK, columns - column);
        sums s;
        for (int64_t g = 0; g < p->num_groups; g++) {
            const int64_t last = tgl_min((g + 1) * p->group, p->num_tokens);
            memset(s.hi, 0, sizeof s.hi), memset(s.lo, 0, sizeof s.lo);
            for (int64_t first = g * p->group; first < last; first += 16)
                add_step(p, &s, first, tgl_min(first + 16, last), column, count);
            for (int64_t j = 0; j < p->num_rows; j++)
                for (int64_t k = 0; k < count; k++) {
                    const float sum = s.hi[j][k] + s.lo[j][k];
                    s.all[j][k] = g == 0 ? sum : s.all[j][k] + sum;
                }
        }
        for (int64_t k = 0; k < count; k++) {
            float of_weight = 0;
            for (int64_t j = 0; j < p->num_rows; j++) {
                const int64_t at = j * columns + column + k;
                const float sum = s.all[j][k];
                p->grad_fn[at] = tgl_one_nan(p->norm_weight ? sum * p->norm_weight[column + k] : sum);
                of_weight = tgl_fma(sum, p->fn[at], of_weight);
            }
            if (p->grad_norm_weight) p->grad_norm_weight[column + k] = tgl_one_nan(of_weight);
        }
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t columns = p->num_streams * p->hidden;
    TGL_TRY(tgl_parallel_rows(tgl_ceil_div(columns, BLOCK),
                              tgl_saturating_product(32 * p->num_rows * BLOCK, p->num_tokens), run_columns, p));
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(16 * p->num_rows, columns), run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_rows, num_streams, hidden);
tgl_signature tgl_mhc_norm_fn_bwd_signature =
    TGL_SIGNATURE("mhc_norm_fn_bwd(grad_mixes: f32[num_tokens, num_rows], residual: " ROWS_STREAMS " rows,"
                  " fn: f32[num_rows, num_streams * hidden], norm_weight: f32[num_streams * hidden]?,"
                  " out_mul: f32[num_tokens, num_rows], sqrsum: f32[num_tokens], grad_residual: " ROWS_STREAMS
                  "! strided,"
                  " has_rms_eps: bool, rms_eps: float >= 0 with has_rms_eps, accumulate: bool)"
                  " -> grad_fn: f32[num_rows, num_streams * hidden], grad_norm_weight: f32[num_streams * hidden]?"
                  " where " MHC_RULES ", hidden >= 1, " MHC_ROWS ", grad_norm_weight needs norm_weight",
                  &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { RING, VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro rows = { "ROWS", p->num_rows };
    const tgl_macro accumulate = { "ACCUMULATE", p->accumulate }, weight = { "HAS_WEIGHT", p->has_weight };
    const bool has_units = p->hidden % ROWS_UNIT == 0;
    kernels[RING] = (tgl_kernel){ has_units && p->num_rows <= NORM_FN_BWD_RING_ROWS ? "mhc/norm_fn_bwd_ring" : NULL,
                                  { rows, accumulate, weight } };
    kernels[VECTORS] =
        (tgl_kernel){ has_units ? "mhc/norm_fn_bwd" : NULL, { rows, accumulate, weight, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/norm_fn_bwd", { rows, accumulate, weight, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return tgl_rows_have_vectors(p->residual) && tgl_rows_out_have_vectors(p->grad_residual);
}

static int64_t ring_bytes(const problem *p)
{
    return p->accumulate ? NORM_FN_BWD_RING_BYTES(p->num_rows, 1) : NORM_FN_BWD_RING_BYTES(p->num_rows, 0);
}
static bool has_ring(const void *context, const tgl_target *target)
{
    const problem *p = context; /* the kernel counts tokens of a group in 32 bits */
    return has_vectors(p, target) && ring_bytes(p) <= target->max_smem_per_block && p->group <= INT32_MAX / 2;
}

static int64_t slices_of(int64_t num_streams, int64_t hidden)
{
    return num_streams * tgl_ceil_div(hidden, NORM_FN_BWD_COLUMNS);
}
/* As many groups, of at least NORM_FN_BWD_GROUP_TOKENS each, as let all blocks of the ring run at once on an H200: 8192
 * x 7168 takes 360 us with 2 groups, 411 with 7 or 8 (2026-11). Sums depend on it, so it is the same for every
 * device. */
static int64_t groups_of(int64_t num_tokens, int64_t num_streams, int64_t hidden)
{
    const int64_t slices = num_streams * tgl_ceil_div(hidden, NORM_FN_BWD_RING_COLUMNS);
    const int64_t max_groups = tgl_min(NORM_FN_BWD_GROUPS, NORM_FN_BWD_AT_ONCE / slices);
    return tgl_max(1, tgl_min(max_groups, tgl_ceil_div(num_tokens, NORM_FN_BWD_GROUP_TOKENS)));
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t padded = NORM_FN_BWD_PADDED(p->num_rows);
    const int64_t bytes = NORM_FN_BWD_TOKENS * (NORM_FN_BWD_COLUMNS + 8) * 2 +
                          2 * padded * (NORM_FN_BWD_TOKENS + 8) * 2 +
                          NORM_FN_BWD_TOKENS * (NORM_FN_BWD_DMUL_STRIDE(p->num_rows) + 1) * 4;
    return (tgl_shape){ { slices_of(p->num_streams, p->hidden), p->num_groups },
                        .block = NORM_FN_BWD_THREADS,
                        .shared_bytes = bytes,
                        TGL_ARGS(*p) };
}

static tgl_shape ring_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t slices = p->num_streams * tgl_ceil_div(p->hidden, NORM_FN_BWD_RING_COLUMNS);
    return (tgl_shape){
        { slices * p->num_groups }, .block = NORM_FN_BWD_RING_THREADS, .shared_bytes = ring_bytes(p), TGL_ARGS(*p)
    };
}

static const tgl_op OP = {
    cpu,
    plan,
    { [RING] = { has_ring, NULL, ring_shape }, [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } }
};

static int64_t counter_bytes(int64_t num_streams, int64_t hidden)
{
    return tgl_ceil_div(4 * slices_of(num_streams, hidden), TGL_WORKSPACE_ALIGNMENT) * TGL_WORKSPACE_ALIGNMENT;
}

size_t tgl_mhc_norm_fn_bwd_workspace_size(const DLTensor *residual, const DLTensor *fn)
{
    if (!residual || !fn || residual->ndim != 3 || fn->ndim != 2 || tgl_on_cpu(residual)) return 0;
    const int64_t tokens = residual->shape[0], n = residual->shape[1], hidden = residual->shape[2], rows = fn->shape[0];
    if (tokens < 0 || n < 1 || n > MHC_MAX_STREAMS || hidden < 1 || hidden >= (int64_t)1 << 40 || rows < 1 ||
        rows > PROJECTION_MAX_ROWS)
        return 0;
    return (size_t)(counter_bytes(n, hidden) +
                    groups_of(tokens, n, hidden) * rows * n * hidden * (int64_t)sizeof(float));
}

tgl_status tgl_mhc_norm_fn_bwd(const DLTensor *grad_mixes, const DLTensor *residual, const DLTensor *fn,
                               const DLTensor *norm_weight, const DLTensor *out_mul, const DLTensor *sqrsum,
                               DLTensor *grad_residual, DLTensor *grad_fn, DLTensor *grad_norm_weight,
                               const tgl_mhc_params *params, void *workspace, size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { grad_mixes, residual,      fn,      norm_weight,     out_mul,
                                  sqrsum,     grad_residual, grad_fn, grad_norm_weight };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_norm_fn_bwd_signature, tensors, params, &n.num_tokens));
    TGL_TRY(tgl_expect_rows_apart("grad_residual", grad_residual));
    TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, tgl_mhc_norm_fn_bwd_workspace_size(residual, fn)));
    const int64_t groups = groups_of(n.num_tokens, n.num_streams, n.hidden);
    problem p = { .grad_mixes = tgl_data(grad_mixes),
                  .fn = tgl_data(fn),
                  .norm_weight = tgl_data_or_null(norm_weight),
                  .has_weight = norm_weight != NULL,
                  .out_mul = tgl_data(out_mul),
                  .sqrsum = tgl_data(sqrsum),
                  .residual = tgl_rows_in(residual),
                  .grad_residual = tgl_rows_out(grad_residual),
                  .grad_fn = tgl_data(grad_fn),
                  .grad_norm_weight = tgl_data_or_null(grad_norm_weight),
                  .num_tokens = n.num_tokens,
                  .num_streams = n.num_streams,
                  .hidden = n.hidden,
                  .num_rows = n.num_rows,
                  .num_groups = groups,
                  .group = tgl_ceil_div(n.num_tokens, groups),
                  .arrived = workspace,
                  .columns = (float)(n.num_streams * n.hidden),
                  .eps = tgl_mhc_rms_eps(params),
                  .accumulate = params->accumulate };
    p.eps_columns = p.eps * p.columns;
    if (workspace) p.partial = (float *)(void *)((char *)workspace + counter_bytes(n.num_streams, n.hidden));
    return tgl_run(&tgl_mhc_norm_fn_bwd_signature, &OP, tensors, &p, stream);
}
