/* SPDX-License-Identifier: MIT
 * test_driver.c - the emulated driver itself: devices, contexts, memory, images, launch limits, captures,
 * injected failures. What it refuses, it refuses with CUDA's number. */
#include "host.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *source =
    "#include \"device/ptx.cuh\"\n"
    "extern \"C\" __global__ void __launch_bounds__(256) put(u32 *out, u32 value) { out[blockIdx.x * "
    "blockDim.x + threadIdx.x] = value; }\n"
    "extern \"C\" __global__ void spread(u32 *out) { SHARED_DYNAMIC(m, 16); "
    "shared_store_u32(shared_address(m) + 4 * threadIdx.x, 1);\n"
    "    __syncthreads(); if (threadIdx.x == 0) out[blockIdx.x] = shared_load_u32(shared_address(m)); }\n"
    "extern \"C\" __global__ void unwritten(u32 *out) { SHARED_DYNAMIC(m, 16); SHARED(u32[64], a);\n"
    "    out[threadIdx.x] = a[threadIdx.x]; out[64 + threadIdx.x] = shared_load_u32(shared_address(m) + 4 * "
    "threadIdx.x); }\n";

static char *image; /* of the source, for sm_90a */
static size_t image_bytes;

static char *compiled(const char *text, const char *target, size_t *bytes)
{
    char *code, *log;
    const int status = compile_text(text, "driver.cu", target, &code, bytes, &log);
    if (status) {
        fprintf(stderr, "driver.cu: %d %s\n", status, log);
        exit(1);
    }
    free(log);
    return code;
}
static void begin(void) /* two devices, on device 0 */
{
    if (!image) {
        setenv("EMU_DEVICES", "2", 0);
        start();
        image = compiled(source, "sm_90a", &image_bytes);
        emu.Seed(0);
    }
    use_device(0);
}
static void *put(void) /* the kernel, loaded once */
{
    static void *library, *f;
    if (library) return f;
    CU(LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    f = kernel_of(library, "put");
    return f;
}
static int put_on(void *stream, dptr out, uint32_t value)
{
    void *args[] = { &out, &value };
    const launch_config c = { { 1, 1, 1 }, { 32, 1, 1 }, 0, stream, NULL, 0 };
    return cu.LaunchKernelEx(&c, put(), args, NULL);
}
static uint32_t first_word(dptr p)
{
    uint32_t *h = host_copy(p, 4), v = *h;
    free(h);
    return v;
}
/* This program again, with a setting, for one block -> did it pass? */
static bool again(const char *name, const char *value, const char *block)
{
    fflush(stdout);
    const pid_t pid = fork();
    if (!pid) {
        setenv(name, value, 1);
        dup2(2, 1); /* its last line is not this program's */
        execl("/proc/self/exe", "test_driver", block, (char *)NULL);
        _exit(127);
    }
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(devices)
{
    begin();
    int n, v;
    char name[64];
    const char *text;
    CHECK_INT(cu.DeviceGetCount(&n), 0);
    CHECK_INT(n, 2);
    CHECK_INT(cu.DeviceGetName(name, sizeof name, 1), 0);
    CHECK_TEXT(name, "Tegula emulated device");
    CHECK_INT(cu.DeviceGetName(name, sizeof name, 2), 101);
    CHECK_INT(cu.DriverGetVersion(&v), 0);
    CHECK_INT(v, 13000);
    CHECK_INT(cu.DeviceGetAttribute(&v, 97, 0), 0);
    CHECK_INT(v, 227 << 10);
    CHECK_INT(cu.GetErrorName(2, &text), 0);
    CHECK_TEXT(text, "CUDA_ERROR_OUT_OF_MEMORY");
    CHECK_INT(cu.GetErrorString(2, &text), 0);
    CHECK_TEXT(text, "out of memory");
    CHECK_INT(cu.GetErrorName(12345, &text), 1);
}

TEST(contexts)
{
    begin();
    void *ctx0, *ctx1, *own, *current, *stream;
    int device;
    CU(CtxGetCurrent(&ctx0));
    CU(DevicePrimaryCtxRetain(&ctx1, 1));
    CHECK(ctx0 != ctx1);
    CU(CtxPushCurrent(ctx1));
    CU(CtxGetDevice(&device));
    CHECK_INT(device, 1);
    CU(StreamCreate(&stream, 1));
    CU(CtxPopCurrent(&current));
    CHECK(current == ctx1);
    CU(CtxGetDevice(&device));
    CHECK_INT(device, 0);
    CU(StreamGetCtx(stream, &current));
    CHECK(current == ctx1);
    CU(StreamGetCtx(NULL, &current));
    CHECK(current == ctx0);
    dptr out = device_copy(NULL, 1024);
    CHECK_INT(put_on(stream, out, 1), 400); /* a stream of another context */
    CU(CtxCreate(&own, 0, 1));              /* becomes current */
    CU(CtxGetDevice(&device));
    CHECK_INT(device, 1);
    CU(CtxDestroy(own));
    CU(CtxGetCurrent(&current));
    CHECK(current == ctx0);
    CU(CtxSetCurrent(NULL));
    CHECK_INT(cu.MemAlloc(&out, 4), 201); /* no context */
    CHECK_INT(cu.CtxGetDevice(&device), 201);
    CU(CtxSetCurrent(ctx0));
    CU(StreamDestroy(stream));
    CU(MemFree(out ? out : 0));
}

TEST(memory)
{
    begin();
    dptr p = 0, other;
    void *pinned;
    size_t free_before, free_after, total;
    CU(MemGetInfo(&free_before, &total));
    CHECK_INT(cu.MemAlloc(&p, 0), 1);
    CHECK_INT(cu.MemAlloc(&p, free_before + 1), 2);
    CU(MemAlloc(&p, 1000));
    CU(MemGetInfo(&free_after, &total));
    CHECK_INT(free_before - free_after, 1000);
    CHECK_INT(p % 256, 0);
    CHECK_INT(cu.MemcpyDtoH(&total, p + 996, 8), 1); /* 4 bytes past the end */
    CU(MemHostAlloc(&pinned, 16, 0));
    use_device(1);
    other = device_copy(NULL, 16);
    use_device(0);

    int type, device, wants[] = { 2, 9, 11 };
    dptr begins;
    void *out[] = { &type, &device, &begins };
    CU(PointerGetAttributes(3, wants, out, other + 5));
    CHECK(type == 2 && device == 1 && begins == other);
    CU(PointerGetAttributes(3, wants, out, (dptr)(uintptr_t)pinned));
    CHECK(type == 1 && device == 0);
    CU(PointerGetAttributes(3, wants, out, (dptr)(uintptr_t)&type));
    CHECK(type == 0 && device == -2 && begins == 0);
    CHECK_INT(cu.PointerGetAttribute(&type, 2, (dptr)(uintptr_t)&type), 1);

    CU(MemcpyDtoD(p, other, 16)); /* between devices */
    CHECK_INT(first_word(p), 0);
    CU(MemsetD32Async(p, 0x01020304, 4, NULL));
    CHECK_INT(first_word(p), 0x01020304);
    CHECK_INT(cu.MemsetD32Async(p + 2, 0, 1, NULL), 1);
    CU(MemFree(p));
    CHECK_INT(cu.MemFree(p), 1);
    CHECK_INT(cu.MemFree(other + 8), 1);
    CHECK_INT(cu.MemFree(0), 0);
    CU(MemFreeHost(pinned));
    CU(MemFree(other));
}

TEST(registered_memory) /* the caller's own, page-locked from here to there */
{
    begin();
    uint32_t *own = aligned_alloc(4096, 4096);
    int type;
    dptr there, p = device_copy(NULL, 16);
    REQUIRE(own != NULL);
    CHECK_INT(cu.MemHostUnregister(own), 713);
    CHECK_INT(cu.MemHostRegister(own, 0, 0), 1);
    CU(MemHostRegister(own, 4096, 0));
    CHECK_INT(cu.MemHostRegister(own, 4096, 0), 712);
    CU(PointerGetAttribute(&type, 2, (dptr)(uintptr_t)(own + 3)));
    CHECK_INT(type, 1);
    CU(PointerGetAttribute(&there, 3, (dptr)(uintptr_t)(own + 3)));
    CHECK(there != 0);
    CHECK(cu.MemFreeHost(own) != 0); /* it is not the driver's */
    own[3] = 7;
    CU(MemcpyHtoD(p, own + 3, 4));
    CHECK_INT(first_word(p), 7);
    CU(MemHostUnregister(own));
    CHECK_INT(cu.MemHostUnregister(own), 713);
    CHECK_INT(cu.PointerGetAttribute(&type, 2, (dptr)(uintptr_t)own), 1);
    CU(MemFree(p));
    free(own);
}

TEST(each_device_runs_kernels_on_its_own_memory)
{
    begin();
    for (int device = 0; device < 2; device++) {
        use_device(device);
        dptr out = device_copy(NULL, 1024);
        CHECK_INT(put_on(NULL, out, 40 + (uint32_t)device), 0);
        CHECK_INT(cu.CtxSynchronize(), 0);
        CHECK_INT(first_word(out), 40 + device);
        emu_last_launch last;
        CHECK(emu.LastLaunch(&last) && last.device == device && last.block[0] == 32 && !strcmp(last.kernel, "put"));
        use_device(1 - device);
        CHECK_INT(put_on(NULL, out, 1), 0);
        CHECK_INT(cu.CtxSynchronize(), 700); /* and so does every later call on that device */
        CHECK_INT(put_on(NULL, out, 1), 700);
        CHECK(strstr(emu.LastReport(), "is memory of device") != NULL);
        use_device(device);
        CHECK_INT(cu.CtxSynchronize(), 0); /* this one works on */
        emu.Reset();
        CU(MemFree(out));
    }
    use_device(0);
}

TEST(damaged_images_are_refused)
{
    begin();
    void *library;
    for (size_t at = 0; at < image_bytes; at += at < 64 ? 1 : 997) {
        image[at] ^= 4;
        CHECK_THAT(cu.LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0) == 200, "byte %zu", at);
        image[at] ^= 4;
    }
    CHECK_INT(cu.LibraryLoadData(&library, "\177ELF and nothing else, for long enough to be read as a header of ours",
                                 NULL, NULL, 0, NULL, NULL, 0),
              200);
    CU(LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK_INT(cu.LibraryGetKernel(&library, library, "missing"), 500);
    CU(LibraryUnload(library));
}

TEST(images_of_other_architectures)
{
    begin();
    static const struct {
        const char *target;
        int status;
    } tried[] = {
        { "sm_80", 209 },    { "sm_90", 0 },       { "sm_90a", 0 },        { "sm_100a", 209 },
        { "compute_80", 0 }, { "compute_90a", 0 }, { "compute_100", 209 },
    };
    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
        void *program, *library = NULL;
        char option[64];
        const char *options[] = { option };
        size_t bytes;
        snprintf(option, sizeof option, "-arch=%s", tried[i].target);
        CHECK_INT(nv.CreateProgram(&program, "extern \"C\" __global__ void k(int *p) { *p = __CUDA_ARCH__; }", "k.cu",
                                   0, NULL, NULL),
                  0);
        CHECK_INT(nv.CompileProgram(program, 1, options), 0);
        CHECK_INT(nv.GetCUBINSize(program, &bytes), 0);
        CHECK_THAT((bytes == 0) == (tried[i].target[0] == 'c'), "%s: a cubin of %zu bytes", tried[i].target, bytes);
        CHECK_INT(nv.GetPTXSize(program, &bytes), 0);
        char *code = malloc(bytes);
        CHECK_INT(nv.GetPTX(program, code), 0);
        CHECK_INT(nv.DestroyProgram(&program), 0);
        const int status = cu.LibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0);
        CHECK_THAT(status == tried[i].status, "%s: %d, want %d", tried[i].target, status, tried[i].status);
        if (!status) CU(LibraryUnload(library));
        free(code);
    }
    char *code, *log;
    size_t bytes;
    CHECK_INT(compile_text(source, "driver.cu", "sm_42", &code, &bytes, &log), 5);
    free(log);
}

