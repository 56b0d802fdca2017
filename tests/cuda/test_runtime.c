/* SPDX-License-Identifier: MIT
 * Loading and launching on a device: the emulated one, or a GPU. Almost every block runs in a process of
 * its own, since it is about what happens first. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "cuda/driver.h"
#include "cuda/kernels.h"
#include "emulator/control.h"
#include "support.h"

/* Kernels of the tests' own: defined here, the table takes the place of the library's (an archive's member
 * is linked only where something is missing). */
static const char add_text[] =
    "#include \"device/amount.cuh\"\n"
    "#include \"device/ptx.cuh\"\n"
    "struct add_args { float *p; long long n; };\n"
    "extern \"C\" __global__ void __launch_bounds__(256) add(add_args a)\n"
    "{\n"
    "    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
    "    pdl_wait();\n"
    "    if (i < a.n) a.p[i] += AMOUNT;\n"
    "}\n";
static const char other_text[] =
    "extern \"C\" __global__ void not_named_like_the_file(float *p) { p[0] = 0; }\n";
static const char amount_text[] = "#ifndef AMOUNT\n#error AMOUNT is not defined\n#endif\n";
static const char ptx_text[] =                   /* the emulated NVRTC puts its own in this one's place */
    "static __device__ __forceinline__ void pdl_wait(void)\n"
    "{\n"
    "#if __CUDA_ARCH__ >= 900\n"
    "    asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"
    "#endif\n"
    "}\n";
static const int add_headers[] = { 1, 2, -1 }, no_headers[] = { -1 };
#define TEXT(text) (const unsigned char *)(text), sizeof(text) - 1
const int tgl_num_embedded = 4;
const tgl_embedded_file tgl_embedded[] = {
    { "tests/add", TEXT(add_text), add_headers },
    { "device/amount.cuh", TEXT(amount_text), no_headers },
    { "device/ptx.cuh", TEXT(ptx_text), no_headers },
    { "tests/other", TEXT(other_text), no_headers },
};

/* The first of them as tgl_jit_key() wants it. */
static const char *const add_header_names[] = { "device/amount.cuh", "device/ptx.cuh" };
static const char *const add_header_texts[] = { amount_text, ptx_text };
static const tgl_source add_source = { "tests/add", add_text, 2, add_header_names, add_header_texts };

static tgl_kernel add_kernel(int amount) { return (tgl_kernel){ "tests/add", { { "AMOUNT", amount } } }; }

/* ---- a device ---- */

static const tgl_driver_table *cu;
#define CU(call) CHECK_OK(tgl_driver_check(cu->call, "cu" #call))

/* Loads the driver. Blocks come here in a child, with a cache folder that nobody else uses, so that counts
 * are theirs. */
#define NEED_DEVICE()                                                                                      \
    do {                                                                                                   \
        const char *where = getenv("TEGULA_TEST_DEVICE");                                                  \
        if (!where || strcmp(where, "cuda")) SKIP("needs a device, this is the run without one");          \
        REQUIRE(tgl_driver(&cu) == TGL_OK);                                                                \
    } while (0)
#define NEED_EMULATOR()                                                                                    \
    do {                                                                                                   \
        NEED_DEVICE();                                                                                     \
        if (!control("emuCalls")) SKIP("needs the emulated device");                                       \
    } while (0)

static void *control(const char *name) { return dlsym(cu->handle, name); }

static uint64_t calls(const char *entry)
{
    emuCalls_function f;
    *(void **)&f = control("emuCalls");
    return f(entry);
}

static void inject(const char *list)
{
    emuFail_function f;
    *(void **)&f = control("emuFail");
    CHECK_TEXT(f(list) ? f(list) : "", "");
}

static emu_last_launch last_launch(void)
{
    emuLastLaunch_function f;
    emu_last_launch l = { 0 };
    *(void **)&f = control("emuLastLaunch");
    CHECK(f(&l));
    return l;
}

static int live_libraries(void)
{
    emuLive_function f;
    emu_live_objects o;
    *(void **)&f = control("emuLive");
    f(&o);
    return o.libraries;
}

static support_folder cache;

static void use_new_cache(void)
{
    cache = support_make_folder();
    CHECK_OK(tgl_set_cache_dir(cache.path));
}

static void end_cache(void) { support_remove(cache.path); }

/* An array on a device, made in the primary context, which is then not current any more. */
enum { COUNT = 300 };
typedef struct { tgl_cu_pointer data; DLTensor tensor; tgl_cu_context context; } array;

static array make_array(int device)
{
    static int64_t shape[1] = { COUNT };
    array a = { 0 };
    float zero[COUNT] = { 0 };
    tgl_cu_device handle;
    CU(DeviceGet(&handle, device));
    CU(DevicePrimaryCtxRetain(&a.context, handle));
    CU(CtxPushCurrent(a.context));
    CU(MemAlloc(&a.data, sizeof zero));
    CU(MemcpyHtoD(a.data, zero, sizeof zero));
    CU(CtxPopCurrent(NULL));
    a.tensor = (DLTensor){ .data = (void *)(uintptr_t)a.data, .device = { kDLCUDA, device }, .ndim = 1,
                           .dtype = { TGL_DL_FLOAT, 32, 1 }, .shape = shape };
    return a;
}

static void free_array(array *a)
{
    CU(CtxPushCurrent(a->context));
    CU(MemFree(a->data));
    CU(CtxPopCurrent(NULL));
}

static void check_array(const array *a, float want)
{
    float seen[COUNT];
    CU(CtxPushCurrent(a->context));
    CU(CtxSynchronize());
    CU(MemcpyDtoH(seen, a->data, sizeof seen));
    CU(CtxPopCurrent(NULL));
    for (int i = 0; i < COUNT; i++)
        CHECK_THAT(seen[i] == want, "element %d is %g, want %g", i, (double)seen[i], (double)want);
}

typedef struct { tgl_cu_pointer p; int64_t n; } add_args;

static tgl_status add_shaped(const array *a, int amount, tgl_shape shape, tgl_stream stream)
{
    const tgl_kernel k = add_kernel(amount);
    const add_args args = { a->data, COUNT };
    shape.args = &args;
    shape.args_bytes = sizeof args;
    return tgl_launch(&k, 1, 0, &a->tensor, &shape, stream);
}

static tgl_status add(const array *a, int amount, tgl_stream stream)
{
    return add_shaped(a, amount, (tgl_shape){ .grid = { (COUNT + 255) / 256 }, .block = 256 }, stream);
}

/* ---- without a device ---- */

TEST(no_driver)
{
    IN_CHILD("TEGULA_LIBCUDA=/nonexistent/libcuda.so.1");
    static const char message[] =
        "no CUDA driver: /nonexistent/libcuda.so.1: cannot open shared object file: No such file or "
        "directory (TEGULA_LIBCUDA names this file)";
    int n;
    int64_t bytes;
    CHECK_FAILS(tgl_get_device_num_sms(0, &n), TGL_ERR_DEVICE, message);
    CHECK_FAILS(tgl_get_max_smem_per_sm(0, &bytes), TGL_ERR_DEVICE, message);
    CHECK_INT(tgl_get_num_sms(0), 0);
    CHECK_FAILS(tgl_device_count(&n), TGL_ERR_DEVICE, message);
    CHECK_FAILS(tgl_prepare_begin(0, NULL), TGL_ERR_DEVICE, message);
    CHECK(!tgl_preparing());
    const array a = { .tensor = { .device = { kDLCUDA, 0 } } };
    CHECK_FAILS(add(&a, 1, NULL), TGL_ERR_DEVICE, message);
    CHECK_FAILS(tgl_workspace_init((void *)256, 256, NULL), TGL_ERR_DEVICE, message);
    CHECK_INT(tgl_driver_version(), 0);
}

