/* SPDX-License-Identifier: MIT
 * xla.c - ops under jax.jit: one handler of XLA's FFI serves every row.
 *
 * XLA calls it without the GIL, with packed buffers and the two attributes that tegula/jax.py found while tracing: the
 * op's name and its numbers. The structs are those of xla/ffi/api/c_api.h (0.1 and later), declared here so that
 * building needs no jaxlib; tests/python/test_jax.py compares them with the header. */
#include "glue.h"

#include <stdio.h>
#include <string.h>

#define XLA_HEAD        \
    size_t struct_size; \
    struct xla_extension *extensions

typedef struct xla_extension {
    size_t struct_size;
    int type;
    struct xla_extension *next;
} xla_extension;
typedef struct {
    XLA_HEAD;
    int major, minor;
} xla_version;
typedef struct {
    XLA_HEAD;
    int dtype;
    void *data;
    int64_t rank, *dims;
} xla_buffer;
typedef struct {
    const char *text;
    size_t bytes;
} xla_text;
typedef struct {
    int dtype;
    size_t count;
    const int64_t *data;
} xla_array;
typedef struct {
    XLA_HEAD;
    int64_t count;
    const int *types;
    xla_buffer **buffers;
} xla_buffers;
typedef struct {
    XLA_HEAD;
    int64_t count;
    const int *types;
    xla_text **names;
    void **values;
} xla_attributes;

typedef struct xla_error xla_error;
typedef struct {
    XLA_HEAD;
    const char *message;
    int code;
} xla_error_create;
typedef struct {
    XLA_HEAD;
    xla_error *error;
} xla_error_destroy;
typedef struct {
    XLA_HEAD;
    void *context, *stream;
} xla_stream_get;
typedef struct {
    XLA_HEAD;
    void *context;
    int32_t device;
} xla_device_get;

typedef struct {
    XLA_HEAD;
    xla_version version;
    const void *internal;
    xla_error *(*create_error)(xla_error_create *);
    void (*get_message)(void);
    void (*destroy_error)(xla_error_destroy *);
    void (*register_handler)(void);
    xla_error *(*get_stream)(xla_stream_get *);
    void (*others[12])(void);
    xla_error *(*get_device)(xla_device_get *);
} xla_api;

typedef struct {
    XLA_HEAD;
    const xla_api *api;
    void *context;
    int stage;
    xla_buffers args, rets;
    xla_attributes attributes;
} xla_frame;

/* Asks what the handler is; answered in place of a call. */
typedef struct {
    size_t struct_size;
    xla_version version;
    uint32_t traits;
} xla_metadata;
typedef struct {
    xla_extension base;
    xla_metadata *metadata;
} xla_question;

enum { XLA_METADATA = 1, XLA_BUFFER = 1, XLA_ARRAY = 1, XLA_STRING = 4, XLA_EXECUTE = 3, XLA_S64 = 5 };
enum { INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8, INTERNAL = 13 };

/* Offsets, in the order of test_jax.py's list of fields. */
PyObject *xla_layout(PyObject *m, PyObject *none)
{
    const size_t at[] = {
        offsetof(xla_extension, type),    offsetof(xla_extension, next),      offsetof(xla_version, major),
        offsetof(xla_version, minor),     offsetof(xla_buffer, dtype),        offsetof(xla_buffer, data),
        offsetof(xla_buffer, rank),       offsetof(xla_buffer, dims),         offsetof(xla_text, text),
        offsetof(xla_text, bytes),        offsetof(xla_array, dtype),         offsetof(xla_array, count),
        offsetof(xla_array, data),        offsetof(xla_buffers, count),       offsetof(xla_buffers, types),
        offsetof(xla_buffers, buffers),   offsetof(xla_buffers, count),       offsetof(xla_buffers, types),
        offsetof(xla_buffers, buffers),   offsetof(xla_attributes, count),    offsetof(xla_attributes, types),
        offsetof(xla_attributes, names),  offsetof(xla_attributes, values),   offsetof(xla_error_create, message),
        offsetof(xla_error_create, code), offsetof(xla_error_destroy, error), offsetof(xla_stream_get, context),
        offsetof(xla_stream_get, stream), offsetof(xla_device_get, context),  offsetof(xla_device_get, device),
        offsetof(xla_api, version),       offsetof(xla_api, create_error),    offsetof(xla_api, destroy_error),
        offsetof(xla_api, get_stream),    offsetof(xla_api, get_device),      offsetof(xla_frame, api),
        offsetof(xla_frame, context),     offsetof(xla_frame, stage),         offsetof(xla_frame, args),
        offsetof(xla_frame, rets),        offsetof(xla_frame, attributes),    offsetof(xla_metadata, version),
        offsetof(xla_metadata, traits),   offsetof(xla_question, metadata)
    };
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < sizeof at / sizeof at[0]; i++) {
        PyObject *number = PyLong_FromSize_t(at[i]);
        if (!number || PyList_Append(list, number)) Py_CLEAR(list);
        Py_XDECREF(number);
    }
    return list;
}

