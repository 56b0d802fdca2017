/* SPDX-License-Identifier: MIT
 * dlpack_abi.h - the part of DLPack's ABI that Tegula reads: DLTensor and what it is made of.
 *
 * If DLPack's own header was included before, or is found on the include path (<dlpack/dlpack.h>, or
 * torch's copy), its types are used. Otherwise they are declared here, with the same names and layout. A
 * copy under any other name has to be included before this file. The codes have names of our own
 * (TGL_DL_*), since an older DLPack header lacks newer dtypes. */
#ifndef TEGULA_DLPACK_ABI_H
#define TEGULA_DLPACK_ABI_H

#include <stdint.h>

#if !defined(DLPACK_DLPACK_H_) && defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#elif defined(__cplusplus) && __has_include(<ATen/dlpack.h>)
#include <ATen/dlpack.h>
#endif
#endif

#ifndef DLPACK_DLPACK_H_
#ifdef __cplusplus
extern "C" {
typedef enum : int32_t {
#else
typedef enum {
#endif
    kDLCPU = 1,
    kDLCUDA = 2,
    kDLCUDAHost = 3,
    kDLCUDAManaged = 13
} DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data; /* may be NULL when the tensor is empty */
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;     /* in elements; NULL means packed, row-major */
    uint64_t byte_offset; /* to be added to data */
} DLTensor;

#ifdef __cplusplus
}
#endif
#endif /* DLPACK_DLPACK_H_ */

/* dtype.code */
enum {
    TGL_DL_INT = 0,
    TGL_DL_UINT = 1,
    TGL_DL_FLOAT = 2,
    TGL_DL_BFLOAT = 4,
    TGL_DL_COMPLEX = 5,
    TGL_DL_BOOL = 6,
    TGL_DL_E4M3FN = 10,
    TGL_DL_E5M2 = 12,
    TGL_DL_E8M0FNU = 14,
    TGL_DL_E2M1FN = 17
};

/* device.device_type */
enum { TGL_DL_CPU = 1, TGL_DL_CUDA = 2, TGL_DL_CUDA_HOST = 3, TGL_DL_CUDA_MANAGED = 13 };

#endif
