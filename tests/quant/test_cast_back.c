/* SPDX-License-Identifier: MIT
 * tgl_quant_cast_back, on every device of the tests: out = code * sf in f32, then rounded to bf16 where that
 * is asked for. */
#include "errors.h"
#include "support.h"

TESTS_OF_TABLE("quant_cast_back")

static void check_row(tgl_quant_format format, const uint8_t *codes, int64_t num_bytes, uint32_t sf,
                      int64_t count, const uint32_t *want_f32, const uint16_t *want_bf16)
{
    FOR_BACKENDS(b)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            tensor in, in_sf, out;
            place(b, &in, quant_data_dtype(format, TGL_E2M1X2), 2, SHAPE(1, num_bytes), codes);
            place(b, &in_sf, TGL_F32, 2, SHAPE(1, 1), &sf);
            place(b, &out, is_bf16 ? TGL_BF16 : TGL_F32, 2, SHAPE(1, count), NULL);
            CHECK_OK(tgl_quant_cast_back(&in.t, &in_sf.t, &out.t, PARAMS(.format = format), b->stream));
            check_contents(b, &out, is_bf16 ? (const void *)want_bf16 : want_f32, is_bf16 ? "bf16" : "f32");
            discard(b, &in);
            discard(b, &in_sf);
        }
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
    check_row(TGL_QUANT_E5M6, BYTES(0x70, 0x40, 0x0f, 0x74, 0x06, 0xfa, 0x80, 0x07, 0x00, 0x08, 0x00, 0x66),
              12, 0x38800000, 8,
              F32_BITS(0x3f800000, 0xbf800000, 0x3f000000, 0x40000000, 0xc0400000, 0x3dcc0000, 0, 0x80000000),
              BF16_BITS(0x3f80, 0xbf80, 0x3f00, 0x4000, 0xc040, 0x3dcc, 0, 0x8000));
    /* end */
}

TEST(e2m1_by_hand)
{
    check_row(TGL_QUANT_E2M1, BYTES(0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe), 8, 0x3f800000, 16,
              F32_BITS(0, 0x3f000000, 0x3f800000, 0x3fc00000, 0x40000000, 0x40400000, 0x40800000, 0x40c00000,
                       0x80000000, 0xbf000000, 0xbf800000, 0xbfc00000, 0xc0000000, 0xc0400000, 0xc0800000,
                       0xc0c00000),
              BF16_BITS(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
                        0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0));
}

/* Every code to f32 and to bf16, with several factors; then, with the same factor, back to itself. */
static void check_codes(tgl_quant_format format, int64_t num_codes, float factor)
{
    const int64_t bytes = quant_data_cols(format, num_codes);
    uint8_t *codes = calloc((size_t)bytes, 1);
    float *want = malloc((size_t)num_codes * 4), *seen = malloc((size_t)num_codes * 4);
    REQUIRE(codes && want && seen);
    const case_tensor t = { .ndim = 2, .shape = { 1, bytes }, .strides = { bytes, 1 }, .data = (char *)codes,
                            .element_bytes = 1 };
    for (int64_t i = 0; i < num_codes; i++) {
        quant_put_code(&t, format, 0, i, (unsigned)i);
        want[i] = quant_decode(format, (unsigned)i) * factor;
    }
    FOR_BACKENDS(b) {
        tensor in, sf, out, narrow, again;
        uint16_t *seen_bf16 = (uint16_t *)seen;
        place(b, &in, quant_data_dtype(format, TGL_U8), 2, SHAPE(1, bytes), codes);
        place(b, &sf, TGL_F32, 2, SHAPE(1, 1), &factor);
        place(b, &out, TGL_F32, 2, SHAPE(1, num_codes), NULL);
        place(b, &narrow, TGL_BF16, 2, SHAPE(1, num_codes), NULL);
        place(b, &again, quant_data_dtype(format, TGL_U8), 2, SHAPE(1, bytes), NULL);
        CHECK_OK(tgl_quant_cast_back(&in.t, &sf.t, &out.t, PARAMS(.format = format), b->stream));
        CHECK_OK(tgl_quant_cast_back(&in.t, &sf.t, &narrow.t, PARAMS(.format = format), b->stream));
        CHECK_OK(tgl_quant_per_token_cast_with_precomputed_sf(&out.t, NULL, &sf.t, &again.t,
                                                              PARAMS(.format = format), b->stream));
        fetch(b, &narrow, seen);
        for (int64_t i = 0; i < num_codes; i++) {
            uint16_t code;
            case_encode(TGL_BF16, want[i], &code);
            const bool are_nan = isnan(want[i]) && (seen_bf16[i] & 0x7fff) > 0x7f80;
            CHECK_THAT(are_nan || seen_bf16[i] == code, "%s: bf16 of code 0x%x is 0x%x, want 0x%x", b->name,
                       (unsigned)i, seen_bf16[i], code);
        }
        fetch(b, &out, seen);
        for (int64_t i = 0; i < num_codes; i++)
            CHECK_THAT((isnan(want[i]) && isnan(seen[i])) || bits_of(want[i]) == bits_of(seen[i]),
                       "%s: code 0x%x is %a, want %a", b->name, (unsigned)i, (double)seen[i],
                       (double)want[i]);
        uint8_t *back = malloc((size_t)bytes);
        REQUIRE(back);
        fetch(b, &again, back);
        case_tensor back_tensor = t;
        back_tensor.data = (char *)back;
        for (int64_t i = 0; i < num_codes && factor >= 0x1p-100f; i++)
            if (isfinite(want[i]))
                CHECK_THAT(quant_code_at(&back_tensor, format, 0, i) == (unsigned)i,
                           "%s: code 0x%x comes back as 0x%x", b->name, (unsigned)i,
                           quant_code_at(&back_tensor, format, 0, i));
        free(back);
        discard(b, &in);
        discard(b, &sf);
    }
    free(codes);
    free(want);
    free(seen);
}

