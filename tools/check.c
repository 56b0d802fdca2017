/* SPDX-License-Identifier: MIT
 * check.c - are the results right? Compares cases with their oracles, on the CPU and on a GPU if there is
 * one: listed cases, or with --random cases that nobody listed. With --scrub, every launch finds other
 * contents in shared memory. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases/random.h"
#include "cases/scrub.h"
#include "cuda/jit.h"
#include "tool.h"

typedef struct {
    bool slow, scrub;
    int64_t num_random, seed, compiles; /* num_random < 0: the lists */
    int64_t elements;                   /* of a random case; 0: the device's default */
} wishes;

typedef struct { int64_t ops, passed, failed, skipped; } sum; /* of all devices */

typedef struct {
    const wishes *wishes;
    backend on;
    char device[48];                              /* "cuda:0 (emulated device)" */
    const case_op *op;                            /* of the counts */
    int64_t done, total, passed, failed, skipped; /* done, total: of all ops on this device */
    double began;
    sum *all;
    char reason[256]; /* of the last skip */
    double begin;
    tool_table *table;
} progress;

static void finish_op(progress *p, const char *note)
{
    if (!p->op) return;
    const char *failed = tool_text("%s%lld%s", p->failed ? tool_red() : "", (long long)p->failed, tool_plain());
    if (!note) note = p->skipped ? tool_text("%lld: %s", (long long)p->skipped, p->reason) : "0";
    tool_table_row(p->table, (const char *const[]){ p->op->name, p->device, tool_text("%lld", (long long)p->passed),
                                                    failed, tool_text("%.1f", tool_seconds() - p->begin), note });
    p->all->ops++;
    p->all->passed += p->passed;
    p->all->failed += p->failed;
    p->all->skipped += p->skipped;
    p->passed = p->failed = p->skipped = 0;
}

static void begin_op(progress *p, const case_op *op)
{
    p->op = op;
    p->begin = tool_seconds();
}

/* After an illegal address every later call of the context fails. */
static bool is_lost(const progress *p)
{
    return !backend_is_cpu(&p->on) && backend_wait(&p->on, p->on.stream) != TGL_OK;
}

/* ---- crashes ---- */

static char now[2 * CASE_LABEL]; /* the case that is being tried */

static void on_crash(int signal)
{
    static const char prefix[] = "\ncrashed in: tegula check ";
    ssize_t written = write(STDERR_FILENO, prefix, sizeof prefix - 1);
    written = write(STDERR_FILENO, now, strlen(now));
    (void)written;
    raise(signal); /* ends the program: the handler is reset */
}

/* A sanitizer's handler says more and stays. */
static void watch_for_crashes(void)
{
    static const int signals[] = { SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE };
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction was;
        struct sigaction mine = { .sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND | SA_NODEFER };
        if (!sigaction(signals[i], NULL, &was) && was.sa_handler == SIG_DFL) sigaction(signals[i], &mine, NULL);
    }
}

static case_result try(progress *p, const case_op *op, const case_params *params, const char *text, case_report *report)
{
    snprintf(now, sizeof now, "%s %s --device %s%s\n", op->name, text, p->on.name, p->wishes->scrub ? " --scrub" : "");
    const case_result result = case_check(op, params, &p->on, report);
    now[0] = 0;
    return result;
}

/* ---- the lists ---- */

/* TOOL_OK: go on. */
static int note_failure(progress *p, const char *text, const case_report *report)
{
    p->failed++;
    tool_progress(NULL);
    printf("%sfailed%s  %s %s on %s\n        %s\n        again: tegula check %s %s --device %s%s\n", tool_red(),
           tool_plain(), p->op->name, text, p->device, report->text, p->op->name, text, p->on.name,
           p->wishes->scrub ? " --scrub" : "");
    if (report->status == TGL_OK || !is_lost(p)) return TOOL_OK;
    printf("        %s is lost: nothing more is tried there\n", p->device);
    return TOOL_FAILED;
}

