/* SPDX-License-Identifier: MIT
 * signature_parse.c - the text of a signature to a table (signature_table.h). The grammar:
 *
 *   signature   name(argument, ...) -> output, ... where rule, ...     the last two parts may be missing
 *   argument    tensor, scalar, or name{tensor, ...}: the members of a struct, passed one by one
 *   output      tensor, or name{tensor, ...}; written by the op
 *
 *   tensor      name: dtypes[size, ...] marks layout
 *   dtypes      f32          or several: i64|i32; Python makes the first
 *               any          elements of 1, 2, 4, 8 or 16 bytes
 *               e2m1         codes, two in a byte of e2m1x2, i8 or u8; sizes count codes
 *               sf           scale factors: row- or column-major f32, or column-major i32, four in a word
 *               x            the dtype of tensor x
 *               format       named by the word of this scalar; also e5m6: eight codes in twelve bytes of u8
 *               (a if x else b)      dtypes a if the optional tensor x is given, otherwise b
 *   size        n   n + expression   2 * n   2 * n (note)   expression
 *               ...          first: any number of leading dimensions, the same for all tensors with ...
 *   marks       ?            may be NULL
 *               !            both read and written
 *   layout      (nothing)    packed
 *               rows         packed rows, any distance apart; rows that are written do not overlap
 *               strided      any strides
 *               host         after one of these: in host memory
 *               anywhere     after one of these: on the call's device, or in host memory
 *
 *   The first required tensor that has n determines it; the others must agree. If all tensors with n are
 *   optional, the first that is given determines it. The note is added to the message for an odd number.
 *
 *   scalar      name: type = default with name
 *   type        int          >= 0; otherwise: int >= e, int in a..b
 *               bool
 *               float        any; otherwise: float >= e
 *               {a|b|c}      0, 1 or 2; {a|b} if x else {a|b|c}: fewer words if tensor x is given
 *   default     an expression: what 0 means
 *   with        the scalar is ignored unless this tensor is given, or this bool is true
 *
 *   rule        n < e   n <= e   n >= e   n in a..b
 *                            the range of a size or scalar. If a dimension 2 * n, or of codes, determines n,
 *                            the range is that of the dimension's elements
 *               n == e       of a scalar
 *               n divides m  or n is 0
 *               n % e        n is a multiple of e; n % e for word: if a scalar has this word; n % e if c
 *               a needs b    if a (tensor or scalar) is given, so is b (tensor or bool)
 *               a of i32 needs b     only if tensor a has this dtype
 *               a may be b   the same tensor; otherwise they must not overlap
 *   expression  numbers, 2^31, sizes, scalars, optional tensors (1 if given), + - * / (rounds up, 0 / 0 is 0)
 *               > ( ), a if c else b
 *
 * Blanks do not matter. Names are letters, digits and _; no two things have the same name. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/signature_table.h"

typedef struct {
    const char *begin;
    int length;
} word;

typedef struct {
    const char *p;
    tgl_table *t;
    const tgl_params *params;
    const char *wrong, *want;     /* the first mistake; NULL: none yet */
    int num_tensors, num_scalars; /* that have been read */
    bool is_word[TGL_MAX_VALUES]; /* of scalars, in order: {a|b} */
} reader;

static bool fail(reader *r, const char *place, const char *want)
{
    if (!r->wrong) r->wrong = place, r->want = want;
    return false;
}

/* ---- words ---- */

static bool is_letter(char c) { return isalnum((unsigned char)c) || c == '_'; }
static void skip(reader *r)
{
    while (*r->p == ' ') r->p++;
}

static word word_at(const char *p)
{
    word w = { p, 0 };
    if (isalpha((unsigned char)*p))
        while (is_letter(p[w.length])) w.length++;
    return w;
}

static bool is(word w, const char *name)
{
    return w.length && name && *name == *w.begin && !strncmp(w.begin, name, (size_t)w.length) && !name[w.length];
}

static bool peek(reader *r, const char *token)
{
    skip(r);
    const size_t n = strlen(token);
    return !strncmp(r->p, token, n) && !(is_letter(token[n - 1]) && is_letter(r->p[n]));
}

static bool take(reader *r, const char *token)
{
    if (!peek(r, token)) return false;
    r->p += strlen(token);
    return true;
}

static bool expect(reader *r, const char *token) { return take(r, token) || fail(r, r->p, token); }

static bool take_word(reader *r, word *out)
{
    skip(r);
    *out = word_at(r->p);
    r->p += out->length;
    return out->length > 0 || fail(r, r->p, "a name");
}

