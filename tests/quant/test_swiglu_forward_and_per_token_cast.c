/* SPDX-License-Identifier: MIT
 * tgl_quant_swiglu_forward_and_per_token_cast, on every device of the tests. The activation is computed in
 * f32, with an exp that may differ in its last bits; oracles compute in double. */
#include <float.h>

#include "support.h"

TESTS_OF_TABLE("quant_swiglu_forward_and_per_token_cast")

/* ---- examples ---- */

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        /* doc: swiglu_forward_and_per_token_cast */
        const float x[] = { 1, -1, 2, 0, /* gates, then ups */ 2, 1, -3, 5 };
        const float weight = 0.5f;
        const int32_t pos_to_token_topk = 0;
        /* 0.7310586, -0.13447072, -2.6423912, 0 */
        const uint8_t out[] = { 0x6c, 0xd9, 0xfb, 0x00 };
        const float out_sf = 0x1p-7f;
        /* clamped to 1.5: gates 1, -1, 1.5, 0 and ups 1.5, 1, -1.5, 1.5 */
        const uint8_t clamped[] = { 0x71, 0xe1, 0xf7, 0x00 };
        const float clamped_sf = 0x1p-8f;
        const int64_t clamped_count[3] = { 1, 2, 1 }; /* one gate, two ups, one up from below */
        /* end */
        for (int is_clamped = 0; is_clamped < 2; is_clamped++) {
            const tgl_quant_params params = { .round_sf = true,
                                              .has_swiglu_clamp_value = is_clamped,
                                              .swiglu_clamp_value = 1.5f };
            const int64_t before[3] = { 100, 1ll << 40, -7 };
            int64_t after[3];
            for (int i = 0; i < 3; i++) after[i] = before[i] + clamped_count[i];
            CALL(quant_swiglu_forward_and_per_token_cast, b, &params, FLOATS(TGL_BF16, x, 1, 8),
                 IN(TGL_I32, &pos_to_token_topk, 1), IN(TGL_F32, &weight, 1, 1), ABSENT,
                 { is_clamped ? TGL_I64 : 0, SIZES(3), .contents = before, .want = after },
                 OUT(TGL_E4M3, is_clamped ? clamped : out, 1, 4),
                 OUT(TGL_F32, is_clamped ? &clamped_sf : &out_sf, 1, 1));
        }
    }
}

/* ---- the activation itself ---- */

/* If a block has one value that is not 0, its factor, not rounded, is the magnitude of the activation,
 * divided by 448. LEAST is a floor below nearly all of them. Gates just above -88.72, where exp becomes
 * infinite, have a large up. */
static const float LEAST = 1e-30f;
static float up_for(float gate) { return gate > -89 && gate < -64 ? 0x1p120f : 1; }

/* In units of the last place. Kernels use the device's exp2 for small gates; the emulated one is as bad as
 * PTX allows. */
static double most_units(const backend *b) { return b->is_emulated ? 7 : 5; }

static void check_gate(const char *name, float gate, float up, uint8_t code, float sf, double most)
{
    const bool is_negative = signbit(gate) != signbit(up);
    const double want = fabs(gate / (1 + exp(-(double)gate)) * up) / 448, least = (double)(LEAST / 448);
    if (isnan(gate) || isinf(gate)) { /* -inf / inf is NaN, too */
        CHECK_THAT(code == 0x7f && sf == (gate > 0 ? INFINITY : LEAST / 448), "%s: gate %a: code 0x%02x, factor %a",
                   name, (double)gate, code, (double)sf);
    } else if (want < least * 0.999) { /* below the floor, zeros of both signs too */
        CHECK_THAT(sf == LEAST / 448, "%s: gate %a: factor %a", name, (double)gate, (double)sf);
        CHECK_THAT(code >> 7 == is_negative && (code & 0x7f) != 0x7f, "%s: gate %a: code 0x%02x", name, (double)gate,
                   code);
    } else if (want > least * 1.001) {
        const double error = fabs(sf - want) / ldexp(1, ilogb(want) - 23);
        CHECK_THAT(error <= most, "%s: gate %a: factor %a is %g units off", name, (double)gate, (double)sf, error);
        CHECK_THAT(code == (is_negative ? 0xfe : 0x7e), "%s: gate %a: code 0x%02x", name, (double)gate, code);
    }
}

