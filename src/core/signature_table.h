/* SPDX-License-Identifier: MIT
 * signature_table.h - the table that a signature is parsed to, and how it is read. For the parser, the two
 * checkers, and tests. */
#ifndef TEGULA_SIGNATURE_TABLE_H
#define TEGULA_SIGNATURE_TABLE_H

#include "core/math.h"
#include "core/signature.h"

/* Limits; a text that exceeds one is an error. Sets of tensors and of values are 32-bit masks. */
enum {
    TGL_MAX_TENSORS = 24,
    TGL_MAX_VALUES = 32,
    TGL_MAX_RULES = 20,
    TGL_MAX_WORDS = 4,
    TGL_MAX_RANK = 5,
    TGL_MAX_STEPS = 96, /* of all expressions */
    TGL_MAX_STACK = 8,
    TGL_MAX_NAMES = 1024 /* bytes */
};

/* ---- numbers ---- */

/* A parsed expression: constant + factor * values[value], values[value] / values[divisor] rounded up, or a
 * program. NONE: the text has none. */
typedef struct {
    enum { TGL_NUMBER_NONE, TGL_NUMBER_LINEAR, TGL_NUMBER_QUOTIENT, TGL_NUMBER_PROGRAM } kind;
    int value, divisor; /* PROGRAM: value is its first step */
    int64_t factor, constant;
} tgl_number;

/* A step of a program, in postfix order: push a constant (k) or a value (v); one of + - * / >; jump over
 * `constant` steps (e), or if the popped number is 0 (j); end (0). */
typedef struct {
    char op;
    uint8_t value;
    int64_t constant;
} tgl_step;

/* ---- tensors ---- */

/* A dimension: factor * values[value] + more; with value -1, `more` alone. */
typedef struct {
    int value, factor;
    tgl_number more;
    const char *note;
} tgl_size;

/* How codes are packed into elements. */
typedef enum { TGL_UNPACKED, TGL_PACKED_E2M1, TGL_PACKED_E5M6, TGL_NUM_PACKINGS } tgl_packing;

typedef struct {
    const char *name;
    tgl_dtype dtypes;
    tgl_dtype otherwise; /* if tensor `if_given` is not given */
    tgl_dtype first;     /* the first in the text: what Python makes */
    int8_t if_given;     /* a tensor, or -1 */
    int8_t like;         /* the tensor with the same dtype, or -1 */
    int8_t by_word;      /* the scalar whose word names the dtype, or -1 */
    bool is_e2m1;        /* one-byte elements other than e4m3 are pairs of e2m1 */
    bool is_scales;      /* row- or column-major f32, or column-major i32, four in a word */
    bool has_leading;    /* any leading dimensions before those of the text */
    bool is_optional, is_written, is_host, is_anywhere;
    tgl_layout layout;
    int ndim; /* of the text */
    tgl_size sizes[TGL_MAX_RANK];
    uint32_t may_be; /* mask of tensors that it may be identical to */
    uint32_t owns;   /* mask of sizes that it determines */
} tgl_arg;

/* ---- sizes and scalars ---- */

typedef enum {
    TGL_VALUE_SIZE,
    TGL_VALUE_INT,
    TGL_VALUE_WORD,
    TGL_VALUE_BOOL,
    TGL_VALUE_FLOAT, /* not usable in expressions */
    TGL_VALUE_GIVEN  /* is tensor `with` given? */
} tgl_value_type;

typedef struct {
    const char *name;
    tgl_value_type type;
    size_t offset;           /* of a scalar, in the params */
    int8_t with, with_value; /* the tensor or bool that the scalar belongs to: ignored without it; or -1 */
    int8_t owner;            /* the tensor that determines a size; -1: an optional one does */
    bool is_of_elements;     /* the range counts the owner's elements, not values */
    bool is_range;           /* the message names both bounds */
    tgl_number fallback;     /* what 0 stands for */
    tgl_number low, high;
    const char *low_name; /* if low is just a name: for the message */
    int num_words;
    int num_words_given; /* if tensor with_words (or -1) is given */
    int with_words;
    struct {
        const char *word;
        tgl_dtype dtypes;
        tgl_packing packing;
    } words[TGL_MAX_WORDS];
} tgl_value;

