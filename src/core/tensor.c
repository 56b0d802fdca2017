/* SPDX-License-Identifier: MIT */
#include "core/tensor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/settings.h"

static _Thread_local bool preparing;

void tgl_set_preparing(bool on) { preparing = on; }
bool tgl_preparing(void) { return preparing; }

/* ---- text ---- */

typedef struct {
    char *text;
    size_t bytes, used;
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...)
{
    if (w->used >= w->bytes) return; /* full: truncated, as by snprintf */
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(w->text + w->used, w->bytes - w->used, format, args);
    va_end(args);
    if (n > 0) w->used += (size_t)n;
}

static void put_list(writer *w, const int64_t *values, int count)
{
    put(w, "[");
    for (int i = 0; i < count && i < TGL_MAX_DIMS; i++) put(w, "%s%" PRId64, i ? ", " : "", values[i]);
    put(w, count > TGL_MAX_DIMS ? ", ...]" : "]");
}

static void put_dtype(writer *w, DLDataType dtype)
{
    const char *name = tgl_dtype_name(tgl_dtype_of(dtype));
    if (name) put(w, "%s", name);
    else put(w, "code %d with %d bits and %d lanes", dtype.code, dtype.bits, dtype.lanes);
}

static void put_dtypes(writer *w, tgl_dtype set)
{
    if (set == TGL_ANY) {
        put(w, "elements of 1, 2, 4, 8 or 16 bytes");
        return;
    }
    for (tgl_dtype bit = 1; bit && bit <= set; bit <<= 1) {
        if (!(set & bit)) continue;
        const bool is_first = !(set & (bit - 1)), is_last = set < bit << 1;
        put(w, "%s%s", is_first ? "" : is_last ? " or " : ", ", tgl_dtype_name(bit));
    }
}

static void put_device(writer *w, DLDevice device)
{
    switch ((int)device.device_type) {
    case TGL_DL_CPU: put(w, "cpu"); break;
    case TGL_DL_CUDA_HOST: put(w, "cuda_host"); break;
    case TGL_DL_CUDA: put(w, "cuda:%d", device.device_id); break;
    case TGL_DL_CUDA_MANAGED: put(w, "cuda_managed:%d", device.device_id); break;
    default: put(w, "type %d", (int)device.device_type); break;
    }
}

/* The two parts of a message: what is, and what is wanted. */
typedef struct {
    char is[256], want[256];
    writer w;
} sentence;
static writer *is(sentence *s) { return s->is[0] = 0, s->w = (writer){ s->is, sizeof s->is, 0 }, &s->w; }
static writer *want(sentence *s) { return s->want[0] = 0, s->w = (writer){ s->want, sizeof s->want, 0 }, &s->w; }
static tgl_status fail(const char *name, const char *what, const sentence *s)
{
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: %s %s, want %s", name, what, s->is, s->want);
}

void tgl_describe(const DLTensor *t, char *text, size_t bytes)
{
    writer w = { text, bytes, 0 };
    if (!t) {
        put(&w, "NULL");
        return;
    }
    put_dtype(&w, t->dtype);
    put(&w, " ");
    if (t->ndim < 0 || (t->ndim > 0 && !t->shape)) put(&w, "rank %d without a shape", t->ndim);
    else put_list(&w, t->shape, t->ndim);
    if (t->strides && t->ndim > 0) {
        put(&w, " strides ");
        put_list(&w, t->strides, t->ndim);
    }
    put(&w, " on ");
    put_device(&w, t->device);
}

/* ---- layout ---- */

int64_t tgl_stride(const DLTensor *t, int dim)
{
    if (t->strides) return t->strides[dim];
    uint64_t stride = 1; /* unsigned: the sizes of an empty tensor may overflow */
    for (int i = dim + 1; i < t->ndim; i++) stride *= (uint64_t)t->shape[i];
    return (int64_t)stride;
}

bool tgl_is_empty(const DLTensor *t)
{
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0) return true;
    return false;
}

int64_t tgl_step_of(const DLTensor *t, int dim)
{
    return !t || t->shape[dim] == 1 || tgl_is_empty(t) ? 0 : tgl_stride(t, dim);
}

