/* SPDX-License-Identifier: MIT
 * tgl_quant_per_token_cast_with_precomputed_sf, on every device of the tests. With a factor of 1 it only
 * encodes, so this is where the encoders of the formats are tested. */
#include <float.h>

#include "elements.h"

TESTS_OF_TABLE("quant_per_token_cast_with_precomputed_sf")

/* Casts rows of eight values with one factor for all, and compares with quant_encode(value * (1 /
 * factor)). */
static void check_values(const backend *b, tgl_quant_format format, tgl_dtype dtype, const float *x, int64_t rows,
                         float factor)
{
    const int64_t bytes = quant_data_cols(format, 8);
    uint8_t *want = calloc((size_t)(rows * bytes), 1);
    const case_tensor codes = {
        .ndim = 2, .shape = { rows, bytes }, .strides = { bytes, 1 }, .data = (char *)want, .element_bytes = 1
    };
    REQUIRE(want);
    const float inv = 1 / factor;
    for (int64_t i = 0; i < 8 * rows; i++)
        quant_put_code(&codes, format, i / 8, i % 8, quant_encode(format, x[i] * inv));
    CALL(quant_per_token_cast_with_precomputed_sf, b, PARAMS(.format = format), FLOATS(dtype, x, rows, 8), ABSENT,
         { TGL_F32, SIZES(rows, 1), .strides = { 0, 1 }, .contents = &factor },
         OUT(quant_data_dtype(format, TGL_U8), want, rows, bytes));
    free(want);
}

static void check_every_bf16(tgl_quant_format format)
{
    static float x[65536];
    for (uint32_t bits = 0; bits < 65536; bits++) x[bits] = float_of(bits << 16);
    FOR_BACKENDS(b) {
        check_values(b, format, TGL_BF16, x, 8192, 1);
        check_values(b, format, TGL_F32, x, 8192, 1);
        check_values(b, format, TGL_BF16, x, 8192, 0x1p-9f);
        check_values(b, format, TGL_F32, x, 8192, 3);
    }
}

TEST(every_bf16_as_e4m3) { check_every_bf16(TGL_QUANT_E4M3); }
TEST(every_bf16_as_e2m1) { check_every_bf16(TGL_QUANT_E2M1); }
TEST(every_bf16_as_e5m6) { check_every_bf16(TGL_QUANT_E5M6); }

/* Every number of a format, every midpoint of two, and the floats on either side. */
static void check_boundaries(tgl_quant_format format, unsigned num_codes)
{
    float *x = malloc(num_codes * 12 * sizeof *x + 8 * sizeof *x);
    int64_t count = 0;
    REQUIRE(x);
    for (unsigned code = 0; code < num_codes; code++) {
        const float at = quant_decode(format, code), next = quant_decode(format, code + 1);
        const float points[] = { at, code + 1 < num_codes ? (at + next) / 2 : at };
        for (int p = 0; p < 2; p++)
            for (int side = -1; side < 2; side++) {
                const float value = side < 0 ? nextafterf(points[p], -FLT_MAX)
                                    : side   ? nextafterf(points[p], FLT_MAX)
                                             : points[p];
                x[count++] = value;
                x[count++] = -value;
            }
    }
    while (count % 8) x[count++] = 0;
    FOR_BACKENDS(b) check_values(b, format, TGL_F32, x, count / 8, 1);
    free(x);
}

TEST(boundaries_of_e4m3) { check_boundaries(TGL_QUANT_E4M3, 0x7f); }
TEST(boundaries_of_e2m1) { check_boundaries(TGL_QUANT_E2M1, 8); }
TEST(boundaries_of_e5m6) { check_boundaries(TGL_QUANT_E5M6, 0x7c0); }

TEST(random_floats)
{
    static float x[65536];
    test_random r = test_seed("random_floats");
    for (int i = 0; i < 65536; i++) x[i] = float_of((uint32_t)test_bits(&r));
    FOR_BACKENDS(b)
        for (int f = 0; f < 3; f++)
            for (int e = -80; e <= 80; e += 40)
                check_values(b, (tgl_quant_format)f, TGL_F32, x, b->is_emulated ? 512 : 8192, ldexpf(1.75f, e));
}

/* By hand, not by the oracle's encoder. */
static void check_row(tgl_quant_format format, tgl_dtype dtype, const float *x, int64_t count, float sf,
                      const uint8_t *want)
{
    const bool is_pair = format == TGL_QUANT_E2M1;
    FOR_BACKENDS(b)
        CALL(quant_per_token_cast_with_precomputed_sf, b, PARAMS(.format = format), FLOATS(dtype, x, 1, count), ABSENT,
             IN(TGL_F32, &sf, 1, 1), OUT(is_pair ? TGL_I8 : TGL_E4M3, want, 1, count >> is_pair));
}

