/* SPDX-License-Identifier: MIT
 * grad_w_reduce.cu - gradients of the gate's two weights.
 *   computes  G = sum of partials in order; grad_weight_hidden += G * weight_embed,
 *             grad_weight_embed += G * weight_hidden
 *   launch    grid (chunks of a row, at most 65535 streams, over which blocks stride), block GRAD_W_THREADS, which
 *             have a column each: its partials pass through a ring in shared memory, where GRAD_W_AHEAD are on their
 *             way. (As loads to registers, 16 at a time, 132 partials of 4 x 7168 took 12.4 us on an H200, 2026-11)
 *   moves     4 bytes per element of partials, 20 of a weight
 *   macros    IS_BF16 0, 1: the weights' dtype, otherwise f32; ZERO_CENTERED 0, 1: they are stored minus 1 */
#include "device/ptx.cuh"
#include "engram/grad_w_reduce.h"

static_assert((IS_BF16 == 0 || IS_BF16 == 1) && (ZERO_CENTERED == 0 || ZERO_CENTERED == 1), "a macro is out of range");

enum { GROUP = 16, GROUPS = GRAD_W_AHEAD / GROUP, ROW_BYTES = GRAD_W_THREADS * 4 }; /* GROUP: of copies */

/* Partials first .. first + GROUP - 1 of a warp's 32 columns, to its part of the ring; `from`: partial 0, of the
 * stream. With vectors, 8 lanes copy a partial: a quarter of the instructions. */
DEV void copy_group(const grad_w_reduce_args &a, const float *from, i64 first, u32 ring)
{
    const int lane = (int)threadIdx.x % 32;
    const i64 size = a.num_streams * a.hidden, column = (i64)blockIdx.x * GRAD_W_THREADS + threadIdx.x;
    const u32 to = ring + (u32)(first % GRAD_W_AHEAD) * ROW_BYTES;
    if (a.has_vectors) {
        const int row = lane / 8, chunk = lane % 8 * 4;
        if (column - lane + chunk < a.hidden)
#pragma unroll
            for (int j = 0; j < GROUP; j += 4)
                if (first + j + row < a.num_partials)
                    copy_async_16(to + (j + row) * ROW_BYTES + (chunk - lane) * 4,
                                  from + (first + j + row) * size + column - lane + chunk);
    } else if (column < a.hidden) {
#pragma unroll 1
        for (int j = 0; j < GROUP; j++)
            if (first + j < a.num_partials) copy_async_4(to + j * ROW_BYTES, from + (first + j) * size + column);
    }
    copy_async_commit();
}

extern "C" __global__ void __launch_bounds__(GRAD_W_THREADS) grad_w_reduce(const __grid_constant__ grad_w_reduce_args a)
{
    SHARED(float[GRAD_W_AHEAD][GRAD_W_THREADS], partials);
    const i64 i = (i64)blockIdx.x * GRAD_W_THREADS + threadIdx.x;
    const u32 ring = shared_address(&partials[0][threadIdx.x]);
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (i64 h = blockIdx.y; h < a.num_streams; h += gridDim.y) {
        const float *const from = a.grad_w_partial + h * a.hidden;
#pragma unroll 1
        for (int g = 0; g < GROUPS; g++) copy_group(a, from, g * GROUP, ring);
        const i64 n = h * a.hidden + i;
        const bool is_mine = i < a.hidden;
        float hidden = 0, embed = 0, to_hidden = 0, to_embed = 0, sum = 0;
        if (is_mine) {
            hidden = grad_w_factor(a.weight_hidden, h * a.hidden_stride + i, IS_BF16, ZERO_CENTERED);
            embed = grad_w_factor(a.weight_embed, h * a.embed_stride + i, IS_BF16, ZERO_CENTERED);
            to_hidden = a.grad_weight_hidden[n], to_embed = a.grad_weight_embed[n];
        }
#pragma unroll 1
        for (i64 first = 0; first < a.num_partials; first += GROUP) {
            const u32 at = ring + (u32)(first % GRAD_W_AHEAD) * ROW_BYTES;
            float v[GROUP];
            copy_async_wait<GROUPS - 1>();
            __syncwarp(); /* what other lanes have copied is there */
#pragma unroll
            for (int j = 0; j < GROUP; j++)
                v[j] = is_mine && first + j < a.num_partials ? shared_load_f32(at + j * ROW_BYTES) : 0.0f;
#pragma unroll
            for (int j = 0; j < GROUP; j++) sum += v[j]; /* +0 changes no sum that began with +0 */
            __syncwarp();                                /* all lanes have read what is copied over */
            copy_group(a, from, first + GRAD_W_AHEAD, ring);
        }
        if (is_mine) {
            a.grad_weight_hidden[n] = grad_w_added(to_hidden, sum, embed);
            a.grad_weight_embed[n] = grad_w_added(to_embed, sum, hidden);
        }
    }
}
