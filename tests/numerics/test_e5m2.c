/* SPDX-License-Identifier: MIT */
#include "numerics/e5m2.h"

#include "oracle.h"

static uint32_t encode(float value) { return tgl_e5m2_from_f32(value); }
static float decode(uint32_t code) { return tgl_e5m2_to_f32((uint8_t)code); }

static oracle make_e5m2(void)
{
    return oracle_make((oracle){ .mantissa_bits = 2, .bias = 15, .num_finite = 0x7C, .sign = 0x80,
                                  .nan = 0x7F, .has_infinity = true, .saturates = true });
}

TEST(e5m2_to_f32_all_codes)
{
    const oracle o = make_e5m2();
    check_codes(&o, "tgl_e5m2_to_f32", decode, encode);
    CHECK((double)TGL_E5M2_MAX == o.values[o.num_finite - 1]);
    free(o.values);
}

TEST(e5m2_from_f32_sampled)
{
    const oracle o = make_e5m2();
    check_sampled(&o, "tgl_e5m2_from_f32", encode);
    free(o.values);
}

TEST(e5m2_from_f32_all_floats)
{
    if (!test_slow()) SKIP("2^32 floats are in the slow set");
    const oracle o = make_e5m2();
    check_all(&o, "tgl_e5m2_from_f32", encode);
    free(o.values);
}
