/* SPDX-License-Identifier: MIT
 * per_channel_cast_staged.cu - per_channel_cast.cu for codes with a map, in many tiles.
 *   computes  as per_channel_cast.cu
 *   launch    grid CHANNEL_STAGED_BLOCKS per SM, which loop over tiles; block CHANNEL_THREADS; from sm_90 on
 *   moves     as per_channel_cast.cu
 *   macros    channel.cuh's: X_E4M3, CHANNEL_LANES, CHANNEL_ROWS, BLOCK_ROWS not 0; and X_SF_KIND
 *
 * A tile's codes can be loaded only when its part of the map is there: two waits in sequence, each as long as
 * the work on a tile. So while a block works on a tile, the codes of the next one are in flight to shared
 * memory, where they take no registers, and so is the map of the one after. A warp copies the rows that it
 * casts: no other warp waits for it.
 *
 * Columns are whole strips, with one factor per row of a strip; rows may end anywhere. */
#define IS_SWIGLU 0
#define IS_CLAMPED 0
#define IS_TRANSPOSED 0
#define IS_WIDE 0
#define IS_STAGED 1
#include "quant/common/channel.cuh"

static_assert(X == X_E4M3 && LANES == CHANNEL_LANES(X) && ROWS == CHANNEL_ROWS(X) && BLOCK_ROWS, "what is staged");

enum {
    WARP_ROWS = 32 / LANES * ROWS,
    PIECES = COLS / 16,               /* of a row: one copy each */
    COPIES = WARP_ROWS * PIECES / 32, /* of a lane */
    STAGE_BYTES = TILE_ROWS * COLS,
    HELD = FACTORS == 1 ? 8 : 6 /* rows whose values stay in registers; more would spill */
};

typedef struct { u32 row, col; } corner; /* the first row and column of a tile */

DEV corner find_tile(const tgl_channel_tiles &t, u32 n)
{
    const u32 line = tgl_divide(n, t.by_band), band = tgl_divide(line, t.by_row_tiles);
    return { (line - band * t.row_tiles) * TILE_ROWS, (n - (line - band) * t.band) * COLS };
}

/* The token of a row; >= c.num_tokens: none. */
DEV u32 load_token(const tgl_channel_cast &c, u32 row)
{
    const bool is_there = row < (u32)c.num_rows;
    const u32 token = load_u32_if((const u32 *)c.pos_to_token + row, is_there);
    return is_there ? token : ~0u;
}

/* A token's factor in the strip at `col`. */
DEV float load_factor(const tgl_channel_cast &c, u32 token, u32 col)
{
    const tgl_sf sf = factors_of_kind<X_SF_KIND>(c.x_sf);
    const u32 k = col >> c.x_sf_shift;
    const u8 *first = (const u8 *)((const u32 *)c.x_sf_data + tgl_sf_offset(&sf, 0, k));
    return factor_of_element(sf, load_u32_if(nth(first, token, c.x_sf_step), token < c.num_tokens), k);
}

/* Prefetches the codes of the warp's rows, in the strip at `col`. Lane i has the token of row i %
 * WARP_ROWS. */
DEV void copy_rows(const tgl_channel_cast &c, u32 to, u32 lane, u32 token, u32 col)
{
    const u32 piece = lane % PIECES * 16;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const u32 row = lane / PIECES + i * (32 / PIECES), from = __shfl_sync(FULL, token, (int)row);
        copy_async_zfill_16(to + row * COLS + piece, nth((const u8 *)c.x + col + piece, from, c.x_step),
                            from < c.num_tokens ? 16 : 0);
    }
}

/* The values of row r of a thread's patch. */
DEV void take_row(u32 patch, int r, float factor, float (&v)[VALUES])
{
    const uint2 codes = shared_load_u32x2(patch + r * COLS);
    decode_word(codes.x, factor, v);
    decode_word(codes.y, factor, v + 4);
}

