/* SPDX-License-Identifier: MIT
 * The workspaces that the library keeps: whose they are, and that they are zero. Every block has a process of
 * its own, on the emulated device or on a GPU. */
#include <pthread.h>

#include "on_device.h"

static void use_device(int device)
{
    tgl_cu_device handle;
    tgl_cu_context context;
    CU(DeviceGet(&handle, device));
    CU(DevicePrimaryCtxRetain(&context, handle));
    CU(CtxSetCurrent(context));
}

/* A block in a process of its own, where device 0 is current. */
#define ON_DEVICE(name, ...) ON(name, NEED_DEVICE, __VA_ARGS__)
#define ON(name, need, ...)             \
    static void on_device_##name(void); \
    TEST(name)                          \
    {                                   \
        IN_CHILD(__VA_ARGS__);          \
        need();                         \
        LOAD_DRIVER();                  \
        use_device(0);                  \
        on_device_##name();             \
    }                                   \
    static void on_device_##name(void)

enum { BYTES = 1000 };
static unsigned char *get(tgl_stream stream, size_t bytes)
{
    void *workspace = NULL;
    CHECK_OK(tgl_workspace_get(0, bytes, stream, &workspace));
    CHECK_THAT(workspace && (uintptr_t)workspace % 256 == 0, "the workspace is at %p", workspace);
    return workspace;
}

static bool is_zero(const void *workspace, size_t bytes)
{
    unsigned char *seen = malloc(bytes);
    size_t n = 0;
    CU(CtxSynchronize());
    CU(MemcpyDtoH(seen, (tgl_cu_pointer)(uintptr_t)workspace, bytes));
    while (n < bytes && seen[n] == 0) n++;
    free(seen);
    return n == bytes;
}

static void dirty(void *workspace, size_t bytes, tgl_stream stream)
{
    CU(MemsetD8Async((tgl_cu_pointer)(uintptr_t)workspace, 0xee, bytes, stream));
}

#define LEGACY ((tgl_stream)(uintptr_t)1)
#define PER_THREAD ((tgl_stream)(uintptr_t)2)

ON_DEVICE(arguments, "EMU_SMS=4")
{
    CHECK_FAILS(tgl_workspace_get(0, 8, NULL, NULL), TGL_ERR_ARGUMENT,
                "workspace: is NULL, want a pointer to write the address to");
    void *p = &p;
    CHECK_OK(tgl_workspace_get(0, 0, NULL, &p));
    CHECK(p == NULL);
    CHECK_INT(tgl_workspace_get(1000, 8, NULL, &p), TGL_ERR_DEVICE);
    CHECK_OK(tgl_prepare_begin(0, NULL));
    p = &p;
    CHECK_OK(tgl_workspace_get(0, 8, NULL, &p));
    CHECK(p == NULL);
    CHECK_OK(tgl_prepare_end());
    CHECK_INT(tgl_workspace_get(0, SIZE_MAX / 2, NULL, &p), TGL_ERR_MEMORY);
}

ON_DEVICE(a_stream_has_its_own, "EMU_SMS=4")
{
    tgl_stream streams[] = { NULL, make_stream(0), make_stream(TGL_CU_STREAM_NON_BLOCKING) };
    unsigned char *seen[3];
    for (int i = 0; i < 3; i++) {
        seen[i] = get(streams[i], BYTES);
        CHECK(is_zero(seen[i], BYTES));
        for (int k = 0; k < i; k++) CHECK(seen[k] != seen[i]);
    }
    for (int i = 0; i < 3; i++) CHECK(get(streams[i], BYTES / 2) == seen[i]);
    CHECK(get(LEGACY, BYTES) == seen[0]);
    unsigned char *larger = get(streams[1], 1 << 20); /* more than the first one has: another, and kept */
    CHECK(larger != seen[1] && is_zero(larger, 1 << 20));
    CHECK(get(streams[1], 1 << 20) == larger);
}

static void *get_from_a_thread(void *out)
{
    use_device(0);
    unsigned char **seen = out;
    seen[0] = get(PER_THREAD, BYTES);
    seen[1] = get(PER_THREAD, BYTES);
    seen[2] = get(LEGACY, BYTES);
    return NULL;
}

ON_DEVICE(the_default_streams_of_threads, "EMU_SMS=4")
{
    unsigned char *seen[2][3];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, get_from_a_thread, seen[i]) == 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) CHECK(seen[i][0] == seen[i][1] && seen[i][0] != seen[i][2]);
    CHECK(seen[0][0] != seen[1][0] && seen[0][2] == seen[1][2]);
}

