/* SPDX-License-Identifier: MIT
 * tgl_quant_per_block_cast, on every device of the tests: which values share a factor. How values become
 * codes and factors is as in per_token_cast. */
#include "elements.h"

TESTS_OF_TABLE("quant_per_block_cast")

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        /* doc: per_block_cast */
        const float x[2][2] = { { 1, -2 }, { 0.5f, 3 } };
        const uint8_t out[2][2] = { { 0x70, 0xf8 }, { 0x68, 0x7c } };
        const float out_sf = 0x1p-7f;
        const tgl_quant_params params = { .num_per_tokens = 2, .num_per_channels = 2, .round_sf = true };
        /* end */
        CALL(quant_per_block_cast, b, &params, FLOATS(TGL_BF16, x[0], 2, 2), OUT(TGL_E4M3, out, 2, 2),
             OUT(TGL_F32, &out_sf, 1, 1));
    }
}

/* One large number at every place in turn: its block's factor follows it, no other does. */
TEST(which_block_a_value_is_in)
{
    enum { ROWS = 7, COLS = 10, BM = 3, BK = 4, M = 3, K = 3 };
    FOR_BACKENDS(b)
        for (int at = 0; at < ROWS * COLS; at += b->is_emulated ? 7 : 1) {
            float x[ROWS * COLS], want[M * K];
            for (int i = 0; i < ROWS * COLS; i++) x[i] = i % 2 ? 448 : -448;
            for (int i = 0; i < M * K; i++) want[i] = 1;
            x[at] = -448 * 64;
            want[at / COLS / BM * K + at % COLS / BK] = 64;
            CALL(quant_per_block_cast, b, PARAMS(.num_per_tokens = BM, .num_per_channels = BK, .round_sf = true),
                 FLOATS(TGL_BF16, x, ROWS, COLS), ABSENT, OUT(TGL_F32, want, M, K));
        }
}

TEST(packed_factors_are_at_their_bytes) /* [3, 2] of i32 with columns of 4: rows of blocks first */
{
    enum { BM = 2, BK = 4, ROWS = 5, COLS = 24 };
    float x[ROWS][COLS];
    uint8_t want[32];
    memset(want, 0xa5, sizeof want); /* as it was: the fourth row of blocks */
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) x[i][j] = ldexpf(448, i / BM * 6 + j / BK);
    for (int m = 0; m < 3; m++)
        for (int k = 0; k < 8; k++) want[(k / 4 * 4 + m) * 4 + k % 4] = (uint8_t)(k < 6 ? 127 + m * 6 + k : 0);
    FOR_BACKENDS(b)
        CALL(quant_per_block_cast, b, PARAMS(.num_per_tokens = BM, .num_per_channels = BK, .round_sf = true),
             FLOATS(TGL_F32, x[0], ROWS, COLS), ABSENT, { TGL_I32, SIZES(3, 2), .strides = { 1, 4 }, .want = want });
}

/* Blocks of one row are those of per_token_cast. */
TEST(one_row_is_per_token_cast)
{
    enum { ROWS = 9, COLS = 320 };
    static float x[ROWS * COLS];
    uint8_t want[ROWS * COLS];
    float want_sf[ROWS * 3];
    test_random r = test_seed("one_row_is_per_token_cast");
    for (int i = 0; i < ROWS * COLS; i++) x[i] = ldexpf((float)test_below(&r, 255) - 127, (int)test_below(&r, 9));
    FOR_BACKENDS(b) {
        const tgl_quant_params params = { .num_per_channels = 128 };
        CALL(quant_per_token_cast, b, &params, FLOATS(TGL_BF16, x, ROWS, COLS), ABSENT, GET(TGL_E4M3, want, ROWS, COLS),
             GET(TGL_F32, want_sf, ROWS, 3));
        CALL(quant_per_block_cast, b, &params, FLOATS(TGL_BF16, x, ROWS, COLS), OUT(TGL_E4M3, want, ROWS, COLS),
             OUT(TGL_F32, want_sf, ROWS, 3));
    }
}

/* ---- elements ---- */

/* Blocks with a kernel of their own, and others. */
static void check_elements(tgl_quant_format format)
{
    const cast_op op = CAST_OP(per_block_cast, 1);
    check_all_elements(op, format, 32, 32, 64, false);
    check_all_elements(op, format, 5, 6, 60, false);
}

TEST(every_bf16_as_e4m3) { check_elements(TGL_QUANT_E4M3); }
TEST(every_bf16_as_e2m1) { check_elements(TGL_QUANT_E2M1); }

TEST(empty)
{
    check_empty(CALL_OF(quant_per_block_cast, "num_rows=0 num_cols=256 num_per_tokens=128 num_per_channels=128"));
    check_empty(CALL_OF(quant_per_block_cast, "num_rows=300 num_cols=0 x=f32 format=1 num_per_tokens=128"));
}

#define GOOD_CALL CALL_OF(quant_per_block_cast, "num_rows=6 num_cols=48 num_per_tokens=4 num_per_channels=16")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_per_block_cast, "num_rows=6 num_cols=48 num_per_tokens=4 num_per_channels=16 -out"));
    check_errors(CALL_OF(quant_per_block_cast,
                         "num_rows=6 num_cols=48 format=1 round_sf=1 num_per_channels=8 out_sf=i32"));
    CHECK_ERROR(PARAMS_OF(c)->num_per_tokens = 3;
                PARAMS_OF(c)->num_per_channels = 8, "out_sf: shape is [2, 3], want [2, 6]");
    CHECK_ERROR(x[2].strides[0] = 2, "out_sf: strides are [2, 1], want [1, >= 2] or [>= 3, 1]");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1; x[0].shape[1] = 47;
                c->tensors[1] = NULL, "x: columns are 47, want a multiple of 2 for e2m1");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
