/* SPDX-License-Identifier: MIT
 * tgl_quant_per_channel_cast_and_transpose, on every device of the tests: the codes of per_channel_cast are
 * transposed, its factors are not. */
#include "elements.h"

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
        CALL(quant_per_channel_cast_and_transpose, b, &params, FLOATS(TGL_BF16, x[0], 4, 2), OUT(TGL_E4M3, out, 2, 4),
             OUT(TGL_F32, out_sf, 1, 2));
    }
}

TEST(transposes_per_channel_cast)
{
    enum { ROWS = 200, COLS = 312, M = 7 };
    static float x[ROWS * COLS];
    static uint8_t codes[ROWS][COLS], turned[COLS][ROWS];
    static float want_sf[M * COLS];
    test_random r = test_seed("transposes_per_channel_cast");
    for (int i = 0; i < ROWS * COLS; i++) x[i] = ldexpf((float)test_below(&r, 255) - 127, (int)test_below(&r, 9));
    FOR_BACKENDS(b) {
        const tgl_quant_params params = { .num_per_tokens = 32 };
        CALL(quant_per_channel_cast, b, &params, FLOATS(TGL_BF16, x, ROWS, COLS), ABSENT, ABSENT,
             GET(TGL_E4M3, codes, ROWS, COLS), GET(TGL_F32, want_sf, M, COLS));
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) turned[j][i] = codes[i][j];
        CALL(quant_per_channel_cast_and_transpose, b, &params, FLOATS(TGL_BF16, x, ROWS, COLS),
             OUT(TGL_E4M3, turned, COLS, ROWS), OUT(TGL_F32, want_sf, M, COLS));
    }
}

TEST(long_tiles)
{
    check_kernel("quant_per_channel_cast_and_transpose", 0,
                 (const char *const[]){ "num_rows=259,515 num_cols=144 num_per_tokens=64 values=mixed",
                                        "num_rows=259 num_cols=136 num_per_tokens=32 round=1 values=bits", NULL });
}

TEST(every_bf16)
{
    const cast_op op = CAST_OP(per_channel_cast_and_transpose, 1);
    check_all_elements(op, TGL_QUANT_E4M3, 32, 1, 64, true);
    check_all_elements(op, TGL_QUANT_E4M3, 7, 1, 61, true);
}

TEST(empty)
{
    check_empty(CALL_OF(quant_per_channel_cast_and_transpose, "num_rows=0 num_cols=64 num_per_tokens=128"));
    check_empty(CALL_OF(quant_per_channel_cast_and_transpose, "num_rows=200 num_cols=0 num_per_tokens=128 x=f32"));
}

#define GOOD_CALL CALL_OF(quant_per_channel_cast_and_transpose, "num_rows=6 num_cols=32 num_per_tokens=4")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].shape[0] = 6; x[1].shape[1] = x[1].strides[0] = 32, "out: shape is [6, 32], want [32, 6]");
    CHECK_ERROR(PARAMS_OF(c)->num_per_tokens = 2, "out_sf: shape is [2, 32], want [3, 32]");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