/* Casts rows of gates, then ups, with a factor for `block` columns. */
static void cast_gates(const backend *b, bool is_bf16, int64_t rows, int64_t cols, int64_t block, const float *x,
                       void *codes, void *sf)
{
    CALL(quant_swiglu_forward_and_per_token_cast, b,
         PARAMS(.num_per_channels = block, .has_sf_clamp_min = true, .sf_clamp_min = LEAST),
         FLOATS(is_bf16 ? TGL_BF16 : TGL_F32, x, rows, 2 * cols), ABSENT, ABSENT, ABSENT, ABSENT,
         GET(TGL_E4M3, codes, rows, cols), GET(TGL_F32, sf, rows, cols / block));
}

TEST(every_bf16_gate) /* in blocks of one, which no kernel has a shorter way for */
{
    enum { ROWS = 256, COLS = 256 };
    static float x[ROWS][2 * COLS], sf[ROWS][COLS];
    static uint8_t codes[ROWS][COLS];
    for (uint32_t i = 0; i < ROWS * COLS; i++) {
        const float gate = float_of(i << 16);
        x[i / COLS][i % COLS] = gate;
        x[i / COLS][COLS + i % COLS] = i & 1 ? -up_for(gate) : up_for(gate);
    }
    FOR_BACKENDS(b)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            if (b->is_emulated && !is_bf16) continue;
            cast_gates(b, is_bf16, ROWS, COLS, 1, x[0], codes, sf);
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < COLS; j++) check_gate(b->name, x[i][j], x[i][COLS + j], codes[i][j], sf[i][j], 4.5);
        }
}

/* Kernels have a shorter way for small gates, and a yet shorter one for those of bf16. Results are right, and
 * the same as for the same gates as f32. Each block of 8 has one of them. */
TEST(every_bf16_gate_as_f32)
{
    enum { ROWS = 1024, BLOCKS = 64, COLS = 8 * BLOCKS, ONE = 0, THREE_QUARTERS, BESIDE_A_LARGE_ONE, TURNS };
    static float x[ROWS][2 * COLS], sf[2][ROWS * BLOCKS];
    static uint8_t codes[2][ROWS * BLOCKS][8];
    for (int turn = 0; turn < TURNS; turn++) {
        for (uint32_t i = 0; i < ROWS * BLOCKS; i++) {
            float *gates = &x[i / BLOCKS][i % BLOCKS * 8], *ups = gates + COLS;
            gates[i % 8] = float_of(i << 16);
            ups[i % 8] = up_for(gates[i % 8]);
            if (turn == THREE_QUARTERS) ups[i % 8] *= 0.75f;          /* so that a product rounds */
            gates[i % 8 ^ 1] = turn == BESIDE_A_LARGE_ONE ? -200 : 0; /* its activation is -0 */
        }
        FOR_BACKENDS(b) {
            for (int is_bf16 = 0; is_bf16 < 2; is_bf16++)
                cast_gates(b, is_bf16, ROWS, COLS, 8, x[0], codes[is_bf16], sf[is_bf16]);
            for (int i = 0; i < ROWS * BLOCKS; i++) {
                const float gate = float_of((uint32_t)i << 16), *ups = &x[i / BLOCKS][COLS + i % BLOCKS * 8];
                check_gate(b->name, gate, ups[i % 8], codes[1][i][i % 8], sf[1][i], most_units(b));
                /* the emulated reciprocal of a number just below 2 may be the wrong neighbour */
                if (b->is_emulated && fabsf(gate) < 0x1p-20f) continue;
                CHECK_THAT(sf[0][i] == sf[1][i], "%s: gate %a: factor %a, as f32 %a", b->name, (double)gate,
                           (double)sf[1][i], (double)sf[0][i]);
                CHECK_THAT(!memcmp(codes[1][i], codes[0][i], 8), "%s: gate %a: codes differ", b->name, (double)gate);
            }
        }
    }
}

/* Gates of f32 for which 1 + exp is close to the largest float; in blocks of 1 and of 8, and in whole
 * rows. */
