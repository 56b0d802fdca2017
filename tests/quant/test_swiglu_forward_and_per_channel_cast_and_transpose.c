/* SPDX-License-Identifier: MIT
 * tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose, on every device of the tests: activations are
 * rounded to bf16, then cast. */
#include "support.h"

TESTS_OF_TABLE("quant_swiglu_forward_and_per_channel_cast_and_transpose")

TEST(worked_example)
{
    FOR_BACKENDS(b)
        for (int without = 0; without < 2; without++) {
            /* doc: swiglu_forward_and_per_channel_cast_and_transpose */
            const float x[3][4] = { { 1, 0, /* ups */ 2, 7 }, { 0, 1, 1, -2 }, { -1, 0, 1, 0 } };
            /* 1.4621172, of which bf16 makes 1.4609375, is the largest of either column */
            const float out_sf[2] = { 1.4609375f / 448, 1.4609375f / 448 };
            const uint8_t turned[2][3] = { { 0x7e, 0x00, 0xea }, { 0x00, 0xfe, 0x00 } };
            const uint8_t straight[3][2] = { { 0x7e, 0x00 }, { 0x00, 0xfe }, { 0xea, 0x00 } };
            const tgl_quant_params params = { .num_per_tokens = 3, .without_transpose = without };
            /* end */
            CALL(quant_swiglu_forward_and_per_channel_cast_and_transpose, b, &params, FLOATS(TGL_BF16, x[0], 3, 4),
                 OUT(TGL_E4M3, without ? straight[0] : turned[0], without ? 3 : 2, without ? 2 : 3),
                 OUT(TGL_F32, out_sf, 1, 2));
        }
}

/* With blocks of one value, a factor is the activation in bf16, divided by 448; codes are transposed. */
static void cast_values(const backend *b, int64_t rows, int64_t cols, const float *x, void *codes, void *sf)
{
    CALL(quant_swiglu_forward_and_per_channel_cast_and_transpose, b, PARAMS(0), FLOATS(TGL_BF16, x, rows, 2 * cols),
         GET(TGL_E4M3, codes, cols, rows), GET(TGL_F32, sf, rows, cols));
}

/* Kernels take a shorter way if all gates of a patch, at most 4 rows by 8 columns, are small. Here a patch
 * has neighbours, and one ends with 87. Where exp is nearly infinite ups are large: otherwise the products
 * would be 0. */
TEST(every_bf16_gate)
{
    enum { ROWS = 256, COLS = 256 };
    static float x[ROWS][2 * COLS], sf[ROWS][COLS];
    static uint8_t codes[COLS][ROWS];
    for (uint32_t i = 0; i < ROWS * COLS; i++) {
        const uint32_t at = (i + 17) % 65536;
        const uint32_t row = at / 1024 * 4 + at / 8 % 4, col = at / 32 % 32 * 8 + at % 8;
        const float gate = float_of(i << 16), up = gate > -89 && gate < -64 ? 0x3p118f : 0.75f;
        x[row][col] = gate;
        x[row][COLS + col] = i & 1 ? -up : up;
    }
    FOR_BACKENDS(b) {
        int num_checked = 0;
        cast_values(b, ROWS, COLS, x[0], codes, sf);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) {
                const double gate = x[i][j], v = fabs(gate / (1 + exp(-gate)) * x[i][COLS + j]);
                const bool is_negative = signbit(x[i][j]) != signbit(x[i][COLS + j]);
                const uint8_t code = codes[j][i];
                const bool is_nan = isnan(gate) || isinf(gate); /* inf * 0, -inf / inf */
                CHECK_THAT(is_nan == ((code & 0x7f) == 0x7f) && (is_nan || code >> 7 == is_negative),
                           "%s: gate %a: code 0x%02x", b->name, gate, code);
                uint16_t low, high;
                case_encode(TGL_BF16, v * (1 - 0x1p-21), &low);
                case_encode(TGL_BF16, v * (1 + 0x1p-21), &high);
                if (low != high) continue; /* exp decides */
                num_checked++;
                const float want = fmaxf(of_bf16(high), 1e-4f) / 448;
                CHECK_THAT(sf[i][j] == want, "%s: gate %a: factor %a, want %a", b->name, gate, (double)sf[i][j],
                           (double)want);
            }
        CHECK_THAT(num_checked > 50000, "%s: %d of all gates", b->name, num_checked);
    }
}

