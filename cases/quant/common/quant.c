/* SPDX-License-Identifier: MIT */
#include "quant.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/status.h"

/* ---- formats ---- */

static const struct {
    const char *name;
    float largest, floor;
} formats[] = {
    [TGL_QUANT_E4M3] = { "e4m3", 448, 1e-4f },
    [TGL_QUANT_E2M1] = { "e2m1", 6, 0x6p-126f },
    [TGL_QUANT_E5M6] = { "e5m6", 65024, 1e-4f },
};

tgl_status quant_format_named(const char *name, tgl_quant_format *format)
{
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, formats[i].name)) {
            *format = (tgl_quant_format)i;
            return TGL_OK;
        }
    return tgl_fail(TGL_ERR_ARGUMENT, "format: is \"%s\", want e4m3, e2m1 or e5m6", name);
}

float quant_largest(tgl_quant_format format) { return formats[format].largest; }
float quant_floor(tgl_quant_format format) { return formats[format].floor; }

/* The nearest of eight magnitudes; between two, the even code. */
static const float e2m1_magnitudes[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
static unsigned e2m1_encode(float value)
{
    const float size = fabsf(value);
    unsigned code = 0;
    while (code < 7 && size > e2m1_magnitudes[code + 1]) code++; /* the last one not above */
    if (code < 7) {
        const float below = size - e2m1_magnitudes[code], above = e2m1_magnitudes[code + 1] - size;
        if (above < below || (above == below && code % 2)) code++;
    }
    return code | (signbit(value) ? 8 : 0);
}

/* From 2^-14 on, rounds to nearest even, to 7 bits. From 2^16 on the result is infinite, or the largest
 * number if the 17 dropped bits are below half. Below 2^-14 the magnitude is truncated to a multiple of
 * 2^-20; then the same 17 bits of the float round it up, although others were dropped. */
static unsigned e5m6_encode(float value)
{
    const float size = fabsf(value);
    const unsigned sign = signbit(value) ? 0x800 : 0;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const uint32_t dropped = bits & 0x1ffff, half = 0x10000;
    if (isinf(value)) return sign | 0x7c0;
    if (size < 0x1p-14f) {
        const unsigned cut = (unsigned)floor(ldexp(size, 20));
        return sign | (cut + (dropped > half || (dropped == half && cut % 2)));
    }
    if (size >= 0x1p16f) return sign | (dropped >= half ? 0x7c0 : 0x7bf);
    const int exponent = ilogbf(size);
    const double steps = nearbyint(ldexp(size, 6 - exponent)); /* 64 .. 128 */
    return sign | (unsigned)(((exponent + 15) << 6) + (int)steps - 64);
}

static float e5m6_decode(unsigned code)
{
    const int exponent = (int)(code >> 6 & 31), fraction = (int)(code & 63);
    double size = ldexp(exponent ? fraction + 64 : fraction, (exponent ? exponent : 1) - 21);
    if (exponent == 31) size = fraction ? NAN : INFINITY;
    return (float)(code & 0x800 ? -size : size);
}

unsigned quant_encode(tgl_quant_format format, float value)
{
    uint8_t byte;
    if (isnan(value)) return format == TGL_QUANT_E4M3 ? 0x7f : format == TGL_QUANT_E2M1 ? 7 : 0x7ff;
    if (format == TGL_QUANT_E2M1) return e2m1_encode(value);
    if (format == TGL_QUANT_E5M6) return e5m6_encode(value);
    case_encode(TGL_E4M3, value, &byte);
    return byte;
}

float quant_decode(tgl_quant_format format, unsigned code)
{
    if (format == TGL_QUANT_E2M1) return code & 8 ? -e2m1_magnitudes[code & 7] : e2m1_magnitudes[code];
    if (format == TGL_QUANT_E5M6) return e5m6_decode(code);
    return (float)case_decode(TGL_E4M3, &(uint8_t){ (uint8_t)code });
}

tgl_dtype quant_data_dtype(tgl_quant_format format, tgl_dtype pairs)
{
    return format == TGL_QUANT_E4M3 ? TGL_E4M3 : format == TGL_QUANT_E2M1 ? pairs : TGL_U8;
}

int64_t quant_data_cols(tgl_quant_format format, int64_t num_cols)
{
    return format == TGL_QUANT_E4M3 ? num_cols : format == TGL_QUANT_E2M1 ? num_cols / 2 : num_cols * 3 / 2;
}

/* The address of a nibble of a row. A code has one (e2m1) or three (e5m6), the highest first. The nibbles of
 * e5m6 are in 32-bit little-endian words, from the highest to the lowest. */
static unsigned char *e5m6_nibble(const case_tensor *t, int64_t row, int64_t nibble, int *shift)
{
    *shift = nibble % 2 ? 0 : 4;
    return (unsigned char *)case_element(t, (int64_t[]){ row, 0 }) + nibble / 8 * 4 + 3 - nibble % 8 / 2;
}

static unsigned char *e2m1_nibble(const case_tensor *t, int64_t row, int64_t col, int *shift)
{
    *shift = col % 2 ? 4 : 0;
    return (unsigned char *)case_element(t, (int64_t[]){ row, col / 2 });
}

unsigned quant_code_at(const case_tensor *t, tgl_quant_format format, int64_t row, int64_t col)
{
    int shift;
    if (format == TGL_QUANT_E4M3) return *(unsigned char *)case_element(t, (int64_t[]){ row, col });
    if (format == TGL_QUANT_E2M1) {
        const unsigned char *byte = e2m1_nibble(t, row, col, &shift);
        return *byte >> shift & 15;
    }
    unsigned code = 0;
    for (int n = 0; n < 3; n++) {
        const unsigned char *byte = e5m6_nibble(t, row, 3 * col + n, &shift);
        code = code << 4 | (*byte >> shift & 15);
    }
    return code;
}

static void put_nibble(unsigned char *byte, int shift, unsigned value)
{
    *byte = (unsigned char)((*byte & ~(15u << shift)) | value << shift);
}

void quant_put_code(const case_tensor *t, tgl_quant_format format, int64_t row, int64_t col, unsigned code)
{
    int shift;
    unsigned char *byte;
    switch (format) {
    case TGL_QUANT_E4M3: *(unsigned char *)case_element(t, (int64_t[]){ row, col }) = (unsigned char)code; break;
    case TGL_QUANT_E2M1:
        byte = e2m1_nibble(t, row, col, &shift);
        put_nibble(byte, shift, code);
        break;
    case TGL_QUANT_E5M6:
        for (int n = 0; n < 3; n++) {
            byte = e5m6_nibble(t, row, 3 * col + n, &shift);
            put_nibble(byte, shift, code >> (8 - 4 * n) & 15);
        }
        break;
    }
}

float quant_float_at(const case_tensor *t, int64_t row, int64_t col)
{
    const void *element = case_element(t, (int64_t[]){ row, col });
    float value;
    if (t->dtype == TGL_F32) return *(const float *)element;
    const uint32_t bits = (uint32_t)*(const uint16_t *)element << 16;
    memcpy(&value, &bits, 4);
    return value;
}

/* ---- scale factors ---- */

static void fill_sf(const case_problem *c, case_tensor *t, uint64_t seed);

tgl_status quant_add_sf(case_problem *c, int index, const char *name, case_role role, const char *layout, int64_t m,
                        int64_t k, case_tensor **sf)
{
    const int64_t aligned = quant_ceil_div(m, 4) * 4;
    const bool is_packed = !strncmp(layout, "packed", 6);
    int64_t strides[2] = { 1, aligned };
    if (!strcmp(layout, "row")) strides[0] = k, strides[1] = 1;
    else if (!strcmp(layout, "row_gap")) strides[0] = k + 3, strides[1] = 1;
    else if (!strcmp(layout, "row_same")) strides[0] = 0, strides[1] = 1;
    else if (!strcmp(layout, "col_same")) strides[1] = 0;
    else if (!strcmp(layout, "col_tight")) strides[1] = m;
    else if (!strcmp(layout, "col_gap") || !strcmp(layout, "packed_gap")) strides[1] = aligned + 4;
    else if (strcmp(layout, "col") && strcmp(layout, "packed"))
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "sf: is \"%s\", want row, row_gap, row_same, col, col_tight, "
                        "col_gap, col_same, packed or packed_gap",
                        layout);
    *sf = case_add(c, index, name, role, is_packed ? TGL_I32 : TGL_F32, 2,
                   (int64_t[]){ m, is_packed ? quant_ceil_div(k, 4) : k });
    memcpy((*sf)->strides, strides, sizeof strides);
    (*sf)->compare.nan_payload = false;
    (*sf)->fill = fill_sf;
    return TGL_OK;
}

