/* SPDX-License-Identifier: MIT
 * compile_kernels.c - compiles the kernels of all case tables with the real NVRTC, for every architecture that Tegula
 * names. Needs no GPU. A kernel fails if it does not compile, if registers spill, or if it uses more local memory than the
 * top of its file declares with a line
 *
 *      *   local     up to 64 bytes a thread: why
 *
 * For sm_90a so many variants are compiled that each pair of macros meets in each pair of its values, elsewhere the first
 * variant of each kernel; all of them in the slow set. One block per architecture: `compile_kernels sm_90a`. */
#include "test.h"

#include <stdlib.h>

#include "bench/case.h"
#include "cuda/jit.h"
#include "cuda/nvrtc.h"

enum { MAX_VARIANTS = 4096 };
static struct { tgl_kernel kernel; char macros[TGL_MACRO_TEXT_BYTES]; } variants[MAX_VARIANTS];
static int num_variants;

/* The linker puts this in the place of tgl_jit_image() for all callers (--wrap): ops in prepare mode come here with each
 * kernel of their plan, and it is only noted. So a variant that many cases share is compiled once, below. */
tgl_status __real_tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out);
tgl_status __wrap_tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out);
tgl_status __wrap_tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out)
{
    (void)architecture, (void)may_compile;
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

/* Fills `variants` with all that the tables' kernel lists need on an architecture. */
static void collect(const char *architecture)
{
    num_variants = 0;
    const case_op *op;
    for (int i = 0; (op = case_op_at(i)); i++) {
        CHECK_THAT(op->lists[CASE_KERNELS] != NULL, "%s has no list of kernels", op->name);
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

static void compile(int v, const char *architecture)
{
    const char *name = variants[v].kernel.name, *macros = variants[v].macros;
    tgl_image image;
    if (!CHECK_OK(__real_tgl_jit_image(&variants[v].kernel, architecture, true, &image))) {
        printf("  in %s %s for %s\n", name, macros, architecture);
        return;
    }
    const usage u = read_log(image.log);
    const int local = declared_local(name);
    printf("  %-24s %-8s %8.1f ms %4d registers %7d bytes shared  %s\n", name, architecture, image.milliseconds, u.registers,
           u.shared, macros);
    CHECK_THAT(image.compiled, "%s %s for %s: was found in a cache", name, macros, architecture);
    CHECK_THAT(u.registers > 0 && u.stack >= 0 && u.spills >= 0, "%s %s for %s: no ptxas lines in the log:\n%s", name, macros,
               architecture, image.log);
    CHECK_THAT(u.spills <= 0, "%s %s for %s: %d bytes of spills", name, macros, architecture, u.spills);
    CHECK_THAT(u.stack <= local, "%s %s for %s: %d bytes of local memory a thread, declared are %d", name, macros, architecture,
               u.stack, local);
    tgl_image_free(&image);
}

/* Every kernel in the library is reached from a table: one that is not would never be compiled here. */
static void check_coverage(void)
{
    for (int i = 0; i < tgl_num_embedded; i++) {
        bool found = strchr(tgl_embedded[i].name, '.') != NULL;     /* a header */
        for (int v = 0; v < num_variants && !found; v++) found = !strcmp(variants[v].kernel.name, tgl_embedded[i].name);
        CHECK_THAT(found, "%s is in no case table's list of kernels", tgl_embedded[i].name);
    }
}

/* Does a variant of the same kernel before `v` have both macros, with their values? */
static bool have_met(int v, const tgl_macro *a, const tgl_macro *b)
{
    for (int w = 0; w < v; w++) {
        if (strcmp(variants[w].kernel.name, variants[v].kernel.name)) continue;
        bool has_a = !a->name, has_b = !b->name;
        for (int i = 0; i < TGL_MAX_MACROS; i++) {
            const tgl_macro *m = &variants[w].kernel.macros[i];
            if (!m->name) continue;
            has_a |= a->name && !strcmp(m->name, a->name) && m->value == a->value;
            has_b |= b->name && !strcmp(m->name, b->name) && m->value == b->value;
        }
        if (has_a && has_b) return true;
    }
    return false;
}

typedef enum { FIRST_VARIANTS, NEW_PAIRS, ALL_VARIANTS } extent;

static bool is_wanted(int v, extent e)
{
    static const tgl_macro none;
    const tgl_macro *macros = variants[v].kernel.macros;
    bool is_new = !have_met(v, &none, &none);
    for (int i = 0; i < TGL_MAX_MACROS && e == NEW_PAIRS; i++)
        for (int j = 0; j < i; j++) is_new |= !have_met(v, &macros[i], &macros[j]);
    return is_new || e == ALL_VARIANTS;
}

static void compile_all(const char *architecture, extent wanted)
{
    const char *const *known, *path;
    int num_known, major, minor;
    if (tgl_nvrtc_version(&major, &minor, &path) != TGL_OK) SKIP("%s: %s", architecture, tgl_last_error());
    CHECK_OK(tgl_jit_architectures(&known, &num_known));
    bool is_known = false;
    for (int i = 0; i < num_known; i++) is_known |= !strcmp(known[i], architecture);
    if (!is_known) SKIP("%s: NVRTC %d.%d does not know it", architecture, major, minor);
    CHECK_OK(tgl_set_cache_dir(""));

    collect(architecture);
    check_coverage();
    int compiled = 0;
    for (int v = 0; v < num_variants; v++) {
        if (!is_wanted(v, wanted)) continue;
        compile(v, architecture);
        compiled++;
    }
    printf("  %d of %d variants, NVRTC %d.%d, %s\n", compiled, num_variants, major, minor, path);
    CHECK(compiled > 0);
}

#define ARCHITECTURE(name, wanted) TEST(name) { compile_all(#name, test_slow() ? ALL_VARIANTS : (wanted)); }
ARCHITECTURE(sm_80, FIRST_VARIANTS)
ARCHITECTURE(sm_86, FIRST_VARIANTS)
ARCHITECTURE(sm_89, FIRST_VARIANTS)
ARCHITECTURE(sm_90a, NEW_PAIRS)
ARCHITECTURE(sm_100a, FIRST_VARIANTS)
ARCHITECTURE(sm_103a, FIRST_VARIANTS)
ARCHITECTURE(sm_120a, FIRST_VARIANTS)
ARCHITECTURE(sm_121a, FIRST_VARIANTS)

/* The checks above can fail: a kernel with an array in local memory, and one with more live values than registers. */
TEST(spills_are_seen)
{
    const char *path;
    int major, minor;
    if (tgl_nvrtc_version(&major, &minor, &path) != TGL_OK) SKIP("%s", tgl_last_error());
    CHECK_OK(tgl_set_cache_dir(""));
    static const char text[] =
        "extern \"C\" __global__ void __launch_bounds__(1024) fault(float *x, int k)\n"
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
    const struct { int64_t n, indexed; bool spills, local; } cases[] = { { 8, 0, false, false }, { 8, 1, false, true },
                                                                         { 128, 0, true, true } };
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
