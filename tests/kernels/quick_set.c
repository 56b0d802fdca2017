/* SPDX-License-Identifier: MIT
 * quick_set.c - a few cases per op that launch all of its kernels, with every value of macros that have few (flags,
 * formats): few enough to run under compute-sanitizer (tests/sanitize) and MSan. They are chosen greedily from the op's
 * lists, by dry calls. A second test shows that the lists of checks, and what `make test` runs of them on the emulated device,
 * launch every kernel, not only compile it. */
#include "test.h"

#include <stdlib.h>

#include "cases.h"
#include "cases/random.h"
#include "cuda/jit.h"
#include "wrapped_launch.h"

/* ---- what is launched ---- */

enum { MAX_VARIANTS = 4096 };
typedef struct { char kernel[96], macros[TGL_MACRO_TEXT_BYTES]; } variant;
typedef struct {
    variant at[MAX_VARIANTS];
    int count;
} variants;
static variants launched, planned;
static bool is_dry, dry_counts; /* nothing is launched; is it noted as launched all the same? */

static void note(variants *set, const tgl_kernel *kernel)
{
    variant v;
    snprintf(v.kernel, sizeof v.kernel, "%s", kernel->name);
    tgl_macro_text(kernel->macros, v.macros);
    for (int i = 0; i < set->count; i++)
        if (!strcmp(set->at[i].kernel, v.kernel) && !strcmp(set->at[i].macros, v.macros)) return;
    if (set->count == MAX_VARIANTS) abort();
    set->at[set->count++] = v;
}

/* What a case launches: a bit for each kernel, and for each value of a kernel's macro. */
enum { MAX_FACTS = 512 };
typedef struct { uint64_t word[MAX_FACTS / 64]; } facts;
static char fact_names[MAX_FACTS][128];
static int num_facts;
static facts of_case;

static void note_fact(const char *kernel, const tgl_macro *macro)
{
    char name[sizeof *fact_names];
    snprintf(name, sizeof name, "%s %s=%lld", kernel, macro ? macro->name : "", macro ? (long long)macro->value : 0);
    int i = 0;
    while (i < num_facts && strcmp(fact_names[i], name)) i++;
    if (i == MAX_FACTS) abort();
    if (i == num_facts) strcpy(fact_names[num_facts++], name);
    of_case.word[i / 64] |= (uint64_t)1 << i % 64;
}

/* Loads only what is launched: compiling is what takes time. */
tgl_status __wrap_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream)
{
    if (tgl_preparing()) return __wrap_tgl_load(plan, num_kernels, on, stream);
    if (shape->grid[0] > 0) {
        if (!is_dry || dry_counts) note(&launched, &plan[which]);
        note_fact(plan[which].name, NULL);
        for (int m = 0; m < TGL_MAX_MACROS && plan[which].macros[m].name; m++)
            note_fact(plan[which].name, &plan[which].macros[m]);
    }
    if (is_dry) return TGL_OK;
    return launch_alone(plan, which, on, shape, stream);
}

/* On the emulated device a small case is made to launch every kernel that can do it: cases large enough for a kernel that
 * pays only then would take most of the time. */
static int forced = -1; /* index among the kernels that fit; -1: the op's own choice */
static int max_fitting; /* max number of kernels that fit, since this was set to 0 */

int __wrap_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target)
{
    int fitting[TGL_MAX_PLAN];
    const int n = list_fitting(op, plan, num_kernels, problem, target, fitting);
    if (max_fitting < n) max_fitting = n;
    return forced >= 0 && n ? fitting[forced % n] : __real_tgl_choose(op, plan, num_kernels, problem, target);
}

/* In prepare mode, notes what a plan has. Otherwise a launch loads what it needs. */
tgl_status __wrap_tgl_load(const tgl_kernel *plan, int num_kernels, const DLTensor *on, tgl_stream stream)
{
    for (int i = 0; tgl_preparing() && i < num_kernels; i++)
        if (plan[i].name) note(&planned, &plan[i]);
    return TGL_OK;
}

/* Is a variant of the kernel launched that has this value of a macro, " NUM_TOPK=8 "? "": any variant. */
static bool is_launched(const char *kernel, const char *value)
{
    for (int i = 0; i < launched.count; i++) {
        char macros[TGL_MACRO_TEXT_BYTES + 2];
        snprintf(macros, sizeof macros, " %s ", launched.at[i].macros);
        if (!strcmp(launched.at[i].kernel, kernel) && strstr(macros, value)) return true;
    }
    return false;
}

static void check_every_kernel(const char *by)
{
    int count = 0;
    for (int i = 0; i < tgl_num_embedded; i++) {
        if (strchr(tgl_embedded[i].name, '.')) continue; /* a header */
        CHECK_THAT(is_launched(tgl_embedded[i].name, ""), "%s is launched by none of %s", tgl_embedded[i].name, by);
        count++;
    }
    printf("  %d kernels, %d variants of them launched\n", count, launched.count);
    CHECK(count > 0);
}

