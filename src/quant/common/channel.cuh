/* SPDX-License-Identifier: MIT
 * channel.cuh - casts with a factor per column and block of rows: everything but loading a patch, which is
 * the kernel's. Tiles, strips and arguments: channel.h.
 *   macros  STRIP_LANES   CHANNEL_LANES, or CHANNEL_WIDE_LANES, CHANNEL_MIDDLE_LANES, CHANNEL_NARROW_LANES
 *           STRIP_ROWS    CHANNEL_TILE_ROWS or, of bf16 transposed, CHANNEL_LONG_ROWS
 *           PATCH_ROWS    CHANNEL_ROWS, in narrow strips CHANNEL_FEW_ROWS, or, of bf16, CHANNEL_TALL_ROWS
 *           X             X_BF16, X_F32, X_E4M3: the type of x
 *           BLOCK_ROWS    32, 64, 128: rows of a factor; 0: in the arguments
 *           IS_ROUNDED    factors are powers of two
 *   defined by the kernel before it includes this:
 *           IS_SWIGLU     rows are activations, in bf16
 *           IS_CLAMPED    gates and ups are clamped
 *           IS_TRANSPOSED codes are transposed
 *           HAS_MAP       a map names the rows
 *           IS_WIDE       rows are held as f32: codes whose factor changes within a vector
 *
 * A thread holds a patch of ROWS rows by a vector. It finds the max magnitude of each column, in the type of
 * x. Shared memory combines these for blocks of rows; one thread makes each factor, and its inverse goes back
 * to all threads. Codes that are not transposed are stored from registers. Transposed ones are made four rows
 * at a time, as words of a column, and go through a tile in shared memory. Each lane has another order of the
 * vectors (16 bytes) of a column, so that neither stores of patches nor loads of columns have bank conflicts.
 *
 * With BLOCK_ROWS 0 a tile is one block of rows of any size; if it has more than a patch per thread, x is
 * read twice. */
#ifndef TEGULA_QUANT_CHANNEL_CUH
#define TEGULA_QUANT_CHANNEL_CUH

#include "device/unaligned.cuh"
#include "quant/common/channel.h"
#include "quant/common/decode.cuh"
#include "quant/common/encode.cuh"
#include "quant/common/factors.cuh"

static_assert(X == X_BF16 || X == X_F32 || (X == X_E4M3 && !IS_SWIGLU && !IS_TRANSPOSED), "what X may be");
static_assert(BLOCK_ROWS == 0 || BLOCK_ROWS == 32 || BLOCK_ROWS == 64 || BLOCK_ROWS == 128,
              "BLOCK_ROWS is 32, 64, 128 or 0");

enum {
    TILE_ROWS = STRIP_ROWS,
    IS_LONG = TILE_ROWS > CHANNEL_TILE_ROWS,
    VECTORS = TILE_ROWS / 16,   /* of a column of codes */
    VALUES = CHANNEL_VALUES(X), /* of a vector */
    VALUE_BYTES = CHANNEL_VECTOR_BYTES(X) / VALUES,
    LANES = STRIP_LANES,
    COLS = LANES * VALUES, /* of a strip */
    ROWS = PATCH_ROWS,
    GROUPS = TILE_ROWS / ROWS, /* of threads: patches below each other */
    THREADS = CHANNEL_THREADS(TILE_ROWS, ROWS, LANES),
    BLOCKS = BLOCK_ROWS ? TILE_ROWS / BLOCK_ROWS : 1, /* of rows, in a tile */
    BLOCK_GROUPS = GROUPS / BLOCKS,
    JOINED = 32 / LANES < BLOCK_GROUPS ? 32 / LANES : BLOCK_GROUPS, /* groups of a warp in a block of rows */
    IS_BF16 = IS_SWIGLU || X == X_BF16,                             /* a patch holds pairs of bf16, */
    IS_CODES = X == X_E4M3 && !IS_WIDE,                             /* or codes with a factor per row, or else f32 */
    WORDS = IS_BF16 ? VALUES / 2
    : IS_CODES      ? VALUES / 4
                    : VALUES,
    MAXIMA = IS_BF16 ? VALUES / 2 : VALUES /* words of maxima: pairs of bf16, or f32 */
};
static_assert(LANES == 2 || LANES == 8 || (LANES == 16 && !IS_TRANSPOSED), "STRIP_LANES is 2, 8 or 16");
static_assert(ROWS == 4 || ROWS == 8 || (ROWS == 2 && IS_SWIGLU), "PATCH_ROWS is 4 or 8, of activations 2");
static_assert(!IS_TRANSPOSED || COLS * VECTORS % THREADS == 0, "threads store as many vectors each");
static_assert(VECTORS == 8 || (VECTORS == 16 && IS_TRANSPOSED && BLOCK_ROWS), "what STRIP_ROWS may be");

