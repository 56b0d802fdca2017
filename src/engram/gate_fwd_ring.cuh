/* SPDX-License-Identifier: MIT
 * gate_fwd_ring.cuh - what gate_fwd_ring and gate_fwd_pipeline share: blocks that stay, each on one stream, and the stages
 * of shared memory to which bulk copies bring its rows.
 *   macros    as gate_fwd.cuh; VECTORS 1..GATE_RING_VECTORS of a thread */
#ifndef TEGULA_ENGRAM_GATE_FWD_RING_CUH
#define TEGULA_ENGRAM_GATE_FWD_RING_CUH

#include "engram/gate_fwd.cuh"

static_assert(VECTORS >= 1 && VECTORS <= GATE_RING_VECTORS, "VECTORS is 1..GATE_RING_VECTORS");

#if __CUDA_ARCH__ >= 900
/* Row i of the block is of token first + i * step. A stage is a row of x, one of k and, if there is an output, of v. */
typedef struct {
    u32 stages, row_bytes, stage_bytes;
    u32 loaded; /* an mbarrier for every stage */
    i64 h, first, step, rows;
} ring;

/* Block b has stream b % num_streams and tokens b / num_streams, + n, + 2 n, ... of a grid of n * num_streams. */
DEV ring ring_of_block(const gate_fwd_args &a, u32 stages, u32 loaded)
{
    const u32 streams = (u32)a.num_streams, row_bytes = (u32)a.hidden * 2;
    const i64 first = blockIdx.x / streams, step = gridDim.x / streams;
    const i64 rows = first < a.num_tokens ? (a.num_tokens - first - 1) / step + 1 : 0;
    return { stages, row_bytes, (a.out.data ? 3u : 2u) * row_bytes, loaded, blockIdx.x % streams, first, step, rows };
}

DEV i64 token_of(const ring &r, i64 i) { return r.first + i * r.step; }

DEV bool is_masked_row(const gate_fwd_args &a, const ring &r, i64 i)
{
    return a.image_token_mask && i < r.rows && a.image_token_mask[token_of(r, i)];
}

/* Row i into its stage; of one that is known to be masked, x alone, and that only if it is a result. What was in the stage
 * is added up once more then, for nothing. */
DEV void fill(const gate_fwd_args &a, const ring &r, i64 i, int stage, bool is_masked)
{
    const i64 t = token_of(r, i);
    const u32 bar = r.loaded + 8 * stage, to = r.stages + stage * r.stage_bytes;
    const bool has_x = !is_masked || (has_masked_result(a) && a.has_residual);
    mbar_expect(bar, is_masked ? (has_x ? r.row_bytes : 0) : r.stage_bytes);
    if (has_x) bulk_load(to, row_of(a.x, t, r.h), r.row_bytes, bar);
    if (is_masked) return;
    bulk_load(to + r.row_bytes, row_of(a.k, t, r.h), r.row_bytes, bar);
    if (a.out.data) bulk_load(to + 2 * r.row_bytes, row_of(a.v, t, 0), r.row_bytes, bar);
}

/* The first rows, into all stages, which do not wait for the mask. */
DEV void fill_all(const gate_fwd_args &a, const ring &r)
{
#pragma unroll 1
    for (int i = 0; i < a.stages && i < r.rows; i++) fill(a, r, i, i, false);
}
#endif

#endif
