/* SPDX-License-Identifier: MIT
 * Loading and launching on a device: the emulated one, or a GPU. Almost every block runs in a process of
 * its own, since it is about what happens first. */
#include <pthread.h>
#include <stdatomic.h>

#include "cuda/kernels.h"
#include "cuda/op.h"
#include "on_device.h"

/* Kernels of the tests' own: defined here, the table takes the place of the library's (an archive's member
 * is linked only where something is missing). */
static const char add_text[] = "#include \"device/amount.cuh\"\n"
                               "#include \"device/ptx.cuh\"\n"
                               "struct add_args { float *p; long long n; };\n"
                               "extern \"C\" __global__ void __launch_bounds__(256) add(add_args a)\n"
                               "{\n"
                               "    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
                               "    pdl_wait();\n"
                               "    if (i < a.n && blockIdx.y + blockIdx.z == 0) a.p[i] += AMOUNT;\n"
                               "}\n";
static const char other_text[] = "extern \"C\" __global__ void not_named_like_the_file(float *p) { p[0] = 0; }\n";
static const char amount_text[] = "#ifndef AMOUNT\n#error AMOUNT is not defined\n#endif\n";
static const char ptx_text[] = /* the emulated NVRTC puts its own in this one's place */
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

static tgl_cache_key key_of(int amount)
{
    const tgl_device *d;
    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    const tgl_kernel k = add_kernel(amount);
    tgl_cache_key key = { { 0 } };
    if (CHECK(nvrtc) && CHECK_OK(tgl_device_get(0, &d)))
        tgl_jit_key(&add_source, k.macros, d->architecture, nvrtc->major, nvrtc->minor, &key);
    return key;
}

static void fill_cache_with(int amount) /* as an earlier process would */
{
    const tgl_device *d;
    tgl_image image;
    const tgl_kernel k = add_kernel(amount);
    CHECK_OK(tgl_device_get(0, &d));
    CHECK_OK(tgl_jit_image(&k, d->architecture, true, &image));
    tgl_image_free(&image);
}

/* ---- a device ---- */

static emu_last_launch last_launch(void)
{
    emuLastLaunch_function f;
    emu_last_launch l = { 0 };
    *(void **)&f = dlsym(cu->handle, "emuLastLaunch");
    CHECK(f(&l));
    return l;
}

static support_folder cache;

static void use_new_cache(void)
{
    cache = support_make_folder();
    CHECK_OK(tgl_set_cache_dir(cache.path));
}

/* An array of zeros on a device, made in its primary context, which is not current afterwards. */
enum { COUNT = 300 };
typedef struct {
    tgl_cu_pointer data;
    DLTensor tensor;
    tgl_cu_context context;
} array;

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
    a.tensor = (DLTensor){ .data = (void *)(uintptr_t)a.data,
                           .device = { kDLCUDA, device },
                           .ndim = 1,
                           .dtype = { TGL_DL_FLOAT, 32, 1 },
                           .shape = shape };
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

typedef struct {
    tgl_cu_pointer p;
    int64_t n;
} add_args;

static tgl_status add_shaped(const array *a, int amount, tgl_shape shape, tgl_stream stream)
{
    const tgl_kernel k = add_kernel(amount);
    const add_args args = { a->data, COUNT };
    shape = tgl_shape_with(shape, &args, sizeof args);
    return tgl_launch(&k, 1, 0, &a->tensor, &shape, stream);
}

static tgl_status add(const array *a, int amount, tgl_stream stream)
{
    return add_shaped(a, amount, (tgl_shape){ .grid = { (COUNT + 255) / 256 }, .block = 256 }, stream);
}

/* A block in a process of its own, with a new cache folder and an array on device 0. */
#define ON_DEVICE(name, ...) ON(name, NEED_DEVICE, __VA_ARGS__)
#define ON_EMULATOR(name, ...) ON(name, NEED_EMULATOR, __VA_ARGS__)
#define COMPILES_ANEW "EMU_CACHE=" /* takes its time, in which others come by */
#define ON(name, need, ...)                 \
    static void on_device_##name(array *a); \
    TEST(name)                              \
    {                                       \
        IN_CHILD(__VA_ARGS__);              \
        need();                             \
        LOAD_DRIVER();                      \
        use_new_cache();                    \
        array a = make_array(0);            \
        on_device_##name(&a);               \
        free_array(&a);                     \
        support_remove(cache.path);         \
    }                                       \
    static void on_device_##name(array *a)

/* A capture on a new stream of the array's context, which is current until close_stream(). */
static tgl_stream begin_capture(const array *a)
{
    CU(CtxPushCurrent(a->context));
    const tgl_stream stream = make_stream(TGL_CU_STREAM_NON_BLOCKING);
    CU(StreamBeginCapture(stream, TGL_CU_CAPTURE_GLOBAL));
    return stream;
}

static void close_stream(tgl_stream stream)
{
    CU(StreamDestroy(stream));
    CU(CtxPopCurrent(NULL));
}

static tgl_cu_graph_exec instantiate(tgl_cu_graph graph)
{
    tgl_cu_graph_exec exec = NULL;
    CU(GraphInstantiateWithFlags(&exec, graph, 0));
    CU(GraphDestroy(graph));
    return exec;
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
    CHECK_OK(add(&a, 1, NULL));                                       /* found */
    CHECK_OK(add_shaped(&a, 1, (tgl_shape){ .grid = { -7 } }, NULL)); /* shapes do not matter */
    CHECK_OK(tgl_workspace_init(NULL, 256, NULL));                    /* as tgl_workspace_get() gives it here */
    CHECK_INT(add(&a, 2, NULL), TGL_OK);
    CHECK_OK(tgl_prepare_end());
    CHECK(!tgl_preparing());
    CHECK_INT(tgl_compile_count(), 2);
    CHECK_INT(support_count(cache.path, ".tgl"), 2);
    CHECK_OK(tgl_prepare_begin(-1, "sm_120a"));
    CHECK_OK(tgl_target_of(&a.tensor, &t));
    CHECK(t.num_sms == 188 && t.architecture == 120 && t.max_smem_per_block == 99 << 10);
    CHECK_OK(tgl_prepare_end());
    support_remove(cache.path);
}

static tgl_status compile_scale(int factor, tgl_image *image)
{
    const tgl_macro macros[TGL_MAX_MACROS] = { { "FACTOR", factor } };
    return tgl_jit_source(&support_source, macros, "sm_90a", TGL_JIT_MAY_COMPILE, image);
}

TEST(strict_mode_names_folders_that_are_refused)
{
    IN_CHILD("HOME");
    support_folder baked = support_folder_in("TEGULA_CACHE_READONLY"), f = support_folder_in("TEGULA_CACHE_DIR");
    CHECK(chmod(baked.path, 0777) == 0 && chmod(f.path, 0722) == 0);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    tgl_image image;
    CHECK_INT(compile_scale(4, &image), TGL_ERR_COMPILE);
    CHECK_FORMATTED(
        tgl_last_error(),
        "tests/scale (FACTOR=4) for sm_90a: not in the cache (TEGULA_CACHE_READONLY: %s is "
        "refused: others may write to it (mode 777); %s is refused: others may write to it (mode 722)), and "
        "TEGULA_JIT=never forbids compiling it; fill the cache with `tegula compile`",
        baked.path, f.path);
    support_remove(baked.path);
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
             "--diag-suppress=177\n%s",
             has_no_cache ? "--no-cache\n" : "");
    CHECK_TEXT(image.log, want);
    tgl_image_free(&image);
}
#define WITH_NVRTC(version) IN_CHILD("TEGULA_LIBNVRTC=" TEGULA_RECORDING_NVRTC, "TEGULA_TEST_NVRTC=" version)
TEST(options_of_nvrtc_12_0)
{
    WITH_NVRTC("12.0");
    check_options(false);
}
TEST(options_of_nvrtc_12_8)
{
    WITH_NVRTC("12.8");
    check_options(false);
}
TEST(options_of_nvrtc_12_9)
{
    WITH_NVRTC("12.9");
    check_options(true);
}
TEST(options_of_nvrtc_13_0)
{
    WITH_NVRTC("13.0");
    check_options(true);
}

