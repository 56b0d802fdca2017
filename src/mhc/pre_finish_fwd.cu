/* SPDX-License-Identifier: MIT
 * pre_finish_fwd.cu - parts of a projection, and the residual, to gates, comb and the sublayer's input.
 *   computes  as common/partials.h, common/gates.h and common/mhc.h say; out as pre_apply_mix_fwd. The first blocks
 *             make gates and comb of tiles of a.tile tokens, the others columns of a token, for which each makes the
 *             pre gates again: so none waits for another, and Sinkhorn's steps are hidden behind the residual
 *   launch    grid (slices of the columns, a.gate_rows for gates, then tokens, over which blocks stride), block up to
 *             PRE_FINISH_THREADS. Columns of a slice: with bulk copies a.slice units of 8, by way of shared memory, of
 *             which there is more than registers; otherwise a unit for each thread but those of the last warp
 *   moves     2 * (STREAMS + 1) bytes per column; 4 per row and part
 *   macros    STREAMS 1..8; GROUPS 1 (pre), 2 (and post), 3 (and comb); HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/pre_finish_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && GROUPS >= 1 && GROUPS <= 3 &&
                  (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

#define HAS_BULK (HAS_VECTORS && __CUDA_ARCH__ >= 900)
enum { GATES = (GROUPS > 1 ? 2 : 1) * STREAMS, ROWS = GROUPS == 3 ? STREAMS * (STREAMS + 2) : GATES };

/* ---- gates and comb of a tile ---- */

struct tile_sums { float of[PRE_FINISH_TILE][ROWS + 1]; }; /* of each row, then of squares; then rows of E */

DEV void make_gates(const pre_finish_fwd_args &a, i64 first, int tokens, tile_sums &s)
{
#pragma unroll 1
    for (int k = (int)threadIdx.x; k < tokens * (ROWS + 1); k += (int)blockDim.x) {
        const int row = k - tokens * ROWS, token = row < 0 ? k / ROWS : row; /* of a token, then of squares */
        const int j = row < 0 ? k % ROWS : ROWS;
        s.of[token][j] = pre_finish_sum(&a, first + token, j, ROWS);
    }
    __syncthreads();
#pragma unroll 1
    for (int k = (int)threadIdx.x; k < tokens * GATES; k += (int)blockDim.x) {
        const int token = k / GATES, j = k % GATES;
        const float r = projection_rms(s.of[token][ROWS], a.columns, a.rms_eps);
        float *const to = j < STREAMS ? a.gates[0] : a.gates[1];
        if (to) to[(first + token) * STREAMS + j % STREAMS] = pre_finish_gate(&a, j, STREAMS, s.of[token][j], r);
    }
}

/* A thread has a row of logits, then a token. */
DEV void make_combs(const pre_finish_fwd_args &a, i64 first, int tokens, tile_sums &s)
{
#pragma unroll 1
    for (int k = (int)threadIdx.x; k < tokens * STREAMS; k += (int)blockDim.x) {
        const int token = k / STREAMS, begin = (2 + k % STREAMS) * STREAMS;
        const float r = projection_rms(s.of[token][ROWS], a.columns, a.rms_eps);
        float row[STREAMS];
#pragma unroll
        for (int o = 0; o < STREAMS; o++) row[o] = mhc_logit(s.of[token][begin + o] * r, a.scale[2], a.base[begin + o]);
        mhc_sinkhorn_row(row, STREAMS, a.sinkhorn_eps);
#pragma unroll
        for (int o = 0; o < STREAMS; o++) s.of[token][begin + o] = row[o];
    }
    __syncthreads();
#pragma unroll 1
    for (int token = (int)threadIdx.x; token < tokens; token += (int)blockDim.x) {
        float *const to = a.gates[2] + (first + token) * (STREAMS * STREAMS);
        mhc_matrix m;
#pragma unroll
        for (int i = 0; i < STREAMS * STREAMS; i++) m.e[i / STREAMS][i % STREAMS] = s.of[token][2 * STREAMS + i];
        mhc_sinkhorn_steps(&m, STREAMS, a.repeat, a.sinkhorn_eps);
#pragma unroll
        for (int i = 0; i < STREAMS * STREAMS; i++)
            to[i] =
                tgl_one_nan(mhc_sinkhorn_product(m.e[i / STREAMS][i % STREAMS], m.u[i / STREAMS], m.v[i % STREAMS]));
    }
}

/* ---- columns of a token ---- */

DEV uint4 collapsed(const float (&pre)[STREAMS], const uint4 (&x)[STREAMS])
{
    float made[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float in[STREAMS];
#pragma unroll
        for (int i = 0; i < STREAMS; i++) in[i] = column(x[i], c);
        made[c] = rows_apply(pre, in, STREAMS);
    }
    return pack(made);
}

