/* SPDX-License-Identifier: MIT
 * sinkhorn_fwd.c - tgl_mhc_sinkhorn_fwd: logits to a nearly doubly stochastic matrix. */
#include "mhc/sinkhorn_fwd.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "mhc/common/mhc_host.h"

typedef sinkhorn_fwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int n = p->num_streams;
    for (int64_t t = begin; t < end; t++) {
        mhc_matrix m;
        for (int i = 0; i < n * n; i++) m.e[i / n][i % n] = p->x[t * n * n + i];
        mhc_sinkhorn(&m, n, p->repeat, p->eps);
        for (int i = 0; i < n * n; i++) p->out[t * n * n + i] = tgl_one_nan(m.e[i / n][i % n]);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t steps = tgl_saturating_product(8 * p->num_streams * p->num_streams, p->repeat);
    return tgl_parallel_rows(p->num_tokens, steps, run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams);
tgl_signature tgl_mhc_sinkhorn_fwd_signature =
    TGL_SIGNATURE("mhc_sinkhorn_fwd(x: " MHC_SQUARE ", " MHC_SINKHORN ")"
                  " -> out: " MHC_SQUARE " where " MHC_RULES ", out may be x",
                  &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    kernels[0] = (tgl_kernel){ "mhc/sinkhorn_fwd", { { "STREAMS", ((const problem *)context)->num_streams } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    p->has_vectors = ((uintptr_t)p->x | (uintptr_t)p->out) % 16 == 0;
    return (tgl_shape){ { tgl_strided_grid(tgl_ceil_div(p->num_tokens, MHC_SINKHORN_TOKENS), INT32_MAX) },
                        .block = MHC_SINKHORN_THREADS(p->num_streams),
                        TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_mhc_sinkhorn_fwd(const DLTensor *x, DLTensor *out, const tgl_mhc_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_sinkhorn_fwd_signature, tensors, params, &n.num_tokens));
    problem p = { .x = tgl_data(x),
                  .out = tgl_data(out),
                  .num_tokens = n.num_tokens,
                  .num_streams = (int32_t)n.num_streams,
                  .repeat = tgl_mhc_sinkhorn_repeat(params),
                  .eps = tgl_mhc_sinkhorn_eps(params) };
    return tgl_run(&tgl_mhc_sinkhorn_fwd_signature, &OP, tensors, &p, stream);
}
