/* SPDX-License-Identifier: MIT
 * dtype.h - element types as the library names them. Each is one bit, so that a set of them is a mask:
 * TGL_F32 | TGL_BF16. */
#ifndef TEGULA_DTYPE_H
#define TEGULA_DTYPE_H

#include "tegula/core.h"

typedef uint32_t tgl_dtype; /* one of these, or a set of them */
enum {
    TGL_BOOL = 1 << 0,
    TGL_I8 = 1 << 1,
    TGL_I16 = 1 << 2,
    TGL_I32 = 1 << 3,
    TGL_I64 = 1 << 4,
    TGL_U8 = 1 << 5,
    TGL_U16 = 1 << 6,
    TGL_U32 = 1 << 7,
    TGL_U64 = 1 << 8,
    TGL_F16 = 1 << 9,
    TGL_BF16 = 1 << 10,
    TGL_F32 = 1 << 11,
    TGL_F64 = 1 << 12,
    TGL_C64 = 1 << 13,
    TGL_C128 = 1 << 14,
    TGL_E4M3 = 1 << 15,
    TGL_E5M2 = 1 << 16,
    TGL_UE8M0 = 1 << 17,
    TGL_E2M1X2 = 1 << 18, /* two e2m1 in a byte; shapes count bytes */
    TGL_OTHER = 1 << 19,  /* any other dtype of 8, 16, 32, 64 or 128 bits: for ops that only copy */
    TGL_ANY = (1 << 20) - 1
};

/* The tgl_dtype of a DLPack dtype; 0 if its width is not one of 8, 16, 32, 64, 128 bits. */
tgl_dtype tgl_dtype_of(DLDataType dtype);

/* tgl_dtype_of(dtype) & set, without a search: every call checks it. */
bool tgl_dtype_is(DLDataType dtype, tgl_dtype set);

DLDataType tgl_dtype_to_dlpack(tgl_dtype dtype);

/* Bits of one element, lanes included. */
static inline int tgl_dtype_bits(DLDataType dtype) { return dtype.bits * dtype.lanes; }

/* "bf16"; NULL for 0 and for sets. And the inverse: 0 for an unknown name. */
const char *tgl_dtype_name(tgl_dtype dtype);
tgl_dtype tgl_dtype_named(const char *name);

#endif
