/* SPDX-License-Identifier: MIT
 * expand_bwd.c - tgl_mhc_expand_bwd: the sum of a token's streams. */
#include "mhc/expand_bwd.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef expand_bwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++)
        for (int64_t c = 0; c < p->hidden; c++) {
            float sum = 0;
            for (int64_t i = 0; i < p->num_streams; i++)
                sum += tgl_bf16_to_f32(p->grad_out.data[t * p->grad_out.token + i * p->grad_out.stream + c]);
            p->grad_x.data[t * p->grad_x.token + c] = tgl_bf16_from_f32(sum);
        }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(4 * (1 + p->num_streams), p->hidden), run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams, hidden);
tgl_signature tgl_mhc_expand_bwd_signature = TGL_SIGNATURE(
    "mhc_expand_bwd(grad_out: " ROWS_STREAMS " rows) -> grad_x: bf16[num_tokens, hidden] rows where " MHC_RULES,
    NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const tgl_macro streams = { "STREAMS", ((const problem *)context)->num_streams };
    kernels[VECTORS] = (tgl_kernel){ "mhc/expand_bwd", { streams, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/expand_bwd", { streams, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->hidden % ROWS_UNIT == 0 && tgl_rows_have_vectors(p->grad_out) && tgl_rows_out_have_vectors(p->grad_x);
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_rows_shape(p->num_tokens, p->hidden), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } } };

tgl_status tgl_mhc_expand_bwd(const DLTensor *grad_out, DLTensor *grad_x, tgl_stream stream)
{
    const DLTensor *tensors[] = { grad_out, grad_x };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_expand_bwd_signature, tensors, NULL, &n.num_tokens));
    problem p = { tgl_rows_in(grad_out), tgl_rows_out(grad_x), n.num_tokens, n.num_streams, n.hidden };
    return tgl_run(&tgl_mhc_expand_bwd_signature, &OP, tensors, &p, stream);
}