/* Threads per SM: as many as registers allow without spills, so that some load while others encode. Fewer
 * threads with more registers: a second pass over x, codes with their values (most on sm_120 and in narrow
 * strips, whose blocks are few), activations, tall patches (more for activations that are clamped, or not on
 * sm_90), sm_89, and conversions that are not a single instruction. */
#if __CUDA_ARCH__ >= 890
#define NEEDS_MORE (ROWS == CHANNEL_TALL_ROWS || IS_SWIGLU || __CUDA_ARCH__ == 890)
#define NEEDS_MOST (X == X_E4M3 && (LANES < CHANNEL_LANES(X) || __CUDA_ARCH__ >= 1200))
#define NEEDS_ROOM (IS_LONG && IS_SWIGLU && (IS_CLAMPED || __CUDA_ARCH__ != 900))
enum { SM_THREADS = IS_WIDE ? 256 : !BLOCK_ROWS || NEEDS_MOST ? 512 : NEEDS_ROOM ? 768 : NEEDS_MORE ? 1024 : 1536 };
#else
enum { SM_THREADS = X == X_E4M3 ? 256 : 512 };
#endif
enum { MIN_BLOCKS = SM_THREADS / THREADS < 16 ? SM_THREADS / THREADS : 16 }; /* the limit of some SMs */

/* If factors are powers of two, activations times inverses are exact in bf16, or so small that the code is 0.
 * So pairs of them are multiplied by pairs of inverses. */
#if __CUDA_ARCH__ >= 900
enum { HAS_PAIRS = IS_SWIGLU && IS_TRANSPOSED && IS_ROUNDED && VALUES == 8 };
#else
enum { HAS_PAIRS = 0 };
#endif

typedef struct {
    u32 w[ROWS][WORDS];
    float x_sf[ROWS]; /* of codes */
} patch;

typedef struct {
    u32 maxima[GROUPS / JOINED][LANES * MAXIMA];
    float inv[BLOCKS][COLS];
    uint4 tile[IS_TRANSPOSED ? COLS * VECTORS : 1];
} strip_memory;

/* Where a thread is. */
typedef struct {
    u32 thread, lane, group; /* in its strip */
    i64 first, end;          /* rows of the tile */
    int rows;                /* of the patch that exist, if BLOCK_ROWS */
    i64 first_col, col;      /* of the strip, of the thread */
    int count;               /* of the vector, columns that exist */
    bool is_whole;           /* the tile exists and is aligned; a constant where it
                              * is used, see cast_block() */
} place;

/* ---- x ---- */

#if X == X_E4M3
typedef struct { u32 w[VALUES / 4]; } vector;
DEV void clear_vector(vector &v)
{
#pragma unroll
    for (int i = 0; i < VALUES / 4; i++) v.w[i] = 0;
}
#else
typedef vector_of<X> vector;
#endif

/* Row n of x, where row 0 is at `first`. */
DEV const u8 *x_row(const tgl_channel_cast &c, const place &at, const u8 *first, i64 n)
{
    return at.is_whole ? nth(first, (u32)n, c.x_step) : first + n * c.x_row_bytes;
}

/* How many rows of the patch at `row` exist. */
DEV int rows_from(const place &at, i64 row)
{
    return at.is_whole ? ROWS : BLOCK_ROWS ? at.rows : (int)min(max(at.end - row, (i64)0), (i64)ROWS);
}

DEV bool has_vectors(const tgl_channel_cast &c, const place &at)
{
    return at.is_whole || (c.is_x_aligned && at.count == VALUES);
}

/* A vector whose columns all exist, at an aligned address. L2 fetches 256 bytes: the adjacent strips read the
 * rest. */