/* All that compiling ahead needs is NVRTC. */
TEST(prepare_for_an_architecture)
{
    IN_CHILD("TEGULA_LIBCUDA=/nonexistent/libcuda.so.1");
    if (!tgl_nvrtc_or_null()) SKIP("no NVRTC is found here");
    use_new_cache();
    const array a = { .tensor = { .device = { kDLCUDA, 5 } } };
    CHECK_OK(tgl_prepare_begin(0, "sm_90a"));
    CHECK(tgl_preparing());
    tgl_target t;
    CHECK_OK(tgl_target_of(&a.tensor, &t));
    CHECK(t.num_sms == 132 && t.architecture == 90 && t.max_smem_per_block == 227 << 10);
    CHECK_OK(add(&a, 1, NULL));
    CHECK_OK(add(&a, 1, NULL));                         /* found */
    CHECK_OK(add_shaped(&a, 1, (tgl_shape){ .grid = { -7 } }, NULL));      /* shapes do not matter */
    CHECK_OK(tgl_workspace_init(NULL, 256, NULL));      /* as tgl_workspace_get() gives it here */
    CHECK_INT(add(&a, 2, NULL), TGL_OK);
    CHECK_OK(tgl_prepare_end());
    CHECK(!tgl_preparing());
    CHECK_INT(tgl_compile_count(), 2);
    CHECK_INT(support_count(cache.path, ".tgl"), 2);
    CHECK_OK(tgl_prepare_begin(-1, "sm_120a"));
    CHECK_OK(tgl_target_of(&a.tensor, &t));
    CHECK(t.num_sms == 188 && t.architecture == 120 && t.max_smem_per_block == 99 << 10);
    CHECK_OK(tgl_prepare_end());
    end_cache();
}

static tgl_status compile_scale(int factor, tgl_image *image)
{
    const tgl_macro macros[TGL_MAX_MACROS] = { { "FACTOR", factor } };
    return tgl_jit_source(&support_source, macros, "sm_90a", TGL_JIT_MAY_COMPILE, image);
}

TEST(strict_mode_names_folders_that_are_refused)
{
    support_folder baked = { "" };
    char change[300] = "";
    if (!getenv("TEGULA_TEST_CHILD")) {
        baked = support_make_folder();
        CHECK(chmod(baked.path, 0777) == 0);
        snprintf(change, sizeof change, "TEGULA_CACHE_READONLY=%s", baked.path);
    }
    if (!support_in_child(__func__ + strlen("test_"), (const char *const[]){ change, NULL })) {
        support_remove(baked.path);
        return;
    }
    const char *readonly = getenv("TEGULA_CACHE_READONLY");
    support_folder f = support_make_folder();
    CHECK(chmod(f.path, 0722) == 0);
    CHECK_OK(tgl_set_cache_dir(f.path));
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    char want[1024];
    snprintf(want, sizeof want,
             "tests/scale (FACTOR=4) for sm_90a: not in the cache (TEGULA_CACHE_READONLY: %s is refused: others "
             "may write to it (mode 777); %s is refused: others may write to it (mode 722)), and "
             "TEGULA_JIT=never forbids to compile it; fill the cache with `tegula compile`",
             readonly, f.path);
    tgl_image image;
    CHECK_FAILS(compile_scale(4, &image), TGL_ERR_COMPILE, want);
    support_remove(f.path);
}

/* The options that an NVRTC of a version gets; recording_nvrtc.c writes them down in its log. */
static void check_options(bool has_no_cache)
{
    tgl_image image;
    CHECK_OK(tgl_set_cache_dir(""));
    REQUIRE(CHECK_OK(compile_scale(2, &image)));
    char want[256];
    snprintf(want, sizeof want,
             "--gpu-architecture=sm_90a\n-DFACTOR=2\n--std=c++17\n--fmad=false\n--ptxas-options=-v\n"
             "--diag-suppress=177\n%s", has_no_cache ? "--no-cache\n" : "");
    CHECK_TEXT(image.log, want);
    tgl_image_free(&image);
}
#define WITH_NVRTC(version) IN_CHILD("TEGULA_LIBNVRTC=" TEGULA_RECORDING_NVRTC, "TEGULA_TEST_NVRTC=" version)
TEST(options_of_nvrtc_12_0) { WITH_NVRTC("12.0"); check_options(false); }
TEST(options_of_nvrtc_12_8) { WITH_NVRTC("12.8"); check_options(false); }
TEST(options_of_nvrtc_12_9) { WITH_NVRTC("12.9"); check_options(true); }
TEST(options_of_nvrtc_13_0) { WITH_NVRTC("13.0"); check_options(true); }