static void put_scale(int factor, int nvrtc_major, int nvrtc_minor)
{
    const tgl_macro macros[TGL_MAX_MACROS] = { { "FACTOR", factor } };
    tgl_cache_key key;
    tgl_jit_key(&support_source, macros, "sm_90a", nvrtc_major, nvrtc_minor, &key);
    char image[16];
    CHECK(tgl_cache_put(&key, image, (size_t)snprintf(image, sizeof image, "%d.%d", nvrtc_major, nvrtc_minor)));
}
#define CHECK_SCALE(factor, want)                                           \
    do {                                                                    \
        tgl_image image_;                                                   \
        REQUIRE(CHECK_OK(compile_scale(factor, &image_)));                  \
        char text_[16] = "";                                                \
        memcpy(text_, image_.image, image_.bytes < 15 ? image_.bytes : 15); \
        CHECK_TEXT(text_, want);                                            \
        tgl_image_free(&image_);                                            \
    } while (0)

/* What was filled so that nothing is compiled serves, whichever NVRTC is here: torch brings one along. In the own
 * folder another version's kernels are found only where nothing may be compiled. */
TEST(a_baked_folder_of_another_nvrtc)
{
    IN_CHILD("TEGULA_LIBCUDA=/nonexistent/libcuda.so.1", "TEGULA_LIBNVRTC=" TEGULA_RECORDING_NVRTC,
             "TEGULA_TEST_NVRTC=12.8");
    support_folder baked = support_folder_in("TEGULA_CACHE_READONLY"), own = support_folder_in("TEGULA_CACHE_DIR");
    CHECK_OK(tgl_set_cache_dir(baked.path));
    put_scale(2, 13, 0);
    put_scale(3, 13, 0), put_scale(3, 12, 8);
    CHECK_OK(tgl_set_cache_dir(own.path));
    put_scale(4, 13, 0);
    put_scale(5, 13, 0);
    CHECK_SCALE(2, "13.0");
    CHECK_SCALE(3, "12.8"); /* that of the NVRTC that is here, if there is one */
    CHECK_SCALE(4, "code"); /* compiled */
    CHECK_INT(tgl_compile_count(), 1);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    CHECK_SCALE(5, "13.0");
    CHECK_INT(tgl_compile_count(), 1);
    support_remove(baked.path);
    support_remove(own.path);
}

/* A driver of CUDA 12 cannot load what an NVRTC of 13 has made. */
TEST(a_baked_folder_for_a_driver_of_cuda_12)
{
    IN_CHILD("EMU_DRIVER=12080", "TEGULA_LIBNVRTC=" TEGULA_RECORDING_NVRTC, "TEGULA_TEST_NVRTC=12.4");
    NEED_EMULATOR();
    support_folder baked = support_folder_in("TEGULA_CACHE_READONLY"), own = support_folder_in("TEGULA_CACHE_DIR");
    CHECK_OK(tgl_set_cache_dir(baked.path));
    put_scale(2, 13, 0);
    put_scale(3, 13, 0), put_scale(3, 12, 9);
    CHECK_OK(tgl_set_cache_dir(own.path));
    CHECK_SCALE(2, "code");
    CHECK_SCALE(3, "12.9");
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    CHECK_SCALE(3, "12.9");
    support_remove(baked.path);
    support_remove(own.path);
}

/* Callbacks run on the calling thread, in the order of the plan, whichever thread compiled. */
typedef struct {
    pthread_t thread;
    char seen[128];
} callbacks;

static void note_callback(void *context, const char *kernel, const char *macros, const char *architecture, double ms)
{
    callbacks *c = context;
    CHECK(pthread_equal(pthread_self(), c->thread));
    CHECK_TEXT(kernel, "tests/add");
    CHECK_TEXT(architecture, "sm_90a");
    CHECK(ms >= 0);
    strncat(strcat(c->seen, macros), ";", 2);
}

TEST(kernels_of_a_plan_compile_at_the_same_time)
{
    IN_CHILD("TEGULA_LIBCUDA=/nonexistent/libcuda.so.1", "TEGULA_LIBNVRTC=" TEGULA_RECORDING_NVRTC,
             "TEGULA_TEST_NVRTC=13.0", "TEGULA_TEST_MEET=2");
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) SKIP("one core: one thread compiles");
    use_new_cache();
    callbacks c = { .thread = pthread_self() };
    CHECK_OK(tgl_set_compile_callback(note_callback, &c));
    const array a = { .tensor = { .device = { kDLCUDA, 0 } } };
    const tgl_kernel plan[] = { add_kernel(1), add_kernel(2), add_kernel(3) };
    CHECK_OK(tgl_prepare_begin(0, "sm_90a"));
    CHECK_OK(tgl_launch(plan, 3, 0, &a.tensor, NULL, NULL));
    CHECK_OK(tgl_prepare_end());
    CHECK_INT(tgl_compile_count(), 3);
    CHECK_INT(support_count(cache.path, ".tgl"), 3);
    CHECK_TEXT(c.seen, "AMOUNT=1;AMOUNT=2;AMOUNT=3;");
    support_remove(cache.path);
}

