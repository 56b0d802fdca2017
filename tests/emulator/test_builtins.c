/* SPDX-License-Identifier: MIT
 * test_builtins.c - CUDA's built-ins and the wrappers of ptx.cuh: what builtins.cu must give, worked out
 * here in plain C. Runs on a GPU, too (host.h). */
#include "host.h"

#include <math.h>

#include "numerics/e4m3.h"
#include "numerics/f16.h"

enum { BYTES = 1 << 16 };

static void *kernel(const char *entry)
{
    static void *library;
    if (!library) library = load_file("builtins.cu");
    return kernel_of(library, entry);
}
static bool ran(const char *entry, int status)
{
    CHECK_THAT(status == 0, "%s: the launch gives %d", entry, status);
    const int fault = cu.CtxSynchronize();
    CHECK_THAT(fault == 0, "%s: fault %d", entry, fault);
    return !status && !fault;
}
/* The usual run: one argument, the output, zero before. -> its contents, to be freed */
static void *run(const char *entry, uint32_t grid, uint32_t block, uint32_t shared, dptr out)
{
    void *args[] = { &out };
    CU(MemsetD8(out, 0, BYTES));
    ran(entry, launch(kernel(entry), grid, block, 1, PLAIN, shared, args));
    return host_copy(out, BYTES);
}
static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static bool before_hopper(void) { return start(), strcmp(arch, "sm_90a") < 0 && strlen(arch) < 6; }

TEST(index)
{
    FOR_SEEDS(s) {
        dptr out = device_copy(NULL, BYTES);
        void *args[] = { &out };
        const launch_config c = { { 3, 2, 2 }, { 5, 4, 2 }, 0, NULL, NULL, 0 };
        ran("t_index", cu.LaunchKernelEx(&c, kernel("t_index"), args, NULL));
        uint32_t *o = host_copy(out, BYTES);
        for (uint32_t b = 0; b < 12; b++)
            for (uint32_t t = 0; t < 40; t++) CHECK_INT(o[b * 40 + t], b << 16 | t);
        free(o);
        CU(MemFree(out));
    }
}

TEST(shuffle)
{
    FOR_SEEDS(s) {
        dptr out = device_copy(NULL, BYTES);
        int *o = run("t_shuffle", 1, 32, 0, out);
        for (int l = 0; l < 32; l++) {
            CHECK_INT(o[l], 105);
            CHECK_INT(o[32 + l], 100 + (l < 3 ? l : l - 3));
            CHECK_INT(o[64 + l], 100 + (l > 28 ? l : l + 3));
            CHECK_INT(o[96 + l], 100 + (l ^ 9));
            CHECK_INT(o[128 + l], 100 + l / 8 * 8 + 2);
            CHECK_INT(o[160 + l], 100 + (l ^ 1));
            CHECK_INT(o[192 + l], 100 + (l < 8 ? 7 - l : l == 31 ? 31 : l + 1));
            CHECK_INT(o[224 + l], l % 16 ? l - 1 : l);
        }
        free(o);
        CU(MemFree(out));
    }
}

TEST(vote_and_reduce)
{
    uint32_t every_third = 0, exclusive = 0;
    for (uint32_t i = 0; i < 32; i++) {
        exclusive ^= 3 * i;
        if (i % 3 == 0) every_third |= 1u << i;
    }
    FOR_SEEDS(s) {
        dptr out = device_copy(NULL, BYTES);
        uint32_t *o = run("t_vote", 1, 32, 0, out);
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t same = 0;
            for (uint32_t i = 0; i < 32; i++) same |= i % 5 == l % 5 ? 1u << i : 0;
            CHECK_INT(o[l], every_third);
            CHECK_INT(o[32 + l], 2);
            CHECK_INT(o[64 + l], same);
            CHECK_INT(o[96 + l], ~0u ^ 1);
            CHECK_INT(o[128 + l], 0);
            CHECK_INT(o[160 + l], 496);
            CHECK_INT((int)o[192 + l], -16);
            CHECK_INT((int)o[224 + l], 0);
            CHECK_INT(o[256 + l], exclusive);
            CHECK_INT(o[288 + l], 0xffff + (~0u << 7));
            CHECK_INT(o[320 + l], 31 + 32000 + 0 + 500);
            CHECK_INT(o[352 + l], (1u << l) - 1);
            CHECK_INT(o[384 + l], 155 + 2000);
        }
        free(o);
        CU(MemFree(out));
    }
}

TEST(integers)
{
    start();
    const uint32_t in[] = { 0x12345678u, 1, 0, 0xaabbccddu };
    const unsigned __int128 square = (unsigned __int128)0x12345678aabbccddull * 0x12345678aabbccddull;
    // clang-format off: a line for each kind of function
    const uint32_t want[] = {
        13, 24, 32, 8, 0, 0x80000000u,
        0xaabb1234u,
        0x78dddd56u,  /* bytes 1 of x, 4 of both, 4 again, 0 of x: selectors 1, 4, c, 0 from the low end */
        0x00000001u, 0x80000000u, 0x0f123456u, 3, (uint32_t)(square >> 96),
        13 + 20, 63, 11, 7 + 3, 2, (uint32_t)-2, 0x7fffffffu, 2, 0x4f000000u + 0xbf800000u,
    };
    // clang-format on
    dptr src = device_copy(in, sizeof in), out = device_copy(NULL, BYTES);
    void *args[] = { &src, &out };
    ran("t_bits", launch(kernel("t_bits"), 1, 1, 1, PLAIN, 0, args));
    uint32_t *o = host_copy(out, BYTES);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK_THAT(o[i] == want[i], "result %zu is %08x, want %08x", i, o[i], want[i]);
    CHECK_INT(o[sizeof want / sizeof *want], 0); /* nothing was forgotten here */
    free(o);
    CU(MemFree(src));
    CU(MemFree(out));
}

