/* SPDX-License-Identifier: MIT
 * oracle.h - the number formats a second time, in arithmetic instead of bits: a table of all the values a
 * format has, made with ldexp in double, and a search for the nearest. Nothing of src/numerics is used.
 *
 * Codes are without sign unless said. values[0 .. num_finite - 1] are the format's finite values and
 * values[num_finite] is the one that would follow, which decides where overflow begins; it has the code of
 * infinity where there is one. Doubles hold all values and all midpoints exactly. */
#ifndef TEGULA_TESTS_ORACLE_H
#define TEGULA_TESTS_ORACLE_H

#include <math.h>
#include <stdlib.h>

#include "test.h"

typedef struct {
    int mantissa_bits, bias;
    uint32_t num_finite; /* codes 0 .. num_finite - 1 are finite */
    uint32_t sign;       /* the bit that makes a code negative */
    uint32_t nan;        /* the code that every NaN becomes, sign and all */
    bool keeps_nan;      /* a NaN is read with its sign and payload; otherwise as 0x7FFFFFFF */
    bool has_infinity;   /* as code num_finite */
    bool saturates;      /* what is too large becomes the largest finite value; otherwise infinity */
    bool ties_away;      /* of two values equally near the larger; otherwise the one of even code */
    double *values;
} oracle;

static inline oracle oracle_make(oracle format)
{
    format.values = malloc((format.num_finite + 1) * sizeof(double));
    if (!format.values) abort();
    for (uint32_t code = 0; code <= format.num_finite; code++) {
        const int exponent = (int)(code >> format.mantissa_bits), one = 1 << format.mantissa_bits;
        const int mantissa = (int)(code % (uint32_t)one), scale = format.bias + format.mantissa_bits;
        format.values[code] = exponent ? ldexp(one + mantissa, exponent - scale) : ldexp(mantissa, 1 - scale);
        if (code && format.values[code] <= format.values[code - 1]) abort(); /* the search needs the order */
    }
    return format;
}

/* Halfway from `code` to `code + 1`. */
static inline double oracle_midpoint(const oracle *o, uint32_t code)
{
    return (o->values[code] + o->values[code + 1]) / 2;
}

/* Does that midpoint belong to `code`? */
static inline bool oracle_tie_goes_down(const oracle *o, uint32_t code) { return !o->ties_away && code % 2 == 0; }

/* The highest code that is made. */
static inline uint32_t oracle_last(const oracle *o) { return o->saturates ? o->num_finite - 1 : o->num_finite; }

static inline uint32_t oracle_nearest(const oracle *o, double magnitude)
{
    uint32_t low = 0, high = o->num_finite + 1; /* values[low] <= magnitude < values[high] */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (o->values[middle] <= magnitude) low = middle;
        else high = middle;
    }
    if (low >= oracle_last(o)) return oracle_last(o);
    const double midpoint = oracle_midpoint(o, low);
    return magnitude < midpoint || (magnitude == midpoint && oracle_tie_goes_down(o, low)) ? low : low + 1;
}

static inline uint32_t oracle_encode(const oracle *o, float value)
{
    if (isnan(value)) return o->nan;
    return oracle_nearest(o, fabs((double)value)) | (signbit(value) ? o->sign : 0);
}

/* ---- checks ---- */

static inline float float_of(uint32_t bits)
{
    union {
        uint32_t bits;
        float value;
    } u = { bits };
    return u.value;
}

static inline uint32_t bits_of(float value)
{
    union {
        float value;
        uint32_t bits;
    } u = { value };
    return u.bits;
}

/* A function given by name is called directly, and inlined, in what is inlined itself. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef uint32_t (*encoder)(float value);
typedef float (*decoder)(uint32_t code);
typedef uint32_t (*wanted)(const void *context, float value);

static inline void check_encoding(const char *name, encoder encode, wanted want, const void *context, uint32_t bits)
{
    const float value = float_of(bits);
    const uint32_t seen = encode(value), right = want(context, value);
    if (seen != right)
        CHECK_THAT(false, "%s(0x%08" PRIX32 " = %a) is 0x%" PRIX32 ", want 0x%" PRIX32, name, bits, (double)value, seen,
                   right);
}

/* A float, its neighbours on either side, and their negatives. */
static inline void check_around(const char *name, encoder encode, wanted want, const void *context, float value)
{
    for (uint32_t step = 0; step < 5; step++) {
        const uint32_t bits = (bits_of(value) + step - 2) & 0x7FFFFFFF;
        check_encoding(name, encode, want, context, bits);
        check_encoding(name, encode, want, context, bits | 0x80000000);
    }
}

/* Every exponent with every mantissa that is one run of ones or one of zeros (so just below, at and just
 * above half of any number of dropped bits), and a million random patterns. */
static inline void check_everywhere(const char *name, encoder encode, wanted want, const void *context)
{
    for (uint32_t upper = 0; upper < 512; upper++)
        for (int from = 0; from <= 23; from++)
            for (int to = from; to <= 23; to++) {
                const uint32_t ones = ((uint32_t)1 << to) - ((uint32_t)1 << from);
                check_encoding(name, encode, want, context, upper << 23 | ones);
                check_encoding(name, encode, want, context, upper << 23 | (ones ^ 0x7FFFFF));
            }
    test_random random = test_seed(name);
    for (int i = 0; i < 1000000; i++) check_encoding(name, encode, want, context, (uint32_t)test_bits(&random));
}