/* A copy that lives as long as the table. */
static const char *keep(reader *r, word w)
{
    tgl_table *t = r->t;
    if (w.length >= TGL_MAX_NAMES - t->num_name_bytes) {
        fail(r, w.begin, "fewer or shorter names");
        return NULL;
    }
    char *to = t->names + t->num_name_bytes;
    memcpy(to, w.begin, (size_t)w.length);
    t->num_name_bytes += w.length + 1; /* the table is zeroed */
    return to;
}

static int tensor_named(const tgl_table *t, word w)
{
    for (int i = 0; i < t->num_tensors; i++)
        if (is(w, t->tensors[i].name)) return i;
    return -1;
}

static int value_named(const tgl_table *t, word w)
{
    for (int i = 0; i < t->num_values; i++)
        if (is(w, t->values[i].name)) return i;
    return -1;
}

static bool take_tensor(reader *r, int8_t *out)
{
    word w;
    if (!take_word(r, &w)) return false;
    *out = (int8_t)tensor_named(r->t, w);
    return *out >= 0 || fail(r, w.begin, "a tensor");
}

/* ---- names first, so that an argument may refer to a later one ---- */

static bool is_scalar_type(const char *type)
{
    const word w = word_at(type);
    const char *next = type + w.length;
    while (*next == ' ') next++;
    return *type == '{' || is(w, "int") || is(w, "float") || (is(w, "bool") && *next != '[' && *next != '|');
}

static bool add_tensor(reader *r, word w)
{
    tgl_table *t = r->t;
    if (t->num_tensors == TGL_MAX_TENSORS) return fail(r, w.begin, "fewer tensors");
    if (tensor_named(t, w) >= 0) return fail(r, w.begin, "a name of its own");
    tgl_arg *a = &t->tensors[t->num_tensors];
    *a = (tgl_arg){ .name = keep(r, w), .if_given = -1, .like = -1, .by_word = -1 };
    t->num_tensors++;
    return a->name;
}

static bool add_value(reader *r, word w, tgl_value_type type)
{
    tgl_table *t = r->t;
    if (t->num_values == TGL_MAX_VALUES) return fail(r, w.begin, "fewer sizes and scalars");
    if (type != TGL_VALUE_GIVEN && tensor_named(t, w) >= 0) return fail(r, w.begin, "a name of its own");
    tgl_value *v = &t->values[t->num_values];
    *v = (tgl_value){ .name = keep(r, w), .type = type, .with = -1, .with_value = -1, .owner = -1, .with_words = -1 };
    t->num_values++;
    return v->name;
}

/* A size that a dimension may determine: n, n + ..., 2 * n. Otherwise nothing is consumed. */
static bool take_size(reader *r, word *name, int *factor)
{
    const char *before = r->p;
    skip(r);
    *factor = 1;
    if (isdigit((unsigned char)*r->p)) {
        char *end;
        const long n = strtol(r->p, &end, 10);
        r->p = end;
        *factor = n > 0 && n <= 64 && take(r, "*") ? (int)n : 0;
    }
    skip(r);
    *name = word_at(r->p);
    r->p += name->length;
    const bool is_end = peek(r, ",") || peek(r, "]") || (*factor == 1 ? peek(r, "+") : peek(r, "("));
    if (*factor > 0 && name->length && is_end) return true;
    r->p = before;
    return false;
}

static bool is_one_of(word w, const word *words, int count)
{
    for (int i = 0; i < count; i++)
        if (words[i].length == w.length && !strncmp(words[i].begin, w.begin, (size_t)w.length)) return true;
    return false;
}

