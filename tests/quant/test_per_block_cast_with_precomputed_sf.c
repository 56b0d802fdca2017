/* SPDX-License-Identifier: MIT
 * tgl_quant_per_block_cast_with_precomputed_sf, on every device of the tests. */
#include "elements.h"

TESTS_OF_TABLE("quant_per_block_cast_with_precomputed_sf")

TEST(by_hand) /* a factor for each quarter: values are multiplied by 1 / sf */
{
    const float x[16] = { 1, 2, 3, 4, -1, -2, -3, -4, 5, 6, 7, 8, -5, -6, -7, -8 };
    const float sf[4] = { 1, 2, 0.5f, 4 };
    const uint8_t want[16] = { 0x38, 0x40, 0x3c, 0x40, 0xb8, 0xc0, 0xbc, 0xc0,
                               0x52, 0x54, 0x3e, 0x40, 0xd2, 0xd4, 0xbe, 0xc0 };
    FOR_BACKENDS(b)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++)
            CALL(quant_per_block_cast_with_precomputed_sf, b, PARAMS(.num_per_tokens = 2, .num_per_channels = 2),
                 FLOATS(is_bf16 ? TGL_BF16 : TGL_F32, x, 4, 4), IN(TGL_F32, sf, 2, 2), OUT(TGL_E4M3, want, 4, 4));
}

TEST(a_reciprocal_and_a_product) /* not a quotient: these differ for some values */
{
    enum { N = 4096 };
    static float x[N];
    static uint8_t want[N];
    const float sf = 0.3f, inv = 1 / sf;
    int num_differ = 0;
    for (int i = 0; i < N; i++) {
        /* around middles of two codes, where the last bit decides */
        const float middle = (float)(17 + 2 * (i % 8)) / 16 * sf;
        x[i] = float_of(bits_of(middle) + (uint32_t)(i / 8) - N / 16);
        want[i] = (uint8_t)quant_encode(TGL_QUANT_E4M3, x[i] * inv);
        num_differ += want[i] != quant_encode(TGL_QUANT_E4M3, x[i] / sf);
    }
    CHECK(num_differ > 0);
    FOR_BACKENDS(b)
        CALL(quant_per_block_cast_with_precomputed_sf, b, PARAMS(.num_per_tokens = N), IN(TGL_F32, x, N / 8, 8),
             IN(TGL_F32, &sf, 1, 1), OUT(TGL_E4M3, want, N / 8, 8));
}

/* Every element with one of the factors; in the next turn with the next. */
static void check_elements(tgl_quant_format format, int64_t block_rows, int64_t block_cols)
{
    static const float factors[] = { 1, 3, 0x1p-9f, 1e-20f };
    static float list[MAX_ELEMENTS];
    enum { COLS = 96 };
    const int64_t is_pair = format == TGL_QUANT_E2M1, k = (COLS + block_cols - 1) / block_cols;
    for (int turn = 0; turn < 8; turn++) {
        const bool is_bf16 = turn / 4;
        const int64_t count = list_elements(format, is_bf16, list), rows = (count + COLS - 1) / COLS;
        const int64_t m = (rows + block_rows - 1) / block_rows;
        float *x = calloc((size_t)(rows * COLS), sizeof *x), *sf = calloc((size_t)(m * k), sizeof *sf);
        uint8_t *want = calloc((size_t)(rows * COLS), 1);
        REQUIRE(x && sf && want);
        for (int64_t i = 0; i < rows * COLS; i++) {
            const int64_t block = i / COLS / block_rows * k + i % COLS / block_cols;
            sf[block] = factors[(block + turn) % COUNT_OF(factors)];
            x[i] = i < count ? list[i] : 0;
            const unsigned code = nearest_code(format, x[i] * (1 / sf[block]));
            want[i >> is_pair] |= (uint8_t)(is_pair && i % 2 ? code << 4 : code);
        }
        FOR_BACKENDS(b)
            CALL(quant_per_block_cast_with_precomputed_sf, b,
                 PARAMS(.format = format, .num_per_tokens = block_rows, .num_per_channels = block_cols),
                 FLOATS(is_bf16 ? TGL_BF16 : TGL_F32, x, rows, COLS), IN(TGL_F32, sf, m, k),
                 OUT(is_pair ? TGL_U8 : TGL_E4M3, want, rows, COLS >> is_pair));
        free(x), free(sf), free(want);
    }
}

TEST(every_bf16_as_e4m3) { check_elements(TGL_QUANT_E4M3, 32, 32), check_elements(TGL_QUANT_E4M3, 5, 7); }
TEST(every_bf16_as_e2m1) { check_elements(TGL_QUANT_E2M1, 32, 32), check_elements(TGL_QUANT_E2M1, 5, 7); }

TEST(every_packed_factor) /* with vectors, and without */
{
    const cast_op op = CAST_OP(per_block_cast_with_precomputed_sf, 1);
    check_given_codes(32, 4, op);
    check_given_codes(7, 4, op);
}

TEST(num_sms) /* threads with one, two and four rows */
{
    check_num_sms("quant_per_block_cast_with_precomputed_sf",
                  (const char *const[]){ "num_rows=130,1030 num_cols=64 format=e4m3,e2m1 offset=0,1 values=mixed",
                                         NULL });
}

TEST(empty)
{
    check_empty(CALL_OF(quant_per_block_cast_with_precomputed_sf, "num_rows=0 num_cols=256 num_per_tokens=32"));
}

#define GOOD_CALL \
    CALL_OF(quant_per_block_cast_with_precomputed_sf, "num_rows=6 num_cols=48 num_per_tokens=4 num_per_channels=16")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_per_block_cast_with_precomputed_sf,
                         "num_rows=6 num_cols=48 format=1 num_per_channels=8 sf=i32"));
    CHECK_ERROR(PARAMS_OF(c)->num_per_tokens = 2, "sf: shape is [2, 3], want [3, 3]");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E5M6, "format: is 2, want 0 (e4m3) or 1 (e2m1)");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
