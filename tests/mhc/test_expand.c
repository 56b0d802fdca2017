/* SPDX-License-Identifier: MIT
 * tgl_mhc_expand_fwd and _bwd, on every device of the tests. */
#include "mhc_support.h"

TESTS_OF_TABLES("mhc_expand")

TEST(all_codes) /* of every code */
{
    enum { COUNT = 65536 };
    static uint16_t codes[COUNT], want[2 * COUNT];
    for (int i = 0; i < COUNT; i++) codes[i] = want[i] = want[COUNT + i] = (uint16_t)i;
    FOR_BACKENDS(b)
        for (int is_f16 = 0; is_f16 < 2; is_f16++) {
            const tgl_dtype dtype = is_f16 ? TGL_F16 : TGL_BF16;
            CALL(mhc_expand_fwd, b, NULL, IN(dtype, codes, 1, COUNT), OUT(dtype, want, 1, 2, COUNT));
        }
}

TEST(bits_of_floats) /* signalling NaNs, their payloads, zeros of both signs, subnormals */
{
    const uint32_t x[] = { 0x7f800001, 0xffc12345, 0x80000000, 0, 1, 0x807fffff, 0x7f800000 };
    enum { COUNT = sizeof x / sizeof *x };
    uint32_t want[3 * COUNT];
    for (int i = 0; i < 3 * COUNT; i++) want[i] = x[i % COUNT];
    FOR_BACKENDS(b) CALL(mhc_expand_fwd, b, NULL, F32(x, 1, COUNT), OUT(TGL_F32, want, 1, 3, COUNT));
}

TEST(worked_example) /* the first is a tie, to even */
{
    const float grad[] = { 1, 2, 3, 4, /**/ 0.00390625f, -0.25f, 0.125f, 0.0234375f };
    const float want[] = { 1, 1.75f, 3.125f, 4.03125f };
    FOR_BACKENDS(b) CALL(mhc_expand_bwd, b, NULL, BF16(grad, 1, 2, 4), BF16_IS(want, 1, 4));
}

TEST(rounded_once) /* and in order: what cancels leaves the rest */
{
    const float grad[] = { 1, /**/ 0x1p-9f, /**/ 0x1p-9f, /**/ -1, /**/ 0x1p-12f };
    const float want[] = { 0x1p-8f + 0x1p-12f };
    FOR_BACKENDS(b) CALL(mhc_expand_bwd, b, NULL, BF16(grad, 1, 5, 1), BF16_IS(want, 1, 1));
}

TEST(sums_of_floats) /* in order from +0: 1 + 2^-24 is 1, twice; the one NaN; +0 - 0 is +0 */
{
    static const uint32_t grad[] = { 0x3f800000,      0xff800001, 0x80000000, /**/ 0x33800000, 0, 0x80000000,
                                     /**/ 0x33800000, 0,          0x80000000 };
    static const uint32_t want[] = { 0x3f800000, 0x7fffffff, 0 };
    FOR_BACKENDS(b) CALL(mhc_expand_bwd, b, NULL, F32(grad, 1, 3, 3), OUT(TGL_F32, want, 1, 3));
}

TEST(sums_of_f16)
{
    static const uint16_t grad[] = { 0x7bff, 0x3c00, 0x7bff, 0x7c01, 0x8000,   /* 65504  1      65504  NaN  -0 */
                                     0x7bff, 0x0c00, 0x4c00, 0x0000, 0x8000,   /* 65504  2^-12  16     0    -0 */
                                     0xfbff, 0xbc00, 0x0000, 0x3c00, 0x8000 }; /* -65504 -1     0      1    -0 */
    static const uint16_t want[] = { 0x7bff, 0x0c00, 0x7c00, 0x7fff, 0 };      /* 65520 rounds to infinity */
    FOR_BACKENDS(b) CALL(mhc_expand_bwd, b, NULL, IN(TGL_F16, grad, 1, 3, 5), OUT(TGL_F16, want, 1, 5));
}

TEST(graph)
{
    check_replayed("mhc_expand_fwd", "num_tokens=3 hidden=264", 1);
    check_replayed("mhc_expand_bwd", "num_tokens=3 hidden=264", 1);
}

#define SAMPLE "num_tokens=3 hidden=5 num_streams=2"
#define GOOD_CALL CALL_OF(mhc_expand_fwd, SAMPLE)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F64), "x: dtype is f64, want f16, bf16 or f32");
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "out: dtype is bf16, want f16 as x");
    CHECK_ERROR(x[1].strides[1] = 4, "out: strides are [10, 4, 1], want 1 in the last dimension, and rows that do not "
                                     "overlap");
}

TEST(empty)
{
    check_empty(CALL_OF(mhc_expand_fwd, "num_tokens=0 hidden=8 num_streams=4"));
    check_empty(CALL_OF(mhc_expand_bwd, "num_tokens=3 hidden=0 num_streams=4"));
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }
#undef GOOD_CALL

#define GOOD_CALL CALL_OF(mhc_expand_bwd, SAMPLE)
TEST(errors_bwd)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].shape[1] = 4; x[1].strides = NULL, "grad_x: shape is [3, 4], want [3, 5]");
}
TEST(no_driver_bwd) { check_no_driver(GOOD_CALL); }
