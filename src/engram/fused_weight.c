/* SPDX-License-Identifier: MIT
 * fused_weight.c - tgl_engram_fused_weight: the product of the two RMSNorm weights of the gate. */
#include "engram/fused_weight.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "tegula/engram.h"

typedef fused_weight_args problem;

/* ---- CPU ---- */

static float element(const problem *p, const void *weights, int64_t i)
{
    return p->is_bf16 ? tgl_bf16_to_f32(((const uint16_t *)weights)[i]) : ((const float *)weights)[i];
}

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t h = begin; h < end; h++)
        for (int64_t i = 0; i < p->hidden; i++)
            p->out[h * p->hidden + i] = fused_weight_of(element(p, p->weight_hidden, h * p->hidden_stride + i),
                                                        element(p, p->weight_embed, h * p->embed_stride + i));
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_streams, tgl_saturating_product(p->is_bf16 ? 8 : 12, p->hidden), run_rows, p);
}

tgl_signature tgl_engram_fused_weight_signature =
    TGL_SIGNATURE("engram_fused_weight(weight_hidden: bf16|f32[num_streams, hidden] rows,"
                  " weight_embed: weight_hidden[num_streams, hidden] rows) -> out: f32[num_streams, hidden]",
                  NULL);

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const tgl_macro is_bf16 = { "IS_BF16", ((const problem *)context)->is_bf16 };
    kernels[VECTORS] = (tgl_kernel){ "engram/fused_weight", { is_bf16, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "engram/fused_weight", { is_bf16, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const uint64_t bits = (uintptr_t)p->weight_hidden | (uintptr_t)p->weight_embed | (uintptr_t)p->out;
    const uint64_t strides = (uint64_t)(p->hidden_stride | p->embed_stride) * (p->is_bf16 ? 2 : 4);
    return p->hidden % FUSED_WEIGHT_VECTOR == 0 && (bits | strides) % 16 == 0;
}

static tgl_shape shape_of(problem *p, int64_t columns)
{
    return (tgl_shape){ { tgl_ceil_div(p->hidden, columns * FUSED_WEIGHT_THREADS),
                          tgl_strided_grid(p->num_streams, 65535) },
                        .block = FUSED_WEIGHT_THREADS,
                        TGL_ARGS(*p) };
}
static tgl_shape vectors_shape(void *p, const tgl_target *target) { return shape_of(p, FUSED_WEIGHT_VECTOR); }
static tgl_shape any_shape(void *p, const tgl_target *target) { return shape_of(p, 1); }

static const tgl_op OP = { cpu,
                           plan,
                           { [VECTORS] = { has_vectors, NULL, vectors_shape }, [ANY] = { NULL, NULL, any_shape } } };

tgl_status tgl_engram_fused_weight(const DLTensor *weight_hidden, const DLTensor *weight_embed, DLTensor *out,
                                   tgl_stream stream)
{
    const DLTensor *tensors[] = { weight_hidden, weight_embed, out };
    TGL_TRY(tgl_take(&tgl_engram_fused_weight_signature, tensors, NULL, NULL));
    problem p = { tgl_data(weight_hidden),
                  tgl_data(weight_embed),
                  tgl_data(out),
                  out->shape[0],
                  out->shape[1],
                  tgl_step_of(weight_hidden, 0),
                  tgl_step_of(weight_embed, 0),
                  tgl_dtype_is(weight_hidden->dtype, TGL_BF16) };
    return tgl_run(&tgl_engram_fused_weight_signature, &OP, tensors, &p, stream);
}
