/* SPDX-License-Identifier: MIT
 * short_conv_any.cuh - the convolution of rows by a block, for any number of columns and taps at any address: what
 * short_conv_fwd_any.cu and gate_conv_fwd_any.cu share. Before it are
 *
 *     typedef ... args;                the kernel's arguments
 *     enum { THREADS = ... };          of a block
 *     struct tap { const u16 *row, *ring; float rstd; ... };           a row that a result is made of: of the chunk, or
 *                                                                      of the ring, or nothing (both nullptr)
 *     tap tap_of(const args &a, i64 token, i64 h, float *groups);      of a token of the chunk
 *     float input_at(const tap &t, i64 i);                             what is normed
 *     u16 *ring_row(const args &a, i64 slot, i64 entry, i64 h);
 *     const u16 *residual_of(const args &a, i64 t, i64 h);             nullptr: none
 *     void put_rstd(const args &a, i64 t, i64 h, float rstd);          if it is wanted
 *
 *   macros    ROUND_EACH 0, 1
 *
 * The ring is written as in short_conv_fwd.cu: where tokens of a chunk read what others write, the block of the first
 * token has all of them, and a thread writes columns that it alone has read. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_ANY_CUH
#define TEGULA_ENGRAM_SHORT_CONV_ANY_CUH

static_assert(ROUND_EACH == 0 || ROUND_EACH == 1, "ROUND_EACH is 0 or 1");

DEV tap tap_at(const args &a, const tgl_request &r, i64 token, i64 h, float *groups)
{
    tap made = {};
    const tgl_windows &w = a.requests;
    const i64 before = r.place.begin - token;
    if (before > r.reach || (before <= 0 && w.image_token_mask && w.image_token_mask[token])) return made;
    if (before <= 0) return tap_of(a, token, h, groups);
    made.ring = ring_row(a, r.slot, r.start - before < 0 ? r.start - before + w.ring_size : r.start - before, h);
    return made;
}

DEV float value_of(const args &a, const tap &t, i64 h, i64 i)
{
    if (t.ring) return tgl_bf16_to_f32(t.ring[i]);
    if (!t.row) return 0;
    const float norm = conv_norm_weight(&a.numbers, conv_weight_at(&a.norm, h * a.norm.stride + i));
    return conv_rounded(conv_normed(input_at(t, i), t.rstd, norm));
}

/* The entry of the ring of token number i of the chunk. */
DEV void store_ring(const args &a, const tgl_request &r, i64 i, const tap &t, i64 h)
{
    u16 *const to = ring_row(a, r.slot, tgl_ring_entry(&a.requests, r.start + i), h);
#pragma unroll 1
    for (i64 c = threadIdx.x; c < a.hidden; c += THREADS) to[c] = tgl_bf16_from_f32(value_of(a, t, h, c));
}

DEV void run_row(const args &a, const tgl_request &r, bool is_alive, bool writes, i64 t, i64 h, tap *taps,
                 float *groups)
{
    const int last = a.kernel_size - 1;
    __syncthreads(); /* taps have been read */
#pragma unroll 1
    for (int j = 0; is_alive && j <= last; j++) {
        const tap made = tap_at(a, r, t - (i64)(last - j) * a.dilation, h, groups);
        if (threadIdx.x == 0) taps[j] = made;
    }
    if (!is_alive && threadIdx.x == 0) taps[last] = {};
    __syncthreads();
    if (threadIdx.x == 0) put_rstd(a, t, h, taps[last].rstd);
    const u16 *const residual = residual_of(a, t, h);
    u16 *const out = a.out.data + t * a.out.token + h * a.out.stream;
#pragma unroll 1
    for (i64 i = threadIdx.x; i < a.hidden; i += THREADS) {
        const u16 added = residual ? residual[i] : (u16)0;
        if (!is_alive) {
            out[i] = added;
            continue;
        }
        const i64 channel = h * a.hidden + i;
        float z = a.bias.data ? conv_weight_at(&a.bias, channel) : 0;
#pragma unroll 1
        for (int j = 0; j <= last; j++)
            z = fmaf(conv_weight_at(&a.conv, channel * a.kernel_size + j), value_of(a, taps[j], h, i), z);
        if (ROUND_EACH) z = conv_rounded(z);
        out[i] = tgl_bf16_from_f32(conv_result(&a.numbers, z, 1.0f / conv_sigmoid_divisor(z), input_at(taps[last], i),
                                               residual != nullptr, tgl_bf16_to_f32(added), ROUND_EACH));
    }
    if (writes) store_ring(a, r, t - r.place.begin, taps[last], h);
}

/* Token and stream of the block, and tokens that it has besides. */
DEV void run(const args &a)
{
    SHARED(tap[CONV_MAX_TAPS], taps);
    SHARED(float[THREADS / 32], groups);
    SHARED(tgl_request, shared_request);
    SHARED(request_scratch<THREADS>, scratch);
    const i64 block = (i64)blockIdx.y * gridDim.x + blockIdx.x, t = block / a.num_streams;
    const i64 h = block - t * a.num_streams;
    const tgl_windows &w = a.requests;
    if (t >= a.num_tokens) return;
    const tgl_place place = find_place(w, t, scratch);
    if (threadIdx.x == 0) {
        shared_request = { { -1, 0 }, -1, 0, 0 };
        if (is_in_request(w, place)) shared_request = tgl_request_at(&w, place);
    }
    __syncthreads();
    const tgl_request r = shared_request;
    const bool has_request = r.place.number >= 0;
    const i64 q = has_request ? tgl_end_of(&w, &r.place) - r.place.begin : 0, depth = t - r.place.begin;
    const bool writes = has_request && r.slot >= 0 && w.writes_ring;
    const bool is_apart = !writes || tgl_writes_apart(&w, q);
    const i64 together = is_apart ? 0 : min(q, (i64)w.max_ngram - 1);
    const i64 end = has_request && depth == 0 && together > 0 ? t + together : t + 1;
    if (depth == 0 || depth >= together || !has_request)
#pragma unroll 1
        for (i64 at = t; at < end; at++) {
            const bool is_alive = has_request && !(w.image_token_mask && w.image_token_mask[at]);
            run_row(a, r, is_alive, writes && is_apart, at, h, taps, groups);
        }
    if (writes && !is_apart && depth == 0)
#pragma unroll 1
        for (i64 i = max((i64)0, q - w.ring_size); i < q; i++) store_ring(a, r, i, tap_at(a, r, t + i, h, groups), h);
}

#endif
