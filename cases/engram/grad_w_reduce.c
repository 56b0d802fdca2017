/* SPDX-License-Identifier: MIT */
#include "cases/engram/common/gate_cases.h"

enum { PARTIAL, WEIGHT_HIDDEN, WEIGHT_EMBED, GRAD_HIDDEN, GRAD_EMBED };

static tgl_status setup(case_problem *c)
{
    const int64_t shape[] = { case_int(c, "num_partials"), case_int(c, "num_streams"), case_int(c, "hidden") };
    const bool is_any = case_int(c, "bits");
    c->scalar = case_int(c, "zero_centered");
    case_add(c, PARTIAL, "grad_w_partial", CASE_IN, TGL_F32, 3, shape)->offset = case_int(c, "offset");
    case_add(c, WEIGHT_HIDDEN, "weight_hidden", CASE_IN, case_dtype(c, "dtype"), 2, shape + 1);
    case_add(c, WEIGHT_EMBED, "weight_embed", CASE_IN, case_dtype(c, "dtype"), 2, shape + 1);
    case_add(c, GRAD_HIDDEN, "grad_weight_hidden", CASE_INOUT, TGL_F32, 2, shape + 1);
    case_add(c, GRAD_EMBED, "grad_weight_embed", CASE_INOUT, TGL_F32, 2, shape + 1);
    c->tensors[WEIGHT_HIDDEN].strides[0] += case_int(c, "gap");
    c->tensors[WEIGHT_EMBED].strides[0] += 2 * case_int(c, "gap");
    for (int i = 0; i < c->num_tensors && !is_any; i++) c->tensors[i].fill = case_fill_normal;
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_engram_grad_w_reduce(a->arg[PARTIAL], a->arg[WEIGHT_HIDDEN], a->arg[WEIGHT_EMBED], a->arg[GRAD_HIDDEN],
                                    a->arg[GRAD_EMBED], a->problem->scalar, a->stream);
}

/* Sums and products of two floats are rounded rightly if they go through double. */
static void oracle(case_problem *c)
{
    const case_tensor *partial = &c->tensors[PARTIAL];
    for (int64_t h = 0; h < partial->shape[1]; h++)
        for (int64_t i = 0; i < partial->shape[2]; i++) {
            double sum = 0;
            for (int64_t first = 0; first < 8; first++) {
                double chain = 0;
                for (int64_t p = first; p < partial->shape[0]; p += 8)
                    chain = (float)(chain + case_decode(TGL_F32, case_element(partial, (int64_t[]){ p, h, i })));
                sum = (float)(sum + chain);
            }
            for (int n = 0; n < 2; n++) {
                const case_tensor *other = &c->tensors[n ? WEIGHT_HIDDEN : WEIGHT_EMBED];
                case_tensor *to = &c->tensors[n ? GRAD_EMBED : GRAD_HIDDEN];
                const int64_t at[] = { h, i };
                const double weight = case_decode(other->dtype, case_element(other, at));
                const double factor = c->scalar ? (double)(float)(1 + weight) : weight;
                gate_put(to, at, case_decode(TGL_F32, case_element(to, at)) + (double)(float)(sum * factor));
            }
        }
}

static int64_t bytes(const case_problem *c) /* two tensors are read and written */
{
    return case_all_bytes(c) + 2 * case_tensor_bytes(&c->tensors[GRAD_HIDDEN]);
}

// clang-format off: lines of cases
const case_op grad_w_reduce_cases = {
    "engram_grad_w_reduce", "num_partials= num_streams=4 hidden= dtype=bf16 zero_centered=0 gap=0 offset=0 bits=0", setup, run,
    oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_partials=0,1,2,3,7,8,9,33,131,148 num_streams=1,4 hidden=1,100,128 zero_centered=0,1",
        "num_partials=34 num_streams=0,1,3,8 hidden=0,1,127,129,576 dtype=bf16,f32 gap=0,1",
        "num_partials=9 hidden=128 offset=1,2,4",
        "num_partials=5,40 hidden=130 bits=1 dtype=bf16,f32 zero_centered=0,1"),
    .lists[CASE_SLOW] = CASE_LINES("num_partials=66,132 hidden=2048,2560,3072,4096,6144,7168 dtype=bf16,f32",
                                   "num_partials=9 num_streams=70000 hidden=4"),
    .lists[CASE_BENCH] = CASE_LINES("num_partials=66 hidden=7168,5120", "num_partials=132 hidden=2560",
                                    "num_partials=132 hidden=4096,7168"),
    .lists[CASE_KERNELS] = CASE_LINES("num_partials=66 hidden=7168 dtype=bf16,f32 zero_centered=0,1"),
    .models = CASE_LINES(
        "num_partials=66 num_streams={engram_streams} hidden={hidden} zero_centered={engram_centered}"),
};
// clang-format on