TEST(prepare_in_pairs)
{
    CHECK_FAILS(tgl_prepare_end(), TGL_ERR_ARGUMENT,
                "tgl_prepare_end: this thread is not preparing; call tgl_prepare_begin before");
    CHECK_FAILS(tgl_prepare_begin(0, "hopper"), TGL_ERR_ARGUMENT,
                "architecture: is \"hopper\", want one such as sm_90a");
    static const struct {
        const char *is, *message;
    } wrong[] = {
        /* no device looks for these */
        { "sm_90", "architecture: is \"sm_90\", want sm_90a" },
        { "sm_86a", "architecture: is \"sm_86a\", want sm_86" },
        { "sm_90f", "architecture: is \"sm_90f\", want sm_90a" }, /* which every NVRTC knows */
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

TEST(bad_workspaces)
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
    NEED_EMULATOR();
    int n;
    CHECK_INT(tgl_device_count(&n), TGL_ERR_DEVICE);
    CHECK_HAS(tgl_last_error(), "this driver is of CUDA 11.8, want 12.0 or newer; update NVIDIA's driver");
}

TEST(no_device)
{
    IN_CHILD("EMU_DEVICES=0");
    NEED_EMULATOR();
    int n;
    CHECK_FAILS(tgl_device_count(&n), TGL_ERR_DEVICE,
                "cuInit: CUDA_ERROR_NO_DEVICE: no GPU is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES");
}

/* ---- facts ---- */

TEST(what_a_device_has)
{
    IN_CHILD("EMU_SMS=6", "EMU_ARCH=90");
    NEED_DEVICE();
    LOAD_DRIVER();
    const tgl_device *d;
    int count, num_sms;
    int64_t bytes;
    CHECK_OK(tgl_device_count(&count));
    CHECK(count >= 1);
    CHECK_OK(tgl_device_get(0, &d));
    CHECK_OK(tgl_get_device_num_sms(0, &num_sms));
    CHECK_OK(tgl_get_max_smem_per_sm(0, &bytes));
    CHECK(d->name[0] && d->major >= 8 && d->total_memory > 0 && d->l2_bytes >= 0);
    CHECK(num_sms == d->num_sms && num_sms > 0 && bytes == d->max_smem_per_sm && bytes >= d->max_smem_per_block_optin);
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
    snprintf(message, sizeof message, "cuda:%d: no such device, there %s %d", count, count == 1 ? "is" : "are", count);
    CHECK_FAILS(tgl_get_device_num_sms(count, &num_sms), TGL_ERR_DEVICE, message);
    CHECK_INT(tgl_get_num_sms(-1), 0);
    CHECK_FAILS(tgl_get_device_num_sms(0, NULL), TGL_ERR_ARGUMENT,
                "num_sms: is NULL, want a pointer to write the number to");
    CHECK_FAILS(tgl_get_max_smem_per_sm(0, NULL), TGL_ERR_ARGUMENT,
                "bytes: is NULL, want a pointer to write the number to");
}

/* ---- launches ---- */

ON_DEVICE(a_launch, "EMU_SMS=4")
{
    CHECK_OK(add(a, 3, NULL));
    check_array(a, 3);
    CHECK_INT(tgl_compile_count(), 1);
    for (int i = 0; i < 10; i++) CHECK_OK(add(a, 3, NULL));
    check_array(a, 33);
    CHECK_OK(add(a, 4, NULL));
    check_array(a, 37);
    CHECK_INT(tgl_compile_count(), 2);
    CHECK_OK(add_shaped(a, 3, (tgl_shape){ .grid = { 0, 7, 7 }, .block = 256 }, NULL)); /* nothing */
    CHECK_OK(add_shaped(a, 3, (tgl_shape){ .grid = { 2, 1, 1 }, .block = 256 }, NULL));
    check_array(a, 40);
}

/* Drivers before CUDA 12.4 do not tell what a kernel takes. */
ON_DEVICE(arguments_of_another_size, "EMU_SMS=4")
{
    const tgl_kernel k = add_kernel(3);
    const struct {
        add_args args;
        int64_t more;
    } args = { { a->data, COUNT }, 0 };
    const tgl_shape shape = { .grid = { 1 }, .block = 256, TGL_ARGS(args) };
    if (!cu->KernelGetParamInfo) SKIP("this driver does not tell what a kernel takes");
    CHECK_INT(tgl_launch(&k, 1, 0, &a->tensor, &shape, NULL), TGL_ERR_INTERNAL);
    CHECK_TEXT(tgl_last_error(), "tests/add: takes 16 bytes of arguments, gets 24; please report this");
    check_array(a, 0);
}

/* Whichever thread fails first, the message is that of the first kernel in order, beginning with the one to launch. */
ON_DEVICE(a_plan_with_kernels_that_do_not_compile, "EMU_SMS=4")
{
    const tgl_kernel none = { "tests/none", { { NULL, 0 } } }, no_amount = { "tests/add", { { NULL, 0 } } };
    const tgl_kernel plan[] = { add_kernel(1), none, add_kernel(2), no_amount };
    const add_args args = { a->data, COUNT };
    const tgl_shape shape = { .grid = { (COUNT + 255) / 256 }, .block = 256, TGL_ARGS(args) };
    for (int i = 0; i < 3; i++) {
        CHECK_INT(tgl_launch(plan, 4, 0, &a->tensor, &shape, NULL), TGL_ERR_INTERNAL);
        CHECK_BEGINS(tgl_last_error(), "tests/none");
        CHECK_INT(tgl_launch(plan, 4, 2, &a->tensor, &shape, NULL), TGL_ERR_COMPILE);
        CHECK_BEGINS(tgl_last_error(), "tests/add for ");
    }
    check_array(a, 0);
}

static void *launch_plan(void *context)
{
    const array *a = context;
    const tgl_kernel plan[] = { add_kernel(1), add_kernel(0), add_kernel(2), add_kernel(3) };
    const add_args args = { a->data, COUNT };
    const tgl_shape shape = { .grid = { (COUNT + 255) / 256 }, .block = 256, TGL_ARGS(args) };
    CHECK_OK(tgl_launch(plan, 4, 1, &a->tensor, &shape, NULL));
    return NULL;
}

/* Each kernel is compiled once, however many threads want the plan. */
ON_DEVICE(a_plan_that_threads_share, "EMU_SMS=4", COMPILES_ANEW)
{
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) CHECK(pthread_create(&threads[i], NULL, launch_plan, a) == 0);
    for (int i = 0; i < 6; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    check_array(a, 0);
    CHECK_INT(tgl_compile_count(), 4);
}

/* The first call of a configuration loads all of its kernels, so that no later choice among them compiles. In strict
 * mode a plan of which the disk lacks a kernel is an error at once, not at some later token count. */
ON_DEVICE(a_plan_of_several_kernels, "EMU_SMS=4")
{
    const tgl_kernel plan[] = { add_kernel(3), add_kernel(4), add_kernel(5) };
    const add_args args = { a->data, COUNT };
    const tgl_shape shape = { .grid = { (COUNT + 255) / 256 }, .block = 256, TGL_ARGS(args) };
    CHECK_OK(tgl_launch(plan, 3, 1, &a->tensor, &shape, NULL));
    check_array(a, 4);
    CHECK_INT(tgl_compile_count(), 3);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    for (int i = 0; i < 3; i++) CHECK_OK(tgl_launch(plan, 3, i, &a->tensor, &shape, NULL));
    check_array(a, 4 + 3 + 4 + 5);
    const tgl_kernel half_new[] = { add_kernel(6), add_kernel(3) };
    CHECK_INT(tgl_launch(half_new, 2, 0, &a->tensor, &shape, NULL), TGL_ERR_COMPILE);
    check_array(a, 16);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_AUTO));
    CHECK_OK(tgl_prepare_begin(0, NULL));
    const tgl_kernel prepared[] = { add_kernel(3), add_kernel(7), add_kernel(8) };
    CHECK_OK(tgl_launch(prepared, 3, 0, &a->tensor, NULL, NULL));
    CHECK_OK(tgl_prepare_end());
    check_array(a, 16);
    CHECK_INT(tgl_compile_count(), 5);
    /* configurations that share a kernel: the first launch of each loads its own others */
    const tgl_kernel shares[] = { add_kernel(3), add_kernel(9) }, more[] = { add_kernel(10), add_kernel(3) };
    CHECK_OK(tgl_launch(shares, 2, 0, &a->tensor, &shape, NULL));
    CHECK_INT(tgl_compile_count(), 6);
    CHECK_OK(tgl_load(more, 2, &a->tensor, NULL));
    CHECK_INT(tgl_compile_count(), 7);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    for (int i = 0; i < 2; i++) CHECK_OK(tgl_launch(shares, 2, i, &a->tensor, &shape, NULL));
    for (int i = 0; i < 2; i++) CHECK_OK(tgl_launch(more, 2, i, &a->tensor, &shape, NULL));
    check_array(a, 16 + 3 + 3 + 9 + 10 + 3);
}