DEV void load_whole(const u8 *from, vector &v)
{
    if constexpr (X == X_E4M3) spread(load_stream_u32x2(from), v.w);
    else spread(load_ahead_u32x4(from), v.w);
}
DEV void load_whole_if(const u8 *from, bool is_there, vector &v)
{
    if constexpr (X == X_E4M3) spread(load_stream_u32x2_if(from, is_there), v.w);
    else spread(load_ahead_u32x4_if(from, is_there), v.w);
}

/* Any other vector, value by value. */
DEV void load_part(const u8 *from, int count, vector &v)
{
    clear_vector(v);
#pragma unroll
    for (int k = 0; k < VALUES; k++)
        if (k < count) {
            if constexpr (VALUE_BYTES == 4) v.w[k] = ((const u32 *)from)[k];
            else if constexpr (VALUE_BYTES == 2) v.w[k / 2] |= (u32)((const u16 *)from)[k] << k % 2 * 16;
            else v.w[k / 4] |= (u32)from[k] << k % 4 * 8;
        }
}

/* Either. */
DEV void load_any(const tgl_channel_cast &c, const place &at, const u8 *from, vector &v)
{
    if (has_vectors(c, at)) load_whole(from, v);
    else load_part(from, at.count, v);
}

/* ---- values ---- */

/* Value k of row r. Constants after unrolling. */
DEV float value_at(const patch &p, int r, int k) { return IS_BF16 ? bf16_at(p.w[r], k) : __uint_as_float(p.w[r][k]); }

/* Four codes times their factor. */
DEV void decode_word(u32 codes, float factor, float *v)
{
    float part[4];
    decode_e4m3x4(codes, part);
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = part[k] * factor;
}

DEV void widen_row(const patch &p, int r, float (&v)[VALUES])
{
    if constexpr (IS_CODES) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) decode_word(p.w[r][i], p.x_sf[r], v + 4 * i);
    } else {
#pragma unroll
        for (int k = 0; k < VALUES; k++) v[k] = value_at(p, r, k);
    }
}

/* Magnitudes. In whole tiles, values of HELD_ROWS rows stay in registers until they are scaled; others are
 * decoded again. For those, and at edges, signs are cleared in the codes: otherwise the compiler would reuse
 * the values, and spill (in wide strips for sm_89 and sm_100). */
enum { HELD_ROWS = LANES == CHANNEL_LANES(X) && __CUDA_ARCH__ != 900 ? 1 : ROWS };
DEV void widen_magnitudes(const place &at, const patch &p, int r, float (&v)[VALUES])
{
    if constexpr (IS_CODES) {
        const u32 kept = at.is_whole && r < HELD_ROWS ? 0xFFFFFFFF : 0x7F7F7F7F;
#pragma unroll
        for (int i = 0; i < WORDS; i++) decode_word(p.w[r][i] & kept, p.x_sf[r], v + 4 * i);
    } else {
        widen_row(p, r, v);
    }
#pragma unroll
    for (int k = 0; k < VALUES; k++) v[k] = fabsf(v[k]);
}

/* Maxima of bf16 have any sign until they are combined. If all values are NaN, so is the maximum; scale_of()
 * then takes its floor. */
DEV u32 larger(u32 a, u32 b)
{
    if (IS_BF16) return max_magnitude_bf16x2(a, b);
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
}

DEV void raise_maxima(u32 (&maxima)[MAXIMA], const place &at, const patch &p)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        u32 found[MAXIMA];
        if constexpr (IS_BF16) {
#pragma unroll
            for (int i = 0; i < MAXIMA; i++) found[i] = p.w[r][i];
        } else {
            float v[VALUES];
            widen_magnitudes(at, p, r, v);
#pragma unroll
            for (int i = 0; i < MAXIMA; i++) found[i] = __float_as_uint(v[i]);
        }
#pragma unroll
        for (int i = 0; i < MAXIMA; i++) maxima[i] = BLOCK_ROWS && r == 0 ? found[i] : larger(maxima[i], found[i]);
    }
}

/* ---- factors ---- */

/* Maxima are in vectors of 16 bytes (8 for SwiGLU of f32), the first vectors of all lanes first: otherwise
 * threads with several vectors would have bank conflicts. */
enum { MAXIMA_WORDS = MAXIMA < 4 ? MAXIMA : 4, MAXIMA_COLS = IS_BF16 ? 2 * MAXIMA_WORDS : MAXIMA_WORDS };

/* JOINED threads of a warp combine their maxima: in each step, each of two continues with half of them, until
 * SHARERS threads have LEFT maxima each. */