typedef struct {
    enum { TGL_RULE_NEEDS, TGL_RULE_WITHIN, TGL_RULE_EQUALS, TGL_RULE_DIVIDES, TGL_RULE_MULTIPLE } kind;
    int8_t after;                     /* checked once the sizes of this tensor are known; -1: at once */
    int8_t tensor, value;             /* the subject: one of them is -1 */
    int8_t other_tensor, other_value; /* the object: needed, divided, or the scalar with the word; or -1 */
    int8_t word;                      /* MULTIPLE: only if other_value is this word */
    tgl_dtype dtypes;                 /* NEEDS: only if the tensor has one of these; or 0 */
    tgl_number low, high;             /* EQUALS, MULTIPLE: low */
    tgl_number condition;             /* MULTIPLE: only if it is not 0 */
    const char *low_name;
} tgl_rule;

/* ---- the same facts, compact, for the quick checker (signature_quick.c) ---- */

typedef struct {
    uint32_t dtypes[4], otherwise[4]; /* code, bits and lanes */
    uint8_t place, ndim, layout, flags;
    int8_t if_given, like, by_word;
    int8_t sizes[TGL_MAX_RANK]; /* values; -1: no plain size */
} tgl_quick_arg;

typedef struct {
    int64_t low;
    int64_t zero; /* what 0 stands for */
    uint16_t offset;
    uint8_t value, type, num_words, num_words_given;
    int8_t with, with_value; /* as in tgl_value; WORD: with_words */
} tgl_quick_scalar;

typedef struct {
    bool is_possible;
    uint8_t num_scalars, num_dims, num_deciding, num_ranges, num_fallbacks, num_unowned, num_by_word, num_written;
    uint32_t word_dtypes[TGL_NUM_PACKINGS][4];
    tgl_quick_arg args[TGL_MAX_TENSORS]; /* required ones first */
    tgl_quick_scalar scalars[TGL_MAX_VALUES];
    struct { uint8_t tensor, dim; } dims[TGL_MAX_TENSORS * TGL_MAX_RANK]; /* not plain; those of owners first */
    uint8_t ranges[TGL_MAX_VALUES], fallbacks[TGL_MAX_VALUES];            /* values that have one */
    uint8_t unowned[TGL_MAX_VALUES];                                      /* sizes of optional tensors only */
    uint8_t by_word[TGL_MAX_TENSORS], written[TGL_MAX_TENSORS];
} tgl_quick;

struct tgl_table {
    const char *name;
    int num_tensors;                        /* inputs, then outputs */
    int home;                               /* the tensor whose device is the call's */
    int num_values, num_sizes, num_scalars; /* sizes first, then scalars, then GIVEN */
    int num_rules, num_steps, num_name_bytes;
    tgl_arg tensors[TGL_MAX_TENSORS];
    tgl_value values[TGL_MAX_VALUES];
    tgl_rule rules[TGL_MAX_RULES];
    tgl_step steps[TGL_MAX_STEPS];
    char names[TGL_MAX_NAMES];
    tgl_quick quick;
};

/* Parses a text; TGL_ERR_INTERNAL with the position of a mistake. */
tgl_status tgl_parse_signature(const char *text, const tgl_params *params, const char *sizes, tgl_table *out);
void tgl_make_quick(tgl_table *t);

/* ---- the two checkers behind tgl_check() ----
 * `values` has room for t->num_values; a FLOAT's is not set. */

/* The slow checker has all the messages. */
tgl_status tgl_check_slowly(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors,
                            const void *params, int64_t *values);

/* The quick checker accepts only calls that the slow one accepts, with the same values. It may reject a
 * rare call that is good, so after a rejection the slow one decides. */
bool tgl_check_quickly(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors, const void *params,
                       int64_t *values);

/* ---- what both read ---- */

/* Arithmetic saturates: the sizes of empty tensors may be anything. */
static inline int64_t tgl_add(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (b < 0 ? INT64_MIN : INT64_MAX) : sum;
}

