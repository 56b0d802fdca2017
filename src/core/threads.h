/* SPDX-License-Identifier: MIT
 * threads.h - the only use of threads on the CPU. */
#ifndef TEGULA_THREADS_H
#define TEGULA_THREADS_H

#include "core/status.h"

typedef void (*tgl_rows_function)(const void *context, int64_t begin, int64_t end);

/* Calls f(context, begin, end) for chunks that cover 0 .. rows - 1 once each, on up to
 * tgl_get_num_threads() threads. `row_bytes` is about what a row reads and writes: work too small
 * to share, work inside another parallel region and work after a fork run on this thread. Every
 * chunk runs with round-to-nearest and without flush-to-zero, whatever the caller's thread has set;
 * the caller's mode is restored. Results must not depend on the chunks. */
tgl_status tgl_parallel_rows(int64_t rows, int64_t row_bytes, tgl_rows_function f, const void *context);

#endif
