/* SPDX-License-Identifier: MIT
 * tgl_quant_swiglu_backward_and_per_token_cast, on every device of the tests. */
#include "elements.h"

TESTS_OF_TABLE("quant_swiglu_backward_and_per_token_cast")

/* Rows of `cols` gates, then as many ups. Outputs go to where these pointers are; NULL: nowhere. */
typedef struct {
    int64_t rows, cols, slots;
    const uint8_t *x;
    const float *x_sf, *weight;
    const uint16_t *grad;
    const int32_t *pos_to_slot, *slot_to_pos;
    uint16_t *out, *x_grad;
    uint8_t *fp8;
    float *sf, *weight_grad;
} table;
static void backward_of(const backend *b, const tgl_quant_params *params, const table *t)
{
    const int64_t width = params->num_per_channels ? params->num_per_channels : t->cols;
    const int64_t blocks = 2 * ((t->cols + width - 1) / width);
    CALL(quant_swiglu_backward_and_per_token_cast, b, params, IN(TGL_E4M3, t->x, t->rows, 2 * t->cols),
         IN(TGL_F32, t->x_sf, t->rows, blocks), IN(TGL_BF16, t->grad, t->rows, t->cols),
         IN(TGL_F32, t->weight, t->slots, 1), IN(TGL_I32, t->pos_to_slot, t->rows),
         IN(TGL_I32, t->slot_to_pos, t->slots, 1), GET(TGL_BF16, t->out, t->rows, t->cols),
         GET(TGL_E4M3, t->fp8, t->rows, 2 * t->cols), GET(TGL_F32, t->sf, t->rows, blocks),
         GET(TGL_BF16, t->x_grad, t->rows, 2 * t->cols), GET(TGL_F32, t->weight_grad, t->slots, 1));
}

/* ---- one element ---- */

/* A row of one gate and one up, with a factor each and one weight; all outputs. */
typedef struct {
    uint16_t out, x_grad[2];
    uint8_t fp8[2];
    float sf[2], weight_grad;
} result;
static result backward(const backend *b, const tgl_quant_params *params, const uint8_t codes[2], const float x_sf[2],
                       float grad, float weight, int32_t slot)
{
    result r;
    const int32_t pos = slot < 0 ? -1 : 0;
    const uint16_t g = to_bf16(grad);
    backward_of(b, params,
                &(table){ .rows = 1,
                          .cols = 1,
                          .slots = 1,
                          .x = codes,
                          .x_sf = x_sf,
                          .grad = &g,
                          .weight = &weight,
                          .pos_to_slot = &slot,
                          .slot_to_pos = &pos,
                          .out = &r.out,
                          .fp8 = r.fp8,
                          .sf = r.sf,
                          .x_grad = r.x_grad,
                          .weight_grad = &r.weight_grad });
    return r;
}

static void check_result(const backend *b, result r, uint16_t out, uint16_t gate_grad, uint16_t up_grad,
                         double weight_grad)
{
    CHECK_THAT(r.out == out, "%s: out is 0x%04x, want 0x%04x", b->name, r.out, out);
    CHECK_THAT(r.x_grad[0] == gate_grad, "%s: gate's gradient is 0x%04x, want 0x%04x", b->name, r.x_grad[0], gate_grad);
    CHECK_THAT(r.x_grad[1] == up_grad, "%s: up's gradient is 0x%04x, want 0x%04x", b->name, r.x_grad[1], up_grad);
    CHECK_THAT(fabs((double)r.weight_grad - weight_grad) <= 1e-6 * fabs(weight_grad),
               "%s: weight_grad is %.9g, want %.9g", b->name, (double)r.weight_grad, weight_grad);
    for (int i = 0; i < 2; i++) {
        const bool is_zero = (r.x_grad[i] & 0x7fff) == 0, is_negative = r.x_grad[i] >> 15;
        CHECK_INT(r.fp8[i], (is_zero ? 0 : 0x7e) | is_negative << 7);
        if (is_zero) CHECK_INT(bits_of(r.sf[i]), 0x346facad);
    }
}

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        const float ones[2] = { 1, 1 };
        /* doc: swiglu_backward_and_per_token_cast */
        /* gate 1, up 2, gradient 1, weight 0.5: s = 0.7310586, act = 1.4621172, so out = 0.7310586, the
         * gate's gradient is 0.9276705, the up's 0.3655293 and the weight's 1.4621172 */
        result r = backward(b, PARAMS(0), BYTES(0x38, 0x40), ones, 1, 0.5f, 0);
        check_result(b, r, 0x3f3b, 0x3f6d, 0x3ebb, 1.4621172);
        /* clamped to 1.5, the up is 1.5 and has no gradient */
        r = backward(b, PARAMS(.has_swiglu_clamp_value = true, .swiglu_clamp_value = 1.5f), BYTES(0x38, 0x40), ones, 1,
                     0.5f, 0);
        check_result(b, r, 0x3f0c, 0x3f32, 0x0000, 1.096588);
        /* gate 2, up -3, gradient -1: both are clamped */
        r = backward(b, PARAMS(.has_swiglu_clamp_value = true, .swiglu_clamp_value = 1.5f), BYTES(0x40, 0xc4), ones, -1,
                     0.5f, 0);
        check_result(b, r, 0xbf6b, 0x0000, 0x0000, 1.839542);
        /* end */
    }
}

