/* SPDX-License-Identifier: MIT
 * tgl_rsqrt is the float nearest to 1 / sqrt(x). Whether r is it is decided by integers: the midpoints to its
 * neighbours, squared and times x, lie on different sides of 1. */
#include "numerics/rsqrt.h"

#include "test.h"

/* x = m 2^e with 2^23 <= m < 2^24, r = n 2^f alike. Is (n + shift / 2)^2 m above 2^(-2 f - e)? */
static int compare(uint64_t m, int e, uint64_t n, int f, int shift)
{
    const unsigned __int128 twice = 2 * n + (uint64_t)shift, product = twice * twice * m; /* below 2^75 */
    const int power = 2 - 2 * f - e;
    const unsigned __int128 want = (unsigned __int128)1 << power;
    return product > want ? 1 : product < want ? -1 : 0;
}

static void check_rsqrt(uint32_t bits)
{
    const uint32_t seen = tgl_f32_to_bits(tgl_rsqrt(tgl_f32_from_bits(bits)));
    const int e = (int)(bits >> 23) - 150, f = (int)(seen >> 23) - 150;
    const uint64_t m = (bits & 0x7fffff) | 0x800000, n = (seen & 0x7fffff) | 0x800000;
    CHECK_THAT(compare(m, e, n, f, 1) >= 0 && compare(m, e, n, f, -1) <= 0, "rsqrt(%08x) is %08x", (unsigned)bits,
               (unsigned)seen);
}

TEST(rsqrt_every_significand) /* of both parities of the exponent: others only scale the result */
{
    const uint32_t step = test_slow() ? 1 : 251;
    for (uint32_t bits = 0x3f800000; bits < 0x40800000; bits += step) check_rsqrt(bits);
}

TEST(rsqrt_special_values)
{
    CHECK(tgl_rsqrt(0.0f) == INFINITY && tgl_rsqrt(-0.0f) == -INFINITY);
    CHECK(tgl_rsqrt(INFINITY) == 0 && isnan(tgl_rsqrt(-1.0f)) && isnan(tgl_rsqrt(NAN)));
    CHECK(tgl_rsqrt(4.0f) == 0.5f && tgl_rsqrt(0x1p-148f) == 0x1p74f);
    CHECK(tgl_rsqrt(1e-20f) == 1e10f);
}
