/* SPDX-License-Identifier: MIT
 * tensor.c - Python objects to DLTensors and back: torch through DLPack's C exchange API, others through
 * __dlpack__(). */
#include "glue.h"

#include <string.h>

torch_table torch;
PyObject *str_out, *str_current_level; /* strings that calls use often */
static PyObject *str_dlpack, *str_dlpack_device;

/* The capsules "dltensor" and "dltensor_versioned"; both are DLPack's ABI. */
typedef struct managed_tensor {
    DLTensor tensor;
    void *context;
    void (*drop)(struct managed_tensor *);
} managed_tensor;
typedef struct managed_versioned {
    pack_version version;
    void *context;
    void (*drop)(struct managed_versioned *);
    uint64_t flags;
    DLTensor tensor;
} managed_versioned;
enum { FLAG_READ_ONLY = 1 };
_Static_assert(sizeof(DLTensor) == 48 && sizeof(managed_tensor) == 64 && sizeof(managed_versioned) == 80,
               "DLPack's ABI");
_Static_assert(sizeof(exchange_api) == 56, "DLPack's ABI");

bool init_strings(void)
{
    return (str_out = PyUnicode_InternFromString("out")) &&
           (str_current_level = PyUnicode_InternFromString("_current_level")) &&
           (str_dlpack = PyUnicode_InternFromString("__dlpack__")) &&
           (str_dlpack_device = PyUnicode_InternFromString("__dlpack_device__"));
}

/* ---- torch's functions ---- */

builtin builtin_of(PyObject *object, int kind)
{
    const bool is_of_kind = PyCFunction_CheckExact(object) && PyCFunction_GetFlags(object) == kind;
    return (builtin){ object, is_of_kind ? PyCFunction_GetFunction(object) : NULL, kind };
}

PyObject *call_builtin(const builtin *function, PyObject *args)
{
    if (function->entry) return function->entry(PyCFunction_GetSelf(function->object), args);
    if (function->kind == METH_VARARGS) return PyObject_Call(function->object, args, NULL);
    return PyObject_CallFunctionObjArgs(function->object, args, NULL);
}

/* ---- kinds of objects ---- */

enum { MAX_TYPES = 16 };
static type_entry types[MAX_TYPES]; /* held for the life of the process: an address is never another type's */
static int num_types;

static type_entry learn_type(PyTypeObject *type)
{
    type_entry e = { .type = type, .kind = FOREIGN };
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    if (capsule) {
        e.api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        Py_DECREF(capsule); /* the table behind it is static */
        while (e.api && e.api->version.major != 1) e.api = e.api->older;
        if (e.api && (!e.api->borrow || !e.api->current_stream)) e.api = NULL;
    }
    PyErr_Clear();
    if (torch.tensor) {
        if ((PyObject *)type == torch.tensor || (PyObject *)type == torch.parameter) e.kind = e.api ? PLAIN : FOREIGN;
        else if (PyObject_HasAttrString((PyObject *)type, "__torch_function__")) e.kind = OVERRIDES;
    }
    if (num_types < MAX_TYPES) { /* if the table is full, the type is learned again each time */
        Py_INCREF(type);
        types[num_types++] = e;
    }
    return e;
}

/* Called when torch is bound: only then it is known which types are plain. Its own come first in the table. */
void learn_types_again(void)
{
    num_types = 0;
    learn_type((PyTypeObject *)torch.tensor);
    if (torch.parameter != Py_None) learn_type((PyTypeObject *)torch.parameter);
}

type_entry entry_of(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    for (int i = 0; i < num_types; i++)
        if (types[i].type == type) return types[i];
    return learn_type(type);
}

/* ---- in ---- */

/* torch's messages contain a C++ backtrace: keep the first line, and name the argument. */
static void shorten_error(PyObject *name, PyObject *as)
{
    PyObject *type, *error, *trace, *text = NULL, *lines = NULL, *first = NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (error) text = PyObject_Str(error);
    if (text) lines = PyUnicode_Splitlines(text, 0);
    if (lines && PyList_Size(lines) > 0) first = PyList_GetItem(lines, 0);
    PyErr_Format(as, "%U: cannot be read: %V", name, first, "unknown reason");
    Py_XDECREF(lines);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
}

/* Calls object.__dlpack__(). On CUDA the producer must make the data ready for the stream on which the op will run.
 * NULL is the legacy default stream (1 in the protocol): it is ordered with all libraries' blocking streams. */
