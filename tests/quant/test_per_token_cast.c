/* SPDX-License-Identifier: MIT
 * tgl_quant_per_token_cast, on every device of the tests. Written from the definitions of the formats: a
 * block's factor brings its largest magnitude to the format's largest number, or is the next power of two
 * above that. */
#include <float.h>

#include "support.h"

TESTS_OF_TABLE("quant_per_token_cast")

/* ---- examples ---- */

/* One row of one block, as f32 and as bf16. */
static void check_row(const tgl_quant_params *params, const float *x, int64_t count, uint32_t sf_bits,
                      const uint8_t *codes, int64_t num_bytes)
{
    bool fits_bf16 = true;
    for (int64_t i = 0; i < count; i++) fits_bf16 &= !(bits_of(x[i]) & 0xffff);
    FOR_BACKENDS(b)
        for (int is_bf16 = 0; is_bf16 <= fits_bf16; is_bf16++)
            CALL(quant_per_token_cast, b, params, FLOATS(is_bf16 ? TGL_BF16 : TGL_F32, x, 1, count), ABSENT,
                 OUT(quant_data_dtype(params->format, TGL_E2M1X2), codes, 1, num_bytes), OUT(TGL_F32, &sf_bits, 1, 1));
}

/* Codes with factors, in one row. */
static void check_codes(const tgl_quant_params *params, const uint8_t *x, int64_t cols, tgl_dtype sf_dtype,
                        const void *x_sf, int64_t num_sf, const uint8_t *codes, float sf)
{
    const bool is_pair = params->format == TGL_QUANT_E2M1;
    FOR_BACKENDS(b)
        CALL(quant_per_token_cast, b, params, IN(TGL_E4M3, x, 1, cols), IN(sf_dtype, x_sf, 1, num_sf),
             OUT(is_pair ? TGL_U8 : TGL_E4M3, codes, 1, cols >> is_pair), OUT(TGL_F32, &sf, 1, 1));
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
    check_row(&rounded, x, 8, 0x38800000, BYTES(0x70, 0x40, 0x0f, 0x74, 0x06, 0xfa, 0x80, 0x07, 0x00, 0x08, 0x00, 0x66),
              12);
    /* 3 / 65024; codes 755 F55 715 795 FBF 684 000 800 */
    check_row(&exact, x, 8, 0x38418306, BYTES(0x71, 0x55, 0x5f, 0x75, 0xf6, 0xfb, 0x95, 0x57, 0x00, 0x08, 0x00, 0x84),
              12);
    /* end */
}

TEST(worked_example_of_codes)
{
    /* doc: per_token_cast_codes */
    const uint8_t x[] = { 0x7e, 0x38, 0xb8, 0x00 }; /* 448, 1, -1, 0 in e4m3 */
    const uint8_t out[] = { 0x06, 0x08 };           /* 4, 0, -0, 0: of 3.5, 2^-7, -2^-7, 0 */
    const float x_sf = 0x1p-7f, out_sf = 1;
    const tgl_quant_params params = { .format = TGL_QUANT_E2M1, .round_sf = true };
    /* end */
    check_codes(&params, x, 4, TGL_F32, &x_sf, 1, out, out_sf);
}

/* ---- layouts, byte by byte ---- */

/* Five rows of five blocks, whose factors are different powers of two: 2^(5 * row + block - 10). One warp has
 * a block, or several do, or no vectors fit. */
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
                x[i] = ldexpf(i % width == 77 ? 448 : (float)(i % 7), exponent_of(i / cols, i % cols / width));
            CALL(quant_per_token_cast, b, PARAMS(.num_per_channels = width, .round_sf = true),
                 FLOATS(turn % 2 ? TGL_BF16 : TGL_F32, x, ROWS, cols), ABSENT, OUT(TGL_E4M3, NULL, ROWS, cols),
                 { dtype, SIZES(shape[0], shape[1]), .strides = { strides[0], strides[1] }, .want = want });
        }
}

TEST(packed_factors_are_at_their_bytes)
{
    /* doc: packed_bytes */
    uint8_t want[64];                /* [5, 2] of i32, strides [1, 8] */
    memset(want, 0xa5, sizeof want); /* as it was: rows 5 to 7 of each column */
    for (int row = 0; row < 5; row++)
        for (int block = 0; block < 8; block++)
            want[block / 4 * 32 + row * 4 + block % 4] = (uint8_t)(block < 5 ? exponent_of(row, block) + 127 : 0);
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
    const uint32_t row[] = { 120, 121, 122 }; /* 448 * 2^-7, ... */
    float x[3][8] = { { 0 } };
    for (int i = 0; i < 3; i++) x[i][i] = ldexpf(448, (int)row[i] - 127);
    FOR_BACKENDS(b)
        for (int i = 0; i < COUNT_OF(strides); i++)
            CALL(quant_per_token_cast, b, PARAMS(.round_sf = true), FLOATS(TGL_BF16, x[0], 3, 8), ABSENT, ABSENT,
                 { TGL_I32, SIZES(3, 1), .strides = { 1, strides[i] }, .want = row });
}