static int visit(void *context, const case_op *op, const case_params *params)
{
    progress *p = context;
    if (op != p->op) {
        finish_op(p, NULL);
        begin_op(p, op);
    }
    char text[CASE_LABEL];
    case_report report;
    case_params_text(op, params, text, sizeof text);
    tool_progress("%s %s: %s %s", tool_done(p->done++, p->total, p->began), p->device, op->name, text);
    switch (try(p, op, params, text, &report)) {
    case CASE_PASSED: p->passed++; break;
    case CASE_SKIPPED:
        p->skipped++;
        snprintf(p->reason, sizeof p->reason, "%.255s", report.text);
        break;
    case CASE_FAILED:
    case CASE_UNDECIDED: return note_failure(p, text, &report);
    }
    return TOOL_OK;
}

/* ---- random cases ---- */

/* So that an oracle or an emulated kernel takes a few milliseconds. */
static int64_t max_elements(const wishes *w, const backend *on)
{
    if (w->elements) return w->elements;
    return on->is_emulated ? 1 << 12 : backend_is_cpu(on) ? 1 << 16 : 1 << 18;
}

typedef struct {
    int64_t undecided, other_kernels, skipped;
    case_redraws redraws;
} passed_over;

/* One draw. TOOL_OK: go on. */
static int try_draw(progress *p, int64_t i, uint64_t compiled, passed_over *over)
{
    char text[CASE_LABEL];
    case_params params;
    case_report report;
    const wishes *w = p->wishes;
    if (!case_draw_legal(p->op, (uint64_t)w->seed, i, max_elements(w, &p->on), &params, &over->redraws))
        return tool_failed(&tool_check, "%s: no case was found that it takes: %s", p->op->name, over->redraws.reason);
    case_params_text(p->op, &params, text, sizeof text);
    tool_progress("%s %s: %s %s", tool_done(p->done + p->passed, p->total, p->began), p->device, p->op->name, text);
    const bool may_compile = tgl_compile_count() - compiled < (uint64_t)w->compiles;
    if (!may_compile) tgl_set_jit_mode(TGL_JIT_NEVER);
    const case_result result = try(p, p->op, &params, text, &report);
    if (result == CASE_PASSED) p->passed++;
    else if (result == CASE_UNDECIDED) over->undecided++;
    else if (result == CASE_SKIPPED) over->skipped++;
    else if (report.status == TGL_ERR_COMPILE && !may_compile) over->other_kernels++;
    else if (report.status == TGL_ERR_ARGUMENT && !case_is_legal_with_data(p->op, &params)) over->redraws.refused++;
    else return note_failure(p, text, &report);
    return TOOL_OK;
}

/* Draws until num_random cases were tried. A draw that cannot be tried does not count, up to a limit: no
 * kernel may be compiled at all. */
static int check_random(progress *p, const case_op *op)
{
    enum { DRAWS_PER_CALL = 50 };
    const uint64_t compiled = tgl_compile_count();
    const int64_t max_draws = DRAWS_PER_CALL * p->wishes->num_random;
    passed_over over = { 0 };
    int code = TOOL_OK;
    const tgl_jit_mode mode = tgl_get_jit_mode();
    begin_op(p, op);
    for (int64_t i = 0; i < max_draws && code == TOOL_OK; i++) {
        if (p->passed + p->failed >= p->wishes->num_random) break;
        code = try_draw(p, i, compiled, &over);
    }
    tgl_set_jit_mode(mode);
    finish_op(p, tool_text("%lld refused, %lld undecided, %lld of other kernels, %lld without memory",
                           (long long)over.redraws.refused, (long long)over.undecided, (long long)over.other_kernels,
                           (long long)over.skipped));
    return code;
}

/* ---- the command ---- */

/* All wanted cases on one device. */
static int check_on(const char *device, const tool_words *words, const wishes *w, tool_table *table, sum *all)
{
    progress p = { .wishes = w, .table = table, .all = all };
    int code = tool_open_device(&tool_check, device, &p.on);
    if (code != TOOL_OK) return code;
    snprintf(p.device, sizeof p.device, "%s%s", p.on.name, p.on.is_emulated ? " (emulated device)" : "");
    scrub_set(w->scrub);
    watch_for_crashes();
    p.began = tool_seconds();
    if (w->num_random >= 0) {
        const case_op *op;
        for (int i = 0; tool_op_at(words, i); i++) p.total += w->num_random;
        for (int i = 0; code == TOOL_OK && (op = tool_op_at(words, i)); i++, p.done += w->num_random)
            code = check_random(&p, op);
    } else {
        const unsigned lists = TOOL_LIST(CASE_CHECK) | (w->slow ? TOOL_LIST(CASE_SLOW) : 0);
        code = tool_each_case(&tool_check, words, lists, tool_count_case, &p.total);
        if (code == TOOL_OK) code = tool_each_case(&tool_check, words, lists, visit, &p);
        finish_op(&p, NULL);
    }
    tool_progress(NULL);
    backend_close(&p.on);
    return code;
}

