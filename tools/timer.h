/* SPDX-License-Identifier: MIT
 * timer.h - times of one call on a device. docs/benchmarking.md says what each is and why. */
#ifndef TEGULA_TIMER_H
#define TEGULA_TIMER_H

#include "tool.h"

typedef struct {
    double median, min, p90, spread; /* us; spread is (90 % point - 10 % point) / median */
    int calls;
} timer_stats;

typedef struct {
    bool quick;       /* fewer calls, smaller flushes on the CPU: good to a few percent, not for the record */
    bool flush_reads; /* cold by reading a large buffer (clean lines); else by overwriting one */
    bool use_events;  /* do not even try CUPTI */
} timer_options;

typedef struct timer {
    const struct timer_methods *methods;
    const backend *on;
    timer_options options;
    char name[16];      /* "cupti", "events", "clock" */
    bool has_host_work; /* the calls that follow have some between their launches: times are between events */
    char note[512];     /* why it is not CUPTI, or "" */
} timer;
typedef tgl_status (*timer_call)(void *context); /* enqueues on the backend's stream */

/* On a GPU it times with events until timer_start_profiler(), which changes to CUPTI if it is found and
 * agrees with them. Once it runs, CUPTI slows every later launch of the process (H200: 1.1 us of host time,
 * 0.35 us in a graph), so take graph and host times before. */
tgl_status timer_open(const backend *on, const timer_options *options, timer **out);
bool timer_has_profiler(const timer *t); /* may timer_start_profiler() find one? */
tgl_status timer_start_profiler(timer *t);
void timer_close(timer *t);

/* Rows of a table: row_bytes each, of which the first 256 count, and up to 32 bytes of scale factors elsewhere. */
typedef struct {
    const void *table, *factors;
    const int32_t *indices;
    int64_t count, row_bytes, factor_bytes; /* factor_bytes 0: none */
} timer_rows;

/* Caches hold none of the call's data before each call. */
tgl_status timer_cold(timer *t, timer_call call, void *context, int64_t bytes, timer_stats *out);
/* Back to back: what fits in the caches is in them. */
tgl_status timer_warm(timer *t, timer_call call, void *context, timer_stats *out);
/* Per call of a chain of calls in a CUDA graph; NaN on the CPU. */
tgl_status timer_graph(timer *t, timer_call call, void *context, double expected_us, double *us);
/* Host time of a call that only enqueues, on an idle device; NaN on the CPU. */
tgl_status timer_host(timer *t, timer_call call, void *context, double expected_us, double *ns);

/* A plain copy that reads bytes / 2 and writes as many, cold. NaN with TGL_OK if memory does not suffice. */
tgl_status timer_copy(timer *t, int64_t bytes, timer_stats *out);
/* Rows of a table in page-locked memory, read by index with all SMs, cold: the rate of the bus for these rows. NaN on
 * the CPU. */
tgl_status timer_gather(timer *t, const timer_rows *rows, timer_stats *out);
/* An empty kernel with the launch shape of the last kernel that timer_cold() saw (events see none: then a
 * block per SM), cold. NaN on the CPU. */
tgl_status timer_empty(timer *t, timer_stats *out);
/* Host time of launching that kernel through the driver alone. */
tgl_status timer_empty_host(timer *t, double *ns);

/* ---- for timer_cpu.c and timer_cuda.c ---- */

/* NULL: the device has no such time. */
typedef struct timer_methods {
    tgl_status (*start_profiler)(timer *t);
    tgl_status (*cold)(timer *t, timer_call call, void *context, int64_t bytes, timer_stats *out);
    tgl_status (*warm)(timer *t, timer_call call, void *context, timer_stats *out);
    tgl_status (*graph)(timer *t, timer_call call, void *context, double expected_us, double *us);
    tgl_status (*host)(timer *t, timer_call call, void *context, double expected_us, double *ns);
    tgl_status (*copy)(timer *t, int64_t bytes, timer_stats *out);
    tgl_status (*gather)(timer *t, const timer_rows *rows, timer_stats *out);
    tgl_status (*empty)(timer *t, timer_stats *out);
    tgl_status (*empty_host)(timer *t, double *ns);
    void (*close)(timer *t);
} timer_methods;

tgl_status timer_open_cpu(const backend *on, const timer_options *options, timer **out);
tgl_status timer_open_cuda(const backend *on, const timer_options *options, timer **out);

/* Sorts the times (us). */
timer_stats timer_stats_of(double *us, int count);
extern const timer_stats timer_stats_none; /* NaN */

#endif
