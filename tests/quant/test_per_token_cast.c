/* SPDX-License-Identifier: MIT
 * tgl_quant_per_token_cast, on every device of the tests. Written from the definitions of the formats: a
 * block has the factor that brings its largest magnitude to the format's largest number, or the next power of
 * two above. */
#include <float.h>

#include "errors.h"
#include "support.h"

TESTS_OF_TABLE("quant_per_token_cast")

/* ---- examples ---- */

/* One row of one block, as f32 and as bf16. */
static void check_row(const tgl_quant_params *params, const float *x, int64_t count, uint32_t sf_bits,
                      const uint8_t *codes, int64_t num_bytes)
{
    const tgl_dtype out_dtype = quant_data_dtype(params->format, TGL_E2M1X2);
    FOR_BACKENDS(b)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            tensor in, out, sf;
            bool fits = true;
            for (int64_t i = 0; i < count; i++) fits &= !(bits_of(x[i]) & 0xffff);
            if (is_bf16 && !fits) continue;
            place_floats(b, &in, is_bf16 ? TGL_BF16 : TGL_F32, 1, count, x);
            place(b, &out, out_dtype, 2, SHAPE(1, num_bytes), NULL);
            place(b, &sf, TGL_F32, 2, SHAPE(1, 1), NULL);
            CHECK_OK(tgl_quant_per_token_cast(&in.t, NULL, &out.t, &sf.t, params, b->stream));
            check_contents(b, &out, codes, "out");
            check_contents(b, &sf, &sf_bits, "out_sf");
            discard(b, &in);
        }
}

TEST(worked_example)
{
    /* doc: per_token_cast */
    const float x[] = { 1, -2, 0.5f, 3, -0.25f, 0, -0.0f, 1.5f };
    const tgl_quant_params e4m3 = { .format = TGL_QUANT_E4M3 }, e4m3_rounded = { .round_sf = true };
    const tgl_quant_params e2m1 = { .format = TGL_QUANT_E2M1 };
    const tgl_quant_params e2m1_rounded = { .format = TGL_QUANT_E2M1, .round_sf = true };
    /* 3 / 448 */
    check_row(&e4m3, x, 8, 0x3bdb6db7, BYTES(0x71, 0xf9, 0x69, 0x7e, 0xe1, 0x00, 0x80, 0x76), 8);
    /* 2^-7 */
    check_row(&e4m3_rounded, x, 8, 0x3c000000, BYTES(0x70, 0xf8, 0x68, 0x7c, 0xe0, 0x00, 0x80, 0x74), 8);
    /* 3 / 6 is a power of two: codes 4 E 2 7 9 0 8 5, the first of a pair in the low nibble */
    check_row(&e2m1, x, 8, 0x3f000000, BYTES(0xe4, 0x72, 0x09, 0x58), 4);
    check_row(&e2m1_rounded, x, 8, 0x3f000000, BYTES(0xe4, 0x72, 0x09, 0x58), 4);
    /* end */
}

TEST(worked_example_of_e5m6)
{
    /* doc: per_token_cast_e5m6 */
    const float x[] = { 1, -1, 0.5f, 2, -3, 0.1f, 0, -0.0f };
    const tgl_quant_params exact = { .format = TGL_QUANT_E5M6 };
    const tgl_quant_params rounded = { .format = TGL_QUANT_E5M6, .round_sf = true };
    /* 2^-14; codes 740 F40 700 780 FA0 666 000 800 */
    check_row(&rounded, x, 8, 0x38800000,
              BYTES(0x70, 0x40, 0x0f, 0x74, 0x06, 0xfa, 0x80, 0x07, 0x00, 0x08, 0x00, 0x66), 12);
    /* 3 / 65024; codes 755 F55 715 795 FBF 684 000 800 */
    check_row(&exact, x, 8, 0x38418306,
              BYTES(0x71, 0x55, 0x5f, 0x75, 0xf6, 0xfb, 0x95, 0x57, 0x00, 0x08, 0x00, 0x84), 12);
    /* end */
}