TEST(a_library_loaded_after_another_was_unloaded_is_the_new_one)
{
    begin();
    for (uint32_t i = 1; i < 4; i++) {
        char text[256];
        size_t bytes;
        snprintf(text, sizeof text, "extern \"C\" __global__ void k(unsigned *p) { *p = %u; }", i);
        char *code = compiled(text, "sm_90a", &bytes);
        void *library;
        CU(LibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
        dptr out = device_copy(NULL, 4);
        void *args[] = { &out };
        CHECK_INT(launch(kernel_of(library, "k"), 1, 1, 1, PLAIN, 0, args), 0);
        CHECK_INT(first_word(out), i);
        CU(MemFree(out));
        CU(LibraryUnload(library));
        free(code);
    }
}

TEST(launch_limits)
{
    begin();
    void *library;
    CU(LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    void *f = kernel_of(library, "spread"), *bounded = kernel_of(library, "put");
    dptr out = device_copy(NULL, 1 << 16);
    uint32_t value = 3;
    void *args[] = { &out, &value };
    int v, blocks;
    CHECK_INT(launch(f, 1, 1025, 1, PLAIN, 8192, args), 1);
    CHECK_INT(launch(bounded, 1, 288, 1, PLAIN, 0, args), 701); /* __launch_bounds__(256) */
    CHECK_INT(launch(f, 0, 32, 1, PLAIN, 8192, args), 1);
    CHECK_INT(launch(f, 1, 32, 1, PLAIN, 49153, args), 1); /* above 48 KB only by attribute */
    CHECK_INT(cu.FuncSetAttribute(f, 8, (227 << 10) + 1), 1);
    CHECK_INT(cu.FuncSetAttribute(f, 8, 227 << 10), 0);
    CHECK_INT(launch(f, 1, 32, 1, PLAIN, 227 << 10, args), 0);
    use_device(1); /* attributes are per device */
    CHECK_INT(cu.FuncGetAttribute(&v, 8, f), 0);
    CHECK_INT(v, 48 << 10);
    use_device(0);
    CHECK_INT(cu.KernelGetAttribute(&v, 8, f, 0), 0);
    CHECK_INT(v, 227 << 10);
    CHECK_INT(cu.KernelSetAttribute(8, 1000, f, 7), 101);
    CHECK_INT(launch(f, 16, 32, 16, PLAIN, 1024, args), 912);
    CHECK_INT(cu.FuncSetAttribute(f, 14, 1), 0); /* non-portable cluster sizes */
    CHECK_INT(launch(f, 16, 32, 16, PLAIN, 1024, args), 0);
    CHECK_INT(launch(f, 10, 32, 4, PLAIN, 1024, args), 912); /* 10 blocks in clusters of 4 */
    attribute cluster = { .id = 4, .value.dim = { 8, 1, 1 } };
    const launch_config wanted = { { 8, 1, 1 }, { 256, 1, 1 }, 100 << 10, NULL, &cluster, 1 };
    CHECK_INT(cu.OccupancyMaxActiveClusters(&v, f, &wanted), 0);
    CHECK_INT(v, 1); /* of 8 blocks, two on each of 4 SMs */
    cluster.value.dim[0] = 4;
    CHECK_INT(cu.OccupancyMaxActiveClusters(&v, f, &wanted), 0);
    CHECK_INT(v, 2);
    cluster.value.dim[0] = 32;
    CHECK_INT(cu.OccupancyMaxActiveClusters(&v, f, &wanted), 912);
    CHECK_INT(cu.OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 100 << 10), 0);
    CHECK_INT(blocks, 2);
    CHECK_INT(launch(f, 8, 256, 1, COOPERATIVE, 100 << 10, args), 0); /* 4 SMs */
    CHECK_INT(launch(f, 9, 256, 1, COOPERATIVE, 100 << 10, args), 720);
    CHECK_INT(cu.CtxSynchronize(), 0);
    CU(MemFree(out));
    CU(LibraryUnload(library));
}

TEST(small_clusters)
{
    if (!getenv("EMU_CLUSTER")) {
        CHECK(again("EMU_CLUSTER", "4", "small_clusters"));
        return;
    }
    begin();
    void *library;
    CU(LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    void *f = kernel_of(library, "spread");
    dptr out = device_copy(NULL, 1 << 16);
    void *args[] = { &out };
    attribute cluster = { .id = 4, .value.dim = { 8, 1, 1 } };
    const launch_config wanted = { { 8, 1, 1 }, { 32, 1, 1 }, 1024, NULL, &cluster, 1 };
    int v = -1;
    CHECK_INT(cu.OccupancyMaxActiveClusters(&v, f, &wanted), 0);
    CHECK_INT(v, 0);
    CHECK_INT(launch(f, 8, 32, 8, PLAIN, 1024, args), 912);
    CHECK_INT(launch(f, 8, 32, 4, PLAIN, 1024, args), 0);
    CHECK_INT(cu.CtxSynchronize(), 0);
    CU(MemFree(out));
    CU(LibraryUnload(library));
}

TEST(older_devices)
{
    if (!getenv("EMU_ARCH")) {
        CHECK(again("EMU_ARCH", "86,80", "older_devices"));
        return;
    }
    setenv("EMU_DEVICES", "2", 0);
    start();
    CHECK_TEXT(arch, "sm_86");
    int v;
    CU(DeviceGetAttribute(&v, 97, 0));
    CHECK_INT(v, 99 << 10);
    CU(DeviceGetAttribute(&v, 97, 1));
    CHECK_INT(v, 163 << 10);
    size_t bytes;
    void *library;
    char *code = compiled(source, "sm_80", &bytes);
    CU(LibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0)); /* sm_80's code runs on 8.6 */
    dptr out = device_copy(NULL, 1024);
    void *args[] = { &out };
    void *f = kernel_of(library, "spread");
    CHECK_INT(launch(f, 1, 32, 1, PLAIN, 1024, args), 0);
    CHECK_INT(launch(f, 1, 32, 1, PDL, 1024, args), 801);
    CHECK_INT(launch(f, 2, 32, 2, PLAIN, 1024, args), 801);
    CHECK_INT(cu.CtxSynchronize(), 0);
    CU(MemFree(out));
    CU(LibraryUnload(library));
    free(code);
}

/* ---- captures ---- */
enum { GLOBAL, THREAD_LOCAL, RELAXED };
TEST(a_captured_launch_runs_with_the_graph)
{
    begin();
    void *stream, *side, *event, *back, *graph, *exec;
    int status;
    uint64_t id;
    CU(StreamCreate(&stream, 1));
    CU(StreamCreate(&side, 1));
    CU(EventCreate(&event, 2));
    CU(EventCreate(&back, 2));
    dptr a = device_copy(NULL, 1024), b = device_copy(NULL, 1024), c = device_copy(NULL, 1024);
    CU(StreamBeginCapture(stream, GLOBAL));
    CHECK_INT(cu.StreamBeginCapture(stream, GLOBAL), 401);
    CU(StreamIsCapturing(stream, &status));
    CHECK_INT(status, 1);
    CU(StreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL));
    CHECK(status == 1 && id != 0);
    CHECK_INT(put_on(stream, a, 7), 0);
    CU(EventRecord(event, stream)); /* fork to another stream, and join */
    CU(StreamWaitEvent(side, event, 0));
    CU(MemcpyDtoDAsync(b, a, 128, side));
    CU(EventRecord(back, side));
    CU(StreamWaitEvent(stream, back, 0));
    CU(MemsetD32Async(c, 5, 1, stream));
    CHECK_INT(cu.StreamEndCapture(side, &graph), 903);
    CU(StreamEndCapture(stream, &graph));
    CU(GraphInstantiate(&exec, graph, 0));
    CU(GraphDestroy(graph));
    CHECK(first_word(a) == 0 && first_word(b) == 0 && first_word(c) == 0);
    for (int i = 0; i < 2; i++) {
        CU(GraphLaunch(exec, stream));
        CU(StreamSynchronize(stream));
        CHECK(first_word(a) == 7 && first_word(b) == 7 && first_word(c) == 5);
        CU(MemsetD8(a, 0, 1024));
    }
    CHECK_INT(cu.StreamEndCapture(stream, &graph), 401);
    CU(GraphExecDestroy(exec));
    CU(EventDestroy(event));
    CU(EventDestroy(back));
    CU(StreamDestroy(stream));
    CU(StreamDestroy(side));
    CU(MemFree(a));
    CU(MemFree(b));
    CU(MemFree(c));
}