float quant_sf_at(const case_tensor *sf, int64_t m, int64_t k)
{
    if (sf->dtype == TGL_F32) return *(const float *)case_element(sf, (int64_t[]){ m, k });
    const int code = ((const unsigned char *)case_element(sf, (int64_t[]){ m, k / 4 }))[k % 4];
    return code == 0 ? 0 : code == 255 ? INFINITY : ldexpf(1, code - 127);
}

void quant_put_sf(const case_tensor *sf, int64_t m, int64_t k, float value)
{
    if (sf->dtype == TGL_F32) *(float *)case_element(sf, (int64_t[]){ m, k }) = value;
    else ((unsigned char *)case_element(sf, (int64_t[]){ m, k / 4 }))[k % 4] = (unsigned char)(ilogbf(value) + 127);
}

float quant_round_up_to_power(float value)
{
    int exponent;
    if (value > 0x1p127f) return 0x1p127f;
    const float fraction = frexpf(value, &exponent); /* 0.5 .. 1, or 0 */
    if (fraction == 0.5f) exponent--;
    return fraction == 0 || exponent < -126 ? 0x1p-126f : ldexpf(1, exponent);
}

quant_scale quant_scale_of(float amax, float largest, float floor, bool round)
{
    const float a = amax > floor ? amax : floor;
    if (round) {
        const float sf = quant_round_up_to_power(a / largest);
        return (quant_scale){ sf, sf == 0x1p127f ? 0 : 1 / sf };
    }
    return (quant_scale){ a / largest, a == 0 ? 0 : largest / a };
}