TEST(floats)
{
    const float in[] = { 1.0000001f, 3, 2, 0.5f, 10, 7 };
    const double a = in[0];
    /* exact ones first; then each with its relative error */
    const struct {
        double want, error;
    } expect[] = {
        { (float)(a * a - 1), 0 },
        { (float)(a * a) - 1.0f, 0 },
        { 1.0f / 3, 0 },
        { 1.0f / 3, 0 },
        { sqrtf(2), 0 },
        { (float)(1 / sqrt(2)), 0 },
        { (float)(a - 1), 0 },
        { 12582912, 0 }, /* a quarter below: down, not to nearest */
        { 0x1p-22, 0 },  /* 0x1p-22 + 0x1p-46 */
        { -0x1.000002p-22, 0 },
        { 0.5, 0 },
        { 0 - 1 + 1 - 0 - 3 + 2, 0 },
        { 96, 0 },
        { exp2(3.5), 0x1p-22 },
        { log2(10), 0x1p-22 },
        { 1 / 3.0, 0x1p-23 },
        { sqrt(2), 0x1p-23 },
        { tanh(0.5), 0x1p-10 },
        { exp(1.5), 0x1p-20 },
        { 1 / 7.0, 0x1p-21 },
        { exp(1), 0x1p-22 },
        { 0.5, 0x1p-22 },
        { log(5), 0x1p-20 },
        { log2(5), 0x1p-20 },
        { 3.5, 0 },
        { 0x7fffff, 0 },
    };
    FOR_SEEDS(s) {
        dptr src = device_copy(in, sizeof in), out = device_copy(NULL, BYTES);
        void *args[] = { &src, &out };
        ran("t_float", launch(kernel("t_float"), 1, 1, 1, PLAIN, 0, args));
        float *o = host_copy(out, BYTES);
        for (size_t i = 0; i < sizeof expect / sizeof *expect; i++) {
            const double rounding = expect[i].error > 0 ? 0x1p-24 : 0; /* the result is a float */
            CHECK_THAT(fabs(o[i] - expect[i].want) <= fabs(expect[i].want) * (expect[i].error + rounding),
                       "result %zu is %.9g, want %.9g within %g", i, o[i], expect[i].want, expect[i].error);
        }
        free(o);
        CU(MemFree(src));
        CU(MemFree(out));
    }
}

TEST(atomics)
{
    FOR_SEEDS(s) {
        const uint32_t before[13] = { [2] = 99, [5] = ~0u };
        const uint32_t after[13] = { 640, 319,     0,  ~0u, 0, 0, 320 % 10, (7 - 320 % 7) % 7, 960, (uint32_t)-320,
                                     77,  320 % 7, 320 };
        dptr out = device_copy(before, sizeof before), sum = device_copy(NULL, 4), wide = device_copy(NULL, 8);
        void *args[] = { &out, &sum, &wide };
        ran("t_atomics", launch(kernel("t_atomics"), 5, 64, 1, PLAIN, 0, args));
        uint32_t *o = host_copy(out, sizeof before);
        for (int i = 0; i < 13; i++) CHECK_THAT(o[i] == after[i], "word %d is %u, want %u", i, o[i], after[i]);
        float *f = host_copy(sum, 4);
        uint64_t *w = host_copy(wide, 8);
        CHECK(*f == 160);
        CHECK(*w == 320ull << 33);
        free(o);
        free(f);
        free(w);
        CU(MemFree(out));
        CU(MemFree(sum));
        CU(MemFree(wide));
    }
}

TEST(barriers)
{
    FOR_SEEDS(s) {
        dptr out = device_copy(NULL, BYTES);
        uint32_t *o = run("t_barriers", 1, 256, 0, out);
        for (uint32_t t = 0; t < 256; t++) {
            CHECK_INT(o[t], 86 + 1000 + 2 * (255 - ((t + 1) & 255)) * 10000);
            if (t >= 64) CHECK_INT(o[256 + t], 64 + (t >= 128 ? 1000 * (128 + (t + 77) % 128) : 0));
        }
        free(o);
        CU(MemFree(out));
    }
}

TEST(shared_memory)
{
    FOR_SEEDS(s) {
        dptr out = device_copy(NULL, BYTES);
        uint32_t *o = run("t_shared", 1, 32, 2048, out);
        for (uint32_t t = 0; t < 32; t++) {
            const uint32_t n = (t + 1) & 31, r = 31 - t;
            CHECK_INT(o[t], n + (n + 3) * 256 + (t / 4 + t % 4) * 65536);
            CHECK_INT(o[32 + t], r * 3);
            CHECK_INT(o[64 + t], r * 300);
            CHECK_INT(o[96 + t], r * 70000);
            CHECK_INT(o[128 + t], r);
            CHECK_INT(o[160 + t], (r + 7) * 1000 + r + 9);
            CHECK_INT(o[192 + t], (uint32_t)(1.5f * (float)r));
            CHECK_INT(o[224 + t], 2 + r / 2 * 2 + 1);
            CHECK_INT(o[256 + t], 0);
        }
        free(o);
        CU(MemFree(out));
    }
}

