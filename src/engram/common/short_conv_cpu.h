/* SPDX-License-Identifier: MIT
 * short_conv_cpu.h - the loop of short_conv_fwd over a row's columns, which is plain in the op's file, fast in
 * short_conv_fast.c. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_CPU_H
#define TEGULA_ENGRAM_SHORT_CONV_CPU_H

#include "core/cpu.h"
#include "engram/short_conv_fwd.h"

/* One of the rows that a token's result is made of: x with its rstd, or a row of the ring, or nothing: both NULL. */
typedef struct {
    const uint16_t *x, *ring;
    float rstd;
} conv_tap;

/* The results of token t, stream h; of taps, the last is its own row of x. */
TGL_DECLARE_FAST(void, tgl_conv_results, const short_conv_args *p, const conv_tap *taps, int64_t t, int64_t h);

#endif
