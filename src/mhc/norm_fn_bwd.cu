/* SPDX-License-Identifier: MIT
 * norm_fn_bwd.cu - gradients of the projection.
 *   computes  dmul, slope as norm_fn_bwd.h says; grad_residual = bf16([grad_residual] + sum over rows of dmul * fn +
 *             x * slope), rows in steps of 8 on tensor cores, in TF32; grad_fn[j][k] = sum over tokens of dmul[j] *
 *             x[k], in a group of tokens in steps of 16 on tensor cores, dmul split in two bf16; groups in order. With
 *             a gain, D, that sum, is the gradient of fn * norm_weight: grad_fn = D * norm_weight, grad_norm_weight =
 *             sum over rows of D * fn
 *   launch    grid (slices of NORM_FN_BWD_COLUMNS columns of a stream, groups), block NORM_FN_BWD_THREADS: a warp has
 *             16 columns. The last block of a slice adds the groups
 *   moves     4 bytes per column of a token, 6 if it accumulates; partial sums
 *   macros    ROWS 1..80: rows of fn; ACCUMULATE, HAS_WEIGHT 0, 1; HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "device/integer.cuh"
#include "mhc/norm_fn_bwd.cuh"

static_assert(ROWS >= 1 && ROWS <= PROJECTION_MAX_ROWS && (ACCUMULATE == 0 || ACCUMULATE == 1) &&
                  (HAS_WEIGHT == 0 || HAS_WEIGHT == 1) && (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

enum {
    THREADS = NORM_FN_BWD_THREADS,
    COLUMNS = NORM_FN_BWD_COLUMNS,
    TOKENS = NORM_FN_BWD_TOKENS,
    ROW_TILES = (ROWS + 7) / 8,
    PADDED = 8 * ROW_TILES,
    X_STRIDE = COLUMNS + 8, /* elements: rows of ldmatrix lie in different banks */
    PART_STRIDE = TOKENS + 8,
    DMUL_STRIDE = NORM_FN_BWD_DMUL_STRIDE(ROWS)
};
struct shared {
    u16 x[TOKENS][X_STRIDE];
    u16 hi[PADDED][PART_STRIDE], lo[PADDED][PART_STRIDE]; /* of dmul */
    float dmul[TOKENS][DMUL_STRIDE];
    float slope[TOKENS];
};

/* Tokens first .. first + count - 1 of a slice to shared memory, zeros past the end. */
DEV void load_tile(const norm_fn_bwd_args &a, shared &s, i64 first, int count, i64 stream, i64 column)
{
#pragma unroll 4
    for (int k = (int)threadIdx.x; k < TOKENS * (COLUMNS / 8); k += THREADS) {
        const int t = k / (COLUMNS / 8), c = k % (COLUMNS / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (t < count && column + c < a.hidden)
            v = load_unit(a.residual.data + (first + t) * a.residual.token + stream * a.residual.stream, column + c,
                          a.hidden);
        *(uint4 *)&s.x[t][c] = v;
    }
    const int l = (int)threadIdx.x % NORM_FN_BWD_LANES;
#pragma unroll 1
    for (int t = (int)threadIdx.x / NORM_FN_BWD_LANES; t < TOKENS; t += THREADS / NORM_FN_BWD_LANES) {
        const bool is_there = t < count;
        const float sqrsum = is_there ? a.sqrsum[first + t] : 0.0f;
        const float rms = is_there ? projection_rms(sqrsum, a.columns, a.eps) : 0.0f;
        float dr = 0;
#pragma unroll 4
        for (int j = l; j < PADDED; j += NORM_FN_BWD_LANES) {
            const i64 at = (first + t) * ROWS + j;
            float d = 0;
            if (is_there && j < ROWS) {
                d = tgl_tf32_from_f32(a.grad_mixes[at] * rms);
                dr = fmaf(a.grad_mixes[at], a.out_mul[at], dr);
            }
            const projection_parts parts = projection_split_tf32(d);
            s.dmul[t][j] = d;
            s.hi[j][t] = (u16)(parts.hi >> 16), s.lo[j][t] = (u16)(parts.lo >> 16);
        }
        dr = lane_tree(dr);
        if (l == 0) s.slope[t] = is_there ? norm_fn_slope(dr, rms, sqrsum, a.eps_columns) : 0.0f;
    }
}

/* Adds a tile's products to the sums of grad_fn: of 16 columns, hi and lo of each row. */
DEV void add_tile(const shared &s, int first_column, float (&sums)[ROW_TILES][2][4])
{
    const int lane = (int)threadIdx.x % 32, quad = lane / 4, q = lane % 4;
#pragma unroll
    for (int step = 0; step < TOKENS; step += 16) {
        u32 b[4]; /* tokens 0-7, 8-15 of columns 0-7, then of columns 8-15 */
        ldmatrix_x4_trans(b, shared_address(&s.x[step + lane % 16][first_column + lane / 16 * 8]));
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            const u16 *const hi = &s.hi[8 * r + quad][step + 2 * q], *const lo = &s.lo[8 * r + quad][step + 2 * q];
            const u32 f[4] = { *(const u32 *)hi, *(const u32 *)lo, *(const u32 *)(hi + 8), *(const u32 *)(lo + 8) };
            mma_bf16(sums[r][0], f, b[0], b[1]);
            mma_bf16(sums[r][1], f, b[2], b[3]);
        }
    }
}

