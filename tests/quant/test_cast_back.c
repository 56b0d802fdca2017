/* SPDX-License-Identifier: MIT
 * tgl_quant_cast_back, on every device of the tests: out = code * sf in f32, then rounded to bf16 if out is
 * bf16. */
#include "support.h"

TESTS_OF_TABLE("quant_cast_back")

static void check_row(tgl_quant_format format, const uint8_t *codes, int64_t num_bytes, uint32_t sf, int64_t count,
                      const uint32_t *want_f32, const uint16_t *want_bf16)
{
    FOR_BACKENDS(b)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++)
            CALL(quant_cast_back, b, PARAMS(.format = format),
                 IN(quant_data_dtype(format, TGL_E2M1X2), codes, 1, num_bytes), IN(TGL_F32, &sf, 1, 1),
                 OUT(is_bf16 ? TGL_BF16 : TGL_F32, is_bf16 ? (const void *)want_bf16 : want_f32, 1, count));
}
#define F32_BITS(...) ((const uint32_t[]){ __VA_ARGS__ })
#define BF16_BITS(...) ((const uint16_t[]){ __VA_ARGS__ })

TEST(worked_example)
{
    /* doc: cast_back */
    /* 144 and 448 times 3 / 448, which is 0.00669642864 in f32: 0.964285731 and 3 */
    check_row(TGL_QUANT_E4M3, BYTES(0x71, 0x7e), 2, 0x3bdb6db7, 2, F32_BITS(0x3f76db6e, 0x40400000),
              BF16_BITS(0x3f77, 0x4040));
    /* end */
}

TEST(worked_example_of_e5m6)
{
    /* doc: cast_back_e5m6 */
    /* times 2^-14: 1, -1, 0.5, 2, -3, 0.099609375, 0, -0 */
    check_row(TGL_QUANT_E5M6, BYTES(0x70, 0x40, 0x0f, 0x74, 0x06, 0xfa, 0x80, 0x07, 0x00, 0x08, 0x00, 0x66), 12,
              0x38800000, 8,
              F32_BITS(0x3f800000, 0xbf800000, 0x3f000000, 0x40000000, 0xc0400000, 0x3dcc0000, 0, 0x80000000),
              BF16_BITS(0x3f80, 0xbf80, 0x3f00, 0x4000, 0xc040, 0x3dcc, 0, 0x8000));
    /* end */
}

TEST(e2m1_by_hand)
{
    check_row(TGL_QUANT_E2M1, BYTES(0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe), 8, 0x3f800000, 16,
              F32_BITS(0, 0x3f000000, 0x3f800000, 0x3fc00000, 0x40000000, 0x40400000, 0x40800000, 0x40c00000,
                       0x80000000, 0xbf000000, 0xbf800000, 0xbfc00000, 0xc0000000, 0xc0400000, 0xc0800000, 0xc0c00000),
              BF16_BITS(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0,
                        0xc000, 0xc040, 0xc080, 0xc0c0));
}

/* Every code to f32 and to bf16, with several factors; then, with the same factor, back to itself. */
static void check_codes(tgl_quant_format format, int64_t num_codes, float factor)
{
    enum { MAX_CODES = 4096 };
    static uint8_t codes[MAX_CODES * 3 / 2], back[MAX_CODES * 3 / 2];
    static float want[MAX_CODES], seen[MAX_CODES];
    static uint16_t seen_bf16[MAX_CODES];
    const int64_t bytes = quant_data_cols(format, num_codes);
    const tgl_dtype dtype = quant_data_dtype(format, TGL_U8);
    const case_tensor given = {
        .ndim = 2, .shape = { 1, bytes }, .strides = { bytes, 1 }, .data = (char *)codes, .element_bytes = 1
    };
    case_tensor returned = given;
    returned.data = (char *)back;
    for (int64_t i = 0; i < num_codes; i++) {
        quant_put_code(&given, format, 0, i, (unsigned)i);
        want[i] = quant_decode(format, (unsigned)i) * factor;
    }
    FOR_BACKENDS(b) {
        const tgl_quant_params params = { .format = format };
        CALL(quant_cast_back, b, &params, IN(dtype, codes, 1, bytes), IN(TGL_F32, &factor, 1, 1),
             GET(TGL_F32, seen, 1, num_codes));
        CALL(quant_cast_back, b, &params, IN(dtype, codes, 1, bytes), IN(TGL_F32, &factor, 1, 1),
             GET(TGL_BF16, seen_bf16, 1, num_codes));
        CALL(quant_per_token_cast_with_precomputed_sf, b, &params, IN(TGL_F32, seen, 1, num_codes), ABSENT,
             IN(TGL_F32, &factor, 1, 1), GET(dtype, back, 1, bytes));
        for (int64_t i = 0; i < num_codes; i++) {
            const unsigned code = quant_code_at(&returned, format, 0, i);
            uint16_t bf16;
            case_encode(TGL_BF16, want[i], &bf16);
            CHECK_THAT(seen_bf16[i] == bf16 || (isnan(want[i]) && (seen_bf16[i] & 0x7fff) > 0x7f80),
                       "%s: bf16 of code 0x%x is 0x%x, want 0x%x", b->name, (unsigned)i, seen_bf16[i], bf16);
            CHECK_THAT((isnan(want[i]) && isnan(seen[i])) || bits_of(want[i]) == bits_of(seen[i]),
                       "%s: code 0x%x is %a, want %a", b->name, (unsigned)i, (double)seen[i], (double)want[i]);
            if (isfinite(want[i]) && factor >= 0x1p-100f)
                CHECK_THAT(code == (unsigned)i, "%s: code 0x%x comes back as 0x%x", b->name, (unsigned)i, code);
        }
    }
}

