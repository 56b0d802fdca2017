/* SPDX-License-Identifier: MIT
 * errors.h - the errors of an op, made from its signature: a good call, and one mistake at a time.
 *
 *     static tgl_status invoke(DLTensor *const *t, const void *params)
 *     {
 *         return tgl_moe_topk_gate(t[0], t[1], NULL);
 *     }
 *     #define GOOD_CALL &tgl_moe_topk_gate_signature, "num_tokens=3 num_experts=5 num_topk=2", invoke
 *     TEST(errors)
 *     {
 *         check_errors(GOOD_CALL);
 *         CHECK_ERROR(x[1].ndim = 1, "topk_idx: rank is 1, want 2");       // a whole message
 *     }
 *     TEST(no_driver) { check_no_driver(GOOD_CALL); }
 *
 * The good call has the sizes and scalars of the sample. `-bias` leaves a tensor out, `x=e4m3` chooses a dtype
 * (i32 of scale factors lie in columns), `x~u8,f32` names dtypes of which the op makes another form, with a signature
 * of its own, `...=2` adds leading dimensions. Each mistake is made with tensors on
 * the CPU and on a GPU: no driver is asked. The call must be refused with TGL_ERR_ARGUMENT; the message begins
 * with the argument that it is about, has the word of the mistake and says what was wanted; no byte is written.
 *
 * What the signature says is not questioned here: a test has some whole messages of its own, too. */
#ifndef TEGULA_TEST_ERRORS_H
#define TEGULA_TEST_ERRORS_H

#include <ctype.h>
#include <stdlib.h>

#include "core/signature_table.h"
#include "cuda/driver.h"
#include "test.h"

typedef tgl_status (*errors_invoke)(DLTensor *const *tensors, const void *params);

enum { ERRORS_ROOM = 2048, ERRORS_DIMS = TGL_MAX_DIMS + 1 };
typedef struct {
    const tgl_table *t;
    const tgl_params *of;
    const char *sample;
    errors_invoke invoke;
    DLDevice on;
    /* the call */
    DLTensor own[TGL_MAX_TENSORS], *tensors[TGL_MAX_TENSORS];
    int64_t shape[TGL_MAX_TENSORS][ERRORS_DIMS], strides[TGL_MAX_TENSORS][ERRORS_DIMS], values[TGL_MAX_VALUES];
    _Alignas(16) char params[1024];
    const void *given;
    int count; /* of mistakes */
} errors_call;

static _Alignas(256) unsigned char errors_memory[TGL_MAX_TENSORS][ERRORS_ROOM];

/* ---- the good call ---- */

/* What follows `name=` in the sample, or NULL. */
static inline const char *errors_word(const errors_call *c, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = c->sample; (p = strstr(p, name)); p += n)
        if ((p == c->sample || p[-1] == ' ') && p[n] == '=') return p + n + 1;
    return NULL;
}

/* Does the sample say `name~...dtype...`? */
static inline bool errors_is_other_form(const errors_call *c, const char *name, const char *dtype)
{
    char mark[64];
    snprintf(mark, sizeof mark, " %s~", name);
    const char *list = strstr(c->sample, mark), *at = list ? strstr(list, dtype) : NULL;
    return at && at < list + 1 + strcspn(list + 1, " ") && strchr("~,", at[-1]) &&
           !isalnum((unsigned char)at[strlen(dtype)]);
}

static inline bool errors_is_absent(const errors_call *c, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = c->sample; (p = strstr(p, name)); p += n)
        if (p > c->sample && p[-1] == '-' && (p[n] == ' ' || !p[n])) return true;
    return false;
}

static inline void errors_put_scalar(errors_call *c, int value, int64_t is)
{
    const tgl_value *v = &c->t->values[value];
    char *at = c->params + v->offset;
    c->values[value] = is;
    if (v->type == TGL_VALUE_INT) memcpy(at, &is, sizeof is);
    if (v->type == TGL_VALUE_WORD) memcpy(at, &(int){ (int)is }, sizeof(int));
    if (v->type == TGL_VALUE_BOOL) memcpy(at, &(bool){ is != 0 }, sizeof(bool));
    if (v->type == TGL_VALUE_FLOAT) memcpy(at, &(float){ (float)is }, sizeof(float));
}

