/* SPDX-License-Identifier: MIT
 * tgl_quant_unpack_from_e2m1fn_x2, on every device of the tests. */
#include "errors.h"
#include "support.h"

TESTS_OF_TABLE("quant_unpack_from_e2m1fn_x2")

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        /* doc: unpack_from_e2m1fn_x2 */
        const uint8_t x[] = { 0xe4, 0x72 };
        const float out[] = { 2, -4, 1, 6 };
        /* end */
        tensor in, seen;
        place(b, &in, TGL_I8, 1, SHAPE(2), x);
        place(b, &seen, TGL_F32, 1, SHAPE(4), NULL);
        CHECK_OK(tgl_quant_unpack_from_e2m1fn_x2(&in.t, &seen.t, b->stream));
        check_contents(b, &seen, out, "out");
        discard(b, &in);
    }
}

TEST(every_byte)
{
    const float magnitudes[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    const tgl_dtype dtypes[] = { TGL_F32, TGL_BF16, TGL_F16, TGL_E4M3 };
    uint8_t x[256];
    for (int i = 0; i < 256; i++) x[i] = (uint8_t)i;
    FOR_BACKENDS(b)
        for (int d = 0; d < 4; d++) {
            const size_t element = (size_t)tgl_dtype_bits(tgl_dtype_to_dlpack(dtypes[d])) / 8;
            unsigned char want[512 * 4];
            for (int i = 0; i < 512; i++) {
                const int code = x[i / 2] >> (i % 2 ? 4 : 0) & 15;
                case_encode(dtypes[d], code & 8 ? -magnitudes[code & 7] : magnitudes[code],
                            want + (size_t)i * element);
            }
            tensor in, out;
            place(b, &in, TGL_E2M1X2, 2, SHAPE(16, 16), x);
            place(b, &out, dtypes[d], 2, SHAPE(16, 32), NULL);
            CHECK_OK(tgl_quant_unpack_from_e2m1fn_x2(&in.t, &out.t, b->stream));
            check_contents(b, &out, want, "out");
            discard(b, &in);
        }
}

TEST(every_byte_of_many)    /* each in both halves of 32 bytes, of which the CPU may do one by a table */
{
    enum { COUNT = 4096 };
    const float magnitudes[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    static uint8_t x[COUNT];
    static float want[2 * COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = (uint8_t)(i + i / 256 * 16);
    for (int i = 0; i < 2 * COUNT; i++) {
        const int code = x[i / 2] >> (i % 2 ? 4 : 0) & 15;
        want[i] = code & 8 ? -magnitudes[code & 7] : magnitudes[code];
    }
    FOR_BACKENDS(b) {
        tensor in, out;
        place(b, &in, TGL_E2M1X2, 1, SHAPE(COUNT), x);
        place(b, &out, TGL_F32, 1, SHAPE(2 * COUNT), NULL);
        CHECK_OK(tgl_quant_unpack_from_e2m1fn_x2(&in.t, &out.t, b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &in);
    }
}

TEST(empty)
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        tensor x, out;
        make(&x, NULL, devices[d], TGL_U8, 2, SHAPE(3, 0));
        make(&out, NULL, devices[d], TGL_BF16, 2, SHAPE(3, 0));
        CHECK_OK(tgl_quant_unpack_from_e2m1fn_x2(&x.t, &out.t, NULL));
        make(&x, NULL, devices[d], TGL_U8, 3, SHAPE(3, 0, 5));
        make(&out, NULL, devices[d], TGL_BF16, 3, SHAPE(3, 0, 10));
        CHECK_OK(tgl_quant_unpack_from_e2m1fn_x2(&x.t, &out.t, NULL));
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_quant_unpack_from_e2m1fn_x2_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    (void)params;
    return tgl_quant_unpack_from_e2m1fn_x2(t[0], t[1], NULL);
}
#define SIGNATURE &tgl_quant_unpack_from_e2m1fn_x2_signature
#define GOOD_CALL SIGNATURE, "num_cols=32 ...=1", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(SIGNATURE, "num_cols=32 ...=2 x=u8 out=bf16", invoke);
    CHECK_ERROR(x[0].ndim = 9, "x: rank is 9, want 1..8");
    CHECK_ERROR(x[1].ndim = 1, "out: rank is 1, want 2");
    CHECK_ERROR(x[1].shape[1] = x[1].strides[0] = 16, "out: shape is [2, 16], want [2, 32]");
    CHECK_ERROR(x[1].dtype = tgl_dtype_to_dlpack(TGL_F64), "out: dtype is f64, want f16, bf16, f32 or e4m3");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
