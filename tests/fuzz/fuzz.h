/* SPDX-License-Identifier: MIT
 * fuzz.h - what fuzz targets share: numbers from bytes, and a check that ends the program. A target is a file
 * with LLVMFuzzerTestOneInput(), which libFuzzer or the tests of test_fuzz.h call. */
#ifndef TEGULA_FUZZ_H
#define TEGULA_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tegula/core.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INSIST(condition)                                                           \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            fprintf(stderr, "last error: %s\n", tgl_last_error());                  \
            abort();                                                                \
        }                                                                           \
    } while (0)

/* Past the end all bytes are 0. */
typedef struct { const uint8_t *at, *end; } bytes;
static inline unsigned take(bytes *b) { return b->at < b->end ? *b->at++ : 0; }

static inline uint64_t take_word(bytes *b)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word = word << 8 | take(b);
    return word;
}

#endif
