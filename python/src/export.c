/* SPDX-License-Identifier: MIT
 * export.c - a parsed row as Python objects, from which the torch operator and its fake implementation are made. */
#include "glue.h"

/* Steals the reference to the item. */
static bool append(PyObject *list, PyObject *item)
{
    const bool ok = list && item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return ok;
}

/* The value of an argument that is not given: a new reference, or NULL with an exception. */
PyObject *default_of(const param *p)
{
    if (p->kind == 't' || !p->fallback.given) Py_RETURN_NONE;
    if (p->kind == 'i') return PyLong_FromLongLong(p->fallback.i);
    if (p->kind == 'b') return PyBool_FromLong((long)p->fallback.i);
    if (p->kind == 'f') return PyFloat_FromDouble(p->fallback.f);
    return Py_INCREF(p->words[p->fallback.i]), p->words[p->fallback.i];
}

static PyObject *name_at(const op_row *row, int i) /* borrowed; None: there is none */
{
    return i < 0 ? Py_None : row->params[i].name;
}

/* (name, kind, names of dimensions, is_optional, is_in_place, is_on_host, (default,) or ()); kind is torch's word */
static PyObject *export_param(const param *p)
{
    const char *kind = p->kind == 't'   ? "Tensor"
                       : p->kind == 'i' ? "int"
                       : p->kind == 'f' ? "float"
                       : p->kind == 'b' ? "bool"
                                        : "str";
    PyObject *dims = PyList_New(0);
    for (int d = 0; d < p->ndim; d++)
        if (!append(dims, Py_BuildValue("O", p->dims[d]))) Py_CLEAR(dims);
    PyObject *standard = p->has_default ? Py_BuildValue("(N)", default_of(p)) : PyTuple_New(0);
    return Py_BuildValue("(OsNNNNN)", p->name, kind, dims, PyBool_FromLong(p->optional),
                         PyBool_FromLong(p->is_in_place), PyBool_FromLong(p->is_on_host), standard);
}

/* [(operator, parameter or number, axis or -1)] for each */
static PyObject *export_extents(const op_row *row, const extent *e, int count)
{
    PyObject *all = PyList_New(0);
    for (int d = 0; d < count; d++) {
        PyObject *terms = PyList_New(0);
        bool ok = true;
        for (int k = 0; ok && k < e[d].count; k++) {
            const factor *f = &e[d].f[k];
            ok = append(terms, f->param < 0 ? Py_BuildValue("(Cii)", f->op, f->constant, -1)
                                            : Py_BuildValue("(COi)", f->op, name_at(row, f->param), f->axis));
        }
        if (!ok) Py_CLEAR(terms);
        if (!append(all, terms)) Py_CLEAR(all);
    }
    return all;
}

/* (name, dtype's key or parameter, sizes, strides or None, strided_if or None, chosen_by or None) */
static PyObject *export_result(const op_row *row, const result *o)
{
    PyObject *dtype = o->dtype_from < 0 ? PyLong_FromUnsignedLong(key_of_dtype(o->dtype))
                                        : Py_BuildValue("O", name_at(row, o->dtype_from));
    return Py_BuildValue("(ONNNOO)", o->name ? o->name : Py_None, dtype, export_extents(row, o->size, o->ndim),
                         o->is_packed ? Py_BuildValue("") : export_extents(row, o->stride, o->ndim),
                         name_at(row, o->strided_if), name_at(row, o->chosen_by));
}

static PyObject *export_face(const op_row *row) /* [(name, parameters)], or None */
{
    PyObject *list = row->face ? PyList_New(0) : Py_BuildValue("");
    for (int i = 0; row->face && i < row->public.count; i++) {
        const argument *a = &row->arguments[i];
        PyObject *first = name_at(row, a->first), *second = name_at(row, a->second);
        if (!append(list, a->second < 0 ? Py_BuildValue("(O(O))", row->public.names[i], first)
                                        : Py_BuildValue("(O(OO))", row->public.names[i], first, second)))
            Py_CLEAR(list);
    }
    return list;
}

/* The fields of _rows.py's Row, by name. */
PyObject *export_row(const op_row *row, const char *module)
{
    PyObject *params = PyList_New(0), *results = PyList_New(0);
    for (int i = 0; i < row->num_params; i++)
        if (!append(params, export_param(&row->params[i]))) Py_CLEAR(params);
    for (int i = 0; i < row->num_results; i++) {
        const result *o = &row->results[i];
        PyObject *both = PyList_New(0);
        if (!append(both, export_result(row, o)) ||
            (o->chosen_by >= 0 && !append(both, export_result(row, &row->results[o->otherwise]))))
            Py_CLEAR(both);
        if (!append(results, both)) Py_CLEAR(results);
    }
    return Py_BuildValue("{sssssNsNsNsNsNsNsO}", "name", row->name, "module", module, "is_wrapped",
                         PyBool_FromLong(row->is_wrapped), "adapts", PyBool_FromLong(row->adapts), "has_float_output",
                         PyBool_FromLong(row->has_float_output), "params", params, "results", results, "face",
                         export_face(row), "first", name_at(row, row->first_tensor));
}
