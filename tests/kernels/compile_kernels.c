/* SPDX-License-Identifier: MIT
 * compile_kernels.c - compiles the kernels of all case tables with the real NVRTC, for every architecture that Tegula
 * names. Needs no GPU. A kernel fails if it does not compile, if registers spill, or if it uses more local memory than the
 * top of its file declares with a line
 *
 *      *   local     up to 64 bytes a thread: why
 *
 * For sm_90a enough variants are compiled that every pair of macros takes every pair of values that occurs; for sm_80, the
 * first variant of each kernel; for the others, that of a share of the kernels; in the slow set, all variants for all. One
 * block per architecture: `compile_kernels sm_90a`.
 *
 * Kernels that passed are kept in the folder TEGULA_TEST_CHECKED, if it is set, and are not compiled again while source,
 * macros, options and NVRTC stay the same. */
#include "test.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases/case.h"
#include "cuda/jit.h"
#include "cuda/nvrtc.h"
#include "pairs.h"

enum { MAX_VARIANTS = 4096 };
static struct {
    tgl_kernel kernel;
    char macros[TGL_MACRO_TEXT_BYTES];
} variants[MAX_VARIANTS];
static int num_variants;

/* The linker replaces tgl_jit_image() with this (--wrap). Ops in prepare mode call it for each kernel of their plan, and it
 * only takes a note, so that a variant that many cases share is compiled once, below. */
tgl_status __real_tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out);
tgl_status __wrap_tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out);
tgl_status __wrap_tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out)
{
    *out = (tgl_image){ 0 };
    char macros[TGL_MACRO_TEXT_BYTES];
    tgl_macro_text(kernel->macros, macros);
    for (int i = 0; i < num_variants; i++)
        if (!strcmp(variants[i].kernel.name, kernel->name) && !strcmp(variants[i].macros, macros)) return TGL_OK;
    if (num_variants == MAX_VARIANTS) abort();
    variants[num_variants].kernel = *kernel;
    strcpy(variants[num_variants++].macros, macros);
    return TGL_OK;
}

/* Kernels of a plan one after the other, so that the notes have an order. */
void __wrap_tgl_parallel_each(int n, void (*f)(void *context, int i), void *context);
void __wrap_tgl_parallel_each(int n, void (*f)(void *context, int i), void *context)
{
    for (int i = 0; i < n; i++) f(context, i);
}

/* Fills `variants` with all that the case tables' kernel lists need on an architecture. */
static void collect(const char *architecture)
{
    num_variants = 0;
    const case_op *op;
    for (int i = 0; (op = case_op_at(i)); i++) {
        CHECK_THAT(op->lists[CASE_KERNELS] || op->has_no_kernel, "%s has no list of kernels", op->name);
        if (!op->lists[CASE_KERNELS]) continue;
        for (int64_t k = 0; k < case_count(op->lists[CASE_KERNELS]); k++) {
            case_params params;
            if (!CHECK_OK(case_at(op, op->lists[CASE_KERNELS], k, &params))) continue;
            CHECK_OK(tgl_prepare_begin(0, architecture));
            if (!CHECK_OK(case_prepare(op, &params, 0))) {
                char text[CASE_LABEL];
                case_params_text(op, &params, text, sizeof text);
                printf("  in %s %s\n", op->name, text);
            }
            CHECK_OK(tgl_prepare_end());
        }
    }
}

/* What ptxas says of an entry. Its lines are
 *     ptxas info    : Compiling entry function 'transpose' for 'sm_90a'
 *         0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
 *     ptxas info    : Used 32 registers, used 1 barriers, 4352 bytes smem, 400 bytes cmem[0] */
typedef struct { int registers, shared, stack, spills; } usage;

/* The number before the first `unit` in `text`; -1 if there is none. */
static int number_before(const char *text, const char *unit)
{
    const char *at = strstr(text, unit);
    if (!at) return -1;
    while (at > text && at[-1] == ' ') at--;
    while (at > text && at[-1] >= '0' && at[-1] <= '9') at--;
    return atoi(at);
}

static usage read_log(const char *log)
{
    const int stores = number_before(log, "bytes spill stores"), loads = number_before(log, "bytes spill loads");
    const int shared = number_before(log, "bytes smem");
    return (usage){ number_before(log, "registers"), shared < 0 ? 0 : shared, number_before(log, "bytes stack frame"),
                    stores < 0 || loads < 0 ? -1 : stores + loads };
}

/* Local memory that a kernel's top comment allows, in bytes a thread. */
static int declared_local(const char *name)
{
    for (int i = 0; i < tgl_num_embedded; i++) {
        if (strcmp(tgl_embedded[i].name, name)) continue;
        const char *line = strstr((const char *)tgl_embedded[i].text, "\n *   local ");
        return line ? number_before(line, "bytes a thread") : 0;
    }
    return 0;
}

/* ---- kernels that have passed ---- */

enum { RULES = 1, PATH_BYTES = 4096 }; /* change RULES when the checks change: all kernels are compiled again */
static char passed_folder[PATH_BYTES], new_folder[PATH_BYTES + 32]; /* "": none; kernels not checked yet */

