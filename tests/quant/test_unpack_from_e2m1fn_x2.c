/* SPDX-License-Identifier: MIT
 * tgl_quant_unpack_from_e2m1fn_x2, on every device of the tests. */
#include "support.h"

TESTS_OF_TABLE("quant_unpack_from_e2m1fn_x2")

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        /* doc: unpack_from_e2m1fn_x2 */
        const uint8_t x[] = { 0xe4, 0x72 };
        const float out[] = { 2, -4, 1, 6 };
        /* end */
        CALL(quant_unpack_from_e2m1fn_x2, b, NULL, IN(TGL_I8, x, 2), OUT(TGL_F32, out, 4));
    }
}

static float value_of(int code) /* of e2m1 */
{
    const float magnitudes[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    return code & 8 ? -magnitudes[code & 7] : magnitudes[code];
}

TEST(every_byte)
{
    const tgl_dtype dtypes[] = { TGL_F32, TGL_BF16, TGL_F16, TGL_E4M3 };
    uint8_t x[256];
    for (int i = 0; i < 256; i++) x[i] = (uint8_t)i;
    FOR_BACKENDS(b)
        for (int d = 0; d < 4; d++) {
            const size_t element = (size_t)tgl_dtype_bits(tgl_dtype_to_dlpack(dtypes[d])) / 8;
            unsigned char want[512 * 4];
            for (int i = 0; i < 512; i++)
                case_encode(dtypes[d], value_of(x[i / 2] >> i % 2 * 4 & 15), want + (size_t)i * element);
            CALL(quant_unpack_from_e2m1fn_x2, b, NULL, IN(TGL_E2M1X2, x, 16, 16), OUT(dtypes[d], want, 16, 32));
        }
}

TEST(every_byte_of_many) /* each in both halves of 32 bytes: the CPU looks one half up in a table */
{
    enum { COUNT = 4096 };
    static uint8_t x[COUNT];
    static float want[2 * COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = (uint8_t)(i + i / 256 * 16);
    for (int i = 0; i < 2 * COUNT; i++) want[i] = value_of(x[i / 2] >> i % 2 * 4 & 15);
    FOR_BACKENDS(b) CALL(quant_unpack_from_e2m1fn_x2, b, NULL, IN(TGL_E2M1X2, x, COUNT), OUT(TGL_F32, want, 2 * COUNT));
}

TEST(empty)
{
    check_empty(CALL_OF(quant_unpack_from_e2m1fn_x2, "num_cols=0 ...=1 x=u8 out=bf16"));
    tensor x, out;
    make(&x, NULL, cpu, TGL_U8, 3, SHAPE(3, 0, 5));
    make(&out, NULL, cpu, TGL_BF16, 3, SHAPE(3, 0, 10));
    CHECK_OK(tgl_quant_unpack_from_e2m1fn_x2(&x.t, &out.t, NULL));
}

#define GOOD_CALL CALL_OF(quant_unpack_from_e2m1fn_x2, "num_cols=32 ...=1")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_unpack_from_e2m1fn_x2, "num_cols=32 ...=2 x=u8 out=bf16"));
    CHECK_ERROR(x[0].ndim = 9, "x: rank is 9, want 1..8");
    CHECK_ERROR(x[1].ndim = 1, "out: rank is 1, want 2");
    CHECK_ERROR(x[1].shape[1] = x[1].strides[0] = 16, "out: shape is [2, 16], want [2, 32]");
    CHECK_ERROR(x[1].dtype = tgl_dtype_to_dlpack(TGL_F64), "out: dtype is f64, want f16, bf16, f32 or e4m3");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