/* ---- errors ---- */

static xla_error *fail(const xla_frame *x, int code, const char *op, const char *sentence)
{
    char message[1200];
    snprintf(message, sizeof message, "tegula: %.64s: %.1100s", op, sentence);
    xla_error_create args = { sizeof args, NULL, message, code };
    return x->api->create_error(&args);
}

static xla_error *fail_with(const xla_frame *x, const op_row *row, tgl_status status)
{
    const int code = status == TGL_ERR_ARGUMENT ? INVALID_ARGUMENT
                     : status == TGL_ERR_MEMORY ? RESOURCE_EXHAUSTED
                                                : INTERNAL;
    return fail(x, code, row->name, tgl_last_error());
}

/* ---- a call ---- */

/* A buffer as a packed tensor. False: not of `ndim` dimensions, or of a dtype that we lack. */
static bool read_buffer(const xla_buffer *b, int ndim, DLDevice device, DLTensor *t, int64_t dims[2 * MAX_DIMS])
{
    *t = (DLTensor){ .data = b->data, .device = device, .ndim = ndim, .shape = dims };
    if (!dtype_of_xla(b->dtype, &t->dtype) || b->rank != ndim) return false;
    memcpy(dims, b->dims, (size_t)ndim * sizeof *dims);
    return true;
}

/* Makes a tensor column-major whose memory is [columns, stride]. */
static bool set_columns(DLTensor *t, int64_t rows, int64_t columns, int64_t stride)
{
    if (t->ndim != 2 || rows > stride) return false;
    t->shape[0] = rows, t->shape[1] = columns;
    t->strides = t->shape + MAX_DIMS;
    t->strides[0] = 1, t->strides[1] = stride;
    return true;
}

static const void *attribute(const xla_frame *x, const char *name, int type)
{
    const xla_attributes *a = &x->attributes;
    for (int64_t i = 0; i < a->count; i++)
        if (a->names[i]->bytes == strlen(name) && !memcmp(a->names[i]->text, name, strlen(name)))
            return a->types[i] == type ? a->values[i] : NULL;
    return NULL;
}

/* Runs the row, which checks all else itself. */
static xla_error *run(const xla_frame *x, const op_row *row, frame *f, int device, bool is_on_gpu)
{
    f->workspace_bytes = is_on_gpu && row->workspace ? row->workspace(f) : 0;
    tgl_status status =
        f->workspace_bytes == 0 ? TGL_OK : tgl_workspace_get(device, f->workspace_bytes, f->stream, &f->workspace);
    if (status == TGL_OK) status = row->call(f);
    if (status == TGL_OK) return NULL;
    xla_error *error = fail_with(x, row, status);
    if (f->workspace) tgl_workspace_init(f->workspace, f->workspace_bytes, f->stream);
    return error;
}

/* `numbers` is: a bit for each argument that is given, then each argument (a double's bits; for a tensor whether it is
 * column-major), then for each output its rows if it is column-major, else -1. Outputs after the row's own are the
 * arguments that it writes: XLA gives both the same memory. */
