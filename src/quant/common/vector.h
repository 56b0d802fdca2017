/* SPDX-License-Identifier: MIT
 * vector.h - vectors: what a lane of a cast kernel loads at once (decode.cuh). X is a kernel's macro, the
 * type of x. */
#ifndef TEGULA_QUANT_VECTOR_H
#define TEGULA_QUANT_VECTOR_H

#define X_BF16 0
#define X_F32 1
#define X_E4M3 2
#define X_E2M1 3

#define X_IS_CODES(x) ((x) >= X_E4M3)
#define X_VALUES(x) ((x) == X_BF16 ? 8 : (x) == X_F32 ? 4 : 16) /* of a vector */
#define X_VECTOR_BYTES(x) ((x) == X_E2M1 ? 8 : 16)

#endif