/* grad_residual of 16 tokens and 8 columns. */
DEV void put_tokens(const norm_fn_bwd_args &a, const shared &s, i64 first, int count, int token, i64 stream, i64 column,
                    int local, const u32 (&fn)[ROW_TILES][2])
{
    const int lane = (int)threadIdx.x % 32, quad = lane / 4, q = lane % 4;
    float sum[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        const float *const dmul = &s.dmul[token + quad][8 * r + 2 * q], *const next = dmul + 8 * DMUL_STRIDE;
        const u32 d[4] = { __float_as_uint(dmul[0]), __float_as_uint(next[0]), __float_as_uint(dmul[1]),
                           __float_as_uint(next[1]) };
        mma_tf32(sum, d, fn[r][0], fn[r][1]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = token + quad + 8 * half;
        u16 *const row = a.grad_residual.data + (first + t) * a.grad_residual.token + stream * a.grad_residual.stream;
        if (t >= count) continue;
        const float slope = s.slope[t];
#if HAS_VECTORS
        if (column + local + 2 * q < a.hidden) {
            u32 *const to = (u32 *)(row + column + local + 2 * q);
            const u32 x = *(const u32 *)&s.x[t][local + 2 * q], old = ACCUMULATE ? *to : 0;
            *to = pack_bf16(norm_fn_grad(__uint_as_float(old << 16), sum[2 * half], __uint_as_float(x << 16), slope),
                            norm_fn_grad(__uint_as_float(old & 0xffff0000u), sum[2 * half + 1],
                                         __uint_as_float(x & 0xffff0000u), slope));
        }
#else
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = local + 2 * q + i;
            if (column + c < a.hidden)
                row[column + c] = tgl_bf16_from_f32(norm_fn_grad(ACCUMULATE ? tgl_bf16_to_f32(row[column + c]) : 0.0f,
                                                                 sum[2 * half + i], tgl_bf16_to_f32(s.x[t][c]), slope));
        }
#endif
    }
}

/* One block an SM suffices, so that no register is spilled. */
extern "C" __global__ void __launch_bounds__(NORM_FN_BWD_THREADS, 1)
    norm_fn_bwd(const __grid_constant__ norm_fn_bwd_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(u32, is_last);
    shared &s = *(shared *)memory;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, quad = lane / 4, q = lane % 4;
    const i64 slices = ceil_div(a.hidden, COLUMNS), stream = blockIdx.x / slices;
    const i64 column = blockIdx.x % slices * COLUMNS, columns = a.num_streams * a.hidden;
    const i64 begin = blockIdx.y * a.group, end = min(begin + a.group, a.num_tokens);
    const int local = 16 * warp; /* this warp's columns of the slice */
    float sums[ROW_TILES][2][4];
    u32 fn[2][ROW_TILES][2];
    pdl_wait();
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const i64 c = column + local + 8 * n + quad;
#pragma unroll
            for (int i = 0; i < 2; i++)
                fn[n][r][i] = __float_as_uint(tgl_tf32_from_f32(fn_at(a, 8 * r + 2 * q + i, stream * a.hidden + c,
                                                                      c < a.hidden)));
#pragma unroll
            for (int i = 0; i < 4; i++) sums[r][n][i] = 0;
        }
#pragma unroll 1
    for (i64 first = begin; first < end; first += TOKENS) {
        const int count = (int)min((i64)TOKENS, end - first);
        __syncthreads(); /* the tile before has been used */
        load_tile(a, s, first, count, stream, column);
        __syncthreads();
        add_tile(s, local, sums);
#pragma unroll 1
        for (int token = 0; token < count; token += 16) {
            put_tokens(a, s, first, count, token, stream, column, local, fn[0]);
            put_tokens(a, s, first, count, token, stream, column, local + 8, fn[1]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) /* a lane has hi and lo of row `quad` for columns 2q and 2q + 1 */
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const i64 c = column + local + 8 * n + 2 * q + i;
                const int row = 8 * r + quad;
                if (row < ROWS && c < a.hidden)
                    a.partial[(blockIdx.y * ROWS + row) * columns + stream * a.hidden + c] =
                        sums[r][n][i] + sums[r][n][i + 2];
            }
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomic_inc_acq_rel(a.arrived + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
    __syncthreads();
    if (is_last) finish_slice<COLUMNS, 2>(a, stream, column);
    pdl_trigger();
}
