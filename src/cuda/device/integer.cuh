/* SPDX-License-Identifier: MIT
 * integer.cuh - arithmetic of sizes. */
#ifndef TEGULA_INTEGER_CUH
#define TEGULA_INTEGER_CUH

#include "device/ptx.cuh"

/* a / b rounded up, a >= 0 and b > 0; in the type that a + b has. */
template <class A_, class B_> DEV auto ceil_div(A_ a, B_ b) -> decltype(a / b) { return (a + (b - 1)) / b; }

#endif