static uint32_t element(uint32_t matrix, uint32_t row, uint32_t column) { return matrix * 1000 + row * 10 + column; }
static uint32_t fragment(uint32_t matrix, uint32_t lane, bool trans)
{
    const uint32_t row = lane / 4, column = lane % 4 * 2;
    return trans ? element(matrix, column, row) | element(matrix, column + 1, row) << 16
                 : element(matrix, row, column) | element(matrix, row, column + 1) << 16;
}
TEST(matrices)
{
    FOR_SEEDS(s) {
        dptr out = device_copy(NULL, BYTES);
        uint32_t *o = run("t_matrices", 1, 32, 1024, out);
        static const struct {
            uint32_t matrix;
            bool trans;
        } loads[13] = {
            { 0, false }, { 0, true },  { 0, false }, { 1, false }, { 0, true }, { 1, true },
            { 0, false }, { 1, false }, { 2, false }, { 3, false }, { 3, true },
        };
        for (uint32_t i = 0; i < 11; i++)
            for (uint32_t l = 0; l < 32; l++) CHECK_INT(o[i * 32 + l], fragment(loads[i].matrix, l, loads[i].trans));
        if (!before_hopper()) {
            for (uint32_t k = 0; k < 6; k++) { /* x1, x2, x4, each also transposed */
                const uint32_t count = 1u << k / 2, first = k < 2 ? 2 : 0;
                /* the j-th pair of elements: matrix j / 32, row j / 4 % 8 */
                for (uint32_t j = 0; j < 128; j++) {
                    const uint32_t m = first + j / 32, r = j / 4 % 8, c = j % 4 * 2;
                    const uint32_t pair = k % 2 ? element(m, c, r) | element(m, c + 1, r) << 16
                                                : element(m, r, c) | element(m, r, c + 1) << 16;
                    CHECK_INT(o[13 * 32 + k * 128 + j], j / 32 < count ? pair : 0);
                }
            }
            for (uint32_t m = 0; m < 4; m++)
                for (uint32_t l = 0; l < 32; l++) CHECK_INT(o[(37 + m) * 32 + l], fragment(m, l, true));
        }
        free(o);
        CU(MemFree(out));
    }
}

TEST(streaming)
{
    FOR_SEEDS(s) {
        enum { COPIED = 2944 };
        uint8_t in[COPIED];
        for (int i = 0; i < COPIED; i++) in[i] = (uint8_t)(i * 7 + i / 256);
        dptr src = device_copy(in, sizeof in), out = device_copy(NULL, sizeof in);
        void *args[] = { &src, &out };
        ran("t_stream", launch(kernel("t_stream"), 1, 32, 1, PLAIN, 0, args));
        uint8_t *o = host_copy(out, sizeof in);
        for (int i = 0; i < COPIED; i++) {
            const int size = i < 2176 ? 4 : i < 2432 ? 8 : 16;
            const bool is_even = i >= 2048 && i / size % 2 == 0;         /* as the sections begin */
            CHECK_INT(o[i], (i >= 32 && i < 64) || is_even ? 0 : in[i]); /* 32 .. 63 are nobody's */
        }
        free(o);
        CU(MemFree(src));
        CU(MemFree(out));
    }
}

TEST(copy_async)
{
    FOR_SEEDS(s) {
        float in[256];
        for (int i = 0; i < 256; i++) in[i] = (float)(i + 1);
        dptr src = device_copy(in, sizeof in), out = device_copy(NULL, 512);
        void *args[] = { &src, &out };
        ran("t_copy_async", launch(kernel("t_copy_async"), 1, 32, 1, PLAIN, 2048, args));
        float *o = host_copy(out, 512);
        for (int t = 0; t < 32; t++) {
            const int r = 31 - t;
            double filled = 0;
            for (int i = 0; i < r % 5; i++) filled += in[i] * pow(10, i);
            CHECK(o[t] == in[4 * r] + in[4 * r + 3] * 1000);
            CHECK(o[32 + t] == in[128 + r]);
            CHECK(o[64 + t] == in[160 + 2 * r + 1]);
            CHECK_THAT(o[96 + t] == filled, "zero-filled copy of %d words: %g, want %g", r % 5, o[96 + t], filled);
        }
        free(o);
        CU(MemFree(src));
        CU(MemFree(out));
    }
}

