/* SPDX-License-Identifier: MIT
 * From source to machine code: keys, architectures, the disk cache, strict mode, reports, threads, forks.
 * With the real NVRTC where it is found, and with the emulated one. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>

#include "support.h"

typedef tgl_macro macro_list[TGL_MAX_MACROS];

#define NEED_NVRTC()                                              \
    do {                                                          \
        if (!tgl_nvrtc_or_null()) SKIP("no NVRTC is found here"); \
    } while (0)

/* support_source with FACTOR; 0: not defined. */
static tgl_status build_for(const char *architecture, int factor, unsigned how, tgl_image *image)
{
    const macro_list macros = { { factor ? "FACTOR" : NULL, factor } };
    return tgl_jit_source(&support_source, macros, architecture, how, image);
}

static tgl_status build(int factor, unsigned how, tgl_image *image) { return build_for("sm_90a", factor, how, image); }

static bool builds(int factor, unsigned how) /* and frees the image */
{
    tgl_image image;
    const bool ok = CHECK_OK(build(factor, how, &image));
    tgl_image_free(&image);
    return ok;
}

/* A block with NVRTC and a new cache folder. */
#define WITH_FOLDER(name)                               \
    static void with_folder_##name(const char *folder); \
    TEST(name)                                          \
    {                                                   \
        NEED_NVRTC();                                   \
        support_folder f = support_make_folder();       \
        CHECK_OK(tgl_set_cache_dir(f.path));            \
        with_folder_##name(f.path);                     \
        support_remove(f.path);                         \
    }                                                   \
    static void with_folder_##name(const char *folder)

/* ---- without a compiler ---- */

TEST(keys_depend_on_everything)
{
    static const char *const names[] = { "a.cuh", "b.cuh" }, *const other_names[] = { "a.cuh", "c.cuh" };
    static const char *const texts[] = { "one", "two" }, *const other_texts[] = { "one", "tw" },
                             *const moved[] = { "onet", "wo" };
    static const macro_list m = { { "A", 1 }, { "B", 2 } }, value = { { "A", 1 }, { "B", 3 } },
                            name = { { "A", 1 }, { "C", 2 } }, fewer = { { "A", 1 } }, joined = { { "A", 12 } };
    const tgl_source s = { "x/y", "text", 2, names, texts }, text = { "x/y", "texu", 2, names, texts },
                     called = { "x/z", "text", 2, names, texts },
                     header_name = { "x/y", "text", 2, other_names, texts },
                     header_text = { "x/y", "text", 2, names, other_texts },
                     header_move = { "x/y", "text", 2, names, moved }, header_less = { "x/y", "text", 1, names, texts };
    const struct {
        const tgl_source *source;
        const tgl_macro *macros;
        const char *architecture;
        int major, minor;
    } rows[] = {
        { &s, m, "sm_90a", 13, 0 },           { &text, m, "sm_90a", 13, 0 },
        { &called, m, "sm_90a", 13, 0 },      { &header_name, m, "sm_90a", 13, 0 },
        { &header_text, m, "sm_90a", 13, 0 }, { &header_move, m, "sm_90a", 13, 0 },
        { &header_less, m, "sm_90a", 13, 0 }, { &s, value, "sm_90a", 13, 0 },
        { &s, name, "sm_90a", 13, 0 },        { &s, fewer, "sm_90a", 13, 0 },
        { &s, joined, "sm_90a", 13, 0 },      { &s, m, "sm_90", 13, 0 },
        { &s, m, "sm_90a", 12, 0 },           { &s, m, "sm_90a", 13, 1 },
    };
    enum { ROWS = sizeof rows / sizeof rows[0] };
    tgl_cache_key keys[ROWS];
    for (int i = 0; i < ROWS; i++) {
        tgl_cache_key again;
        tgl_jit_key(rows[i].source, rows[i].macros, rows[i].architecture, rows[i].major, rows[i].minor, &keys[i]);
        tgl_jit_key(rows[i].source, rows[i].macros, rows[i].architecture, rows[i].major, rows[i].minor, &again);
        CHECK(!memcmp(&keys[i], &again, sizeof again));
        for (int k = 0; k < i; k++)
            CHECK_THAT(memcmp(&keys[i], &keys[k], sizeof keys[i]), "rows %d and %d have the same key", k, i);
    }
}