/* ---- what is never another's, and what a graph keeps alive ---- */
static void *asks_for_its_id(void *out) /* the per-thread stream's, in another thread */
{
    use_device(0);
    CU(StreamGetId((void *)2, out));
    return NULL;
}
TEST(ids)
{
    begin();
    void *stream, *graph, *ctx;
    uint64_t legacy, null, mine, mine_again, theirs, first, second, here, there;
    pthread_t thread;
    CU(StreamGetId(NULL, &null));
    CU(StreamGetId((void *)1, &legacy));
    CU(StreamGetId((void *)2, &mine));
    CU(StreamGetId((void *)2, &mine_again));
    pthread_create(&thread, NULL, asks_for_its_id, &theirs);
    pthread_join(thread, NULL);
    CHECK(null == legacy && mine == mine_again && mine != null && theirs != mine && theirs != null);
    CU(StreamCreate(&stream, 1));
    CU(StreamGetId(stream, &first));
    CU(StreamBeginCapture(stream, RELAXED));
    CHECK_INT(cu.StreamGetId(stream, &second), 900);
    CU(StreamEndCapture(stream, &graph));
    CU(GraphDestroy(graph));
    CU(StreamDestroy(stream));
    CU(StreamCreate(&stream, 1)); /* perhaps at the same address */
    CU(StreamGetId(stream, &second));
    CHECK(first != second && first != null && second != null);
    CU(StreamDestroy(stream));
    CU(CtxGetId(NULL, &here));
    use_device(1);
    CU(CtxGetId(NULL, &there));
    CU(CtxGetCurrent(&ctx));
    use_device(0);
    CHECK(here != there);
    CU(CtxGetId(ctx, &here));
    CHECK(here == there);
}
static void count(void *calls) { ++*(int *)calls; }
TEST(user_objects)
{
    begin();
    void *stream, *graph, *exec, *object;
    int calls = 0, status;
    CU(UserObjectCreate(&object, &calls, count, 2, 1));
    CU(UserObjectRelease(object, 1));
    CHECK_INT(calls, 0);
    CU(UserObjectRelease(object, 1));
    CHECK_INT(calls, 1);
    CU(StreamCreate(&stream, 1));
    CU(StreamBeginCapture(stream, GLOBAL));
    CU(StreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL));
    CU(UserObjectCreate(&object, &calls, count, 1, 1));
    CU(GraphRetainUserObject(graph, object, 1, 1));
    CU(StreamEndCapture(stream, &graph));
    CU(GraphInstantiate(&exec, graph, 0));
    CU(GraphDestroy(graph));
    CU(GraphLaunch(exec, stream));
    CU(StreamSynchronize(stream));
    CHECK_INT(calls, 1); /* the executable graph holds it, too */
    CU(GraphExecDestroy(exec));
    CHECK_INT(calls, 2);
    CU(StreamBeginCapture(stream, GLOBAL)); /* a graph that fails to be captured lets go */
    CU(StreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL));
    CU(UserObjectCreate(&object, &calls, count, 1, 1));
    CU(GraphRetainUserObject(graph, object, 1, 0));
    CHECK_INT(cu.StreamSynchronize(stream), 900);
    CHECK_INT(cu.StreamEndCapture(stream, &graph), 901);
    CHECK_INT(calls, 2);
    CU(UserObjectRelease(object, 1));
    CHECK_INT(calls, 3);
    CU(StreamDestroy(stream));
}

