/* SPDX-License-Identifier: MIT
 * call.c - call_op, the function behind every op: arguments, guards, tensors, outputs, the call.
 *
 * Each row has two builtins. The public one first asks whether torch has to see the call (a subclass, a mode, a
 * gradient) and hands it over if so. The raw one does not ask: it is what torch's dispatcher ends in. */
#include "glue.h"

#include <stdio.h>
#include <string.h>

PyObject *error_type;

/* What the library calls NULL is None here. */
static PyObject *message_of(const char *sentence)
{
    PyObject *text = PyUnicode_DecodeUTF8(sentence, (Py_ssize_t)strlen(sentence), "replace"); /* may name a path */
    PyObject *is_none = text ? PyObject_CallMethod(text, "replace", "ss", ": is NULL, ", ": is None, ") : NULL;
    PyObject *message = is_none ? PyObject_CallMethod(is_none, "replace", "ss", ", want NULL ", ", want None ") : NULL;
    Py_XDECREF(is_none);
    Py_XDECREF(text);
    return message;
}

PyObject *raise_status(tgl_status status)
{
    const char *name = tgl_status_name(status);
    PyObject *type = status == TGL_ERR_ARGUMENT ? PyExc_ValueError
                     : status == TGL_ERR_MEMORY ? PyExc_MemoryError
                                                : error_type;
    PyObject *message = message_of(tgl_last_error());
    PyObject *error = message ? PyObject_CallFunctionObjArgs(type, message, NULL) : NULL;
    PyObject *text = PyUnicode_FromString(name ? name : "TGL_ERR_INTERNAL");
    if (error && text && (type != error_type || PyObject_SetAttrString(error, "status", text) == 0))
        PyErr_SetObject(type, error);
    Py_XDECREF(text);
    Py_XDECREF(error);
    Py_XDECREF(message);
    return NULL;
}

/* ---- arguments ---- */

static int find_keyword(const argument_list *s, PyObject *key)
{
    for (int i = 0; i < s->count; i++)
        if (s->names[i] == key) return i; /* both interned: nearly always */
    for (int i = 0; i < s->count; i++)
        if (PyUnicode_Compare(s->names[i], key) == 0) return i;
    return -1;
}

/* Positional arguments, then keywords, into object[]: borrowed references, NULL if not given. */
static bool sort_arguments(const op_row *row, const argument_list *s, PyObject *const *args, Py_ssize_t n,
                           PyObject *kwnames, PyObject **object, PyObject **out)
{
    if (n > s->num_positions)
        return PyErr_Format(PyExc_TypeError, "%s() takes %d positional arguments, got %zd", row->name, s->num_positions,
                            n),
               false;
    for (Py_ssize_t i = 0; i < n; i++) object[i] = args[i];
    for (Py_ssize_t i = n; i < s->count; i++) object[i] = NULL;
    *out = NULL;
    for (Py_ssize_t k = 0, num_keywords = kwnames ? PyTuple_Size(kwnames) : 0; k < num_keywords; k++) {
        PyObject *key = PyTuple_GetItem(kwnames, k), *given = args[n + k];
        const int i = key == str_out ? -1 : find_keyword(s, key);
        if (i < 0 && row->num_results && (key == str_out || PyUnicode_Compare(key, str_out) == 0)) {
            *out = given == Py_None ? NULL : given;
            continue;
        }
        if (i < 0) return PyErr_Format(PyExc_TypeError, "%s() has no argument %R", row->name, key), false;
        if (object[i]) return PyErr_Format(PyExc_TypeError, "%s(): %U is given twice", row->name, key), false;
        object[i] = given;
    }
    return true;
}

/* The two items of a pair, as borrowed references. Another thread may empty a list, so its items are held. */
static bool open_pair(PyObject *name, PyObject *pair, PyObject *items[2], PyObject **held, int *num_held)
{
    const bool is_list = PyList_Check(pair);
    const Py_ssize_t n = is_list ? PyList_Size(pair) : PyTuple_Size(pair);
    if (n != 2) return PyErr_Format(PyExc_ValueError, "%U: has %zd items, want 2", name, n), false;
    for (int k = 0; k < 2; k++) {
        items[k] = is_list ? PyList_GetItem(pair, k) : PyTuple_GetItem(pair, k);
        if (is_list) Py_INCREF(held[(*num_held)++] = items[k]);
    }
    return true;
}

/* Spreads the public function's arguments over the row's parameters: a pair goes to two of them. A tensor alone
 * is a pair without its second item, if that is optional; None is a pair that has a default. */
static bool spread(const op_row *row, PyObject *const *slot, PyObject **object, PyObject **held, int *num_held)
{
    for (int i = 0; i < row->num_params; i++) object[i] = NULL;
    for (int i = 0; i < row->public.count; i++) {
        const argument *a = &row->arguments[i];
        PyObject *given = slot[i], *name = row->public.names[i], *items[2] = { Py_None, Py_None };
        if (!given && !a->has_default)
            return PyErr_Format(PyExc_TypeError, "%s(): %U is missing", row->name, name), false;
        if (a->second < 0) {
            object[a->first] = given;
            continue;
        }
        const param *second = &row->params[a->second];
        if (given && (PyTuple_Check(given) || PyList_Check(given))) {
            if (!open_pair(name, given, items, held, num_held)) return false;
        } else if (given && second->kind == 't' && second->optional) {
            items[0] = given;
        } else if (given && (given != Py_None || !a->has_default)) {
            return PyErr_Format(PyExc_TypeError, "%U: is %R, want a pair", name, (PyObject *)Py_TYPE(given)), false;
        }
        object[a->first] = items[0];
        object[a->second] = items[1];
    }
    return true;
}

