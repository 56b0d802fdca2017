/* SPDX-License-Identifier: MIT
 * cupti.h - durations of kernels, copies and fills as the driver's profiling library records them.
 * Loaded with dlopen where it is found; the few facts of its ABI that are needed are declared in
 * cupti.c, so no header is needed to build. */
#ifndef TEGULA_CUPTI_H
#define TEGULA_CUPTI_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { CUPTI_KERNEL, CUPTI_COPY, CUPTI_FILL } cupti_kind;

typedef struct {
    cupti_kind kind;
    uint64_t start, end;        /* ns */
    uint64_t bytes;             /* of copies and fills */
    char name[40];              /* of kernels, cut */
    uint32_t grid[3], block[3]; /* of kernels */
} cupti_record;

/* Loads it once. NULL if it can be used, else a sentence why not. *version (may be NULL) is what the
 * library says of itself. */
const char *cupti_load(uint32_t *version);

/* Records what is enqueued from here on. False: it refused, cupti_reason() says why. */
bool cupti_start(void);
/* Ends that. The caller has synchronised before. Records in order of their start; valid until the next
 * cupti_start(). */
bool cupti_stop(const cupti_record **records, int *count);
const char *cupti_reason(void);

#endif
