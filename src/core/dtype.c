/* SPDX-License-Identifier: MIT */
#include "core/dtype.h"

#include <string.h>

/* Row i is the dtype of bit i. */
// clang-format off: a row for each dtype
static const struct { tgl_dtype dtype; const char *name; DLDataType dlpack; } dtypes[] = {
    { TGL_BOOL, "bool", { TGL_DL_BOOL, 8, 1 } },
    { TGL_I8, "i8", { TGL_DL_INT, 8, 1 } },
    { TGL_I16, "i16", { TGL_DL_INT, 16, 1 } },
    { TGL_I32, "i32", { TGL_DL_INT, 32, 1 } },
    { TGL_I64, "i64", { TGL_DL_INT, 64, 1 } },
    { TGL_U8, "u8", { TGL_DL_UINT, 8, 1 } },
    { TGL_U16, "u16", { TGL_DL_UINT, 16, 1 } },
    { TGL_U32, "u32", { TGL_DL_UINT, 32, 1 } },
    { TGL_U64, "u64", { TGL_DL_UINT, 64, 1 } },
    { TGL_F16, "f16", { TGL_DL_FLOAT, 16, 1 } },
    { TGL_BF16, "bf16", { TGL_DL_BFLOAT, 16, 1 } },
    { TGL_F32, "f32", { TGL_DL_FLOAT, 32, 1 } },
    { TGL_F64, "f64", { TGL_DL_FLOAT, 64, 1 } },
    { TGL_C64, "c64", { TGL_DL_COMPLEX, 64, 1 } },
    { TGL_C128, "c128", { TGL_DL_COMPLEX, 128, 1 } },
    { TGL_E4M3, "e4m3", { TGL_DL_E4M3FN, 8, 1 } },
    { TGL_E5M2, "e5m2", { TGL_DL_E5M2, 8, 1 } },
    { TGL_UE8M0, "ue8m0", { TGL_DL_E8M0FNU, 8, 1 } },
    { TGL_E2M1X2, "e2m1x2", { TGL_DL_E2M1FN, 4, 2 } },
};
// clang-format on
enum { NUM_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static bool is_same(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

static bool has_width(DLDataType dtype)
{
    const int bits = tgl_dtype_bits(dtype);
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128;
}

tgl_dtype tgl_dtype_of(DLDataType dtype)
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (is_same(dtypes[i].dlpack, dtype)) return dtypes[i].dtype;
    return has_width(dtype) ? TGL_OTHER : 0;
}

bool tgl_dtype_is(DLDataType dtype, tgl_dtype set)
{
    if (set == TGL_ANY) return has_width(dtype);
    if (set & TGL_OTHER) return (tgl_dtype_of(dtype) & set) != 0;
    for (; set; set &= set - 1)
        if (is_same(dtypes[__builtin_ctz(set)].dlpack, dtype)) return true;
    return false;
}

DLDataType tgl_dtype_to_dlpack(tgl_dtype dtype)
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].dlpack;
    return (DLDataType){ 0, 0, 0 };
}

const char *tgl_dtype_name(tgl_dtype dtype)
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return NULL;
}

tgl_dtype tgl_dtype_named(const char *name)
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (!strcmp(dtypes[i].name, name)) return dtypes[i].dtype;
    return 0;
}
