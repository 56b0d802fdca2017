/* SPDX-License-Identifier: MIT
 * quick_set.c - a few cases of every op that launch all of its kernels, with every value of macros that have few
 * (flags, formats): few enough to be run under compute-sanitizer (tests/sanitize) and MSan. They are chosen from the
 * op's lists, greedily, by calls in which nothing is launched. And what the lists of checks launch: what only
 * compiles is not tested. */
#include "test.h"

#include <stdlib.h>

#include "cases/random.h"
#include "cuda/jit.h"
#include "cuda/op.h"
#include "wrapped_launch.h"

/* ---- what is launched ---- */

enum { MAX_VARIANTS = 4096 };
typedef struct { char kernel[96], macros[TGL_MACRO_TEXT_BYTES]; } variant;
typedef struct { variant at[MAX_VARIANTS]; int count; } variants;
static variants launched, planned;
static bool is_dry, dry_counts;         /* nothing is launched; and is noted as launched nonetheless */

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

/* What a case launches: bits, one for each pair of a kernel and a macro's value. */
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

/* For all ops. Loads only what is launched, where that is all: compiling is what takes time. */
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

/* On the emulated device a small case is made to launch each kernel that can do it, since those that pay with large sizes
 * only would take most of the time. */
static int forced = -1;                 /* number of the kernel, of those that fit; -1: the op's own choice */
static int max_fitting;                 /* so many fit, at most, since this was 0 */

int __wrap_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target);
int __real_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target);
int __wrap_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target)
{
    int fitting[TGL_MAX_PLAN], n = 0;
    for (int i = 0; i < num_kernels; i++) {
        const tgl_candidate *c = &op->candidates[i];
        if (plan[i].name && c->shape && (!c->fits || c->fits(problem, target))) fitting[n++] = i;
    }
    if (max_fitting < n) max_fitting = n;
    return forced >= 0 && n ? fitting[forced % n] : __real_tgl_choose(op, plan, num_kernels, problem, target);
}

/* In prepare mode, what a plan has. Else a launch loads what it needs. */
tgl_status __wrap_tgl_load(const tgl_kernel *plan, int num_kernels, const DLTensor *on, tgl_stream stream)
{
    for (int i = 0; tgl_preparing() && i < num_kernels; i++)
        if (plan[i].name) note(&planned, &plan[i]);
    return TGL_OK;
}

/* Any variant of a kernel; or with a macro's value, " NUM_TOPK=8 ", one that has it. */
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
        if (strchr(tgl_embedded[i].name, '.')) continue;        /* a header */
        CHECK_THAT(is_launched(tgl_embedded[i].name, ""), "%s is launched by none of %s",
                   tgl_embedded[i].name, by);
        count++;
    }
    printf("  %d kernels, %d variants of them launched\n", count, launched.count);
    CHECK(count > 0);
}

/* Every value that the lists of kernels give a macro. Not every combination: there are too many. */
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

/* The check lists are made for 4 multiprocessors; route, which has clusters, and get_fused_mapping have all. */
static void set_num_sms(const case_op *op)
{
    const bool has_all = !strcmp(op->name, "moe_route") || !strcmp(op->name, "moe_get_fused_mapping");
    CHECK_OK(tgl_set_num_sms(cuda()->device.device_id, has_all ? 0 : 4));
}

/* ---- calls in which nothing is launched ---- */

enum { MAX_HOST_BYTES = 1 << 20 };

/* The call of a case on tensors at addresses where nothing is: which kernel an op takes is decided before the
 * launch. What it launches is in of_case, how large it is in `elements`. */
static tgl_status call_dry(const case_op *op, const case_params *params, double *elements)
{
    static case_problem c;
    static DLTensor tensors[CASE_MAX_TENSORS];
    static void *host;      /* memory that an op asks the driver about */
    const backend *b = cuda();
    case_arguments a = { .problem = &c, .stream = b->stream };
    if (!host) TGL_TRY(backend_host_alloc(b, MAX_HOST_BYTES, &host));
    TGL_TRY(case_make_problem(op, params, &c));
    for (int i = 0; i < c.num_tensors; i++) {
        case_tensor *t = &c.tensors[i];
        if (!t->name) continue;
        int64_t first = t->offset;      /* of element [0, 0, ...], behind others where strides are negative */
        for (int d = 0; d < t->ndim; d++)
            if (t->strides[d] < 0 && t->shape[d] > 1) first -= (t->shape[d] - 1) * t->strides[d];
        const DLDataType dtype = tgl_dtype_to_dlpack(t->dtype);
        char *base = t->on_host ? host : (char *)((uintptr_t)(i + 1) << 40);
        tensors[i] = (DLTensor){ base + first * tgl_dtype_bits(dtype) / 8, t->on_host ? backend_host(b) : b->device,
                                 t->ndim, dtype, t->shape, t->strides, 0 };
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

/* Cases of more elements only for what no smaller one launches, of far more never. */
#define FEW_ELEMENTS (1 << 16)
#define MAX_ELEMENTS (1 << 24)

enum { MAX_CASES = 4096 };
typedef struct { case_params params; int forced; double elements; facts launches; } candidate;
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

/* Macros of more values are sizes, of which any will do; with TEGULA_TEST_SLOW all are taken. */
enum { FEW_VALUES = 3 };

static facts facts_to_leave_out(void)
{
    facts out = { 0 };
    for (int i = 0; i < num_facts && !test_slow(); i++) {
        const size_t bytes = strcspn(fact_names[i], "=") + 1;       /* "moe/route NUM_TOPK=" */
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

/* The candidate that launches most of what is not launched yet, NULL: nothing is left. Of several such ones the smallest; of
 * those with a forced kernel, which is meant for large sizes, the largest. */
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
        if (only && strcmp(op->name, only)) continue;
        set_num_sms(op);
        list_candidates(op);
        facts known = facts_to_leave_out();
        for (int pass = 0; pass < 3; pass++)    /* small cases; the same with kernels that do not pay; large ones */
            for (const candidate *k;
                 (k = choose_next(pass == 1, pass < 2 ? FEW_ELEMENTS : MAX_ELEMENTS, &known)); num_cases++) {
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
    CHECK_OK(tgl_set_num_sms(cuda()->device.device_id, 0));
    printf("  %d cases\n", num_cases);
    if (!only) check_every_kernel("the quick set");
}

TEST(lists_of_checks)
{
    const case_op *op;
    case_params params;
    double elements;
    if (!cuda()) SKIP("no CUDA device");
    if (!cuda()->is_emulated) SKIP("is asked of the emulated device: what others launch depends on them");
    launched.count = planned.count = 0;
    dry_counts = true;
    for (int i = 0; (op = case_op_at(i)); i++) {
        set_num_sms(op);
        num_facts = 0;
        for (int64_t n = 0; n < case_count(op->lists[CASE_CHECK]); n++) {
            REQUIRE(CHECK_OK(case_at(op, op->lists[CASE_CHECK], n, &params)));
            REQUIRE(CHECK_OK(call_dry(op, &params, &elements)));
        }
        CHECK_OK(tgl_prepare_begin(0, "sm_90a"));
        for (int64_t n = 0; n < case_count(op->lists[CASE_KERNELS]); n++) {
            REQUIRE(CHECK_OK(case_at(op, op->lists[CASE_KERNELS], n, &params)));
            CHECK_OK(case_prepare(op, &params, 0));
        }
        CHECK_OK(tgl_prepare_end());
    }
    CHECK_OK(tgl_set_num_sms(cuda()->device.device_id, 0));
    dry_counts = false;
    check_every_kernel("the lists of checks");
    check_every_value("the lists of checks");
}