TEST(gates_with_large_divisors)
{
    enum { ROWS = 26, COLS = 264 };
    static float x[ROWS][2 * COLS], sf[ROWS * COLS];
    static uint8_t codes[ROWS][COLS];
    for (int i = 0; i < ROWS; i++) {
        x[i][i] = i == 0 ? -88.72283f : i == 1 ? INFINITY : -88.7f + 0.4f * (float)(i - 2);
        x[i][COLS + i] = up_for(x[i][i]);
    }
    FOR_BACKENDS(b)
        for (int w = 0; w < 3; w++) {
            const int widths[] = { 1, 8, COLS }, width = widths[w];
            cast_gates(b, false, ROWS, COLS, width, x[0], codes, sf);
            for (int i = 0; i < ROWS; i++)
                check_gate(b->name, x[i][i], x[i][COLS + i], codes[i][i], sf[(i * COLS + i) / width], most_units(b));
        }
}

/* A code is right, or, rarely, the next one. */
TEST(random_codes_are_at_most_a_step_off)
{
    enum { ROWS = 64, COLS = 1024 };
    static float x[ROWS * 2 * COLS], sf[ROWS][COLS / 128];
    static uint8_t codes[ROWS][COLS];
    test_random r = test_seed("random_codes_are_at_most_a_step_off");
    for (int i = 0; i < ROWS * 2 * COLS; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) sum += (double)(test_bits(&r) >> 11) * 0x1p-53;
        x[i] = (float)sum;
    }
    FOR_BACKENDS(b) {
        const int64_t rows = b->is_emulated ? 4 : ROWS;
        int num_off = 0;
        CALL(quant_swiglu_forward_and_per_token_cast, b, PARAMS(.num_per_channels = 128, .round_sf = true),
             IN(TGL_F32, x, rows, 2 * COLS), ABSENT, ABSENT, ABSENT, ABSENT, GET(TGL_E4M3, codes, rows, COLS),
             GET(TGL_F32, sf, rows, COLS / 128));
        for (int64_t i = 0; i < rows; i++)
            for (int k = 0; k < COLS / 128; k++) {
                double v[128], amax = 1e-4;
                for (int j = 0; j < 128; j++) {
                    const double gate = x[i * 2 * COLS + 128 * k + j], up = x[i * 2 * COLS + COLS + 128 * k + j];
                    v[j] = gate / (1 + exp(-gate)) * up;
                    amax = fmax(amax, fabs(v[j]));
                }
                const float factor = quant_round_up_to_power((float)(amax / 448));
                CHECK_THAT(sf[i][k] == factor, "%s: factor %a, want %a", b->name, (double)sf[i][k], (double)factor);
                for (int j = 0; j < 128; j++) {
                    const unsigned want = quant_encode(TGL_QUANT_E4M3, (float)(v[j] / factor));
                    const int step = abs((int)codes[i][128 * k + j] - (int)want);
                    CHECK_THAT(step <= 1, "%s: code 0x%02x, want 0x%02x", b->name, codes[i][128 * k + j], want);
                    num_off += step != 0;
                }
            }
        CHECK_THAT(num_off * 1000 <= rows * COLS, "%s: %d of %d codes are a step off", b->name, num_off,
                   (int)rows * COLS);
    }
}

/* ---- special values ---- */

/* One row of one block, without weights unless pos is given; counts are of a clamp value. */
static void check_weighted_row(const float *x, int64_t cols, tgl_quant_params params, const int32_t *pos,
                               const float *weights, int64_t num_weights, const uint8_t *codes, uint32_t sf_bits,
                               const int64_t *counts)
{
    FOR_BACKENDS(b)
        CALL(quant_swiglu_forward_and_per_token_cast, b, &params, IN(TGL_F32, x, 1, 2 * cols),
             IN(pos ? TGL_I32 : 0, pos, 1), IN(pos ? TGL_F32 : 0, weights, num_weights, 1), ABSENT,
             { counts ? TGL_I64 : 0, SIZES(3), .contents = (const int64_t[3]){ 0 }, .want = counts },
             OUT(TGL_E4M3, codes, 1, cols), OUT(TGL_F32, &sf_bits, 1, 1));
}
static void check_row(const float *x, int64_t cols, tgl_quant_params params, const uint8_t *codes, float sf,
                      const int64_t *counts)
{
    check_weighted_row(x, cols, params, NULL, NULL, 0, codes, bits_of(sf), counts);
}
#define COUNTS(...) ((const int64_t[]){ __VA_ARGS__ })

