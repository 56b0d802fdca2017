/* SPDX-License-Identifier: MIT
 * unpack_from_e2m1fn_x2.h - the launch shape of unpack_from_e2m1fn_x2. */
#ifndef TEGULA_QUANT_UNPACK_FROM_E2M1FN_X2_H
#define TEGULA_QUANT_UNPACK_FROM_E2M1FN_X2_H

#include "numerics/base.h"

/* None of these has a measurement on record. */
#define UNPACK_THREADS 256
#define UNPACK_UNITS 4         /* of a thread, at most */
#define UNPACK_MIN_BLOCKS 1024 /* if there would be fewer, threads have fewer units */

/* Bytes of x for a unit. */
#define UNPACK_X_BYTES(out_bytes) (8 / (out_bytes))

typedef struct {
    const uint8_t *x;
    int64_t num_bytes; /* pairs */
    uint8_t *out;
    int32_t units_each; /* of a thread */
    int32_t is_vector;  /* x and out are aligned to units */
} unpack_args;

#endif