static inline tgl_dtype errors_dtypes(const errors_call *c, const tgl_arg *a, tgl_packing *packing)
{
    *packing = TGL_UNPACKED;
    if (a->by_word >= 0) {
        const tgl_value *v = &c->t->values[a->by_word];
        *packing = v->words[c->values[a->by_word]].packing;
        return v->words[c->values[a->by_word]].dtypes;
    }
    const bool is_otherwise = a->if_given >= 0 && errors_is_absent(c, c->t->tensors[a->if_given].name);
    return is_otherwise ? a->otherwise : a->dtypes;
}

static inline tgl_dtype errors_dtype(const errors_call *c, const tgl_arg *a, tgl_packing *packing)
{
    const tgl_dtype set = errors_dtypes(c, a, packing);
    const tgl_arg *named = a->like >= 0 ? &c->t->tensors[a->like] : a;
    const char *word = errors_word(c, named->name);
    tgl_dtype dtype = set == TGL_ANY ? TGL_F16 : set & named->first ? named->first : set & -set;
    char name[16] = "";
    if (word) sscanf(word, "%15[a-z0-9]", name);
    if (tgl_dtype_named(name)) dtype = tgl_dtype_named(name);
    if (a->is_e2m1 && dtype & (TGL_I8 | TGL_U8 | TGL_E2M1X2)) *packing = TGL_PACKED_E2M1;
    return dtype;
}

static inline void errors_make_tensor(errors_call *c, int i)
{
    const tgl_table *t = c->t;
    const tgl_arg *a = &t->tensors[i];
    tgl_packing packing;
    const tgl_dtype dtype = errors_dtype(c, a, &packing);
    const char *more_dims = errors_word(c, "...");
    const int leading = a->has_leading && more_dims ? atoi(more_dims) : 0, last = leading + a->ndim - 1;
    const DLDevice host = { (DLDeviceType)TGL_DL_CPU, 0 };
    c->own[i] = (DLTensor){ errors_memory[i] + 256,
                            a->is_host ? host : c->on,
                            last + 1,
                            tgl_dtype_to_dlpack(dtype),
                            c->shape[i],
                            c->strides[i],
                            0 };
    int64_t stride = 1;
    for (int d = last; d >= 0; d--) {
        int64_t n = 2;
        if (d >= leading) {
            const tgl_size *size = &a->sizes[d - leading];
            n = size->more.kind ? tgl_number_of(t, &size->more, c->values) : 0;
            if (size->value >= 0) n += size->factor * c->values[size->value];
        }
        if (d == last && a->is_scales && dtype == TGL_I32) n = (n + 3) / 4;
        if (d == last && packing) n = packing == TGL_PACKED_E2M1 ? n / 2 : n / 8 * 12;
        c->shape[i][d] = n;
        c->strides[i][d] = stride;
        stride *= n;
    }
    if (a->is_scales && dtype == TGL_I32) c->strides[i][0] = 1, c->strides[i][1] = c->shape[i][0];
    c->tensors[i] = &c->own[i];
}

static inline void errors_make_good(errors_call *c)
{
    const tgl_table *t = c->t;
    memset(c->params, 0, sizeof c->params);
    for (int i = 0; i < t->num_values; i++) {
        const char *word = errors_word(c, t->values[i].name);
        errors_put_scalar(c, i, word ? atoll(word) : 0);
        if (t->values[i].type == TGL_VALUE_GIVEN) c->values[i] = !errors_is_absent(c, t->values[i].name);
    }
    for (int i = t->num_sizes; i < t->num_values; i++)
        if (!c->values[i] && t->values[i].fallback.kind)
            c->values[i] = tgl_number_of(t, &t->values[i].fallback, c->values);
    c->given = c->of || t->num_scalars ? c->params : NULL;
    for (int i = 0; i < t->num_tensors; i++) {
        c->tensors[i] = NULL;
        if (!errors_is_absent(c, t->tensors[i].name)) errors_make_tensor(c, i);
    }
}

/* ---- one mistake ---- */

