/* SPDX-License-Identifier: MIT
 * tgl_quant_per_block_cast_lossless, on every device of the tests. The exponent code of an output block is 6
 * below the largest of its input blocks, so that the largest values of e2m1 just fit in e4m3. Smaller values
 * are exact as long as e4m3 has them. */
#include "support.h"

TESTS_OF_TABLE("quant_per_block_cast_lossless")

/* Two blocks of x, of four values each, in a block of the output. */
static void check_two_blocks(const uint8_t x[4], int32_t x_sf, const uint8_t out[8], int32_t out_sf,
                             const tgl_quant_params *params)
{
    FOR_BACKENDS(b)
        CALL(quant_per_block_cast_lossless, b, params, IN(TGL_E2M1X2, x, 1, 4), IN(TGL_I32, &x_sf, 1, 1),
             OUT(TGL_E4M3, out, 1, 8), OUT(TGL_I32, &out_sf, 1, 1),
             { TGL_I32, SIZES(1), .contents = &(int32_t){ 0 }, .want = &(int32_t){ 0 } });
}

TEST(worked_example)
{
    /* doc: per_block_cast_lossless */
    const uint8_t x[] = { 0x17, 0x8b, 0x10, 0xb8 }; /* 6, 0.5, -1.5, -0, then 0, 0.5, -0, -1.5 */
    const int32_t x_sf = 127 | 124 << 8;            /* times 1, and times 2^-3 */
    const int32_t out_sf = 121;                     /* 2^-6 */
    const uint8_t out[] = { 0x7c, 0x60, 0xec, 0x80, 0x00, 0x48, 0x80, 0xd4 }; /* 384, 32, -96, ... */
    const tgl_quant_params params = { .x_num_per_channels = 4, .num_per_channels = 8 };
    /* end */
    check_two_blocks(x, x_sf, out, out_sf, &params);
}

/* All 16 codes in two input blocks of one output block, whose exponent codes are `high` and `low`. */
static void check_pair(int high, int low, bool is_exact)
{
    const uint8_t pairs[16] = { 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,
                                0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe };
    const int out_code = high - 6 > 1 ? high - 6 : 1;
    FOR_BACKENDS(b)
        for (int is_packed = 0; is_packed < 2; is_packed++) {
            const int32_t packed = high | low << 8;
            const float factors[2] = { high ? ldexpf(1, high - 127) : 0, low ? ldexpf(1, low - 127) : 0 };
            uint8_t out[32], out_sf[4];
            float back[32], want[32];
            int32_t flag;
            const tgl_dtype sf_dtype = is_packed ? TGL_I32 : TGL_F32;
            const void *const x_sf = is_packed ? (const void *)&packed : factors;
            const int64_t sf_cols = is_packed ? 1 : 2;
            CALL(quant_per_block_cast_lossless, b, PARAMS(.x_num_per_channels = 16, .num_per_channels = 32),
                 IN(TGL_U8, pairs, 1, 16), IN(sf_dtype, x_sf, 1, sf_cols), GET(TGL_E4M3, out, 1, 32),
                 GET(sf_dtype, out_sf, 1, 1), { TGL_I32, SIZES(1), .contents = &(int32_t){ 0 }, .to = &flag });
            CALL(quant_cast_back, b, PARAMS(0), IN(TGL_E4M3, out, 1, 32), IN(sf_dtype, out_sf, 1, 1),
                 GET(TGL_F32, back, 1, 32));
            CALL(quant_cast_back, b, PARAMS(.format = TGL_QUANT_E2M1, .x_num_per_channels = 16),
                 IN(TGL_U8, pairs, 1, 16), IN(sf_dtype, x_sf, 1, sf_cols), GET(TGL_F32, want, 1, 32));
            float out_factor;
            memcpy(&out_factor, out_sf, 4);
            CHECK_INT(is_packed ? out_sf[0] : ilogbf(out_factor) + 127, out_code);
            CHECK_INT(flag, !is_exact);
            for (int i = 0; i < 32; i++) {
                const int code = i < 16 ? high : low; /* 0 is read as 0.0 */
                const float value =
                    quant_decode(TGL_QUANT_E2M1, (unsigned)i % 16) * (code ? ldexpf(1, code - out_code) : 0);
                CHECK_THAT(out[i] == quant_encode(TGL_QUANT_E4M3, value),
                           "%s: codes %d and %d: out[%d] is 0x%02x, want %a", b->name, high, low, i, out[i],
                           (double)value);
                if (is_exact)
                    CHECK_THAT(bits_of(back[i]) == bits_of(want[i]), "%s: codes %d and %d: value %d is %a, want %a",
                               b->name, high, low, i, (double)back[i], (double)want[i]);
            }
        }
}

