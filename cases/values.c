/* SPDX-License-Identifier: MIT
 * values.c - numbers of the case tables: formats written from their definitions, random inputs, comparison.
 * Nothing here may use src/numerics: these are the other side of its tests. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "case.h"

/* ---- formats ---- */

/* A float of a sign, exponent bits, fraction bits. `largest` is the code of the largest finite number,
 * `overflow` what numbers that round beyond it become. Codes above `largest` are NaN, but for `infinity` (0
 * where there is none). */
typedef struct {
    tgl_dtype dtype;
    int bits, fraction, bias;
    unsigned largest, overflow, infinity, nan;
} small_float;
static const small_float small_floats[] = {
    { TGL_F16, 16, 10, 15, 0x7bff, 0x7c00, 0x7c00, 0x7e00 },
    { TGL_BF16, 16, 7, 127, 0x7f7f, 0x7f80, 0x7f80, 0x7fc0 },
    { TGL_E5M2, 8, 2, 15, 0x7b, 0x7b, 0x7c, 0x7e },
    { TGL_E4M3, 8, 3, 7, 0x7e, 0x7e, 0, 0x7f },
};

static const small_float *small_float_of(tgl_dtype dtype)
{
    for (size_t i = 0; i < sizeof small_floats / sizeof *small_floats; i++)
        if (small_floats[i].dtype == dtype) return &small_floats[i];
    return NULL;
}

