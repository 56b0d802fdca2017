/* SPDX-License-Identifier: MIT
 * log_indices.h - a line of the log on indices that are out of range. */
#ifndef TEGULA_LOG_INDICES_H
#define TEGULA_LOG_INDICES_H

#include "tegula/core.h"

/* At level call: how many indices are >= n, and the first of them. `indices` has passed its checks, is i32
 * or i64 and has one or two dimensions; one on a GPU is not read. The second looks only at rows where both
 * flags (bool, packed, NULL for all true) are set. */
void tgl_log_indices(const char *name, const DLTensor *indices, int64_t n);
void tgl_log_indices_where(const char *name, const DLTensor *indices, int64_t n, const DLTensor *flags,
                           const DLTensor *more_flags);

#endif
