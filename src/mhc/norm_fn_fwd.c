/* SPDX-License-Identifier: MIT
 * norm_fn_fwd.c - tgl_mhc_norm_fn_fwd: RMSNorm of a token's streams times the rows of fn. */
#include "mhc/norm_fn_fwd.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef norm_fn_fwd_args problem;

/* ---- CPU ---- */

enum { MAX_CHUNKS = 2 * MHC_MAX_STREAMS * PROJECTION_MAX_SEGMENTS };

static float tree(float *entries, int64_t count)
{
    int64_t padded = 1;
    while (padded < count) padded *= 2;
    for (int64_t i = count; i < padded; i++) entries[i] = 0;
    for (; padded > 1; padded /= 2)
        for (int64_t i = 0; i < padded / 2; i++) entries[i] = entries[2 * i] + entries[2 * i + 1];
    return entries[0];
}

/* Where column k of a step is in its piece. */
static int64_t column_of_step(int step, int k) { return 8 * (k % 8 / 2) + 4 * step + 2 * (k / 8) + k % 2; }

static float multiply_chunk(const problem *p, const uint16_t *x, const float *fn, const float *weight, int64_t first)
{
    float sums[2] = { 0, 0 };
    for (int64_t piece = first; piece < first + p->pieces * PROJECTION_PIECE; piece += PROJECTION_PIECE)
        for (int step = 0; step < 2; step++) {
            double hi = (double)sums[0], lo = (double)sums[1];
            for (int k = 0; k < 16; k++) {
                const int64_t column = piece + column_of_step(step, k);
                if (column >= p->hidden) continue;
                const projection_parts f = projection_split(weight ? fn[column] * weight[column] : fn[column]);
                const double v = (double)tgl_bf16_to_f32(x[column]);
                hi += v * (double)tgl_f32_from_bits(f.hi);
                lo += v * (double)tgl_f32_from_bits(f.lo);
            }
            sums[0] = (float)hi, sums[1] = (float)lo;
        }
    return sums[0] + sums[1];
}

static float square_chunk(const problem *p, const uint16_t *x, int64_t first)
{
    float of_quad[4];
    for (int q = 0; q < 4; q++) {
        float sums[2] = { 0, 0 };
        for (int64_t piece = first; piece < first + p->pieces * PROJECTION_PIECE; piece += PROJECTION_PIECE)
            for (int64_t i = 0; i < 8; i++) {
                const int64_t column = piece + 8 * q + i;
                const float v = column < p->hidden ? tgl_bf16_to_f32(x[column]) : 0.0f;
                sums[i % 2] = tgl_fma(v, v, sums[i % 2]);
            }
        of_quad[q] = sums[0] + sums[1];
    }
    return (of_quad[0] + of_quad[1]) + (of_quad[2] + of_quad[3]);
}