static xla_error *call(const xla_frame *x, const op_row *row, const int64_t *numbers, tgl_stream stream,
                       DLDevice device)
{
    frame f = { .stream = stream };
    DLTensor in[MAX_PARAMS], out[MAX_RESULTS];
    int64_t in_dims[MAX_PARAMS][2 * MAX_DIMS], out_dims[MAX_RESULTS][2 * MAX_DIMS];
    int64_t used = 0;
    for (int i = 0; i < row->num_params; i++) {
        const bool is_given = numbers[0] >> i & 1;
        if (is_given && row->params[i].is_in_place && row->params[i].is_on_host && device.device_type == kDLCUDA)
            return fail(x, INVALID_ARGUMENT, row->name,
                        "writes page-locked memory of the host, which JAX cannot pass on CUDA");
        if (row->params[i].kind != 't') {
            f.arg[i] = (value){ .i = numbers[1 + i], .given = is_given };
        } else if (is_given) {
            if (used == x->args.count || x->args.types[used] != XLA_BUFFER ||
                !read_buffer(x->args.buffers[used++], row->params[i].ndim, device, &in[i], in_dims[i]) ||
                (numbers[1 + i] && !set_columns(&in[i], in_dims[i][0], in_dims[i][1], in_dims[i][0])))
                return fail(x, INVALID_ARGUMENT, row->name,
                            "an array has the wrong number of dimensions or an unknown dtype");
            f.arg[i] = (value){ .tensor = &in[i], .given = true };
        } else if (!row->params[i].optional) {
            return fail(x, INVALID_ARGUMENT, row->name, "an array is missing");
        }
    }
    for (int i = 0; i < row->num_results; i++) {
        const int64_t rows = numbers[1 + row->num_params + i];
        if (i >= x->rets.count || x->rets.types[i] != XLA_BUFFER ||
            !read_buffer(x->rets.buffers[i], row->results[i].ndim, device, &out[i], out_dims[i]) ||
            (rows >= 0 && !set_columns(&out[i], rows, out_dims[i][0], out_dims[i][1])))
            return fail(x, INVALID_ARGUMENT, row->name, "an output has the wrong shape or an unknown dtype");
        f.out[i] = &out[i];
    }
    return run(x, row, &f, device.device_id, device.device_type == kDLCUDA);
}

static xla_error *handle(const xla_frame *x, bool is_on_gpu)
{
    if (x->extensions && x->extensions->type == XLA_METADATA) {
        xla_metadata *about = ((const xla_question *)(const void *)x->extensions)->metadata;
        about->version.major = 0, about->version.minor = 1;
        about->traits = 0; /* not in XLA's graphs: the first call of its kind may compile */
        return NULL;
    }
    if (x->stage != XLA_EXECUTE) return NULL;
    const xla_text *op = attribute(x, "op", XLA_STRING);
    const xla_array *numbers = attribute(x, "numbers", XLA_ARRAY);
    const op_row *row = op ? find_row(op->text, op->bytes) : NULL;
    if (!row || !numbers || numbers->dtype != XLA_S64 ||
        numbers->count != (size_t)(1 + row->num_params + row->num_results))
        return fail(x, INVALID_ARGUMENT, row ? row->name : "jax",
                    "this call was traced by another version of the package");
    DLDevice device = { is_on_gpu ? kDLCUDA : kDLCPU, 0 };
    tgl_stream stream = NULL;
    if (is_on_gpu) {
        if (x->api->struct_size < sizeof *x->api)
            return fail(x, INTERNAL, row->name, "this jaxlib is too old to tell which GPU a call is for");
        xla_stream_get s = { sizeof s, NULL, x->context, NULL };
        xla_device_get d = { sizeof d, NULL, x->context, 0 };
        xla_error *error = x->api->get_stream(&s);
        if (!error) error = x->api->get_device(&d);
        if (error) return error;
        stream = (tgl_stream)s.stream;
        device.device_id = d.device;
    }
    return call(x, row, numbers->data, stream, device);
}

static xla_error *handle_cpu(const xla_frame *x) { return handle(x, false); }
static xla_error *handle_cuda(const xla_frame *x) { return handle(x, true); }

/* {platform: capsule}, for jax.ffi.register_ffi_target(). */
PyObject *xla_handlers(PyObject *m, PyObject *none)
{
    static xla_error *(*const handlers[])(const xla_frame *) = { handle_cpu, handle_cuda };
    static const char name[] = "xla._CUSTOM_CALL_TARGET";
    void *address[2];
    memcpy(address, handlers, sizeof address); /* ISO C casts no function to an object pointer */
    PyObject *cpu = PyCapsule_New(address[0], name, NULL), *cuda = cpu ? PyCapsule_New(address[1], name, NULL) : NULL;
    if (cuda) return Py_BuildValue("{sNsN}", "cpu", cpu, "CUDA", cuda);
    Py_XDECREF(cpu);
    return NULL;
}
