/* SPDX-License-Identifier: MIT
 * workspace.c - zeroing a workspace, and the workspaces that the library keeps.
 *
 * A stream runs its work in order, and every op leaves its workspace all zero. So one block per stream
 * serves all its calls, and nothing has to be launched before them. Two traps. A handle does not identify
 * a stream: default streams have one handle for all contexts or threads, and the handle of a destroyed
 * stream is reused; so blocks belong to the driver's stream ids, which are unique. And a captured call
 * runs whenever its graph does, concurrently with the stream: its block belongs to the graph and, since
 * the branches of a graph run concurrently, to one of the captured streams. A user object tells when the
 * last copy of the graph is destroyed and has run; the block, zero again, is then free. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/cancel.h"
#include "cuda/driver.h"
#include "cuda/launch.h"

/* -1 for memory that is not CUDA's. */
static tgl_status device_of_pointer(const tgl_driver_table *cu, tgl_cu_pointer address, int *device)
{
    *device = -1;
    tgl_cu_result result = cu->PointerGetAttribute(device, TGL_CU_POINTER_DEVICE, address);
    if (result == TGL_CU_INVALID_CONTEXT) { /* none is current: as in context_of_stream() */
        tgl_context_guard guard;
        TGL_TRY(tgl_context_enter(0, NULL, &guard));
        result = cu->PointerGetAttribute(device, TGL_CU_POINTER_DEVICE, address);
        tgl_context_leave(&guard);
    }
    return result == TGL_CU_INVALID_VALUE ? TGL_OK : tgl_driver_check(result, "workspace: cuPointerGetAttribute");
}

tgl_status tgl_workspace_init(void *workspace, size_t workspace_bytes, tgl_stream stream)
{
    if (workspace_bytes == 0) return TGL_OK;
    TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, workspace_bytes));
    if (tgl_preparing()) return TGL_OK;
    const tgl_driver_table *cu;
    TGL_TRY(tgl_driver(&cu));
    const tgl_cu_pointer address = (tgl_cu_pointer)(uintptr_t)workspace;
    int device;
    TGL_TRY(device_of_pointer(cu, address, &device));
    if (device < 0)
        return tgl_fail(TGL_ERR_WORKSPACE, "workspace: %p is not CUDA memory, want device memory", workspace);
    tgl_context_guard guard;
    TGL_TRY(tgl_context_enter(device, stream, &guard));
    const tgl_status status =
        tgl_driver_check(cu->MemsetD8Async(address, 0, workspace_bytes, stream), "workspace: cuMemsetD8Async");
    tgl_context_leave(&guard);
    return status;
}

/* ---- kept workspaces ---- */

enum { FREE, OF_STREAM, OF_GRAPH };
typedef struct block {
    struct block *next;
    tgl_cu_pointer data;
    size_t bytes;
    uint64_t context; /* its id */
    tgl_stream stream;
    uint64_t owner;  /* the id of the stream or of the capture */
    atomic_int kind; /* FREE: all zero and not in use */
} block;

enum { SMALLEST = 1 << 16 };
static block *blocks;                                    /* of all devices; few, so that a list is enough */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a forked child fails before it gets here */

/* A stream or, with a graph, the part of the graph that is captured from the stream. */
typedef struct {
    tgl_stream stream;
    uint64_t id;
    tgl_cu_graph graph;
} owner;

/* CU_STREAM_LEGACY (1), CU_STREAM_PER_THREAD (2) and NULL (one of them) are handles of several streams. */
static bool is_one_stream(tgl_stream stream) { return (uintptr_t)stream > 2; }

static block *find(const owner *o, size_t bytes)
{
    for (block *b = blocks; b; b = b->next) {
        if (b->owner != o->id || b->bytes < bytes) continue;
        const int kind = atomic_load_explicit(&b->kind, memory_order_relaxed);
        if (o->graph ? kind == OF_GRAPH && b->stream == o->stream && is_one_stream(o->stream) : kind == OF_STREAM)
            return b;
    }
    return NULL;
}

static block *find_free(uint64_t context, size_t bytes)
{
    for (block *b = blocks; b; b = b->next)
        if (atomic_load_explicit(&b->kind, memory_order_acquire) == FREE && b->context == context && b->bytes >= bytes)
            return b;
    return NULL;
}

/* A handle with a new id: its previous stream was destroyed. cuMemFree() waits for work that still runs. */
static void drop_predecessors(const tgl_driver_table *cu, const owner *o, uint64_t context)
{
    for (block **p = &blocks; *p;) {
        block *b = *p;
        if (atomic_load(&b->kind) != OF_STREAM || b->stream != o->stream || !is_one_stream(o->stream) ||
            b->owner == o->id || b->context != context) {
            p = &b->next;
            continue;
        }
        *p = b->next;
        cu->MemFree(b->data);
        free(b);
    }
}

