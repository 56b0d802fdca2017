/* SPDX-License-Identifier: MIT
 * windows.h - the window of a token: its id and those of the tokens before it in its request, on the CPU and in
 * kernels. What ngram_windows and rows share. */
#ifndef TEGULA_ENGRAM_WINDOWS_H
#define TEGULA_ENGRAM_WINDOWS_H

#include "engram/common/columns.h"

#ifndef __CUDACC_RTC__
#include <stdbool.h>
#endif

#define REQUEST_SCRATCH_BYTES (COLUMN_THREADS * 29 + 64) /* of shared memory, at most: request_scratch */

#define PAST_NONE 0
#define PAST_HISTORY 1
#define PAST_RING 2

/* Tensors that are not given are NULL. Strides are in elements, *_bytes those of an element. */
typedef struct {
    const void *input_ids, *cu_seqlens, *start_pos, *slots, *history;
    const uint8_t *image_token_mask;
    void *ring;
    const int32_t *token_map;
    int64_t num_tokens, num_requests, vocabulary, num_slots;
    int64_t id_stride, history_stride, ring_stride;
    int64_t pad_id, stop_id, null_slot;
    uint64_t ring_reciprocal; /* (2^64 - 1) / ring_size, rounded down */
    int32_t max_ngram, ring_size;
    int32_t id_bytes, cu_bytes, start_bytes, slot_bytes, past_bytes;
    int32_t past; /* ids before a chunk: PAST_HISTORY, PAST_RING; PAST_NONE: there are none */
    bool has_stop_id, has_null_slot, is_newest_first, writes_ring;
    bool keeps_ids; /* ngram_windows: ids that the map has not are as any; else such a token is dead */
    bool hash_dead; /* the window of a token that is dead is hashed: it is all pad */
} tgl_windows;

/* Where a token is: in request `number`, whose chunk begins at token `begin`. -1, or past the last: in none. */
typedef struct { int64_t number, begin; } tgl_place;

typedef struct {
    tgl_place place;
    int64_t slot, start; /* its row in the ring, -1: none; the ring's entry of its first token */
    int32_t reach;       /* tokens before the chunk that a window may have */
} tgl_request;

/* An entry of cu_seqlens as it counts, but for the larger one of an entry before it. */
TGL_INLINE int64_t tgl_boundary_of(const tgl_windows *w, int64_t at)
{
    return at < 0 ? 0 : at < w->num_tokens ? at : w->num_tokens;
}
TGL_INLINE int64_t tgl_boundary_at(const tgl_windows *w, int64_t i)
{
    return tgl_boundary_of(w, tgl_integer_at(w->cu_seqlens, i, w->cu_bytes));
}

/* Behind the last token of a request. Of a token that is in it: no entry up to `number` is larger than the token,
 * and the next one is. */
TGL_INLINE int64_t tgl_end_of(const tgl_windows *w, const tgl_place *place)
{
    return w->cu_seqlens ? tgl_boundary_at(w, place->number + 1) : w->num_tokens;
}

/* A position p, from 0 on, modulo ring_size. Kernels multiply: with y = ring_reciprocal, y <= 2^64 / ring_size < y + 2,
 * so floor(p y / 2^64) is the quotient or one less, since p (2^64 / ring_size - y) / 2^64 < 1. */
TGL_INLINE int64_t tgl_ring_entry(const tgl_windows *w, int64_t position)
{
#ifdef __CUDACC__
    const uint32_t size = (uint32_t)w->ring_size;
    const uint32_t quotient = (uint32_t)__umul64hi((uint64_t)position, w->ring_reciprocal);
    const uint32_t rest = (uint32_t)position - quotient * size;
    return rest < size ? rest : rest - size;
#else
    return position % w->ring_size;
#endif
}

/* Tokens of a request before its chunk, and its row in the ring, from entries of start_pos and slots if there are. */
TGL_INLINE int64_t tgl_start_of(const tgl_windows *w, int64_t entry)
{
    return w->start_pos ? entry : w->past == PAST_HISTORY ? w->max_ngram - 1 : 0;
}
TGL_INLINE int64_t tgl_slot_of(const tgl_windows *w, int64_t number, int64_t entry)
{
    return w->past == PAST_RING && w->slots ? entry : number;
}
TGL_INLINE int64_t tgl_start_at(const tgl_windows *w, int64_t number)
{
    return tgl_start_of(w, w->start_pos ? tgl_integer_at(w->start_pos, number, w->start_bytes) : 0);
}
TGL_INLINE int64_t tgl_slot_at(const tgl_windows *w, int64_t number)
{
    const bool has_slots = w->past == PAST_RING && w->slots;
    return tgl_slot_of(w, number, has_slots ? tgl_integer_at(w->slots, number, w->slot_bytes) : 0);
}

TGL_INLINE tgl_request tgl_request_of(const tgl_windows *w, tgl_place place, int64_t start, int64_t slot)
{
    tgl_request r = { place, -1, 0, 0 };
    const int64_t max_reach = w->max_ngram - 1, before = start < 0 ? 0 : start;
    if (w->past == PAST_RING) {
        const bool is_null = w->has_null_slot && slot == w->null_slot;
        if (slot >= 0 && slot < w->num_slots && !is_null) r.slot = slot;
        r.start = tgl_ring_entry(w, before);
    }
    if (w->past == PAST_HISTORY || r.slot >= 0) r.reach = (int32_t)(before < max_reach ? before : max_reach);
    return r;
}
TGL_INLINE tgl_request tgl_request_at(const tgl_windows *w, tgl_place place)
{
    return tgl_request_of(w, place, tgl_start_at(w, place.number), tgl_slot_at(w, place.number));
}

