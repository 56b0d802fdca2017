/* SPDX-License-Identifier: MIT
 * lookup_bwd_cpu.h - the loop of lookup_bwd over rows, which is plain in the op's file, fast in lookup_bwd_fast.c. */
#ifndef TEGULA_ENGRAM_LOOKUP_BWD_CPU_H
#define TEGULA_ENGRAM_LOOKUP_BWD_CPU_H

#include <stdbool.h>

#include "core/cpu.h"
#include "engram/lookup_bwd.h"

typedef struct {
    uint64_t row;
    int64_t position;
} lookup_occurrence;

typedef struct {
    const lookup_bwd_args *p;
    const lookup_occurrence *sorted;
    const int64_t *begin; /* of each row, and of what is not owned */
} lookup_rows;

/* The element of grad_out at column 0 of a position. */
static inline int64_t lookup_gradient_of(const lookup_bwd_args *p, int64_t position)
{
    return position / p->num_columns * p->grad_token_stride + position % p->num_columns * p->grad_column_stride;
}

/* Sums of rows begin .. end - 1 of those that occur. */
TGL_DECLARE_FAST(void, tgl_lookup_sums, const lookup_rows *r, int64_t begin, int64_t end, bool is_bf16);

#endif
