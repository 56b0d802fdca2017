/* SPDX-License-Identifier: MIT
 * cache.h - compiled kernels on disk. One file per kernel; its name is the hash of everything the image depends on; contents are magic, key, length,
 * checksum, image. Whatever is wrong with a file or a folder is a miss, never an error and never another's code. */
#ifndef TEGULA_CACHE_H
#define TEGULA_CACHE_H

#include "core/status.h"

typedef struct { uint8_t bytes[32]; } tgl_cache_key;    /* SHA-256 */

/* Reads into malloc'd memory; false is a miss. Looks in TEGULA_CACHE_READONLY first, then in the folder of tgl_get_cache_dir(). */
bool tgl_cache_get(const tgl_cache_key *key, void **image, size_t *bytes);

/* Writes a private temporary file and renames it. Best effort. */
void tgl_cache_put(const tgl_cache_key *key, const void *image, size_t bytes);

/* For `tegula info`: the folder in use ("" and the reason why where there is none), files, bytes. */
typedef struct { char folder[4096]; char reason[256]; int64_t files, bytes; } tgl_cache_info;
void tgl_cache_describe(tgl_cache_info *info);

/* Removes the files used longest ago until at most `bytes` are left; also old temporary files. Gives what was removed. */
tgl_status tgl_cache_prune(int64_t bytes, int64_t *removed_files, int64_t *removed_bytes);

#endif
