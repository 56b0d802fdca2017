/* SPDX-License-Identifier: MIT
 * core.h - what every op shares: status, messages, settings, compiling ahead, workspaces.
 *
 * An op is one call: tensors, a few scalars, a stream.
 *
 *     tgl_status tgl_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream);
 *
 * - Tensors are DLTensors, borrowed for the call, all on one device, which decides where the op runs. On CPU
 *   and CUDA-host tensors the work is done on return. On CUDA and CUDA-managed tensors it is enqueued on
 *   `stream`, without synchronising, allocating or copying to the host, so the call can be captured.
 * - All arguments are checked before anything is written. A call that fails returns a status other than
 *   TGL_OK, and tgl_last_error() says why.
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
#define TGL_VERSION_NUMBER (TGL_VERSION_MAJOR * 10000 + TGL_VERSION_MINOR * 100 + TGL_VERSION_PATCH)

/* The version of the library that is linked, "0.1.0"; TGL_VERSION_* are the headers'. Since 0.1. */
TGL_API const char *tgl_version(void);

/* ---- status and messages ---- */

typedef enum tgl_status {
    TGL_OK = 0,
    TGL_ERR_ARGUMENT = 1,  /* fix the call: the message says what was passed and what is expected */
    TGL_ERR_WORKSPACE = 2, /* pass a larger workspace, or an aligned one */
    TGL_ERR_DEVICE = 3,    /* no driver or too old a one, no such GPU or an unsupported one */
    TGL_ERR_COMPILE = 4,   /* NVRTC is missing or failed, or TEGULA_JIT=never and the kernel is not cached */
    TGL_ERR_CAPTURE = 5,   /* the call would have to compile during a stream capture: prepare it first */
    TGL_ERR_MEMORY = 6,    /* no memory, on the host or on the device */
    TGL_ERR_CUDA = 7,      /* an error of the driver, which the message names */
    TGL_ERR_PEER = 8,      /* another rank failed */
    TGL_ERR_INTERNAL = 9   /* a bug in Tegula: please report it */
} tgl_status;

/* "TGL_ERR_ARGUMENT"; NULL for a number that is not a status. Since 0.1. */
TGL_API const char *tgl_status_name(tgl_status status);

/* The message of this thread's last failure, such as "out: shape is [3, 5], want [5, 3]". Like errno,
 * success does not change it. Valid until this thread's next failure. Since 0.1. */
TGL_API const char *tgl_last_error(void);

/* ---- streams ---- */

/* A CUstream or cudaStream_t of the tensors' device; NULL is the default stream. CPU calls ignore it. */
typedef struct CUstream_st *tgl_stream;

/* ---- settings ----
 * Each has an environment variable, which the first call of anything here reads; `tegula info` lists them
 * all. A setter overrides its variable. Results never depend on settings. */

/* TEGULA_NUM_SMS: how many SMs persistent kernels on a device may use, so that the others stay free; 0
 * (the default) means all. The getter returns the number in use: all SMs of the device if none is set; 0,
 * with a message, if there is no such device. Since 0.1. */
TGL_API tgl_status tgl_set_num_sms(int device, int num_sms);
TGL_API int tgl_get_num_sms(int device);

/* SMs of the device, and bytes of shared memory per SM. Since 0.1. */
TGL_API tgl_status tgl_get_device_num_sms(int device, int *num_sms);
TGL_API tgl_status tgl_get_max_smem_per_sm(int device, int64_t *bytes);

/* TEGULA_NUM_THREADS: CPU threads, at most 1024; 0 (the default) means what OpenMP would use. If the
 * system refuses to create as many, fewer are used. Since 0.1. */
TGL_API tgl_status tgl_set_num_threads(int num_threads);
TGL_API int tgl_get_num_threads(void);

/* TEGULA_PDL=0|1: programmatic dependent launch, on by default where the GPU has it (sm_90 and
 * newer). Since 0.1. */
TGL_API tgl_status tgl_set_pdl(bool on);
TGL_API bool tgl_get_pdl(void);

/* TEGULA_JIT=auto|never: with never, a kernel that is not cached is an error. Since 0.1. */
typedef enum tgl_jit_mode { TGL_JIT_AUTO = 0, TGL_JIT_NEVER = 1 } tgl_jit_mode;
TGL_API tgl_status tgl_set_jit_mode(tgl_jit_mode mode);
TGL_API tgl_jit_mode tgl_get_jit_mode(void);

/* TEGULA_CACHE_DIR: the folder of compiled kernels. NULL restores the default ($XDG_CACHE_HOME/tegula,
 * else ~/.cache/tegula), "" means no disk cache. The getter returns the folder in use, or "" if none is;
 * valid until this thread's next call of it. Since 0.1. */
TGL_API tgl_status tgl_set_cache_dir(const char *path);
TGL_API const char *tgl_get_cache_dir(void);

/* ---- compiling ahead ----
 * Between begin and end, ops called on this thread check their arguments (data may be NULL), compile or
 * load the kernels they need, and launch nothing. With architecture NULL, kernels are loaded on `device`.
 * With an architecture, kernels are compiled into the disk cache; `device` is ignored, and neither GPU nor
 * driver is needed. Architectures are sm_80 to sm_89, from sm_90 on those with an "a" ("sm_90a"), which
 * devices use, or PTX ("compute_90"). Pairs do not nest. Since 0.1. */
TGL_API tgl_status tgl_prepare_begin(int device, const char *architecture);
TGL_API tgl_status tgl_prepare_end(void);

/* How many kernels this process has compiled; those from the disk cache do not count. Since 0.1. */
TGL_API uint64_t tgl_compile_count(void);

/* Called after each compilation, on the thread whose call needs it, with the kernel's name
 * ("transpose/transpose"), its macros ("ELEMENT_BYTES=2"), the architecture and the milliseconds it took.
 * NULL removes it; calls already running on other threads finish. The callback must not call Tegula. Since
 * 0.1. */
typedef void (*tgl_compile_callback)(void *context, const char *kernel, const char *macros, const char *architecture,
                                     double milliseconds);
TGL_API tgl_status tgl_set_compile_callback(tgl_compile_callback callback, void *context);

/* ---- workspaces ----
 * Some ops need scratch memory on the device: as many bytes as their tgl_..._workspace_size() returns,
 * 256-byte aligned, all zero before the first use. Every op leaves it all zero, so one workspace serves
 * all ops, one call at a time: two at once give wrong results or never end. After a failed launch, initialise it
 * again. */

/* Enqueues the zeroing of a CUDA workspace. Since 0.1. */
TGL_API tgl_status tgl_workspace_init(void *workspace, size_t workspace_bytes, tgl_stream stream);

/* A workspace kept by the library for the next call on `stream` of `device`: at least workspace_bytes, all
 * zero. Call it before each op, from any thread; it costs a look-up. Calls on one stream share a
 * workspace. While the stream is being captured, the workspace belongs to the graph (one per captured
 * stream) until the graph and everything instantiated from it are destroyed. Memory is allocated when
 * needed, without disturbing captures, and kept for later calls. With 0 bytes, and in prepare mode,
 * *workspace is NULL. Since 0.1. */
TGL_API tgl_status tgl_workspace_get(int device, size_t workspace_bytes, tgl_stream stream, void **workspace);

#ifdef __cplusplus
}
#endif
#endif