/* 2^e; ldexp() takes longer than all else here. */
static double power_of_two(int e)
{
    const uint64_t bits = (uint64_t)(e + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

static double small_decode(const small_float *f, unsigned code)
{
    const unsigned sign = 1u << (f->bits - 1), magnitude = code & (sign - 1), one = 1u << f->fraction;
    double value;
    if (magnitude > f->largest) value = magnitude == f->infinity && f->infinity ? INFINITY : NAN;
    else if (magnitude < one) value = magnitude * power_of_two(1 - f->bias - f->fraction);
    else
        value = ((magnitude & (one - 1)) | one) * power_of_two((int)(magnitude >> f->fraction) - f->bias - f->fraction);
    return code & sign ? -value : value;
}

static unsigned small_encode(const small_float *f, double value)
{
    const unsigned sign = signbit(value) ? 1u << (f->bits - 1) : 0;
    if (isnan(value)) return sign | f->nan;
    if (isinf(value)) return sign | f->overflow;
    const double size = fabs(value);
    if (size == 0) return sign;
    int exponent = ilogb(size);
    if (exponent < 1 - f->bias) exponent = 1 - f->bias;    /* subnormals share the smallest exponent */
    if (exponent > f->bias + 2) return sign | f->overflow; /* beyond any of the formats: keeps `code` small */
    const double steps = nearbyint(size * power_of_two(f->fraction - exponent)); /* to nearest even */
    /* a normal number's leading one adds 1 to the exponent field, and so does a carry */
    const double code = (exponent + f->bias - 1) * power_of_two(f->fraction) + steps;
    return sign | (code > f->largest ? f->overflow : (unsigned)code);
}

double case_decode(tgl_dtype dtype, const void *element)
{
#define AS(type) (*(type *)memcpy(&(type){ 0 }, element, sizeof(type)))
    const small_float *f = small_float_of(dtype);
    if (f) return small_decode(f, f->bits == 8 ? AS(uint8_t) : AS(uint16_t));
    switch (dtype) {
    case TGL_BOOL:
    case TGL_U8: return AS(uint8_t);
    case TGL_I8: return AS(int8_t);
    case TGL_I16: return AS(int16_t);
    case TGL_U16: return AS(uint16_t);
    case TGL_I32: return AS(int32_t);
    case TGL_U32: return AS(uint32_t);
    case TGL_I64: return (double)AS(int64_t);
    case TGL_U64: return (double)AS(uint64_t);
    case TGL_F32: return AS(float);
    case TGL_F64: return AS(double);
    case TGL_UE8M0: return AS(uint8_t) == 255 ? NAN : ldexp(1, AS(uint8_t) - 127);
    default: break;
    }
    fprintf(stderr, "case_decode: %s is not one number\n", tgl_dtype_name(dtype) ? tgl_dtype_name(dtype) : "it");
    abort();
#undef AS
}

static double clamp(double value, double low, double high) { return value > low ? value < high ? value : high : low; }

void case_encode(tgl_dtype dtype, double value, void *element)
{
#define PUT(type, expression) memcpy(element, &(type){ (type)(expression) }, sizeof(type))
    const small_float *f = small_float_of(dtype);
    if (f && f->bits == 8) PUT(uint8_t, small_encode(f, value));
    else if (f) PUT(uint16_t, small_encode(f, value));
    else switch (dtype) {
        case TGL_BOOL: PUT(uint8_t, value != 0); break;
        case TGL_U8: PUT(uint8_t, clamp(value, 0, UINT8_MAX)); break;
        case TGL_I8: PUT(int8_t, clamp(value, INT8_MIN, INT8_MAX)); break;
        case TGL_U16: PUT(uint16_t, clamp(value, 0, UINT16_MAX)); break;
        case TGL_I16: PUT(int16_t, clamp(value, INT16_MIN, INT16_MAX)); break;
        case TGL_U32: PUT(uint32_t, clamp(value, 0, UINT32_MAX)); break;
        case TGL_I32: PUT(int32_t, clamp(value, INT32_MIN, INT32_MAX)); break;
        /* 2^63 and 2^64 are no values of the types: the largest doubles below them are */
        case TGL_U64: PUT(uint64_t, clamp(value, 0, 18446744073709549568.0)); break;
        case TGL_I64: PUT(int64_t, clamp(value, (double)INT64_MIN, 9223372036854774784.0)); break;
        case TGL_F32: PUT(float, value); break;
        case TGL_F64: PUT(double, value); break;
        default:
            fprintf(stderr, "case_encode: %s is not one number\n",
                    tgl_dtype_name(dtype) ? tgl_dtype_name(dtype) : "it");
            abort();
        }
#undef PUT
}

static bool is_number(tgl_dtype dtype) { return dtype && !(dtype & (TGL_C64 | TGL_C128 | TGL_E2M1X2 | TGL_OTHER)); }

static bool is_integer(tgl_dtype dtype)
{
    return dtype & (TGL_BOOL | TGL_I8 | TGL_I16 | TGL_I32 | TGL_I64 | TGL_U8 | TGL_U16 | TGL_U32 | TGL_U64);
}

/* ---- threads ---- */

typedef struct {
    void (*f)(void *, int64_t, int64_t);
    void *context;
    int64_t begin, end;
} share;

static void *work(void *context)
{
    const share *s = context;
    s->f(s->context, s->begin, s->end);
    return NULL;
}

void case_parallel(int64_t n, int64_t item_bytes, void (*f)(void *, int64_t, int64_t), void *context)
{
    enum { MAX_THREADS = 64 };
    int64_t threads = sysconf(_SC_NPROCESSORS_ONLN);
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads > n) threads = n;
    if (threads < 2 || n * item_bytes < 1 << 20) {
        if (n > 0) f(context, 0, n);
        return;
    }
    pthread_t thread[MAX_THREADS];
    share shares[MAX_THREADS];
    bool started[MAX_THREADS];
    for (int64_t i = 0; i < threads; i++) {
        shares[i] = (share){ f, context, n * i / threads, n * (i + 1) / threads };
        started[i] = pthread_create(&thread[i], NULL, work, &shares[i]) == 0;
        if (!started[i]) work(&shares[i]);
    }
    for (int64_t i = 0; i < threads; i++)
        if (started[i]) pthread_join(thread[i], NULL);
}

/* ---- random values ---- */

uint64_t case_seed(const char *name) /* FNV-1a */
{
    uint64_t h = 14695981039346656037u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h;
}

/* splitmix64, by position: any part can be made on any thread */
uint64_t case_random(uint64_t seed, int64_t i)
{
    uint64_t z = seed + ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int64_t case_random_below(uint64_t seed, int64_t i, int64_t n)
{
    return n > 0 ? (int64_t)(case_random(seed, i) % (uint64_t)n) : 0;
}

static double unit(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; } /* 0 <= u < 1 */

typedef struct {
    case_tensor *t;
    uint64_t seed;
} filling;

/* A prime, so that equal values are at different columns of a matrix. Random values cost more than all else that a row
 * of a benchmark needs on the host. */
enum { PERIOD = 10000019 };

static void repeat_chunk(void *context, int64_t begin, int64_t end) /* of periods after the first */
{
    const filling *f = context;
    const int64_t size = f->t->element_bytes;
    for (int64_t i = begin; i < end; i++) {
        const int64_t first = (i + 1) * PERIOD, rest = f->t->slots - first;
        memcpy(f->t->storage + first * size, f->t->storage, (size_t)((rest < PERIOD ? rest : PERIOD) * size));
    }
}

/* Values of a tensor by chunks of it, those after PERIOD again the first. */
static void fill_periods(case_tensor *t, uint64_t seed, int64_t item_cost, void (*chunk)(void *, int64_t, int64_t))
{
    filling f = { t, seed };
    case_parallel(t->slots < PERIOD ? t->slots : PERIOD, item_cost, chunk, &f);
    case_parallel((t->slots - 1) / PERIOD, PERIOD, repeat_chunk, &f);
}

static void bits_chunk(void *context, int64_t begin, int64_t end) /* of words of 8 bytes */
{
    const filling *f = context;
    const int64_t bytes = f->t->slots * f->t->element_bytes;
    const uint64_t mask = f->t->dtype == TGL_BOOL ? 0x0101010101010101u : ~(uint64_t)0;
    for (int64_t i = begin; i < end; i++) {
        const uint64_t word = case_random(f->seed, i) & mask;
        memcpy(f->t->storage + 8 * i, &word, (size_t)(bytes - 8 * i < 8 ? bytes - 8 * i : 8));
    }
}

void case_fill_bits(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_parallel((t->slots * t->element_bytes + 7) / 8, 8, bits_chunk, &(filling){ t, seed });
}

static void normal_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    for (int64_t i = begin; i < end; i++) {
        /* Box and Muller; 1 - u is never 0 */
        const double radius = sqrt(-2 * log(1 - unit(case_random(f->seed, 2 * i))));
        const double angle = 6.283185307179586 * unit(case_random(f->seed, 2 * i + 1));
        case_encode(f->t->dtype, radius * cos(angle), f->t->storage + i * f->t->element_bytes);
    }
}

void case_fill_normal(const case_problem *c, case_tensor *t, uint64_t seed) { fill_periods(t, seed, 64, normal_chunk); }

static void uniform_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    for (int64_t i = begin; i < end; i++) {
        const double value = f->t->low + (f->t->high - f->t->low) * unit(case_random(f->seed, i));
        case_encode(f->t->dtype, is_integer(f->t->dtype) ? floor(value) : value,
                    f->t->storage + i * f->t->element_bytes);
    }
}

