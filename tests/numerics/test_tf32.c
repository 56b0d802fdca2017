/* SPDX-License-Identifier: MIT */
#include "numerics/tf32.h"
#include "numerics/bf16.h"

#include "oracle.h"

/* As a code: the upper 19 bits. The lower ones must be zero; if not, the result is no code at all. */
static uint32_t tgl_tf32_code_from_f32(float value)
{
    const uint32_t bits = bits_of(tgl_tf32_from_f32(value));
    return bits >> 13 | (bits & 0x1FFF) << 19;
}
static float tgl_tf32_code_to_f32(uint32_t code) { return float_of(code << 13); }
TESTS_OF_FORMAT(tf32_code, uint32_t, 0x1.ffcp127, .mantissa_bits = 10, .bias = 127, .num_finite = 255 << 10,
                .sign = 1 << 18, .nan = 0x3FFFF, .keeps_nan = true, .has_infinity = true, .ties_away = true)

/* What an integer add alone would lose: infinity, NaN of any payload. */
TEST(tf32_examples)
{
    // clang-format off: a row for each rule
    const struct { uint32_t bits, want; } examples[] = {
        { 0x3DCCCCCD, 0x3DCCC000 },     /* 0.1 */
        { 0x3EAAAAAB, 0x3EAAA000 },     /* 1/3 */
        { 0x3F333333, 0x3F334000 },     /* 0.7 rounds up */
        { 0x3F801000, 0x3F802000 },     /* a tie, away from zero */
        { 0xBF801000, 0xBF802000 },
        { 0x3F800FFF, 0x3F800000 },
        { 0x7F7FEFFF, 0x7F7FE000 },
        { 0x7F7FF000, 0x7F800000 },     /* past the largest */
        { 0x7F800000, 0x7F800000 },
        { 0xFF800000, 0xFF800000 },
        { 0x7FFFFFFF, 0x7FFFE000 },
        { 0xFFFFF000, 0x7FFFE000 },
        { 0x7F800001, 0x7FFFE000 },
        { 0x80000FFF, 0x80000000 },
    };
    // clang-format on
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const uint32_t seen = bits_of(tgl_tf32_from_f32(float_of(examples[i].bits)));
        CHECK_THAT(seen == examples[i].want, "0x%08" PRIX32 " becomes 0x%08" PRIX32 ", want 0x%08" PRIX32,
                   examples[i].bits, seen, examples[i].want);
    }
}

/* Two bf16 hold any tf32 from 2^-123 up to where bf16 ends, so kernels may multiply the halves. */
TEST(tf32_is_two_bf16)
{
    const oracle *o = format();
    uint32_t num_split = 0;
    for (uint32_t code = 4 << 10; code < o->num_finite; code++) {
        const float value = (float)o->values[code], high = tgl_bf16_to_f32(tgl_bf16_from_f32(value));
        if (isinf(high)) break; /* from 3.39e38 on */
        const float low = value - high;
        CHECK_THAT(tgl_bf16_to_f32(tgl_bf16_from_f32(low)) == low && (double)high + (double)low == (double)value,
                   "%a is not %a + %a", (double)value, (double)high, (double)low);
        num_split++;
    }
    CHECK_INT(num_split, (251 << 10) - 4);
}