/* From 32 on, 1 + exp(-gate) is 1: products are exact, and may be halfway between two bf16. */
TEST(ties_go_to_even)
{
    enum { ROWS = 128, COLS = 128 };
    static float x[ROWS][2 * COLS], sf[ROWS][COLS];
    static uint8_t codes[COLS][ROWS];
    int num_ties = 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) {
            x[i][j] = 32 + 0.25f * (float)i;
            x[i][COLS + j] = 1 + (float)j / 128;
            const int product = (128 + i) * (128 + j), unit = product < 1 << 15 ? 128 : 256;
            num_ties += product % unit == unit / 2;
        }
    CHECK(num_ties > 50);
    FOR_BACKENDS(b) {
        cast_values(b, ROWS, COLS, x[0], codes, sf);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) {
                uint16_t v;
                case_encode(TGL_BF16, (double)x[i][j] * x[i][COLS + j], &v);
                const float want = of_bf16(v) / 448;
                CHECK_THAT(sf[i][j] == want, "%s: %a times %a: factor %a, want %a", b->name, (double)x[i][j],
                           (double)x[i][COLS + j], (double)sf[i][j], (double)want);
            }
    }
}

TEST(clamp_values_are_f32) /* the bf16 nearest to 0.3 is 0.30078125, and is clamped to 0.3 */
{
    const float x[2] = { 0.30078125f, -0.30078125f };
    uint16_t v;
    case_encode(TGL_BF16, 0.3 / (1 + exp(-0.3)) * 0.3, &v);
    const float want = of_bf16(v) / 448;
    FOR_BACKENDS(b)
        CALL(quant_swiglu_forward_and_per_channel_cast_and_transpose, b,
             PARAMS(.has_swiglu_clamp_value = true, .swiglu_clamp_value = 0.3f), FLOATS(TGL_BF16, x, 1, 2),
             OUT(TGL_E4M3, BYTES(0xfe), 1, 1), OUT(TGL_F32, &want, 1, 1));
}

TEST(nan_stays)
{
    const float x[8] = { NAN, 1, 1, NAN, /**/ 1, NAN, 9, -9 }; /* two rows of two gates, two ups */
    FOR_BACKENDS(b)
        CALL(quant_swiglu_forward_and_per_channel_cast_and_transpose, b,
             PARAMS(.num_per_tokens = 2, .round_sf = true, .has_swiglu_clamp_value = true, .swiglu_clamp_value = 1),
             IN(TGL_F32, x, 2, 4), OUT(TGL_E4M3, BYTES(0x7f, 0x7c, 0x7f, 0x7f), 2, 2), /* silu(1) = 0.731 */
             OUT(TGL_F32, F32S(0x1p-9f, 0x1p-22f), 1, 2));
}

/* An up, as bits of bf16. A column has one kind: any bits; subnormals; numbers near a power of two, or up to
 * the largest; zeros; numbers halfway between codes; some NaN; any exponents and, rarely, infinity. */
static uint16_t special_up(test_random *r, int kind, int64_t power)
{
    const uint64_t bits = test_bits(r);
    const int64_t near = power - (int64_t)(bits >> 32) % 24;
    const uint64_t exponent = (uint64_t)(near > 0 ? near : 0) << 7, far = (bits >> 32) % 255 << 7;
    const uint64_t number = bits & 0x807f;
    switch (kind) {
    case 0: return (uint16_t)bits;
    case 1: return (uint16_t)(number | (bits >> 20 & 1) << 7);
    case 2: return (uint16_t)(number | exponent);
    case 3: return (uint16_t)(number | (248 - (bits >> 32) % 26) << 7);
    case 4: return (uint16_t)(bits & 0x8000);
    case 5: return (uint16_t)((bits & 0x8040) | exponent);
    case 6: return (uint16_t)((bits >> 40) % 5 == 0 ? 0x7fc1 | (bits & 0x8000) : number | exponent);
    default: return (uint16_t)((bits >> 40) % 300 == 0 ? 0x7f80 | (bits & 0x8000) : number | far);
    }
}