TEST(prepare_in_pairs)
{
    CHECK_FAILS(tgl_prepare_end(), TGL_ERR_ARGUMENT,
                "tgl_prepare_end: this thread is not preparing; call tgl_prepare_begin before");
    CHECK_FAILS(tgl_prepare_begin(0, "hopper"), TGL_ERR_ARGUMENT,
                "architecture: is \"hopper\", want one such as sm_90a");
    static const struct { const char *is, *message; } wrong[] = {      /* no device looks for these */
        { "sm_90", "architecture: is \"sm_90\", want sm_90a" },
        { "sm_86a", "architecture: is \"sm_86a\", want sm_86" },
        { "sm_100f", "architecture: is \"sm_100f\", want sm_100a" },
        { "compute_90a", "architecture: is \"compute_90a\", want compute_90" },
        { "sm_75", "architecture: is \"sm_75\", want one such as sm_90a" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_FAILS(tgl_prepare_begin(0, wrong[i].is), TGL_ERR_ARGUMENT, wrong[i].message);
    CHECK_OK(tgl_prepare_begin(0, "compute_90"));
    CHECK_OK(tgl_prepare_end());
    CHECK_OK(tgl_prepare_begin(0, "sm_80"));
    CHECK_FAILS(tgl_prepare_begin(0, "sm_90a"), TGL_ERR_ARGUMENT,
                "tgl_prepare_begin: this thread is preparing already; call tgl_prepare_end first");
    CHECK_OK(tgl_prepare_end());
    CHECK(!tgl_preparing());
}

TEST(workspaces_that_will_not_do)
{
    CHECK_OK(tgl_workspace_init(NULL, 0, NULL));
    CHECK_FAILS(tgl_workspace_init(NULL, 512, NULL), TGL_ERR_WORKSPACE,
                "workspace: is NULL, want 512 bytes of device memory");
    CHECK_FAILS(tgl_workspace_init((void *)0x1080, 512, NULL), TGL_ERR_WORKSPACE,
                "workspace: address is 0x1080, want a multiple of 256");
}

TEST(an_old_driver)
{
    IN_CHILD("EMU_DRIVER=11080");
    const char *file = getenv("TEGULA_LIBCUDA");
    if (!file || !strstr(file, "emulated")) SKIP("needs the emulated device");
    int n;
    CHECK_INT(tgl_device_count(&n), TGL_ERR_DEVICE);
    CHECK_THAT(
        strstr(tgl_last_error(), "this driver is of CUDA 11.8, want 12.0 or newer; update NVIDIA's driver"),
        "the message is \"%s\"", tgl_last_error());
}

TEST(no_device)
{
    IN_CHILD("EMU_DEVICES=0");
    const char *file = getenv("TEGULA_LIBCUDA");
    if (!file || !strstr(file, "emulated")) SKIP("needs the emulated device");
    int n;
    CHECK_FAILS(tgl_device_count(&n), TGL_ERR_DEVICE,
                "cuInit: CUDA_ERROR_NO_DEVICE: no GPU is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES");
}

/* ---- facts ---- */

TEST(what_a_device_has)
{
    IN_CHILD("EMU_SMS=6", "EMU_ARCH=90");
    NEED_DEVICE();
    const tgl_device *d;
    int count, num_sms;
    int64_t bytes;
    CHECK_OK(tgl_device_count(&count));
    CHECK(count >= 1);
    CHECK_OK(tgl_device_get(0, &d));
    CHECK_OK(tgl_get_device_num_sms(0, &num_sms));
    CHECK_OK(tgl_get_max_smem_per_sm(0, &bytes));
    CHECK(d->name[0] && d->major >= 8 && d->total_memory > 0 && d->l2_bytes >= 0);
    CHECK(num_sms == d->num_sms && num_sms > 0 && bytes == d->max_smem_per_sm &&
          bytes >= d->max_smem_per_block_optin);
    CHECK_INT(tgl_jit_architecture_number(d->architecture), d->architecture_number);
    if (d->is_emulated) {
        CHECK_INT(num_sms, 6);
        CHECK_TEXT(d->architecture, "sm_90a");
    }
    CHECK_INT(tgl_get_num_sms(0), num_sms);
    CHECK_OK(tgl_set_num_sms(0, 2));
    CHECK_INT(tgl_get_num_sms(0), 2);
    tgl_target t;
    const DLTensor on = { .device = { kDLCUDA, 0 } };
    CHECK_OK(tgl_target_of(&on, &t));
    CHECK(t.num_sms == 2 && t.architecture == d->architecture_number &&
          t.max_smem_per_block == d->max_smem_per_block_optin);
    CHECK_OK(tgl_set_num_sms(0, 100000));
    CHECK_INT(tgl_get_num_sms(0), num_sms);
    CHECK_OK(tgl_set_num_sms(0, 0));
    CHECK_INT(tgl_get_num_sms(0), num_sms);
    char message[64];
    snprintf(message, sizeof message, "cuda:%d: no such device, there %s %d", count,
             count == 1 ? "is" : "are", count);
    CHECK_FAILS(tgl_get_device_num_sms(count, &num_sms), TGL_ERR_DEVICE, message);
    CHECK_INT(tgl_get_num_sms(-1), 0);
    CHECK_FAILS(tgl_get_device_num_sms(0, NULL), TGL_ERR_ARGUMENT,
                "num_sms: is NULL, want the place for the number");
    CHECK_FAILS(tgl_get_max_smem_per_sm(0, NULL), TGL_ERR_ARGUMENT,
                "bytes: is NULL, want the place for the number");
}

/* ---- launches ---- */

TEST(a_launch)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    array a = make_array(0);
    CHECK_OK(add(&a, 3, NULL));
    check_array(&a, 3);
    CHECK_INT(tgl_compile_count(), 1);
    for (int i = 0; i < 10; i++) CHECK_OK(add(&a, 3, NULL));
    check_array(&a, 33);
    CHECK_OK(add(&a, 4, NULL));
    check_array(&a, 37);
    CHECK_INT(tgl_compile_count(), 2);
    CHECK_OK(add_shaped(&a, 3, (tgl_shape){ .grid = { 0, 7, 7 }, .block = 256 }, NULL));   /* nothing */
    CHECK_OK(add_shaped(&a, 3, (tgl_shape){ .grid = { 2, 1, 1 }, .block = 256 }, NULL));
    check_array(&a, 40);
    free_array(&a);
    end_cache();
}

/* The first call of a configuration loads all of its kernels: no later choice among them compiles. In
 * strict mode a plan that is on disk only in part is an error at once, not at some later token count. */
TEST(arguments_of_another_size)         /* where the driver knows: since CUDA 12.4, and the emulated one */
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    array a = make_array(0);
    const tgl_kernel k = add_kernel(3);
    const struct { add_args args; int64_t more; } args = { { a.data, COUNT }, 0 };
    const tgl_shape shape = { .grid = { 1 }, .block = 256, TGL_ARGS(args) };
    if (!cu->KernelGetParamInfo) SKIP("this driver does not tell what a kernel takes");
    CHECK_INT(tgl_launch(&k, 1, 0, &a.tensor, &shape, NULL), TGL_ERR_INTERNAL);
    CHECK_TEXT(tgl_last_error(), "tests/add: takes 16 bytes of arguments, gets 24; please report this");
    check_array(&a, 0);
    free_array(&a);
    end_cache();
}

TEST(a_plan_of_several_kernels)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    array a = make_array(0);
    const tgl_kernel plan[] = { add_kernel(3), add_kernel(4), add_kernel(5) };
    const add_args args = { a.data, COUNT };
    const tgl_shape shape = { .grid = { (COUNT + 255) / 256 }, .block = 256, TGL_ARGS(args) };
    CHECK_OK(tgl_launch(plan, 3, 1, &a.tensor, &shape, NULL));
    check_array(&a, 4);
    CHECK_INT(tgl_compile_count(), 3);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    for (int i = 0; i < 3; i++) CHECK_OK(tgl_launch(plan, 3, i, &a.tensor, &shape, NULL));
    check_array(&a, 4 + 3 + 4 + 5);
    const tgl_kernel half_new[] = { add_kernel(6), add_kernel(3) };
    CHECK_INT(tgl_launch(half_new, 2, 0, &a.tensor, &shape, NULL), TGL_ERR_COMPILE);
    check_array(&a, 16);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_AUTO));
    CHECK_OK(tgl_prepare_begin(0, NULL));
    const tgl_kernel prepared[] = { add_kernel(3), add_kernel(7), add_kernel(8) };
    CHECK_OK(tgl_launch(prepared, 3, 0, &a.tensor, NULL, NULL));
    CHECK_OK(tgl_prepare_end());
    check_array(&a, 16);
    CHECK_INT(tgl_compile_count(), 5);
    /* configurations that share a kernel: the first launch of each loads its own others */
    const tgl_kernel shares[] = { add_kernel(3), add_kernel(9) }, more[] = { add_kernel(10), add_kernel(3) };
    CHECK_OK(tgl_launch(shares, 2, 0, &a.tensor, &shape, NULL));
    CHECK_INT(tgl_compile_count(), 6);
    CHECK_OK(tgl_load(more, 2, &a.tensor, NULL));
    CHECK_INT(tgl_compile_count(), 7);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    for (int i = 0; i < 2; i++) CHECK_OK(tgl_launch(shares, 2, i, &a.tensor, &shape, NULL));
    for (int i = 0; i < 2; i++) CHECK_OK(tgl_launch(more, 2, i, &a.tensor, &shape, NULL));
    check_array(&a, 16 + 3 + 3 + 9 + 10 + 3);
    free_array(&a);
    end_cache();
}

/* A kernel that was compiled by an earlier process is loaded, not compiled. */
TEST(a_second_process)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    const tgl_device *d;
    REQUIRE(tgl_device_get(0, &d) == TGL_OK);
    tgl_image image;
    const tgl_kernel k = add_kernel(3);
    CHECK_OK(tgl_jit_image(&k, d->architecture, true, &image));     /* what the first one leaves */
    tgl_image_free(&image);
    CHECK_INT(tgl_compile_count(), 1);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    array a = make_array(0);
    CHECK_OK(add(&a, 3, NULL));
    check_array(&a, 3);
    CHECK_INT(tgl_compile_count(), 1);
    CHECK_INT(add(&a, 4, NULL), TGL_ERR_COMPILE);
    CHECK_THAT(strstr(tgl_last_error(), "tests/add (AMOUNT=4) for ") == tgl_last_error(),
               "the message is \"%s\"", tgl_last_error());
    CHECK_OK(add(&a, 3, NULL));
    check_array(&a, 6);
    free_array(&a);
    end_cache();
}