/* FP8 by search over all codes, against the emulator's formula and the device's instruction alike */
static double fp8_value(int code, int mantissa, int bias)
{
    const int e = (code & 127) >> mantissa, m = code & ((1 << mantissa) - 1);
    const double v = e ? ldexp(1 + ldexp(m, -mantissa), e - bias) : ldexp(m, 1 - bias - mantissa);
    return code & 128 ? -v : v;
}
static uint32_t fp8_nearest(float x, int mantissa, int bias, int largest)
{
    if (isnan(x)) return 0x7f;
    /* beyond the largest code all are as good; the differences must be exact */
    const double a = fmin(fabs((double)x), 1e6);
    int best = 0;
    double distance = INFINITY;
    for (int c = 0; c <= largest; c++) {
        const double d = fabs(a - fp8_value(c, mantissa, bias));
        if (d < distance || (d == distance && c % 2 == 0)) distance = d, best = c;
    }
    return (uint32_t)best | (signbit(x) ? 128u : 0u);
}
/* The value of a 16-bit float, and the code nearest to a number by search: codes without their sign are in
 * the order of their values. */
static double half_value(uint32_t code, int mantissa, int bias)
{
    const int e = (int)(code & 0x7fff) >> mantissa, m = (int)code & ((1 << mantissa) - 1);
    if (e == 2 * bias + 1) return m ? NAN : code & 0x8000 ? -INFINITY : INFINITY;
    const double v = e ? ldexp(1 + ldexp(m, -mantissa), e - bias) : ldexp(m, 1 - bias - mantissa);
    return code & 0x8000 ? -v : v;
}
static uint32_t half_nearest(double x, int mantissa, int bias)
{
    if (isnan(x)) return 0x7fff;
    const uint32_t infinite = (uint32_t)(2 * bias + 1) << mantissa, sign = signbit(x) ? 0x8000 : 0;
    uint32_t low = 0, high = infinite; /* low's value <= |x| < high's */
    if (isinf(x)) return sign | infinite;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (half_value(middle, mantissa, bias) <= fabs(x)) low = middle;
        else high = middle;
    }
    /* past the largest, the next step up is where infinity is */
    const double step = half_value(low, mantissa, bias) - half_value(low ? low - 1 : 1, mantissa, bias);
    const double below = half_value(low, mantissa, bias);
    const double above = high < infinite ? half_value(high, mantissa, bias) : below + step;
    const double down = fabs(x) - below, up = above - fabs(x);
    return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}
static uint32_t f16_toward_zero(float x)
{
    if (isnan(x)) return 0x7fff;
    const uint32_t code = half_nearest(x, 10, 15);
    return fabs(half_value(code, 10, 15)) > fabs((double)x) ? code - 1 : code;
}
TEST(conversions)
{
    enum { N = 3000 };
    static float in[N];
    test_random random = test_seed("conversions");
    for (int i = 0; i < N; i++) {
        if (i < 256) in[i] = (float)fp8_value(i & 127, 3, 7);
        else if (i < 512) in[i] = (float)((fp8_value(i & 127, 3, 7) + fp8_value((i & 127) + 1, 3, 7)) / 2); /* ties */
        else if (i < 768) in[i] = (float)((fp8_value(i & 127, 2, 15) + fp8_value((i & 127) + 1, 2, 15)) / 2);
        else in[i] = ldexpf((float)(int32_t)test_bits(&random), (int)test_below(&random, 40) - 56);
        if (i % 2 && i < 768) in[i] = -in[i];
    }
    const float special[] = {
        NAN, INFINITY, -INFINITY, 0, -0.0f, 1e-30f, 3.4e38f, float_of(0x3f808000u), float_of(0x3f818000u)
    };
    memcpy(in + 1000, special, sizeof special);
    FOR_SEEDS(s) {
        int n = N;
        dptr src = device_copy(in, sizeof in), out = device_copy(NULL, BYTES);
        void *args[] = { &src, &out, &n };
        ran("t_convert", launch(kernel("t_convert"), (N + 127) / 128, 128, 1, PLAIN, 0, args));
        uint32_t *o = host_copy(out, BYTES);
        for (int i = 0; i < N; i++) {
            const float x = in[i];
            const uint32_t u = bits_of(x), bf16 = isnan(x) ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
            CHECK_THAT(o[i] == (bf16 | 0x4000u << 16), "bf16 of %g: %08x, want %08x", x, o[i], bf16 | 0x4000u << 16);
            CHECK_THAT(o[3 * N + i] == (tgl_f16_from_f32(x) | 0x4000u << 16), "f16 of %g: %08x, want %08x", x,
                       o[3 * N + i], tgl_f16_from_f32(x) | 0x4000u << 16);
            const uint32_t f16 = f16_toward_zero(x) | 0xbc000000u;
            CHECK_THAT(o[4 * N + i] == f16, "f16 of %g toward zero: %08x, want %08x", x, o[4 * N + i], f16);
            if (strcmp(arch, "sm_89") < 0 && strlen(arch) == 5) continue;
            const uint32_t e4m3 = fp8_nearest(x, 3, 7, 0x7e) | fp8_nearest(-x, 3, 7, 0x7e) << 8;
            const uint32_t e5m2 = fp8_nearest(x, 2, 15, 0x7b) | 0x3c00;
            CHECK_THAT(o[N + i] == e4m3, "e4m3 of %g: %04x, want %04x", x, o[N + i], e4m3);
            CHECK_THAT(o[2 * N + i] == e5m2, "e5m2 of %g: %04x, want %04x", x, o[2 * N + i], e5m2);
        }
        free(o);
        CU(MemFree(src));
        CU(MemFree(out));
    }
}