/* ---- elements ---- */

/* All numbers of bf16, in rows of seven beside the format's largest number, which makes the factor 1. Larger
 * ones would change the factor, and are left out. */
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
    for (int64_t i = 0; i < count; i++) quant_put_code(&codes, format, i / 8, i % 8, quant_encode(format, x[i]));
    FOR_BACKENDS(b)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            const int64_t step = b->is_emulated ? rows / 8 : rows; /* an eighth there */
            CALL(quant_per_token_cast, b, PARAMS(.format = format, .num_per_channels = 8, .round_sf = round),
                 FLOATS(is_bf16 ? TGL_BF16 : TGL_F32, x + 8 * (rows - step), step, 8), ABSENT,
                 OUT(quant_data_dtype(format, TGL_U8), want + (rows - step) * bytes, step, bytes),
                 OUT(TGL_F32, NULL, step, 1));
        }
    free(x);
    free(want);
}

TEST(every_bf16_as_e4m3) { check_elements(TGL_QUANT_E4M3, false), check_elements(TGL_QUANT_E4M3, true); }
TEST(every_bf16_as_e2m1) { check_elements(TGL_QUANT_E2M1, false), check_elements(TGL_QUANT_E2M1, true); }
TEST(every_bf16_as_e5m6) { check_elements(TGL_QUANT_E5M6, false), check_elements(TGL_QUANT_E5M6, true); }

TEST(e5m6_below_its_normal_numbers) /* truncated, then rounded up by bits that were kept */
{
    const float x[] = { 65024, 0x1.8p-20f, float_of(0x3581ffff), float_of(0x21810001), float_of(0x21810000), 0, 0, 0 };
    check_row(PARAMS(.format = TGL_QUANT_E5M6), x, 8, bits_of(1), /* 7BF 001 002 001 000 000 000 000 */
              BYTES(0x00, 0x01, 0xf0, 0x7b, 0x00, 0x00, 0x01, 0x20, 0, 0, 0, 0), 12);
}

/* ---- factors ---- */

static uint32_t factor_of(const backend *b, const tgl_quant_params *params, float largest)
{
    uint32_t seen = 0;
    CALL(quant_per_token_cast, b, params, FLOATS(TGL_F32, F32S(0, largest, 0, 0, 0, 0, 0, 0), 1, 8), ABSENT, ABSENT,
         GET(TGL_F32, &seen, 1, 1));
    return seen;
}

TEST(floors)
{
    FOR_BACKENDS(b) {
        for (int i = 0; i < 3; i++) {
            const float below[] = { 0, -0.0f, 1e-45f };
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E4M3), below[i]), 0x346facad);
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E4M3, .round_sf = true), below[i]), bits_of(0x1p-22f));
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E5M6, .round_sf = true), below[i]), bits_of(0x1p-29f));
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E2M1), below[i]), bits_of(0x1p-126f));
            CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E2M1, .round_sf = true), below[i]), bits_of(0x1p-126f));
        }
        CHECK_INT(factor_of(b, PARAMS(.format = TGL_QUANT_E4M3), float_of(0x38d1b717)), 0x346facad); /* 1e-4 */
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

TEST(factors_divide) /* a quotient, not a product with a reciprocal */
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
    check_row(PARAMS(.format = TGL_QUANT_E4M3), x, 8, bits_of(1), BYTES(0x7f, 0x7e, 0x7f, 0xb8, 0x00, 0x80, 0x40, 0x28),
              8);
    const float y[] = { NAN, 6, -NAN, -1, 0, -0.0f, 2, 0.5f };
    check_row(PARAMS(.format = TGL_QUANT_E2M1, .round_sf = true), y, 8, bits_of(1), BYTES(0x77, 0xa7, 0x80, 0x14), 4);
    const float all[] = { NAN, -NAN, NAN, NAN };
    check_row(PARAMS(.format = TGL_QUANT_E4M3), all, 4, 0x346facad, BYTES(0x7f, 0x7f, 0x7f, 0x7f), 4);
}

