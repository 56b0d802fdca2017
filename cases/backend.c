/* SPDX-License-Identifier: MIT */
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/driver.h"

/* A driver call by its name in the table; what it returns becomes a status with a message. */
#define CU(name, ...) tgl_driver_check(cu->name(__VA_ARGS__), "cu" #name)

/* Makes the device current for the rest of a function that begins with ENTER and ends with LEAVE(status). */
#define ENTER(b)                \
    const tgl_driver_table *cu; \
    tgl_context_guard guard;    \
    TGL_TRY(tgl_driver(&cu));   \
    TGL_TRY(tgl_context_enter((b)->device.device_id, NULL, &guard))
#define LEAVE(expression)                        \
    do {                                         \
        const tgl_status leaving = (expression); \
        tgl_context_leave(&guard);               \
        return leaving;                          \
    } while (0)

static tgl_cu_pointer address(const void *p) { return (tgl_cu_pointer)(uintptr_t)p; }

tgl_status backend_open(const char *name, backend *out)
{
    *out = (backend){ .device = { (DLDeviceType)TGL_DL_CPU, 0 } };
    if (!strcmp(name, "cpu")) {
        strcpy(out->name, "cpu");
        return TGL_OK;
    }
    int index = 0, used = 0, count;
    const bool is_cuda = !strcmp(name, "cuda") || (sscanf(name, "cuda:%d%n", &index, &used) == 1 && !name[used]);
    if (!is_cuda) return tgl_fail(TGL_ERR_ARGUMENT, "device: is \"%s\", want cpu, cuda or cuda:<number>", name);
    TGL_TRY(tgl_device_count(&count));
    if (index < 0 || index >= count)
        return tgl_fail(TGL_ERR_DEVICE, "device: is cuda:%d, want 0..%d", index, count - 1);
    const tgl_device *facts;
    TGL_TRY(tgl_device_get(index, &facts));
    snprintf(out->name, sizeof out->name, "cuda:%d", index);
    out->device = (DLDevice){ (DLDeviceType)TGL_DL_CUDA, index };
    out->is_emulated = facts->is_emulated;
    return backend_stream_create(out, &out->stream);
}

void backend_close(backend *b)
{
    if (!backend_is_cpu(b)) backend_stream_destroy(b, b->stream);
    b->stream = NULL;
}

const backend *backend_of_tests(int i)
{
    static backend backends[2];
    static int count = -1;
    if (count < 0) {
        const char *wanted = getenv("TEGULA_TEST_DEVICE");
        const bool is_named = wanted && *wanted;
        count = 0;
        if (!is_named && backend_open("cpu", &backends[count]) == TGL_OK) count++;
        if (backend_open(is_named ? wanted : "cuda", &backends[count]) == TGL_OK) count++;
        else if (!is_named) printf("  no CUDA device: %s\n", tgl_last_error());
        else { /* asked for: not skipped in silence */
            fprintf(stderr, "TEGULA_TEST_DEVICE=%s: %s\n", wanted, tgl_last_error());
            exit(1);
        }
    }
    return i < count ? &backends[i] : NULL;
}

tgl_status backend_alloc(const backend *b, size_t bytes, void **out)
{
    if (backend_is_cpu(b)) {
        if (!posix_memalign(out, 256, bytes + !bytes)) return TGL_OK;
        *out = NULL;
        return tgl_fail(TGL_ERR_MEMORY, "no %zu bytes of host memory", bytes);
    }
    ENTER(b);
    tgl_cu_pointer p = 0;
    const tgl_status status = CU(MemAlloc, &p, bytes + !bytes);
    *out = (void *)(uintptr_t)p;
    LEAVE(status);
}

static tgl_status device_free(const backend *b, void *memory)
{
    ENTER(b);
    LEAVE(CU(MemFree, address(memory)));
}

void backend_free(const backend *b, void *memory)
{
    if (backend_is_cpu(b)) free(memory);
    else if (memory) device_free(b, memory);
}

tgl_status backend_host_alloc(const backend *b, size_t bytes, void **out)
{
    if (backend_is_cpu(b)) return backend_alloc(b, bytes, out);
    ENTER(b);
    LEAVE(CU(MemHostAlloc, out, bytes + !bytes, 0));
}

static tgl_status host_free(const backend *b, void *memory)
{
    ENTER(b);
    LEAVE(CU(MemFreeHost, memory));
}

void backend_host_free(const backend *b, void *memory)
{
    if (backend_is_cpu(b)) free(memory);
    else if (memory) host_free(b, memory);
}

static bool registers_memory(const backend *b)
{
    const tgl_driver_table *cu;
    return !backend_is_cpu(b) && tgl_driver(&cu) == TGL_OK && cu->MemHostRegister;
}

