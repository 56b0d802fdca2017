/* SPDX-License-Identifier: MIT
 * pre_apply_mix_fwd.c - tgl_mhc_pre_apply_mix_fwd: a weighted sum of a token's streams. */
#include "mhc/pre_apply_mix_fwd.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef pre_apply_mix_fwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int n = (int)p->num_streams;
    for (int64_t t = begin; t < end; t++)
        for (int64_t c = 0; c < p->hidden; c++) {
            float x[MHC_MAX_STREAMS];
            for (int i = 0; i < n; i++) x[i] = tgl_bf16_to_f32(p->x.data[t * p->x.token + i * p->x.stream + c]);
            p->out.data[t * p->out.token + c] = tgl_bf16_from_f32(rows_apply(p->mix + t * n, x, n));
        }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(4 * (1 + p->num_streams), p->hidden), run_tokens, p);
}

TGL_SIZES(sizes, num_tokens, num_streams, hidden);
tgl_signature tgl_mhc_pre_apply_mix_fwd_signature =
    TGL_SIGNATURE("mhc_pre_apply_mix_fwd(x: " ROWS_STREAMS " rows, mix: f32[num_tokens, num_streams])"
                  " -> out: bf16[num_tokens, hidden] rows where " MHC_RULES,
                  NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const tgl_macro streams = { "STREAMS", ((const problem *)context)->num_streams };
    kernels[VECTORS] = (tgl_kernel){ "mhc/pre_apply_mix_fwd", { streams, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/pre_apply_mix_fwd", { streams, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->hidden % ROWS_UNIT == 0 && tgl_rows_have_vectors(p->x) && tgl_rows_out_have_vectors(p->out);
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_rows_shape(p->num_tokens, p->hidden), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } } };

tgl_status tgl_mhc_pre_apply_mix_fwd(const DLTensor *x, const DLTensor *mix, DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, mix, out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_pre_apply_mix_fwd_signature, tensors, NULL, &n.num_tokens));
    problem p = { tgl_rows_in(x),
                  tgl_data(mix),
                  tgl_rows_out(out),
                  n.num_tokens,
                  n.num_streams,
                  n.hidden,
                  (uintptr_t)tgl_data(mix) % 16 == 0 };
    return tgl_run(&tgl_mhc_pre_apply_mix_fwd_signature, &OP, tensors, &p, stream);
}
