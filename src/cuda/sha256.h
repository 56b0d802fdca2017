/* SPDX-License-Identifier: MIT
 * sha256.h - SHA-256 as FIPS 180-4 defines it; names and checks the files of the kernel cache. */
#ifndef TEGULA_SHA256_H
#define TEGULA_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t state[8];
    uint64_t bytes;    /* taken so far */
    uint8_t block[64]; /* the last bytes % 64 of them */
} tgl_sha256;

void tgl_sha256_begin(tgl_sha256 *hash);
void tgl_sha256_add(tgl_sha256 *hash, const void *data, size_t bytes);
void tgl_sha256_end(tgl_sha256 *hash, uint8_t digest[32]);

#endif
