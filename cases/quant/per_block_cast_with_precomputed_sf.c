/* SPDX-License-Identifier: MIT */
#include "cases/quant/common/cast.h"

static tgl_status setup(case_problem *c) { return cast_setup(c, false, true); }

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_per_block_cast_with_precomputed_sf(a->arg[X], a->arg[GIVEN], a->arg[OUT],
                                                        quant_params_in(a->problem), a->stream);
}

// clang-format off: lines of cases
const case_op per_block_cast_with_precomputed_sf_cases = {
    "quant_per_block_cast_with_precomputed_sf",
    "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_tokens=128 num_per_channels=128 sf=row "
    "pairs=e2m1x2 values=normal layout=packed offset=0 out_offset=0",
    setup, run, cast_oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=130 num_cols=64,320 dtype=bf16,f32 format=e4m3,e2m1 values=mixed",
        "num_rows=70 num_cols=192 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 num_per_channels=32 "
        "sf=col,packed values=mixed",
        "num_rows=0,1,127,129 num_cols=256 num_per_channels=32,128 sf=packed values=mixed",
        "num_rows=10 num_cols=100 num_per_tokens=1,3,0 num_per_channels=1,6,0 format=e4m3,e2m1 "
        "sf=row,col,packed values=mixed",
        "num_rows=40 num_cols=256 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 num_per_channels=32 "
        "sf=row,packed values=bits",
        "num_rows=40 num_cols=640 num_per_tokens=8 sf=row_gap,col_gap,col_tight,packed_gap values=powers",
        "num_rows=36 num_cols=256 dtype=bf16,f32 layout=half,gap,repeated offset=1 out_offset=1 "
        "values=mixed",
        "num_rows=36 num_cols=64 format=e2m1 pairs=i8,u8 values=mixed"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 "
        "num_per_channels=32 values=mixed",
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 values=mixed",
        "num_rows=299600 num_cols=7168"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128,4096,8001 num_cols=7168",
        "num_rows=8001 num_cols=7168 format=e2m1 num_per_tokens=32 num_per_channels=32 sf=packed"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32,128 "
        "num_per_channels=32,128 sf=row,col,packed",
        "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=7,0 "
        "num_per_channels=100,0"),
};
// clang-format on
