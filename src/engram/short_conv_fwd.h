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
    int32_t tile_tokens;            /* short_conv_fwd: of a block */
} short_conv_args;

/* The element of the ring at column 0. */
TGL_INLINE int64_t conv_ring_row(const short_conv_args *a, int64_t slot, int64_t entry, int64_t h)
{
    return ((slot * a->requests.ring_size + entry) * a->num_streams + h) * a->hidden;
}

/* short_conv_fwd: taps that it is compiled for; tokens that they reach back; tokens of a tile and twice what they reach
 * back; tokens of a step. */
#define CONV_WALK_TAPS 4
#define CONV_WALK_REACH 32
#define CONV_WALK_TOKENS 160
#define CONV_STEP 2
/* Threads of a block, a vector each, by the number of columns; steps that are loaded ahead of the one at hand: with 2
 * there is room for one block on an SM, and 8192 x 4 rows of 2560 columns take 360 us on an H200 instead of 246. */
#define CONV_FEW_THREADS 128
#define CONV_SOME_THREADS 320
#define CONV_MANY_THREADS 640
#define CONV_AHEAD(threads) 1
/* Rows of shared memory: what a step reaches back, the step, and those ahead; an even number. */
#define CONV_WALK_ROWS(reach, threads) ((((reach) + 1) / 2 + CONV_AHEAD(threads) + 1) * CONV_STEP)
#define CONV_RESIDUAL_ROWS(threads) ((CONV_AHEAD(threads) + 1) * CONV_STEP)
/* Blocks of an SM. */
#define CONV_WALK_BLOCKS(threads) ((threads) > CONV_SOME_THREADS ? 1 : (threads) > CONV_FEW_THREADS ? 2 : 3)

/* short_conv_fwd_any: threads of a block, which has a row. */
#define CONV_ANY_THREADS 256

#endif
