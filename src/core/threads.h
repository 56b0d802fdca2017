/* SPDX-License-Identifier: MIT
 * threads.h - CPU threads; nothing else creates any. */
#ifndef TEGULA_THREADS_H
#define TEGULA_THREADS_H

#include "core/status.h"

typedef void (*tgl_rows_function)(const void *context, int64_t begin, int64_t end);

/* Calls f(context, begin, end) for chunks of 0 .. rows - 1, on up to tgl_get_num_threads() threads.
 * `row_bytes` estimates what a row reads and writes: small work runs on this thread, as does work in
 * another parallel region or after a fork. Every chunk runs with round-to-nearest and without
 * flush-to-zero; the thread's own mode is restored. Results must not depend on the chunks. */
tgl_status tgl_parallel_rows(int64_t rows, int64_t row_bytes, tgl_rows_function f, const void *context);

/* The same on half of the threads, for work that runs while other threads of the program keep working: one thread per core
 * would make each wait for a busy core. */
tgl_status tgl_parallel_rows_beside(int64_t rows, int64_t row_bytes, tgl_rows_function f, const void *context);

/* Calls f(context, i) for i = 0 .. n - 1, begun in this order, on this thread and on others that end before it returns:
 * for work of milliseconds, such as compiling. The process has at most TGL_MAX_HELPERS of those threads at a time, and no
 * more than it has cores; they get no signals. */
enum { TGL_MAX_HELPERS = 7 };
void tgl_parallel_each(int n, void (*f)(void *context, int i), void *context);

#endif
