/* SPDX-License-Identifier: MIT
 * tgl_quant_per_channel_cast, on every device of the tests: a factor for num_per_tokens rows of a column; a
 * map chooses the rows. */
#include "elements.h"

TESTS_OF_TABLE("quant_per_channel_cast")

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        /* doc: per_channel_cast */
        const float x[4][2] = { { 1, -8 }, { 0.5f, 2 }, { -3, 0.25f }, { 0, -0.0f } };
        const uint8_t out[4][2] = { { 0x70, 0xf8 }, { 0x68, 0x68 }, { 0xfc, 0x50 }, { 0x00, 0x80 } };
        const float out_sf[2] = { 0x1p-7f, 0x1p-5f };
        const tgl_quant_params params = { .num_per_tokens = 4, .round_sf = true };
        /* end */
        CALL(quant_per_channel_cast, b, &params, FLOATS(TGL_BF16, x[0], 4, 2), ABSENT, ABSENT, OUT(TGL_E4M3, out, 4, 2),
             OUT(TGL_F32, out_sf, 1, 2));
    }
}

TEST(rows_of_a_map) /* repeated, absent, past the last */
{
    const float x[3][2] = { { 448, -1 }, { 7, 448 }, { -4480, 4480 } };
    const int32_t pos[7] = { 1, -1, 0, 0, 3, INT32_MAX, INT32_MIN };
    const uint8_t want[7][2] = {
        { 0x4e, 0x7e }, { 0, 0 }, { 0x7e, 0xb8 }, { 0x7e, 0xb8 }, { 0, 0 }, { 0, 0 }, { 0, 0 }
    };
    FOR_BACKENDS(b)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++)
            CALL(quant_per_channel_cast, b, PARAMS(.num_per_tokens = 4),
                 FLOATS(is_bf16 ? TGL_BF16 : TGL_F32, x[0], 3, 2), ABSENT, IN(TGL_I32, pos, 7),
                 OUT(TGL_E4M3, want, 7, 2), OUT(TGL_F32, F32S(1, 1, float_of(0x346facad), float_of(0x346facad)), 2, 2));
}

TEST(the_order_of_two_products_shows) /* code * x_sf rounds before it is scaled */
{
    enum { N = 500 };
    static uint8_t x[2 * N][2], want[2 * N][2];
    static float x_sf[2 * N][2], want_sf[N][2];
    test_random r = test_seed("the_order_of_two_products_shows");
    int num_differ = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < 2; j++) {
            const close_pair p = make_close_pair(&r);
            x[2 * i][j] = want[2 * i][j] = 0x7e;
            x[2 * i + 1][j] = p.code;
            want[2 * i + 1][j] = (uint8_t)code_of_pair(p, false);
            x_sf[2 * i][j] = p.factors[0];
            x_sf[2 * i + 1][j] = p.factors[1];
            want_sf[i][j] = 448 * p.factors[0] / 448;
            num_differ += code_of_pair(p, true) != want[2 * i + 1][j];
        }
    CHECK(num_differ > N / 10);
    FOR_BACKENDS(b)
        CALL(quant_per_channel_cast, b, PARAMS(.num_per_tokens = 2, .x_num_per_channels = 1), IN(TGL_E4M3, x, 2 * N, 2),
             IN(TGL_F32, x_sf, 2 * N, 2), ABSENT, OUT(TGL_E4M3, want, 2 * N, 2), OUT(TGL_F32, want_sf, N, 2));
}

TEST(columns_of_nan) /* all of a block, all but one of them, none */
{
    enum { ROWS = 128, COLS = 64, BLOCK = 32 };
    static float x[ROWS][COLS];
    static uint8_t want[ROWS][COLS];
    static float want_sf[ROWS / BLOCK][COLS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) {
            const bool is_number = j % 3 == 2 || (j % 3 == 1 && i % BLOCK == 5);
            x[i][j] = is_number ? 448 : NAN;
            want[i][j] = is_number ? 0x7e : 0x7f;
            want_sf[i / BLOCK][j] = j % 3 == 0 ? 1e-4f / 448 : 1;
        }
    FOR_BACKENDS(b)
        CALL(quant_per_channel_cast, b, PARAMS(.num_per_tokens = BLOCK), FLOATS(TGL_BF16, x[0], ROWS, COLS), ABSENT,
             ABSENT, OUT(TGL_E4M3, want, ROWS, COLS), OUT(TGL_F32, want_sf, ROWS / BLOCK, COLS));
}

TEST(zeros_beside_a_huge_factor)
{
    const uint8_t x[4] = { 0x00, 0x80, 0x00, 0x80 };
    FOR_BACKENDS(b)
        CALL(quant_per_channel_cast, b, PARAMS(.num_per_tokens = 128, .round_sf = true), IN(TGL_E4M3, x, 2, 2),
             IN(TGL_F32, F32S(3e38f, 0x1p127f), 2, 1), ABSENT, OUT(TGL_E4M3, x, 2, 2),
             OUT(TGL_F32, F32S(0x1p-22f, 0x1p-22f), 1, 2));
}