/* A kernel that was compiled by an earlier process is loaded, not compiled. */
ON_DEVICE(a_second_process, "EMU_SMS=4")
{
    fill_cache_with(3);
    CHECK_INT(tgl_compile_count(), 1);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    CHECK_OK(add(a, 3, NULL));
    check_array(a, 3);
    CHECK_INT(tgl_compile_count(), 1);
    CHECK_INT(add(a, 4, NULL), TGL_ERR_COMPILE);
    CHECK_BEGINS(tgl_last_error(), "tests/add (AMOUNT=4) for ");
    CHECK_OK(add(a, 3, NULL));
    check_array(a, 6);
}

ON_EMULATOR(a_warm_launch_asks_little_of_the_driver, "EMU_SMS=4")
{
    CHECK_OK(add(a, 3, NULL));
    CU(CtxPushCurrent(a->context)); /* as a framework leaves it */
    control_of("TEGULA_LIBCUDA").reset_calls();
    for (int i = 0; i < 10; i++) CHECK_OK(add(a, 3, NULL));
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
}

ON_EMULATOR(launch_attributes, "EMU_ARCH=90", "EMU_SMS=16")
{
    CHECK_OK(add_shaped(a, 1,
                        (tgl_shape){ .grid = { 32, 2, 3 }, .block = 64, .shared_bytes = 200 << 10, .cluster = 16 },
                        NULL));
    emu_last_launch l = last_launch();
    CHECK_TEXT(l.kernel, "add");
    CHECK(l.grid[0] == 32 && l.grid[1] == 2 && l.grid[2] == 3 && l.block[0] == 64 && l.block[1] == 1 &&
          l.block[2] == 1);
    CHECK(l.cluster[0] == 16 && l.cluster[1] == 1 && l.cluster[2] == 1);
    CHECK_INT(l.dynamic_bytes, 200 << 10);
    CHECK(l.pdl && !l.cooperative);
    CHECK_OK(add_shaped(a, 1, (tgl_shape){ .grid = { 2 }, .block = 256, .cooperative = true }, NULL));
    l = last_launch();
    CHECK(l.grid[0] == 2 && l.grid[1] == 1 && l.grid[2] == 1 && l.cluster[0] == 1 && l.dynamic_bytes == 0);
    CHECK(l.pdl && l.cooperative);
    CHECK_OK(tgl_set_pdl(false));
    CHECK_OK(add(a, 1, NULL));
    CHECK(!last_launch().pdl);
    CHECK_OK(tgl_set_pdl(true));
    CHECK_OK(add(a, 1, NULL));
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
        CHECK_FAILS(add_shaped(a, 1, bad[i], NULL), TGL_ERR_INTERNAL, NULL);
    CHECK_INT(calls("cuLaunchKernelEx"), before);
}

ON_EMULATOR(no_room_for_a_cluster, "EMU_ARCH=90", "EMU_CLUSTER=8") /* the device is asked once per shape */
{
    const add_args args = { a->data, COUNT };
    const tgl_kernel plan[] = { add_kernel(1), add_kernel(2) };
    const tgl_shape blocks = { .grid = { 3 }, .block = 256, .cooperative = true, TGL_ARGS(args) };
    const tgl_other_launch other = { 1, &blocks };
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        const int cluster = i % 2 ? 16 : 8;
        const tgl_shape shape = {
            .grid = { 16 }, .block = 64, .cluster = cluster, .otherwise = &other, TGL_ARGS(args)
        };
        CHECK_OK(tgl_launch(plan, 2, 0, &a->tensor, &shape, NULL));
        const emu_last_launch l = last_launch();
        CHECK_INT(l.cluster[0], cluster == 8 ? 8 : 1);
        CHECK_INT(l.grid[0], cluster == 8 ? 16 : 3);
        CHECK_INT(l.cooperative, cluster == 16);
        sum += cluster == 8 ? 1 : 2;
    }
    CHECK_INT(calls("cuOccupancyMaxActiveClusters"),
              4); /* of 8; of 16, with much shared memory, and with little; `blocks` */
    check_array(a, (float)sum);
}

ON_EMULATOR(no_room_for_all_blocks_at_once, "EMU_SMS=3")
{
    const add_args args = { a->data, COUNT };
    const tgl_kernel plan[] = { add_kernel(1), add_kernel(2) };
    const tgl_shape blocks = { .grid = { 3 }, .block = 256, TGL_ARGS(args) };
    const tgl_other_launch other = { 1, &blocks };
    tgl_shape shape = {
        .grid = { 3 }, .block = 256, .shared_bytes = 200 << 10, .cooperative = true, .otherwise = &other, TGL_ARGS(args)
    };
    CHECK_OK(tgl_launch(plan, 2, 0, &a->tensor, &shape, NULL));
    CHECK(last_launch().cooperative);
    shape.grid[0] = 4;
    CHECK_OK(tgl_launch(plan, 2, 0, &a->tensor, &shape, NULL));
    CHECK(last_launch().grid[0] == 3 && !last_launch().cooperative);
    check_array(a, 3);
    CHECK_INT(calls("cuLaunchKernelEx"), 2); /* it was asked before, and not launched */
    const uint64_t queries = calls("cuOccupancyMaxActiveClusters");
    CHECK_OK(tgl_launch(plan, 2, 0, &a->tensor, &shape, NULL));
    CHECK_INT(calls("cuOccupancyMaxActiveClusters"), queries);
    tgl_stream stream = begin_capture(a);
    CHECK_OK(tgl_launch(plan, 2, 0, &a->tensor, &shape, stream));
    CU(GraphDestroy(end_capture(stream)));
    close_stream(stream);
    check_array(a, 5);
    shape.otherwise = NULL;
    CHECK_FAILS(tgl_launch(plan, 2, 0, &a->tensor, &shape, NULL), TGL_ERR_CUDA, NULL);
    shape.grid[0] = 2, shape.grid[1] = 2; /* blocks of all dimensions count */
    CHECK_FAILS(tgl_launch(plan, 2, 0, &a->tensor, &shape, NULL), TGL_ERR_CUDA, NULL);
    check_array(a, 5);
    shape.grid[0] = 4, shape.grid[1] = 0, shape.shared_bytes = 100 << 10; /* two on an SM */
    CHECK_OK(tgl_launch(plan, 2, 0, &a->tensor, &shape, NULL));
    check_array(a, 6);
}

ON_EMULATOR(launches_that_the_driver_refuses, "EMU_ARCH=90", "EMU_SMS=4") /* though there seemed to be room */
{
    const add_args args = { a->data, COUNT };
    const tgl_kernel plan[] = { add_kernel(1), add_kernel(2) };
    const tgl_shape blocks = { .grid = { 2 }, .block = 256, TGL_ARGS(args) };
    const tgl_other_launch other = { 1, &blocks };
    const tgl_shape all = { .grid = { 2 }, .block = 256, .cooperative = true, .otherwise = &other, TGL_ARGS(args) };
    const tgl_shape clusters = { .grid = { 2 }, .block = 256, .cluster = 2, .otherwise = &other, TGL_ARGS(args) };
    inject("cuLaunchKernelEx=720");
    CHECK_OK(tgl_launch(plan, 2, 0, &a->tensor, &all, NULL));
    check_array(a, 2);
    inject("cuLaunchKernelEx=912");
    CHECK_OK(tgl_launch(plan, 2, 0, &a->tensor, &clusters, NULL));
    check_array(a, 4);
    inject("cuLaunchKernelEx=701"); /* out of resources: a mistake of ours */
    CHECK_FAILS(tgl_launch(plan, 2, 0, &a->tensor, &all, NULL), TGL_ERR_CUDA, NULL);
    inject("");
    check_array(a, 4);
}

