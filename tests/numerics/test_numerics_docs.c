/* SPDX-License-Identifier: MIT
 * test_numerics_docs.c - the examples of docs/numerics.md. */
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e5m2.h"
#include "numerics/e5m6.h"
#include "numerics/f16.h"
#include "numerics/tf32.h"
#include "numerics/ue8m0.h"

#include <math.h>

#include "test.h"

TEST(one_number)
{
    /* doc: one_number */
    const float x = 0.1f;                                           /* 0x3DCCCCCD = 0.100000001490 */
    CHECK(tgl_tf32_from_f32(x) == 0.0999755859375f);                /* 0x3DCCC000 */
    CHECK(tgl_f16_to_f32(tgl_f16_from_f32(x)) == 0.0999755859375f); /* 0x2E66 */
    CHECK(tgl_bf16_to_f32(tgl_bf16_from_f32(x)) == 0.10009765625f); /* 0x3DCD */
    CHECK(tgl_e5m6_to_f32(tgl_e5m6_from_f32(x)) == 0.099609375f);   /* 0x2E6 */
    CHECK(tgl_e4m3_to_f32(tgl_e4m3_from_f32(x)) == 0.1015625f);     /* 0x1D */
    CHECK(tgl_e5m2_to_f32(tgl_e5m2_from_f32(x)) == 0.09375f);       /* 0x2E */
    CHECK(tgl_e2m1_to_f32(tgl_e2m1_from_f32(x)) == 0.0f);           /* 0x0 */
    CHECK(tgl_ue8m0_to_f32(tgl_ue8m0_from_f32(x)) == 0.125f);       /* 124, upwards */
    /* end */
    CHECK_INT(tgl_f32_to_bits(x), 0x3DCCCCCD);
    CHECK_INT(tgl_f32_to_bits(tgl_tf32_from_f32(x)), 0x3DCCC000);
    CHECK_INT(tgl_f16_from_f32(x), 0x2E66);
    CHECK_INT(tgl_bf16_from_f32(x), 0x3DCD);
    CHECK_INT(tgl_e5m6_from_f32(x), 0x2E6);
    CHECK_INT(tgl_e4m3_from_f32(x), 0x1D);
    CHECK_INT(tgl_e5m2_from_f32(x), 0x2E);
    CHECK_INT(tgl_e2m1_from_f32(x), 0x0);
    CHECK_INT(tgl_ue8m0_from_f32(x), 124);
}

TEST(rounding)
{
    /* doc: rounding */
    CHECK_INT(tgl_e4m3_from_f32(1.0625f), 0x38);      /* between 1 (0x38) and 1.125 (0x39): the even code */
    CHECK_INT(tgl_e4m3_from_f32(1.1875f), 0x3A);      /* between 1.125 (0x39) and 1.25 (0x3A) */
    CHECK_INT(tgl_e4m3_from_f32(0x3p-10f), 0x02);     /* 1.5 * 2^-9, subnormal: the same rule */
    CHECK_INT(tgl_e4m3_from_f32(-1e-30f), 0x80);      /* underflow keeps the sign */
    CHECK_INT(tgl_e4m3_from_f32(1000.0f), 0x7E);      /* 448 */
    CHECK_INT(tgl_e5m2_from_f32(-INFINITY), 0xFB);    /* -57344: saturates although it has an infinity */
    CHECK_INT(tgl_e2m1_from_f32(2.5f), 0x4);          /* 2, code 4; 3 has code 5 */
    CHECK_INT(tgl_f16_from_f32(65520.0f), 0x7C00);    /* nearest: infinity */
    CHECK_INT(tgl_f16_from_f32_rz(65520.0f), 0x7BFF); /* toward zero: 65504 */
    /* end */
}

TEST(nan)
{
    /* doc: nan */
    CHECK_INT(tgl_bf16_from_f32(NAN), 0x7FFF);
    CHECK_INT(tgl_e4m3_from_f32(-NAN), 0x7F);
    CHECK_INT(tgl_e2m1_from_f32(NAN), 0x7); /* +6: there is no NaN */
    CHECK_INT(tgl_f32_to_bits(tgl_e4m3_to_f32(0xFF)), 0x7FFFFFFF);
    /* end */
}

