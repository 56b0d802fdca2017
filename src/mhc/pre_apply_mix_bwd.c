/* SPDX-License-Identifier: MIT
 * pre_apply_mix_bwd.c - tgl_mhc_pre_apply_mix_bwd: gradients of a weighted sum of a token's streams. */
#include "mhc/pre_apply_mix_bwd.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef pre_apply_mix_bwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < p->num_streams; i++) {
            const uint16_t *d = tgl_row_in(p->grad_out, t, 0), *x = tgl_row_in(p->x, t, i);
            uint16_t *grad_x = tgl_row_out(p->grad_x, t, i);
            const float mix = p->mix[t * p->num_streams + i];
            p->grad_mix[t * p->num_streams + i] = tgl_one_nan(tgl_rows_dot(d, x, p->hidden));
            for (int64_t c = 0; c < p->hidden; c++)
                grad_x[c] = tgl_bf16_from_f32(tgl_fma(mix, tgl_bf16_to_f32(d[c]),
                                                      p->accumulate ? tgl_bf16_to_f32(grad_x[c]) : 0.0f));
        }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(8 * (1 + p->num_streams), p->hidden), run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, hidden, num_streams);
tgl_signature tgl_mhc_pre_apply_mix_bwd_signature =
    TGL_SIGNATURE("mhc_pre_apply_mix_bwd(grad_out: bf16[num_tokens, hidden] rows, x: " ROWS_STREAMS " rows,"
                  " mix: f32[num_tokens, num_streams], grad_x: " ROWS_STREAMS "! strided)"
                  " -> grad_mix: f32[num_tokens, num_streams] where " MHC_RULES,
                  NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro streams = { "STREAMS", p->num_streams }, accumulate = { "ACCUMULATE", p->accumulate };
    kernels[VECTORS] = (tgl_kernel){ "mhc/pre_apply_mix_bwd", { streams, accumulate, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/pre_apply_mix_bwd", { streams, accumulate, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->hidden % ROWS_UNIT == 0 && tgl_rows_have_vectors(p->grad_out) && tgl_rows_have_vectors(p->x) &&
           tgl_rows_out_have_vectors(p->grad_x);
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_rows_token_shape(p->num_tokens, p->hidden), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } } };

tgl_status tgl_mhc_pre_apply_mix_bwd(const DLTensor *grad_out, const DLTensor *x, const DLTensor *mix, DLTensor *grad_x,
                                     DLTensor *grad_mix, bool accumulate, tgl_stream stream)
{
    const DLTensor *tensors[] = { grad_out, x, mix, grad_x, grad_mix };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_pre_apply_mix_bwd_signature, tensors, NULL, &n.num_tokens));
    TGL_TRY(tgl_expect_rows_apart("grad_x", grad_x));
    problem p = {
        tgl_rows_in(grad_out), tgl_rows_in(x), tgl_data(mix), tgl_rows_out(grad_x), tgl_data(grad_mix),
        n.num_tokens,          n.num_streams,  n.hidden,      accumulate,           (uintptr_t)tgl_data(mix) % 16 == 0
    };
    return tgl_run(&tgl_mhc_pre_apply_mix_bwd_signature, &OP, tensors, &p, stream);
}