enum { SHARERS = JOINED < MAXIMA ? JOINED : MAXIMA, LEFT = MAXIMA / SHARERS };

DEV void put_maxima(strip_memory &m, const place &at, u32 (&maxima)[MAXIMA])
{
    u32 first = 0; /* of the maxima left */
#pragma unroll
    for (int half = MAXIMA / 2, step = 1; half >= LEFT; half /= 2, step *= 2) {
        const bool is_upper = at.group & step; /* this thread continues with the upper half */
#pragma unroll
        for (int i = 0; i < half; i++) {
            const u32 mine = is_upper ? maxima[half + i] : maxima[i];
            const u32 other = is_upper ? maxima[i] : maxima[half + i];
            maxima[i] = larger(mine, __shfl_xor_sync(FULL, other, step * LANES));
        }
        first += is_upper ? half : 0;
    }
#pragma unroll
    for (int step = SHARERS; step < JOINED; step *= 2)
        maxima[0] = larger(maxima[0], __shfl_xor_sync(FULL, maxima[0], step * LANES));
    u32 *to = &m.maxima[at.group / JOINED]
                       [first / MAXIMA_WORDS * LANES * MAXIMA_WORDS + at.lane * MAXIMA_WORDS + first % MAXIMA_WORDS];
    if (at.group % JOINED >= SHARERS) return;
#pragma unroll
    for (int i = 0; i < LEFT; i += 4) store_words<4 * (LEFT < 4 ? LEFT : 4)>(to + i * LANES, maxima + i);
}

/* The bits of a column's max magnitude in a block of rows. */
DEV u32 find_maximum(const strip_memory &m, u32 block, u32 col)
{
    const u32 lane = col / VALUES, vector = col % VALUES / MAXIMA_COLS, i = col % MAXIMA_COLS;
    const u32 word = (vector *LANES + lane) * MAXIMA_WORDS + (IS_BF16 ? i / 2 : i);
    const u32 parts = BLOCK_GROUPS / JOINED;
    u32 found = m.maxima[block * parts][word];
#pragma unroll
    for (u32 g = 1; g < parts; g++) found = larger(found, m.maxima[block * parts + g][word]);
    return !IS_BF16 ? found : (i % 2 ? found : found << 16) & 0x7FFF0000;
}

/* A thread makes factors at.thread, at.thread + THREADS, ... of the strip. */
enum { FACTORS = (BLOCKS * COLS + THREADS - 1) / THREADS };

/* Stores their inverses in shared memory. Threads wait for these, so the factors themselves come later. */
DEV void put_inverses(strip_memory &m, const place &at, u32 (&amax)[FACTORS])
{
#pragma unroll
    for (u32 f = 0; f < FACTORS; f++) {
        const u32 i = at.thread + f * THREADS, block = i / COLS, col = i % COLS;
        if (i >= BLOCKS * COLS) break;
        amax[f] = find_maximum(m, block, col);
        const float inv = scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(amax[f])).inv;
        if (HAS_PAIRS) ((u16 *)m.inv[block])[col] = (u16)(__float_as_uint(inv) >> 16);
        else m.inv[block][col] = inv;
    }
}

/* The offset of row n of codes or factors. */
DEV i64 out_offset(const tgl_channel_cast &c, const place &at, i64 n)
{
    return at.is_whole ? (i64)((u64)(u32)n * c.out_step) : n * c.num_cols;
}

DEV void store_factors(const tgl_channel_cast &c, const place &at, const u32 (&amax)[FACTORS])
{
    const i64 first_block = at.first / (BLOCK_ROWS ? BLOCK_ROWS : c.block_rows);
#pragma unroll
    for (u32 f = 0; f < FACTORS; f++) {
        const u32 i = at.thread + f * THREADS, block = i / COLS, col = i % COLS;
        const bool is_there = at.first_col + col < c.num_cols && at.first + block * BLOCK_ROWS < c.num_rows;
        if (i < BLOCKS * COLS && (at.is_whole || is_there))
            c.sf[at.first_col + col + out_offset(c, at, first_block + block)] =
                scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(amax[f])).sf;
    }
}

