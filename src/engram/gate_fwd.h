/* SPDX-License-Identifier: MIT
 * gate_fwd.h - what the CPU loops, the host and the kernels of gate_fwd agree on. */
#ifndef TEGULA_ENGRAM_GATE_FWD_H
#define TEGULA_ENGRAM_GATE_FWD_H

#include "engram/common/gate.h"

typedef struct {
    gate_in x, k, v;
    gate_weights weights;
    const uint8_t *image_token_mask; /* NULL: none */
    gate_out out;
    float *dot, *gate_score, *rstd_x, *rstd_k; /* all NULL: not wanted */
    gate_numbers numbers;
    int64_t num_tokens, num_streams, hidden;
    int32_t has_residual;
    int32_t is_in_place; /* out is x */
    int32_t stages;      /* gate_fwd_ring: rows in flight */
} gate_fwd_args;

/* gate_fwd: vectors of a thread that stay in registers, at most. */
#define GATE_ROW_VECTORS 8
/* gate_fwd_ring: the same; rows in flight, at most; threads of a block for rows of up to GATE_RING_SHORT columns, and
 * of longer ones. */
#define GATE_RING_VECTORS 4
#define GATE_RING_STAGES 16
#define GATE_RING_SHORT 4096
#define GATE_RING_FEW_THREADS 128
#define GATE_RING_MANY_THREADS 256
/* gate_fwd_few, which has as many threads: of an SM, at most; vectors of a thread, at most. */
#define GATE_FEW_THREADS 1024
#define GATE_FEW_VECTORS 4

/* Measured on an H200 (2026-11). Rows of 2560 columns: gate_fwd_ring takes 73 us for 16,384 rows, gate_fwd 91, and for
 * 4 and 64 rows they are alike. Rows of 7168: gate_fwd takes 191 us for 16,384 rows, gate_fwd_ring 196, but 10.1 instead
 * of 12.7 for 512. gate_fwd_few takes 9.1 for these, and 2.7 instead of 3.2 for 4; 512 rows of 2560 columns take 4.9
 * instead of 5.5. */
#define GATE_RING_ROWS 264    /* of up to GATE_RING_SHORT columns: gate_fwd_ring from so many rows on */
#define GATE_RING_LONG 6144   /* of so many columns and more: gate_fwd_ring ... */
#define GATE_RING_MANY 4096   /* ... for fewer rows than this */
#define GATE_RING_BYTES 32768 /* in flight per block: 8192 x 5120 take 277 us, with all that fit 279 */
#define GATE_RING_BLOCKS 2    /* per SM, of gate_fwd_ring with 256 threads; twice as many with 128 */

#endif
