/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_channel_cast_and_transpose.cu - activations with a factor per column and block of
 * rows; codes are transposed or not.
 *   computes  per block a factor from the amax of its activations, rounded to bf16, and the codes of
 *             activation / factor
 *   launch    grid of tiles (channel.h), block CHANNEL_THREADS
 *   moves     x, out and its factors, each once
 *   macros    channel.cuh's, IS_TRANSPOSED and IS_CLAMPED: there is a clamp value */
#define IS_SWIGLU 1
#define HAS_MAP 0
#define IS_WIDE 0
#include "quant/common/channel.cuh"
#include "quant/common/swiglu.cuh"

enum {
    PART_ROWS = ROWS < 4 ? ROWS : 4, /* gates and ups in registers at a time */
    PAIR_WORDS = VALUE_BYTES / 2     /* words of x for two values */
};

/* The first two activations of a row, of any gates and ups, in place of the gates. */
DEV void activate_any(vector &gate, const vector &up, float clamp)
{
    const vector both[2] = { gate, up };
    float gates[2], ups[2], v[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        gates[i] = X == X_BF16 ? bf16_at(both[0].w, i) : __uint_as_float(both[0].w[i]);
        ups[i] = X == X_BF16 ? bf16_at(both[1].w, i) : __uint_as_float(both[1].w[i]);
    }
    if (IS_CLAMPED) swiglu_clamp(gates, ups, clamp);
    silu_of_any(gates, v);
    gate.w[0] = pack_bf16(v[0] * ups[0], v[1] * ups[1]);
}

/* All of a row, if gates are small and nothing is clamped. */
DEV void activate_usual(vector &gate, const vector &up)
{
    float gates[VALUES], ups[VALUES], v[VALUES];
    widen(gate, gates);
    widen(up, ups);
    silu_of_small<X == X_BF16>(gates, v);
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        gate.w[PAIR_WORDS * i] = pack_bf16(v[2 * i] * ups[2 * i], v[2 * i + 1] * ups[2 * i + 1]);
}

/* Rotates by BY: how a loop goes through registers, which cannot be indexed. */
template <int BY, class T, int N> DEV void turn(T (&v)[N])
{
    T turned[N];
#pragma unroll
    for (int i = 0; i < N; i++) turned[i] = v[(i + BY) % N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = turned[i];
}

/* Activations of rows from `first` on. One test decides for all gates. Large ones are rare, so a loop over
 * pairs is enough: short code that needs no more registers. */
template <int N>
DEV void hold_activations(vector (&gates)[N], vector (&ups)[N], float clamp, int first, patch &p)
{
    if (swiglu_is_usual<IS_CLAMPED>(gates, ups, clamp)) {
#pragma unroll
        for (int r = 0; r < N; r++) activate_usual(gates[r], ups[r]);
    } else {
#pragma unroll 1
        for (int r = 0; r < N; r++) {
#pragma unroll 1
            for (int i = 0; i < WORDS; i++) {
                activate_any(gates[0], ups[0], clamp);
                turn<PAIR_WORDS>(gates[0].w);
                turn<PAIR_WORDS>(ups[0].w);
            }
            turn<1>(gates);
            turn<1>(ups);
        }
    }
#pragma unroll
    for (int r = 0; r < N; r++)
#pragma unroll
        for (int i = 0; i < WORDS; i++) p.w[first + r][i] = gates[r].w[PAIR_WORDS * i];
}

DEV void load_patch(const tgl_channel_cast &c, const place &at, i64 row, patch &p)
{
    const int rows = rows_from(at, row);
    const u8 *from = x_row(c, at, (const u8 *)c.x + at.col * VALUE_BYTES, row);
    const i64 to_ups = c.num_cols * VALUE_BYTES;
#pragma unroll
    for (int first = 0; first < ROWS; first += PART_ROWS, from = x_row(c, at, from, PART_ROWS)) {
        vector gates[PART_ROWS], ups[PART_ROWS];
#pragma unroll
        for (int r = 0; r < PART_ROWS; r++) {
            const u8 *gate = x_row(c, at, from, r), *up = gate + to_ups;
            if (at.is_whole) {
                load_whole(gate, gates[r]);
                load_whole(up, ups[r]);
            } else if (has_vectors(c, at)) {
                load_whole_if(gate, first + r < rows, gates[r]);
                load_whole_if(up, first + r < rows, ups[r]);
            } else {
                load_part(gate, first + r < rows ? at.count : 0, gates[r]);
                load_part(up, first + r < rows ? at.count : 0, ups[r]);
            }
        }
        if (at.is_whole || ROWS <= 4) {
            hold_activations(gates, ups, c.clamp, first, p);
        } else { /* two rows at a time: fewer values in registers */
#pragma unroll
            for (int r = 0; r < PART_ROWS; r += 2)
                hold_activations((vector (&)[2])gates[r], (vector (&)[2])ups[r], c.clamp, first + r, p);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    swiglu_forward_and_per_channel_cast_and_transpose(const tgl_channel_cast c)
{
    SHARED(strip_memory, memory);
    cast_block(c, memory);
    pdl_trigger();
}
