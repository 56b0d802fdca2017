/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "cases/quant/common/cast.h"
#include "core/status.h"

enum { INEXACT = NUM_OF_CAST };

/* Exponent codes of x_sf: within an output block they differ by at most `spread`. With has_zeros, half of
 * them are 1, the code of a block of zeros, and the values zeros. */
typedef struct {
    int spread, low, high;
    bool has_fraction, has_zeros;
} exponents;
static tgl_status exponents_named(const char *values, exponents *e)
{
    *e = (exponents){ .low = 40, .high = 220 };
    if (!strcmp(values, "spread11")) e->spread = 11;
    else if (!strcmp(values, "spread14")) e->spread = 14;
    else if (!strcmp(values, "spread15")) e->spread = 15;
    else if (!strcmp(values, "spread30")) e->spread = 30;
    else if (!strcmp(values, "zeros")) e->spread = 11, e->has_zeros = true;
    else if (!strcmp(values, "fraction")) e->spread = 11, e->has_fraction = true;
    else if (!strcmp(values, "lowest")) e->spread = 3, e->low = 4, e->high = 12;
    else if (!strcmp(values, "highest")) e->spread = 11, e->low = 240, e->high = 254;
    else
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "values: is \"%s\", want spread11, spread14, spread15, spread30, zeros, "
                        "fraction, lowest or highest",
                        values);
    return TGL_OK;
}

typedef struct { int64_t rows, cols, bm, bk, xm, xk; } two_grids;
static two_grids grids_of(const case_problem *c)
{
    const tgl_quant_params *p = quant_params_in(c);
    const int64_t rows = c->tensors[X].shape[0], cols = 2 * c->tensors[X].shape[1];
    return (two_grids){ rows,
                        cols,
                        quant_or_all(p->num_per_tokens, 1),
                        quant_or_all(p->num_per_channels, cols),
                        quant_or_all(p->x_num_per_tokens, 1),
                        quant_or_all(p->x_num_per_channels, cols) };
}

/* The code of an input block, from the case's name: x and x_sf are filled separately. */
static int chosen_exponent(const case_problem *c, const exponents *e, int64_t m, int64_t k, uint64_t *r)
{
    const uint64_t seed = case_seed(c->label);
    const two_grids g = grids_of(c);
    const uint64_t block = case_random(case_random(seed, m * g.xm / g.bm), k * g.xk / g.bk);
    *r = case_random(case_random(seed + 1, m), k);
    if (e->has_zeros && *r >> 32 & 1) return 1;
    return e->low + (int)(block % (unsigned)(e->high - e->low + 1)) - (int)(*r % (unsigned)(e->spread + 1));
}

static void fill_exponents(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const two_grids g = grids_of(c);
    exponents e;
    uint64_t r;
    if (exponents_named(case_text(c, "values"), &e) != TGL_OK) return;
    case_fill_bits(c, t, seed); /* gaps, and codes past the last */
    for (int64_t m = 0; m < quant_ceil_div(g.rows, g.xm); m++)
        for (int64_t k = 0; k < quant_ceil_div(g.cols, g.xk); k++) {
            const int code = chosen_exponent(c, &e, m, k, &r);
            if (t->dtype == TGL_F32) {
                const uint32_t fraction = e.has_fraction ? (uint32_t)(r >> 16) & 0x7fffff : 0;
                *(uint32_t *)case_element(t, (int64_t[]){ m, k }) = (uint32_t)code << 23 | fraction;
            } else {
                ((unsigned char *)case_element(t, (int64_t[]){ m, k / 4 }))[k % 4] = (unsigned char)code;
            }
        }
}

static void fill_pairs(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const two_grids g = grids_of(c);
    exponents e;
    uint64_t r;
    case_fill_bits(c, t, seed);
    if (exponents_named(case_text(c, "values"), &e) != TGL_OK || !e.has_zeros) return;
    for (int64_t i = 0; i < g.rows; i++)
        for (int64_t j = 0; j < g.cols; j++)
            if (chosen_exponent(c, &e, i / g.xm, j / g.xk, &r) == 1)
                quant_put_code(t, TGL_QUANT_E2M1, i, j, quant_code_at(t, TGL_QUANT_E2M1, i, j) & 8);
}

static void fill_five(const case_problem *c, case_tensor *t, uint64_t seed)
{
    *(int32_t *)t->storage = 5; /* the op writes 1, or nothing */
}