static tgl_quant_params clamped_to(float value)
{
    return (tgl_quant_params){ .round_sf = true, .has_swiglu_clamp_value = true, .swiglu_clamp_value = value };
}

TEST(nan_stays_and_is_not_counted)
{
    /* gates NaN, 0, 9, 0; ups 1, NaN, -9, 9: the third is -1 * silu(1) = -0.731 */
    check_row(F32S(NAN, 0, 9, 0, 1, NAN, -9, 9), 4, clamped_to(1), BYTES(0x7f, 0x7f, 0xfc, 0x00), 0x1p-9f,
              COUNTS(1, 1, 1));
}

TEST(clamping_is_strict) /* at the value itself nothing is counted */
{
    const float c = 0.3f, above = nextafterf(c, 1);
    /* 0.3 * silu(0.3) = 0.0517: all the same code, with the sign of the up */
    check_row(F32S(c, above, c, c, c, above, c, c, -c, -above), 5, clamped_to(c), BYTES(0x7d, 0x7d, 0x7d, 0xfd, 0xfd),
              0x1p-13f, COUNTS(1, 1, 1));
}

TEST(gates_have_no_lower_bound)
{
    check_row(F32S(-2, 4), 1, clamped_to(0.5f), BYTES(0xf7), 0x1p-11f, COUNTS(0, 1, 0)); /* silu(-2) * 0.5 = -0.1192 */
}

TEST(signs_of_zero)
{
    /* -200 gives exp = inf and -0 */
    check_row(F32S(0.0f, -0.0f, 0.0f, -0.0f, -200, -200, 1, -1, 3, 3, -3, -3, 3, -3, -0.0f, -0.0f), 8,
              (tgl_quant_params){ .round_sf = true }, BYTES(0x00, 0x80, 0x80, 0x00, 0x80, 0x00, 0x80, 0x00), 0x1p-22f,
              NULL);
}

TEST(weights_that_are_not_there) /* count as 0, and the sign stays */
{
    const tgl_quant_params params = { .round_sf = true };
    const int32_t beyond[] = { -1, INT32_MIN, 2, INT32_MAX }, last = 1;
    for (int i = 0; i < 4; i++)
        check_weighted_row(F32S(1, -1, 1, 1), 2, params, &beyond[i], F32S(5, 7), 2, BYTES(0x00, 0x80),
                           bits_of(0x1p-22f), NULL);
    check_weighted_row(F32S(1, -1, 1, 1), 2, params, &last, F32S(5, 7), 2, BYTES(0x7a, 0xef), bits_of(0x1p-6f),
                       NULL); /* 7 * silu(1) = 5.117, 7 * silu(-1) = -1.8826 */
}

TEST(the_floor_is_replaced)
{
    const float *const zeros = F32S(0, -0.0f, 1, 1);
    const uint8_t *const codes = BYTES(0x00, 0x80);
    check_row(zeros, 2, (tgl_quant_params){ .has_sf_clamp_min = true, .sf_clamp_min = 448 }, codes, 1, NULL);
    check_row(zeros, 2, (tgl_quant_params){ .has_sf_clamp_min = true }, codes, 0, NULL); /* and no NaN */
    check_row(zeros, 2, (tgl_quant_params){ .has_sf_clamp_min = true, .round_sf = true }, codes, 0x1p-126f, NULL);
    /* 448 / 1e-38 is infinite: 0 * inf, and 1e-39 / 2 * inf */
    check_row(F32S(0, 1e-39f, 1, 1), 2, (tgl_quant_params){ .has_sf_clamp_min = true, .sf_clamp_min = 1e-38f },
              BYTES(0x7f, 0x7e), 1e-38f / 448, NULL);
    /* without their flags neither the floor nor the clamp value means anything: 80.99, -0.009994 */
    check_row(zeros, 2, (tgl_quant_params){ .sf_clamp_min = 448 }, codes, 1e-4f / 448, NULL);
    check_row(F32S(9, -9, 9, 9), 2, (tgl_quant_params){ .swiglu_clamp_value = 1, .round_sf = true }, BYTES(0x7a, 0x92),
              0x1p-2f, NULL);
}

