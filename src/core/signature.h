/* SPDX-License-Identifier: MIT
 * signature.h - what an op takes, written once, as a text beside the op:
 *
 *     tgl_signature tgl_moe_topk_gate_signature = TGL_SIGNATURE(
 *         "moe_topk_gate(scores: f32[num_tokens, num_experts] rows)"
 *         " -> topk_idx: i64|i32[num_tokens, num_topk]"
 *         " where num_experts < 2^31, num_topk <= num_experts", NULL);
 *
 * The first call parses it (signature_parse.c has the grammar) to a table. The checks of a call with their
 * messages, its log line and the error tests (tests/errors.h) are made from that table. */
#ifndef TEGULA_SIGNATURE_H
#define TEGULA_SIGNATURE_H

#include <stdatomic.h>
#include <stddef.h>

#include "core/tensor.h"

typedef struct tgl_table tgl_table;
typedef struct tgl_params tgl_params;
typedef struct {
    const char *text;
    const tgl_params *params; /* the struct with the scalars; NULL: see tgl_check() */
    const char *sizes;        /* "num_tokens, num_experts": those of the text; NULL: any */
    _Atomic(const tgl_table *) table;
} tgl_signature;
#define TGL_SIGNATURE(text_, ...) { .text = (text_), .params = __VA_ARGS__ }

/* The sizes of a signature as a struct for tgl_check(), and their names for the parser:
 *
 *     TGL_SIZES(sizes, num_tokens, num_experts, num_topk);
 *     ... = TGL_SIGNATURE("...", NULL, TGL_SIZES_OF(sizes));
 *     sizes n;
 *     TGL_TRY(tgl_check(&SIGNATURE, tensors, NULL, &n.num_tokens)); */
#define TGL_SIZES(type, ...)                      \
    typedef struct { int64_t __VA_ARGS__; } type; \
    static const char type##_names[] = #__VA_ARGS__
#define TGL_SIZES_OF(type) .sizes = type##_names

/* The fields of a params struct:
 *
 *     #define FIELD(name) TGL_FIELD(tgl_quant_params, name)
 *     static const tgl_field FIELDS[] = { FIELD(format), FIELD(num_per_tokens), ... };
 *     const tgl_params TGL_QUANT_PARAMS = TGL_PARAMS(tgl_quant_params, FIELDS); */
typedef enum { TGL_FIELD_INT, TGL_FIELD_ENUM, TGL_FIELD_BOOL, TGL_FIELD_FLOAT } tgl_field_type;
typedef struct {
    const char *name;
    size_t offset;
    tgl_field_type type;
} tgl_field;
struct tgl_params {
    const tgl_field *fields;
    int num_fields;
    size_t reserved;
};
#define TGL_FIELD(type, field)       \
    { #field, offsetof(type, field), \
      _Generic(((type *)0)->field,   \
          int64_t: TGL_FIELD_INT,    \
          bool: TGL_FIELD_BOOL,      \
          float: TGL_FIELD_FLOAT,    \
          default: TGL_FIELD_ENUM) }
#define TGL_PARAMS(type, fields) { (fields), sizeof(fields) / sizeof((fields)[0]), offsetof(type, reserved) }

/* Checks a call; TGL_ERR_ARGUMENT with a message if it fails. `tensors` are in the order of the text,
 * outputs last. `params` is the op's params struct; without one (NULL above), an int64_t for each scalar,
 * in the order of the text. `sizes` (unless NULL) gets the sizes, in the order in which the text first
 * names them; 0 if a size is that of optional tensors, none of which is given. */
tgl_status tgl_check(tgl_signature *s, const DLTensor *const *tensors, const void *params, int64_t *sizes);

/* Are all tensors empty that a call, which passed, writes? */
bool tgl_writes_nothing(tgl_signature *s, const DLTensor *const *tensors);

/* "tgl_moe_topk_gate(scores f32 [3, 5] on cpu, topk_idx i64 [3, 2] on cpu)", at TEGULA_LOG=call. */
void tgl_log_signature(tgl_signature *s, const DLTensor *const *tensors);

/* The table (signature_table.h), made on first use. NULL with an error if the text does not parse. */
const tgl_table *tgl_signature_table(tgl_signature *s);

#endif