int64_t tgl_num_elements(const DLTensor *t)
{
    if (tgl_is_empty(t)) return 0; /* the other sizes may be anything */
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

static int element_bytes(const DLTensor *t) { return tgl_dtype_bits(t->dtype) / 8; }

/* The byte range of a tensor, relative to its first element. False if either end is TGL_MAX_BYTES or more
 * away. */
typedef struct { int64_t before, after; } extent;
static bool extent_of(const DLTensor *t, extent *e)
{
    int64_t low = 0, high = 0;
    for (int i = 0; i < t->ndim; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(tgl_stride(t, i), t->shape[i] - 1, &reach)) return false;
        if (__builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) return false;
    }
    if (__builtin_mul_overflow(low, element_bytes(t), &e->before) || e->before <= -TGL_MAX_BYTES) return false;
    return !__builtin_add_overflow(high, 1, &high) && !__builtin_mul_overflow(high, element_bytes(t), &e->after) &&
           e->after < TGL_MAX_BYTES;
}

static bool is_packed(const DLTensor *t)
{
    if (!t->strides) return true;
    int64_t wanted = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->strides[i] != wanted) return false;
        wanted *= t->shape[i];
    }
    return true;
}

static bool is_rows(const DLTensor *t)
{
    bool ok = t->ndim == 0 || t->shape[t->ndim - 1] == 1 || t->strides[t->ndim - 1] == 1;
    for (int i = 0; i < t->ndim - 1; i++) ok &= t->shape[i] == 1 || t->strides[i] >= 0;
    return ok;
}

/* ---- checks ----
 * They precede every launch, so messages are formatted only after a check has failed. */

static bool is_known_device(DLDevice d)
{
    const int type = (int)d.device_type;
    if (type == TGL_DL_CPU || type == TGL_DL_CUDA_HOST) return true;
    return (type == TGL_DL_CUDA || type == TGL_DL_CUDA_MANAGED) && d.device_id >= 0 && d.device_id < TGL_MAX_DEVICES;
}

static tgl_status expect_layout(const char *name, const DLTensor *t, tgl_layout layout)
{
    extent e;
    if (!t->strides) return TGL_OK;
    const bool fits = layout == TGL_STRIDED || (layout == TGL_PACKED ? is_packed(t) : is_rows(t));
    if (fits && (layout == TGL_PACKED || extent_of(t, &e))) return TGL_OK;
    sentence s;
    put_list(is(&s), t->strides, t->ndim);
    if (fits) {
        put(want(&s), "offsets below 2^56 bytes");
    } else if (layout == TGL_ROWS) {
        put(want(&s), "1 in the last dimension and >= 0 in the others");
    } else {
        const DLTensor packed = { .ndim = t->ndim, .shape = t->shape };
        int64_t wanted[TGL_MAX_DIMS];
        for (int i = 0; i < t->ndim; i++) wanted[i] = tgl_stride(&packed, i);
        put_list(want(&s), wanted, t->ndim);
    }
    return fail(name, "strides are", &s);
}

tgl_status tgl_expect(const char *name, const DLTensor *t, tgl_dtype dtypes, int ndim, tgl_layout layout)
{
    sentence s;
    if (!t) return tgl_fail(TGL_ERR_ARGUMENT, "%s: is NULL, want a tensor", name);
    if (!tgl_dtype_is(t->dtype, dtypes)) {
        put_dtype(is(&s), t->dtype);
        put_dtypes(want(&s), dtypes);
        return fail(name, "dtype is", &s);
    }
    if (t->ndim != ndim) return tgl_fail(TGL_ERR_ARGUMENT, "%s: rank is %d, want %d", name, t->ndim, ndim);
    if (ndim > 0 && !t->shape) return tgl_fail(TGL_ERR_ARGUMENT, "%s: shape is NULL, want %d sizes", name, ndim);
    int64_t bytes = element_bytes(t);
    bool is_negative = false, is_too_large = false, is_empty = false;
    for (int i = 0; i < ndim; i++) {
        is_negative |= t->shape[i] < 0;
        is_empty |= t->shape[i] == 0;
        is_too_large |= __builtin_mul_overflow(bytes, t->shape[i], &bytes);
    }
    is_too_large |= bytes >= TGL_MAX_BYTES;
    if (is_negative || (is_too_large && !is_empty)) {
        put_list(is(&s), t->shape, ndim);
        put(want(&s), is_negative ? "sizes >= 0" : "fewer than 2^56 bytes");
        return fail(name, "shape is", &s);
    }
    if (!is_known_device(t->device)) {
        put_device(is(&s), t->device);
        put(want(&s), "cpu or cuda:0..%d", TGL_MAX_DEVICES - 1);
        return fail(name, "device is", &s);
    }
    if (is_empty) return TGL_OK; /* strides and data are ignored */
    TGL_TRY(expect_layout(name, t, layout));
    if (!t->data && preparing) return TGL_OK;
    if (!t->data) return tgl_fail(TGL_ERR_ARGUMENT, "%s: data is NULL, want %" PRId64 " bytes", name, bytes);
    if (t->byte_offset > UINTPTR_MAX - (uintptr_t)t->data)
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "%s: byte_offset is %" PRIu64 ", want one that does not "
                        "overflow the address",
                        name, t->byte_offset);
    return tgl_expect_aligned(name, t, element_bytes(t) < 8 ? element_bytes(t) : 8);
}