/* Kernels take 1 / d so (engram/common/short_conv.cuh, quant/common/swiglu.cuh). On a GPU all mantissas, else every 61st, among them
 * 0x186799, for which an error of 2^-23 is too much. */
TEST(reciprocals)
{
    FOR_SEEDS(s) {
        dptr out = device_copy(NULL, 8);
        for (int exponent = -60; exponent <= 120; exponent += 60) {
            uint32_t first = emu.Stats ? 0x186799 % 61 : 0, by = emu.Stats ? 61 : 1;
            void *args[] = { &out, &first, &by, &exponent };
            CU(MemsetD8(out, 0, 8));
            ran("t_reciprocals", launch(kernel("t_reciprocals"), emu.Stats ? 1 : 128, 256, 1, PLAIN, 0, args));
            uint32_t *o = host_copy(out, 8);
            CHECK_THAT(o[1] == 0, "%u reciprocals are wrong, that of mantissa %06x, exponent %d, first", o[1], o[0],
                       exponent);
            free(o);
        }
        CU(MemFree(out));
    }
}

TEST(widening)
{
    enum { N = 65536 };
    int n = N;
    dptr out = device_copy(NULL, 2 * N * sizeof(float[2]));
    void *args[] = { &out, &n };
    ran("t_widen", launch(kernel("t_widen"), N / 128, 128, 1, PLAIN, 0, args));
    uint32_t *o = host_copy(out, 2 * N * sizeof(float[2]));
    for (uint32_t i = 0; i < N; i++) {
        uint32_t lo = bits_of(tgl_f16_to_f32((uint16_t)i)), hi = bits_of(tgl_f16_to_f32((uint16_t)~i));
        CHECK_THAT(o[2 * i] == lo && o[2 * i + 1] == hi, "f16 %04x: %08x %08x, want %08x %08x", i, o[2 * i],
                   o[2 * i + 1], lo, hi);
        if (strcmp(arch, "sm_89") < 0 && strlen(arch) == 5) continue;
        const uint32_t *e4m3 = o + 2 * N + 2 * i;
        lo = bits_of(tgl_e4m3_to_f32((uint8_t)i)), hi = bits_of(tgl_e4m3_to_f32((uint8_t)(i >> 8)));
        CHECK_THAT(e4m3[0] == lo && e4m3[1] == hi, "e4m3 %04x: %08x %08x, want %08x %08x", i, e4m3[0], e4m3[1], lo, hi);
    }
    free(o);
    CU(MemFree(out));
}

static bool same_half(uint32_t got, uint32_t want, int mantissa, int bias)
{
    return got == want || (isnan(half_value(got, mantissa, bias)) && isnan(half_value(want, mantissa, bias)));
}
static uint32_t max_abs_half(uint32_t m, uint32_t x, int mantissa, int bias)
{
    const double a = half_value(m, mantissa, bias), b = fabs(half_value(x, mantissa, bias));
    return isnan(b) ? m : isnan(a) || b > a ? x & 0x7fff : m;
}
TEST(pairs)
{
    enum { N = 1400 };
    static uint32_t in[3 * N];
    test_random random = test_seed("pairs");
    for (int i = 0; i < 3 * N; i++)
        for (int half = 0; half < 32; half += 16) {
            const uint32_t r = (uint32_t)test_bits(&random);
            const uint32_t special[] = { 0, 0x8000, 1, 0x8001, 0x7c00, 0x7f80, 0x7fff, 0xffc1, 0x7e80 };
            const uint32_t any = r & 0xffff, base = i / 3 % 4 ? 0x3f00 : 0x3c00;
            const uint32_t near_1 = (r & 0x80ff) | (base + (r >> 16 & 0x300)); /* sums that round */
            in[i] |= (i % 9 < 5 ? near_1 : i % 9 < 8 ? any : special[r % 9]) << half;
        }
    FOR_SEEDS(s) {
        int n = N;
        dptr src = device_copy(in, sizeof in), out = device_copy(NULL, BYTES);
        void *args[] = { &src, &out, &n };
        ran("t_pairs", launch(kernel("t_pairs"), (N + 127) / 128, 128, 1, PLAIN, 0, args));
        uint32_t *o = host_copy(out, BYTES);
        for (int i = 0; i < N; i++)
            for (int half = 0; half < 32; half += 16) {
                const uint32_t a = in[3 * i] >> half & 0xffff, b = in[3 * i + 1] >> half & 0xffff,
                               c = in[3 * i + 2] >> half & 0xffff;
                uint32_t got[8];
                for (int k = 0; k < 6; k++) got[k] = o[k * N + i] >> half & 0xffff;
                for (int k = 0; k < 4; k++) {
                    const int mantissa = k % 2 ? 10 : 7, bias = k % 2 ? 15 : 127;
                    const double va = half_value(a, mantissa, bias), vb = half_value(b, mantissa, bias),
                                 vc = half_value(c, mantissa, bias), p = va * vb;
                    const bool is_exact = !isfinite(p + vc) || (p + vc - p == vc && p + vc - vc == p);
                    if (k > 1 && !is_exact) continue; /* the oracle adds in double */
                    const uint32_t want =
                        k < 2 ? max_abs_half(a & 0x7fff, b, mantissa, bias) : half_nearest(p + vc, mantissa, bias);
                    CHECK_THAT(same_half(got[k], want, mantissa, bias), "%s_%s of %04x %04x %04x: %04x, want %04x",
                               k < 2 ? "max_abs" : "fma", k % 2 ? "f16x2" : "bf16x2", a, b, c, got[k], want);
                }
                const uint32_t larger = o[10 * N + i] >> half & 0x7fff; /* with either sign */
                CHECK_THAT(same_half(larger, max_abs_half(a & 0x7fff, b, 7, 127), 7, 127),
                           "max_magnitude_bf16x2 of %04x %04x: %04x", a, b, larger);
                const float widened = float_of(o[(half ? 7 : 6) * N + i]);
                const double value = half_value(a, 10, 15);
                CHECK_THAT(isnan(value) ? isnan(widened) : bits_of(widened) == bits_of((float)value),
                           "f16 %04x to f32: %g, want %g", a, widened, value);
                if (!before_hopper()) {
                    CHECK_INT(got[4], a < b ? a : b);
                    CHECK_INT(got[5], a < b ? b : a);
                }
                if (strcmp(arch, "sm_89") < 0 && strlen(arch) == 5) continue;
                for (int high = 0; high < 2; high++) {
                    const uint32_t code = in[3 * i] >> (16 * high + half / 2) & 0xff;
                    const uint32_t f16 = o[(8 + high) * N + i] >> half & 0xffff;
                    const double want = (code & 127) == 127 ? NAN : fp8_value((int)code, 3, 7);
                    CHECK_THAT(same_half(f16, half_nearest(want, 10, 15), 10, 15), "e4m3 %02x to f16: %04x, want %g",
                               code, f16, want);
                }
            }
        free(o);
        CU(MemFree(src));
        CU(MemFree(out));
    }
}

