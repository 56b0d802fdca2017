/* SPDX-License-Identifier: MIT
 * quant.c - the cases of the casts to FP8, FP4 and E5M6. Oracles go block by block and compute in the
 * formats' definitions; see quant_common.h for what parameters mean. */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "quant_common.h"

static int64_t or_all(int64_t block, int64_t all) { return block ? block : all; }

/* ---- from values or codes with factors ---- */

enum { X, X_SF, GIVEN, OUT, SF, OTHER };       /* of all casts: those that an op lacks are not given */

static bool is_quantised(const case_tensor *x)
{
    return x->dtype & (TGL_E4M3 | TGL_E2M1X2 | TGL_I8 | TGL_U8);
}

static tgl_quant_format format_of_x(const case_tensor *x)
{
    return x->dtype == TGL_E4M3 ? TGL_QUANT_E4M3 : TGL_QUANT_E2M1;
}

static float value_of_x(const case_problem *c, int64_t row, int64_t col)
{
    const case_tensor *x = &c->tensors[X], *x_sf = &c->tensors[X_SF];
    const tgl_quant_params *p = quant_params_in(c);
    if (!is_quantised(x)) return quant_float_at(x, row, col);
    const int64_t m = row / or_all(p->x_num_per_tokens, 1);
    const int64_t k = p->x_num_per_channels ? col / p->x_num_per_channels : 0;
    return quant_decode(format_of_x(x), quant_code_at(x, format_of_x(x), row, col)) * quant_sf_at(x_sf, m, k);
}

/* Adds x, and x_sf where x is quantised; kinds of values last for a block of the output. */
static tgl_status add_x(case_problem *c, const char *dtype, int64_t rows, int64_t cols, int64_t block_rows,
                        int64_t block_cols)
{
    const tgl_quant_params *p = quant_params_of(c);
    const bool is_pairs = !strcmp(dtype, "e2m1");
    case_tensor *x_sf, *x = case_add(c, X, "x", CASE_IN, case_dtype(c, is_pairs ? "pairs" : "dtype"), 2,
                                     (int64_t[]){ rows, is_pairs ? cols / 2 : cols });
    x->offset = case_int(c, "offset");
    TGL_TRY(quant_lay_out(case_text(c, "layout"), x->shape[1], x->strides));
    TGL_TRY(quant_choose_fill(c, x, block_rows, block_cols));
    if (!is_quantised(x)) return TGL_OK;
    const int64_t m = quant_ceil_div(rows, or_all(p->x_num_per_tokens, 1));
    return quant_add_sf(c, X_SF, "x_sf", CASE_IN, case_text(c, "x_sf"), m,
                        quant_ceil_div(cols, or_all(p->x_num_per_channels, cols)), &x_sf);
}

static void add_out(case_problem *c, int64_t rows, int64_t cols, tgl_dtype pairs)
{
    const tgl_quant_format format = quant_params_of(c)->format;
    case_tensor *out = case_add(c, OUT, "out", CASE_OUT, quant_data_dtype(format, pairs), 2,
                                (int64_t[]){ rows, quant_data_cols(format, cols) });
    out->offset = case_int(c, "out_offset");
}

static bool is_set(case_problem *c, const char *name) { return case_int(c, name) != 0; }

/* ---- per_token_cast ---- */

static tgl_status setup_token(case_problem *c, bool is_given)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_channels = case_int(c, "num_per_channels"),
                             .x_num_per_tokens = case_int(c, "x_num_per_tokens"),
                             .x_num_per_channels = case_int(c, "x_num_per_channels"),
                             .round_sf = !is_given && is_set(c, "round") };
    TGL_TRY(quant_format_named(case_text(c, "format"), &p->format));
    const int64_t block_cols = or_all(p->num_per_channels, cols);
    TGL_TRY(add_x(c, case_text(c, "dtype"), rows, cols, 1, block_cols));
    TGL_TRY(quant_add_sf(c, is_given ? GIVEN : SF, is_given ? "sf" : "out_sf", is_given ? CASE_IN : CASE_OUT,
                         case_text(c, "sf"), rows, quant_ceil_div(cols, block_cols), &sf));
    if (is_given || !is_set(c, "sf_only")) add_out(c, rows, cols, case_dtype(c, "pairs"));
    return TGL_OK;
}

