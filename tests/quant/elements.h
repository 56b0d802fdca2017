/* SPDX-License-Identifier: MIT
 * elements.h - ops that cast blocks, on every number of bf16, and on the floats at and beside all codes and
 * all midpoints of two codes. The results come from the definitions of formats and factors; nothing of cases/
 * or src/ is used. */
#ifndef TEGULA_QUANT_ELEMENTS_H
#define TEGULA_QUANT_ELEMENTS_H

#include "support.h"

/* ---- e4m3 and e2m1 ---- */

static inline unsigned last_code(tgl_quant_format format) { return format == TGL_QUANT_E2M1 ? 7 : 0x7e; }

/* A code without its sign. e4m3: 4 bits of exponent, bias 7, above 3 bits of fraction. */
static inline double magnitude_of(tgl_quant_format format, unsigned code)
{
    static const double of_e2m1[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    if (format == TGL_QUANT_E2M1) return of_e2m1[code];
    const int exponent = (int)(code >> 3), fraction = (int)(code & 7);
    return exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction, -9);
}

/* The nearest code, ties to even; larger values give the last code. */
static inline uint8_t nearest_code(tgl_quant_format format, float value)
{
    const unsigned last = last_code(format), sign = signbit(value) ? format == TGL_QUANT_E2M1 ? 8 : 0x80 : 0;
    const double at = fabs((double)value);
    if (isnan(value)) return format == TGL_QUANT_E2M1 ? 7 : 0x7f;
    unsigned code = 0; /* the largest not above the value */
    for (unsigned step = (last + 1) / 2 + 1; step; step /= 2)
        while (code + step <= last && magnitude_of(format, code + step) <= at) code += step;
    if (code < last) {
        const double below = at - magnitude_of(format, code), above = magnitude_of(format, code + 1) - at;
        code += above < below || (above == below && code % 2);
    }
    return (uint8_t)(sign | code);
}

/* ---- factors ---- */

typedef struct { float sf, inv; } block_factor;
static inline block_factor factor_of_block(tgl_quant_format format, float amax, bool is_rounded)
{
    const float largest = format == TGL_QUANT_E2M1 ? 6 : 448;
    const float floor = format == TGL_QUANT_E2M1 ? 0x1.8p-124f : 1e-4f;
    const float a = amax > floor ? amax : floor, sf = a / largest;
    if (!is_rounded) return (block_factor){ sf, largest / a };
    int power = 127; /* for infinity, too */
    if (isfinite(sf)) power = frexpf(sf, &power) == 0.5f ? power - 1 : power;
    return (block_factor){ ldexpf(1, power), power == 127 ? 0 : ldexpf(1, -power) };
}

/* ---- all elements ---- */

/* All of bf16, in ascending magnitude, so that a block has numbers of one scale; NaN last. For f32 then the
 * values of codes and their midpoints, with the floats on either side. Returns their number. */
enum { MAX_ELEMENTS = 65536 + 0x7f * 12 };
static inline int64_t list_elements(tgl_quant_format format, bool is_bf16, float *list)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < 65536; i++) list[count++] = float_of((i >> 1 | i << 15) << 16);
    for (unsigned code = 0; !is_bf16 && code <= last_code(format); code++) {
        const double here = magnitude_of(format, code);
        const double middle = code < last_code(format) ? (here + magnitude_of(format, code + 1)) / 2 : here;
        const float points[] = { (float)here, (float)middle };
        for (int p = 0; p < 2; p++)
            for (int side = -1; side < 2; side++) {
                const float value = side ? nextafterf(points[p], side < 0 ? -INFINITY : INFINITY) : points[p];
                list[count++] = value;
                list[count++] = -value;
            }
    }
    return count;
}

/* An op: tensor 0 is x, the rest begins at `first`, what is between is not given. */
typedef struct {
    tgl_signature *signature;
    errors_invoke call;
    int first;
} cast_op;
#define CAST_OP(name, first) { &tgl_quant_##name##_signature, call_quant_##name, first }

typedef struct {
    cast_op op;
    tgl_quant_format format;
    int64_t block_rows, block_cols, num_cols; /* num_cols is a multiple of block_cols */
    bool is_rounded, is_transposed;
    /* Each block begins with the value of the largest code, times the smallest power of two >= 1 that makes
     * it the amax: the factor is that power, and no product rounds. */
    bool has_largest;
} element_check;