TEST(mma)
{
    test_random random = test_seed("mma");
    FOR_SEEDS(s)
        for (int tf32 = 0; tf32 < 2; tf32++) {
            const int k = tf32 ? 8 : 16;
            uint32_t a[128] = { 0 }, b[64] = { 0 };
            double am[16][16], bm[16][8];
            for (int row = 0; row < 16; row++) /* from the matrix to the register that holds the element */
                for (int col = 0; col < k; col++) {
                    const uint32_t u = bits_of((float)test_below(&random, 512) / 64 - 4) & (tf32 ? ~0u : 0xffff0000u);
                    const int lane = row % 8 * 4 + (tf32 ? col % 4 : col % 8 / 2),
                              reg = (row >= 8) + 2 * (col >= k / 2);
                    a[lane * 4 + reg] |= tf32 || col % 2 ? u : u >> 16;
                    am[row][col] = float_of(u);
                }
            for (int row = 0; row < k; row++)
                for (int col = 0; col < 8; col++) {
                    const uint32_t u = bits_of((float)test_below(&random, 512) / 64 - 4) & (tf32 ? ~0u : 0xffff0000u);
                    const int lane = col * 4 + (tf32 ? row % 4 : row % 8 / 2), reg = row >= k / 2;
                    b[lane * 2 + reg] |= tf32 || row % 2 ? u : u >> 16;
                    bm[row][col] = float_of(u);
                }
            dptr da = device_copy(a, sizeof a), db = device_copy(b, sizeof b), out = device_copy(NULL, 512);
            void *args[] = { &da, &db, &out, &tf32 };
            ran("t_mma", launch(kernel("t_mma"), 1, 32, 1, PLAIN, 0, args));
            float *o = host_copy(out, 512);
            for (int row = 0; row < 16; row++)
                for (int col = 0; col < 8; col++) {
                    const int lane = row % 8 * 4 + col / 2, reg = (row >= 8) * 2 + (col & 1);
                    double sum = reg == 0 ? 0.5 : reg == 3 ? -1 : 0;
                    for (int i = 0; i < k; i++) sum += am[row][i] * bm[i][col];
                    /* multiples of 2^-12 (products of such of 2^-6) below 2^8: exact in float */
                    CHECK_THAT(o[lane * 4 + reg] == sum, "%s row %d column %d: %g, want %g", tf32 ? "tf32" : "bf16",
                               row, col, o[lane * 4 + reg], sum);
                }
            free(o);
            CU(MemFree(da));
            CU(MemFree(db));
            CU(MemFree(out));
        }
}

TEST(polling_between_blocks)
{
    FOR_SEEDS(s) {
        dptr flags = device_copy(NULL, 16 * 20), data = device_copy(NULL, 64), out = device_copy(NULL, BYTES);
        void *args[] = { &flags, &data, &out };
        ran("t_poll", launch(kernel("t_poll"), 20, 32, 1, COOPERATIVE, 0, args));
        uint32_t *o = host_copy(out, BYTES);
        for (uint32_t b = 0; b < 20; b++) {
            CHECK_INT(o[b], b + 1);
            if (b) CHECK_INT(o[64 + b], 55);
            if (b) CHECK_INT(o[128 + b], (9 << 16) + 16 * 3 + 4);
        }
        free(o);
        CU(MemFree(flags));
        CU(MemFree(data));
        CU(MemFree(out));
    }
}