static bool add_names(reader *r)
{
    word scalars[TGL_MAX_VALUES], w;
    int num_scalars = 0;
    const char *begin = r->p;
    for (; *r->p; r->p += w.length == 0) { /* arguments: words followed by a colon */
        w = word_at(r->p);
        r->p += w.length;
        if (is(w, "where")) break;
        if (!w.length || !take(r, ":")) continue;
        skip(r);
        if (!is_scalar_type(r->p)) {
            if (!add_tensor(r, w)) return false;
            continue;
        }
        if (is_one_of(w, scalars, num_scalars)) return fail(r, w.begin, "a name of its own");
        if (num_scalars == TGL_MAX_VALUES) return fail(r, w.begin, "fewer sizes and scalars");
        r->is_word[num_scalars] = *r->p == '{';
        scalars[num_scalars++] = w;
    }
    const char *end = r->p;
    bool is_inside = false;
    for (r->p = begin; r->p < end;) { /* sizes: in brackets, each at the start of a dimension */
        const char c = *r->p++;
        int factor;
        is_inside = c == '[' || (is_inside && c != ']');
        if (c == '(' && is_inside) r->p += strcspn(r->p, ")");
        if (!is_inside || (c != '[' && c != ',') || !take_size(r, &w, &factor)) continue;
        const bool is_known =
            value_named(r->t, w) >= 0 || tensor_named(r->t, w) >= 0 || is_one_of(w, scalars, num_scalars);
        if (!is_known && !add_value(r, w, TGL_VALUE_SIZE)) return false;
    }
    r->t->num_sizes = r->t->num_values;
    for (int i = 0; i < num_scalars; i++)
        if (!add_value(r, scalars[i], TGL_VALUE_INT)) return false;
    r->t->num_scalars = num_scalars;
    r->p = begin;
    return true;
}

/* ---- expressions ---- */

static bool parse_if(reader *r);

static bool emit(reader *r, char op, int value, int64_t constant)
{
    if (r->t->num_steps == TGL_MAX_STEPS) return fail(r, r->p, "shorter expressions");
    r->t->steps[r->t->num_steps++] = (tgl_step){ op, (uint8_t)value, constant };
    return true;
}

static bool parse_atom(reader *r)
{
    if (take(r, "(")) return parse_if(r) && expect(r, ")");
    if (isdigit((unsigned char)*r->p)) {
        const char *place = r->p;
        char *end;
        int64_t n = strtoll(r->p, &end, 10);
        r->p = end;
        if (take(r, "^")) {
            const long power = strtol(r->p, &end, 10);
            if (n != 2 || power < 0 || power > 62) return fail(r, place, "a power of two below 2^63");
            r->p = end;
            n = (int64_t)1 << power;
        }
        return emit(r, 'k', 0, n);
    }
    word w;
    if (!take_word(r, &w)) return false;
    int value = value_named(r->t, w);
    const int tensor = tensor_named(r->t, w);
    if (value < 0 && tensor >= 0) {
        value = r->t->num_values;
        if (!add_value(r, w, TGL_VALUE_GIVEN)) return false;
        r->t->values[value].with = (int8_t)tensor;
    }
    return value < 0 ? fail(r, w.begin, "a size, a scalar or a tensor") : emit(r, 'v', value, 0);
}

static bool parse_product(reader *r)
{
    if (!parse_atom(r)) return false;
    for (;;) {
        const char op = take(r, "*") ? '*' : take(r, "/") ? '/' : 0;
        if (!op) return true;
        if (!parse_atom(r) || !emit(r, op, 0, 0)) return false;
    }
}

static bool parse_sum(reader *r)
{
    if (!parse_product(r)) return false;
    for (;;) {
        const char op = peek(r, "->") ? 0 : take(r, "+") ? '+' : take(r, "-") ? '-' : take(r, ">") ? '>' : 0;
        if (!op) return true;
        if (!parse_product(r) || !emit(r, op, 0, 0)) return false;
    }
}

static bool parse_if(reader *r) /* a if c else b: c, j past a, a, e past b, b */
{
    tgl_table *t = r->t;
    const int from = t->num_steps;
    if (!parse_sum(r)) return false;
    if (!take(r, "if")) return true;
    tgl_step then[TGL_MAX_STEPS];
    const int length = t->num_steps - from;
    memcpy(then, t->steps + from, (size_t)length * sizeof *then);
    t->num_steps = from;
    if (!parse_sum(r) || !emit(r, 'j', 0, length + 1)) return false;
    for (int i = 0; i < length; i++)
        if (!emit(r, then[i].op, then[i].value, then[i].constant)) return false;
    if (!emit(r, 'e', 0, 0)) return false;
    const int end = t->num_steps - 1;
    if (!expect(r, "else") || !parse_if(r)) return false;
    t->steps[end].constant = t->num_steps - 1 - end;
    return true;
}