static tgl_status setup(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    exponents e;
    case_tensor *sf;
    TGL_TRY(exponents_named(case_text(c, "values"), &e));
    *quant_params_of(c) = (tgl_quant_params){ .num_per_tokens = case_int(c, "num_per_tokens"),
                                              .num_per_channels = case_int(c, "num_per_channels"),
                                              .x_num_per_tokens = case_int(c, "x_num_per_tokens"),
                                              .x_num_per_channels = case_int(c, "x_num_per_channels") };
    case_tensor *x = case_add(c, X, "x", CASE_IN, case_dtype(c, "pairs"), 2, (int64_t[]){ rows, cols / 2 });
    x->fill = fill_pairs;
    x->offset = case_int(c, "offset");
    TGL_TRY(quant_lay_out(case_text(c, "layout"), cols / 2, x->strides));
    const two_grids g = grids_of(c);
    TGL_TRY(quant_add_sf(c, X_SF, "x_sf", CASE_IN, case_text(c, "x_sf"), quant_ceil_div(rows, g.xm),
                         quant_ceil_div(cols, g.xk), &sf));
    sf->fill = fill_exponents;
    TGL_TRY(quant_add_sf(c, SF, "out_sf", CASE_OUT, case_text(c, "sf"), quant_ceil_div(rows, g.bm),
                         quant_ceil_div(cols, g.bk), &sf));
    cast_add_out(c, rows, cols, TGL_E2M1X2);
    if (case_int(c, "inexact"))
        case_add(c, INEXACT, "inexact", CASE_INOUT, TGL_I32, 1, (int64_t[]){ 1 })->fill = fill_five;
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_per_block_cast_lossless(a->arg[X], a->arg[X_SF], a->arg[OUT], a->arg[SF], a->arg[INEXACT],
                                             quant_params_in(a->problem), a->stream);
}

/* An exponent code, as the op reads it; of a float, its exponent. */
static int exponent_code(const case_tensor *x_sf, int64_t m, int64_t k)
{
    if (x_sf->dtype == TGL_I32) return ((unsigned char *)case_element(x_sf, (int64_t[]){ m, k / 4 }))[k % 4];
    const float factor = *(float *)case_element(x_sf, (int64_t[]){ m, k });
    return factor > 0 ? ilogbf(factor) + 127 : 0;
}

static void oracle_rows_of_blocks(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *x = &c->tensors[X], *x_sf = &c->tensors[X_SF], *inexact = cast_or_null(c, INEXACT);
    const two_grids g = grids_of(c);
    for (int64_t m = begin; m < end; m++)
        for (int64_t k = 0; k < quant_ceil_div(g.cols, g.bk); k++) {
            const int64_t rows = (m + 1) * g.bm < g.rows ? (m + 1) * g.bm : g.rows;
            const int64_t cols = (k + 1) * g.bk < g.cols ? (k + 1) * g.bk : g.cols;
            int largest = 0;
            for (int64_t i = m * g.bm; i < rows; i += g.xm)
                for (int64_t j = k * g.bk; j < cols; j += g.xk) {
                    const int code = exponent_code(x_sf, i / g.xm, j / g.xk);
                    if (code > largest) largest = code;
                }
            const int out_code = largest - 6 > 1 ? largest - 6 : 1;
            quant_put_sf(&c->tensors[SF], m, k, ldexpf(1, out_code - 127));
            for (int64_t i = m * g.bm; i < rows; i++)
                for (int64_t j = k * g.bk; j < cols; j++) {
                    const float code = quant_decode(TGL_QUANT_E2M1, quant_code_at(x, TGL_QUANT_E2M1, i, j));
                    const int x_code = exponent_code(x_sf, i / g.xm, j / g.xk); /* 0: the factor is 0 */
                    const float value = x_code ? ldexpf(code, x_code - out_code) : code * 0;
                    const unsigned out = quant_encode(TGL_QUANT_E4M3, value);
                    quant_put_code(&c->tensors[OUT], TGL_QUANT_E4M3, i, j, out);
                    if (inexact && quant_decode(TGL_QUANT_E4M3, out) != value)
                        __atomic_store_n((int32_t *)inexact->data, 1, __ATOMIC_RELAXED);
                }
        }
}

static void oracle(case_problem *c)
{
    const two_grids g = grids_of(c);
    case_parallel(quant_ceil_div(g.rows, g.bm), 64 * g.bm * g.cols, oracle_rows_of_blocks, c);
}

