/* SPDX-License-Identifier: MIT */
#include "cases/quant/common/quant.h"
#include "core/status.h"

enum { X, X_SF, OUT };

static tgl_status setup(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *x_sf;
    *p = (tgl_quant_params){ .x_num_per_tokens = case_int(c, "x_num_per_tokens"),
                             .x_num_per_channels = case_int(c, "x_num_per_channels") };
    TGL_TRY(quant_format_named(case_text(c, "format"), &p->format));
    case_tensor *x = case_add(c, X, "x", CASE_IN, quant_data_dtype(p->format, case_dtype(c, "pairs")), 2,
                              (int64_t[]){ rows, quant_data_cols(p->format, cols) });
    x->offset = case_int(c, "offset");
    TGL_TRY(quant_lay_out(case_text(c, "layout"), x->shape[1], x->strides));
    TGL_TRY(quant_choose_fill(c, x, 1, 8));
    if (p->format == TGL_QUANT_E5M6) x->fill = case_fill_bits;
    const int64_t xm = quant_or_all(p->x_num_per_tokens, 1);
    const int64_t xk = quant_or_all(p->x_num_per_channels, cols);
    TGL_TRY(quant_add_sf(c, X_SF, "x_sf", CASE_IN, case_text(c, "x_sf"), quant_ceil_div(rows, xm),
                         quant_ceil_div(cols, xk), &x_sf));
    case_tensor *out = case_add(c, OUT, "out", CASE_OUT, case_dtype(c, "dtype"), 2, (int64_t[]){ rows, cols });
    out->offset = case_int(c, "out_offset");
    out->compare.nan_payload = false;
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_cast_back(a->arg[X], a->arg[X_SF], a->arg[OUT], quant_params_in(a->problem), a->stream);
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const tgl_quant_params *p = quant_params_in(c);
    const case_tensor *x = &c->tensors[X], *x_sf = &c->tensors[X_SF], *out = &c->tensors[OUT];
    const int64_t xm = quant_or_all(p->x_num_per_tokens, 1);
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < out->shape[1]; j++) {
            const float sf = quant_sf_at(x_sf, i / xm, p->x_num_per_channels ? j / p->x_num_per_channels : 0);
            const float value = quant_decode(p->format, quant_code_at(x, p->format, i, j)) * sf;
            case_encode(out->dtype, value, case_element(out, (int64_t[]){ i, j }));
        }
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[OUT].shape[0], 64 * c->tensors[OUT].shape[1], oracle_rows, c);
}