void case_fill_uniform(const case_problem *c, case_tensor *t, uint64_t seed)
{
    fill_periods(t, seed, 32, uniform_chunk);
}

/* ---- comparison ---- */

/* What a comparison has seen so far; `first` is the first element that is wrong by itself. */
typedef struct {
    const case_tensor *t;
    const char *seen;
    int64_t count, wrong, bits_differ, first, first_slot;
    double sum_product, sum_squares;
} comparison;

static void note_wrong(comparison *c, int64_t element, int64_t slot)
{
    if (c->wrong++ == 0) c->first = element, c->first_slot = slot;
}

/* Steps between two bf16 codes along the number line; -0 and 0 are one point. */
static int bf16_steps(uint16_t a, uint16_t b)
{
    const int x = a & 0x8000 ? -(a & 0x7fff) : a, y = b & 0x8000 ? -(b & 0x7fff) : b;
    return abs(x - y);
}

static bool matches(const case_compare *how, tgl_dtype dtype, const char *seen, const char *want, bool same_bits)
{
    if (same_bits) return true;
    if (how->mode == CASE_BITS && (how->nan_payload || !is_number(dtype))) return false;
    const double a = case_decode(dtype, seen), e = case_decode(dtype, want);
    if (isnan(a) || isnan(e)) return isnan(a) && isnan(e);
    if (how->mode == CASE_BITS || isinf(a) || isinf(e)) return how->mode != CASE_BITS && a == e;
    if (how->mode == CASE_CLOSE) return fabs(a - e) <= how->atol + how->rtol * fabs(e);
    uint16_t x, y;
    memcpy(&x, seen, 2);
    memcpy(&y, want, 2);
    return bf16_steps(x, y) <= how->ulp || fabs(a - e) <= how->atol;
}

