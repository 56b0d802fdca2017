/* SPDX-License-Identifier: MIT
 * signature.c - the checks of a call against its op's signature, and the log line of a call. */
#include "core/signature.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/math.h"
#include "core/settings.h"

/* ---- numbers ----
 * They saturate: the sizes of empty tensors may be anything. */

static int64_t add(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (b < 0 ? INT64_MIN : INT64_MAX) : sum;
}

static int64_t multiply(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? ((a < 0) != (b < 0) ? INT64_MIN : INT64_MAX) : product;
}

static int64_t run(const tgl_step *s, const int64_t *values)
{
    int64_t stack[TGL_MAX_STACK];
    int n = 0;
    for (; s->op; s++) {
        if (s->op == 'k' || s->op == 'v') {
            stack[n++] = s->op == 'k' ? s->constant : values[s->value];
            continue;
        }
        n -= s->op == '?' ? 2 : 1;
        int64_t *a = &stack[n - 1];
        const int64_t b = stack[n];
        switch (s->op) {
        case '+': *a = add(*a, b); break;
        case '-': *a = add(*a, b == INT64_MIN ? INT64_MAX : -b); break;
        case '*': *a = multiply(*a, b); break;
        case '/': *a = b == 0 ? 0 : tgl_ceil_div(*a, b); break;
        case '>': *a = *a > b; break;
        default: *a = *a ? b : stack[n + 1]; break;
        }
    }
    return stack[0];
}

static inline int64_t number(const tgl_table *t, const tgl_number *n, const int64_t *values)
{
    if (n->kind == TGL_NUMBER_PROGRAM) return run(&t->steps[n->value], values);
    return n->factor ? add(multiply(n->factor, values[n->value]), n->constant) : n->constant;
}

int64_t tgl_number_of(const tgl_table *t, const tgl_number *n, const int64_t *values)
{
    return number(t, n, values);
}

/* ---- what a table says of a call ---- */

static const struct { int values, elements; const char *name; } PACKINGS[] = {
    [TGL_UNPACKED] = { 1, 1, "" }, [TGL_PACKED_E2M1] = { 2, 1, "e2m1" }, [TGL_PACKED_E5M6] = { 8, 12, "e5m6" }
};
enum { PAIRS = TGL_I8 | TGL_U8 | TGL_E2M1X2 };

static tgl_packing packing_of(const tgl_table *t, const tgl_arg *a, const DLTensor *x, const int64_t *values)
{
    if (a->by_word >= 0) return t->values[a->by_word].words[values[a->by_word]].packing;
    return a->is_e2m1 && tgl_dtype_is(x->dtype, PAIRS) ? TGL_PACKED_E2M1 : TGL_UNPACKED;
}

static bool has_limits(const tgl_value *v) { return v->low.kind || v->high.kind; }

/* Is a scalar looked at? */
static bool is_read(const tgl_value *v, const DLTensor *const *tensors, const int64_t *values)
{
    return (v->with < 0 || tensors[v->with]) && (v->with_value < 0 || values[v->with_value]);
}

static int num_words(const tgl_value *v, const DLTensor *const *tensors)
{
    return v->with_words >= 0 && tensors[v->with_words] ? v->num_words_given : v->num_words;
}

/* Scale factors: do the strides suit their kind? Those that are written do not overlap. */
static bool scales_fit(const DLTensor *x, bool is_written)
{
    const int64_t down = tgl_stride(x, 0), right = tgl_stride(x, 1);
    const bool are_floats = tgl_dtype_is(x->dtype, TGL_F32);
    const bool by_rows = are_floats && (x->shape[1] == 1 || (x->shape[0] > 1 ? down != 1 : right == 1));
    const int inner = by_rows ? 1 : 0, outer = 1 - inner;
    const int64_t min = is_written ? x->shape[inner] : 0;
    return (x->shape[inner] == 1 || tgl_stride(x, inner) == 1) &&
           (x->shape[outer] == 1 || tgl_stride(x, outer) >= min);
}

static bool holds(const tgl_table *t, const tgl_rule *r, const DLTensor *const *tensors, const int64_t *values)
{
    const int64_t is = r->value >= 0 ? values[r->value] : 0;
    switch (r->kind) {
    case TGL_RULE_NEEDS: {
        const DLTensor *x = r->tensor >= 0 ? tensors[r->tensor] : NULL;
        const bool is_there = r->other_tensor >= 0 ? tensors[r->other_tensor] != NULL
                                                   : values[r->other_value] != 0;
        const bool is_asked = x ? !r->dtypes || tgl_dtype_is(x->dtype, r->dtypes) : is != 0;
        return is_there || !is_asked;
    }
    case TGL_RULE_WITHIN:
        return (!r->low.kind || is >= number(t, &r->low, values)) &&
               (!r->high.kind || is <= number(t, &r->high, values));
    case TGL_RULE_EQUALS: return is == number(t, &r->low, values);
    case TGL_RULE_DIVIDES: return is == 0 || values[r->other_value] % is == 0;
    default: {
        const int64_t of = number(t, &r->low, values);
        const bool is_asked = (r->other_value < 0 || values[r->other_value] == r->word) &&
                              (!r->condition.kind || number(t, &r->condition, values));
        return !is_asked || of == 0 || is % of == 0;
    }
    }
}

/* ---- the slow way: every message ---- */