/* An op whose blocks are all resident at once, one on each SM of the target. */
static int plan_of_all_sms(const void *problem, tgl_kernel kernels[TGL_MAX_PLAN])
{
    kernels[0] = add_kernel(1);
    return 1;
}
static tgl_shape shape_of_all_sms(void *problem, const tgl_target *target)
{
    return (tgl_shape){
        .grid = { target->num_sms }, .block = 256, .cooperative = true, .args = problem, .args_bytes = sizeof(add_args)
    };
}
static const tgl_op ALL_SMS = { NULL, plan_of_all_sms, { { .shape = shape_of_all_sms } } };

ON_EMULATOR(a_context_with_fewer_sms, "EMU_ARCH=90", "EMU_SMS=9") /* than its device: the op gets fewer, too */
{
    add_args args = { a->data, COUNT };
    CHECK_OK(tgl_run_on_cuda(&ALL_SMS, &args, &a->tensor, NULL));
    CHECK_INT(last_launch().grid[0], 9);
    inject("cuLaunchKernelEx=720");
    CHECK_OK(tgl_run_on_cuda(&ALL_SMS, &args, &a->tensor, NULL));
    CHECK_INT(last_launch().grid[0], 4);
    check_array(a, 2);
    const uint64_t before = calls("cuLaunchKernelEx");
    inject("cuLaunchKernelEx:1+=720");
    CHECK_FAILS(tgl_run_on_cuda(&ALL_SMS, &args, &a->tensor, NULL), TGL_ERR_CUDA, NULL);
    CHECK_INT(calls("cuLaunchKernelEx") - before, 4); /* with 9, 4, 2 and 1 */
    inject("cuLaunchKernelEx=701");
    CHECK_FAILS(tgl_run_on_cuda(&ALL_SMS, &args, &a->tensor, NULL), TGL_ERR_CUDA, NULL);
    CHECK_INT(calls("cuLaunchKernelEx") - before, 5);
    inject("");
    check_array(a, 2);
}

/* An op with a kernel of clusters, before one without if it has it. */
typedef struct {
    add_args args;
    bool has_other;
} clustered;
static int plan_of_clusters(const void *problem, tgl_kernel kernels[TGL_MAX_PLAN])
{
    const clustered *p = problem;
    kernels[0] = add_kernel(1);
    kernels[1] = p->has_other ? add_kernel(2) : (tgl_kernel){ 0 };
    return 2;
}
static tgl_shape shape_of_clusters(void *problem, const tgl_target *target)
{
    const clustered *p = problem;
    return (tgl_shape){ .grid = { 8 }, .block = 64, .cluster = 4, TGL_ARGS(p->args) };
}
static tgl_shape shape_of_blocks(void *problem, const tgl_target *target)
{
    const clustered *p = problem;
    return (tgl_shape){ .grid = { 3 }, .block = 256, TGL_ARGS(p->args) };
}
static const tgl_op CLUSTERS = { NULL,
                                 plan_of_clusters,
                                 { { .shape = shape_of_clusters }, { .shape = shape_of_blocks } } };

ON_EMULATOR(the_next_kernel_where_clusters_do_not_fit, "EMU_ARCH=90", "EMU_CLUSTER=2")
{
    clustered p = { { a->data, COUNT }, true };
    CHECK_OK(tgl_run_on_cuda(&CLUSTERS, &p, &a->tensor, NULL));
    CHECK_INT(last_launch().grid[0], 3);
    CHECK_INT(calls("cuLaunchKernelEx"), 1); /* it was asked before, and not launched */
    const uint64_t queries = calls("cuOccupancyMaxActiveClusters");
    CHECK_OK(tgl_run_on_cuda(&CLUSTERS, &p, &a->tensor, NULL));
    CHECK_INT(calls("cuOccupancyMaxActiveClusters"), queries);
    tgl_stream stream = begin_capture(a);
    CHECK_OK(tgl_run_on_cuda(&CLUSTERS, &p, &a->tensor, stream));
    CU(GraphDestroy(end_capture(stream)));
    close_stream(stream);
    CHECK_INT(calls("cuLaunchKernelEx"), 3);
    check_array(a, 4);
    p.has_other = false;
    CHECK_FAILS(tgl_run_on_cuda(&CLUSTERS, &p, &a->tensor, NULL), TGL_ERR_CUDA, NULL);
    CHECK_HAS(tgl_last_error(), "CUDA_ERROR_INVALID_CLUSTER_SIZE");
    CHECK_INT(calls("cuLaunchKernelEx"), 3);
    check_array(a, 4);
}

ON_EMULATOR(the_next_kernel_where_clusters_are_refused, "EMU_ARCH=90", "EMU_SMS=8") /* though there seemed to be room */
{
    clustered p = { { a->data, COUNT }, true };
    CHECK_OK(tgl_run_on_cuda(&CLUSTERS, &p, &a->tensor, NULL));
    CHECK_INT(last_launch().cluster[0], 4);
    const uint64_t before = calls("cuLaunchKernelEx");
    inject("cuLaunchKernelEx=912");
    CHECK_OK(tgl_run_on_cuda(&CLUSTERS, &p, &a->tensor, NULL));
    CHECK_INT(calls("cuLaunchKernelEx") - before, 2);
    check_array(a, 3);
    p.has_other = false;
    inject("cuLaunchKernelEx:1+=912");
    CHECK_FAILS(tgl_run_on_cuda(&CLUSTERS, &p, &a->tensor, NULL), TGL_ERR_CUDA, NULL);
    CHECK_INT(calls("cuLaunchKernelEx") - before, 3); /* fewer SMs would not help */
    inject("");
    check_array(a, 3);
}

ON_EMULATOR(no_more_clusters_than_fit, "EMU_ARCH=90", "EMU_SMS=7") /* three of two blocks; asked once per shape */
{
    tgl_shape shape = { .grid = { 16 }, .block = 64, .shared_bytes = 200 << 10, .cluster = 2, .is_cut = true };
    for (int i = 0; i < 2; i++) CHECK_OK(add_shaped(a, 1, shape, NULL));
    CHECK_INT(last_launch().grid[0], 6);
    CHECK_INT(calls("cuOccupancyMaxActiveClusters"), 1);
    shape.grid[0] = 4;
    CHECK_OK(add_shaped(a, 1, shape, NULL));
    CHECK_INT(last_launch().grid[0], 4);
    shape.grid[0] = 16, shape.shared_bytes = 100 << 10;
    CHECK_OK(add_shaped(a, 1, shape, NULL));
    CHECK_INT(last_launch().grid[0], 14);
    CHECK_INT(calls("cuOccupancyMaxActiveClusters"), 2);
    shape.is_cut = false;
    CHECK_OK(add_shaped(a, 1, shape, NULL));
    CHECK_INT(last_launch().grid[0], 16);
}