static void raise_unknown_word(const param *p, PyObject *object)
{
    PyObject *list = PyUnicode_FromString("");
    for (int i = 0; list && i < p->num_words; i++) {
        PyObject *longer = PyUnicode_FromFormat("%U%s%R", list, i ? ", " : "", p->words[i]);
        Py_DECREF(list);
        list = longer;
    }
    const char *none = p->optional ? "None or " : "";
    const char *one = p->optional && p->num_words == 1 ? "" : "one of ";
    if (list) PyErr_Format(PyExc_ValueError, "%U: is %R, want %s%s%U", p->name, object, none, one, list);
    Py_XDECREF(list);
}

/* TileKernels reads scoring functions in either case; dtypes are lower case. -1: no such word. */
static int word_in_either_case(const param *p, PyObject *object)
{
    PyObject *lower = PyUnicode_Check(object) ? PyObject_CallMethod(object, "lower", NULL) : NULL;
    int found = -1;
    for (int i = 0; lower && i < p->num_words; i++)
        if (p->word_bits[i] == 0 && PyUnicode_Compare(p->words[i], lower) == 0) found = i;
    Py_XDECREF(lower);
    PyErr_Clear();
    return found;
}

static bool is_numpy_bool(PyObject *object)
{
    PyObject *type = (PyObject *)Py_TYPE(object), *module = PyObject_GetAttrString(type, "__module__"),
             *name = PyObject_GetAttrString(type, "__name__");
    const bool yes = module && name && PyUnicode_Check(module) && PyUnicode_Check(name) &&
                     PyUnicode_CompareWithASCIIString(module, "numpy") == 0 &&
                     (PyUnicode_CompareWithASCIIString(name, "bool") == 0 ||
                      PyUnicode_CompareWithASCIIString(name, "bool_") == 0); /* before NumPy 2 */
    Py_XDECREF(name);
    Py_XDECREF(module);
    PyErr_Clear();
    return yes;
}

/* 0 or 1 for 0, 1 and NumPy's bools; -1 for anything else, even if it equals them: 1.0 is a mistake, and reading a
 * tensor of one value would wait for the device. */
static int truth_of(PyObject *object)
{
    if (PyLong_Check(object)) {
        const long i = PyLong_AsLong(object);
        PyErr_Clear(); /* too large for a long */
        return i == 0 || i == 1 ? (int)i : -1;
    }
    return is_numpy_bool(object) ? PyObject_IsTrue(object) : -1;
}

/* Replaces a conversion's own error, which does not name the argument. */
static void raise_unfit(const param *p, PyObject *object, const char *want, const char *want_smaller)
{
    const bool is_too_large = PyErr_ExceptionMatches(PyExc_OverflowError);
    if (!is_too_large && !PyErr_ExceptionMatches(PyExc_TypeError)) return; /* from the object's own code */
    PyErr_Clear();
    PyErr_Format(is_too_large ? PyExc_OverflowError : PyExc_TypeError, "%U: is %R, want %s", p->shown, object,
                 is_too_large ? want_smaller : want);
}

static bool read_scalar(const param *p, PyObject *object, value *v)
{
    v->given = !(object == Py_None && p->optional);
    if (!v->given) return v->i = 0, true;
    switch (p->kind) {
    case 'i':
        v->i = PyLong_AsLongLong(object);
        if (v->i != -1 || !PyErr_Occurred()) return true;
        raise_unfit(p, object, "an integer", "an integer of 64 bits");
        break;
    case 'f':
        v->f = PyFloat_AsDouble(object);
        if (v->f != -1 || !PyErr_Occurred()) return true;
        raise_unfit(p, object, "a number", "a number that a double can hold");
        break;
    case 'b':
        v->i = object == Py_True;
        if (v->i || object == Py_False || (v->i = truth_of(object)) >= 0) return true;
        PyErr_Format(PyExc_TypeError, "%U: is %R, want True or False", p->name, object);
        break;
    default:
        for (int i = 0; i < p->num_words; i++)
            if (p->words[i] == object) return v->i = i, true;
        for (int i = 0; PyUnicode_Check(object) && i < p->num_words; i++)
            if (PyUnicode_Compare(p->words[i], object) == 0) return v->i = i, true;
        if ((v->i = word_in_either_case(p, object)) >= 0) return true;
        raise_unknown_word(p, object);
    }
    return false;
}

/* Checks a call whose tensors have no data. `arguments` is a tuple of the row's arguments in order, with a tuple of
 * sizes in place of a tensor. Leaves the scalars in v, and whether an argument is given. */
bool check_arguments(const op_row *row, PyObject *arguments, value v[MAX_PARAMS])
{
    frame f;
    DLTensor tensors[MAX_PARAMS];
    int64_t sizes[MAX_PARAMS][MAX_DIMS];
    for (int i = 0; i < row->num_params; i++) {
        const param *p = &row->params[i];
        PyObject *object = PyTuple_GetItem(arguments, i);
        if (!object || (p->kind != 't' && !read_scalar(p, object, &f.arg[i]))) return false;
        if (p->kind != 't') continue;
        f.arg[i] = (value){ .tensor = object == Py_None ? NULL : &tensors[i], .given = object != Py_None };
        if (!f.arg[i].tensor) continue;
        const Py_ssize_t ndim = PyTuple_Size(object);
        if (ndim < 0) return false;
        if (ndim != p->ndim)
            return PyErr_Format(PyExc_ValueError, "%U: has %zd dimensions, want %d", p->name, ndim, p->ndim), false;
        tensors[i] = (DLTensor){ .ndim = p->ndim, .shape = sizes[i] };
        for (int d = 0; d < p->ndim; d++) {
            sizes[i][d] = PyLong_AsLongLong(PyTuple_GetItem(object, d));
            if (sizes[i][d] == -1 && PyErr_Occurred()) return false;
        }
    }
    memcpy(v, f.arg, (size_t)row->num_params * sizeof *v);
    return !row->check || row->check(&f);
}

