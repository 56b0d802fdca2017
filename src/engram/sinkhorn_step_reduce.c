/* SPDX-License-Identifier: MIT
 * sinkhorn_step_reduce.c - tgl_engram_sinkhorn_step_reduce: sums of columns over partial rows. */
#include "core/math.h"
#include "core/threads.h"
#include "engram/common/sinkhorn_host.h"
#include "tegula/engram.h"

static tgl_status cpu(const void *context)
{
    const sinkhorn_reduce_args *a = context;
    return tgl_parallel_rows(a->dim, tgl_saturating_product(4, a->num_partials), tgl_sinkhorn_reduce, a);
}

tgl_signature tgl_engram_sinkhorn_step_reduce_signature =
    TGL_SIGNATURE("engram_sinkhorn_step_reduce(col_sumsq_partial: f32[num_partials, dim] rows) -> col_sumsq: f32[dim]",
                  NULL);

static int plan(const void *context, tgl_kernel *kernels)
{
    kernels[0] = (tgl_kernel){ "engram/sinkhorn_step_reduce", { { NULL, 0 } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    const sinkhorn_reduce_args *a = context;
    return (tgl_shape){ { tgl_strided_grid(tgl_ceil_div(a->dim, SINKHORN_REDUCE_COLUMNS), INT32_MAX) },
                        .block = SINKHORN_REDUCE_THREADS,
                        .shared_bytes = SINKHORN_TILE_BYTES(SINKHORN_REDUCE_THREADS),
                        TGL_ARGS(*a) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_engram_sinkhorn_step_reduce(const DLTensor *col_sumsq_partial, DLTensor *col_sumsq, tgl_stream stream)
{
    const DLTensor *tensors[] = { col_sumsq_partial, col_sumsq };
    TGL_TRY(tgl_take(&tgl_engram_sinkhorn_step_reduce_signature, tensors, NULL, NULL));
    sinkhorn_reduce_args a = { tgl_data(col_sumsq_partial), tgl_data(col_sumsq), 0, col_sumsq_partial->shape[0],
                               col_sumsq->shape[0] };
    if (a.num_partials > 1) a.stride = tgl_stride(col_sumsq_partial, 0);
    return tgl_run(&tgl_engram_sinkhorn_step_reduce_signature, &OP, tensors, &a, stream);
}
