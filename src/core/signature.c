/* SPDX-License-Identifier: MIT
 * signature.c - checks a call against its op's signature, with messages; its log line. */
#include "core/signature.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/log.h"
#include "core/signature_table.h"

/* ---- reading a table ---- */

int64_t tgl_run_steps(const tgl_step *s, const int64_t *values)
{
    int64_t stack[TGL_MAX_STACK];
    int n = 0;
    for (; s->op; s++) {
        if (s->op == 'k' || s->op == 'v') {
            stack[n++] = s->op == 'k' ? s->constant : values[s->value];
            continue;
        }
        if (s->op == 'j' || s->op == 'e') {
            if (s->op == 'e' || !stack[--n]) s += s->constant;
            continue;
        }
        const int64_t b = stack[--n];
        int64_t *a = &stack[n - 1];
        switch (s->op) {
        case '+': *a = tgl_add(*a, b); break;
        case '-': *a = tgl_add(*a, b == INT64_MIN ? INT64_MAX : -b); break;
        case '*': *a = tgl_multiply(*a, b); break;
        case '/': *a = tgl_quotient_up(*a, b); break;
        default: *a = *a > b; break;
        }
    }
    return stack[0];
}

const struct tgl_packing_sizes TGL_PACKINGS[TGL_NUM_PACKINGS] = { [TGL_UNPACKED] = { 1, 1, "" },
                                                                  [TGL_PACKED_E2M1] = { 2, 1, "e2m1" },
                                                                  [TGL_PACKED_E5M6] = { 8, 12, "e5m6" } };

bool tgl_scales_fit(const DLTensor *x, bool is_written)
{
    const int64_t down = tgl_stride(x, 0), right = tgl_stride(x, 1);
    const bool are_floats = tgl_dtype_is(x->dtype, TGL_F32);
    const bool by_rows = are_floats && (x->shape[1] == 1 || (x->shape[0] > 1 ? down != 1 : right == 1));
    const int inner = by_rows ? 1 : 0, outer = 1 - inner;
    const int64_t min = is_written ? x->shape[inner] : 0;
    return (x->shape[inner] == 1 || tgl_stride(x, inner) == 1) && (x->shape[outer] == 1 || tgl_stride(x, outer) >= min);
}

/* ---- scalars and rules ---- */

/* Is the scalar used in this call? */
static bool is_read(const tgl_value *v, const DLTensor *const *tensors, const int64_t *values)
{
    return (v->with < 0 || tensors[v->with]) && (v->with_value < 0 || values[v->with_value]);
}

static int num_words(const tgl_value *v, const DLTensor *const *tensors)
{
    return v->with_words >= 0 && tensors[v->with_words] ? v->num_words_given : v->num_words;
}

static tgl_status refuse(const char *name, int64_t is, const char *want)
{
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %" PRId64 ", want %s", name, is, want);
}

/* The message lists words that name dtypes; others are a range of numbers. */
static tgl_status check_words(const tgl_value *v, int64_t is, int words)
{
    if (is >= 0 && is < words) return TGL_OK;
    char want[160];
    int n = 0;
    if (!v->words[0].dtypes) n = snprintf(want, sizeof want, "0..%d", words - 1);
    for (int i = 0; v->words[0].dtypes && i < words && n < (int)sizeof want; i++) {
        const char *separator = i == 0 ? "" : i + 1 < words ? ", " : " or ";
        n += snprintf(want + n, sizeof want - (size_t)n, "%s%d (%s)", separator, i, v->words[i].word);
    }
    return refuse(v->name, is, want);
}

static tgl_status check_int(const tgl_table *t, const tgl_value *v, int64_t is, const int64_t *values)
{
    const int64_t low = v->low.kind ? tgl_number_of(t, &v->low, values) : INT64_MIN;
    const int64_t high = v->high.kind ? tgl_number_of(t, &v->high, values) : INT64_MAX;
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
        if (values[i] == 0 && tgl_is_constant(&v->fallback)) values[i] = v->fallback.constant;
    }
}

