/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the routing ops share beside calls.h and replay.h: cases on a shared workspace,
 * errors of workspaces. */
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

/* ---- workspaces ---- */

/* An op that takes a workspace, by the tensors of its signature. */
typedef struct {
    tgl_signature *signature;
    errors_invoke invoke;
    tgl_status (*call)(DLTensor *const *t, const void *params, void *workspace, size_t bytes);
    size_t (*size)(DLTensor *const *t);
} workspace_op;

/* Reported before anything is touched: the tensors have addresses that belong to nobody. The CPU needs no
 * workspace. */
static inline void check_workspace_errors(const workspace_op *op, const char *sample)
{
    errors_call *c = errors_open(op->signature, sample, op->invoke, 1);
    REQUIRE(c);
    for (int i = 0; i < c->t->num_tensors; i++) c->own[i].data = (void *)((uintptr_t)(i + 1) << 40);
    char text[128];
    const size_t want = op->size(c->tensors);
    REQUIRE(want > 0);
    snprintf(text, sizeof text, "workspace: is NULL, want %zu bytes of device memory", want);
    CHECK_FAILS(op->call(c->tensors, c->given, NULL, want), TGL_ERR_WORKSPACE, text);
    snprintf(text, sizeof text, "workspace_bytes: is %zu, want >= %zu", want - 1, want);
    CHECK_FAILS(op->call(c->tensors, c->given, memory, want - 1), TGL_ERR_WORKSPACE, text);
    snprintf(text, sizeof text, "workspace: address is %p, want a multiple of 256", (void *)(memory + 128));
    CHECK_FAILS(op->call(c->tensors, c->given, memory + 128, want), TGL_ERR_WORKSPACE, text);
    c = errors_open(op->signature, sample, op->invoke, 0);
    REQUIRE(c);
    CHECK_INT(op->size(c->tensors), 0);
}

/* The size never shrinks as tokens are added, so that the largest batch decides. `sizes` are the others. */
static inline void check_workspace_grows(const workspace_op *op, const char *sizes)
{
    size_t before = 0;
    for (int64_t tokens = 0; tokens < 1000000; tokens += 1 + tokens / 8) {
        char sample[256];
        snprintf(sample, sizeof sample, "num_tokens=%" PRId64 " %s", tokens, sizes);
        errors_call *const c = errors_open(op->signature, sample, op->invoke, 1);
        REQUIRE(c);
        const size_t bytes = op->size(c->tensors);
        CHECK_THAT(bytes >= before, "%s: %zu bytes, fewer tokens need %zu", sample, bytes, before);
        before = bytes;
    }
}

#endif
