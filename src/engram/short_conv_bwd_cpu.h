/* SPDX-License-Identifier: MIT
 * short_conv_bwd_cpu.h - the loop of short_conv_bwd over a row's columns, which is plain in the op's file, fast in
 * short_conv_bwd_fast.c. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_BWD_CPU_H
#define TEGULA_ENGRAM_SHORT_CONV_BWD_CPU_H

#include "core/cpu.h"
#include "engram/short_conv_bwd.h"

typedef struct { int64_t begin, end; } conv_chunk; /* the tokens of a request */

static inline bool conv_is_part(const short_conv_bwd_args *p, conv_chunk of, int64_t t)
{
    const uint8_t *mask = p->requests.image_token_mask;
    return t >= of.begin && t < of.end && !(mask && mask[t]);
}

/* Gradients of token t, stream h, which is part of the request; adds to the sums of a partial. The fast loop has up to
 * CONV_FAST_TAPS taps. */
#define CONV_FAST_TAPS 8
TGL_DECLARE_FAST(void, tgl_conv_gradients, const short_conv_bwd_args *p, int64_t partial, conv_chunk of, int64_t t,
                 int64_t h);

#endif
