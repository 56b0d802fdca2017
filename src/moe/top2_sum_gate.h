/* SPDX-License-Identifier: MIT
 * top2_sum_gate.h - limits that the wide kernel of top2_sum_gate and the code that launches it share; those
 * of the others are in gate.h. */
#ifndef TEGULA_MOE_TOP2_SUM_GATE_H
#define TEGULA_MOE_TOP2_SUM_GATE_H

#define GATE_WIDE_THREADS 256           /* of a block, which has a token */
#define GATE_WIDE_KEPT 4096             /* experts whose keys, and groups whose sums, stay in shared memory */

#endif