/* Elements `element` .. `element` + run - 1, which lie in consecutive slots. */
static void compare_run(void *context, int64_t element, int64_t slot, int64_t run)
{
    comparison *c = context;
    const case_tensor *t = c->t;
    const int64_t size = t->element_bytes;
    const char *seen = c->seen + slot * size, *want = t->storage + slot * size;
    c->count += run;
    if (t->compare.mode != CASE_CALC_DIFF && !memcmp(seen, want, (size_t)(run * size))) return;
    for (int64_t i = 0; i < run; i++, seen += size, want += size) {
        if (t->compare.mode == CASE_CALC_DIFF) {
            const double a = case_decode(t->dtype, seen), e = case_decode(t->dtype, want);
            c->sum_product += a * e;
            c->sum_squares += a * a + e * e;
            if (isnan(a) || isnan(e)) note_wrong(c, element + i, slot + i);
            continue;
        }
        const bool same_bits = !memcmp(seen, want, (size_t)size);
        if (!matches(&t->compare, t->dtype, seen, want, same_bits)) note_wrong(c, element + i, slot + i);
        else if (!same_bits && !isnan(case_decode(t->dtype, seen)) &&
                 case_decode(t->dtype, seen) != case_decode(t->dtype, want)) { /* zeros of either sign are equal */
            if (c->bits_differ++ == 0 && c->wrong == 0) c->first = element + i, c->first_slot = slot + i;
        }
    }
}

static void value_text(const case_tensor *t, const char *element, char text[64])
{
    char *at = text + sprintf(text, "0x");
    for (int64_t i = t->element_bytes - 1; i >= 0; i--) /* little-endian, as all we build for */
        at += sprintf(at, "%02x", ((const unsigned char *)element)[i]);
    if (is_number(t->dtype)) snprintf(at, (size_t)(text + 64 - at), " (%.9g)", case_decode(t->dtype, element));
}

static void first_text(const comparison *c, char *text, size_t bytes)
{
    const case_tensor *t = c->t;
    char seen[64], want[64], index[256] = "";
    int64_t rest = c->first, i[CASE_MAX_DIMS];
    for (int d = t->ndim - 1; d >= 0; d--) i[d] = rest % t->shape[d], rest /= t->shape[d];
    for (int d = 0, n = 0; d < t->ndim; d++)
        n += snprintf(index + n, sizeof index - (size_t)n, "%s%" PRId64, d ? ", " : "", i[d]);
    value_text(t, c->seen + c->first_slot * t->element_bytes, seen);
    value_text(t, t->storage + c->first_slot * t->element_bytes, want);
    snprintf(text, bytes, "%s[%s]: is %s, want %s", t->name, index, seen, want);
}

void case_runs(const case_tensor *t, void (*f)(void *, int64_t, int64_t, int64_t), void *context)
{
    int64_t run = 1, count = 1, index[CASE_MAX_DIMS] = { 0 };
    int outer = t->ndim; /* dimensions from here on are packed: one run */
    while (outer > (t->open_rows ? 1 : 0) && (t->shape[outer - 1] == 1 || t->strides[outer - 1] == run))
        run *= t->shape[--outer];
    for (int d = 0; d < outer; d++) count *= t->shape[d];
    if (run == 0 || t->is_scratch) return;
    const int64_t runs_per_row = t->ndim && t->shape[0] ? count / t->shape[0] : 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t slot = (t->data - t->storage) / t->element_bytes;
        for (int d = 0; d < outer; d++) slot += index[d] * t->strides[d];
        if (!t->open_rows || !t->open_rows[i / runs_per_row]) f(context, i * run, slot, run);
        for (int d = outer - 1; d >= 0 && ++index[d] == t->shape[d]; d--) index[d] = 0;
    }
}

bool case_compare_tensor(const case_tensor *t, const void *seen, case_report *report)
{
    comparison c = { .t = t, .seen = seen };
    const case_compare *how = &t->compare;
    char text[512];
    case_runs(t, compare_run, &c);
    const double diff = c.sum_squares == 0 ? 0 : 1 - 2 * c.sum_product / c.sum_squares;
    if (c.wrong) {
        first_text(&c, text, sizeof text);
        snprintf(report->text, sizeof report->text, "%s; %" PRId64 " of %" PRId64 " elements differ%s", text, c.wrong,
                 c.count, how->mode == CASE_BITS ? "" : " too much");
    } else if (how->mode == CASE_CALC_DIFF && !(diff < how->max)) {
        snprintf(report->text, sizeof report->text, "%s: calc_diff is %.3g, want less than %.3g", t->name, diff,
                 how->max);
    } else if (how->mode == CASE_BF16 && (double)c.bits_differ > 1 + how->mismatch * (double)c.count) {
        first_text(&c, text, sizeof text);
        snprintf(report->text, sizeof report->text, "%s; %" PRId64 " of %" PRId64 " elements differ in bits, want %g",
                 text, c.bits_differ, c.count, floor(1 + how->mismatch * (double)c.count));
    } else {
        return true;
    }
    report->result = CASE_FAILED;
    return false;
}
