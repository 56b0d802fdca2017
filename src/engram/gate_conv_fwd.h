/* SPDX-License-Identifier: MIT
 * gate_conv_fwd.h - what the CPU loop, the host and the kernels of gate_conv_fwd agree on. */
#ifndef TEGULA_ENGRAM_GATE_CONV_FWD_H
#define TEGULA_ENGRAM_GATE_CONV_FWD_H

#include "engram/common/short_conv.h"

typedef struct {
    tgl_windows requests; /* with the mask; max_ngram - 1 is (kernel_size - 1) * dilation */
    gate_in x, k, v;
    gate_weights weights;
    gate_numbers gate;
    conv_weights norm, conv, bias; /* bias.data NULL: none */
    conv_numbers numbers;
    uint16_t *ring; /* [num_slots, ring_size, num_streams, hidden] */
    gate_out out;
    int64_t num_tokens, num_streams, hidden;
    int32_t kernel_size, dilation;
    int32_t rounds_each; /* a macro of gate_conv_fwd_any */
    int32_t has_residual;
    int32_t tile_rows; /* gate_conv_fwd: rows of a chain that a block has */
    int32_t stages;    /* gate_conv_fwd: rows in flight, a multiple of gate_rows */
    int32_t gate_rows; /* gate_conv_fwd: of them, those whose gates are found at a time */
} gate_conv_args;

/* gate_conv_fwd: the blocks of a cluster share a row. Of every GATE_CONV_SPAN vectors each part has as many, in order:
 * then a slot of the gate's sums (GATE_SLOTS is a multiple of the span) and a group of the norm's are of one part. */
#define GATE_CONV_SPAN 128
TGL_INLINE int64_t gate_conv_vectors(int64_t hidden, int parts, int part)
{
    const int64_t vectors = hidden / CONV_VECTOR, own = GATE_CONV_SPAN / parts;
    const int64_t rest = vectors % GATE_CONV_SPAN - part * own;
    return vectors / GATE_CONV_SPAN * own + (rest < 0 ? 0 : rest < own ? rest : own);
}

/* Bytes of a part of a row in shared memory: of k also what the sums of a group of vectors take, which replace it. */
#define GATE_CONV_LINE 144
TGL_INLINE int64_t gate_conv_pitch(int64_t hidden, int parts)
{
    const int64_t bytes = gate_conv_vectors(hidden, parts, 0) * 16;
    return bytes > GATE_CONV_LINE ? bytes : GATE_CONV_LINE;
}
/* What the blocks of a cluster tell each other of a row: 16 bytes for each group of the gate's sums and of the norm's. */
#define GATE_CONV_GROUPS (GATE_SLOTS / GATE_GROUP)
#define GATE_CONV_TOLD(parts) \
    ((parts) > 1 ? 16 * (GATE_CONV_GROUPS + GATE_CONV_COLUMNS / (CONV_GROUP * CONV_VECTOR)) : 0)

/* The element of the ring at column 0. */
TGL_INLINE int64_t gate_conv_ring_row(const gate_conv_args *a, int64_t slot, int64_t entry, int64_t h)
{
    return ((slot * a->requests.ring_size + entry) * a->num_streams + h) * a->hidden;
}

/* What gate_conv_fwd can do. */
#define GATE_CONV_TAPS 4       /* it is compiled for */
#define GATE_CONV_COLUMNS 8192 /* of a row, max */
#define GATE_CONV_DILATION 16  /* max */
#define GATE_CONV_ROWS 256     /* of a tile, max */
#define GATE_CONV_STAGES 14    /* rows in shared memory at once, max */
#define GATE_CONV_STATIC 13312 /* bytes of shared memory that hold no rows, max */
#define GATE_CONV_AHEAD 3      /* rows that a cluster of 4 prefetches: fewer than stages */
/* Threads of a block that convolve, by the columns of a row. One more warp loads, others find gates, one for a row.
 * On an H200 (2026-11) 8192 tokens of 4 x 2560 columns take 194 us, 212 with 320 threads of 8 columns and 5 warps for
 * gates; of 4 x 5120 columns, in two parts, 543 and 540. 4096 tokens of 4 x 7168 columns take 364 us in two
 * parts, with 448 threads each and 5 warps for gates, 430 us with 4 such warps, 641 us in four parts of 256. */
#define GATE_CONV_FEW 128  /* up to 1024 */
#define GATE_CONV_MANY 256 /* up to 2560, and from 7176 on */
#define GATE_CONV_HALF 320 /* 2568 to 5120 */
#define GATE_CONV_WIDE 448 /* 5128 to 7168 */
/* Columns of a thread are a vector, but for rows of 1032 to 2560 a vector and two more: then each of an SM's four
 * schedulers has two of the 8 warps, and there is room for a sixth warp that finds gates. */
#define GATE_CONV_MORE_COLUMNS 10
#define GATE_CONV_WARPS(threads, columns) \
    ((threads) > GATE_CONV_MANY ? 5 : (threads) > GATE_CONV_FEW ? ((columns) > CONV_VECTOR ? 6 : 7) : 3)
#define GATE_CONV_THREADS(threads, columns) ((threads) + 32 * GATE_CONV_WARPS(threads, columns) + 32)
#define GATE_CONV_BLOCKS(threads) ((threads) > GATE_CONV_FEW ? 1 : 2) /* per SM */

/* Where there are too few registers for all weights, norm_weight and the first tap's are in shared memory. */
#define GATE_CONV_KEEPS_SOME(threads, columns) ((threads) > GATE_CONV_HALF || (columns) > CONV_VECTOR)
/* Bytes of weights in shared memory: the gate's as f32, and those. */
TGL_INLINE int64_t gate_conv_weight_bytes(int64_t hidden, int threads, int columns, int parts)
{
    return 32 * gate_conv_vectors(hidden, parts, 0) +
           (GATE_CONV_KEEPS_SOME(threads, columns) ? 8 * columns * threads : 0);
}

/* gate_conv_fwd_any: threads of a block, which has a row. */
#define GATE_CONV_ANY_THREADS 256

#endif
