/* SPDX-License-Identifier: MIT
 * The mHC ops against recorded data. */
#include "core/tensor.h"
#include "golden.h"
#include "ops.h"
#include "tegula/mhc.h"

/* A recorded tensor [a, b, ...] as the ops take it: [a * b, ...] of `ndim` dimensions, without a last one of size 1. */
static DLTensor *flat(const golden_call *c, const char *name, int ndim, tensor *made)
{
    const DLTensor *t = golden_arg(c, name);
    if (!t) return NULL;
    *made = (tensor){ .t = *t };
    made->t.shape = made->shape, made->t.strides = made->strides, made->t.ndim = ndim;
    for (int d = 0; d < ndim; d++) made->shape[d] = t->shape[d + 1], made->strides[d] = tgl_stride(t, d + 1);
    made->shape[0] *= t->shape[0];
    return &made->t;
}

static tgl_status sinkhorn(const golden_call *c)
{
    tensor t[4];
    const tgl_mhc_params params = { .has_sinkhorn_eps = true,
                                    .sinkhorn_eps = (float)golden_double(c->golden, "eps"),
                                    .sinkhorn_repeat = golden_int(c->golden, "repeat") };
    const DLTensor *x = flat(c, "x", 3, &t[0]);
    TGL_TRY(tgl_mhc_sinkhorn_fwd(x, flat(c, "out", 3, &t[1]), &params, c->call->stream));
    return tgl_mhc_sinkhorn_bwd(flat(c, "out_grad", 3, &t[2]), x, flat(c, "x_grad", 3, &t[3]), &params,
                                c->call->stream);
}

static size_t split_workspace(const golden_call *c)
{
    tensor t;
    return tgl_mhc_pre_split_mixes_bwd_workspace_size(flat(c, "input_mixes", 2, &t));
}
static tgl_status split(const golden_call *c)
{
    tensor t[8];
    const tgl_mhc_params params = { .has_pre_eps = true,
                                    .pre_eps = (float)golden_double(c->golden, "mhc_pre_eps"),
                                    .has_post_mult = true,
                                    .post_mult = (float)golden_double(c->golden, "mhc_post_mult_value") };
    const DLTensor *mixes = flat(c, "input_mixes", 2, &t[0]), *scale = golden_arg(c, "mhc_scale");
    const DLTensor *base = golden_arg(c, "mhc_base");
    TGL_TRY(tgl_mhc_pre_split_mixes_fwd(mixes, scale, base, flat(c, "pre_layer_mix", 2, &t[1]),
                                        flat(c, "post_layer_mix", 2, &t[2]), flat(c, "comb_res_mix", 3, &t[3]), &params,
                                        c->call->stream));
    if (!golden_arg(c, "input_mixes_grad")) return TGL_OK;
    return tgl_mhc_pre_split_mixes_bwd(mixes, scale, base, flat(c, "pre_layer_mix_grad", 2, &t[4]),
                                       flat(c, "post_layer_mix_grad", 2, &t[5]), flat(c, "comb_res_mix_grad", 3, &t[6]),
                                       flat(c, "input_mixes_grad", 2, &t[7]), golden_arg(c, "scale_grad"),
                                       golden_arg(c, "base_grad"), &params, c->call->workspace,
                                       c->call->workspace_bytes, c->call->stream);
}

static size_t head_workspace(const golden_call *c)
{
    tensor t;
    return tgl_mhc_head_compute_mix_bwd_workspace_size(flat(c, "input_mix", 2, &t));
}
static tgl_status head(const golden_call *c)
{
    tensor t[4];
    const tgl_mhc_params params = { .has_pre_eps = true, .pre_eps = (float)golden_double(c->golden, "mhc_pre_eps") };
    const DLTensor *mixes = flat(c, "input_mix", 2, &t[0]), *scale = golden_arg(c, "mhc_scale");
    const DLTensor *base = golden_arg(c, "mhc_base");
    TGL_TRY(tgl_mhc_head_compute_mix_fwd(mixes, scale, base, flat(c, "out", 2, &t[1]), &params, c->call->stream));
    return tgl_mhc_head_compute_mix_bwd(mixes, scale, base, flat(c, "out_grad", 2, &t[2]),
                                        flat(c, "input_mix_grad", 2, &t[3]), golden_arg(c, "scale_grad"),
                                        golden_arg(c, "base_grad"), c->call->workspace, c->call->workspace_bytes,
                                        c->call->stream);
}