static tgl_status setup_per_token_cast(case_problem *c) { return setup_token(c, false); }
static tgl_status setup_per_token_given(case_problem *c) { return setup_token(c, true); }

static tgl_status run_per_token_cast(const case_arguments *a)
{
    return tgl_quant_per_token_cast(a->arg[X], a->arg[X_SF], a->arg[OUT], a->arg[SF],
                                    quant_params_in(a->problem), a->stream);
}

static tgl_status run_per_token_given(const case_arguments *a)
{
    return tgl_quant_per_token_cast_with_precomputed_sf(a->arg[X], a->arg[X_SF], a->arg[GIVEN], a->arg[OUT],
                                                        quant_params_in(a->problem), a->stream);
}

static const case_tensor *or_null(const case_problem *c, int index)
{
    return c->tensors[index].name ? &c->tensors[index] : NULL;
}

static void oracle_of_blocks(case_problem *c)
{
    const tgl_quant_params *p = quant_params_in(c);
    const case_tensor *x = &c->tensors[X];
    const int64_t cols = x->shape[1] * (is_quantised(x) && format_of_x(x) == TGL_QUANT_E2M1 ? 2 : 1);
    quant_cast(&(quant_blocks){ .c = c, .value = value_of_x, .num_rows = x->shape[0], .num_cols = cols,
                                .block_rows = or_all(p->num_per_tokens, 1),
                                .block_cols = or_all(p->num_per_channels, cols), .format = p->format,
                                .round = p->round_sf, .given = or_null(c, GIVEN), .sf = or_null(c, SF),
                                .out = or_null(c, OUT) });
}

/* ---- per_block_cast ---- */

static tgl_status setup_block(case_problem *c, bool is_given)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_tokens = case_int(c, "num_per_tokens"),
                             .num_per_channels = case_int(c, "num_per_channels"),
                             .round_sf = !is_given && is_set(c, "round") };
    TGL_TRY(quant_format_named(case_text(c, "format"), &p->format));
    const int64_t block_rows = or_all(p->num_per_tokens, 1), block_cols = or_all(p->num_per_channels, cols);
    TGL_TRY(add_x(c, case_text(c, "dtype"), rows, cols, block_rows, block_cols));
    TGL_TRY(quant_add_sf(c, is_given ? GIVEN : SF, is_given ? "sf" : "out_sf", is_given ? CASE_IN : CASE_OUT,
                         case_text(c, "sf"), quant_ceil_div(rows, block_rows),
                         quant_ceil_div(cols, block_cols), &sf));
    if (is_given || !is_set(c, "sf_only")) add_out(c, rows, cols, case_dtype(c, "pairs"));
    return TGL_OK;
}

static tgl_status setup_per_block_cast(case_problem *c) { return setup_block(c, false); }
static tgl_status setup_per_block_given(case_problem *c) { return setup_block(c, true); }

static tgl_status run_per_block_cast(const case_arguments *a)
{
    return tgl_quant_per_block_cast(a->arg[X], a->arg[OUT], a->arg[SF], quant_params_in(a->problem),
                                    a->stream);
}

static tgl_status run_per_block_given(const case_arguments *a)
{
    return tgl_quant_per_block_cast_with_precomputed_sf(a->arg[X], a->arg[GIVEN], a->arg[OUT],
                                                        quant_params_in(a->problem), a->stream);
}

/* ---- per_block_cast_lossless ---- */

/* Exponent codes of x_sf: within an output block they differ by at most `spread`, around a code of the
 * block's own. With zeros, half of them are 1, which is what a block of zeros gets, and their codes zeros. */
typedef struct { int spread, low, high; bool has_fraction, has_zeros; } exponents;
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
    return (two_grids){ rows, cols, or_all(p->num_per_tokens, 1), or_all(p->num_per_channels, cols),
                        or_all(p->x_num_per_tokens, 1), or_all(p->x_num_per_channels, cols) };
}