TEST(an_infinite_block) /* finite values are zeros of their sign, infinite ones NaN */
{
    const float x[] = { 1, -1, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0, -0.0f };
    check_row(PARAMS(.format = TGL_QUANT_E4M3), x, 8, bits_of(INFINITY),
              BYTES(0x00, 0x80, 0x7f, 0x7f, 0x00, 0x80, 0x00, 0x80), 8);
    check_row(PARAMS(.format = TGL_QUANT_E4M3, .round_sf = true), x, 8, bits_of(0x1p127f),
              BYTES(0x00, 0x80, 0x7f, 0x7f, 0x00, 0x80, 0x00, 0x80), 8);
    check_row(PARAMS(.format = TGL_QUANT_E2M1, .round_sf = true), x, 8, bits_of(0x1p127f),
              BYTES(0x80, 0x77, 0x80, 0x80), 4);
}

TEST(zeros_beside_a_huge_factor) /* x_sf * inv would be infinite and 0 * inf NaN */
{
    const uint8_t zeros[4] = { 0x00, 0x80, 0x80, 0x00 };
    const float factors[] = { 4, 0x1p20f, 0x1p127f, 3e38f };
    const int32_t packed[] = { 129, 147, 254, 253 };
    for (int i = 0; i < COUNT_OF(factors); i++)
        for (int is_packed = 0; is_packed < 2; is_packed++)
            check_codes(PARAMS(.format = TGL_QUANT_E2M1, .round_sf = true), zeros, 4, is_packed ? TGL_I32 : TGL_F32,
                        is_packed ? (const void *)&packed[i] : &factors[i], 1, BYTES(0x80, 0x08), 0x1p-126f);
}

TEST(two_input_blocks_in_one) /* one of them zeros with a huge factor */
{
    const uint8_t x[8] = { 0x00, 0x80, 0x00, 0x80, 0x38, 0xb8, 0x7e, 0x00 };
    /* 448 * 2^-30 is below the floor: 2^-22, so 1 becomes 2^-8 */
    check_codes(PARAMS(.x_num_per_channels = 4, .round_sf = true), x, 8, TGL_F32, F32S(3e38f, 0x1p-30f), 2,
                BYTES(0x00, 0x80, 0x00, 0x80, 0x02, 0x82, 0x3e, 0x00), 0x1p-22f);
}

TEST(the_order_of_two_products_shows) /* code * x_sf rounds before it is scaled */
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
    FOR_BACKENDS(b)
        CALL(quant_per_token_cast, b, PARAMS(.num_per_channels = 2, .x_num_per_channels = 1), IN(TGL_E4M3, x, 1, 2 * N),
             IN(TGL_F32, x_sf, 1, 2 * N), OUT(TGL_E4M3, want, 1, 2 * N), OUT(TGL_F32, want_sf, 1, N));
}

/* A code times a power of two is exact, so codes are cast like their values. All codes, with factors from
 * 2^-37 to 2^32 and the extreme ones, beside zeros or the largest code with a factor of 1. */
static void check_codes_as_values(tgl_quant_format from, tgl_quant_format to, int64_t group)
{
    enum { MAX_GROUP = 32, NUM_FACTORS = 70, MAX_COLS = 32 * MAX_GROUP };
    const int64_t num_codes = from == TGL_QUANT_E4M3 ? 256 : 32; /* of e2m1 all, twice */
    const int64_t num_cols = 4 * num_codes, num_words = num_cols / group / 4, cols = num_cols;
    static uint8_t x[NUM_FACTORS][MAX_COLS], want[NUM_FACTORS * MAX_COLS];
    static uint32_t factors[MAX_COLS][NUM_FACTORS];
    static float values[NUM_FACTORS * MAX_COLS], want_sf[NUM_FACTORS * MAX_COLS];
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
        enum { M = NUM_FACTORS };
        const tgl_dtype out_dtype = quant_data_dtype(to, TGL_E2M1X2);
        const int64_t out_cols = quant_data_cols(to, cols), num_sf = cols / group / 2;
        const call_arg in = { quant_data_dtype(from, TGL_E2M1X2), SIZES(M, quant_data_cols(from, cols)),
                              .strides = { MAX_COLS, 1 }, .contents = x };
        const call_arg in_sf = { TGL_I32, SIZES(M, num_words), .strides = { 1, M }, .contents = factors };
        const tgl_quant_params params = {
            .format = to, .num_per_channels = 2 * group, .round_sf = true, .x_num_per_channels = group
        };
        CALL(quant_cast_back, b, PARAMS(.format = from, .x_num_per_channels = group), in, in_sf,
             GET(TGL_F32, values, M, cols));
        CALL(quant_per_token_cast, b, &params, IN(TGL_F32, values, M, cols), ABSENT, GET(out_dtype, want, M, out_cols),
             GET(TGL_F32, want_sf, M, num_sf));
        CALL(quant_per_token_cast, b, &params, in, in_sf, OUT(out_dtype, want, M, out_cols),
             OUT(TGL_F32, want_sf, M, num_sf));
    }
}

