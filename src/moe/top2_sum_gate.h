/* SPDX-License-Identifier: MIT
 * top2_sum_gate.h - what the kernels of top2_sum_gate and the code that launches them share; limits of all
 * gates, and the arguments, are in gate.h. */
#ifndef TEGULA_MOE_TOP2_SUM_GATE_H
#define TEGULA_MOE_TOP2_SUM_GATE_H

/* top2_sum_gate_mapped: with a map, so few tokens take a block each, whose other warps find the experts' indices.
 * Measured up to here (H200); beyond, what they load counts. */
#define GATE_MAPPED_WARPS 5
#define GATE_MAPPED_TOKENS 256

/* top2_sum_gate_many: where its bound leaves about 16 candidates at most. 128 experts are too few for it to
 * win. From so many tokens on, an estimate from the instructions of both kernels: with groups, without them
 * for up to GATE_MANY_FEW_EXPERTS, and for more experts. */
#define GATE_MANY_TOPK 12
#define GATE_MANY_EXPERTS 128           /* more than these */
#define GATE_MANY_FEW_EXPERTS 256
#define GATE_MANY_GROUPED_TOKENS 4096
#define GATE_MANY_FEW_TOKENS 1024
#define GATE_MANY_TOKENS 512

/* top2_sum_gate_wide. */
#define GATE_WIDE_THREADS 256           /* of a block, which has a token */
#define GATE_WIDE_KEPT 4096             /* experts whose keys, and groups whose sums, stay in shared memory */

#endif
