/* SPDX-License-Identifier: MIT */
#include "cases/transpose/common/transpose.h"

static tgl_status setup(case_problem *c)
{
    const int64_t b = case_int(c, "num_batches"), m = case_int(c, "num_rows"), n = case_int(c, "num_cols");
    const tgl_dtype dtype = case_dtype(c, "dtype");
    case_tensor *x = case_add(c, X, "x", CASE_IN, dtype, 3, (int64_t[]){ b, m, n });
    x->offset = case_int(c, "offset");
    case_add(c, OUT, "out", CASE_OUT, dtype, 3, (int64_t[]){ b, n, m })->offset = case_int(c, "out_offset");
    return transpose_lay_out(case_text(c, "layout"), b, m, n, x->strides);
}

static tgl_status run(const case_arguments *a) { return tgl_batched_transpose(a->arg[X], a->arg[OUT], a->stream); }

// clang-format off: lines of cases
const case_op batched_transpose_cases = {
    "batched_transpose", "num_batches= num_rows= num_cols= dtype= layout=packed offset=0 out_offset=0",
    setup, run, transpose_oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_batches=1,3 num_rows=1,31,65 num_cols=1,37,64 dtype=e4m3,bf16,f32,i64,c128",
        "num_batches=0,2 num_rows=0,3 num_cols=0,5 dtype=bf16",
        "num_batches=3 num_rows=64 num_cols=66 dtype=e4m3,bf16,f32,i64,c128 "
        "layout=half,gap,transposed,interleaved,steps,reversed",
        "num_batches=3 num_rows=33 num_cols=34 dtype=e4m3,f32,c128 "
        "layout=repeated_rows,repeated_cols,repeated_batches,repeated",
        "num_batches=1 num_rows=31 num_cols=37 dtype=bf16 layout=gap",  /* a stride that is not used */
        "num_batches=2 num_rows=64 num_cols=64 dtype=e4m3,bf16,f32,i64,c128 offset=1 out_offset=0,1",
        "num_batches=70000 num_rows=3 num_cols=2 dtype=bf16"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_batches=8 num_rows=0,4032,8064 num_cols=576,2048,2560,3072,4096,6144,7168 dtype=e4m3,bf16,f32",
        "num_batches=32 num_rows=4032,8064 num_cols=576,7168 dtype=e4m3,bf16,f32",
        "num_batches=70000 num_rows=3 num_cols=5 dtype=e4m3,bf16,f32,i64,c128",
        "num_batches=5 num_rows=127 num_cols=129 dtype=e4m3,bf16 layout=gap,interleaved,reversed",
        "num_batches=2147483659 num_rows=1 num_cols=1 dtype=u8",
        "num_batches=3 num_rows=32771 num_cols=21847 dtype=u8,bf16 layout=repeated_batches"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_batches=8 num_rows=2048 num_cols=7168 dtype=bf16",
        "num_batches=32 num_rows=4096 num_cols=2048 dtype=bf16",
        "num_batches=32 num_rows=2048 num_cols=7168 dtype=e4m3",
        "num_batches=8 num_rows=4096 num_cols=7168 dtype=f32",
        "num_batches=8 num_rows=128 num_cols=7168 dtype=bf16",
        "num_batches=32 num_rows=8064 num_cols=7168 dtype=e4m3,bf16,f32",
        "num_batches=70000 num_rows=3 num_cols=5 dtype=bf16"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_batches=32 num_rows=64,8064 num_cols=64,7168 dtype=e4m3,bf16,f32,i64,c128"),
    .models = CASE_LINES("num_batches=8 num_rows=4096 num_cols={hidden} dtype=e4m3,bf16,f32"),
};
// clang-format on