/* Every value that the lists of kernels give a macro; there are too many combinations. */
static void check_every_value(const char *by)
{
    for (int i = 0; i < planned.count; i++) {
        char text[TGL_MACRO_TEXT_BYTES], value[TGL_MACRO_TEXT_BYTES + 2], *rest = text;
        strcpy(text, planned.at[i].macros);
        for (const char *word; (word = strsep(&rest, " "));) {
            snprintf(value, sizeof value, " %s ", word);
            CHECK_THAT(is_launched(planned.at[i].kernel, value), "%s with %s is launched by none of %s",
                       planned.at[i].kernel, word, by);
        }
    }
    printf("  %d variants in the lists of kernels\n", planned.count);
    CHECK(planned.count > 0);
}

/* ---- the tests ---- */

static const backend *cuda(void)
{
    for (int i = 0; i < 2; i++) {
        const backend *b = backend_of_tests(i);
        if (b && !backend_is_cpu(b)) return b;
    }
    return NULL;
}

/* The check lists are made for 4 SMs, but for ops that use all. */
static void set_num_sms(int num_sms) { CHECK_OK(tgl_set_num_sms(cuda()->device.device_id, num_sms)); }

/* ---- dry calls ---- */

enum { MAX_HOST_BYTES = 1 << 20 };

/* Calls the op of a case on tensors without memory: the kernel is chosen before the launch, which does nothing here.
 * of_case becomes what it would launch, *elements its size. */
static tgl_status call_dry(const case_op *op, const case_params *params, double *elements)
{
    static case_problem c;
    static DLTensor tensors[CASE_MAX_TENSORS];
    static void *host; /* real memory: ops ask the driver whether it is page-locked */
    const backend *b = cuda();
    case_arguments a = { .problem = &c, .stream = b->stream };
    if (!host) TGL_TRY(backend_host_alloc(b, MAX_HOST_BYTES, &host));
    TGL_TRY(case_make_problem(op, params, &c));
    for (int i = 0; i < c.num_tensors; i++) {
        case_tensor *t = &c.tensors[i];
        if (!t->name) continue;
        int64_t first = t->offset; /* of element [0, 0, ...], which comes last if strides are negative */
        for (int d = 0; d < t->ndim; d++)
            if (t->strides[d] < 0 && t->shape[d] > 1) first -= (t->shape[d] - 1) * t->strides[d];
        const DLDataType dtype = tgl_dtype_to_dlpack(t->dtype);
        char *base = t->on_host ? host : (char *)((uintptr_t)(i + 1) << 40);
        tensors[i] = (DLTensor){ base + first * tgl_dtype_bits(dtype) / 8,
                                 t->on_host ? backend_host(b) : b->device,
                                 t->ndim,
                                 dtype,
                                 t->shape,
                                 t->strides,
                                 0 };
        a.arg[i] = &tensors[i];
    }
    a.workspace_bytes = op->workspace ? op->workspace(&a) : 0;
    if (a.workspace_bytes) TGL_TRY(backend_alloc(b, a.workspace_bytes, &a.workspace));
    of_case = (facts){ 0 };
    is_dry = true;
    const tgl_status status = op->run(&a);
    is_dry = false;
    if (a.workspace) backend_free(b, a.workspace);
    *elements = case_elements(&c);
    return status;
}

/* ---- the quick set ---- */

/* Larger cases only for what no small one launches; still larger ones never. */
#define FEW_ELEMENTS (1 << 16)
#define MAX_ELEMENTS (1 << 24)

enum { MAX_CASES = 4096 };
typedef struct {
    case_params params;
    int forced;
    double elements;
    facts launches;
} candidate;
static candidate candidates[MAX_CASES];
static int num_candidates;

static void list_candidate(const case_op *op, const case_params *params)
{
    REQUIRE(num_candidates < MAX_CASES);
    candidate *k = &candidates[num_candidates++];
    *k = (candidate){ .params = *params, .forced = forced };
    REQUIRE(CHECK_OK(call_dry(op, params, &k->elements)));
    k->launches = of_case;
}

static void list_candidates(const case_op *op)
{
    static const case_list lists[] = { CASE_CHECK, CASE_BENCH };
    num_candidates = num_facts = 0;
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (int64_t i = 0; i < case_count(op->lists[lists[l]]); i++) {
            case_params params;
            REQUIRE(CHECK_OK(case_at(op, op->lists[lists[l]], i, &params)));
            max_fitting = 0;
            list_candidate(op, &params);
            if (!cuda()->is_emulated || candidates[num_candidates - 1].elements > FEW_ELEMENTS) continue;
            const int num_kernels = max_fitting > 1 ? max_fitting : 0;
            for (forced = 0; forced < num_kernels; forced++) list_candidate(op, &params);
            forced = -1;
        }
}

