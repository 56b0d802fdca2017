/* SPDX-License-Identifier: MIT
 * settings.h - the emulator's settings, all of them, and the injected failures; both libraries have a copy
 * of settings.c.
 *
 *   EMU_SEED     0: threads in order, exact approximations (default). Else: the order of threads and
 *                blocks, the landing of asynchronous copies and the errors of approximations
 *   EMU_FILL     contents of uninitialised memory: ones, zeros, 7f, indices or random (fill.h); by default
 *                it changes from launch to launch, starting with the seed
 *   EMU_STARVE   with a seed: a mask of warps that run only when no other can; 0: some warps, now and then
 *   EMU_DEVICES  number of devices, 0 to 8, default 1
 *   EMU_SMS      SMs of each device, default 4
 *   EMU_ARCH     compute capability, default 90; a list (90,80) gives the devices different ones, the last
 *                for the rest
 *   EMU_CLUSTER  blocks of the largest cluster that a device has room for, default 16
 *   EMU_LAZY     1: launches, fills and copies on the device wait for a synchronisation; default 0
 *   EMU_DRIVER   version that cuDriverGetVersion reports, default 13000; newer entry points are not found
 *   EMU_FAIL     failures to inject, see emu_fail_set
 *   EMU_CXX      the C++ compiler, and flags, for kernels; default the one the emulator was built with. Under
 *                a sanitizer it must be the compiler of the program
 *   EMU_OPT      its optimisation and debug flags, default "-Og -finline-functions-called-once -g1", for clang
 *                "-O0 -g1"
 *   EMU_NVRTC    N: NVRTC says that it is 13.N, a real version, as a cache that is used without NVRTC wants it; use a
 *                folder of its own for it
 *   EMU_WEAK     1: weak memory between blocks (weak.c), with a seed and without a sanitizer
 *   EMU_CACHE    a folder where compiled kernels stay, and from where they are taken without compiling: for tests that
 *                compile anew whatever Tegula's own cache has
 *   EMU_KEEP     a folder where the sources of compiled kernels stay, for a debugger
 *
 * The first call of an entry point reads them, except for the last six, which nvrtcCompileProgram and
 * nvrtcVersion read. */
#ifndef EMU_SETTINGS_H
#define EMU_SETTINGS_H

#include <stdint.h>

enum { EMU_MAX_DEVICES = 8 };

typedef struct {
    uint64_t seed;
    uint32_t starve;
    int fill;
    int devices, sms, cluster, lazy, driver;
    int arch[EMU_MAX_DEVICES];
} emu_settings;

emu_settings emu_read_settings(void);
const char *emu_text_setting(const char *name, const char *otherwise); /* "" counts as not set */

/* Failures to inject: a comma-separated list of NAME[:N[+]][=ERROR]. The N-th call (default 1) of the entry
 * point NAME fails with ERROR; with a plus all later ones do, too. NAME has no version suffix; the name
 * "kernel" stands for running a kernel, whose failure shows at the next synchronisation, as a fault does.
 * ERROR is a number or a name such as OUT_OF_MEMORY; without it the failure is the likely one: out of
 * memory where memory is taken, no device at cuInit, a compile error in nvrtcCompileProgram, launch failure
 * at a launch, else "unknown error". Counting starts anew with each call of emu_fail_set.
 *
 *     EMU_FAIL="cuMemAlloc:2,nvrtcCompileProgram=COMPILATION"
 *
 * -> NULL, or where the list cannot be read. */
const char *emu_fail_set(const char *list);

/* Counts a call of an entry point (a version suffix is dropped) -> the failure to return, or 0. Not
 * thread-safe. */
int emu_fail(const char *entry);
uint64_t emu_fail_calls(const char *entry); /* counted so far, since the start or emu_calls_reset */
void emu_calls_reset(void);

int emu_error_number(const char *name); /* of OUT_OF_MEMORY; -1 */
const char *emu_error_name(int error);  /* "CUDA_ERROR_OUT_OF_MEMORY"; NULL */
const char *emu_error_text(int error);  /* "out of memory"; NULL */

#endif
