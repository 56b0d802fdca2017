/* SPDX-License-Identifier: MIT
 * core.h - what every op shares: status, messages, settings, compiling ahead, workspaces.
 *
 * An op is one call: tensors, a few scalars, a stream.
 *
 *     tgl_status tgl_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream);
 *
 * - Tensors are DLTensors, borrowed for the call. Their device decides where the op runs; all
 *   tensors of a call are on one device. CPU and CUDA-host tensors run on the CPU and are done on
 *   return; CUDA and CUDA-managed tensors are enqueued on `stream`, without synchronising,
 *   allocating or copying to the host, so the call can be captured.
 * - Everything is checked before anything is written. A failed call returns a status other than
 *   TGL_OK and leaves a sentence in tgl_last_error().
 * - Any function may be called from any thread. */
#ifndef TEGULA_CORE_H
#define TEGULA_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tegula/dlpack_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TGL_API __attribute__((visibility("default")))
#else
#define TGL_API
#endif

#define TGL_VERSION_MAJOR 0
#define TGL_VERSION_MINOR 1
#define TGL_VERSION_PATCH 0

/* The version of the library that is linked, "0.1.0"; TGL_VERSION_* are the headers'. Since 0.1. */
TGL_API const char *tgl_version(void);

/* ---- status and messages ---- */

typedef enum tgl_status {
    TGL_OK = 0,
    TGL_ERR_ARGUMENT = 1,  /* fix the call: the message says what was given, what was wanted */
    TGL_ERR_WORKSPACE = 2, /* give more workspace, or an aligned one */
    TGL_ERR_DEVICE = 3,    /* no driver, one that is too old, no such device, an unsupported one */
    TGL_ERR_COMPILE = 4,   /* NVRTC is missing or failed, or TEGULA_JIT=never and not in the cache */
    TGL_ERR_CAPTURE = 5,   /* the call would have to compile inside a stream capture: prepare it before */
    TGL_ERR_MEMORY = 6,    /* no memory, on the host or on the device */
    TGL_ERR_CUDA = 7,      /* the driver refused; its own error is named */
    TGL_ERR_PEER = 8,      /* another rank failed */
    TGL_ERR_INTERNAL = 9   /* a bug of ours: please report it */
} tgl_status;

/* "TGL_ERR_ARGUMENT". NULL for a number that is no status. Since 0.1. */
TGL_API const char *tgl_status_name(tgl_status status);

/* The sentence of the last failure on this thread, such as "out: shape is [3, 5], want [5, 3]".
 * Like errno it means something only after a failure, and success leaves it alone. Valid until this
 * thread's next failure. Since 0.1. */
TGL_API const char *tgl_last_error(void);

/* ---- streams ---- */

/* A CUstream or cudaStream_t of the tensors' device; NULL is the default stream. CPU calls ignore it. */
typedef struct CUstream_st *tgl_stream;

/* ---- settings ----
 * Each is also an environment variable, read once, at the first call of anything here
 * (docs/environment.md). A setter wins over its variable. Results never depend on any of them. */

/* TEGULA_NUM_SMS: upper bound for the blocks of persistent kernels on a device, so that a part of
 * the GPU stays free; 0 (the default) means all of them. The getter gives the bound in force: the
 * device's own count where none is set, 0 and a message where there is no such device. Since 0.1. */
TGL_API tgl_status tgl_set_num_sms(int device, int num_sms);
TGL_API int tgl_get_num_sms(int device);

/* What the device has: multiprocessors; bytes of shared memory per multiprocessor. Since 0.1. */
TGL_API tgl_status tgl_get_device_num_sms(int device, int *num_sms);
TGL_API tgl_status tgl_get_max_smem_per_sm(int device, int64_t *bytes);

/* TEGULA_NUM_THREADS: CPU threads, at most 1024; 0 (the default) means what OpenMP would use. Fewer
 * work where the system refuses so many. Since 0.1. */
TGL_API tgl_status tgl_set_num_threads(int num_threads);
TGL_API int tgl_get_num_threads(void);

/* TEGULA_PDL=0|1: programmatic dependent launch, on by default where the GPU has it (sm_90 and
 * newer). Since 0.1. */
TGL_API tgl_status tgl_set_pdl(bool on);
TGL_API bool tgl_get_pdl(void);

/* TEGULA_JIT=auto|never: with never, a kernel that is in no cache is an error. Since 0.1. */
typedef enum tgl_jit_mode { TGL_JIT_AUTO = 0, TGL_JIT_NEVER = 1 } tgl_jit_mode;
TGL_API tgl_status tgl_set_jit_mode(tgl_jit_mode mode);
TGL_API tgl_jit_mode tgl_get_jit_mode(void);

/* TEGULA_CACHE_DIR: the folder of compiled kernels; NULL goes back to the default
 * ($XDG_CACHE_HOME/tegula, else ~/.cache/tegula), "" means no disk cache. The getter gives the
 * folder in use, "" where there is none; valid until the next set. Since 0.1. */
TGL_API tgl_status tgl_set_cache_dir(const char *path);
TGL_API const char *tgl_get_cache_dir(void);

/* ---- compiling ahead ----
 * Between begin and end, calls of ops on this thread check their arguments (data may be NULL),
 * compile or load the kernels they would need, and launch nothing. With architecture NULL the
 * kernels are loaded on `device`. With an architecture ("sm_90a") no GPU and no driver is needed:
 * the kernels go to the disk cache, and `device` is ignored: sm_80 to sm_89 plain, sm_90a and newer
 * with their "a", as devices look for them; or PTX, "compute_90". Pairs do not nest. Since 0.1. */
TGL_API tgl_status tgl_prepare_begin(int device, const char *architecture);
TGL_API tgl_status tgl_prepare_end(void);

/* Kernels compiled by this process so far: not those found in memory or on disk. Since 0.1. */
TGL_API uint64_t tgl_compile_count(void);

/* Called after each compilation, on the thread that compiled, with the kernel's name
 * ("transpose/transpose"), its macros ("ELEMENT_BYTES=2"), the architecture and the milliseconds it
 * took. NULL ends it, but for calls under way on other threads. The callback must not call Tegula.
 * Since 0.1. */
typedef void (*tgl_compile_callback)(void *context, const char *kernel, const char *macros,
                                     const char *architecture, double milliseconds);
TGL_API tgl_status tgl_set_compile_callback(tgl_compile_callback callback, void *context);

/* ---- workspaces ----
 * Some ops want scratch memory on the device, as many bytes as their tgl_..._workspace_size() says:
 * 256-byte aligned, and all zero before its first use. Every op leaves it all zero again, so one
 * workspace serves any op, one call at a time. After a failed launch, initialise it again. */

/* Enqueues the zeroing of a CUDA workspace. Since 0.1. */
TGL_API tgl_status tgl_workspace_init(void *workspace, size_t workspace_bytes, tgl_stream stream);

/* A workspace that the library keeps, for the next call on `stream` of a device: of at least so many bytes,
 * all zero. Calls on a stream share theirs; ask before each, which costs a look-up, and from any thread.
 * While the stream is captured the workspace belongs to the graph, each of its streams having another, until
 * the graph and all that was instantiated from it are destroyed. Memory is allocated when there is none yet,
 * captures being left alone, and stays with the process. 0 bytes, and prepare mode, give NULL. Since 0.1. */
TGL_API tgl_status tgl_workspace_get(int device, size_t workspace_bytes, tgl_stream stream, void **workspace);

#ifdef __cplusplus
}
#endif
#endif