/* On the stream itself; for a graph, which must not contain it, on another stream, and waits for it. */
static tgl_status zero(const tgl_driver_table *cu, const owner *o, tgl_cu_pointer data, size_t bytes)
{
    if (!o->graph) return tgl_driver_check(cu->MemsetD8Async(data, 0, bytes, o->stream), "workspace: cuMemsetD8Async");
    tgl_stream side;
    TGL_TRY(tgl_driver_check(cu->StreamCreate(&side, TGL_CU_STREAM_NON_BLOCKING), "workspace: cuStreamCreate"));
    tgl_cu_result result = cu->MemsetD8Async(data, 0, bytes, side);
    if (!result) result = cu->StreamSynchronize(side);
    cu->StreamDestroy(side);
    return tgl_driver_check(result, "workspace: zeroing");
}

/* Sizes are powers of two, so a growing stream keeps less than twice its largest block. */
static tgl_status make(const tgl_driver_table *cu, const owner *o, uint64_t context, size_t bytes, block **out)
{
    size_t size = SMALLEST;
    while (size < bytes && size <= SIZE_MAX / 2) size *= 2;
    if (size < bytes) size = bytes;
    block *b = calloc(1, sizeof *b);
    if (!b) return tgl_fail(TGL_ERR_MEMORY, "workspace: no memory for its description");
    tgl_status status = tgl_driver_check(cu->MemAlloc(&b->data, size), "workspace: cuMemAlloc");
    if (status == TGL_OK) {
        status = zero(cu, o, b->data, size);
        if (status != TGL_OK) cu->MemFree(b->data);
    }
    if (status != TGL_OK) return free(b), status;
    b->bytes = size;
    b->context = context;
    b->next = blocks;
    *out = blocks = b;
    return TGL_OK;
}

/* The driver calls this on its own thread, where calling the driver is not allowed. */
static void give_back(void *b) { atomic_store_explicit(&((block *)b)->kind, FREE, memory_order_release); }

static tgl_status give_to_graph(const tgl_driver_table *cu, tgl_cu_graph graph, block *b)
{
    tgl_cu_user_object object;
    tgl_cu_result result = cu->UserObjectCreate(&object, b, give_back, 1, TGL_CU_NO_DESTRUCTOR_SYNC);
    if (result) {
        give_back(b);
        return tgl_driver_check(result, "workspace: cuUserObjectCreate");
    }
    result = cu->GraphRetainUserObject(graph, object, 1, TGL_CU_USER_OBJECT_MOVE);
    if (result) cu->UserObjectRelease(object, 1);
    return tgl_driver_check(result, "workspace: cuGraphRetainUserObject");
}

/* With the lock held. */
static tgl_status find_or_make(const tgl_driver_table *cu, tgl_cu_context entered, const owner *o, size_t bytes,
                               block **out)
{
    if ((*out = find(o, bytes))) return TGL_OK;
    uint64_t context;
    TGL_TRY(tgl_driver_check(cu->CtxGetId(entered, &context), "cuCtxGetId"));
    const int mode = tgl_capture_relax(cu);
    if (!o->graph) drop_predecessors(cu, o, context);
    *out = find_free(context, bytes);
    tgl_status status = *out ? TGL_OK : make(cu, o, context, bytes, out);
    if (status == TGL_OK) {
        (*out)->stream = o->stream;
        (*out)->owner = o->id;
        atomic_store(&(*out)->kind, o->graph ? OF_GRAPH : OF_STREAM);
        if (o->graph) status = give_to_graph(cu, o->graph, *out);
    }
    tgl_capture_restore(cu, mode);
    return status;
}

static tgl_status owner_of(const tgl_driver_table *cu, tgl_stream stream, owner *o)
{
    int capture = TGL_CU_CAPTURE_NONE;
    *o = (owner){ .stream = stream };
    TGL_TRY(tgl_driver_check(cu->StreamGetCaptureInfo(stream, &capture, &o->id, &o->graph, NULL, NULL),
                             "stream: cuStreamGetCaptureInfo"));
    if (capture == TGL_CU_CAPTURE_ACTIVE) return TGL_OK;
    o->graph = NULL;
    return tgl_driver_check(cu->StreamGetId(stream, &o->id), "stream: cuStreamGetId");
}

tgl_status tgl_workspace_get(int device, size_t workspace_bytes, tgl_stream stream, void **workspace)
{
    if (!workspace) return tgl_fail(TGL_ERR_ARGUMENT, "workspace: is NULL, want a pointer to write the address to");
    *workspace = NULL;
    if (workspace_bytes == 0 || tgl_preparing()) return TGL_OK;
    const tgl_driver_table *cu;
    tgl_context_guard guard;
    TGL_TRY(tgl_driver(&cu));
    TGL_TRY(tgl_context_enter(device, stream, &guard));
    owner o;
    block *b = NULL;
    tgl_status status = owner_of(cu, stream, &o);
    if (status == TGL_OK) {
        const int cancelling = tgl_cancel_hold();
        pthread_mutex_lock(&lock);
        status = find_or_make(cu, guard.context, &o, workspace_bytes, &b);
        if (status == TGL_OK) *workspace = (void *)(uintptr_t)b->data;
        pthread_mutex_unlock(&lock);
        tgl_cancel_restore(cancelling);
    }
    tgl_context_leave(&guard);
    return status;
}