/* Makes the call, which is refused and writes nothing. */
static inline const char *errors_refused(errors_call *c, const char *what)
{
    static unsigned char before[sizeof errors_memory];
    if (!before[1]) /* the first time: a slow loop in a build without optimisation */
        for (size_t i = 0; i < sizeof before; i++) before[i] = (unsigned char)(i * 7);
    memcpy(errors_memory, before, sizeof before);
    tgl_fail(TGL_ERR_INTERNAL, "not set");
    const tgl_status status = c->invoke(c->tensors, c->given);
    CHECK_THAT(status == TGL_ERR_ARGUMENT, "%s, %s: status is %s", c->t->name, what, tgl_status_name(status));
    CHECK_THAT(!memcmp(errors_memory, before, sizeof before), "%s, %s: something was written", c->t->name, what);
    c->count++;
    return status == TGL_ERR_ARGUMENT ? tgl_last_error() : NULL;
}

/* Refused, with a message that begins with `name` (NULL: any argument's name) and has `says`. */
static inline void errors_end(errors_call *c, const char *name, const char *says, const char *what)
{
    const char *message = errors_refused(c, what);
    if (!message) return;
    bool is_named = false;
    for (int i = 0; i < c->t->num_tensors + c->t->num_values && !name; i++) {
        const char *other = i < c->t->num_tensors ? c->t->tensors[i].name : c->t->values[i - c->t->num_tensors].name;
        is_named |= !strncmp(message, other, strlen(other)) && message[strlen(other)] == ':';
    }
    if (name) is_named = !strncmp(message, name, strlen(name)) && message[strlen(name)] == ':';
    CHECK_THAT(is_named && strstr(message, says) && strstr(message, ", want "),
               "%s, %s: says \"%s\", want one that begins with \"%s\" and has \"%s\"", c->t->name, what, message,
               name ? name : "an argument", says);
}

/* A change of the good call. `x` is tensor i. */
#define ERRORS_MISTAKE(who, says, what, ...)                                 \
    do {                                                                     \
        errors_make_good(c);                                                 \
        __VA_ARGS__;                                                         \
        char what_[160];                                                     \
        snprintf(what_, sizeof what_, "%s %s", c->t->tensors[i].name, what); \
        errors_end(c, who, says, what_);                                     \
    } while (0)

/* Does another tensor of the call have the size that a dimension decides, as it is? Then they must agree. */
static inline bool errors_has_partner(const errors_call *c, int except, int value)
{
    for (int i = 0; i < c->t->num_tensors; i++)
        for (int d = 0; d < c->t->tensors[i].ndim; d++)
            if (i != except && c->tensors[i] && c->t->tensors[i].sizes[d].value == value) return true;
    return false;
}

static inline int64_t errors_bytes(const DLTensor *x)
{
    int64_t n = tgl_dtype_bits(x->dtype) / 8;
    for (int d = 0; d < x->ndim; d++) n *= x->shape[d];
    return n;
}

static inline void errors_alone(errors_call *c, int i)
{
    DLTensor *x = &c->own[i];
    const char *name = c->t->tensors[i].name;
    const int ndim = x->ndim;
    const bool is_wide = tgl_dtype_bits(x->dtype) > 8;
    char bytes[64];
    snprintf(bytes, sizeof bytes, "data is NULL, want %" PRId64 " bytes", errors_bytes(x));
    if (!c->t->tensors[i].is_optional) ERRORS_MISTAKE(name, "is NULL, want a tensor", "is NULL", c->tensors[i] = NULL);
    ERRORS_MISTAKE(name, "shape is NULL", "has no shape", x->shape = NULL);
    ERRORS_MISTAKE(name, bytes, "has no data", x->data = NULL);
    ERRORS_MISTAKE(name, "rank is -1", "has a rank of -1", x->ndim = -1);
    ERRORS_MISTAKE(name, "rank is ", "has a rank too many", c->shape[i][ndim] = 1;
                   x->ndim = c->t->tensors[i].has_leading ? TGL_MAX_DIMS + 1 : ndim + 1);
    ERRORS_MISTAKE(name, "rank is ", "has a rank of 0", x->ndim = 0);
    ERRORS_MISTAKE(name, "device is type 7, want cpu or cuda:0..63", "is on device 7",
                   x->device.device_type = (DLDeviceType)7);
    ERRORS_MISTAKE(name, "device is cuda:64, want cpu or cuda:0..63", "is on cuda:64",
                   x->device = ((DLDevice){ (DLDeviceType)TGL_DL_CUDA, 64 }));
    if (is_wide) ERRORS_MISTAKE(name, "address is 1 bytes past", "is not aligned", x->byte_offset = 1);
    for (int d = 0; d < ndim; d++) ERRORS_MISTAKE(name, "shape is ", "has a size of -1", x->shape[d] = -1);
}

