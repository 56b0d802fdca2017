/* SPDX-License-Identifier: MIT
 * recording_nvrtc.c - a libnvrtc of the version in TEGULA_TEST_NVRTC ("12.8"), which compiles nothing: its log is
 * the list of options, a line each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

static char log_text[4096];

API int nvrtcVersion(int *major, int *minor);
API const char *nvrtcGetErrorString(int result);
API int nvrtcGetNumSupportedArchs(int *count);
API int nvrtcGetSupportedArchs(int *archs);
API int nvrtcCreateProgram(void **program, const char *source, const char *name, int num_headers,
                           const char *const *headers, const char *const *names);
API int nvrtcDestroyProgram(void **program);
API int nvrtcCompileProgram(void *program, int num_options, const char *const *options);
API int nvrtcGetProgramLogSize(void *program, size_t *bytes);
API int nvrtcGetProgramLog(void *program, char *log);
API int nvrtcGetCUBINSize(void *program, size_t *bytes);
API int nvrtcGetCUBIN(void *program, char *image);

int nvrtcVersion(int *major, int *minor)
{
    return sscanf(getenv("TEGULA_TEST_NVRTC"), "%d.%d", major, minor) == 2 ? 0 : 1;
}
const char *nvrtcGetErrorString(int result) { return result ? "failed" : "NVRTC_SUCCESS"; }
int nvrtcGetNumSupportedArchs(int *count) { return *count = 1, 0; }
int nvrtcGetSupportedArchs(int *archs) { return *archs = 90, 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int num_headers,
                       const char *const *headers, const char *const *names)
{
    *program = log_text;
    return 0;
}
int nvrtcDestroyProgram(void **program) { return *program = NULL, 0; }
int nvrtcCompileProgram(void *program, int num_options, const char *const *options)
{
    size_t n = 0;
    for (int i = 0; i < num_options && n < sizeof log_text; i++)
        n += (size_t)snprintf(log_text + n, sizeof log_text - n, "%s\n", options[i]);
    return 0;
}
int nvrtcGetProgramLogSize(void *program, size_t *bytes) { return *bytes = strlen(log_text) + 1, 0; }
int nvrtcGetProgramLog(void *program, char *log) { return strcpy(log, log_text), 0; }
int nvrtcGetCUBINSize(void *program, size_t *bytes) { return *bytes = 4, 0; }
int nvrtcGetCUBIN(void *program, char *image) { return memcpy(image, "code", 4), 0; }