/* Builds of one version of NVRTC may differ; the file's size tells them apart. */
static void open_folders(int major, int minor, const char *nvrtc)
{
    const char *wanted = getenv("TEGULA_TEST_CHECKED");
    struct stat s;
    passed_folder[0] = new_folder[0] = 0;
    if (!wanted || !*wanted || stat(nvrtc, &s)) return;
    snprintf(passed_folder, sizeof passed_folder, "%s/nvrtc-%d.%d-%lld-rules-%d", wanted, major, minor,
             (long long)s.st_size, RULES);
    snprintf(new_folder, sizeof new_folder, "%s/new-%d", passed_folder, (int)getpid());
}

static bool has_passed(int v, const char *architecture)
{
    tgl_image image;
    if (!passed_folder[0]) return false;
    CHECK_OK(tgl_set_cache_dir(passed_folder));
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_NEVER));
    const bool found = __real_tgl_jit_image(&variants[v].kernel, architecture, true, &image) == TGL_OK;
    if (found) tgl_image_free(&image);
    CHECK_OK(tgl_set_jit_mode(TGL_JIT_AUTO));
    CHECK_OK(tgl_set_cache_dir(new_folder));
    return found;
}

/* Moves the one kernel in new_folder to those that passed, or removes it. */
static void keep_or_remove(bool ok)
{
    char from[2 * PATH_BYTES], to[2 * PATH_BYTES];
    DIR *folder = new_folder[0] ? opendir(new_folder) : NULL;
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        if (e->d_name[0] == '.') continue;
        snprintf(from, sizeof from, "%s/%s", new_folder, e->d_name);
        snprintf(to, sizeof to, "%s/%s", passed_folder, e->d_name);
        CHECK(ok ? rename(from, to) == 0 : unlink(from) == 0);
    }
    if (folder) closedir(folder);
}

static bool passes(int v, const char *architecture)
{
    const char *name = variants[v].kernel.name, *macros = variants[v].macros;
    tgl_image image;
    if (!CHECK_OK(__real_tgl_jit_image(&variants[v].kernel, architecture, true, &image))) {
        printf("  in %s %s for %s\n", name, macros, architecture);
        return false;
    }
    const usage u = read_log(image.log);
    const int local = declared_local(name);
    printf("  %-24s %-8s %8.1f ms %4d registers %7d bytes shared  %s\n", name, architecture, image.milliseconds,
           u.registers, u.shared, macros);
    bool ok = CHECK_THAT(image.compiled, "%s %s for %s: was found in a cache", name, macros, architecture);
    ok &= CHECK_THAT(u.registers > 0 && u.stack >= 0 && u.spills >= 0, "%s %s for %s: no ptxas lines in the log:\n%s",
                     name, macros, architecture, image.log);
    ok &= CHECK_THAT(u.spills <= 0, "%s %s for %s: %d bytes of spills", name, macros, architecture, u.spills);
    ok &= CHECK_THAT(u.stack <= local, "%s %s for %s: %d bytes of local memory a thread, declared are %d", name, macros,
                     architecture, u.stack, local);
    tgl_image_free(&image);
    return ok;
}

/* Every kernel in the library is in some table's list; otherwise it would never be compiled here. */
static void check_coverage(void)
{
    for (int i = 0; i < tgl_num_embedded; i++) {
        bool found = strchr(tgl_embedded[i].name, '.') != NULL; /* a header */
        for (int v = 0; v < num_variants && !found; v++) found = !strcmp(variants[v].kernel.name, tgl_embedded[i].name);
        CHECK_THAT(found, "%s is in no case table's list of kernels", tgl_embedded[i].name);
    }
}

/* A bit for each macro of variant v that has the same value in variant w of the same kernel. */
static uint64_t shared_macros(int v, int w)
{
    uint64_t shared = 0;
    for (int i = 0; i < TGL_MAX_MACROS; i++) {
        const tgl_macro *a = &variants[v].kernel.macros[i];
        for (int j = 0; j < TGL_MAX_MACROS && a->name; j++) {
            const tgl_macro *b = &variants[w].kernel.macros[j];
            if (b->name && !strcmp(a->name, b->name) && a->value == b->value) shared |= (uint64_t)1 << i;
        }
    }
    return shared;
}

/* ---- which variants ---- */

/* Architectures with the same features share the kernels among them: each compiles every second or fourth. */
typedef struct {
    bool every_pair;
    int first, step;
} extent;
static bool is_wanted[MAX_VARIANTS];

static int number_of_kernel(const char *name) /* the same for all architectures */
{
    int i = 0;
    while (i < tgl_num_embedded && strcmp(tgl_embedded[i].name, name)) i++;
    return i;
}

static uint64_t shared_by_variants(const void *table, int v, int w)
{
    const int *of_kernel = table;
    return shared_macros(of_kernel[v], of_kernel[w]);
}