/* Macros with more values are sizes: any value will do, but with TEGULA_TEST_SLOW all are taken. */
enum { FEW_VALUES = 3 };

static facts facts_to_leave_out(void)
{
    facts out = { 0 };
    for (int i = 0; i < num_facts && !test_slow(); i++) {
        const size_t bytes = strcspn(fact_names[i], "=") + 1; /* "moe/route NUM_TOPK=" */
        int num_values = 0;
        for (int k = 0; k < num_facts; k++) num_values += !strncmp(fact_names[k], fact_names[i], bytes);
        if (num_values > FEW_VALUES) out.word[i / 64] |= (uint64_t)1 << i % 64;
    }
    return out;
}

static int num_new(const facts *launches, const facts *known)
{
    int count = 0;
    for (int w = 0; w < MAX_FACTS / 64; w++) count += __builtin_popcountll(launches->word[w] & ~known->word[w]);
    return count;
}

/* The candidate with the most new facts; NULL: no facts are left. Ties go to the smallest; with a forced kernel, which is
 * meant for large sizes, to the largest. */
static const candidate *choose_next(bool is_forced, double max_elements, const facts *known)
{
    const candidate *best = NULL;
    int best_new = 0;
    for (const candidate *k = candidates; k < candidates + num_candidates; k++) {
        if (k->elements > max_elements || (k->forced >= 0) != is_forced) continue;
        const int n = num_new(&k->launches, known);
        if (n == 0 || n < best_new) continue;
        if (n == best_new && (k->elements < best->elements) == is_forced) continue;
        best = k, best_new = n;
    }
    return best;
}

TEST(quick_set)
{
    if (!cuda()) SKIP("no CUDA device");
    const char *only = getenv("TEGULA_TEST_OP");
    const case_op *op;
    REQUIRE(!only || case_find(only));
    int num_cases = 0;
    launched.count = 0;
    for (int i = 0; (op = case_op_at(i)); i++) {
        if ((only && strcmp(op->name, only)) || op->has_no_kernel) continue;
        set_num_sms(op->uses_all_sms ? 0 : 4);
        list_candidates(op);
        facts known = facts_to_leave_out();
        for (int pass = 0; pass < 3; pass++) /* small cases; the same with kernels that do not pay; large ones */
            for (const candidate *k; (k = choose_next(pass == 1, pass < 2 ? FEW_ELEMENTS : MAX_ELEMENTS, &known));
                 num_cases++) {
                case_report report;
                char text[CASE_LABEL];
                case_params_text(op, &k->params, text, sizeof text);
                forced = k->forced;
                CHECK_THAT(case_check(op, &k->params, cuda(), &report) == CASE_PASSED, "%s %s, kernel %d: %s", op->name,
                           text, forced, report.text);
                forced = -1;
                for (int w = 0; w < MAX_FACTS / 64; w++) known.word[w] |= k->launches.word[w];
            }
    }
    set_num_sms(0);
    printf("  %d cases\n", num_cases);
    if (!only) check_every_kernel("the quick set");
}

/* With as many SMs as a GPU has, and with as few as the emulated device has for the lists themselves. */
enum { FEW_SMS = 33 };

TEST(lists_of_checks)
{
    const case_op *op;
    case_params params;
    double elements;
    if (!cuda()) SKIP("no CUDA device");
    if (!cuda()->is_emulated) SKIP("for the emulated device: what a GPU launches depends on its SMs");
    launched.count = planned.count = 0;
    dry_counts = true;
    for (int i = 0; (op = case_op_at(i)); i++) {
        if (op->has_no_kernel) continue;
        num_facts = 0;
        bool *is_chosen = choose_share(op, op->lists[CASE_CHECK], test_slow() ? NULL : "pairs");
        for (int64_t n = 0; n < case_count(op->lists[CASE_CHECK]); n++) {
            if (!is_chosen[n]) continue;
            REQUIRE(CHECK_OK(case_at(op, op->lists[CASE_CHECK], n, &params)));
            set_num_sms(op->uses_all_sms ? FEW_SMS : 4);
            REQUIRE(CHECK_OK(call_dry(op, &params, &elements)));
            if (!op->uses_all_sms) continue;
            set_num_sms(0);
            REQUIRE(CHECK_OK(call_dry(op, &params, &elements)));
        }
        free(is_chosen);
        CHECK_OK(tgl_prepare_begin(0, "sm_90a"));
        for (int64_t n = 0; n < case_count(op->lists[CASE_KERNELS]); n++) {
            REQUIRE(CHECK_OK(case_at(op, op->lists[CASE_KERNELS], n, &params)));
            CHECK_OK(case_prepare(op, &params, 0));
        }
        CHECK_OK(tgl_prepare_end());
    }
    set_num_sms(0);
    dry_counts = false;
    check_every_kernel("the lists of checks");
    check_every_value("the lists of checks");
}