TEST(a_warm_launch_asks_little_of_the_driver)
{
    IN_CHILD("EMU_SMS=4");
    NEED_EMULATOR();
    use_new_cache();
    array a = make_array(0);
    CHECK_OK(add(&a, 3, NULL));
    CU(CtxPushCurrent(a.context));                      /* as a framework leaves it */
    emuResetCalls_function reset;
    *(void **)&reset = control("emuResetCalls");
    reset();
    for (int i = 0; i < 10; i++) CHECK_OK(add(&a, 3, NULL));
    CHECK_INT(calls("cuLaunchKernelEx"), 10);
    CHECK_INT(calls("cuCtxGetCurrent"), 10);
    CHECK_INT(calls("cuCtxGetDevice"), 10);
    static const char *const none[] = {
        "cuCtxPushCurrent",     "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode",
        "cuKernelGetFunction",  "cuLibraryLoadData",   "cuLibraryGetKernel",
        "cuKernelSetAttribute", "cuDeviceGetAttribute"
    };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        CHECK_THAT(calls(none[i]) == 0, "a warm launch calls %s", none[i]);
    CU(CtxPopCurrent(NULL));
    free_array(&a);
    end_cache();
}

TEST(launch_attributes)
{
    IN_CHILD("EMU_ARCH=90", "EMU_SMS=16");
    NEED_EMULATOR();
    use_new_cache();
    array a = make_array(0);
    CHECK_OK(add_shaped(
        &a, 1, (tgl_shape){ .grid = { 32, 2, 3 }, .block = 64, .shared_bytes = 200 << 10, .cluster = 16 },
        NULL));
    emu_last_launch l = last_launch();
    CHECK_TEXT(l.kernel, "add");
    CHECK(l.grid[0] == 32 && l.grid[1] == 2 && l.grid[2] == 3 && l.block[0] == 64 && l.block[1] == 1 &&
          l.block[2] == 1);
    CHECK(l.cluster[0] == 16 && l.cluster[1] == 1 && l.cluster[2] == 1);
    CHECK_INT(l.dynamic_bytes, 200 << 10);
    CHECK(l.pdl && !l.cooperative);
    CHECK_OK(add_shaped(&a, 1, (tgl_shape){ .grid = { 2 }, .block = 256, .cooperative = true }, NULL));
    l = last_launch();
    CHECK(l.grid[0] == 2 && l.grid[1] == 1 && l.grid[2] == 1 && l.cluster[0] == 1 && l.dynamic_bytes == 0);
    CHECK(l.pdl && l.cooperative);
    CHECK_OK(tgl_set_pdl(false));
    CHECK_OK(add(&a, 1, NULL));
    CHECK(!last_launch().pdl);
    CHECK_OK(tgl_set_pdl(true));
    CHECK_OK(add(&a, 1, NULL));
    CHECK(last_launch().pdl);

    const uint64_t before = calls("cuLaunchKernelEx");
    static const tgl_shape bad[] = {
        { .grid = { (int64_t)1 << 31 }, .block = 32 },
        { .grid = { 1, 65536 }, .block = 32 },
        { .grid = { 1, 1, 65536 }, .block = 32 },
        { .grid = { -1 }, .block = 32 },
        { .grid = { 1 }, .block = 0 },
        { .grid = { 1 }, .block = 1025 },
        { .grid = { 1 }, .block = 32, .shared_bytes = 228 << 10 },
        { .grid = { 1 }, .block = 32, .shared_bytes = -1 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_FAILS(add_shaped(&a, 1, bad[i], NULL), TGL_ERR_INTERNAL, NULL);
    CHECK_INT(calls("cuLaunchKernelEx"), before);
    free_array(&a);
    end_cache();
}

TEST(no_room_for_a_cluster)     /* the device is asked once */
{
    IN_CHILD("EMU_ARCH=90", "EMU_CLUSTER=8");
    NEED_EMULATOR();
    use_new_cache();
    array a = make_array(0);
    const add_args args = { a.data, COUNT };
    const tgl_kernel plan[] = { add_kernel(1), add_kernel(2) };
    const tgl_shape blocks = { .grid = { 3 }, .block = 256, .cooperative = true, TGL_ARGS(args) };
    const tgl_other_launch other = { 1, &blocks };
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        const int cluster = i % 2 ? 16 : 8;
        const tgl_shape shape = { .grid = { 16 }, .block = 64, .cluster = cluster, .otherwise = &other, TGL_ARGS(args) };
        CHECK_OK(tgl_launch(plan, 2, 0, &a.tensor, &shape, NULL));
        const emu_last_launch l = last_launch();
        CHECK_INT(l.cluster[0], cluster == 8 ? 8 : 1);
        CHECK_INT(l.grid[0], cluster == 8 ? 16 : 3);
        CHECK_INT(l.cooperative, cluster == 16);
        sum += cluster == 8 ? 1 : 2;
    }
    CHECK_INT(calls("cuOccupancyMaxActiveClusters"), 2);        /* of 16, and then of 8 */
    check_array(&a, (float)sum);
    free_array(&a);
    end_cache();
}

TEST(an_older_architecture)
{
    IN_CHILD("EMU_ARCH=80");
    NEED_EMULATOR();
    use_new_cache();
    array a = make_array(0);
    CHECK_OK(add(&a, 2, NULL));                         /* without PDL, which it does not have */
    CHECK(!last_launch().pdl);
    CHECK_FAILS(add_shaped(&a, 2, (tgl_shape){ .grid = { 2 }, .block = 32, .cluster = 2 }, NULL),
                TGL_ERR_INTERNAL, NULL);
    check_array(&a, 2);
    free_array(&a);
    end_cache();
}

/* The table grows while it is in use. One image serves all keys, which saves compiling. */
TEST(many_kernels)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    enum { KERNELS = 700 };
    const tgl_device *d;
    REQUIRE(tgl_device_get(0, &d) == TGL_OK);
    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    REQUIRE(nvrtc);
    tgl_image image;
    const tgl_kernel one = add_kernel(1);
    CHECK_OK(tgl_jit_image(&one, d->architecture, true, &image));
    array a = make_array(0);
    for (int i = 1; i <= KERNELS; i++) {
        const tgl_kernel k = add_kernel(i);
        tgl_cache_key key;
        tgl_jit_key(&add_source, k.macros, d->architecture, nvrtc->major, nvrtc->minor, &key);
        if (i > 1) CHECK(tgl_cache_put(&key, image.image, image.bytes));
        CHECK_OK(add(&a, i, NULL));
    }
    tgl_image_free(&image);
    CHECK_INT(tgl_compile_count(), 1);
    for (int i = 1; i <= KERNELS; i++) {
        const tgl_kernel k = add_kernel(i);
        const tgl_loaded *e = tgl_kernels_find(&k, 0);
        CHECK_THAT(e && e->kernel.macros[0].value == i, "kernel %d is lost", i);
    }
    const tgl_kernel unknown = add_kernel(KERNELS + 1), renamed = { "tests/add", { { "AMOUNTS", 1 } } },
                     more = { "tests/add", { { "AMOUNT", 1 }, { "B", 0 } } };
    CHECK(!tgl_kernels_find(&unknown, 0) && !tgl_kernels_find(&renamed, 0) && !tgl_kernels_find(&more, 0) &&
          !tgl_kernels_find(&one, 1));
    check_array(&a, KERNELS);
    free_array(&a);
    end_cache();
}