TEST(worked_example_of_codes)       /* with factors, to other codes */
{
    FOR_BACKENDS(b) {
        /* doc: per_token_cast_codes */
        const uint8_t x[] = { 0x7e, 0x38, 0xb8, 0x00 };         /* 448, 1, -1, 0 in e4m3 */
        const uint8_t out[] = { 0x06, 0x08 };                   /* 4, 0, -0, 0: of 3.5, 2^-7, -2^-7, 0 */
        const float x_sf = 0x1p-7f, out_sf = 1;
        const tgl_quant_params params = { .format = TGL_QUANT_E2M1, .round_sf = true };
        /* end */
        tensor in, in_sf, seen, seen_sf;
        place(b, &in, TGL_E4M3, 2, SHAPE(1, 4), x);
        place(b, &in_sf, TGL_F32, 2, SHAPE(1, 1), &x_sf);
        place(b, &seen, TGL_U8, 2, SHAPE(1, 2), NULL);
        place(b, &seen_sf, TGL_F32, 2, SHAPE(1, 1), NULL);
        CHECK_OK(tgl_quant_per_token_cast(&in.t, &in_sf.t, &seen.t, &seen_sf.t, &params, b->stream));
        check_contents(b, &seen, out, "out");
        check_contents(b, &seen_sf, &out_sf, "out_sf");
        discard(b, &in);
        discard(b, &in_sf);
    }
}

/* ---- layouts, byte by byte ---- */

/* Five rows of five blocks whose factors are all different powers of two: 2^(5 * row + block - 10). A warp
 * has a block, several have it, or no vectors fit in it. */
static int exponent_of(int row, int block) { return 5 * row + block - 10; }

static void check_layout(tgl_dtype dtype, const int64_t shape[2], const int64_t strides[2], const void *want)
{
    enum { ROWS = 5, BLOCKS = 5 };
    const int widths[] = { 128, 320, 100 };
    static float x[ROWS * BLOCKS * 320];
    FOR_BACKENDS(b)
        for (int turn = 0; turn < 2 * COUNT_OF(widths); turn++) {
            const int width = widths[turn / 2], cols = BLOCKS * width;
            for (int i = 0; i < ROWS * cols; i++)
                x[i] = ldexpf(i % width == 77 ? 448 : (float)(i % 7),
                              exponent_of(i / cols, i % cols / width));
            const tgl_quant_params params = { .num_per_channels = width, .round_sf = true };
            tensor in, out, sf;
            place_floats(b, &in, turn % 2 ? TGL_BF16 : TGL_F32, ROWS, cols, x);
            place(b, &out, TGL_E4M3, 2, SHAPE(ROWS, cols), NULL);
            place_strided(b, &sf, dtype, 2, shape, strides, NULL);
            CHECK_OK(tgl_quant_per_token_cast(&in.t, NULL, &out.t, &sf.t, &params, b->stream));
            check_contents(b, &sf, want, "out_sf");
            discard(b, &in);
            discard(b, &out);
        }
}

TEST(packed_factors_are_at_their_bytes)
{
    /* doc: packed_bytes */
    uint8_t want[64];                       /* [5, 2] of i32, strides [1, 8] */
    memset(want, 0xa5, sizeof want);        /* as it was: rows 5 to 7 of each column */
    for (int row = 0; row < 5; row++)
        for (int block = 0; block < 8; block++)
            want[block / 4 * 32 + row * 4 + block % 4] =
                (uint8_t)(block < 5 ? exponent_of(row, block) + 127 : 0);
    /* end */
    CHECK_INT(want[0], 127 + exponent_of(0, 0));
    CHECK_INT(want[3], 127 + exponent_of(0, 3));
    CHECK_INT(want[32], 127 + exponent_of(0, 4));
    CHECK_INT(want[17], 127 + exponent_of(4, 1));
    CHECK_INT(want[48], 127 + exponent_of(4, 4));
    CHECK_INT(want[49], 0);
    check_layout(TGL_I32, SHAPE(5, 2), SHAPE(1, 8), want);
}

TEST(column_major_factors_are_at_their_floats)
{
    float want[40];
    memset(want, 0xa5, sizeof want);
    for (int row = 0; row < 5; row++)
        for (int block = 0; block < 5; block++) want[block * 8 + row] = ldexpf(1, exponent_of(row, block));
    check_layout(TGL_F32, SHAPE(5, 5), SHAPE(1, 8), want);
}

TEST(row_major_factors_are_at_their_floats)
{
    float want[4 * 9 + 5];
    memset(want, 0xa5, sizeof want);
    for (int row = 0; row < 5; row++)
        for (int block = 0; block < 5; block++) want[row * 9 + block] = ldexpf(1, exponent_of(row, block));
    check_layout(TGL_F32, SHAPE(5, 5), SHAPE(9, 1), want);
}