tgl_status tgl_expect_aligned(const char *name, const DLTensor *t, int bytes)
{
    const uintptr_t past = (uintptr_t)tgl_data(t) % (uintptr_t)bytes;
    if (past == 0) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: address is %d bytes past a multiple of %d, want a multiple of %d", name,
                    (int)past, bytes, bytes);
}

tgl_status tgl_expect_shape(const char *name, const DLTensor *t, const tgl_dim *dims)
{
    sentence s;
    bool fits = true;
    for (int i = 0; i < t->ndim; i++) fits &= t->shape[i] >= dims[i].low && t->shape[i] <= dims[i].high;
    if (fits) return TGL_OK;
    put_list(is(&s), t->shape, t->ndim);
    writer *w = want(&s);
    for (int i = 0; i < t->ndim; i++) {
        put(w, "%s%" PRId64, i ? ", " : "[", dims[i].low);
        if (dims[i].high != dims[i].low) put(w, "..%" PRId64, dims[i].high);
    }
    put(w, "]");
    return fail(name, "shape is", &s);
}

tgl_status tgl_expect_rows_apart(const char *name, const DLTensor *t)
{
    if (!t || tgl_is_empty(t)) return TGL_OK;
    const int last = t->ndim - 1;
    const int64_t row = t->shape[last], n0 = t->shape[0], n1 = last > 1 ? t->shape[1] : 1;
    const int64_t step0 = tgl_step_of(t, 0), step1 = last > 1 ? tgl_step_of(t, 1) : 0;
    const bool is_in_order = (n1 == 1 || step1 >= row) && (n0 == 1 || step0 >= (n1 - 1) * step1 + row);
    const bool is_swapped = (n0 == 1 || step0 >= row) && (n1 == 1 || step1 >= (n0 - 1) * step0 + row);
    if ((row == 1 || tgl_stride(t, last) == 1) && (is_in_order || is_swapped)) return TGL_OK;
    sentence s;
    put_list(is(&s), t->strides, t->ndim); /* not NULL: a packed tensor has passed */
    put(want(&s), "1 in the last dimension, and rows that do not overlap");
    return fail(name, "strides are", &s);
}

tgl_status tgl_expect_same_device(const char *name, const DLTensor *t, const DLTensor *other)
{
    sentence s;
    if (tgl_on_cpu(t) && tgl_on_cpu(other)) return TGL_OK;
    if (!tgl_on_cpu(t) && !tgl_on_cpu(other) && t->device.device_id == other->device.device_id) return TGL_OK;
    put_device(is(&s), t->device);
    put_device(want(&s), other->device);
    return fail(name, "device is", &s);
}

tgl_status tgl_expect_same_dtype(const char *name, const DLTensor *t, const char *other_name, const DLTensor *other)
{
    sentence s;
    const DLDataType a = t->dtype, b = other->dtype;
    if (a.code == b.code && a.bits == b.bits && a.lanes == b.lanes) return TGL_OK;
    put_dtype(is(&s), a);
    writer *w = want(&s);
    put_dtype(w, b);
    put(w, " as %s", other_name);
    return fail(name, "dtype is", &s);
}

/* A tensor as rows of `width` bytes, `pitch` bytes apart; false if it does not have this form. */
typedef struct { int64_t pitch, width; } row_window;
static bool row_window_of(const DLTensor *t, row_window *rows)
{
    if (t->ndim < 2 || tgl_stride(t, t->ndim - 1) != 1) return false;
    const int64_t pitch = tgl_stride(t, t->ndim - 2), width = t->shape[t->ndim - 1];
    if (pitch < width) return false; /* so pitch > 0: the tensor is not empty */
    for (int i = 0; i < t->ndim - 2; i++)
        if (tgl_stride(t, i) % pitch) return false;
    rows->width = width * element_bytes(t);
    /* the stride of a single row may be anything */
    return !__builtin_mul_overflow(pitch, element_bytes(t), &rows->pitch);
}

