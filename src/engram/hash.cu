/* SPDX-License-Identifier: MIT
 * hash.cu - table rows of windows of token ids.
 *   computes  as tegula/engram.h says
 *   launch    grid (tiles of tokens, over which blocks stride; chunks of units), block up to COLUMN_THREADS, no
 *             shared memory
 *   moves     windows once (per chunk: one in all models), rows once
 *   macros    ID_BYTES 4, 8; as common/columns.cuh says */
#include "engram/common/columns.cuh"
#include "engram/common/integers.cuh"
#include "engram/hash.h"
static_assert(ID_BYTES == 4 || ID_BYTES == 8, "ID_BYTES is 4 or 8");

constexpr int N = MAX_NGRAM ? MAX_NGRAM : 1;
constexpr int AHEAD = 4; /* windows of a thread that are on their way to L2 */

struct window {
    loaded ids[N];
    u8 is_masked;
};
DEV window load_window(const hash_args &a, i64 token)
{
    window w = {};
    const bool is_there = token < a.columns.num_tokens;
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++)
        w.ids[i] = load_integer_if(a.ngram_token_ids, token * a.id_stride + i, ID_BYTES, is_there);
    if (is_there && a.image_token_mask) w.is_masked = a.image_token_mask[token];
    return w;
}

DEV void prefetch_window(const hash_args &a, i64 token)
{
    if (token < a.columns.num_tokens) prefetch_l2((const u8 *)a.ngram_token_ids + token * a.id_stride * ID_BYTES);
}

DEV u64 hash_of(const hash_args &a, const unit &u, const window &w, i64 token)
{
    u64 hash = 0;
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++) hash ^= (u64)value_of(w.ids[i], ID_BYTES) * (u64)u.multiplier[i];
    if (!MAX_NGRAM)
#pragma unroll 1
        for (i32 i = 0; i <= u.at.order; i++)
            hash ^= (u64)tgl_integer_at(a.ngram_token_ids, token * a.id_stride + i, ID_BYTES) *
                    (u64)a.columns.multipliers[(i64)u.at.layer * a.columns.max_ngram + i];
    return hash;
}

extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, COLUMN_HASH_BLOCKS - (MAX_NGRAM > 4))
    hash(const __grid_constant__ hash_args a)
{
    const tgl_columns &c = a.columns;
    pdl_wait();
    const unit_loads loads = load_unit(c, (i32)blockIdx.y);
    if (!loads.at.is_there) return;
    i64 token = (i64)blockIdx.x * c.slots + loads.at.slot;
    const i64 step = (i64)gridDim.x * c.slots;
    window next = load_window(a, token);
#pragma unroll 1
    for (i64 t = token + step, end = min(c.num_tokens, token + AHEAD * step); t < end; t += step) prefetch_window(a, t);
    const unit u = unit_of(c, loads);
#pragma unroll 1
    while (token < c.num_tokens) {
        const window w = next;
        const i64 here = token;
        prefetch_window(a, token + AHEAD * step);
        token += step;
        next = load_window(a, token);
        put_rows(c, u, hash_of(a, u, w, here), w.is_masked ? COLUMN_NONE : 0, row_of(c, u.at, here));
    }
    pdl_trigger();
}
