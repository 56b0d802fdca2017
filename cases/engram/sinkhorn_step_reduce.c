/* SPDX-License-Identifier: MIT */
#include "cases/engram/common/sinkhorn.h"
#include "core/status.h"

enum { PARTIAL, SUMSQ };

static tgl_status setup(case_problem *c)
{
    const int64_t shape[] = { case_int(c, "num_partials"), case_int(c, "dim") };
    case_tensor *partial = case_add(c, PARTIAL, "col_sumsq_partial", CASE_IN, TGL_F32, 2, shape);
    case_add(c, SUMSQ, "col_sumsq", CASE_OUT, TGL_F32, 1, shape + 1);
    TGL_TRY(case_check_word(c, "values", "uniform normal bits"));
    partial->strides[0] += case_int(c, "gap");
    partial->offset = case_int(c, "offset");
    partial->high = 1;
    partial->fill = case_is(c, "values", "bits")     ? case_fill_bits
                    : case_is(c, "values", "normal") ? case_fill_normal
                                                     : case_fill_uniform;
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_engram_sinkhorn_step_reduce(a->arg[PARTIAL], a->arg[SUMSQ], a->stream);
}

static void oracle(case_problem *c)
{
    const case_tensor *partial = &c->tensors[PARTIAL];
    for (int64_t j = 0; j < partial->shape[1]; j++) {
        float sum = 0;
        for (int64_t p = 0; p < partial->shape[0]; p++)
            sum = sinkhorn_plus(sum, *(const float *)case_element(partial, (int64_t[]){ p, j }));
        sinkhorn_put(&c->tensors[SUMSQ], &j, sum);
    }
}

// clang-format off: lines of cases
const case_op sinkhorn_step_reduce_cases = {
    "engram_sinkhorn_step_reduce", "num_partials= dim= values=uniform gap=0 offset=0", setup, run, oracle,
    case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_partials=0,1,2,31,32,33,396,528 dim=0,1,7,8,9,100 values=uniform,normal",
        "num_partials=1023,1024,1025,2500 dim=3,20 values=normal,bits",
        "num_partials=50 dim=24,30 gap=0,1,5 offset=0,1 values=bits,normal"),
    .lists[CASE_SLOW] = CASE_LINES("num_partials=1,528,5000 dim=256,5120,100000 values=normal,bits"),
    .lists[CASE_BENCH] = CASE_LINES("num_partials=126,396,527 dim=256,5120", "num_partials=527 dim=7168"),
    .lists[CASE_KERNELS] = CASE_LINES("num_partials=4 dim=4"),
    .models = CASE_LINES("num_partials=528 dim={engram_dim}"),
};
// clang-format on
