/* SPDX-License-Identifier: MIT
 * ulp.h - how wrong a float is. */
#ifndef TEGULA_TESTS_ULP_H
#define TEGULA_TESTS_ULP_H

#include <math.h>

/* In units in the last place of the true value, whose own error in double does not matter. */
static inline double error_in_ulp(float seen, double want)
{
    int exponent = 0;
    (void)frexp(want, &exponent);
    return fabs((double)seen - want) / ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
}

#endif
