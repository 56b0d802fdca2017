/* SPDX-License-Identifier: MIT
 * cast_back.h - what the kernel of cast_back and the code that launches it share. */
#ifndef TEGULA_QUANT_CAST_BACK_H
#define TEGULA_QUANT_CAST_BACK_H

/* Columns of a unit: 16 bytes of out; where that is not aligned, the fewest whose codes can be read alone. */
#define CAST_BACK_VALUES(out_bytes) (16 / (out_bytes))
#define CAST_BACK_FEW(format, out_bytes) \
    ((format) == TGL_FORMAT_E4M3 ? 1 : (format) == TGL_FORMAT_E2M1 ? 2 : CAST_BACK_VALUES(out_bytes))

#endif