TEST(padding_rows_are_computed) /* with a weight of 0: zeros have signs */
{
    FOR_BACKENDS(b) {
        const float ones[2] = { 1, 1 };
        check_result(b, backward(b, PARAMS(0), BYTES(0, 0), ones, -1, 0.5f, -1), 0x0000, 0x8000, 0x8000, 0);
        check_result(b, backward(b, PARAMS(0), BYTES(0x38, 0xb8), ones, 1, 0.5f, -7), 0x8000, 0x8000, 0x0000, 0);
        check_result(b, backward(b, PARAMS(0), BYTES(0xb8, 0x38), ones, 1, 0.5f, -1), 0x8000, 0x0000, 0x8000, 0);
    }
}

/* Two rows, three slots: a slot that is empty, or whose row names another slot, gets 0. */
TEST(slots_that_are_not_theirs)
{
    const struct {
        int32_t pos[2], slots[3];
        bool is_set[3];
    } rows[] = {
        { { 0, 1 }, { 0, 1, -1 }, { true, true, false } },
        { { 2, 0 }, { 1, -1, 0 }, { true, false, true } },
        { { 0, -1 }, { 0, 1, -5 }, { true, false, false } }, /* row 1 is padding */
        { { 0, 0 }, { 0, 0, 1 }, { true, false, false } },   /* both point to slot 0 */
        { { 0, 1 }, { -1, -1, -1 }, { false, false, false } },
        { { 0, 1 }, { 0, 2, INT32_MAX }, { true, false, false } }, /* there are no such rows */
    };
    FOR_BACKENDS(b)
        for (int i = 0; i < COUNT_OF(rows); i++) {
            const uint16_t ones[2] = { 0x3f80, 0x3f80 };
            float seen[3];
            backward_of(b, PARAMS(0),
                        &(table){ .rows = 2,
                                  .cols = 1,
                                  .slots = 3,
                                  .x = BYTES(0x38, 0x40, 0x38, 0x40), /* gates 1, ups 2 */
                                  .x_sf = F32S(1, 1, 1, 1),
                                  .grad = ones,
                                  .weight = F32S(1, 1, 1),
                                  .pos_to_slot = rows[i].pos,
                                  .slot_to_pos = rows[i].slots,
                                  .weight_grad = seen });
            for (int k = 0; k < 3; k++)
                CHECK_THAT(rows[i].is_set[k] ? fabs(seen[k] - 1.4621172) < 1e-5 : seen[k] == 0,
                           "%s: maps %d: weight_grad[%d] is %g", b->name, i, k, (double)seen[k]);
        }
}