TEST(spreads)
{
    for (int spread = 0; spread <= 14; spread++) check_pair(130, 130 - spread, true);
    for (int spread = 15; spread < 40; spread++) check_pair(130, 130 - spread, false);
    check_pair(254, 254 - 14, true);
    check_pair(254, 1, false);
}

TEST(lowest_exponents) /* the output's code is at least 1 */
{
    for (int high = 1; high < 12; high++) check_pair(high, 1, true);
}

TEST(a_factor_of_0) /* makes zeros, signs stay, and that is exact */
{
    for (int high = 0; high < 255; high += high < 12 ? 1 : 27) check_pair(high, 0, true);
    check_two_blocks(BYTES(0x17, 0x8b, 0x7f, 0xf7), 127, BYTES(0x7c, 0x60, 0xec, 0x80, 0x80, 0, 0, 0x80), 121,
                     PARAMS(.x_num_per_channels = 4, .num_per_channels = 8));
}

/* At a spread of 15, 0.5 and 1.5 lose a bit; other values still fit, and zeros always do. */
TEST(inexact_is_about_values)
{
    const struct {
        uint8_t pair;
        int spread;
        int32_t want;
    } rows[] = {
        { 0x22, 15, 0 },  { 0x44, 15, 0 },  { 0x55, 15, 0 },  { 0x66, 15, 0 },  { 0x77, 15, 0 },  { 0xaa, 15, 0 },
        { 0x12, 15, 1 },  { 0x21, 15, 1 },  { 0x32, 15, 1 },  { 0x23, 15, 1 },  { 0x92, 15, 1 },  { 0x2b, 15, 1 },
        { 0x00, 100, 0 }, { 0x08, 100, 0 }, { 0x88, 100, 0 }, { 0x70, 100, 1 }, { 0x08, 119, 0 },
    };
    FOR_BACKENDS(b)
        for (int i = 0; i < COUNT_OF(rows); i++)
            for (int32_t before = 0; before < 2; before++) { /* a flag that is set stays set */
                const uint8_t x[2] = { 0x22, rows[i].pair };
                const int32_t x_sf = 120 | (120 - rows[i].spread) << 8;
                CALL(quant_per_block_cast_lossless, b, PARAMS(.x_num_per_channels = 2), IN(TGL_E2M1X2, x, 1, 2),
                     IN(TGL_I32, &x_sf, 1, 1), OUT(TGL_E4M3, NULL, 1, 4), OUT(TGL_F32, NULL, 1, 1),
                     { TGL_I32, SIZES(1), .contents = &before, .want = &(int32_t){ before | rows[i].want } });
            }
}

TEST(empty)
{
    check_empty(CALL_OF(quant_per_block_cast_lossless,
                        "num_rows=0 num_cols=256 x_num_per_channels=32 num_per_channels=128 -inexact"));
}

#define GOOD_CALL                          \
    CALL_OF(quant_per_block_cast_lossless, \
            "num_rows=6 num_cols=64 num_per_tokens=4 num_per_channels=32 x_num_per_channels=16")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_per_block_cast_lossless, "num_rows=6 num_cols=64 num_per_tokens=4 num_per_channels=32 "
                                                        "x_num_per_channels=8 -inexact x_sf=i32 out_sf=i32"));
    CHECK_ERROR(PARAMS_OF(c)->num_per_channels = 24,
                "num_per_channels: is 24, want a multiple of 16 (x_num_per_channels)");
    CHECK_ERROR(PARAMS_OF(c)->num_per_channels = 8,
                "num_per_channels: is 8, want a multiple of 16 (x_num_per_channels)");
    CHECK_ERROR(PARAMS_OF(c)->x_num_per_tokens = 3, "num_per_tokens: is 4, want a multiple of 3 (x_num_per_tokens)");
    CHECK_ERROR(x[4].data = x[3].data, "inexact: memory is shared with out_sf, want no overlap");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