TEST(one_column_of_factors_has_any_stride)
{
    const int64_t strides[] = { 0, 1, 3, 4, 8 };
    const uint32_t row[] = { 120, 121, 122 };       /* 448 * 2^-7, ... */
    float x[3][8] = { { 0 } };
    for (int i = 0; i < 3; i++) x[i][i] = ldexpf(448, (int)row[i] - 127);
    FOR_BACKENDS(b)
        for (int i = 0; i < COUNT_OF(strides); i++) {
            tensor in, sf;
            place_floats(b, &in, TGL_BF16, 3, 8, x[0]);
            place(b, &sf, TGL_I32, 2, SHAPE(3, 1), NULL);
            sf.strides[0] = 1, sf.strides[1] = strides[i];
            CHECK_OK(tgl_quant_per_token_cast(&in.t, NULL, NULL, &sf.t, PARAMS(.round_sf = true), b->stream));
            check_contents(b, &sf, row, "out_sf");
            discard(b, &in);
        }
}

/* ---- elements ---- */

/* All numbers of bf16 in rows of seven beside the format's largest number, which makes the factor 1; larger
 * ones in rows of their own would change it and are left out here. */
static void check_elements(tgl_quant_format format, bool round)
{
    const float largest = quant_largest(format);
    float *x = malloc(65536 * 8 * sizeof *x);
    int64_t count = 0;
    REQUIRE(x);
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float value = float_of(bits << 16);
        if (isnan(value) || fabsf(value) > largest) continue;
        if (count % 8 == 7) x[count++] = bits & 1 ? largest : -largest;
        x[count++] = value;
    }
    while (count % 8) x[count++] = largest;
    const int64_t rows = count / 8, bytes = quant_data_cols(format, 8);
    uint8_t *want = calloc((size_t)(rows * bytes), 1);
    REQUIRE(want);
    const case_tensor codes = {
        .ndim = 2, .shape = { rows, bytes }, .strides = { bytes, 1 }, .data = (char *)want, .element_bytes = 1
    };
    for (int64_t i = 0; i < count; i++)
        quant_put_code(&codes, format, i / 8, i % 8, quant_encode(format, x[i]));
    FOR_BACKENDS(b)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            tensor in, out, sf;
            const int64_t step = b->is_emulated ? rows / 8 : rows;      /* an eighth there */
            place_floats(b, &in, is_bf16 ? TGL_BF16 : TGL_F32, step, 8, x + 8 * (rows - step));
            place(b, &out, quant_data_dtype(format, TGL_U8), 2, SHAPE(step, bytes), NULL);
            place(b, &sf, TGL_F32, 2, SHAPE(step, 1), NULL);
            CHECK_OK(tgl_quant_per_token_cast(
                &in.t, NULL, &out.t, &sf.t,
                PARAMS(.format = format, .num_per_channels = 8, .round_sf = round), b->stream));
            check_contents(b, &out, want + (rows - step) * bytes, "out");
            discard(b, &in);
            discard(b, &sf);
        }
    free(x);
    free(want);
}

TEST(every_bf16_as_e4m3) { check_elements(TGL_QUANT_E4M3, false), check_elements(TGL_QUANT_E4M3, true); }
TEST(every_bf16_as_e2m1) { check_elements(TGL_QUANT_E2M1, false), check_elements(TGL_QUANT_E2M1, true); }
TEST(every_bf16_as_e5m6) { check_elements(TGL_QUANT_E5M6, false), check_elements(TGL_QUANT_E5M6, true); }

TEST(e5m6_below_its_normal_numbers)     /* cut, and one step more by bits that were not cut */
{
    const float x[] = {
        65024, 0x1.8p-20f, float_of(0x3581ffff), float_of(0x21810001), float_of(0x21810000), 0, 0, 0
    };
    check_row(PARAMS(.format = TGL_QUANT_E5M6), x, 8, bits_of(1),     /* 7BF 001 002 001 000 000 000 000 */
              BYTES(0x00, 0x01, 0xf0, 0x7b, 0x00, 0x00, 0x01, 0x20, 0, 0, 0, 0), 12);
}

/* ---- from the largest magnitude to the factor ---- */