ON_DEVICE(the_default_streams_of_devices, "EMU_SMS=4", "EMU_DEVICES=2")
{
    int count;
    CHECK_OK(tgl_device_count(&count));
    if (count < 2) SKIP("there is one device");
    void *here, *there, *again;
    CHECK_OK(tgl_workspace_get(0, BYTES, NULL, &here));
    CHECK_OK(tgl_workspace_get(1, BYTES, NULL, &there));
    CHECK_OK(tgl_workspace_get(0, BYTES, NULL, &again));
    CHECK(here != there && here == again);
    int device;
    CU(PointerGetAttribute(&device, TGL_CU_POINTER_DEVICE, (tgl_cu_pointer)(uintptr_t)there));
    CHECK_INT(device, 1);
}

/* Drivers reuse handles. A new stream must not see what the old one left in its workspace, which must be freed. */
ON_DEVICE(a_new_stream_with_an_old_handle, "EMU_SMS=4", "EMU_LAZY=1")
{
    tgl_stream last = NULL;
    int before = 0, num_reused = 0;
    for (int i = 0; i < 50; i++) {
        tgl_stream stream = make_stream(TGL_CU_STREAM_NON_BLOCKING);
        unsigned char *workspace = get(stream, BYTES);
        CHECK(is_zero(workspace, BYTES));
        dirty(workspace, BYTES, stream);
        num_reused += stream == last;
        last = stream;
        CU(StreamDestroy(stream));
        if (i == 0 && has_emulator()) before = live().allocations;
    }
    if (has_emulator()) CHECK_THAT(live().allocations - before <= 49 - num_reused, "blocks were lost");
    if (num_reused == 0) SKIP("no handle came twice");
}

/* ---- captures ---- */

static void begin(tgl_stream stream, int mode) { CU(StreamBeginCapture(stream, mode)); }

static size_t num_nodes(tgl_cu_graph graph)
{
    tgl_cu_result (*get_nodes)(tgl_cu_graph, void **, size_t *);
    *(void **)&get_nodes = dlsym(cu->handle, "cuGraphGetNodes");
    size_t n = 0;
    CHECK_INT(get_nodes(graph, NULL, &n), 0);
    return n;
}

/* A graph that gets a workspace and has no nodes. */
static tgl_cu_graph capture_one(tgl_stream stream, unsigned char **workspace)
{
    begin(stream, TGL_CU_CAPTURE_GLOBAL);
    *workspace = get(stream, BYTES);
    return end_capture(stream);
}

/* Captures until a graph gets this workspace: others may be free too, and the driver calls back when it likes. */
static bool comes_back(tgl_stream stream, const unsigned char *workspace)
{
    enum { MOST = 100 };
    tgl_cu_graph graphs[MOST];
    unsigned char *seen = NULL;
    int n = 0;
    for (; n < MOST && seen != workspace; n++) {
        graphs[n] = capture_one(stream, &seen);
        usleep(1000);
    }
    while (n > 0) CU(GraphDestroy(graphs[--n]));
    return seen == workspace;
}

ON_DEVICE(a_graph_has_its_own, "EMU_SMS=4")
{
    tgl_stream stream = make_stream(TGL_CU_STREAM_NON_BLOCKING), side = make_stream(0);
    unsigned char *eager = get(stream, BYTES), *seen, *branch, *other;
    tgl_cu_event fork, join;
    CU(EventCreate(&fork, TGL_CU_EVENT_DISABLE_TIMING));
    CU(EventCreate(&join, TGL_CU_EVENT_DISABLE_TIMING));
    begin(stream, TGL_CU_CAPTURE_GLOBAL);
    seen = get(stream, BYTES);
    CU(EventRecord(fork, stream));
    CU(StreamWaitEvent(side, fork, 0));
    branch = get(side, BYTES);
    CHECK(get(stream, BYTES / 2) == seen && get(side, BYTES) == branch);
    CU(EventRecord(join, side));
    CU(StreamWaitEvent(stream, join, 0));
    CHECK(get(stream, 1 << 20) != seen); /* more than it has */
    tgl_cu_graph graph = end_capture(stream);
    CHECK_INT(num_nodes(graph), 0); /* nothing but the calls themselves will run */
    CHECK(seen != eager && branch != eager && seen != branch);
    CHECK(is_zero(seen, BYTES) && is_zero(branch, BYTES));
    CHECK(get(stream, BYTES) == eager);

    tgl_cu_graph second = capture_one(stream, &other);
    CHECK(other != seen && other != branch && other != eager);
    tgl_cu_graph_exec exec;
    CU(GraphInstantiateWithFlags(&exec, graph, 0));
    CU(GraphDestroy(graph));
    tgl_cu_graph third = capture_one(stream, &other);
    CHECK(other != seen && other != branch); /* the executable graph may still use them */
    CU(GraphLaunch(exec, stream));
    CU(GraphExecDestroy(exec));
    CU(GraphDestroy(third));
    CU(GraphDestroy(second));
    CHECK(comes_back(stream, seen) && comes_back(stream, branch));
    CU(EventDestroy(fork));
    CU(EventDestroy(join));
}