bool raise_not_within(const char *name, long long is, long long low, long long high)
{
    if (high == INT64_MAX) PyErr_Format(PyExc_ValueError, "%s: is %lld, want >= %lld", name, is, low);
    else PyErr_Format(PyExc_ValueError, "%s: is %lld, want %lld..%lld", name, is, low, high);
    return false;
}

/* ---- a call ---- */

/* A call on its way through the steps at the end of this file. It is 9 KB and not cleared: each step sets its part. */
typedef struct {
    op_row *row;
    bool is_public, is_guarded;      /* guarded: torch may have to see the call */
    bool has_torch, has_foreign;     /* among the tensors; foreign: without the exchange API */
    bool may_want_gradient;          /* floating-point inputs are asked for requires_grad */
    PyObject *const *object, *given; /* the row's arguments, NULL if not given; out=, or NULL */
    PyObject *taken[MAX_RESULTS];    /* the outputs in `given`; NULL: to be made */
    bool is_whole;                   /* `given` is exactly a tuple and has all outputs: it is also the answer */
    PyObject *const *args, *kwnames; /* the arguments as Python passed them, for the dispatcher */
    Py_ssize_t num_args;
    type_entry entry[MAX_PARAMS];
    frame f;
    tensor_ref in[MAX_PARAMS], out[MAX_RESULTS];
    int num_in, num_out; /* how many to drop at the end; in[] is indexed by row->tensors */
    PyObject *answer;    /* NULL with an exception */
} call;

/* ---- the other ways of a call ---- */

/* A Function's apply() takes no keywords: all arguments go by position, defaults too. */
static PyObject *call_function(const call *c, PyObject *function)
{
    const op_row *row = c->row;
    PyObject *args = PyTuple_New(row->num_params), *answer = NULL;
    for (int i = 0; args && i < row->num_params; i++) {
        PyObject *o = c->object[i];
        if (o) Py_INCREF(o);
        else o = default_of(&row->params[i]);
        if (!o || PyTuple_SetItem(args, i, o)) Py_CLEAR(args);
    }
    if (args) answer = PyObject_Call(function, args, NULL);
    Py_XDECREF(args);
    return answer;
}

static PyObject *call_dispatcher(const call *c)
{
    const Py_ssize_t n = c->num_args, num_keywords = c->kwnames ? PyTuple_Size(c->kwnames) : 0;
    PyObject *positions = PyTuple_New(n), *kw = PyDict_New(), *answer = NULL;
    for (Py_ssize_t i = 0; positions && i < n; i++) {
        Py_INCREF(c->args[i]);
        PyTuple_SetItem(positions, i, c->args[i]);
    }
    for (Py_ssize_t k = 0; kw && k < num_keywords; k++)
        if (PyDict_SetItem(kw, PyTuple_GetItem(c->kwnames, k), c->args[n + k])) Py_CLEAR(kw);
    if (positions && kw) answer = PyObject_Call(c->row->dispatch, positions, kw);
    Py_XDECREF(positions);
    Py_XDECREF(kw);
    return answer;
}

static bool says_true(const builtin *function) /* of torch, without arguments: 10 to 30 ns */
{
    PyObject *answer = call_builtin(function, NULL);
    const bool yes = answer == Py_True;
    if (!answer) PyErr_Clear();
    Py_XDECREF(answer);
    return yes;
}

static bool is_given(PyObject *object) { return object && object != Py_None; }

static bool requires_grad(PyObject *object)
{
    PyObject *answer = torch.get_requires_grad && entry_of(object).kind == PLAIN
                           ? torch.get_requires_grad(torch.requires_grad, object, NULL)
                           : PyObject_GetAttrString(object, "requires_grad");
    const bool yes = answer == Py_True;
    if (!answer) PyErr_Clear(); /* another library's array has no such attribute */
    Py_XDECREF(answer);
    return yes;
}

/* Inside `with torch.autograd.forward_ad.dual_level():` a tensor may have a tangent. There is no cheap way to ask a
 * tensor. */
static bool is_forward_ad(void)
{
    PyObject *level = PyDict_GetItemWithError(torch.forward_ad, str_current_level); /* borrowed; -1 outside */
    const bool yes = level && PyLong_AsLong(level) >= 0;
    PyErr_Clear();
    return yes;
}

static bool is_floating(DLDataType d) { return d.code != TGL_DL_INT && d.code != TGL_DL_UINT && d.code != TGL_DL_BOOL; }

typedef enum { DIRECT, DIRECT_UNLESS_WANTED, DISPATCH, TRANSFORM, NO_GRADIENT } route;

/* Under a dispatch mode (fake tensors, a tracer, a counter) the dispatcher must see the call. Otherwise it goes
 * straight to C, unless a gradient is wanted. An input is asked for requires_grad once its dtype is known: 50 ns for
 * each of floating point. Function modes are ignored: torch.set_default_device() is one, and would make every call
 * slow. */
