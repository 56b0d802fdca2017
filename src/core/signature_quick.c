/* SPDX-License-Identifier: MIT
 * signature_quick.c - the quick checker, for calls that pass, as nearly all do: one pass over compact
 * facts, no messages. signature.c takes three to five times as long. It may reject a rare good call, which
 * then takes the slow way, but never accepts a bad one. */
#include <string.h>

#include "core/settings.h"
#include "core/signature_table.h"

#define NO_DTYPE UINT32_MAX
#define INLINE static inline __attribute__((always_inline)) /* saves 5 to 20 ns per call */

enum {
    IS_OPTIONAL = 1,
    IS_WRITTEN = 2,
    IS_ANY = 4,
    IS_SCALES = 8,
    IS_CODES = 16,
    IS_HOST = 32,
    HAS_LEADING = 64,
    IS_ANYWHERE = 128
};

static uint32_t key_of(DLDataType d) { return (uint32_t)d.code | (uint32_t)d.bits << 8 | (uint32_t)d.lanes << 16; }

static uint64_t device_of(const DLTensor *x)
{
    uint64_t device;
    _Static_assert(sizeof device == sizeof x->device, "type and number");
    memcpy(&device, &x->device, sizeof device);
    return device;
}

/* ---- scalars ---- */

static bool check_scalars(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors, const void *params,
                          int64_t *values)
{
    uint64_t bits = 0;
    if (of) {
        const uint64_t *reserved = (const uint64_t *)(const void *)((const char *)params + of->reserved);
        for (int i = 0; i < TGL_RESERVED_WORDS; i++) bits |= reserved[i];
    }
    bool ok = bits == 0;
    const tgl_quick_scalar *q = t->quick.scalars, *end = q + t->quick.num_scalars;
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
            ok &= is >= 0 && is < (q->with >= 0 && tensors[q->with] ? q->num_words_given : q->num_words);
        } else {
            ok &= *(const float *)at >= (float)q->low || (q->with_value >= 0 && !values[q->with_value]);
        }
    }
    return ok;
}

/* ---- tensors ---- */

typedef struct { uintptr_t begin, end; } span;
typedef struct {
    uint64_t device;
    const DLTensor *leader;      /* the others must have its leading dimensions */
    uint32_t bound;              /* mask of values */
    span spans[TGL_MAX_TENSORS]; /* of memory; { 0, 0 }: none */
} call;

/* The number of elements from first to last in memory, of a tensor that is not packed; 0 if the layout
 * forbids it. */
static __attribute__((noinline)) int64_t reach_of(const tgl_quick_arg *q, const DLTensor *x)
{
    const int last = x->ndim - 1;
    if (q->layout == TGL_PACKED) return 0;
    if (q->flags & IS_SCALES && !tgl_scales_fit(x, q->flags & IS_WRITTEN)) return 0;
    if (q->layout == TGL_ROWS) {
        if (x->strides[last] != 1 && x->shape[last] != 1) return 0;
        if (q->flags & IS_WRITTEN && x->shape[0] != 1 && x->strides[0] < x->shape[1]) return 0;
        if (q->flags & IS_CODES && x->strides[0] % 4) return 0; /* as e5m6 wants it */
    }
    int64_t reach = 0;
    for (int i = 0; i <= last; i++) {
        const int64_t stride = x->shape[i] == 1 ? 0 : x->strides[i];
        if (stride < 0 || stride >> 31 || x->shape[i] >> 28) return 0;
        reach += (x->shape[i] - 1) * stride;
    }
    return reach + 1;
}

/* The number of leading dimensions, which must be those of the first tensor that has any; -1: they are
 * not. */
static __attribute__((noinline)) int leading_of(const tgl_quick_arg *q, const DLTensor *x, call *c)
{
    if (!c->leader) c->leader = x;
    const int leading = x->ndim - q->ndim;
    if (leading < 0 || x->ndim > TGL_MAX_DIMS || x->ndim != c->leader->ndim || !x->shape) return -1;
    for (int i = 0; i < leading; i++)
        if (x->shape[i] != c->leader->shape[i]) return -1;
    return leading;
}

