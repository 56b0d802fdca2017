/* SPDX-License-Identifier: MIT
 * rows.h - what the kernel of rows and the code that launches it agree on. */
#ifndef TEGULA_ENGRAM_ROWS_H
#define TEGULA_ENGRAM_ROWS_H

#include "engram/common/windows.h"

/* Lanes that have a window of one request without a past: a power of two. */
#define ROW_LANES(max_ngram) ((max_ngram) <= 2 ? 2 : (max_ngram) <= 4 ? 4 : 8)

typedef struct {
    tgl_columns columns;
    tgl_windows windows;
    int32_t has_lanes;   /* one request without a past, few tokens for a block: lanes share a window */
    int32_t more_tokens; /* a tile has also those of its last request that read the ring before it is written */
} rows_args;

#endif