static route choose_route(const call *c)
{
    const op_row *row = c->row;
    PyObject *const *object = c->object, *out = c->given;
    PyObject *depth = call_builtin(&torch.dispatch_depth, NULL);
    const long num_modes = depth ? PyLong_AsLong(depth) : 1;
    Py_XDECREF(depth);
    if (num_modes) return PyErr_Clear(), DISPATCH;
    if (row->has_float_output && is_forward_ad()) return out ? NO_GRADIENT : TRANSFORM;
    if (!row->has_float_output && !out && !row->has_in_place) return DIRECT;
    if (!says_true(&torch.is_grad_enabled)) return DIRECT;
    bool is_lost = false; /* a gradient that would be lost */
    for (int i = 0; out && !is_lost && i < row->num_results; i++)
        is_lost = c->taken[i] && may_require_grad(&row->results[i]) && requires_grad(c->taken[i]);
    for (int i = 0; row->has_in_place && !is_lost && i < row->num_params; i++) /* no output has what is lost */
        is_lost = row->params[i].kind == 't' && (row->params[i].is_in_place || row->num_results == 0) &&
                  is_given(object[i]) && requires_grad(object[i]);
    return is_lost ? NO_GRADIENT : row->has_float_output ? DIRECT_UNLESS_WANTED : DIRECT;
}

static PyObject *raise_no_gradient(const call *c)
{
    return PyErr_Format(PyExc_RuntimeError, "%s(): %s has no gradient, but an argument requires one", c->row->name,
                        c->given ? "out=" : "a write in place");
}

/* ---- outputs ---- */

static bool is_on_known_device(const DLTensor *t)
{
    const int type = (int)t->device.device_type;
    return type == TGL_DL_CPU || type == TGL_DL_CUDA || type == TGL_DL_CUDA_HOST || type == TGL_DL_CUDA_MANAGED;
}

static bool is_on_gpu(const DLTensor *t)
{
    const int type = (int)t->device.device_type;
    return type == TGL_DL_CUDA || type == TGL_DL_CUDA_MANAGED;
}

static int64_t value_of(const op_row *row, const factor *q, const frame *f)
{
    if (q->param < 0) return q->constant;
    const value *v = &f->arg[q->param];
    if (q->axis >= 0) return v->tensor->shape[q->axis];
    const param *p = &row->params[q->param];
    return p->kind == 'e' ? p->word_bits[v->i] : p->kind == 't' ? values_per_element(v->tensor->dtype) : v->i;
}

static bool evaluate(const op_row *row, const extent *e, const frame *f, int64_t *out)
{
    int64_t sum = 0, product = 1;
    for (int k = 0; k < e->count; k++) {
        const factor *q = &e->f[k];
        const int64_t x = value_of(row, q, f);
        if (q->op == '+') {
            if (__builtin_add_overflow(sum, product, &sum)) return false;
            product = x;
        } else if (q->op == '/') {
            if (x <= 0 && q->axis < 0)
                PyErr_Format(PyExc_ValueError, "%U: is %lld, want >= 1", row->params[q->param].shown, (long long)x);
            if (x <= 0) return false;
            product = product / x + (product % x != 0);
        } else if (__builtin_mul_overflow(product, x, &product)) return false;
    }
    return !__builtin_add_overflow(sum, product, out) && *out >= 0;
}

static void raise_impossible_size(const op_row *row, int i, const result *o, const frame *f)
{
    for (int d = 0; d < o->ndim; d++)
        for (int k = 0; k < o->size[d].count; k++) {
            const factor *q = &o->size[d].f[k];
            if (q->param < 0 || q->axis >= 0 || row->params[q->param].kind != 'i') continue;
            const value *v = &f->arg[q->param];
            if (v->i >= 0) continue;
            PyErr_Format(PyExc_ValueError, "%U: is %lld, want >= 0", row->params[q->param].name, (long long)v->i);
            return;
        }
    PyErr_Format(PyExc_ValueError, "%s(): output %d would have an impossible size", row->name, i);
}

/* Of the two forms of an output, the one that the arguments choose. */
static const result *chosen_result(const op_row *row, int i, const frame *f)
{
    const result *o = &row->results[i];
    if (o->chosen_by < 0) return o;
    const value *v = &f->arg[o->chosen_by];
    const char kind = row->params[o->chosen_by].kind;
    const bool is_this = kind == 't' ? (bool)v->tensor : kind == 'e' ? v->given : (bool)v->i;
    return is_this ? o : &row->results[o->otherwise];
}

/* Output i as the row describes it: dtype, shape and strides, which are stored in dims. */
static bool describe_output(const op_row *row, int i, const frame *f, DLTensor *want, int64_t dims[2 * MAX_DIMS])
{
    const result *o = chosen_result(row, i, f);
    *want = (DLTensor){ .device = f->arg[row->first_tensor].tensor->device,
                        .dtype = o->dtype,
                        .ndim = o->ndim,
                        .shape = dims,
                        .strides = dims + MAX_DIMS };
    if ((int)want->device.device_type == TGL_DL_CUDA_HOST) want->device = (DLDevice){ kDLCPU, 0 };
    if (o->dtype_from >= 0) {
        const param *p = &row->params[o->dtype_from];
        const value *v = &f->arg[o->dtype_from];
        want->dtype = p->kind == 't' ? v->tensor->dtype : p->word_dtype[v->i];
    }
    const bool is_packed = o->is_packed || (o->strided_if >= 0 && !f->arg[o->strided_if].i);
    int64_t step = 1;
    for (int d = o->ndim - 1; d >= 0; d--) {
        const bool sized = evaluate(row, &o->size[d], f, &want->shape[d]);
        want->strides[d] = step;
        if (!sized || (!is_packed && !evaluate(row, &o->stride[d], f, &want->strides[d])) ||
            __builtin_mul_overflow(step, want->shape[d] > 1 ? want->shape[d] : 1, &step)) {
            if (!PyErr_Occurred()) raise_impossible_size(row, i, o, f);
            return false;
        }
    }
    return true;
}

/* The message starts with "out: ", or with "out[1]: " if there are several. */
static bool raise_given(const op_row *row, int i, PyObject *message)
{
    if (message && row->num_results > 1) PyErr_Format(PyExc_ValueError, "out[%d]: %U", i, message);
    else if (message) PyErr_Format(PyExc_ValueError, "out: %U", message);
    Py_XDECREF(message);
    return false;
}