TEST(an_entry_that_is_not_there)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    array a = make_array(0);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(tgl_launch(&(tgl_kernel){ "tests/other", { { NULL, 0 } } }, 1, 0, &a.tensor,
                             &(tgl_shape){ .grid = { 1 }, .block = 1, TGL_ARGS(a.data) }, NULL),
                  TGL_ERR_CUDA);
        CHECK_THAT(strstr(tgl_last_error(), "tests/other: cuLibraryGetKernel: CUDA_ERROR_NOT_FOUND") ==
                       tgl_last_error(),
                   "the message is \"%s\"", tgl_last_error());
    }
    if (control("emuLive")) CHECK_INT(live_libraries(), 0);
    free_array(&a);
    end_cache();
}

/* A file that is whole but no code for this driver: removed, made again, used. */
TEST(an_image_that_will_not_load)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    const tgl_device *d;
    REQUIRE(tgl_device_get(0, &d) == TGL_OK);
    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    REQUIRE(nvrtc);
    const tgl_kernel k = add_kernel(3);
    tgl_cache_key key;
    tgl_jit_key(&add_source, k.macros, d->architecture, nvrtc->major, nvrtc->minor, &key);
    char garbage[4096];
    memset(garbage, 0x5a, sizeof garbage);
    CHECK(tgl_cache_put(&key, garbage, sizeof garbage));
    array a = make_array(0);
    CHECK_OK(add(&a, 3, NULL));
    check_array(&a, 3);
    CHECK_INT(tgl_compile_count(), 1);
    void *image;
    size_t bytes;
    CHECK(tgl_cache_get(&key, &image, &bytes));
    CHECK(bytes != sizeof garbage);
    free(image);
    free_array(&a);
    end_cache();
}

/* The file of add_kernel(amount), as the cache has it: its inode changes where it is replaced. */
static ino_t file_of(int amount)
{
    const tgl_device *d;
    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    const tgl_kernel k = add_kernel(amount);
    tgl_cache_key key;
    char name[TGL_CACHE_NAME_BYTES], path[512];
    struct stat s;
    if (!nvrtc || tgl_device_get(0, &d)) return 0;
    tgl_jit_key(&add_source, k.macros, d->architecture, nvrtc->major, nvrtc->minor, &key);
    tgl_cache_name(&key, name);
    snprintf(path, sizeof path, "%s/%s", cache.path, name);
    return stat(path, &s) ? 0 : s.st_ino;
}

static void fill_cache_with(int amount)
{
    const tgl_device *d;
    tgl_image image;
    const tgl_kernel k = add_kernel(amount);
    CHECK_OK(tgl_device_get(0, &d));
    CHECK_OK(tgl_jit_image(&k, d->architecture, true, &image));
    tgl_image_free(&image);
}

static const struct { int number; const char *name; } refusals[] = {
    { 1, "INVALID_VALUE" },    { 209, "NO_BINARY_FOR_GPU" }, { 300, "INVALID_SOURCE" },
    { 304, "OPERATING_SYSTEM" }, { 302, "SHARED_OBJECT_SYMBOL_NOT_FOUND" }, { 800, "NOT_PERMITTED" },
};
enum { NUM_REFUSALS = sizeof refusals / sizeof refusals[0] };

/* The driver's error by name, then `ends`. */
static void check_refusal(const array *a, int amount, tgl_stream stream, int i, const char *ends)
{
    char list[64], begins[128];
    snprintf(list, sizeof list, "cuLibraryLoadData:1+=%d", refusals[i].number);
    snprintf(begins, sizeof begins, "tests/add: cuLibraryLoadData: CUDA_ERROR_%s (", refusals[i].name);
    inject(list);
    const tgl_status status = add(a, amount, stream);
    inject("");
    const char *said = tgl_last_error();
    const size_t n = strlen(said), m = strlen(ends);
    CHECK_THAT(status == TGL_ERR_CUDA && strstr(said, begins) == said && n > m && !strcmp(said + n - m, ends),
               "%s gives %s: %s", list, tgl_status_name(status), said);
}

/* A driver's refusal says nothing against the file: where it cannot be replaced it stays, and serves later. */
TEST(a_refused_image_stays_in_strict_mode)
{
    IN_CHILD("EMU_SMS=4");
    NEED_EMULATOR();
    use_new_cache();
    fill_cache_with(3);
    const ino_t file = file_of(3);
    array a = make_array(0);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    for (int i = 0; i < NUM_REFUSALS; i++) {
        check_refusal(&a, 3, NULL, i,
                      "; the image is from the cache, and TEGULA_JIT=never forbids to compile it again");
        CHECK_INT(file_of(3), file);
    }
    CHECK_OK(add(&a, 3, NULL));
    check_array(&a, 3);
    CHECK_INT(tgl_compile_count(), 1);
    free_array(&a);
    end_cache();
}

TEST(a_refused_image_stays_in_a_capture)
{
    IN_CHILD("EMU_SMS=4");
    NEED_EMULATOR();
    use_new_cache();
    fill_cache_with(3);
    const ino_t file = file_of(3);
    array a = make_array(0);
    tgl_stream stream;
    tgl_cu_graph graph;
    CU(CtxPushCurrent(a.context));
    CU(StreamCreate(&stream, TGL_CU_STREAM_NON_BLOCKING));
    CU(StreamBeginCapture(stream, TGL_CU_CAPTURE_GLOBAL));
    for (int i = 0; i < 2 * NUM_REFUSALS; i++) {
        const bool is_strict = i >= NUM_REFUSALS;
        CHECK_OK(tgl_set_jit_mode(is_strict ? TGL_JIT_NEVER : TGL_JIT_AUTO));
        check_refusal(&a, 3, stream, i % NUM_REFUSALS,
                      is_strict ? "; the image is from the cache, and TEGULA_JIT=never forbids to compile it again"
                                : "; the image is from the cache, and it cannot be compiled again during a stream "
                                  "capture");
        CHECK_INT(file_of(3), file);
    }
    CHECK_OK(add(&a, 3, stream));                       /* the capture is whole */
    CU(StreamEndCapture(stream, &graph));
    CHECK_INT(tgl_compile_count(), 1);
    CU(GraphDestroy(graph));
    CU(StreamDestroy(stream));
    CU(CtxPopCurrent(NULL));
    free_array(&a);
    end_cache();
}

/* Elsewhere it is compiled again, once; until that has worked, the file stays. */
TEST(a_refused_image_is_replaced_by_a_new_one_only)
{
    IN_CHILD("EMU_SMS=4");
    NEED_EMULATOR();
    use_new_cache();
    fill_cache_with(3);
    const ino_t file = file_of(3);
    array a = make_array(0);
    void *library = dlopen(getenv("TEGULA_LIBNVRTC"), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library);
    emuFail_function fail;
    *(void **)&fail = dlsym(library, "emuFail");
    for (int i = 0; i < NUM_REFUSALS; i++) {
        CHECK(!fail("nvrtcCompileProgram:1+"));
        check_refusal(&a, 3, NULL, i,
                      "; the image is from the cache, and it cannot be compiled again: tests/add (AMOUNT=3) for "
                      "sm_90a: NVRTC_ERROR_COMPILATION: kernel.cu(1): error: injected by EMU_FAIL");
        CHECK_INT(file_of(3), file);
        fail("");
    }
    CHECK_INT(tgl_compile_count(), 1);
    inject("cuLibraryLoadData=304");                    /* once */
    CHECK_OK(add(&a, 3, NULL));
    check_array(&a, 3);
    CHECK_INT(tgl_compile_count(), 2);
    CHECK(file_of(3) != 0 && file_of(3) != file);
    free_array(&a);
    end_cache();
}

/* ---- prepare and captures ---- */