/* The same with the items of its first dimension as rows. */
static bool item_window_of(const DLTensor *t, row_window *rows)
{
    if (t->ndim < 2) return false;
    int64_t width = 1; /* of an item; the extent of the tensor was checked before */
    for (int i = 1; i < t->ndim; i++) {
        const int64_t stride = t->shape[i] == 1 ? 0 : tgl_stride(t, i);
        if (stride < 0) return false;
        width += (t->shape[i] - 1) * stride;
    }
    rows->width = width * element_bytes(t);
    return tgl_stride(t, 0) >= width && !__builtin_mul_overflow(tgl_stride(t, 0), element_bytes(t), &rows->pitch);
}

/* Are rows of the same pitch, whose first are at these addresses, disjoint? */
static bool are_apart(uintptr_t at, row_window r, uintptr_t from, row_window q)
{
    if (r.pitch != q.pitch) return false;
    /* the offset of t's rows within the other's rows; neither may reach into the other's next row */
    const uintptr_t pitch = (uintptr_t)r.pitch;
    const int64_t shift = (int64_t)((at % pitch + pitch - from % pitch) % pitch);
    return shift >= q.width && r.width <= r.pitch - shift;
}

/* Do they share a byte? a and b are their extents. */
static bool share_memory(const DLTensor *t, const extent *a, const DLTensor *other, const extent *b)
{
    /* as integers: pointers into different buffers must not be compared */
    const uintptr_t at = (uintptr_t)tgl_data(t), from = (uintptr_t)tgl_data(other);
    const bool is_below = at + (uintptr_t)a->after <= from + (uintptr_t)b->before;
    const bool is_above = from + (uintptr_t)b->after <= at + (uintptr_t)a->before;
    if (is_below || is_above) return false;
    row_window r, q;
    if (row_window_of(t, &r) && row_window_of(other, &q) && are_apart(at, r, from, q)) return false;
    return !(item_window_of(t, &r) && item_window_of(other, &q) && are_apart(at, r, from, q));
}

static bool has_no_memory(const DLTensor *t) { return tgl_is_empty(t) || !t->data; }

bool tgl_overlaps(const DLTensor *t, const DLTensor *other)
{
    extent a, b;
    if (has_no_memory(t) || has_no_memory(other)) return false;
    return !extent_of(t, &a) || !extent_of(other, &b) || share_memory(t, &a, other, &b);
}

tgl_status tgl_expect_no_overlap(const char *name, const DLTensor *t, const char *other_name, const DLTensor *other)
{
    if (has_no_memory(t) || has_no_memory(other)) return TGL_OK;
    extent a, b;
    if (!extent_of(t, &a) || !extent_of(other, &b))
        return tgl_fail(TGL_ERR_INTERNAL, "%s: was not checked before", name);
    if (!share_memory(t, &a, other, &b)) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: memory is shared with %s, want no overlap", name, other_name);
}

bool tgl_is_same_memory(const DLTensor *t, const DLTensor *other)
{
    if (tgl_data(t) != tgl_data(other) || t->ndim != other->ndim || element_bytes(t) != element_bytes(other))
        return false;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] != other->shape[i]) return false;
        if (t->shape[i] != 1 && tgl_stride(t, i) != tgl_stride(other, i)) return false;
    }
    return true;
}

tgl_status tgl_expect_same_or_no_overlap(const char *name, const DLTensor *t, const char *other_name,
                                         const DLTensor *other)
{
    return tgl_is_same_memory(t, other) ? TGL_OK : tgl_expect_no_overlap(name, t, other_name, other);
}

tgl_status tgl_expect_reserved(const uint64_t reserved[TGL_RESERVED_WORDS])
{
    for (int i = 0; i < TGL_RESERVED_WORDS; i++)
        if (reserved[i]) return tgl_fail(TGL_ERR_ARGUMENT, "reserved[%d]: is %" PRIu64 ", want 0", i, reserved[i]);
    return TGL_OK;
}

tgl_status tgl_expect_workspace(const void *workspace, size_t workspace_bytes, size_t want)
{
    if (want == 0 || preparing) return TGL_OK;
    if (!workspace) return tgl_fail(TGL_ERR_WORKSPACE, "workspace: is NULL, want %zu bytes of device memory", want);
    if (workspace_bytes < want)
        return tgl_fail(TGL_ERR_WORKSPACE, "workspace_bytes: is %zu, want >= %zu", workspace_bytes, want);
    if ((uintptr_t)workspace % TGL_WORKSPACE_ALIGNMENT)
        return tgl_fail(TGL_ERR_WORKSPACE, "workspace: address is %p, want a multiple of %d", workspace,
                        TGL_WORKSPACE_ALIGNMENT);
    return TGL_OK;
}