TEST(the_architecture_for_a_device)
{
    static const int nvrtc_12_0[] = { 50, 60, 70, 75, 80, 86, 87, 89, 90 };
    static const int nvrtc_13_0[] = { 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121 };
    static const struct {
        int major, minor;
        bool is_13;
        const char *want;
    } rows[] = {
        { 8, 0, true, "sm_80" },        { 8, 6, true, "sm_86" },        { 8, 9, true, "sm_89" },
        { 9, 0, true, "sm_90a" },       { 10, 0, true, "sm_100a" },     { 10, 3, true, "sm_103a" },
        { 12, 0, true, "sm_120a" },     { 12, 1, true, "sm_121a" },     { 9, 0, false, "sm_90a" },
        { 10, 0, false, "compute_90" }, { 13, 0, true, "compute_121" }, { 8, 8, false, "compute_87" },
        { 10, 1, true, "compute_100" },
    };
    char name[TGL_ARCHITECTURE_BYTES];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tgl_jit_architecture_given(rows[i].major, rows[i].minor, rows[i].is_13 ? nvrtc_13_0 : nvrtc_12_0,
                                   rows[i].is_13 ? 12 : 9, name);
        CHECK_TEXT(name, rows[i].want);
    }
    tgl_jit_architecture_given(8, 0, (const int[]){ 90, 100 }, 2, name); /* too old: NVRTC will say so */
    CHECK_TEXT(name, "sm_80");
    tgl_jit_architecture_given(14, 2, NULL, 0, name); /* no NVRTC at hand: what a cache was filled for */
    CHECK_TEXT(name, "sm_142a");
    CHECK_FAILS(tgl_jit_architecture(7, 5, name), TGL_ERR_DEVICE,
                "this GPU has compute capability 7.5, want 8.0 (A100) or newer");
}

TEST(names_of_architectures)
{
    CHECK_INT(tgl_jit_architecture_number("sm_80"), 80);
    CHECK_INT(tgl_jit_architecture_number("sm_90a"), 90);
    CHECK_INT(tgl_jit_architecture_number("sm_100f"), 100);
    CHECK_INT(tgl_jit_architecture_number("compute_121"), 121);
    static const char *const bad[] = { "",      "sm_",     "sm_9",     "sm_90b", "sm_90aa", "90",
                                       "SM_90", "sm_1000", "compute_", "sm_-90", "sm_90 " };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) CHECK_INT(tgl_jit_architecture_number(bad[i]), 0);
}

TEST(macros_as_text)
{
    char text[TGL_MACRO_TEXT_BYTES];
    tgl_macro_text((macro_list){ { NULL, 0 } }, text);
    CHECK_TEXT(text, "");
    tgl_macro_text((macro_list){ { "A", -1 }, { NULL, 7 }, { "B", INT64_MAX } }, text);
    CHECK_TEXT(text, "A=-1 B=9223372036854775807");
}

TEST(what_is_embedded)
{
    CHECK(tgl_num_embedded > 0);
    for (int i = 0; i < tgl_num_embedded; i++) {
        const tgl_embedded_file *f = &tgl_embedded[i];
        CHECK_THAT(strlen((const char *)f->text) == f->bytes && f->bytes > 0, "%s: its text is not its bytes", f->name);
        /* each header it names is in its list, and is what a compiler would look for */
        const char *line = (const char *)f->text;
        for (; (line = strstr(line, "\n#include \"")); line++) {
            const char *name = line + strlen("\n#include \"");
            const size_t n = strcspn(name, "\"");
            bool found = false;
            for (const int *h = f->headers; *h >= 0; h++) {
                REQUIRE(*h < tgl_num_embedded);
                found |= strlen(tgl_embedded[*h].name) == n && !strncmp(tgl_embedded[*h].name, name, n);
            }
            CHECK_THAT(found, "%s: the list lacks %.*s", f->name, (int)n, name);
        }
        /* and so are the headers' own */
        for (const int *h = f->headers; *h >= 0; h++)
            for (const int *deeper = tgl_embedded[*h].headers; *deeper >= 0; deeper++) {
                bool found = false;
                for (const int *k = f->headers; *k >= 0; k++) found |= *k == *deeper;
                CHECK_THAT(found, "%s: the list lacks %s", f->name, tgl_embedded[*deeper].name);
            }
    }
}