static tgl_status refuse(const char *name, int64_t is, const char *want)
{
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %" PRId64 ", want %s", name, is, want);
}

static tgl_status check_words(const tgl_value *v, int64_t is, int words)
{
    if (is >= 0 && is < words) return TGL_OK;
    char want[160];
    int n = 0;
    if (!v->words[0].dtypes) n = snprintf(want, sizeof want, "0..%d", words - 1);
    for (int i = 0; v->words[0].dtypes && i < words && n < (int)sizeof want; i++)
        n += snprintf(want + n, sizeof want - (size_t)n, "%s%d (%s)", i == 0 ? "" : i + 1 < words ? ", " : " or ",
                      i, v->words[i].word);
    return refuse(v->name, is, want);
}

static tgl_status check_int(const tgl_table *t, const tgl_value *v, int64_t is, const int64_t *values)
{
    const int64_t low = v->low.kind ? number(t, &v->low, values) : INT64_MIN;
    const int64_t high = v->high.kind ? number(t, &v->high, values) : INT64_MAX;
    if (is >= low && is <= high) return TGL_OK;
    char want[160];
    if (v->is_range) snprintf(want, sizeof want, "%" PRId64 "..%" PRId64, low, high);
    else if (is < low && v->low_name) snprintf(want, sizeof want, ">= %" PRId64 " (%s)", low, v->low_name);
    else if (is < low) snprintf(want, sizeof want, ">= %" PRId64, low);
    else if (high < INT64_MAX && !(high & (high + 1)))
        snprintf(want, sizeof want, "fewer than 2^%d", __builtin_popcountll((unsigned long long)high));
    else snprintf(want, sizeof want, "<= %" PRId64, high);
    return refuse(v->name, is, want);
}

static tgl_status check_float(const tgl_value *v, float is)
{
    if (v->low.kind == TGL_NUMBER_NONE || is >= (float)v->low.constant) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %g, want >= %" PRId64, v->name, (double)is, v->low.constant);
}

static const void *field_of(const void *params, const tgl_value *v) { return (const char *)params + v->offset; }

static void load_scalars(const tgl_table *t, const void *params, int64_t *values)
{
    for (int i = t->num_sizes; i < t->num_values; i++) {
        const tgl_value *v = &t->values[i];
        values[i] = 0;
        if (v->type == TGL_VALUE_INT) values[i] = *(const int64_t *)field_of(params, v);
        if (v->type == TGL_VALUE_WORD) values[i] = *(const int *)field_of(params, v);
        if (v->type == TGL_VALUE_BOOL) values[i] = *(const bool *)field_of(params, v);
        if (values[i] == 0 && !v->fallback.factor) values[i] = v->fallback.constant;
    }
}

static tgl_status check_scalars(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors,
                                const void *params, int64_t *values)
{
    if (!params) return tgl_fail(TGL_ERR_ARGUMENT, "params: is NULL, want a struct");
    if (of)
        TGL_TRY(tgl_expect_reserved((const uint64_t *)(const void *)((const char *)params + of->reserved)));
    load_scalars(t, params, values);
    for (int i = t->num_sizes; i < t->num_values; i++) {
        const tgl_value *v = &t->values[i];
        if (!is_read(v, tensors, values)) continue;
        if (v->type == TGL_VALUE_WORD) TGL_TRY(check_words(v, values[i], num_words(v, tensors)));
        if (v->type == TGL_VALUE_INT) TGL_TRY(check_int(t, v, values[i], values));
        if (v->type == TGL_VALUE_FLOAT) TGL_TRY(check_float(v, *(const float *)field_of(params, v)));
    }
    return TGL_OK;
}

static tgl_status check_rule(const tgl_table *t, const tgl_rule *r, const DLTensor *const *tensors,
                             const int64_t *values)
{
    if (holds(t, r, tensors, values)) return TGL_OK;
    const char *name = r->tensor >= 0 ? t->tensors[r->tensor].name : t->values[r->value].name;
    if (r->kind == TGL_RULE_NEEDS) {
        if (r->other_tensor >= 0)
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: is NULL, want a tensor with %s",
                            t->tensors[r->other_tensor].name, name);
        const char *other = t->values[r->other_value].name;
        if (!r->dtypes) return tgl_fail(TGL_ERR_ARGUMENT, "%s: is false, want true with %s", other, name);
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: is false, want true for %s of %s (packed)", other, name,
                        tgl_dtype_name(r->dtypes));
    }
    char want[160];
    const int64_t low = number(t, &r->low, values), high = number(t, &r->high, values);
    if (r->kind == TGL_RULE_DIVIDES)
        snprintf(want, sizeof want, "a divisor of %" PRId64 " (%s)", values[r->other_value],
                 t->values[r->other_value].name);
    else if (r->kind == TGL_RULE_MULTIPLE)
        snprintf(want, sizeof want, "a multiple of %" PRId64 "%s%s%s%s%s", low, r->low_name ? " (" : "",
                 r->low_name ? r->low_name : "", r->low_name ? ")" : "", r->other_value >= 0 ? " for " : "",
                 r->other_value >= 0 ? t->values[r->other_value].words[r->word].word : "");
    else if (r->kind == TGL_RULE_EQUALS) snprintf(want, sizeof want, "%" PRId64, low);
    else if (r->high.kind) snprintf(want, sizeof want, "%" PRId64 "..%" PRId64, low, high);
    else snprintf(want, sizeof want, ">= %" PRId64, low);
    return refuse(name, values[r->value], want);
}

