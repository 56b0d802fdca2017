/* SPDX-License-Identifier: MIT
 * pre_fwd.c - tgl_mhc_pre_fwd: from the residual to a sublayer's input: projection, gates, Sinkhorn, collapse, RMSNorm. */
#include "mhc/pre_fwd_host.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

/* ---- CPU ---- */

enum { MAX_CHUNKS = 2 * MHC_MAX_STREAMS * PROJECTION_MAX_SEGMENTS };

/* The first levels of a tree: entries to sums of aligned groups, `group` of them or more, and at most `parts`. */
static void add_groups(float *entries, int64_t count, int64_t group, int64_t parts)
{
    int64_t padded = group;
    while (padded < count) padded *= 2;
    for (int64_t i = count; i < padded; i++) entries[i] = 0;
    for (int64_t left = padded; left > padded / group || left > parts; left /= 2)
        for (int64_t i = 0; i < left / 2; i++) entries[i] = entries[2 * i] + entries[2 * i + 1];
    for (int64_t i = padded / group; i < parts; i++) entries[i] = 0;
}

/* Where column k of a step is in its piece. */
static int64_t column_of_step(int step, int k) { return 8 * (k % 8 / 2) + 4 * step + 2 * (k / 8) + k % 2; }

static float multiply_chunk(const pre_fwd_args *p, const uint16_t *x, const float *fn, const float *weight,
                            int64_t first)
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

static float square_chunk(const pre_fwd_args *p, const uint16_t *x, int64_t first)
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

/* A token's sums, in parts; row < 0: squares. */
static void sum_token(const pre_fwd_args *p, int64_t t, int64_t row, float entries[MAX_CHUNKS], int64_t parts)
{
    const int64_t n = p->num_streams, count = 2 * n * p->segments;
    for (int64_t i = 0; i < parts; i++) entries[i] = 0;
    if (p->hidden == 0) return; /* there is no memory */
    for (int64_t chunk = 0; chunk < count; chunk++) {
        const int64_t i = chunk % (2 * n) / 2, half = 2 * (chunk / (2 * n)) + chunk % 2;
        const int64_t first = half * p->pieces * PROJECTION_PIECE;
        const uint16_t *x = tgl_row_in(p->residual, t, i);
        entries[chunk] = row < 0 ? square_chunk(p, x, first)
                                 : multiply_chunk(p, x, p->fn + (row * n + i) * p->hidden,
                                                  p->norm_weight ? p->norm_weight + i * p->hidden : NULL, first);
    }
    add_groups(entries, count, PRE_SUBTREE(n), parts);
}
static float sum_all(const pre_fwd_args *p, int64_t t, int64_t row)
{
    float entries[MAX_CHUNKS];
    sum_token(p, t, row, entries, 1);
    return entries[0];
}

static void run_tokens_in_parts(const void *context, int64_t begin, int64_t end)
{
    const pre_fwd_args *p = context;
    for (int64_t t = begin; t < end; t++)
        for (int64_t j = -1; j < p->num_rows; j++) {
            float parts[MAX_CHUNKS];
            sum_token(p, t, j, parts, p->num_splits);
            for (int64_t s = 0; s < p->num_splits; s++) {
                const int64_t row = s * p->num_tokens + t;
                *(j < 0 ? &p->sqrsum[row] : &p->out_mul[row * p->num_rows + j]) = tgl_one_nan(parts[s]);
            }
        }
}

static void take_mix(const pre_fwd_args *p, int64_t t, int column, float mix, float *pre, mhc_matrix *comb)
{
    const int n = (int)p->num_streams, group = gates_group(column, n), k = column - group * n;
    const float made = gates_of(&p->numbers, group, mhc_logit(mix, p->scale[group], p->base[column]));
    if (group == 0) pre[k] = made;
    if (group == 2) comb->e[k / n][k % n] = made;
    else if (p->gates[group]) p->gates[group][t * n + k] = made;
}

