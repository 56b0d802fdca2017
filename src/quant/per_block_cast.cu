/* SPDX-License-Identifier: MIT
 * per_block_cast.cu - blocks of BLOCK_ROWS x BLOCK_COLS; a thread block has a few adjacent ones.
 *   computes  per block a factor from its amax, and the codes of x / factor
 *   launch    grid rows of blocks * tiles across, block THREADS; addresses allow vectors, rows and columns
 *             are below 2^31
 *   moves     x, out and all factors, each once
 *   macros    X           X_BF16, X_F32
 *             FORMAT      TGL_FORMAT_E4M3, _E2M1
 *             BLOCK_ROWS  16, 32, 64, 128
 *             BLOCK_COLS  1, 16, 32, 64, 128
 *             SF_KIND     TGL_SF_*
 *             IS_ROUNDED  factors are powers of two
 *             HAS_OUT     else only factors are wanted
 *
 * All warps have the same columns: LANES lanes are a row of the tile, a thread has vectors STEP_ROWS rows
 * apart, in registers. The amax is found in the thread, then by shuffles, then over warps in shared
 * memory. */
#include "quant/per_block_cast.cuh"

static_assert(X == X_BF16 || X == X_F32, "X is X_BF16 or X_F32");
static_assert(FORMAT == TGL_FORMAT_E4M3 || FORMAT == TGL_FORMAT_E2M1, "FORMAT is e4m3 or e2m1");
static_assert(BLOCK_CAST_HAS(BLOCK_ROWS, BLOCK_COLS), "the block is one of those above");
static_assert(SF_KIND != TGL_SF_PACKED || IS_ROUNDED, "packed factors are powers of two");

enum {
    THREADS = BLOCK_CAST_THREADS(BLOCK_ROWS),
    RESIDENT = BLOCK_CAST_RESIDENT(X, BLOCK_COLS) / THREADS,
    WARPS = THREADS / 32,
    TILE_COLS = BLOCK_CAST_TILE_COLS(X, BLOCK_ROWS),
    VALUES = X_VALUES(X),
    LANES = TILE_COLS / VALUES,
    STEP_ROWS = THREADS / LANES,
    VECTORS = BLOCK_ROWS / STEP_ROWS,
    OWN = BLOCK_COLS == 1 ? VALUES : 1, /* factors of a thread's values */
    BLOCKS = TILE_COLS / BLOCK_COLS,    /* in a tile */
    BLOCK_LANES = BLOCK_COLS == 1 ? 1 : BLOCK_COLS / VALUES
};
static_assert(LANES <= 32 && VECTORS * STEP_ROWS == BLOCK_ROWS, "threads cover the tile");

#if BLOCK_COLS == 1

/* The amax of each of a thread's columns. */
DEV void column_amax(const vector_of<X> (&x)[VECTORS], u32 (&amax)[VALUES])
{
#if X == X_BF16
    u32 pairs[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = max_abs_bf16x2(pairs[i], x[j].w[i]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (LANES == 16) pairs[i] = max_abs_bf16x2(pairs[i], __shfl_xor_sync(FULL, pairs[i], 16));
        amax[2 * i] = pairs[i] << 16;
        amax[2 * i + 1] = pairs[i] & 0xFFFF0000u;
    }
#else
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        float m = 0;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) m = fmaxf(m, fabsf(__uint_as_float(x[j].w[i])));
        amax[i] = __float_as_uint(m);
    }
    static_assert(LANES == 32, "a row of the tile is a warp");
#endif
}

/* inv of a thread's columns. One thread finds a column's factor for all; returns the amax of column tid. */
DEV u32 find_factors(const vector_of<X> (&x)[VECTORS], float (&inv)[OWN])
{
    SHARED(u32[WARPS * TILE_COLS], amaxes);
    SHARED(float[TILE_COLS], inverses);
    const u32 tid = threadIdx.x, at = tid % LANES * VALUES;
    u32 amax[VALUES], largest = 0;
    column_amax(x, amax);
    if (tid % 32 < LANES)
#pragma unroll
        for (int i = 0; i < VALUES; i += 4) store_words<16>(&amaxes[tid / 32 * TILE_COLS + at + i], amax + i);
    __syncthreads();
    if (tid < TILE_COLS) {
#pragma unroll
        for (int w = 0; w < WARPS; w++) largest = max(largest, amaxes[w * TILE_COLS + tid]);
        inverses[tid] = scale_of<FORMAT, IS_ROUNDED>(__uint_as_float(largest)).inv;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < VALUES; i++) inv[i] = inverses[at + i];
    return largest;
}