/* ---- layouts of rows ---- */

tgl_status quant_lay_out(const char *layout, int64_t num_cols, int64_t strides[2])
{
    strides[1] = 1;
    if (!strcmp(layout, "packed")) strides[0] = num_cols;
    else if (!strcmp(layout, "half")) strides[0] = 2 * num_cols;
    else if (!strcmp(layout, "gap")) strides[0] = num_cols + 3;
    else if (!strcmp(layout, "gap4")) strides[0] = num_cols + 4;
    else if (!strcmp(layout, "repeated")) strides[0] = 0;
    else if (!strcmp(layout, "far")) strides[0] = 1 << 20;
    else return tgl_fail(TGL_ERR_ARGUMENT, "layout: is \"%s\", want packed, half, gap, gap4, repeated or far", layout);
    return TGL_OK;
}

/* ---- values ---- */

typedef struct {
    case_tensor *t;
    uint64_t seed;
    int low, range; /* of exponents of factors */
    bool is_power;
} filling;

/* 0 <= u < 1; a bell curve of mean 0 and deviation 1, within 3.5. */
static double unit(uint64_t bits) { return (double)(bits & 0xffff) * 0x1p-16; }
static double bell(uint64_t bits)
{
    return 1.7320508 * (unit(bits) + unit(bits >> 16) + unit(bits >> 32) + unit(bits >> 48) - 2);
}

