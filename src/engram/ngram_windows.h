/* SPDX-License-Identifier: MIT
 * ngram_windows.h - what the kernel of ngram_windows and the code that launches it agree on. */
#ifndef TEGULA_ENGRAM_NGRAM_WINDOWS_H
#define TEGULA_ENGRAM_NGRAM_WINDOWS_H

#include "engram/common/windows.h"

#define WINDOW_THREADS 256

typedef struct {
    tgl_windows windows;
    void *out;
    int64_t out_stride;             /* between windows */
    int32_t out_bytes, tile_tokens; /* of a block, at most WINDOW_THREADS */
} ngram_windows_args;

#endif
