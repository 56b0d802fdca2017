/* SPDX-License-Identifier: MIT
 * Every entry point of driver and compiler that a call needs fails once, at each of its calls, on the emulated
 * device, which fails on demand. The call must say which and why, leave nothing behind, and work when repeated. */
#include "cases/case.h"
#include "on_device.h"
#include "tegula/transpose.h"

/* ---- the driver ---- */

enum { ROWS = 33, COLS = 40, COUNT = ROWS * COLS, BYTES = COUNT * 2, WORKSPACE = 512 };

/* Memory and a stream, made by calling the driver directly, so that the library has not loaded it yet. */
typedef struct {
    tgl_cu_context context;
    tgl_cu_pointer x, out, workspace;
    tgl_stream stream;
} device;

#define RAW(name, symbol, parameters) \
    tgl_cu_result(*name) parameters;  \
    *(void **)&name = dlsym(library, symbol)

static device make_device(void)
{
    void *library = dlopen(getenv("TEGULA_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
    RAW(Init, "cuInit", (unsigned));
    RAW(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (tgl_cu_context *, tgl_cu_device));
    RAW(StreamCreate, "cuStreamCreate", (tgl_stream *, unsigned));
    RAW(CtxPushCurrent, "cuCtxPushCurrent_v2", (tgl_cu_context));
    RAW(CtxPopCurrent, "cuCtxPopCurrent_v2", (tgl_cu_context *));
    RAW(MemAlloc, "cuMemAlloc_v2", (tgl_cu_pointer *, size_t));
    RAW(MemcpyHtoD, "cuMemcpyHtoD_v2", (tgl_cu_pointer, const void *, size_t));
    device d = { 0 };
    uint16_t x[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = (uint16_t)i;
    CHECK(!Init(0) && !DevicePrimaryCtxRetain(&d.context, 0) && !CtxPushCurrent(d.context));
    CHECK(!StreamCreate(&d.stream, TGL_CU_STREAM_NON_BLOCKING));
    CHECK(!MemAlloc(&d.x, BYTES) && !MemAlloc(&d.out, BYTES) && !MemAlloc(&d.workspace, WORKSPACE));
    CHECK(!MemcpyHtoD(d.x, x, BYTES) && !CtxPopCurrent(NULL));
    return d;
}

/* A launch on the default stream, and one on a stream that tells the context. */
static tgl_status transposes(const device *d)
{
    int64_t x_shape[] = { ROWS, COLS }, out_shape[] = { COLS, ROWS };
    const DLDevice cuda = { kDLCUDA, 0 };
    const DLDataType bf16 = { TGL_DL_BFLOAT, 16, 1 };
    const DLTensor x = { (void *)(uintptr_t)d->x, cuda, 2, bf16, x_shape, NULL, 0 };
    DLTensor out = { (void *)(uintptr_t)d->out, cuda, 2, bf16, out_shape, NULL, 0 };
    TGL_TRY(tgl_transpose(&x, &out, NULL));
    return tgl_transpose(&x, &out, d->stream);
}

/* All that an op asks of a device, from the first call on: facts, a workspace, launches. Ends at the first
 * failure. */
static tgl_status scenario(const device *d)
{
    int num_sms;
    TGL_TRY(tgl_get_device_num_sms(0, &num_sms));
    TGL_TRY(tgl_workspace_init((void *)(uintptr_t)d->workspace, WORKSPACE, d->stream));
    return transposes(d);
}

static bool result_is_right(const device *d)
{
    uint16_t out[COUNT];
    bool ok = tgl_driver(&cu) == TGL_OK && !cu->CtxPushCurrent(d->context) && !cu->CtxSynchronize() &&
              !cu->MemcpyDtoH(out, d->out, BYTES) && !cu->CtxPopCurrent(NULL);
    for (int i = 0; i < COUNT && ok; i++) ok = out[i % COLS * ROWS + i / COLS] == i;
    return ok;
}

/* What a child, in which one failure is injected, tells its parent. */
typedef struct {
    bool was_hit;             /* was the entry called often enough? */
    tgl_status status, again; /* with the failure, and without it afterwards */
    char message[512];
    char leaves[128]; /* what is left behind; "": nothing */
} outcome;

enum { MAX_LIBRARIES = 3 }; /* the plan's kernels: they stay loaded */

static void watch_leaks(const control *c, emu_live_objects before, char text[128])
{
    emu_live_objects now;
    c->live(&now);
    if (now.libraries > MAX_LIBRARIES) snprintf(text, 128, "%d libraries", now.libraries);
    now.libraries = before.libraries;
    if (memcmp(&now, &before, sizeof now)) strcpy(text, "memory, streams, events or graphs");
}

static outcome run_with(const char *entry, int nth, const char *error)
{
    outcome o = { 0 };
    const control c = control_of("TEGULA_LIBCUDA");
    const device d = make_device();
    /* if restoring itself fails, nothing can be restored */
    const bool restores =
        !strcmp(entry, "cuCtxPopCurrent") || (!strcmp(entry, "cuThreadExchangeStreamCaptureMode") && nth % 2 == 0);
    emu_live_objects before;
    c.live(&before);
    char list[128];
    snprintf(list, sizeof list, "%s:%d=%s", entry, nth, error);
    c.reset_calls();
    CHECK_TEXT(c.fail(list) ? "is not understood" : "", "");
    o.status = scenario(&d);
    if (o.status) snprintf(o.message, sizeof o.message, "%s", tgl_last_error());
    o.was_hit = c.calls(entry) >= (uint64_t)nth;
    c.fail("");
    watch_leaks(&c, before, o.leaves);

    int mode = TGL_CU_CAPTURE_GLOBAL; /* what a thread begins with */
    if (!restores && tgl_driver(&cu) == TGL_OK) {
        if (current()) strcpy(o.leaves, "a context that is current");
        cu->ThreadExchangeStreamCaptureMode(&mode);
        if (mode != TGL_CU_CAPTURE_GLOBAL) strcpy(o.leaves, "another capture mode");
    }
    o.again = scenario(&d);
    if (o.again == TGL_OK && !result_is_right(&d)) strcpy(o.leaves, "a wrong result");
    watch_leaks(&c, before, o.leaves);
    return o;
}

/* The driver of this process stays unused, so that each child has one of its own. */
static outcome in_child(const char *entry, int nth, const char *error)
{
    outcome o = { 0 };
    int p[2];
    if (!CHECK(pipe(p) == 0)) return o;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        o = run_with(entry, nth, error);
        _exit(write(p[1], &o, sizeof o) == sizeof o ? 0 : 1);
    }
    close(p[1]);
    const bool is_whole = read(p[0], &o, sizeof o) == sizeof o;
    close(p[0]);
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK_THAT(is_whole && status == 0, "%s:%d=%s: the child ended with status 0x%x", entry, nth, error,
               (unsigned)status);
    return o;
}

typedef enum {
    FAILS,          /* with the error's status and a sentence that names entry point and error */
    FAILS_FOR_GOOD, /* TGL_ERR_DEVICE, now and on every later call: there is no driver to use */
    WORKS           /* the library does not need it */
} expected;

#define ONE(name, parameters) +1
enum { NUM_NEEDED = 0 TGL_DRIVER_NEEDED(ONE) };

static const struct {
    const char *entry;
    expected expected;
    int calls;
    const char *says;
} entries[] = {
    { "cuDriverGetVersion", FAILS_FOR_GOOD, 1,
      "this driver is of CUDA (unknown version), want 12.0 or newer; update NVIDIA's driver" },
    { "cuGetProcAddress", FAILS_FOR_GOOD, NUM_NEEDED, "; update NVIDIA's driver" }, /* of more */
    { "cuInit", FAILS_FOR_GOOD, 1, "cuInit: " },
    { "cuDeviceGetCount", FAILS, 1, "cuDeviceGetCount: " },
    { "cuDeviceGet", FAILS, 1, "cuDeviceGet: " },
    { "cuDeviceGetName", FAILS, 1, "cuDeviceGetName: " },
    { "cuDeviceTotalMem", FAILS, 1, "cuDeviceTotalMem: " },
    { "cuDeviceGetAttribute", FAILS, 7, "cuDeviceGetAttribute: " },
    { "cuDevicePrimaryCtxRetain", FAILS, 1, "cuDevicePrimaryCtxRetain: " },
    { "cuCtxGetCurrent", WORKS, 1, "" }, /* as if none were current */
    { "cuCtxPushCurrent", FAILS, 3, "cuCtxPushCurrent: " },
    { "cuCtxPopCurrent", WORKS, 3, "" },
    { "cuCtxGetDevice", FAILS, 2, "cuCtxGetDevice: " },
    { "cuStreamGetCtx", FAILS, 2, "stream: cuStreamGetCtx: " },
    { "cuPointerGetAttribute", FAILS, 1, "workspace: cuPointerGetAttribute: " },
    { "cuMemsetD8Async", FAILS, 1, "workspace: cuMemsetD8Async: " },
    { "cuStreamIsCapturing", FAILS, 1, "stream: cuStreamIsCapturing: " },
    { "cuThreadExchangeStreamCaptureMode", WORKS, 18, "" }, /* it loads in the mode that there is */
    /* of each kernel of the plan */
    { "cuLibraryLoadData", FAILS, 3, ": cuLibraryLoadData: " },
    { "cuLibraryGetKernel", FAILS, 3, ": cuLibraryGetKernel: " },
    { "cuKernelGetAttribute", FAILS, 3, ": cuKernelGetAttribute: " },
    { "cuKernelSetAttribute", FAILS, 6, ": cuKernelSetAttribute(" },
    { "cuKernelGetFunction", FAILS, 3, ": cuKernelGetFunction: " },
    { "cuLaunchKernelEx", FAILS, 2, ": cuLaunchKernelEx: " },
};

/* errors that mean something of their own: memory, a fault of an earlier kernel, anything else */
static const struct {
    const char *name;
    tgl_status status;
    const char *says;
} errors[] = {
    { "OUT_OF_MEMORY", TGL_ERR_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" },
    { "LAUNCH_FAILED", TGL_ERR_CUDA,
      "CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure); an earlier kernel in this context failed" },
    { "NOT_SUPPORTED", TGL_ERR_CUDA, "CUDA_ERROR_NOT_SUPPORTED (operation not supported)" },
};

/* A message begins with what an entry says, or with a kernel's name before that. */
static bool names_call(const char *message, const char *says)
{
    static const char kernel[] = "transpose/transpose";
    if (says[0] != ':') return strstr(message, says) == message;
    return !strncmp(message, kernel, strlen(kernel)) && strstr(message, says);
}

static void check_outcome(size_t i, int nth, size_t e, expected want, const outcome *o)
{
    char what[128];
    snprintf(what, sizeof what, "%s:%d=%s", entries[i].entry, nth, errors[e].name);
    CHECK_THAT(!o->leaves[0], "%s leaves %s", what, o->leaves);
    bool ok = false;
    switch (want) {
    case WORKS: ok = o->status == TGL_OK && o->again == TGL_OK; break;
    case FAILS_FOR_GOOD:
        ok = o->status == TGL_ERR_DEVICE && o->again == TGL_ERR_DEVICE && strstr(o->message, entries[i].says);
        break;
    case FAILS:
        ok = o->status == errors[e].status && names_call(o->message, entries[i].says) &&
             strstr(o->message, errors[e].says) && o->again == TGL_OK;
        break;
    }
    CHECK_THAT(ok, "%s gives %s (%s), and then %s", what, tgl_status_name(o->status), o->message,
               tgl_status_name(o->again));
}

static void check_entry(size_t i, size_t e)
{
    const bool finds = !strcmp(entries[i].entry, "cuGetProcAddress");
    /* what the driver refuses is made again, once, unless the error says that this would be no use */
    const bool is_rebuilt =
        !strncmp(entries[i].entry, "cuLibrary", strlen("cuLibrary")) && !strcmp(errors[e].name, "NOT_SUPPORTED");
    int nth = 1;
    for (; !finds || nth <= NUM_NEEDED + 2; nth++) { /* a few of what is not needed will do */
        const outcome o = in_child(entries[i].entry, nth, errors[e].name);
        if (!o.was_hit) break;
        const bool is_needed = !is_rebuilt && (!finds || nth <= NUM_NEEDED);
        check_outcome(i, nth, e, is_needed ? entries[i].expected : WORKS, &o);
    }
    CHECK_THAT(nth > entries[i].calls, "%s was called %d times, want at least %d", entries[i].entry, nth - 1,
               entries[i].calls);
}

/* The kernels, compiled by a process of its own that needs no driver, so that the others only load them. */
static bool fill_cache(void)
{
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        const device none = { 0 };
        if (tgl_prepare_begin(0, "sm_90a") || transposes(&none) || tgl_prepare_end()) _exit(1);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return CHECK_INT(status, 0);
}

TEST(every_call_of_the_driver)
{
    NEED_EMULATOR();
    REQUIRE(fill_cache());
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        const size_t num_errors = entries[i].expected == FAILS ? sizeof errors / sizeof errors[0] : 1;
        for (size_t e = 0; e < num_errors; e++) check_entry(i, e);
    }
}

/* A kernel that fails while it runs: the call was over by then, so the caller's synchronisation says it, and
 * later calls do. */
TEST(a_kernel_that_faults)
{
    IN_CHILD("EMU_SMS=4", "EMU_FAIL=kernel", "EMU_LAZY=1");
    NEED_EMULATOR();
    const device d = make_device();
    emu_live_objects before = live(), after;
    CHECK_OK(transposes(&d));
    LOAD_DRIVER();
    CHECK_INT(cu->CtxPushCurrent(d.context), 0);
    CHECK_INT(cu->CtxSynchronize(), 719);
    CHECK_INT(cu->CtxPopCurrent(NULL), 0);
    CHECK_FAILS(transposes(&d), TGL_ERR_CUDA,
                "transpose/transpose_any: cuLaunchKernelEx: CUDA_ERROR_LAUNCH_FAILED (unspecified launch "
                "failure); an earlier kernel in this context failed");
    after = live();
    before.libraries = after.libraries; /* the kernel stays loaded */
    CHECK(!memcmp(&before, &after, sizeof before));
}

/* Cases are given back whole, wherever memory ends: check and bench go on with the next one. */
TEST(no_memory_for_a_case)
{
    IN_CHILD("EMU_SMS=4");
    NEED_EMULATOR();
    const control c = control_of("TEGULA_LIBCUDA");
    const backend *b = backend_of_tests(0);
    const case_op *op = case_find("transpose");
    const char *const lines[] = { "num_rows=33 num_cols=40 dtype=bf16", NULL };
    case_params params;
    case_report report;
    REQUIRE(b && op && CHECK_OK(case_at(op, lines, 0, &params)));
    REQUIRE(case_check(op, &params, b, &report) == CASE_PASSED);
    emu_live_objects before, after;
    c.live(&before);
    int nth = 1;
    for (;; nth++) {
        char list[64];
        snprintf(list, sizeof list, "cuMemAlloc:%d", nth);
        c.reset_calls();
        c.fail(list);
        const case_result result = case_check(op, &params, b, &report);
        const bool was_hit = c.calls("cuMemAlloc") >= (uint64_t)nth;
        c.fail("");
        c.live(&after);
        CHECK_THAT(!memcmp(&before, &after, sizeof before), "allocation %d: something is left", nth);
        if (!was_hit) break;
        const char *said = strstr(report.text, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
        CHECK_THAT(result == CASE_SKIPPED && said, "allocation %d: %s", nth, report.text);
    }
    CHECK_THAT(nth > 2, "%d allocations, want x and out at least", nth - 1);
    CHECK(case_check(op, &params, b, &report) == CASE_PASSED);
}

/* A context may have fewer SMs than its device: then the driver refuses launches of which all blocks are to be resident at
 * once. Such ops take fewer blocks, or another kernel. */
TEST(launches_that_are_refused)
{
    IN_CHILD("EMU_SMS=8");
    NEED_EMULATOR();
    static const struct {
        const char *op, *line;
    } rows[] = {
        { "moe_get_fused_mapping", "num_tokens=4096 num_topk=8 num_experts=256 alignment=128" },
        { "moe_route", "num_tokens=200 num_experts=72 num_topk=6" },
        { "engram_lookup_bwd", "num_tokens=500" },
        { "engram_sinkhorn_step", "num_rows=500 dim=512 reduce=1" },
    };
    const control c = control_of("TEGULA_LIBCUDA");
    const backend *b = backend_of_tests(0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const case_op *op = case_find(rows[i].op);
        case_params params;
        case_report report;
        REQUIRE(b && op && CHECK_OK(case_at(op, (const char *const[]){ rows[i].line, NULL }, 0, &params)));
        for (int nth = 1; nth <= 2; nth++) { /* half of the SMs are there, or a quarter */
            c.reset_calls();
            c.fail(nth == 1 ? "cuLaunchKernelEx=720" : "cuLaunchKernelEx=720,cuLaunchKernelEx:2=720");
            const case_result result = case_check(op, &params, b, &report);
            c.fail("");
            CHECK_THAT(result == CASE_PASSED && c.calls("cuLaunchKernelEx") >= (uint64_t)nth + 2, "%s: %s", op->name,
                       report.text); /* each case has two calls */
        }
    }
}

/* ---- the compiler ---- */

static tgl_status compile(tgl_image *image)
{
    static const tgl_macro macros[TGL_MAX_MACROS] = { { "FACTOR", 2 } };
    return tgl_jit_source(&support_source, macros, "sm_90a", TGL_JIT_MAY_COMPILE, image);
}

TEST(every_call_of_the_compiler)
{
    IN_CHILD("EMU_SMS=4");
    NEED_EMULATOR();
    const control c = control_of("TEGULA_LIBNVRTC");
    static const struct {
        const char *list, *says;
    } rows[] = {
        { "nvrtcCreateProgram", "nvrtcCreateProgram: NVRTC_ERROR_OUT_OF_MEMORY" },
        { "nvrtcCompileProgram", "NVRTC_ERROR_COMPILATION: " },
        { "nvrtcCompileProgram=NVRTC_OUT_OF_MEMORY", "NVRTC_ERROR_OUT_OF_MEMORY: " },
        { "nvrtcGetCUBINSize", "NVRTC 13." },
        { "nvrtcGetCUBIN", "NVRTC gave no image" },
    };
    tgl_image image;
    char begins[128];
    CHECK_OK(tgl_set_cache_dir(""));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK(!c.fail(rows[i].list));
        const tgl_status status = compile(&image);
        c.fail("");
        snprintf(begins, sizeof begins, "tests/scale (FACTOR=2) for sm_90a: %s", rows[i].says);
        const char *said = tgl_last_error();
        CHECK_THAT(status == TGL_ERR_COMPILE && strstr(said, begins) == said, "%s gives %s: %s", rows[i].list,
                   tgl_status_name(status), said);
        CHECK(!image.image && !image.log);
    }
    CHECK_INT(tgl_compile_count(), 0);
    static const char *const tolerated[] = { "nvrtcGetProgramLogSize", "nvrtcGetProgramLog" };
    for (size_t i = 0; i < sizeof tolerated / sizeof tolerated[0]; i++) { /* no log is no reason to fail */
        CHECK(!c.fail(tolerated[i]));
        CHECK_OK(compile(&image));
        CHECK(image.bytes > 100 && image.log);
        tgl_image_free(&image);
        c.fail("");
    }
    CHECK_INT(tgl_compile_count(), 2);
    CHECK_INT(c.calls("nvrtcDestroyProgram"), c.calls("nvrtcCreateProgram") - 1); /* all that were made */
}

/* The same through a launch: nothing is loaded, the next call compiles. */
TEST(a_compiler_that_fails_under_a_launch)
{
    IN_CHILD("EMU_SMS=4");
    NEED_EMULATOR();
    support_folder folder = support_make_folder();
    CHECK_OK(tgl_set_cache_dir(folder.path));
    const control nvrtc = control_of("TEGULA_LIBNVRTC");
    const device d = make_device();
    const emu_live_objects before = live();
    nvrtc.fail("nvrtcCompileProgram:1+"); /* of all kernels of the plan, which compile at the same time */
    CHECK_INT(transposes(&d), TGL_ERR_COMPILE);
    CHECK_BEGINS(tgl_last_error(), "transpose/transpose_any (ELEMENT_BYTES=2) for sm_90a: NVRTC_ERROR_COMPILATION: ");
    const emu_live_objects after = live();
    CHECK(!memcmp(&before, &after, sizeof before));
    CHECK_INT(support_count(folder.path, ""), 0);
    nvrtc.fail("nvrtcCompileProgram"); /* of one: the others may be kept */
    CHECK_INT(transposes(&d), TGL_ERR_COMPILE);
    CHECK_BEGINS(tgl_last_error(), "transpose/transpose");
    nvrtc.fail("");
    CHECK_OK(transposes(&d));
    CHECK(result_is_right(&d));
    support_remove(folder.path);
}

TEST(a_compiler_that_is_none)
{
    IN_CHILD("EMU_FAIL=nvrtcVersion");
    NEED_EMULATOR();
    tgl_image image;
    char want[512];
    CHECK_OK(tgl_set_cache_dir(""));
    snprintf(want, sizeof want, "TEGULA_LIBNVRTC: %s is no NVRTC 12 or newer", getenv("TEGULA_LIBNVRTC"));
    for (int i = 0; i < 2; i++) CHECK_FAILS(compile(&image), TGL_ERR_COMPILE, want);
}

/* No list of architectures: any is tried. */
TEST(a_compiler_that_does_not_say_what_it_knows)
{
    IN_CHILD("EMU_FAIL=nvrtcGetNumSupportedArchs");
    NEED_EMULATOR();
    tgl_image image;
    CHECK_OK(tgl_set_cache_dir(""));
    CHECK_OK(compile(&image));
    tgl_image_free(&image);
}