TEST(many_slots) /* of which one has a row; with vectors and without */
{
    enum { SLOTS = 3000, MOST = 8 };
    static float weight[SLOTS], seen[SLOTS];
    static int32_t slot_to_pos[SLOTS];
    const int32_t slot = 2500;
    uint8_t x[2 * MOST];
    uint16_t ones[MOST];
    for (int i = 0; i < SLOTS; i++) slot_to_pos[i] = i == slot ? 0 : -1;
    for (int i = 0; i < 2 * MOST; i++) x[i] = 0x38, ones[i / 2] = 0x3f80;
    FOR_BACKENDS(b)
        for (int cols = 1; cols <= MOST; cols += MOST - 1) {
            backward_of(b, PARAMS(0),
                        &(table){ .rows = 1,
                                  .cols = cols,
                                  .slots = SLOTS,
                                  .x = x,
                                  .x_sf = F32S(1, 1),
                                  .grad = ones,
                                  .weight = weight,
                                  .pos_to_slot = &slot,
                                  .slot_to_pos = slot_to_pos,
                                  .weight_grad = seen });
            for (int i = 0; i < SLOTS; i++)
                CHECK_THAT(i == slot ? fabs(seen[i] - 0.7310586 * cols) < 1e-5 : seen[i] == 0,
                           "%s: %d columns: weight_grad[%d] is %g", b->name, cols, i, (double)seen[i]);
        }
}

/* A weight that is not there counts as 0, and signs stay; a slot that names such a row gets 0. Row 1 has the
 * weight of row 0, which owns the slot. On all SMs, and on one, for which rows are many. */
TEST(weights_that_are_not_there)
{
    enum { ROWS = 35, MOST = 8 };
    const int32_t pos[] = { -1, INT32_MIN, 3, INT32_MAX }, slots[] = { 2, 4, 0 };
    static uint8_t x[ROWS * 2 * MOST], fp8[ROWS * 2 * MOST];
    uint16_t grad[ROWS * MOST], out[ROWS * MOST], x_grad[ROWS * 2 * MOST];
    int32_t pos_to_slot[ROWS];
    float x_sf[ROWS * 2], weight_grad[3];
    for (int i = 0; i < ROWS; i++) pos_to_slot[i] = i < 2 ? 2 : pos[i % 4];
    for (int i = 0; i < ROWS * 2; i++) x_sf[i] = 1;
    FOR_BACKENDS(b)
        for (int turn = 0; turn < (backend_is_cpu(b) ? 2 : 4); turn++) {
            const int cols = turn & 1 ? MOST : 1;
            for (int i = 0; i < ROWS * 2 * cols; i++) x[i] = i / cols % 2 ? 0xb8 : 0x38; /* 1, ups -1 */
            for (int i = 0; i < ROWS * cols; i++) grad[i] = i / cols == 1 ? 0x4000 : 0x3f80;
            use_one_sm(b, turn & 2);
            backward_of(b, PARAMS(0),
                        &(table){ .rows = ROWS,
                                  .cols = cols,
                                  .slots = 3,
                                  .x = x,
                                  .x_sf = x_sf,
                                  .grad = grad,
                                  .weight = F32S(5, 7, 9),
                                  .pos_to_slot = pos_to_slot,
                                  .slot_to_pos = slots,
                                  .out = out,
                                  .fp8 = fp8,
                                  .x_grad = x_grad,
                                  .weight_grad = weight_grad });
            use_one_sm(b, false);
            for (int i = 0; i < ROWS * cols; i++) {
                const int row = i / cols, gate = row * 2 * cols + i % cols, up = gate + cols;
                if (row < 2) { /* 9 * silu(1) * -1 = -6.5795, and gradients */
                    CHECK_THAT(out[i] == 0xc0d3 && fp8[gate] == 0xfe && fp8[up] == 0x7e,
                               "%s: %d columns: row %d has 0x%04x", b->name, cols, row, out[i]);
                    continue;
                }
                CHECK_THAT(out[i] == 0x8000 && x_grad[gate] == 0x8000 && x_grad[up] == 0,
                           "%s: %d columns: row %d, slot %d: 0x%04x, gradients 0x%04x, 0x%04x", b->name, cols, row,
                           (int)pos_to_slot[row], out[i], x_grad[gate], x_grad[up]);
                CHECK_THAT(fp8[gate] == 0x80 && fp8[up] == 0, "%s: %d columns: row %d: codes 0x%02x, 0x%02x", b->name,
                           cols, row, fp8[gate], fp8[up]);
            }
            CHECK_THAT(weight_grad[0] == 0 && weight_grad[1] == 0 && fabs(weight_grad[2] + 0.7310586 * cols) < 1e-5,
                       "%s: weight_grad is %g, %g, %g", b->name, (double)weight_grad[0], (double)weight_grad[1],
                       (double)weight_grad[2]);
        }
}