static PyObject *export_capsule(PyObject *name, PyObject *object, tgl_stream stream)
{
    const unsigned long long number = stream ? (uintptr_t)stream : 1;
    if (!PyObject_HasAttr(object, str_dlpack) || !PyObject_HasAttr(object, str_dlpack_device))
        return PyErr_Format(PyExc_TypeError, "%U: is a %R, want a tensor", name, (PyObject *)Py_TYPE(object));
    PyObject *method = PyObject_GetAttr(object, str_dlpack), *capsule = NULL, *kw = NULL, *device = NULL;
    if (!method) return NULL;
    int device_type = TGL_DL_CPU, device_id = 0;
    PyObject *none = PyTuple_New(0);
    if (!none) goto done;
    device = PyObject_CallMethodObjArgs(object, str_dlpack_device, NULL);
    if (!device) goto done;
    if (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &device_type, &device_id)) {
        PyErr_Format(PyExc_TypeError, "%U: __dlpack_device__() is %R, want two integers", name, device);
        goto done;
    }
    const bool on_gpu = device_type == TGL_DL_CUDA || device_type == TGL_DL_CUDA_MANAGED;
    kw = on_gpu ? Py_BuildValue("{s(ii)sK}", "max_version", 1, 0, "stream", number)
                : Py_BuildValue("{s(ii)}", "max_version", 1, 0);
    if (!kw) goto done;
    capsule = PyObject_Call(method, none, kw);
    if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { /* a producer that knows only DLPack 0.x */
        PyErr_Clear();
        Py_DECREF(kw);
        kw = on_gpu ? Py_BuildValue("{sK}", "stream", number) : NULL;
        if (kw || !on_gpu) capsule = PyObject_Call(method, none, kw);
    }
    if (!capsule && PyErr_ExceptionMatches(PyExc_BufferError)) shorten_error(name, PyExc_BufferError);
done:
    Py_XDECREF(kw);
    Py_XDECREF(device);
    Py_XDECREF(none);
    Py_DECREF(method);
    return capsule;
}

/* NumPy does not export the dtypes of ml_dtypes (bfloat16, float8_e4m3fn): after its BufferError the same memory is read as
 * integers, and `dtype` set. NULL with that error still set if the array is not of such a dtype. */
static PyObject *export_as_integers(PyObject *name, PyObject *object, tgl_stream stream, DLDataType *dtype)
{
    PyObject *type, *error, *trace, *capsule = NULL, *view = NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *own = PyObject_GetAttrString(object, "dtype"), *text = own ? PyObject_GetAttrString(own, "name") : NULL;
    const char *word = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    if (word && dtype_of_library(word, dtype) && dtype->lanes == 1 && dtype->code > TGL_DL_UINT &&
        (dtype->bits == 8 || dtype->bits == 16))
        view = PyObject_CallMethod(object, "view", "s", dtype->bits == 8 ? "uint8" : "uint16");
    if (view) capsule = export_capsule(name, view, stream);
    Py_XDECREF(view);
    Py_XDECREF(text);
    Py_XDECREF(own);
    PyErr_Clear();
    if (!capsule) return PyErr_Restore(type, error, trace), NULL;
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return capsule;
}

/* "jax" of jaxlib._jax.ArrayImpl: the package that a type is of. */
static bool is_of_package(PyObject *object, const char *package)
{
    PyObject *module = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__module__");
    const char *name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8AndSize(module, NULL) : NULL;
    const size_t length = strlen(package);
    const bool yes = name && !strncmp(name, package, length) && (!name[length] || name[length] == '.');
    Py_XDECREF(module);
    PyErr_Clear();
    return yes;
}

bool is_of_jax(PyObject *object) { return is_of_package(object, "jaxlib") || is_of_package(object, "jax"); }

/* Without ml_dtypes FP8 is NumPy's uint8 with a label: dtype.metadata is {"tegula": "float8_e4m3fn"}. Views and copies keep it. */
static void read_label(PyObject *object, DLDataType *dtype)
{
    DLDataType labelled;
    PyObject *own = PyObject_GetAttrString(object, "dtype"),
             *metadata = own ? PyObject_GetAttrString(own, "metadata") : NULL;
    PyObject *label = metadata && metadata != Py_None ? PyMapping_GetItemString(metadata, "tegula") : NULL;
    const char *word = label && PyUnicode_Check(label) ? PyUnicode_AsUTF8AndSize(label, NULL) : NULL;
    if (word && dtype_of_library(word, &labelled) && labelled.bits == 8 && labelled.lanes == 1) *dtype = labelled;
    Py_XDECREF(label);
    Py_XDECREF(metadata);
    Py_XDECREF(own);
    PyErr_Clear(); /* another library's dtype, or another label */
}

