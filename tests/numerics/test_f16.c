/* SPDX-License-Identifier: MIT */
#include "numerics/f16.h"

#include "oracle.h"

TESTS_OF_FORMAT(f16, uint16_t, TGL_F16_MAX, .mantissa_bits = 10, .bias = 15, .num_finite = 0x7C00, .sign = 0x8000,
                .nan = 0x7FFF, .has_infinity = true)

/* ---- toward zero: the largest value that is not above the magnitude ---- */

static uint32_t encode_rz(float value) { return tgl_f16_from_f32_rz(value); }

static uint32_t want_rz(const void *context, float value)
{
    const oracle *o = context;
    if (isnan(value)) return o->nan;
    const double magnitude = fabs((double)value);
    uint32_t code = oracle_nearest(o, magnitude);
    if (code == o->num_finite && !isinf(value)) code--; /* what is finite stays finite */
    if (code < o->num_finite && o->values[code] > magnitude) code--;
    return code | (signbit(value) ? o->sign : 0);
}

TEST(f16_from_f32_rz_sampled)
{
    const oracle *o = format();
    for (uint32_t code = 0; code < o->num_finite; code++) {
        check_around("tgl_f16_from_f32_rz", encode_rz, want_rz, o, (float)o->values[code]);
        check_around("tgl_f16_from_f32_rz", encode_rz, want_rz, o, (float)oracle_midpoint(o, code));
        CHECK_INT(tgl_f16_from_f32_rz((float)o->values[code]), code);
    }
    check_everywhere("tgl_f16_from_f32_rz", encode_rz, want_rz, o);
    CHECK_INT(tgl_f16_from_f32_rz(65535.99f), 0x7BFF);
    CHECK_INT(tgl_f16_from_f32_rz(-1e38f), 0xFBFF);
    CHECK_INT(tgl_f16_from_f32_rz(-INFINITY), 0xFC00);
    CHECK_INT(tgl_f16_from_f32_rz(-0x1.fffffep-25f), 0x8000);
}

/* Toward zero a code takes the floats from its own value up to the next one. */
TEST(f16_from_f32_rz_all_floats)
{
    if (!test_slow()) SKIP("2^32 floats are in the slow set");
    const oracle *o = format();
    const char *name = "tgl_f16_from_f32_rz";
    for (uint32_t code = 0; code < o->num_finite; code++) {
        const uint32_t begin = bits_of((float)o->values[code]);
        const uint32_t end = code < o->num_finite - 1 ? bits_of((float)o->values[code + 1]) : bits_of(INFINITY);
        check_range(name, encode_rz, begin, end, code, code | o->sign);
    }
    check_range(name, encode_rz, 0x7F800000, 0x7F800001, 0x7C00, 0xFC00);
    check_range(name, encode_rz, 0x7F800001, 0x80000000, o->nan, o->nan);
}

/* ---- against the compiler's own type, where it has one ---- */

#ifdef __FLT16_MANT_DIG__
static _Float16 compilers_f16(uint32_t code)
{
    const uint16_t bits = (uint16_t)code;
    _Float16 value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t compilers_code(const void *context, float value)
{
    if (isnan(value)) return 0x7FFF; /* it keeps sign and payload; ours are tested above */
    const _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

TEST(f16_against_the_compiler)
{
    for (uint32_t code = 0; code < 0x10000; code++) {
        const float seen = tgl_f16_to_f32((uint16_t)code), want = (float)compilers_f16(code);
        CHECK_THAT(isnan(want) ? isnan(seen) : bits_of(seen) == bits_of(want), "code %04" PRIX32, code);
    }
    check_everywhere("f16_against_the_compiler", encode, compilers_code, NULL);
}
#else
TEST(f16_against_the_compiler) { SKIP("this compiler has no _Float16"); }
#endif
