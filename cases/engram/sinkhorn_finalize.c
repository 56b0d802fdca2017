/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "cases/engram/common/sinkhorn.h"
#include "core/status.h"

enum { OUT = SINKHORN_NUM_TENSORS };

static float alpha_of(const case_problem *c) { return (float)sqrt((double)c->tensors[0].shape[1]); }

static tgl_status setup(case_problem *c)
{
    const bool in_place = case_int(c, "in_place");
    TGL_TRY(sinkhorn_add_matrix(c, in_place ? CASE_INOUT : CASE_IN, CASE_IN));
    if (in_place) return TGL_OK;
    case_tensor *out = case_add(c, OUT, "out", CASE_OUT, TGL_F32, 2, c->tensors[0].shape);
    out->strides[0] += case_int(c, "out_gap");
    out->offset = case_int(c, "out_offset");
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_engram_sinkhorn_finalize(a->arg[0], a->arg[SINKHORN_ROW_SCALE], a->arg[SINKHORN_COL_SCALE],
                                        a->arg[a->arg[OUT] ? OUT : 0], sinkhorn_eps(a->problem), alpha_of(a->problem),
                                        a->stream);
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *out = &c->tensors[c->num_tensors > OUT ? OUT : 0];
    const int64_t dim = c->tensors[0].shape[1];
    float *x = case_memory(dim, sizeof *x);
    for (int64_t i = begin; i < end; i++) {
        sinkhorn_row(c, i, x);
        const float below = sinkhorn_plus(sinkhorn_norm(x, dim), sinkhorn_eps(c));
        const float factor = (float)((double)alpha_of(c) / (double)below);
        for (int64_t j = 0; j < dim; j++) sinkhorn_put(out, (int64_t[]){ i, j }, sinkhorn_times(x[j], factor));
    }
    free(x);
}

static void oracle(case_problem *c) { case_parallel(c->tensors[0].shape[0], 1 << 14, oracle_rows, c); }

static int64_t bytes(const case_problem *c)
{
    return case_all_bytes(c) + (c->num_tensors > OUT ? 0 : case_tensor_bytes(&c->tensors[0]));
}

// clang-format off: lines of cases
const case_op sinkhorn_finalize_cases = {
    "engram_sinkhorn_finalize", SINKHORN_MATRIX " in_place=0 out_gap=0 out_offset=0", setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=0,1,2,15,16,17,33,100 dim=0,1,4,127,128",
        "num_rows=50 dim=129,256,512,1000,1024",
        "num_rows=20 dim=1025,2048,3000,5120,8192",
        "num_rows=9 dim=4000,6144,7168",
        "num_rows=9 dim=8193,9001 values=normal,bits in_place=0,1",
        "num_rows=40 dim=100,256,1500 values=normal,sparse,bits eps=tiny,half,zero",
        "num_rows=30 dim=256 gap=0,1,4 offset=0,1,4 out_gap=0,3,4 out_offset=0,1",
        "num_rows=30 dim=254,256,1500 gap=0,2 in_place=1"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=1001,10001,100001 dim=256,5120",
        "num_rows=10001 dim=1,100,1000,2560,7168,8192,12345 values=sparse,bits",
        "num_rows=262147 dim=8192"),        /* more than 2^31 elements */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=1001,10001,100001 dim=256,5120",
        "num_rows=1000001 dim=256",
        "num_rows=100001 dim=512,1024,2560,7168",
        "num_rows=100001 dim=5120 in_place=1"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=64 dim=128,256,512,1024,2048,3072,4096,5120,6144,7168,8192,9000"),
    .models = CASE_LINES("num_rows=4096 dim={engram_dim}"),
};
// clang-format on
