/* SPDX-License-Identifier: MIT
 * host.h - what the emulator's own tests need of a driver: found, compiled, launched with no help from the
 * library under test, so that a fault in src/cuda is not taken for one of the emulator.
 *
 * With TEGULA_LIBCUDA=libcuda.so.1 and TEGULA_LIBNVRTC=libnvrtc.so.13 the programs run on a GPU instead,
 * which shows that what they expect of a built-in is what a device does. */
#ifndef EMU_HOST_H
#define EMU_HOST_H

#include <dlfcn.h>
#include <stdlib.h>

#include "../test.h"
#include "control.h"

typedef uint64_t dptr;
typedef struct {
    uint32_t id;
    char pad[4];
    union {
        char bytes[64];
        int value;
        uint32_t dim[3];
    } value;
} attribute;
typedef struct {
    uint32_t grid[3], block[3], shared;
    void *stream;
    attribute *attributes;
    uint32_t num_attributes;
} launch_config;

/* X(name, parameters): the entry points the tests use */
// clang-format off: lists of functions
#define DRIVER_CALLS(X)                                                                              \
    X(Init, (unsigned)) X(DriverGetVersion, (int *)) X(DeviceGetCount, (int *))                      \
    X(DeviceGet, (int *, int)) X(DeviceGetName, (char *, int, int))                                  \
    X(DeviceGetAttribute, (int *, int, int)) X(DevicePrimaryCtxRetain, (void **, int))               \
    X(DevicePrimaryCtxRelease, (int)) X(CtxCreate, (void **, unsigned, int)) X(CtxDestroy, (void *)) \
    X(CtxSetCurrent, (void *)) X(CtxGetCurrent, (void **)) X(CtxPushCurrent, (void *))               \
    X(CtxPopCurrent, (void **)) X(CtxGetDevice, (int *)) X(CtxSynchronize, (void))                   \
    X(MemAlloc, (dptr *, size_t)) X(MemFree, (dptr)) X(MemHostAlloc, (void **, size_t, unsigned))    \
    X(MemFreeHost, (void *)) X(MemGetInfo, (size_t *, size_t *))                                     \
    X(MemHostRegister, (void *, size_t, unsigned)) X(MemHostUnregister, (void *))                    \
    X(MemcpyHtoD, (dptr, const void *, size_t)) X(MemcpyDtoH, (void *, dptr, size_t))                \
    X(MemcpyDtoD, (dptr, dptr, size_t)) X(MemsetD8, (dptr, unsigned char, size_t))                   \
    X(MemsetD32Async, (dptr, unsigned, size_t, void *))                                              \
    X(MemcpyDtoDAsync, (dptr, dptr, size_t, void *)) X(PointerGetAttribute, (void *, int, dptr))     \
    X(PointerGetAttributes, (unsigned, int *, void **, dptr))                                        \
    X(LibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned))  \
    X(LibraryUnload, (void *)) X(LibraryGetKernel, (void **, void *, const char *))                  \
    X(KernelGetFunction, (void **, void *)) X(FuncSetAttribute, (void *, int, int))                  \
    X(FuncGetAttribute, (int *, int, void *)) X(KernelSetAttribute, (int, int, void *, int))         \
    X(KernelGetAttribute, (int *, int, void *, int))                                                 \
    X(LaunchKernelEx, (const launch_config *, void *, void **, void **))                             \
    X(OccupancyMaxActiveBlocksPerMultiprocessor, (int *, void *, int, size_t))                       \
    X(OccupancyMaxActiveClusters, (int *, void *, const launch_config *))                            \
    X(StreamCreate, (void **, unsigned)) X(StreamDestroy, (void *)) X(StreamSynchronize, (void *))   \
    X(StreamGetCtx, (void *, void **)) X(StreamIsCapturing, (void *, int *))                         \
    X(StreamBeginCapture, (void *, int)) X(StreamEndCapture, (void *, void **))                      \
    X(StreamWaitEvent, (void *, void *, unsigned)) X(StreamGetId, (void *, uint64_t *))              \
    X(CtxGetId, (void *, uint64_t *)) X(GraphRetainUserObject, (void *, void *, unsigned, unsigned)) \
    X(UserObjectCreate, (void **, void *, void (*)(void *), unsigned, unsigned))                     \
    X(UserObjectRelease, (void *, unsigned))                                                         \
    X(StreamGetCaptureInfo, (void *, int *, uint64_t *, void **, void *, size_t *))                  \
    X(ThreadExchangeStreamCaptureMode, (int *)) X(EventCreate, (void **, unsigned))                  \
    X(EventDestroy, (void *)) X(EventRecord, (void *, void *)) X(EventSynchronize, (void *))         \
    X(EventElapsedTime, (float *, void *, void *))                                                   \
    X(GraphInstantiate, (void **, void *, unsigned long long)) X(GraphLaunch, (void *, void *))      \
    X(GraphExecDestroy, (void *)) X(GraphDestroy, (void *)) X(GetErrorName, (int, const char **))    \
    X(GetErrorString, (int, const char **))                                                          \
    X(TensorMapEncodeTiled, (void *, int, unsigned, void *, const uint64_t *, const uint64_t *,      \
                             const uint32_t *, const uint32_t *, int, int, int, int))
