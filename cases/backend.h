/* SPDX-License-Identifier: MIT
 * backend.h - memory of the device that cases run on: the CPU, or CUDA through the driver table. The
 * emulated device is CUDA too: TEGULA_LIBCUDA names its driver. */
#ifndef TEGULA_BACKEND_H
#define TEGULA_BACKEND_H

#include "tegula/core.h"

/* Is this a build with the address sanitizer, with the thread sanitizer? gcc has macros, clang features. */
#ifdef __has_feature
#define BACKEND_HAS_ASAN __has_feature(address_sanitizer)
#define BACKEND_HAS_TSAN __has_feature(thread_sanitizer)
#else
#ifdef __SANITIZE_ADDRESS__
#define BACKEND_HAS_ASAN 1
#endif
#ifdef __SANITIZE_THREAD__
#define BACKEND_HAS_TSAN 1
#endif
#endif
#ifndef BACKEND_HAS_ASAN
#define BACKEND_HAS_ASAN 0
#endif
#ifndef BACKEND_HAS_TSAN
#define BACKEND_HAS_TSAN 0
#endif

typedef struct backend {
    char name[16]; /* "cpu", "cuda:0" */
    DLDevice device;
    tgl_stream stream; /* its own, not the default one; NULL on the CPU */
    bool is_emulated;
} backend;

/* "cpu", "cuda" or "cuda:1". TGL_ERR_DEVICE where there is no such device. */
tgl_status backend_open(const char *name, backend *out);
void backend_close(backend *b);

/* The backends that the tests run on: the one that TEGULA_TEST_DEVICE names (cpu or cuda; it must be there),
 * else the CPU and the first CUDA device, if any. Opened at the first call; NULL past the last. */
const backend *backend_of_tests(int i);

static inline bool backend_is_cpu(const backend *b) { return (int)b->device.device_type == TGL_DL_CPU; }

/* 256-byte aligned, and not a byte more than `bytes`. Copies come after what is on the backend's stream
 * and return when they are done. */
tgl_status backend_alloc(const backend *b, size_t bytes, void **out);
void backend_free(const backend *b, void *memory);

/* Memory that both the host and kernels read and write: page-locked on CUDA. Tensors there have device
 * backend_host(). */
tgl_status backend_host_alloc(const backend *b, size_t bytes, void **out);
void backend_host_free(const backend *b, void *memory);
/* The same in two steps, allocated and then page-locked: what is written in between takes all cores' time, not the
 * driver's. In pages of the usual size, or in huge ones where the system has some. */
tgl_status backend_pages_alloc(const backend *b, size_t bytes, bool is_huge, void **out);
tgl_status backend_pages_lock(const backend *b, void *memory, size_t bytes);
void backend_pages_free(const backend *b, void *memory);
static inline DLDevice backend_host(const backend *b)
{
    return backend_is_cpu(b) ? b->device : (DLDevice){ (DLDeviceType)TGL_DL_CUDA_HOST, 0 };
}

tgl_status backend_upload(const backend *b, void *to, const void *from, size_t bytes);
tgl_status backend_copy(const backend *b, void *to, const void *from, size_t bytes);
tgl_status backend_download(const backend *b, void *to, const void *from, size_t bytes);

/* Waits for a stream; does nothing on the CPU. */
tgl_status backend_wait(const backend *b, tgl_stream stream);

tgl_status backend_stream_create(const backend *b, tgl_stream *out);
void backend_stream_destroy(const backend *b, tgl_stream stream);

/* Captures what `call` enqueues on the backend's stream as a graph, replays it `times` times and waits. The
 * CPU has no graphs, and an emulated driver may have none. */
bool backend_has_graphs(const backend *b);
tgl_status backend_replay(const backend *b, tgl_status (*call)(void *context), void *context, int times);

#endif
