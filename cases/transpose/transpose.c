/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cases/transpose/common/transpose.h"
#include "core/status.h"

/* doc: setup */
static tgl_status setup(case_problem *c)
{
    const int64_t m = case_int(c, "num_rows"), n = case_int(c, "num_cols");
    const tgl_dtype dtype = case_dtype(c, "dtype");
    case_tensor *x = case_add(c, X, "x", CASE_IN, dtype, 2, (int64_t[]){ m, n });
    x->offset = case_int(c, "offset");
    case_add(c, OUT, "out", CASE_OUT, dtype, 2, (int64_t[]){ n, m })->offset = case_int(c, "out_offset");
    int64_t strides[3]; /* of a batch of one */
    TGL_TRY(transpose_lay_out(case_text(c, "layout"), 1, m, n, strides));
    memcpy(x->strides, strides + 1, 2 * sizeof *strides);
    return TGL_OK;
}

static tgl_status run(const case_arguments *a) { return tgl_transpose(a->arg[X], a->arg[OUT], a->stream); }
/* end */

/* doc: table */
// clang-format off: lines of cases
const case_op transpose_cases = {
    "transpose", "num_rows= num_cols= dtype= layout=packed offset=0 out_offset=0",
    setup, run, transpose_oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=1,2,37,130 num_cols=1,3,31,129 dtype=e4m3,bf16,f32,i64,c128",
        "num_rows=0,1,64 num_cols=0,64 dtype=e4m3,c128",
        "num_rows=64,65 num_cols=128 dtype=e4m3,bf16,f32,i64,c128 "
        "layout=half,gap,transposed,steps,reversed",
        "num_rows=67 num_cols=70 dtype=e4m3,bf16,f32,i64,c128 layout=repeated_rows,repeated_cols,repeated",
        "num_rows=64,66 num_cols=128 dtype=e4m3,bf16,f32,i64,c128 offset=1 out_offset=0,1",
        "num_rows=64,66 num_cols=128 dtype=e4m3,bf16,f32 out_offset=1,3",
        "num_rows=33 num_cols=65 dtype=bool,i8,u8,i16,u16,f16,i32,u32,u64,f64,c64,e5m2,ue8m0,e2m1x2",
        "num_rows=300 num_cols=1,300 dtype=e4m3,bf16",
        "num_rows=1 num_cols=300 dtype=e4m3,bf16",
        "num_rows=127 num_cols=1025 dtype=e4m3,bf16,f32"),
/* end */
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=0,4032,8064 num_cols=576,2048,2560,3072,4096,6144,7168 dtype=e4m3,bf16,f32 layout=half",
        "num_rows=8064 num_cols=7168 dtype=i64,c128",
        "num_rows=1023 num_cols=4097 dtype=e4m3,bf16,f32,i64,c128 "
        "layout=packed,gap,transposed,steps,reversed",
        "num_rows=46349 num_cols=46351 dtype=u8",                          /* 2^31 < elements < 2^32 */
        "num_rows=1 num_cols=2147483659 dtype=u8",                         /* one size is past 2^31 */
        "num_rows=2147483659 num_cols=1 dtype=u8",
        "num_rows=65537 num_cols=32771 dtype=bf16 layout=repeated_rows"),   /* 2^31 elements from few */
    /* sizes that were measured for other libraries, then those of our own targets */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128,4096,8192 num_cols=7168 dtype=bf16",
        "num_rows=8192 num_cols=8192 dtype=bf16",
        "num_rows=4096,8192 num_cols=7168 dtype=e4m3",
        "num_rows=4096 num_cols=7168 dtype=f32",
        "num_rows=8064 num_cols=7168 dtype=e4m3,bf16,f32",
        "num_rows=1,8,64 num_cols=7168 dtype=bf16",
        "num_rows=4001 num_cols=7168 dtype=e4m3,bf16 layout=packed,half",
        "num_rows=4001 num_cols=7167 dtype=e4m3,bf16,f32",
        "num_rows=4000 num_cols=7168 dtype=bf16 layout=gap,steps",
        "num_rows=8064 num_cols=7168 dtype=bf16 layout=transposed",
        "num_rows=8064 num_cols=7168 dtype=i64,c128"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=64,8064 num_cols=64,7168 dtype=e4m3,bf16,f32,i64,c128",
        "num_rows=67 num_cols=70 dtype=e4m3,bf16,f32,i64,c128 layout=gap,transposed,steps"),
    .models = CASE_LINES("num_rows=4096 num_cols={hidden} dtype=e4m3,bf16,f32"),
};
// clang-format on