/* Are the steps just constant + factor * value? `depth` is the stack that they need. */
static bool is_linear(const tgl_step *s, int count, tgl_number *out, int *depth)
{
    tgl_number stack[TGL_MAX_STEPS];
    int n = 0;
    bool ok = true;
    *depth = 0;
    for (int i = 0; i < count; i++) {
        if (s[i].op == 'k' || s[i].op == 'v') {
            const bool is_value = s[i].op == 'v';
            stack[n++] =
                (tgl_number){ TGL_NUMBER_LINEAR, .value = s[i].value, .factor = is_value, .constant = s[i].constant };
            if (n > *depth) *depth = n;
            continue;
        }
        n--;
        if (s[i].op == 'j' || s[i].op == 'e') { /* one of two parts is skipped */
            ok = false;
            continue;
        }
        tgl_number *a = &stack[n - 1], *b = &stack[n];
        if (s[i].op == '+' || s[i].op == '-') {
            const int64_t sign = s[i].op == '+' ? 1 : -1;
            ok &= !a->factor || !b->factor || a->value == b->value;
            if (!a->factor) a->value = b->value;
            a->factor += sign * b->factor;
            a->constant += sign * b->constant;
        } else if (s[i].op == '*' && (!a->factor || !b->factor)) {
            const tgl_number *one = a->factor ? a : b, *by = a->factor ? b : a;
            int64_t constant;
            ok &= !__builtin_mul_overflow(one->constant, by->constant, &constant);
            ok &= by->constant <= INT32_MAX;
            *a = (tgl_number){ TGL_NUMBER_LINEAR, .value = one->value, .factor = one->factor * by->constant,
                               .constant = constant };
        } else {
            ok = false;
        }
    }
    *out = stack[0];
    return ok;
}

static bool parse_number_by(reader *r, bool (*by)(reader *), tgl_number *out)
{
    tgl_table *t = r->t;
    const int from = t->num_steps;
    int depth;
    skip(r);
    const char *place = r->p;
    if (!by(r)) return false;
    const bool is_short = is_linear(t->steps + from, t->num_steps - from, out, &depth);
    if (depth > TGL_MAX_STACK) return fail(r, place, "an expression that is less nested");
    const tgl_step *s = &t->steps[from];
    const bool is_quotient = t->num_steps == from + 3 && s[0].op == 'v' && s[1].op == 'v' && s[2].op == '/';
    if (is_quotient) *out = (tgl_number){ TGL_NUMBER_QUOTIENT, .value = s[0].value, .divisor = s[1].value };
    if (is_short || is_quotient) {
        t->num_steps = from;
        return true;
    }
    *out = (tgl_number){ TGL_NUMBER_PROGRAM, .value = from };
    return emit(r, 0, 0, 0);
}

static bool parse_number(reader *r, tgl_number *out) { return parse_number_by(r, parse_if, out); }

static bool parse_range(reader *r, tgl_number *low, tgl_number *high)
{
    return parse_number(r, low) && expect(r, "..") && parse_number(r, high);
}

/* ---- tensors ---- */

static bool parse_size(reader *r, tgl_size *out)
{
    *out = (tgl_size){ .value = -1 };
    const char *before = r->p;
    word w, note;
    int factor;
    if (take_size(r, &w, &factor)) {
        const int value = value_named(r->t, w);
        if (value >= 0 && value < r->t->num_sizes) {
            *out = (tgl_size){ .value = value, .factor = factor };
            if (take(r, "+")) return parse_number(r, &out->more);
            if (!take(r, "(")) return true;
            note = (word){ r->p, (int)strcspn(r->p, ")") };
            r->p += note.length;
            return (out->note = keep(r, note)) && expect(r, ")");
        }
        r->p = before;
    }
    return parse_number(r, &out->more);
}

static tgl_packing packing_named(word w)
{
    return is(w, "e2m1") ? TGL_PACKED_E2M1 : is(w, "e5m6") ? TGL_PACKED_E5M6 : TGL_UNPACKED;
}

static tgl_dtype dtypes_named(word w)
{
    char name[16];
    if (is(w, "any")) return TGL_ANY;
    if (is(w, "e2m1")) return TGL_I8 | TGL_U8 | TGL_E2M1X2;
    if (is(w, "e5m6")) return TGL_U8;
    if (w.length >= (int)sizeof name) return 0;
    memcpy(name, w.begin, (size_t)w.length);
    name[w.length] = 0;
    return tgl_dtype_named(name);
}

static bool parse_dtypes(reader *r, tgl_arg *a, tgl_dtype *out)
{
    do {
        word w;
        if (!take_word(r, &w)) return false;
        const tgl_dtype some = dtypes_named(w);
        if (!some || packing_named(w) == TGL_PACKED_E5M6) return fail(r, w.begin, "a dtype");
        if (!a->first) a->first = some & -some;
        a->is_e2m1 |= packing_named(w) == TGL_PACKED_E2M1;
        *out |= some;
    } while (take(r, "|"));
    return true;
}