/* `kind` is random per block, r per element. */
static double mixed_value(uint64_t kind, uint64_t r)
{
    const double sign = r & 1 ? -1 : 1;
    const int exponent = (int)(kind >> 8 & 63) - 31;
    const double largest[] = { 448, 6, 65024 };
    switch (kind % 16) {
    case 0: return sign * 0;
    case 1: return 1e-7 * bell(r); /* below the floor */
    case 2: return sign * FLT_MAX * unit(r >> 8);
    case 3: return ldexp(bell(r), -135);
    case 4:
    case 5: /* few bits: ties, with an amax that makes the factor a power of two */
        return r >> 8 & 31 ? sign * ldexp((double)(r >> 16 & 31), exponent - (int)(r >> 24 & 15))
                           : ldexp(448, exponent);
    case 6: /* an amax that makes the factor a power of two, or a step above or below */
        return r >> 8 & 7 ? ldexp(bell(r), exponent)
                          : sign * ldexp(largest[kind >> 16 & 3 ? kind >> 16 & 1 : 2] +
                                             ldexp((double)(kind >> 24 & 3) - 1, kind >> 20 & 1 ? -1 : 1),
                                         exponent);
    case 7: return ldexp(bell(r), exponent - (int)(r % 41)); /* from large to tiny */
    case 8: return r % 29 ? sign * 0 : bell(r >> 16);
    default: return ldexp(bell(r), exponent);
    }
}

/* The kind of a slot's block; with row stride 0 there is one row. */
static uint64_t kind_of_block(const filling *f, int64_t slot)
{
    const case_tensor *t = f->t;
    const int64_t width = t->strides[0] > 0 ? t->strides[0] : t->shape[1];
    const int64_t row = slot / width / (int64_t)t->low, col = slot % width / (int64_t)t->high;
    return case_random(case_random(f->seed ^ 0x5bd1e995, row), col);
}

static void mixed_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    for (int64_t i = begin; i < end; i++)
        case_encode(f->t->dtype, mixed_value(kind_of_block(f, i), case_random(f->seed, i)),
                    f->t->storage + i * f->t->element_bytes);
}

/* One or two codes a byte: zeros of both signs, large ones, any of e2m1 for the largest, any but NaN. */
static void mixed_codes_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    const bool is_e4m3 = f->t->dtype == TGL_E4M3;
    for (int64_t i = begin; i < end; i++) {
        const uint64_t random = kind_of_block(f, i), kind = random % 8;
        const unsigned limit = 1 + (unsigned)(random >> 8 & 7);
        unsigned code = (unsigned)case_random(f->seed, i) & 0xff;
        if (kind == 0) code &= is_e4m3 ? 0x80 : 0x88;
        else if (kind == 1) code |= is_e4m3 ? 0x70 : 0x66;
        else if (kind == 2) code &= is_e4m3 ? 0x87 : 0x99; /* subnormal */
        else if (kind == 3 && !is_e4m3) code = (code & 0x88) | (code & 7) % limit | (code >> 4 & 7) % limit << 4;
        if (is_e4m3 && (code & 0x7f) == 0x7f) code ^= 8;
        f->t->storage[i] = (char)code;
    }
}

static void fill_mixed(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const bool is_float = t->dtype == TGL_F32 || t->dtype == TGL_BF16;
    case_parallel(t->slots, 64, is_float ? mixed_chunk : mixed_codes_chunk, &(filling){ .t = t, .seed = seed });
}

tgl_status quant_choose_fill(const case_problem *c, case_tensor *t, int64_t block_rows, int64_t block_cols)
{
    /* in elements of the tensor: two codes a byte */
    if (t->dtype & (TGL_E2M1X2 | TGL_I8 | TGL_U8)) block_cols /= 2;
    t->low = block_rows > 0 ? fmin((double)block_rows, INT32_MAX) : 1;
    t->high = block_cols > 0 ? fmin((double)block_cols, INT32_MAX) : 1;
    if (case_is(c, "values", "bits")) t->fill = case_fill_bits;
    else if (case_is(c, "values", "mixed") || case_is(c, "values", "powers")) t->fill = fill_mixed;
    else if (case_is(c, "values", "normal"))
        t->fill = t->dtype & (TGL_E2M1X2 | TGL_I8 | TGL_U8) ? fill_mixed : case_fill_normal;
    else
        return tgl_fail(TGL_ERR_ARGUMENT, "values: is \"%s\", want normal, mixed, powers or bits",
                        case_text(c, "values"));
    return TGL_OK;
}