DEV void get_inverses(const strip_memory &m, const place &at, float (&inv)[VALUES])
{
    const float *from = &m.inv[at.group / BLOCK_GROUPS][at.lane * VALUES];
#pragma unroll
    for (int k = 0; k < VALUES; k += 4) {
        const float4 v = *(const float4 *)(from + k);
        inv[k] = v.x;
        inv[k + 1] = v.y;
        inv[k + 2] = v.z;
        inv[k + 3] = v.w;
    }
}

/* ---- codes ---- */

DEV void store_part(u8 *to, const u32 (&codes)[VALUES / 4], int count)
{
#pragma unroll
    for (int k = 0; k < VALUES; k++)
        if (k < count) to[k] = (u8)(codes[k / 4] >> k % 4 * 8);
}

/* Stores the codes of a patch from `row` on. */
DEV void store_rows(const tgl_channel_cast &c, const strip_memory &m, const place &at, const patch &p, i64 row)
{
    float inv[VALUES];
    get_inverses(m, at, inv);
    const bool is_whole = at.is_whole || (c.is_out_aligned && at.count == VALUES);
    const int rows = rows_from(at, row);
    u8 *to = (u8 *)c.out + at.col + out_offset(c, at, row);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= rows) break;
        float v[VALUES];
        u32 codes[VALUES / 4];
        widen_row(p, r, v);
#pragma unroll
        for (int k = 0; k < VALUES; k++) v[k] *= inv[k];
        encode_values<TGL_FORMAT_E4M3, VALUES>(v, codes);
        if (is_whole) store_words<VALUES>(to + out_offset(c, at, r), codes);
        else store_part(to + r * c.num_cols, codes, at.count);
    }
}

/* Vector k of column j of the tile. Lanes that store at the same time use all 8 groups of banks. */
DEV u32 tile_swizzle(u32 j) { return j / VALUES * (8 / LANES) & 7; }
DEV u32 tile_index(u32 j, u32 k) { return j * VECTORS + (k ^ tile_swizzle(j)); }

/* The same vector, `step` columns further; step is a multiple of a power of two above j. */
DEV u32 tile_step(u32 index, u32 step) { return (index ^ tile_swizzle(step)) + step * VECTORS; }

/* The patch times its inverses, in pairs. */
DEV void scale_pairs(const strip_memory &m, const place &at, const patch &p, patch &scaled)
{
    u32 inv[4];
    spread(((const uint4 *)m.inv[at.group / BLOCK_GROUPS])[at.lane], inv);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < WORDS; i++) scaled.w[r][i] = fma_bf16x2(p.w[r][i], inv[i % 4], 0x80008000u /* -0 */);
}

/* Stores the codes of a patch in the tile; its columns have the same swizzle. */
enum { ROW_WORDS = (ROWS + 3) / 4 };
DEV void put_columns(strip_memory &m, const place &at, const patch &p)
{
    float inv[VALUES];
    patch scaled;
    if constexpr (HAS_PAIRS) scale_pairs(m, at, p, scaled);
    else get_inverses(m, at, inv);
    const u32 row = at.group * ROWS;
    u8 *to = (u8 *)&m.tile[tile_index(at.lane * VALUES, row / 16)] + row % 16;
#pragma unroll
    for (int k = 0; k < VALUES; k++) {
        float v[ROW_WORDS * 4] = { 0 };
        u32 codes[ROW_WORDS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) v[r] = HAS_PAIRS ? value_at(scaled, r, k) : value_at(p, r, k) * inv[k];
        encode_values<TGL_FORMAT_E4M3, ROW_WORDS * 4>(v, codes);
        store_words<ROWS>(to + k * TILE_ROWS, codes);
    }
}

/* Code i of column j of the tile. */
DEV u8 tile_code(const strip_memory &m, u32 j, u32 i) { return ((const u8 *)&m.tile[tile_index(j, i / 16)])[i % 16]; }

/* `rows` codes from `to` on: those before the first aligned address, aligned vectors, and the rest. */
typedef struct { u32 head, vectors, tail; } column_cut;
DEV column_cut cut_column(const u8 *to, u32 rows)
{
    const u32 head = min((u32)-misalignment(to) & 15, rows);
    return { head, (rows - head) / 16, (rows - head) % 16 };
}

/* Stores `rows` codes of `cols` columns to unaligned rows of out. VECTORS threads store a column's aligned
 * vectors, each cut out of two of the tile. Then 16 threads store the codes at its ends; a whole column has
 * 16 of them, or none. */
