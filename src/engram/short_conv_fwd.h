/* SPDX-License-Identifier: MIT
 * short_conv_fwd.h - what the CPU loop, the host and the kernels of short_conv_fwd agree on. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_FWD_H
#define TEGULA_ENGRAM_SHORT_CONV_FWD_H

#include "engram/common/short_conv.h"

typedef struct {
    tgl_windows requests;           /* with the mask; max_ngram - 1 is (kernel_size - 1) * dilation */
    gate_in x, residual;            /* residual.data NULL: none */
    conv_weights norm, conv, bias;  /* bias.data NULL: none */
    uint16_t *ring;                 /* [num_slots, ring_size, num_streams, hidden] */
    gate_out out;
    float *rstd;                    /* NULL: not wanted */
    conv_numbers numbers;
    int64_t num_tokens, num_streams, hidden;
    int32_t kernel_size, dilation;
    int32_t rounds_each;            /* a macro of kernels */
    /* short_conv_fwd */
    int64_t tile_tokens;            /* consecutive ones, of which a block has one chain or all */
    int32_t chains;                 /* blocks of a tile, a stream and a split */
    int32_t splits, split_vectors;  /* blocks that have the columns of a row, vectors of each */
    int32_t stages;                 /* rows in flight, and at hand */
} short_conv_args;

/* The element of the ring at column 0. */
TGL_INLINE int64_t conv_ring_row(const short_conv_args *a, int64_t slot, int64_t entry, int64_t h)
{
    return ((slot * a->requests.ring_size + entry) * a->num_streams + h) * a->hidden;
}

/* Taps that short_conv_fwd and short_conv_fwd_row are compiled for. */
#define CONV_WALK_TAPS 4

/* short_conv_fwd: columns of a thread; threads that have some, by the number of columns of a row (longer ones are
 * split), and with those that serve them; blocks of an SM; stages at most. Their number is a multiple of
 * CONV_NORM_WARPS: then a stage has the same warp every time, which has seen all phases of its mbarrier. */
#define CONV_COLUMNS 4
#define CONV_FEW_CONSUMERS 256
#define CONV_MANY_CONSUMERS 640
#define CONV_NORM_WARPS 3
#define CONV_THREADS(consumers) ((consumers) + 32 + 32 * CONV_NORM_WARPS)
#define CONV_SM_BLOCKS(consumers) ((consumers) > CONV_FEW_CONSUMERS ? 1 : 2)
#define CONV_STAGES 15

/* short_conv_fwd_row: threads of a block, by the number of columns, and vectors of each; blocks of an SM; rows for
 * every SM that it has at most, and with a ring that is written. On an H200, rows of 2560 columns: 6.7 us instead of
 * the 7.9 of short_conv_fwd for 64 rows, but 10.7 instead of 8.7 for 256; 17.1 instead of 22.9 for 512 with a ring. */
#define CONV_ROW_VECTORS 2
#define CONV_FEW_THREADS 64
#define CONV_SOME_THREADS 160
#define CONV_MANY_THREADS 448
#define CONV_ROW_BLOCKS(threads) ((threads) > CONV_SOME_THREADS ? 2 : (threads) > CONV_FEW_THREADS ? 4 : 8)
#define CONV_ROW_ROWS 1
#define CONV_ROW_RING_ROWS 8

/* short_conv_fwd_any: threads of a block, which has a row. */
#define CONV_ANY_THREADS 256

#endif