static void collapse(const pre_fwd_args *p, int64_t t, const float *pre)
{
    const int n = (int)p->num_streams;
    uint16_t *const out = tgl_row_out(p->out, t, 0), *const raw = tgl_row_out(p->raw, t, 0);
    for (int64_t c = 0; c < p->hidden; c++) {
        float x[MHC_MAX_STREAMS];
        for (int i = 0; i < n; i++) x[i] = tgl_bf16_to_f32(tgl_row_in(p->residual, t, i)[c]);
        out[c] = tgl_bf16_from_f32(rows_apply(pre, x, n));
        if (raw) raw[c] = out[c];
    }
    if (!p->is_normed) return;
    const float rstd = pre_rstd(p, tgl_rows_dot(out, out, p->hidden));
    if (p->rstd) p->rstd[t] = tgl_one_nan(rstd);
    for (int64_t c = 0; c < p->hidden; c++)
        out[c] = tgl_bf16_from_f32(pre_normed(tgl_bf16_to_f32(out[c]), rstd, pre_input_weight(p, c)));
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const pre_fwd_args *p = context;
    const int n = (int)p->num_streams;
    for (int64_t t = begin; t < end; t++) {
        const float squares = sum_all(p, t, -1), r = projection_rms(squares, p->columns, p->rms_eps);
        float pre[MHC_MAX_STREAMS];
        mhc_matrix comb;
        if (p->sqrsum) p->sqrsum[t] = tgl_one_nan(squares);
        for (int64_t j = 0; j < p->num_rows; j++) {
            const float sum = sum_all(p, t, j), mix = tgl_one_nan(sum * r);
            if (p->out_mul) p->out_mul[t * p->num_rows + j] = tgl_one_nan(sum);
            if (p->mixes) p->mixes[t * p->num_rows + j] = mix;
            if (p->num_groups) take_mix(p, t, (int)j, mix, pre, &comb);
        }
        if (p->gates[2]) {
            mhc_sinkhorn(&comb, n, p->repeat, p->sinkhorn_eps);
            for (int i = 0; i < n * n; i++) p->gates[2][t * n * n + i] = tgl_one_nan(comb.e[i / n][i % n]);
        }
        if (p->num_groups) collapse(p, t, pre);
    }
}