static tgl_status check_scalars(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors,
                                const void *params, int64_t *values)
{
    if (!params) return tgl_fail(TGL_ERR_ARGUMENT, "params: is NULL, want a struct");
    if (of) TGL_TRY(tgl_expect_reserved((const uint64_t *)(const void *)((const char *)params + of->reserved)));
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
    if (tgl_rule_holds(t, r, tensors, values)) return TGL_OK;
    const char *name = r->tensor >= 0 ? t->tensors[r->tensor].name : t->values[r->value].name;
    if (r->kind == TGL_RULE_NEEDS) {
        if (r->other_tensor >= 0)
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: is NULL, want a tensor with %s", t->tensors[r->other_tensor].name,
                            name);
        const char *other = t->values[r->other_value].name;
        if (!r->dtypes) return tgl_fail(TGL_ERR_ARGUMENT, "%s: is false, want true with %s", other, name);
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: is false, want true for %s of %s (packed)", other, name,
                        tgl_dtype_name(r->dtypes));
    }
    char want[160];
    const int64_t low = tgl_number_of(t, &r->low, values), high = tgl_number_of(t, &r->high, values);
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

static tgl_status check_rules(const tgl_table *t, int after, const DLTensor *const *tensors, const int64_t *values)
{
    for (int i = 0; i < t->num_rules; i++)
        if (t->rules[i].after == after) TGL_TRY(check_rule(t, &t->rules[i], tensors, values));
    return TGL_OK;
}

/* The first tensor with leading dimensions; the others must have the same. */
static const DLTensor *leader(const tgl_table *t, const DLTensor *const *tensors)
{
    for (int i = 0; i < t->num_tensors; i++)
        if (t->tensors[i].has_leading && tensors[i]) return tensors[i];
    return NULL;
}

static tgl_status expect_alone(const tgl_table *t, const tgl_arg *a, const DLTensor *const *tensors, const DLTensor *x,
                               const int64_t *values)
{
    tgl_dtype dtypes = a->dtypes;
    if (a->if_given >= 0 && !tensors[a->if_given]) dtypes = a->otherwise;
    if (a->by_word >= 0) dtypes = t->values[a->by_word].words[values[a->by_word]].dtypes;
    int ndim = a->ndim;
    if (a->has_leading) {
        const DLTensor *first = leader(t, tensors);
        if (first && first == x && (x->ndim < a->ndim || x->ndim > TGL_MAX_DIMS))
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: rank is %d, want %d..%d", a->name, x->ndim, a->ndim, TGL_MAX_DIMS);
        if (first) ndim = first->ndim;
    }
    TGL_TRY(tgl_expect(a->name, x, dtypes, ndim, a->layout));
    if (!a->is_host || tgl_on_cpu(x)) return TGL_OK;
    char is[128];
    tgl_describe(x, is, sizeof is);
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %s, want host memory", a->name, is);
}

/* Sets the values that this tensor determines, and returns a mask of them. */
static uint32_t bind(const tgl_table *t, const tgl_arg *a, const DLTensor *x, int64_t *values, uint32_t bound)
{
    uint32_t own = 0;
    const int64_t *shape = x->shape + (x->ndim - a->ndim);
    for (int i = 0; i < a->ndim; i++) {
        const tgl_size *size = &a->sizes[i];
        if (size->value < 0 || (bound | own) >> size->value & 1) continue;
        const tgl_packing packing = i == a->ndim - 1 ? tgl_packing_of(t, a, x, values) : TGL_UNPACKED;
        const struct tgl_packing_sizes *by = &TGL_PACKINGS[packing];
        const int64_t count = tgl_multiply(shape[i] / by->elements, by->values);
        values[size->value] = tgl_add(count, -tgl_number_of(t, &size->more, values)) / size->factor;
        own |= 1u << size->value;
    }
    return own;
}

/* A dimension 2 * n that determines n must be even. */
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

