/* SPDX-License-Identifier: MIT
 * short_conv_fwd.h - what the CPU loop, the host and the kernels of short_conv_fwd agree on. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_FWD_H
#define TEGULA_ENGRAM_SHORT_CONV_FWD_H

#include "engram/common/short_conv.h"

typedef struct {
    tgl_windows requests;          /* with the mask; max_ngram - 1 is (kernel_size - 1) * dilation */
    gate_in x, residual;           /* residual.data NULL: none */
    conv_weights norm, conv, bias; /* bias.data NULL: none */
    uint16_t *ring;                /* [num_slots, ring_size, num_streams, hidden] */
    gate_out out;
    float *rstd; /* NULL: not wanted */
    conv_numbers numbers;
    int64_t num_tokens, num_streams, hidden;
    int32_t kernel_size, dilation;
    int32_t rounds_each; /* a macro of kernels */
    /* short_conv_fwd */
    int64_t tile_tokens;           /* consecutive ones, of which a block has one chain or all; _row, too: all */
    int32_t chains;                /* blocks of a tile, a stream and a split */
    int32_t splits, split_vectors; /* blocks that have the columns of a row, vectors of each */
    int32_t stages;                /* rows in flight, and at hand */
    int32_t norm_warps;            /* warps that add squares, at most NORM_WARPS */
} short_conv_args;

/* The element of the ring at column 0. */
TGL_INLINE int64_t conv_ring_row(const short_conv_args *a, int64_t slot, int64_t entry, int64_t h)
{
    return ((slot * a->requests.ring_size + entry) * a->num_streams + h) * a->hidden;
}

/* Taps that short_conv_fwd and short_conv_fwd_row are compiled for. */
#define CONV_WALK_TAPS 4

/* short_conv_fwd: a block has threads that convolve (consumers), warps that add squares, and a warp that loads. On an H200
 * (2026-11) 8192 tokens of 4 x 2560 columns take 136 us, with 4 to 7 warps that add squares 141 to 144, and with 10 columns
 * a thread 140; 4 x 5120 take 295, with 3 warps that add squares 319, and with 10 columns a thread 300. */
#define CONV_COLUMNS 4          /* of a consumer */
#define CONV_MANY_CONSUMERS 640 /* of a block */
#define CONV_FEW_CONSUMERS 256  /* the same, where a row needs no more */
#define CONV_MANY_NORM_WARPS 7  /* max, if blocks share rows: a column then comes with more squares */
#define CONV_FEW_NORM_WARPS 3   /* max, otherwise */
#define CONV_THREADS(consumers, norm_warps) ((consumers) + 32 + 32 * (norm_warps))
#define CONV_SM_BLOCKS(consumers) ((consumers) > CONV_FEW_CONSUMERS ? 1 : 2)
/* Stages, max. Their number is a multiple of norm_warps: then a stage has the same warp every time, which has seen all
 * phases of its mbarrier. */
#define CONV_STAGES 21
#define CONV_FIXED_BYTES 7168 /* of shared memory that a block has besides stages, max */

/* short_conv_fwd_row: a thread has a vector of columns. Measured on an H200 (2026-11), us, of it and of short_conv_fwd:
 *   rows                       256           512           768           1024
 *   2560 columns               6.0   8.3     8.8   9.7    13.8  10.9    15.8  11.9
 *   3584                       7.0   9.8    12.5  11.8
 *   7168                      13.8  13.4    26.1  17.6
 *   2560, ring, 2 a request                 10.3  22.5                  17.9  32.2  (with 8: 51.2, 26.7)
 *   7168, ring, 4 and 8                     29.3  40.6                 115    63.8 */
#define CONV_FEW_THREADS 320                                            /* of a block, for rows of up to 2560 columns */
#define CONV_MANY_THREADS 896                                           /* for longer ones */
#define CONV_ROW_TOKENS(threads) ((threads) > CONV_FEW_THREADS ? 1 : 2) /* of a block, max */
/* Shared memory for the weights of a row. */
#define CONV_ROW_BYTES(vectors, w) (((vectors) * ((w).is_bf16 ? 1 : 2) + 7) / 8 * 128)
/* Rows for every SM and token of a block, max: more are short_conv_fwd's. The second if a ring is written. */
#define CONV_ROW_ROWS 2
#define CONV_ROW_RING_ROWS 4

/* short_conv_fwd_any: threads of a block, which has a row. */
#define CONV_ANY_THREADS 256

#endif
