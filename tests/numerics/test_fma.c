/* SPDX-License-Identifier: MIT */
#include "numerics/fma.h"

#include "test.h"

static uint32_t random_bits(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 16);
}

/* Random sign and mantissa, of which `mantissa` lets bits through; an exponent field in a range. */
static float random_float(uint64_t *state, uint32_t mantissa, uint32_t low, uint32_t high)
{
    const uint32_t bits = random_bits(state), exponent = low + random_bits(state) % (high - low + 1);
    return tgl_f32_from_bits((bits & (0x80000000 | mantissa)) | exponent << 23);
}

static void check_fma(float a, float b, float c)
{
    const float seen = tgl_fma_in_double(a, b, c), want = fmaf(a, b, c);
    if (isnan(seen) && isnan(want)) return;
    CHECK_THAT(tgl_f32_to_bits(seen) == tgl_f32_to_bits(want), "fma(%a, %a, %a) is %a, want %a", (double)a, (double)b,
               (double)c, (double)seen, (double)want);
}

/* As the C library has it. Few mantissa bits make ties, near exponents cancellation, low ones subnormals. */
TEST(fma_as_fmaf)
{
    uint64_t state = 88172645463325252u;
    const int count = test_slow() ? 100000000 : 1000000;
    for (int i = 0; i < count; i++) {
        const float any = tgl_f32_from_bits(random_bits(&state));
        check_fma(any, tgl_f32_from_bits(random_bits(&state)), tgl_f32_from_bits(random_bits(&state)));
        check_fma(random_float(&state, 0x7FFFFF, 120, 135), random_float(&state, 0x7FFFFF, 110, 139), 1);
        check_fma(random_float(&state, 0x700000, 100, 149), random_float(&state, 0x7C0000, 100, 149),
                  random_float(&state, 0x7F0001, 60, 189));
        check_fma(random_float(&state, 0x7FFFFF, 0, 1), random_float(&state, 0x7FFFFF, 60, 159),
                  random_float(&state, 0x7FFFFF, 0, 3));
    }
}

/* 1 + 2^-24 is a tie between floats, 2^-60 decides it, and double has no room for both. */
TEST(fma_where_rounding_twice_is_wrong)
{
    CHECK(tgl_fma_in_double(0x1.000002p0f, 0x1.000002p0f, -1) == 0x1.000001p-22f);
    const float half_step = 0x1p-24f, more = 0x1.000002p0f;
    CHECK(tgl_fma_in_double(half_step, more, 1) == 0x1.000002p0f);
    check_fma(0x1p-12f, 0x1p-12f, 1);
    check_fma(0x1.000002p-12f, 0x1.000002p-12f, 1);
    check_fma(0x1.fffffep-13f, 0x1.fffffep-13f, 1);
}

TEST(fma_of_infinities)
{
    check_fma(INFINITY, 1, -INFINITY);
    check_fma(INFINITY, 0, 1);
    check_fma(0x1p100f, 0x1p100f, 1);
    check_fma(0x1p100f, 0x1p100f, -INFINITY);
    check_fma(-0.0f, 1, 0);
    check_fma(-0.0f, 1, -0.0f);
    check_fma(1, 1, -1);
    check_fma(NAN, 1, 1);
}