ON_DEVICE(what_a_graph_gives_back_serves_streams, "EMU_SMS=4")
{
    unsigned char *seen, *now = NULL;
    CU(GraphDestroy(capture_one(make_stream(TGL_CU_STREAM_NON_BLOCKING), &seen)));
    for (int i = 0; i < 100 && now != seen; i++) {
        now = get(make_stream(TGL_CU_STREAM_NON_BLOCKING), BYTES);
        usleep(1000);
    }
    CHECK(now == seen);
    CHECK(get(make_stream(TGL_CU_STREAM_NON_BLOCKING), BYTES) != seen);
}

ON_DEVICE(a_capture_that_fails, "EMU_SMS=4")
{
    tgl_stream stream = make_stream(TGL_CU_STREAM_NON_BLOCKING);
    begin(stream, TGL_CU_CAPTURE_GLOBAL);
    unsigned char *seen = get(stream, BYTES);
    CHECK(cu->StreamSynchronize(stream) != 0); /* which spoils it */
    void *none;
    CHECK_INT(tgl_workspace_get(0, BYTES, stream, &none), TGL_ERR_CUDA);
    tgl_cu_graph graph = NULL;
    CHECK(cu->StreamEndCapture(stream, &graph) != 0);
    CHECK(comes_back(stream, seen));
}

static void *get_on(void *stream)
{
    use_device(0);
    return get(stream, BYTES);
}

/* Allocating and zeroing leave captures alone, this thread's and another's. */
ON_DEVICE(captures_go_on, "EMU_SMS=4")
{
    tgl_stream stream = make_stream(TGL_CU_STREAM_NON_BLOCKING), other = make_stream(0);
    static const int modes[] = { TGL_CU_CAPTURE_GLOBAL, TGL_CU_CAPTURE_THREAD_LOCAL, TGL_CU_CAPTURE_RELAXED };
    for (int i = 0; i < 3; i++) {
        begin(stream, modes[i]);
        unsigned char *captured = get(stream, BYTES);
        pthread_t thread;
        void *eager;
        REQUIRE(pthread_create(&thread, NULL, get_on, other) == 0);
        pthread_join(thread, &eager);
        CHECK(eager != captured && get(other, BYTES) == eager);
        CU(GraphDestroy(end_capture(stream)));
        CU(StreamDestroy(other)); /* so that the next turn allocates again */
        other = make_stream(0);
    }
    /* the legacy stream waits for blocking ones: no call is possible there, and asking does no harm */
    begin(other, TGL_CU_CAPTURE_GLOBAL);
    void *none;
    CHECK_INT(tgl_workspace_get(0, BYTES, NULL, &none), TGL_ERR_CUDA);
    CHECK_HAS(tgl_last_error(), "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT");
    get(other, BYTES);
    CU(GraphDestroy(end_capture(other)));
}

/* ---- failures ---- */

static void check_failure(tgl_stream stream, size_t bytes, const char *entry)
{
    char list[64];
    void *none;
    snprintf(list, sizeof list, "%s=UNKNOWN", entry);
    inject(list);
    CHECK_INT(tgl_workspace_get(0, bytes, stream, &none), TGL_ERR_CUDA);
    CHECK_HAS(tgl_last_error(), "CUDA_ERROR_UNKNOWN");
    CHECK(none == NULL);
}

ON(failures, NEED_EMULATOR, "EMU_SMS=4")
{
    static const char *const eager[] = { "cuStreamGetCaptureInfo", "cuStreamGetId", "cuCtxGetId", "cuMemAlloc",
                                         "cuMemsetD8Async" },
                             *const captured[] = { "cuStreamGetCaptureInfo",
                                                   "cuCtxGetId",
                                                   "cuMemAlloc",
                                                   "cuStreamCreate",
                                                   "cuMemsetD8Async",
                                                   "cuStreamSynchronize",
                                                   "cuUserObjectCreate",
                                                   "cuGraphRetainUserObject" };
    const int before = live().allocations;
    tgl_stream stream = make_stream(TGL_CU_STREAM_NON_BLOCKING);
    for (size_t i = 0; i < sizeof eager / sizeof *eager; i++) {
        check_failure(stream, BYTES, eager[i]);
        CHECK_INT(live().allocations, before);
    }
    CHECK(is_zero(get(stream, BYTES), BYTES));
    CHECK_INT(live().allocations, before + 1);
    for (size_t i = 0; i < sizeof captured / sizeof *captured; i++) {
        const size_t bytes = (size_t)1 << (17 + i); /* more than any kept block has */
        begin(stream, TGL_CU_CAPTURE_GLOBAL);
        check_failure(stream, bytes, captured[i]);
        unsigned char *seen = get(stream, bytes);
        tgl_cu_graph graph = end_capture(stream);
        CHECK(is_zero(seen, bytes));
        CHECK_INT(live().allocations, before + 2 + (int)i);
        CU(GraphDestroy(graph));
    }
}