static tgl_status check_rules(const tgl_table *t, int after, const DLTensor *const *tensors,
                              const int64_t *values)
{
    for (int i = 0; i < t->num_rules; i++)
        if (t->rules[i].after == after) TGL_TRY(check_rule(t, &t->rules[i], tensors, values));
    return TGL_OK;
}

/* The first tensor with any leading dimensions, which the others must have, too. */
static const DLTensor *leader(const tgl_table *t, const DLTensor *const *tensors)
{
    for (int i = 0; i < t->num_tensors; i++)
        if (t->tensors[i].has_leading && tensors[i]) return tensors[i];
    return NULL;
}

static tgl_status expect_alone(const tgl_table *t, const tgl_arg *a, const DLTensor *const *tensors,
                               const DLTensor *x, const int64_t *values)
{
    tgl_dtype dtypes = a->dtypes;
    if (a->if_given >= 0 && !tensors[a->if_given]) dtypes = a->otherwise;
    if (a->by_word >= 0) dtypes = t->values[a->by_word].words[values[a->by_word]].dtypes;
    int ndim = a->ndim;
    if (a->has_leading) {
        const DLTensor *first = leader(t, tensors);
        if (first && first == x && (x->ndim < a->ndim || x->ndim > TGL_MAX_DIMS))
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: rank is %d, want %d..%d", a->name, x->ndim, a->ndim,
                            TGL_MAX_DIMS);
        if (first) ndim = first->ndim;
    }
    TGL_TRY(tgl_expect(a->name, x, dtypes, ndim, a->layout));
    if (!a->is_host || tgl_on_cpu(x)) return TGL_OK;
    char is[128];
    tgl_describe(x, is, sizeof is);
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %s, want memory of the host", a->name, is);
}

/* The values that this tensor decides, from its sizes: a mask of them. */
static uint32_t bind(const tgl_table *t, const tgl_arg *a, const DLTensor *x, int64_t *values, uint32_t bound)
{
    uint32_t own = 0;
    const int64_t *shape = x->shape + (x->ndim - a->ndim);
    for (int i = 0; i < a->ndim; i++) {
        const tgl_size *size = &a->sizes[i];
        if (size->value < 0 || (bound | own) >> size->value & 1) continue;
        const tgl_packing packing = i == a->ndim - 1 ? packing_of(t, a, x, values) : TGL_UNPACKED;
        const int64_t count = multiply(shape[i] / PACKINGS[packing].elements, PACKINGS[packing].values);
        const int64_t more = size->more.kind ? number(t, &size->more, values) : 0;
        values[size->value] = add(count, -more) / size->factor;
        own |= 1u << size->value;
    }
    return own;
}

/* A dimension that decides n as 2 * n. */
static tgl_status check_factors(const tgl_arg *a, const DLTensor *x, uint32_t own)
{
    const int64_t *shape = x->shape + (x->ndim - a->ndim);
    for (int i = 0; i < a->ndim; i++) {
        const tgl_size *size = &a->sizes[i];
        if (size->value < 0 || !(own >> size->value & 1) || shape[i] % size->factor == 0) continue;
        char want[96];
        snprintf(want, sizeof want, size->factor == 2 ? "an even number" : "a multiple of %d", size->factor);
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: columns are %" PRId64 ", want %s%s%s%s", a->name, shape[i], want,
                        size->note ? " (" : "", size->note ? size->note : "", size->note ? ")" : "");
    }
    return TGL_OK;
}

/* What the sizes must be: one number, or of a value that this tensor decides (`own`) its range. */
static tgl_status check_sizes(const tgl_table *t, const tgl_arg *a, const DLTensor *x,
                              const DLTensor *const *tensors, const int64_t *values, uint32_t own, bool only_own)
{
    const tgl_packing packing = packing_of(t, a, x, values);
    const int leading = x->ndim - a->ndim;
    tgl_dim want[TGL_MAX_DIMS];
    bool fits = true;
    for (int i = 0; i < leading; i++) {
        const int64_t n = leader(t, tensors)->shape[i];
        want[i] = (tgl_dim){ n, n };
        fits &= x->shape[i] == n || only_own;
    }
    for (int i = 0; i < a->ndim; i++) {
        const tgl_size *size = &a->sizes[i];
        const bool is_last = i == a->ndim - 1;
        const bool is_own = size->value >= 0 && own >> size->value & 1;
        const int64_t is = x->shape[leading + i], more = size->more.kind ? number(t, &size->more, values) : 0;
        tgl_dim *dim = &want[leading + i];
        if (!is_own) {
            int64_t n = size->value < 0 ? more : add(multiply(values[size->value], size->factor), more);
            if (is_last && a->is_scales && tgl_dtype_is(x->dtype, TGL_I32)) n = tgl_ceil_div(n, 4);
            if (is_last) n = multiply(n / PACKINGS[packing].values, PACKINGS[packing].elements);
            *dim = (tgl_dim){ n, n };
        } else if (has_limits(&t->values[size->value]) || more) {
            const tgl_value *v = &t->values[size->value];
            dim->low = add(v->low.kind ? number(t, &v->low, values) : 0, more);
            dim->high = v->high.kind ? add(number(t, &v->high, values), more) : INT64_MAX;
        } else {
            *dim = (tgl_dim){ is, is };
        }
        fits &= (is >= dim->low && is <= dim->high) || (only_own && !is_own);
    }
    return fits ? TGL_OK : tgl_expect_shape(a->name, x, want);
}

