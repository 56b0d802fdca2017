/* SPDX-License-Identifier: MIT
 * log_indices.h - a line of the log, at level call, on indices that are out of range. Indices have passed their checks, are
 * i32 or i64, and have one or two dimensions; those on a GPU are not read. */
#ifndef TEGULA_LOG_INDICES_H
#define TEGULA_LOG_INDICES_H

#include "tegula/core.h"

/* How many indices are >= n, and the first of them. The second looks only at rows where both flags (bool, packed, NULL
 * for all true) are set. */
void tgl_log_indices(const char *name, const DLTensor *indices, int64_t n);
void tgl_log_indices_where(const char *name, const DLTensor *indices, int64_t n, const DLTensor *flags,
                           const DLTensor *more_flags);

/* How many are not in begin .. begin + count - 1: of rows that a table has not. */
void tgl_log_foreign_indices(const char *name, const DLTensor *indices, int64_t begin, uint64_t count);

#endif