/* row < 0: squares */
static float sum_token(const problem *p, int64_t t, int64_t row)
{
    float entries[MAX_CHUNKS];
    const int64_t n = p->num_streams, count = 2 * n * p->segments;
    if (p->hidden == 0) return 0;               /* there is no memory */
    for (int64_t chunk = 0; chunk < count; chunk++) {
        const int64_t i = chunk % (2 * n) / 2, half = 2 * (chunk / (2 * n)) + chunk % 2;
        const int64_t first = half * p->pieces * PROJECTION_PIECE;
        const uint16_t *x = tgl_row_in(p->residual, t, i);
        entries[chunk] = row < 0 ? square_chunk(p, x, first)
                                 : multiply_chunk(p, x, p->fn + (row * n + i) * p->hidden,
                                                  p->norm_weight ? p->norm_weight + i * p->hidden : NULL, first);
    }
    return tree(entries, count);
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        const float squares = sum_token(p, t, -1), r = projection_rms(squares, p->columns, p->eps);
        if (p->sqrsum) p->sqrsum[t] = tgl_one_nan(squares);
        for (int64_t j = 0; j < p->num_rows; j++) {
            const float sum = sum_token(p, t, j);
            if (p->out_mul) p->out_mul[t * p->num_rows + j] = tgl_one_nan(sum);
            p->mixes[t * p->num_rows + j] = tgl_one_nan(sum * r);
        }
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t work = tgl_saturating_product(32 * p->num_rows, p->num_streams * p->hidden);
    return tgl_parallel_rows(p->num_tokens, work, run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams, hidden, num_rows);
tgl_signature tgl_mhc_norm_fn_fwd_signature = TGL_SIGNATURE(
    "mhc_norm_fn_fwd(residual: " ROWS_STREAMS " rows, fn: f32[num_rows, num_streams * hidden],"
    " norm_weight: f32[num_streams * hidden]?, has_rms_eps: bool, rms_eps: float >= 0 with has_rms_eps)"
    " -> mixes: f32[num_tokens, num_rows], out_mul: f32[num_tokens, num_rows]?, sqrsum: f32[num_tokens]?"
    " where " MHC_RULES ", hidden >= 1, num_rows in 1..80", &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro streams = { "STREAMS", p->num_streams }, rows = { "ROWS", p->num_rows };
    const tgl_macro segments = { "SEGMENTS", p->segments }, weight = { "HAS_WEIGHT", p->norm_weight != NULL };
    kernels[VECTORS] = (tgl_kernel){ p->hidden % ROWS_UNIT ? NULL : "mhc/norm_fn_fwd",
                                     { streams, rows, segments, weight, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/norm_fn_fwd", { streams, rows, segments, weight, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return tgl_rows_have_vectors(p->residual) && (uintptr_t)p->fn % 16 == 0;
}

static int64_t tiles_of(int64_t num_tokens, int64_t num_streams)
{
    return tgl_ceil_div(num_tokens, NORM_FN_TOKENS(num_streams));
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return (tgl_shape){ { p->segments, tgl_strided_grid(tiles_of(p->num_tokens, p->num_streams), 65535) },
                        .block = (int)(64 * p->num_streams),
                        .shared_bytes = NORM_FN_SHARED_BYTES(p->num_streams), TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan, { [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } } };

/* Of the workspace: counters, then partial sums. */
static int64_t counter_bytes(int64_t num_tokens, int64_t num_streams)
{
    return tgl_ceil_div(4 * tiles_of(num_tokens, num_streams), TGL_WORKSPACE_ALIGNMENT) * TGL_WORKSPACE_ALIGNMENT;
}

size_t tgl_mhc_norm_fn_fwd_workspace_size(const DLTensor *residual, const DLTensor *fn)
{
    if (!residual || !fn || residual->ndim != 3 || fn->ndim != 2 || tgl_on_cpu(residual)) return 0;
    const int64_t tokens = residual->shape[0], n = residual->shape[1], hidden = residual->shape[2], rows = fn->shape[0];
    if (tokens < 0 || tokens >= (int64_t)1 << 40 || n < 1 || n > MHC_MAX_STREAMS || hidden < 1 || rows < 1 ||
        rows > PROJECTION_MAX_ROWS)
        return 0;
    const int64_t entry = projection_segments(hidden) * NORM_FN_GROUPS(n) * (rows + 1) * (int64_t)sizeof(float);
    return (size_t)(counter_bytes(tokens, n) + tokens * entry);
}

tgl_status tgl_mhc_norm_fn_fwd(const DLTensor *residual, const DLTensor *fn, const DLTensor *norm_weight,
                               DLTensor *mixes, DLTensor *out_mul, DLTensor *sqrsum, const tgl_mhc_params *params,
                               void *workspace, size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { residual, fn, norm_weight, mixes, out_mul, sqrsum };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_norm_fn_fwd_signature, tensors, params, &n.num_tokens));
    TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, tgl_mhc_norm_fn_fwd_workspace_size(residual, fn)));
    problem p = { .residual = tgl_rows_in(residual), .fn = tgl_data(fn),
                  .norm_weight = norm_weight ? tgl_data(norm_weight) : NULL, .mixes = tgl_data(mixes),
                  .out_mul = out_mul ? tgl_data(out_mul) : NULL, .sqrsum = sqrsum ? tgl_data(sqrsum) : NULL,
                  .num_tokens = n.num_tokens, .num_streams = n.num_streams, .hidden = n.hidden, .num_rows = n.num_rows,
                  .pieces = projection_pieces(n.hidden), .segments = projection_segments(n.hidden),
                  .columns = (float)(n.num_streams * n.hidden), .eps = params->has_rms_eps ? params->rms_eps : 1e-6f,
                  .arrived = workspace };
    if (workspace) p.partial = (float *)(void *)((char *)workspace + counter_bytes(n.num_tokens, n.num_streams));
    return tgl_run(&tgl_mhc_norm_fn_fwd_signature, &OP, tensors, &p, stream);
}
