/* SPDX-License-Identifier: MIT
 * elements.h - every number of bf16, and the floats beside all codes and all middles of two, through an op
 * that casts blocks. What must come out is computed here from the definitions of the formats and of the
 * factors; nothing of cases/ or src/ is used for it. */
#ifndef TEGULA_QUANT_ELEMENTS_H
#define TEGULA_QUANT_ELEMENTS_H

#include "support.h"

/* ---- e4m3 and e2m1 ---- */

static inline unsigned last_code(tgl_quant_format format) { return format == TGL_QUANT_E2M1 ? 7 : 0x7e; }

/* Of a code without its sign: 3 bits of fraction below 4 of exponent, whose bias is 7. */
static inline double magnitude_of(tgl_quant_format format, unsigned code)
{
    static const double of_e2m1[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    if (format == TGL_QUANT_E2M1) return of_e2m1[code];
    const int exponent = (int)(code >> 3), fraction = (int)(code & 7);
    return exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction, -9);
}

/* The nearest code, of two the even one; the last one for all that is larger. */
static inline uint8_t nearest_code(tgl_quant_format format, float value)
{
    const unsigned last = last_code(format), sign = signbit(value) ? format == TGL_QUANT_E2M1 ? 8 : 0x80 : 0;
    const double at = fabs((double)value);
    if (isnan(value)) return format == TGL_QUANT_E2M1 ? 7 : 0x7f;
    unsigned code = 0;                          /* the largest that is no larger than the value */
    for (unsigned step = (last + 1) / 2 + 1; step; step /= 2)
        while (code + step <= last && magnitude_of(format, code + step) <= at) code += step;
    if (code < last) {
        const double below = at - magnitude_of(format, code), above = magnitude_of(format, code + 1) - at;
        code += above < below || (above == below && code % 2);
    }
    return (uint8_t)(sign | code);
}

/* ---- from a block's largest magnitude to its factor ---- */

typedef struct { float sf, inv; } block_factor;
static inline block_factor factor_of_block(tgl_quant_format format, float amax, bool is_rounded)
{
    const float largest = format == TGL_QUANT_E2M1 ? 6 : 448;
    const float floor = format == TGL_QUANT_E2M1 ? 0x1.8p-124f : 1e-4f;
    const float a = amax > floor ? amax : floor, sf = a / largest;
    if (!is_rounded) return (block_factor){ sf, largest / a };
    int power = 127;                            /* for infinity, too */
    if (isfinite(sf)) power = frexpf(sf, &power) == 0.5f ? power - 1 : power;
    return (block_factor){ ldexpf(1, power), power == 127 ? 0 : ldexpf(1, -power) };
}

/* ---- all elements ---- */

/* Ascending in magnitude, so that a block has numbers of one scale: bf16's, NaN last. For f32 then the values
 * and middles of codes with the floats on either side. Returns how many there are. */
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

typedef struct {
    tgl_quant_format format;
    int64_t block_rows, block_cols, num_cols;   /* num_cols in whole blocks */
    bool is_rounded, is_transposed;
    /* Each block has the largest code's value first, times the least power of two, from 1 on, that makes it
     * the largest magnitude: its factor is that power, and no product rounds. */
    bool has_largest;
    tgl_status (*cast)(const DLTensor *x, DLTensor *out, DLTensor *out_sf, const tgl_quant_params *params,
                       tgl_stream stream);
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
    tensor in, out, out_sf;
    place_floats(b, &in, is_bf16 ? TGL_BF16 : TGL_F32, rows, cols, x);
    const int64_t height = c->is_transposed ? cols : rows, width = c->is_transposed ? rows : cols >> pairs;
    place(b, &out, pairs ? TGL_U8 : TGL_E4M3, 2, SHAPE(height, width), NULL);
    place(b, &out_sf, TGL_F32, 2, SHAPE(m, k), NULL);
    CHECK_OK(c->cast(&in.t, &out.t, &out_sf.t,
                     PARAMS(.format = c->format, .num_per_tokens = c->block_rows,
                            .num_per_channels = c->block_cols, .round_sf = c->is_rounded), b->stream));
    check_contents(b, &out, codes, "out");
    check_contents(b, &out_sf, sf, "out_sf");
    discard(b, &in);
    free(x), free(sf), free(codes);
}

/* Of either dtype, rounded or not, with factors that are powers of two or what comes. */
static inline void check_all_elements(element_check c)
{
    FOR_BACKENDS(b)
        for (int i = 0; i < 8; i++) {
            c.is_rounded = i & 1, c.has_largest = i & 2;
            check_elements_in(b, &c, i & 4);
        }
}

/* ---- all codes of given factors ---- */

/* Every code of UE8M0, 0 and 255 too, as a factor that is given, k in a word. Each block has its factor 1.5
 * times, and negative, and values that are special. */
typedef tgl_status given_cast(const DLTensor *x, const DLTensor *sf, DLTensor *out,
                              const tgl_quant_params *params, tgl_stream stream);
static inline void check_given_codes_in(const backend *b, tgl_quant_format format, bool is_bf16,
                                        int64_t width, int64_t k, given_cast *cast)
{
    enum { MOST = 256 * 128 };
    static float x[MOST];
    static uint8_t want[MOST], codes[4 * 256];
    const int64_t rows = 256 / k, cols = k * width, is_pair = format == TGL_QUANT_E2M1;
    REQUIRE(256 * width <= MOST);
    memset(want, 0, sizeof want);
    memset(codes, 0, sizeof codes);
    for (int code = 0; code < 256; code++) {
        const float sf = code == 0 ? 0 : ldexpf(1, code - 127), near = ldexpf(1, code - 127);
        const float values[] = { 1.5f * near, -near, 0, -0.0f, 0x1.cp127f, 0x1p-130f, INFINITY, NAN };
        codes[code / k * 4 + code % k] = (uint8_t)code;
        for (int64_t j = 0; j < width; j++) {
            const int64_t at = code * width + j;        /* k blocks are a row */
            x[at] = values[(at + code / k) % 8];
            const unsigned element = nearest_code(format, x[at] * (1 / sf));
            want[at >> is_pair] |= (uint8_t)(is_pair && at % 2 ? element << 4 : element);
        }
    }
    tensor in, given, out;
    place_floats(b, &in, is_bf16 ? TGL_BF16 : TGL_F32, rows, cols, x);
    place_strided(b, &given, TGL_I32, 2, SHAPE(rows, 1), SHAPE(1, rows), codes);
    place(b, &out, is_pair ? TGL_U8 : TGL_E4M3, 2, SHAPE(rows, cols >> is_pair), NULL);
    CHECK_OK(cast(&in.t, &given.t, &out.t, PARAMS(.format = format, .num_per_channels = width), b->stream));
    check_contents(b, &out, want, "out");
    discard(b, &in);
    discard(b, &given);
}

/* Of either dtype and format, on all SMs and on one, where rows are many. */
static inline void check_given_codes(int64_t width, int64_t k, given_cast *cast)
{
    FOR_BACKENDS(b)
        for (int i = 0; i < 8; i++) {
            if (i / 4 && backend_is_cpu(b)) continue;
            if (i / 4) CHECK_OK(tgl_set_num_sms(b->device.device_id, 1));
            check_given_codes_in(b, i & 1 ? TGL_QUANT_E2M1 : TGL_QUANT_E4M3, i & 2, width, k, cast);
            if (i / 4) CHECK_OK(tgl_set_num_sms(b->device.device_id, 0));
        }
}

#endif
