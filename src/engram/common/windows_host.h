/* SPDX-License-Identifier: MIT
 * windows_host.h - requests on the host. */
#ifndef TEGULA_ENGRAM_WINDOWS_HOST_H
#define TEGULA_ENGRAM_WINDOWS_HOST_H

#include "core/tensor.h"
#include "engram/common/windows.h"
#include "tegula/engram.h"

/* Without cu_seqlens there is one request: no tensor has more. */
tgl_status tgl_check_requests(const DLTensor *cu_seqlens, int64_t num_requests, bool has_requests);

/* What signatures do not say of a batch (NULL: one request), and of a ring, or NULL, from which results need the last
 * `reach` tokens. has_history: another tensor has num_requests, too. */
tgl_status tgl_check_batch(const tgl_engram_batch *batch, const DLTensor *ring, int64_t num_requests, bool has_history,
                           int64_t reach);

/* The requests of a batch whose results reach `reach` tokens back, and the sizes of its ring, or NULL. One without
 * entries is as none. */
tgl_windows tgl_batch_windows(const tgl_engram_batch *batch, const DLTensor *mask, const DLTensor *ring,
                              bool keeps_ring, int64_t num_tokens, int64_t num_requests, int64_t reach);

/* Calls `write` for requests begin .. end - 1, but for those without tokens or without a row in the ring. */
typedef void tgl_write_request(const void *context, const tgl_request *r, int64_t num_tokens);
void tgl_write_rings(const tgl_windows *w, int64_t begin, int64_t end, tgl_write_request *write, const void *context);

static inline int32_t tgl_bytes_of(const DLTensor *t) { return t ? tgl_dtype_bits(t->dtype) / 8 : 0; }

#endif