TEST(no_such_kernel)
{
    tgl_image image;
    CHECK_FAILS(tgl_jit_image(&(tgl_kernel){ "no/such", { { NULL, 0 } } }, "sm_90a", true, &image), TGL_ERR_INTERNAL,
                "no/such: no such kernel in this library");
    CHECK(!image.image && !image.log);
}

TEST(no_such_architecture)
{
    tgl_image image;
    CHECK_FAILS(build_for("sm_hopper", 2, TGL_JIT_MAY_COMPILE, &image), TGL_ERR_ARGUMENT,
                "architecture: is \"sm_hopper\", want one such as sm_90a");
}

TEST(a_library_that_is_no_nvrtc)
{
    IN_CHILD("TEGULA_LIBNVRTC=/nonexistent/libnvrtc.so.13");
    tgl_image image;
    CHECK_OK(tgl_set_cache_dir(""));
    for (int i = 0; i < 2; i++)
        CHECK_FAILS(build(2, TGL_JIT_MAY_COMPILE, &image), TGL_ERR_COMPILE,
                    "TEGULA_LIBNVRTC: /nonexistent/libnvrtc.so.13: cannot open shared object file: No such file "
                    "or directory");
}

/* As in a wheel: libnvrtc and its builtins in a folder that the loader does not search. */
TEST(builtins_beside_nvrtc)
{
    support_folder folder = { "" };
    char change[TGL_PATH_BYTES + 32] = "", builtins[64];
    const bool is_child = getenv("TEGULA_TEST_CHILD") != NULL;
    if (!is_child && !support_has_real_nvrtc()) SKIP("needs NVIDIA's NVRTC");
    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    REQUIRE(nvrtc);
    snprintf(builtins, sizeof builtins, "libnvrtc-builtins.so.%d.%d", nvrtc->major, nvrtc->minor);
    if (!is_child) {
        char from[TGL_PATH_BYTES + 64], to[TGL_PATH_BYTES];
        const int slash = (int)(strrchr(nvrtc->path, '/') - nvrtc->path);
        snprintf(from, sizeof from, "%.*s/%s", slash, nvrtc->path, builtins);
        if (access(from, R_OK)) SKIP("no %s beside %s", builtins, nvrtc->path);
        folder = support_make_folder();
        snprintf(to, sizeof to, "%s/%s", folder.path, builtins);
        CHECK_INT(symlink(from, to), 0);
        snprintf(to, sizeof to, "%s/libnvrtc.so.%d", folder.path, nvrtc->major);
        CHECK_INT(symlink(nvrtc->path, to), 0);
        snprintf(change, sizeof change, "TEGULA_LIBNVRTC=%s", to);
    }
    if (!support_in_child(__func__ + strlen("test_"), (const char *const[]){ change, NULL })) {
        support_remove(folder.path);
        return;
    }
    void *handle = dlopen(builtins, RTLD_LAZY | RTLD_NOLOAD); /* what NVRTC will get by this name */
    REQUIRE(handle);
    const struct link_map *map = NULL;
    REQUIRE(dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0);
    char want[TGL_PATH_BYTES];
    snprintf(want, sizeof want, "%.*s%s", (int)(strrchr(nvrtc->path, '/') + 1 - nvrtc->path), nvrtc->path, builtins);
    CHECK_TEXT(map->l_name, want);
    dlclose(handle);
}

