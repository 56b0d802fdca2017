/* SPDX-License-Identifier: MIT */
#include "numerics/bf16.h"

#include "oracle.h"

TESTS_OF_FORMAT(bf16, uint16_t, TGL_BF16_MAX, .mantissa_bits = 7, .bias = 127, .num_finite = 0x7F80, .sign = 0x8000,
                .nan = 0x7FFF, .keeps_nan = true, .has_infinity = true)
