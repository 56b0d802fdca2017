/* SPDX-License-Identifier: MIT
 * signature.h - what an op takes, said once. A text stands beside the op,
 *
 *     static tgl_signature SIGNATURE = TGL_SIGNATURE(
 *         "moe_topk_gate(scores: f32[num_tokens, num_experts] rows)"
 *         " -> topk_idx: i64|i32[num_tokens, num_topk]"
 *         " where num_experts < 2^31, num_topk <= num_experts", NULL);
 *
 * and its first call parses it (signature_parse.c has the grammar). From the table that comes out follow the
 * checks of a call with their messages, the log line, and the tests of errors (tests/errors.h). */
#ifndef TEGULA_SIGNATURE_H
#define TEGULA_SIGNATURE_H

#include <stdatomic.h>
#include <stddef.h>

#include "core/tensor.h"

/* ---- an op's side ---- */

typedef struct tgl_table tgl_table;
typedef struct tgl_params tgl_params;
typedef struct {
    const char *text;
    const tgl_params *params;                   /* the struct that has the scalars; NULL: see tgl_check() */
    const char *sizes;                          /* "num_tokens, num_experts", or NULL: what the parser must find */
    _Atomic(const tgl_table *) table;
} tgl_signature;
#define TGL_SIGNATURE(text_, ...) { .text = (text_), .params = __VA_ARGS__ }

/* The sizes of a signature as a struct for tgl_check(), and their names, which the parser compares:
 *
 *     TGL_SIZES(sizes, num_tokens, num_experts, num_topk);
 *     ... = TGL_SIGNATURE("...", NULL, TGL_SIZES_OF(sizes));
 *     sizes n;
 *     TGL_TRY(tgl_check(&SIGNATURE, tensors, NULL, &n.num_tokens)); */
#define TGL_SIZES(type, ...)                      \
    typedef struct { int64_t __VA_ARGS__; } type; \
    static const char type##_names[] = #__VA_ARGS__
#define TGL_SIZES_OF(type) .sizes = type##_names

/* The fields of a params struct, named once per struct:
 *
 *     #define FIELD(name) TGL_FIELD(tgl_quant_params, name)
 *     static const tgl_field FIELDS[] = { FIELD(format), FIELD(num_per_tokens), ... };
 *     const tgl_params TGL_QUANT_PARAMS = TGL_PARAMS(tgl_quant_params, FIELDS); */
typedef enum { TGL_FIELD_INT, TGL_FIELD_ENUM, TGL_FIELD_BOOL, TGL_FIELD_FLOAT } tgl_field_type;
typedef struct { const char *name; size_t offset; tgl_field_type type; } tgl_field;
struct tgl_params { const tgl_field *fields; int num_fields; size_t reserved; };
#define TGL_FIELD(type, field)                                                                             \
    { #field, offsetof(type, field),                                                                       \
      _Generic(((type *)0)->field, int64_t: TGL_FIELD_INT, bool: TGL_FIELD_BOOL, float: TGL_FIELD_FLOAT,   \
               default: TGL_FIELD_ENUM) }
#define TGL_PARAMS(type, fields) { (fields), sizeof(fields) / sizeof((fields)[0]), offsetof(type, reserved) }

/* Checks a call. `tensors` are in the order of the text, outputs last. `params` is the op's params struct; of
 * a signature without one (NULL above) an int64_t for each scalar, in the order of the text. `sizes` (or NULL) gets the
 * sizes of a call that passes, in the order in which the text first names them; one that only tensors have
 * which are not given is 0. TGL_ERR_ARGUMENT with a message otherwise. */
tgl_status tgl_check(tgl_signature *s, const DLTensor *const *tensors, const void *params, int64_t *sizes);

/* "tgl_moe_topk_gate(scores f32 [3, 5] on cpu, topk_idx i64 [3, 2] on cpu)", where TEGULA_LOG asks for it. */
void tgl_log_signature(tgl_signature *s, const DLTensor *const *tensors);

/* The table, made at the first call. NULL with an error if the text is not of the grammar. */
const tgl_table *tgl_signature_table(tgl_signature *s);

/* ---- the table ---- */

/* A text that needs more is an error. Sets of tensors and of values are masks of 32 bits. */
enum {
    TGL_MAX_TENSORS = 24,
    TGL_MAX_VALUES = 32,
    TGL_MAX_RULES = 20,
    TGL_MAX_WORDS = 4,
    TGL_MAX_RANK = 5,
    TGL_MAX_STEPS = 96,
    TGL_MAX_STACK = 8,
    TGL_MAX_NAMES = 1024                        /* bytes */
};

/* constant + factor * values[value], or a program; NONE where the text says nothing. Saturates. */
typedef struct {
    enum { TGL_NUMBER_NONE, TGL_NUMBER_LINEAR, TGL_NUMBER_PROGRAM } kind;
    int value;                                  /* PROGRAM: its first step */
    int64_t factor, constant;
} tgl_number;

/* Postfix. k: constant, v: value, + - * / (rounds up) > ?: operators, the end is 0. */
typedef struct { char op; uint8_t value; int64_t constant; } tgl_step;

/* A dimension: factor * values[value] + more, or with value -1 `more` alone. The first tensor that has a value
 * decides it, one that is always given before those that are optional. */
typedef struct { int value, factor; tgl_number more; const char *note; } tgl_size;

/* How many values are in how many elements. */
typedef enum { TGL_UNPACKED, TGL_PACKED_E2M1, TGL_PACKED_E5M6 } tgl_packing;

