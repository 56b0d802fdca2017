/* SPDX-License-Identifier: MIT
 * hash.h - what the kernel of hash and the code that launches it agree on. */
#ifndef TEGULA_ENGRAM_HASH_H
#define TEGULA_ENGRAM_HASH_H

#include "engram/common/columns.h"

typedef struct {
    tgl_columns columns;
    const void *ngram_token_ids;
    const uint8_t *image_token_mask; /* NULL: none */
    int64_t id_stride;               /* between windows */
    int32_t id_bytes;
} hash_args;

#endif
