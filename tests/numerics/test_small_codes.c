/* SPDX-License-Identifier: MIT
 * The conversions that leave out what a cast's products cannot be, against the full ones. */
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e5m6.h"
#include "test.h"

static void check_float(uint32_t bits)
{
    const float value = tgl_f32_from_bits(bits), magnitude = tgl_f32_from_bits(bits & 0x7FFFFFFF);
    if (magnitude < 464)
        CHECK_THAT(tgl_e4m3_from_small_f32(value) == tgl_e4m3_from_f32(value), "e4m3 of %a", (double)value);
    if (magnitude < 7)
        CHECK_THAT(tgl_e2m1_from_small_f32(value) == tgl_e2m1_from_f32(value), "e2m1 of %a", (double)value);
    if (magnitude < 65536)
        CHECK_THAT(tgl_e5m6_from_small_f32(value) == tgl_e5m6_from_f32(value), "e5m6 of %a", (double)value);
}

TEST(small_codes_sampled)
{
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 997) check_float((uint32_t)bits);
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 1 << 16) /* ties, and beside them */
        for (uint64_t near = bits; near < bits + 3; near++) check_float((uint32_t)(near - (bits > 0)));
}

TEST(small_codes_all_floats)
{
    if (!test_slow()) SKIP("2^32 floats are in the slow set");
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits++) check_float((uint32_t)bits);
}