static uint32_t factor_of(const backend *b, const tgl_quant_params *params, float largest)
{
    float x[8] = { 0, largest };
    uint32_t seen;
    tensor in, sf;
    place_floats(b, &in, TGL_F32, 1, 8, x);
    place(b, &sf, TGL_F32, 2, SHAPE(1, 1), NULL);
    CHECK_OK(tgl_quant_per_token_cast(&in.t, NULL, NULL, &sf.t, params, b->stream));
    fetch(b, &sf, &seen);
    discard(b, &in);
    return seen;
}

TEST(floors)
{
    FOR_BACKENDS(b) {
        for (int i = 0; i < 3; i++) {
            const float below[] = { 0, -0.0f, 1e-45f };
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E4M3), below[i]), 0x346facad);
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E4M3, .round_sf = true), below[i]),
                      bits_of(0x1p-22f));
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E5M6, .round_sf = true), below[i]),
                      bits_of(0x1p-29f));
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E2M1), below[i]), bits_of(0x1p-126f));
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E2M1, .round_sf = true), below[i]),
                      bits_of(0x1p-126f));
        }
        CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E4M3), float_of(0x38d1b717)),
                  0x346facad); /* 1e-4 */
        CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E4M3), float_of(0x38d1b718)), 0x346facae);
    }
}

TEST(powers_of_two_are_rounded_up)
{
    const tgl_quant_format formats[] = { TGL_QUANT_E4M3, TGL_QUANT_E2M1, TGL_QUANT_E5M6 };
    FOR_BACKENDS(b)
        for (int f = 0; f < 3; f++)
            for (int e = -18; e < 100; e += 13) {
                const tgl_quant_params params = { .format = formats[f], .round_sf = true };
                const float power = ldexpf(1, e), at = quant_largest(formats[f]) * power;
                if (at < 1e-4f) continue;
                CHECK_INT(factor_of(b, &params, at), bits_of(power));
                CHECK_INT(factor_of(b, &params, nextafterf(at, 0)), bits_of(power));
                CHECK_INT(factor_of(b, &params, nextafterf(at, INFINITY)), bits_of(2 * power));
                CHECK_INT(factor_of(b, &params, nextafterf(at / 2, INFINITY)), bits_of(power));
            }
}

TEST(factors_divide)        /* a quotient, not a product with a reciprocal */
{
    test_random r = test_seed("factors_divide");
    FOR_BACKENDS(b)
        for (int i = 0; i < (b->is_emulated ? 20 : 200); i++) {
            const float a = float_of((uint32_t)test_below(&r, 0x30000000) + 0x40000000);
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E4M3), -a), bits_of(a / 448));
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E2M1), a), bits_of(a / 6));
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E5M6), a), bits_of(a / 65024));
        }
}

/* ---- special values ---- */

TEST(nan_counts_for_nothing)
{
    const float x[] = { NAN, 448, -NAN, -1, 0, -0.0f, 2, 0.25f };
    check_row(PARAMS(.format = TGL_QUANT_E4M3), x, 8, bits_of(1),
              BYTES(0x7f, 0x7e, 0x7f, 0xb8, 0x00, 0x80, 0x40, 0x28), 8);
    const float y[] = { NAN, 6, -NAN, -1, 0, -0.0f, 2, 0.5f };
    check_row(PARAMS(.format = TGL_QUANT_E2M1, .round_sf = true), y, 8, bits_of(1),
              BYTES(0x77, 0xa7, 0x80, 0x14), 4);
    const float all[] = { NAN, -NAN, NAN, NAN };
    check_row(PARAMS(.format = TGL_QUANT_E4M3), all, 4, 0x346facad, BYTES(0x7f, 0x7f, 0x7f, 0x7f), 4);
}

TEST(an_infinite_block)     /* finite values are zeros of their sign, infinite ones NaN */
{
    const float x[] = { 1, -1, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0, -0.0f };
    check_row(PARAMS(.format = TGL_QUANT_E4M3), x, 8, bits_of(INFINITY),
              BYTES(0x00, 0x80, 0x7f, 0x7f, 0x00, 0x80, 0x00, 0x80), 8);
    check_row(PARAMS(.format = TGL_QUANT_E4M3, .round_sf = true), x, 8, bits_of(0x1p127f),
              BYTES(0x00, 0x80, 0x7f, 0x7f, 0x00, 0x80, 0x00, 0x80), 8);
    check_row(PARAMS(.format = TGL_QUANT_E2M1, .round_sf = true), x, 8, bits_of(0x1p127f),
              BYTES(0x80, 0x77, 0x80, 0x80), 4);
}