TEST(at_the_clamp_value) /* nothing is clamped there */
{
    FOR_BACKENDS(b) {
        const tgl_quant_params params = { .has_swiglu_clamp_value = true, .swiglu_clamp_value = 1.5f };
        const float ones[2] = { 1, 1 };
        const result free = backward(b, PARAMS(0), BYTES(0x3c, 0xbc), ones, 1, 0.5f, 0);
        const result held = backward(b, &params, BYTES(0x3c, 0xbc), ones, 1, 0.5f, 0);
        check_result(b, held, free.out, free.x_grad[0], free.x_grad[1], (double)free.weight_grad);
        CHECK(held.x_grad[0] != 0 && held.x_grad[1] != 0);
    }
}

TEST(large_gates) /* exp is infinite, or nothing beside 1 */
{
    FOR_BACKENDS(b) {
        const float factors[2] = { 1, 1 };
        /* gate 96: silu is the identity. out = 96 * 2 * 0.5, gradients 0.5 * 2 and 0.5 * 96 */
        check_result(b, backward(b, PARAMS(0), BYTES(0x6c, 0x40), factors, 1, 0.5f, 0), 0x42c0, 0x3f80, 0x4240, 192);
        /* gate -96: s = 0, so that act = -0 * 2, ws = 0, 0 * 2 * (1 - 96) = -0, 0 * -96 = -0 */
        check_result(b, backward(b, PARAMS(0), BYTES(0xec, 0x40), factors, 1, 0.5f, 0), 0x8000, 0x8000, 0x8000, 0);
    }
}

/* ---- a multiply-add that rounds once ---- */

/* With blocks of one value, x may be any float, and a gradient's factor is its magnitude / 448. The last bit
 * of exp is not known, but results agree far more often with the formula that has the fma than with the one
 * that rounds the product. */
TEST(the_slope_is_an_fma)
{
    enum { ROWS = 32, COLS = 128 };
    static uint8_t x[ROWS][2 * COLS], fp8[ROWS][2 * COLS];
    static float x_sf[ROWS][2 * COLS], sf[ROWS][2 * COLS];
    static uint16_t grad[ROWS][COLS];
    static int32_t pos[ROWS];
    test_random r = test_seed("the_slope_is_an_fma");
    for (int i = 0; i < ROWS; i++) {
        pos[i] = i;
        for (int j = 0; j < COLS; j++) {
            x[i][j] = test_below(&r, 2) ? 0x38 : 0xb8; /* 1 or -1, times 0.25 to 4 */
            x[i][COLS + j] = 0x38;
            x_sf[i][j] = float_of((uint32_t)test_below(&r, 0x02000000) + 0x3e800000);
            x_sf[i][COLS + j] = 1;
            grad[i][j] = 0x3f80;
        }
    }
    FOR_BACKENDS(b) {
        static float ones[ROWS];
        for (int i = 0; i < ROWS; i++) ones[i] = 1;
        const int64_t rows = b->is_emulated ? 8 : ROWS;
        backward_of(b, PARAMS(.num_per_channels = 1),
                    &(table){ .rows = rows,
                              .cols = COLS,
                              .slots = rows,
                              .x = x[0],
                              .x_sf = x_sf[0],
                              .grad = grad[0],
                              .weight = ones,
                              .pos_to_slot = pos,
                              .slot_to_pos = pos,
                              .fp8 = fp8[0],
                              .sf = sf[0] });
        int with_fma = 0, without = 0;
        for (int64_t i = 0; i < rows; i++)
            for (int j = 0; j < COLS; j++) {
                const float a = quant_decode(TGL_QUANT_E4M3, x[i][j]) * x_sf[i][j];
                const float s = 1 / (1 + (float)exp(-(double)a)), rest = 1 - s, product = a * rest;
                const float once = fabsf(s * fmaf(a, rest, 1)) / 448, twice = fabsf(s * (product + 1)) / 448;
                CHECK_THAT(fabs(sf[i][j] - (double)once) <= 1e-6 * (double)once + 1e-9, "%s: gate %a: %a, want %a",
                           b->name, (double)a, (double)sf[i][j], (double)once);
                with_fma += once != twice && sf[i][j] == once;
                without += once != twice && sf[i][j] == twice;
            }
        CHECK_THAT(with_fma > 30 && with_fma > 4 * without, "%s: %d as with an fma, %d as without", b->name, with_fma,
                   without);
    }
}