static PyObject *labelled_bytes(PyObject *package, const char *name)
{
    PyObject *type = PyObject_GetAttrString(package, "dtype"), *dtype = NULL;
    PyObject *args = Py_BuildValue("(s)", "uint8"), *kw = Py_BuildValue("{s{ss}}", "metadata", "tegula", name);
    if (type && args && kw) dtype = PyObject_Call(type, args, kw);
    Py_XDECREF(kw);
    Py_XDECREF(args);
    Py_XDECREF(type);
    return dtype;
}

/* The capsule is held for the call and not consumed: its own destructor frees the tensor. */
static bool read_capsule(PyObject *name, PyObject *object, tgl_stream stream, tensor_ref *ref)
{
    DLDataType dtype = { 0 };
    PyObject *capsule = export_capsule(name, object, stream);
    if (!capsule && PyErr_ExceptionMatches(PyExc_BufferError))
        capsule = export_as_integers(name, object, stream, &dtype);
    ref->capsule = capsule;
    if (!capsule) return false;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const managed_versioned *m = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (m->version.major != 1)
            return PyErr_Format(PyExc_BufferError, "%U: speaks DLPack %u, want 1", name, (unsigned)m->version.major),
                   false;
        ref->tensor = m->tensor;
        ref->is_read_only = m->flags & FLAG_READ_ONLY;
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        const managed_tensor *m = PyCapsule_GetPointer(capsule, "dltensor");
        ref->tensor = m->tensor;
        ref->is_read_only = is_of_jax(object); /* such a capsule cannot tell */
    } else
        return PyErr_Format(PyExc_TypeError, "%U: __dlpack__() is %R, want a capsule of a tensor", name, capsule),
               false;
    if (dtype.bits) ref->tensor.dtype = dtype;
    else if (dtype_is(ref->tensor.dtype, (DLDataType){ TGL_DL_UINT, 8, 1 })) read_label(object, &ref->tensor.dtype);
    return true;
}

/* A tensor of another library may be malformed: what follows reads shape[0 .. ndim - 1], and the ops multiply sizes and
 * strides. NumPy and torch have at most 64 dimensions. */
static bool check_foreign(PyObject *name, const DLTensor *t)
{
    if (t->ndim < 0 || t->ndim > 64)
        return PyErr_Format(PyExc_ValueError, "%U: has %d dimensions, want 0 to 64", name, (int)t->ndim), false;
    if (t->ndim > 0 && !t->shape)
        return PyErr_Format(PyExc_ValueError, "%U: has %d dimensions but no shape", name, (int)t->ndim), false;
    bool is_empty = false;
    for (int d = 0; d < t->ndim; d++) {
        is_empty |= t->shape[d] == 0;
        if (t->shape[d] < 0)
            return PyErr_Format(PyExc_ValueError, "%U: size %d is %lld, want >= 0", name, d, (long long)t->shape[d]),
                   false;
    }
    if (is_empty) return true;
    if (!t->data) return PyErr_Format(PyExc_ValueError, "%U: has elements but no memory", name), false;
    /* bytes from the lowest to the highest element; NULL strides mean packed */
    int64_t reach = t->dtype.bits * (int64_t)t->dtype.lanes / 8, step = reach;
    bool fits = true;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] == 1) continue; /* its stride is not used */
        int64_t stride = step, length;
        if (t->strides)
            fits &= t->strides[d] != INT64_MIN &&
                    !__builtin_mul_overflow(t->strides[d] < 0 ? -t->strides[d] : t->strides[d],
                                            t->dtype.bits * (int64_t)t->dtype.lanes / 8, &stride);
        else fits &= !__builtin_mul_overflow(step, t->shape[d], &step);
        fits = fits && !__builtin_mul_overflow(stride, t->shape[d] - 1, &length) &&
               !__builtin_add_overflow(reach, length, &reach);
    }
    if (!fits) PyErr_Format(PyExc_ValueError, "%U: sizes and strides span more than 2^63 bytes", name);
    return fits;
}