static void check_factors(tgl_quant_format format, int64_t num_codes)
{
    const float factors[] = { 1, 0x1p-7f, 0x1p100f, 0x1p-140f, 0x1p127f };
    for (int i = 0; i < COUNT_OF(factors); i++) check_codes(format, num_codes, factors[i]);
}

TEST(every_code_of_e4m3) { check_factors(TGL_QUANT_E4M3, 256); }
TEST(every_code_of_e2m1) { check_factors(TGL_QUANT_E2M1, 16); }
TEST(every_code_of_e5m6) { check_factors(TGL_QUANT_E5M6, 4096); }

TEST(every_packed_factor)       /* 0 is 0, 255 infinite, the rest 2^(code - 127) */
{
    uint8_t codes[256], one[256];
    float want[256];
    for (int i = 0; i < 256; i++) {
        codes[i] = (uint8_t)i;
        one[i] = 0xb8;      /* -1 */
        want[i] = i == 0 ? -0.0f : i == 255 ? -INFINITY : -ldexpf(1, i - 127);
    }
    FOR_BACKENDS(b) {
        tensor in, sf, out;
        place(b, &in, TGL_E4M3, 2, SHAPE(1, 256), one);
        place(b, &sf, TGL_I32, 2, SHAPE(1, 64), codes);
        CHECK_OK(tgl_quant_cast_back(&in.t, &sf.t, place(b, &out, TGL_F32, 2, SHAPE(1, 256), NULL),
                                     PARAMS(.x_num_per_channels = 1), b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &in);
        discard(b, &sf);
    }
}

TEST(products_round_before_bf16)    /* twice: to f32, then to bf16 */
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
    FOR_BACKENDS(b) {
        tensor in, sf, out;
        place(b, &in, TGL_E4M3, 2, SHAPE(1, N), codes);
        place(b, &sf, TGL_F32, 2, SHAPE(1, N), factors);
        CHECK_OK(tgl_quant_cast_back(&in.t, &sf.t, place(b, &out, TGL_BF16, 2, SHAPE(1, N), NULL),
                                     PARAMS(.x_num_per_channels = 1), b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &in);
        discard(b, &sf);
    }
}

TEST(num_sms)       /* threads with one, two and four rows */
{
    check_num_sms("quant_cast_back", (const char *const[]){
        "num_rows=130,1030 num_cols=64 format=e4m3,e2m1,e5m6 x_num_per_channels=0 values=mixed",
        "num_rows=1030 num_cols=64 offset=1 values=mixed", NULL });
}

TEST(empty)
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        tensor x, out, sf;
        make(&x, NULL, devices[d], TGL_U8, 2, SHAPE(0, 128));
        make(&out, NULL, devices[d], TGL_BF16, 2, SHAPE(0, 256));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(0, 1));
        CHECK_OK(tgl_quant_cast_back(&x.t, &sf.t, &out.t, PARAMS(.format = TGL_QUANT_E2M1), NULL));
        make(&x, NULL, devices[d], TGL_E4M3, 2, SHAPE(3, 0));
        make(&out, NULL, devices[d], TGL_BF16, 2, SHAPE(3, 0));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(3, 0));
        CHECK_OK(tgl_quant_cast_back(&x.t, &sf.t, &out.t, PARAMS(0), NULL));
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_quant_cast_back_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_quant_cast_back(t[0], t[1], t[2], params, NULL);
}
#define SIGNATURE &tgl_quant_cast_back_signature
#define GOOD_CALL SIGNATURE, "num_rows=3 num_cols=32 x_num_per_channels=16", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 x_num_per_tokens=2 x_num_per_channels=16 format=1 x_sf=i32", invoke);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 format=2", invoke);
    CHECK_ERROR(x[1].strides[1] = 3, "x_sf: strides are [2, 3], want [1, >= 0] or [>= 0, 1]");
    CHECK_ERROR(PARAMS_OF(c)->x_num_per_tokens = 2, "x_sf: shape is [3, 2], want [2, 2]");
    CHECK_ERROR(PARAMS_OF(c)->format = (tgl_quant_format)5, "format: is 5, want 0 (e4m3), 1 (e2m1) or 2 (e5m6)");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1, "x: dtype is e4m3, want i8, u8 or e2m1x2");
    CHECK_ERROR(PARAMS_OF(c)->format = TGL_QUANT_E2M1; x[0].dtype = tgl_dtype_to_dlpack(TGL_I8);
                PARAMS_OF(c)->x_num_per_channels = 32, "out: shape is [3, 32], want [3, 64]");
}

/* Codes of e5m6: 12 bytes for 8 values, read as words. */
#undef GOOD_CALL
#define GOOD_CALL SIGNATURE, "num_rows=3 num_cols=32 format=2", invoke
TEST(errors_of_e5m6)
{
    CHECK_ERROR(x[0].shape[1] = 47, "x: rows are 47 bytes, want a multiple of 12 for e5m6");
    CHECK_ERROR(x[0].byte_offset = 2, "x: data is 2 bytes past a multiple of 4, want 0");
    CHECK_ERROR(x[0].strides[0] = 50, "x: rows are 50 bytes apart, want a multiple of 4 for e5m6");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