TEST(prepare_for_a_device)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    array a = make_array(0);
    CHECK_OK(tgl_prepare_begin(0, NULL));
    DLTensor empty = a.tensor;                          /* data may be NULL, shapes anything */
    empty.data = NULL;
    const tgl_kernel k = add_kernel(3);
    CHECK_OK(tgl_launch(&k, 1, 0, &empty, &(tgl_shape){ .grid = { 0 } }, NULL));
    CHECK_OK(tgl_launch(&k, 1, 0, &empty, &(tgl_shape){ .grid = { 0 } }, NULL));
    CHECK_OK(tgl_prepare_end());
    CHECK_INT(tgl_compile_count(), 1);
    check_array(&a, 0);
    tgl_stream stream;
    tgl_cu_graph graph;
    tgl_cu_graph_exec exec;
    CU(CtxPushCurrent(a.context));
    CU(StreamCreate(&stream, TGL_CU_STREAM_NON_BLOCKING));
    CU(StreamBeginCapture(stream, TGL_CU_CAPTURE_GLOBAL));
    CHECK_OK(add(&a, 3, stream));                       /* loaded, so it can be captured */
    CU(StreamEndCapture(stream, &graph));
    CU(GraphInstantiateWithFlags(&exec, graph, 0));
    check_array(&a, 0);
    CU(GraphLaunch(exec, stream));
    CU(GraphLaunch(exec, stream));
    check_array(&a, 6);
    CU(GraphExecDestroy(exec));
    CU(GraphDestroy(graph));
    CU(StreamDestroy(stream));
    CU(CtxPopCurrent(NULL));
    CHECK_INT(tgl_prepare_begin(99, NULL), TGL_ERR_DEVICE);
    CHECK(!tgl_preparing());
    free_array(&a);
    end_cache();
}

TEST(compiling_inside_a_capture)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    const tgl_device *d;
    REQUIRE(tgl_device_get(0, &d) == TGL_OK);
    array a = make_array(0);
    tgl_stream stream;
    tgl_cu_graph graph;
    tgl_cu_graph_exec exec;
    CU(CtxPushCurrent(a.context));
    CU(StreamCreate(&stream, TGL_CU_STREAM_NON_BLOCKING));
    tgl_image image;
    const tgl_kernel on_disk = add_kernel(5);
    CHECK_OK(tgl_jit_image(&on_disk, d->architecture, true, &image));
    tgl_image_free(&image);

    CU(StreamBeginCapture(stream, TGL_CU_CAPTURE_GLOBAL));
    char want[256];
    snprintf(want, sizeof want,
             "tests/add (AMOUNT=3) for %s: would have to be compiled during a stream capture; call the op "
             "once before the capture, or between tgl_prepare_begin and tgl_prepare_end",
             d->architecture);
    CHECK_FAILS(add(&a, 3, stream), TGL_ERR_CAPTURE, want);
    CHECK_OK(add(&a, 5, stream));                       /* on disk: loaded, the capture goes on */
    int mode = TGL_CU_CAPTURE_GLOBAL;
    CU(ThreadExchangeStreamCaptureMode(&mode));
    CHECK_INT(mode, TGL_CU_CAPTURE_GLOBAL);             /* this thread's mode is as it was */
    CHECK_OK(tgl_prepare_begin(0, NULL));               /* whoever asks for it may compile, too */
    CHECK_OK(add(&a, 7, stream));
    CHECK_OK(tgl_prepare_end());
    CHECK_OK(add(&a, 7, stream));
    CU(StreamEndCapture(stream, &graph));
    CU(GraphInstantiateWithFlags(&exec, graph, 0));
    CU(GraphLaunch(exec, stream));
    check_array(&a, 12);
    CHECK_OK(add(&a, 3, stream));                       /* outside it compiles */
    check_array(&a, 15);
    CU(GraphExecDestroy(exec));
    CU(GraphDestroy(graph));
    CU(StreamDestroy(stream));
    CU(CtxPopCurrent(NULL));
    free_array(&a);
    end_cache();
}

typedef struct { const array *a; int amount; tgl_status status; char message[512]; } thread_launch;

static void *launch_in_thread(void *argument)
{
    thread_launch *t = argument;
    t->status = add(t->a, t->amount, NULL);
    if (t->status != TGL_OK) snprintf(t->message, sizeof t->message, "%s", tgl_last_error());
    return NULL;
}

static void *load_in_thread(void *argument)
{
    thread_launch *t = argument;
    t->status = tgl_prepare_begin(0, NULL);
    if (t->status == TGL_OK) t->status = add(t->a, t->amount, NULL);
    if (t->status != TGL_OK) snprintf(t->message, sizeof t->message, "%s", tgl_last_error());
    tgl_prepare_end();
    return NULL;
}

TEST(another_threads_capture_goes_on)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    array a = make_array(0);
    CHECK_OK(add(&a, 3, NULL));
    tgl_stream stream;
    tgl_cu_graph graph;
    CU(CtxPushCurrent(a.context));
    CU(StreamCreate(&stream, TGL_CU_STREAM_NON_BLOCKING));
    CU(StreamBeginCapture(stream, TGL_CU_CAPTURE_GLOBAL));
    thread_launch t = { .a = &a, .amount = 8 };
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, load_in_thread, &t) == 0);
    pthread_join(thread, NULL);
    CHECK_THAT(t.status == TGL_OK, "loading beside a capture: %s", t.message);
    CHECK_OK(add(&a, 3, stream));
    CU(StreamEndCapture(stream, &graph));
    CHECK(graph != NULL);
    CU(GraphDestroy(graph));
    CU(StreamDestroy(stream));
    CU(CtxPopCurrent(NULL));
    free_array(&a);
    end_cache();
}

/* ---- threads ---- */

TEST(threads_that_want_the_same_kernel)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    enum { THREADS = 8 };
    array arrays[THREADS];
    pthread_t threads[THREADS];
    thread_launch t[THREADS];
    for (int i = 0; i < THREADS; i++) {
        arrays[i] = make_array(0);
        t[i] = (thread_launch){ .a = &arrays[i], .amount = 1 + i / 4 }; /* two kernels, four threads each */
    }
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, launch_in_thread, &t[i]) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        CHECK_THAT(t[i].status == TGL_OK, "thread %d: %s", i, t[i].message);
        check_array(&arrays[i], (float)t[i].amount);
        free_array(&arrays[i]);
    }
    CHECK_INT(tgl_compile_count(), 2);
    if (control("emuCalls")) CHECK_INT(calls("cuLibraryLoadData"), 2);
    end_cache();
}

static void *launch_broken(void *argument)
{
    thread_launch *t = argument;
    const add_args args = { 0, 0 };
    t->status = tgl_launch(&(tgl_kernel){ "tests/add", { { NULL, 0 } } }, 1, 0, &t->a->tensor,
                           &(tgl_shape){ .grid = { 1 }, .block = 32, TGL_ARGS(args) }, NULL);
    snprintf(t->message, sizeof t->message, "%s", tgl_last_error());
    return NULL;
}