static tgl_status expand(const golden_call *c)
{
    tensor t[4];
    TGL_TRY(tgl_mhc_expand_fwd(flat(c, "hidden", 2, &t[0]), flat(c, "out", 3, &t[1]), c->call->stream));
    return tgl_mhc_expand_bwd(flat(c, "out_grad", 3, &t[2]), flat(c, "hidden_grad", 2, &t[3]), c->call->stream);
}

static tgl_status pre_apply_mix(const golden_call *c) /* in one case a gradient is there before */
{
    tensor t[6];
    const DLTensor *x = flat(c, "x", 3, &t[0]), *mix = flat(c, "mix", 2, &t[1]);
    TGL_TRY(tgl_mhc_pre_apply_mix_fwd(x, mix, flat(c, "out", 2, &t[2]), c->call->stream));
    if (!golden_arg(c, "x_grad")) return TGL_OK;
    return tgl_mhc_pre_apply_mix_bwd(flat(c, "out_grad", 2, &t[3]), x, mix, flat(c, "x_grad", 3, &t[4]),
                                     flat(c, "mix_grad", 2, &t[5]), !strcmp(c->golden->name, "accumulate"),
                                     c->call->stream);
}

static tgl_status post(const golden_call *c)
{
    tensor t[10];
    const DLTensor *x = flat(c, "x", 2, &t[0]), *residual = flat(c, "residual", 3, &t[1]);
    const DLTensor *post_mix = flat(c, "post_layer_mix", 2, &t[2]), *comb = flat(c, "comb_res_mix", 3, &t[3]);
    TGL_TRY(tgl_mhc_post_fwd(x, residual, post_mix, comb, flat(c, "out", 3, &t[4]), c->call->stream));
    if (!golden_arg(c, "x_grad")) return TGL_OK;
    return tgl_mhc_post_bwd(flat(c, "out_grad", 3, &t[5]), x, residual, post_mix, comb, flat(c, "x_grad", 2, &t[6]),
                            flat(c, "residual_grad", 3, &t[7]), flat(c, "post_layer_mix_grad", 2, &t[8]),
                            flat(c, "comb_res_mix_grad", 3, &t[9]), c->call->stream);
}

static size_t norm_fn_workspace(const golden_call *c)
{
    tensor t;
    const DLTensor *x = flat(c, "residual", 3, &t), *fn = golden_arg(c, "mhc_fn");
    const size_t forward = tgl_mhc_norm_fn_fwd_workspace_size(x, fn);
    const size_t backward = tgl_mhc_norm_fn_bwd_workspace_size(x, fn);
    return forward > backward ? forward : backward;
}
static tgl_status norm_fn(const golden_call *c) /* what the forward saves is not recorded */
{
    tensor t[4], out_mul, sqrsum;
    const DLTensor *x = flat(c, "residual", 3, &t[0]), *fn = golden_arg(c, "mhc_fn");
    const DLTensor *weight = golden_arg(c, "mhc_norm_weight");
    const backend b = { .device = x->device, .stream = c->call->stream };
    const tgl_mhc_params params = { .has_rms_eps = true,
                                    .rms_eps = (float)golden_double(c->golden, "mhc_norm_eps"),
                                    .accumulate = !strcmp(c->golden->name, "accumulate") };
    place(&b, &out_mul, TGL_F32, 2, SHAPE(x->shape[0], fn->shape[0]), NULL);
    place(&b, &sqrsum, TGL_F32, 1, SHAPE(x->shape[0]), NULL);
    tgl_status status = tgl_mhc_norm_fn_fwd(x, fn, weight, flat(c, "out", 2, &t[1]), &out_mul.t, &sqrsum.t, &params,
                                            c->call->workspace, c->call->workspace_bytes, c->call->stream);
    if (status == TGL_OK && golden_arg(c, "fn_grad"))
        status = tgl_mhc_norm_fn_bwd(flat(c, "out_grad", 2, &t[2]), x, fn, weight, &out_mul.t, &sqrsum.t,
                                     flat(c, "residual_grad", 3, &t[3]), golden_arg(c, "fn_grad"),
                                     golden_arg(c, "norm_weight_grad"), &params, c->call->workspace,
                                     c->call->workspace_bytes, c->call->stream);
    CHECK_OK(backend_wait(&b, c->call->stream));
    discard(&b, &out_mul), discard(&b, &sqrsum);
    return status;
}

