/* SPDX-License-Identifier: MIT
 * timer_cpu.c - a monotonic clock around the call. Before a cold call, all threads overwrite (or read) a
 * buffer of twice the last-level cache, unless the call's own data is four times that cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/threads.h"
#include "timer.h"

enum { MAX_CALLS = 35, CHUNK = 1 << 16 }; /* bytes of a row of tgl_parallel_rows */

typedef struct {
    timer base;
    int64_t cache_bytes, flush_bytes;
    char *flush;
    char *copy_from, *copy_to;
    int64_t copy_room;
} cpu_timer;

/* Bytes of the largest cache that the kernel lists for the first core; 32 MiB if it lists none. */
static int64_t last_level_cache(void)
{
    int64_t largest = 0;
    for (int i = 0; i < 8; i++) {
        char path[96], text[32] = "";
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *file = fopen(path, "r");
        if (!file) break;
        if (fgets(text, sizeof text, file)) {
            text[strcspn(text, "\n")] = 0;
            const int64_t bytes = tool_bytes(text);
            if (bytes > largest) largest = bytes;
        }
        fclose(file);
    }
    return largest ? largest : 32 << 20;
}

/* ---- work on all threads, in chunks ---- */

typedef struct {
    char *to;
    const char *from;
    int64_t bytes;
} span;

static void fill(const void *context, int64_t begin, int64_t end)
{
    const span *s = context;
    for (int64_t i = begin; i < end; i++) memset(s->to + i * CHUNK, (int)(i & 127), CHUNK);
}

static void read_all(const void *context, int64_t begin, int64_t end)
{
    const span *s = context;
    uint64_t sum = 0;
    for (int64_t i = begin * CHUNK; i < end * CHUNK; i += 64) sum += *(const volatile unsigned char *)(s->from + i);
    (void)sum;
}

static void copy(const void *context, int64_t begin, int64_t end)
{
    const span *s = context;
    const int64_t first = begin * CHUNK, last = end * CHUNK < s->bytes ? end * CHUNK : s->bytes;
    memcpy(s->to + first, s->from + first, (size_t)(last - first));
}

static void flush(cpu_timer *t)
{
    const span s = { t->flush, t->flush, t->flush_bytes };
    tgl_parallel_rows(t->flush_bytes / CHUNK, CHUNK, t->base.options.flush_reads ? read_all : fill, &s);
}

/* ---- times ---- */

/* Up to MAX_CALLS, fewer if they take more than a second, or 0.2 s with --quick. */
static tgl_status measure(cpu_timer *t, timer_call call, void *context, bool with_flush, timer_stats *out)
{
    double us[MAX_CALLS];
    int n = 0;
    const int fewest = t->base.options.quick ? 3 : 7;
    const double budget = t->base.options.quick ? 0.2 : 1;
    for (int i = 0; i < 2; i++) TGL_TRY(call(context));
    for (const double begin = tool_seconds(); n < MAX_CALLS && (n < fewest || tool_seconds() - begin < budget); n++) {
        if (with_flush) flush(t);
        const double start = tool_seconds();
        TGL_TRY(call(context));
        us[n] = 1e6 * (tool_seconds() - start);
    }
    *out = timer_stats_of(us, n);
    return TGL_OK;
}

static tgl_status cold(timer *base, timer_call call, void *context, int64_t bytes, timer_stats *out)
{
    cpu_timer *t = (cpu_timer *)base;
    return measure(t, call, context, bytes < 4 * t->cache_bytes, out);
}

static tgl_status warm(timer *base, timer_call call, void *context, timer_stats *out)
{
    return measure((cpu_timer *)base, call, context, false, out);
}

static tgl_status copy_call(void *context)
{
    const span *s = context;
    return tgl_parallel_rows((s->bytes + CHUNK - 1) / CHUNK, 2 * CHUNK, copy, s);
}

static void free_copy_buffers(cpu_timer *t)
{
    free(t->copy_from);
    free(t->copy_to);
    t->copy_from = t->copy_to = NULL;
    t->copy_room = 0;
}

static tgl_status copy_time(timer *base, int64_t bytes, timer_stats *out)
{
    cpu_timer *t = (cpu_timer *)base;
    const int64_t half = (bytes + 1) / 2;
    *out = timer_stats_none;
    if (half == 0) return TGL_OK;
    if (half > t->copy_room) {
        free_copy_buffers(t);
        const size_t room = ((size_t)half + CHUNK - 1) / CHUNK * CHUNK;
        t->copy_from = aligned_alloc(256, room);
        t->copy_to = aligned_alloc(256, room);
        if (!t->copy_from || !t->copy_to) {
            free_copy_buffers(t);
            return TGL_OK;
        }
        t->copy_room = (int64_t)room;
        /* pages never written all map to one page of zeros, which is copied faster than memory */
        const span both[] = { { t->copy_from, NULL, 0 }, { t->copy_to, NULL, 0 } };
        for (int i = 0; i < 2; i++) TGL_TRY(tgl_parallel_rows(t->copy_room / CHUNK, CHUNK, fill, &both[i]));
    }
    span s = { t->copy_to, t->copy_from, half };
    return measure(t, copy_call, &s, bytes < 4 * t->cache_bytes, out);
}

static void close_timer(timer *base)
{
    cpu_timer *t = (cpu_timer *)base;
    free_copy_buffers(t);
    free(t->flush);
    free(t);
}

tgl_status timer_open_cpu(const backend *on, const timer_options *options, timer **out)
{
    static const timer_methods methods = { .cold = cold, .warm = warm, .copy = copy_time, .close = close_timer };
    cpu_timer *t = calloc(1, sizeof *t);
    if (!t) return tgl_fail(TGL_ERR_MEMORY, "no memory");
    t->base = (timer){ .methods = &methods, .on = on, .options = *options, .name = "clock" };
    t->cache_bytes = last_level_cache();
    /* servers with hundreds of MiB of cache spend a second on a row otherwise */
    const int64_t max_bytes = (int64_t)(options->quick ? 64 : 512) << 20;
    t->flush_bytes = 2 * t->cache_bytes < max_bytes ? 2 * t->cache_bytes : max_bytes;
    t->flush_bytes = (t->flush_bytes + CHUNK - 1) / CHUNK * CHUNK;
    t->flush = aligned_alloc(256, (size_t)t->flush_bytes);
    if (!t->flush) {
        free(t);
        return tgl_fail(TGL_ERR_MEMORY, "no memory");
    }
    const span all = { t->flush, NULL, t->flush_bytes };
    TGL_TRY(tgl_parallel_rows(t->flush_bytes / CHUNK, CHUNK, fill, &all));
    *out = &t->base;
    return TGL_OK;
}