#else

/* inv of a thread's block, of which BLOCK_LANES lanes have a row; returns its amax. */
DEV u32 find_factors(const vector_of<X> (&x)[VECTORS], float (&inv)[OWN])
{
    SHARED(u32[BLOCKS * WARPS], amaxes);
    const u32 tid = threadIdx.x, lane = tid % 32, block = lane % LANES / BLOCK_LANES;
    u32 amax = 0;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) amax = max(amax, amax_of(x[j]));
    if (BLOCK_LANES == LANES) {
        amax = warp_max_u32(amax);
    } else {
        amax = max_of_lanes<BLOCK_LANES>(amax);
        if (LANES == 16) amax = max(amax, __shfl_xor_sync(FULL, amax, 16));
    }
    if (lane < LANES && lane % BLOCK_LANES == 0) amaxes[block * WARPS + tid / 32] = amax;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w += 4) {
        const uint4 four = *(const uint4 *)&amaxes[block * WARPS + w];
        amax = max(max(amax, max(four.x, four.y)), max(four.z, four.w));
    }
    inv[0] = scale_of<FORMAT, IS_ROUNDED>(__uint_as_float(amax)).inv;
    return amax;
}

#endif

DEV void cast_vector(const vector_of<X> &x, const float (&inv)[OWN], u8 *to)
{
#if X == X_BF16 && FORMAT == TGL_FORMAT_E2M1 && IS_ROUNDED && BLOCK_COLS > 1 && __CUDA_ARCH__ >= 900
    *(u32 *)to = encode_e2m1x8_bf16(x.w, inv[0]);
#else
    float v[VALUES];
    widen(x, v);
#pragma unroll
    for (int i = 0; i < VALUES; i++) v[i] *= inv[i % OWN];
    store_codes<FORMAT>(to, v);
#endif
}

/* Past the last row or column a thread loads the last ones again, which changes no amax, and stores nothing:
 * so no load has a branch or a predicate before it. If rows are few, every line of 64 bytes of arguments is a
 * wait: what is used first comes first. On sm_90 the first line ends behind c.out. */
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) per_block_cast(per_block_cast_args a)
{
    tgl_block_cast &c = a.cast;
    c.sf.kind = SF_KIND;
    const u32 m = tgl_divide(blockIdx.x, a.by_num_tiles), tid = threadIdx.x, num_rows = a.num_rows;
    const u32 first_col = (blockIdx.x - m * a.num_tiles) * TILE_COLS;
    const u32 row = m * BLOCK_ROWS + tid / LANES, col = first_col + tid % LANES * VALUES;
    const u32 num_cols = (u32)c.num_cols;
    const u8 *from = c.x + (u64)min(col, num_cols - VALUES) * (16 / VALUES);
    vector_of<X> x[VECTORS];
    pdl_wait();
#pragma unroll
    for (int j = 0; j < VECTORS; j++) load_vector(from + min(row + j * STEP_ROWS, num_rows - 1) * c.x_row_bytes, x[j]);
    float inv[OWN];
    const u32 amax = find_factors(x, inv);
    const u32 end = HAS_OUT && col < num_cols ? num_rows : 0;
    u8 *to = c.out + tgl_code_bytes(FORMAT, col);
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        const u32 r = row + j * STEP_ROWS;
        if (r < end) cast_vector(x[j], inv, to + r * tgl_code_bytes(FORMAT, c.num_cols));
    }

    /* last, when registers are free: an unrounded factor needs some */
    const u32 k = first_col / BLOCK_COLS + tid / BLOCK_LANES;
    if (tid < BLOCKS * BLOCK_LANES && tid % BLOCK_LANES == 0 && k < (u32)c.num_sf)
        store_factor(c.sf, m, k, k == (u32)c.num_sf - 1, scale_of<FORMAT, IS_ROUNDED>(__uint_as_float(amax)).sf);
    pdl_trigger();
}