static void *allocates(void *mode) /* another thread, in a capture mode */
{
    static int status;
    dptr p = 0;
    int m = *(int *)mode;
    void *ctx;
    CU(DevicePrimaryCtxRetain(&ctx, 0));
    CU(CtxSetCurrent(ctx));
    CU(ThreadExchangeStreamCaptureMode(&m));
    status = cu.MemAlloc(&p, 16);
    if (!status) cu.MemFree(p);
    return &status;
}
TEST(unsafe_calls_spoil_a_capture)
{
    begin();
    static const struct {
        int capture, thread, mine, status;
    } tried[] = {
        { GLOBAL, GLOBAL, 1, 900 },       { GLOBAL, THREAD_LOCAL, 1, 900 }, { GLOBAL, RELAXED, 1, 0 },
        { GLOBAL, GLOBAL, 0, 900 },       { GLOBAL, THREAD_LOCAL, 0, 0 },   { GLOBAL, RELAXED, 0, 0 },
        { THREAD_LOCAL, GLOBAL, 1, 900 }, { THREAD_LOCAL, GLOBAL, 0, 0 },   { RELAXED, GLOBAL, 1, 0 },
        { RELAXED, GLOBAL, 0, 0 },
    };
    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
        void *stream, *graph = NULL, *result;
        pthread_t thread;
        int mode = tried[i].thread;
        CU(StreamCreate(&stream, 1));
        CU(StreamBeginCapture(stream, tried[i].capture));
        if (tried[i].mine) {
            result = allocates(&mode);
            mode = GLOBAL;
            CU(ThreadExchangeStreamCaptureMode(&mode));
            CHECK_INT(mode, tried[i].thread);
        } else {
            pthread_create(&thread, NULL, allocates, &mode);
            pthread_join(thread, &result);
        }
        CHECK_THAT(*(int *)result == tried[i].status, "case %zu: %d, want %d", i, *(int *)result, tried[i].status);
        CHECK_INT(cu.StreamEndCapture(stream, &graph), tried[i].status ? 901 : 0);
        if (!tried[i].status) CU(GraphDestroy(graph));
        CU(StreamDestroy(stream));
    }
}
TEST(the_legacy_stream_spoils_a_capture_of_a_blocking_one)
{
    begin();
    void *stream, *graph;
    int status;
    dptr out = device_copy(NULL, 1024);
    CU(StreamCreate(&stream, 0));
    CU(StreamBeginCapture(stream, RELAXED));
    CHECK_INT(cu.StreamIsCapturing(NULL, &status), 906); /* asking does not */
    CHECK_INT(put_on(stream, out, 1), 0);
    CHECK_INT(put_on(NULL, out, 1), 906);
    CHECK_INT(put_on(stream, out, 1), 901);
    CHECK_INT(cu.StreamEndCapture(stream, &graph), 901);
    CHECK(graph == NULL);
    CHECK_INT(put_on(NULL, out, 1), 0);
    CU(StreamDestroy(stream));
    CU(MemFree(out));
}