static void check_recorded(const char *op, golden_run run, golden_workspace workspace, int want_count)
{
    int count = 0;
    for (const golden_case *g; (g = golden_at("mhc", op, count)); count++)
        FOR_BACKENDS(b) {
            case_report report;
            if (workspace) golden_check_with_workspace(g, run, workspace, b, &report);
            else golden_check(g, run, b, &report);
            CHECK_THAT(report.result == CASE_PASSED, "%s: %s %s: %s", b->name, g->op, g->name, report.text);
        }
    CHECK_INT(count, want_count);
}

TEST(expand_to_mhc) { check_recorded("expand_to_mhc", expand, NULL, 6); }
TEST(mhc_head_compute_mix) { check_recorded("mhc_head_compute_mix", head, head_workspace, 4); }
TEST(mhc_post) { check_recorded("mhc_post", post, NULL, 6); }
TEST(mhc_pre_apply_mix) { check_recorded("mhc_pre_apply_mix", pre_apply_mix, NULL, 6); }
TEST(mhc_pre_norm_fn) { check_recorded("mhc_pre_norm_fn", norm_fn, norm_fn_workspace, 9); }
TEST(mhc_pre_split_mixes) { check_recorded("mhc_pre_split_mixes", split, split_workspace, 8); }
TEST(sinkhorn_normalize) { check_recorded("sinkhorn_normalize", sinkhorn, NULL, 8); }

/* ---- forms of models: embedding, three sites, exit ---- */

/* Of a tensor [sites, ...]: that of a site. */
static DLTensor *of_site(const golden_call *c, const char *name, int64_t site, tensor *made)
{
    const DLTensor *t = golden_arg(c, name);
    if (!t) return NULL;
    *made = (tensor){ .t = *t };
    made->t.ndim = t->ndim - 1;
    made->t.shape = made->shape, made->t.strides = made->strides;
    for (int d = 0; d < made->t.ndim; d++) made->shape[d] = t->shape[d + 1], made->strides[d] = tgl_stride(t, d + 1);
    made->t.byte_offset = t->byte_offset + (uint64_t)(site * tgl_stride(t, 0) * tgl_dtype_bits(t->dtype) / 8);
    return &made->t;
}

/* The residual before a site: that of the site before, at first the embedding, a row for all streams. */
static const DLTensor *residual_at(const golden_call *c, int64_t site, tensor *made)
{
    if (site > 0) return of_site(c, "residual", site - 1, made);
    const DLTensor *e = golden_arg(c, "embedding");
    *made = (tensor){ .t = *e };
    made->t.ndim = 3, made->t.shape = made->shape, made->t.strides = made->strides;
    const int64_t shape[] = { e->shape[0], golden_arg(c, "residual")->shape[2], e->shape[1] };
    const int64_t strides[] = { tgl_stride(e, 0), 0, tgl_stride(e, 1) };
    memcpy(made->shape, shape, sizeof shape), memcpy(made->strides, strides, sizeof strides);
    return &made->t;
}

static size_t form_workspace(const golden_call *c)
{
    tensor x, fn;
    return tgl_mhc_pre_fwd_workspace_size(of_site(c, "residual", 0, &x), of_site(c, "fn", 0, &fn));
}

static tgl_mhc_params form_params(const golden_call *c)
{
    return (tgl_mhc_params){ .has_rms_eps = true,
                             .rms_eps = (float)golden_double(c->golden, "rms_eps"),
                             .has_norm_eps = true,
                             .norm_eps = (float)golden_double(c->golden, "norm_eps"),
                             .post_eps = (float)golden_double(c->golden, "post_eps"),
                             .sinkhorn_repeat = golden_int(c->golden, "repeat"),
                             .norm = !golden_bool(c->golden, "shifted") };
}

