/* SPDX-License-Identifier: MIT
 * jit.h - from a kernel's name and macros to machine code: the embedded source, the disk cache, NVRTC. Needs no driver and no GPU. */
#ifndef TEGULA_JIT_H
#define TEGULA_JIT_H

#include "cuda/launch.h"

/* Kernel text, embedded at build time by tools/embed.c. */
typedef struct {
    const char *name;               /* "transpose/transpose", or a header as kernels include it: "device/ptx.cuh", "numerics/e4m3.h" */
    const unsigned char *text;      /* ends with a zero byte that `bytes` does not count */
    size_t bytes;
    const int *headers;             /* indices into tgl_embedded of the headers it includes, directly or not; ends with -1 */
} tgl_embedded_file;
extern const tgl_embedded_file tgl_embedded[];
extern const int tgl_num_embedded;

/* Machine code. `text` holds the compiler's log where the call compiled (registers, spills: ptxas lines), else "". */
typedef struct {
    void *image;
    size_t bytes;
    char *log;
    bool compiled;                  /* by this call: not found on disk */
    double milliseconds;            /* of compiling */
} tgl_image;
void tgl_image_free(tgl_image *image);

/* The image of a kernel for an architecture ("sm_90a"): from the disk cache, else compiled and stored there. `may_compile` false: TGL_ERR_CAPTURE instead. */
tgl_status tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out);

/* Architectures that the NVRTC present can compile for, as "sm_90a"; those Tegula names and NVRTC does not know are left out. */
tgl_status tgl_jit_architectures(const char *const **names, int *count);

#endif
