/* SPDX-License-Identifier: MIT
 * _tegula.c - the extension module: two builtins per row, the settings, and what tegula/_torch.py binds. */
#include "glue.h"
#include "row_args.h"
#include "row_help.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef GLUE_NAME /* the tests build the same glue over rows of their own */
#define GLUE_NAME "tegula._tegula"
#define GLUE_PACKAGE "tegula"
#define GLUE_INIT PyInit__tegula
#endif

#define DECLARE(name) extern const domain name##_domain;
#define ADDRESS(name) &name##_domain,
DOMAINS(DECLARE)
static const domain *const domains[] = { DOMAINS(ADDRESS) NULL };

static PyObject *done_or_raise(tgl_status status)
{
    if (status != TGL_OK) return raise_status(status);
    Py_RETURN_NONE;
}

/* ---- for tegula/_torch.py ---- */

static PyObject *table(PyObject *m, PyObject *none) /* a list of export_row() for every row */
{
    PyObject *list = PyList_New(0);
    for (const domain *const *d = domains; *d; d++)
        for (int i = 0; list && i < (*d)->num_rows; i++) {
            PyObject *row = export_row(&(*d)->rows[i], (*d)->module);
            if (!row || PyList_Append(list, row)) Py_CLEAR(list);
            Py_XDECREF(row);
        }
    return list;
}

/* (text, face or None): parses a row that is no op, to test the grammar. Its strings are never freed. */
static PyObject *parse(PyObject *m, PyObject *args)
{
    op_row row = { 0 };
    if (!PyArg_ParseTuple(args, "sz", &row.text, &row.face)) return NULL;
    if (parse_row(&row)) return export_row(&row, "");
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "bad row: %s", row.text);
}

static PyObject *bind_torch(PyObject *m, PyObject *args)
{
    torch_table t;
    PyObject *functions[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO(OOOOOOO)", &t.tensor, &t.parameter, &t.empty_strided, &t.device, &t.dtypes,
                          &t.forward_ad, &t.requires_grad, &functions[0], &functions[1], &functions[2], &functions[3],
                          &functions[4], &functions[5], &functions[6]))
        return NULL;
    Py_INCREF(args); /* with everything in it, for the life of the process */
    t.strided_cpu = builtin_of(functions[0], METH_VARARGS);
    t.strided_cuda = builtin_of(functions[1], METH_VARARGS);
    t.dispatch_depth = builtin_of(functions[2], METH_NOARGS);
    t.is_grad_enabled = builtin_of(functions[3], METH_NOARGS);
    t.has_transform = builtin_of(functions[4], METH_NOARGS);
    t.increment_version = builtin_of(functions[5], METH_O);
    t.cuda_device = builtin_of(functions[6], METH_NOARGS);
    t.get_requires_grad = (descrgetfunc)PyType_GetSlot(Py_TYPE(t.requires_grad), Py_tp_descr_get);
    torch = t;
    learn_types_again();
    Py_RETURN_NONE;
}

op_row *find_row(const char *name, size_t bytes)
{
    for (const domain *const *d = domains; *d; d++)
        for (int i = 0; i < (*d)->num_rows; i++)
            if (strlen((*d)->rows[i].name) == bytes && !memcmp((*d)->rows[i].name, name, bytes)) return &(*d)->rows[i];
    return NULL;
}

static op_row *row_named(const char *name)
{
    op_row *row = find_row(name, strlen(name));
    if (!row) PyErr_Format(PyExc_KeyError, "no op %s", name);
    return row;
}

/* name, dispatch, gradient or None, transform or None */
static PyObject *bind_op(PyObject *m, PyObject *args)
{
    const char *name;
    PyObject *dispatch, *gradient, *transform;
    op_row *row;
    if (!PyArg_ParseTuple(args, "sOOO", &name, &dispatch, &gradient, &transform) || !(row = row_named(name)))
        return NULL;
    Py_INCREF(args); /* as above */
    row->gradient = gradient;
    row->transform = transform;
    row->dispatch = dispatch;
    Py_RETURN_NONE;
}