/* Without NVRTC, what another machine compiled is used, whichever NVRTC version made it. */
TEST(a_filled_cache_needs_no_nvrtc)
{
    IN_CHILD("TEGULA_LIBNVRTC=/nonexistent/libnvrtc.so.13");
    support_folder f = support_folder_in("TEGULA_CACHE_DIR");
    static const macro_list m = { { "FACTOR", 2 } };
    tgl_cache_key key;
    tgl_jit_key(&support_source, m, "sm_90a", 12, 8, &key);
    CHECK(tgl_cache_put(&key, "machine code", 12));
    tgl_image image;
    CHECK_OK(build(2, 0, &image));
    CHECK(image.bytes == 12 && !memcmp(image.image, "machine code", 12) && !image.compiled);
    CHECK_TEXT(image.log, "");
    tgl_image_free(&image);
    support_remove(f.path);
}

/* ---- with one ---- */

typedef struct {
    int count;
    char kernel[64], macros[64], architecture[64];
    double milliseconds;
} reported;

static void on_compile(void *context, const char *kernel, const char *macros, const char *architecture,
                       double milliseconds)
{
    reported *r = context;
    r->count++;
    snprintf(r->kernel, sizeof r->kernel, "%s", kernel);
    snprintf(r->macros, sizeof r->macros, "%s", macros);
    snprintf(r->architecture, sizeof r->architecture, "%s", architecture);
    r->milliseconds = milliseconds;
}

WITH_FOLDER(compiled_once_then_found)
{
    reported r = { 0 };
    CHECK_OK(tgl_set_compile_callback(on_compile, &r));
    const uint64_t before = tgl_compile_count();
    tgl_image first, second;
    CHECK_OK(build(3, TGL_JIT_MAY_COMPILE, &first));
    CHECK(first.compiled && first.bytes > 100 && first.milliseconds > 0);
    CHECK_INT(tgl_compile_count(), before + 1);
    CHECK_INT(r.count, 1);
    CHECK_TEXT(r.kernel, "tests/scale");
    CHECK_TEXT(r.macros, "FACTOR=3");
    CHECK_TEXT(r.architecture, "sm_90a");
    CHECK(r.milliseconds == first.milliseconds);
    if (support_has_real_nvrtc()) {
        CHECK(!memcmp(first.image, "\177ELF", 4));
        CHECK_HAS(first.log, "0 bytes spill stores, 0 bytes spill loads");
        CHECK_HAS(first.log, "registers");
    }
    CHECK_OK(build(3, TGL_JIT_MAY_COMPILE, &second));
    CHECK(!second.compiled && second.milliseconds == 0);
    CHECK_TEXT(second.log, "");
    CHECK(second.bytes == first.bytes && !memcmp(second.image, first.image, first.bytes));
    CHECK_INT(tgl_compile_count(), before + 1);
    CHECK_INT(r.count, 1);
    tgl_image_free(&second);
    CHECK_OK(tgl_set_compile_callback(NULL, NULL));
    CHECK_OK(build(4, TGL_JIT_MAY_COMPILE, &second));
    CHECK(second.compiled);
    CHECK_INT(r.count, 1);
    CHECK_INT(support_count(folder, ""), 2);
    tgl_image_free(&first);
    tgl_image_free(&second);
}

TEST(works_without_a_folder)
{
    NEED_NVRTC();
    CHECK_OK(tgl_set_cache_dir(""));
    tgl_image image;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(build(3, TGL_JIT_MAY_COMPILE, &image));
        CHECK(image.compiled);
        tgl_image_free(&image);
    }
}

WITH_FOLDER(strict_mode)
{
    tgl_image image;
    builds(3, TGL_JIT_MAY_COMPILE);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    builds(3, TGL_JIT_MAY_COMPILE);
    char want[600];
    snprintf(want, sizeof want,
             "tests/scale (FACTOR=4) for sm_90a: not in the cache (%s), and TEGULA_JIT=never forbids "
             "compiling it; fill the cache with `tegula compile`",
             folder);
    CHECK_FAILS(build(4, TGL_JIT_MAY_COMPILE, &image), TGL_ERR_COMPILE, want);
    CHECK(!image.image && !image.log);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_AUTO));
}

