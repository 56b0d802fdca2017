/* SPDX-License-Identifier: MIT
 * tensor.h - a DLTensor in one line:
 *
 *     const DLTensor x = tgl_cpu_tensor(data, TGL_DTYPE_F32, 2, (int64_t[]){ num_rows, num_cols });
 *
 * The tensor borrows data and shape. In C++ the shape is an array with a name. */
#ifndef TEGULA_TENSOR_H
#define TEGULA_TENSOR_H

#include <stddef.h>

#include "tegula/dlpack_abi.h"

/* Packed, row-major memory of the host. `data` may be NULL if a size is 0. Since 0.1. */
static inline DLTensor tgl_cpu_tensor(const void *data, DLDataType dtype, int32_t ndim, int64_t *shape)
{
    const DLTensor tensor = { (void *)data, { (DLDeviceType)TGL_DL_CPU, 0 }, ndim, dtype, shape, NULL, 0 };
    return tensor;
}

/* The same of a GPU: CUDA's device number `device`. Since 0.1. */
static inline DLTensor tgl_cuda_tensor(const void *data, int32_t device, DLDataType dtype, int32_t ndim, int64_t *shape)
{
    const DLTensor tensor = { (void *)data, { (DLDeviceType)TGL_DL_CUDA, device }, ndim, dtype, shape, NULL, 0 };
    return tensor;
}

/* ---- dtypes, by the names that messages use ---- */

static inline DLDataType tgl_dtype_from(int code, int bits, int lanes)
{
    const DLDataType dtype = { (uint8_t)code, (uint8_t)bits, (uint16_t)lanes };
    return dtype;
}

#define TGL_DTYPE_BOOL tgl_dtype_from(TGL_DL_BOOL, 8, 1)
#define TGL_DTYPE_I8 tgl_dtype_from(TGL_DL_INT, 8, 1)
#define TGL_DTYPE_I16 tgl_dtype_from(TGL_DL_INT, 16, 1)
#define TGL_DTYPE_I32 tgl_dtype_from(TGL_DL_INT, 32, 1)
#define TGL_DTYPE_I64 tgl_dtype_from(TGL_DL_INT, 64, 1)
#define TGL_DTYPE_U8 tgl_dtype_from(TGL_DL_UINT, 8, 1)
#define TGL_DTYPE_F16 tgl_dtype_from(TGL_DL_FLOAT, 16, 1)
#define TGL_DTYPE_BF16 tgl_dtype_from(TGL_DL_BFLOAT, 16, 1)
#define TGL_DTYPE_F32 tgl_dtype_from(TGL_DL_FLOAT, 32, 1)
#define TGL_DTYPE_F64 tgl_dtype_from(TGL_DL_FLOAT, 64, 1)
#define TGL_DTYPE_E4M3 tgl_dtype_from(TGL_DL_E4M3FN, 8, 1)
#define TGL_DTYPE_UE8M0 tgl_dtype_from(TGL_DL_E8M0FNU, 8, 1)
#define TGL_DTYPE_E2M1X2 tgl_dtype_from(TGL_DL_E2M1FN, 4, 2) /* a pair in a byte; sizes count bytes */

#endif
