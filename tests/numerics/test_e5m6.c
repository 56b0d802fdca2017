/* SPDX-License-Identifier: MIT */
#include "numerics/e5m6.h"

#include "oracle.h"

FORMAT(e5m6, uint16_t, TGL_E5M6_MAX, .mantissa_bits = 6, .bias = 15, .num_finite = 0x7C0, .sign = 0x800, .nan = 0x7FF,
       .has_infinity = true)

/* Nearest even where the format is normal. Elsewhere the quirk, in real numbers: with magnitude = s * 2^q,
 * where s is a whole number below 2^24 and q the exponent of a float's last bit, the code is the last one not
 * above the magnitude, plus one if the rest of s modulo 2^17 is above 2^16, or is 2^16 and the code is odd. */
static uint32_t want(const void *context, float value)
{
    const oracle *o = context;
    if (isnan(value)) return o->nan;
    const uint32_t sign = signbit(value) ? o->sign : 0;
    const double magnitude = fabs((double)value);
    if (isinf(value) || (magnitude >= ldexp(1, -14) && magnitude < 65536)) return oracle_nearest(o, magnitude) | sign;
    int exponent = 0;
    (void)frexp(magnitude, &exponent); /* magnitude = [0.5, 1) * 2^exponent */
    const int q = exponent - 24 < -149 ? -149 : exponent - 24;
    const double s = ldexp(magnitude, -q), rest = s - ldexp(floor(ldexp(s, -17)), 17);
    double code = magnitude < 1 ? floor(ldexp(magnitude, 20)) : o->num_finite - 1;
    if (rest > 65536 || (rest == 65536 && fmod(code, 2) == 1)) code += 1;
    return (uint32_t)code | sign;
}

TEST(e5m6_from_f32_sampled)
{
    const oracle *o = format();
    for (uint32_t code = 0; code < o->num_finite; code++) {
        check_around("tgl_e5m6_from_f32", encode, want, o, (float)o->values[code]);
        check_around("tgl_e5m6_from_f32", encode, want, o, (float)oracle_midpoint(o, code));
    }
    /* below 2^-14: around every place where the low 17 bits pass half or wrap */
    for (uint32_t bits = 0; bits <= 0x38800000; bits += 0x10000)
        check_around("tgl_e5m6_from_f32", encode, want, o, float_of(bits));
    check_everywhere("tgl_e5m6_from_f32", encode, want, o);
}

/* Below 2^-14 each float by the oracle; from there to 65536 as in other formats; above, 2^16 floats that are
 * cut and 2^16 that go one up, in turn. */
TEST(e5m6_from_f32_all_floats)
{
    if (!test_slow()) SKIP("2^32 floats are in the slow set");
    const oracle *o = format();
    const char *name = "tgl_e5m6_from_f32";
    for (uint32_t bits = 0; bits < 0x38800000; bits++) {
        check_encoding(name, encode, want, o, bits);
        check_encoding(name, encode, want, o, bits | 0x80000000);
    }
    uint32_t begin = 0x38800000;
    for (uint32_t code = 0x40; code <= 0x7C0; code++) {
        uint32_t end = bits_of(65536);
        if (code < 0x7C0) end = bits_of((float)oracle_midpoint(o, code)) + oracle_tie_goes_down(o, code);
        check_range(name, encode, begin, end, code, code | o->sign);
        begin = end;
    }
    for (uint32_t bits = begin; bits < 0x7F800000; bits += 0x20000) {
        check_range(name, encode, bits, bits + 0x10000, 0x7BF, 0xFBF);
        check_range(name, encode, bits + 0x10000, bits + 0x20000, 0x7C0, 0xFC0);
    }
    check_range(name, encode, 0x7F800000, 0x7F800001, 0x7C0, 0xFC0);
    check_range(name, encode, 0x7F800001, 0x80000000, o->nan, o->nan);
}

TEST(e5m6_examples)
{
    const struct {
        float value;
        uint16_t code;
    } examples[] = {
        { 0x1.8p-20f, 0x001 },           /* cut */
        { float_of(0x3581FFFF), 0x002 }, /* 1.0156 * 2^-20: one too many */
        { float_of(0x21810001), 0x001 }, /* 8.7e-19 */
        { float_of(0x21810000), 0x000 },
        { 0x1p-20f, 0x001 },
        { 0x1p-14f, 0x040 },
        { 0x0.fcp-14f, 0x03F },
        { 65024.0f, 0x7BF },
        { -65024.0f, 0xFBF },
        { 65279.0f, 0x7BF },
        { 65280.0f, 0x7C0 },
        { 0.0f, 0x000 },
        { -0.0f, 0x800 },
        { 1.0f, 0x3C0 },
        { -INFINITY, 0xFC0 },
        { 0x1.02p0f, 0x3C0 },
        { 0x1.06p0f, 0x3C2 }, /* ties to even */
    };
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        CHECK_THAT(tgl_e5m6_from_f32(examples[i].value) == examples[i].code, "example %zu is 0x%03X", i,
                   (unsigned)tgl_e5m6_from_f32(examples[i].value));
    CHECK_INT(tgl_e5m6_from_f32(float_of(0x7FFFFFFF)), 0x7FF); /* the rest is above half, yet NaN stays */
    CHECK_INT(tgl_e5m6_from_f32(float_of(0xFFC00000)), 0x7FF);
}

/* Bit i of the group, from the highest of the first word on, is bit 11 - i % 12 of code i / 12. */
TEST(e5m6x8_order)
{
    test_random random = test_seed("e5m6x8_order");
    for (int round = 0; round < 10000; round++) {
        uint16_t codes[8], again[8];
        uint32_t words[3], want_words[3] = { 0 };
        for (int i = 0; i < 8; i++) /* first each bit alone, then random codes */
            codes[i] = (uint16_t)(round < 96 ? (round / 12 == i) << round % 12 : test_below(&random, 0x1000));
        for (int bit = 0; bit < 96; bit++)
            if (codes[bit / 12] >> (11 - bit % 12) & 1) want_words[bit / 32] += (uint32_t)1 << (31 - bit % 32);
        tgl_e5m6x8_pack(codes, words);
        tgl_e5m6x8_unpack(words, again);
        for (int i = 0; i < 3; i++) CHECK_INT(words[i], want_words[i]);
        for (int i = 0; i < 8; i++) CHECK_INT(again[i], codes[i]);
    }
}
