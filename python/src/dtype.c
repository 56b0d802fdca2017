/* SPDX-License-Identifier: MIT
 * dtype.c - the one table of dtypes: their names in rows, in messages and in other libraries. */
#include "glue.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *word; /* in rows and in the library's messages; NULL: none */
    DLDataType dtype;
    const char *name; /* in torch, NumPy and ml_dtypes; NULL for a format, which has the dtype of its bytes */
    int bits;         /* of one value, if not those of the dtype */
    int xla;          /* XLA's number; 0: none */
} dtypes[] = {
    { "bool", { TGL_DL_BOOL, 8, 1 }, "bool", 0, 1 },
    { "i8", { TGL_DL_INT, 8, 1 }, "int8", 0, 2 },
    { "i16", { TGL_DL_INT, 16, 1 }, "int16", 0, 3 },
    { "i32", { TGL_DL_INT, 32, 1 }, "int32", 0, 4 },
    { "i64", { TGL_DL_INT, 64, 1 }, "int64", 0, 5 },
    { "u8", { TGL_DL_UINT, 8, 1 }, "uint8", 0, 6 },
    { "u16", { TGL_DL_UINT, 16, 1 }, "uint16", 0, 7 },
    { "u32", { TGL_DL_UINT, 32, 1 }, "uint32", 0, 8 },
    { "u64", { TGL_DL_UINT, 64, 1 }, "uint64", 0, 9 },
    { "f16", { TGL_DL_FLOAT, 16, 1 }, "float16", 0, 10 },
    { "bf16", { TGL_DL_BFLOAT, 16, 1 }, "bfloat16", 0, 16 },
    { "f32", { TGL_DL_FLOAT, 32, 1 }, "float32", 0, 11 },
    { "f64", { TGL_DL_FLOAT, 64, 1 }, "float64", 0, 12 },
    { "c32", { TGL_DL_COMPLEX, 32, 1 }, "complex32", 0, 0 },
    { "c64", { TGL_DL_COMPLEX, 64, 1 }, "complex64", 0, 15 },
    { "c128", { TGL_DL_COMPLEX, 128, 1 }, "complex128", 0, 18 },
    { "e4m3", { TGL_DL_E4M3FN, 8, 1 }, "float8_e4m3fn", 0, 20 },
    { NULL, { TGL_DL_E4M3FN + 1, 8, 1 }, "float8_e4m3fnuz", 0, 25 },
    { "e5m2", { TGL_DL_E5M2, 8, 1 }, "float8_e5m2", 0, 19 },
    { NULL, { TGL_DL_E5M2 + 1, 8, 1 }, "float8_e5m2fnuz", 0, 24 },
    { "ue8m0", { TGL_DL_E8M0FNU, 8, 1 }, "float8_e8m0fnu", 0, 33 },
    { "e2m1x2", { TGL_DL_E2M1FN, 4, 2 }, "float4_e2m1fn_x2", 0, 0 },
    { "fp32", { TGL_DL_FLOAT, 32, 1 }, NULL, 0, 0 }, /* as TileKernels says it */
    { "e2m1", { TGL_DL_INT, 8, 1 }, NULL, 4, 0 },    /* two share a byte */
    { "e5m6", { TGL_DL_UINT, 8, 1 }, NULL, 12, 0 },  /* two take three bytes */
};
enum { NUM_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static int bits_of(int i) { return dtypes[i].bits ? dtypes[i].bits : dtypes[i].dtype.bits; }

bool dtype_named(const char *word, DLDataType *dtype, int *bits)
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (dtypes[i].word && !strcmp(word, dtypes[i].word)) {
            *dtype = dtypes[i].dtype;
            *bits = bits_of(i);
            return true;
        }
    return false;
}

bool dtype_is(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

/* By its name in torch and ml_dtypes. */
bool dtype_of_library(const char *name, DLDataType *dtype)
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (dtypes[i].name && !strcmp(name, dtypes[i].name)) return *dtype = dtypes[i].dtype, true;
    return false;
}

const char *library_name_of(DLDataType dtype)
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (dtypes[i].name && dtype_is(dtype, dtypes[i].dtype)) return dtypes[i].name;
    return NULL;
}

/* As in the library's messages. */
const char *name_of_dtype(DLDataType dtype, char buffer[32])
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (dtypes[i].word && dtype_is(dtype, dtypes[i].dtype)) return dtypes[i].word;
    snprintf(buffer, 32, "code %d with %d bits", dtype.code, dtype.bits);
    return buffer;
}

uint32_t key_of_dtype(DLDataType d) { return (uint32_t)d.code << 24 | (uint32_t)d.bits << 16 | d.lanes; }

bool dtype_of_xla(int number, DLDataType *dtype)
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (dtypes[i].xla && dtypes[i].xla == number) return *dtype = dtypes[i].dtype, true;
    return false;
}

/* [(word or None, key, name or None, bits of a value, values in an element, XLA's number or 0)] */
PyObject *list_dtypes(PyObject *module, PyObject *none)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < NUM_DTYPES; i++) {
        const DLDataType d = dtypes[i].dtype;
        PyObject *t = Py_BuildValue("(zIziii)", dtypes[i].word, key_of_dtype(d), dtypes[i].name, bits_of(i),
                                    values_per_element(d), dtypes[i].xla);
        if (!t || PyList_Append(list, t)) Py_CLEAR(list);
        Py_XDECREF(t);
    }
    return list;
}
