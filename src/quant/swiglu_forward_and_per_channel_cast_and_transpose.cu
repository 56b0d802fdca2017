/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_channel_cast_and_transpose.cu - activations, a factor per column and block of rows,
 * codes transposed or not.
 *   computes  per block: a factor of the largest magnitude of the activations, rounded to bf16, and the codes
 *             of activation / factor
 *   launch    grid of tiles (per_channel_cast.h), block CHANNEL_THREADS
 *   moves     x, out and its factors, each once
 *   macros    per_channel_cast.cuh's, IS_TRANSPOSED and IS_CLAMPED: there is a clamp value */
#define IS_SWIGLU 1
#define HAS_MAP 0
#define IS_WIDE 0
#if !defined(IS_TRANSPOSED) || !defined(IS_CLAMPED)
#ifdef __CUDACC_RTC__
#error "IS_TRANSPOSED or IS_CLAMPED is not defined"
#endif
#define IS_TRANSPOSED 1
#define IS_CLAMPED 1
#endif
#include "quant/per_channel_cast.cuh"
#include "quant/swiglu.cuh"

/* Rows that are loaded at a time: registers are for no more gates and ups. */
enum { PART_ROWS = ROWS < 4 ? ROWS : 4 };

/* Activations of rows from `first` on. Whether gates are as usual is asked once for all of them. */
DEV void hold_activations(const vector (&gate)[PART_ROWS], const vector (&up)[PART_ROWS], float clamp,
                          int first, patch &p)
{
    const bool is_usual = swiglu_is_usual<IS_CLAMPED>(gate, up, clamp);
#pragma unroll
    for (int r = 0; r < PART_ROWS; r++) {
        float gates[VALUES], ups[VALUES], v[VALUES];
        widen(gate[r], gates);
        widen(up[r], ups);
        if (is_usual) {
            silu_of_small<X == X_BF16>(gates, v);
        } else {
            if (IS_CLAMPED) swiglu_clamp(gates, ups, clamp);
            silu_of_any(gates, v);
        }
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            p.w[first + r][i] = pack_bf16(v[2 * i] * ups[2 * i], v[2 * i + 1] * ups[2 * i + 1]);
    }
}

DEV void load_patch(const tgl_channel_cast &c, const place &at, i64 row, patch &p)
{
    const int rows = rows_from(at, row);
    const u8 *from = x_row(c, at, (const u8 *)c.x + at.col * VALUE_BYTES, row);
    const i64 to_ups = c.num_cols * VALUE_BYTES;
#pragma unroll
    for (int first = 0; first < ROWS; first += PART_ROWS, from = x_row(c, at, from, PART_ROWS)) {
        vector gates[PART_ROWS], ups[PART_ROWS];
        if (rows >= first + PART_ROWS && has_vectors(c, at)) {
#pragma unroll
            for (int r = 0; r < PART_ROWS; r++) {
                load_whole(x_row(c, at, from, r), gates[r]);
                load_whole(x_row(c, at, from, r) + to_ups, ups[r]);
            }
        } else {
#pragma unroll
            for (int r = 0; r < PART_ROWS; r++) {
                clear_vector(gates[r]);
                clear_vector(ups[r]);
                if (first + r < rows) {
                    load_any(c, at, from + r * c.x_row_bytes, gates[r]);
                    load_any(c, at, from + r * c.x_row_bytes + to_ups, ups[r]);
                }
            }
        }
        hold_activations(gates, ups, c.clamp, first, p);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
swiglu_forward_and_per_channel_cast_and_transpose(const tgl_channel_cast c)
{
    SHARED(strip_memory, memory);
    cast_block(c, memory);
    pdl_trigger();
}