static bool parse_type(reader *r, tgl_arg *a)
{
    tgl_table *t = r->t;
    if (take(r, "("))
        return parse_dtypes(r, a, &a->dtypes) && expect(r, "if") && take_tensor(r, &a->if_given) && expect(r, "else") &&
               parse_dtypes(r, a, &a->otherwise) && expect(r, ")");
    skip(r);
    const word w = word_at(r->p);
    const int value = value_named(t, w), tensor = tensor_named(t, w);
    if (is(w, "sf")) {
        a->is_scales = true;
        a->dtypes = TGL_F32 | TGL_I32;
        a->first = TGL_F32;
    } else if (dtypes_named(w)) {
        return parse_dtypes(r, a, &a->dtypes);
    } else if (value >= t->num_sizes && value < t->num_values && r->is_word[value - t->num_sizes]) {
        a->by_word = (int8_t)value;
    } else if (tensor >= 0 && &t->tensors[tensor] != a) {
        a->like = (int8_t)tensor;
    } else {
        return fail(r, r->p, "a dtype, a tensor or a scalar with words");
    }
    r->p += w.length;
    return true;
}

static bool parse_tensor(reader *r, word name, bool is_output)
{
    tgl_arg *a = &r->t->tensors[r->num_tensors++];
    if (!is(name, a->name)) return fail(r, name.begin, "a tensor"); /* impossible: names came first */
    a->is_written = is_output;
    if (!parse_type(r, a) || !expect(r, "[")) return false;
    if (take(r, "...")) {
        a->has_leading = true;
        if (!expect(r, ",")) return false;
    }
    do {
        skip(r);
        if (a->ndim == TGL_MAX_RANK) return fail(r, r->p, "fewer dimensions");
        if (!parse_size(r, &a->sizes[a->ndim++])) return false;
    } while (take(r, ","));
    if (!expect(r, "]")) return false;
    a->is_optional = take(r, "?");
    a->is_written |= take(r, "!");
    a->layout = a->is_scales || take(r, "strided") ? TGL_STRIDED : take(r, "rows") ? TGL_ROWS : TGL_PACKED;
    a->is_host = take(r, "host");
    a->is_anywhere = !a->is_host && take(r, "anywhere");
    if (a->is_scales && a->ndim != 2) return fail(r, r->p, "two dimensions of scale factors");
    if (a->is_written && a->layout == TGL_ROWS && a->ndim != 2)
        return fail(r, r->p, "two dimensions of rows that are written");
    return true;
}

/* ---- scalars ---- */

static bool parse_words(reader *r, tgl_value *v, int *count)
{
    *count = 0;
    if (!expect(r, "{")) return false;
    do {
        word w;
        if (!take_word(r, &w)) return false;
        if (*count == TGL_MAX_WORDS) return fail(r, w.begin, "fewer words");
        if (v->words[*count].word && !is(w, v->words[*count].word))
            return fail(r, w.begin, "the words in the same order");
        if (!v->words[*count].word && !(v->words[*count].word = keep(r, w))) return false;
        v->words[*count].dtypes = dtypes_named(w);
        v->words[(*count)++].packing = packing_named(w);
    } while (take(r, "|"));
    return expect(r, "}");
}

static bool parse_all_words(reader *r, tgl_value *v)
{
    int8_t tensor;
    if (!parse_words(r, v, &v->num_words)) return false;
    if (!take(r, "if")) return true;
    v->num_words_given = v->num_words;
    if (!take_tensor(r, &tensor) || !expect(r, "else") || !parse_words(r, v, &v->num_words)) return false;
    v->with_words = tensor;
    return v->num_words >= v->num_words_given || fail(r, r->p, "more words where it is not given");
}

/* The offset of a scalar in the params struct, or in the array of scalars. */
static bool find_field(reader *r, word name, tgl_value *v, tgl_field_type type)
{
    if (!r->params) {
        v->offset = (size_t)r->num_scalars * sizeof(int64_t);
        return type == TGL_FIELD_INT || fail(r, name.begin, "an int: there is no params struct");
    }
    for (int i = 0; i < r->params->num_fields; i++) {
        const tgl_field *field = &r->params->fields[i];
        if (!is(name, field->name)) continue;
        v->offset = field->offset;
        return field->type == type || fail(r, name.begin, "the type that the field has");
    }
    return fail(r, name.begin, "a field of the params struct");
}

