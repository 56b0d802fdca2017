/* SPDX-License-Identifier: MIT
 * grid.h - runs one grid, for the emulated driver. */
#ifndef EMU_GRID_H
#define EMU_GRID_H

#include <stddef.h>
#include <stdint.h>

#include "emulator.h"

typedef struct {
    const emu_entry *entry;
    emu_dim grid, block, cluster; /* cluster: 1 1 1 if none */
    size_t dynamic_bytes;
    int cooperative, pdl, has_cluster, device;
    void **args;
} emu_launch;

enum { EMU_STATIC_SHARED = 48 << 10, EMU_REPORT_BYTES = 8192 };

extern emu_runtime emu_rt;
extern uint32_t emu_starve;               /* EMU_STARVE */
extern char emu_report[EMU_REPORT_BYTES]; /* of the last fault */
extern struct emu_stats {
    uint64_t launches, threads, switches, faults;
    double seconds;
} emu_stats;

/* What follows depends on the seed and on nothing that ran before it. */
void emu_set_seed(uint64_t seed);
extern uint64_t emu_launches_of_seed; /* since it was set */

extern uint64_t emu_pdl_waits; /* threads of the launch that came to pdl_wait */

/* 0, or nonzero after a fault; the report is on stderr and in emu_report. One at a time: the driver holds
 * its lock. */
int emu_run(const emu_launch *launch);

/* memory.c */
int emu_is_global(const void *p);           /* device memory, or the host's that a kernel may use */
void emu_open_memory(int device, int open); /* ASan: only what runs now may be touched */

/* For a fault that is found outside a running kernel: the same kind of report. */
void emu_report_text(const char *kind, const char *kernel, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
