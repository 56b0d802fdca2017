/* SPDX-License-Identifier: MIT */
#include "numerics/e2m1.h"

#include "oracle.h"

TESTS_OF_FORMAT(e2m1, uint8_t, TGL_E2M1_MAX, .mantissa_bits = 1, .bias = 1, .num_finite = 8, .sign = 8, .nan = 7,
                .saturates = true)

TEST(e2m1_values_and_ties)
{
    const float values[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    const struct {
        float tie;
        uint8_t code;
    } ties[7] = {
        { 0.25f, 0 }, { 0.75f, 2 }, { 1.25f, 2 }, { 1.75f, 4 }, { 2.5f, 4 }, { 3.5f, 6 }, { 5, 6 },
    };
    for (uint8_t code = 0; code < 8; code++) {
        CHECK(tgl_e2m1_to_f32(code) == values[code]);
        CHECK(tgl_e2m1_to_f32(code | 8) == -values[code]);
        CHECK_INT(tgl_e2m1_to_bf16(code), bits_of(values[code]) >> 16);
        CHECK_INT(tgl_e2m1_to_bf16(code | 0xF8), bits_of(-values[code]) >> 16);
    }
    for (int i = 0; i < 7; i++) {
        CHECK_INT(tgl_e2m1_from_f32(ties[i].tie), ties[i].code);
        CHECK_INT(tgl_e2m1_from_f32(-ties[i].tie), ties[i].code | 8);
    }
    CHECK_INT(tgl_e2m1_from_f32(NAN), 7);
    CHECK_INT(tgl_e2m1_from_f32(-NAN), 7);
    CHECK_INT(tgl_e2m1_from_f32(-INFINITY), 15);
    CHECK_INT(tgl_e2m1_from_f32(-0.0f), 8);
}

/* All bytes: the even element is the low nibble, and the high one does not disturb it. */
TEST(e2m1x2_pairs)
{
    for (int byte = 0; byte < 256; byte++) {
        const float even = tgl_e2m1x2_even_to_f32((uint8_t)byte), odd = tgl_e2m1x2_odd_to_f32((uint8_t)byte);
        CHECK_INT(bits_of(even), bits_of(tgl_e2m1_to_f32((uint8_t)(byte % 16))));
        CHECK_INT(bits_of(odd), bits_of(tgl_e2m1_to_f32((uint8_t)(byte / 16))));
        CHECK_INT(tgl_e2m1x2_from_f32(even, odd), byte);
    }
    CHECK(tgl_e2m1x2_even_to_f32(0xE4) == 2.0f && tgl_e2m1x2_odd_to_f32(0xE4) == -4.0f);
    CHECK(tgl_e2m1x2_even_to_f32(0x72) == 1.0f && tgl_e2m1x2_odd_to_f32(0x72) == 6.0f);
}