TEST(zeros_beside_a_huge_factor)    /* x_sf * inv would be infinite and 0 * inf NaN */
{
    const uint8_t zeros[4] = { 0x00, 0x80, 0x80, 0x00 };
    const float factors[] = { 4, 0x1p20f, 0x1p127f, 3e38f };
    const int32_t packed[] = { 129, 147, 254, 253 };
    FOR_BACKENDS(b)
        for (int i = 0; i < COUNT_OF(factors); i++)
            for (int is_packed = 0; is_packed < 2; is_packed++) {
                tensor in, in_sf, out, sf;
                place(b, &in, TGL_E4M3, 2, SHAPE(1, 4), zeros);
                place(b, &in_sf, is_packed ? TGL_I32 : TGL_F32, 2, SHAPE(1, 1),
                      is_packed ? (const void *)&packed[i] : &factors[i]);
                place(b, &out, TGL_E2M1X2, 2, SHAPE(1, 2), NULL);
                place(b, &sf, TGL_F32, 2, SHAPE(1, 1), NULL);
                CHECK_OK(tgl_quant_per_token_cast(&in.t, &in_sf.t, &out.t, &sf.t,
                                                  PARAMS(.format = TGL_QUANT_E2M1, .round_sf = true),
                                                  b->stream));
                check_contents(b, &out, BYTES(0x80, 0x08), "out");
                check_contents(b, &sf, F32S(0x1p-126f), "out_sf");
                discard(b, &in);
                discard(b, &in_sf);
            }
}

TEST(two_input_blocks_in_one)   /* one of them zeros with a huge factor */
{
    const uint8_t x[8] = { 0x00, 0x80, 0x00, 0x80, 0x38, 0xb8, 0x7e, 0x00 };
    const float x_sf[2] = { 3e38f, 0x1p-30f };
    FOR_BACKENDS(b) {
        tensor in, in_sf, out, sf;
        place(b, &in, TGL_E4M3, 2, SHAPE(1, 8), x);
        place(b, &in_sf, TGL_F32, 2, SHAPE(1, 2), x_sf);
        place(b, &out, TGL_E4M3, 2, SHAPE(1, 8), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(1, 1), NULL);
        CHECK_OK(tgl_quant_per_token_cast(&in.t, &in_sf.t, &out.t, &sf.t,
                                          PARAMS(.x_num_per_channels = 4, .round_sf = true), b->stream));
        /* 448 * 2^-30 is below the floor: 2^-22, so 1 becomes 2^-8 */
        check_contents(b, &out, BYTES(0x00, 0x80, 0x00, 0x80, 0x02, 0x82, 0x3e, 0x00), "out");
        check_contents(b, &sf, F32S(0x1p-22f), "out_sf");
        discard(b, &in);
        discard(b, &in_sf);
    }
}

TEST(the_order_of_two_products_shows)   /* code * x_sf rounds before it is scaled */
{
    enum { N = 2000 };
    static uint8_t x[2 * N], want[2 * N];
    static float x_sf[2 * N], want_sf[N];
    test_random r = test_seed("the_order_of_two_products_shows");
    int num_differ = 0;
    for (int i = 0; i < N; i++) {
        const close_pair p = make_close_pair(&r);
        x[2 * i] = want[2 * i] = 0x7e;
        x[2 * i + 1] = p.code;
        want[2 * i + 1] = (uint8_t)code_of_pair(p, false);
        memcpy(&x_sf[2 * i], p.factors, sizeof p.factors);
        want_sf[i] = 448 * p.factors[0] / 448;
        num_differ += code_of_pair(p, true) != want[2 * i + 1];
    }
    CHECK(num_differ > N / 20);
    FOR_BACKENDS(b) {
        tensor in, in_sf, out, sf;
        place(b, &in, TGL_E4M3, 2, SHAPE(1, 2 * N), x);
        place(b, &in_sf, TGL_F32, 2, SHAPE(1, 2 * N), x_sf);
        place(b, &out, TGL_E4M3, 2, SHAPE(1, 2 * N), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(1, N), NULL);
        CHECK_OK(tgl_quant_per_token_cast(&in.t, &in_sf.t, &out.t, &sf.t,
                                          PARAMS(.num_per_channels = 2, .x_num_per_channels = 1), b->stream));
        check_contents(b, &out, want, "out");
        check_contents(b, &sf, want_sf, "out_sf");
        discard(b, &in);
        discard(b, &in_sf);
    }
}

