/* SPDX-License-Identifier: MIT
 * parse.c - parses the text of a row into an op_row, once, at import.
 *
 *   x[T, H]                  a tensor; names its dimensions
 *   x[T, H]?                 an optional one: may be None, which is its default unless a parameter without a
 *                            default follows
 *   x[T, H]!                 one that the op changes in place; ?! if it is also optional
 *   x[T, H] host             one in host memory, even if the others are on a device
 *   group: int = 128         also float and bool; `?` after the kind allows None
 *   fmt: {e4m3|e5m2} = e4m3  one of some words
 *   -> out: fmt[T, H], out_sf: f32[T, H / group; 1, T / 4 * 4 if col_major]
 *                            the outputs: name; dtype (a word of dtype.c, or that of a tensor or word argument);
 *                            sizes; after `;` the strides, unless packed (with `if`: only if a bool is true)
 *   -> out: x[P, H] if map else x[T, H]
 *                            one of two forms, chosen by a bool, or by an optional tensor or word being given
 *   -> None                  no output: the op works in place
 *
 * A size is a sum of products of dimension names, int and bool arguments and numbers; `/` rounds up; a product is
 * evaluated from left to right. A word argument stands for the bits of a value (fmt[T, H * fmt / 8]), a tensor for the
 * values per element: 2 for a byte, which holds a pair of e2m1, otherwise 1.
 *
 * Every function with outputs also takes out=: a tensor, or a tuple in which None is an output to be made.
 *
 * The public function takes the same arguments as the operator, or those of a face:
 *   fmt                      a parameter
 *   x & x_sf                 a pair (tuple or list) of two; if the second is an optional tensor, also a tensor alone
 *   block_size: rows & cols = None
 *                            a pair with a name of its own and, if both may be None, a default
 *   *                        from here on keywords only */
#include "glue.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const char *p; } reader;

static void skip_spaces(reader *r)
{
    while (*r->p == ' ') r->p++;
}

static bool take(reader *r, const char *token)
{
    skip_spaces(r);
    const size_t n = strlen(token);
    if (strncmp(r->p, token, n)) return false;
    r->p += n;
    return true;
}

static bool take_word(reader *r, char out[NAME_BYTES])
{
    size_t n = 0;
    skip_spaces(r);
    for (; isalnum((unsigned char)*r->p) || *r->p == '_'; r->p++) {
        if (n + 1 == NAME_BYTES) return false;
        out[n++] = *r->p;
    }
    out[n] = 0;
    return n > 0;
}

static int param_named(const op_row *row, const char *word)
{
    for (int i = 0; i < row->num_params; i++)
        if (PyUnicode_CompareWithASCIIString(row->params[i].name, word) == 0) return i;
    return -1;
}

static bool parse_tensor(reader *r, op_row *row, param *p) /* behind the `[` */
{
    char w[NAME_BYTES];
    p->kind = 't';
    row->tensors[row->num_tensors++] = row->num_params - 1;
    do
        if (p->ndim == MAX_DIMS || !take_word(r, w) || !(p->dims[p->ndim++] = PyUnicode_InternFromString(w)))
            return false;
    while (take(r, ","));
    if (!take(r, "]")) return false;
    p->optional = p->has_default = take(r, "?");
    p->is_in_place = take(r, "!");
    p->is_on_host = take(r, "host");
    row->has_in_place |= p->is_in_place;
    return true;
}

static bool parse_default(reader *r, param *p) /* behind the `=` */
{
    char w[NAME_BYTES], *end;
    p->has_default = true;
    if (take(r, "None")) return p->optional;
    p->fallback.given = true;
    skip_spaces(r);
    if (p->kind == 'f' || p->kind == 'i') {
        if (p->kind == 'f') p->fallback.f = strtod(r->p, &end);
        else p->fallback.i = strtoll(r->p, &end, 10);
        const bool some = end > r->p;
        r->p = end;
        return some;
    }
    if (!take_word(r, w)) return false;
    if (p->kind == 'b') return p->fallback.i = !strcmp(w, "True"), p->fallback.i || !strcmp(w, "False");
    for (int i = 0; i < p->num_words; i++)
        if (PyUnicode_CompareWithASCIIString(p->words[i], w) == 0) return p->fallback.i = i, true;
    return false;
}

