/* SPDX-License-Identifier: MIT */
#include "core/math.h"

#include "test.h"

__extension__ typedef __int128 wide;

/* The least q with q * b >= a, in 128 bits, where nothing overflows. */
static bool is_ceil_div(int64_t q, int64_t a, int64_t b) { return (wide)q * b >= a && ((wide)q - 1) * b < a; }

TEST(ceil_div)
{
    static const int64_t near[] = { 0, 1, 31, 32, 33, 4096, (int64_t)1 << 31, INT64_MAX / 2, INT64_MAX - 3 };
    for (size_t i = 0; i < sizeof near / sizeof *near; i++)
        for (size_t j = 0; j < sizeof near / sizeof *near; j++)
            for (int64_t a = near[i]; a - near[i] < 4 && a >= 0; a = a < INT64_MAX ? a + 1 : -1)
                for (int64_t b = near[j]; b - near[j] < 4 && b >= 0; b = b < INT64_MAX ? b + 1 : -1)
                    if (b > 0)
                        CHECK_THAT(is_ceil_div(tgl_ceil_div(a, b), a, b), "%lld / %lld gives %lld", (long long)a,
                                   (long long)b, (long long)tgl_ceil_div(a, b));
    CHECK_INT(tgl_ceil_div(INT64_MAX, 2), (int64_t)1 << 62);
}

TEST(saturating_product)
{
    CHECK_INT(tgl_saturating_product(0, INT64_MAX), 0);
    CHECK_INT(tgl_saturating_product(3, 5), 15);
    CHECK_INT(tgl_saturating_product((int64_t)1 << 31, (int64_t)1 << 31), (int64_t)1 << 62);
    CHECK_INT(tgl_saturating_product((int64_t)1 << 32, (int64_t)1 << 31), INT64_MAX);
    CHECK_INT(tgl_saturating_product(INT64_MAX, INT64_MAX), INT64_MAX);
}
