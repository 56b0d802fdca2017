/* SPDX-License-Identifier: MIT
 * jit.h - from a kernel's name and macros to machine code: the embedded source, the disk cache, NVRTC.
 * Needs no driver and no GPU. */
#ifndef TEGULA_JIT_H
#define TEGULA_JIT_H

#include "cuda/cache.h"
#include "cuda/launch.h"

/* Kernel text, embedded at build time by tools/embed.c. */
typedef struct {
    const char *name; /* "transpose/transpose", or a header as kernels include it: "device/ptx.cuh" */
    const unsigned char *text;      /* ends with a zero byte that `bytes` does not count */
    size_t bytes;
    const int *headers;             /* indices of all that it includes, directly or not; ends with -1 */
} tgl_embedded_file;
extern const tgl_embedded_file tgl_embedded[];
extern const int tgl_num_embedded;

/* Machine code. `log` holds the compiler's words where the call compiled (registers, spills: ptxas lines),
 * else "". */
typedef struct {
    void *image;                    /* a cubin; PTX text with its zero byte for "compute_..." */
    size_t bytes;
    char *log;
    bool compiled;                  /* by this call: not found on disk */
    double milliseconds;            /* of compiling */
} tgl_image;
void tgl_image_free(tgl_image *image);

/* The image of a kernel for an architecture ("sm_90a"): from the disk cache, else compiled and stored there.
 * `may_compile` false: TGL_ERR_CAPTURE instead. */
tgl_status tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile,
                         tgl_image *out);

/* The same for an image that the driver refused: compiled again, whatever the disk cache has, and stored in its
 * place. What was there stays until then. */
tgl_status tgl_jit_rebuild(const tgl_kernel *kernel, const char *architecture, bool may_compile,
                           tgl_image *out);

/* What both do, for a source that need not be embedded. */
typedef struct {
    const char *name;               /* "transpose/transpose" */
    const char *text;
    int num_headers;
    const char *const *header_names, *const *header_texts;
} tgl_source;
enum { TGL_JIT_MAY_COMPILE = 1, TGL_JIT_REBUILD = 2 };
tgl_status tgl_jit_source(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS],
                          const char *architecture, unsigned how, tgl_image *out);

/* Its name in the disk cache, for an NVRTC of this version. */
void tgl_jit_key(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS], const char *architecture,
                 int nvrtc_major, int nvrtc_minor, tgl_cache_key *key);

/* "ELEMENT_BYTES=2 VECTOR=8" */
enum { TGL_MACRO_TEXT_BYTES = 768 };
void tgl_macro_text(const tgl_macro macros[TGL_MAX_MACROS], char text[TGL_MACRO_TEXT_BYTES]);

/* Architectures that the NVRTC present can compile for, as "sm_90a"; those Tegula names and NVRTC does not
 * know are left out. */
tgl_status tgl_jit_architectures(const char *const **names, int *count);

/* What to compile for on a device: sm_90a, sm_XXa from 10.0 on, plain below; PTX ("compute_90") of the
 * newest older one that NVRTC knows where it does not know the device. TGL_ERR_DEVICE below 8.0. The first
 * asks the NVRTC at hand (none: as if it knew every device), the second is given what an NVRTC knows, in
 * rising order. */
enum { TGL_ARCHITECTURE_BYTES = 16 };
tgl_status tgl_jit_architecture(int major, int minor, char name[TGL_ARCHITECTURE_BYTES]);
void tgl_jit_architecture_given(int major, int minor, const int *known, int num_known,
                                char name[TGL_ARCHITECTURE_BYTES]);

/* 90 for "sm_90a" and "compute_90"; 0 for a word that names no architecture. */
int tgl_jit_architecture_number(const char *architecture);

#endif
