/* SPDX-License-Identifier: MIT
 * post_bwd.c - tgl_mhc_post_bwd: gradients of post. */
#include "mhc/post_bwd.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef post_bwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int n = (int)p->num_streams;
    for (int64_t t = begin; t < end; t++) {
        const float *post = p->post_mix + t * n, *comb = p->has_comb ? p->comb_mix + t * n * n : NULL;
        for (int o = 0; o < n; o++) {
            const uint16_t *of = tgl_row_in(p->grad_out, t, o);
            p->grad_post_mix[t * n + o] = tgl_one_nan(tgl_rows_dot(tgl_row_in(p->x, t, 0), of, p->hidden));
            for (int i = 0; comb && i < n; i++)
                p->grad_comb_mix[(t * n + i) * n + o] =
                    tgl_one_nan(tgl_rows_dot(tgl_row_in(p->residual, t, i), of, p->hidden));
        }
        for (int64_t c = 0; c < p->hidden; c++) {
            float in[MHC_MAX_STREAMS];
            for (int o = 0; o < n; o++) in[o] = tgl_bf16_to_f32(tgl_row_in(p->grad_out, t, o)[c]);
            p->grad_x.data[t * p->grad_x.token + c] = tgl_bf16_from_f32(rows_apply(post, in, n));
            for (int i = 0; comb && i < n; i++)
                p->grad_residual.data[t * p->grad_residual.token + i * p->grad_residual.stream + c] =
                    tgl_bf16_from_f32(rows_apply(comb + i * n, in, n));
        }
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t work = 4 * (2 + p->num_streams) * (1 + p->num_streams);
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(work, p->hidden), run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams, hidden);
tgl_signature tgl_mhc_post_bwd_signature =
    TGL_SIGNATURE("mhc_post_bwd(grad_out: " ROWS_STREAMS
                  " rows, x: bf16[num_tokens, hidden] rows, residual: " ROWS_STREAMS "? rows,"
                  " post_mix: f32[num_tokens, num_streams], comb_mix: " MHC_SQUARE "?)"
                  " -> grad_x: bf16[num_tokens, hidden] rows, grad_residual: " ROWS_STREAMS "? strided,"
                  " grad_post_mix: f32[num_tokens, num_streams], grad_comb_mix: " MHC_SQUARE "? where " MHC_RULES
                  ", comb_mix needs residual, residual needs grad_residual, grad_residual needs grad_comb_mix,"
                  " grad_comb_mix needs comb_mix",
                  NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro streams = { "STREAMS", p->num_streams }, comb = { "HAS_COMB", p->has_comb };
    kernels[VECTORS] = (tgl_kernel){ "mhc/post_bwd", { streams, comb, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/post_bwd", { streams, comb, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->hidden % ROWS_UNIT == 0 && tgl_rows_have_vectors(p->grad_out) && tgl_rows_have_vectors(p->x) &&
           tgl_rows_have_vectors(p->residual) && tgl_rows_out_have_vectors(p->grad_x) &&
           tgl_rows_out_have_vectors(p->grad_residual);
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_rows_token_shape(p->num_tokens, p->hidden), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } } };

tgl_status tgl_mhc_post_bwd(const DLTensor *grad_out, const DLTensor *x, const DLTensor *residual,
                            const DLTensor *post_mix, const DLTensor *comb_mix, DLTensor *grad_x,
                            DLTensor *grad_residual, DLTensor *grad_post_mix, DLTensor *grad_comb_mix,
                            tgl_stream stream)
{
    const DLTensor *tensors[] = { grad_out,     x, residual, post_mix, comb_mix, grad_x, grad_residual, grad_post_mix,
                                  grad_comb_mix };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_post_bwd_signature, tensors, NULL, &n.num_tokens));
    const float *const post = tgl_data(post_mix), *const comb = tgl_data_or_null(comb_mix);
    problem p = { .grad_out = tgl_rows_in(grad_out),
                  .x = tgl_rows_in(x),
                  .post_mix = post,
                  .comb_mix = comb,
                  .has_comb = comb_mix != NULL,
                  .grad_x = tgl_rows_out(grad_x),
                  .grad_post_mix = tgl_data(grad_post_mix),
                  .num_tokens = n.num_tokens,
                  .num_streams = n.num_streams,
                  .hidden = n.hidden,
                  .has_mix_vectors = ((uintptr_t)post | (uintptr_t)comb) % 16 == 0 };
    if (comb_mix) {
        TGL_TRY(tgl_expect_rows_apart("grad_residual", grad_residual));
        p.residual = tgl_rows_in(residual);
        p.grad_residual = tgl_rows_out(grad_residual);
        p.grad_comb_mix = tgl_data(grad_comb_mix);
    }
    return tgl_run(&tgl_mhc_post_bwd_signature, &OP, tensors, &p, stream);
}