/* Casts a tile. `patch` is the shared address of this thread's codes, `factor` is that of the lane's row. */
DEV void cast_staged(const tgl_channel_cast &c, strip_memory &m, const place &at, u32 patch, float factor)
{
    float held[HELD][VALUES], factors[ROWS], inv[VALUES];
    u32 maxima[MAXIMA], amax[FACTORS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        factors[r] = __shfl_sync(FULL, factor, (int)(at.group % (32 / LANES) * ROWS) + r);
        float v[VALUES];
        take_row(patch, r, factors[r], v);
#pragma unroll
        for (int k = 0; k < VALUES; k++) {
            if (r < HELD) held[r][k] = v[k];
            const u32 found = __float_as_uint(fabsf(v[k]));
            maxima[k] = r == 0 ? found : larger(maxima[k], found);
        }
    }
    put_maxima(m, at, maxima);
    __syncthreads();
    put_inverses(m, at, amax);
    __syncthreads();
    get_inverses(m, at, inv);
    const u32 row = (u32)at.first + at.group * ROWS;
    u8 *to = (u8 *)c.out + at.col + out_offset(c, at, row);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float v[VALUES];
        u32 codes[VALUES / 4];
        if (r >= HELD) take_row(patch, r, factors[r], v);
#pragma unroll
        for (int k = 0; k < VALUES; k++) v[k] = (r < HELD ? held[r][k] : v[k]) * inv[k];
        encode_values<TGL_FORMAT_E4M3, VALUES>(v, codes);
        if (row + r < (u32)c.num_rows) store_words<VALUES>(to + out_offset(c, at, r), codes);
    }
#pragma unroll
    for (u32 f = 0; f < FACTORS; f++) {
        const u32 i = at.thread + f * THREADS, first = (u32)at.first + i / COLS * BLOCK_ROWS;
        if (i < BLOCKS * COLS && first < (u32)c.num_rows)
            c.sf[at.first_col + i % COLS + out_offset(c, at, first / BLOCK_ROWS)] =
                scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(amax[f])).sf;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CHANNEL_STAGED_BLOCKS)
    per_channel_cast_staged(const channel_staged_args a)
{
#if __CUDA_ARCH__ >= 900
    const tgl_channel_cast &c = a.cast;
    const tgl_channel_tiles &t = a.tiles;
    SHARED(strip_memory, memory);
    SHARED(u8[2 * STAGE_BYTES], stages);
    place at;
    find_thread(at, threadIdx.x);
    at.is_whole = true; /* in 32 bits, and aligned */
    const u32 lane = at.thread % 32, warp_row = at.thread / 32 * WARP_ROWS;
    const u32 my_row = warp_row + lane % WARP_ROWS;
    const u32 rows = shared_address(stages) + warp_row * COLS;
    const u32 patch = shared_address(stages) + at.group * ROWS * COLS + at.lane * VALUES;
    u32 n = blockIdx.x, stage = 0;
    corner tile = find_tile(t, n), next = find_tile(t, min(n + gridDim.x, t.last));
    pdl_wait();
    u32 token = load_token(c, tile.row + my_row);
    copy_rows(c, rows, lane, token, tile.col);
    copy_async_commit();
    float factor = load_factor(c, token, tile.col);
    token = load_token(c, next.row + my_row);
#pragma unroll 1
    do {
        const float my_factor = factor;
        at.first = tile.row;
        at.first_col = tile.col;
        at.col = tile.col + at.lane * VALUES;
        tile = next;
        n += gridDim.x;
        if (n <= t.last) {
            copy_rows(c, rows + (stage ^ STAGE_BYTES), lane, token, tile.col);
            factor = load_factor(c, token, tile.col);
            next = find_tile(t, min(n + gridDim.x, t.last));
            token = load_token(c, next.row + my_row);
        }
        copy_async_commit(); /* even if empty: the wait is for the one before */
        copy_async_wait<1>();
        __syncwarp(); /* all lanes of this warp have copied */
        cast_staged(c, memory, at, patch + stage, my_factor);
        __syncwarp(); /* its codes are read before they are overwritten */
        stage ^= STAGE_BYTES;
    } while (n <= t.last);
    pdl_trigger();
#endif
}
