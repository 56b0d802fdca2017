/* SPDX-License-Identifier: MIT
 * recording_nvrtc.c - a libnvrtc of the version in TEGULA_TEST_NVRTC ("12.8"), which compiles nothing: its log is
 * the list of options, a line each. If TEGULA_TEST_MEET is set, a compilation fails unless as many are under way at some
 * time. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))

typedef struct { char log[4096]; } record;

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
    return (*program = calloc(1, sizeof(record))) ? 0 : 1;
}
int nvrtcDestroyProgram(void **program) { return free(*program), *program = NULL, 0; }

static int meet(void) /* waits for others at most 20 s */
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
    static int num_here;
    const char *text = getenv("TEGULA_TEST_MEET");
    const int want = text ? atoi(text) : 0;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    int result = 0;
    pthread_mutex_lock(&lock);
    num_here++;
    pthread_cond_broadcast(&arrived);
    while (num_here < want && !result) result = pthread_cond_timedwait(&arrived, &lock, &until);
    pthread_mutex_unlock(&lock);
    return result ? 6 : 0; /* NVRTC_ERROR_COMPILATION */
}
int nvrtcCompileProgram(void *program, int num_options, const char *const *options)
{
    record *r = program;
    size_t n = 0;
    for (int i = 0; i < num_options && n < sizeof r->log; i++)
        n += (size_t)snprintf(r->log + n, sizeof r->log - n, "%s\n", options[i]);
    return meet();
}
int nvrtcGetProgramLogSize(void *program, size_t *bytes) { return *bytes = strlen(((record *)program)->log) + 1, 0; }
int nvrtcGetProgramLog(void *program, char *log) { return strcpy(log, ((record *)program)->log), 0; }
int nvrtcGetCUBINSize(void *program, size_t *bytes) { return *bytes = 4, 0; }
int nvrtcGetCUBIN(void *program, char *image) { return memcpy(image, "code", 4), 0; }