bool read_tensor(PyObject *name, PyObject *object, type_entry entry, tgl_stream stream, tensor_ref *ref)
{
    ref->object = ref->capsule = NULL;
    ref->api = entry.api;
    ref->is_torch = entry.api && entry.kind != FOREIGN;
    ref->is_read_only = false;
    if (!entry.api && torch.tensor && PyObject_IsInstance(object, torch.tensor) == 1)
        return PyErr_Format(PyExc_TypeError, "%U: is a tensor of an older torch, want torch 2.10 or newer", name),
               false;
    if (!entry.api) return read_capsule(name, object, stream, ref) && check_foreign(name, &ref->tensor);
    if (entry.api->borrow(object, &ref->tensor) == 0) return entry.kind != FOREIGN || check_foreign(name, &ref->tensor);
    shorten_error(name, PyExc_ValueError);
    return false;
}

bool stream_of(const exchange_api *api, const DLTensor *t, tgl_stream *stream)
{
    const int type = (int)t->device.device_type;
    void *current = NULL;
    if ((type == TGL_DL_CUDA || type == TGL_DL_CUDA_MANAGED) &&
        api->current_stream(type, t->device.device_id, &current))
        return false;
    *stream = current;
    return true;
}

/* Copies shape and strides, which belong to the object: while the GIL is released, another thread may resize it. */
void hold_dims(tensor_ref *ref)
{
    DLTensor *t = &ref->tensor;
    const size_t bytes = sizeof(int64_t) * (size_t)t->ndim;
    memcpy(ref->dims, t->shape, bytes);
    t->shape = ref->dims;
    if (!t->strides) return;
    memcpy(ref->dims + MAX_DIMS, t->strides, bytes);
    t->strides = ref->dims + MAX_DIMS;
}

static bool says_true(PyObject *object, const char *method)
{
    PyObject *answer = PyObject_CallMethod(object, method, NULL);
    const bool yes = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return yes;
}

/* z.conj() must be conjugated and z.conj().imag negated by whoever reads them; the exchange API does not tell. Real
 * tensors of that kind skip real parts, so no stride is 1 (except for torch's private _neg_view()). Packed tensors are
 * therefore not asked, which would cost 80 ns. */
bool is_lazy(PyObject *object, const DLTensor *t)
{
    if (t->dtype.code == TGL_DL_COMPLEX) return says_true(object, "is_conj") || says_true(object, "is_neg");
    if (t->dtype.code != TGL_DL_FLOAT || !t->strides) return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->strides[d] == 1 && t->shape[d] > 1) return false;
    return says_true(object, "is_neg");
}

/* Has elements but no memory, as the wrappers of torch.func.functionalize(). */
bool is_hollow(const DLTensor *t)
{
    if (t->data) return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] == 0) return false;
    return true;
}

void drop_tensor(tensor_ref *ref)
{
    Py_XDECREF(ref->object);
    Py_XDECREF(ref->capsule);
}

/* ---- out ---- */

PyObject *tuple_of(const int64_t *v, int n)
{
    PyObject *t = PyTuple_New(n);
    for (int i = 0; t && i < n; i++) {
        PyObject *number = PyLong_FromLongLong(v[i]);
        if (!number || PyTuple_SetItem(t, i, number)) Py_CLEAR(t);
    }
    return t;
}

/* The torch.dtype of a DLPack dtype, borrowed. The keys of torch.dtypes are key_of_dtype(). */
static PyObject *torch_dtype(DLDataType d)
{
    static struct {
        uint32_t key;
        PyObject *dtype;
    } last[8]; /* the outputs of a program have few dtypes */
    const uint32_t key = key_of_dtype(d);
    const unsigned slot = (d.code ^ d.bits >> 3) & 7;
    if (last[slot].dtype && last[slot].key == key) return last[slot].dtype;
    PyObject *number = PyLong_FromUnsignedLong(key);
    if (!number) return NULL;
    PyObject *dtype = PyDict_GetItemWithError(torch.dtypes, number);
    Py_DECREF(number);
    if (dtype) last[slot].key = key, last[slot].dtype = dtype;
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "torch has no dtype of DLPack code %d with %d bits, %d lanes", d.code, d.bits,
                     d.lanes);
    return dtype;
}

static PyObject *torch_arguments(const DLTensor *want, memo *m) /* (shape, strides, dtype) */
{
    const size_t bytes = sizeof(int64_t) * (size_t)want->ndim;
    if (!m->args || m->ndim != want->ndim || !dtype_is(m->dtype, want->dtype) || memcmp(m->shape, want->shape, bytes) ||
        memcmp(m->strides, want->strides, bytes)) {
        PyObject *dtype = torch_dtype(want->dtype);
        if (!dtype) return NULL;
        PyObject *args =
            Py_BuildValue("(NNO)", tuple_of(want->shape, want->ndim), tuple_of(want->strides, want->ndim), dtype);
        if (!args) return NULL;
        Py_XDECREF(m->args);
        m->args = args;
        m->ndim = want->ndim;
        m->dtype = want->dtype;
        memcpy(m->shape, want->shape, bytes);
        memcpy(m->strides, want->strides, bytes);
    }
    Py_INCREF(m->args); /* another thread may replace the memo meanwhile */
    return m->args;
}