/* A request and its tokens, begin .. end - 1. Before the first, number is -1; behind the last it is num_requests. */
typedef struct {
    tgl_place place;
    int64_t end;
} tgl_span;
#define NO_END ((int64_t)0x7fffffffffffffff)

TGL_INLINE tgl_span tgl_first_span(const tgl_windows *w)
{
    const tgl_span before = { { -1, 0 }, w->cu_seqlens ? tgl_boundary_at(w, 0) : 0 };
    return before;
}

TGL_INLINE tgl_span tgl_next_span(const tgl_windows *w, tgl_span s)
{
    const int64_t number = s.place.number + 1;
    tgl_span next = { { number, s.end }, NO_END };
    if (!w->cu_seqlens && number == 0) next.end = w->num_tokens;
    if (w->cu_seqlens && number < w->num_requests) {
        const int64_t end = tgl_boundary_at(w, number + 1);
        next.end = end > s.end ? end : s.end;
    }
    return next;
}

TGL_INLINE bool tgl_is_request(const tgl_windows *w, const tgl_span *s)
{
    return s->place.number >= 0 && s->place.number < (w->cu_seqlens ? w->num_requests : 1);
}

/* Raw ids: of the chunk, from token 0 on; -1 where it is masked. And a tokens before it, 1 <= a <= reach. */
TGL_INLINE int64_t tgl_id_at(const tgl_windows *w, int64_t token)
{
    if (w->image_token_mask && w->image_token_mask[token]) return -1;
    return tgl_integer_at(w->input_ids, token * w->id_stride, w->id_bytes);
}

TGL_INLINE const void *tgl_past_of(const tgl_windows *w) { return w->past == PAST_HISTORY ? w->history : w->ring; }
TGL_INLINE int64_t tgl_past_index(const tgl_windows *w, const tgl_request *r, int64_t a)
{
    if (w->past == PAST_HISTORY)
        return r->place.number * w->history_stride + (w->is_newest_first ? a - 1 : w->max_ngram - 1 - a);
    const int64_t entry = r->start - a < 0 ? r->start - a + w->ring_size : r->start - a; /* a <= ring_size */
    return r->slot * w->ring_stride + entry;
}
TGL_INLINE int64_t tgl_past_id_at(const tgl_windows *w, const tgl_request *r, int64_t a)
{
    return tgl_integer_at(tgl_past_of(w), tgl_past_index(w, r, a), w->past_bytes);
}

TGL_INLINE bool tgl_is_mapped(const tgl_windows *w, int64_t id)
{
    return id >= 0 && (!w->token_map || id < w->vocabulary);
}

/* The window of a token, n = max_ngram ids: mapped, pad from the first that is dead, a stop or not there. False for
 * a token that is dead itself. First all loads of ids, then all of the map: none waits for another of its kind. */
TGL_INLINE bool tgl_window_of(const tgl_windows *w, const tgl_request *r, int64_t token, int n, int64_t *window)
{
    const int64_t p = token - r->place.begin;
    for (int i = 0; i < n; i++) {
        window[i] = -1;
        if (i <= p) window[i] = tgl_id_at(w, token - i);
        else if (i <= p + r->reach) window[i] = tgl_past_id_at(w, r, i - p);
    }
    const bool is_alive = w->keeps_ids || tgl_is_mapped(w, window[0]);
    bool is_cut = false;
    for (int i = 0; i < n; i++) {
        const bool is_stop = i > 0 && w->has_stop_id && window[i] == w->stop_id;
        const bool is_mapped = tgl_is_mapped(w, window[i]);
        is_cut = is_cut || i > p + r->reach || is_stop || !(is_mapped || w->keeps_ids);
        if (is_cut) window[i] = w->pad_id;
        else if (w->token_map && is_mapped) window[i] = w->token_map[window[i]];
    }
    return is_alive;
}

/* ---- the ring ---- */

/* Can every token of a chunk of q write its own entry as soon as it has read its window? Entry p of the chunk is that
 * of the token ring_size - p before it, which the first tokens read if it is one of the max_ngram - 1 last. */
TGL_INLINE bool tgl_writes_apart(const tgl_windows *w, int64_t q)
{
    return q == 1 || q <= w->ring_size - w->max_ngram + 1;
}

/* A token into the ring: -1 if it is dead, or an id that the ring cannot hold. Entries count on from 0 past the end. */
TGL_INLINE void tgl_write_ring(const tgl_windows *w, const tgl_request *r, int64_t token, int64_t entry)
{
    int64_t id = tgl_id_at(w, token);
    if (!tgl_is_mapped(w, id)) id = -1;
    const int64_t to = r->slot * w->ring_stride + (entry < w->ring_size ? entry : entry - w->ring_size);
    if (w->past_bytes == 4) ((int32_t *)w->ring)[to] = id == (int32_t)id ? (int32_t)id : -1;
    else ((int64_t *)w->ring)[to] = id;
}

/* The last tokens of a chunk of q into the ring: every `step`-th of them, from number `i` on. */
TGL_INLINE void tgl_write_last(const tgl_windows *w, const tgl_request *r, int64_t q, int64_t i, int64_t step)
{
    const int64_t count = q < w->ring_size ? q : w->ring_size, end = r->place.begin + q;
    const int64_t first = q < w->ring_size ? r->start : tgl_ring_entry(w, r->start + q);
    for (; i < count; i += step) tgl_write_ring(w, r, end - count + i, first + i);
}

#endif