TEST(threads_that_want_a_kernel_with_an_error)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    enum { THREADS = 6 };
    array a = make_array(0);
    pthread_t threads[THREADS];
    thread_launch t[THREADS];
    for (int i = 0; i < THREADS; i++) {
        t[i] = (thread_launch){ .a = &a };
        REQUIRE(pthread_create(&threads[i], NULL, launch_broken, &t[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(t[i].status, TGL_ERR_COMPILE);
        CHECK_THAT(strstr(t[i].message, "AMOUNT is not defined"), "thread %d: \"%s\"", i, t[i].message);
    }
    CHECK_OK(add(&a, 3, NULL));
    check_array(&a, 3);
    free_array(&a);
    end_cache();
}

/* pthread_cancel() reaches a thread that compiles, and those that wait for it, in the middle of it. They finish
 * what they are at: whoever wants the kernel next gets it. */
TEST(cancelled_threads)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    alarm(60);                                          /* a thread that waits for ever fails */
    enum { THREADS = 3 };
    array a = make_array(0);
    pthread_t threads[THREADS];
    thread_launch t[THREADS];
    for (int i = 0; i < THREADS; i++) {
        t[i] = (thread_launch){ .a = &a, .amount = 3 };
        REQUIRE(pthread_create(&threads[i], NULL, load_in_thread, &t[i]) == 0);
    }
    usleep(50000);                                      /* they are at it */
    for (int i = 0; i < THREADS; i++) pthread_cancel(threads[i]);
    for (int i = 0; i < THREADS; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
    CHECK_OK(add(&a, 3, NULL));
    check_array(&a, 3);
    CHECK_INT(tgl_compile_count(), 1);                  /* the cancelled one's */
    free_array(&a);
    end_cache();
}

/* ---- contexts and devices ---- */

TEST(contexts_are_left_as_found)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    array a = make_array(0);
    tgl_cu_context now = NULL, mine = NULL;
    CU(CtxGetCurrent(&now));
    CHECK(now == NULL);
    CHECK_OK(add(&a, 3, NULL));                         /* the primary one, for the call */
    CU(CtxGetCurrent(&now));
    CHECK(now == NULL);
    CHECK_INT(add(&a, 3, NULL), TGL_OK);
    CHECK_OK(tgl_prepare_begin(0, NULL));
    CHECK_OK(add(&a, 4, NULL));
    CHECK_OK(tgl_prepare_end());
    CHECK_OK(tgl_workspace_init((void *)(uintptr_t)a.data, 256, NULL));
    CU(CtxGetCurrent(&now));
    CHECK(now == NULL);
    CHECK_INT(tgl_launch(&(tgl_kernel){ "no/such", { { NULL, 0 } } }, 1, 0, &a.tensor,
                         &(tgl_shape){ .grid = { 1 }, .block = 1 }, NULL),
              TGL_ERR_INTERNAL);
    CU(CtxGetCurrent(&now));
    CHECK(now == NULL);

    tgl_cu_result (*create)(tgl_cu_context *, unsigned, tgl_cu_device), (*destroy)(tgl_cu_context);
    *(void **)&create = dlsym(cu->handle, "cuCtxCreate_v2");
    *(void **)&destroy = dlsym(cu->handle, "cuCtxDestroy_v2");
    REQUIRE(create && destroy);
    CHECK_INT(create(&mine, 0, 0), 0);                  /* of the same device: used as it is */
    array b = a;
    float zero[COUNT] = { 0 }, seen[COUNT];
    CU(MemAlloc(&b.data, sizeof zero));
    CU(MemcpyHtoD(b.data, zero, sizeof zero));
    tgl_stream stream;
    CU(StreamCreate(&stream, 0));
    const uint64_t loads = control("emuCalls") ? calls("cuKernelGetFunction") : 0;
    CHECK_OK(add(&b, 3, NULL));
    CHECK_OK(add(&b, 3, stream));
    if (loads)
        CHECK_INT(calls("cuKernelGetFunction"), loads + 1); /* loaded there before the first launch, once */
    CU(CtxGetCurrent(&now));
    CHECK(now == mine);
    CU(CtxPopCurrent(NULL));
    CHECK_OK(add(&b, 3, stream));                       /* none is current: the stream's */
    CU(CtxGetCurrent(&now));
    CHECK(now == NULL);
    CU(CtxPushCurrent(mine));
    CU(CtxSynchronize());
    CU(MemcpyDtoH(seen, b.data, sizeof seen));
    CHECK(seen[0] == 9 && seen[COUNT - 1] == 9);
    CU(MemFree(b.data));
    CU(StreamDestroy(stream));
    CHECK_INT(destroy(mine), 0);
    free_array(&a);
    end_cache();
}

TEST(two_devices_of_one_kind)
{
    IN_CHILD("EMU_DEVICES=2", "EMU_ARCH=90", "EMU_SMS=4");
    NEED_DEVICE();
    int count;
    CHECK_OK(tgl_device_count(&count));
    if (count < 2) SKIP("needs two devices");
    const tgl_device *d[2];
    CHECK_OK(tgl_device_get(0, &d[0]));
    CHECK_OK(tgl_device_get(1, &d[1]));
    if (strcmp(d[0]->architecture, d[1]->architecture)) SKIP("the devices are of two kinds");
    use_new_cache();
    array a[2] = { make_array(0), make_array(1) };
    tgl_cu_context now;
    for (int i = 0; i < 2; i++) CHECK_OK(add(&a[i], 3 + 0 * i, NULL));
    CU(CtxPushCurrent(a[0].context));
    for (int i = 0; i < 2; i++) CHECK_OK(add(&a[i], 3, NULL));          /* whichever is current */
    CU(CtxGetCurrent(&now));
    CHECK(now == a[0].context);
    CU(CtxPopCurrent(NULL));
    for (int i = 0; i < 2; i++) check_array(&a[i], 6);
    CHECK_INT(tgl_compile_count(), 1);
    if (control("emuCalls")) {
        CHECK_INT(calls("cuLibraryLoadData"), 1);       /* once for both */
        CHECK_INT(last_launch().device, 1);
    }

    tgl_stream stream;                                  /* of device 1 */
    CU(CtxPushCurrent(a[1].context));
    CU(StreamCreate(&stream, 0));
    CU(CtxPopCurrent(NULL));
    CHECK_OK(add(&a[1], 3, stream));
    check_array(&a[1], 9);
    CHECK_FAILS(add(&a[0], 3, stream), TGL_ERR_ARGUMENT,
                "stream: belongs to another device, want one of cuda:0, where the tensors are");
    CU(CtxGetCurrent(&now));
    CHECK(now == NULL);
    check_array(&a[0], 6);
    CU(CtxPushCurrent(a[1].context));
    CU(StreamDestroy(stream));
    CU(CtxPopCurrent(NULL));

    CHECK_OK(tgl_set_num_sms(1, 2));                    /* for that device alone */
    CHECK_INT(tgl_get_num_sms(1), 2);
    CHECK_INT(tgl_get_num_sms(0), d[0]->num_sms);
    for (int i = 0; i < 2; i++) free_array(&a[i]);
    end_cache();
}

TEST(two_devices_of_two_kinds)
{
    IN_CHILD("EMU_DEVICES=2", "EMU_ARCH=90,80", "EMU_SMS=4");
    NEED_EMULATOR();
    use_new_cache();
    array a[2] = { make_array(0), make_array(1) };
    for (int i = 0; i < 2; i++) CHECK_OK(add(&a[i], 3, NULL));
    for (int i = 0; i < 2; i++) check_array(&a[i], 3);
    CHECK_INT(tgl_compile_count(), 2);
    CHECK_INT(calls("cuLibraryLoadData"), 2);
    const tgl_device *d;
    CHECK_OK(tgl_device_get(1, &d));
    CHECK_TEXT(d->architecture, "sm_80");
    for (int i = 0; i < 2; i++) free_array(&a[i]);
    end_cache();
}

/* ---- forks ---- */

static int wait_for(pid_t pid)
{
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

TEST(a_child_forked_after_the_driver_was_used)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    array a = make_array(0);
    CHECK_OK(add(&a, 3, NULL));
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        static const char want[] =
            "CUDA was in use before this process was forked, and a forked process cannot use it; start "
            "processes with exec (Python: multiprocessing's spawn)";
        int n;
        if (add(&a, 3, NULL) != TGL_ERR_DEVICE || strcmp(tgl_last_error(), want)) _exit(1);
        if (add(&a, 9, NULL) != TGL_ERR_DEVICE || strcmp(tgl_last_error(), want)) _exit(2);
        if (tgl_get_device_num_sms(0, &n) != TGL_ERR_DEVICE || tgl_prepare_begin(0, NULL) != TGL_ERR_DEVICE)
            _exit(3);
        if (tgl_prepare_begin(0, "sm_90a") || add(&a, 10, NULL) || tgl_prepare_end())
            _exit(4); /* compiling works */
        if (tgl_compile_count() != 2) _exit(5);
        _exit(0);
    }
    CHECK_INT(wait_for(pid), 0);
    CHECK_OK(add(&a, 3, NULL));                         /* and the parent goes on */
    check_array(&a, 6);
    free_array(&a);
    end_cache();
}