INLINE bool check_tensor(const tgl_quick_arg *q, const uint32_t *dtypes, tgl_packing packing, const DLTensor *x,
                         int64_t *values, call *c)
{
    const uint32_t dtype = key_of(x->dtype), bits = (uint32_t)x->dtype.bits * x->dtype.lanes;
    const uint32_t flags = q->flags;
    if (dtype == NO_DTYPE) return false;
    if (dtype != dtypes[0] && dtype != dtypes[1] && dtype != dtypes[2] && dtype != dtypes[3] &&
        !(flags & IS_ANY && !(bits & (bits - 1)) && bits >= 8 && bits <= 128))
        return false;
    const int leading = flags & HAS_LEADING ? leading_of(q, x, c) : 0, last = q->ndim + leading - 1;
    if (x->ndim != last + 1 || !x->shape || leading < 0) return false;
    const bool is_there = !(flags & IS_HOST) && device_of(x) == c->device;
    if (!is_there && !(flags & (IS_HOST | IS_ANYWHERE) && tgl_on_cpu(x))) return false;

    const int64_t *shape = x->shape, *strides = x->strides;
    const int8_t *size = q->sizes + q->ndim;
    uint64_t packed = 1, large = 0; /* OR of all factors of the product */
    bool is_packed = true;
    for (int i = last; i >= 0; i--) {
        const int64_t n = shape[i];
        const int value = i >= leading ? *--size : -1;
        if (value >= 0) {
            int64_t count = n;
            if (packing && i == last) {
                if ((uint64_t)n >> 56 || n % TGL_PACKINGS[packing].elements) return false;
                count = n / TGL_PACKINGS[packing].elements * TGL_PACKINGS[packing].values;
            }
            if (!(c->bound >> value & 1)) values[value] = count, c->bound |= 1u << value;
            else if (values[value] != count) return false;
        }
        is_packed &= !strides || strides[i] == (int64_t)packed || n == 1;
        large |= packed | (uint64_t)n;
        packed *= (uint64_t)n;
    }
    if (large >> 31) return false; /* the product might overflow, or a size is negative */
    span *out = &c->spans[q->place];
    *out = (span){ 0, 0 };
    if (packed == 0) return true;                                /* empty: strides and data are ignored */
    const bool is_odd = flags & IS_SCALES && dtype == dtypes[1]; /* i32, by columns */
    if (!is_packed || is_odd) packed = strides ? (uint64_t)reach_of(q, x) : 0;
    const uintptr_t at = (uintptr_t)x->data + x->byte_offset, width = bits / 8;
    const uintptr_t align = packing == TGL_PACKED_E5M6 ? 4 : width < 8 ? width : 8;
    *out = (span){ at, at + packed * width };
    const bool is_addressed = x->data && at >= x->byte_offset && out->end > at && !(at & (align - 1));
    return is_addressed && packed - 1 < (uint64_t)1 << 51; /* so it has fewer than 2^56 bytes */
}

/* A dimension that is not just a name, once the values in it are known. */
static bool check_dim(const tgl_table *t, int place, int dim, const DLTensor *const *tensors, int64_t *values, call *c)
{
    const tgl_arg *a = &t->tensors[place];
    const tgl_size *size = &a->sizes[dim];
    const DLTensor *x = tensors[place];
    if (!x) return true;
    if (size->value >= 0 && !(c->bound >> size->value & 1)) {
        const int64_t more = size->more.kind ? tgl_number_of(t, &size->more, values) : 0;
        const int64_t rest = x->shape[dim] - more;
        if (more < 0 || rest < 0 || rest % size->factor) return false;
        values[size->value] = rest / size->factor;
        c->bound |= 1u << size->value;
        return true;
    }
    const int64_t n = tgl_size_of(t, size, values);
    const bool are_words = a->is_scales && dim == 1 && x->dtype.code == TGL_DL_INT;
    return x->shape[dim] == (are_words ? tgl_ceil_div(n, 4) : n);
}

