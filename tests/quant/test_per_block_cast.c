/* SPDX-License-Identifier: MIT
 * tgl_quant_per_block_cast, on every device of the tests: blocks of several rows; elements and factors are
 * those of per_token_cast, so what is tested here is which values share one. */
#include "elements.h"
#include "errors.h"

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
        tensor in, seen, sf;
        place_floats(b, &in, TGL_BF16, 2, 2, x[0]);
        place(b, &seen, TGL_E4M3, 2, SHAPE(2, 2), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(1, 1), NULL);
        CHECK_OK(tgl_quant_per_block_cast(&in.t, &seen.t, &sf.t, &params, b->stream));
        check_contents(b, &seen, out, "out");
        check_contents(b, &sf, &out_sf, "out_sf");
        discard(b, &in);
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
            tensor in, sf;
            place_floats(b, &in, TGL_BF16, ROWS, COLS, x);
            place(b, &sf, TGL_F32, 2, SHAPE(M, K), NULL);
            CHECK_OK(tgl_quant_per_block_cast(
                &in.t, NULL, &sf.t, PARAMS(.num_per_tokens = BM, .num_per_channels = BK, .round_sf = true),
                b->stream));
            check_contents(b, &sf, want, "out_sf");
            discard(b, &in);
        }
}

TEST(packed_factors_are_at_their_bytes)     /* [3, 2] of i32 with columns of 4: rows of blocks first */
{
    enum { BM = 2, BK = 4, ROWS = 5, COLS = 24 };
    float x[ROWS][COLS];
    uint8_t want[32];
    memset(want, 0xa5, sizeof want);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) x[i][j] = ldexpf(448, i / BM * 6 + j / BK);
    for (int m = 0; m < 3; m++)
        for (int k = 0; k < 8; k++)
            want[(k / 4 * 4 + m) * 4 + k % 4] = (uint8_t)(k < 6 ? 127 + m * 6 + k : 0);
    FOR_BACKENDS(b) {
        tensor in, sf;
        uint8_t seen[32] = { 0 };
        place_floats(b, &in, TGL_F32, ROWS, COLS, x[0]);
        place(b, &sf, TGL_I32, 2, SHAPE(8, 1), NULL);
        sf.shape[0] = 3, sf.shape[1] = 2, sf.strides[0] = 1, sf.strides[1] = 4;
        CHECK_OK(tgl_quant_per_block_cast(
            &in.t, NULL, &sf.t, PARAMS(.num_per_tokens = BM, .num_per_channels = BK, .round_sf = true),
            b->stream));
        sf.shape[0] = 4;            /* with what lies behind the last column */
        fetch(b, &sf, seen);
        for (int i = 0; i < 32; i++) CHECK_INT(seen[i], want[i]);
        discard(b, &in);
    }
}

/* Blocks of one row are those of per_token_cast. */
TEST(one_row_is_per_token_cast)
{
    enum { ROWS = 9, COLS = 320 };
    static float x[ROWS * COLS];
    uint8_t want[ROWS * COLS];
    float want_sf[ROWS * 3];
    test_random r = test_seed("one_row_is_per_token_cast");
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = ldexpf((float)test_below(&r, 255) - 127, (int)test_below(&r, 9));
    FOR_BACKENDS(b) {
        const tgl_quant_params params = { .num_per_channels = 128 };
        tensor in, out, sf;
        for (int is_block = 0; is_block < 2; is_block++) {
            place_floats(b, &in, TGL_BF16, ROWS, COLS, x);
            place(b, &out, TGL_E4M3, 2, SHAPE(ROWS, COLS), NULL);
            place(b, &sf, TGL_F32, 2, SHAPE(ROWS, 3), NULL);
            if (is_block) {
                CHECK_OK(tgl_quant_per_block_cast(&in.t, &out.t, &sf.t, &params, b->stream));
                check_contents(b, &out, want, "out");
                check_contents(b, &sf, want_sf, "out_sf");
            } else {
                CHECK_OK(tgl_quant_per_token_cast(&in.t, NULL, &out.t, &sf.t, &params, b->stream));
                fetch(b, &out, want);
                fetch(b, &sf, want_sf);
            }
            discard(b, &in);
        }
    }
}

/* ---- elements ---- */

/* Blocks with a kernel of their own, and others. */
static void check_elements(tgl_quant_format format)
{
    check_all_elements((element_check){ format, 32, 32, 64, .cast = tgl_quant_per_block_cast });
    check_all_elements((element_check){ format, 5, 6, 60, .cast = tgl_quant_per_block_cast });
}

TEST(every_bf16_as_e4m3) { check_elements(TGL_QUANT_E4M3); }
TEST(every_bf16_as_e2m1) { check_elements(TGL_QUANT_E2M1); }

TEST(empty)
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        tensor x, out, sf;
        make(&x, NULL, devices[d], TGL_BF16, 2, SHAPE(0, 256));
        make(&out, NULL, devices[d], TGL_E4M3, 2, SHAPE(0, 256));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(0, 2));
        CHECK_OK(tgl_quant_per_block_cast(&x.t, &out.t, &sf.t,
                                          PARAMS(.num_per_tokens = 128, .num_per_channels = 128), NULL));
        make(&x, NULL, devices[d], TGL_F32, 2, SHAPE(300, 0));
        make(&out, NULL, devices[d], TGL_U8, 2, SHAPE(300, 0));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(3, 0));
        CHECK_OK(tgl_quant_per_block_cast(&x.t, &out.t, &sf.t,
                                          PARAMS(.format = TGL_QUANT_E2M1, .num_per_tokens = 128), NULL));
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_quant_per_block_cast_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_quant_per_block_cast(t[0], t[1], t[2], params, NULL);
}
#define SIGNATURE &tgl_quant_per_block_cast_signature
#define GOOD_CALL SIGNATURE, "num_rows=6 num_cols=48 num_per_tokens=4 num_per_channels=16", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(SIGNATURE, "num_rows=6 num_cols=48 num_per_tokens=4 num_per_channels=16 -out", invoke);
    check_errors(SIGNATURE, "num_rows=6 num_cols=48 format=1 round_sf=1 num_per_channels=8 out_sf=i32", invoke);
    CHECK_ERROR(PARAMS_OF(c)->num_per_tokens = 3; PARAMS_OF(c)->num_per_channels = 8,
                "out_sf: shape is [2, 3], want [2, 6]");
    CHECK_ERROR(x[2].strides[0] = 2, "out_sf: strides are [2, 1], want [1, >= 2] or [>= 3, 1]");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1; x[0].shape[1] = 47; c->tensors[1] = NULL,    /* only factors */
                "x: columns are 47, want a multiple of 2 for e2m1");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
