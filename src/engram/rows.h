/* SPDX-License-Identifier: MIT
 * rows.h - what the kernel of rows and the code that launches it agree on. */
#ifndef TEGULA_ENGRAM_ROWS_H
#define TEGULA_ENGRAM_ROWS_H

#include "engram/common/windows.h"

typedef struct {
    tgl_columns columns;
    tgl_windows windows;
    int32_t more_tokens; /* a tile has also those of its last request that read the ring before it is written */
} rows_args;

#endif