/* name, arguments as check_arguments() takes them. Returns the first numbers that xla.c takes: a bit for each argument that
 * is given, then each argument. */
static PyObject *check(PyObject *m, PyObject *args)
{
    const char *name;
    PyObject *arguments, *list;
    op_row *row;
    value v[MAX_PARAMS];
    if (!PyArg_ParseTuple(args, "sO!", &name, &PyTuple_Type, &arguments) || !(row = row_named(name)) ||
        !check_arguments(row, arguments, v) || !(list = PyList_New(1 + row->num_params)))
        return NULL;
    int64_t given = 0;
    for (int i = 0; i < row->num_params; i++) {
        given |= (int64_t)v[i].given << i;
        PyList_SetItem(list, 1 + i, PyLong_FromLongLong(row->params[i].kind == 't' ? 0 : v[i].i));
    }
    PyList_SetItem(list, 0, PyLong_FromLongLong(given));
    return list;
}

/* A tensor as the glue sees it, for tests and bug reports. */
static PyObject *describe(PyObject *m, PyObject *object)
{
    tensor_ref ref;
    const DLTensor *t = &ref.tensor;
    PyObject *name = PyUnicode_FromString("tensor"), *answer = NULL;
    if (!name) return NULL;
    if (read_tensor(name, object, entry_of(object), NULL, &ref))
        answer = Py_BuildValue("{sKsKs(ii)s(iii)sNsNsN}", "data", (unsigned long long)(uintptr_t)t->data, "byte_offset",
                               (unsigned long long)t->byte_offset, "device", (int)t->device.device_type,
                               (int)t->device.device_id, "dtype", t->dtype.code, t->dtype.bits, t->dtype.lanes, "shape",
                               tuple_of(t->shape, t->ndim), "strides",
                               t->strides ? tuple_of(t->strides, t->ndim) : Py_BuildValue(""), "is_read_only",
                               PyBool_FromLong(ref.is_read_only));
    Py_DECREF(name);
    drop_tensor(&ref);
    return answer;
}

/* ---- settings: core.h, one to one ---- */

#define GETTER(name, value) \
    static PyObject *name(PyObject *m, PyObject *none) { return value; }
#define SETTER(name, type, set)                                                   \
    static PyObject *name(PyObject *m, PyObject *number)                          \
    {                                                                             \
        int i;                                                                    \
        return PyArg_Parse(number, "i", &i) ? done_or_raise(set((type)i)) : NULL; \
    }
GETTER(version, PyUnicode_FromString(tgl_version()))
GETTER(get_num_threads, PyLong_FromLong(tgl_get_num_threads()))
GETTER(get_pdl, PyBool_FromLong(tgl_get_pdl()))
GETTER(get_jit_mode, PyLong_FromLong((long)tgl_get_jit_mode()))
GETTER(get_cache_dir, PyUnicode_DecodeFSDefault(tgl_get_cache_dir()))
GETTER(compile_count, PyLong_FromUnsignedLongLong(tgl_compile_count()))
SETTER(set_num_threads, int, tgl_set_num_threads)
SETTER(set_jit_mode, tgl_jit_mode, tgl_set_jit_mode)

static PyObject *set_pdl(PyObject *m, PyObject *on)
{
    const int is_on = PyObject_IsTrue(on);
    return is_on < 0 ? NULL : done_or_raise(tgl_set_pdl(is_on));
}
static PyObject *set_cache_dir(PyObject *m, PyObject *path) /* str, or None for the default */
{
    if (path == Py_None) return done_or_raise(tgl_set_cache_dir(NULL));
    PyObject *bytes = NULL;
    if (!PyUnicode_FSConverter(path, &bytes)) return NULL;
    PyObject *answer = done_or_raise(tgl_set_cache_dir(PyBytes_AsString(bytes)));
    Py_DECREF(bytes);
    return answer;
}