/* ---- every step rounds as it says ---- */

/* Is 1 + exp(-a) the same float for any exp that is a few units off? It is if exp is small beside 1. */
static bool is_certain(float a, float *divisor)
{
    const double e = exp(-(double)a);
    *divisor = (float)(1 + e);
    return (float)(1 + e * (1 - 0x1p-20)) == *divisor && (float)(1 + e * (1 + 0x1p-20)) == *divisor;
}

/* A code of e4m3; of a gate, one for which is_certain(code * sf). */
static uint8_t random_code(test_random *r, float sf, bool is_gate)
{
    for (float divisor;;) {
        const uint8_t code = (uint8_t)test_below(r, 256);
        if ((code & 0x7f) == 0x7f) continue;
        const float magnitude = (float)magnitude_of(TGL_QUANT_E4M3, code & 0x7f);
        if (!is_gate || is_certain((code >> 7 ? -magnitude : magnitude) * sf, &divisor)) return code;
    }
}

enum { EXACT_ROWS = 32, EXACT_COLS = 384 };
typedef struct {
    uint8_t x[EXACT_ROWS][2][EXACT_COLS], fp8[EXACT_ROWS][2][EXACT_COLS];
    uint16_t grad[EXACT_ROWS][EXACT_COLS], out[EXACT_ROWS][EXACT_COLS], x_grad[EXACT_ROWS][2][EXACT_COLS];
    float x_sf[EXACT_ROWS * 2 * EXACT_COLS], sf[EXACT_ROWS * 2 * EXACT_COLS], weight[EXACT_ROWS];
    int32_t pos[EXACT_ROWS];
} exact_table;

/* The results of row i: the formulas of the header, one operation of C for each of theirs. */
static void expect_row(exact_table *t, int i, int width, float clamp)
{
    float grads[2][EXACT_COLS];
    const int blocks = EXACT_COLS / width;
    for (int j = 0; j < EXACT_COLS; j++) {
        float v[2], divisor;
        bool is_cut[2];
        for (int half = 0; half < 2; half++) {
            const uint8_t code = t->x[i][half][j];
            const float magnitude = (float)magnitude_of(TGL_QUANT_E4M3, code & 0x7f);
            v[half] = (code >> 7 ? -magnitude : magnitude) * t->x_sf[(i * 2 + half) * blocks + j / width];
            is_cut[half] = v[half] > clamp || (half && v[half] < -clamp);
            if (is_cut[half]) v[half] = v[half] > clamp ? clamp : -clamp;
        }
        REQUIRE(is_certain(v[0], &divisor));
        const float s = 1 / divisor, g = of_bf16(t->grad[i][j]), rest = 1 - s;
        const float silu = v[0] / divisor, act = silu * v[1], gw = g * t->weight[i], ws = gw * s;
        const float by_up = ws * v[1], out = act * t->weight[i];
        grads[0][j] = is_cut[0] ? 0 : by_up * fmaf(v[0], rest, 1);
        grads[1][j] = is_cut[1] ? 0 : ws * v[0];
        case_encode(TGL_BF16, (double)out, &t->out[i][j]);
        for (int half = 0; half < 2; half++) case_encode(TGL_BF16, (double)grads[half][j], &t->x_grad[i][half][j]);
    }
    for (int k = 0; k < 2 * blocks; k++) {
        const float *block = grads[k / blocks] + k % blocks * width;
        float amax = 0;
        for (int j = 0; j < width; j++) amax = fmaxf(amax, fabsf(block[j]));
        const block_factor f = factor_of_block(TGL_QUANT_E4M3, amax, false);
        t->sf[i * 2 * blocks + k] = f.sf;
        for (int j = 0; j < width; j++)
            t->fp8[i][k / blocks][k % blocks * width + j] = nearest_code(TGL_QUANT_E4M3, block[j] * f.inv);
    }
}