static tgl_status expect_e5m6(const tgl_arg *a, const DLTensor *x)
{
    const int64_t width = x->shape[x->ndim - 1];
    if (width % 12)
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: rows are %" PRId64 " bytes, want a multiple of 12 for e5m6",
                        a->name, width);
    if (tgl_is_empty(x)) return TGL_OK;
    if (x->shape[0] > 1 && tgl_stride(x, 0) % 4)
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: rows are %" PRId64
                        " bytes apart, want a multiple of 4 for e5m6", a->name, tgl_stride(x, 0));
    return tgl_expect_aligned(a->name, x, 4);
}

/* Codes: as many columns as the format can hold, of the tensor that has them, whether codes are given or not. */
static tgl_status expect_whole(const tgl_table *t, const tgl_arg *a, const int64_t *values)
{
    const tgl_packing packing = t->values[a->by_word].words[values[a->by_word]].packing;
    const int cols = a->sizes[a->ndim - 1].value, group = PACKINGS[packing].values;
    if (cols < 0 || values[cols] % group == 0) return TGL_OK;
    const int owner = t->values[cols].owner;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: columns are %" PRId64 ", want a multiple of %d for %s",
                    owner >= 0 ? t->tensors[owner].name : a->name, values[cols], group, PACKINGS[packing].name);
}

static tgl_status expect_scales(const tgl_arg *a, const DLTensor *x)
{
    if (scales_fit(x, a->is_written)) return TGL_OK;
    char want[96];
    const int n = snprintf(want, sizeof want, "[1, >= %" PRId64 "]", a->is_written ? x->shape[0] : 0);
    if (tgl_dtype_is(x->dtype, TGL_F32))
        snprintf(want + n, sizeof want - (size_t)n, " or [>= %" PRId64 ", 1]", a->is_written ? x->shape[1] : 0);
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: strides are [%" PRId64 ", %" PRId64 "], want %s", a->name,
                    tgl_stride(x, 0), tgl_stride(x, 1), want);
}

static tgl_status check_shape(const tgl_table *t, const tgl_arg *a, const DLTensor *x,
                              const DLTensor *const *tensors, const int64_t *values, uint32_t own)
{
    if (packing_of(t, a, x, values) == TGL_PACKED_E5M6) TGL_TRY(expect_e5m6(a, x));
    TGL_TRY(check_sizes(t, a, x, tensors, values, own, false));
    if (tgl_is_empty(x)) return TGL_OK;
    if (a->is_scales) return expect_scales(a, x);
    if (a->is_written && a->layout == TGL_ROWS && x->shape[0] > 1 && tgl_stride(x, 0) < x->shape[1])
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: strides are [%" PRId64 ", 1], want >= %" PRId64
                        " between rows", a->name, tgl_stride(x, 0), x->shape[1]);
    return TGL_OK;
}

static tgl_status check_memory(const tgl_table *t, const DLTensor *const *tensors)
{
    for (int i = 1; i < t->num_tensors; i++)
        if (tensors[i] && !t->tensors[i].is_host)
            TGL_TRY(tgl_expect_same_device(t->tensors[i].name, tensors[i], tensors[0]));
    for (int i = 1; i < t->num_tensors; i++)
        for (int j = 0; j < i; j++) {
            const tgl_arg *a = &t->tensors[i], *b = &t->tensors[j];
            if (!tensors[i] || !tensors[j] || (!a->is_written && !b->is_written)) continue;
            const bool may_be_same = a->may_be >> j & 1 || b->may_be >> i & 1;
            TGL_TRY(may_be_same ? tgl_expect_same_or_no_overlap(a->name, tensors[i], b->name, tensors[j])
                                : tgl_expect_no_overlap(a->name, tensors[i], b->name, tensors[j]));
        }
    return TGL_OK;
}

/* A tensor that is always given decides a size before those that are optional, wherever it stands. */
static void bind_all(const tgl_table *t, const DLTensor *const *tensors, int64_t *values, uint32_t *own)
{
    uint32_t bound = 0;
    for (int is_optional = 0; is_optional < 2; is_optional++)
        for (int i = 0; i < t->num_tensors; i++) {
            if (t->tensors[i].is_optional != is_optional) continue;
            own[i] = tensors[i] ? bind(t, &t->tensors[i], tensors[i], values, bound) : 0;
            bound |= own[i];
        }
    for (int i = t->num_sizes; i < t->num_values; i++)
        if (values[i] == 0 && t->values[i].fallback.kind) values[i] = number(t, &t->values[i].fallback, values);
}

/* The order of checks decides which of several mistakes is named: scalars, each tensor alone, ranges of sizes
 * and rules (since other sizes follow from these), sizes, dtypes, memory. */
