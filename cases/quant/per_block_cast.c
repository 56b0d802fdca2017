/* SPDX-License-Identifier: MIT */
#include "cases/quant/common/cast.h"

static tgl_status setup(case_problem *c) { return cast_setup(c, false, false); }

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_per_block_cast(a->arg[X], a->arg[OUT], a->arg[SF], quant_params_in(a->problem), a->stream);
}

// clang-format off: lines of cases
const case_op per_block_cast_cases = {
    "quant_per_block_cast",
    "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_tokens=128 num_per_channels=128 round=0 sf=row "
    "pairs=e2m1x2 values=normal layout=packed offset=0 out_offset=0 sf_only=0",
    setup, run, cast_oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=130 num_cols=64,320 dtype=bf16,f32 format=e4m3,e2m1 round=0,1 values=mixed",
        "num_rows=70 num_cols=192 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 num_per_channels=32 "
        "round=0,1 sf=col values=mixed",
        "num_rows=70 num_cols=576 format=e4m3,e2m1 num_per_tokens=32 num_per_channels=32,128 round=1 "
        "sf=packed values=mixed",
        "num_rows=1,127,129,257 num_cols=256 num_per_channels=32,128 round=1 sf=packed values=mixed",
        "num_rows=0 num_cols=128",
        "num_rows=10 num_cols=100 num_per_tokens=1,3,7,0 num_per_channels=1,6,32,0 values=mixed",
        "num_rows=300 num_cols=64 num_per_tokens=9223372036854775807",
        "num_rows=10 num_cols=100 format=e2m1 num_per_tokens=3,16 num_per_channels=5,0 values=mixed",
        /* two blocks share a byte, and the last has no neighbour */
        "num_rows=7 num_cols=8,14 dtype=bf16 format=e2m1 num_per_tokens=3 num_per_channels=3 values=mixed",
        "num_rows=7 num_cols=8 dtype=f32 format=e2m1 num_per_tokens=3 num_per_channels=3 round=1 "
        "sf=row_gap,col,packed values=bits",
        "num_rows=200 num_cols=1 num_per_channels=1 values=mixed",
        /* blocks of more than GROUP_LARGE values, several to a thread block with TEGULA_TEST_GRID */
        "num_rows=400 num_cols=204 num_per_tokens=67 num_per_channels=68 values=mixed",
        "num_rows=40 num_cols=256 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 num_per_channels=32 "
        "round=0,1 values=bits",
        "num_rows=40 num_cols=640 num_per_tokens=8 round=1 sf=row_gap,col_gap,col_tight,packed_gap "
        "values=mixed",
        "num_rows=36 num_cols=256 dtype=bf16,f32 num_per_tokens=32 layout=half,gap,repeated offset=0,1 "
        "values=mixed",
        "num_rows=36 num_cols=256 format=e4m3,e2m1 offset=1,4 out_offset=1,2 values=mixed",
        "num_rows=36 num_cols=64 format=e2m1 pairs=i8,u8 values=mixed",
        "num_rows=130 num_cols=320 dtype=bf16,f32 round=1 sf=row,packed sf_only=1 values=mixed",
        "num_rows=70 num_cols=192 format=e4m3,e2m1 num_per_tokens=32 num_per_channels=32 sf_only=1 "
        "values=mixed",
        "num_rows=40,300 num_cols=264 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=16,128 "
        "num_per_channels=1 round=1 sf=row,packed values=mixed"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 "
        "num_per_channels=32 round=1 sf=row,packed values=mixed",
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 round=1 sf=row,packed "
        "values=mixed",
        "num_rows=8001 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 round=0,1 values=normal",
        "num_rows=8001 " QUANT_HIDDEN_SIZES "dtype=bf16 format=e4m3,e2m1 num_per_tokens=32,128 "
        "num_per_channels=32 round=1 sf=packed values=mixed",
        "num_rows=299600 num_cols=7168 num_per_channels=128",
        "num_rows=2100 num_cols=1024 layout=far"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128,4096,8192 num_cols=7168",
        "num_rows=7168 num_cols=4096",
        "num_rows=4096 num_cols=7168 round=1 sf=packed",
        "num_rows=4096 num_cols=7168 dtype=f32",
        "num_rows=4096 num_cols=7168 format=e2m1 num_per_tokens=32 num_per_channels=32 round=1 sf=packed",
        "num_rows=4096 num_cols=7168 num_per_tokens=32 num_per_channels=32",
        "num_rows=4096 num_cols=7168 sf_only=1",
        "num_rows=8001 num_cols=7168 dtype=bf16,f32 round=1 sf=packed",
        "num_rows=8001 num_cols=7168 format=e2m1 num_per_tokens=32 num_per_channels=32 round=1 sf=packed",
        "num_rows=8001 num_cols=7168 round=1 sf=packed sf_only=1",
        "num_rows=4001 num_cols=576 round=1 sf=packed"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 round=0,1",
        "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 "
        "num_per_channels=32 round=0,1",
        "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32,128 "
        "num_per_channels=32,128 round=1 sf=col,packed",
        "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=7,0 "
        "num_per_channels=100,0",
        "num_rows=256 num_cols=7168 dtype=bf16,f32 num_per_tokens=32,128 num_per_channels=32,128 sf_only=1",
        "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 sf_only=1 round=1 sf=packed",
        "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32,128 "
        "num_per_channels=1 round=1 sf=row,packed"),
    .models = CASE_LINES("num_rows=4096 num_cols={hidden} round=0,1"),
};
// clang-format on
