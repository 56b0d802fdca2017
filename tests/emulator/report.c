/* SPDX-License-Identifier: MIT
 * report.c - what went wrong, where, and who waits for what. */
#include "scheduler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char emu_report[EMU_REPORT_BYTES];
static size_t used;

static void say_args(const char *format, va_list args)
{
    const int n = vsnprintf(emu_report + used, sizeof emu_report - used, format, args);
    used += n > 0 ? (size_t)n : 0;
    if (used >= sizeof emu_report) used = sizeof emu_report - 1;
}
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say_args(format, args);
    va_end(args);
}
const char *emu_base_name(const char *path)
{
    if (!path) return "?";
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}
static void begin(const char *kind, const char *kernel)
{
    used = 0;
    say("emulator: %s in kernel %s, seed %llu\n", kind, kernel, emu_rt.seed);
}
static void end(void)
{
    emu_stats.faults++;
    fputs(emu_report, stderr);
}

void emu_report_text(const char *kind, const char *kernel, const char *format, ...)
{
    va_list args;
    begin(kind, kernel);
    say("  ");
    va_start(args, format);
    say_args(format, args);
    va_end(args);
    say("\n");
    end();
}

void emu_fault(emu_site site, const char *format, ...)
{
    const fiber *f = emu_running;
    va_list args;
    begin("fault", emu_group.launch->entry->name);
    say("  ");
    va_start(args, format);
    say_args(format, args);
    va_end(args);
    say("\n");
    if (f != &emu_main_fiber) {
        say("  by thread %u (%u,%u,%u) of block (%u,%u,%u) at %s", f->tid, f->thread->thread.x, f->thread->thread.y,
            f->thread->thread.z, f->thread->block.x, f->thread->block.y, f->thread->block.z, emu_base_name(site.file));
        if (site.line > 0) say(":%d", site.line); /* "end of the kernel" has none */
        say("\n");
    }
    end();
    emu_group.failed = 1;
    /* all fibers are left where they are */
    if (f != &emu_main_fiber) emu_fiber_switch(emu_running, &emu_main_fiber, 0);
}

/* Device memory is closed to ASan: all that it can say is "use-after-poison". */
__attribute__((weak)) void __asan_set_error_report_callback(void (*)(const char *));
static void explain(const char *report)
{
    (void)report;
    if (!emu_group.launch || !emu_group.is_closed) return;
    fprintf(
        stderr,
        "emulator: kernel %s, seed %llu: device memory is closed before pdl_wait, as the kernel before may not have ended\n",
        emu_group.launch->entry->name, emu_rt.seed);
}
void emu_explain_asan(void)
{
    if (__asan_set_error_report_callback) __asan_set_error_report_callback(explain);
}

static int same_place(const fiber *a, const fiber *b)
{
    return a->state == b->state && a->what == b->what && a->site.line == b->site.line && a->site.file == b->site.file;
}
/* "mbar_wait at x.cu:12: threads 0-31 64 ..." per place. `is_over`: nobody can go on, so whoever could run
 * only polls. */
static void describe_block(const block *b, int is_over)
{
    emu_u32 done = 0;
    for (emu_u32 i = 0; i < b->num_threads; i++) done += b->thread[i]->state == DONE;
    say("  block (%u,%u,%u):", b->index.x, b->index.y, b->index.z);
    if (done) say(" %u threads have ended;", done);
    say("\n");
    char *seen = calloc(b->num_threads, 1);
    for (emu_u32 i = 0; i < b->num_threads; i++) {
        const fiber *f = b->thread[i];
        if (seen[i] || f->state == DONE) continue;
        emu_u32 ranges = 0;
        if (!f->what) say("    no wait yet: threads");
        else
            say("    %s%s at %s:%d: threads", f->state == READY && !is_over ? "past " : "", f->what,
                emu_base_name(f->site.file), f->site.line);
        for (emu_u32 j = i; j < b->num_threads; j++) {
            if (!same_place(b->thread[j], f)) continue;
            emu_u32 k = j;
            while (k + 1 < b->num_threads && same_place(b->thread[k + 1], f)) k++;
            memset(seen + j, 1, k - j + 1);
            if (ranges == 8) say(" ...");
            if (ranges++ < 8) {
                if (k > j) say(" %u-%u", j, k);
                else say(" %u", j);
            }
            j = k;
        }
        say("\n");
    }
    free(seen);
}
static void describe_group(int is_over)
{
    const group *g = &emu_group;
    int shown = 0, more = 0;
    for (emu_u32 i = 0; i < g->num_blocks; i++) {
        if (!g->blocks[i].alive) continue;
        if (shown++ < 4) describe_block(&g->blocks[i], is_over);
        else more++;
    }
    if (more) say("  and %d more blocks\n", more);
}
void emu_report_deadlock(void)
{
    const group *g = &emu_group;
    const emu_dim grid = g->launch->grid;
    const int polling = g->quiet_rounds > QUIET_LIMIT;
    begin(polling ? "deadlock (threads poll for what nobody writes)" : "deadlock", g->launch->entry->name);
    const emu_u32 total = grid.x * grid.y * grid.z;
    if (g->num_blocks < total)
        say("  %u of the grid's %u blocks were alive together; blocks that wait for each other need a "
            "cooperative or cluster "
            "launch\n",
            g->num_blocks, total);
    describe_group(1);
    end();
}
__attribute__((visibility("default"))) void emuWhere(void)
{
    if (!emu_group.launch) {
        fputs("emulator: no kernel runs\n", stderr);
        return;
    }
    begin("stopped", emu_group.launch->entry->name);
    describe_group(0);
    fputs(emu_report, stderr);
}
void emu_report_copies(void)
{
    begin("fault", emu_group.launch->entry->name);
    say("  %d asynchronous copies were still under way when all threads of the cluster or grid had ended\n",
        emu_group.num_async);
    end();
}