TEST(programmatic_launch)
{
    if (before_hopper()) SKIP("%s has no programmatic launch", arch);
    FOR_SEEDS(s) {
        dptr out = device_copy(NULL, BYTES);
        void *args[] = { &out };
        ran("t_pdl", launch(kernel("t_pdl"), 1, 64, 1, PDL, 0, args));
        uint32_t *o = host_copy(out, BYTES);
        for (uint32_t t = 0; t < 64; t++) CHECK_INT(o[t], t);
        free(o);
        CU(MemFree(out));
    }
}

TEST(constants_of_programmatic_launches)
{
    if (before_hopper()) SKIP("%s has no programmatic launch", arch);
    FOR_SEEDS(s) {
        uint32_t in[64];
        for (uint32_t t = 0; t < 64; t++) in[t] = t;
        for (uint32_t is_constant = 0; is_constant < 2; is_constant++) {
            dptr constants = device_copy(in, sizeof in), out = device_copy(NULL, BYTES);
            void *args[] = { &constants, &out, &is_constant };
            ran("t_pdl_constants", launch(kernel("t_pdl_constants"), 1, 64, 1, PDL, 0, args));
            uint32_t *o = host_copy(out, BYTES);
            for (uint32_t t = 0; t < 64; t++) CHECK_INT(o[t], t);
            free(o);
            CU(MemFree(constants));
            CU(MemFree(out));
        }
    }
}

TEST(bulk_copies)
{
    if (before_hopper()) SKIP("%s has no bulk copies", arch);
    FOR_SEEDS(s) {
        float in[256];
        for (int i = 0; i < 256; i++) in[i] = (float)i;
        dptr src = device_copy(in, sizeof in), out = device_copy(NULL, 512);
        void *args[] = { &src, &out };
        ran("t_bulk", launch(kernel("t_bulk"), 1, 32, 1, PLAIN, 4096 + 8, args));
        float *o = host_copy(out, 512);
        for (int i = 0; i < 128; i++) CHECK_INT(o[i], i / 4 * 8 + i % 4);
        free(o);
        CU(MemFree(src));
        CU(MemFree(out));
    }
}

TEST(clusters)
{
    if (before_hopper()) SKIP("%s has no clusters", arch);
    FOR_SEEDS(s) {
        dptr out = device_copy(NULL, BYTES);
        void *args[] = { &out };
        ran("t_cluster", launch(kernel("t_cluster"), 8, 64, 4, PLAIN, 1032, args));
        uint32_t *o = host_copy(out, BYTES);
        for (uint32_t b = 0; b < 8; b++)
            for (uint32_t t = 0; t < 64; t++) {
                const uint32_t rank = b & 3, next = (rank + 1) & 3, before = (rank + 3) & 3;
                CHECK_INT(o[b * 64 + t], next * 100 + 63 - t + 1000 * before + 10000 * (t & 7));
            }
        free(o);
        CU(MemFree(out));
    }
}

TEST(tensor_copies_3d)
{
    if (before_hopper()) SKIP("%s has no tensor copies", arch);
    static uint16_t x[5][11][128];
    for (int i = 0; i < 5 * 11 * 128; i++) ((uint16_t *)x)[i] = (uint16_t)(i * 7 + 1);
    /* Rows end at a multiple of 16 bytes, and stores begin inside the tensor. With rows of 200 bytes and a
     * store at negative coordinates an H200 wrote past the rows' ends and then faulted; which of the two did
     * what was not looked into. */
    const uint64_t dims[] = { 104, 11, 5 }, strides[] = { 256, 11 * 256 };
    const uint32_t box[] = { 64, 8, 2 }, element_strides[] = { 1, 1, 1 };
    FOR_SEEDS(s)
        for (int c = 0; c < 5; c++) {
            int at[] = { c & 1 ? 64 : 0, c & 2 ? 6 : 1, c == 3 ? 4 : c };
            if (c == 4) at[0] = -8, at[1] = -3, at[2] = -1;
            int put[] = { at[0] < 0 ? 0 : at[0], at[1] < 0 ? 0 : at[1], at[2] < 0 ? 0 : at[2] };
            dptr src = device_copy(x, sizeof x), to = device_copy(NULL, sizeof x), out = device_copy(NULL, BYTES);
            _Alignas(64) char map[128], to_map[128];
            CU(TensorMapEncodeTiled(map, 1, 3, (void *)src, dims, strides, box, element_strides, 0, 3, 0, 0));
            CU(TensorMapEncodeTiled(to_map, 1, 3, (void *)to, dims, strides, box, element_strides, 0, 3, 0, 0));
            void *args[] = { map, to_map, &out, &at[0], &at[1], &at[2], &put[0], &put[1], &put[2] };
            ran("t_tensor_3d", launch(kernel("t_tensor_3d"), 1, 64, 1, PLAIN, 2048 + 8, args));
            uint32_t *o = host_copy(out, BYTES);
            uint16_t (*stored)[11][128] = host_copy(to, sizeof x);
            for (int i = 0; i < 1024; i++) {
                const int e = at[0] + i % 64, r = at[1] + i / 64 % 8, p = at[2] + i / 512;
                const bool inside = e >= 0 && r >= 0 && p >= 0 && e < 104 && r < 11 && p < 5;
                CHECK_THAT(o[i] == (inside ? x[p][r][e] : 0u), "box %d element %d: %u", c, i, o[i]);
            }
            for (int p = 0; p < 5; p++)
                for (int r = 0; r < 11; r++)
                    for (int e = 0; e < 128; e++) {
                        const int i = e - put[0], j = r - put[1], k = p - put[2]; /* in the box */
                        const bool in_box = i >= 0 && i < 64 && j >= 0 && j < 8 && k >= 0 && k < 2;
                        CHECK_INT(stored[p][r][e], in_box && e < 104 ? (uint16_t)(o[(k * 8 + j) * 64 + i] + 1) : 0);
                    }
            free(o);
            free(stored);
            CU(MemFree(src));
            CU(MemFree(to));
            CU(MemFree(out));
        }
}