static inline void errors_dtype_of(errors_call *c, int i)
{
    DLTensor *x = &c->own[i];
    const tgl_arg *a = &c->t->tensors[i];
    tgl_packing packing;
    const tgl_dtype set = errors_dtypes(c, a, &packing), good = tgl_dtype_of(x->dtype);
    const bool has_one = a->like >= 0 && c->tensors[a->like]; /* that of another tensor */
    ERRORS_MISTAKE(a->name, "dtype is ", "has a dtype of no lanes", x->dtype.lanes = 0);
    ERRORS_MISTAKE(a->name, "dtype is ", "has a dtype of all ones", x->dtype = ((DLDataType){ 255, 255, 65535 }));
    for (tgl_dtype dtype = TGL_BOOL; dtype <= TGL_E2M1X2; dtype <<= 1)
        if (dtype != good && (has_one || !(set & dtype)) && !errors_is_other_form(c, a->name, tgl_dtype_name(dtype)))
            ERRORS_MISTAKE(a->name, "dtype is ", tgl_dtype_name(dtype), x->dtype = tgl_dtype_to_dlpack(dtype));
}

/* The tensor that decides a size: the first that has it, before those that are optional. */
static inline int errors_owner(const errors_call *c, int value)
{
    for (int is_optional = 0; is_optional < 2; is_optional++)
        for (int i = 0; i < c->t->num_tensors; i++)
            for (int d = 0; d < c->t->tensors[i].ndim; d++)
                if (c->tensors[i] && c->t->tensors[i].is_optional == is_optional &&
                    c->t->tensors[i].sizes[d].value == value)
                    return i;
    return -1;
}

static inline void errors_sizes(errors_call *c, int i)
{
    DLTensor *x = &c->own[i];
    const tgl_arg *a = &c->t->tensors[i];
    const int leading = x->ndim - a->ndim;
    for (int d = 0; d < a->ndim; d++)
        for (int by = -1; by <= 1; by += 2) {
            const int value = a->sizes[d].value;
            const bool is_owner = value >= 0 && errors_owner(c, value) == i;
            const bool is_free = value >= 0 && !errors_has_partner(c, i, value);
            if (is_free) continue;
            ERRORS_MISTAKE(is_owner ? NULL : a->name, "", by < 0 ? "is smaller" : "is larger",
                           x->shape[leading + d] += by;
                           for (int k = x->ndim - 2; k >= 0 && x->strides[x->ndim - 1] == 1; k--) x->strides[k] =
                               x->strides[k + 1] * x->shape[k + 1]);
        }
}

static inline void errors_layout(errors_call *c, int i)
{
    DLTensor *x = &c->own[i];
    const tgl_arg *a = &c->t->tensors[i];
    const int last = x->ndim - 1;
    const bool has_rows = last >= 1 && x->shape[0] > 1, has_cols = x->shape[last] > 1;
    if (has_cols && a->layout != TGL_STRIDED) ERRORS_MISTAKE(a->name, "strides are ", "has gaps", x->strides[last] = 2);
    if (has_rows && a->layout == TGL_PACKED)
        ERRORS_MISTAKE(a->name, "strides are ", "has rows that lie apart", x->strides[0]++);
    if (has_rows && a->layout != TGL_STRIDED)
        ERRORS_MISTAKE(a->name, "strides are ", "has a negative stride", x->strides[0] = -x->strides[0]);
    if (has_rows && a->layout == TGL_ROWS && a->is_written)
        ERRORS_MISTAKE(a->name, "between rows", "has rows that overlap", x->strides[0] = x->shape[1] - 1);
    if (has_rows) ERRORS_MISTAKE(a->name, "strides are ", "reaches too far", x->strides[0] = (int64_t)1 << 62);
    if (a->is_scales && has_rows && has_cols)
        ERRORS_MISTAKE(a->name, "strides are ", "has gaps", x->strides[0] = x->strides[1] = 2);
}