tgl_status tgl_check_slowly(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors,
                            const void *params, int64_t *values)
{
    uint32_t own[TGL_MAX_TENSORS];
    for (int i = 0; i < t->num_sizes; i++) values[i] = 0;
    if (t->num_scalars) TGL_TRY(check_scalars(t, of, tensors, params, values));
    for (int i = t->num_sizes + t->num_scalars; i < t->num_values; i++)
        values[i] = tensors[t->values[i].with] != NULL;
    TGL_TRY(check_rules(t, -1, tensors, values));
    for (int i = 0; i < t->num_tensors; i++)
        if (tensors[i] || !t->tensors[i].is_optional)
            TGL_TRY(expect_alone(t, &t->tensors[i], tensors, tensors[i], values));
    bind_all(t, tensors, values, own);
    for (int i = 0; i < t->num_tensors; i++) {
        const tgl_arg *a = &t->tensors[i];
        if (tensors[i] && !a->is_optional) {
            TGL_TRY(check_factors(a, tensors[i], own[i]));
            TGL_TRY(check_sizes(t, a, tensors[i], tensors, values, own[i], true));
        }
        TGL_TRY(check_rules(t, i, tensors, values));
    }
    for (int i = 0; i < t->num_tensors; i++) {
        if (t->tensors[i].by_word >= 0) TGL_TRY(expect_whole(t, &t->tensors[i], values));
        if (tensors[i]) TGL_TRY(check_shape(t, &t->tensors[i], tensors[i], tensors, values, own[i]));
    }
    TGL_TRY(check_rules(t, t->num_tensors, tensors, values));
    for (int i = 0; i < t->num_tensors; i++) {
        const int like = t->tensors[i].like;
        if (like >= 0 && tensors[i] && tensors[like])
            TGL_TRY(tgl_expect_same_dtype(t->tensors[i].name, tensors[i], t->tensors[like].name, tensors[like]));
    }
    return check_memory(t, tensors);
}

/* ---- the quick way ----
 * Nearly all calls pass. This asks each question once, in one pass over facts that lie close together, and
 * makes no message: a table read as above takes 30 to 250 ns more a call. It may be too strict (what is rare
 * goes the slow way), never too lax. */

#define NO_DTYPE UINT32_MAX
enum { IS_OPTIONAL = 1, IS_WRITTEN = 2, IS_ANY = 4, IS_SCALES = 8, IS_CODES = 16, IS_HOST = 32 };

static uint32_t key_of(DLDataType d) { return (uint32_t)d.code | (uint32_t)d.bits << 8 | (uint32_t)d.lanes << 16; }

static uint64_t device_of(const DLTensor *x)
{
    uint64_t device;
    _Static_assert(sizeof device == sizeof x->device, "type and number");
    memcpy(&device, &x->device, sizeof device);
    return device;
}

static bool quick_scalars(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors,
                          const void *params, int64_t *values)
{
    uint64_t bits = 0;
    if (of) {
        const uint64_t *reserved = (const uint64_t *)(const void *)((const char *)params + of->reserved);
        for (int i = 0; i < TGL_RESERVED_WORDS; i++) bits |= reserved[i];
    }
    bool ok = bits == 0;
    const tgl_quick_scalar *q = t->quick.scalars, *end = q + t->num_scalars;
    for (; q < end; q++) {
        const void *at = (const char *)params + q->offset;
        if (q->type == TGL_VALUE_INT) {
            const int64_t is = *(const int64_t *)at;
            ok &= is >= q->low || (q->with >= 0 && !tensors[q->with]);
            values[q->value] = is ? is : q->zero;
        } else if (q->type == TGL_VALUE_BOOL) {
            values[q->value] = *(const bool *)at;
        } else if (q->type == TGL_VALUE_WORD) {
            const int is = *(const int *)at;
            values[q->value] = is;
            ok &= is >= 0 && is < (q->with >= 0 && tensors[q->with] ? q->words_given : q->words);
        } else {
            values[q->value] = 0;
            ok &= !q->has_low || *(const float *)at >= (float)q->low || (q->with_value >= 0 && !values[q->with_value]);
        }
    }
    return ok;
}

typedef struct { uintptr_t begin, end; } span;
typedef struct {
    uint64_t device;
    uint32_t bound;                             /* mask of values */
    span spans[TGL_MAX_TENSORS];                /* of tensors; without memory begin is not below end */
} seen;

/* Elements from the first to the last of a tensor with gaps, if its layout allows them; else 0. */
static __attribute__((noinline)) int64_t quick_gaps(const tgl_quick_arg *q, const DLTensor *x)
{
    const int last = q->ndim - 1;
    if (q->layout == TGL_PACKED) return 0;
    if (q->flags & IS_SCALES && !scales_fit(x, q->flags & IS_WRITTEN)) return 0;
    if (q->layout == TGL_ROWS) {
        if (x->strides[last] != 1 && x->shape[last] != 1) return 0;
        if (q->flags & IS_WRITTEN && x->shape[0] != 1 && x->strides[0] < x->shape[1]) return 0;
        if (q->flags & IS_CODES && x->strides[0] % 4) return 0;
    }
    int64_t reach = 0;
    for (int i = 0; i <= last; i++) {
        int64_t step;
        if (x->shape[i] == 1) continue;
        if (x->strides[i] < 0 || __builtin_mul_overflow(x->strides[i], x->shape[i] - 1, &step) ||
            __builtin_add_overflow(reach, step, &reach))
            return 0;
    }
    return reach + 1 > 0 ? reach + 1 : 0;
}

