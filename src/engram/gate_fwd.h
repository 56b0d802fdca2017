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
    int32_t stages;      /* gate_fwd_ring, gate_fwd_pipeline: rows of a block in shared memory */
} gate_fwd_args;

/* gate_fwd */
#define GATE_ROW_VECTORS 8 /* of a thread, in registers, max */
/* gate_fwd_ring and gate_fwd_pipeline */
#define GATE_RING_VECTORS 4        /* of a thread, in registers, max */
#define GATE_RING_STAGES 16        /* rows in shared memory, max */
#define GATE_RING_SHORT 4096       /* columns: longer rows take more threads */
#define GATE_RING_FEW_THREADS 128  /* of a block that have vectors, for short rows */
#define GATE_RING_MANY_THREADS 256 /* for longer ones */
/* gate_fwd_few, whose blocks have as many threads */
#define GATE_FEW_THREADS 1024 /* of an SM, max */
#define GATE_FEW_VECTORS 4    /* of a thread, max */

/* Measured on an H200 (2026-11), us:
 *   columns       2560             4096             5120       7168
 *   rows          16,384   8192    16,384   8192    16,384     16,384   512
 *   pipeline      70.8     38.3    110      59.1    136
 *   ring          72.8     39.1    114      59.3    140        197      10.1
 *   row           91.1     48.1    113      60.8    137        190      12.7
 *   few                                                                 9.1
 * With 2048 rows of 4096 columns gate_fwd_pipeline takes 19.4 and gate_fwd_ring 17.8; with 512 of 2560 gate_fwd_few
 * takes 4.9 and gate_fwd_ring 5.5, and with 4 and 64 gate_fwd_ring and gate_fwd are alike. */
#define GATE_RING_LONG 6144   /* of so many columns and more: gate_fwd_ring ... */
#define GATE_RING_MANY 4096   /* ... for fewer rows than this */
#define GATE_PIPELINE_ROWS 62 /* of fewer columns: gate_fwd_pipeline from so many rows per SM on, 8184 on an H200 */
#define GATE_RING_BYTES 32768 /* in flight per block: 8192 x 5120 take 277 us, with all that fit 279 (H200, 2026-11) */
#define GATE_RING_BLOCKS 2    /* per SM, of both with 256 threads; twice as many with 128 */

#endif