tgl_status backend_pages_alloc(const backend *b, size_t bytes, bool is_huge, void **out)
{
    enum { HUGE_PAGE = 2 << 20 };
    if (!registers_memory(b)) return backend_host_alloc(b, bytes, out);
    if (posix_memalign(out, HUGE_PAGE, bytes)) return tgl_fail(TGL_ERR_MEMORY, "no %zu bytes of host memory", bytes);
#ifdef MADV_HUGEPAGE
    madvise(*out, bytes, is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
    return TGL_OK;
}

tgl_status backend_pages_lock(const backend *b, void *memory, size_t bytes)
{
    if (!registers_memory(b)) return TGL_OK;
    ENTER(b);
    LEAVE(CU(MemHostRegister, memory, bytes, 0));
}

static tgl_status unregister(const backend *b, void *memory)
{
    ENTER(b);
    LEAVE(CU(MemHostUnregister, memory));
}

void backend_pages_free(const backend *b, void *memory)
{
    if (!registers_memory(b)) {
        backend_host_free(b, memory);
        return;
    }
    if (memory) unregister(b, memory);
    free(memory);
}

tgl_status backend_copy(const backend *b, void *to, const void *from, size_t bytes)
{
    if (backend_is_cpu(b)) {
        memcpy(to, from, bytes);
        return TGL_OK;
    }
    ENTER(b);
    tgl_status status = CU(MemcpyDtoDAsync, address(to), address(from), bytes, b->stream);
    if (status == TGL_OK) status = CU(StreamSynchronize, b->stream);
    LEAVE(status);
}

/* On our own stream, which the default stream does not wait for, nor it for the default stream. */
tgl_status backend_upload(const backend *b, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) return TGL_OK;
    if (backend_is_cpu(b)) {
        memcpy(to, from, bytes);
        return TGL_OK;
    }
    ENTER(b);
    tgl_status status = CU(MemcpyHtoDAsync, address(to), from, bytes, b->stream);
    if (status == TGL_OK) status = CU(StreamSynchronize, b->stream);
    LEAVE(status);
}

tgl_status backend_download(const backend *b, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) return TGL_OK;
    if (backend_is_cpu(b)) {
        memcpy(to, from, bytes);
        return TGL_OK;
    }
    ENTER(b);
    tgl_status status = CU(MemcpyDtoHAsync, to, address(from), bytes, b->stream);
    if (status == TGL_OK) status = CU(StreamSynchronize, b->stream);
    LEAVE(status);
}

tgl_status backend_wait(const backend *b, tgl_stream stream)
{
    if (backend_is_cpu(b)) return TGL_OK;
    ENTER(b);
    LEAVE(CU(StreamSynchronize, stream));
}

tgl_status backend_stream_create(const backend *b, tgl_stream *out)
{
    *out = NULL;
    if (backend_is_cpu(b)) return TGL_OK;
    ENTER(b);
    LEAVE(CU(StreamCreate, out, TGL_CU_STREAM_NON_BLOCKING));
}

static tgl_status stream_destroy(const backend *b, tgl_stream stream)
{
    ENTER(b);
    LEAVE(CU(StreamDestroy, stream));
}

void backend_stream_destroy(const backend *b, tgl_stream stream)
{
    if (!backend_is_cpu(b) && stream) stream_destroy(b, stream);
}

static tgl_status replay(const backend *b, tgl_status (*call)(void *), void *context, int times)
{
    tgl_cu_graph graph = NULL;
    tgl_cu_graph_exec exec = NULL;
    ENTER(b);
    tgl_status status = CU(StreamBeginCapture, b->stream, TGL_CU_CAPTURE_THREAD_LOCAL);
    if (status != TGL_OK) LEAVE(status);
    status = call(context);
    const tgl_status ended = CU(StreamEndCapture, b->stream, &graph); /* also after a failed call */
    if (status == TGL_OK) status = ended;
    if (status == TGL_OK) status = CU(GraphInstantiateWithFlags, &exec, graph, 0);
    for (int i = 0; status == TGL_OK && i < times; i++) status = CU(GraphLaunch, exec, b->stream);
    if (status == TGL_OK) status = CU(StreamSynchronize, b->stream);
    if (exec) cu->GraphExecDestroy(exec);
    if (graph) cu->GraphDestroy(graph);
    LEAVE(status);
}

bool backend_has_graphs(const backend *b)
{
    const tgl_driver_table *cu;
    return !backend_is_cpu(b) && tgl_driver(&cu) == TGL_OK && cu->StreamBeginCapture && cu->StreamEndCapture &&
           cu->GraphInstantiateWithFlags && cu->GraphLaunch && cu->GraphExecDestroy && cu->GraphDestroy;
}

tgl_status backend_replay(const backend *b, tgl_status (*call)(void *), void *context, int times)
{
    if (!backend_has_graphs(b)) return tgl_fail(TGL_ERR_DEVICE, "%s has no graphs", b->name);
    return replay(b, call, context, times);
}
