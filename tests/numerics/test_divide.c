/* SPDX-License-Identifier: MIT
 * numerics/divide.h against the division of the language: divisors around every power of two and at random,
 * with dividends around multiples of them. */
#include "numerics/divide.h"

#include "test.h"

static void check_divisor(int64_t d, test_random *r)
{
    const tgl_divisor by = tgl_divisor_of(d);
    const int64_t last = TGL_DIVIDE_LIMIT - 1, multiple = last / d * d;
    const int64_t some = test_below(r, last / d + 1) * d;
    const int64_t dividends[] = {
        0,    1,        d - 1,        d,        d + 1,        2 * d - 1, 2 * d, some - 1,
        some, some + 1, multiple - 1, multiple, multiple + 1, last - 1,  last,  test_below(r, TGL_DIVIDE_LIMIT)
    };
    for (size_t i = 0; i < sizeof dividends / sizeof *dividends; i++) {
        const int64_t x = dividends[i];
        if (x < 0 || x > last) continue;
        const int64_t q = tgl_divide((uint32_t)x, by);
        if (q != x / d) CHECK_THAT(false, "%" PRId64 " / %" PRId64 " is %" PRId64, x, d, q);
    }
}

TEST(around_powers_of_two)
{
    test_random r = test_seed("divide powers");
    for (int l = 0; l <= 31; l++)
        for (int64_t d = ((int64_t)1 << l) - 40; d <= ((int64_t)1 << l) + 40; d++)
            if (d >= 1 && d <= TGL_DIVIDE_LIMIT) check_divisor(d, &r);
}

TEST(random_divisors)
{
    test_random r = test_seed("divide random");
    for (int i = 0; i < 200000; i++) {
        const int64_t d = 1 + (test_below(&r, TGL_DIVIDE_LIMIT) >> test_below(&r, 31));
        check_divisor(d, &r);
    }
}

TEST(divisors_beyond_every_dividend)
{
    const int64_t divisors[] = { TGL_DIVIDE_LIMIT, TGL_DIVIDE_LIMIT + 1, (int64_t)1 << 32, INT64_MAX };
    const uint32_t last = (uint32_t)(TGL_DIVIDE_LIMIT - 1);
    for (int i = 0; i < 4; i++) CHECK_INT(tgl_divide(last, tgl_divisor_of(divisors[i])), 0);
}