TEST(e2m1_pair)
{
    /* doc: e2m1_pair */
    CHECK_INT(tgl_e2m1x2_from_f32(2.0f, -4.0f), 0xE4);
    CHECK(tgl_e2m1x2_even_to_f32(0xE4) == 2.0f);
    CHECK(tgl_e2m1x2_odd_to_f32(0xE4) == -4.0f);
    /* end */
}

TEST(e5m6_quirk)
{
    /* doc: e5m6_quirk */
    CHECK_INT(tgl_e5m6_from_f32(0x1.8p-20f), 0x001);                    /* 1.5 steps: cut to 1 */
    CHECK_INT(tgl_e5m6_from_f32(tgl_f32_from_bits(0x3581FFFF)), 0x002); /* 1.0156 steps: 2 */
    CHECK_INT(tgl_e5m6_from_f32(tgl_f32_from_bits(0x21810001)), 0x001); /* 8.7e-19, 9e-13 steps: 1 */
    CHECK_INT(tgl_e5m6_from_f32(tgl_f32_from_bits(0x21810000)), 0x000); /* the float before it: 0 */
    /* end */
}

TEST(e5m6_row)
{
    /* doc: e5m6_row */
    const float row[8] = { 1, -1, 0.5f, 2, -3, 0.1f, 0, -0.0f };
    const uint8_t sf = tgl_ue8m0_from_f32(3.0f / TGL_E5M6_MAX); /* the largest is 3; 113 is 2^-14 */
    uint16_t codes[8];
    uint32_t words[3];
    for (int i = 0; i < 8; i++) codes[i] = tgl_e5m6_from_f32(row[i] * tgl_ue8m0_inverse_to_f32(sf));
    tgl_e5m6x8_pack(codes, words); /* 740 F40 700 780 FA0 666 000 800 */
    CHECK_INT(words[0], 0x740F4070);
    CHECK_INT(words[1], 0x0780FA06);
    CHECK_INT(words[2], 0x66000800);
    CHECK(tgl_e5m6_to_f32(codes[5]) * tgl_ue8m0_to_f32(sf) == 0.099609375f);
    /* end */
    const uint16_t want[8] = { 0x740, 0xF40, 0x700, 0x780, 0xFA0, 0x666, 0x000, 0x800 };
    for (int i = 0; i < 8; i++) CHECK_INT(codes[i], want[i]);
    CHECK_INT(sf, 113);
}

TEST(ue8m0)
{
    /* doc: ue8m0 */
    CHECK_INT(tgl_ue8m0_from_f32(1.0f), 127);
    CHECK_INT(tgl_ue8m0_from_f32(1.0000001f), 128);  /* up, not to the nearest */
    CHECK_INT(tgl_ue8m0_from_f32(1e-4f / 448), 105); /* 2^-22: an e4m3 block of zeros */
    CHECK(tgl_ue8m0_inverse_to_f32(105) == 0x1p22f);
    CHECK_INT(tgl_ue8m0x4_pack(127, 128, 105, 0), 0x0069807F);
    CHECK_INT(tgl_ue8m0x4_get(0x0069807F, 2), 105);
    /* end */
}

TEST(tf32)
{
    /* doc: tf32 */
    const float x = tgl_tf32_from_f32(0.7f); /* 0x3F333333 becomes 0x3F334000 = 0.7001953125 */
    const float high = tgl_bf16_to_f32(tgl_bf16_from_f32(x)), low = x - high;
    CHECK(high == 0.69921875f && low == 0.0009765625f); /* both are bf16 numbers, and the sum is x */
    /* end */
    CHECK_INT(tgl_f32_to_bits(x), 0x3F334000);
    CHECK(tgl_bf16_to_f32(tgl_bf16_from_f32(low)) == low && high + low == x && x == 0.7001953125f);
}

/* doc: loop */
static void encode_row(const float *restrict x, float inverse, uint8_t *restrict codes, int64_t n)
{
    for (int64_t i = 0; i < n; i++) codes[i] = tgl_e4m3_from_f32(x[i] * inverse);
}
/* end */

TEST(loop)
{
    const float row[5] = { 448, -224, 1, 0, -0.0f };
    const uint8_t want[5] = { 0x76, 0xEE, 0x30, 0x00, 0x80 };
    uint8_t codes[5];
    encode_row(row, 0.5f, codes, 5);
    for (int i = 0; i < 5; i++) CHECK_INT(codes[i], want[i]);
}
