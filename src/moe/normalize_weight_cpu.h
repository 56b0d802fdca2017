/* SPDX-License-Identifier: MIT
 * normalize_weight_cpu.h - the fast loop of normalize_weight, over rows begin .. end - 1 of a
 * normalize_weight_args. */
#ifndef TEGULA_MOE_NORMALIZE_WEIGHT_CPU_H
#define TEGULA_MOE_NORMALIZE_WEIGHT_CPU_H

#include "core/cpu.h"
#include "moe/normalize_weight.h"

TGL_DECLARE_FAST(void, tgl_normalize_rows, const void *context, int64_t begin, int64_t end);

#endif
