/* SPDX-License-Identifier: MIT */
#include "cases/quant/common/cast.h"

static tgl_status setup(case_problem *c) { return cast_setup(c, true, false); }

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_per_token_cast(a->arg[X], a->arg[X_SF], a->arg[OUT], a->arg[SF], quant_params_in(a->problem),
                                    a->stream);
}

// clang-format off: lines of cases
const case_op per_token_cast_cases = {
    "quant_per_token_cast",
    "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_channels=128 round=0 sf=row x_num_per_tokens=1 "
    "x_num_per_channels=128 x_sf=row pairs=e2m1x2 values=normal layout=packed offset=0 out_offset=0 "
    "sf_only=0",
    setup, run, cast_oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=5 num_cols=8,100,128,576,1032 dtype=bf16,f32 round=0,1 values=mixed",
        "num_rows=9 num_cols=576 dtype=bf16,f32 format=e2m1 num_per_channels=32,128 round=0,1 values=mixed",
        "num_rows=7 num_cols=576 format=e4m3,e2m1 num_per_channels=16,64,0 round=1 sf=col,packed "
        "values=mixed",
        "num_rows=6 num_cols=640 round=1 sf=row_gap,col_gap,col_tight,packed_gap values=mixed",
        "num_rows=1 num_cols=640 round=1 sf=row_gap,col,col_gap values=mixed",
        "num_rows=4 num_cols=129 num_per_channels=1,5,96,1000 values=mixed",
        "num_rows=4 num_cols=130 format=e2m1 num_per_channels=1,7,96 values=mixed",
        "num_rows=0,1,3,8,33 num_cols=256 round=1 sf=packed values=mixed",
        "num_rows=2 num_cols=2056,7168 num_per_channels=0,256 dtype=bf16,f32 values=mixed",
        "num_rows=5 num_cols=256 dtype=bf16,f32 format=e4m3,e2m1,e5m6 round=0,1 values=bits",
        /* eight values at a time */
        "num_rows=5 num_cols=8,584 num_per_channels=0 dtype=bf16,f32 format=e5m6 round=0,1 values=mixed",
        "num_rows=3 num_cols=256 num_per_channels=8,128 format=e5m6 round=1 sf=col,packed values=mixed",
        "num_rows=3 num_cols=264 num_per_channels=0,128 format=e5m6 layout=gap offset=1 out_offset=4 "
        "values=mixed",
        /* rows and addresses */
        "num_rows=6 num_cols=256 dtype=bf16,f32 layout=half,gap,repeated values=mixed",
        "num_rows=3 num_cols=256 offset=0,1,4 out_offset=0,1,4 values=mixed",
        "num_rows=3 num_cols=256 dtype=f32 format=e2m1 offset=1,2 out_offset=1,2 values=mixed",
        /* from codes */
        "num_rows=33 num_cols=256 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32,128 "
        "x_num_per_tokens=32 x_num_per_channels=32 x_sf=packed round=1 sf=packed values=powers",
        "num_rows=5 num_cols=384 dtype=e4m3,e2m1 num_per_channels=32 "
        "x_sf=row_gap,row_same,col,col_gap,col_same,packed_gap values=mixed",
        "num_rows=130 num_cols=256 dtype=e4m3 format=e2m1 num_per_channels=32,0 x_num_per_tokens=128 "
        "x_sf=packed round=1 values=mixed",
        "num_rows=4 num_cols=200 dtype=e4m3,e2m1 format=e2m1 num_per_channels=128,24 "
        "x_num_per_channels=32,10 round=1 values=mixed",
        "num_rows=4 num_cols=200 dtype=e4m3 x_num_per_tokens=3 x_num_per_channels=0 values=mixed",
        "num_rows=5 num_cols=256 dtype=e4m3,e2m1 format=e4m3,e2m1 x_sf=row,packed round=1 values=bits",
        "num_rows=3 num_cols=64 dtype=e2m1 format=e2m1 pairs=i8,u8 values=mixed",
        "num_rows=5 num_cols=128 dtype=e4m3,e2m1 layout=gap,repeated offset=1 out_offset=1 values=mixed",
        "num_rows=200 num_cols=512 dtype=e4m3,e2m1 format=e2m1 num_per_channels=32 round=1 sf=packed "
        "x_sf=packed offset=0,8 out_offset=0,8 values=mixed",
        /* without data */
        "num_rows=5 num_cols=576 dtype=bf16,f32 sf=row,packed round=1 sf_only=1 values=mixed",
        "num_rows=5 num_cols=576 dtype=e4m3 num_per_channels=0 sf_only=1 values=mixed",
        "num_rows=5 num_cols=576 format=e5m6 num_per_channels=0 sf_only=1 values=mixed",
        "num_rows=200 num_cols=512 dtype=e4m3,e2m1 format=e2m1 num_per_channels=16,32,256 "
        "x_num_per_channels=16,64 x_sf=packed round=1 sf=packed values=bits",
        "num_rows=5 num_cols=2080 dtype=bf16,f32 num_per_channels=320,1024 round=1 sf=packed values=mixed",
        "num_rows=5 num_cols=2080 dtype=e2m1 num_per_channels=0 x_num_per_channels=32 values=mixed"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=32,64,128,0 "
        "round=1 sf=row,packed values=mixed",
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32,128 "
        "x_num_per_tokens=32 x_num_per_channels=32 round=1 sf=packed x_sf=packed values=powers",
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32,128 "
        "x_num_per_tokens=128 round=1 sf=row x_sf=row values=mixed",
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=bf16,f32 format=e5m6 num_per_channels=0 round=1 "
        "sf=row,packed values=mixed",
        "num_rows=8001 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1,e5m6 round=0,1 values=normal,mixed",
        "num_rows=8001 " QUANT_HIDDEN_SIZES "dtype=bf16 format=e4m3,e2m1,e5m6 num_per_channels=0 round=1 "
        "sf=packed values=mixed",
        "num_rows=8001 " QUANT_HIDDEN_SIZES "dtype=bf16,e4m3 format=e4m3,e2m1 num_per_channels=32 round=1 "
        "sf=packed x_num_per_channels=32 x_sf=packed values=powers",
        /* past 2^31 elements */
        "num_rows=299600 num_cols=7168",
        "num_rows=299600 num_cols=7168 format=e2m1 num_per_channels=32 round=1 sf=packed",
        "num_rows=2100 num_cols=1024 dtype=bf16,f32 layout=far format=e4m3,e5m6"),
    /* sizes that were measured for other libraries, then more tokens of a large model */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=1,128,4096,8192,32768 num_cols=7168",
        "num_rows=4096 num_cols=4096",
        "num_rows=8192 num_cols=8192",
        "num_rows=1,128,4096,8192 num_cols=7168 round=1 sf=packed",
        "num_rows=4096 num_cols=4096 round=1 sf=packed",
        "num_rows=4096 num_cols=7168 round=1 sf=col",
        "num_rows=128,4096 num_cols=7168 dtype=f32",
        "num_rows=4096 num_cols=7168 dtype=f32 round=1 sf=packed",
        "num_rows=128,4096,8192 num_cols=7168 format=e2m1 num_per_channels=32 round=1 sf=packed",
        "num_rows=4096 num_cols=7168 format=e2m1 num_per_channels=32 round=1",
        "num_rows=128,4096 num_cols=7168 num_per_channels=7168",
        "num_rows=4096 num_cols=7168 num_per_channels=32 round=1 sf=packed",
        "num_rows=128,4096 num_cols=7168 sf_only=1",
        "num_rows=4096 num_cols=7168 round=1 sf=packed sf_only=1",
        "num_rows=128,4096 num_cols=7168 dtype=e4m3 format=e2m1 num_per_channels=32 round=1 sf=packed "
        "x_num_per_tokens=128 x_sf=packed",
        "num_rows=128,4096 num_cols=7168 format=e5m6 num_per_channels=7168 round=1",
        "num_rows=4096 num_cols=7168 format=e5m6 num_per_channels=7168 round=1 sf=packed",
        "num_rows=4096 num_cols=7168 dtype=f32 format=e5m6 num_per_channels=7168 round=1",
        "num_rows=8001 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 round=1 sf=packed",
        "num_rows=8001 num_cols=7168 format=e4m3,e5m6 num_per_channels=7168 round=1 sf=packed",
        "num_rows=8001 num_cols=7168 round=1 sf=packed sf_only=1",
        "num_rows=8001 num_cols=7168 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32 round=1 "
        "sf=packed x_sf=packed",
        "num_rows=4001 num_cols=576 round=1 sf=packed"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 "
        "num_per_channels=16,32,64,128,256,7168 round=0,1",
        "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=32,128,7168 round=1 "
        "sf=col,packed",
        "num_rows=64 num_cols=576 dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=100,0",
        "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e5m6 num_per_channels=128,7168 round=0,1",
        "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e5m6 num_per_channels=7168 round=1 sf=packed",
        "num_rows=64 num_cols=7168 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32,128,7168,100 "
        "round=0,1 x_num_per_tokens=1,32",
        "num_rows=64 num_cols=7168 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32,128 round=1 "
        "sf=packed x_sf=packed x_num_per_channels=32,128",
        "num_rows=64 num_cols=7168 dtype=bf16,f32,e4m3,e2m1 sf_only=1 round=0,1",
        "num_rows=64 num_cols=7168 dtype=bf16,f32,e4m3,e2m1 sf_only=1 round=1 sf=packed"),
    .models = CASE_LINES(
        "num_rows=4096 num_cols={hidden} round=1 sf=packed",
        "num_rows=4096 num_cols={hidden} round=0 sf=row"),
};
// clang-format on
