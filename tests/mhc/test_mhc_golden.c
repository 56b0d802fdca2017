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
    const tgl_mhc_params params = { .has_sinkhorn_eps = true, .sinkhorn_eps = (float)golden_double(c->golden, "eps"),
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
    const tgl_mhc_params params = { .has_pre_eps = true, .pre_eps = (float)golden_double(c->golden, "mhc_pre_eps"),
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

static tgl_status pre_apply_mix(const golden_call *c)       /* in one case a gradient is there before */
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
static tgl_status norm_fn(const golden_call *c)             /* what the forward saves is not recorded */
{
    tensor t[4], out_mul, sqrsum;
    const DLTensor *x = flat(c, "residual", 3, &t[0]), *fn = golden_arg(c, "mhc_fn");
    const DLTensor *weight = golden_arg(c, "mhc_norm_weight");
    const backend b = { .device = x->device, .stream = c->call->stream };
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = (float)golden_double(c->golden, "mhc_norm_eps"),
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