ON_EMULATOR(a_copied_tensor, "EMU_ARCH=90", "EMU_SMS=4") /* is described anew by each launch */
{
    static _Alignas(64) uint64_t map[16];
    tgl_copied_tensor copied = { .map = map,
                                 .data = (const void *)(uintptr_t)a->data,
                                 .rank = 2,
                                 .sizes = { 64, 2 },
                                 .strides = { 128 },
                                 .box = { 64, 2 } };
    const tgl_shape shape = { .grid = { (COUNT + 255) / 256 }, .block = 256, .copied = &copied };
    static const uint64_t none[16];
    CHECK_OK(add_shaped(a, 1, shape, NULL));
    CHECK(memcmp(map, none, sizeof map) != 0);
    check_array(a, 1);
    const uint64_t before = calls("cuLaunchKernelEx");
    copied.strides[0] = 130; /* no multiple of 16 */
    CHECK_INT(add_shaped(a, 1, shape, NULL), TGL_ERR_CUDA);
    CHECK_BEGINS(tgl_last_error(), "tests/add: cuTensorMapEncodeTiled");
    CHECK_INT(calls("cuLaunchKernelEx"), before);
    check_array(a, 1);
}

ON_EMULATOR(an_older_architecture, "EMU_ARCH=80")
{
    CHECK_OK(add(a, 2, NULL)); /* without PDL, which it does not have */
    CHECK(!last_launch().pdl);
    CHECK_FAILS(add_shaped(a, 2, (tgl_shape){ .grid = { 2 }, .block = 32, .cluster = 2 }, NULL), TGL_ERR_INTERNAL,
                NULL);
    check_array(a, 2);
}

/* The table grows while it is in use. One image serves all keys, which saves compiling. */
ON_DEVICE(many_kernels, "EMU_SMS=4")
{
    enum { KERNELS = 700 };
    const tgl_kernel one = add_kernel(1);
    tgl_cache_key key = key_of(1);
    void *image;
    size_t bytes;
    fill_cache_with(1);
    REQUIRE(tgl_cache_get(&key, &image, &bytes));
    for (int i = 1; i <= KERNELS; i++) {
        key = key_of(i);
        CHECK(tgl_cache_put(&key, image, bytes));
        CHECK_OK(add(a, i, NULL));
    }
    free(image);
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
    check_array(a, KERNELS);
}

ON_DEVICE(a_missing_entry, "EMU_SMS=4")
{
    for (int i = 0; i < 2; i++) {
        CHECK_INT(tgl_launch(&(tgl_kernel){ "tests/other", { { NULL, 0 } } }, 1, 0, &a->tensor,
                             &(tgl_shape){ .grid = { 1 }, .block = 1, TGL_ARGS(a->data) }, NULL),
                  TGL_ERR_CUDA);
        CHECK_BEGINS(tgl_last_error(), "tests/other: cuLibraryGetKernel: CUDA_ERROR_NOT_FOUND");
    }
    if (has_emulator()) CHECK_INT(live().libraries, 0);
}

/* A whole file that is no code for this driver is compiled again and replaced. */
ON_DEVICE(a_bad_image, "EMU_SMS=4")
{
    const tgl_cache_key key = key_of(3);
    char garbage[4096];
    memset(garbage, 0x5a, sizeof garbage);
    CHECK(tgl_cache_put(&key, garbage, sizeof garbage));
    CHECK_OK(add(a, 3, NULL));
    check_array(a, 3);
    CHECK_INT(tgl_compile_count(), 1);
    void *image;
    size_t bytes;
    CHECK(tgl_cache_get(&key, &image, &bytes));
    CHECK(bytes != sizeof garbage);
    free(image);
}

static ino_t file_of(int amount) /* another one once it is replaced */
{
    const tgl_cache_key key = key_of(amount);
    char name[TGL_CACHE_NAME_BYTES], path[512];
    struct stat s;
    tgl_cache_name(&key, name);
    snprintf(path, sizeof path, "%s/%s", cache.path, name);
    return stat(path, &s) ? 0 : s.st_ino;
}