/* A site of the shifted form, by separate ops: its input is collapsed by the gate of the site before. */
static tgl_status shifted_site(const golden_call *c, int64_t site, const DLTensor *x, const tgl_mhc_params *params)
{
    tensor t[8], mixes;
    const backend b = { .device = x->device, .stream = c->call->stream };
    const DLTensor *fn = of_site(c, "fn", site, &t[0]);
    const DLTensor *carried = site ? of_site(c, "pre_mix", site - 1, &t[1]) : golden_arg(c, "mix");
    place(&b, &mixes, TGL_F32, 2, SHAPE(x->shape[0], fn->shape[0]), NULL);
    tgl_status status = tgl_mhc_pre_apply_mix_fwd(x, carried, of_site(c, "input", site, &t[2]), c->call->stream);
    if (status == TGL_OK)
        status = tgl_mhc_norm_fn_fwd(x, fn, NULL, &mixes.t, NULL, NULL, params, c->call->workspace,
                                     c->call->workspace_bytes, c->call->stream);
    if (status == TGL_OK)
        status = tgl_mhc_split_sinkhorn_fwd(&mixes.t, of_site(c, "scale", site, &t[3]), of_site(c, "base", site, &t[4]),
                                            of_site(c, "pre_mix", site, &t[5]), of_site(c, "post_mix", site, &t[6]),
                                            of_site(c, "comb_mix", site, &t[7]), params, c->call->stream);
    CHECK_OK(backend_wait(&b, c->call->stream));
    discard(&b, &mixes);
    return status;
}

static tgl_status form(const golden_call *c)
{
    const tgl_mhc_params params = form_params(c);
    const int64_t sites = golden_arg(c, "fn")->shape[0];
    tensor t[9], at;
    for (int64_t site = 0; site < sites; site++) {
        const DLTensor *x = residual_at(c, site, &at), *comb = of_site(c, "comb_mix", site, &t[0]);
        const DLTensor *post_mix = of_site(c, "post_mix", site, &t[1]);
        if (golden_bool(c->golden, "shifted")) TGL_TRY(shifted_site(c, site, x, &params));
        else
            TGL_TRY(tgl_mhc_pre_fwd(x, of_site(c, "fn", site, &t[2]), NULL, of_site(c, "scale", site, &t[3]),
                                    of_site(c, "base", site, &t[4]), of_site(c, "gain", site, &t[5]),
                                    of_site(c, "pre_mix", site, &t[6]), &t[1].t, comb ? &t[0].t : NULL,
                                    of_site(c, "input", site, &t[7]), NULL, NULL, NULL, NULL, &params,
                                    c->call->workspace, c->call->workspace_bytes, c->call->stream));
        TGL_TRY(tgl_mhc_post_fwd(of_site(c, "y", site, &t[2]), x, post_mix, comb, of_site(c, "residual", site, &t[8]),
                                 c->call->stream));
    }
    const DLTensor *last = residual_at(c, sites, &at);
    if (golden_arg(c, "head_fn"))
        return tgl_mhc_pre_fwd(last, golden_arg(c, "head_fn"), NULL, golden_arg(c, "head_scale"),
                               golden_arg(c, "head_base"), golden_arg(c, "head_gain"), NULL, NULL, NULL,
                               golden_arg(c, "out"), NULL, NULL, NULL, NULL, &params, c->call->workspace,
                               c->call->workspace_bytes, c->call->stream);
    const bool is_last = !strcmp(golden_text(c->golden, "exit"), "last"); /* otherwise the mean */
    return tgl_mhc_pre_apply_mix_fwd(last, is_last ? of_site(c, "pre_mix", sites - 1, &t[0]) : golden_arg(c, "mix"),
                                     golden_arg(c, "out"), c->call->stream);
}
TEST(mhc_form) { check_recorded("mhc_form", form, form_workspace, 8); }
