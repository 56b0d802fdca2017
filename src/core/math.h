/* SPDX-License-Identifier: MIT
 * math.h - integer arithmetic of sizes, which may be close to 2^63. */
#ifndef TEGULA_MATH_H
#define TEGULA_MATH_H

#include <stdint.h>

static inline int64_t tgl_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tgl_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* a / b, rounded up; a >= 0, b > 0. (a + b - 1) / b would overflow for a close to 2^63. */
static inline int64_t tgl_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* min(a * b, INT64_MAX) for a, b >= 0: for estimates of the work per row. */
static inline int64_t tgl_saturating_product(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

#endif