/* What a dimension may be: a range if this tensor determines it, otherwise one number. */
static tgl_dim wanted_size(const tgl_table *t, const tgl_arg *a, int dim, const DLTensor *x, bool is_own,
                           const int64_t *values)
{
    const tgl_size *size = &a->sizes[dim];
    const bool is_last = dim == a->ndim - 1;
    if (is_own) {
        const tgl_value *v = &t->values[size->value];
        const int64_t is = x->shape[x->ndim - a->ndim + dim], more = tgl_number_of(t, &size->more, values);
        if (!v->low.kind && !v->high.kind && !more) return (tgl_dim){ is, is };
        return (tgl_dim){ tgl_add(tgl_number_of(t, &v->low, values), more),
                          v->high.kind ? tgl_add(tgl_number_of(t, &v->high, values), more) : INT64_MAX };
    }
    int64_t n = tgl_size_of(t, size, values);
    if (is_last && a->is_scales && tgl_dtype_is(x->dtype, TGL_I32)) n = tgl_ceil_div(n, 4);
    if (is_last) {
        const struct tgl_packing_sizes *by = &TGL_PACKINGS[tgl_packing_of(t, a, x, values)];
        n = tgl_multiply(n / by->values, by->elements);
    }
    return (tgl_dim){ n, n };
}

/* only_own: checks only the sizes that this tensor determines. The message has all. */
static tgl_status check_sizes(const tgl_table *t, const tgl_arg *a, const DLTensor *x, const DLTensor *const *tensors,
                              const int64_t *values, uint32_t own, bool only_own)
{
    const int leading = x->ndim - a->ndim;
    tgl_dim want[TGL_MAX_DIMS];
    bool fits = true;
    for (int i = 0; i < x->ndim; i++) {
        const int value = i >= leading ? a->sizes[i - leading].value : -1;
        const bool is_own = value >= 0 && own >> value & 1;
        const int64_t n = i < leading ? leader(t, tensors)->shape[i] : 0;
        want[i] = i < leading ? (tgl_dim){ n, n } : wanted_size(t, a, i - leading, x, is_own, values);
        fits &= (x->shape[i] >= want[i].low && x->shape[i] <= want[i].high) || (only_own && !is_own);
    }
    return fits ? TGL_OK : tgl_expect_shape(a->name, x, want);
}

static tgl_status expect_e5m6(const tgl_arg *a, const DLTensor *x)
{
    const int64_t width = x->shape[x->ndim - 1];
    if (width % 12)
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: rows are %" PRId64 " bytes, want a multiple of 12 for e5m6", a->name,
                        width);
    if (tgl_is_empty(x)) return TGL_OK;
    if (x->shape[0] > 1 && tgl_stride(x, 0) % 4)
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: rows are %" PRId64 " bytes apart, want a multiple of 4 for e5m6",
                        a->name, tgl_stride(x, 0));
    return tgl_expect_aligned(a->name, x, 4);
}

/* Codes pack 2 or 8 columns: their number must be a multiple, even if the codes are not given. */
static tgl_status expect_whole(const tgl_table *t, const tgl_arg *a, const int64_t *values)
{
    const tgl_packing packing = t->values[a->by_word].words[values[a->by_word]].packing;
    const struct tgl_packing_sizes *by = &TGL_PACKINGS[packing];
    const int cols = a->sizes[a->ndim - 1].value;
    if (cols < 0 || values[cols] % by->values == 0) return TGL_OK;
    const int owner = t->values[cols].owner;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: columns are %" PRId64 ", want a multiple of %d for %s",
                    owner >= 0 ? t->tensors[owner].name : a->name, values[cols], by->values, by->name);
}

static tgl_status expect_scales(const tgl_arg *a, const DLTensor *x)
{
    if (tgl_scales_fit(x, a->is_written)) return TGL_OK;
    char want[96];
    const int64_t rows = a->is_written ? x->shape[0] : 0, cols = a->is_written ? x->shape[1] : 0;
    const int n = snprintf(want, sizeof want, "[1, >= %" PRId64 "]", rows);
    if (tgl_dtype_is(x->dtype, TGL_F32)) snprintf(want + n, sizeof want - (size_t)n, " or [>= %" PRId64 ", 1]", cols);
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: strides are [%" PRId64 ", %" PRId64 "], want %s", a->name, tgl_stride(x, 0),
                    tgl_stride(x, 1), want);
}