TEST(a_child_forked_before_the_driver_was_used)
{
    IN_CHILD("EMU_SMS=4");
    const char *where = getenv("TEGULA_TEST_DEVICE");
    if (!where || strcmp(where, "cuda")) SKIP("needs a device, this is the run without one");
    use_new_cache();
    CHECK(tgl_driver_version() >= 12000);               /* loaded, not initialised */
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        if (tgl_driver(&cu) != TGL_OK) _exit(1);
        array a = make_array(0);
        _exit(add(&a, 3, NULL) == TGL_OK ? 0 : 2);
    }
    CHECK_INT(wait_for(pid), 0);
    end_cache();
}

static atomic_bool stop;

static void *launch_new_kernels(void *argument)
{
    for (int i = 1; !atomic_load(&stop); i++) add(argument, 1000 + i % 3, NULL);
    return NULL;
}

/* Forks while other threads load and launch: no child ever hangs on a lock. */
TEST(forks_beside_launches)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    array a = make_array(0);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, launch_new_kernels, &a) == 0);
    fflush(stdout);
    for (int i = 0; i < 40; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            _exit(add(&a, 1, NULL) != TGL_ERR_DEVICE || tgl_set_compile_callback(NULL, NULL) != TGL_OK);
        }
        CHECK_INT(wait_for(pid), 0);
        usleep(10000);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    free_array(&a);
    end_cache();
}

/* ---- failures of the driver ---- */

TEST(injected_failures)
{
    IN_CHILD("EMU_SMS=4");
    NEED_EMULATOR();
    use_new_cache();
    static const struct { const char *list; tgl_status status; const char *begins; } rows[] = {
        { "cuLibraryLoadData=OUT_OF_MEMORY", TGL_ERR_MEMORY,
          "tests/add: cuLibraryLoadData: CUDA_ERROR_OUT_OF_MEMORY (" },
        { "cuLibraryGetKernel=NOT_FOUND", TGL_ERR_CUDA,
          "tests/add: cuLibraryGetKernel: CUDA_ERROR_NOT_FOUND (" },
        { "cuKernelGetAttribute=INVALID_VALUE", TGL_ERR_CUDA,
          "tests/add: cuKernelGetAttribute: CUDA_ERROR_INVALID_VALUE (" },
        { "cuKernelSetAttribute=INVALID_VALUE", TGL_ERR_CUDA,
          "tests/add: cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES): CUDA_ERROR_INVALID_VALUE (" },
        { "cuKernelSetAttribute:2=INVALID_VALUE", TGL_ERR_CUDA,
          "tests/add: cuKernelSetAttribute(NON_PORTABLE_CLUSTER_SIZE_ALLOWED): CUDA_ERROR_INVALID_VALUE (" },
        { "cuKernelGetFunction=OUT_OF_MEMORY", TGL_ERR_MEMORY,
          "tests/add: cuKernelGetFunction: CUDA_ERROR_OUT_OF_MEMORY (" },
        { "cuStreamIsCapturing=INVALID_HANDLE", TGL_ERR_CUDA,
          "stream: cuStreamIsCapturing: CUDA_ERROR_INVALID_HANDLE (" },
        { "cuCtxPushCurrent=INVALID_CONTEXT", TGL_ERR_CUDA,
          "cuCtxPushCurrent: CUDA_ERROR_INVALID_CONTEXT (" },
        { "cuLaunchKernelEx=LAUNCH_OUT_OF_RESOURCES", TGL_ERR_CUDA,
          "tests/add: cuLaunchKernelEx: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (" },
        { "cuLaunchKernelEx=ILLEGAL_ADDRESS", TGL_ERR_CUDA,
          "tests/add: cuLaunchKernelEx: CUDA_ERROR_ILLEGAL_ADDRESS (" },
    };
    array a = make_array(0);
    float want = 0;
    tgl_cu_context now;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int amount = 1 + (int)i;
        inject(rows[i].list);
        const tgl_status status = add(&a, amount, NULL);
        CHECK_THAT(status == rows[i].status && strstr(tgl_last_error(), rows[i].begins) == tgl_last_error(),
                   "%s gives %s: %s", rows[i].list, tgl_status_name(status), tgl_last_error());
        CU(CtxGetCurrent(&now));
        CHECK_THAT(now == NULL, "%s leaves a context current", rows[i].list);
        inject("");
        CHECK_OK(add(&a, amount, NULL));                /* and the next call works */
        check_array(&a, want += (float)amount);
        CHECK_THAT(live_libraries() == amount, "%s: %d libraries are loaded, want %d", rows[i].list,
                   live_libraries(), amount);
    }
    CHECK_THAT(strstr(tgl_last_error(), "an earlier kernel in this context failed"), "the message is \"%s\"",
               tgl_last_error());
    free_array(&a);
    end_cache();
}

TEST(a_failed_init_stays_failed)
{
    IN_CHILD("EMU_FAIL=cuInit=SYSTEM_DRIVER_MISMATCH");
    const char *file = getenv("TEGULA_LIBCUDA");
    if (!file || !strstr(file, "emulated")) SKIP("needs the emulated device");
    int n;
    for (int i = 0; i < 2; i++) {
        CHECK_INT(tgl_device_count(&n), TGL_ERR_DEVICE);
        CHECK_THAT(strstr(tgl_last_error(), "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH") == tgl_last_error(),
                   "the message is \"%s\"", tgl_last_error());
    }
}

/* ---- workspaces ---- */

TEST(workspace_init)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    array a = make_array(0);
    enum { BYTES = 1000 };
    CU(CtxPushCurrent(a.context));
    tgl_cu_pointer p;
    CU(MemAlloc(&p, BYTES + 24));
    CU(MemsetD8(p, 0xee, BYTES + 24));
    tgl_stream stream;
    CU(StreamCreate(&stream, TGL_CU_STREAM_NON_BLOCKING));
    CU(CtxPopCurrent(NULL));
    CHECK_OK(tgl_workspace_init((void *)(uintptr_t)p, BYTES, stream));
    CU(CtxPushCurrent(a.context));
    CU(StreamSynchronize(stream));
    unsigned char seen[BYTES + 24];
    CU(MemcpyDtoH(seen, p, sizeof seen));
    for (int i = 0; i < BYTES + 24; i++)
        CHECK_THAT(seen[i] == (i < BYTES ? 0 : 0xee), "byte %d is %d", i, seen[i]);
    CU(StreamDestroy(stream));
    CU(MemFree(p));
    CU(CtxPopCurrent(NULL));
    void *host = NULL;
    REQUIRE(posix_memalign(&host, 256, 1024) == 0);
    CHECK_INT(tgl_workspace_init(host, 1024, NULL), TGL_ERR_WORKSPACE);
    CHECK_THAT(strstr(tgl_last_error(), "is not CUDA memory, want memory of the device"),
               "the message is \"%s\"", tgl_last_error());
    free(host);
    free_array(&a);
}
