/* SPDX-License-Identifier: MIT
 * grad_w_reduce.c - tgl_engram_grad_w_reduce: gradients of the gate's two weights. */
#include "engram/grad_w_reduce.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "engram/grad_w_reduce_cpu.h"
#include "tegula/engram.h"

typedef grad_w_reduce_args problem;

/* ---- CPU ---- */

static void plain_columns(const problem *p, int64_t begin, int64_t end)
{
    const int64_t size = p->num_streams * p->hidden;
    for (int64_t n = begin; n < end; n++) {
        const int64_t h = n / p->hidden, i = n % p->hidden;
        float chains[GRAD_W_CHAINS] = { 0 }, sum = 0;
        for (int64_t partial = 0; partial < p->num_partials; partial++)
            chains[partial % GRAD_W_CHAINS] += p->grad_w_partial[partial * size + n];
        for (int c = 0; c < GRAD_W_CHAINS; c++) sum += chains[c];
        const float hidden = grad_w_factor(p->weight_hidden, h * p->hidden_stride + i, p->is_bf16, p->is_zero_centered);
        const float embed = grad_w_factor(p->weight_embed, h * p->embed_stride + i, p->is_bf16, p->is_zero_centered);
        p->grad_weight_hidden[n] = grad_w_added(p->grad_weight_hidden[n], sum, embed);
        p->grad_weight_embed[n] = grad_w_added(p->grad_weight_embed[n], sum, hidden);
    }
}

static void run_columns(const void *context, int64_t begin, int64_t end)
{
    TGL_CHOOSE(plain_columns, tgl_grad_w_columns)(context, begin, end);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_streams * p->hidden, tgl_saturating_product(4, p->num_partials + 6), run_columns,
                             p);
}

TGL_SIZES(sizes, num_partials, num_streams, hidden);
tgl_signature tgl_engram_grad_w_reduce_signature = TGL_SIGNATURE(
    "engram_grad_w_reduce(grad_w_partial: f32[num_partials, num_streams, hidden],"
    " weight_hidden: bf16|f32[num_streams, hidden] rows, weight_embed: weight_hidden[num_streams, hidden] rows,"
    " grad_weight_hidden: f32[num_streams, hidden]!, grad_weight_embed: f32[num_streams, hidden]!)",
    NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] =
        (tgl_kernel){ "engram/grad_w_reduce", { { "IS_BF16", p->is_bf16 }, { "ZERO_CENTERED", p->is_zero_centered } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return (tgl_shape){ { tgl_ceil_div(p->hidden, GRAD_W_COLUMNS), tgl_strided_grid(p->num_streams, 65535) },
                        .block = GRAD_W_THREADS,
                        TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_engram_grad_w_reduce(const DLTensor *grad_w_partial, const DLTensor *weight_hidden,
                                    const DLTensor *weight_embed, DLTensor *grad_weight_hidden,
                                    DLTensor *grad_weight_embed, bool zero_centered, tgl_stream stream)
{
    const DLTensor *tensors[] = { grad_w_partial, weight_hidden, weight_embed, grad_weight_hidden, grad_weight_embed };
    sizes n;
    TGL_TRY(tgl_take(&tgl_engram_grad_w_reduce_signature, tensors, NULL, &n.num_partials));
    problem p = { tgl_data(grad_w_partial),
                  tgl_data(weight_hidden),
                  tgl_data(weight_embed),
                  tgl_data(grad_weight_hidden),
                  tgl_data(grad_weight_embed),
                  n.num_partials,
                  n.num_streams,
                  n.hidden,
                  tgl_step_of(weight_hidden, 0),
                  tgl_step_of(weight_embed, 0),
                  tgl_dtype_is(weight_hidden->dtype, TGL_BF16),
                  zero_centered,
                  n.hidden % 4 == 0 && (uintptr_t)tgl_data(grad_w_partial) % 16 == 0 };
    return tgl_run(&tgl_engram_grad_w_reduce_signature, &OP, tensors, &p, stream);
}