static const struct {
    int number;
    const char *name;
} refusals[] = {
    { 1, "INVALID_VALUE" },
    { 209, "NO_BINARY_FOR_GPU" },
    { 300, "INVALID_SOURCE" },
    { 304, "OPERATING_SYSTEM" },
    { 302, "SHARED_OBJECT_SYMBOL_NOT_FOUND" },
    { 800, "NOT_PERMITTED" },
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

/* The driver refuses an image: the file may be good, so it stays where it cannot be replaced, and serves later. */
ON_EMULATOR(a_refused_image_stays_in_strict_mode, "EMU_SMS=4")
{
    fill_cache_with(3);
    const ino_t file = file_of(3);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    for (int i = 0; i < NUM_REFUSALS; i++) {
        check_refusal(a, 3, NULL, i, "; the image is from the cache, and TEGULA_JIT=never forbids compiling it again");
        CHECK_INT(file_of(3), file);
    }
    CHECK_OK(add(a, 3, NULL));
    check_array(a, 3);
    CHECK_INT(tgl_compile_count(), 1);
}

ON_EMULATOR(a_refused_image_stays_in_a_capture, "EMU_SMS=4")
{
    fill_cache_with(3);
    const ino_t file = file_of(3);
    tgl_stream stream = begin_capture(a);
    for (int i = 0; i < 2 * NUM_REFUSALS; i++) {
        const bool is_strict = i >= NUM_REFUSALS;
        CHECK_OK(tgl_set_jit_mode(is_strict ? TGL_JIT_NEVER : TGL_JIT_AUTO));
        check_refusal(a, 3, stream, i % NUM_REFUSALS,
                      is_strict ? "; the image is from the cache, and TEGULA_JIT=never forbids compiling it again"
                                : "; the image is from the cache, and it cannot be compiled again during a stream "
                                  "capture");
        CHECK_INT(file_of(3), file);
    }
    CHECK_OK(add(a, 3, stream)); /* the capture is still valid */
    CU(GraphDestroy(end_capture(stream)));
    CHECK_INT(tgl_compile_count(), 1);
    close_stream(stream);
}

/* Elsewhere it is compiled again, once; until that has worked, the file stays. */
ON_EMULATOR(a_refused_image_is_replaced_by_a_new_one_only, "EMU_SMS=4")
{
    fill_cache_with(3);
    const ino_t file = file_of(3);
    const emuFail_function fail = control_of("TEGULA_LIBNVRTC").fail;
    for (int i = 0; i < NUM_REFUSALS; i++) {
        CHECK(!fail("nvrtcCompileProgram:1+"));
        check_refusal(a, 3, NULL, i,
                      "; the image is from the cache, and it cannot be compiled again: tests/add (AMOUNT=3) for "
                      "sm_90a: NVRTC_ERROR_COMPILATION: kernel.cu(1): error: injected by EMU_FAIL");
        CHECK_INT(file_of(3), file);
        fail("");
    }
    CHECK_INT(tgl_compile_count(), 1);
    inject("cuLibraryLoadData=304"); /* once */
    CHECK_OK(add(a, 3, NULL));
    check_array(a, 3);
    CHECK_INT(tgl_compile_count(), 2);
    CHECK(file_of(3) != 0 && file_of(3) != file);
}

/* ---- prepare and captures ---- */

ON_DEVICE(prepare_for_a_device, "EMU_SMS=4")
{
    CHECK_OK(tgl_prepare_begin(0, NULL));
    DLTensor empty = a->tensor; /* data may be NULL, shapes anything */
    empty.data = NULL;
    const tgl_kernel k = add_kernel(3);
    CHECK_OK(tgl_launch(&k, 1, 0, &empty, &(tgl_shape){ .grid = { 0 } }, NULL));
    CHECK_OK(tgl_launch(&k, 1, 0, &empty, &(tgl_shape){ .grid = { 0 } }, NULL));
    CHECK_OK(tgl_prepare_end());
    CHECK_INT(tgl_compile_count(), 1);
    check_array(a, 0);
    tgl_stream stream = begin_capture(a);
    CHECK_OK(add(a, 3, stream)); /* loaded, so it can be captured */
    tgl_cu_graph_exec exec = instantiate(end_capture(stream));
    check_array(a, 0);
    CU(GraphLaunch(exec, stream));
    CU(GraphLaunch(exec, stream));
    check_array(a, 6);
    CU(GraphExecDestroy(exec));
    close_stream(stream);
    CHECK_INT(tgl_prepare_begin(99, NULL), TGL_ERR_DEVICE);
    CHECK(!tgl_preparing());
}

ON_DEVICE(compiling_inside_a_capture, "EMU_SMS=4")
{
    const tgl_device *d;
    REQUIRE(tgl_device_get(0, &d) == TGL_OK);
    fill_cache_with(5);
    tgl_stream stream = begin_capture(a);
    char want[256];
    snprintf(want, sizeof want,
             "tests/add (AMOUNT=3) for %s: would have to be compiled during a stream capture; call the op "
             "once before the capture, or between tgl_prepare_begin and tgl_prepare_end",
             d->architecture);
    CHECK_FAILS(add(a, 3, stream), TGL_ERR_CAPTURE, want);
    CHECK_OK(add(a, 5, stream)); /* on disk: loaded, the capture goes on */
    int mode = TGL_CU_CAPTURE_GLOBAL;
    CU(ThreadExchangeStreamCaptureMode(&mode));
    CHECK_INT(mode, TGL_CU_CAPTURE_GLOBAL); /* this thread's mode is as it was */
    CHECK_OK(tgl_prepare_begin(0, NULL));   /* whoever asks for it may compile, too */
    CHECK_OK(add(a, 7, stream));
    CHECK_OK(tgl_prepare_end());
    CHECK_OK(add(a, 7, stream));
    tgl_cu_graph_exec exec = instantiate(end_capture(stream));
    CU(GraphLaunch(exec, stream));
    check_array(a, 12);
    CHECK_OK(add(a, 3, stream)); /* outside it compiles */
    check_array(a, 15);
    CU(GraphExecDestroy(exec));
    close_stream(stream);
}

typedef struct {
    const array *a;
    int amount;
    tgl_status status;
    char message[512];
} thread_launch;

static void *launch_in_thread(void *argument)
{
    thread_launch *t = argument;
    t->status = add(t->a, t->amount, NULL);
    snprintf(t->message, sizeof t->message, "%s", tgl_last_error());
    return NULL;
}

static void *load_in_thread(void *argument)
{
    thread_launch *t = argument;
    t->status = tgl_prepare_begin(0, NULL);
    if (t->status == TGL_OK) t->status = add(t->a, t->amount, NULL);
    snprintf(t->message, sizeof t->message, "%s", tgl_last_error());
    tgl_prepare_end();
    return NULL;
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

/* Runs `f` in a thread for each launch, and joins them; cancels them after a while if asked. */
static void in_threads(void *(*f)(void *), thread_launch *t, int count, bool cancel)
{
    pthread_t threads[8];
    for (int i = 0; i < count; i++) REQUIRE(pthread_create(&threads[i], NULL, f, &t[i]) == 0);
    if (cancel) usleep(50000); /* they are at it */
    for (int i = 0; cancel && i < count; i++) pthread_cancel(threads[i]);
    for (int i = 0; i < count; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
}

ON_DEVICE(another_threads_capture_goes_on, "EMU_SMS=4", COMPILES_ANEW)
{
    CHECK_OK(add(a, 3, NULL));
    tgl_stream stream = begin_capture(a);
    thread_launch t = { .a = a, .amount = 8 };
    in_threads(load_in_thread, &t, 1, false);
    CHECK_THAT(t.status == TGL_OK, "loading beside a capture: %s", t.message);
    CHECK_OK(add(a, 3, stream));
    CU(GraphDestroy(end_capture(stream)));
    close_stream(stream);
}

/* ---- threads ---- */

ON_DEVICE(threads_that_want_the_same_kernel, "EMU_SMS=4", COMPILES_ANEW)
{
    enum { THREADS = 8 };
    thread_launch t[THREADS];
    array arrays[THREADS];
    for (int i = 0; i < THREADS; i++) {
        arrays[i] = i ? make_array(0) : *a;
        t[i] = (thread_launch){ .a = &arrays[i], .amount = 1 + i / 4 }; /* two kernels, four threads each */
    }
    in_threads(launch_in_thread, t, THREADS, false);
    for (int i = 0; i < THREADS; i++) {
        CHECK_THAT(t[i].status == TGL_OK, "thread %d: %s", i, t[i].message);
        check_array(&arrays[i], (float)t[i].amount);
        if (i) free_array(&arrays[i]);
    }
    CHECK_INT(tgl_compile_count(), 2);
    if (has_emulator()) CHECK_INT(calls("cuLibraryLoadData"), 2);
}

ON_DEVICE(threads_that_want_a_kernel_with_an_error, "EMU_SMS=4", COMPILES_ANEW)
{
    enum { THREADS = 6 };
    thread_launch t[THREADS];
    for (int i = 0; i < THREADS; i++) t[i] = (thread_launch){ .a = a };
    in_threads(launch_broken, t, THREADS, false);
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(t[i].status, TGL_ERR_COMPILE);
        CHECK_HAS(t[i].message, "AMOUNT is not defined");
    }
    CHECK_OK(add(a, 3, NULL));
    check_array(a, 3);
}

/* pthread_cancel() while a thread compiles and others wait for it: they finish, and the kernel is there for the next. */
ON_DEVICE(cancelled_threads, "EMU_SMS=4", COMPILES_ANEW)
{
    enum { THREADS = 3 };
    alarm(60); /* a thread that waits for ever fails */
    thread_launch t[THREADS];
    for (int i = 0; i < THREADS; i++) t[i] = (thread_launch){ .a = a, .amount = 3 };
    in_threads(load_in_thread, t, THREADS, true);
    CHECK_OK(add(a, 3, NULL));
    check_array(a, 3);
    CHECK_INT(tgl_compile_count(), 1); /* by a cancelled one */
}

/* ---- contexts and devices ---- */

ON_DEVICE(contexts_are_left_as_found, "EMU_SMS=4")
{
    CHECK(!current());
    CHECK_OK(add(a, 3, NULL)); /* the primary one, for the call */
    CHECK(!current());
    CHECK_OK(add(a, 3, NULL));
    CHECK_OK(tgl_prepare_begin(0, NULL));
    CHECK_OK(add(a, 4, NULL));
    CHECK_OK(tgl_prepare_end());
    CHECK_OK(tgl_workspace_init((void *)(uintptr_t)a->data, 256, NULL));
    CHECK(!current());
    CHECK_INT(tgl_launch(&(tgl_kernel){ "no/such", { { NULL, 0 } } }, 1, 0, &a->tensor,
                         &(tgl_shape){ .grid = { 1 }, .block = 1 }, NULL),
              TGL_ERR_INTERNAL);
    CHECK(!current());

    tgl_cu_result (*create)(tgl_cu_context *, unsigned, tgl_cu_device), (*destroy)(tgl_cu_context);
    *(void **)&create = dlsym(cu->handle, "cuCtxCreate_v2");
    *(void **)&destroy = dlsym(cu->handle, "cuCtxDestroy_v2");
    REQUIRE(create && destroy);
    tgl_cu_context mine = NULL;
    CHECK_INT(create(&mine, 0, 0), 0); /* of the same device: used as it is */
    array b = *a;
    float zero[COUNT] = { 0 };
    b.context = mine;
    CU(MemAlloc(&b.data, sizeof zero));
    CU(MemcpyHtoD(b.data, zero, sizeof zero));
    tgl_stream stream = make_stream(0);
    const uint64_t loads = has_emulator() ? calls("cuKernelGetFunction") : 0;
    CHECK_OK(add(&b, 3, NULL));
    CHECK_OK(add(&b, 3, stream));
    if (loads) CHECK_INT(calls("cuKernelGetFunction"), loads + 1); /* loaded there before the first launch, once */
    CHECK(current() == mine);
    CU(CtxPopCurrent(NULL));
    CHECK_OK(add(&b, 3, stream)); /* none is current: the stream's */
    CHECK(!current());
    check_array(&b, 9);
    free_array(&b);
    CU(CtxPushCurrent(mine));
    CU(StreamDestroy(stream));
    CHECK_INT(destroy(mine), 0);
}

ON_DEVICE(two_devices_of_one_kind, "EMU_DEVICES=2", "EMU_ARCH=90", "EMU_SMS=4")
{
    int count;
    const tgl_device *d[2];
    CHECK_OK(tgl_device_count(&count));
    if (count < 2) SKIP("needs two devices");
    for (int i = 0; i < 2; i++) CHECK_OK(tgl_device_get(i, &d[i]));
    if (strcmp(d[0]->architecture, d[1]->architecture)) SKIP("the devices are of two kinds");
    array other = make_array(1);
    for (int i = 0; i < 2; i++) { /* with no context, and with one of device 0 */
        CHECK_OK(add(a, 3, NULL));
        CHECK_OK(add(&other, 3, NULL));
        if (i == 0) CU(CtxPushCurrent(a->context));
    }
    CHECK(current() == a->context);
    CU(CtxPopCurrent(NULL));
    check_array(a, 6);
    check_array(&other, 6);
    CHECK_INT(tgl_compile_count(), 1);
    if (has_emulator()) {
        CHECK_INT(calls("cuLibraryLoadData"), 1); /* once for both */
        CHECK_INT(last_launch().device, 1);
    }

    CU(CtxPushCurrent(other.context));
    tgl_stream stream = make_stream(0);
    CU(CtxPopCurrent(NULL));
    CHECK_OK(add(&other, 3, stream));
    check_array(&other, 9);
    CHECK_FAILS(add(a, 3, stream), TGL_ERR_ARGUMENT,
                "stream: belongs to another device, want one of cuda:0, where the tensors are");
    CHECK(!current());
    check_array(a, 6);
    CU(CtxPushCurrent(other.context));
    close_stream(stream);

    CHECK_OK(tgl_set_num_sms(1, 2)); /* for that device alone */
    CHECK_INT(tgl_get_num_sms(1), 2);
    CHECK_INT(tgl_get_num_sms(0), d[0]->num_sms);
    free_array(&other);
}

ON_EMULATOR(two_devices_of_two_kinds, "EMU_DEVICES=2", "EMU_ARCH=90,80", "EMU_SMS=4")
{
    array other = make_array(1);
    const tgl_device *d;
    CHECK_OK(add(a, 3, NULL));
    CHECK_OK(add(&other, 3, NULL));
    check_array(a, 3);
    check_array(&other, 3);
    CHECK_INT(tgl_compile_count(), 2);
    CHECK_INT(calls("cuLibraryLoadData"), 2);
    CHECK_OK(tgl_device_get(1, &d));
    CHECK_TEXT(d->architecture, "sm_80");
    free_array(&other);
}

/* ---- forks ---- */

static int wait_for(pid_t pid)
{
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

ON_DEVICE(a_child_forked_after_the_driver_was_used, "EMU_SMS=4")
{
    CHECK_OK(add(a, 3, NULL));
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        static const char want[] =
            "CUDA was in use before this process was forked, and a forked process cannot use it; start "
            "processes with exec (Python: multiprocessing's spawn)";
        int n;
        if (add(a, 3, NULL) != TGL_ERR_DEVICE || strcmp(tgl_last_error(), want)) _exit(1);
        if (add(a, 9, NULL) != TGL_ERR_DEVICE || strcmp(tgl_last_error(), want)) _exit(2);
        if (tgl_get_device_num_sms(0, &n) != TGL_ERR_DEVICE || tgl_prepare_begin(0, NULL) != TGL_ERR_DEVICE) _exit(3);
        if (tgl_prepare_begin(0, "sm_90a") || add(a, 10, NULL) || tgl_prepare_end()) _exit(4); /* compiling works */
        if (tgl_compile_count() != 2) _exit(5);
        _exit(0);
    }
    CHECK_INT(wait_for(pid), 0);
    CHECK_OK(add(a, 3, NULL)); /* and the parent goes on */
    check_array(a, 6);
}

TEST(a_child_forked_before_the_driver_was_used)
{
    IN_CHILD("EMU_SMS=4");
    NEED_DEVICE();
    use_new_cache();
    CHECK(tgl_driver_version() >= 12000); /* loaded, not initialised */
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        if (tgl_driver(&cu) != TGL_OK) _exit(1);
        array a = make_array(0);
        _exit(add(&a, 3, NULL) == TGL_OK ? 0 : 2);
    }
    CHECK_INT(wait_for(pid), 0);
    support_remove(cache.path);
}

static atomic_bool stop;

static void *launch_new_kernels(void *argument)
{
    for (int i = 1; !atomic_load(&stop); i++) add(argument, 1000 + i % 3, NULL);
    return NULL;
}

/* Forks while other threads load and launch: no child ever hangs on a lock. */
ON_DEVICE(forks_beside_launches, "EMU_SMS=4", COMPILES_ANEW)
{
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, launch_new_kernels, a) == 0);
    fflush(stdout);
    for (int i = 0; i < 40; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            _exit(add(a, 1, NULL) != TGL_ERR_DEVICE || tgl_set_compile_callback(NULL, NULL) != TGL_OK);
        }
        CHECK_INT(wait_for(pid), 0);
        usleep(10000);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}

