/* SPDX-License-Identifier: MIT */
#include "cases/quant/common/cast.h"
#include "core/status.h"

static tgl_status setup(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_tokens = case_int(c, "num_per_tokens"), .round_sf = case_int(c, "round") != 0 };
    const int64_t block_rows = quant_or_all(p->num_per_tokens, 1);
    TGL_TRY(cast_add_x(c, rows, cols, block_rows, 1));
    TGL_TRY(quant_add_sf(c, SF, "out_sf", CASE_OUT, "row", quant_ceil_div(rows, block_rows), cols, &sf));
    cast_add_out(c, cols, rows, TGL_E2M1X2);
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_per_channel_cast_and_transpose(a->arg[X], a->arg[OUT], a->arg[SF], quant_params_in(a->problem),
                                                    a->stream);
}

static void oracle(case_problem *c)
{
    const tgl_quant_params *p = quant_params_in(c);
    const case_tensor *x = &c->tensors[X];
    quant_cast(&(quant_blocks){ .c = c,
                                .value = cast_value,
                                .num_rows = x->shape[0],
                                .num_cols = x->shape[1],
                                .block_rows = quant_or_all(p->num_per_tokens, 1),
                                .block_cols = 1,
                                .round = p->round_sf,
                                .is_transposed = true,
                                .sf = &c->tensors[SF],
                                .out = &c->tensors[OUT] });
}

// clang-format off: lines of cases
const case_op per_channel_cast_and_transpose_cases = {
    "quant_per_channel_cast_and_transpose",
    "num_rows= num_cols= dtype=bf16 num_per_tokens=128 round=0 values=normal layout=packed offset=0 "
    "out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=1,128,257 num_cols=64,200 dtype=bf16,f32 num_per_tokens=32,128 round=0,1 values=mixed",
        "num_rows=70 num_cols=136 dtype=bf16,f32 num_per_tokens=1,48,64,100,0 values=mixed",
        "num_rows=0,2,3,4,31,33,127,129,132 num_cols=8 num_per_tokens=32 round=1 values=mixed",
        "num_rows=40 num_cols=0,1,2,7,9,65,129 dtype=bf16,f32 num_per_tokens=32 values=mixed",
        "num_rows=130 num_cols=128 dtype=bf16,f32 round=0,1 values=bits",
        "num_rows=128,132 num_cols=64 dtype=bf16,f32 layout=half,gap,repeated offset=0,1 out_offset=0,1 "
        "values=mixed",
        "num_rows=128 num_cols=64 out_offset=2,4,8 values=mixed",
        "num_rows=2 num_cols=6408 dtype=bf16,f32 values=mixed",
        "num_rows=130,144 num_cols=3208 num_per_tokens=32 values=mixed",
        "num_rows=3 num_cols=64008 num_per_tokens=64 values=mixed",     /* 1000 tiles: long ones */
        "num_rows=300,304 num_cols=40 dtype=bf16,f32 num_per_tokens=130,144,1000 values=mixed"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4096,8064 " QUANT_HIDDEN_SIZES "num_per_tokens=32,128 round=0,1 values=mixed",
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=bf16,f32 values=mixed",
        "num_rows=299648 num_cols=7168",
        "num_rows=2100 num_cols=1024 layout=far",
        "num_rows=65600 num_cols=8 num_per_tokens=1",   /* slices of rows */
        "num_rows=2 num_cols=4194400"),                  /* more bands than a grid allows */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128,4096,8192 num_cols=7168",
        "num_rows=4096 num_cols=4096",
        "num_rows=8001 num_cols=7168 dtype=bf16,f32 num_per_tokens=32,128 round=1",
        "num_rows=8064 num_cols=576,7168 round=1"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=256 num_cols=7168 dtype=bf16,f32 num_per_tokens=32,64,128,100 round=0,1",
        "num_rows=255 num_cols=100 dtype=bf16,f32 num_per_tokens=32,128,100"),
    .models = CASE_LINES("num_rows=4096 num_cols={hidden} round=0,1"),
};
// clang-format on
