/* SPDX-License-Identifier: MIT */
#include "cases/quant/common/swiglu.h"
#include "core/status.h"

enum { X, OUT, SF };

static near activation_at(const case_problem *c, int64_t row, int64_t col)
{
    const case_tensor *x = &c->tensors[X];
    return activation(clamping_of(quant_params_in(c)), quant_float_at(x, row, col),
                      quant_float_at(x, row, x->shape[1] / 2 + col));
}

static void decide_rows(void *context, int64_t begin, int64_t end)
{
    const drawing *d = context;
    const int64_t num_cols = d->t->shape[1] / 2;
    uint16_t code;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < num_cols; j++)
            for (int attempt = 0; attempt < SWIGLU_MAX_ATTEMPTS; attempt++) {
                swiglu_put_drawn(d, i, j, num_cols, attempt);
                swiglu_put_drawn(d, i, num_cols + j, num_cols, attempt);
                if (bf16_of(activation_at(d->c, i, j), &code)) break;
            }
}

static void fill_x(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed); /* gaps */
    case_parallel(t->shape[0], 128 * t->shape[1], decide_rows, &(drawing){ c, t, seed, case_is(c, "values", "mixed") });
}

static tgl_status setup(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_tokens = case_int(c, "num_per_tokens"),
                             .round_sf = case_int(c, "round") != 0,
                             .without_transpose = case_int(c, "without_transpose") != 0 };
    TGL_TRY(swiglu_check_values(c));
    TGL_TRY(swiglu_read_number(c, "clamp", &p->has_swiglu_clamp_value, &p->swiglu_clamp_value));
    case_tensor *x = case_add(c, X, "x", CASE_IN, case_dtype(c, "dtype"), 2, (int64_t[]){ rows, 2 * cols });
    x->offset = case_int(c, "offset");
    x->fill = fill_x;
    TGL_TRY(quant_lay_out(case_text(c, "layout"), 2 * cols, x->strides));
    case_tensor *out = case_add(c, OUT, "out", CASE_OUT, TGL_E4M3, 2,
                                p->without_transpose ? (int64_t[]){ rows, cols } : (int64_t[]){ cols, rows });
    out->offset = case_int(c, "out_offset");
    return quant_add_sf(c, SF, "out_sf", CASE_OUT, "row", quant_ceil_div(rows, quant_or_all(p->num_per_tokens, 1)),
                        cols, &sf);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(a->arg[X], a->arg[OUT], a->arg[SF],
                                                                       quant_params_in(a->problem), a->stream);
}

static float bf16_activation(const case_problem *c, int64_t row, int64_t col)
{
    uint16_t code;
    bf16_of(activation_at(c, row, col), &code);
    return (float)case_decode(TGL_BF16, &code);
}

static void oracle(case_problem *c)
{
    const tgl_quant_params *p = quant_params_in(c);
    const case_tensor *x = &c->tensors[X];
    quant_cast(&(quant_blocks){ .c = c,
                                .value = bf16_activation,
                                .num_rows = x->shape[0],
                                .num_cols = x->shape[1] / 2,
                                .block_rows = quant_or_all(p->num_per_tokens, 1),
                                .block_cols = 1,
                                .round = p->round_sf,
                                .is_transposed = !p->without_transpose,
                                .sf = &c->tensors[SF],
                                .out = &c->tensors[OUT] });
}

// clang-format off: lines of cases
const case_op swiglu_forward_and_per_channel_cast_and_transpose_cases = {
    "quant_swiglu_forward_and_per_channel_cast_and_transpose",
    "num_rows= num_cols= dtype=bf16 num_per_tokens=128 round=0 without_transpose=0 clamp=none "
    "values=normal layout=packed offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .has_swiglu = true,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=1,128,257 num_cols=64,136 dtype=bf16,f32 without_transpose=0,1 round=0,1 values=mixed",
        "num_rows=70 num_cols=72 num_per_tokens=1,32,64,100,0 without_transpose=0,1 clamp=none,0.5 "
        "values=mixed",
        "num_rows=128 num_cols=64 dtype=bf16,f32 clamp=10,0.5,0.3,0 round=1 values=mixed",
        "num_rows=0,2,3,4,31,33,127,129,132 num_cols=8 num_per_tokens=32 round=1 without_transpose=0,1 "
        "values=mixed",
        "num_rows=40 num_cols=0,1,2,7,9,65,129 num_per_tokens=32 without_transpose=0,1 values=mixed",
        "num_rows=128,132 num_cols=64 dtype=bf16,f32 layout=half,gap offset=0,1 out_offset=0,1",
        "num_rows=128 num_cols=64 without_transpose=1 layout=gap offset=1 out_offset=1,2,4",
        "num_rows=2 num_cols=6408 dtype=bf16,f32 without_transpose=0,1 values=mixed",
        "num_rows=144 num_cols=3208 num_per_tokens=32",
        "num_rows=131 num_cols=3208 dtype=bf16,f32 values=mixed",       /* whole tiles, cut anywhere */
        "num_rows=131,144 num_cols=3208 num_per_tokens=64 round=1 clamp=none,10 values=mixed",
        "num_rows=3 num_cols=64008 num_per_tokens=64 round=1",          /* 1000 tiles: long ones */
        "num_rows=300 num_cols=24 num_per_tokens=130,1000 without_transpose=0,1"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4096 " QUANT_HIDDEN_SIZES "num_per_tokens=32,128 without_transpose=0,1 round=0,1 "
        "clamp=none,10,0.5",
        "num_rows=8064 " QUANT_HIDDEN_SIZES "num_per_tokens=32,128 without_transpose=0,1 round=1 clamp=0.5",
        "num_rows=4001 num_cols=2048 dtype=bf16,f32 without_transpose=0,1 clamp=0.3 values=mixed",
        "num_rows=4001 num_cols=2048,7168 num_per_tokens=32,128 round=1 clamp=none,10 values=mixed",
        "num_rows=2 num_cols=4194400 round=1",
        "num_rows=150016 num_cols=7168",
        "num_rows=2100 num_cols=512 layout=far",
        "num_rows=65600 num_cols=8 num_per_tokens=1 without_transpose=0,1"),     /* slices of rows */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128,8192,32768 num_cols=2048",
        "num_rows=8192 num_cols=4096",
        "num_rows=8192 num_cols=2048 without_transpose=1",
        "num_rows=8192 num_cols=2048 clamp=10",
        "num_rows=8001 num_cols=7168 round=1 without_transpose=0,1",
        "num_rows=8064 num_cols=7168 num_per_tokens=32,128 round=1"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=256 num_cols=2048 dtype=bf16,f32 num_per_tokens=32,64,128,100 round=0,1 "
        "without_transpose=0,1 clamp=none,10",
        "num_rows=255 num_cols=100 dtype=bf16,f32 num_per_tokens=32,128 without_transpose=0,1"),
    .models = CASE_LINES("num_rows=4096 num_cols={intermediate} round=0,1"),
};
// clang-format on
