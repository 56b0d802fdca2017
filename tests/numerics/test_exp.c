/* SPDX-License-Identifier: MIT */
#include "numerics/exp.h"

#include <math.h>

#include "test.h"
#include "ulp.h"

static void check_exp(uint32_t bits)
{
    const float x = tgl_f32_from_bits(bits), seen = tgl_exp(x);
    if (isnan(x)) {
        CHECK_THAT(isnan(seen), "exp(%08x) is %a, want NaN", (unsigned)bits, (double)seen);
        return;
    }
    const double want = exp((double)x);
    if (isinf((float)want)) CHECK_THAT(seen == INFINITY, "exp(%a) is %a, want inf", (double)x, (double)seen);
    else
        CHECK_THAT(error_in_ulp(seen, want) < 1, "exp(%a) is %a, want %a: off by %g", (double)x, (double)seen, want,
                   error_in_ulp(seen, want));
    if (fabsf(x) <= TGL_EXP_SMALL)
        CHECK_THAT(tgl_f32_to_bits(tgl_exp_small(x)) == tgl_f32_to_bits(seen), "exp_small(%a) is %a, want %a",
                   (double)x, (double)tgl_exp_small(x), (double)seen);
}

TEST(exp_special_values)
{
    CHECK(tgl_exp(0.0f) == 1 && tgl_exp(-0.0f) == 1);
    CHECK(tgl_exp(INFINITY) == INFINITY);
    CHECK_INT(tgl_f32_to_bits(tgl_exp(-INFINITY)), 0);
    CHECK_INT(tgl_f32_to_bits(tgl_exp(-200)), 0);
    CHECK(tgl_exp(0x1.62e42ep6f) < INFINITY); /* the last one that does not overflow */
    CHECK(tgl_exp(0x1.62e430p6f) == INFINITY);
    CHECK_INT(tgl_f32_to_bits(tgl_exp(-0x1.9d1d9ep6f)), 1); /* 2^-149, the smallest number */
    CHECK_INT(tgl_f32_to_bits(tgl_exp(-104)), 0);
}

TEST(exp_sampled)
{
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 2039) check_exp((uint32_t)bits);
}

TEST(exp_all_floats)
{
    if (!test_slow()) SKIP("2^32 floats are in the slow set");
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits++) check_exp((uint32_t)bits);
}