TEST(codes_as_values)
{
    const tgl_quant_format formats[] = { TGL_QUANT_E4M3, TGL_QUANT_E2M1 };
    for (int i = 0; i < 8; i++) check_codes_as_values(formats[i & 1], formats[i >> 1 & 1], i & 4 ? 32 : 16);
}

/* ---- rounding errors average out ---- */

/* Half of the results are below their inputs, except for chance; equal ones count half. */
static void check_bias(tgl_quant_format format, bool round)
{
    enum { N_ROWS = 256, N_COLS = 1024 };
    static float x[N_ROWS * N_COLS], back[N_ROWS * N_COLS], sf[N_ROWS * N_COLS / 128];
    static uint8_t codes[N_ROWS * N_COLS * 3 / 2];
    const tgl_dtype dtype = quant_data_dtype(format, TGL_E2M1X2);
    const int64_t bytes = quant_data_cols(format, N_COLS);
    test_random r = test_seed("check_bias");
    for (int i = 0; i < N_ROWS * N_COLS; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) sum += (double)(test_bits(&r) >> 11) * 0x1p-53;
        x[i] = (float)sum;
    }
    FOR_BACKENDS(b) {
        const int64_t rows = b->is_emulated ? 16 : N_ROWS, n = rows * N_COLS;
        CALL(quant_per_token_cast, b, PARAMS(.format = format, .num_per_channels = 128, .round_sf = round),
             IN(TGL_F32, x, rows, N_COLS), ABSENT, GET(dtype, codes, rows, bytes),
             GET(TGL_F32, sf, rows, N_COLS / 128));
        CALL(quant_cast_back, b, PARAMS(.format = format, .x_num_per_channels = 128), IN(dtype, codes, rows, bytes),
             IN(TGL_F32, sf, rows, N_COLS / 128), GET(TGL_F32, back, rows, N_COLS));
        double below = 0, product = 0, squares = 0;
        for (int64_t i = 0; i < n; i++) {
            below += back[i] < x[i] ? 1 : back[i] == x[i] ? 0.5 : 0;
            product += (double)x[i] * back[i];
            squares += (double)x[i] * x[i] + (double)back[i] * back[i];
        }
        CHECK_THAT(fabs(below / (double)n - 0.5) < 10 / sqrt((double)n), "%s: %g of %" PRId64 " are below", b->name,
                   below, n);
        const double diff = 1 - 2 * product / squares;
        const double limit = format == TGL_QUANT_E2M1 ? 2e-2 : format == TGL_QUANT_E4M3 ? 1e-3 : 1e-4;
        CHECK_THAT(diff >= 0 && diff < limit, "%s: calc_diff is %g", b->name, diff);
    }
}

TEST(bias_of_e4m3) { check_bias(TGL_QUANT_E4M3, false), check_bias(TGL_QUANT_E4M3, true); }
TEST(bias_of_e2m1) { check_bias(TGL_QUANT_E2M1, false), check_bias(TGL_QUANT_E2M1, true); }
TEST(bias_of_e5m6) { check_bias(TGL_QUANT_E5M6, false), check_bias(TGL_QUANT_E5M6, true); }

TEST(num_sms) /* 5 blocks are few from 3 SMs on */
{
    check_num_sms("quant_per_token_cast",
                  (const char *const[]){ "num_rows=33 num_cols=256 round=1 sf=packed values=mixed",
                                         "num_rows=5 num_cols=2056 num_per_channels=0 dtype=bf16,f32 values=mixed",
                                         NULL });
}

TEST(empty)
{
    check_empty(CALL_OF(quant_per_token_cast, "num_rows=0 num_cols=256 num_per_channels=128 -x_sf"));
    check_empty(CALL_OF(quant_per_token_cast, "num_rows=0 num_cols=256 num_per_channels=128 -x_sf -out"));
    check_empty(CALL_OF(quant_per_token_cast,
                        "num_rows=0 num_cols=256 num_per_channels=128 round_sf=1 -x_sf out_sf=i32"));
    check_empty(CALL_OF(quant_per_token_cast, "num_rows=3 num_cols=0 num_per_channels=128 -x_sf x=f32"));
    check_empty(CALL_OF(quant_per_token_cast, "num_rows=3 num_cols=0 -x_sf x=f32"));
}

