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

typedef struct { tensor x, out; const DLTensor *px; DLTensor *pout; } call;

static void valid(call *c, DLDevice on)
{
    *c = (call){ 0 };
    c->px = make(&c->x, memory + 256, on, TGL_U8, 2, SHAPE(3, 64));
    c->pout = make(&c->out, memory + 4096, on, TGL_F32, 2, SHAPE(3, 128));
}

static tgl_status invoke(const call *c) { return tgl_quant_unpack_from_e2m1fn_x2(c->px, c->pout, NULL); }

TEST(errors)
{
    ERROR(c.px = NULL, "x: is NULL, want a tensor");
    ERROR(c.pout = NULL, "out: is NULL, want a tensor");
    ERROR(c.x.t.dtype = tgl_dtype_to_dlpack(TGL_F64), "x: dtype is f64, want i8, u8 or e2m1x2");
    ERROR(c.x.t.dtype = tgl_dtype_to_dlpack(TGL_E4M3), "x: dtype is e4m3, want i8, u8 or e2m1x2");
    ERROR(c.out.t.dtype = tgl_dtype_to_dlpack(TGL_F64), "out: dtype is f64, want f16, bf16, f32 or e4m3");
    ERROR(c.x.t.data = NULL, "x: data is NULL, want 192 bytes");
    ERROR(c.out.t.data = NULL, "out: data is NULL, want 1536 bytes");
    ERROR(c.x.t.ndim = 0, "x: rank is 0, want 1..8");
    ERROR(c.x.t.ndim = 9, "x: rank is 9, want 1..8");
    ERROR(c.x.t.ndim = -1, "x: rank is -1, want 1..8");
    ERROR(c.out.t.ndim = 1, "out: rank is 1, want 2");
    ERROR(c.x.t.shape = NULL, "x: shape is NULL, want 2 sizes");
    ERROR(c.x.strides[0] = 65, "x: strides are [65, 1], want [64, 1]");
    ERROR(c.out.strides[0] = 129, "out: strides are [129, 1], want [128, 1]");
    ERROR(c.out.shape[0] = 2, "out: shape is [2, 128], want [3, 128]");
    ERROR(c.out.shape[1] = c.out.strides[0] = 64, "out: shape is [3, 64], want [3, 128]");
    OTHER_DEVICE(out, "out");
    ERROR(c.out.t.data = c.x.t.data, "out: memory is shared with x, want no overlap");
}

TEST_NO_DRIVER()