TEST(ties_of_e2m1)
{
    check_row(TGL_QUANT_E2M1, TGL_BF16,
              F32S(0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 6, -0.25f, -0.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5, -7),
              16, 1, BYTES(0x20, 0x42, 0x64, 0x76, 0xa8, 0xca, 0xec, 0xfe));
}

TEST(saturation_of_e4m3)
{
    check_row(TGL_QUANT_E4M3, TGL_F32, F32S(448, 463, 464, 480, 1e30f, INFINITY, -FLT_MAX, -INFINITY), 8, 1,
              BYTES(0x7e, 0x7e, 0x7e, 0x7e, 0x7e, 0x7e, 0xfe, 0xfe));
}

/* inv = 1 / sf in f32: a factor of 0 makes infinities, and NaN of zeros; an infinite one makes zeros. */
TEST(factors_at_the_ends)
{
    const float x[8] = { 1, -1, 0, -0.0f, 1e-30f, -1e30f, INFINITY, NAN };
    const struct {
        float sf;
        uint8_t want[8];
    } rows[] = {
        { 0, { 0x7e, 0xfe, 0x7f, 0x7f, 0x7e, 0xfe, 0x7e, 0x7f } },
        { INFINITY, { 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x7f, 0x7f } },
        { 0x1p-149f, { 0x7e, 0xfe, 0x7f, 0x7f, 0x7e, 0xfe, 0x7e, 0x7f } }, /* 2^149 is no float */
        { 0x1p127f, { 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x7e, 0x7f } },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) check_row(TGL_QUANT_E4M3, TGL_F32, x, 8, rows[i].sf, rows[i].want);
}

TEST(every_packed_factor) /* a block in a warp, in a row, and without vectors */
{
    const cast_op op = CAST_OP(per_token_cast_with_precomputed_sf, 2);
    check_given_codes(128, 4, op);
    check_given_codes(8, 1, op);
    check_given_codes(7, 4, op);
}

/* With the factors that per_token_cast found, if they are powers of two, the codes are the same. */
TEST(its_own_factors)
{
    enum { N = 1024 };
    static float x[4 * N];
    test_random r = test_seed("its_own_factors");
    for (int i = 0; i < 4 * N; i++) x[i] = ldexpf((float)test_below(&r, 2001) - 1000, (int)test_below(&r, 20) - 20);
    FOR_BACKENDS(b)
        for (int f = 0; f < 3; f++) {
            const tgl_quant_format format = (tgl_quant_format)f;
            const tgl_quant_params params = { .format = format, .num_per_channels = 128, .round_sf = true };
            const int64_t bytes = quant_data_cols(format, N);
            const tgl_dtype dtype = quant_data_dtype(format, TGL_U8);
            uint8_t want[4 * N * 3 / 2];
            int32_t sf[8];
            CALL(quant_per_token_cast, b, &params, IN(TGL_F32, x, 4, N), ABSENT, GET(dtype, want, 4, bytes),
                 { TGL_I32, SIZES(4, 2), .strides = { 1, 4 }, .to = sf });
            CALL(quant_per_token_cast_with_precomputed_sf, b, &params, IN(TGL_F32, x, 4, N), ABSENT,
                 { TGL_I32, SIZES(4, 2), .strides = { 1, 4 }, .contents = sf }, OUT(dtype, want, 4, bytes));
        }
}

TEST(num_sms) /* 5 blocks are few from 3 SMs on */
{
    check_num_sms("quant_per_token_cast_with_precomputed_sf",
                  (const char *const[]){ "num_rows=33 num_cols=256 sf=packed values=mixed", NULL });
}

TEST(empty)
{
    check_empty(CALL_OF(quant_per_token_cast_with_precomputed_sf, "num_rows=0 num_cols=256 -x_sf"));
    check_empty(CALL_OF(quant_per_token_cast_with_precomputed_sf, "num_rows=3 num_cols=0 -x_sf"));
}

#define GOOD_CALL CALL_OF(quant_per_token_cast_with_precomputed_sf, "num_rows=3 num_cols=32 num_per_channels=16 -x_sf")
TEST(errors)
{
    check_errors(GOOD_CALL);
    static const char *const samples[] = {
        "num_rows=3 num_cols=32 num_per_channels=4 format=1 -x_sf sf=i32",
        "num_rows=3 num_cols=32 num_per_channels=16 format=2 -x_sf",
        "num_rows=3 num_cols=32 num_per_channels=16 x_num_per_channels=8",
    };
    for (int i = 0; i < COUNT_OF(samples); i++)
        check_errors(CALL_OF(quant_per_token_cast_with_precomputed_sf, samples[i]));
    CHECK_ERROR(x[2].strides[0] = -2, "sf: strides are [-2, 1], want [1, >= 0] or [>= 0, 1]");
    CHECK_ERROR(x[2].dtype = tgl_dtype_to_dlpack(TGL_I32), "sf: shape is [3, 2], want [3, 1]");
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_E4M3), "x: dtype is e4m3, want bf16 or f32");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
