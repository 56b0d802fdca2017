/* SPDX-License-Identifier: MIT
 * sinkhorn_momentum_update.c - tgl_engram_sinkhorn_momentum_update: a moving average of gradients. */
#include "engram/sinkhorn_momentum_update.h"

#include "core/cpu.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "tegula/engram.h"

typedef struct {
    momentum_args args;
    int grad_bytes, momentum_bytes;
    bool nesterov;
} problem;

/* ---- CPU ---- */

TGL_ALWAYS_INLINE float element(const void *x, int64_t i, int bytes)
{
    return bytes == 2 ? tgl_bf16_to_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

enum { CHUNK = 4096 }; /* elements per "row" of the parallel loop */

/* Inlined with constants: each combination has its own loop, without branches. `out` may be `grad`. */
TGL_ALWAYS_INLINE void run(momentum_args a, int64_t begin, int64_t end, int grad_bytes, int momentum_bytes,
                           bool nesterov)
{
    void *restrict momentum = a.momentum;
    for (int64_t i = begin; i < end; i++) {
        const float grad = element(a.grad, i, grad_bytes);
        const float next = momentum_next(&a, element(momentum, i, momentum_bytes), grad);
        if (momentum_bytes == 2) ((uint16_t *)momentum)[i] = tgl_bf16_from_f32(next);
        else ((float *)momentum)[i] = next;
        a.out[i] = nesterov ? momentum_ahead(&a, next, grad) : next;
    }
}

static void run_chunks(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t first = begin * CHUNK, last = tgl_min(end * CHUNK, p->args.count);
    if (p->grad_bytes == 4 && p->momentum_bytes == 4) run(p->args, first, last, 4, 4, p->nesterov);
    else if (p->grad_bytes == 4) run(p->args, first, last, 4, 2, p->nesterov);
    else if (p->momentum_bytes == 4) run(p->args, first, last, 2, 4, p->nesterov);
    else run(p->args, first, last, 2, 2, p->nesterov);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(tgl_ceil_div(p->args.count, CHUNK),
                             (int64_t)CHUNK * (p->grad_bytes + 2 * p->momentum_bytes + 4), run_chunks, p);
}

tgl_signature tgl_engram_sinkhorn_momentum_update_signature =
    TGL_SIGNATURE("engram_sinkhorn_momentum_update(grad: f32|bf16[..., dim], momentum_buffer: f32|bf16[..., dim]!)"
                  " -> out: f32[..., dim] where out may be grad",
                  NULL);

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] = (tgl_kernel){
        "engram/sinkhorn_momentum_update",
        { { "GRAD_BYTES", p->grad_bytes }, { "MOMENTUM_BYTES", p->momentum_bytes }, { "IS_NESTEROV", p->nesterov } }
    };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    momentum_args *a = &p->args;
    a->has_vectors = (uintptr_t)a->grad % (4 * (uintptr_t)p->grad_bytes) == 0 &&
                     (uintptr_t)a->momentum % (4 * (uintptr_t)p->momentum_bytes) == 0 && (uintptr_t)a->out % 16 == 0;
    const int64_t blocks = tgl_ceil_div(a->count, 4 * MOMENTUM_VECTORS * MOMENTUM_THREADS);
    return (tgl_shape){ { tgl_strided_grid(blocks, INT32_MAX) }, .block = MOMENTUM_THREADS, TGL_ARGS(*a) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_engram_sinkhorn_momentum_update(const DLTensor *grad, DLTensor *momentum_buffer, DLTensor *out,
                                               double beta1, bool nesterov, tgl_stream stream)
{
    const DLTensor *tensors[] = { grad, momentum_buffer, out };
    TGL_TRY(tgl_take(&tgl_engram_sinkhorn_momentum_update_signature, tensors, NULL, NULL));
    problem p = { { tgl_data(grad), tgl_data(momentum_buffer), tgl_data(out),
                    tgl_is_empty(out) ? 0 : tgl_num_elements(out), (float)beta1, (float)(1 - beta1), 0 },
                  tgl_dtype_bits(grad->dtype) / 8,
                  tgl_dtype_bits(momentum_buffer->dtype) / 8,
                  nesterov };
    return tgl_run(&tgl_engram_sinkhorn_momentum_update_signature, &OP, tensors, &p, stream);
}
