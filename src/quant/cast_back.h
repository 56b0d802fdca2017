/* SPDX-License-Identifier: MIT
 * cast_back.h - what the kernel of cast_back and the code that launches it share. */
#ifndef TEGULA_QUANT_CAST_BACK_H
#define TEGULA_QUANT_CAST_BACK_H

#include "quant/common/strip.h"

/* Columns of a unit: 16 bytes of out or, unaligned, the fewest whose codes can be read alone. */
#define CAST_BACK_VALUES(out_bytes) (16 / (out_bytes))
#define CAST_BACK_FEW(format, out_bytes) \
    ((format) == TGL_FORMAT_E4M3 ? 1 : (format) == TGL_FORMAT_E2M1 ? 2 : CAST_BACK_VALUES(out_bytes))

typedef struct {
    const uint8_t *x;
    int64_t row_bytes; /* row stride of x */
    tgl_sf sf;
    uint8_t *out;
    tgl_strip strip;
    int32_t is_vector; /* units are vectors; always in cast_back.cu */
} cast_back_args;

#endif