/* ---- values ---- */

static bool is_within(const tgl_table *t, int value, const int64_t *values)
{
    const tgl_value *v = &t->values[value];
    if (v->low.kind && values[value] < tgl_number_of(t, &v->low, values)) return false;
    if (!v->high.kind) return true;
    const int64_t high = tgl_number_of(t, &v->high, values);
    return values[value] <= (v->is_of_elements ? high / 2 : high); /* elements: at most twice as many */
}

/* ---- memory ---- */

/* Sorted by address, does each end before the next begins? */
static inline bool are_apart(const span *spans, int count)
{
    if (count == 1) return true;
    if (count == 2) return spans[0].end <= spans[1].begin || spans[1].end <= spans[0].begin;
    span sorted[TGL_MAX_TENSORS];
    bool ok = true;
    int n = 0;
    for (int i = 0; i < count; i++) {
        if (spans[i].end == 0) continue;
        int to = n++;
        for (; to > 0 && sorted[to - 1].begin > spans[i].begin; to--) sorted[to] = sorted[to - 1];
        sorted[to] = spans[i];
    }
    for (int i = 1; i < n; i++) ok &= sorted[i - 1].end <= sorted[i].begin;
    return ok;
}

/* Inputs may overlap each other, and windows of one buffer may interleave. */
static bool are_apart_exactly(const tgl_table *t, const DLTensor *const *tensors, const span *spans)
{
    for (int i = 1; i < t->num_tensors; i++)
        for (int j = 0; j < i; j++) {
            const tgl_arg *a = &t->tensors[i], *b = &t->tensors[j];
            if (!a->is_written && !b->is_written) continue;
            if (spans[i].end <= spans[j].begin || spans[j].end <= spans[i].begin) continue;
            const bool may_be_same = a->may_be >> j & 1 || b->may_be >> i & 1;
            if (may_be_same && tgl_is_same_memory(tensors[i], tensors[j])) continue;
            if (tgl_overlaps(tensors[i], tensors[j])) return false;
        }
    return true;
}

/* ---- a call ---- */

INLINE bool check_tensors(const tgl_table *t, const DLTensor *const *tensors, int64_t *values, call *c)
{
    for (int i = 0; i < t->num_tensors; i++) {
        const tgl_quick_arg *a = &t->quick.args[i];
        const DLTensor *x = tensors[a->place];
        if (!x) {
            if (!(a->flags & IS_OPTIONAL)) return false;
            c->spans[a->place] = (span){ 0, 0 };
            continue;
        }
        const uint32_t *dtypes = a->if_given >= 0 && !tensors[a->if_given] ? a->otherwise : a->dtypes;
        tgl_packing packing = TGL_UNPACKED;
        if (a->flags & IS_CODES) {
            packing = tgl_packing_of(t, &t->tensors[a->place], x, values);
            if (a->by_word >= 0) dtypes = t->quick.word_dtypes[packing];
        }
        if (!check_tensor(a, dtypes, packing, x, values, c)) return false;
        const DLTensor *like = a->like >= 0 ? tensors[a->like] : NULL;
        if (like && key_of(x->dtype) != key_of(like->dtype)) return false;
    }
    return true;
}

