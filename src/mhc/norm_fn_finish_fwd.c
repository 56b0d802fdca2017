/* SPDX-License-Identifier: MIT
 * norm_fn_finish_fwd.c - tgl_mhc_norm_fn_finish_fwd: parts of a projection to mixes. */
#include "mhc/norm_fn_finish_fwd.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef norm_fn_finish_fwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t k = begin * p->num_rows; k < end * p->num_rows; k++) norm_fn_finish_row(p, k, (int)p->num_rows);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(4 * p->num_rows, p->in.num_splits), run_tokens, p);
}

TGL_SIZES(sizes, num_splits, num_tokens, num_rows);
tgl_signature tgl_mhc_norm_fn_finish_fwd_signature =
    TGL_SIGNATURE("mhc_norm_fn_finish_fwd(out_mul_parts: f32[num_splits, num_tokens, num_rows],"
                  " sqrsum_parts: f32[num_splits, num_tokens], has_rms_eps: bool, rms_eps: float >= 0 with has_rms_eps)"
                  " -> mixes: f32[num_tokens, num_rows], out_mul: f32[num_tokens, num_rows]?, sqrsum: f32[num_tokens]?"
                  " where num_splits in " PARTIALS_SPLITS ", " MHC_ROWS,
                  &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    kernels[0] = (tgl_kernel){ "mhc/norm_fn_finish_fwd", { { "ROWS", ((const problem *)context)->num_rows } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return (tgl_shape){ { tgl_strided_grid(tgl_ceil_div(p->num_tokens * p->num_rows, NORM_FN_FINISH_THREADS),
                                           INT32_MAX) },
                        .block = NORM_FN_FINISH_THREADS,
                        TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_mhc_norm_fn_finish_fwd(const DLTensor *out_mul_parts, const DLTensor *sqrsum_parts, DLTensor *mixes,
                                      DLTensor *out_mul, DLTensor *sqrsum, int64_t num_columns,
                                      const tgl_mhc_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { out_mul_parts, sqrsum_parts, mixes, out_mul, sqrsum };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_norm_fn_finish_fwd_signature, tensors, params, &n.num_splits));
    if (num_columns < 1) return tgl_fail(TGL_ERR_ARGUMENT, "num_columns: is %lld, want >= 1", (long long)num_columns);
    problem p = { .in = { tgl_data(out_mul_parts), tgl_data(sqrsum_parts), n.num_splits },
                  .mixes = tgl_data(mixes),
                  .out_mul = tgl_data_or_null(out_mul),
                  .sqrsum = tgl_data_or_null(sqrsum),
                  .num_tokens = n.num_tokens,
                  .num_rows = n.num_rows,
                  .columns = (float)num_columns,
                  .eps = tgl_mhc_rms_eps(params) };
    return tgl_run(&tgl_mhc_norm_fn_finish_fwd_signature, &OP, tensors, &p, stream);
}
