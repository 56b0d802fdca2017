/* SPDX-License-Identifier: MIT
 * cases.h - the cases of cases/ as tests: every case of a list, on every device of the tests. */
#ifndef TEGULA_TEST_CASES_H
#define TEGULA_TEST_CASES_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases/case.h"
#include "test.h"

#define FOR_BACKENDS(b)                     \
    for (int b##_i = 0; b##_i < 2; b##_i++) \
        for (const backend *b = backend_of_tests(b##_i); b; b = NULL)

/* TEGULA_TEST_SHARE=1/3: on the emulated device only every third case of an op's list, from number 1 on.
 * Kernels are slow to compile there; runs with threads in different orders share the cases, and compile no
 * kernel that they do not launch (launch_alone.c). Lines that a test has of its own are not shared. */
static inline void test_share(const backend *b, int64_t *first, int64_t *step)
{
    const char *text = getenv("TEGULA_TEST_SHARE");
    *first = 0, *step = 1;
    if (!text || !b->is_emulated) return;
    REQUIRE(sscanf(text, "%" SCNd64 "/%" SCNd64, first, step) == 2 && *first >= 0 && *first < *step);
}

static inline void check_lines(const char *op_name, const char *const *lines, const backend *b)
{
    const case_op *op = case_find(op_name);
    int64_t num_skipped = 0, first, step;
    REQUIRE(op && case_count(lines) > 0);
    test_share(b, &first, &step);
    if (lines != op->lists[CASE_CHECK]) first = 0, step = 1;
    for (int64_t i = first; i < case_count(lines); i += step) {
        case_params params;
        case_report report;
        char text[CASE_LABEL];
        REQUIRE(CHECK_OK(case_at(op, lines, i, &params)));
        case_params_text(op, &params, text, sizeof text);
        const case_result result = case_check(op, &params, b, &report);
        CHECK_THAT(result == CASE_PASSED || result == CASE_SKIPPED, "%s: %s %s: %s", b->name, op_name, text, report.text);
        if (result == CASE_SKIPPED && num_skipped++ == 0)
            printf("  %s: %s left out: %s\n", b->name, text, report.text);
    }
    if (num_skipped) printf("  %s: %" PRId64 " cases left out\n", b->name, num_skipped);
}

/* The lines with every bound on multiprocessors: results do not depend on it. */
static inline void check_num_sms(const char *op_name, const char *const *lines)
{
    static const int bounds[] = { 1, 2, 3, 7, 112 };
    FOR_BACKENDS(b) {
        if (backend_is_cpu(b)) continue;
        for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
            if (bounds[i] > 3 && b->is_emulated) continue;      /* it may have 4 */
            CHECK_OK(tgl_set_num_sms(b->device.device_id, bounds[i]));
            check_lines(op_name, lines, b);
        }
        CHECK_OK(tgl_set_num_sms(b->device.device_id, 0));
    }
}

#endif
