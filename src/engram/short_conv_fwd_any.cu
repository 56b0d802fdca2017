/* SPDX-License-Identifier: MIT
 * short_conv_fwd_any.cu - the short convolution, for any number of columns and taps at any address.
 *   computes  as tegula/engram.h says, sums in the order of common/short_conv.h
 *   launch    grid num_tokens * num_streams (block b: stream b % num_streams), block CONV_ANY_THREADS
 *   moves     2 bytes per element of residual and out, 4 of x for each tap
 *   macros    ROUND_EACH 0, 1 */
#include "device/ptx.cuh"
#include "engram/short_conv_fwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_RING
#define PAST_BYTES 4
#include "engram/common/requests.cuh"
#include "engram/common/row_sum.cuh"

typedef short_conv_args args;
enum { THREADS = CONV_ANY_THREADS };
struct tap {
    const u16 *row, *ring;
    float rstd;
};

DEV tap tap_of(const args &a, i64 token, i64 h, float *groups)
{
    const u16 *const x = a.x.data + token * a.x.token + h * a.x.stream;
    const float squares = row_sum<THREADS>(a.hidden, groups, [&](float sum, i64 i) {
        const float v = tgl_bf16_to_f32(x[i]);
        return fmaf(v, v, sum);
    });
    return { x, nullptr, conv_rstd(&a.numbers, squares) };
}
DEV float input_at(const tap &t, i64 i) { return tgl_bf16_to_f32(t.row[i]); }
DEV u16 *ring_row(const args &a, i64 slot, i64 entry, i64 h) { return a.ring + conv_ring_row(&a, slot, entry, h); }
DEV const u16 *residual_of(const args &a, i64 t, i64 h)
{
    return a.residual.data ? a.residual.data + t * a.residual.token + h * a.residual.stream : nullptr;
}
DEV void put_rstd(const args &a, i64 t, i64 h, float rstd)
{
    if (a.rstd) a.rstd[t * a.num_streams + h] = tgl_one_nan(rstd);
}
#include "engram/common/short_conv_any.cuh"

extern "C" __global__ void __launch_bounds__(CONV_ANY_THREADS, 4)
    short_conv_fwd_any(const __grid_constant__ short_conv_args a)
{
    pdl_wait();
    run(a);
    pdl_trigger();
}
