/* SPDX-License-Identifier: MIT */
#include "timer.h"

#include <math.h>
#include <stdlib.h>

const timer_stats timer_stats_none = { NAN, NAN, NAN, NAN, 0 };

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

timer_stats timer_stats_of(double *us, int count)
{
    if (count == 0) return timer_stats_none;
    qsort(us, (size_t)count, sizeof *us, ascending);
    const double median = count % 2 ? us[count / 2] : 0.5 * (us[count / 2 - 1] + us[count / 2]);
    const double p10 = us[(count - 1) / 10], p90 = us[(9 * (count - 1) + 9) / 10];
    return (timer_stats){ median, us[0], p90, median > 0 ? (p90 - p10) / median : 0, count };
}

tgl_status timer_open(const backend *on, const timer_options *options, timer **out)
{
    return backend_is_cpu(on) ? timer_open_cpu(on, options, out) : timer_open_cuda(on, options, out);
}

bool timer_has_profiler(const timer *t) { return t->methods->start_profiler && !t->options.use_events; }

tgl_status timer_start_profiler(timer *t) { return timer_has_profiler(t) ? t->methods->start_profiler(t) : TGL_OK; }

void timer_close(timer *t)
{
    if (t) t->methods->close(t);
}

tgl_status timer_cold(timer *t, timer_call call, void *context, int64_t bytes, timer_stats *out)
{
    return t->methods->cold(t, call, context, bytes, out);
}

tgl_status timer_warm(timer *t, timer_call call, void *context, timer_stats *out)
{
    return t->methods->warm(t, call, context, out);
}

tgl_status timer_graph(timer *t, timer_call call, void *context, double expected_us, double *us)
{
    *us = NAN;
    return t->methods->graph ? t->methods->graph(t, call, context, expected_us, us) : TGL_OK;
}

tgl_status timer_host(timer *t, timer_call call, void *context, double expected_us, double *ns)
{
    *ns = NAN;
    return t->methods->host ? t->methods->host(t, call, context, expected_us, ns) : TGL_OK;
}

tgl_status timer_copy(timer *t, int64_t bytes, timer_stats *out) { return t->methods->copy(t, bytes, out); }

tgl_status timer_gather(timer *t, const timer_rows *rows, timer_stats *out)
{
    *out = timer_stats_none;
    return t->methods->gather ? t->methods->gather(t, rows, out) : TGL_OK;
}

tgl_status timer_empty(timer *t, timer_stats *out)
{
    *out = timer_stats_none;
    return t->methods->empty ? t->methods->empty(t, out) : TGL_OK;
}

tgl_status timer_empty_host(timer *t, double *ns)
{
    *ns = NAN;
    return t->methods->empty_host ? t->methods->empty_host(t, ns) : TGL_OK;
}
