/* SPDX-License-Identifier: MIT
 * log.h - lines on stderr, if TEGULA_LOG asks for them: off (default), error, info (compilations,
 * cache), call (every op). */
#ifndef TEGULA_LOG_H
#define TEGULA_LOG_H

#include "tegula/core.h"

typedef enum { TGL_LOG_OFF = 0, TGL_LOG_ERROR = 1, TGL_LOG_INFO = 2, TGL_LOG_CALL = 3 } tgl_log_level;

void tgl_log(tgl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Is a line of this level wanted? One load; lets a caller skip the work of making it. */
bool tgl_log_wants(tgl_log_level level);

/* An op's call with its tensors: "tgl_transpose(x bf16 [3, 5] on cuda:0, out bf16 [5, 3] on cuda:0)".
 *     tgl_log_call("tgl_transpose", "x", x, "out", out, NULL); */
void tgl_log_call(const char *op, ...) __attribute__((sentinel));

/* At the level of calls: how many indices are past the last of n, and the first of them. Of a tensor that is
 * checked, of i32 or i64 and one or two dimensions; nothing is said of one in the memory of a GPU. */
void tgl_log_indices(const char *name, const DLTensor *indices, int64_t n);

/* The same of those rows alone for which both flags, bool and packed, are true; NULL: all are. */
void tgl_log_indices_where(const char *name, const DLTensor *indices, int64_t n, const DLTensor *flags,
                           const DLTensor *more_flags);

#endif
