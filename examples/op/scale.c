/* SPDX-License-Identifier: MIT
 * scale.c - tgl_scale: out = x * c. */
#include "op/scale.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "op/tegula_scale.h"

static void cpu_rows(const void *problem, int64_t begin, int64_t end)
{
    const scale_args *a = problem;
    for (int64_t row = begin; row < end; row++)
        for (int64_t col = 0; col < a->num_cols; col++) scale_element(a, row, col, a->element_bytes);
}
static tgl_status cpu(const void *problem)
{
    const scale_args *a = problem;
    return tgl_parallel_rows(a->num_rows, tgl_saturating_product(2 * a->element_bytes, a->num_cols), cpu_rows, a);
}

tgl_signature tgl_scale_signature = TGL_SIGNATURE(
    "scale(x: bf16|f32|e4m3[num_rows, num_cols] rows) -> out: x[num_rows, num_cols] rows where out may be x", NULL);

static int plan(const void *problem, tgl_kernel *kernels)
{
    const scale_args *a = problem;
    kernels[0] = (tgl_kernel){ "op/scale", { { "ELEMENT_BYTES", a->element_bytes } } };
    return 1;
}
static tgl_shape shape(void *problem, const tgl_target *target)
{
    const scale_args *a = problem;
    return (tgl_shape){ { tgl_ceil_div(a->num_cols, SCALE_THREADS), tgl_strided_grid(a->num_rows, 65535) },
                        .block = SCALE_THREADS,
                        TGL_ARGS(*a) };
}
static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_scale(const DLTensor *x, float c, DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, out };
    TGL_TRY(tgl_take(&tgl_scale_signature, tensors, NULL, NULL));
    scale_args a = { tgl_data(x),      tgl_data(out),      x->shape[0], x->shape[1],
                     tgl_stride(x, 0), tgl_stride(out, 0), c,           tgl_dtype_bits(x->dtype) / 8 };
    return tgl_run(&tgl_scale_signature, &OP, tensors, &a, stream);
}