/* A number, and its name if it is just a name. */
static bool parse_named(reader *r, tgl_number *out, const char **name)
{
    if (!parse_number_by(r, parse_sum, out)) return false; /* an `if` is not part of it */
    const bool is_name = out->kind == TGL_NUMBER_LINEAR && out->factor == 1 && out->constant == 0;
    *name = is_name ? r->t->values[out->value].name : NULL;
    return true;
}

static bool parse_scalar(reader *r, word name)
{
    tgl_value *v = &r->t->values[value_named(r->t, name)];
    tgl_field_type field;
    const tgl_number zero = { .kind = TGL_NUMBER_LINEAR };
    if (peek(r, "{")) {
        v->type = TGL_VALUE_WORD;
        field = TGL_FIELD_ENUM;
        if (!parse_all_words(r, v)) return false;
    } else if (take(r, "int")) {
        field = TGL_FIELD_INT;
        v->low = zero;
        if (take(r, ">=") && !parse_named(r, &v->low, &v->low_name)) return false;
        if (take(r, "in")) {
            v->is_range = true;
            if (!parse_range(r, &v->low, &v->high)) return false;
        }
    } else if (take(r, "bool")) {
        v->type = TGL_VALUE_BOOL;
        field = TGL_FIELD_BOOL;
    } else {
        v->type = TGL_VALUE_FLOAT;
        field = TGL_FIELD_FLOAT;
        if (!expect(r, "float") || (take(r, ">=") && !parse_named(r, &v->low, &v->low_name))) return false;
        if (!tgl_is_constant(&v->low)) return fail(r, r->p, "a constant before this");
    }
    if (!find_field(r, name, v, field)) return false;
    r->num_scalars++;
    if (take(r, "=") && !parse_number(r, &v->fallback)) return false;
    if (!take(r, "with")) return true;
    word w;
    if (!take_word(r, &w)) return false;
    v->with = (int8_t)tensor_named(r->t, w);
    v->with_value = (int8_t)value_named(r->t, w);
    return v->with >= 0 || v->with_value >= r->t->num_sizes || fail(r, w.begin, "a tensor or a bool");
}

/* ---- arguments ---- */

static bool parse_arguments(reader *r, bool are_outputs, bool in_struct)
{
    do {
        word name;
        if (!take_word(r, &name)) return false;
        if (!in_struct && take(r, "{")) {
            if (!parse_arguments(r, are_outputs, true) || !expect(r, "}")) return false;
            continue;
        }
        if (!expect(r, ":")) return false;
        skip(r);
        const bool is_scalar = is_scalar_type(r->p);
        if (is_scalar && (are_outputs || in_struct)) return fail(r, name.begin, "a tensor");
        if (is_scalar ? !parse_scalar(r, name) : !parse_tensor(r, name, are_outputs)) return false;
    } while (take(r, ","));
    return true;
}

/* ---- rules ---- */

static bool parse_needs(reader *r, tgl_rule *rule)
{
    word w;
    rule->kind = TGL_RULE_NEEDS;
    if (!take_word(r, &w)) return false;
    rule->other_tensor = (int8_t)tensor_named(r->t, w);
    rule->other_value = (int8_t)value_named(r->t, w);
    if (rule->other_tensor >= 0) return !rule->dtypes || fail(r, w.begin, "a bool");
    return (rule->other_value >= 0 && r->t->values[rule->other_value].type == TGL_VALUE_BOOL) ||
           fail(r, w.begin, "a tensor or a bool");
}

/* A range. That of a size is stored with the size; that of a scalar is a rule, except n < e. */
static bool parse_bounds(reader *r, int value, tgl_rule *rule, bool *is_rule)
{
    tgl_value *v = &r->t->values[value];
    const char *place = r->p;
    tgl_number low = { 0 }, high = { 0 };
    const bool is_size = v->type == TGL_VALUE_SIZE;
    *is_rule = !is_size;
    if (take(r, "==")) {
        rule->kind = TGL_RULE_EQUALS;
        return is_size ? fail(r, place, "a range of a size") : parse_number(r, &rule->low);
    }
    if (take(r, "<=")) {
        if (!parse_number(r, &high)) return false;
    } else if (take(r, "<")) {
        if (!parse_number(r, &high)) return false;
        if (high.kind != TGL_NUMBER_LINEAR) return fail(r, place, "<= for such an expression");
        high.constant--;
        if (!is_size) {
            if (v->type != TGL_VALUE_INT || v->high.kind) return fail(r, place, "an int without an upper bound");
            v->high = high;
            *is_rule = false;
            return true;
        }
    } else if (is_size && take(r, ">=")) {
        if (!parse_number(r, &low)) return false;
    } else if (take(r, "in")) {
        if (!parse_range(r, &low, &high)) return false;
    } else {
        return fail(r, place, "a rule");
    }
    if (!is_size) {
        rule->kind = TGL_RULE_WITHIN;
        rule->low = low;
        rule->high = high;
        return true;
    }
    if ((low.kind && v->low.kind) || (high.kind && v->high.kind)) return fail(r, place, "one bound, not two");
    if (low.kind) v->low = low;
    if (high.kind) v->high = high;
    return true;
}

