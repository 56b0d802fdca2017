/* SPDX-License-Identifier: MIT */
#include "numerics/bf16.h"

#include "oracle.h"

static uint32_t encode(float value) { return tgl_bf16_from_f32(value); }
static float decode(uint32_t code) { return tgl_bf16_to_f32((uint16_t)code); }

static oracle make_bf16(void)
{
    return oracle_make((oracle){ .mantissa_bits = 7, .bias = 127, .num_finite = 0x7F80, .sign = 0x8000,
                                  .nan = 0x7FFF, .keeps_nan = true, .has_infinity = true });
}

TEST(bf16_to_f32_all_codes)
{
    const oracle o = make_bf16();
    check_codes(&o, "tgl_bf16_to_f32", decode, encode);
    CHECK((double)TGL_BF16_MAX == o.values[o.num_finite - 1]);
    free(o.values);
}

TEST(bf16_from_f32_sampled)
{
    const oracle o = make_bf16();
    check_sampled(&o, "tgl_bf16_from_f32", encode);
    free(o.values);
}

TEST(bf16_from_f32_all_floats)
{
    if (!test_slow()) SKIP("2^32 floats are in the slow set");
    const oracle o = make_bf16();
    check_all(&o, "tgl_bf16_from_f32", encode);
    free(o.values);
}