DEV void store_unaligned(const tgl_channel_cast &c, const strip_memory &m, const place &at, i64 row, u32 rows, u32 cols)
{
    u8 *out = (u8 *)c.out + at.first_col * c.num_rows + row;
    const u32 k = at.thread % VECTORS, i = at.thread % 16;
#pragma unroll 2
    for (u32 j = at.thread / VECTORS; j < cols; j += THREADS / VECTORS) {
        u8 *to = out + j * c.num_rows;
        const column_cut cut = cut_column(to, rows);
        if (k >= cut.vectors) continue;
        const uint4 low = m.tile[tile_index(j, k)], high = m.tile[tile_index(j, min(k + 1, VECTORS - 1u))];
        *(uint4 *)(to + cut.head + k * 16) = vector_shift<1>(low, high, (int)cut.head);
    }
#pragma unroll 2
    for (u32 j = at.thread / 16; j < cols; j += THREADS / 16) {
        u8 *to = out + j * c.num_rows;
        const column_cut cut = cut_column(to, rows);
        const u32 last = rows - cut.tail + i;
        if (i < cut.head) to[i] = tile_code(m, j, i);
        if (i < cut.tail) to[last] = tile_code(m, j, last);
    }
}

/* The address of row 0 of a column, in transposed out. */
DEV u8 *out_column(const tgl_channel_cast &c, const place &at, i64 col)
{
    return (u8 *)c.out + (at.is_whole ? (i64)((u64)(u32)col * (u32)c.num_rows) : col * c.num_rows);
}

/* The same for a whole tile of 8 lanes, in half the instructions: a thread's columns are a multiple of 16
 * apart, and so have the same alignment. */
DEV void store_whole_unaligned(const tgl_channel_cast &c, const strip_memory &m, const place &at, i64 row)
{
    const u32 k = at.thread % VECTORS, vector_col = at.thread / VECTORS;
    u8 *to = out_column(c, at, at.first_col + vector_col) + row;
    u32 head = (u32)-misalignment(to) & 15;
    if (k < VECTORS - 1 || head == 0) {
        const u32 low = tile_index(vector_col, k), high = tile_index(vector_col, min(k + 1, VECTORS - 1u));
#pragma unroll
        for (u32 j = 0; j < COLS; j += THREADS / VECTORS)
            *(uint4 *)(to + j * c.num_rows + head + k * 16) =
                vector_shift<1>(m.tile[tile_step(low, j)], m.tile[tile_step(high, j)], (int)head);
    }
    const u32 i = at.thread % 16, code_col = at.thread / 16;
    to = out_column(c, at, at.first_col + code_col) + row;
    head = (u32)-misalignment(to) & 15;
    if (head == 0) return;
    const u32 from = i < head ? i : i + TILE_ROWS - 16, vector = tile_index(code_col, from / 16);
#pragma unroll
    for (u32 j = 0; j < COLS; j += THREADS / 16)
        to[j * c.num_rows + from] = ((const u8 *)&m.tile[tile_step(vector, j)])[from % 16];
}

/* Stores the tile, whose first row is `row`. */
DEV void store_columns(const tgl_channel_cast &c, const strip_memory &m, const place &at, i64 row)
{
    if (IS_LONG && at.is_whole) {
        store_whole_unaligned(c, m, at, row);
        return;
    }
    const u32 k = at.thread % VECTORS, first = at.thread / VECTORS;
    const int rows = (int)min(at.end - row, (i64)TILE_ROWS);
    const int cols = (int)min(c.num_cols - at.first_col, (i64)COLS);
    if (!at.is_whole && !c.is_out_aligned) {
        /* Fewer instructions pay if they are the limit: for activations, and if there are few warps. (A long
         * tile of activations with all rows and columns is whole, unless x is unaligned.) */
        const bool is_short = IS_SWIGLU != IS_LONG && LANES == 8 && rows == TILE_ROWS && cols == COLS;
        if (is_short) store_whole_unaligned(c, m, at, row);
        else store_unaligned(c, m, at, row, (u32)rows, (u32)cols);
        return;
    }
    u8 *to = (u8 *)c.out + (at.first_col + first) * c.num_rows + row;
#pragma unroll
    for (int j = 0; j < COLS; j += THREADS / VECTORS)
        if (at.is_whole || ((int)first + j < cols && (int)k * 16 < rows))
            *(uint4 *)(to + j * c.num_rows + k * 16) = m.tile[tile_index(first + j, k)];
}

