/* SPDX-License-Identifier: MIT
 * unpack_from_e2m1fn_x2_cpu.h - the fast loop of unpack_from_e2m1fn_x2. */
#ifndef TEGULA_QUANT_UNPACK_FROM_E2M1FN_X2_CPU_H
#define TEGULA_QUANT_UNPACK_FROM_E2M1FN_X2_CPU_H

#include "core/cpu.h"
#include "core/dtype.h"

TGL_DECLARE_FAST(void, tgl_unpack, const uint8_t *x, int64_t num_pairs, tgl_dtype dtype, void *out);

#endif