static tgl_status cpu(const void *context)
{
    const pre_fwd_args *p = &((const pre_problem *)context)->args;
    const int64_t work = tgl_saturating_product(32 * p->num_rows, p->num_streams * p->hidden);
    return tgl_parallel_rows(p->num_tokens, work, p->num_splits ? run_tokens_in_parts : run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams, hidden, num_groups);
tgl_signature tgl_mhc_pre_fwd_signature = TGL_SIGNATURE(
    "mhc_pre_fwd(residual: " ROWS_STREAMS " rows, fn: f32[" MHC_MIXES ", num_streams * hidden],"
    " norm_weight: f32[num_streams * hidden]?, scale: f32[num_groups], base: f32[" MHC_MIXES "],"
    " input_weight: bf16|f32[hidden]?, has_rms_eps: bool, rms_eps: float >= 0 with has_rms_eps, " MHC_PRE ", " MHC_POST
    ", " MHC_SINKHORN
    ", norm: bool, has_norm_eps: bool, norm_eps: float >= 0 with has_norm_eps, norm_scale: float >= 0)"
    " -> pre_mix: f32[num_tokens, num_streams]?, post_mix: f32[num_tokens, num_streams]?, comb_mix: " MHC_SQUARE "?,"
    " out: bf16[num_tokens, hidden] rows, raw: bf16[num_tokens, hidden]? rows, rstd: f32[num_tokens]?,"
    " out_mul: f32[num_tokens, " MHC_MIXES "]?, sqrsum: f32[num_tokens]?"
    " where " MHC_RULES ", hidden >= 1, num_groups in 1..3, input_weight needs norm, rstd needs norm",
    &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { SPLIT, STREAM, VECTORS, ANY, NUM_KERNELS };
/* Are there kernels for few and for many tokens? */
static bool has_stream(int64_t num_streams, int64_t hidden, int64_t num_rows)
{
    const int64_t pieces = projection_pieces(hidden);
    return num_streams == PRE_STREAM_STREAMS && hidden % 64 == 0 && pieces >= PRE_STREAM_MIN_PIECES &&
           pieces <= PRE_STREAM_MAX_PIECES && projection_segments(hidden) >= PRE_STREAM_MIN_SEGMENTS && num_rows <= 24;
}

static int plan(const void *context, tgl_kernel *kernels)
{
    const pre_fwd_args *a = &((const pre_problem *)context)->args;
    const tgl_macro streams = { "STREAMS", a->num_streams }, rows = { "ROWS", a->num_rows };
    const tgl_macro segments = { "SEGMENTS", a->segments }, weight = { "HAS_WEIGHT", a->has_weight };
    const tgl_macro groups = { "GROUPS", a->num_groups }, parts = { "PARTS", a->num_splits > 0 };
    const tgl_macro pieces = { "PIECES", a->pieces };
    const bool is_tuned = has_stream(a->num_streams, a->hidden, a->num_rows);
    kernels[SPLIT] =
        (tgl_kernel){ is_tuned ? "mhc/pre_fwd_split" : NULL, { pieces, segments, rows, groups, weight, parts } };
    kernels[STREAM] = (tgl_kernel){ is_tuned && !a->has_weight ? "mhc/pre_fwd_stream" : NULL,
                                    { pieces, segments, rows, groups, parts, { "NORM", a->is_normed } } };
    kernels[VECTORS] = (tgl_kernel){ a->hidden % ROWS_UNIT ? NULL : "mhc/pre_fwd",
                                     { streams, rows, segments, weight, groups, parts, { "HAS_VECTORS", 1 } } };
    kernels[ANY] =
        (tgl_kernel){ "mhc/pre_fwd", { streams, rows, segments, weight, groups, parts, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const pre_fwd_args *a = &((const pre_problem *)context)->args;
    return tgl_rows_have_vectors(a->residual) && (uintptr_t)a->fn % 16 == 0 && tgl_rows_out_have_vectors(a->out) &&
           tgl_rows_out_have_vectors(a->raw);
}

/* All blocks are resident at once, one per SM. */
static bool fits_split(const void *context, const tgl_target *target)
{
    const pre_fwd_args *a = &((const pre_problem *)context)->args;
    return has_vectors(context, target) && (uintptr_t)a->norm_weight % 16 == 0 &&
           a->num_tokens <= PRE_SPLIT_CHUNKS(a->segments) && target->num_sms >= PRE_SPLIT_CHUNKS(a->segments) &&
           target->max_smem_per_block >= PRE_SPLIT_BYTES(a->pieces, a->segments, a->num_rows, a->num_tokens);
}

/* At least one cluster fits on the SMs, and rows have strides that a tensor copy can have: any but 0. */
static bool fits_stream(const void *context, const tgl_target *target)
{
    const pre_fwd_args *a = &((const pre_problem *)context)->args;
    const rows_in *r = &a->residual;
    return target->architecture >= 90 && target->architecture < 120 && target->num_sms >= a->segments &&
           has_vectors(context, target) && r->stream > 0 && r->stream < (int64_t)1 << 38 && r->token >= 0 &&
           r->token < (int64_t)1 << 38 && (r->token > 0 || a->num_tokens == 1) && a->num_tokens < (int64_t)1 << 31 &&
           target->max_smem_per_block >= PRE_STREAM_BYTES(a->pieces, a->segments, a->num_rows, a->is_normed);
}

static int64_t tiles_of(int64_t num_tokens, int64_t num_streams)
{
    return tgl_ceil_div(num_tokens, PRE_TOKENS(num_streams));
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    pre_fwd_args *a = &((pre_problem *)context)->args;
    return (tgl_shape){ { a->segments, tgl_strided_grid(tiles_of(a->num_tokens, a->num_streams), 65535) },
                        .block = (int)(64 * a->num_streams),
                        .shared_bytes = PRE_SHARED_BYTES(a->num_streams),
                        TGL_ARGS(*a) };
}

static tgl_shape split_shape(void *context, const tgl_target *target)
{
    pre_problem *p = context;
    pre_fwd_args *a = &p->args;
    p->any = shape(context, target);
    p->otherwise = (tgl_other_launch){ VECTORS, &p->any };
    return (tgl_shape){ { PRE_SPLIT_CHUNKS(a->segments) },
                        .block = PRE_SPLIT_THREADS,
                        .cooperative = true,
                        .shared_bytes = PRE_SPLIT_BYTES(a->pieces, a->segments, a->num_rows, a->num_tokens),
                        .otherwise = &p->otherwise,
                        TGL_ARGS(*a) };
}

static tgl_shape stream_shape(void *context, const tgl_target *target)
{
    pre_problem *p = context;
    const pre_fwd_args *a = &p->args;
    const int64_t tiles = tgl_ceil_div(a->num_tokens, PRE_STREAM_TILE);
    const uint64_t hidden = (uint64_t)a->hidden, between = a->num_tokens > 1 ? (uint64_t)a->residual.token : hidden;
    p->stream.args = *a;
    p->copied = (tgl_copied_tensor){ .map = p->stream.map,
                                     .data = a->residual.data,
                                     .rank = 4,
                                     .sizes = { 64, PRE_STREAM_STREAMS, (uint64_t)a->num_tokens, hidden / 64 },
                                     .strides = { 2 * (uint64_t)a->residual.stream, 2 * between, 128 },
                                     .box = { 64, PRE_STREAM_STREAMS, PRE_STREAM_TILE, (uint32_t)a->pieces } };
    p->any = shape(context, target);
    p->otherwise = (tgl_other_launch){ VECTORS, &p->any };
    const int64_t clusters = tgl_strided_grid(tgl_min(tiles, target->num_sms / a->segments), INT32_MAX);
    return (tgl_shape){ { a->segments * clusters },
                        .block = PRE_STREAM_THREADS,
                        .cluster = (int)a->segments,
                        .shared_bytes = PRE_STREAM_BYTES(a->pieces, a->segments, a->num_rows, a->is_normed),
                        .is_cut = true,
                        .copied = &p->copied,
                        .otherwise = &p->otherwise,
                        TGL_ARGS(p->stream) };
}

const tgl_op TGL_PRE_FWD = { cpu,
                             plan,
                             { [SPLIT] = { fits_split, NULL, split_shape },
                               [STREAM] = { fits_stream, NULL, stream_shape },
                               [VECTORS] = { has_vectors, NULL, shape },
                               [ANY] = { NULL, NULL, shape } } };

/* The workspace has counters, then partial sums. */
static int64_t counter_bytes(int64_t num_tokens, int64_t num_streams)
{
    return tgl_ceil_div(4 * tiles_of(num_tokens, num_streams), TGL_WORKSPACE_ALIGNMENT) * TGL_WORKSPACE_ALIGNMENT;
}

size_t tgl_mhc_pre_fwd_workspace_size(const DLTensor *residual, const DLTensor *fn)
{
    if (!residual || !fn || residual->ndim != 3 || fn->ndim != 2 || tgl_on_cpu(residual)) return 0;
    const int64_t tokens = residual->shape[0], n = residual->shape[1], hidden = residual->shape[2], rows = fn->shape[0];
    if (tokens < 0 || tokens >= (int64_t)1 << 40 || n < 1 || n > MHC_MAX_STREAMS || hidden < 1 || rows < 1 ||
        rows > PROJECTION_MAX_ROWS)
        return 0;
    const int64_t entry = projection_segments(hidden) * PRE_SUBTREES(n) * (rows + 1) * (int64_t)sizeof(float);
    const int64_t any = counter_bytes(tokens, n) + tokens * entry, pieces = projection_pieces(hidden);
    const int64_t segments = projection_segments(hidden), max_split = PRE_SPLIT_CHUNKS(segments);
    if (!has_stream(n, hidden, rows)) return (size_t)any;
    return (size_t)tgl_max(any, 4 * PRE_SPLIT_WORDS(pieces, segments, rows, tgl_min(tokens, max_split)));
}

void tgl_pre_take(pre_fwd_args *a, const DLTensor *residual, const DLTensor *fn, const DLTensor *norm_weight,
                  void *workspace)
{
    a->residual = tgl_rows_in(residual);
    a->fn = tgl_data(fn);
    a->norm_weight = tgl_data_or_null(norm_weight), a->has_weight = norm_weight != NULL;
    a->num_tokens = residual->shape[0], a->num_streams = residual->shape[1], a->hidden = residual->shape[2];
    a->num_rows = fn->shape[0];
    a->pieces = projection_pieces(a->hidden), a->segments = projection_segments(a->hidden);
    a->columns = (float)(a->num_streams * a->hidden);
    a->arrived = a->words = workspace;
    if (workspace) a->partial = (void *)((char *)workspace + counter_bytes(a->num_tokens, a->num_streams));
}

tgl_status tgl_mhc_pre_fwd(const DLTensor *residual, const DLTensor *fn, const DLTensor *norm_weight,
                           const DLTensor *scale, const DLTensor *base, const DLTensor *input_weight, DLTensor *pre_mix,
                           DLTensor *post_mix, DLTensor *comb_mix, DLTensor *out, DLTensor *raw, DLTensor *rstd,
                           DLTensor *out_mul, DLTensor *sqrsum, const tgl_mhc_params *params, void *workspace,
                           size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { residual, fn,       norm_weight, scale, base, input_weight, pre_mix,
                                  post_mix, comb_mix, out,         raw,   rstd, out_mul,      sqrsum };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_pre_fwd_signature, tensors, params, &n.num_tokens));
    if ((post_mix && n.num_groups < 2) || (comb_mix && n.num_groups < 3))
        return tgl_fail(TGL_ERR_ARGUMENT, "scale: shape is [%d], want [%s] with %s", (int)n.num_groups,
                        comb_mix ? "3" : "2 or 3", comb_mix ? "comb_mix" : "post_mix");
    TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, tgl_mhc_pre_fwd_workspace_size(residual, fn)));
    pre_problem p = { .args = { .scale = tgl_data(scale),
                                .base = tgl_data(base),
                                .input_weight = tgl_data_or_null(input_weight),
                                .out_mul = tgl_data_or_null(out_mul),
                                .sqrsum = tgl_data_or_null(sqrsum),
                                .gates = { tgl_data_or_null(pre_mix), tgl_data_or_null(post_mix),
                                           tgl_data_or_null(comb_mix) },
                                .out = tgl_rows_out(out),
                                .rstd = tgl_data_or_null(rstd),
                                .num_groups = (int32_t)n.num_groups,
                                .repeat = tgl_mhc_sinkhorn_repeat(params),
                                .is_normed = params->norm,
                                .has_bf16_weight = input_weight && tgl_dtype_bits(input_weight->dtype) == 16,
                                .rms_eps = tgl_mhc_rms_eps(params),
                                .sinkhorn_eps = tgl_mhc_sinkhorn_eps(params),
                                .norm_eps = params->has_norm_eps ? params->norm_eps : 1e-6f,
                                .norm_scale = params->norm_scale != 0 ? params->norm_scale : 1,
                                .numbers = tgl_mhc_gates(params) } };
    if (raw) p.args.raw = tgl_rows_out(raw);
    tgl_pre_take(&p.args, residual, fn, norm_weight, workspace);
    return tgl_run(&tgl_mhc_pre_fwd_signature, &TGL_PRE_FWD, tensors, &p, stream);
}