TEST(tensor_copies_4d) /* the last dimension is inside of the others, as columns in blocks are */
{
    if (before_hopper()) SKIP("%s has no tensor copies", arch);
    static uint16_t x[5][4][192];
    for (int i = 0; i < 5 * 4 * 192; i++) ((uint16_t *)x)[i] = (uint16_t)(i * 7 + 1);
    const uint64_t dims[] = { 64, 4, 5, 3 }, strides[] = { 2 * 192, 2 * 4 * 192, 128 };
    const uint32_t box[] = { 64, 4, 2, 2 }, element_strides[] = { 1, 1, 1, 1 };
    FOR_SEEDS(s)
        for (int c = 0; c < 3; c++) {
            int at[] = { 0, 0, 2 * c, c };
            dptr src = device_copy(x, sizeof x), out = device_copy(NULL, BYTES);
            _Alignas(64) char map[128];
            CU(TensorMapEncodeTiled(map, 1, 4, (void *)src, dims, strides, box, element_strides, 0, 3, 0, 0));
            void *args[] = { map, &out, &at[0], &at[1], &at[2], &at[3] };
            ran("t_tensor_4d", launch(kernel("t_tensor_4d"), 1, 64, 1, PLAIN, 2048 + 8, args));
            uint32_t *o = host_copy(out, BYTES);
            for (int i = 0; i < 1024; i++) {
                const int e = i % 64, r = i / 64 % 4, p = at[2] + i / 256 % 2, b = at[3] + i / 512;
                CHECK_THAT(o[i] == (p < 5 && b < 3 ? x[p][r][64 * b + e] : 0u), "box %d element %d: %u", c, i, o[i]);
            }
            free(o);
            CU(MemFree(src));
            CU(MemFree(out));
        }
}

TEST(tensor_copies_2d)
{
    if (before_hopper()) SKIP("%s has no tensor copies", arch);
    static float x[20][64];
    for (int i = 0; i < 20 * 64; i++) ((float *)x)[i] = (float)(i + 1);
    const uint64_t dims[] = { 50, 20 }, strides[] = { 256 };
    const uint32_t box[] = { 32, 8 }, element_strides[] = { 1, 1 };
    FOR_SEEDS(s) {
        int c0 = 32, c1 = 15;
        dptr src = device_copy(x, sizeof x), to = device_copy(NULL, sizeof x);
        _Alignas(64) char map[128], to_map[128];
        CU(TensorMapEncodeTiled(map, 7, 2, (void *)src, dims, strides, box, element_strides, 0, 0, 0, 0));
        CU(TensorMapEncodeTiled(to_map, 7, 2, (void *)to, dims, strides, box, element_strides, 0, 0, 0, 0));
        void *args[] = { map, to_map, &c0, &c1 };
        ran("t_tensor_2d", launch(kernel("t_tensor_2d"), 1, 32, 1, PLAIN, 1024 + 8, args));
        float (*o)[64] = host_copy(to, sizeof x);
        for (int r = 0; r < 20; r++)
            for (int e = 0; e < 64; e++) CHECK_INT(o[r][e], r >= 15 && e >= 32 && e < 50 ? x[r][e] : 0);
        free(o);
        CU(MemFree(src));
        CU(MemFree(to));
    }
}

TEST(registers)
{
    if (before_hopper()) SKIP("%s cannot trade registers", arch);
    start();
    dptr out = device_copy(NULL, BYTES);
    uint32_t *o = run("t_registers", 1, 256, 0, out);
    for (uint32_t t = 0; t < 256; t++) CHECK_INT(o[t], t);
    free(o);
    CU(MemFree(out));
}

TEST(cost_of_a_switch) /* printed, not judged: the machine is shared */
{
    start();
    if (!emu.Stats) SKIP("not the emulated device");
    emu.Seed(0);
    dptr out = device_copy(NULL, 4 << 20);
    void *args[] = { &out };
    for (uint32_t block = 256; block <= 1024; block *= 4) {
        emu_statistics a, b;
        ran("t_barriers_only", launch(kernel("t_barriers_only"), 1, block, 1, PLAIN, 0, args));
        emu.Stats(&a);
        ran("t_barriers_only", launch(kernel("t_barriers_only"), 20, block, 1, PLAIN, 0, args));
        emu.Stats(&b);
        CHECK(b.switches > a.switches && b.launches == a.launches + 1 && b.threads == a.threads + 20 * block);
        printf("  %u threads, 20 barriers: %.3f ms a block, %.0f ns a switch\n", block, (b.seconds - a.seconds) * 50,
               (b.seconds - a.seconds) / (double)(b.switches - a.switches) * 1e9);
    }
    CU(MemFree(out));
}
