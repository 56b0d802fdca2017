/* SPDX-License-Identifier: MIT
 * glue.h - what the files of the extension module share.
 *
 * One row of text per op is the whole binding (transpose.c, moe.c, quant.c). It is parsed at import (parse.c); one
 * function, call_op (call.c), serves every row, reading tensors and making outputs with tensor.c. The Python side
 * (tegula/_torch.py) makes the torch operator from what was parsed (export.c). */
#ifndef TEGULA_GLUE_H
#define TEGULA_GLUE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000 /* Python 3.10 and newer load one binary */
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "tegula/core.h"

enum { MAX_PARAMS = 24, MAX_RESULTS = 12, MAX_DIMS = 6, MAX_WORDS = 8, MAX_FACTORS = 6, WARM_CALLS = 32,
       NAME_BYTES = 64 };

/* ---- one call, as a row's functions see it ---- */

typedef struct {
    _Alignas(16) union {
        DLTensor *tensor; /* NULL where an optional tensor is absent */
        int64_t i;        /* int; bool; a word's place in {a|b}; 0 where absent */
        double f;
    };
    bool given;           /* false: None */
} value;

/* A row's functions see the frame as a struct with the row's names, which row_args.py makes from its text:
 * topk_gate_args has scores, num_topk and topk_idx where the frame has arg[0], arg[1] and out[0]. */
#define FRAME_HEAD                                                             \
    tgl_stream stream;                                                         \
    void *workspace; /* of a row that asks for one; NULL on the CPU */         \
    size_t workspace_bytes
typedef struct {
    FRAME_HEAD;
    DLTensor *out[MAX_RESULTS]; /* NULL past the row's last */
    value arg[MAX_PARAMS];
} frame;

/* A row's functions: THUNK(topk_gate) { return tgl_moe_topk_gate(a->scores, a->topk_idx, a->stream); } defines
 * call_topk_gate(), where `a` points to that struct. */