static bool parse_multiple(reader *r, tgl_rule *rule)
{
    word w;
    rule->kind = TGL_RULE_MULTIPLE;
    if (!parse_named(r, &rule->low, &rule->low_name)) return false;
    if (take(r, "if")) return parse_number(r, &rule->condition);
    if (!take(r, "for")) return true;
    if (!take_word(r, &w)) return false;
    for (int i = r->t->num_sizes; i < r->t->num_values; i++)
        for (int k = 0; k < r->t->values[i].num_words; k++)
            if (is(w, r->t->values[i].words[k].word)) rule->other_value = (int8_t)i, rule->word = (int8_t)k;
    return rule->other_value >= 0 || fail(r, w.begin, "a word of a scalar");
}

static bool parse_rule(reader *r)
{
    tgl_table *t = r->t;
    word w, other;
    if (!take_word(r, &w)) return false;
    tgl_rule rule = { .tensor = (int8_t)tensor_named(t, w),
                      .value = (int8_t)value_named(t, w),
                      .after = -1,
                      .other_tensor = -1,
                      .other_value = -1 };
    if (rule.tensor >= 0) rule.value = -1; /* an expression may have added it as "is it given?" */
    if (rule.tensor < 0 && rule.value < 0) return fail(r, w.begin, "a tensor, a size or a scalar");
    if (take(r, "needs")) {
        if (!parse_needs(r, &rule)) return false;
    } else if (rule.tensor >= 0 && take(r, "of")) {
        if (!take_word(r, &other) || !(rule.dtypes = dtypes_named(other))) return fail(r, r->p, "a dtype");
        if (!expect(r, "needs") || !parse_needs(r, &rule)) return false;
    } else if (rule.tensor >= 0) {
        int8_t itself;
        if (!expect(r, "may") || !expect(r, "be") || !take_tensor(r, &itself)) return false;
        t->tensors[rule.tensor].may_be |= 1u << itself;
        return true;
    } else if (take(r, "divides")) {
        rule.kind = TGL_RULE_DIVIDES;
        if (!take_word(r, &other)) return false;
        rule.other_value = (int8_t)value_named(t, other);
        if (rule.other_value < 0) return fail(r, other.begin, "a size or a scalar");
    } else if (take(r, "%")) {
        if (!parse_multiple(r, &rule)) return false;
    } else {
        bool is_rule;
        if (!parse_bounds(r, rule.value, &rule, &is_rule)) return false;
        if (!is_rule) return true;
    }
    if (t->num_rules == TGL_MAX_RULES) return fail(r, w.begin, "fewer rules");
    t->rules[t->num_rules++] = rule;
    return true;
}

/* ---- derived facts ---- */

static int larger(int a, int b) { return a > b ? a : b; }

/* The tensor after which a value is known; the last tensor if optional ones determine it. */
static int value_known_after(const tgl_table *t, int value)
{
    const tgl_value *v = &t->values[value];
    if (v->type != TGL_VALUE_SIZE) return tgl_is_constant(&v->fallback) ? -1 : t->num_tensors - 1;
    return v->owner >= 0 ? v->owner : t->num_tensors - 1;
}

static int known_after(const tgl_table *t, const tgl_number *n)
{
    if (tgl_is_constant(n)) return -1;
    if (n->kind == TGL_NUMBER_LINEAR) return value_known_after(t, n->value);
    if (n->kind == TGL_NUMBER_QUOTIENT) return larger(value_known_after(t, n->value), value_known_after(t, n->divisor));
    int last = -1;
    for (const tgl_step *s = &t->steps[n->value]; s->op; s++)
        if (s->op == 'v') last = larger(last, value_known_after(t, s->value));
    return last;
}

/* Ops run where their first tensor is that has to be given and that may not be elsewhere. */
static void find_home(tgl_table *t)
{
    for (int i = t->num_tensors - 1; i >= 0; i--) {
        const tgl_arg *a = &t->tensors[i];
        if (!a->is_optional && !a->is_host && !a->is_anywhere) t->home = i;
    }
}