bool tgl_check_quickly(const tgl_table *t, const tgl_params *of, const DLTensor *const *tensors, const void *params,
                       int64_t *values)
{
    const tgl_quick *q = &t->quick;
    const DLTensor *first = tensors[t->home];
    if (!q->is_possible || !first) return false;
    const int device = (int)first->device.device_type, id = first->device.device_id;
    if (device != TGL_DL_CPU && (device != TGL_DL_CUDA || id < 0 || id >= TGL_MAX_DEVICES)) return false;
    for (int i = 0; i < q->num_unowned; i++) values[q->unowned[i]] = 0;
    if (t->num_scalars && (!params || !check_scalars(t, of, tensors, params, values))) return false;
    for (int i = t->num_sizes + t->num_scalars; i < t->num_values; i++) values[i] = tensors[t->values[i].with] != NULL;

    call c;
    c.device = device_of(first);
    c.leader = NULL;
    c.bound = 0;
    if (!check_tensors(t, tensors, values, &c)) return false;
    for (int i = 0; i < q->num_deciding; i++)
        if (!check_dim(t, q->dims[i].tensor, q->dims[i].dim, tensors, values, &c)) return false;
    for (int i = 0; i < q->num_fallbacks; i++)
        if (values[q->fallbacks[i]] == 0)
            values[q->fallbacks[i]] = tgl_number_of(t, &t->values[q->fallbacks[i]].fallback, values);
    for (int i = q->num_deciding; i < q->num_dims; i++)
        if (!check_dim(t, q->dims[i].tensor, q->dims[i].dim, tensors, values, &c)) return false;
    for (int i = 0; i < q->num_ranges; i++) {
        const int value = q->ranges[i];
        if ((value >= t->num_sizes || c.bound >> value & 1) && !is_within(t, value, values)) return false;
    }
    for (int i = 0; i < t->num_rules; i++)
        if (!tgl_rule_holds(t, &t->rules[i], tensors, values)) return false;
    for (int i = 0; i < q->num_by_word; i++) { /* columns must fit codes that are not given, too */
        const int place = q->by_word[i];
        if (!tensors[place] && tgl_packing_of(t, &t->tensors[place], NULL, values)) return false;
    }
    return are_apart(c.spans, t->num_tensors) || are_apart_exactly(t, tensors, c.spans);
}

/* ---- the facts ---- */

static bool list_dtypes(tgl_dtype set, uint32_t out[4])
{
    int n = 0;
    for (int i = 0; i < 4; i++) out[i] = NO_DTYPE;
    for (; set; set &= set - 1, n++)
        if (n < 4) out[n] = key_of(tgl_dtype_to_dlpack(set & -set));
    return n <= 4;
}

static bool make_arg(const tgl_table *t, int place, tgl_quick_arg *q)
{
    const tgl_arg *a = &t->tensors[place];
    const bool is_any = a->dtypes == TGL_ANY, is_codes = a->is_e2m1 || a->by_word >= 0;
    *q = (tgl_quick_arg){ .place = (uint8_t)place,
                          .ndim = (uint8_t)a->ndim,
                          .layout = (uint8_t)a->layout,
                          .if_given = a->if_given,
                          .like = a->like,
                          .by_word = a->by_word };
    q->flags = (uint8_t)((a->is_optional ? IS_OPTIONAL : 0) | (a->is_written ? IS_WRITTEN : 0) | (is_any ? IS_ANY : 0) |
                         (a->is_scales ? IS_SCALES : 0) | (is_codes ? IS_CODES : 0) | (a->is_host ? IS_HOST : 0) |
                         (a->has_leading ? HAS_LEADING : 0) | (a->is_anywhere ? IS_ANYWHERE : 0));
    bool ok = list_dtypes(is_any ? 0 : a->dtypes, q->dtypes) && list_dtypes(a->otherwise, q->otherwise);
    if (a->is_scales) { /* in the order that check_tensor() expects */
        list_dtypes(TGL_F32, q->dtypes);
        q->dtypes[1] = key_of(tgl_dtype_to_dlpack(TGL_I32));
    }
    bool are_plain = true;
    for (int d = 0; d < a->ndim; d++) {
        q->sizes[d] = (int8_t)(tgl_is_plain(&a->sizes[d]) ? a->sizes[d].value : -1);
        are_plain &= q->sizes[d] >= 0;
    }
    if (is_codes) ok &= q->sizes[a->ndim - 1] >= 0;
    if (a->by_word >= 0) ok &= a->ndim == 2 && !a->has_leading;
    if (a->has_leading) ok &= are_plain && a->layout == TGL_PACKED;
    return ok;
}