/* ---- workspaces ---- */

ON_DEVICE(workspace_init, "EMU_SMS=4")
{
    enum { BYTES = 1000 };
    CU(CtxPushCurrent(a->context));
    tgl_cu_pointer p;
    CU(MemAlloc(&p, BYTES + 24));
    CU(MemsetD8(p, 0xee, BYTES + 24));
    tgl_stream stream = make_stream(TGL_CU_STREAM_NON_BLOCKING);
    CU(CtxPopCurrent(NULL));
    CHECK_OK(tgl_workspace_init((void *)(uintptr_t)p, BYTES, stream));
    CU(CtxPushCurrent(a->context));
    CU(StreamSynchronize(stream));
    unsigned char seen[BYTES + 24];
    CU(MemcpyDtoH(seen, p, sizeof seen));
    for (int i = 0; i < BYTES + 24; i++) CHECK_THAT(seen[i] == (i < BYTES ? 0 : 0xee), "byte %d is %d", i, seen[i]);
    CU(MemFree(p));
    close_stream(stream);
    void *host = NULL;
    REQUIRE(posix_memalign(&host, 256, 1024) == 0);
    CHECK_INT(tgl_workspace_init(host, 1024, NULL), TGL_ERR_WORKSPACE);
    CHECK_HAS(tgl_last_error(), "is not CUDA memory, want device memory");
    free(host);
}