static void write_dims(const int64_t *v, int n, char text[24 * MAX_DIMS])
{
    for (int d = 0, used = 0; d < n; d++) used += snprintf(text + used, 24, d ? ", %lld" : "%lld", (long long)v[d]);
}

static void strides_of(const DLTensor *t, int64_t out[MAX_DIMS])
{
    int64_t step = 1;
    for (int d = t->ndim - 1; d >= 0; step *= t->shape[d--]) out[d] = t->strides ? t->strides[d] : step;
}

/* 4 for a stride such as T / 4 * 4: its multiple. */
static int64_t unit_of(const extent *e)
{
    const factor *last = &e->f[e->count - 1];
    return e->count > 1 && last->op == '*' && last->param < 0 ? last->constant : 1;
}

/* Whether the dimension that an argument chose has stride 1 and, if a user gave the tensor, the distance of columns is
 * a multiple of the stride's unit: TMA wants 16 bytes. A dimension of size 1 may have any stride. */
static bool has_layout(const result *o, bool is_packed, bool is_public, const DLTensor *seen, const int64_t *strides)
{
    for (int d = 0; d < o->ndim; d++)
        if (seen->shape[d] == 0) return true;
    for (int d = 0; d < o->ndim; d++) {
        const extent *e = &o->stride[d];
        const bool is_one = is_packed ? d == o->ndim - 1 : e->count == 1 && e->f[0].constant == 1;
        if (seen->shape[d] < 2) continue;
        if (is_one && strides[d] != 1) return false;
        if (!is_packed && is_public && strides[d] % unit_of(e)) return false;
    }
    return true;
}

/* How many bytes its memory begins past a multiple of a column's unit. */
static uintptr_t misalignment(const result *o, const DLTensor *seen, uintptr_t *unit)
{
    *unit = 1;
    for (int d = 0; d < o->ndim; d++) {
        const uintptr_t bytes = (uintptr_t)(unit_of(&o->stride[d]) * seen->dtype.bits * seen->dtype.lanes / 8);
        if (seen->shape[d] == 0) return 0;
        if (bytes > *unit) *unit = bytes;
    }
    return ((uintptr_t)seen->data + (uintptr_t)seen->byte_offset) % *unit;
}

/* An output in out= must have the shape that follows from the arguments, and the layout if one of them sets it. Its
 * dtype and other strides are checked by the op. Compiled code passes the operator copies without padding between
 * columns and copies them back, so padding is checked in public calls only. */
static bool check_given(const call *c, int i, const result *o, const DLTensor *seen)
{
    const op_row *row = c->row;
    const frame *f = &c->f;
    int64_t size, dims[2 * MAX_DIMS], strides[MAX_DIMS];
    char is[24 * MAX_DIMS], wants[24 * MAX_DIMS];
    DLTensor want;
    bool has_shape = true;
    for (int d = 0; d < o->ndim; d++) has_shape &= evaluate(row, &o->size[d], f, &size) && size == seen->shape[d];
    if (!has_shape) {
        if (!describe_output(row, i, f, &want, dims)) return false;
        write_dims(seen->shape, o->ndim, is);
        write_dims(want.shape, o->ndim, wants);
        return raise_given(row, i, PyUnicode_FromFormat("shape is [%s], want [%s]", is, wants));
    }
    const bool is_told = o->strided_if >= 0 || (o->chosen_by >= 0 && !o->is_packed);
    if (!is_told) return true;
    const bool is_packed = o->strided_if >= 0 && !f->arg[o->strided_if].i;
    strides_of(seen, strides);
    if (!has_layout(o, is_packed, c->is_public, seen, strides)) {
        if (!describe_output(row, i, f, &want, dims)) return false;
        write_dims(strides, o->ndim, is);
        write_dims(want.strides, o->ndim, wants);
        const char *more = is_packed ? "" : ", or columns a larger multiple of 16 bytes apart";
        return raise_given(row, i, PyUnicode_FromFormat("strides are [%s], want [%s]%s", is, wants, more));
    }
    uintptr_t unit, past;
    if (is_packed || !c->is_public || !(past = misalignment(o, seen, &unit))) return true;
    PyObject *text = PyUnicode_FromFormat("address is %d bytes past a multiple of %d, want a multiple of %d (for TMA)",
                                          (int)past, (int)unit, (int)unit);
    return raise_given(row, i, text);
}

static bool take_output(const call *c, int i, tensor_ref *out)
{
    const op_row *row = c->row;
    const result *o = chosen_result(row, i, &c->f);
    PyObject *object = c->taken[i];
    const type_entry entry = entry_of(object);
    if (!read_tensor(str_out, object, entry, c->f.stream, out)) return false;
    if (out->tensor.ndim != o->ndim)
        return raise_given(row, i, PyUnicode_FromFormat("has %d dimensions, want %d", out->tensor.ndim, o->ndim));
    if (!check_given(c, i, o, &out->tensor)) return false;
    if (entry.kind == PLAIN && is_lazy(object, &out->tensor))
        return raise_given(row, i, PyUnicode_FromString("is conjugated or negated, want a plain tensor"));
    if (out->is_read_only) return raise_given(row, i, PyUnicode_FromString("is read-only, want writable memory"));
    Py_INCREF(object);
    out->object = object;
    return true;
}

/* By its version counter autograd notices that a saved tensor was overwritten. Other libraries' arrays have none. One
 * call for all tensors: it costs 200 ns, plus 100 ns per tensor. */