static void check_factors(tgl_quant_format format, int64_t num_codes)
{
    const float factors[] = { 1, 0x1p-7f, 0x1p100f, 0x1p-140f, 0x1p127f };
    for (int i = 0; i < COUNT_OF(factors); i++) check_codes(format, num_codes, factors[i]);
}

TEST(every_code_of_e4m3) { check_factors(TGL_QUANT_E4M3, 256); }
TEST(every_code_of_e2m1) { check_factors(TGL_QUANT_E2M1, 16); }
TEST(every_code_of_e5m6) { check_factors(TGL_QUANT_E5M6, 4096); }

TEST(every_packed_factor) /* 0 is 0, 255 infinite, the rest 2^(code - 127) */
{
    uint8_t codes[256], one[256];
    float want[256];
    for (int i = 0; i < 256; i++) {
        codes[i] = (uint8_t)i;
        one[i] = 0xb8; /* -1 */
        want[i] = i == 0 ? -0.0f : i == 255 ? -INFINITY : -ldexpf(1, i - 127);
    }
    FOR_BACKENDS(b)
        CALL(quant_cast_back, b, PARAMS(.x_num_per_channels = 1), IN(TGL_E4M3, one, 1, 256), IN(TGL_I32, codes, 1, 64),
             OUT(TGL_F32, want, 1, 256));
}

TEST(products_round_before_bf16) /* twice: to f32, then to bf16 */
{
    enum { N = 4096 };
    static uint8_t codes[N];
    static float factors[N];
    static uint16_t want[N];
    test_random r = test_seed("products_round_before_bf16");
    for (int i = 0; i < N; i++) {
        codes[i] = (uint8_t)(test_below(&r, 0x7f) | test_below(&r, 2) << 7);
        factors[i] = float_of((uint32_t)test_below(&r, 0x20000000) + 0x30000000);
        case_encode(TGL_BF16, quant_decode(TGL_QUANT_E4M3, codes[i]) * factors[i], &want[i]);
    }
    FOR_BACKENDS(b)
        CALL(quant_cast_back, b, PARAMS(.x_num_per_channels = 1), IN(TGL_E4M3, codes, 1, N), IN(TGL_F32, factors, 1, N),
             OUT(TGL_BF16, want, 1, N));
}

TEST(num_sms) /* threads with one, two and four rows */
{
    check_num_sms("quant_cast_back",
                  (const char *const[]){
                      "num_rows=130,1030 num_cols=64 format=e4m3,e2m1,e5m6 x_num_per_channels=0 values=mixed",
                      "num_rows=1030 num_cols=64 offset=1 values=mixed", NULL });
}

TEST(empty)
{
    check_empty(CALL_OF(quant_cast_back, "num_rows=0 num_cols=256 format=1 x=u8"));
    check_empty(CALL_OF(quant_cast_back, "num_rows=3 num_cols=0"));
}

#define GOOD_CALL CALL_OF(quant_cast_back, "num_rows=3 num_cols=32 x_num_per_channels=16")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_cast_back,
                         "num_rows=3 num_cols=32 x_num_per_tokens=2 x_num_per_channels=16 format=1 x_sf=i32"));
    check_errors(CALL_OF(quant_cast_back, "num_rows=3 num_cols=32 format=2"));
    CHECK_ERROR(x[1].strides[1] = 3, "x_sf: strides are [2, 3], want [1, >= 0] or [>= 0, 1]");
    CHECK_ERROR(PARAMS_OF(c)->x_num_per_tokens = 2, "x_sf: shape is [3, 2], want [2, 2]");
    CHECK_ERROR(PARAMS_OF(c)->format = (tgl_quant_format)5, "format: is 5, want 0 (e4m3), 1 (e2m1) or 2 (e5m6)");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1, "x: dtype is e4m3, want i8, u8 or e2m1x2");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1; x[0].dtype = tgl_dtype_to_dlpack(TGL_I8);
                PARAMS_OF(c)->x_num_per_channels = 32, "out: shape is [3, 32], want [3, 64]");
}

/* e5m6: 12 bytes have 8 codes, and are read as words. */
#undef GOOD_CALL
#define GOOD_CALL CALL_OF(quant_cast_back, "num_rows=3 num_cols=32 format=2")
TEST(errors_of_e5m6)
{
    CHECK_ERROR(x[0].shape[1] = 47, "x: rows are 47 bytes, want a multiple of 12 for e5m6");
    CHECK_ERROR(x[0].byte_offset = 2, "x: address is 2 bytes past a multiple of 4, want a multiple of 4");
    CHECK_ERROR(x[0].strides[0] = 50, "x: rows are 50 bytes apart, want a multiple of 4 for e5m6");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