/* Products of codes and powers of two are exact: so codes are cast as their values are. All codes, with every
 * factor that may be near another's, beside zeros or the largest code with a factor of 1. */
static void check_codes_as_values(tgl_quant_format from, tgl_quant_format to, int64_t group)
{
    enum { MAX_GROUP = 32, NUM_FACTORS = 70, MAX_COLS = 32 * MAX_GROUP };
    const int64_t num_codes = from == TGL_QUANT_E4M3 ? 256 : 32;        /* of e2m1 all, twice */
    const int64_t num_cols = 4 * num_codes, num_words = num_cols / group / 4, cols = num_cols;
    static uint8_t x[NUM_FACTORS][MAX_COLS], want[NUM_FACTORS * MAX_COLS];
    static uint32_t factors[MAX_COLS][NUM_FACTORS];
    static float want_sf[NUM_FACTORS * MAX_COLS];
    memset(x, 0, sizeof x);
    for (int m = 0; m < NUM_FACTORS; m++) {
        const uint32_t special[] = { 0, 1, 253, 254, 255 }, at = (uint32_t)m;
        for (int64_t w = 0; w < num_words; w++)
            factors[w][m] = (at < 5 ? special[at] : 127 - 37 + at) * 0x01000100u + 127 * 0x00010001u;
        for (int64_t c = 0; c < cols; c++) {
            const int64_t block = c / (2 * group), is_second = c / group % 2;
            const unsigned largest = block % 2 && c % group == 1 ? (from == TGL_QUANT_E4M3 ? 0x7e : 7) : 0;
            const unsigned code = is_second ? (unsigned)(block / 2 * group + c % group) : largest;
            if (from == TGL_QUANT_E4M3) x[m][c] = (uint8_t)code;
            else x[m][c / 2] |= (uint8_t)((code & 15) << c % 2 * 4);
        }
    }
    FOR_BACKENDS(b) {
        tensor in, in_sf, values, out, sf;
        const int64_t in_cols = quant_data_cols(from, cols), out_cols = quant_data_cols(to, cols);
        const tgl_dtype out_dtype = quant_data_dtype(to, TGL_E2M1X2);
        place_strided(b, &in, quant_data_dtype(from, TGL_E2M1X2), 2, SHAPE(NUM_FACTORS, in_cols),
                      SHAPE(MAX_COLS, 1), x);
        place_strided(b, &in_sf, TGL_I32, 2, SHAPE(NUM_FACTORS, num_words), SHAPE(1, NUM_FACTORS), factors);
        place(b, &values, TGL_F32, 2, SHAPE(NUM_FACTORS, cols), NULL);
        CHECK_OK(tgl_quant_cast_back(&in.t, &in_sf.t, &values.t,
                                     PARAMS(.format = from, .x_num_per_channels = group), b->stream));
        const tgl_quant_params params = { .format = to, .num_per_channels = 2 * group, .round_sf = true,
                                          .x_num_per_channels = group };
        const int64_t num_sf = cols / group / 2;
        place(b, &out, out_dtype, 2, SHAPE(NUM_FACTORS, out_cols), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(NUM_FACTORS, num_sf), NULL);
        CHECK_OK(tgl_quant_per_token_cast(&values.t, NULL, &out.t, &sf.t, &params, b->stream));
        fetch(b, &out, want);
        fetch(b, &sf, want_sf);
        place(b, &out, out_dtype, 2, SHAPE(NUM_FACTORS, out_cols), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(NUM_FACTORS, num_sf), NULL);
        CHECK_OK(tgl_quant_per_token_cast(&in.t, &in_sf.t, &out.t, &sf.t, &params, b->stream));
        check_contents(b, &out, want, "out");
        check_contents(b, &sf, want_sf, "out_sf");
        discard(b, &in);
        discard(b, &in_sf);
        discard(b, &values);
    }
}

TEST(codes_as_values)
{
    const tgl_quant_format formats[] = { TGL_QUANT_E4M3, TGL_QUANT_E2M1 };
    for (int i = 0; i < 8; i++) check_codes_as_values(formats[i & 1], formats[i >> 1 & 1], i & 4 ? 32 : 16);
}

/* ---- errors that average out ---- */