TEST(skipped_rows_stay) /* in every layout, and with every row skipped */
{
    enum { ROWS = 6, COLS = 256 };
    static float x[ROWS * 2 * COLS];
    const tgl_dtype dtypes[] = { TGL_E4M3, TGL_I8, TGL_U8, TGL_E2M1X2 };
    uint8_t before[ROWS * COLS];
    const int32_t none[ROWS] = { -1, -2, -1, INT32_MIN, -1, -5 };
    for (int i = 0; i < ROWS * 2 * COLS; i++) x[i] = (float)(i % 13) - 6;
    memset(before, 0xa5, sizeof before);
    FOR_BACKENDS(b)
        for (int i = 0; i < 4; i++) {
            const tgl_quant_params params = { .format = i ? TGL_QUANT_E2M1 : TGL_QUANT_E4M3,
                                              .round_sf = true,
                                              .num_per_channels = 128,
                                              .has_swiglu_clamp_value = true };
            CALL(quant_swiglu_forward_and_per_token_cast, b, &params, FLOATS(TGL_BF16, x, ROWS, 2 * COLS), ABSENT,
                 ABSENT, IN(TGL_I32, none, ROWS),
                 { TGL_I64, SIZES(3), .contents = COUNTS(1, 2, 3), .want = COUNTS(1, 2, 3) },
                 OUT(dtypes[i], before, ROWS, i ? COLS / 2 : COLS),
                 { TGL_I32, SIZES(ROWS, 1), .strides = { 1, 8 }, .want = before });
        }
}

TEST(num_sms) /* 40 rows are few from 3 SMs on; blocks that count loop */
{
    check_num_sms("quant_swiglu_forward_and_per_token_cast",
                  (const char *const[]){
                      "num_rows=40,130 num_cols=256 clamp=0.5 count=0,1 round=1 values=mixed",
                      "num_rows=40 num_cols=256 clamp=0.5 count=1 weights=1 skip=2 round=1 sf=packed values=mixed",
                      "num_rows=70 num_cols=130 num_per_channels=7 clamp=2 count=1 values=mixed", NULL });
}

#define NO_OPTIONS " -pos_to_token_topk -topk_weights -pos_to_expert -clamped_count"
TEST(empty)
{
    check_empty(CALL_OF(quant_swiglu_forward_and_per_token_cast,
                        "num_rows=0 num_cols=256 num_per_channels=128" NO_OPTIONS));
    check_empty(CALL_OF(quant_swiglu_forward_and_per_token_cast, "num_rows=4 num_cols=0" NO_OPTIONS));
}

#define GOOD_CALL                                                                                      \
    CALL_OF(quant_swiglu_forward_and_per_token_cast, "num_rows=3 num_cols=32 num_tokens=5 num_topk=2 " \
                                                     "num_per_channels=16 has_swiglu_clamp_value=1")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_swiglu_forward_and_per_token_cast,
                         "num_rows=3 num_cols=32 num_per_channels=4 format=1 round_sf=1 "
                         "out_sf=i32 has_sf_clamp_min=1" NO_OPTIONS));
    CHECK_ERROR(x[0].shape[1] = 63, "x: columns are 63, want an even number (gates, ups)");
    CHECK_ERROR(c->tensors[2] = NULL, "topk_weights: is NULL, want a tensor with pos_to_token_topk");
    CHECK_ERROR(c->tensors[1] = NULL, "pos_to_token_topk: is NULL, want a tensor with topk_weights");
    CHECK_ERROR(PARAMS_OF(c)->has_swiglu_clamp_value = false,
                "has_swiglu_clamp_value: is false, want true with clamped_count");
    CHECK_ERROR(PARAMS_OF(c)->swiglu_clamp_value = NAN, "swiglu_clamp_value: is nan, want >= 0");
    CHECK_ERROR(PARAMS_OF(c)->has_sf_clamp_min = true;
                PARAMS_OF(c)->sf_clamp_min = -2, "sf_clamp_min: is -2, want >= 0");
    CHECK_ERROR(x[4].data = x[5].data, "out: memory is shared with clamped_count, want no overlap");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