/* ---- errors ---- */

#define GOOD_CALL CALL_OF(quant_per_token_cast, "num_rows=3 num_cols=32 num_per_channels=16 -x_sf")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_per_token_cast, "num_rows=3 num_cols=32 num_per_channels=16 -x_sf -out"));
    check_errors(CALL_OF(quant_per_token_cast,
                         "num_rows=3 num_cols=32 num_per_channels=4 format=1 round_sf=1 -x_sf out_sf=i32"));
    check_errors(CALL_OF(quant_per_token_cast, "num_rows=3 num_cols=32 num_per_channels=16 format=2 -x_sf"));
    check_errors(CALL_OF(quant_per_token_cast,
                         "num_rows=3 num_cols=32 num_per_channels=16 x_num_per_tokens=2 x_num_per_channels=8"));
    check_errors(CALL_OF(quant_per_token_cast,
                         "num_rows=3 num_cols=32 num_per_channels=16 x=u8 x_num_per_channels=4 x_sf=i32"));
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_E4M3), "x: dtype is e4m3, want bf16 or f32");
    CHECK_ERROR(x[2].shape[1] = x[2].strides[0] = 16, "out: shape is [3, 16], want [3, 32]");
    CHECK_ERROR(PARAMS_OF(c)->format = (tgl_quant_format)-1, "format: is -1, want 0 (e4m3), 1 (e2m1) or 2 (e5m6)");
}

TEST(errors_of_factors)
{
    CHECK_ERROR(PARAMS_OF(c)->num_per_channels = 0, "out_sf: shape is [3, 2], want [3, 1]");
    CHECK_ERROR(PARAMS_OF(c)->num_per_channels = 10, "out_sf: shape is [3, 2], want [3, 4]");
    CHECK_ERROR(x[3].strides[0] = 1; x[3].strides[1] = 2, "out_sf: strides are [1, 2], want [1, >= 3] or [>= 2, 1]");
    CHECK_ERROR(x[3].strides[0] = 1; x[3].strides[1] = -4, "out_sf: strides are [1, -4], want [1, >= 3] or [>= 2, 1]");
    CHECK_ERROR(x[3].strides[0] = 0, "out_sf: strides are [0, 1], want [1, >= 3] or [>= 2, 1]");
    CHECK_ERROR(x[3].dtype = tgl_dtype_to_dlpack(TGL_I32), "out_sf: shape is [3, 2], want [3, 1]");
    CHECK_ERROR(x[3].dtype = tgl_dtype_to_dlpack(TGL_I32);
                x[3].shape[1] = x[3].strides[0] = 1, "round_sf: is false, want true for out_sf of i32 (packed)");
    CHECK_ERROR(x[3].dtype = tgl_dtype_to_dlpack(TGL_I32);
                PARAMS_OF(c)->num_per_channels = 4, "out_sf: strides are [2, 1], want [1, >= 3]");
}

TEST(errors_of_formats)
{
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1, "out: dtype is e4m3, want i8, u8 or e2m1x2");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1;
                x[2].dtype = tgl_dtype_to_dlpack(TGL_U8), "out: shape is [3, 32], want [3, 16]");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E5M6;
                x[2].dtype = tgl_dtype_to_dlpack(TGL_U8), "out: rows are 32 bytes, want a multiple of 12 for e5m6");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1; x[0].shape[1] = 31;
                c->tensors[2] = NULL, "x: columns are 31, want a multiple of 2 for e2m1");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E5M6; x[0].shape[1] = 28;
                c->tensors[2] = NULL, "x: columns are 28, want a multiple of 8 for e5m6");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E5M6;
                PARAMS_OF(c)->num_per_channels = 10, "num_per_channels: is 10, want a multiple of 8 for e5m6");
}

#undef GOOD_CALL
#define GOOD_CALL CALL_OF(quant_per_token_cast, "num_rows=3 num_cols=32 num_per_channels=16 x_num_per_channels=8")
TEST(errors_of_codes)
{
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "x: dtype is bf16, want i8, u8, e4m3 or e2m1x2");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E5M6, "format: is 2, want 0 (e4m3) or 1 (e2m1)");
    CHECK_ERROR(PARAMS_OF(c)->x_num_per_tokens = 2, "x_sf: shape is [3, 4], want [2, 4]");
    CHECK_ERROR(x[1].strides[1] = 2, "x_sf: strides are [4, 2], want [1, >= 0] or [>= 0, 1]");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