/* ---- failures ---- */
TEST(injected_failures)
{
    begin();
    dptr p;
    put();
    CHECK(emu.Fail("cuMemAlloc:2,cuMemFree=UNKNOWN") == NULL);
    CHECK_INT(cu.MemAlloc(&p, 16), 0);
    CHECK_INT(cu.MemFree(p), 999);
    CHECK_INT(cu.MemFree(p), 0);
    CHECK_INT(cu.MemAlloc(&p, 16), 2);
    CHECK_INT(cu.MemAlloc(&p, 16), 0);
    CHECK(emu.Fail("cuLaunchKernelEx:1+=701") == NULL);
    for (int i = 0; i < 3; i++) CHECK_INT(put_on(NULL, p, 1), 701);
    CHECK(emu.Fail("kernel:2") == NULL);
    CU(MemFree(p));
    p = device_copy(NULL, 128);
    CHECK_INT(put_on(NULL, p, 1), 0);
    CHECK_INT(cu.CtxSynchronize(), 0);
    CHECK_INT(put_on(NULL, p, 1), 0);
    CHECK_INT(cu.CtxSynchronize(), 719);
    CHECK(strstr(emu.LastReport(), "injected") != NULL);
    emu.Reset();
    CHECK(emu.Fail("") == NULL);
    CHECK_INT(put_on(NULL, p, 1), 0);
    CHECK_INT(cu.CtxSynchronize(), 0);
    CU(MemFree(p));

    char *code, *log;
    size_t bytes;
    CHECK(emu.NvrtcFail("nvrtcCompileProgram") == NULL);
    CHECK_INT(compile_text(source, "driver.cu", "sm_90a", &code, &bytes, &log), 6);
    CHECK(strstr(log, "injected") != NULL);
    free(log);
    CHECK(emu.NvrtcFail("nvrtcCreateProgram=NVRTC_OUT_OF_MEMORY") == NULL);
    CHECK_INT(compile_text(source, "driver.cu", "sm_90a", &code, &bytes, &log), 1);
    CHECK(emu.NvrtcFail(NULL) == NULL);

    static const char *const wrong[] = {
        ":2", "cuInit:0", "cuInit:x", "cuInit=NONSENSE", "cuInit,,cuInit", "cuInit:2-"
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_THAT(emu.Fail(wrong[i]) != NULL, "\"%s\" is accepted", wrong[i]);
    emu.Fail(NULL);
}
TEST(calls_are_counted)
{
    begin();
    dptr p = device_copy(NULL, 128);
    put();
    emu.ResetCalls();
    for (int i = 0; i < 3; i++) CHECK_INT(put_on(NULL, p, 1), 0);
    CHECK_INT(emu.Calls("cuLaunchKernelEx"), 3);
    CHECK_INT(emu.Calls("cuMemAlloc"), 0);
    CU(MemFree(p));
    CHECK_INT(emu.Calls("cuMemFree"), 1); /* without its suffix */
}
TEST(what_is_alive)
{
    begin();
    emu_live_objects a, b, c;
    void *stream, *event, *library, *pinned;
    emu.Live(&a);
    dptr p = device_copy(NULL, 16);
    CU(MemHostAlloc(&pinned, 16, 0));
    CU(StreamCreate(&stream, 0));
    CU(EventCreate(&event, 0));
    CU(LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    emu.Live(&b);
    CHECK(b.allocations == a.allocations + 1 && b.host_allocations == a.host_allocations + 1 &&
          b.streams == a.streams + 1);
    CHECK(b.events == a.events + 1 && b.libraries == a.libraries + 1 && b.graphs == a.graphs);
    CU(MemFree(p));
    CU(MemFreeHost(pinned));
    CU(StreamDestroy(stream));
    CU(EventDestroy(event));
    CU(LibraryUnload(library));
    emu.Live(&c);
    CHECK(!memcmp(&a, &c, sizeof a));
}
TEST(a_forked_child_cannot_use_the_driver)
{
    begin();
    fflush(stdout);
    const pid_t pid = fork();
    if (!pid) {
        dptr p;
        int n;
        _exit(!(cu.Init(0) == 3 && cu.MemAlloc(&p, 4) == 3 && cu.DeviceGetCount(&n) == 3 &&
                cu.DriverGetVersion(&n) == 0));
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
TEST(settings_of_the_process)
{
    const char *device = getenv("EMU_DEVICES"), *driver = getenv("EMU_DRIVER"), *fail = getenv("EMU_FAIL");
    if (driver) { /* a driver without cuLibrary */
        int version;
        load();
        CHECK(cu.LibraryLoadData == NULL && cu.TensorMapEncodeTiled == NULL && cu.LaunchKernelEx != NULL);
        CHECK_INT(cu.DriverGetVersion(&version), 0);
        CHECK_INT(version, 11080);
    } else if (fail) {
        load();
        CHECK_INT(cu.Init(0), 803);
        CHECK_INT(cu.Init(0), 0);
    } else if (device && *device == '0') {
        load();
        CHECK_INT(cu.Init(0), 100);
    } else {
        CHECK(again("EMU_DRIVER", "11080", "settings_of_the_process"));
        CHECK(again("EMU_FAIL", "cuInit=SYSTEM_DRIVER_MISMATCH", "settings_of_the_process"));
        CHECK(again("EMU_DEVICES", "0", "settings_of_the_process"));
    }
}
/* ---- what memory holds that nothing has written ---- */
static const char *const fills[] = { "ones", "zeros", "7f", "indices", "random" };
__attribute__((weak)) void __msan_unpoison(const volatile void *, size_t);
static int fill_seen(const uint32_t *w) /* in 64 words; -1: none of them */
{
    if (__msan_unpoison) __msan_unpoison(w, 256); /* or MSan would end the program here, and be right */
    bool is_one_word = true, is_small = true;
    uint32_t some = 0;
    for (int i = 0; i < 64; i++) {
        is_one_word &= w[i] == w[0];
        is_small &= w[i] < (i % 2 ? 1 : 16); /* of 64 bits each, so that an i64 is small, too */
        some |= w[i];
    }
    if (is_one_word) return w[0] == 0xffffffff ? 0 : w[0] == 0 ? 1 : w[0] == 0x7f7f7f7f ? 2 : -1;
    return is_small ? 3 : some == 0xffffffff ? 4 : -1;
}
static int fill_of_memory(void)
{
    dptr p;
    CU(MemAlloc(&p, 256));
    uint32_t *w = host_copy(p, 256);
    const int fill = fill_seen(w);
    free(w);
    CU(MemFree(p));
    return fill;
}
static void fill_of_shared(int *in_array, int *dynamic)
{
    static void *library;
    if (!library) CU(LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    dptr out = device_copy(NULL, 512);
    void *args[] = { &out };
    CHECK_INT(launch(kernel_of(library, "unwritten"), 1, 64, 1, PLAIN, 256, args), 0);
    CU(CtxSynchronize());
    uint32_t *w = host_copy(out, 512);
    *in_array = fill_seen(w);
    *dynamic = fill_seen(w + 64);
    free(w);
    CU(MemFree(out));
}
TEST(fills)
{
    begin();
    const char *forced = getenv("EMU_FILL");
    int in_array, dynamic, seen[5] = { 0 };
    for (int i = 0; i < 5; i++) {
        if (!forced) CHECK(again("EMU_FILL", fills[i], "fills"));
        emu.Seed((uint64_t)i); /* at one time, each has another */
        const int fill = fill_of_memory();
        CHECK_THAT(fill >= 0, "seed %d fills with something else", i);
        if (fill < 0) return;
        if (forced) CHECK(!strcmp(forced, fills[fill]));
        seen[fill]++;
    }
    for (int i = 0; i < 5 && !forced; i++) CHECK_INT(seen[i], 1);
    int launches[5] = { 0 };
    emu.Seed(0);
    for (int i = 0; i < 60; i++) { /* and with a seed all come in turn */
        fill_of_shared(&in_array, &dynamic);
        CHECK(in_array == dynamic && dynamic >= 0);
        if (in_array != dynamic || dynamic < 0) return;
        if (forced) CHECK(!strcmp(forced, fills[dynamic]));
        launches[dynamic]++;
    }
    for (int i = 0; i < 5 && !forced; i++) CHECK_THAT(launches[i] > 5, "%s: %d of 60", fills[i], launches[i]);
}

TEST(lazy) /* EMU_LAZY: nothing happens before a synchronisation, and then in order */
{
    if (!getenv("EMU_LAZY")) {
        CHECK(again("EMU_LAZY", "1", "lazy"));
        return;
    }
    begin();
    void *pinned, *stream;
    CU(StreamCreate(&stream, 1));
    CU(MemHostAlloc(&pinned, 1024, 0));
    dptr out;
    void *args[] = { &pinned, &(uint32_t){ 9 } };
    CU(MemAlloc(&out, 1024));
    const launch_config c = { { 1, 1, 1 }, { 32, 1, 1 }, 0, stream, NULL, 0 };
    *(volatile uint32_t *)pinned = 5;
    CHECK_INT(cu.LaunchKernelEx(&c, put(), args, NULL), 0); /* into pinned memory, where the host can look */
    CHECK_INT(*(volatile uint32_t *)pinned, 5);
    CU(StreamSynchronize(stream));
    CHECK_INT(*(volatile uint32_t *)pinned, 9);
    CU(MemFree(out));
    CU(MemFreeHost(pinned));
    CU(StreamDestroy(stream));
}

static int compiler_version(void)
{
    int (*version)(int *, int *) = NULL, major = 0, minor = 0;
    void *library = dlopen(TEGULA_EMULATED_NVRTC, RTLD_NOW | RTLD_LOCAL);
    if (library) *(void **)&version = dlsym(library, "nvrtcVersion");
    CHECK(version && version(&major, &minor) == 0);
    return minor;
}

/* The version keys what is cached, so another compiler of the same name has another one. */
TEST(the_version_is_that_of_the_compiler)
{
    const char *before = getenv("EMU_CXX");
    char *kept = before ? strdup(before) : NULL, file[] = "/tmp/emulated-cxx-XXXXXX", again[64];
    const int fd = mkstemp(file);
    REQUIRE(fd >= 0 && fchmod(fd, 0700) == 0);
    setenv("EMU_CXX", file, 1);
    const int first = compiler_version();
    CHECK_INT(compiler_version(), first);
    const struct timespec times[2] = { { 1000, 0 }, { 1000, 0 } };
    CHECK(futimens(fd, times) == 0);
    const int second = compiler_version();
    CHECK(second != first);
    snprintf(again, sizeof again, "%s -O1", file);
    setenv("EMU_CXX", again, 1);
    CHECK(compiler_version() != second);
    char *path = strdup(getenv("PATH")); /* a bare name is looked up */
    setenv("EMU_CXX", strrchr(file, '/') + 1, 1);
    setenv("PATH", "/nonexistent:/tmp", 1);
    const int third = compiler_version();
    CHECK(write(fd, "#", 1) == 1 && futimens(fd, times) == 0);
    CHECK(compiler_version() != third); /* by its size */
    setenv("PATH", path, 1);
    free(path);
    if (kept) setenv("EMU_CXX", kept, 1);
    else unsetenv("EMU_CXX");
    free(kept);
    close(fd);
    unlink(file);
}