static bool count_writes(const call *c)
{
    const op_row *row = c->row;
    PyObject *written[MAX_PARAMS + MAX_RESULTS], *list, *none = NULL;
    int n = 0;
    for (int i = 0; row->has_in_place && i < row->num_params; i++)
        if (row->params[i].is_in_place && is_given(c->object[i]) && c->in[i].is_torch) written[n++] = c->object[i];
    const int num_inputs = n;
    for (int i = 0; i < row->num_results; i++)
        if (c->taken[i] && c->out[i].is_torch) written[n++] = c->out[i].object;
    if (n == 0) return true;
    if (num_inputs == 0 && n == row->num_results && c->is_whole) Py_INCREF(list = c->given);
    else if (!(list = PyTuple_New(n))) return false;
    for (int i = 0; list != c->given && i < n; i++) {
        Py_INCREF(written[i]);
        PyTuple_SetItem(list, i, written[i]);
    }
    none = call_builtin(&torch.increment_version, list);
    Py_DECREF(list);
    Py_XDECREF(none);
    return none;
}

/* ---- the call ---- */

/* With arrays of several libraries, the call runs on the current stream of the first library that tells its own; the
 * others are asked to make their data ready for that stream. */
static bool common_stream(call *c)
{
    const op_row *row = c->row;
    for (int i = 0; i < row->num_params + row->num_results; i++) {
        const int k = i - row->num_params;
        PyObject *o = k >= 0 ? c->taken[k] : row->params[i].kind == 't' ? c->object[i] : NULL;
        const exchange_api *api = o ? entry_of(o).api : NULL;
        DLTensor t;
        if (!api) continue;
        if (api->borrow(o, &t) == 0) return stream_of(api, &t, &c->f.stream);
        PyErr_Clear(); /* read_tensor() will raise it again */
    }
    return true;
}

/* A hash of all that can be part of a kernel's key: dtypes, scalars, and sizes except the first, which counts tokens.
 * A wrong guess is harmless: the GIL is released or kept without need. */
static uint64_t signature_of(const op_row *row, const frame *f)
{
    uint64_t h = (uint64_t)f->arg[row->first_tensor].tensor->device.device_id + 1;
    for (int i = 0; i < row->num_params; i++) {
        const DLTensor *t = row->params[i].kind == 't' ? f->arg[i].tensor : NULL;
        uint64_t v = 0; /* an absent tensor */
        if (t) v = (uint64_t)t->dtype.code << 8 | t->dtype.bits;
        else if (row->params[i].kind != 't') v = (uint64_t)f->arg[i].i;
        for (int d = 0;; d++) {
            h = (h ^ v) * 0x9E3779B97F4A7C15u;
            h ^= h >> 29;
            if (!t || d + 1 >= t->ndim) break;
            v = (uint64_t)t->shape[d + 1];
        }
    }
    return h | 1; /* 0 marks an empty slot */
}

/* Warm CUDA calls keep the GIL: a launch takes less time than getting the GIL back from a thread that wants it. CPU
 * calls release it, and so do CUDA calls of a new signature, which may compile for a tenth of a second. */
static tgl_status run(call *c)
{
    op_row *row = c->row;
    const frame *f = &c->f;
    const uint64_t signature = signature_of(row, f);
    uint64_t *warm = &row->warm[signature >> 32 & (WARM_CALLS - 1)];
    if (is_on_gpu(f->arg[row->first_tensor].tensor) && *warm == signature) return row->call(f);
    for (int i = 0; i < row->num_params; i++)
        if (row->params[i].kind == 't' && f->arg[i].tensor) hold_dims(&c->in[i]);
    for (int i = 0; i < row->num_results; i++) hold_dims(&c->out[i]);
    PyThreadState *const thread = PyEval_SaveThread(); /* other threads run Python meanwhile */
    const tgl_status status = row->call(f);
    PyEval_RestoreThread(thread);
    if (status == TGL_OK) *warm = signature;
    return status;
}

/* The library keeps workspaces per stream and per captured graph. run_and_answer() zeroes one again after a failed
 * launch, which may have written anything to it. */
static tgl_status take_workspace(call *c)
{
    const op_row *row = c->row;
    frame *f = &c->f;
    const DLTensor *on = f->arg[row->first_tensor].tensor;
    f->workspace = NULL;
    f->workspace_bytes = row->workspace && is_on_gpu(on) ? row->workspace(f) : 0;
    if (f->workspace_bytes == 0) return TGL_OK;
    const int device = on->device.device_id;
    const tgl_status status = tgl_workspace_get(device, f->workspace_bytes, f->stream, &f->workspace);
    if (!f->workspace) f->workspace_bytes = 0; /* while preparing, too */
    return status;
}

/* One output itself, or a tuple of several; takes over the references in out[]. */
static PyObject *pack_answer(call *c)
{
    const int n = c->row->num_results;
    if (n == 0) Py_RETURN_NONE;
    if (c->is_whole) return Py_INCREF(c->given), c->given;
    for (int i = 0; c->has_foreign && i < n; i++)
        if (!c->taken[i] && !finish_output(&c->out[i])) return NULL;
    PyObject *answer = n == 1 ? c->out[0].object : PyTuple_New(n);
    for (int i = 0; n > 1 && answer && i < n; i++) PyTuple_SetItem(answer, i, c->out[i].object);
    for (int i = 0; answer && i < n; i++) c->out[i].object = NULL;
    return answer;
}

/* Each step returns whether the call goes on. If not, c->answer is the answer, or NULL with an exception. */
static bool answer_with(call *c, PyObject *answer)
{
    c->answer = answer;
    return false;
}

/* Notes the kind of a tensor; false where torch's dispatcher has to see the call. */
static bool note_tensor(call *c, type_entry e)
{
    c->has_torch |= e.kind == PLAIN;
    c->has_foreign |= !e.api;
    return !c->is_guarded || e.kind != OVERRIDES;
}