#define ROW_FUNCTION(type, name, op)                                           \
    static type name##_of(const op##_args *a);                                 \
    static type name(const void *args) { return name##_of(args); }             \
    static type name##_of(const op##_args *a)
#define THUNK(op) ROW_FUNCTION(tgl_status, call_##op, op)
#define CHECK(op) ROW_FUNCTION(bool, check_##op, op)
#define WORKSPACE(op) ROW_FUNCTION(size_t, workspace_##op, op)

/* What a check says: "name: is 9, want 0..8". */
bool raise_not_within(const char *name, long long is, long long low, long long high);
static inline bool is_within(const char *name, long long is, long long low, long long high)
{
    return (is >= low && is <= high) || raise_not_within(name, is, low, high);
}

/* ---- a row ---- */

/* A size or a stride: a sum of products, each from left to right; op `+` begins the next one. axis -1: the
 * parameter's own value (of a word its bits, of a tensor the values in an element); param -1: constant. */
typedef struct { signed char param, axis; char op; int32_t constant; } factor;
typedef struct { int count; factor f[MAX_FACTORS]; } extent;

typedef struct {
    PyObject *name;           /* interned */
    char kind;                /* 't' tensor, 'i' int, 'f' float, 'b' bool, 'e' one of words */
    bool optional, has_default, is_in_place, is_on_host;
    int ndim, num_words;
    value fallback;
    PyObject *shown;          /* in messages: the public function's pair of numbers that it is of, or name */
    PyObject *dims[MAX_DIMS]; /* their names */
    PyObject *words[MAX_WORDS];
    DLDataType word_dtype[MAX_WORDS];
    int word_bits[MAX_WORDS];
} param;

/* An argument of the public function, where that takes other ones than the row: a parameter, or a pair of
 * them; second -1: no pair. */
typedef struct { int first, second; bool has_default; } argument;
typedef struct { int count, num_positions; PyObject *names[MAX_PARAMS]; } argument_list;

typedef struct {
    int dtype_from;          /* a parameter, or -1: dtype */
    DLDataType dtype;
    int ndim;
    bool is_packed;
    int strided_if;          /* a bool parameter that must be true, or else it is packed; -1: none */
    extent size[MAX_DIMS], stride[MAX_DIMS];
    int chosen_by;           /* a bool that is true, an optional tensor or word that is given; -1: always */
    int otherwise;           /* place of the other one in results[] */
    PyObject *name;          /* NULL in an alternative */
} result;

/* Arguments of the allocating function for an output's last shape. A decoder asks for the same shape again
 * and again, and making the tuples costs 75 to 120 ns an output. */
typedef struct {
    int ndim;
    int64_t shape[MAX_DIMS], strides[MAX_DIMS];
    DLDataType dtype;
    PyObject *args;
} memo;

typedef struct {
    const char *text, *doc;
    const char *face;                 /* arguments of the public function; NULL: those of the text */
    bool (*check)(const void *args);  /* what the op itself cannot tell; sets an exception */
    tgl_status (*call)(const void *args);
    size_t (*workspace)(const void *args); /* bytes wanted on CUDA; NULL: none */
    bool is_wrapped;                  /* the module's public function is written in Python, over this one */
    bool zeroes_ends;                 /* of columns that are made longer than an output has rows */
    /* from here on: filled at import */
    char name[NAME_BYTES];
    int num_params, num_results, num_others, first_tensor;
    int num_tensors, tensors[MAX_PARAMS]; /* which of the params */
    bool has_in_place, has_float_output;  /* the latter: autograd has to see a gradient that is wanted */
    argument_list raw, public;                /* they are the same without a face */
    argument arguments[MAX_PARAMS];       /* of the public one */
    param params[MAX_PARAMS];
    result results[MAX_RESULTS]; /* from the end on: what others are otherwise */
    memo memos[MAX_RESULTS];
    uint64_t warm[WARM_CALLS]; /* signatures that have run: their kernels are compiled */
    PyObject *dispatch;        /* the op as torch knows it: for subclasses, modes, torch.func */
    PyObject *gradient;        /* an autograd.Function's apply: where nothing but a gradient is wanted. Of an op
                                  without a gradient one that says so; None where outputs are integers */
    PyObject *transform;       /* the same for torch.func; with setup_context, four times as slow */
} op_row;

/* The rows of a C file, which is named like the module that has their functions. */
typedef struct { const char *module; op_row *rows; int num_rows; } domain;
#define DOMAIN(name) const domain name##_domain = { #name, rows, sizeof rows / sizeof rows[0] }

bool parse_row(op_row *row);
PyObject *export_row(const op_row *row, const char *module);
PyObject *default_of(const param *p);
const char *doc_of(const op_row *row);
bool may_require_grad(const result *o);

/* ---- dtypes ---- */

bool dtype_named(const char *word, DLDataType *dtype, int *bits);
bool dtype_is(DLDataType a, DLDataType b);
const char *name_of_dtype(DLDataType dtype, char buffer[32]);
uint32_t key_of_dtype(DLDataType dtype); /* a number for each, as a key of Python's */
PyObject *list_dtypes(PyObject *module, PyObject *none);

/* A byte, signed or not, is a pair of e2m1. */
static inline int values_per_element(DLDataType d)
{
    const bool is_byte = (d.code == TGL_DL_INT || d.code == TGL_DL_UINT) && d.bits == 8;
    return is_byte || d.code == TGL_DL_E2M1FN ? 2 : 1;
}

/* ---- tensors ---- */

/* DLPack's C exchange API: what the capsule __dlpack_c_exchange_api__ of a tensor type points to, for the
 * life of the process. Functions return 0, or -1 with a Python exception set, and do not synchronise. */
typedef struct { uint32_t major, minor; } pack_version;
typedef struct exchange_api {
    pack_version version;                       /* the layout below is major 1's */
    struct exchange_api *older;                 /* the same for an older major version, or NULL */
    void (*allocate)(void);                     /* these three are not called: make_output() says why */
    void (*export_owned)(void);
    void (*import_owned)(void);
    int (*borrow)(void *object, DLTensor *out); /* may be NULL; valid while the object is held */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} exchange_api;

typedef enum {
    FOREIGN,   /* another library's array, read through __dlpack__() */
    PLAIN,     /* exactly torch.Tensor or Parameter: straight to C */
    OVERRIDES  /* a subclass, or an object with __torch_function__: torch's dispatcher must see it */
} type_kind;
typedef struct { PyTypeObject *type; const exchange_api *api; type_kind kind; } type_entry;

/* A function of torch that is called with no argument (METH_NOARGS), with one (METH_O) or with a tuple of
 * them (METH_VARARGS). Where it is a C function of that very kind it is called as such: Python's own way to
 * it costs 20 to 30 ns more. */
typedef struct { PyObject *object; PyCFunction entry; int kind; } builtin;
builtin builtin_of(PyObject *object, int kind);
PyObject *call_builtin(const builtin *function, PyObject *args);

/* What Python bound with bind_torch(); all NULL before. */
typedef struct {
    PyObject *tensor, *parameter, *empty_strided, *device, *dtypes, *forward_ad, *requires_grad;
    builtin strided_cpu, strided_cuda, dispatch_depth, is_grad_enabled, has_transform, increment_version,
        cuda_device;
    descrgetfunc get_requires_grad;
} torch_table;
extern torch_table torch;

typedef struct {
    DLTensor tensor;
    PyObject *object, *capsule; /* references held for the call, or NULL */
    const exchange_api *api;
    bool is_torch, is_read_only;
    int64_t dims[2 * MAX_DIMS]; /* a copy of shape and strides, once hold_dims() was called */
} tensor_ref;

bool init_tensors(void);
type_entry entry_of(PyObject *object);
void learn_types_again(void);
bool read_tensor(PyObject *name, PyObject *object, type_entry entry, tgl_stream stream, tensor_ref *ref);
bool stream_of(const exchange_api *api, const DLTensor *t, tgl_stream *stream);
void hold_dims(tensor_ref *ref);
bool make_output(const tensor_ref *like, PyObject *like_object, const DLTensor *want, bool zeroes_ends,
                 memo *memory, tgl_stream stream, tensor_ref *out);
bool is_lazy(PyObject *object, const DLTensor *t);
bool is_hollow(const DLTensor *t);
void drop_tensor(tensor_ref *ref);

/* ---- calls ---- */

extern PyObject *error_type; /* tegula.Error */
PyObject *raise_status(tgl_status status);
bool init_calls(void);
bool check_arguments(const op_row *row, PyObject *arguments);
PyObject *call_op(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
typedef struct {
    PyObject_HEAD op_row *row;
    bool is_guarded;
} op_object; /* `self` of the builtins: no look-up by name */

#endif
