/* SPDX-License-Identifier: MIT */
#include "numerics/ue8m0.h"

#include "oracle.h"

static uint32_t encode(float value) { return tgl_ue8m0_from_f32(value); }

/* The smallest power of two from 2^-126 to 2^127 that is not below, by trying them in turn; else the last. */
static uint32_t want(const void *context, float value)
{
    for (int exponent = -126; exponent < 127; exponent++)
        if (ldexp(1, exponent) >= fabs((double)value)) return (uint32_t)(exponent + 127);
    return 254; /* NaN is not below anything, so it ends here too */
}

TEST(ue8m0_to_f32_all_codes)
{
    for (int code = 0; code < 256; code++) {
        const double value = code == 0 ? 0 : code == 255 ? INFINITY : ldexp(1, code - 127);
        const float seen = tgl_ue8m0_to_f32((uint8_t)code);
        CHECK_THAT((double)seen == value && !signbit(seen), "code %d is %a", code, (double)seen);
        CHECK_INT(tgl_ue8m0_from_f32(seen), code < 1 ? 1 : code > 254 ? 254 : code);
        if (code < 1 || code > 254) continue;
        const float inverse = tgl_ue8m0_inverse_to_f32((uint8_t)code);
        CHECK_THAT((double)inverse == (code == 254 ? 0 : 1 / value), "inverse of code %d is %a", code, (double)inverse);
    }
}

TEST(ue8m0_from_f32_sampled)
{
    for (int exponent = -149; exponent < 128; exponent++)
        check_around("tgl_ue8m0_from_f32", encode, want, NULL, ldexpf(1, exponent));
    test_random random = test_seed("ue8m0_from_f32_sampled");
    for (int i = 0; i < 200000; i++)
        check_encoding("tgl_ue8m0_from_f32", encode, want, NULL, (uint32_t)test_bits(&random));
    CHECK_INT(tgl_ue8m0_from_f32(0.0f), 1);
    CHECK_INT(tgl_ue8m0_from_f32(INFINITY), 254);
    CHECK_INT(tgl_ue8m0_from_f32(NAN), 254);
    CHECK_INT(tgl_ue8m0_from_f32(float_of(0x346FACAD)), 105); /* 1e-4 / 448: the smallest scale of e4m3 */
}

/* Code E takes the floats above 2^(E - 128) up to 2^(E - 127); the sign is not looked at. */
TEST(ue8m0_from_f32_all_floats)
{
    if (!test_slow()) SKIP("2^32 floats are in the slow set");
    uint32_t begin = 0;
    for (uint32_t code = 1; code <= 254; code++) {
        const uint32_t end = code < 254 ? bits_of(ldexpf(1, (int)code - 127)) + 1 : 0x80000000;
        check_range("tgl_ue8m0_from_f32", encode, begin, end, code, code);
        begin = end;
    }
}

TEST(ue8m0x4_order)
{
    const uint8_t codes[4] = { 0x69, 0x01, 0xFE, 0x7F };
    const uint32_t word = tgl_ue8m0x4_pack(codes[0], codes[1], codes[2], codes[3]);
    CHECK_INT(word, 0x7FFE0169);
    for (int i = 0; i < 4; i++) CHECK_INT(tgl_ue8m0x4_get(word, i), codes[i]);
}
