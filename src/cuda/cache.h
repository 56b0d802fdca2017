/* SPDX-License-Identifier: MIT
 * cache.h - compiled kernels on disk. One file per kernel, named by the hash of everything that the image
 * depends on: magic, key, length, checksum, image. Anything wrong with a file or folder is a miss; never
 * an error, never wrong code. docs/jit-and-cache.md has the rules. */
#ifndef TEGULA_CACHE_H
#define TEGULA_CACHE_H

#include "core/settings.h"
#include "core/status.h"

typedef struct { uint8_t bytes[32]; } tgl_cache_key; /* SHA-256 */

/* Reads into malloc'd memory; false is a miss. Looks in TEGULA_CACHE_READONLY first, then in the folder of
 * tgl_get_cache_dir(). */
bool tgl_cache_get(const tgl_cache_key *key, void **image, size_t *bytes);
bool tgl_cache_get_readonly(const tgl_cache_key *key, void **image, size_t *bytes); /* the first of them alone */

/* After a miss, for the message: the folders that were searched, and what is wrong with them or with their
 * file of `key` (may be NULL). */
enum { TGL_CACHE_TEXT_BYTES = 700 };
void tgl_cache_explain(const tgl_cache_key *key, char text[TGL_CACHE_TEXT_BYTES]);

/* Writes a private temporary file and renames it; also removes old temporary files of writers that were
 * killed. False if nothing was stored. */
bool tgl_cache_put(const tgl_cache_key *key, const void *image, size_t bytes);

/* How many files this process failed to store, and the first: "folder/name: why" (NULL: none). Without a
 * folder nothing fails. */
int tgl_cache_failures(const char **first);

/* The file name of a key: "<64 hexadecimal digits>.tgl". */
enum { TGL_CACHE_NAME_BYTES = 69 };
void tgl_cache_name(const tgl_cache_key *key, char name[TGL_CACHE_NAME_BYTES]);

/* For `tegula info`: the folder in use (or "" and the reason), files, bytes. */
typedef struct {
    char folder[TGL_PATH_BYTES];
    char reason[600];
    int64_t files, bytes;
} tgl_cache_info;
void tgl_cache_describe(tgl_cache_info *info);

/* The same for TEGULA_CACHE_READONLY; false if it is not set. */
bool tgl_cache_describe_readonly(tgl_cache_info *info);

/* Removes the least recently used files until at most `bytes` are left, and old temporary files. */
tgl_status tgl_cache_prune(int64_t bytes, int64_t *removed_files, int64_t *removed_bytes);

#endif