static void check_exact(int width, float clamp)
{
    static exact_table want;
    test_random r = test_seed("every_step_rounds");
    const int blocks = EXACT_COLS / width;
    for (int i = 0; i < EXACT_ROWS; i++) {
        want.pos[i] = i;
        want.weight[i] = 0.5f + (float)test_below(&r, 1 << 20) * 0x1p-20f;
        for (int k = 0; k < 2 * blocks; k++) {
            const float least = i % 2 ? 0.04f : 0.3f; /* with the smaller one no gate is large */
            want.x_sf[i * 2 * blocks + k] = least * (1 + (float)test_below(&r, 1 << 20) * 0x1p-20f);
        }
        for (int j = 0; j < EXACT_COLS; j++) {
            want.grad[i][j] = (uint16_t)(test_below(&r, 2) << 15 | (0x3f00 + test_below(&r, 0x100)));
            for (int half = 0; half < 2; half++)
                want.x[i][half][j] = random_code(&r, want.x_sf[(i * 2 + half) * blocks + j / width], !half);
        }
        expect_row(&want, i, width, clamp);
    }
    const tgl_quant_params params = { .num_per_channels = width,
                                      .has_swiglu_clamp_value = isfinite(clamp),
                                      .swiglu_clamp_value = clamp };
    FOR_BACKENDS(b)
        for (int one = 0; one < (backend_is_cpu(b) ? 1 : 2); one++) { /* SM, for which rows are many */
            use_one_sm(b, one);
            const int rows = EXACT_ROWS, cols = EXACT_COLS;
            CALL(quant_swiglu_backward_and_per_token_cast, b, &params, IN(TGL_E4M3, want.x, rows, 2 * cols),
                 IN(TGL_F32, want.x_sf, rows, 2 * blocks), IN(TGL_BF16, want.grad, rows, cols),
                 IN(TGL_F32, want.weight, rows, 1), IN(TGL_I32, want.pos, rows), IN(TGL_I32, want.pos, rows, 1),
                 OUT(TGL_BF16, want.out, rows, cols), OUT(TGL_E4M3, want.fp8, rows, 2 * cols),
                 OUT(TGL_F32, want.sf, rows, 2 * blocks), OUT(TGL_BF16, want.x_grad, rows, 2 * cols),
                 OUT(TGL_F32, NULL, rows, 1));
            use_one_sm(b, false);
        }
}

TEST(every_step_rounds) /* once, in the order of the header; FP8 is of f32 gradients */
{
    const int widths[] = { 8, 24, 128 }; /* with vectors, without, and with the loops of NEON */
    for (int w = 0; w < COUNT_OF(widths); w++) {
        check_exact(widths[w], INFINITY);
        check_exact(widths[w], 10);
    }
}

TEST(no_rows) /* weight_grad is still all zeros */
{
    FOR_BACKENDS(b)
        CALL(quant_swiglu_backward_and_per_token_cast, b, PARAMS(.num_per_channels = 128), IN(TGL_E4M3, NULL, 0, 256),
             IN(TGL_F32, NULL, 0, 2), IN(TGL_BF16, NULL, 0, 128), IN(TGL_F32, F32S(1, 2, 3, 4), 2, 2),
             IN(TGL_I32, NULL, 0), IN(TGL_I32, ((const int32_t[]){ -1, -1, -1, -1 }), 2, 2),
             OUT(TGL_BF16, NULL, 0, 128), OUT(TGL_E4M3, NULL, 0, 256), OUT(TGL_F32, NULL, 0, 2),
             OUT(TGL_BF16, NULL, 0, 256), OUT(TGL_F32, F32S(0, 0, 0, 0), 2, 2));
}

TEST(num_sms) /* blocks loop over rows; on one SM, warps loop over steps */
{
    check_num_sms("quant_swiglu_backward_and_per_token_cast",
                  (const char *const[]){
                      "num_rows=70 num_cols=9 num_tokens=35 num_topk=2 num_picks=70 clamp=0.5 values=mixed",
                      "num_rows=33 num_cols=128 num_tokens=40 num_topk=8 num_picks=30 round=1 values=mixed",
                      "num_rows=7 num_cols=1288 num_tokens=5 num_topk=2 num_picks=6 values=mixed", NULL });
}

/* The gradient of a weight, like all others, is the same to the last bit whether a warp has one step of a row
 * or, on one SM, several. */
