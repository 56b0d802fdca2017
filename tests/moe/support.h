/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the routing ops share beside calls.h and replay.h: cases on a shared workspace. */
#ifndef TEGULA_MOE_SUPPORT_H
#define TEGULA_MOE_SUPPORT_H

#include "calls.h"
#include "replay.h"
#include "tegula/moe.h"

/* ---- cases of the table ---- */

/* One case of an op, opened on a backend. */
static inline case_instance *open_line(const char *op_name, const char *line, const backend *b)
{
    const case_op *op = case_find(op_name);
    case_params params;
    case_instance *k = NULL;
    if (CHECK_OK(case_at(op, (const char *const[]){ line, NULL }, 0, &params))) CHECK_OK(case_open(op, &params, b, &k));
    return k;
}

static inline uint64_t verify(case_instance *k, int round, const char *what)
{
    case_report report;
    uint64_t hash = 0;
    CHECK_OK(case_verify(k, round, &report, &hash));
    CHECK_THAT(report.result == CASE_PASSED, "%s: %s: %s: %s", k->on->name, k->problem.label, what, report.text);
    return hash;
}

/* Cases take turns on one workspace, the largest of theirs: no call may leave it dirty for the next. Then
 * some calls run back to back. */
typedef struct { const char *op, *line; } case_line;
static inline void check_shared_workspace(const case_line *cases, int count)
{
    FOR_BACKENDS(b) {
        if (backend_is_cpu(b)) continue;
        case_instance *k[32];
        int largest = 0;
        REQUIRE(count <= 32);
        for (int i = 0; i < count; i++) {
            REQUIRE((k[i] = open_line(cases[i].op, cases[i].line, b)) != NULL);
            if (k[i]->arguments.workspace_bytes > k[largest]->arguments.workspace_bytes) largest = i;
        }
        for (int call = 0; call < 5 * count; call++) {
            case_instance *const now = k[call % count];
            const bool is_verified = call < 2 * count || call >= 4 * count;
            case_arguments a = now->arguments;
            a.workspace = k[largest]->arguments.workspace;
            a.workspace_bytes = k[largest]->arguments.workspace_bytes;
            if (is_verified) CHECK_OK(case_poison(now, call % 2));
            CHECK_OK(now->op->run(&a));
            if (is_verified) verify(now, call % 2, "with a shared workspace");
        }
        verify(k[largest], (4 * count + largest) % 2, "at the end");
        for (int i = 0; i < count; i++) case_close(k[i]);
    }
}

#endif