/* A whole number >= 0; without the option, *number is left alone. */
static bool read_number(const char *option, const char *text, int64_t *number, int *code)
{
    char *end;
    if (!text) return true;
    *number = strtoll(text, &end, 10);
    if (end != text && !*end && *number >= 0) return true;
    *code = tool_usage(&tool_check, "--%s: is %s, want a whole number >= 0", option, text);
    return false;
}

static int run(int argc, char **argv)
{
    const char *device = NULL, *random = NULL, *seed = NULL, *compiles = NULL, *elements = NULL;
    wishes w = { .num_random = -1, .seed = 1, .compiles = 24 };
    const tool_option options[] = {
        { "device", "NAME", "cpu, cuda or cuda:1 (default: the CPU, and a GPU if any)", NULL, &device },
        { "slow", NULL, "the slow cases too: more than 2^31 elements, all sizes", &w.slow, NULL },
        { "scrub", NULL, "five calls of each case; before every launch another pattern in shared memory", &w.scrub,
          NULL },
        { "random", "N", "not the lists: N cases of each op, sizes around its thresholds", NULL, &random },
        { "seed", "S", "other random cases (default: 1)", NULL, &seed },
        { "compiles", "N", "kernels of an op that random cases may compile (default: 24)", NULL, &compiles },
        { "elements", "SIZE", "of all tensors of a random case (default: 256K, CPU 64K, emulated device 4K)", NULL,
          &elements },
        { 0 },
    };
    tool_words words;
    int code;
    if (!tool_parse(&tool_check, options, argc, argv, &words, &code)) return code;
    if (!read_number("random", random, &w.num_random, &code) || !read_number("seed", seed, &w.seed, &code) ||
        !read_number("compiles", compiles, &w.compiles, &code))
        return code;
    if (elements && (w.elements = tool_bytes(elements)) < 64)
        return tool_usage(&tool_check, "--elements: is %s, want a size such as 4K or 1M, at least 64", elements);
    if (random && (words.params[0] || w.slow))
        return tool_usage(&tool_check, "--random: draws all parameters, so takes neither k=v nor --slow");
    static const char *const heads[] = { "op", "device", ">passed", ">failed", ">s", "skipped" };
    static const char *const random_heads[] = { "op", "device", ">passed", ">failed", ">s", "drawn again" };
    tool_table *table = tool_table_new(6, random ? random_heads : heads);
    sum all = { 0 };
    backend cuda;
    code = check_on(device ? device : "cpu", &words, &w, table, &all);
    if (code == TOOL_OK && !device) {
        if (backend_open("cuda", &cuda) == TGL_OK) {
            backend_close(&cuda);
            code = check_on("cuda", &words, &w, table, &all);
        } else {
            printf("%snot on cuda: %s%s\n", tool_dim(), tgl_last_error(), tool_plain());
        }
    }
    if (code == TOOL_USAGE) return code;
    tool_table_print(table);
    if (all.ops > 1)
        printf("%s%lld passed, %lld failed, %lld skipped%s\n", all.failed ? tool_red() : tool_bold(),
               (long long)all.passed, (long long)all.failed, (long long)all.skipped, tool_plain());
    return all.failed ? TOOL_FAILED : code;
}

const tool_command tool_check = {
    .name = "check",
    .arguments = "[op...] [k=v ...] [--slow] [--scrub] [--random N]",
    .summary = "are the results right, on the CPU and on the GPU",
    .run = run,
    .note = tool_parameters,
    .example = "tegula check moe_topk_gate num_tokens=1,64 num_experts=256 num_topk=8",
};