WITH_FOLDER(where_compiling_is_refused)
{
    tgl_image image;
    CHECK_FAILS(build(3, 0, &image), TGL_ERR_CAPTURE,
                "tests/scale (FACTOR=3) for sm_90a: would have to be compiled during a stream capture; call "
                "the op once before the capture, or between tgl_prepare_begin and tgl_prepare_end");
    builds(3, TGL_JIT_MAY_COMPILE);
    builds(3, 0); /* what is on disk may be loaded */
}

WITH_FOLDER(made_again)
{
    static const macro_list m = { { "FACTOR", 3 } };
    tgl_image first, second;
    CHECK_OK(build(3, TGL_JIT_MAY_COMPILE, &first));
    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    tgl_cache_key key;
    tgl_jit_key(&support_source, m, "sm_90a", nvrtc->major, nvrtc->minor, &key);
    CHECK(tgl_cache_put(&key, "whole, but no code", 18));
    CHECK_OK(build(3, TGL_JIT_MAY_COMPILE, &second));
    CHECK_INT(second.bytes, 18); /* the cache cannot know */
    tgl_image_free(&second);
    CHECK_OK(build(3, TGL_JIT_MAY_COMPILE | TGL_JIT_REBUILD, &second));
    CHECK(second.compiled && second.bytes == first.bytes);
    tgl_image_free(&second);
    CHECK_OK(build(3, 0, &second));
    CHECK(second.bytes == first.bytes);
    tgl_image_free(&second);
    tgl_image_free(&first);
}

WITH_FOLDER(a_source_with_an_error)
{
    const uint64_t before = tgl_compile_count();
    tgl_image image;
    CHECK_INT(build(0, TGL_JIT_MAY_COMPILE, &image), TGL_ERR_COMPILE);
    CHECK_BEGINS(tgl_last_error(), "tests/scale for sm_90a: NVRTC_ERROR_COMPILATION: ");
    CHECK_HAS(tgl_last_error(), "FACTOR is not defined");
    if (support_has_real_nvrtc()) CHECK_HAS(tgl_last_error(), "tests/scale.cu(3): ");
    CHECK(!image.image && !image.log && !image.compiled);
    CHECK_INT(tgl_compile_count(), before);
    CHECK_INT(support_count(folder, ""), 0);
}

TEST(architectures_that_compile)
{
    NEED_NVRTC();
    CHECK_OK(tgl_set_cache_dir(""));
    const char *const *names, *const *again;
    int count, count_again;
    CHECK_OK(tgl_jit_architectures(&names, &count));
    CHECK_OK(tgl_jit_architectures(&again, &count_again));
    CHECK(names == again && count == count_again && count >= 4);
    for (int i = 0; i < (support_has_real_nvrtc() ? count : 1); i++) {
        tgl_image image;
        CHECK_OK(build_for(names[i], 2, TGL_JIT_MAY_COMPILE, &image));
        tgl_image_free(&image);
    }
    tgl_image image;
    CHECK_INT(build_for("sm_61", 2, TGL_JIT_MAY_COMPILE, &image), TGL_ERR_COMPILE);
    CHECK_HAS(tgl_last_error(), " does not know this architecture (NVRTC ");
    CHECK_HAS(tgl_last_error(), " knows: sm_80, sm_86, ");
    CHECK_HAS(tgl_last_error(), ", sm_90a");
    CHECK_INT(tgl_prepare_begin(0, "sm_99"), TGL_ERR_ARGUMENT);
    CHECK_HAS(tgl_last_error(), "architecture: is \"sm_99\", want one that NVRTC ");
    CHECK_HAS(tgl_last_error(), " knows: sm_80, sm_86, ");
}

TEST(ptx_for_devices_nvrtc_does_not_know)
{
    NEED_NVRTC();
    if (!support_has_real_nvrtc()) SKIP("the emulated NVRTC makes no PTX");
    CHECK_OK(tgl_set_cache_dir(""));
    tgl_image image;
    CHECK_OK(build_for("compute_90", 2, TGL_JIT_MAY_COMPILE, &image));
    const char *text = image.image;
    CHECK(image.bytes > 100 && text[image.bytes - 1] == 0 &&
          strlen(text) == image.bytes - 1); /* as the driver wants it */
    CHECK(strstr(text, ".target sm_90") && strstr(text, ".visible .entry scale("));
    tgl_image_free(&image);
}