/* silu(64) and silu(100) are exact, so all devices give the CPU's codes and factors, here without the
 * transpose. If factors are powers of two, kernels scale bf16 in pairs; gates above 87 take another way. */
static void check_special_values(int64_t rows, int64_t cols, int64_t block, bool is_clamped)
{
    const tgl_quant_params params = {
        .num_per_tokens = block, .round_sf = true, .has_swiglu_clamp_value = is_clamped, .swiglu_clamp_value = 96
    };
    tgl_quant_params straight = params;
    straight.without_transpose = true;
    const int64_t blocks = (rows + block - 1) / block;
    uint16_t *x = malloc((size_t)(4 * rows * cols));
    uint8_t *codes = malloc((size_t)(rows * cols)), *turned = malloc((size_t)(rows * cols));
    float *factors = malloc((size_t)(4 * blocks * cols));
    test_random r = test_seed("special_values");
    for (int64_t j = 0; j < cols; j++) {
        const int kind = (int)test_below(&r, 8);
        const int64_t power = 1 + test_below(&r, 254);
        for (int64_t i = 0; i < rows; i++) {
            x[2 * i * cols + j] = test_below(&r, 7) ? 0x4280 : 0x42c8;
            x[(2 * i + 1) * cols + j] = special_up(&r, kind, power);
        }
    }
    tensor in, out, sf;
    make(&in, x, cpu, TGL_BF16, 2, SHAPE(rows, 2 * cols));
    make(&out, codes, cpu, TGL_E4M3, 2, SHAPE(rows, cols));
    make(&sf, factors, cpu, TGL_F32, 2, SHAPE(blocks, cols));
    CHECK_OK(tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(&in.t, &out.t, &sf.t, &straight, NULL));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) turned[j * rows + i] = codes[i * cols + j];
    FOR_BACKENDS(b)
        CALL(quant_swiglu_forward_and_per_channel_cast_and_transpose, b, &params, IN(TGL_BF16, x, rows, 2 * cols),
             OUT(TGL_E4M3, turned, cols, rows), OUT(TGL_F32, factors, blocks, cols));
    free(x), free(codes), free(turned), free(factors);
}

TEST(special_values)
{
    check_special_values(130, 72, 32, false);   /* two rows a thread */
    check_special_values(131, 3208, 128, true); /* four */
    setenv("TEGULA_TEST_KERNEL", "0", 1);       /* eight, in long tiles */
    check_special_values(259, 400, 32, true);
    unsetenv("TEGULA_TEST_KERNEL");
}

TEST(long_tiles)
{
    check_kernel("quant_swiglu_forward_and_per_channel_cast_and_transpose", 0,
                 (const char *const[]){
                     "num_rows=259,515 num_cols=144 num_per_tokens=64 round=0,1 clamp=none,0.5 values=mixed",
                     "num_rows=259 num_cols=147 round=1 values=mixed", NULL }); /* x is not aligned */
}

TEST(empty)
{
    check_empty(CALL_OF(quant_swiglu_forward_and_per_channel_cast_and_transpose,
                        "num_rows=0 num_cols=64 num_per_tokens=128"));
}

#define GOOD_CALL \
    CALL_OF(quant_swiglu_forward_and_per_channel_cast_and_transpose, "num_rows=6 num_cols=16 num_per_tokens=4")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(quant_swiglu_forward_and_per_channel_cast_and_transpose,
                         "num_rows=6 num_cols=16 without_transpose=1 has_swiglu_clamp_value=1"));
    CHECK_ERROR(x[0].shape[1] = 31, "x: columns are 31, want an even number (gates, ups)");
    CHECK_ERROR(PARAMS_OF(c)->without_transpose = true, "out: shape is [16, 6], want [6, 16]");
    CHECK_ERROR(PARAMS_OF(c)->has_swiglu_clamp_value = true;
                PARAMS_OF(c)->swiglu_clamp_value = -0.5f, "swiglu_clamp_value: is -0.5, want >= 0");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
