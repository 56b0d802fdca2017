/* SPDX-License-Identifier: MIT
 * tgl_engram_fused_weight, on every device of the tests: one product in f32. */
#include "gate_support.h"

TESTS_OF_TABLE("engram_fused_weight")

static void check_product(tgl_dtype dtype, const void *hidden, const void *embed, int64_t n, const uint32_t *want)
{
    FOR_BACKENDS(b) {
        tensor x, y, out;
        place(b, &x, dtype, 2, SHAPE(1, n), hidden);
        place(b, &y, dtype, 2, SHAPE(1, n), embed);
        place(b, &out, TGL_F32, 2, SHAPE(1, n), NULL);
        CHECK_OK(tgl_engram_fused_weight(&x.t, &y.t, &out.t, b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &x), discard(b, &y);
    }
}

TEST(worked_example)
{
    check_product(TGL_BF16, (uint16_t[]){ 0x3f81 }, (uint16_t[]){ 0xbfff }, 1, (uint32_t[]){ 0xc0007f00 });
}

TEST(special_values) /* subnormal results are kept; every NaN is the same */
{
    const uint16_t x[] = { 0x0080, 0x8001, 0x7f80, 0x7f80, 0x7fc1, 0xffff, 0x7f7f, 0x8000, 0x0001 };
    const uint16_t y[] = { 0x3f00, 0x3f80, 0x0000, 0xbf80, 0x3f80, 0x3f80, 0x7f7f, 0x3f80, 0x0001 };
    const uint32_t want[] = { 0x00400000, 0x80010000, 0x7fffffff, 0xff800000, 0x7fffffff,
                              0x7fffffff, 0x7f800000, 0x80000000, 0 };
    check_product(TGL_BF16, x, y, 9, want);
    check_product(TGL_F32, (float[]){ 1 + 0x1p-12f, 0x1p-100f }, (float[]){ 1 + 0x1p-12f, 0x1p-49f }, 2,
                  (uint32_t[]){ 0x3f801000, 1 }); /* 1 + 2^-11 + 2^-24: a tie, to even */
}

TEST(graph) { check_replayed("engram_fused_weight", "hidden=576", 1); }

OP(engram_fused_weight, t[0], t[1], t[2])
#define GOOD_CALL CALL_OF(engram_fused_weight, "num_streams=3 hidden=8")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "weight_hidden: dtype is f16, want bf16 or f32");
    CHECK_ERROR(x[2].shape[1] = 7; x[2].strides = NULL, "out: shape is [3, 7], want [3, 8]");
}

TEST(empty)
{
    check_empty(CALL_OF(engram_fused_weight, "num_streams=0 hidden=8"));
    check_empty(CALL_OF(engram_fused_weight, "num_streams=3 hidden=0"));
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
