/* SPDX-License-Identifier: MIT */
#include "numerics/e4m3.h"

#include "oracle.h"

TESTS_OF_FORMAT(e4m3, uint8_t, TGL_E4M3_MAX, .mantissa_bits = 3, .bias = 7, .num_finite = 0x7F, .sign = 0x80,
                .nan = 0x7F, .saturates = true)

/* The ends of the range, and ties, by hand. */
TEST(e4m3_examples)
{
    const struct {
        float value;
        uint8_t code;
    } examples[] = {
        { 448.0f, 0x7E },   { 464.0f, 0x7E },  { 1e30f, 0x7E },     { INFINITY, 0x7E },   { -INFINITY, 0xFE },
        { NAN, 0x7F },      { -NAN, 0x7F },    { 0.0f, 0x00 },      { -0.0f, 0x80 },      { -1e-30f, 0x80 },
        { 1.0f, 0x38 },     { 1.0625f, 0x38 }, { 1.1875f, 0x3A },   { 0x1p-9f, 0x01 },    { 0x1p-10f, 0x00 },
        { 0x3p-10f, 0x02 }, { 0x1p-6f, 0x08 }, { 0x7.8p-9f, 0x08 }, { 0x1.8p-10f, 0x01 },
    };
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        CHECK_THAT(tgl_e4m3_from_f32(examples[i].value) == examples[i].code, "example %zu is 0x%02X", i,
                   (unsigned)tgl_e4m3_from_f32(examples[i].value));
}