static inline void errors_memory_of(errors_call *c, int i)
{
    DLTensor *x = &c->own[i];
    const tgl_arg *a = &c->t->tensors[i];
    const DLDevice other = { (DLDeviceType)TGL_DL_CUDA, 1 };
    int num_others = 0;
    for (int j = 0; j < c->t->num_tensors; j++) {
        const tgl_arg *b = &c->t->tensors[j];
        const bool suits_any = b->is_host || (i == c->t->home && b->is_anywhere && tgl_on_cpu(&c->own[j]));
        num_others += j != i && c->tensors[j] && !suits_any;
    }
    if (num_others > 0 && !a->is_host)
        ERRORS_MISTAKE(i != c->t->home ? a->name : NULL, "device is ", "is on another device", x->device = other);
    if (a->is_host) ERRORS_MISTAKE(a->name, "want host memory", "is on a device", x->device = other);
    for (int j = 0; j < i; j++) {
        const tgl_arg *b = &c->t->tensors[j];
        if (!c->tensors[j] || (!a->is_written && !b->is_written)) continue;
        char says[128];
        snprintf(says, sizeof says, "memory is shared with %s, want no overlap", b->name);
        const int64_t inside = (errors_bytes(&c->own[j]) - 1) / 8 * 8; /* aligned for every dtype */
        if (!((a->may_be >> j | b->may_be >> i) & 1))
            ERRORS_MISTAKE(a->name, says, "begins where another does", x->data = c->own[j].data);
        if (inside > 0)
            ERRORS_MISTAKE(a->name, says, "begins inside of another", x->data = (char *)c->own[j].data + inside);
    }
}

/* ---- scalars ---- */

static inline void errors_scalar(errors_call *c, int value, int64_t is)
{
    char what[160], says[64];
    errors_make_good(c);
    errors_put_scalar(c, value, is);
    snprintf(what, sizeof what, "%s is %" PRId64, c->t->values[value].name, is);
    snprintf(says, sizeof says, "is %" PRId64 ", want ", is);
    errors_end(c, c->t->values[value].name, says, what);
}

static inline void errors_of_scalars(errors_call *c)
{
    const tgl_table *t = c->t;
    for (int i = t->num_sizes; i < t->num_values; i++) {
        const tgl_value *v = &t->values[i];
        if (v->with >= 0 && !c->tensors[v->with]) continue;
        if (v->with_value >= 0 && !c->values[v->with_value]) continue;
        if (v->type == TGL_VALUE_INT || v->type == TGL_VALUE_WORD) errors_scalar(c, i, -1);
        if (v->type == TGL_VALUE_INT) errors_scalar(c, i, INT64_MIN);
        if (v->type == TGL_VALUE_WORD) errors_scalar(c, i, v->num_words);
        if (v->type == TGL_VALUE_FLOAT && v->low.kind) errors_scalar(c, i, -1);
        if (v->high.kind) errors_scalar(c, i, INT64_MAX);
    }
    for (int i = 0; i < t->num_rules; i++) {
        const tgl_rule *r = &t->rules[i];
        if (r->kind == TGL_RULE_WITHIN && r->high.kind) errors_scalar(c, r->value, INT64_MAX);
        if (r->kind != TGL_RULE_NEEDS || r->other_tensor < 0) continue;
        errors_make_good(c);
        const bool is_asked = r->tensor >= 0 ? c->tensors[r->tensor] != NULL : c->values[r->value] != 0;
        if (!is_asked || !c->tensors[r->other_tensor]) continue;
        c->tensors[r->other_tensor] = NULL;
        errors_end(c, t->tensors[r->other_tensor].name, "is NULL, want a tensor with ", "a tensor that is needed");
    }
    if (!c->of) return;
    errors_make_good(c);
    c->given = NULL;
    errors_end(c, "params", "is NULL, want a struct", "params is NULL");
    for (int i = 0; i < TGL_RESERVED_WORDS; i++) {
        char name[32];
        snprintf(name, sizeof name, "reserved[%d]", i);
        errors_make_good(c);
        memset(c->params + c->of->reserved + 8 * (size_t)i, 1, 1);
        errors_end(c, name, "is 1, want 0", name);
    }
}