/* Scalars, and what kinds of tensors there are. */
static bool read_arguments(call *c)
{
    const op_row *row = c->row;
    c->has_torch = c->has_foreign = false;
    for (int i = 0; i < row->num_params; i++) {
        const param *p = &row->params[i];
        PyObject *object = c->object[i];
        if (!object) {
            if (!p->has_default) return PyErr_Format(PyExc_TypeError, "%s(): %U is missing", row->name, p->name), false;
            c->f.arg[i] = p->fallback;
        } else if (p->kind != 't') {
            if (!read_scalar(p, object, &c->f.arg[i])) return false;
        } else if (object == Py_None && p->optional) {
            c->f.arg[i] = p->fallback;
        } else {
            c->entry[i] = entry_of(object);
            if (!note_tensor(c, c->entry[i])) return answer_with(c, call_dispatcher(c));
        }
    }
    if (c->given && row->num_results > 1 && (!PyTuple_Check(c->given) || PyTuple_Size(c->given) != row->num_results)) {
        PyErr_Format(PyExc_TypeError, "out: is a %R, want a tuple of %d tensors", (PyObject *)Py_TYPE(c->given),
                     row->num_results);
        return false;
    }
    c->is_whole = c->given && row->num_results > 1 && PyTuple_CheckExact(c->given);
    for (int i = 0; i < row->num_results; i++) {
        PyObject *object = c->given && row->num_results > 1 ? PyTuple_GetItem(c->given, i) : c->given;
        if (object == Py_None) object = NULL;
        c->taken[i] = object;
        c->is_whole &= (bool)object;
        if (object && !note_tensor(c, entry_of(object))) return answer_with(c, call_dispatcher(c));
    }
    return true;
}

static bool pass_guards(call *c)
{
    if (!c->is_guarded || !c->has_torch) return true;
    switch (choose_route(c)) {
    case DIRECT: break;
    case DIRECT_UNLESS_WANTED: c->may_want_gradient = true; break;
    case TRANSFORM: return answer_with(c, call_function(c, c->row->transform));
    case NO_GRADIENT: return answer_with(c, raise_no_gradient(c));
    case DISPATCH: return answer_with(c, call_dispatcher(c));
    }
    return true;
}

/* For tensors without memory: meta and sparse ones, and torch.func's wrappers, whose type is torch.Tensor too. */
static PyObject *leave_to_torch(const call *c, bool is_read)
{
    PyErr_Clear();
    const bool is_wrapper = !is_read && c->row->transform != Py_None && !c->given && says_true(&torch.has_transform);
    return is_wrapper ? call_function(c, c->row->transform) : call_dispatcher(c);
}

static PyObject *differentiate(const call *c)
{
    if (c->given) return raise_no_gradient(c);
    return call_function(c, says_true(&torch.has_transform) ? c->row->transform : c->row->gradient);
}

/* Rows of x are independent: with more dimensions x is rows all the same, and float16 is exact in float32. */
static bool is_to_adapt(const call *c, int i)
{
    const op_row *row = c->row;
    const DLTensor *t = &c->in[i].tensor;
    if (!row->adapts || !c->is_public || i != row->first_tensor) return false;
    for (int k = i + 1; k < row->num_params; k++) /* codes and factors have their own rules */
        if (row->params[k].kind == 't' && is_given(c->object[k])) return false;
    const bool is_f16 = dtype_is(t->dtype, (DLDataType){ TGL_DL_FLOAT, 16, 1 });
    return t->ndim > row->params[i].ndim ? !c->given : is_f16 && t->ndim == row->params[i].ndim;
}

static PyObject *call_adapter(const call *c)
{
    PyObject *module = PyImport_ImportModule("tegula._adapt");
    PyObject *adapt = module ? PyObject_GetAttrString(module, "adapt") : NULL, *answer = NULL;
    const Py_ssize_t num_keywords = c->kwnames ? PyTuple_Size(c->kwnames) : 0;
    PyObject *args = PyTuple_New(c->num_args + 1), *kw = PyDict_New(), *name = PyUnicode_FromString(c->row->name);
    if (args && name) PyTuple_SetItem(args, 0, name);
    for (Py_ssize_t i = 0; args && i < c->num_args; i++) {
        Py_INCREF(c->args[i]);
        PyTuple_SetItem(args, i + 1, c->args[i]);
    }
    for (Py_ssize_t k = 0; kw && k < num_keywords; k++)
        if (PyDict_SetItem(kw, PyTuple_GetItem(c->kwnames, k), c->args[c->num_args + k])) Py_CLEAR(kw);
    if (adapt && args && name && kw) answer = PyObject_Call(adapt, args, kw);
    Py_XDECREF(kw);
    Py_XDECREF(args);
    Py_XDECREF(adapt);
    Py_XDECREF(module);
    return answer;
}

/* Names the function for code under jax.jit, whose tracers have no memory. */
static bool raise_unread(const call *c, PyObject *name, PyObject *object)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (!PyErr_GivenExceptionMatches(type, PyExc_TypeError) || !is_of_jax(object))
        return PyErr_Restore(type, error, trace), false;
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    PyErr_Format(PyExc_TypeError, "%U: is a %R, want a tensor; under jax.jit call tegula.jax.%s", name,
                 (PyObject *)Py_TYPE(object), c->row->name);
    return false;
}

