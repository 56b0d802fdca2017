/* SPDX-License-Identifier: MIT
 * top2_sum_gate.h - what the kernels of top2_sum_gate and the code that launches them agree on. */
#ifndef TEGULA_MOE_TOP2_SUM_GATE_H
#define TEGULA_MOE_TOP2_SUM_GATE_H

#include "moe/gate.h"

#endif