enum { ORDER_ROWS = 5, ORDER_COLS = 4360, ORDER_BLOCKS = 2 * 35 };
static void check_order(int num_cols, const tgl_quant_params *params)
{
    static uint8_t x[ORDER_ROWS * 2 * ORDER_COLS];
    static float x_sf[ORDER_ROWS * ORDER_BLOCKS];
    static uint16_t grad[ORDER_ROWS * ORDER_COLS], x_grads[2][ORDER_ROWS * 2 * ORDER_COLS];
    int32_t pos[ORDER_ROWS];
    float ones[ORDER_ROWS], sums[2][ORDER_ROWS];
    const int num_blocks = 2 * ((num_cols + 127) / 128);
    test_random r = test_seed("sums_have_one_order");
    for (int i = 0; i < ORDER_ROWS; i++) {
        pos[i] = i;
        ones[i] = 1;
    }
    for (int i = 0; i < ORDER_ROWS * num_blocks; i++) x_sf[i] = test_below(&r, 8) ? 0.125f : 2;
    for (int i = 0; i < ORDER_ROWS * 2 * num_cols; i++) x[i] = (uint8_t)(test_below(&r, 2) << 7 | test_below(&r, 0x50));
    for (int i = 0; i < ORDER_ROWS * num_cols; i++)
        grad[i] = (uint16_t)(test_below(&r, 2) << 15 | (test_below(&r, 0x100) + 0x3f00));
    FOR_BACKENDS(b) {
        if (backend_is_cpu(b)) continue;
        for (int one = 0; one < 2; one++) {
            use_one_sm(b, one);
            backward_of(b, params,
                        &(table){ .rows = ORDER_ROWS,
                                  .cols = num_cols,
                                  .slots = ORDER_ROWS,
                                  .x = x,
                                  .x_sf = x_sf,
                                  .grad = grad,
                                  .weight = ones,
                                  .pos_to_slot = pos,
                                  .slot_to_pos = pos,
                                  .x_grad = x_grads[one],
                                  .weight_grad = sums[one] });
            use_one_sm(b, false);
        }
        for (int i = 0; i < ORDER_ROWS; i++)
            CHECK_THAT(sums[0][i] == sums[1][i], "%s: %d columns: row %d: %a in steps, %a in a loop", b->name, num_cols,
                       i, (double)sums[0][i], (double)sums[1][i]);
        for (int i = 0; i < ORDER_ROWS * 2 * num_cols; i++)
            CHECK_THAT(x_grads[0][i] == x_grads[1][i],
                       "%s: %d columns: gradient %d: 0x%04x in steps, 0x%04x "
                       "in a loop",
                       b->name, num_cols, i, x_grads[0][i], x_grads[1][i]);
    }
}

TEST(sums_have_one_order)
{
    const int num_cols[] = { ORDER_COLS, 1288 }; /* 18 steps of 5 warps, 6 steps of 2 */
    for (int i = 0; i < COUNT_OF(num_cols); i++) {
        check_order(num_cols[i], PARAMS(.num_per_channels = 128));
        check_order(num_cols[i],
                    PARAMS(.num_per_channels = 128, .has_swiglu_clamp_value = true, .swiglu_clamp_value = 7));
    }
}

/* ---- errors ---- */

#define GOOD_CALL                                     \
    CALL_OF(quant_swiglu_backward_and_per_token_cast, \
            "num_rows=3 num_cols=32 num_tokens=5 num_topk=2 num_per_channels=16")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_swiglu_backward_and_per_token_cast,
                         "num_rows=3 num_cols=32 num_tokens=5 num_topk=2 num_per_channels=4 "
                         "round_sf=1 x_sf=i32 x_grad_sf=i32 has_swiglu_clamp_value=1"));
    CHECK_ERROR(x[0].shape[1] = 63, "x: columns are 63, want an even number (gates, ups)");
    CHECK_ERROR(PARAMS_OF(c)->num_per_channels = 32, "x_sf: shape is [3, 4], want [3, 2]");
    CHECK_ERROR(x[8].dtype = tgl_dtype_to_dlpack(TGL_I32);
                x[8].shape[1] = x[8].strides[0] = 1, "round_sf: is false, want true for x_grad_sf of i32 (packed)");
    CHECK_ERROR(PARAMS_OF(c)->has_swiglu_clamp_value = true;
                PARAMS_OF(c)->swiglu_clamp_value = NAN, "swiglu_clamp_value: is nan, want >= 0");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
