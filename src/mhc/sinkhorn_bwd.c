/* SPDX-License-Identifier: MIT
 * sinkhorn_bwd.c - tgl_mhc_sinkhorn_bwd: the gradient of Sinkhorn's logits. */
#include "mhc/sinkhorn_bwd.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "mhc/common/mhc_host.h"

typedef sinkhorn_bwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t size = p->num_streams * p->num_streams;
    for (int64_t t = begin; t < end; t++)
        sinkhorn_bwd_token(p->grad_out + t * size, p->x + t * size, p->num_streams, p->repeat, p->eps,
                           p->grad_x + t * size);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t steps = tgl_saturating_product(24 * p->num_streams * p->num_streams, p->repeat);
    return tgl_parallel_rows(p->num_tokens, steps, run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams);
tgl_signature tgl_mhc_sinkhorn_bwd_signature =
    TGL_SIGNATURE("mhc_sinkhorn_bwd(grad_out: " MHC_SQUARE ","
                  " x: " MHC_SQUARE ", " MHC_SINKHORN ")"
                  " -> grad_x: " MHC_SQUARE " where " MHC_RULES ", grad_x may be grad_out, grad_x may be x",
                  &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    kernels[0] = (tgl_kernel){ "mhc/sinkhorn_bwd", { { "STREAMS", ((const problem *)context)->num_streams } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    p->has_vectors = ((uintptr_t)p->x | (uintptr_t)p->grad_out | (uintptr_t)p->grad_x) % 16 == 0;
    return (tgl_shape){ { tgl_strided_grid(tgl_ceil_div(p->num_tokens, MHC_SINKHORN_TOKENS), INT32_MAX) },
                        .block = MHC_SINKHORN_THREADS(p->num_streams),
                        .shared_bytes = (int64_t)sinkhorn_bwd_slots(p->repeat) * 2 * p->num_streams *
                                        MHC_SINKHORN_TOKENS * (int64_t)sizeof(float),
                        TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_mhc_sinkhorn_bwd(const DLTensor *grad_out, const DLTensor *x, DLTensor *grad_x,
                                const tgl_mhc_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { grad_out, x, grad_x };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_sinkhorn_bwd_signature, tensors, params, &n.num_tokens));
    problem p = { .grad_out = tgl_data(grad_out),
                  .x = tgl_data(x),
                  .grad_x = tgl_data(grad_x),
                  .num_tokens = n.num_tokens,
                  .num_streams = (int32_t)n.num_streams,
                  .repeat = tgl_mhc_sinkhorn_repeat(params),
                  .eps = tgl_mhc_sinkhorn_eps(params) };
    return tgl_run(&tgl_mhc_sinkhorn_bwd_signature, &OP, tensors, &p, stream);
}
