/* SPDX-License-Identifier: MIT
 * post_fwd.c - tgl_mhc_post_fwd: the output of a sublayer into all streams, which may be mixed. */
#include "mhc/post_fwd.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef post_fwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int n = (int)p->num_streams;
    for (int64_t t = begin; t < end; t++)
        for (int64_t c = 0; c < p->hidden; c++) {
            const float y = tgl_bf16_to_f32(p->x.data[t * p->x.token + c]);
            float x[MHC_MAX_STREAMS];
            for (int i = 0; i < n; i++)
                x[i] = tgl_bf16_to_f32(p->residual.data[t * p->residual.token + i * p->residual.stream + c]);
            for (int o = 0; o < n; o++) {
                const float gate = p->post_mix[t * n + o];
                p->out.data[t * p->out.token + o * p->out.stream + c] =
                    tgl_bf16_from_f32(p->has_comb ? rows_post(gate, y, p->comb_mix + t * n * n, x, n, o)
                                                  : post_alone(gate, y, x[o]));
            }
        }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(8 * (1 + p->num_streams), p->hidden), run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, hidden, num_streams);
tgl_signature tgl_mhc_post_fwd_signature =
    TGL_SIGNATURE("mhc_post_fwd(x: bf16[num_tokens, hidden] rows, residual: " ROWS_STREAMS " rows,"
                  " post_mix: f32[num_tokens, num_streams], comb_mix: " MHC_SQUARE "?) -> out: " ROWS_STREAMS " strided"
                  " where " MHC_RULES ", out may be residual",
                  NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro streams = { "STREAMS", p->num_streams }, comb = { "HAS_COMB", p->has_comb };
    kernels[VECTORS] = (tgl_kernel){ "mhc/post_fwd", { streams, comb, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/post_fwd", { streams, comb, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->hidden % ROWS_UNIT == 0 && tgl_rows_have_vectors(p->x) && tgl_rows_have_vectors(p->residual) &&
           tgl_rows_out_have_vectors(p->out);
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_rows_shape(p->num_tokens, p->hidden), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } } };

tgl_status tgl_mhc_post_fwd(const DLTensor *x, const DLTensor *residual, const DLTensor *post_mix,
                            const DLTensor *comb_mix, DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, residual, post_mix, comb_mix, out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_post_fwd_signature, tensors, NULL, &n.num_tokens));
    TGL_TRY(tgl_expect_rows_apart("out", out));
    const float *const post = tgl_data(post_mix), *const comb = tgl_data_or_null(comb_mix);
    problem p = {
        tgl_rows_in(x),    tgl_rows_in(residual), post,          comb,     comb_mix != NULL,
        tgl_rows_out(out), n.num_tokens,          n.num_streams, n.hidden, ((uintptr_t)post | (uintptr_t)comb) % 16 == 0
    };
    return tgl_run(&tgl_mhc_post_fwd_signature, &OP, tensors, &p, stream);
}
