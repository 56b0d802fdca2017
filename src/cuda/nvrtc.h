/* SPDX-License-Identifier: MIT
 * nvrtc.h - libnvrtc behind dlopen. */
#ifndef TEGULA_NVRTC_H
#define TEGULA_NVRTC_H

#include "core/settings.h"
#include "core/status.h"

typedef int tgl_nvrtc_result; /* nvrtcResult */
typedef struct _nvrtcProgram *tgl_nvrtc_program;

/* X(name, parameters): the symbols are nvrtc<name>. */
#define TGL_NVRTC_ENTRIES(X)                                                                             \
    X(Version, (int *major, int *minor))                                                                 \
    X(GetNumSupportedArchs, (int *count))                                                                \
    X(GetSupportedArchs, (int *archs))                                                                   \
    X(CreateProgram, (tgl_nvrtc_program *program, const char *source, const char *name, int num_headers, \
                      const char *const *headers, const char *const *header_names))                      \
    X(DestroyProgram, (tgl_nvrtc_program *program))                                                      \
    X(CompileProgram, (tgl_nvrtc_program program, int num_options, const char *const *options))          \
    X(GetProgramLogSize, (tgl_nvrtc_program program, size_t *bytes))                                     \
    X(GetProgramLog, (tgl_nvrtc_program program, char *log))                                             \
    X(GetCUBINSize, (tgl_nvrtc_program program, size_t *bytes))                                          \
    X(GetCUBIN, (tgl_nvrtc_program program, char *image))                                                \
    X(GetPTXSize, (tgl_nvrtc_program program, size_t *bytes))                                            \
    X(GetPTX, (tgl_nvrtc_program program, char *image))

enum { TGL_MAX_KNOWN_ARCHS = 64 };
typedef struct {
    int major, minor;                          /* of NVRTC */
    char path[TGL_PATH_BYTES];                 /* the file that was loaded */
    int archs[TGL_MAX_KNOWN_ARCHS], num_archs; /* what it compiles for: 80, 90, ..., ascending */
    const char *(*GetErrorString)(tgl_nvrtc_result result);
#define TGL_NVRTC_FIELD(name, parameters) tgl_nvrtc_result(*name) parameters;
    TGL_NVRTC_ENTRIES(TGL_NVRTC_FIELD)
#undef TGL_NVRTC_FIELD
} tgl_nvrtc_table;

/* Finds and loads it, once: TEGULA_LIBNVRTC, one already loaded, NVIDIA's wheels beside the running
 * Python, the loader's path, the toolkit's folder. One with a newer major version than the driver's is
 * skipped, unless TEGULA_LIBNVRTC names it. TGL_ERR_COMPILE, on every call, if there is none. */
tgl_status tgl_nvrtc(const tgl_nvrtc_table **table);

/* The same without a message: NULL if there is none. */
const tgl_nvrtc_table *tgl_nvrtc_or_null(void);

/* For `tegula info`. The path is the file that was loaded. */
tgl_status tgl_nvrtc_version(int *major, int *minor, const char **path);

#endif
