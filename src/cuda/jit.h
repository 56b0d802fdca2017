/* SPDX-License-Identifier: MIT
 * jit.h - from a kernel's name and macros to machine code: embedded source, disk cache, NVRTC. Needs
 * neither driver nor GPU. */
#ifndef TEGULA_JIT_H
#define TEGULA_JIT_H

#include "cuda/cache.h"
#include "cuda/kernel.h"

/* Kernel text, embedded at build time by tools/embed.c. */
typedef struct {
    const char *name;          /* "transpose/transpose", or a header as kernels include it: "device/ptx.cuh" */
    const unsigned char *text; /* ends with a zero byte that `bytes` does not count */
    size_t bytes;
    const int *headers; /* indices of all that it includes, directly or not; ends with -1 */
} tgl_embedded_file;
extern const tgl_embedded_file tgl_embedded[];
extern const int tgl_num_embedded;

/* Machine code. `log` is the compiler's output (registers, spills: the ptxas lines), "" if nothing was
 * compiled. */
typedef struct {
    void *image; /* a cubin; PTX text with its zero byte for "compute_..." */
    size_t bytes;
    char *log;
    bool compiled;       /* by this call; false: found on disk */
    double milliseconds; /* to compile */
} tgl_image;
void tgl_image_free(tgl_image *image);

/* The image of a kernel for an architecture ("sm_90a"): from the disk cache, else compiled and stored there.
 * `may_compile` false: TGL_ERR_CAPTURE instead. */
tgl_status tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out);

/* The same for an image that the driver rejected: compiles again, and then replaces the file in the disk
 * cache. */
tgl_status tgl_jit_rebuild(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out);

/* Both for any source, embedded or not. */
typedef struct {
    const char *name; /* "transpose/transpose" */
    const char *text;
    int num_headers;
    const char *const *header_names, *const *header_texts;
} tgl_source;
enum { TGL_JIT_MAY_COMPILE = 1, TGL_JIT_REBUILD = 2 };
tgl_status tgl_jit_source(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS], const char *architecture,
                          unsigned how, tgl_image *out);

/* Its key in the disk cache, for this version of NVRTC. */
void tgl_jit_key(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS], const char *architecture,
                 int nvrtc_major, int nvrtc_minor, tgl_cache_key *key);

/* "ELEMENT_BYTES=2 VECTOR=8" */
enum { TGL_MACRO_TEXT_BYTES = 768 };
void tgl_macro_text(const tgl_macro macros[TGL_MAX_MACROS], char text[TGL_MACRO_TEXT_BYTES]);

/* What the callback of tgl_set_compile_callback() gets. While `report` is not NULL, a compilation on this thread is written
 * there instead, for another thread to deliver. */
typedef struct {
    bool is_set;
    char kernel[64], macros[TGL_MACRO_TEXT_BYTES], architecture[16];
    double milliseconds;
} tgl_compile_report;
void tgl_jit_keep_report(tgl_compile_report *report);
void tgl_jit_deliver(const tgl_compile_report *report);

/* The architectures of Tegula that this NVRTC can compile for, as "sm_90a". */
tgl_status tgl_jit_architectures(const char *const **names, int *count);

/* What to compile for on a device: sm_80 to sm_89, from 9.0 on with an "a" (sm_90a); if NVRTC does not
 * know the device, PTX ("compute_90") for the newest older one that it knows. TGL_ERR_DEVICE below 8.0.
 * The first asks the NVRTC that is loaded (none: as if it knew every device); the second gets what an
 * NVRTC knows, in ascending order. */
enum { TGL_ARCHITECTURE_BYTES = 16 };
tgl_status tgl_jit_architecture(int major, int minor, char name[TGL_ARCHITECTURE_BYTES]);
void tgl_jit_architecture_given(int major, int minor, const int *known, int num_known,
                                char name[TGL_ARCHITECTURE_BYTES]);

/* Is there an NVRTC that does not compile for this architecture (90 for "sm_90a")? Then `known` says for which it does:
 * "NVRTC 13.0 knows: sm_80, sm_90a". */
enum { TGL_KNOWN_BYTES = 768 };
bool tgl_jit_is_unknown(int number, char known[TGL_KNOWN_BYTES]);

/* 90 for "sm_90a" and "compute_90"; 0 if it is not an architecture. */
int tgl_jit_architecture_number(const char *architecture);

#endif
