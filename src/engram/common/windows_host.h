/* SPDX-License-Identifier: MIT
 * windows_host.h - ngram_windows and rows on the host: requests in their order. */
#ifndef TEGULA_ENGRAM_WINDOWS_HOST_H
#define TEGULA_ENGRAM_WINDOWS_HOST_H

#include "core/math.h"
#include "core/tensor.h"
#include "engram/common/windows.h"

/* Without cu_seqlens there is one request: no tensor has more. */
static inline tgl_status tgl_check_requests(const DLTensor *cu_seqlens, int64_t num_requests, bool has_requests)
{
    if (cu_seqlens || !has_requests || num_requests == 1) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "cu_seqlens: is NULL, want a tensor with %lld requests",
                    (long long)num_requests);
}

static inline const void *tgl_data_of(const DLTensor *t) { return t ? tgl_data(t) : NULL; }
static inline int32_t tgl_bytes_of(const DLTensor *t) { return t ? tgl_dtype_bits(t->dtype) / 8 : 0; }

/* A request and its tokens, begin .. end - 1. Before the first, number is -1; behind the last it is num_requests. */
typedef struct { tgl_place place; int64_t end; } tgl_span;

static inline tgl_span tgl_first_span(const tgl_windows *w)
{
    const tgl_span before = { { -1, 0 }, w->cu_seqlens ? tgl_boundary_at(w, 0) : 0 };
    return before;
}

static inline tgl_span tgl_next_span(const tgl_windows *w, tgl_span s)
{
    const int64_t number = s.place.number + 1;
    tgl_span next = { { number, s.end }, INT64_MAX };
    if (!w->cu_seqlens && number == 0) next.end = w->num_tokens;
    if (w->cu_seqlens && number < w->num_requests) next.end = tgl_max(s.end, tgl_boundary_at(w, number + 1));
    return next;
}

static inline bool tgl_is_request(const tgl_windows *w, const tgl_span *s)
{
    return s->place.number >= 0 && s->place.number < (w->cu_seqlens ? w->num_requests : 1);
}

#endif