static void make_dims(tgl_table *t)
{
    tgl_quick *q = &t->quick;
    for (int is_deciding = 1; is_deciding >= 0; is_deciding--) {
        for (int i = 0; i < t->num_tensors; i++)
            for (int d = 0; d < t->tensors[i].ndim; d++) {
                const tgl_size *size = &t->tensors[i].sizes[d];
                const bool decides = size->value >= 0 && t->values[size->value].owner == i;
                if (tgl_is_plain(size) || decides != is_deciding) continue;
                q->dims[q->num_dims].tensor = (uint8_t)i;
                q->dims[q->num_dims++].dim = (uint8_t)d;
            }
        if (is_deciding) q->num_deciding = q->num_dims;
    }
}

static bool make_scalar(tgl_quick *q, const tgl_value *v, int i)
{
    const bool has_low = v->low.kind && tgl_is_constant(&v->low);
    if (v->type == TGL_VALUE_FLOAT && !has_low) return true;
    q->scalars[q->num_scalars++] =
        (tgl_quick_scalar){ .value = (uint8_t)i,
                            .type = (uint8_t)v->type,
                            .offset = (uint16_t)v->offset,
                            .with = v->type == TGL_VALUE_WORD ? (int8_t)v->with_words : v->with,
                            .with_value = v->with_value,
                            .num_words = (uint8_t)v->num_words,
                            .num_words_given = (uint8_t)v->num_words_given,
                            .low = has_low ? v->low.constant : INT64_MIN,
                            .zero = tgl_is_constant(&v->fallback) ? v->fallback.constant : 0 };
    return v->offset <= UINT16_MAX && (v->type == TGL_VALUE_FLOAT || v->with_value < 0);
}

void tgl_make_quick(tgl_table *t)
{
    tgl_quick *q = &t->quick;
    int n = 0;
    memset(q, 0, sizeof *q);
    q->is_possible = true;
    for (int is_optional = 0; is_optional < 2; is_optional++)
        for (int i = 0; i < t->num_tensors; i++)
            if (t->tensors[i].is_optional == is_optional) q->is_possible &= make_arg(t, i, &q->args[n++]);
    for (int i = 0; i < t->num_tensors; i++) {
        if (t->tensors[i].by_word >= 0) q->by_word[q->num_by_word++] = (uint8_t)i;
        if (t->tensors[i].is_written) q->written[q->num_written++] = (uint8_t)i;
    }
    make_dims(t);
    list_dtypes(TGL_E4M3, q->word_dtypes[TGL_UNPACKED]);
    list_dtypes(TGL_PAIRS, q->word_dtypes[TGL_PACKED_E2M1]);
    list_dtypes(TGL_U8, q->word_dtypes[TGL_PACKED_E5M6]);
    for (int i = 0; i < t->num_values; i++) {
        const tgl_value *v = &t->values[i];
        const bool is_size = v->type == TGL_VALUE_SIZE, has_range = v->high.kind || !tgl_is_constant(&v->low);
        for (int w = 0; w < v->num_words; w++) /* of words that name a dtype */
            q->is_possible &= v->words[w].packing || !v->words[w].dtypes || v->words[w].dtypes == TGL_E4M3;
        if (is_size ? v->low.kind || v->high.kind : v->type == TGL_VALUE_INT && has_range) {
            q->ranges[q->num_ranges++] = (uint8_t)i;
            q->is_possible &= v->with < 0;
        }
        if (is_size && v->owner < 0) q->unowned[q->num_unowned++] = (uint8_t)i;
        if (!tgl_is_constant(&v->fallback)) q->fallbacks[q->num_fallbacks++] = (uint8_t)i;
        if (!is_size && v->type != TGL_VALUE_GIVEN) q->is_possible &= make_scalar(q, v, i);
    }
}