#define NVRTC_CALLS(X)                                                                               \
    X(Version, (int *, int *)) X(DestroyProgram, (void **)) X(GetProgramLogSize, (void *, size_t *)) \
    X(CreateProgram, (void **, const char *, const char *, int, const char *const *,                 \
                      const char *const *))                                                          \
    X(CompileProgram, (void *, int, const char *const *)) X(GetProgramLog, (void *, char *))         \
    X(GetCUBINSize, (void *, size_t *)) X(GetCUBIN, (void *, char *))                                \
    X(GetPTXSize, (void *, size_t *)) X(GetPTX, (void *, char *)) X(GetNumSupportedArchs, (int *))   \
    X(GetSupportedArchs, (int *))
#define FIELD(name, parameters) int (*name) parameters;
static struct { DRIVER_CALLS(FIELD) } cu;
static struct { NVRTC_CALLS(FIELD) } nv;
// clang-format on
static struct { /* NULL on a GPU */
    emuFail_function Fail, NvrtcFail;
    emuCalls_function Calls, NvrtcCalls;
    emuResetCalls_function ResetCalls;
    emuLastReport_function LastReport;
    emuReset_function Reset;
    emuSeed_function Seed;
    emuLive_function Live;
    emuStats_function Stats;
    emuLastLaunch_function LastLaunch;
} emu;
static char arch[16]; /* "sm_90a" */

