/* SPDX-License-Identifier: MIT
 * tgl_quant_per_channel_cast_and_transpose, on every device of the tests: the codes of per_channel_cast,
 * transposed; its factors, not transposed. */
#include "elements.h"
#include "errors.h"

TESTS_OF_TABLE("quant_per_channel_cast_and_transpose")

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        /* doc: per_channel_cast_and_transpose */
        const float x[4][2] = { { 1, -8 }, { 0.5f, 2 }, { -3, 0.25f }, { 0, -0.0f } };
        const uint8_t out[2][4] = { { 0x70, 0x68, 0xfc, 0x00 }, { 0xf8, 0x68, 0x50, 0x80 } };
        const float out_sf[2] = { 0x1p-7f, 0x1p-5f };
        const tgl_quant_params params = { .num_per_tokens = 4, .round_sf = true };
        /* end */
        tensor in, seen, sf;
        place_floats(b, &in, TGL_BF16, 4, 2, x[0]);
        place(b, &seen, TGL_E4M3, 2, SHAPE(2, 4), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(1, 2), NULL);
        CHECK_OK(tgl_quant_per_channel_cast_and_transpose(&in.t, &seen.t, &sf.t, &params, b->stream));
        check_contents(b, &seen, out, "out");
        check_contents(b, &sf, out_sf, "out_sf");
        discard(b, &in);
    }
}

TEST(transposes_per_channel_cast)
{
    enum { ROWS = 200, COLS = 312, M = 7 };
    static float x[ROWS * COLS];
    static uint8_t codes[ROWS][COLS], turned[COLS][ROWS];
    static float want_sf[M * COLS];
    test_random r = test_seed("transposes_per_channel_cast");
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = ldexpf((float)test_below(&r, 255) - 127, (int)test_below(&r, 9));
    FOR_BACKENDS(b) {
        const tgl_quant_params params = { .num_per_tokens = 32 };
        tensor in, out, sf;
        place_floats(b, &in, TGL_BF16, ROWS, COLS, x);
        place(b, &out, TGL_E4M3, 2, SHAPE(ROWS, COLS), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(M, COLS), NULL);
        CHECK_OK(tgl_quant_per_channel_cast(&in.t, NULL, NULL, &out.t, &sf.t, &params, b->stream));
        fetch(b, &out, codes);
        fetch(b, &sf, want_sf);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) turned[j][i] = codes[i][j];
        place(b, &out, TGL_E4M3, 2, SHAPE(COLS, ROWS), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(M, COLS), NULL);
        CHECK_OK(tgl_quant_per_channel_cast_and_transpose(&in.t, &out.t, &sf.t, &params, b->stream));
        check_contents(b, &out, turned, "out");
        check_contents(b, &sf, want_sf, "out_sf");
        discard(b, &in);
    }
}

TEST(every_bf16)
{
    check_all_elements((element_check){ TGL_QUANT_E4M3, 32, 1, 64, .is_transposed = true,
                                        .cast = tgl_quant_per_channel_cast_and_transpose });
    check_all_elements((element_check){ TGL_QUANT_E4M3, 7, 1, 61, .is_transposed = true,
                                        .cast = tgl_quant_per_channel_cast_and_transpose });
}

TEST(empty)
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        tensor x, out, sf;
        make(&x, NULL, devices[d], TGL_BF16, 2, SHAPE(0, 64));
        make(&out, NULL, devices[d], TGL_E4M3, 2, SHAPE(64, 0));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(0, 64));
        CHECK_OK(tgl_quant_per_channel_cast_and_transpose(&x.t, &out.t, &sf.t, PARAMS(.num_per_tokens = 128),
                                                          NULL));
        make(&x, NULL, devices[d], TGL_F32, 2, SHAPE(200, 0));
        make(&out, NULL, devices[d], TGL_E4M3, 2, SHAPE(0, 200));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(2, 0));
        CHECK_OK(tgl_quant_per_channel_cast_and_transpose(&x.t, &out.t, &sf.t, PARAMS(.num_per_tokens = 128),
                                                          NULL));
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_quant_per_channel_cast_and_transpose_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_quant_per_channel_cast_and_transpose(t[0], t[1], t[2], params, NULL);
}
#define SIGNATURE &tgl_quant_per_channel_cast_and_transpose_signature
#define GOOD_CALL SIGNATURE, "num_rows=6 num_cols=32 num_per_tokens=4", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].shape[0] = 6; x[1].shape[1] = x[1].strides[0] = 32, "out: shape is [6, 32], want [32, 6]");
    CHECK_ERROR(PARAMS_OF(c)->num_per_tokens = 2, "out_sf: shape is [2, 32], want [3, 32]");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
