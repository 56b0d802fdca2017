/* SPDX-License-Identifier: MIT
 * integer.cuh - arithmetic of sizes. */
#ifndef TEGULA_INTEGER_CUH
#define TEGULA_INTEGER_CUH

#include "device/ptx.cuh"

/* a / b rounded up, in the type that a / b has; b > 0 and a > -b. */
template <class A_, class B_> DEV auto ceil_div(A_ a, B_ b) -> decltype(a / b) { return (a + (b - 1)) / b; }

#endif