// clang-format off: lines of cases
const case_op per_block_cast_lossless_cases = {
    "quant_per_block_cast_lossless",
    "num_rows= num_cols= num_per_tokens=128 num_per_channels=128 x_num_per_tokens=1 "
    "x_num_per_channels=32 sf=row x_sf=row pairs=e2m1x2 inexact=0 values=spread11 layout=packed "
    "offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .has_narrow_oracle = true, /* no factors but powers of two */
    .lists[CASE_CHECK] = CASE_LINES(
        "num_rows=5 num_cols=32,256,576 num_per_tokens=1 sf=row,packed x_sf=row,packed inexact=0,1 "
        "values=spread14",
        "num_rows=40,131 num_cols=256,320 num_per_tokens=32,128 num_per_channels=32,128 sf=row,packed "
        "x_sf=packed values=spread14",
        "num_rows=6 num_cols=256 num_per_tokens=1,4 inexact=0,1 "
        "values=spread11,spread14,spread15,spread30,zeros,lowest,highest",
        "num_rows=6 num_cols=256 num_per_tokens=3 sf=packed x_sf=packed inexact=1 "
        "values=spread15,zeros,lowest,highest",
        "num_rows=6 num_cols=256 num_per_tokens=2 inexact=1 values=fraction",
        "num_rows=6 num_cols=320 num_per_tokens=4 sf=row_gap,col,col_gap,col_tight,packed_gap "
        "x_sf=row_gap,col,packed_gap values=spread14",
        "num_rows=130 num_cols=256 x_num_per_tokens=32 num_per_tokens=128 values=spread14",
        "num_rows=7 num_cols=128 x_num_per_channels=16 num_per_tokens=1 num_per_channels=48,0 "
        "values=spread14",
        "num_rows=7 num_cols=60 x_num_per_tokens=3,0 x_num_per_channels=10,2 num_per_tokens=6 "
        "num_per_channels=30 values=spread14 inexact=1",
        "num_rows=7 num_cols=60 x_num_per_channels=0 num_per_tokens=2 num_per_channels=0 inexact=1",
        "num_rows=7 num_cols=60,140 num_per_tokens=2 num_per_channels=0 values=spread14 inexact=1",
        /* more groups than two blocks have, in each third of the list */
        "num_rows=66,68,70 num_cols=60 num_per_tokens=2 num_per_channels=0 values=spread14 inexact=1",
        "num_rows=0,1,3 num_cols=2,64 inexact=1",
        "num_rows=7 num_cols=64 pairs=i8,u8 inexact=1",
        "num_rows=35 num_cols=192 num_per_tokens=32 layout=half,gap,repeated offset=0,1 out_offset=0,1",
        "num_rows=131 num_cols=256 sf=col x_sf=col values=spread14"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4001 " QUANT_HIDDEN_SIZES "num_per_tokens=1 sf=row,packed x_sf=row,packed values=spread14",
        "num_rows=4001 " QUANT_HIDDEN_SIZES "num_per_tokens=32 num_per_channels=32 sf=row,packed "
        "x_sf=row,packed values=spread14",
        "num_rows=4001,8001 " QUANT_HIDDEN_SIZES "sf=row,packed x_sf=row,packed inexact=1 values=spread14",
        "num_rows=299600 num_cols=7168 x_sf=packed",
        "num_rows=2100 num_cols=1024 layout=far"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128,4096,8001 num_cols=7168 num_per_tokens=1 sf=packed x_sf=packed",
        "num_rows=4096 num_cols=7168 sf=packed x_sf=packed",
        "num_rows=4096,8001 num_cols=7168",
        "num_rows=8001 num_cols=7168 num_per_tokens=32 num_per_channels=32 sf=packed x_sf=packed"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=256 num_cols=7168 num_per_tokens=1,32,128 num_per_channels=32,128 sf=row,packed "
        "x_sf=row,packed inexact=0,1",
        "num_rows=256 num_cols=7168 sf=col x_sf=col inexact=0,1",
        "num_rows=256 num_cols=7168 x_num_per_tokens=1,32 x_num_per_channels=16 inexact=0,1",
        "num_rows=256 num_cols=7168 x_num_per_tokens=32 inexact=0,1",
        "num_rows=256 num_cols=7200 x_num_per_channels=10 num_per_tokens=6 num_per_channels=30,0"),
};
// clang-format on