static bool parse_param(reader *r, op_row *row)
{
    char w[NAME_BYTES];
    if (row->num_params == MAX_PARAMS || !take_word(r, w)) return false;
    param *p = &row->params[row->num_params++];
    if (!(p->name = p->shown = PyUnicode_InternFromString(w))) return false;
    if (take(r, "[")) return parse_tensor(r, row, p);
    if (!take(r, ":")) return false;
    if (take(r, "{")) {
        p->kind = 'e';
        do {
            if (p->num_words == MAX_WORDS || !take_word(r, w)) return false;
            /* where the word is a dtype, an output may use it */
            dtype_named(w, &p->word_dtype[p->num_words], &p->word_bits[p->num_words]);
            if (!(p->words[p->num_words++] = PyUnicode_InternFromString(w))) return false;
        } while (take(r, "|"));
        if (!take(r, "}")) return false;
    } else {
        if (!take_word(r, w) || (strcmp(w, "int") && strcmp(w, "float") && strcmp(w, "bool"))) return false;
        p->kind = w[0];
    }
    p->optional = take(r, "?");
    return !take(r, "=") || parse_default(r, p);
}

static bool parse_factor(reader *r, const op_row *row, factor *f)
{
    char w[NAME_BYTES];
    if (!take_word(r, w)) return false;
    if (isdigit((unsigned char)w[0])) return f->constant = atoi(w), f->constant > 0;
    const int index = param_named(row, w);
    if (index >= 0) {
        const param *p = &row->params[index];
        f->param = (signed char)index;
        for (int i = 0; i < p->num_words; i++)
            if (p->word_bits[i] == 0) return false; /* a word that is no dtype */
        return strchr("ib", p->kind) || (strchr("te", p->kind) && !p->optional);
    }
    for (int optional = 0; optional < 2; optional++) /* a tensor that is always there first */
        for (int i = 0; i < row->num_params; i++)
            for (int d = 0; d < row->params[i].ndim && row->params[i].optional == optional; d++)
                if (PyUnicode_CompareWithASCIIString(row->params[i].dims[d], w) == 0)
                    return f->param = (signed char)i, f->axis = (signed char)d, true;
    return false;
}

static bool parse_extent(reader *r, const op_row *row, extent *e)
{
    char op = '*';
    do {
        if (e->count == MAX_FACTORS) return false;
        factor *f = &e->f[e->count++];
        *f = (factor){ .param = -1, .axis = -1, .op = op };
        if (!parse_factor(r, row, f)) return false;
        op = take(r, "*") ? '*' : take(r, "/") ? '/' : take(r, "+") ? '+' : 0;
    } while (op);
    return true;
}

static bool parse_result(reader *r, const op_row *row, result *o)
{
    char w[NAME_BYTES];
    int bits;
    if (!take_word(r, w)) return false;
    o->dtype_from = o->strided_if = o->chosen_by = -1;
    if (!dtype_named(w, &o->dtype, &bits)) {
        if ((o->dtype_from = param_named(row, w)) < 0) return false;
        const param *p = &row->params[o->dtype_from];
        if ((p->kind != 't' && p->kind != 'e') || p->optional) return false;
        for (int i = 0; i < p->num_words; i++)
            if (p->word_dtype[i].bits == 0) return false; /* a word that is no dtype */
    }
    if (!take(r, "[")) return false;
    do
        if (o->ndim == MAX_DIMS || !parse_extent(r, row, &o->size[o->ndim++])) return false;
    while (take(r, ","));
    o->is_packed = !take(r, ";");
    for (int d = 0; !o->is_packed && d < o->ndim; d++)
        if ((d > 0 && !take(r, ",")) || !parse_extent(r, row, &o->stride[d])) return false;
    if (!o->is_packed && take(r, "if")) {
        o->strided_if = take_word(r, w) ? param_named(row, w) : -1;
        if (o->strided_if < 0 || row->params[o->strided_if].kind != 'b') return false;
    }
    return take(r, "]");
}

/* The sizes of an optional tensor exist only if it is given: in the form that it chooses. */
static bool has_all_sizes(const op_row *row, const result *o)
{
    for (int d = 0; d < 2 * o->ndim; d++) {
        const extent *e = d < o->ndim ? &o->size[d] : &o->stride[d - o->ndim];
        for (int k = 0; k < e->count; k++)
            if (e->f[k].axis >= 0 && row->params[e->f[k].param].optional && e->f[k].param != o->chosen_by) return false;
    }
    return true;
}