static void sf_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    for (int64_t i = begin; i < end; i++) {
        const uint64_t r = case_random(f->seed, i);
        /* mostly around 1; one of eight in the whole range */
        const int exponent = r & 7 ? (int)(r >> 8 & 15) - 8 : f->low + (int)((r >> 8) % (unsigned)f->range);
        if (f->t->dtype == TGL_F32) {
            ((float *)f->t->storage)[i] = (float)ldexp(f->is_power ? 1 : 1 + unit(r >> 24), exponent);
        } else {
            for (int b = 0; b < 4; b++)
                f->t->storage[4 * i + b] = (char)(127 + (b ? (exponent * (b + 1)) % 16 : exponent));
        }
    }
}

/* Any bits, but no sign and no NaN. */
static void positive_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    uint32_t *bits = (uint32_t *)f->t->storage;
    for (int64_t i = begin; i < end; i++) {
        bits[i] &= 0x7fffffff;
        if (bits[i] > 0x7f800000) bits[i] &= 0x7f800000;
    }
}

static void fill_sf(const case_problem *c, case_tensor *t, uint64_t seed)
{
    if (case_is(c, "values", "bits")) {
        case_fill_bits(c, t, seed);
        if (t->dtype == TGL_F32) case_parallel(t->slots, 4, positive_chunk, &(filling){ .t = t });
        return;
    }
    const bool is_wide = !case_is(c, "values", "normal");
    case_parallel(t->slots, 16, sf_chunk,
                  &(filling){ t, seed, is_wide ? -30 : -8, is_wide ? 131 : 17, case_is(c, "values", "powers") });
}

/* ---- oracles ---- */

static void put_out(const quant_blocks *b, int64_t row, int64_t col, unsigned code)
{
    if (b->is_transposed) quant_put_code(b->out, b->format, col, row, code);
    else quant_put_code(b->out, b->format, row, col, code);
}

static void cast_block(const quant_blocks *b, int64_t m, int64_t k)
{
    const int64_t row = m * b->block_rows, col = k * b->block_cols;
    const int64_t rows = row + b->block_rows < b->num_rows ? b->block_rows : b->num_rows - row;
    const int64_t cols = col + b->block_cols < b->num_cols ? b->block_cols : b->num_cols - col;
    quant_scale scale;
    if (b->given) {
        scale = (quant_scale){ .inv = 1 / quant_sf_at(b->given, m, k) };
    } else {
        float amax = 0;
        for (int64_t i = row; i < row + rows; i++)
            for (int64_t j = col; j < col + cols && (!b->exists || b->exists(b->c, i)); j++) {
                const float size = fabsf(b->value(b->c, i, j));
                if (size > amax) amax = size; /* never for NaN */
            }
        scale = quant_scale_of(amax, quant_largest(b->format), quant_floor(b->format), b->round);
        quant_put_sf(b->sf, m, k, scale.sf);
    }
    for (int64_t i = row; b->out && i < row + rows; i++) {
        const bool exists = !b->exists || b->exists(b->c, i);
        for (int64_t j = col; j < col + cols; j++)
            put_out(b, i, j, exists ? quant_encode(b->format, b->value(b->c, i, j) * scale.inv) : 0);
    }
}

static void cast_rows_of_blocks(void *context, int64_t begin, int64_t end)
{
    const quant_blocks *b = context;
    for (int64_t m = begin; m < end; m++)
        for (int64_t k = 0; k < quant_ceil_div(b->num_cols, b->block_cols); k++) cast_block(b, m, k);
}

void quant_cast(const quant_blocks *b)
{
    const int64_t rows = b->block_rows < b->num_rows ? b->block_rows : b->num_rows;
    case_parallel(quant_ceil_div(b->num_rows, b->block_rows), 64 * rows * b->num_cols, cast_rows_of_blocks,
                  (void *)(uintptr_t)b);
}
