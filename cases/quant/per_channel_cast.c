/* SPDX-License-Identifier: MIT */
#include "cases/quant/common/cast.h"
#include "core/status.h"

enum { POS = GIVEN };

/* Parameter `map`:
 *   none       row i is token i
 *   random     any token, some out of range
 *   experts    32 experts with as many rows each, 16 of 17 with tokens in ascending order, the rest padding
 *   negative   padding only
 *   wild       every other one far out of range
 *   same       one token for all */
enum { NONE, RANDOM, EXPERTS, NEGATIVE, SAME, WILD };
#define MAPS "none random experts negative same wild"

static void fill_map(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int map = case_word(c, "map", MAPS);
    const int64_t tokens = c->tensors[X].shape[0], rows = t->shape[0], experts = 32;
    const int64_t rows_each = rows < experts ? 1 : rows / experts;
    const int64_t picks_each = tokens ? rows_each * 16 / 17 : 0;
    t->low = -(double)(tokens / 4 + 1), t->high = (double)(tokens + tokens / 8 + 2);
    case_fill_uniform(c, t, seed);
    for (int64_t i = 0; i < rows; i++) {
        int32_t *to = (int32_t *)t->data + i;
        if (map == NEGATIVE) *to = -1 - (int32_t)(i % 3);
        if (map == SAME) *to = (int32_t)(tokens / 2);
        if (map == WILD && i % 2) *to = (int32_t[]){ INT32_MIN, INT32_MAX, (int32_t)tokens }[i / 2 % 3];
        if (map != EXPERTS) continue;
        const int64_t e = i / rows_each, j = i % rows_each;
        *to = j < picks_each ? (int32_t)((j * tokens / picks_each + e) % tokens) : -1;
    }
}

static tgl_status setup(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    const bool has_map = !case_is(c, "map", "none");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_tokens = case_int(c, "num_per_tokens"),
                             .x_num_per_channels = case_int(c, "x_num_per_channels"),
                             .round_sf = case_int(c, "round") != 0 };
    TGL_TRY(case_check_word(c, "map", MAPS));
    if (has_map) case_add(c, POS, "pos_to_token", CASE_IN, TGL_I32, 1, (int64_t[]){ rows })->fill = fill_map;
    const int64_t block_rows = quant_or_all(p->num_per_tokens, 1);
    TGL_TRY(cast_add_x(c, has_map ? case_int(c, "num_tokens") : rows, cols, block_rows, 1));
    TGL_TRY(quant_add_sf(c, SF, "out_sf", CASE_OUT, "row", quant_ceil_div(rows, block_rows), cols, &sf));
    cast_add_out(c, rows, cols, TGL_E2M1X2);
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_per_channel_cast(a->arg[X], a->arg[X_SF], a->arg[POS], a->arg[OUT], a->arg[SF],
                                      quant_params_in(a->problem), a->stream);
}

static int64_t token_of_row(const case_problem *c, int64_t row)
{
    const case_tensor *pos = &c->tensors[POS];
    return pos->name ? ((const int32_t *)pos->data)[row] : row;
}

static bool row_exists(const case_problem *c, int64_t row)
{
    const int64_t token = token_of_row(c, row);
    return token >= 0 && token < c->tensors[X].shape[0];
}

static float gathered_value(const case_problem *c, int64_t row, int64_t col)
{
    return cast_value(c, token_of_row(c, row), col);
}

static void oracle(case_problem *c)
{
    const tgl_quant_params *p = quant_params_in(c);
    const case_tensor *out = &c->tensors[OUT];
    quant_cast(&(quant_blocks){ .c = c,
                                .value = gathered_value,
                                .exists = row_exists,
                                .num_rows = out->shape[0],
                                .num_cols = c->tensors[X].shape[1],
                                .block_cols = 1,
                                .round = p->round_sf,
                                .block_rows = quant_or_all(p->num_per_tokens, 1),
                                .sf = &c->tensors[SF],
                                .out = out });
}

