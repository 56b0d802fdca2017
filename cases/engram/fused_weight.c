/* SPDX-License-Identifier: MIT */
#include "cases/case.h"
#include "cases/engram/common/gate_cases.h"

static tgl_status setup(case_problem *c)
{
    const int64_t shape[] = { case_int(c, "num_streams"), case_int(c, "hidden") };
    const char *const names[] = { "weight_hidden", "weight_embed" };
    for (int i = 0; i < 2; i++) {
        case_tensor *w = case_add(c, i, names[i], CASE_IN, case_dtype(c, "dtype"), 2, shape);
        w->strides[0] += (i + 1) * case_int(c, "gap");
        w->offset = case_int(c, "offset");
    }
    case_add(c, 2, "out", CASE_OUT, TGL_F32, 2, shape)->offset = case_int(c, "out_offset");
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_engram_fused_weight(a->arg[0], a->arg[1], a->arg[2], a->stream);
}

static void oracle(case_problem *c) /* a product of floats is exact in double */
{
    const case_tensor *x = &c->tensors[0], *y = &c->tensors[1];
    for (int64_t i = 0; i < x->shape[0]; i++)
        for (int64_t j = 0; j < x->shape[1]; j++) {
            const int64_t at[] = { i, j };
            const double a = case_decode(x->dtype, case_element(x, at)), b = case_decode(y->dtype, case_element(y, at));
            gate_put(&c->tensors[2], at, a * b);
        }
}

// clang-format off: lines of cases
const case_op fused_weight_cases = {
    "engram_fused_weight", "num_streams=4 hidden= dtype=bf16 gap=0 offset=0 out_offset=0", setup, run, oracle,
    case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_streams=0,1,3,4,8 hidden=0,1,7,8,255,256,576,1023,1024,1032,2560 dtype=bf16,f32",
        "num_streams=3 hidden=64,65 dtype=bf16,f32 gap=0,1,8 offset=0,1 out_offset=0,1,2"),
    .lists[CASE_SLOW] = CASE_LINES("num_streams=4,70000 hidden=2048,2560,3072,4096,6144,7168 dtype=bf16,f32"),
    .lists[CASE_BENCH] = CASE_LINES("hidden=2560,4096,5120,7168"),
    .lists[CASE_KERNELS] = CASE_LINES("hidden=7168,7 dtype=bf16,f32"),
    .models = CASE_LINES("num_streams={engram_streams} hidden={hidden} dtype=bf16"),
};
// clang-format on