static inline __attribute__((always_inline)) bool quick_tensor(const tgl_quick_arg *q, const uint32_t *dtypes,
                                                               tgl_packing packing, const DLTensor *x,
                                                               int64_t *values, seen *s)
{
    const uint32_t dtype = key_of(x->dtype), bits = (uint32_t)x->dtype.bits * x->dtype.lanes;
    const bool is_any = q->flags & IS_ANY && !(bits & (bits - 1)) && bits >= 8 && bits <= 128;
    if (dtype != dtypes[0] && dtype != dtypes[1] && dtype != dtypes[2] && dtype != dtypes[3] && !is_any)
        return false;
    if (x->ndim != q->ndim || !x->shape) return false;
    if (q->flags & IS_HOST ? !tgl_on_cpu(x) : device_of(x) != s->device) return false;
    const int64_t *strides = x->strides;
    const int last = q->ndim - 1;
    int64_t packed = 1, count;
    bool is_packed = true, is_overflow = false;
    for (int i = last; i >= 0; i--) {
        const int64_t n = x->shape[i], value = q->sizes[i];
        if (n < 0) return false;
        if (value >= 0) {
            count = n;
            if (packing && i == last) {
                if (n % PACKINGS[packing].elements || n >> 56) return false;
                count = n / PACKINGS[packing].elements * PACKINGS[packing].values;
            }
            if (!(s->bound >> value & 1)) values[value] = count, s->bound |= 1u << value;
            else if (values[value] != count) return false;
        }
        is_packed &= !strides || strides[i] == packed || n == 1;
        is_overflow |= __builtin_mul_overflow(packed, n, &packed);
    }
    span *out = &s->spans[q->place];
    if (packed == 0 && !is_overflow) {          /* empty: neither strides nor data mean anything */
        *out = (span){ 0, 0 };
        return true;
    }
    const bool is_odd = q->flags & IS_SCALES && dtype == dtypes[1];      /* i32, by columns */
    if (!is_packed || is_odd) packed = strides ? quick_gaps(q, x) : 0;
    const uintptr_t at = (uintptr_t)x->data + x->byte_offset, width = bits / 8;
    const uintptr_t align = packing == TGL_PACKED_E5M6 ? 4 : width < 8 ? width : 8;
    *out = (span){ at, at + (uintptr_t)packed * width };
    return packed > 0 && packed >> 51 == 0 && !is_overflow && x->data && !(at & (align - 1)) &&
           at >= x->byte_offset && out->end > at;
}

/* A dimension that is no plain size, once all values that it follows from are known. */
static bool quick_dim(const tgl_table *t, int place, int dim, const DLTensor *const *tensors, int64_t *values,
                      seen *s)
{
    const tgl_arg *a = &t->tensors[place];
    const DLTensor *x = tensors[place];
    if (!x) return true;
    const tgl_size *size = &a->sizes[dim];
    const int64_t more = size->more.kind ? number(t, &size->more, values) : 0;
    if (size->value >= 0 && !(s->bound >> size->value & 1)) {
        const int64_t rest = x->shape[dim] - more;              /* both are >= 0, or it is refused */
        if (more < 0 || rest < 0 || rest % size->factor) return false;
        values[size->value] = rest / size->factor;
        s->bound |= 1u << size->value;
        return true;
    }
    int64_t n = size->value < 0 ? more : add(multiply(values[size->value], size->factor), more);
    if (a->is_scales && dim == a->ndim - 1 && tgl_dtype_is(x->dtype, TGL_I32)) n = tgl_ceil_div(n, 4);
    return x->shape[dim] == n;
}

static bool is_within(const tgl_table *t, int value, const int64_t *values)
{
    const tgl_value *v = &t->values[value];
    if (v->low.kind && values[value] < number(t, &v->low, values)) return false;
    if (!v->high.kind) return true;
    const int64_t high = number(t, &v->high, values);
    return values[value] <= (v->is_of_elements ? high / 2 : high);      /* elements are at most twice as many */
}

/* In order of address each ends before the next begins. */
static bool are_apart(const span *spans, int count)
{
    span sorted[TGL_MAX_TENSORS];
    int n = 0;
    for (int i = 0; i < count; i++) {
        if (spans[i].end <= spans[i].begin) continue;
        int to = n++;
        for (; to > 0 && sorted[to - 1].begin > spans[i].begin; to--) sorted[to] = sorted[to - 1];
        sorted[to] = spans[i];
    }
    bool ok = true;
    for (int i = 1; i < n; i++) ok &= sorted[i - 1].end <= sorted[i].begin;
    return ok;
}

/* Inputs may overlap each other; rows of one buffer may lie between each other. */
static bool are_apart_exactly(const tgl_table *t, const DLTensor *const *tensors, const span *spans)
{
    for (int i = 1; i < t->num_tensors; i++)
        for (int j = 0; j < i; j++) {
            const tgl_arg *a = &t->tensors[i], *b = &t->tensors[j];
            if (!a->is_written && !b->is_written) continue;
            if (spans[i].end <= spans[j].begin || spans[j].end <= spans[i].begin) continue;
            if (spans[i].end <= spans[i].begin || spans[j].end <= spans[j].begin) continue;
            const bool may_be_same = a->may_be >> j & 1 || b->may_be >> i & 1;
            if (!(may_be_same && tgl_is_same_memory(tensors[i], tensors[j])) && tgl_overlaps(tensors[i], tensors[j]))
                return false;
        }
    return true;
}

