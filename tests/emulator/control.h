/* SPDX-License-Identifier: MIT
 * control.h - what tests can ask of the emulated libraries beyond CUDA. The functions are found with dlsym
 * in the library that TEGULA_LIBCUDA names; a real driver has none of them. libnvrtc_emulated.so has its
 * own emuFail and emuCalls. */
#ifndef EMU_CONTROL_H
#define EMU_CONTROL_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t grid[3], block[3], cluster[3]; /* cluster 1 1 1: none */
    uint32_t dynamic_bytes;
    int cooperative, pdl, device;
    char kernel[128];
} emu_last_launch;

typedef struct { int allocations, host_allocations, libraries, streams, events, graphs; } emu_live_objects;
typedef struct {
    uint64_t launches, threads, switches, faults;
    double seconds;
} emu_statistics;

typedef const char *(*emuFail_function)(const char *list); /* settings.h, emu_fail_set; NULL or "": none */
typedef uint64_t (*emuCalls_function)(const char *entry);  /* how often "cuLaunchKernelEx" was called */
typedef void (*emuResetCalls_function)(void);
typedef const char *(*emuLastReport_function)(void); /* of the last fault; "" */
typedef void (*emuReset_function)(void);         /* contexts with a sticky error work again; the report is cleared */
typedef void (*emuSeed_function)(uint64_t seed); /* as EMU_SEED, counting launches anew */
typedef void (*emuStats_function)(emu_statistics *out);
typedef void (*emuLive_function)(emu_live_objects *out); /* to compare before and after */
/* Makes the test's own memory page-locked memory; 0 bytes: not any more. For ranges larger than any machine's memory,
 * of which a few pages are touched. -> 0: failed */
typedef int (*emuAdopt_function)(void *p, size_t bytes);
typedef void (*emuWhere_function)(void);   /* for a debugger: where threads are, on stderr */
typedef void (*emuInherit_function)(void); /* a child without threads goes on with its parent's device */
typedef int (*emuLastLaunch_function)(emu_last_launch *out); /* 0: there was none */

#endif
