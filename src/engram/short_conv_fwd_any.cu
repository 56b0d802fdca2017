/* SPDX-License-Identifier: MIT
 * short_conv_fwd_any.cu - the short convolution, for any number of columns and taps at any address.
 *   computes  as tegula/engram.h says, sums in the order of common/short_conv.h
 *   launch    grid num_tokens * num_streams (block b: stream b % num_streams), block CONV_ANY_THREADS
 *   moves     2 bytes per element of residual and out, 4 of x for each tap
 *   macros    ROUND_EACH 0, 1
 *
 * The ring is written as in short_conv_fwd.cu: where tokens of a chunk read what others write, the block of the first
 * token has all of them, and a thread writes columns that it alone has read. */
#include "device/ptx.cuh"
#include "engram/short_conv_fwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_RING
#define PAST_BYTES 4
#include "engram/common/requests.cuh"
#include "engram/common/row_sum.cuh"

static_assert(ROUND_EACH == 0 || ROUND_EACH == 1, "ROUND_EACH is 0 or 1");

/* One of the rows that a result is made of: x with its rstd, or a row of the ring, or nothing. */
struct tap { const u16 *x, *ring; float rstd; };

/* The sum of a row's squares, in all threads. */
DEV float sum_of_squares(const u16 *row, i64 hidden, float *groups)
{
    return row_sum<CONV_ANY_THREADS>(hidden, groups, [&](float sum, i64 i) {
        const float v = tgl_bf16_to_f32(row[i]);
        return fmaf(v, v, sum);
    });
}

DEV tap tap_at(const short_conv_args &a, const tgl_request &r, i64 token, i64 h, float *groups)
{
    tap made = { nullptr, nullptr, 0 };
    const tgl_windows &w = a.requests;
    const i64 before = r.place.begin - token;
    if (before > r.reach || (before <= 0 && w.image_token_mask && w.image_token_mask[token])) return made;
    if (before > 0) {
        const i64 entry = r.start - before < 0 ? r.start - before + w.ring_size : r.start - before;
        made.ring = a.ring + conv_ring_row(&a, r.slot, entry, h);
    } else {
        made.x = a.x.data + token * a.x.token + h * a.x.stream;
        made.rstd = conv_rstd(&a.numbers, sum_of_squares(made.x, a.hidden, groups));
    }
    return made;
}

DEV float value_of(const short_conv_args &a, const tap &t, i64 h, i64 i)
{
    if (t.ring) return tgl_bf16_to_f32(t.ring[i]);
    if (!t.x) return 0;
    const float norm = conv_norm_weight(&a.numbers, conv_weight_at(&a.norm, h * a.norm.stride + i));
    return conv_rounded(conv_normed(tgl_bf16_to_f32(t.x[i]), t.rstd, norm));
}

/* The entry of the ring of token number i of the chunk. */
DEV void store_ring(const short_conv_args &a, const tgl_request &r, i64 i, const tap &t, i64 h)
{
    u16 *const to = a.ring + conv_ring_row(&a, r.slot, tgl_ring_entry(&a.requests, r.start + i), h);
#pragma unroll 1
    for (i64 c = threadIdx.x; c < a.hidden; c += CONV_ANY_THREADS) to[c] = tgl_bf16_from_f32(value_of(a, t, h, c));
}

DEV void run_row(const short_conv_args &a, const tgl_request &r, bool is_alive, bool writes, i64 t, i64 h, tap *taps,
                 float *groups)
{
    const int last = a.kernel_size - 1;
    __syncthreads();                                        /* taps have been read */
#pragma unroll 1
    for (int j = 0; is_alive && j <= last; j++) {
        const tap made = tap_at(a, r, t - (i64)(last - j) * a.dilation, h, groups);
        if (threadIdx.x == 0) taps[j] = made;
    }
    if (!is_alive && threadIdx.x == 0) taps[last] = { nullptr, nullptr, 0 };
    __syncthreads();
    if (a.rstd && threadIdx.x == 0) a.rstd[t * a.num_streams + h] = tgl_one_nan(taps[last].rstd);
    const u16 *const residual =
        a.residual.data ? a.residual.data + t * a.residual.token + h * a.residual.stream : nullptr;
    u16 *const out = a.out.data + t * a.out.token + h * a.out.stream;
#pragma unroll 1
    for (i64 i = threadIdx.x; i < a.hidden; i += CONV_ANY_THREADS) {
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
        out[i] = tgl_bf16_from_f32(conv_result(&a.numbers, z, 1.0f / conv_sigmoid_divisor(z),
                                               tgl_bf16_to_f32(taps[last].x[i]), residual != nullptr,
                                               tgl_bf16_to_f32(added), ROUND_EACH));
    }
    if (writes) store_ring(a, r, t - r.place.begin, taps[last], h);
}

extern "C" __global__ void __launch_bounds__(CONV_ANY_THREADS, 4) short_conv_fwd_any(
    const __grid_constant__ short_conv_args a)
{
    SHARED(tap[CONV_MAX_TAPS], taps);
    SHARED(float[CONV_ANY_THREADS / 32], groups);
    SHARED(tgl_request, shared_request);
    SHARED(request_scratch<CONV_ANY_THREADS>, scratch);
    const i64 block = (i64)blockIdx.y * gridDim.x + blockIdx.x, t = block / a.num_streams;
    const i64 h = block - t * a.num_streams;
    const tgl_windows &w = a.requests;
    pdl_wait();
    if (t < a.num_tokens) {
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
            for (i64 i = max((i64)0, q - w.ring_size); i < q; i++)
                store_ring(a, r, i, tap_at(a, r, t + i, h, groups), h);
    }
    pdl_trigger();
}
