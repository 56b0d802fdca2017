/* SPDX-License-Identifier: MIT */
#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/settings.h"
#include "core/tensor.h"

enum { LINE_BYTES = 2048 };

bool tgl_log_wants(tgl_log_level level) { return (int)level <= tgl_settings_get()->log_level; }

void tgl_log(tgl_log_level level, const char *format, ...)
{
    if (!tgl_log_wants(level)) return;
    char text[LINE_BYTES], line[LINE_BYTES + 16];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "tegula: %s\n", text);
    fputs(line, stderr); /* one write, so that lines of several threads do not mix */
}

void tgl_log_indices(const char *name, const DLTensor *indices, int64_t n)
{
    tgl_log_indices_where(name, indices, n, NULL, NULL);
}

static bool is_true(const DLTensor *flags, int64_t row)
{
    const uint8_t *flag = tgl_data_or_null(flags);
    return !flag || flag[row];
}

void tgl_log_indices_where(const char *name, const DLTensor *indices, int64_t n, const DLTensor *flags,
                           const DLTensor *more_flags)
{
    if (!tgl_log_wants(TGL_LOG_CALL) || !tgl_on_cpu(indices) || tgl_is_empty(indices)) return;
    const void *data = tgl_data(indices);
    if (!data) return;
    const int64_t cols = indices->ndim == 2 ? indices->shape[1] : 1, stride = tgl_stride(indices, 0);
    const bool is_short = indices->dtype.bits == 32;
    int64_t total = 0, count = 0, first = 0, first_row = 0, first_col = 0;
    for (int64_t row = 0; row < indices->shape[0]; row++) {
        if (!is_true(flags, row) || !is_true(more_flags, row)) continue;
        for (int64_t col = 0; col < cols; col++, total++) {
            const int64_t at = row * stride + col;
            const int64_t value = is_short ? ((const int32_t *)data)[at] : ((const int64_t *)data)[at];
            if (value >= n && count++ == 0) first = value, first_row = row, first_col = col;
        }
    }
    if (count > 0)
        tgl_log(TGL_LOG_CALL, "%s: %lld of %lld indices are out of range: [%lld, %lld] is %lld, want < %lld", name,
                (long long)count, (long long)total, (long long)first_row, (long long)first_col, (long long)first,
                (long long)n);
}
