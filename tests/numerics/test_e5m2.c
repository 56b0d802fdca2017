/* SPDX-License-Identifier: MIT */
#include "numerics/e5m2.h"

#include "oracle.h"

TESTS_OF_FORMAT(e5m2, uint8_t, TGL_E5M2_MAX, .mantissa_bits = 2, .bias = 15, .num_finite = 0x7C, .sign = 0x80,
                .nan = 0x7F, .has_infinity = true, .saturates = true)