static inline void check_elements_in(const backend *b, const element_check *c, bool is_bf16)
{
    static float list[MAX_ELEMENTS];
    const int64_t count = list_elements(c->format, is_bf16, list), size = c->block_rows * c->block_cols;
    const int64_t k = c->num_cols / c->block_cols, first = c->has_largest;
    const int64_t m = (count + k * (size - first) - 1) / (k * (size - first));
    const int64_t rows = m * c->block_rows, cols = c->num_cols, pairs = c->format == TGL_QUANT_E2M1;
    float *x = calloc((size_t)(rows * cols), sizeof *x), *sf = calloc((size_t)(m * k), sizeof *sf);
    uint8_t *codes = calloc((size_t)(rows * cols), 1);
    REQUIRE(x && sf && codes);
    for (int64_t block = 0; block < m * k; block++) {
        const int64_t row = block / k * c->block_rows, col = block % k * c->block_cols;
        const float *values = list + block * (size - first);
        float amax = 0, largest = (float)magnitude_of(c->format, last_code(c->format));
        for (int64_t i = first; i < size; i++) {
            const float value = values - list + i - first < count ? values[i - first] : 0;
            x[(row + i / c->block_cols) * cols + col + i % c->block_cols] = value;
            if (fabsf(value) > amax) amax = fabsf(value);
        }
        if (first) {
            while (largest < amax && isfinite(2 * largest)) largest *= 2;
            x[row * cols + col] = block % 2 ? -largest : largest;
            if (largest > amax) amax = largest;
        }
        const block_factor f = factor_of_block(c->format, amax, c->is_rounded);
        sf[block] = f.sf;
        for (int64_t i = 0; i < size; i++) {
            const int64_t r = row + i / c->block_cols, j = col + i % c->block_cols;
            const unsigned code = nearest_code(c->format, x[r * cols + j] * f.inv);
            if (pairs) codes[(r * cols + j) / 2] |= (uint8_t)(j % 2 ? code << 4 : code);
            else codes[c->is_transposed ? j * rows + r : r * cols + j] = (uint8_t)code;
        }
    }
    const int64_t height = c->is_transposed ? cols : rows, width = c->is_transposed ? rows : cols >> pairs;
    call_arg args[TGL_MAX_TENSORS] = { FLOATS(is_bf16 ? TGL_BF16 : TGL_F32, x, rows, cols) };
    args[c->op.first] = (call_arg)OUT(pairs ? TGL_U8 : TGL_E4M3, codes, height, width);
    args[c->op.first + 1] = (call_arg)OUT(TGL_F32, sf, m, k);
    check_call(b, c->op.signature, c->op.call,
               PARAMS(.format = c->format, .num_per_tokens = c->block_rows, .num_per_channels = c->block_cols,
                      .round_sf = c->is_rounded),
               args, c->op.first + 2);
    free(x), free(sf), free(codes);
}

/* Both dtypes; factors rounded or not, with the largest code or not. */
static inline void check_all_elements(cast_op op, tgl_quant_format format, int64_t block_rows, int64_t block_cols,
                                      int64_t num_cols, bool is_transposed)
{
    FOR_BACKENDS(b)
        for (int i = 0; i < 8; i++)
            check_elements_in(b,
                              &(element_check){ op, format, block_rows, block_cols, num_cols, i & 1, is_transposed,
                                                i & 2 },
                              i & 4);
}

/* ---- all codes of given factors ---- */

/* Every code of UE8M0, 0 and 255 too, as a given factor, k in a word. Each block has 1.5 times its factor,
 * its negative, and special values. */
static inline void check_given_codes_in(const backend *b, tgl_quant_format format, bool is_bf16, int64_t width,
                                        int64_t k, const cast_op *op)
{
    enum { MAX_VALUES = 256 * 128 };
    static float x[MAX_VALUES];
    static uint8_t want[MAX_VALUES], codes[4 * 256];
    const int64_t rows = 256 / k, cols = k * width, is_pair = format == TGL_QUANT_E2M1;
    REQUIRE(256 * width <= MAX_VALUES);
    memset(want, 0, sizeof want);
    memset(codes, 0, sizeof codes);
    for (int code = 0; code < 256; code++) {
        const float sf = code == 0 ? 0 : ldexpf(1, code - 127), near = ldexpf(1, code - 127);
        const float values[] = { 1.5f * near, -near, 0, -0.0f, 0x1.cp127f, 0x1p-130f, INFINITY, NAN };
        codes[code / k * 4 + code % k] = (uint8_t)code;
        for (int64_t j = 0; j < width; j++) {
            const int64_t at = code * width + j; /* k blocks are a row */
            x[at] = values[(at + code / k) % 8];
            const unsigned element = nearest_code(format, x[at] * (1 / sf));
            want[at >> is_pair] |= (uint8_t)(is_pair && at % 2 ? element << 4 : element);
        }
    }
    call_arg args[TGL_MAX_TENSORS] = { FLOATS(is_bf16 ? TGL_BF16 : TGL_F32, x, rows, cols) };
    args[op->first] = (call_arg){ TGL_I32, SIZES(rows, 1), .strides = { 1, rows }, .contents = codes };
    args[op->first + 1] = (call_arg)OUT(is_pair ? TGL_U8 : TGL_E4M3, want, rows, cols >> is_pair);
    check_call(b, op->signature, op->call, PARAMS(.format = format, .num_per_channels = width), args, op->first + 2);
}

/* Both dtypes and formats, on all SMs and on one. */
static inline void check_given_codes(int64_t width, int64_t k, cast_op op)
{
    FOR_BACKENDS(b)
        for (int i = 0; i < (backend_is_cpu(b) ? 4 : 8); i++) {
            use_one_sm(b, i / 4);
            check_given_codes_in(b, i & 1 ? TGL_QUANT_E2M1 : TGL_QUANT_E4M3, i & 2, width, k, &op);
            use_one_sm(b, false);
        }
}

#endif