/* ---- tiles ---- */

DEV void find_thread(place &at, u32 thread)
{
    at.thread = thread;
    at.lane = thread % LANES;
    at.group = thread / LANES;
}

/* In a whole tile, in 32 bits. */
DEV void find_whole(place &at, u32 row_tile, u32 col_tile)
{
    at.is_whole = true;
    at.first = row_tile * TILE_ROWS;
    at.end = at.first + TILE_ROWS;
    at.rows = ROWS;
    at.first_col = col_tile * COLS;
    at.col = col_tile * COLS + at.lane * VALUES;
    at.count = VALUES;
}

/* In any other tile. False if the tile does not exist. */
DEV bool find_edges(const tgl_channel_cast &c, place &at, u32 row_tile, u32 col_tile)
{
    if (c.slice_rows) {
        row_tile = blockIdx.y + blockIdx.z * c.slice_rows;
        col_tile = blockIdx.x;
    }
    at.is_whole = false;
    at.first = row_tile * (BLOCK_ROWS ? TILE_ROWS : c.block_rows);
    at.end = min(at.first + (BLOCK_ROWS ? TILE_ROWS : c.block_rows), c.num_rows);
    at.rows = min(max((int)min(at.end - at.first, (i64)TILE_ROWS) - (int)at.group * ROWS, 0), (int)ROWS);
    at.first_col = (i64)col_tile * COLS;
    at.col = at.first_col + at.lane * VALUES;
    const int cols = (int)min(c.num_cols - at.first_col, (i64)COLS);
    at.count = min(max(cols - (int)at.lane * VALUES, 0), (int)VALUES);
    return at.first < c.num_rows && at.first_col < c.num_cols;
}

#ifndef IS_STAGED /* else the kernel has its own */

/* Defined by the kernel: loads rows from `row` on; zeros for rows past at.end or without a token. */
DEV void load_patch(const tgl_channel_cast &c, const place &at, i64 row, patch &p);

DEV void cast_tile(const tgl_channel_cast &c, const place &at, strip_memory &m)
{
    const i64 offset = at.group * ROWS;
    const bool is_held = BLOCK_ROWS || at.end - at.first <= TILE_ROWS; /* all rows are in registers */
    patch p;
    u32 maxima[MAXIMA];
#pragma unroll
    for (int i = 0; i < MAXIMA; i++) maxima[i] = 0;
    i64 row = at.first;
    do {
        load_patch(c, at, row + offset, p);
        raise_maxima(maxima, at, p);
    } while (!is_held && (row += TILE_ROWS) < at.end);
    put_maxima(m, at, maxima);
    __syncthreads();
    u32 amax[FACTORS];
    put_inverses(m, at, amax);
    __syncthreads();
    row = at.first;
    do {
        if (!is_held) load_patch(c, at, row + offset, p);
        if constexpr (IS_TRANSPOSED) {
            put_columns(m, at, p);
            __syncthreads();
            store_columns(c, m, at, row);
            if (!is_held) __syncthreads(); /* before the tile is reused */
        } else {
            store_rows(c, m, at, p, row + offset);
        }
    } while (!is_held && (row += TILE_ROWS) < at.end);
    store_factors(c, at, amax);
}

/* A block's tile. The kernel has this code twice. The copy for whole tiles checks no bounds; it comes first,
 * so that no jump waits for instructions from memory. Long tiles, whose out is unaligned, are treated as
 * whole only for activations, where instructions are the limit. */
DEV void cast_block(const tgl_channel_cast &c, strip_memory &m)
{
    const u32 row_tile = blockIdx.y, col_tile = blockIdx.x + blockIdx.z * gridDim.x;
    place at;
    find_thread(at, threadIdx.x);
    pdl_wait();
    const bool may_be_whole = BLOCK_ROWS && (!IS_LONG || IS_SWIGLU);
    const bool is_whole = may_be_whole && row_tile < c.whole_rows && col_tile < c.whole_cols;
    if (!is_whole) { /* the compiler puts this last */
        if (find_edges(c, at, row_tile, col_tile)) cast_tile(c, at, m);
        return;
    }
    if (IS_LONG) find_thread(at, kept_u32(threadIdx.x)); /* recomputed: edges have no register left for it */
    find_whole(at, row_tile, col_tile);
    cast_tile(c, at, m);
}

#endif
#endif