// clang-format off: lines of cases
const case_op per_channel_cast_cases = {
    "quant_per_channel_cast",
    "num_rows= num_cols= num_tokens=0 map=none dtype=bf16 num_per_tokens=128 round=0 "
    "x_num_per_channels=128 x_sf=row values=normal layout=packed offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=1,128,257 num_cols=64,200 dtype=bf16,f32 round=0,1 values=mixed",
        "num_rows=70 num_cols=136 dtype=bf16,f32 num_per_tokens=1,32,64,100,0 values=mixed",
        "num_rows=0,2,31,33,127,129 num_cols=8 round=1 values=mixed",
        "num_rows=40 num_cols=1,2,7,9,129,520 dtype=bf16,f32 num_per_tokens=32 values=mixed",
        "num_rows=130 num_cols=256 dtype=e4m3 num_per_tokens=32,128 x_sf=row,col,packed round=0,1 "
        "values=mixed",
        "num_rows=40 num_cols=192 dtype=e4m3 num_per_tokens=32 x_num_per_channels=32,10,0 "
        "x_sf=row_gap,col_gap,packed_gap values=mixed",
        "num_rows=48,130 num_cols=128,100 num_tokens=20 map=random dtype=bf16,f32,e4m3 round=0,1 "
        "values=mixed",
        "num_rows=67 num_cols=128 num_tokens=9 map=random dtype=bf16,e4m3 num_per_tokens=32 x_sf=packed "
        "values=mixed",
        "num_rows=20 num_cols=128 num_tokens=3 map=negative,same dtype=bf16,f32,e4m3 round=0,1 "
        "values=mixed",
        "num_rows=67 num_cols=128 num_tokens=9 map=wild dtype=bf16,e4m3 num_per_tokens=32 values=bits",
        "num_rows=67 num_cols=100 num_tokens=9 map=wild dtype=f32,e4m3 x_num_per_channels=10 values=bits",
        "num_rows=0,5 num_cols=64 num_tokens=0,4 map=random dtype=bf16,e4m3",
        "num_rows=1088 num_cols=64 num_tokens=600 map=experts",
        "num_rows=130 num_cols=128 dtype=bf16,f32,e4m3 round=0,1 values=bits",
        "num_rows=40 num_cols=128 num_tokens=33 map=random dtype=bf16,f32,e4m3 layout=half,gap "
        "offset=0,1 out_offset=0,1 values=mixed",
        "num_rows=40 num_cols=128 dtype=bf16,f32,e4m3 layout=gap,repeated offset=1 out_offset=1 "
        "values=mixed",
        "num_rows=2 num_cols=6408 num_tokens=3 map=none,random dtype=bf16,f32,e4m3 values=mixed",
        "num_rows=300 num_cols=200 num_tokens=16000 map=random",        /* bands of columns */
        /* thresholds of the number of tiles: 100 wide ones, 1000, 100 staged ones; test_per_channel_cast.c
         * has more rows for these kernels */
        "num_rows=130 num_cols=3208 values=mixed",
        "num_rows=2 num_cols=12808 num_tokens=3 map=none,random dtype=e4m3 values=mixed",
        "num_rows=2 num_cols=64008 num_tokens=3 map=none,random values=mixed",
        "num_rows=2 num_cols=12800 num_tokens=40 map=random dtype=e4m3 num_per_tokens=32,64,128 round=0,1 "
        "x_sf=packed values=mixed",
        "num_rows=96 num_cols=12800 num_tokens=40 map=random dtype=e4m3 num_per_tokens=32 x_sf=packed "
        "values=mixed",
        "num_rows=769 num_cols=2304 num_tokens=3000 map=random dtype=e4m3 x_num_per_channels=256,0 "
        "x_sf=col_gap values=bits",                                     /* staged, in bands */
        "num_rows=300 num_cols=40 num_tokens=200 map=none,random dtype=bf16,f32,e4m3 "
        "num_per_tokens=130,1000 values=mixed",
        "num_rows=300 num_cols=40 num_per_tokens=9223372036854775807"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4096,8064 " QUANT_HIDDEN_SIZES "round=0,1 values=mixed",
        "num_rows=4096 " QUANT_HIDDEN_SIZES "dtype=e4m3 round=0,1 values=mixed",
        "num_rows=8704 num_tokens=5376 map=experts " QUANT_HIDDEN_SIZES "dtype=bf16,e4m3 round=0,1 "
        "values=mixed",
        "num_rows=299600 num_cols=7168",
        "num_rows=4096 num_tokens=2100 map=random num_cols=1024 dtype=bf16,e4m3 layout=far",
        "num_rows=65600 num_cols=8 num_tokens=300 map=none,random dtype=bf16,f32,e4m3 num_per_tokens=1",
        "num_rows=8388800 num_cols=8 num_tokens=300 map=none,random"),       /* slices of rows */
    /* about the tokens and rows of 8 ranks with 4096 tokens each, 8 of 256 experts, 32 of them here, in
     * blocks of 128 rows */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128,4096,8192 num_cols=7168",
        "num_rows=4096 num_cols=4096",
        "num_rows=128,4096 num_cols=7168 dtype=e4m3",
        "num_rows=34816 num_cols=7168 num_tokens=21504 map=experts dtype=bf16,e4m3",
        "num_rows=128 num_cols=7168 num_tokens=80 map=experts dtype=bf16,e4m3",
        "num_rows=8001 num_cols=7168 num_tokens=5000 map=experts dtype=bf16,e4m3 round=1",
        "num_rows=8001 num_cols=7168 dtype=bf16,f32,e4m3 round=1",
        "num_rows=8064 num_cols=576 round=1"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=256 num_cols=7168 num_tokens=100 map=none,random dtype=bf16,f32,e4m3 "
        "num_per_tokens=32,64,128,100 round=0,1",
        "num_rows=256 num_cols=7168 num_tokens=100 map=none,random dtype=e4m3 x_sf=col,packed "
        "x_num_per_channels=32,128 num_per_tokens=32,128 round=0,1",
        "num_rows=256 num_cols=100 num_tokens=100 map=none,random dtype=bf16,f32,e4m3",
        "num_rows=256 num_cols=100 dtype=e4m3 x_sf=col,packed num_per_tokens=32,100 round=0,1",
        "num_rows=256 num_cols=7168 num_tokens=100 map=none,random dtype=e4m3 x_num_per_channels=10"),
    .models = CASE_LINES("num_rows=4096 num_cols={hidden} round=0,1"),
};
// clang-format on
