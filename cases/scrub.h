/* SPDX-License-Identifier: MIT
 * scrub.h - unwritten memory holds other values in every call: `tegula check --scrub`.
 *
 * A kernel that reads shared memory before it writes it sees what an earlier block left there, and is right
 * as long as that happens to be harmless. While scrubbing, case_check() calls an op once per pattern. Before
 * every launch a kernel overwrites the shared memory of all SMs with the pattern, and outputs, gaps and
 * guards hold it too. Registers cannot be scrubbed: a kernel can only write its own. The emulated device
 * fills shared memory when a block begins (EMU_SEED), so nothing is launched there, nor during a capture. */
#ifndef TEGULA_SCRUB_H
#define TEGULA_SCRUB_H

#include "tegula/core.h"

typedef enum {
    SCRUB_ONES,
    SCRUB_ZEROS,
    SCRUB_LARGE,   /* 0x7f7f7f7f: large, and positive, as an index and as a float */
    SCRUB_INDICES, /* 0..63, in 32 or in 64 bits: as an index, often a valid one */
    SCRUB_RANDOM,
    SCRUB_PATTERNS
} scrub_pattern;

extern const char *const scrub_names[SCRUB_PATTERNS];

/* For the whole process; off at first. */
void scrub_set(bool on);
bool scrub_is_on(void);

/* The pattern of the launches from now on. */
void scrub_choose(scrub_pattern pattern);

/* Byte b of an allocation that is filled with a pattern. */
unsigned char scrub_byte(scrub_pattern pattern, int64_t b);

/* Called before every launch (by the linker's --wrap of tgl_launch): while scrubbing, overwrites the shared
 * memory of all SMs of a device, in stream order. */
tgl_status scrub_shared_memory(int device, tgl_stream stream);

/* The same whether scrubbing is on or not, and on the emulated device too. */
tgl_status scrub_launch(int device, tgl_stream stream, scrub_pattern pattern);

#endif
