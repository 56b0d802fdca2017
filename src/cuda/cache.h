/* SPDX-License-Identifier: MIT
 * cache.h - compiled kernels on disk. One file per kernel; its name is the hash of everything the image
 * depends on; contents are magic, key, length, checksum, image. Whatever is wrong with a file or a folder
 * is a miss, never an error and never another's code. docs/jit-and-cache.md has the rules. */
#ifndef TEGULA_CACHE_H
#define TEGULA_CACHE_H

#include "core/settings.h"
#include "core/status.h"

typedef struct { uint8_t bytes[32]; } tgl_cache_key;    /* SHA-256 */

/* Reads into malloc'd memory; false is a miss. Looks in TEGULA_CACHE_READONLY first, then in the folder of
 * tgl_get_cache_dir(). */
bool tgl_cache_get(const tgl_cache_key *key, void **image, size_t *bytes);

/* After a miss, for the message: the folders that were looked into and what is wrong with any of them, or with
 * its file of `key` (may be NULL). */
enum { TGL_CACHE_TEXT_BYTES = 700 };
void tgl_cache_explain(const tgl_cache_key *key, char text[TGL_CACHE_TEXT_BYTES]);

/* Writes a private temporary file and renames it; also removes temporary files that writers who are long gone have
 * left. Best effort: false where nothing was stored. */
bool tgl_cache_put(const tgl_cache_key *key, const void *image, size_t bytes);

/* How many files this process wanted to store and could not, and the first one: "folder/name: why" (NULL: all
 * is well). Where no folder is wanted, nothing fails. */
int tgl_cache_failures(const char **first);

/* "<64 hexadecimal digits>.tgl", the file of a key. */
enum { TGL_CACHE_NAME_BYTES = 69 };
void tgl_cache_name(const tgl_cache_key *key, char name[TGL_CACHE_NAME_BYTES]);

/* For `tegula info`: the folder in use ("" and the reason why where there is none), files, bytes. */
typedef struct {
    char folder[TGL_PATH_BYTES];
    char reason[600];
    int64_t files, bytes;
} tgl_cache_info;
void tgl_cache_describe(tgl_cache_info *info);

/* The same for TEGULA_CACHE_READONLY; false where it is not set. */
bool tgl_cache_describe_readonly(tgl_cache_info *info);

/* Removes the files used longest ago until at most `bytes` are left; also old temporary files. Gives what
 * was removed. */
tgl_status tgl_cache_prune(int64_t bytes, int64_t *removed_files, int64_t *removed_bytes);

#endif