/* ---- threads and forks: without EMU_CACHE kernels take their time to compile, in which others come by ---- */

enum { NUM_THREADS = 4, KERNELS_A_THREAD = 3 };

static void *compile_some(void *argument)
{
    const int thread = *(const int *)argument;
    intptr_t bad = 0;
    for (int i = 0; i < KERNELS_A_THREAD; i++) {
        tgl_image image;
        bad += build(100 + thread * KERNELS_A_THREAD + i, TGL_JIT_MAY_COMPILE, &image) != TGL_OK || !image.compiled;
        tgl_image_free(&image);
    }
    return (void *)bad;
}

WITH_FOLDER(threads_compile_different_kernels)
{
    unsetenv("EMU_CACHE");
    const uint64_t before = tgl_compile_count();
    pthread_t threads[NUM_THREADS];
    int numbers[NUM_THREADS];
    for (int i = 0; i < NUM_THREADS; i++) {
        numbers[i] = i;
        REQUIRE(pthread_create(&threads[i], NULL, compile_some, &numbers[i]) == 0);
    }
    for (int i = 0; i < NUM_THREADS; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        CHECK_INT((intptr_t)bad, 0);
    }
    CHECK_INT(tgl_compile_count() - before, NUM_THREADS * KERNELS_A_THREAD);
    CHECK_INT(support_count(folder, ".tgl"), NUM_THREADS * KERNELS_A_THREAD);
}

static int status_of(pid_t pid)
{
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

WITH_FOLDER(a_forked_child_compiles)
{
    tgl_image image;
    builds(1, TGL_JIT_MAY_COMPILE); /* NVRTC is up here */
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        const bool ok = build(2, TGL_JIT_MAY_COMPILE, &image) == TGL_OK && image.compiled;
        _exit(ok ? 0 : 1);
    }
    CHECK_INT(status_of(pid), 0);
    CHECK_INT(support_count(folder, ".tgl"), 2);
}

static atomic_bool finished;

static void *compile_long(void *text)
{
    const tgl_source source = { "tests/long", text, 0, NULL, NULL };
    tgl_image image;
    const tgl_status status =
        tgl_jit_source(&source, (macro_list){ { NULL, 0 } }, "sm_90a", TGL_JIT_MAY_COMPILE, &image);
    atomic_store(&finished, true);
    tgl_image_free(&image);
    return (void *)(intptr_t)status;
}

/* NVRTC's own locks may be held for ever in such a child: it gets a sentence, not a hang. */
TEST(forked_in_the_middle_of_a_compilation)
{
    NEED_NVRTC();
    unsetenv("EMU_CACHE");
    CHECK_OK(tgl_set_cache_dir(""));
    enum { LINES = 1000, BYTES = LINES * 64 + 256 };
    char *text = malloc(BYTES);
    size_t n =
        (size_t)snprintf(text, BYTES,
                         "extern \"C\" __global__ void __launch_bounds__(32) slow(float *p)\n{\n    float x = p[0];\n");
    for (int i = 0; i < LINES; i++) n += (size_t)snprintf(text + n, BYTES - n, "    x = x * p[%d] + %d.5f;\n", i, i);
    snprintf(text + n, BYTES - n, "    p[0] = x;\n}\n");
    pthread_t thread;
    atomic_store(&finished, false);
    REQUIRE(pthread_create(&thread, NULL, compile_long, text) == 0);
    usleep(60000); /* it is at it */
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        tgl_image image;
        const tgl_status status = build(2, TGL_JIT_MAY_COMPILE, &image);
        const char *said = tgl_last_error();
        _exit(status != TGL_ERR_COMPILE || !strstr(said, "forked while a thread was compiling"));
    }
    const bool was_early = !atomic_load(&finished);
    const int status = status_of(pid);
    void *result;
    pthread_join(thread, &result);
    CHECK_INT((intptr_t)result, TGL_OK);
    free(text);
    if (!was_early) SKIP("the compilation was over before the fork");
    CHECK_INT(status, 0);
}
