/* SPDX-License-Identifier: MIT
 * per_channel_cast.cu - a factor per column and block of rows; a map may name the rows.
 *   computes  per block a factor from its amax, and the codes of value / factor; a value is that of x, or a
 *             code of x times its factor
 *   launch    grid of tiles (channel.h), block CHANNEL_THREADS
 *   moves     every row of x that the map names, its factors, the map, out and its factors, each once
 *   macros    channel.cuh's, HAS_MAP, IS_WIDE, and X_SF_KIND: TGL_SF_* of codes, else 0 */
#define IS_SWIGLU 0
#define IS_CLAMPED 0
#define IS_TRANSPOSED 0
#include "quant/common/channel.cuh"
#include "quant/common/divide.cuh"

/* The rows of x for a patch. */
typedef struct {
    i64 row; /* the first, without a map */
    int count;
    u32 tokens;      /* with a map: the number of tokens, */
    u32 token[ROWS]; /* and those of the rows; >= tokens: none */
} row_list;

DEV row_list find_rows(const tgl_channel_cast &c, const place &at, i64 row)
{
    row_list x;
    x.row = row;
    x.count = rows_from(at, row);
    if (!HAS_MAP) return x;
    const u32 *tokens = (const u32 *)c.pos_to_token + row;
    x.tokens = c.num_tokens;
    if (at.is_whole) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 4) {
            const uint4 four = *(const uint4 *)(tokens + r);
            x.token[r] = four.x;
            x.token[r + 1] = four.y;
            x.token[r + 2] = four.z;
            x.token[r + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++) x.token[r] = r < x.count ? tokens[r] : ~0u;
    }
    return x;
}

DEV bool exists(const row_list &x, int r) { return HAS_MAP ? x.token[r] < x.tokens : r < x.count; }
DEV i64 token_of(const row_list &x, int r) { return HAS_MAP ? x.token[r] : x.row + r; }
DEV const u8 *address_of(const tgl_channel_cast &c, const place &at, const row_list &x, int r)
{
    const u8 *first = (const u8 *)c.x + at.col * VALUE_BYTES;
    if (HAS_MAP) return x_row(c, at, first, x.token[r]);
    return x_row(c, at, x_row(c, at, first, x.row), r);
}

/* The address of factor k of row r. */
DEV const u32 *factor_address(const tgl_channel_cast &c, const place &at, const row_list &x, int r, i64 k)
{
    const tgl_sf sf = factors_of_kind<X_SF_KIND>(c.x_sf);
    if (!at.is_whole) return element_at(sf, token_of(x, r), k);
    const u8 *first = (const u8 *)((const u32 *)c.x_sf_data + tgl_sf_offset(&sf, 0, k));
    if (HAS_MAP) return (const u32 *)nth(first, x.token[r], c.x_sf_step);
    return (const u32 *)nth(nth(first, (u32)x.row, c.x_sf_step), (u32)r, c.x_sf_step);
}

/* Factor k of row r; 0 if the row has no token. */
DEV float x_factor(const tgl_channel_cast &c, const place &at, const row_list &x, int r, i64 k, bool is_there)
{
    const u32 element = load_u32_if(factor_address(c, at, x, r, k), is_there);
    return factor_of_element(factors_of_kind<X_SF_KIND>(c.x_sf), element, (u32)k);
}

/* The factors of codes, one per vector. */
DEV void load_factors(const tgl_channel_cast &c, const place &at, const row_list &x, patch &p)
{
    const i64 k = at.is_whole ? (u32)at.col >> c.x_sf_shift : divide(at.col, c.x_block_cols, c.by_x_block_cols);
#pragma unroll
    for (int r = 0; r < ROWS; r++) p.x_sf[r] = x_factor(c, at, x, r, k, exists(x, r) && (at.is_whole || at.count));
}

/* The values of codes with several factors per vector. */
DEV void hold_values(const tgl_channel_cast &c, const place &at, const row_list &x, const vector (&v)[ROWS], patch &p)
{
    i64 k = divide(at.col, c.x_block_cols, c.by_x_block_cols), end = (k + 1) * c.x_block_cols;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        if (at.col + i == end) {
            k++;
            end += c.x_block_cols;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float code = low_f16(e4m3x2_to_f16x2(v[r].w[i / 4] >> i % 4 * 8));
            const bool is_there = exists(x, r) && i < at.count;
            p.w[r][i] = is_there ? __float_as_uint(code * x_factor(c, at, x, r, k, true)) : 0;
        }
    }
}

DEV void load_patch(const tgl_channel_cast &c, const place &at, i64 row, patch &p)
{
    const row_list x = find_rows(c, at, row);
    vector v[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const u8 *from = address_of(c, at, x, r);
        if (has_vectors(c, at)) load_whole_if(from, exists(x, r), v[r]);
        else if (exists(x, r)) load_part(from, at.count, v[r]);
        else clear_vector(v[r]);
    }
    if (IS_CODES) load_factors(c, at, x, p);
    if constexpr (IS_WIDE) {
        hold_values(c, at, x, v, p);
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < WORDS; i++) p.w[r][i] = v[r].w[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) per_channel_cast(const tgl_channel_cast c)
{
    SHARED(strip_memory, memory);
    cast_block(c, memory);
    pdl_trigger();
}
