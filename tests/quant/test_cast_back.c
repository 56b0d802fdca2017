/* SPDX-License-Identifier: MIT
 * tgl_quant_cast_back, on every device of the tests: out = code * sf in f32, then rounded to bf16 where that
 * is asked for. */
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

typedef struct {
    tensor x, x_sf, out;
    const DLTensor *px, *px_sf;
    DLTensor *pout;
    tgl_quant_params params, *pparams;
} call;

static void valid(call *c, DLDevice on)
{
    *c = (call){ 0 };
    c->px = make(&c->x, memory + 256, on, TGL_E4M3, 2, SHAPE(3, 256));
    c->px_sf = make(&c->x_sf, memory + 4096, on, TGL_F32, 2, SHAPE(3, 2));
    c->pout = make(&c->out, memory + 8192, on, TGL_BF16, 2, SHAPE(3, 256));
    c->params = (tgl_quant_params){ .x_num_per_channels = 128 };
    c->pparams = &c->params;
}

static tgl_status invoke(const call *c)
{
    return tgl_quant_cast_back(c->px, c->px_sf, c->pout, c->pparams, NULL);
}

TEST(errors)
{
    TENSOR_ERRORS(x, px, "x", "2", "768", "e4m3");
    TENSOR_ERRORS(x_sf, px_sf, "x_sf", "2", "24", "i32 or f32");
    TENSOR_ERRORS(out, pout, "out", "2", "1536", "bf16 or f32");
    ROWS_ERRORS(x, "x", "256");
    OTHER_DEVICE(x_sf, "x_sf");
    OTHER_DEVICE(out, "out");
    PARAMS_ERRORS();
    ERROR(c.out.shape[1] = c.out.strides[0] = 128, "out: shape is [3, 128], want [3, 256]");
    ERROR(c.out.shape[0] = 2, "out: shape is [2, 256], want [3, 256]");
    ERROR(c.out.strides[0] = 257, "out: strides are [257, 1], want [256, 1]");
    ERROR(c.params.x_num_per_channels = 0, "x_sf: shape is [3, 2], want [3, 1]");
    ERROR(c.params.x_num_per_tokens = 2, "x_sf: shape is [3, 2], want [2, 2]");
    ERROR(c.params.x_num_per_tokens = -2, "x_num_per_tokens: is -2, want >= 0");
    ERROR(c.params.x_num_per_channels = -2, "x_num_per_channels: is -2, want >= 0");
    ERROR(c.x_sf.strides[1] = 3, "x_sf: strides are [2, 3], want [1, >= 0] or [>= 0, 1]");
    ERROR(c.params.format = (tgl_quant_format)5, "format: is 5, want 0 (e4m3), 1 (e2m1) or 2 (e5m6)");
    ERROR(c.params.format = TGL_QUANT_E2M1, "x: dtype is e4m3, want i8, u8 or e2m1x2");
    ERROR(c.params.format = TGL_QUANT_E5M6, "x: dtype is e4m3, want u8");
    ERROR(c.params.format = TGL_QUANT_E2M1; c.x.t.dtype = tgl_dtype_to_dlpack(TGL_I8),
          "x_sf: shape is [3, 2], want [3, 4]");
    ERROR(c.params.format = TGL_QUANT_E2M1; c.x.t.dtype = tgl_dtype_to_dlpack(TGL_I8);
          c.params.x_num_per_channels = 256, "out: shape is [3, 256], want [3, 512]");
    ERROR(c.params.format = TGL_QUANT_E5M6; c.x.t.dtype = tgl_dtype_to_dlpack(TGL_U8),
          "x: rows are 256 bytes, want a multiple of 12 for e5m6");
    ERROR(c.params.format = TGL_QUANT_E5M6; make(&c.x, memory + 258, on, TGL_U8, 2, SHAPE(3, 384)),
          "x: data is 2 bytes past a multiple of 4, want 0");
    ERROR(c.params.format = TGL_QUANT_E5M6; make(&c.x, memory + 256, on, TGL_U8, 2, SHAPE(3, 384));
          c.x.strides[0] = 386, "x: rows are 386 bytes apart, want a multiple of 4 for e5m6");
    ERROR(c.out.t.data = c.x.t.data, "out: memory is shared with x, want no overlap");
    ERROR(c.out.t.data = c.x_sf.t.data, "out: memory is shared with x_sf, want no overlap");
}

TEST_NO_DRIVER()