/* The code of an input block, from the name of the case: x and x_sf are filled one after the other. */
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
    case_fill_bits(c, t, seed);         /* gaps, and codes past the last */
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
    (void)c, (void)seed;
    *(int32_t *)t->storage = 5;         /* an op writes 1 or nothing */
}

enum { INEXACT = OTHER };

static tgl_status setup_lossless(case_problem *c)
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
    add_out(c, rows, cols, TGL_E2M1X2);
    if (is_set(c, "inexact"))
        case_add(c, INEXACT, "inexact", CASE_INOUT, TGL_I32, 1, (int64_t[]){ 1 })->fill = fill_five;
    return TGL_OK;
}

static tgl_status run_lossless(const case_arguments *a)
{
    return tgl_quant_per_block_cast_lossless(a->arg[X], a->arg[X_SF], a->arg[OUT], a->arg[SF],
                                             a->arg[INEXACT], quant_params_in(a->problem), a->stream);
}

/* Exponent codes as the op reads them; of a float all bits above its fraction. */
static int exponent_code(const case_tensor *x_sf, int64_t m, int64_t k)
{
    if (x_sf->dtype == TGL_I32) return ((unsigned char *)case_element(x_sf, (int64_t[]){ m, k / 4 }))[k % 4];
    const float factor = *(float *)case_element(x_sf, (int64_t[]){ m, k });
    return factor > 0 ? ilogbf(factor) + 127 : 0;
}

static void lossless_rows_of_blocks(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *x = &c->tensors[X], *x_sf = &c->tensors[X_SF], *inexact = or_null(c, INEXACT);
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
                    const int x_code = exponent_code(x_sf, i / g.xm, j / g.xk);     /* 0: the factor is 0 */
                    const float value = x_code ? ldexpf(code, x_code - out_code) : code * 0;
                    const unsigned out = quant_encode(TGL_QUANT_E4M3, value);
                    quant_put_code(&c->tensors[OUT], TGL_QUANT_E4M3, i, j, out);
                    if (inexact && quant_decode(TGL_QUANT_E4M3, out) != value)
                        __atomic_store_n((int32_t *)inexact->data, 1, __ATOMIC_RELAXED);
                }
        }
}

static void oracle_lossless(case_problem *c)
{
    const two_grids g = grids_of(c);
    case_parallel(quant_ceil_div(g.rows, g.bm), 64 * g.bm * g.cols, lossless_rows_of_blocks, c);
}

/* ---- per_channel_cast ---- */

enum { POS = GIVEN };

/* Rows of x by parameter `map`:
 *   none       every row in its turn
 *   random     any token, some before the first and past the last
 *   experts    32 experts with as many rows each, 16 of 17 with tokens in ascending order, the rest padding
 *   negative   padding only
 *   wild       every other one is as far out of range as it gets
 *   same       one token */
static void fill_map(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const char *map = case_text(c, "map");
    const int64_t tokens = c->tensors[X].shape[0], rows = t->shape[0], experts = 32;
    const int64_t rows_each = rows < experts ? 1 : rows / experts;
    const int64_t picks_each = tokens ? rows_each * 16 / 17 : 0;
    t->low = -(double)(tokens / 4 + 1), t->high = (double)(tokens + tokens / 8 + 2);
    case_fill_uniform(c, t, seed);
    for (int64_t i = 0; i < rows; i++) {
        int32_t *to = (int32_t *)t->data + i;
        if (!strcmp(map, "negative")) *to = -1 - (int32_t)(i % 3);
        if (!strcmp(map, "same")) *to = (int32_t)(tokens / 2);
        if (!strcmp(map, "wild") && i % 2) *to = (int32_t[]){ INT32_MIN, INT32_MAX, (int32_t)tokens }[i / 2 % 3];
        if (strcmp(map, "experts")) continue;
        const int64_t e = i / rows_each, j = i % rows_each;
        *to = j < picks_each ? (int32_t)((j * tokens / picks_each + e) % tokens) : -1;
    }
}