static PyObject *set_num_sms(PyObject *m, PyObject *args)
{
    int device, num_sms;
    return PyArg_ParseTuple(args, "ii", &device, &num_sms) ? done_or_raise(tgl_set_num_sms(device, num_sms)) : NULL;
}
static PyObject *get_num_sms(PyObject *m, PyObject *device)
{
    int index;
    return PyArg_Parse(device, "i", &index) ? PyLong_FromLong(tgl_get_num_sms(index)) : NULL;
}
#define DEVICE_GETTER(name, type, get)                                                \
    static PyObject *name(PyObject *m, PyObject *device)                              \
    {                                                                                 \
        int index;                                                                    \
        type number;                                                                  \
        if (!PyArg_Parse(device, "i", &index)) return NULL;                           \
        const tgl_status status = get(index, &number);                                \
        return status == TGL_OK ? PyLong_FromLongLong(number) : raise_status(status); \
    }
DEVICE_GETTER(get_device_num_sms, int, tgl_get_device_num_sms)
DEVICE_GETTER(get_max_smem_per_sm, int64_t, tgl_get_max_smem_per_sm)

static _Thread_local bool is_preparing; /* between tgl_prepare_begin() and tgl_prepare_end() */
GETTER(get_is_preparing, PyBool_FromLong(is_preparing))

static PyObject *prepare_begin(PyObject *m, PyObject *args)
{
    int device;
    const char *architecture;
    if (!PyArg_ParseTuple(args, "iz", &device, &architecture)) return NULL;
    const tgl_status status = tgl_prepare_begin(device, architecture);
    if (status == TGL_OK) is_preparing = true;
    return done_or_raise(status);
}
static PyObject *prepare_end(PyObject *m, PyObject *none)
{
    is_preparing = false;
    return done_or_raise(tgl_prepare_end());
}

static PyMethodDef methods[] = {
    { "table", table, METH_NOARGS, NULL },
    { "dtypes", list_dtypes, METH_NOARGS, NULL },
    { "parse", parse, METH_VARARGS, NULL },
    { "bind_torch", bind_torch, METH_VARARGS, NULL },
    { "bind_op", bind_op, METH_VARARGS, NULL },
    { "check", check, METH_VARARGS, NULL },
    { "describe", describe, METH_O, NULL },
    { "xla_handlers", xla_handlers, METH_NOARGS, NULL },
    { "xla_layout", xla_layout, METH_NOARGS, NULL },
    { "version", version, METH_NOARGS, NULL },
    { "set_num_sms", set_num_sms, METH_VARARGS, NULL },
    { "get_num_sms", get_num_sms, METH_O, NULL },
    { "get_device_num_sms", get_device_num_sms, METH_O, NULL },
    { "get_max_smem_per_sm", get_max_smem_per_sm, METH_O, NULL },
    { "set_num_threads", set_num_threads, METH_O, NULL },
    { "get_num_threads", get_num_threads, METH_NOARGS, NULL },
    { "set_pdl", set_pdl, METH_O, NULL },
    { "get_pdl", get_pdl, METH_NOARGS, NULL },
    { "set_jit_mode", set_jit_mode, METH_O, NULL },
    { "get_jit_mode", get_jit_mode, METH_NOARGS, NULL },
    { "set_cache_dir", set_cache_dir, METH_O, NULL },
    { "get_cache_dir", get_cache_dir, METH_NOARGS, NULL },
    { "prepare_begin", prepare_begin, METH_VARARGS, NULL },
    { "prepare_end", prepare_end, METH_NOARGS, NULL },
    { "is_preparing", get_is_preparing, METH_NOARGS, NULL },
    { "compile_count", compile_count, METH_NOARGS, NULL },
    { NULL, NULL, 0, NULL },
};

/* ---- the builtins of the rows ---- */