// clang-format off: lines of cases
const case_op cast_back_cases = {
    "quant_cast_back",
    "num_rows= num_cols= format=e4m3 dtype=bf16 x_num_per_tokens=1 x_num_per_channels=128 x_sf=row "
    "pairs=e2m1x2 values=normal layout=packed offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=5 num_cols=8,100,576,1032 format=e4m3,e2m1 dtype=bf16,f32 x_sf=row,packed values=mixed",
        "num_rows=5 num_cols=576 format=e4m3,e2m1 dtype=bf16,f32 x_num_per_channels=16,32,0 x_sf=col "
        "values=mixed",
        "num_rows=130 num_cols=200 format=e4m3,e2m1 x_num_per_tokens=32,128 "
        "x_num_per_channels=1,32,128 values=mixed",
        "num_rows=7 num_cols=130 format=e4m3,e2m1 x_num_per_tokens=0,3 x_num_per_channels=1,7,1000 "
        "x_sf=row,col values=mixed",
        "num_rows=6 num_cols=640 x_sf=row_gap,row_same,col_gap,col_tight,col_same,packed_gap values=mixed",
        "num_rows=0,1,3,33 num_cols=256 x_sf=packed values=mixed",
        "num_rows=131,263 num_cols=1024 format=e4m3,e5m6 x_sf=packed "  /* 2 and 4 rows a thread */
        "values=mixed",
        "num_rows=5 num_cols=256 format=e4m3,e2m1,e5m6 dtype=bf16,f32 x_sf=row,packed values=bits",
        "num_rows=5 num_cols=8,64,584 format=e5m6 dtype=bf16,f32 x_num_per_channels=0,24 x_sf=row,packed",
        "num_rows=17,32 num_cols=1024 format=e4m3,e5m6 x_num_per_tokens=1,3 x_num_per_channels=128,0 "
        "x_sf=row,packed values=bits",              /* 4 rows a thread: one wave of 4 SMs */
        "num_rows=11,16 num_cols=1024 format=e2m1 dtype=f32 x_num_per_tokens=1,3 x_sf=row,packed "
        "values=bits",
        "num_rows=17,32,131 num_cols=1024 x_num_per_tokens=3 x_num_per_channels=1,7 values=mixed",
        "num_rows=77,131 num_cols=7168 format=e4m3,e5m6 x_num_per_tokens=1,5 x_sf=packed values=bits",
        "num_rows=33 num_cols=64 format=e5m6 x_num_per_tokens=8 x_num_per_channels=16 x_sf=col "
        "values=mixed",
        "num_rows=5 num_cols=64 format=e5m6 layout=gap4,half,repeated offset=0,4 out_offset=0,1",
        "num_rows=6 num_cols=256 format=e4m3,e2m1 dtype=bf16,f32 layout=half,gap,repeated offset=0,1 "
        "values=mixed",
        "num_rows=3 num_cols=256 format=e4m3,e2m1 dtype=bf16,f32 offset=0,4 out_offset=1,2 values=mixed",
        "num_rows=3 num_cols=64 format=e2m1 pairs=i8,u8",
        "num_rows=2 num_cols=100 x_sf=packed values=mixed"),    /* a size of its own: in every choice of pairs */
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4001 " QUANT_HIDDEN_SIZES "format=e4m3,e2m1 dtype=bf16,f32 x_num_per_channels=128,0 "
        "x_sf=row,packed",
        "num_rows=4001 " QUANT_HIDDEN_SIZES "dtype=bf16,f32 x_num_per_tokens=128 x_num_per_channels=1,128",
        "num_rows=4001 " QUANT_HIDDEN_SIZES "format=e5m6 dtype=bf16,f32 x_num_per_channels=0 x_sf=row,packed",
        "num_rows=8001 num_cols=7168 format=e4m3,e2m1,e5m6 dtype=bf16,f32",
        "num_rows=8001 " QUANT_HIDDEN_SIZES "format=e4m3,e2m1,e5m6 dtype=bf16 x_num_per_channels=0 x_sf=packed",
        "num_rows=299600 num_cols=7168 format=e4m3,e2m1,e5m6",
        "num_rows=2100 num_cols=1024 format=e4m3,e5m6 layout=far"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128,4096 num_cols=7168",
        "num_rows=4096 num_cols=7168 x_sf=packed",
        "num_rows=4096 num_cols=7168 dtype=f32",
        "num_rows=4096 num_cols=7168 format=e2m1 x_sf=packed",
        "num_rows=4096 num_cols=7168 x_num_per_channels=7168",
        "num_rows=128,4096 num_cols=7168 x_num_per_tokens=128",
        "num_rows=4096 num_cols=7168 x_num_per_tokens=128 x_num_per_channels=1",
        "num_rows=4096 num_cols=7168 dtype=f32 x_num_per_tokens=128",
        "num_rows=128,4096 num_cols=7168 format=e5m6 x_num_per_channels=7168",
        "num_rows=4096 num_cols=7168 format=e5m6 dtype=f32 x_num_per_channels=7168",
        "num_rows=8001 num_cols=7168 format=e4m3,e2m1 dtype=bf16,f32 x_sf=packed",
        "num_rows=8001 num_cols=7168 x_num_per_tokens=128 x_num_per_channels=1,128",
        "num_rows=8001 num_cols=7168 format=e5m6 x_num_per_channels=7168",
        "num_rows=4001 num_cols=576 x_sf=packed"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=256 num_cols=7168 format=e4m3,e2m1,e5m6 dtype=bf16,f32 x_num_per_tokens=1,32,128 "
        "x_num_per_channels=32,128,7168 x_sf=row,col,packed",
        "num_rows=256 num_cols=7168 format=e4m3,e2m1,e5m6 dtype=bf16,f32 x_num_per_tokens=128 "
        "x_num_per_channels=1",
        "num_rows=256 num_cols=7168 format=e4m3,e2m1,e5m6 dtype=bf16,f32 x_num_per_channels=100"),
    .models = CASE_LINES("num_rows=4096 num_cols={hidden}"),
};
// clang-format on
