/* SPDX-License-Identifier: MIT
 * nvrtc.h - libnvrtc behind dlopen. */
#ifndef TEGULA_NVRTC_H
#define TEGULA_NVRTC_H

#include "core/status.h"

typedef struct tgl_nvrtc_table tgl_nvrtc_table;     /* entry points; declared in full by the owner of nvrtc.c */

/* Finds and loads it, once: TEGULA_LIBNVRTC, one already in the process, the nvidia wheels beside the running Python, the loader's path, the toolkit's
 * folder. One whose major version exceeds the driver's is skipped (where there is a driver). */
tgl_status tgl_nvrtc(const tgl_nvrtc_table **table);

/* For `tegula info` and the cache key. The path is the file that was loaded. */
tgl_status tgl_nvrtc_version(int *major, int *minor, const char **path);

#endif
