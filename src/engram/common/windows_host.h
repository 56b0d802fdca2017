/* SPDX-License-Identifier: MIT
 * windows_host.h - requests on the host. */
#ifndef TEGULA_ENGRAM_WINDOWS_HOST_H
#define TEGULA_ENGRAM_WINDOWS_HOST_H

#include "core/tensor.h"
#include "engram/common/windows.h"

/* Without cu_seqlens there is one request: no tensor has more. */
static inline tgl_status tgl_check_requests(const DLTensor *cu_seqlens, int64_t num_requests, bool has_requests)
{
    if (cu_seqlens || !has_requests || num_requests == 1) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "cu_seqlens: is NULL, want a tensor with %lld requests", (long long)num_requests);
}

static inline int32_t tgl_bytes_of(const DLTensor *t) { return t ? tgl_dtype_bits(t->dtype) / 8 : 0; }

#endif