static PyObject *torch_empty_strided(const DLTensor *want, PyObject *args)
{
    PyObject *shape, *strides, *dtype, *kw = NULL, *made = NULL;
    if (!PyArg_ParseTuple(args, "OOO", &shape, &strides, &dtype)) return NULL;
    PyObject *device = want->device.device_type == kDLCPU
                           ? PyObject_CallFunction(torch.device, "s", "cpu")
                           : PyObject_CallFunction(torch.device, "si", "cuda", want->device.device_id);
    PyObject *sizes = PyTuple_Pack(2, shape, strides);
    if (device) kw = Py_BuildValue("{sOsO}", "dtype", dtype, "device", device);
    if (sizes && kw) made = PyObject_Call(torch.empty_strided, sizes, kw);
    Py_XDECREF(kw);
    Py_XDECREF(sizes);
    Py_XDECREF(device);
    return made;
}

/* Is it torch's current CUDA device? Device 0 is nearly always; allocate() corrects the rest. */
static bool is_current_device(int32_t device)
{
    if (device == 0) return true;
    PyObject *current = torch.cuda_device.object != Py_None ? call_builtin(&torch.cuda_device, NULL) : NULL;
    const bool yes = current && PyLong_AsLong(current) == device;
    Py_XDECREF(current);
    PyErr_Clear();
    return yes;
}

/* Allocates with torch, not with the exchange API, whose tensors ignore record_stream() and cannot be resized.
 * Inductor's function takes 1.0 us, torch.empty_strided 1.7 us; the former allocates on the current device, which may
 * be the wrong one (where it would make a context of 500 MB). */
static bool allocate(const tensor_ref *like, const DLTensor *want, memo *m, tensor_ref *out)
{
    const bool on_cpu = want->device.device_type == kDLCPU;
    const builtin *fast = on_cpu ? &torch.strided_cpu : &torch.strided_cuda;
    const bool is_here = on_cpu || is_current_device(want->device.device_id);
    PyObject *args = torch_arguments(want, m);
    if (!args) return false;
    out->api = like->api;
    out->object = fast->object != Py_None && is_here ? call_builtin(fast, args) : torch_empty_strided(want, args);
    bool ok = out->object && out->api->borrow(out->object, &out->tensor) == 0;
    if (ok && out->tensor.device.device_id != want->device.device_id) {
        Py_DECREF(out->object);
        out->object = torch_empty_strided(want, args);
        ok = out->object && out->api->borrow(out->object, &out->tensor) == 0;
    }
    Py_DECREF(args);
    return ok;
}

/* Columns with padding at their ends. The last column has its padding too, as readers load whole vectors.
 * as_strided_() changes the tensor itself, which has no base then. */
static bool allocate_columns(const tensor_ref *like, const DLTensor *want, bool zeroes_ends, memo *m, tensor_ref *out)
{
    int64_t shape[2] = { want->strides[1], want->shape[1] };
    DLTensor whole = *want;
    whole.shape = shape;
    if (!allocate(like, &whole, m, out)) return false;
    PyObject *ends = NULL, *zeroed = NULL;
    if (zeroes_ends) {
        const long long first = want->shape[0], count = want->strides[1] - first;
        ends = PyObject_CallMethod(out->object, "narrow", "iLL", 0, first, count);
        if (ends) zeroed = PyObject_CallMethod(ends, "zero_", NULL);
    }
    PyObject *sizes = tuple_of(want->shape, 2), *strides = tuple_of(want->strides, 2), *cut = NULL;
    if (sizes && strides && (zeroed || !zeroes_ends))
        cut = PyObject_CallMethod(out->object, "as_strided_", "OO", sizes, strides);
    const bool ok = cut && out->api->borrow(out->object, &out->tensor) == 0;
    Py_XDECREF(ends);
    Py_XDECREF(zeroed);
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    Py_XDECREF(cut);
    return ok;
}