static bool read_input(call *c, int i)
{
    const param *p = &c->row->params[i];
    PyObject *object = c->object[i];
    tensor_ref *ref = &c->in[i];
    const DLTensor *t = &ref->tensor;
    ref->object = ref->capsule = NULL;
    ref->is_torch = false;
    if (!object || (object == Py_None && p->optional)) return true;
    const bool is_read = read_tensor(p->name, object, c->entry[i], c->f.stream, ref);
    if (c->is_guarded && c->entry[i].kind == PLAIN && (!is_read || is_hollow(t) || is_lazy(object, t)))
        return answer_with(c, leave_to_torch(c, is_read));
    if (!is_read) return raise_unread(c, p->name, object);
    if (c->may_want_gradient && is_floating(t->dtype) && requires_grad(object)) return answer_with(c, differentiate(c));
    c->f.arg[i].tensor = &ref->tensor;
    if (is_to_adapt(c, i)) return answer_with(c, call_adapter(c));
    if (t->ndim != p->ndim) PyErr_Format(PyExc_ValueError, "%U: has %d dimensions, want %d", p->name, t->ndim, p->ndim);
    else if (p->is_in_place && ref->is_read_only)
        PyErr_Format(PyExc_ValueError, "%U: is read-only, want writable memory", p->name);
    else if (!is_on_known_device(t))
        PyErr_Format(PyExc_ValueError, "%U: is on an unknown device, want CPU or CUDA", p->name);
    else return true;
    return false;
}

/* Whether the size of an output counts the values in elements of tensor i, so that its dtype tells their format. */
static bool counts_values_of(const call *c, int i)
{
    for (int k = 0; k < c->row->num_results; k++) {
        const result *o = chosen_result(c->row, k, &c->f);
        for (int d = 0; d < o->ndim; d++)
            for (int n = 0; n < o->size[d].count; n++)
                if (o->size[d].f[n].param == i && o->size[d].f[n].axis < 0) return true;
    }
    return false;
}

/* NumPy's uint8 may be pairs of e2m1 or bytes of e4m3, as it has no dtype for either: one guess would be silently wrong. torch,
 * others with the exchange API and JAX have dtypes for FP8. */
static bool check_bytes(const call *c)
{
    const op_row *row = c->row;
    for (int k = 0; row->face && k < row->public.count; k++) {
        const int i = row->arguments[k].first, sf = row->arguments[k].second;
        if (sf < 0 || row->params[sf].kind != 't' || !c->f.arg[sf].tensor || c->entry[i].api) continue;
        if (!dtype_is(c->in[i].tensor.dtype, (DLDataType){ TGL_DL_UINT, 8, 1 }) || is_of_jax(c->object[i]) ||
            !counts_values_of(c, i))
            continue;
        PyErr_Format(PyExc_ValueError,
                     "%U: is uint8, want int8 for e2m1 or ml_dtypes.float8_e4m3fn for e4m3: view() it as one",
                     row->params[i].name);
        return false;
    }
    return true;
}

static bool read_inputs(call *c)
{
    const op_row *row = c->row;
    const tensor_ref *first = &c->in[row->first_tensor];
    c->f.stream = NULL;
    if (c->has_foreign && !common_stream(c)) return false;
    while (c->num_in < row->num_tensors)
        if (!read_input(c, row->tensors[c->num_in++])) return false;
    if (row->check && !row->check(&c->f)) return false;
    if (c->has_foreign && !check_bytes(c)) return false;
    return c->has_foreign || stream_of(first->api, &first->tensor, &c->f.stream);
}

static bool prepare_outputs(call *c)
{
    op_row *row = c->row;
    const int first = row->first_tensor;
    memset(c->f.out, 0, sizeof c->f.out);
    while (c->num_out < row->num_results) {
        const int i = c->num_out++;
        tensor_ref *ref = &c->out[i];
        ref->object = ref->capsule = NULL;
        if (c->taken[i]) {
            if (!take_output(c, i, ref)) return false;
        } else {
            int64_t dims[2 * MAX_DIMS];
            DLTensor want;
            if (!describe_output(row, i, &c->f, &want, dims) ||
                !make_output(&c->in[first], c->object[first], &want, row->zeroes_ends, &row->memos[i], c->f.stream,
                             ref))
                return false;
        }
        c->f.out[i] = &ref->tensor;
    }
    return true;
}

static PyObject *run_and_answer(call *c)
{
    tgl_status status = take_workspace(c);
    if (status == TGL_OK) status = run(c);
    if (status == TGL_OK) return count_writes(c) ? pack_answer(c) : NULL;
    raise_status(status);
    if (c->f.workspace) tgl_workspace_init(c->f.workspace, c->f.workspace_bytes, c->f.stream);
    return NULL;
}

PyObject *call_op(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    op_row *row = ((op_object *)self)->row;
    const bool is_public = ((op_object *)self)->is_guarded, has_face = is_public && row->face;
    PyObject *slot[MAX_PARAMS], *object[MAX_PARAMS], *held[MAX_PARAMS];
    int num_held = 0;
    call c;
    c.row = row;
    c.is_public = is_public;
    c.is_guarded = is_public && row->dispatch;
    c.may_want_gradient = false;
    c.object = object;
    c.args = args;
    c.num_args = n;
    c.kwnames = kwnames;
    c.num_in = c.num_out = 0;
    c.answer = NULL;
    if (!sort_arguments(row, is_public ? &row->public : &row->raw, args, n, kwnames, has_face ? slot : object,
                        &c.given))
        return NULL;
    if ((!has_face || spread(row, slot, object, held, &num_held)) && read_arguments(&c) && pass_guards(&c) &&
        read_inputs(&c) && prepare_outputs(&c))
        c.answer = run_and_answer(&c);
    for (int i = 0; i < c.num_out; i++) drop_tensor(&c.out[i]);
    for (int i = 0; i < c.num_in; i++) drop_tensor(&c.in[row->tensors[i]]);
    while (num_held > 0) Py_DECREF(held[--num_held]);
    return c.answer;
}
