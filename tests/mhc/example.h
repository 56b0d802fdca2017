/* SPDX-License-Identifier: MIT
 * example.h - the worked example of docs/mhc.md: one token, two streams of four columns. */
#ifndef TEGULA_TEST_MHC_EXAMPLE_H
#define TEGULA_TEST_MHC_EXAMPLE_H

#include "mhc_support.h"

#define EXAMPLE __attribute__((unused)) static const float
EXAMPLE X[] = { 1, -2, 0.5f, 3, /**/ 2, 1, -1, 0.25f }, Y[] = { 0.5f, -1, 2, 0.25f };
EXAMPLE SCALE[] = { 0.5f, 1, 0.75f }, BASE[] = { -0.375f, -0.25f, -0.125f, 0, 0.125f, 0.25f, 0.375f, 0.5f };
EXAMPLE OUT_MUL[] = { -0.359375f, 0.09375f, -0.109375f, 0.234375f, 0.90625f, -0.9375f, 0.171875f, -0.359375f };
EXAMPLE MIXES[] = {
    -0.2255335f, 0.05883483f, -0.06864063f, 0.1470871f, 0.5687367f, -0.5883483f, 0.1078639f, -0.2255335f
};
EXAMPLE PRE[] = { 0.3904198f, 0.4550769f }, POST[] = { 0.9034811f, 1.073411f };
EXAMPLE COMB[] = { 0.5762365f, 0.4230120f, 0.4237625f, 0.5769870f };
EXAMPLE INPUT[] = { 1.296875f, -0.326171875f, -0.259765625f, 1.28125f };
static inline const float *fn_of_example(void) /* the first rows of 8 */
{
    static float fn[64];
    for (int i = 0; i < 64; i++) fn[i] = (float)((3 * (i / 8) + 5 * (i % 8)) % 7 - 3) / 16;
    return fn;
}

#endif
