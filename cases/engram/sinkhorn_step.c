/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/engram/common/sinkhorn.h"
#include "core/status.h"

enum { NORM = SINKHORN_NUM_TENSORS, PARTIAL, SUMSQ };

static int64_t partials(case_problem *c)
{
    const int64_t given = case_int(c, "num_partials");
    return given ? given : tgl_engram_sinkhorn_num_partials(case_int(c, "num_rows"));
}

static tgl_status setup(case_problem *c)
{
    TGL_TRY(sinkhorn_add_matrix(c, CASE_IN, CASE_INOUT));
    const int64_t num_rows = case_int(c, "num_rows"), shape[] = { partials(c), case_int(c, "dim") };
    case_add(c, NORM, "row_norm", CASE_OUT, TGL_F32, 1, &num_rows);
    case_add(c, PARTIAL, "col_sumsq_partial", CASE_OUT, TGL_F32, 2, shape)->offset = case_int(c, "partial_offset");
    if (case_int(c, "reduce")) case_add(c, SUMSQ, "col_sumsq", CASE_OUT, TGL_F32, 1, shape + 1);
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_engram_sinkhorn_step(a->arg[0], a->arg[SINKHORN_ROW_SCALE], a->arg[SINKHORN_COL_SCALE], a->arg[NORM],
                                    a->arg[PARTIAL], a->arg[SUMSQ], sinkhorn_eps(a->problem), a->workspace,
                                    a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a)
{
    return tgl_engram_sinkhorn_step_workspace_size(a->arg[0], a->arg[SUMSQ]);
}

static void oracle_chunks(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const int64_t num_rows = c->tensors[0].shape[0], dim = c->tensors[0].shape[1];
    const int64_t count = c->tensors[PARTIAL].shape[0], chunk = (num_rows + count - 1) / count;
    float *x = case_memory(dim, sizeof *x), *sums = case_memory(dim, sizeof *sums);
    for (int64_t p = begin; p < end; p++) {
        for (int64_t j = 0; j < dim; j++) sums[j] = 0;
        for (int64_t i = p * chunk; i < num_rows && i < p * chunk + chunk; i++) {
            sinkhorn_row(c, i, x);
            const float norm = sinkhorn_norm(x, dim);
            const float factor = (float)(1 / (double)sinkhorn_plus(norm, sinkhorn_eps(c)));
            for (int64_t j = 0; j < dim; j++) {
                const float normed = sinkhorn_times(x[j], factor);
                sums[j] = sinkhorn_plus(sums[j], sinkhorn_times(normed, normed));
            }
            const case_tensor *scale = &c->tensors[SINKHORN_ROW_SCALE];
            sinkhorn_put(&c->tensors[NORM], &i, norm);
            sinkhorn_put(scale, &i, sinkhorn_times(*(const float *)case_element(scale, &i), factor));
        }
        for (int64_t j = 0; j < dim; j++) sinkhorn_put(&c->tensors[PARTIAL], (int64_t[]){ p, j }, sums[j]);
    }
    free(x), free(sums);
}

static void oracle(case_problem *c)
{
    const case_tensor *partial = &c->tensors[PARTIAL];
    case_parallel(partial->shape[0], 1 << 16, oracle_chunks, c);
    for (int64_t j = 0; j < partial->shape[1] && c->num_tensors > SUMSQ; j++) {
        float sum = 0;
        for (int64_t p = 0; p < partial->shape[0]; p++)
            sum = sinkhorn_plus(sum, *(const float *)case_element(partial, (int64_t[]){ p, j }));
        sinkhorn_put(&c->tensors[SUMSQ], &j, sum);
    }
}

/* Scales of rows count twice; so do partial rows that are read again. */
static int64_t bytes(const case_problem *c)
{
    return case_all_bytes(c) + case_tensor_bytes(&c->tensors[SINKHORN_ROW_SCALE]) +
           (c->num_tensors > SUMSQ ? case_tensor_bytes(&c->tensors[PARTIAL]) : 0);
}

// clang-format off: lines of cases
const case_op sinkhorn_step_cases = {
    "engram_sinkhorn_step", SINKHORN_MATRIX " num_partials=0 reduce=0 partial_offset=0",
    setup, run, oracle, bytes, workspace,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=0,1,2,15,16,17,33,100 dim=1,4,128 reduce=0,1",
        "num_rows=40 dim=0,2,3,5,127 reduce=0,1",
        "num_rows=50 dim=129,256,512,1000,1024 reduce=0,1",
        "num_rows=20 dim=1025,2048,3000,5120,8192 reduce=1",
        "num_rows=9 dim=4000,6144,7168 reduce=1",
        "num_rows=9 dim=8193,9001 reduce=1 values=normal,bits",
        "num_rows=40 dim=100,256,5000 values=normal,sparse,bits eps=tiny,half,zero",
        "num_rows=40 dim=101,256 num_partials=1,3,7,40,41,100 reduce=0,1",
        "num_rows=0 dim=5,256,8200 num_partials=3 reduce=0,1",
        "num_rows=5 dim=8200 num_partials=7 reduce=1",
        "num_rows=30 dim=256 gap=0,1,4 offset=0,1,4 partial_offset=0,1",
        "num_rows=30 dim=254 gap=0,2 offset=0,2 reduce=1",
        "num_rows=700 dim=8 num_partials=600 reduce=1"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=1001,10001,100001 dim=256,5120 reduce=0,1",
        "num_rows=10001 dim=1,100,1000,2560,7168,8192,12345 reduce=1 values=sparse,bits",
        "num_rows=262147 dim=8192"),        /* more than 2^31 elements */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=1001,10001,100001 dim=256,5120 reduce=0,1",
        "num_rows=1000001 dim=256 reduce=0,1",
        "num_rows=100001 dim=512,1024,2560,7168"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=64 dim=128,256,512,1024,2048,3072,4096,5120,6144,7168,8192,9000 reduce=0,1"),
    .models = CASE_LINES("num_rows=4096 dim={engram_dim} reduce=0,1"),
};
// clang-format on
