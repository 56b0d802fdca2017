/* SPDX-License-Identifier: MIT
 * rsqrt.h - 1 / sqrt(x), rounded once: the same bits everywhere. (1 / sqrtf(x) rounds twice and differs for a quarter
 * of all x; CUDA's rsqrtf is an approximation.) In double the two roundings are too small to change that of the result:
 * tests/numerics/test_rsqrt.c tries every significand.
 *   0 gives inf with its sign, inf gives 0, a negative number and NaN give NaN */
#ifndef TEGULA_NUMERICS_RSQRT_H
#define TEGULA_NUMERICS_RSQRT_H

#include "numerics/base.h"

#ifdef __CUDACC__
TGL_INLINE float tgl_rsqrt(float x) { return __frsqrt_rn(x); }
#else
#include <math.h>
TGL_INLINE float tgl_rsqrt(float x) { return (float)(1.0 / sqrt((double)x)); }
#endif

#endif