static bool parse_output(reader *r, op_row *row) /* name: result [`if` name `else` result] */
{
    char w[NAME_BYTES];
    if (row->num_results + row->num_others == MAX_RESULTS) return false;
    result *o = &row->results[row->num_results++];
    if (!take_word(r, w) || !take(r, ":") || !(o->name = PyUnicode_InternFromString(w))) return false;
    if (!parse_result(r, row, o)) return false;
    if (take(r, "if")) {
        o->chosen_by = take_word(r, w) ? param_named(row, w) : -1;
        const param *p = o->chosen_by < 0 ? NULL : &row->params[o->chosen_by];
        const bool can_choose = p && (p->kind == 'b' || (strchr("te", p->kind) && p->optional));
        if (!can_choose || !take(r, "else")) return false;
        if (row->num_results + row->num_others == MAX_RESULTS) return false;
        result *other = &row->results[o->otherwise = MAX_RESULTS - ++row->num_others];
        if (!parse_result(r, row, other) || other->ndim != o->ndim) return false;
        if (!has_all_sizes(row, other)) return false;
    }
    return has_all_sizes(row, o);
}

/* x & x_sf, fmt, block_size: num_per_tokens & num_per_channels = None, *, inexact */
static bool parse_face(op_row *row)
{
    reader r = { .p = row->face };
    argument_list *s = &row->public;
    char w[NAME_BYTES], name[NAME_BYTES];
    s->num_positions = -1;
    do {
        if (take(&r, "*")) {
            if (s->num_positions >= 0) return false;
            s->num_positions = s->count;
            continue;
        }
        if (s->count == MAX_PARAMS) return false;
        argument *a = &row->arguments[s->count];
        *a = (argument){ -1, -1, false };
        if (!take_word(&r, w)) return false;
        memcpy(name, w, sizeof w);
        if (take(&r, ":") && !take_word(&r, w)) return false;
        if ((a->first = param_named(row, w)) < 0) return false;
        if (take(&r, "&") && (!take_word(&r, w) || (a->second = param_named(row, w)) < 0)) return false;
        a->has_default = take(&r, "=") && take(&r, "None");
        if (a->second < 0) a->has_default = row->params[a->first].has_default;
        PyObject *public = s->names[s->count++] = PyUnicode_InternFromString(name);
        if (!public) return false;
        if (a->second >= 0 && row->params[a->first].kind != 't')
            row->params[a->first].shown = row->params[a->second].shown = public;
    } while (take(&r, ","));
    if (s->num_positions < 0) s->num_positions = s->count;
    return *r.p == 0;
}

/* Integer outputs never do; the op refuses an out= of another dtype. */
bool may_require_grad(const result *o)
{
    return o->dtype_from >= 0 || (o->dtype.code != TGL_DL_INT && o->dtype.code != TGL_DL_UINT);
}

bool parse_row(op_row *row)
{
    reader r = { .p = row->text };
    if (!take_word(&r, row->name) || !take(&r, "(")) return false;
    do
        if (!parse_param(&r, row)) return false;
    while (take(&r, ","));
    if (!take(&r, ")") || !take(&r, "->")) return false;
    row->first_tensor = -1;   /* it sets the device, stream and type of the outputs */
    bool is_followed = false; /* by a parameter without default: then it has none either */
    for (int i = row->num_params - 1; i >= 0; i--) {
        param *p = &row->params[i];
        if (p->kind == 't' && !p->optional) row->first_tensor = i;
        if (p->kind == 't' && is_followed) p->has_default = false;
        if (!p->has_default) is_followed = true;
    }
    if (row->first_tensor < 0) return false;
    if (!take(&r, "None")) do
            if (!parse_output(&r, row)) return false;
        while (take(&r, ","));
    if (*r.p) return false;
    for (int i = 0; i < MAX_RESULTS; i++)
        if (i < row->num_results || i >= MAX_RESULTS - row->num_others)
            row->has_float_output |= may_require_grad(&row->results[i]);
    row->raw.count = row->raw.num_positions = row->num_params;
    for (int i = 0; i < row->num_params; i++) row->raw.names[i] = row->params[i].name;
    row->public = row->raw;
    if (!row->face) return true;
    row->public.count = 0;
    return parse_face(row);
}
