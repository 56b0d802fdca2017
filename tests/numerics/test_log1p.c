/* SPDX-License-Identifier: MIT */
#include "numerics/log1p.h"

#include <math.h>

#include "test.h"
#include "ulp.h"

static const uint32_t LARGEST = 0x7E800000; /* 2^126 */

static void check_log1p(uint32_t bits)
{
    const float x = tgl_f32_from_bits(bits), seen = tgl_log1p(x);
    const double want = log1p((double)x);
    CHECK_THAT(error_in_ulp(seen, want) < 1, "log1p(%a) is %a, want %a: off by %g", (double)x, (double)seen, want,
               error_in_ulp(seen, want));
}

TEST(log1p_special_values)
{
    CHECK_INT(tgl_f32_to_bits(tgl_log1p(0.0f)), 0);
    CHECK_INT(tgl_f32_to_bits(tgl_log1p(0x1p-149f)), 1);
    CHECK(tgl_log1p(0x1p-30f) == 0x1p-30f);  /* 1 + x is 1, and all of x is what rounding lost */
    CHECK(tgl_log1p(1.0f) == 0x1.62e43p-1f); /* ln 2 */
    CHECK(isnan(tgl_log1p(NAN)) && isnan(tgl_log1p(-NAN)));
}

TEST(log1p_sampled)
{
    for (uint32_t bits = 0; bits <= LARGEST; bits += 1021) check_log1p(bits);
}

/* Where 1 + x crosses a power of two or 3/4 of one, the reduction changes. */
TEST(log1p_around_boundaries)
{
    for (int n = 0; n < 126; n++)
        for (int three_quarters = 0; three_quarters < 2; three_quarters++) {
            const double y = ldexp(three_quarters ? 1.5 : 1, n);
            const uint32_t bits = tgl_f32_to_bits((float)(y - 1));
            for (uint32_t i = 0; i < 64; i++)
                if (bits + i >= 32) check_log1p(bits + i - 32);
        }
}

TEST(log1p_all_floats)
{
    if (!test_slow()) SKIP("2^31 floats are in the slow set");
    for (uint32_t bits = 0; bits <= LARGEST; bits++) check_log1p(bits);
}
