/* SPDX-License-Identifier: MIT
 * cases.h - the cases of cases/ as tests: every case of a list, on every device of the tests. */
#ifndef TEGULA_TEST_CASES_H
#define TEGULA_TEST_CASES_H

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cases/case.h"
#include "cuda/driver.h"
#include "emulator/control.h"
#include "pairs.h"
#include "test.h"
#include "wrapped_launch.h"

#define FOR_BACKENDS(b)                     \
    for (int b##_i = 0; b##_i < 2; b##_i++) \
        for (const backend *b = backend_of_tests(b##_i); b; b = NULL)

/* TEGULA_TEST_SHARE: on the emulated device only some cases of an op's list. Kernels are slow to compile there, and none is
 * compiled that is not launched (launch_alone.c). Lines that a test has of its own are not shared.
 *   1/3    every third, from number 1 on
 *   pairs  few, which have every pair of values of two parameters that the list has */
static inline uint64_t shared_values(const void *table, int v, int w)
{
    const case_params *cases = table;
    uint64_t shared = 0;
    for (int p = 0; p < cases[v].count; p++)
        if (!strcmp(cases[v].item[p].value, cases[w].item[p].value)) shared |= (uint64_t)1 << p;
    return shared;
}

/* A flag for each case of the list, which the caller frees. NULL: all. */
static inline bool *choose_share(const case_op *op, const char *const *lines, const char *share)
{
    const int64_t n = case_count(lines);
    int64_t first = 0, step = 1;
    bool *is_chosen = calloc((size_t)n, sizeof *is_chosen);
    if (!is_chosen) abort();
    if (share && !strcmp(share, "pairs")) {
        case_params *cases = calloc((size_t)n, sizeof *cases);
        for (int64_t i = 0; cases && i < n; i++) CHECK_OK(case_at(op, lines, i, &cases[i]));
        choose_pairs((int)n, shared_values, cases, is_chosen);
        free(cases);
        return is_chosen;
    }
    if (share && (sscanf(share, "%" SCNd64 "/%" SCNd64, &first, &step) != 2 || first < 0 || first >= step)) {
        CHECK_THAT(false, "TEGULA_TEST_SHARE is %s, want FIRST/STEP or pairs", share);
        return is_chosen;
    }
    for (int64_t i = first; i < n; i += step) is_chosen[i] = true;
    return is_chosen;
}

/* TEGULA_TEST_SEEDS=2: on the emulated device every case runs twice, with two orders of threads that depend on its own text
 * and on EMU_SEED. Whatever ran before it, a case has the same orders; a failure names the seed. For a third of those of
 * an op's list, kernels that stride over their work have 2 blocks (TEGULA_TEST_GRID); a quarter runs again with any
 * other kernel that can do the case (TEGULA_TEST_KERNEL). Not set: EMU_SEED alone decides. */
static inline int num_seeds_of_a_case(const backend *b)
{
    const char *text = getenv("TEGULA_TEST_SEEDS");
    return text && b->is_emulated ? atoi(text) : 0;
}

static inline uint32_t seed_of_case(const char *op_name, const char *text, int i) /* never 0, the plain order */
{
    char name[2 * CASE_LABEL];
    const char *base = getenv("EMU_SEED");
    snprintf(name, sizeof name, "%s %s, seed %s.%d", op_name, text, base ? base : "0", i);
    test_random r = test_seed(name);
    return 1 + (uint32_t)test_below(&r, 1 << 30);
}

static inline void set_order(uint64_t seed, bool few_blocks)
{
    const tgl_driver_table *cu;
    emuSeed_function set_seed = NULL;
    if (CHECK_OK(tgl_driver(&cu))) *(void **)&set_seed = dlsym(cu->handle, "emuSeed");
    REQUIRE(set_seed != NULL);
    set_seed(seed);
    if (few_blocks) setenv("TEGULA_TEST_GRID", "2", 1);
    else unsetenv("TEGULA_TEST_GRID");
}

static inline case_result check_case_once(const case_op *op, const case_params *params, const backend *b,
                                          const char *order, case_report *report)
{
    char text[CASE_LABEL];
    case_params_text(op, params, text, sizeof text);
    const char *shown = getenv("TEGULA_TEST_TIMES"); /* cases of this many milliseconds of CPU or more */
    const clock_t begin = clock();
    const case_result result = case_check(op, params, b, report);
    const long milliseconds = (long)((clock() - begin) / (CLOCKS_PER_SEC / 1000));
    if (shown && milliseconds >= atol(shown))
        printf("  %ld ms of CPU: %s %s %s%s\n", milliseconds, b->name, op->name, text, order);
    CHECK_THAT(result == CASE_PASSED || result == CASE_SKIPPED, "%s: %s %s%s: %s", b->name, op->name, text, order,
               report->text);
    return result;
}

/* A case once, or with its seeds. -> the last result */
static inline case_result check_case(const case_op *op, const case_params *params, const backend *b, bool is_of_list,
                                     case_report *report)
{
    char text[CASE_LABEL], order[96] = "", kernel[16];
    case_result result = CASE_PASSED;
    const int num_seeds = num_seeds_of_a_case(b);
    case_params_text(op, params, text, sizeof text);
    if (!num_seeds) return check_case_once(op, params, b, "", report);
    for (int i = 0; i < num_seeds; i++) {
        const uint32_t seed = seed_of_case(op->name, text, i);
        const bool few_blocks = is_of_list && seed % 3 == 0;
        set_order(seed, few_blocks);
        snprintf(order, sizeof order, " (EMU_SEED=%" PRIu32 "%s)", seed, few_blocks ? " TEGULA_TEST_GRID=2" : "");
        if (&test_choice) test_choice.num_fitting = 0;
        result = check_case_once(op, params, b, order, report);
        if (!is_of_list || seed % 4 != 1 || !&test_choice || test_choice.num_fitting == 0) continue;
        const int other = (int)(seed / 12) % test_choice.num_fitting;
        if (other == test_choice.chosen) continue;
        snprintf(kernel, sizeof kernel, "%d", other);
        setenv("TEGULA_TEST_KERNEL", kernel, 1);
        snprintf(order, sizeof order, " (EMU_SEED=%" PRIu32 "%s TEGULA_TEST_KERNEL=%s)", seed,
                 few_blocks ? " TEGULA_TEST_GRID=2" : "", kernel);
        result = check_case_once(op, params, b, order, report);
        unsetenv("TEGULA_TEST_KERNEL");
    }
    set_order(strtoull(getenv("EMU_SEED") ? getenv("EMU_SEED") : "0", NULL, 0), false);
    return result;
}

/* TEGULA_TEST_CASE="values=near": only cases whose text contains it. */
static inline bool is_wanted_case(const case_op *op, const case_params *params)
{
    char text[CASE_LABEL];
    const char *part = getenv("TEGULA_TEST_CASE");
    case_params_text(op, params, text, sizeof text);
    return !part || strstr(text, part);
}

static inline void check_lines(const char *op_name, const char *const *lines, const backend *b)
{
    const case_op *op = case_find(op_name);
    int64_t num_skipped = 0;
    REQUIRE(op && case_count(lines) > 0);
    const bool is_list = lines == op->lists[CASE_CHECK];
    bool *is_chosen = choose_share(op, lines, is_list && b->is_emulated ? getenv("TEGULA_TEST_SHARE") : NULL);
    for (int64_t i = 0; i < case_count(lines); i++) {
        case_params params;
        case_report report;
        if (!is_chosen[i] || !CHECK_OK(case_at(op, lines, i, &params)) || !is_wanted_case(op, &params)) continue;
        if (check_case(op, &params, b, is_list, &report) == CASE_SKIPPED && num_skipped++ == 0)
            printf("  %s: case %" PRId64 " left out: %s\n", b->name, i, report.text);
    }
    free(is_chosen);
    if (num_skipped) printf("  %s: %" PRId64 " cases left out\n", b->name, num_skipped);
}

/* The lines with every bound on multiprocessors: results do not depend on it. */
static inline void check_num_sms(const char *op_name, const char *const *lines)
{
    static const int bounds[] = { 1, 2, 3, 7, 112 };
    FOR_BACKENDS(b) {
        if (backend_is_cpu(b)) continue;
        for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
            if (bounds[i] > 3 && b->is_emulated) continue; /* it may have 4 */
            CHECK_OK(tgl_set_num_sms(b->device.device_id, bounds[i]));
            check_lines(op_name, lines, b);
        }
        CHECK_OK(tgl_set_num_sms(b->device.device_id, 0));
    }
}

#endif