bool tgl_check_quickly(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors,
                       const void *params, int64_t *values)
{
    const tgl_quick *q = &t->quick;
    const DLTensor *first = tensors[0];
    if (!q->is_possible || !first) return false;
    const int device = (int)first->device.device_type, id = first->device.device_id;
    if (device != TGL_DL_CPU && (device != TGL_DL_CUDA || id < 0 || id >= TGL_MAX_DEVICES)) return false;
    for (int i = 0; i < t->num_sizes; i++) values[i] = 0;
    if (t->num_scalars && (!params || !quick_scalars(t, of, tensors, params, values))) return false;
    for (int i = t->num_sizes + t->num_scalars; i < t->num_values; i++)
        values[i] = tensors[t->values[i].with] != NULL;
    seen s;
    s.device = device_of(first);
    s.bound = 0;
    for (int i = 0; i < t->num_tensors; i++) {
        const tgl_quick_arg *a = &q->args[i];
        const DLTensor *x = tensors[a->place];
        if (!x) {
            if (!(a->flags & IS_OPTIONAL)) return false;
            s.spans[a->place] = (span){ 0, 0 };
            continue;
        }
        const uint32_t *dtypes = a->if_given >= 0 && !tensors[a->if_given] ? a->otherwise : a->dtypes;
        tgl_packing packing = TGL_UNPACKED;
        if (a->flags & IS_CODES) {
            packing = packing_of(t, &t->tensors[a->place], x, values);
            if (a->by_word >= 0) dtypes = q->word_dtypes[packing];
        }
        if (!quick_tensor(a, dtypes, packing, x, values, &s)) return false;
        if (a->like >= 0 && tensors[a->like] && key_of(x->dtype) != key_of(tensors[a->like]->dtype)) return false;
    }
    for (int i = 0; i < q->num_deciding; i++)
        if (!quick_dim(t, q->dims[i].tensor, q->dims[i].dim, tensors, values, &s)) return false;
    for (int i = 0; i < q->num_fallbacks; i++)
        if (values[q->fallbacks[i]] == 0)
            values[q->fallbacks[i]] = number(t, &t->values[q->fallbacks[i]].fallback, values);
    for (int i = q->num_deciding; i < q->num_dims; i++)
        if (!quick_dim(t, q->dims[i].tensor, q->dims[i].dim, tensors, values, &s)) return false;
    for (int i = 0; i < t->num_rules; i++)
        if (!holds(t, &t->rules[i], tensors, values)) return false;
    for (int i = 0; i < q->num_ranges; i++) {
        const int value = q->ranges[i];
        if ((value >= t->num_sizes || s.bound >> value & 1) && !is_within(t, value, values)) return false;
    }
    for (int i = 0; i < q->num_by_word; i++)    /* where codes are not given, the format must suit all the same */
        if (!tensors[q->by_word[i]] && packing_of(t, &t->tensors[q->by_word[i]], NULL, values)) return false;
    return are_apart(s.spans, t->num_tensors) || are_apart_exactly(t, tensors, s.spans);
}

/* ---- the quick way's facts ---- */

static bool list_dtypes(tgl_dtype set, uint32_t out[4])
{
    int n = 0;
    for (int i = 0; i < 4; i++) out[i] = NO_DTYPE;
    for (; set; set &= set - 1, n++)
        if (n < 4) out[n] = key_of(tgl_dtype_to_dlpack(set & -set));
    return n <= 4;
}

static bool make_quick_arg(const tgl_table *t, int place, tgl_quick_arg *k)
{
    const tgl_arg *a = &t->tensors[place];
    const tgl_size *last = &a->sizes[a->ndim - 1];
    const bool is_any = a->dtypes == TGL_ANY, is_codes = a->is_e2m1 || a->by_word >= 0;
    *k = (tgl_quick_arg){ .place = (uint8_t)place, .ndim = (uint8_t)a->ndim, .layout = (uint8_t)a->layout,
                          .if_given = a->if_given, .like = a->like, .by_word = a->by_word };
    k->flags = (uint8_t)((a->is_optional ? IS_OPTIONAL : 0) | (a->is_written ? IS_WRITTEN : 0) |
                         (is_any ? IS_ANY : 0) | (a->is_scales ? IS_SCALES : 0) | (is_codes ? IS_CODES : 0) |
                         (a->is_host ? IS_HOST : 0));
    bool ok = list_dtypes(is_any ? 0 : a->dtypes, k->dtypes) && list_dtypes(a->otherwise, k->otherwise);
    if (a->is_scales) {                         /* the order that is_odd of quick_tensor knows */
        list_dtypes(TGL_F32, k->dtypes);
        k->dtypes[1] = key_of(tgl_dtype_to_dlpack(TGL_I32));
    }
    for (int d = 0; d < TGL_MAX_RANK; d++) {
        const bool is_plain = d < a->ndim && a->sizes[d].factor == 1 && !a->sizes[d].more.kind;
        k->sizes[d] = (int8_t)(is_plain ? a->sizes[d].value : -1);
    }
    ok &= !is_codes || (last->value >= 0 && k->sizes[a->ndim - 1] >= 0 && a->ndim == 2);
    return ok && !a->has_leading && (!a->is_scales || a->ndim == 2);
}

static bool is_deciding(const tgl_table *t, int place, int dim)
{
    const int value = t->tensors[place].sizes[dim].value;
    return value >= 0 && t->values[value].owner == place;
}