static inline uint32_t oracle_want(const void *context, float value) { return oracle_encode(context, value); }

/* The sampled set: around every value and every midpoint of the format, and everywhere. */
static inline void check_sampled(const oracle *o, const char *name, encoder encode)
{
    for (uint32_t code = 0; code < o->num_finite; code++) {
        check_around(name, encode, oracle_want, o, (float)o->values[code]);
        check_around(name, encode, oracle_want, o, (float)oracle_midpoint(o, code));
    }
    check_everywhere(name, encode, oracle_want, o);
}

/* Reports the first of the floats begin .. end - 1 (and of their negatives) that does not become `code`. */
ALWAYS_INLINE void check_range(const char *name, encoder encode, uint32_t begin, uint32_t end, uint32_t code,
                               uint32_t negative_code)
{
    uint32_t wrong = 0; /* no branch: the loop over billions is to be vectorised */
    for (uint32_t bits = begin; bits < end; bits++)
        wrong |= (encode(float_of(bits)) ^ code) | (encode(float_of(bits | 0x80000000)) ^ negative_code);
    if (!wrong) return;
    for (uint32_t bits = begin; bits < end; bits++) {
        const uint32_t seen = encode(float_of(bits)), negative_seen = encode(float_of(bits | 0x80000000));
        if (seen == code && negative_seen == negative_code) continue;
        CHECK_THAT(false,
                   "%s(0x%08" PRIX32 ") and of its negative are 0x%" PRIX32 ", 0x%" PRIX32 ", want 0x%" PRIX32
                   ", 0x%" PRIX32,
                   name, bits, seen, negative_seen, code, negative_code);
        return;
    }
}

/* All 2^32 floats. Those that become one code lie between two midpoints, so a walk over the codes knows what
 * each float must become without a search. */
ALWAYS_INLINE void check_all(const oracle *o, const char *name, encoder encode)
{
    const uint32_t last = oracle_last(o);
    uint32_t begin = 0;
    for (uint32_t code = 0; code <= last; code++) {
        uint32_t end = 0x7F800001; /* past infinity */
        if (code < last) end = bits_of((float)oracle_midpoint(o, code)) + oracle_tie_goes_down(o, code);
        check_range(name, encode, begin, end, code, code | o->sign);
        begin = end;
    }
    check_range(name, encode, begin, 0x80000000, o->nan, o->nan);
}

/* All codes: their values, and that encoding brings them back. */
static inline void check_codes(const oracle *o, const char *name, decoder decode, encoder encode)
{
    for (uint32_t code = 0; code < 2 * o->sign; code++) {
        const uint32_t magnitude = code % o->sign, sign = code - magnitude;
        const float seen = decode(code);
        double value = NAN;
        uint32_t again = o->nan;
        if (magnitude < o->num_finite) {
            value = o->values[magnitude];
            again = code;
        } else if (magnitude == o->num_finite && o->has_infinity) {
            value = INFINITY;
            again = sign + oracle_last(o);
        }
        const uint32_t nan_bits = o->keeps_nan ? code * (0x80000000 / o->sign) : 0x7FFFFFFF;
        const bool right = isnan(value) ? isnan(seen) && bits_of(seen) == nan_bits
                                        : (double)seen == (sign ? -value : value) && !signbit(seen) == !sign;
        CHECK_THAT(right, "%s(0x%" PRIX32 ") is %a = 0x%08" PRIX32 ", want %a", name, code, (double)seen, bits_of(seen),
                   sign ? -value : value);
        CHECK_THAT(encode(seen) == again, "%s(0x%" PRIX32 ") is encoded as 0x%" PRIX32 ", want 0x%" PRIX32, name, code,
                   encode(seen), again);
    }
}

/* ---- the tests of a format ----
 * FORMAT(e4m3, uint8_t, 448, .mantissa_bits = 3, ...) defines encode(), decode(), the oracle format() and the test of all
 * codes; TESTS_OF_FORMAT adds those of all floats, which are rounded to nearest. */
#define FORMAT(name, code_type, max, ...)                                               \
    static uint32_t encode(float value) { return tgl_##name##_from_f32(value); }        \
    static float decode(uint32_t code) { return tgl_##name##_to_f32((code_type)code); } \
    static const oracle *format(void)                                                   \
    {                                                                                   \
        static oracle made;                                                             \
        if (!made.values) made = oracle_make((oracle){ __VA_ARGS__ });                  \
        return &made;                                                                   \
    }                                                                                   \
    TEST(name##_to_f32_all_codes)                                                       \
    {                                                                                   \
        check_codes(format(), "tgl_" #name "_to_f32", decode, encode);                  \
        CHECK((double)(max) == format()->values[format()->num_finite - 1]);             \
    }
#define TESTS_OF_FORMAT(name, ...)                                                               \
    FORMAT(name, __VA_ARGS__)                                                                    \
    TEST(name##_from_f32_sampled) { check_sampled(format(), "tgl_" #name "_from_f32", encode); } \
    TEST(name##_from_f32_all_floats)                                                             \
    {                                                                                            \
        if (!test_slow()) SKIP("2^32 floats are in the slow set");                               \
        check_all(format(), "tgl_" #name "_from_f32", encode);                                   \
    }

#endif
