/* SPDX-License-Identifier: MIT
 * top2_sum_gate.h - what host and kernels of top2_sum_gate agree on, beside gate.h. */
#ifndef TEGULA_MOE_TOP2_SUM_GATE_H
#define TEGULA_MOE_TOP2_SUM_GATE_H

/* top2_sum_gate_mapped: with a map, up to this many tokens have a block each, whose other warps find the
 * experts' indices. Measured up to here (H200, 2026-11); beyond, their loads cost too much. */
#define GATE_MAPPED_WARPS 5
#define GATE_MAPPED_TOKENS 256

/* top2_sum_gate_many. Thresholds in tokens are estimates from the instructions of both kernels, not measured; the
 * one in experts has no measurement on record. */
#define GATE_MANY_TOPK 12     /* up to this the bound leaves about 16 candidates */
#define GATE_MANY_EXPERTS 128 /* up to this many it does not win */
#define GATE_MANY_FEW_EXPERTS 256
#define GATE_MANY_GROUPED_TOKENS 4096 /* with groups */
#define GATE_MANY_FEW_TOKENS 1024     /* without groups, up to GATE_MANY_FEW_EXPERTS */
#define GATE_MANY_TOKENS 512          /* without groups, more experts */

/* top2_sum_gate_wide. */
#define GATE_WIDE_THREADS 256 /* per block, which has one token */
#define GATE_WIDE_KEPT 4096   /* max keys of experts, and sums of groups, in shared memory */

#endif