void tgl_make_quick(tgl_table *t)
{
    tgl_quick *q = &t->quick;
    int n = 0;
    *q = (tgl_quick){ .is_possible = true };
    for (int is_optional = 0; is_optional < 2; is_optional++)
        for (int i = 0; i < t->num_tensors; i++) {
            if (t->tensors[i].is_optional != is_optional) continue;
            q->is_possible &= make_quick_arg(t, i, &q->args[n++]);
            if (t->tensors[i].by_word >= 0) q->by_word[q->num_by_word++] = (uint8_t)i;
        }
    for (int follows = 0; follows < 2; follows++) {
        for (int i = 0; i < t->num_tensors; i++)
            for (int d = 0; d < t->tensors[i].ndim; d++) {
                const tgl_size *size = &t->tensors[i].sizes[d];
                if ((size->value >= 0 && size->factor == 1 && !size->more.kind) || is_deciding(t, i, d) == follows)
                    continue;
                q->dims[q->num_dims].tensor = (uint8_t)i;
                q->dims[q->num_dims++].dim = (uint8_t)d;
            }
        if (!follows) q->num_deciding = q->num_dims;
    }
    list_dtypes(TGL_E4M3, q->word_dtypes[TGL_UNPACKED]);
    list_dtypes(PAIRS, q->word_dtypes[TGL_PACKED_E2M1]);
    list_dtypes(TGL_U8, q->word_dtypes[TGL_PACKED_E5M6]);
    for (int i = 0; i < t->num_values; i++) {
        const tgl_value *v = &t->values[i];
        const bool is_const = v->low.kind != TGL_NUMBER_PROGRAM && !v->low.factor;
        for (int w = 0; w < v->num_words; w++)
            q->is_possible &= v->words[w].packing || !v->words[w].dtypes || v->words[w].dtypes == TGL_E4M3;
        if (v->type == TGL_VALUE_SIZE ? has_limits(v) : v->type == TGL_VALUE_INT && (v->high.kind || !is_const)) {
            q->is_possible &= v->with < 0 && v->with_value < 0;
            q->ranges[q->num_ranges++] = (uint8_t)i;
        }
        if (v->fallback.factor || v->fallback.kind == TGL_NUMBER_PROGRAM) q->fallbacks[q->num_fallbacks++] = (uint8_t)i;
        if (i < t->num_sizes || v->type == TGL_VALUE_GIVEN) continue;
        q->is_possible &= v->type == TGL_VALUE_FLOAT || v->with_value < 0;
        q->scalars[i - t->num_sizes] = (tgl_quick_scalar){
            .value = (uint8_t)i, .type = (uint8_t)v->type, .offset = (uint16_t)v->offset,
            .with = v->type == TGL_VALUE_WORD ? (int8_t)v->with_words : v->with, .with_value = v->with_value,
            .words = (uint8_t)v->num_words, .words_given = (uint8_t)v->num_words_given,
            .has_low = v->low.kind != TGL_NUMBER_NONE, .low = is_const && v->low.kind ? v->low.constant : INT64_MIN,
            .zero = v->fallback.factor ? 0 : v->fallback.constant
        };
    }
}

/* ---- a call ---- */

static const tgl_table *parse_once(tgl_signature *s)
{
    tgl_table *made = malloc(sizeof *made);
    const tgl_table *known = NULL;
    if (!made) {
        tgl_fail(TGL_ERR_MEMORY, "signature: no memory for its table");
        return NULL;
    }
    if (tgl_parse_signature(s->text, s->params, s->sizes, made) != TGL_OK) {
        free(made);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&s->table, &known, made)) return made;
    free(made);                                 /* another thread was first */
    return known;
}

const tgl_table *tgl_signature_table(tgl_signature *s)
{
    const tgl_table *t = atomic_load_explicit(&s->table, memory_order_acquire);
    return __builtin_expect(t != NULL, 1) ? t : parse_once(s);
}

tgl_status tgl_check(tgl_signature *s, const DLTensor *const *tensors, const void *params, int64_t *sizes)
{
    int64_t values[TGL_MAX_VALUES];
    const tgl_table *t = tgl_signature_table(s);
    if (!t) return TGL_ERR_INTERNAL;
    if (!tgl_check_quickly(t, s->params, tensors, params, values))
        TGL_TRY(tgl_check_slowly(t, s->params, tensors, params, values));
    for (int i = 0; sizes && i < t->num_sizes; i++) sizes[i] = values[i];
    return TGL_OK;
}

void tgl_log_signature(tgl_signature *s, const DLTensor *const *tensors)
{
    if (!tgl_log_wants(TGL_LOG_CALL)) return;
    const tgl_table *t = tgl_signature_table(s);
    if (!t) return;
    char text[2048], tensor[256];
    size_t n = (size_t)snprintf(text, sizeof text, "tgl_%s(", t->name);
    const char *separator = "";
    for (int i = 0; i < t->num_tensors && n < sizeof text; i++) {
        const tgl_arg *a = &t->tensors[i];
        if (a->in_struct && !a->owns) continue; /* of a struct, those that decide sizes say it all */
        tgl_describe(tensors[i], tensor, sizeof tensor);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %s", separator, a->name, tensor);
        separator = ", ";
    }
    if (n < sizeof text) snprintf(text + n, sizeof text - n, ")");
    tgl_log(TGL_LOG_CALL, "%s", text);
}