static tgl_status setup_per_channel(case_problem *c, bool is_transposed)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    tgl_quant_params *p = quant_params_of(c);
    int64_t num_tokens = rows;
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_tokens = case_int(c, "num_per_tokens"),
                             .round_sf = is_set(c, "round") };
    if (!is_transposed) {
        const char *map = case_text(c, "map");
        p->x_num_per_channels = case_int(c, "x_num_per_channels");
        if (strcmp(map, "none")) {
            num_tokens = case_int(c, "num_tokens");
            case_add(c, POS, "pos_to_token", CASE_IN, TGL_I32, 1, (int64_t[]){ rows })->fill = fill_map;
        }
        if (strcmp(map, "none") && strcmp(map, "random") && strcmp(map, "experts") &&
            strcmp(map, "negative") && strcmp(map, "same") && strcmp(map, "wild"))
            return tgl_fail(TGL_ERR_ARGUMENT,
                            "map: is \"%s\", want none, random, experts, negative, same or wild", map);
    }
    const int64_t block_rows = or_all(p->num_per_tokens, 1);
    TGL_TRY(add_x(c, case_text(c, "dtype"), num_tokens, cols, block_rows, 1));
    TGL_TRY(quant_add_sf(c, SF, "out_sf", CASE_OUT, "row", quant_ceil_div(rows, block_rows), cols, &sf));
    if (is_transposed) add_out(c, cols, rows, TGL_E2M1X2);
    else add_out(c, rows, cols, TGL_E2M1X2);
    return TGL_OK;
}

static tgl_status setup_per_channel_cast(case_problem *c) { return setup_per_channel(c, false); }
static tgl_status setup_per_channel_transpose(case_problem *c) { return setup_per_channel(c, true); }

static tgl_status run_per_channel_cast(const case_arguments *a)
{
    return tgl_quant_per_channel_cast(a->arg[X], a->arg[X_SF], a->arg[POS], a->arg[OUT], a->arg[SF],
                                      quant_params_in(a->problem), a->stream);
}