/* ---- all of an op's ---- */

/* A good call, on the CPU or on a GPU; NULL if the signature is none. There is one at a time. */
static inline errors_call *errors_open(tgl_signature *s, const char *sample, errors_invoke invoke, int on_cuda)
{
    static errors_call c;
    const tgl_table *t = tgl_signature_table(s);
    if (!CHECK_THAT(t, "%s", tgl_last_error())) return NULL;
    c = (errors_call){ .t = t,
                       .of = s->params,
                       .sample = sample,
                       .invoke = invoke,
                       .on = { (DLDeviceType)(on_cuda ? TGL_DL_CUDA : TGL_DL_CPU), 0 } };
    errors_make_good(&c);
    return &c;
}

/* The number of mistakes that were made. */
static inline int check_errors(tgl_signature *s, const char *sample, errors_invoke invoke)
{
    int count = 0;
    for (int on_cuda = 0; on_cuda < 2; on_cuda++) {
        errors_call *const c = errors_open(s, sample, invoke, on_cuda);
        if (!c) return 0;
        if (!on_cuda) {
            tgl_set_preparing(true);
            const tgl_status status = invoke(c->tensors, c->given);
            tgl_set_preparing(false);
            if (!CHECK_THAT(status == TGL_OK, "%s %s: %s", c->t->name, sample, tgl_last_error())) return 0;
        }
        static void (*const sections[])(errors_call *, int) = { errors_alone, errors_dtype_of, errors_sizes,
                                                                errors_layout, errors_memory_of };
        for (int i = 0; i < c->t->num_tensors; i++)
            for (size_t k = 0; k < sizeof sections / sizeof *sections; k++) {
                errors_make_good(c);
                if (c->tensors[i]) sections[k](c, i);
            }
        errors_make_good(c);
        errors_of_scalars(c);
        count += c->count;
    }
    return count;
}

/* ---- by hand ---- */

/* A whole message. `mistake` changes GOOD_CALL: x[i] is tensor i, scalar[i] the scalar of an op without params,
 * c->tensors[i] what is passed. */
#define CHECK_ERROR(mistake, message)                                                                          \
    for (int on_cuda = 0; on_cuda < 2; on_cuda++) {                                                            \
        errors_call *const c = errors_open(GOOD_CALL, on_cuda);                                                \
        REQUIRE(c);                                                                                            \
        DLTensor *const x = c->own;                                                                            \
        int64_t *const scalar = (int64_t *)(void *)c->params;                                                  \
        (void)x, (void)scalar;                                                                                 \
        mistake;                                                                                               \
        const char *const says = errors_refused(c, #mistake);                                                  \
        if (says) CHECK_THAT(!strcmp(says, message), "%s: says \"%s\", want \"%s\"", #mistake, says, message); \
    }

/* A call whose outputs are empty needs neither data nor a driver; its arguments are checked all the same. */
static inline void check_empty(tgl_signature *s, const char *sample, errors_invoke invoke)
{
    for (int on_cuda = 0; on_cuda < 2; on_cuda++) {
        errors_call *const c = errors_open(s, sample, invoke, on_cuda);
        REQUIRE(c);
        for (int i = 0; i < c->t->num_tensors; i++)
            if (errors_bytes(&c->own[i]) == 0) c->own[i].data = NULL;
        CHECK_OK(invoke(c->tensors, c->given));
        c->own[0].dtype.lanes = 2;
        CHECK_FAILS(invoke(c->tensors, c->given), TGL_ERR_ARGUMENT, NULL);
    }
}

/* Without a device a good call is refused for want of one. */
static inline void check_no_driver(tgl_signature *s, const char *sample, errors_invoke invoke)
{
    const tgl_driver_table *cu;
    if (tgl_driver(&cu) == TGL_OK) SKIP("there is a CUDA driver");
    errors_call *const c = errors_open(s, sample, invoke, 1);
    REQUIRE(c);
    CHECK_FAILS(invoke(c->tensors, c->given), TGL_ERR_DEVICE, NULL);
}

#endif