static tgl_status check_shape(const tgl_table *t, const tgl_arg *a, const DLTensor *x, const DLTensor *const *tensors,
                              const int64_t *values, uint32_t own)
{
    if (tgl_packing_of(t, a, x, values) == TGL_PACKED_E5M6) TGL_TRY(expect_e5m6(a, x));
    TGL_TRY(check_sizes(t, a, x, tensors, values, own, false));
    if (tgl_is_empty(x)) return TGL_OK;
    if (a->is_scales) return expect_scales(a, x);
    if (a->is_written && a->layout == TGL_ROWS && x->shape[0] > 1 && tgl_stride(x, 0) < x->shape[1])
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: strides are [%" PRId64 ", 1], want >= %" PRId64 " between rows", a->name,
                        tgl_stride(x, 0), x->shape[1]);
    return TGL_OK;
}

static tgl_status check_memory(const tgl_table *t, const DLTensor *const *tensors)
{
    for (int i = 0; i < t->num_tensors; i++) {
        const tgl_arg *a = &t->tensors[i];
        if (!tensors[i] || a->is_host || (a->is_anywhere && tgl_on_cpu(tensors[i]))) continue;
        TGL_TRY(tgl_expect_same_device(a->name, tensors[i], tensors[t->home]));
    }
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

/* Required tensors determine sizes before optional ones, wherever they stand. */
static void bind_all(const tgl_table *t, const DLTensor *const *tensors, int64_t *values, uint32_t *own)
{
    uint32_t bound = 0;
    for (int is_optional = 0; is_optional < 2; is_optional++)
        for (int i = 0; i < t->num_tensors; i++) {
            if (t->tensors[i].is_optional != is_optional) continue;
            own[i] = tensors[i] ? bind(t, &t->tensors[i], tensors[i], values, bound) : 0;
            bound |= own[i];
        }
    for (int i = t->num_sizes; i < t->num_values; i++) {
        const tgl_number *fallback = &t->values[i].fallback;
        if (values[i] == 0 && fallback->kind) values[i] = tgl_number_of(t, fallback, values);
    }
}

/* If there are several mistakes, the order of checks decides which is reported: scalars, each tensor
 * alone, ranges of sizes and rules (other sizes follow from these), sizes, dtypes, memory. */
tgl_status tgl_check_slowly(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors,
                            const void *params, int64_t *values)
{
    uint32_t own[TGL_MAX_TENSORS];
    for (int i = 0; i < t->num_sizes; i++) values[i] = 0;
    if (t->num_scalars) TGL_TRY(check_scalars(t, of, tensors, params, values));
    for (int i = t->num_sizes + t->num_scalars; i < t->num_values; i++) values[i] = tensors[t->values[i].with] != NULL;
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
        const tgl_arg *a = &t->tensors[i];
        if (a->like >= 0 && tensors[i] && tensors[a->like])
            TGL_TRY(tgl_expect_same_dtype(a->name, tensors[i], t->tensors[a->like].name, tensors[a->like]));
    }
    return check_memory(t, tensors);
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
    free(made); /* another thread was first */
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

bool tgl_writes_nothing(tgl_signature *s, const DLTensor *const *tensors)
{
    const tgl_quick *q = &tgl_signature_table(s)->quick;
    for (int i = 0; i < q->num_written; i++) {
        const DLTensor *x = tensors[q->written[i]];
        if (x && !tgl_is_empty(x)) return false;
    }
    return true;
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
        tgl_describe(tensors[i], tensor, sizeof tensor);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %s", separator, t->tensors[i].name, tensor);
        separator = ", ";
    }
    if (n < sizeof text) snprintf(text + n, sizeof text - n, ")");
    tgl_log(TGL_LOG_CALL, "%s", text);
}