/* Ends the program: what follows would make no sense. */
#define CU(call)                                                                       \
    do {                                                                               \
        const int r_ = cu.call;                                                        \
        if (r_) {                                                                      \
            fprintf(stderr, "%s:%d: cu%s: error %d\n", __FILE__, __LINE__, #call, r_); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

static inline const char *setting(const char *name, const char *otherwise)
{
    const char *v = getenv(name);
    return v && *v ? v : otherwise;
}
static inline void *open_library(const char *file)
{
    void *h = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!h) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return h;
}
static inline void load(void) /* both libraries; calls nothing in them */
{
    void *rtc = open_library(setting("TEGULA_LIBNVRTC", TEGULA_EMULATED_NVRTC));
    void *h = open_library(setting("TEGULA_LIBCUDA", TEGULA_EMULATED_CUDA));
#define GET_NVRTC(name, parameters) *(void **)&nv.name = dlsym(rtc, "nvrtc" #name);
    NVRTC_CALLS(GET_NVRTC)
    int (*get)(const char *, void **, int, uint64_t, int *);
    *(void **)&get = dlsym(h, "cuGetProcAddress_v2");
#define GET_DRIVER(name, parameters) get("cu" #name, (void **)&cu.name, 12000, 0, NULL);
    DRIVER_CALLS(GET_DRIVER)
#define GET_EMU(name) *(void **)&emu.name = dlsym(h, "emu" #name);
    GET_EMU(Fail)
    GET_EMU(Calls)
    GET_EMU(ResetCalls)
    GET_EMU(LastReport)
    GET_EMU(Reset)
    GET_EMU(Seed)
    GET_EMU(Live)
    GET_EMU(Stats)
    GET_EMU(LastLaunch)
    *(void **)&emu.NvrtcFail = dlsym(rtc, "emuFail");
    *(void **)&emu.NvrtcCalls = dlsym(rtc, "emuCalls");
}
static inline void use_device(int device)
{
    void *ctx;
    CU(DevicePrimaryCtxRetain(&ctx, device));
    CU(CtxSetCurrent(ctx));
}
static inline void start(void) /* once: a device, its context */
{
    static bool started;
    if (started) return;
    started = true;
    if (!cu.Init) load();
    int device, major, minor;
    CU(Init(0));
    CU(DeviceGet(&device, 0));
    CU(DeviceGetAttribute(&major, 75, device));
    CU(DeviceGetAttribute(&minor, 76, device));
    snprintf(arch, sizeof arch, "sm_%d%s", major * 10 + minor, major >= 9 ? "a" : "");
    use_device(device);
}

/* ---- kernels: files of this folder, compiled once ---- */
static inline char *read_text(const char *relative) /* to this folder */
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", EMULATOR_DIR, relative);
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(1);
    }
    fseek(f, 0, SEEK_END);
    const size_t n = (size_t)ftell(f);
    rewind(f);
    char *s = malloc(n + 1);
    s[fread(s, 1, n, f)] = 0;
    fclose(f);
    return s;
}
/* -> the status; *cubin and *log are the caller's to free */
static inline int compile_text(const char *source, const char *name, const char *target, char **cubin, size_t *bytes,
                               char **log)
{
    char *ptx = read_text("../../src/cuda/device/ptx.cuh"), option[64];
    const char *text[] = { ptx }, *names[] = { "device/ptx.cuh" },
               *options[] = { option, "-std=c++17", "--fmad=false" };
    snprintf(option, sizeof option, "--gpu-architecture=%s", target);
    void *program;
    size_t log_bytes = 0;
    int status = nv.CreateProgram(&program, source, name, 1, text, names);
    *cubin = *log = NULL;
    *bytes = 0;
    if (!status) {
        status = nv.CompileProgram(program, 3, options);
        nv.GetProgramLogSize(program, &log_bytes);
        *log = calloc(log_bytes + 1, 1);
        nv.GetProgramLog(program, *log);
        if (!status) {
            nv.GetCUBINSize(program, bytes);
            *cubin = malloc(*bytes);
            nv.GetCUBIN(program, *cubin);
        }
        nv.DestroyProgram(&program);
    }
    free(ptx);
    return status;
}
static inline void *load_file(const char *file) /* -> a library */
{
    char *source = read_text(file), *cubin, *log;
    size_t bytes;
    if (compile_text(source, file, arch, &cubin, &bytes, &log)) {
        fprintf(stderr, "%s does not compile:\n%s\n", file, log ? log : "");
        exit(1);
    }
    void *library;
    CU(LibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
    free(source);
    free(cubin);
    free(log);
    return library;
}
static inline void *kernel_of(void *library, const char *entry)
{
    void *k, *f;
    CU(LibraryGetKernel(&k, library, entry));
    CU(KernelGetFunction(&f, k));
    return f;
}

enum { PLAIN = 0, COOPERATIVE = 1, PDL = 2 };
static inline int launch(void *f, uint32_t grid, uint32_t block, uint32_t cluster, int flags, uint32_t shared,
                         void **args)
{
    attribute a[3] = { 0 };
    uint32_t n = 0;
    if (cluster > 1) a[n].id = 4, a[n].value.dim[0] = cluster, a[n].value.dim[1] = a[n].value.dim[2] = 1, n++;
    if (flags & COOPERATIVE) a[n].id = 2, a[n++].value.value = 1;
    if (flags & PDL) a[n].id = 6, a[n++].value.value = 1;
    const launch_config c = { { grid, 1, 1 }, { block, 1, 1 }, shared, NULL, a, n };
    return cu.LaunchKernelEx(&c, f, args, NULL);
}

/* ---- memory ---- */
/* of exactly that size; from NULL: filled with 0 */
static inline dptr device_copy(const void *from, size_t bytes)
{
    dptr p;
    CU(MemAlloc(&p, bytes));
    if (from) CU(MemcpyHtoD(p, from, bytes));
    else CU(MemsetD8(p, 0, bytes));
    return p;
}
static inline void *host_copy(dptr p, size_t bytes)
{
    void *h = malloc(bytes);
    CU(MemcpyDtoH(h, p, bytes));
    return h;
}

/* ---- seeds: every block of a test runs with each ---- */
static inline int num_seeds(void) { return !emu.Seed ? 1 : test_slow() ? 12 : 3; }
#define FOR_SEEDS(s) for (int s = (start(), 0); s < num_seeds() && (!emu.Seed || (emu.Seed((uint64_t)s), true)); s++)

#endif