static tgl_status run_per_channel_transpose(const case_arguments *a)
{
    return tgl_quant_per_channel_cast_and_transpose(a->arg[X], a->arg[OUT], a->arg[SF],
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
    return value_of_x(c, token_of_row(c, row), col);
}

static void oracle_per_channel(case_problem *c)
{
    const tgl_quant_params *p = quant_params_in(c);
    const case_tensor *out = &c->tensors[OUT];
    const int64_t cols = c->tensors[X].shape[1];
    quant_cast(&(quant_blocks){ .c = c,
                                .value = gathered_value,
                                .exists = row_exists,
                                .num_rows = out->shape[0],
                                .num_cols = cols,
                                .block_rows = or_all(p->num_per_tokens, 1),
                                .block_cols = 1,
                                .round = p->round_sf,
                                .sf = &c->tensors[SF],
                                .out = out });
}

static void oracle_per_channel_transpose(case_problem *c)
{
    const tgl_quant_params *p = quant_params_in(c);
    const case_tensor *x = &c->tensors[X];
    quant_cast(&(quant_blocks){ .c = c,
                                .value = value_of_x,
                                .num_rows = x->shape[0],
                                .num_cols = x->shape[1],
                                .block_rows = or_all(p->num_per_tokens, 1),
                                .block_cols = 1,
                                .round = p->round_sf,
                                .is_transposed = true,
                                .sf = &c->tensors[SF],
                                .out = &c->tensors[OUT] });
}

/* ---- the table ---- */

#define HIDDEN_SIZES "num_cols=576,2048,2560,3072,4096,6144,7168 "

const case_op quant_ops[] = {
    {
        "quant_per_token_cast",
        "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_channels=128 round=0 sf=row x_num_per_tokens=1 "
        "x_num_per_channels=128 x_sf=row pairs=e2m1x2 values=normal layout=packed offset=0 out_offset=0 "
        "sf_only=0",
        setup_per_token_cast, run_per_token_cast, oracle_of_blocks, quant_bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_rows=5 num_cols=8,100,128,576,1032 dtype=bf16,f32 round=0,1 values=mixed",
            "num_rows=9 num_cols=576 dtype=bf16,f32 format=e2m1 num_per_channels=32,128 round=0,1 "
            "values=mixed",
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
            "num_rows=5 num_cols=2080 dtype=bf16,f32 num_per_channels=320,1024 round=1 sf=packed "
            "values=mixed",
            "num_rows=5 num_cols=2080 dtype=e2m1 num_per_channels=0 x_num_per_channels=32 values=mixed",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=4001 " HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=32,64,128,0 "
            "round=1 sf=row,packed values=mixed",
            "num_rows=4001 " HIDDEN_SIZES "dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32,128 "
            "x_num_per_tokens=32 x_num_per_channels=32 round=1 sf=packed x_sf=packed values=powers",
            "num_rows=4001 " HIDDEN_SIZES "dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32,128 "
            "x_num_per_tokens=128 round=1 sf=row x_sf=row values=mixed",
            "num_rows=4001 " HIDDEN_SIZES "dtype=bf16,f32 format=e5m6 num_per_channels=0 round=1 "
            "sf=row,packed values=mixed",
            "num_rows=8001 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1,e5m6 round=0,1 values=normal,mixed",
            "num_rows=8001 " HIDDEN_SIZES "dtype=bf16 format=e4m3,e2m1,e5m6 num_per_channels=0 round=1 "
            "sf=packed values=mixed",
            "num_rows=8001 " HIDDEN_SIZES "dtype=bf16,e4m3 format=e4m3,e2m1 num_per_channels=32 round=1 "
            "sf=packed x_num_per_channels=32 x_sf=packed values=powers",
            /* past 2^31 elements */
            "num_rows=299600 num_cols=7168",
            "num_rows=299600 num_cols=7168 format=e2m1 num_per_channels=32 round=1 sf=packed",
            "num_rows=2100 num_cols=1024 dtype=bf16,f32 layout=far format=e4m3,e5m6",
            NULL,
        },
        /* sizes that were measured for other libraries, then more tokens of a large model */
        .lists[CASE_BENCH] = (const char *const[]){
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
            "num_rows=4001 num_cols=576 round=1 sf=packed",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
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
            "num_rows=64 num_cols=7168 dtype=bf16,f32,e4m3,e2m1 sf_only=1 round=1 sf=packed",
            NULL,
        },
    },
    {
        "quant_per_token_cast_with_precomputed_sf",
        "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_channels=128 sf=row x_num_per_tokens=1 "
        "x_num_per_channels=128 x_sf=row pairs=e2m1x2 values=normal layout=packed offset=0 out_offset=0",
        setup_per_token_given, run_per_token_given, oracle_of_blocks, quant_bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_rows=5 num_cols=8,100,576,1032 dtype=bf16,f32 format=e4m3,e2m1 values=mixed",
            "num_rows=7 num_cols=576 format=e4m3,e2m1 num_per_channels=16,32,0 sf=col,packed values=mixed",
            "num_rows=6 num_cols=640 sf=row_gap,col_gap,col_tight,packed_gap values=powers",
            "num_rows=4 num_cols=130 format=e4m3,e2m1 num_per_channels=1,5,96,1000 values=mixed",
            "num_rows=0,1,3,8,33 num_cols=256 sf=packed values=mixed",
            "num_rows=5 num_cols=256 dtype=bf16,f32 format=e4m3,e2m1 sf=row,packed values=bits",
            "num_rows=5 num_cols=256 dtype=bf16,f32 format=e5m6 num_per_channels=0,64 values=normal,mixed",
            "num_rows=33 num_cols=256 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32 "
            "x_num_per_tokens=32 x_num_per_channels=32 x_sf=packed sf=row values=powers",
            "num_rows=5 num_cols=384 dtype=e4m3,e2m1 num_per_channels=128,24 x_sf=row_gap,col values=mixed",
            "num_rows=3 num_cols=64 dtype=e2m1 format=e2m1 pairs=i8,u8 values=mixed",
            "num_rows=6 num_cols=256 dtype=bf16,f32 layout=half,gap,repeated offset=0,1 values=mixed",
            "num_rows=3 num_cols=256 format=e4m3,e2m1 offset=1 out_offset=1,2 values=mixed",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=4001 " HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=32,64,128 "
            "values=mixed",
            "num_rows=299600 num_cols=7168 sf=packed",
            "num_rows=2100 num_cols=1024 layout=far",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_rows=128,4096,8001 num_cols=7168",
            "num_rows=8001 num_cols=7168 format=e2m1 num_per_channels=32 sf=packed",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 "
            "num_per_channels=16,32,64,128,256,7168,100",
            "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=32,128,7168 "
            "sf=col,packed",
            "num_rows=64 num_cols=7168 dtype=bf16,f32 format=e5m6 num_per_channels=128,7168",
            "num_rows=64 num_cols=7168 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=32,128,7168,100",
            "num_rows=64 num_cols=7168 dtype=e4m3,e2m1 format=e4m3,e2m1 num_per_channels=128 sf=packed "
            "x_sf=packed",
            NULL,
        },
    },
    {
        "quant_per_block_cast",
        "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_tokens=128 num_per_channels=128 round=0 sf=row "
        "pairs=e2m1x2 values=normal layout=packed offset=0 out_offset=0 sf_only=0",
        setup_per_block_cast, run_per_block_cast, oracle_of_blocks, quant_bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
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
            /* an odd number of blocks, two of which share a byte: the last has no neighbour */
            "num_rows=7 num_cols=8,14 dtype=bf16 format=e2m1 num_per_tokens=3 num_per_channels=3 values=mixed",
            "num_rows=7 num_cols=8 dtype=f32 format=e2m1 num_per_tokens=3 num_per_channels=3 round=1 "
            "sf=row_gap,col,packed values=bits",
            "num_rows=200 num_cols=1 num_per_channels=1 values=mixed",
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
            "num_per_channels=1 round=1 sf=row,packed values=mixed",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=4001 " HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 "
            "num_per_channels=32 round=1 sf=row,packed values=mixed",
            "num_rows=4001 " HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 round=1 sf=row,packed "
            "values=mixed",
            "num_rows=8001 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 round=0,1 values=normal",
            "num_rows=8001 " HIDDEN_SIZES "dtype=bf16 format=e4m3,e2m1 num_per_tokens=32,128 "
            "num_per_channels=32 round=1 sf=packed values=mixed",
            "num_rows=299600 num_cols=7168 num_per_channels=128",
            "num_rows=2100 num_cols=1024 layout=far",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
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
            "num_rows=4001 num_cols=576 round=1 sf=packed",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 round=0,1",
            "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 "
            "num_per_channels=32 round=0,1",
            "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32,128 "
            "num_per_channels=32,128 round=1 sf=col,packed",
            "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=7,0 "
            "num_per_channels=100,0",
            "num_rows=256 num_cols=7168 dtype=bf16,f32 num_per_tokens=32,128 num_per_channels=32,128 "
            "sf_only=1",
            "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 sf_only=1 round=1 sf=packed",
            "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32,128 "
            "num_per_channels=1 round=1 sf=row,packed",
            NULL,
        },
    },
    {
        "quant_per_block_cast_with_precomputed_sf",
        "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_tokens=128 num_per_channels=128 sf=row "
        "pairs=e2m1x2 values=normal layout=packed offset=0 out_offset=0",
        setup_per_block_given, run_per_block_given, oracle_of_blocks, quant_bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
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
            "num_rows=36 num_cols=64 format=e2m1 pairs=i8,u8 values=mixed",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=4001 " HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32 "
            "num_per_channels=32 values=mixed",
            "num_rows=4001 " HIDDEN_SIZES "dtype=bf16,f32 format=e4m3,e2m1 values=mixed",
            "num_rows=299600 num_cols=7168",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_rows=128,4096,8001 num_cols=7168",
            "num_rows=8001 num_cols=7168 format=e2m1 num_per_tokens=32 num_per_channels=32 sf=packed",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=32,128 "
            "num_per_channels=32,128 sf=row,col,packed",
            "num_rows=256 num_cols=7168 dtype=bf16,f32 format=e4m3,e2m1 num_per_tokens=7,0 "
            "num_per_channels=100,0",
            NULL,
        },
    },
    {
        "quant_per_block_cast_lossless",
        "num_rows= num_cols= num_per_tokens=128 num_per_channels=128 x_num_per_tokens=1 "
        "x_num_per_channels=32 sf=row x_sf=row pairs=e2m1x2 inexact=0 values=spread11 layout=packed "
        "offset=0 out_offset=0",
        setup_lossless, run_lossless, oracle_lossless, quant_bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
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
            "num_rows=131 num_cols=256 sf=col x_sf=col values=spread14",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=4001 " HIDDEN_SIZES "num_per_tokens=1 sf=row,packed x_sf=row,packed values=spread14",
            "num_rows=4001 " HIDDEN_SIZES "num_per_tokens=32 num_per_channels=32 sf=row,packed "
            "x_sf=row,packed values=spread14",
            "num_rows=4001,8001 " HIDDEN_SIZES "sf=row,packed x_sf=row,packed inexact=1 values=spread14",
            "num_rows=299600 num_cols=7168 x_sf=packed",
            "num_rows=2100 num_cols=1024 layout=far",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_rows=128,4096,8001 num_cols=7168 num_per_tokens=1 sf=packed x_sf=packed",
            "num_rows=4096 num_cols=7168 sf=packed x_sf=packed",
            "num_rows=4096,8001 num_cols=7168",
            "num_rows=8001 num_cols=7168 num_per_tokens=32 num_per_channels=32 sf=packed x_sf=packed",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=256 num_cols=7168 num_per_tokens=1,32,128 num_per_channels=32,128 sf=row,packed "
            "x_sf=row,packed inexact=0,1",
            "num_rows=256 num_cols=7168 sf=col x_sf=col inexact=0,1",
            "num_rows=256 num_cols=7168 x_num_per_tokens=1,32 x_num_per_channels=16 inexact=0,1",
            "num_rows=256 num_cols=7168 x_num_per_tokens=32 inexact=0,1",
            "num_rows=256 num_cols=7200 x_num_per_channels=10 num_per_tokens=6 num_per_channels=30,0",
            NULL,
        },
    },
    {
        "quant_per_channel_cast",
        "num_rows= num_cols= num_tokens=0 map=none dtype=bf16 num_per_tokens=128 round=0 "
        "x_num_per_channels=128 x_sf=row values=normal layout=packed offset=0 out_offset=0",
        setup_per_channel_cast, run_per_channel_cast, oracle_per_channel, quant_bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
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
            "num_rows=300 num_cols=200 num_tokens=70000 map=random",        /* bands of columns */
            "num_rows=130 num_cols=3208 values=mixed",
            "num_rows=260 num_cols=4416 num_tokens=300 map=none,random dtype=bf16,f32,e4m3 "
            "values=mixed",                                             /* whole tiles of wide strips */
            "num_rows=2 num_cols=140808 num_tokens=3 map=none,random values=mixed",     /* many tiles */
            "num_rows=260 num_cols=24008 num_per_tokens=32 round=1 values=bits",
            "num_rows=260 num_cols=24008 num_tokens=100 map=random num_per_tokens=64 round=1 values=bits",
            "num_rows=259 num_cols=21331 num_tokens=100 map=random num_per_tokens=64 offset=1 out_offset=1 "
            "values=mixed",
            "num_rows=680 num_cols=2304 num_tokens=400 map=random dtype=e4m3 num_per_tokens=32,64,128 "
            "round=0,1 values=mixed",                                   /* blocks go through staged tiles */
            "num_rows=680 num_cols=2304 num_tokens=40 map=wild dtype=e4m3 values=bits",
            "num_rows=680 num_cols=2304 num_tokens=40 map=negative,same dtype=e4m3 num_per_tokens=32 "
            "layout=half offset=0,8 values=mixed",
            "num_rows=769 num_cols=2304 num_tokens=3000 map=random dtype=e4m3 x_num_per_channels=256,0 "
            "x_sf=row,col_gap,packed values=bits",                      /* in bands */
            "num_rows=300 num_cols=40 num_tokens=200 map=none,random dtype=bf16,f32,e4m3 "
            "num_per_tokens=130,1000 values=mixed",
            "num_rows=300 num_cols=40 num_per_tokens=9223372036854775807",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=4096,8064 " HIDDEN_SIZES "round=0,1 values=mixed",
            "num_rows=4096 " HIDDEN_SIZES "dtype=e4m3 round=0,1 values=mixed",
            "num_rows=8704 num_tokens=5376 map=experts " HIDDEN_SIZES "dtype=bf16,e4m3 round=0,1 "
            "values=mixed",
            "num_rows=299600 num_cols=7168",
            "num_rows=4096 num_tokens=2100 map=random num_cols=1024 dtype=bf16,e4m3 layout=far",
            "num_rows=65600 num_cols=8 num_tokens=300 map=none,random dtype=bf16,f32,e4m3 num_per_tokens=1",
            "num_rows=8388800 num_cols=8 num_tokens=300 map=none,random",       /* slices of rows */
            NULL,
        },
        /* 4096 tokens of each of 8 ranks with 8 of 256 experts, 32 of them here, in blocks of 128 rows: about
         * as many tokens and rows as in "experts" */
        .lists[CASE_BENCH] = (const char *const[]){
            "num_rows=128,4096,8192 num_cols=7168",
            "num_rows=4096 num_cols=4096",
            "num_rows=128,4096 num_cols=7168 dtype=e4m3",
            "num_rows=34816 num_cols=7168 num_tokens=21504 map=experts dtype=bf16,e4m3",
            "num_rows=128 num_cols=7168 num_tokens=80 map=experts dtype=bf16,e4m3",
            "num_rows=8001 num_cols=7168 num_tokens=5000 map=experts dtype=bf16,e4m3 round=1",
            "num_rows=8001 num_cols=7168 dtype=bf16,f32,e4m3 round=1",
            "num_rows=8064 num_cols=576 round=1",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=256 num_cols=7168 num_tokens=100 map=none,random dtype=bf16,f32,e4m3 "
            "num_per_tokens=32,64,128,100 round=0,1",
            "num_rows=256 num_cols=7168 num_tokens=100 map=none,random dtype=e4m3 x_sf=col,packed "
            "x_num_per_channels=32,128 num_per_tokens=32,128 round=0,1",
            "num_rows=256 num_cols=100 num_tokens=100 map=none,random dtype=bf16,f32,e4m3",
            "num_rows=256 num_cols=100 dtype=e4m3 x_sf=col,packed num_per_tokens=32,100 round=0,1",
            "num_rows=256 num_cols=7168 num_tokens=100 map=none,random dtype=e4m3 x_num_per_channels=10",
            NULL,
        },
    },
    {
        "quant_per_channel_cast_and_transpose",
        "num_rows= num_cols= dtype=bf16 num_per_tokens=128 round=0 values=normal layout=packed offset=0 "
        "out_offset=0",
        setup_per_channel_transpose, run_per_channel_transpose, oracle_per_channel_transpose, quant_bytes,
        NULL,
        .lists[CASE_CHECK] = (const char *const[]){
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
            "num_rows=259 num_cols=21328 num_per_tokens=64 values=mixed",
            "num_rows=259 num_cols=21328 num_per_tokens=32 round=1 values=bits",
            "num_rows=300,304 num_cols=40 dtype=bf16,f32 num_per_tokens=130,144,1000 values=mixed",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=4096,8064 " HIDDEN_SIZES "num_per_tokens=32,128 round=0,1 values=mixed",
            "num_rows=4001 " HIDDEN_SIZES "dtype=bf16,f32 values=mixed",
            "num_rows=299648 num_cols=7168",
            "num_rows=2100 num_cols=1024 layout=far",
            "num_rows=65600 num_cols=8 num_per_tokens=1",   /* slices of rows */
            "num_rows=2 num_cols=4194400",                  /* more strips than bands can be */
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_rows=128,4096,8192 num_cols=7168",
            "num_rows=4096 num_cols=4096",
            "num_rows=8001 num_cols=7168 dtype=bf16,f32 num_per_tokens=32,128 round=1",
            "num_rows=8064 num_cols=576,7168 round=1",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=256 num_cols=7168 dtype=bf16,f32 num_per_tokens=32,64,128,100 round=0,1",
            "num_rows=255 num_cols=100 dtype=bf16,f32 num_per_tokens=32,128,100",
            NULL,
        },
    },
    { .name = NULL },
};
