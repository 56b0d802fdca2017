/* SPDX-License-Identifier: MIT */
#include "cases/quant/common/cast.h"

static tgl_status setup(case_problem *c) { return cast_setup(c, true, true); }

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_per_token_cast_with_precomputed_sf(a->arg[X], a->arg[X_SF], a->arg[GIVEN], a->arg[OUT],
                                                        quant_params_in(a->problem), a->stream);
}

// clang-format off: lines of cases
const case_op per_token_cast_with_precomputed_sf_cases = {
    "quant_per_token_cast_with_precomputed_sf",
    "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_channels=128 sf=row x_num_per_tokens=1 "
    "x_num_per_channels=128 x_sf=row pairs=e2m1x2 values=normal layout=packed offset=0 out_offset=0",
    setup, run, cast_oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=5 num_cols=8,100,576,1032 dtype=bf16,f32 format=e4m3,e2m1 values=mixed",
        "num_rows=7 num_cols=576 format=e4m3,e2m1 num_per_channels=16,32,0 sf=col,packed values=mixed",
        "num_rows=6 num_cols=640 sf=row_gap,col_gap,col_tight,packed_gap values=powers",
        "num_rows=4 num_cols=130 format=e4m3,e2m1 num_per_channels=1,5,96,1000 values=mixed",
        "num_rows=0,1,3,8,33 num_cols=256 sf=packed values=mixed",
        "num_rows=5 num_cols=256 dtype=bf16,f32 format=e4m3,e2m1 sf=row,packed values=bits",
        "num_rows=5 num_cols=256 dtype=bf16,f32 format=e5m6 num_per_channels=0,64 values=normal,mixed",
        /* a warp stages one block of columns after the other */
        "num_rows=3 num_cols=1280 dtype=bf16,f32 format=e5m6 num_per_channels=320 sf=packed values=mixed",
        "num_rows=33 num_cols=256 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32 "
        "x_num_per_tokens=32 x_num_per_channels=32 x_sf=packed sf=row values=powers",
        "num_rows=5 num_cols=384 dtype=e4m3,e2m1 num_per_channels=128,24 x_sf=row_gap,col values=mixed",
        "num_rows=3 num_cols=64 dtype=e2m1 format=e2m1 pairs=i8,u8 values=mixed",
        "num_rows=6 num_cols=256 dtype=bf16,f32 layout=half,gap,repeated offset=0,1 values=mixed",
        "num_rows=3 num_cols=256 format=e4m3,e2m1 offset=1 out_offset=1,2 values=mixed"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=32,64,128 "
        "values=mixed",
        "num_rows=299600 num_cols=7168 sf=packed",
        "num_rows=2100 num_cols=1024 layout=far"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128,4096,8001 num_cols=7168",
        "num_rows=8001 num_cols=7168 format=e2m1 num_per_channels=32 sf=packed"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 "
        "num_per_channels=16,32,64,128,256,7168,100",
        "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=32,128,7168 "
        "sf=col,packed",
        "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e5m6 num_per_channels=128,7168",
        "num_rows=64 num_cols=7168 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32,128,7168,100",
        "num_rows=64 num_cols=7168 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=128 sf=packed "
        "x_sf=packed"),
    .models = CASE_LINES("num_rows=4096 num_cols={hidden}"),
};
// clang-format on