typedef struct {
    const char *name, *in_struct;               /* the struct that it is a member of, or NULL */
    tgl_dtype dtypes, otherwise;                /* `otherwise` where tensor `if_given` is not */
    tgl_dtype first;                            /* of the text: what Python makes */
    int8_t if_given, like, by_word;             /* a tensor, a tensor that has its dtype, a scalar whose word
                                                   names its dtype; or -1 */
    bool is_e2m1;                               /* bytes of its dtypes are pairs of e2m1 */
    bool is_scales;                             /* f32 by rows or columns, or i32, four in a word, by columns */
    bool has_leading;                           /* any dimensions before the named ones */
    bool is_optional, is_written, is_host;
    tgl_layout layout;
    int ndim;                                   /* named ones */
    tgl_size sizes[TGL_MAX_RANK];
    uint32_t may_be;                            /* mask of tensors: this one may be one of them itself */
    uint32_t owns;                              /* mask of values that it decides wherever it is given */
} tgl_arg;

typedef enum { TGL_VALUE_SIZE, TGL_VALUE_INT, TGL_VALUE_WORD, TGL_VALUE_BOOL, TGL_VALUE_FLOAT, TGL_VALUE_GIVEN } tgl_value_type;
typedef struct {
    const char *name;
    tgl_value_type type;                        /* GIVEN: is tensor `with` given? */
    size_t offset;                              /* of a scalar, in params */
    int8_t with, with_value;                    /* a tensor, a bool without which it is not read; or -1 */
    tgl_number fallback;                        /* what 0 stands for */
    tgl_number low, high;
    const char *low_name;                       /* where low is a single name, for the message */
    bool is_range;                              /* the message has both bounds */
    int8_t owner;                               /* the tensor that decides a size; -1: each that is optional may */
    bool is_of_elements;                        /* its range is of the owner's elements, not of values */
    int num_words, num_words_given, with_words; /* `given` ones where tensor with_words (or -1) is given */
    struct { const char *word; tgl_dtype dtypes; tgl_packing packing; } words[TGL_MAX_WORDS];
} tgl_value;

typedef struct {
    enum { TGL_RULE_NEEDS, TGL_RULE_WITHIN, TGL_RULE_EQUALS, TGL_RULE_DIVIDES, TGL_RULE_MULTIPLE } kind;
    int8_t after;                               /* checked once this tensor's sizes are known; -1: at once */
    int8_t tensor, value;                       /* what it is about: one of them is -1 */
    int8_t other_tensor, other_value;           /* what is needed, what is divided, whose word it is */
    int8_t word;                                /* MULTIPLE: only where other_value (or -1) is this */
    tgl_dtype dtypes;                           /* NEEDS: of a tensor of these alone; or 0 */
    tgl_number low, high, condition;            /* MULTIPLE: of low, where the condition (or none) is not 0 */
    const char *low_name;                       /* where low is a single name, for the message */
} tgl_rule;

/* The same facts without names, close together, for calls that pass (check_quickly of signature.c). */
typedef struct {
    uint32_t dtypes[4], otherwise[4];           /* code, bits and lanes; NO_DTYPE where there are fewer */
    uint8_t place, ndim, layout, flags;
    int8_t if_given, like, by_word;
    int8_t sizes[TGL_MAX_RANK];                 /* values; -1: compared once all are known */
} tgl_quick_arg;
typedef struct {
    int64_t low, zero;                          /* what 0 stands for */
    uint16_t offset;
    uint8_t value, type, words, words_given, has_low;
    int8_t with, with_value;                    /* of words: the tensor with which there are words_given */
} tgl_quick_scalar;
typedef struct {
    bool is_possible;
    uint8_t num_dims, num_deciding, num_ranges, num_fallbacks, num_by_word;
    tgl_quick_arg args[TGL_MAX_TENSORS];        /* those that are always given first */
    tgl_quick_scalar scalars[TGL_MAX_VALUES];
    struct { uint8_t tensor, dim; } dims[TGL_MAX_TENSORS * TGL_MAX_RANK];    /* no plain sizes; deciding ones first */
    uint8_t ranges[TGL_MAX_VALUES], fallbacks[TGL_MAX_VALUES], by_word[TGL_MAX_TENSORS];
    uint32_t word_dtypes[3][4];                 /* by packing */
} tgl_quick;

struct tgl_table {
    const char *name;
    int num_tensors, num_inputs;                /* inputs first */
    int num_values, num_sizes, num_scalars;     /* sizes first, then scalars, then GIVEN */
    int num_rules, num_steps, num_name_bytes;
    tgl_arg tensors[TGL_MAX_TENSORS];
    tgl_value values[TGL_MAX_VALUES];
    tgl_rule rules[TGL_MAX_RULES];
    tgl_step steps[TGL_MAX_STEPS];
    char names[TGL_MAX_NAMES];
    tgl_quick quick;
};

/* Parses a text; TGL_ERR_INTERNAL with its place if it is not of the grammar. */
tgl_status tgl_parse_signature(const char *text, const tgl_params *params, const char *sizes, tgl_table *out);
void tgl_make_quick(tgl_table *t);

/* The two ways of tgl_check(); `values` has room for t->num_values. The slow one has all messages. The quick
 * one is true only of calls that the slow one lets pass, with the same values; false where it would take
 * longer to find out. */
tgl_status tgl_check_slowly(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors,
                            const void *params, int64_t *values);
bool tgl_check_quickly(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors,
                       const void *params, int64_t *values);

int64_t tgl_number_of(const tgl_table *t, const tgl_number *n, const int64_t *values);

#endif
