/* SPDX-License-Identifier: MIT
 * tile.cuh - a transposed tile in shared memory, for transpose.cu and transpose_any.cu.
 *
 * The tile has a row per column of x, of vectors (16 bytes). Vector k of row j is at k ^ (j / VECTOR % 8), so
 * that neither side has bank conflicts: eight threads that store the same vector of columns 0, VECTOR, 2
 * VECTOR ... and eight threads that load vectors 0 .. 7 of a row use eight different groups of banks. A
 * kernel defines TILE_ANY (tile.h) before it includes this. */
#ifndef TEGULA_TRANSPOSE_TILE_CUH
#define TEGULA_TRANSPOSE_TILE_CUH

#include "device/ptx.cuh"
#include "transpose/tile.h"

static_assert(ELEMENT_BYTES == 1 || ELEMENT_BYTES == 2 || ELEMENT_BYTES == 4 || ELEMENT_BYTES == 8 ||
                  ELEMENT_BYTES == 16,
              "ELEMENT_BYTES is 1, 2, 4, 8 or 16");

enum {
    VECTOR = 16 / ELEMENT_BYTES, /* elements */
    ROWS = TILE_ROWS(ELEMENT_BYTES, TILE_ANY),
    COLS = TILE_COLS(ELEMENT_BYTES),
    THREADS = TILE_THREADS(ELEMENT_BYTES, TILE_ANY),
    IN_VECTORS = TILE_IN_VECTORS(ELEMENT_BYTES),
    OUT_VECTORS = TILE_OUT_VECTORS(ELEMENT_BYTES, TILE_ANY),
    PATCH_ROWS = TILE_PATCH_ROWS(ELEMENT_BYTES, TILE_ANY),
    PATCHES = TILE_PATCHES(ELEMENT_BYTES),
    PATCH_BYTES = PATCH_ROWS * ELEMENT_BYTES /* of a column of a patch: one store */
};
static_assert(PATCH_BYTES == 4 || PATCH_BYTES == 8 || PATCH_BYTES == 16, "a patch has columns of words");
static_assert(OUT_VECTORS % 8 == 0 && THREADS % IN_VECTORS == 0 && THREADS % OUT_VECTORS == 0, "a tile divides evenly");

typedef uint4 tile_type[COLS * OUT_VECTORS];

/* Index of vector k of column j. */
DEV int tile_index(int j, int k) { return j * OUT_VECTORS + (k ^ (int)((u32)j / VECTOR & 7)); }

DEV u32 word(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* Word h of column k of a patch: the elements from row h * 4 / ELEMENT_BYTES on, the first in the low bits. k
 * and h are constants after unrolling. Elements of 1 and 2 bytes take byte permutes, which columns share (8
 * for 4x4 bytes, 2 for 2x2 halves); for others this only selects registers. */
DEV u32 patch_word(const uint4 (&v)[PATCH_ROWS], int k, int h)
{
#if ELEMENT_BYTES == 1
    const u32 pick = k & 2 ? 0x7362 : 0x5140; /* bytes 2 and 3, or 0 and 1, of two rows */
    const u32 low = __byte_perm(word(v[4 * h], k / 4), word(v[4 * h + 1], k / 4), pick);
    const u32 high = __byte_perm(word(v[4 * h + 2], k / 4), word(v[4 * h + 3], k / 4), pick);
    return __byte_perm(low, high, k & 1 ? 0x7632 : 0x5410);
#elif ELEMENT_BYTES == 2
    return __byte_perm(word(v[2 * h], k / 2), word(v[2 * h + 1], k / 2), k & 1 ? 0x7632 : 0x5410);
#else
    enum { WORDS = ELEMENT_BYTES / 4 };
    return word(v[h / WORDS], k * WORDS + h % WORDS);
#endif
}

/* Stores a patch in the tile: rows row .. row + PATCH_ROWS - 1 of the columns of vector `in`. These are
 * OUT_VECTORS apart, as the columns of a vector have the same swizzle. */
DEV void tile_put(tile_type &tile, const uint4 (&v)[PATCH_ROWS], int row, int in)
{
    const u32 r = (u32)row;
    u8 *patch = (u8 *)&tile[tile_index(in * VECTOR, (int)(r / VECTOR))] + r % VECTOR * ELEMENT_BYTES;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        u8 *at = patch + k * OUT_VECTORS * 16;
#if TILE_PATCH_ROWS(ELEMENT_BYTES, TILE_ANY) * ELEMENT_BYTES == 16
        *(uint4 *)at = make_uint4(patch_word(v, k, 0), patch_word(v, k, 1), patch_word(v, k, 2), patch_word(v, k, 3));
#elif TILE_PATCH_ROWS(ELEMENT_BYTES, TILE_ANY) * ELEMENT_BYTES == 8
        *(uint2 *)at = make_uint2(patch_word(v, k, 0), patch_word(v, k, 1));
#else
        *(u32 *)at = patch_word(v, k, 0);
#endif
    }
}

/* The tile of a block: its number along the rows, its first column, its batch. Consecutive blocks go down the
 * rows of x, so that the blocks in flight write whole rows of out: 3 to 4 % faster than along the columns, on
 * H200 (2026-11), for 32 matrices of 8064x7168. The last slice may reach past the last column or batch; those blocks do
 * nothing. */
typedef struct { i64 row_tile, col, batch; } tile_place;
DEV tile_place tile_of_block(u32 row_tiles, u32 col_slices)
{
    u32 row_tile = blockIdx.x;
    i64 col_tile = blockIdx.y, batch = blockIdx.z;
    if (gridDim.x > row_tiles) {
        const u32 slice = row_tile / row_tiles;
        row_tile -= slice * row_tiles;
        col_tile += (i64)(slice % col_slices) * gridDim.y;
        batch += (i64)(slice / col_slices) * gridDim.z;
    }
    return { row_tile, col_tile * COLS, batch };
}

#endif
