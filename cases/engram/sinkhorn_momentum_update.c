/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "cases/engram/common/sinkhorn.h"
#include "core/status.h"

enum { GRAD, MOMENTUM, OUT };
#define BETA1 0.95

static tgl_status setup(case_problem *c)
{
    const int64_t shape[] = { case_int(c, "num_rows"), case_int(c, "dim") };
    const bool in_place = case_int(c, "in_place");
    case_tensor *grad =
        case_add(c, GRAD, "grad", in_place ? CASE_INOUT : CASE_IN, case_dtype(c, "grad_dtype"), 2, shape);
    case_tensor *momentum =
        case_add(c, MOMENTUM, "momentum_buffer", CASE_INOUT, case_dtype(c, "momentum_dtype"), 2, shape);
    if (!in_place) case_add(c, OUT, "out", CASE_OUT, TGL_F32, 2, shape)->offset = case_int(c, "out_offset");
    grad->offset = case_int(c, "grad_offset");
    momentum->offset = case_int(c, "momentum_offset");
    c->scalar = case_int(c, "nesterov");
    TGL_TRY(case_check_word(c, "values", "normal bits"));
    grad->fill = momentum->fill = case_is(c, "values", "bits") ? case_fill_bits : case_fill_normal;
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_engram_sinkhorn_momentum_update(a->arg[GRAD], a->arg[MOMENTUM], a->arg[a->arg[OUT] ? OUT : GRAD], BETA1,
                                               a->problem->scalar, a->stream);
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *grads = &c->tensors[GRAD], *momenta = &c->tensors[MOMENTUM];
    const case_tensor *out = c->num_tensors > OUT ? &c->tensors[OUT] : grads;
    const float beta = (float)BETA1, rest = (float)(1.0 - BETA1);
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < grads->shape[1]; j++) {
            const int64_t at[] = { i, j };
            const float g = (float)case_decode(grads->dtype, case_element(grads, at));
            const float m = (float)case_decode(momenta->dtype, case_element(momenta, at));
            const float next = fmaf(m, beta, (float)((double)rest * (double)g));
            sinkhorn_put(momenta, at, next);
            sinkhorn_put(out, at, c->scalar ? fmaf(g, rest, (float)((double)beta * (double)next)) : next);
        }
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[GRAD].shape[0], 16 * c->tensors[GRAD].shape[1], oracle_rows, c);
}

/* Momentum counts twice, and so does grad if it is out. */
static int64_t bytes(const case_problem *c)
{
    return case_all_bytes(c) + case_tensor_bytes(&c->tensors[MOMENTUM]) +
           (c->num_tensors > OUT ? 0 : case_tensor_bytes(&c->tensors[GRAD]));
}

#define OFFSETS "grad_offset=0 momentum_offset=0 out_offset=0"
// clang-format off: lines of cases
const case_op sinkhorn_momentum_update_cases = {
    "engram_sinkhorn_momentum_update",
    "num_rows= dim= grad_dtype=f32 momentum_dtype=f32 nesterov=1 values=normal in_place=0 " OFFSETS,
    setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=0,1,3 dim=0,1,2,3,4,5,7,8,100 grad_dtype=f32,bf16 momentum_dtype=f32,bf16",
        "num_rows=1 dim=1023,1024,1025,4095,4096,4097,9001 grad_dtype=bf16 momentum_dtype=bf16,f32 nesterov=0,1",
        "num_rows=37 dim=256 grad_dtype=f32,bf16 momentum_dtype=f32,bf16 nesterov=0,1 values=normal,bits",
        "num_rows=5 dim=101 grad_offset=0,1,2,4 momentum_offset=0,1,2 out_offset=0,1,2 grad_dtype=bf16",
        "num_rows=5 dim=101 grad_offset=0,2,3 momentum_offset=0,3,4 momentum_dtype=bf16 values=bits",
        "num_rows=9 dim=256 in_place=1 values=normal,bits momentum_dtype=f32,bf16 nesterov=0,1"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=1001,10001 dim=256,512 grad_dtype=f32,bf16 momentum_dtype=f32,bf16 values=bits",
        "num_rows=4200000 dim=512 grad_dtype=bf16 momentum_dtype=bf16"),    /* more than 2^31 elements */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=1001,10001,100001 dim=256,512 grad_dtype=f32 momentum_dtype=f32",
        "num_rows=1000001 dim=256,512 grad_dtype=bf16,f32 momentum_dtype=f32",
        "num_rows=1000001 dim=512 grad_dtype=bf16 momentum_dtype=bf16",
        "num_rows=100001 dim=5120 grad_dtype=bf16 momentum_dtype=f32 in_place=0"),
    .lists[CASE_KERNELS] = CASE_LINES("num_rows=64 dim=256 grad_dtype=f32,bf16 momentum_dtype=f32,bf16 nesterov=0,1"),
    .models = CASE_LINES("num_rows=4096 dim={engram_dim} grad_dtype=f32,bf16"),
};
// clang-format on