static inline int64_t tgl_multiply(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? ((a < 0) != (b < 0) ? INT64_MIN : INT64_MAX) : product;
}

/* Rounded up; 0 / 0 is 0. */
static inline int64_t tgl_quotient_up(int64_t a, int64_t b) { return b == 1 ? a : b == 0 ? 0 : tgl_ceil_div(a, b); }

int64_t tgl_run_steps(const tgl_step *steps, const int64_t *values);

static inline int64_t tgl_number_of(const tgl_table *t, const tgl_number *n, const int64_t *values)
{
    if (n->kind == TGL_NUMBER_QUOTIENT) return tgl_quotient_up(values[n->value], values[n->divisor]);
    if (n->kind == TGL_NUMBER_PROGRAM) return tgl_run_steps(&t->steps[n->value], values);
    if (!n->factor) return n->constant; /* NONE: 0 */
    const int64_t value = values[n->value];
    return tgl_add(n->factor == 1 ? value : tgl_multiply(n->factor, value), n->constant);
}

static inline bool tgl_is_constant(const tgl_number *n) { return n->kind <= TGL_NUMBER_LINEAR && !n->factor; }

/* Just a name: n. */
static inline bool tgl_is_plain(const tgl_size *size)
{
    return size->value >= 0 && size->factor == 1 && !size->more.kind;
}

/* What a dimension must be, counted in values. */
static inline int64_t tgl_size_of(const tgl_table *t, const tgl_size *size, const int64_t *values)
{
    const int64_t more = size->more.kind ? tgl_number_of(t, &size->more, values) : 0;
    return size->value < 0 ? more : tgl_add(tgl_multiply(values[size->value], size->factor), more);
}

struct tgl_packing_sizes {
    int values, elements;
    const char *name;
};
extern const struct tgl_packing_sizes TGL_PACKINGS[TGL_NUM_PACKINGS];
enum { TGL_PAIRS = TGL_I8 | TGL_U8 | TGL_E2M1X2 }; /* of e2m1 */

/* How values are packed in the last dimension. x may be NULL if a word decides. */
static inline tgl_packing tgl_packing_of(const tgl_table *t, const tgl_arg *a, const DLTensor *x, const int64_t *values)
{
    if (a->by_word >= 0) return t->values[a->by_word].words[values[a->by_word]].packing;
    return a->is_e2m1 && tgl_dtype_is(x->dtype, TGL_PAIRS) ? TGL_PACKED_E2M1 : TGL_UNPACKED;
}

/* Do the strides of scale factors, not empty, fit one of their layouts? Written ones must not overlap. */
bool tgl_scales_fit(const DLTensor *x, bool is_written);

static inline bool tgl_rule_holds(const tgl_table *t, const tgl_rule *r, const DLTensor *const *tensors,
                                  const int64_t *values)
{
    const int64_t is = r->value >= 0 ? values[r->value] : 0;
    switch (r->kind) {
    case TGL_RULE_NEEDS: {
        const DLTensor *x = r->tensor >= 0 ? tensors[r->tensor] : NULL;
        const bool is_asked = x ? !r->dtypes || tgl_dtype_is(x->dtype, r->dtypes) : is != 0;
        const bool is_there = r->other_tensor >= 0 ? tensors[r->other_tensor] != NULL : values[r->other_value] != 0;
        return is_there || !is_asked;
    }
    case TGL_RULE_WITHIN:
        return (!r->low.kind || is >= tgl_number_of(t, &r->low, values)) &&
               (!r->high.kind || is <= tgl_number_of(t, &r->high, values));
    case TGL_RULE_EQUALS: return is == tgl_number_of(t, &r->low, values);
    case TGL_RULE_DIVIDES: return is == 0 || values[r->other_value] % is == 0;
    default: {
        const int64_t of = tgl_number_of(t, &r->low, values);
        const bool is_asked = (r->other_value < 0 || values[r->other_value] == r->word) &&
                              (!r->condition.kind || tgl_number_of(t, &r->condition, values));
        return !is_asked || of == 0 || is % of == 0;
    }
    }
}

#endif