/* By the last warp; the residual is on its way meanwhile. */
DEV void make_pre(const pre_finish_fwd_args &a, i64 t, float (&pre)[STREAMS])
{
    const int lane = (int)threadIdx.x % 32;
    float sum = 0;
    if (lane <= STREAMS) sum = pre_finish_sum(&a, t, lane < STREAMS ? lane : (int)ROWS, ROWS);
    const float r = projection_rms(__shfl_sync(FULL, sum, STREAMS), a.columns, a.rms_eps);
    if (lane < STREAMS) pre[lane] = pre_finish_gate(&a, lane, STREAMS, sum, r);
}

DEV const u16 *stream_of(const pre_finish_fwd_args &a, i64 t, int i)
{
    return a.residual.data + t * a.residual.token + i * a.residual.stream;
}

#if !HAS_BULK
DEV void make_columns(const pre_finish_fwd_args &a, i64 t, float (&pre)[STREAMS])
{
    const int tid = (int)threadIdx.x, column_threads = (int)blockDim.x - 32;
    const i64 column = ((i64)blockIdx.x * column_threads + tid) * ROWS_UNIT;
    const bool has_columns = tid < column_threads && column < a.hidden;
    uint4 x[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        x[i] = make_uint4(0, 0, 0, 0);
        if (has_columns) x[i] = load_unit(stream_of(a, t, i), column, a.hidden);
    }
    if (tid >= column_threads) make_pre(a, t, pre);
    __syncthreads();
    float mix[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++) mix[i] = pre[i];
    if (has_columns) store_unit(a.out.data + t * a.out.token, column, a.hidden, collapsed(mix, x));
}
#else
/* `full`: an mbarrier, of which each token is a phase. */
DEV void make_slice(const pre_finish_fwd_args &a, i64 t, float (&pre)[STREAMS], u32 slots, u32 full, u32 parity)
{
    const int tid = (int)threadIdx.x;
    const i64 first = (i64)blockIdx.x * a.slice * ROWS_UNIT;
    const u32 slot = (u32)a.slice * 16, bytes = (u32)min((i64)slot, max((a.hidden - first) * 2, (i64)0));
    if (tid == 0) {
        mbar_expect(full, STREAMS * bytes);
#pragma unroll
        for (int i = 0; i < STREAMS; i++)
            if (bytes) bulk_load(slots + i * slot, stream_of(a, t, i) + first, bytes, full);
    }
    if (tid >= (int)blockDim.x - 32) {
        __syncwarp();
        make_pre(a, t, pre);
    }
    __syncthreads();
    float mix[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++) mix[i] = pre[i];
    mbar_wait(full, parity);
#pragma unroll 1
    for (u32 at = tid * 16; at < bytes; at += blockDim.x * 16) {
        uint4 x[STREAMS];
#pragma unroll
        for (int i = 0; i < STREAMS; i++) x[i] = shared_load_u32x4(slots + i * slot + at);
        store_unit(a.out.data + t * a.out.token, first + at / 2, a.hidden, collapsed(mix, x));
    }
}
#endif

/* Blocks an SM that registers must allow, where none is spilled for it. */
enum { BLOCKS = STREAMS == 4 && __CUDA_ARCH__ / 100 == 9 ? 5 : 1 };

extern "C" __global__ void __launch_bounds__(PRE_FINISH_THREADS, BLOCKS)
    pre_finish_fwd(const __grid_constant__ pre_finish_fwd_args a)
{
    SHARED(tile_sums, sums);
    SHARED(float[STREAMS], pre);
    pdl_wait();
    if ((i64)blockIdx.y < a.gate_rows) {
        const i64 blocks = a.gate_rows * gridDim.x;
#pragma unroll 1
        for (i64 first = ((i64)blockIdx.y * gridDim.x + blockIdx.x) * a.tile; first < a.num_tokens;
             first += blocks * a.tile) {
            const int tokens = (int)min((i64)a.tile, a.num_tokens - first);
            make_gates(a, first, tokens, sums);
            if (GROUPS == 3 && a.gates[2]) make_combs(a, first, tokens, sums);
            __syncthreads(); /* before the next tile's sums */
        }
    } else {
        const i64 first = blockIdx.y - a.gate_rows, step = gridDim.y - a.gate_rows;
#if HAS_BULK
        SHARED_DYNAMIC(slots, 128);
        SHARED(u64, full);
        u32 parity = 0;
        if (threadIdx.x == 0) mbar_init(shared_address(&full), 1), mbar_init_fence();
#endif
#pragma unroll 1
        for (i64 t = first; t < a.num_tokens; t += step) {
#if HAS_BULK
            make_slice(a, t, pre, shared_address(slots), shared_address(&full), parity);
            parity ^= 1;
#else
            make_columns(a, t, pre);
#endif
            __syncthreads(); /* before the next token's gates and columns */
        }
    }
    pdl_trigger();
}