/* The share of results below what they stand for, equal ones counting half, is a half but for chance. */
static void check_bias(tgl_quant_format format, bool round)
{
    enum { N_ROWS = 256, N_COLS = 1024 };
    static float x[N_ROWS * N_COLS], back[N_ROWS * N_COLS];
    test_random r = test_seed("check_bias");
    for (int i = 0; i < N_ROWS * N_COLS; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) sum += (double)(test_bits(&r) >> 11) * 0x1p-53;
        x[i] = (float)sum;
    }
    FOR_BACKENDS(b) {
        const int64_t rows = b->is_emulated ? 16 : N_ROWS, n = rows * N_COLS;
        tensor in, out, sf, again;
        place_floats(b, &in, TGL_F32, rows, N_COLS, x);
        place(b, &out, quant_data_dtype(format, TGL_E2M1X2), 2, SHAPE(rows, quant_data_cols(format, N_COLS)),
              NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(rows, N_COLS / 128), NULL);
        place(b, &again, TGL_F32, 2, SHAPE(rows, N_COLS), NULL);
        CHECK_OK(tgl_quant_per_token_cast(
            &in.t, NULL, &out.t, &sf.t, PARAMS(.format = format, .num_per_channels = 128, .round_sf = round),
            b->stream));
        CHECK_OK(tgl_quant_cast_back(&out.t, &sf.t, &again.t,
                                     PARAMS(.format = format, .x_num_per_channels = 128), b->stream));
        fetch(b, &again, back);
        double below = 0, product = 0, squares = 0;
        for (int64_t i = 0; i < n; i++) {
            below += back[i] < x[i] ? 1 : back[i] == x[i] ? 0.5 : 0;
            product += (double)x[i] * back[i];
            squares += (double)x[i] * x[i] + (double)back[i] * back[i];
        }
        CHECK_THAT(fabs(below / (double)n - 0.5) < 10 / sqrt((double)n), "%s: %g of %" PRId64 " are below",
                   b->name, below, n);
        const double diff = 1 - 2 * product / squares;
        const double limit = format == TGL_QUANT_E2M1 ? 2e-2 : format == TGL_QUANT_E4M3 ? 1e-3 : 1e-4;
        CHECK_THAT(diff >= 0 && diff < limit, "%s: calc_diff is %g", b->name, diff);
        discard(b, &in);
        discard(b, &out);
        discard(b, &sf);
    }
}

TEST(bias_of_e4m3) { check_bias(TGL_QUANT_E4M3, false), check_bias(TGL_QUANT_E4M3, true); }
TEST(bias_of_e2m1) { check_bias(TGL_QUANT_E2M1, false), check_bias(TGL_QUANT_E2M1, true); }
TEST(bias_of_e5m6) { check_bias(TGL_QUANT_E5M6, false), check_bias(TGL_QUANT_E5M6, true); }

/* ---- nothing to do ---- */

TEST(num_sms)       /* 5 blocks are few from 3 of them on */
{
    check_num_sms("quant_per_token_cast", (const char *const[]){
        "num_rows=33 num_cols=256 round=1 sf=packed values=mixed",
        "num_rows=5 num_cols=2056 num_per_channels=0 dtype=bf16,f32 values=mixed", NULL });
}