TEST(kernels_for_many_tiles) /* staged, wide, long; with whole tiles and edges */
{
    for (int kernel = 0; kernel < 2; kernel++)
        check_kernel("quant_per_channel_cast", kernel,
                     (const char *const[]){
                         "num_rows=260 num_cols=264 num_tokens=300 map=none,random dtype=bf16,f32,e4m3 values=mixed",
                         NULL });
    check_kernel(
        "quant_per_channel_cast", 0,
        (const char *const[]){
            "num_rows=260 num_cols=264 num_per_tokens=32 round=1 values=bits",
            "num_rows=260 num_cols=264 num_tokens=100 map=random num_per_tokens=64 round=1 values=bits",
            "num_rows=259 num_cols=339 num_tokens=100 map=random num_per_tokens=64 offset=1 out_offset=1 values=mixed",
            "num_rows=300 num_cols=384 num_tokens=200 map=random dtype=e4m3 num_per_tokens=32,64,128 round=0,1 "
            "values=mixed",
            "num_rows=300 num_cols=384 num_tokens=40 map=wild dtype=e4m3 values=bits",
            "num_rows=300 num_cols=384 num_tokens=40 map=negative,same dtype=e4m3 num_per_tokens=32 layout=half "
            "offset=0,8 values=mixed",
            "num_rows=300 num_cols=512 num_tokens=90 map=random dtype=e4m3 x_num_per_channels=256,0 "
            "x_sf=row,col_gap,packed values=bits",
            NULL });
}

/* ---- elements ---- */

TEST(every_bf16)
{
    const cast_op op = CAST_OP(per_channel_cast, 3);
    check_all_elements(op, TGL_QUANT_E4M3, 32, 1, 64, false);
    check_all_elements(op, TGL_QUANT_E4M3, 7, 1, 61, false);
}

TEST(every_code) /* a column for each; its rows have factors of many sizes */
{
    enum { ROWS = 64, COLS = 256, BLOCK = 8 };
    static uint8_t x[ROWS][COLS], want[ROWS][COLS];
    static float x_sf[ROWS], want_sf[ROWS / BLOCK][COLS];
    test_random r = test_seed("every_code");
    for (int i = 0; i < ROWS; i++) {
        x_sf[i] = float_of((uint32_t)test_below(&r, 0x08000000) + 0x3c000000); /* 2^-7 to 2^9 */
        for (int j = 0; j < COLS; j++) x[i][j] = (uint8_t)j;
    }
    for (int is_rounded = 0; is_rounded < 2; is_rounded++) {
        for (int m = 0; m < ROWS / BLOCK; m++)
            for (int j = 0; j < COLS; j++) {
                const float magnitude = (float)magnitude_of(TGL_QUANT_E4M3, j & 0x7f);
                const float number = (j & 0x7f) == 0x7f ? NAN : j & 0x80 ? -magnitude : magnitude;
                float values[BLOCK], amax = 0;
                for (int i = 0; i < BLOCK; i++) {
                    values[i] = number * x_sf[m * BLOCK + i];
                    if (fabsf(values[i]) > amax) amax = fabsf(values[i]);
                }
                const block_factor f = factor_of_block(TGL_QUANT_E4M3, amax, is_rounded);
                want_sf[m][j] = f.sf;
                for (int i = 0; i < BLOCK; i++)
                    want[m * BLOCK + i][j] = nearest_code(TGL_QUANT_E4M3, values[i] * f.inv);
            }
        FOR_BACKENDS(b)
            CALL(quant_per_channel_cast, b, PARAMS(.num_per_tokens = BLOCK, .round_sf = is_rounded),
                 IN(TGL_E4M3, x, ROWS, COLS), IN(TGL_F32, x_sf, ROWS, 1), ABSENT, OUT(TGL_E4M3, want, ROWS, COLS),
                 OUT(TGL_F32, want_sf, ROWS / BLOCK, COLS));
    }
}

TEST(empty)
{
    check_empty(CALL_OF(quant_per_channel_cast, "num_tokens=0 num_cols=64 num_per_tokens=128 -x_sf -pos_to_token"));
    check_empty(CALL_OF(quant_per_channel_cast, "num_tokens=5 num_cols=64 num_rows=0 num_per_tokens=128 -x_sf"));
}

TEST(rows_but_no_tokens)
{
    FOR_BACKENDS(b)
        CALL(quant_per_channel_cast, b, PARAMS(.num_per_tokens = 128, .round_sf = true), IN(TGL_BF16, NULL, 0, 2),
             ABSENT, IN(TGL_I32, ((const int32_t[]){ 0, -1 }), 2), OUT(TGL_E4M3, BYTES(0, 0, 0, 0), 2, 2),
             OUT(TGL_F32, F32S(0x1p-22f, 0x1p-22f), 1, 2));
}

#define GOOD_CALL CALL_OF(quant_per_channel_cast, "num_tokens=5 num_cols=32 num_rows=6 num_per_tokens=4 -x_sf")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_per_channel_cast,
                         "num_tokens=5 num_cols=32 num_rows=6 num_per_tokens=4 x_num_per_channels=16"));
    check_errors(CALL_OF(quant_per_channel_cast,
                         "num_tokens=5 num_cols=32 -pos_to_token x_num_per_channels=4 x_sf=i32"));
    CHECK_ERROR(c->tensors[2] = NULL, "out: shape is [6, 32], want [5, 32]");
    CHECK_ERROR(PARAMS_OF(c)->num_per_tokens = 2, "out_sf: shape is [2, 32], want [3, 32]");
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_E4M3), "x: dtype is e4m3, want bf16 or f32");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
