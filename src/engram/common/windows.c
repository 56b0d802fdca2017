/* SPDX-License-Identifier: MIT */
#include "engram/common/windows_host.h"

tgl_status tgl_check_requests(const DLTensor *cu_seqlens, int64_t num_requests, bool has_requests)
{
    if (cu_seqlens || !has_requests || num_requests == 1) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "cu_seqlens: is NULL, want a tensor with %lld requests", (long long)num_requests);
}

tgl_status tgl_check_batch(const tgl_engram_batch *batch, const DLTensor *ring, int64_t num_requests, bool has_history,
                           int64_t reach)
{
    if (batch) TGL_TRY(tgl_expect_reserved(batch->reserved));
    const bool has_requests = has_history || (batch && (batch->start_pos || batch->slots));
    TGL_TRY(tgl_check_requests(batch ? batch->cu_seqlens : NULL, num_requests, has_requests));
    if (!ring || ring->shape[1] >= reach) return TGL_OK;
    const char *more = ring->ndim > 2 ? ", ..." : "";
    const long long slots = ring->shape[0];
    return tgl_fail(TGL_ERR_ARGUMENT, "ring: shape is [%lld, %lld%s], want [%lld, >= %lld%s]", slots,
                    (long long)ring->shape[1], more, slots, (long long)reach, more);
}

tgl_windows tgl_batch_windows(const tgl_engram_batch *b, const DLTensor *mask, const DLTensor *ring, bool keeps_ring,
                              int64_t num_tokens, int64_t num_requests, int64_t reach)
{
    const int64_t ring_size = ring ? ring->shape[1] : 0; /* a ring with entries may have no row: no slot is one */
    return (tgl_windows){ .image_token_mask = tgl_data_or_null(mask),
                          .num_tokens = num_tokens,
                          .cu_seqlens = tgl_data_or_null(b->cu_seqlens),
                          .cu_bytes = tgl_bytes_of(b->cu_seqlens),
                          .start_pos = tgl_data_or_null(b->start_pos),
                          .start_bytes = tgl_bytes_of(b->start_pos),
                          .slots = tgl_data_or_null(b->slots),
                          .slot_bytes = tgl_bytes_of(b->slots),
                          .num_requests = num_requests,
                          .num_slots = ring ? ring->shape[0] : 0,
                          .has_null_slot = b->has_null_slot,
                          .null_slot = b->null_slot,
                          .past = ring_size ? PAST_RING : PAST_NONE,
                          .ring_size = (int32_t)ring_size,
                          .ring_reciprocal = ring_size ? UINT64_MAX / (uint64_t)ring_size : 0,
                          .writes_ring = ring_size && !keeps_ring,
                          .max_ngram = (int32_t)reach + 1 };
}

void tgl_write_rings(const tgl_windows *w, int64_t begin, int64_t end, tgl_write_request *write, const void *context)
{
    tgl_span span = tgl_next_span(w, tgl_first_span(w));
    for (; tgl_is_request(w, &span) && span.place.number < end; span = tgl_next_span(w, span)) {
        const int64_t count = span.end - span.place.begin;
        if (span.place.number < begin || count == 0) continue;
        const tgl_request r = tgl_request_at(w, span.place);
        if (r.slot >= 0) write(context, &r, count);
    }
}