static void op_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Python pickles a builtin as getattr(self, name). `self` pickles as this module, so a function can be sent to another
 * process. */
static PyObject *op_reduce(PyObject *self, PyObject *none)
{
    PyObject *importlib = PyImport_ImportModule("importlib"), *import_module = NULL, *answer = NULL;
    if (importlib) import_module = PyObject_GetAttrString(importlib, "import_module");
    if (import_module) answer = Py_BuildValue("O(s)", import_module, GLUE_NAME);
    Py_XDECREF(import_module);
    Py_XDECREF(importlib);
    return answer;
}

static PyMethodDef op_methods[] = { { "__reduce__", op_reduce, METH_NOARGS, NULL }, { NULL, NULL, 0, NULL } };
static PyType_Slot op_slots[] = { { Py_tp_dealloc, op_dealloc }, { Py_tp_methods, op_methods }, { 0, NULL } };
static PyType_Spec op_spec = { GLUE_NAME ".row", sizeof(op_object), 0, Py_TPFLAGS_DEFAULT, op_slots };

/* `help` is "name(x, group=128, *, out=None)\n--\n\ndocstring", as inspect.signature() and help() read it. */
static bool add_row(PyObject *m, PyTypeObject *type, const char *package, op_row *row, const char *help)
{
    if (!parse_row(row)) return PyErr_Format(PyExc_SystemError, "bad row: %s", row->text), false;
    const size_t length = strlen(row->name);
    if (strncmp(help, row->name, length) || help[length] != '(')
        return PyErr_Format(PyExc_SystemError, "%s has the help of another row", row->name), false;
    PyMethodDef *method = calloc(1, sizeof *method); /* lives as long as the process */
    if (!method) return PyErr_NoMemory(), false;
    method->ml_doc = help;
    method->ml_name = row->name;
    method->ml_meth = (PyCFunction)(void (*)(void))call_op;
    method->ml_flags = METH_FASTCALL | METH_KEYWORDS;
    PyObject *module = PyUnicode_FromFormat("%s.%s", GLUE_PACKAGE, package);
    bool ok = module;
    for (int is_guarded = 0; ok && is_guarded < 2; is_guarded++) {
        char name[NAME_BYTES + 4];
        snprintf(name, sizeof name, is_guarded ? "%s" : "%s_raw", row->name);
        op_object *self = (op_object *)PyType_GenericAlloc(type, 0);
        PyObject *function = NULL;
        if (self) {
            self->row = row;
            self->is_guarded = is_guarded;
            function = PyCFunction_NewEx(method, (PyObject *)self, module);
            Py_DECREF(self);
        }
        ok = function && PyModule_AddObjectRef(m, name, function) == 0;
        Py_XDECREF(function);
    }
    Py_XDECREF(module);
    return ok;
}

static PyModuleDef definition = { PyModuleDef_HEAD_INIT, .m_name = GLUE_NAME, .m_size = -1, .m_methods = methods };

PyMODINIT_FUNC GLUE_INIT(void);

PyMODINIT_FUNC GLUE_INIT(void)
{
    PyObject *m = PyModule_Create(&definition);
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(&op_spec);
    error_type =
        PyErr_NewExceptionWithDoc("tegula.Error",
                                  "What the library could not do; .status names the reason, as in tegula/core.h.",
                                  PyExc_RuntimeError, NULL);
    bool ok = m && type && error_type && init_strings() && PyModule_AddObjectRef(m, "Error", error_type) == 0;
    const char *const *help = row_help;
    for (const domain *const *d = domains; *d; d++) {
        for (int i = 0; ok && i < (*d)->num_rows; i++) ok = add_row(m, type, (*d)->module, &(*d)->rows[i], *help++);
        if (ok && (*d)->others) ok = PyModule_AddFunctions(m, (*d)->others) == 0;
    }
    Py_XDECREF(type);
    if (!ok) Py_CLEAR(m);
    return m;
}