static void find_owners(tgl_table *t)
{
    for (int i = 0; i < t->num_tensors; i++) {
        tgl_arg *a = &t->tensors[i];
        if (a->like >= 0) a->dtypes = t->tensors[a->like].dtypes;
        for (int d = 0; d < a->ndim; d++) {
            if (a->sizes[d].value < 0) continue;
            tgl_value *v = &t->values[a->sizes[d].value];
            const bool is_codes = d == a->ndim - 1 && (a->is_e2m1 || a->by_word >= 0);
            if (!a->is_optional && v->owner < 0) {
                v->owner = (int8_t)i;
                a->owns |= 1u << a->sizes[d].value;
                v->is_of_elements = is_codes || a->sizes[d].factor > 1;
            }
        }
    }
}

/* Ranges of scalars that depend on sizes are checked once these are known. */
static bool defer_ranges(reader *r)
{
    tgl_table *t = r->t;
    for (int i = t->num_sizes; i < t->num_values; i++) {
        tgl_value *v = &t->values[i];
        if (known_after(t, &v->low) < 0 && known_after(t, &v->high) < 0) continue;
        if (t->num_rules == TGL_MAX_RULES) return fail(r, r->p, "fewer rules");
        t->rules[t->num_rules++] = (tgl_rule){ .kind = TGL_RULE_WITHIN,
                                               .tensor = -1,
                                               .value = (int8_t)i,
                                               .other_tensor = -1,
                                               .other_value = -1,
                                               .low = v->low,
                                               .high = v->high };
        v->low = v->high = (tgl_number){ 0 };
    }
    for (int i = 0; i < t->num_rules; i++) {
        tgl_rule *rule = &t->rules[i];
        int after = larger(known_after(t, &rule->low), known_after(t, &rule->high));
        if (rule->value >= 0 && rule->kind != TGL_RULE_NEEDS) after = larger(after, value_known_after(t, rule->value));
        if (rule->kind == TGL_RULE_DIVIDES) after = larger(after, value_known_after(t, rule->other_value));
        if (rule->kind == TGL_RULE_MULTIPLE) after = larger(after, known_after(t, &rule->condition));
        if (rule->kind == TGL_RULE_MULTIPLE && rule->other_value >= 0) after = -1; /* 0 is 0 then */
        if (rule->dtypes) after = t->num_tensors;                                  /* after its sizes */
        rule->after = (int8_t)after;
    }
    return true;
}

static bool parse(reader *r)
{
    tgl_table *t = r->t;
    word name;
    if (!take_word(r, &name) || !(t->name = keep(r, name)) || !expect(r, "(") || !add_names(r)) return false;
    if (!parse_arguments(r, false, false) || !expect(r, ")")) return false;
    if (take(r, "->") && !parse_arguments(r, true, false)) return false;
    if (take(r, "where")) do
            if (!parse_rule(r)) return false;
        while (take(r, ","));
    skip(r);
    if (*r->p) return fail(r, r->p, "the end");
    if (t->tensors[0].is_optional) return fail(r, r->p, "a first tensor that is always given: its device counts");
    find_home(t);
    find_owners(t);
    return defer_ranges(r);
}

/* The op's struct of sizes must have those of the text, in the same order. */
static tgl_status compare_sizes(const tgl_table *t, const char *sizes)
{
    for (int i = 0; i <= t->num_sizes; i++) {
        sizes += strspn(sizes, " ,");
        const word w = word_at(sizes);
        const char *want = i < t->num_sizes ? t->values[i].name : "";
        if (i < t->num_sizes ? !is(w, want) : *sizes)
            return tgl_fail(TGL_ERR_INTERNAL, "signature of %s: size %d of the struct is \"%.*s\", want \"%s\"",
                            t->name, i, w.length, w.begin, want);
        sizes += w.length;
    }
    return TGL_OK;
}

tgl_status tgl_parse_signature(const char *text, const tgl_params *params, const char *sizes, tgl_table *out)
{
    reader r = { .p = text, .t = out, .params = params };
    memset(out, 0, sizeof *out);
    if (!parse(&r))
        return tgl_fail(TGL_ERR_INTERNAL, "signature of %s: at character %d is \"%.40s\", want %s",
                        out->name ? out->name : "?", (int)(r.wrong - text), r.wrong, r.want);
    if (sizes) TGL_TRY(compare_sizes(out, sizes));
    tgl_make_quick(out);
    return TGL_OK;
}