/* The first variant of each kernel; or so many that every pair of macros takes every pair of values that occurs. */
static void choose(extent wanted)
{
    static int of_kernel[MAX_VARIANTS];
    static bool is_listed[MAX_VARIANTS], is_chosen[MAX_VARIANTS];
    memset(is_listed, 0, sizeof is_listed);
    memset(is_wanted, test_slow(), sizeof is_wanted);
    for (int first = 0; first < num_variants; first++) {
        if (is_listed[first]) continue;
        int n = 0;
        for (int v = first; v < num_variants; v++)
            if (!strcmp(variants[v].kernel.name, variants[first].kernel.name)) is_listed[of_kernel[n++] = v] = true;
        if (wanted.every_pair) {
            choose_pairs(n, shared_by_variants, of_kernel, is_chosen);
            for (int v = 0; v < n; v++) is_wanted[of_kernel[v]] |= is_chosen[v];
        } else {
            is_wanted[first] |= number_of_kernel(variants[first].kernel.name) % wanted.step == wanted.first;
        }
    }
}

static void compile_all(const char *architecture, extent wanted)
{
    const char *const *architectures, *path;
    int num_architectures, major, minor;
    if (tgl_nvrtc_version(&major, &minor, &path) != TGL_OK) SKIP("%s: %s", architecture, tgl_last_error());
    CHECK_OK(tgl_jit_architectures(&architectures, &num_architectures));
    bool is_known = false;
    for (int i = 0; i < num_architectures; i++) is_known |= !strcmp(architectures[i], architecture);
    if (!is_known) SKIP("%s: NVRTC %d.%d does not know it", architecture, major, minor);
    open_folders(major, minor, path);
    CHECK_OK(tgl_set_cache_dir(new_folder));

    collect(architecture);
    check_coverage();
    choose(wanted);
    int compiled = 0, known = 0;
    for (int v = 0; v < num_variants; v++) {
        if (!is_wanted[v]) continue;
        if (has_passed(v, architecture)) {
            known++;
            continue;
        }
        keep_or_remove(passes(v, architecture));
        compiled++;
    }
    if (new_folder[0]) rmdir(new_folder);
    printf("  %d of %d variants compiled, %d known from an earlier run, NVRTC %d.%d, %s\n", compiled, num_variants,
           known, major, minor, path);
    CHECK(compiled + known > 0);
}

#define ARCHITECTURE(name, ...) \
    TEST(name) { compile_all(#name, (extent){ __VA_ARGS__ }); }
ARCHITECTURE(sm_90a, .every_pair = true)
ARCHITECTURE(sm_80, .step = 1)
ARCHITECTURE(sm_100a, .first = 0, .step = 2)
ARCHITECTURE(sm_103a, .first = 1, .step = 2)
ARCHITECTURE(sm_86, .first = 0, .step = 4) /* this and the next have 100 KiB of shared memory */
ARCHITECTURE(sm_120a, .first = 1, .step = 4)
ARCHITECTURE(sm_89, .first = 2, .step = 4)
ARCHITECTURE(sm_121a, .first = 3, .step = 4)

/* The checks above can fail: they see an array in local memory, and more live values than registers. */
TEST(spills_are_seen)
{
    const char *path;
    int major, minor;
    if (tgl_nvrtc_version(&major, &minor, &path) != TGL_OK) SKIP("%s", tgl_last_error());
    CHECK_OK(tgl_set_cache_dir(""));
    static const char text[] = "extern \"C\" __global__ void __launch_bounds__(1024) fault(float *x, int k)\n"
                               "{\n"
                               "    float v[N];\n"
                               "    for (int i = 0; i < N; i++) v[i] = x[i * 1024 + threadIdx.x];\n"
                               "#if INDEXED\n"
                               "    for (int i = 0; i < k; i++) v[(k * i) % N] += v[i % N];\n"
                               "    for (int i = 0; i < N; i++) x[i * 1024 + threadIdx.x] = v[i];\n"
                               "#else\n"
                               "    __syncthreads();\n"
                               "    for (int i = 0; i < N; i++) x[i * 1024 + threadIdx.x] = v[N - 1 - i] * v[0];\n"
                               "#endif\n"
                               "}\n";
    const tgl_source source = { "faults/fault", text, 0, NULL, NULL };
    const struct {
        int64_t n, indexed;
        bool spills, local;
    } cases[] = { { 8, 0, false, false }, { 8, 1, false, true }, { 128, 0, true, true } };
    for (int i = 0; i < 3; i++) {
        const tgl_macro macros[TGL_MAX_MACROS] = { { "N", cases[i].n }, { "INDEXED", cases[i].indexed } };
        tgl_image image;
        REQUIRE(CHECK_OK(tgl_jit_source(&source, macros, "sm_90a", TGL_JIT_MAY_COMPILE, &image)));
        const usage u = read_log(image.log);
        CHECK_THAT(u.registers > 0 && (u.spills > 0) == cases[i].spills && (u.stack > 0) == cases[i].local,
                   "case %d: %d registers, %d bytes of spills, %d of stack", i, u.registers, u.spills, u.stack);
        tgl_image_free(&image);
    }
}