TEST(empty)     /* no data and no driver */
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        tensor x, out, sf;
        make(&x, NULL, devices[d], TGL_BF16, 2, SHAPE(0, 256));
        make(&out, NULL, devices[d], TGL_E4M3, 2, SHAPE(0, 256));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(0, 2));
        CHECK_OK(tgl_quant_per_token_cast(&x.t, NULL, &out.t, &sf.t, PARAMS(.num_per_channels = 128), NULL));
        CHECK_OK(tgl_quant_per_token_cast(&x.t, NULL, NULL, &sf.t, PARAMS(.num_per_channels = 128), NULL));
        make(&sf, NULL, devices[d], TGL_I32, 2, SHAPE(0, 1));
        CHECK_OK(tgl_quant_per_token_cast(&x.t, NULL, &out.t, &sf.t,
                                          PARAMS(.num_per_channels = 128, .round_sf = true), NULL));
        CHECK_FAILS(
            tgl_quant_per_token_cast(&x.t, NULL, &out.t, &sf.t, PARAMS(.num_per_channels = 128), NULL),
            TGL_ERR_ARGUMENT, "round_sf: is false, want true for out_sf of i32 (packed)");
        make(&x, NULL, devices[d], TGL_F32, 2, SHAPE(3, 0));
        make(&out, NULL, devices[d], TGL_E4M3, 2, SHAPE(3, 0));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(3, 0));
        CHECK_OK(tgl_quant_per_token_cast(&x.t, NULL, &out.t, &sf.t, PARAMS(.num_per_channels = 128), NULL));
        CHECK_OK(tgl_quant_per_token_cast(&x.t, NULL, &out.t, &sf.t, PARAMS(0), NULL));
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_quant_per_token_cast_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_quant_per_token_cast(t[0], t[1], t[2], t[3], params, NULL);
}
#define SIGNATURE &tgl_quant_per_token_cast_signature
#define GOOD_CALL SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=16 -x_sf", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=16 -x_sf -out", invoke);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=4 format=1 round_sf=1 -x_sf out_sf=i32", invoke);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=16 format=2 -x_sf", invoke);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=16 x_num_per_tokens=2 x_num_per_channels=8", invoke);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=16 x=u8 x_num_per_channels=4 x_sf=i32", invoke);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_E4M3), "x: dtype is e4m3, want bf16 or f32");
    CHECK_ERROR(x[2].shape[1] = x[2].strides[0] = 16, "out: shape is [3, 16], want [3, 32]");
    CHECK_ERROR(PARAMS_OF(c)->format = (tgl_quant_format)-1, "format: is -1, want 0 (e4m3), 1 (e2m1) or 2 (e5m6)");
}

TEST(errors_of_factors)
{
    CHECK_ERROR(PARAMS_OF(c)->num_per_channels = 0, "out_sf: shape is [3, 2], want [3, 1]");
    CHECK_ERROR(PARAMS_OF(c)->num_per_channels = 10, "out_sf: shape is [3, 2], want [3, 4]");
    CHECK_ERROR(x[3].strides[0] = 1; x[3].strides[1] = 2,
                "out_sf: strides are [1, 2], want [1, >= 3] or [>= 2, 1]");
    CHECK_ERROR(x[3].strides[0] = 1; x[3].strides[1] = -4,
                "out_sf: strides are [1, -4], want [1, >= 3] or [>= 2, 1]");
    CHECK_ERROR(x[3].strides[0] = 0, "out_sf: strides are [0, 1], want [1, >= 3] or [>= 2, 1]");
    CHECK_ERROR(x[3].dtype = tgl_dtype_to_dlpack(TGL_I32), "out_sf: shape is [3, 2], want [3, 1]");
    CHECK_ERROR(x[3].dtype = tgl_dtype_to_dlpack(TGL_I32); x[3].shape[1] = x[3].strides[0] = 1,
                "round_sf: is false, want true for out_sf of i32 (packed)");
    CHECK_ERROR(x[3].dtype = tgl_dtype_to_dlpack(TGL_I32); PARAMS_OF(c)->num_per_channels = 4,
                "out_sf: strides are [2, 1], want [1, >= 3]");
}

TEST(errors_of_formats)
{
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1, "out: dtype is e4m3, want i8, u8 or e2m1x2");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1; x[2].dtype = tgl_dtype_to_dlpack(TGL_U8),
                "out: shape is [3, 32], want [3, 16]");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E5M6; x[2].dtype = tgl_dtype_to_dlpack(TGL_U8),
                "out: rows are 32 bytes, want a multiple of 12 for e5m6");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1; x[0].shape[1] = 31; c->tensors[2] = NULL,    /* only factors */
                "x: columns are 31, want a multiple of 2 for e2m1");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E5M6; x[0].shape[1] = 28; c->tensors[2] = NULL,
                "x: columns are 28, want a multiple of 8 for e5m6");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E5M6; PARAMS_OF(c)->num_per_channels = 10,
                "num_per_channels: is 10, want a multiple of 8 for e5m6");
}

#undef GOOD_CALL
#define GOOD_CALL SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=16 x_num_per_channels=8", invoke
TEST(errors_of_codes)
{
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "x: dtype is bf16, want i8, u8, e4m3 or e2m1x2");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E5M6, "format: is 2, want 0 (e4m3) or 1 (e2m1)");
    CHECK_ERROR(PARAMS_OF(c)->x_num_per_tokens = 2, "x_sf: shape is [3, 4], want [2, 4]");
    CHECK_ERROR(x[1].strides[1] = 2, "x_sf: strides are [4, 2], want [1, >= 0] or [>= 0, 1]");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