static bool make_torch_output(const tensor_ref *like, const DLTensor *want, bool zeroes_ends, memo *m, tensor_ref *out)
{
    const bool has_ends =
        want->ndim == 2 && want->strides[0] == 1 && want->strides[1] > want->shape[0] && want->shape[0] > 0;
    return has_ends ? allocate_columns(like, want, zeroes_ends, m, out) : allocate(like, want, m, out);
}

static const char *numpy_name(DLDataType d)
{
    static const char *const names[3][4] = { { "int8", "int16", "int32", "int64" },
                                             { "uint8", "uint16", "uint32", "uint64" },
                                             { NULL, "float16", "float32", "float64" } };
    const int log2_bytes = d.bits == 8 ? 0 : d.bits == 16 ? 1 : d.bits == 32 ? 2 : d.bits == 64 ? 3 : -1;
    if (d.lanes != 1 || log2_bytes < 0) return NULL;
    if (d.code == TGL_DL_BOOL) return "bool";
    return d.code <= TGL_DL_FLOAT ? names[d.code][log2_bytes] : NULL;
}

/* The dtype to make an array of, for empty(): ml_dtypes' own if it is installed; without it FP8 is labelled bytes. */
static PyObject *array_dtype(PyObject *numpy, DLDataType d)
{
    const char *name = numpy_name(d), *other = library_name_of(d);
    if (name) return PyUnicode_FromString(name);
    PyObject *package = other ? PyImport_ImportModule("ml_dtypes") : NULL;
    PyObject *dtype = package ? PyObject_GetAttrString(package, other) : NULL;
    Py_XDECREF(package);
    if (dtype) return dtype;
    PyErr_Clear();
    if (other && d.bits == 8 && d.lanes == 1) return labelled_bytes(numpy, other);
    return PyErr_Format(PyExc_TypeError, "NumPy has no dtype for an output of %s: install ml_dtypes, or give out=",
                        other ? other : "this dtype");
}

/* NumPy and CuPy have empty(), found by the package of the type. JAX's arrays cannot be written: on the CPU one of NumPy
 * becomes one of JAX after the call. Other libraries need out=. */
static bool make_array_output(const tensor_ref *like, PyObject *like_object, const DLTensor *want, tgl_stream stream,
                              tensor_ref *out)
{
    PyObject *shape = NULL, *dtype = NULL, *package = NULL;
    bool is_packed = true, ok = false; /* empty() makes only packed arrays */
    int64_t step = 1;
    for (int d = want->ndim - 1; d >= 0; d--) {
        is_packed &= want->shape[d] <= 1 || want->strides[d] == step;
        step *= want->shape[d] > 1 ? want->shape[d] : 1;
    }
    out->is_for_jax = want->device.device_type == kDLCPU && is_of_jax(like_object);
    if (is_packed && (out->is_for_jax || is_of_package(like_object, "numpy"))) package = PyImport_ImportModule("numpy");
    else if (is_packed && is_of_package(like_object, "cupy")) package = PyImport_ImportModule("cupy");
    else PyErr_Format(PyExc_TypeError, "no output can be made for a %R: give out=", (PyObject *)Py_TYPE(like_object));
    if (package)
        dtype = dtype_is(want->dtype, like->tensor.dtype) ? PyObject_GetAttrString(like_object, "dtype")
                                                          : array_dtype(package, want->dtype);
    if (dtype) shape = tuple_of(want->shape, want->ndim);
    if (shape) out->object = PyObject_CallMethod(package, "empty", "OO", shape, dtype);
    if (out->object) {
        PyObject *made = out->object;
        ok = read_tensor(str_out, made, entry_of(made), stream, out);
        out->tensor.dtype = want->dtype; /* FP8 that is bytes to NumPy */
        out->object = made;
    }
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    Py_XDECREF(package);
    return ok;
}

bool finish_output(tensor_ref *out)
{
    if (!out->is_for_jax) return true;
    PyObject *package = PyImport_ImportModule("jax.numpy");
    PyObject *made = package ? PyObject_CallMethod(package, "asarray", "O", out->object) : NULL;
    Py_XDECREF(package);
    if (!made) return false;
    Py_DECREF(out->object);
    out->object = made;
    return true;
}

bool make_output(const tensor_ref *like, PyObject *like_object, const DLTensor *want, bool zeroes_ends, memo *memory,
                 tgl_stream stream, tensor_ref *out)
{
    out->object = out->capsule = NULL;
    out->api = NULL;
    out->is_read_only = out->is_for_jax = false;
    if (like->is_torch) return make_torch_output(like, want, zeroes_ends, memory, out);
    return make_array_output(like, like_object, want, stream, out);
}
