/* SPDX-License-Identifier: MIT
 * check.c - are the results right? Every case against its oracle, on the CPU and on the GPU where there
 * is one. */
#include <stdio.h>
#include <string.h>

#include "tool.h"

typedef struct {
    backend on;
    char device[48];                /* "cuda:0 (emulated device)" */
    const case_op *op;              /* of the counts */
    int64_t done, passed, failed, skipped, all_failed;
    char reason[256];               /* of the last skip */
    double begin;
    tool_table *table;
} progress;

static void finish_op(progress *p)
{
    if (!p->op) return;
    char passed[24], failed[64], skipped[300], seconds[24];
    snprintf(passed, sizeof passed, "%lld", (long long)p->passed);
    snprintf(failed, sizeof failed, "%s%lld%s", p->failed ? tool_red() : "", (long long)p->failed,
             p->failed ? tool_plain() : "");
    snprintf(skipped, sizeof skipped, "%lld%s%s", (long long)p->skipped, p->skipped ? ": " : "",
             p->skipped ? p->reason : "");
    snprintf(seconds, sizeof seconds, "%.1f", tool_seconds() - p->begin);
    tool_table_row(p->table,
                   (const char *const[]){ p->op->name, p->device, passed, failed, seconds, skipped });
    p->passed = p->failed = p->skipped = 0;
}

static int visit(void *context, const case_op *op, const case_params *params)
{
    progress *p = context;
    if (op != p->op) {
        finish_op(p);
        p->op = op;
        p->begin = tool_seconds();
    }
    char text[CASE_LABEL];
    case_report report;
    case_params_text(op, params, text, sizeof text);
    tool_progress("%s: %lld cases, %s %s", p->device, (long long)++p->done, op->name, text);
    switch (case_check(op, params, &p->on, &report)) {
    case CASE_PASSED: p->passed++; break;
    case CASE_SKIPPED:
        p->skipped++;
        snprintf(p->reason, sizeof p->reason, "%.255s", report.text);
        break;
    case CASE_FAILED:
        p->failed++;
        p->all_failed++;
        tool_progress(NULL);
        printf("%sfailed%s  %s %s on %s\n        %s\n", tool_red(), tool_plain(), op->name, text, p->device,
               report.text);
        break;
    }
    return 0;
}

/* All wanted cases on one device. */
static int check_on(const char *device, const tool_words *words, bool slow, tool_table *table,
                    int64_t *failed)
{
    progress p = { .table = table };
    int code = tool_open_device(&tool_check, device, &p.on);
    if (code != TOOL_OK) return code;
    snprintf(p.device, sizeof p.device, "%s%s", p.on.name, p.on.is_emulated ? " (emulated device)" : "");
    const unsigned lists = TOOL_LIST(CASE_CHECK) | (slow ? TOOL_LIST(CASE_SLOW) : 0);
    code = tool_each_case(&tool_check, words, lists, visit, &p);
    tool_progress(NULL);
    finish_op(&p);
    *failed += p.all_failed;
    backend_close(&p.on);
    return code;
}

static int run(int argc, char **argv)
{
    const char *device = NULL;
    bool slow = false;
    const tool_option options[] = {
        { "device", "NAME", "cpu, cuda or cuda:1 (default: the CPU, and a GPU if any)", NULL, &device },
        { "slow", NULL, "the slow cases too: more than 2^31 elements, all sizes", &slow, NULL },
        { 0 },
    };
    tool_words words;
    int code;
    if (!tool_parse(&tool_check, options, argc, argv, &words, &code)) return code;
    static const char *const heads[] = { "op", "device", ">passed", ">failed", ">s", "skipped" };
    tool_table *table = tool_table_new(6, heads);
    int64_t failed = 0;
    backend cuda;
    code = check_on(device ? device : "cpu", &words, slow, table, &failed);
    if (code == TOOL_OK && !device) {
        if (backend_open("cuda", &cuda) == TGL_OK) {
            backend_close(&cuda);
            code = check_on("cuda", &words, slow, table, &failed);
        } else {
            printf("%snot on cuda: %s%s\n", tool_dim(), tgl_last_error(), tool_plain());
        }
    }
    if (code == TOOL_USAGE) return code;
    tool_table_print(table);
    return failed ? TOOL_FAILED : code;
}

const tool_command tool_check = { "check", "[op...] [k=v ...] [--device NAME] [--slow]",
                                  "are the results right, on the CPU and on the GPU", run };
