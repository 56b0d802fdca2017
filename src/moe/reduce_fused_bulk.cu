/* SPDX-License-Identifier: MIT
 * reduce_fused_bulk.cu - reduce_fused by bulk copies: many tokens, rows of whole vectors (16 bytes).
 *   computes  as reduce_fused.cu
 *   launch    grid (chunks of a row, ceil(num_tokens / tokens)), block up to REDUCE_BULK_THREADS, dynamic
 *             shared memory of STAGES chunks of UNITS vectors per thread; 1 <= tokens * num_topk <= 32; sm_90
 *             and up
 *   moves     as reduce_fused.cu
 *   macros    X_TYPE, OUT_TYPE REDUCE_F32, REDUCE_BF16, REDUCE_F16, REDUCE_E4M3; UNITS 1.. vectors
 *             per thread; STAGES 1.. rows in flight
 *
 * The rows of a block's tokens go through a ring of stages in shared memory: while one is added, the next are
 * in flight, across tokens too, and hold no registers. */
#include "moe/reduce_fused.h"

#define HAS_VECTORS 1

#include "moe/reduce_fused.cuh"

static_assert(STAGES >= 1 && STAGES <= 32, "STAGES is 1..32");

#if __CUDA_ARCH__ >= 900
/* A block's part of the rows, and the ring; a stage has a chunk and an mbarrier. */
typedef struct {
    const u8 *x;
    i64 row_bytes;
    u32 bytes, pitch, stages, loaded;
} ring;

/* Loads the row of the first of `lanes` into a stage and removes that lane. By a whole warp. */
DEV void load_stage(const ring &r, const slots &s, u32 &lanes, int stage)
{
    const u8 *row = r.x + __shfl_sync(FULL, s.position, take_lane(lanes)) * r.row_bytes;
    if (threadIdx.x == 0) {
        mbar_expect(r.loaded + 8 * stage, r.bytes);
        bulk_load(r.stages + stage * r.pitch, row, r.bytes, r.loaded + 8 * stage);
    }
}

/* The block's chunk of its rows of out: `tokens` tokens at a time, striding by gridDim.y. */
DEV void reduce(const reduce_args &p)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(u64[STAGES], loaded);
    const int tid = (int)threadIdx.x, step = COLS * (int)blockDim.x;
    const int num_topk = (int)p.num_topk, tokens = p.tokens;
    const i64 chunk = (i64)blockIdx.x * UNITS * step, first = chunk + COLS * tid;
    const u32 bytes = (u32)min((p.hidden - chunk) * X_BYTES, (i64)(UNITS * step * X_BYTES));
    const ring r = { (const u8 *)p.x + chunk * X_BYTES, p.x_stride * X_BYTES,   bytes,
                     (u32)(UNITS * step * X_BYTES),     shared_address(memory), shared_address(loaded) };
    bool is_mine[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; i++) is_mine[i] = first + i * step < p.hidden;
    if (tid == 0) {
#pragma unroll
        for (int i = 0; i < STAGES; i++) mbar_init(r.loaded + 8 * i, 1);
        mbar_init_fence();
    }
    __syncwarp(); /* for racecheck, which takes the init for another lane's; no instruction */
    pdl_wait();
    const float sf = p.sf ? *p.sf : 1;
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (i64 t = (i64)blockIdx.y * tokens; t < p.num_tokens; t += (i64)gridDim.y * tokens) {
        const int count = (int)min((i64)tokens, p.num_tokens - t);
        slots s = load_slots(p, t, 0, count * num_topk);
        u32 ahead = s.valid;
#pragma unroll
        for (int i = 0; i < STAGES; i++)
            if (ahead) load_stage(r, s, ahead, (stage + i) % STAGES);
        scale_slots(p, s);
        __syncthreads(); /* mbarriers are initialised */
#pragma unroll 1
        for (int token = 0; token < count; token++) {
            float sum[UNITS][COLS] = {};
#pragma unroll 1
            for (u32 lanes = s.valid & FULL >> (32 - num_topk) << token * num_topk; lanes;) {
                const float factor = __shfl_sync(FULL, s.factor, take_lane(lanes));
                mbar_wait(r.loaded + 8 * stage, parity);
                const u32 from = r.stages + stage * r.pitch + 16 * tid;
                uint4 v[UNITS];
#pragma unroll
                for (int i = 0; i < UNITS; i++)
                    if (is_mine[i]) v[i] = shared_load_u32x4(from + 16 * i * blockDim.x);
                if (ahead) {
                    __syncthreads(); /* all threads have read the stage */
                    load_stage(r, s, ahead, stage);
                }
#pragma unroll
                for (int i = 0; i < UNITS; i++) add(sum[i], v[i], factor);
                stage = stage + 1 < STAGES ? stage + 1 : 0;
                if (stage == 0) parity ^= 1;
            }
            store_sums(sum, p, sf, t + token, first, step, is_mine);
        }
        __syncthreads(); /* no thread reads the ring */
    }
}
#endif

extern "C" __global__ void __launch_bounds__(REDUCE_BULK_THREADS) reduce_fused_bulk(const reduce_args p)
{
#if __CUDA_ARCH__ >= 900
    reduce(p);
    pdl_trigger();
#endif
}
