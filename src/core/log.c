/* SPDX-License-Identifier: MIT */
#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/settings.h"
#include "core/tensor.h"

enum { LINE_BYTES = 2048 };

bool tgl_log_wants(tgl_log_level level) { return (int)level <= tgl_settings_get()->log_level; }

static void write_line(const char *text)    /* one write, so that lines of several threads do not mix */
{
    char line[LINE_BYTES + 16];
    snprintf(line, sizeof line, "tegula: %s\n", text);
    fputs(line, stderr);
}

void tgl_log(tgl_log_level level, const char *format, ...)
{
    if (!tgl_log_wants(level)) return;
    char text[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    write_line(text);
}

void tgl_log_call(const char *op, ...)
{
    if (!tgl_log_wants(TGL_LOG_CALL)) return;
    char text[LINE_BYTES];
    size_t n = (size_t)snprintf(text, sizeof text, "%s(", op);
    const char *separator = "";
    va_list args;
    va_start(args, op);
    for (const char *name; n < sizeof text && (name = va_arg(args, const char *)) != NULL; separator = ", ") {
        char tensor[256];
        tgl_describe(va_arg(args, const DLTensor *), tensor, sizeof tensor);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %s", separator, name, tensor);
    }
    va_end(args);
    if (n < sizeof text) snprintf(text + n, sizeof text - n, ")");
    write_line(text);
}

void tgl_log_indices(const char *name, const DLTensor *indices, int64_t n)
{
    const void *data = tgl_data(indices);
    if (!tgl_log_wants(TGL_LOG_CALL) || !tgl_on_cpu(indices) || tgl_is_empty(indices) || !data) return;
    const int64_t cols = indices->ndim == 2 ? indices->shape[1] : 1, stride = tgl_stride(indices, 0);
    int64_t count = 0, first = 0, row = 0, col = 0;
    for (int64_t i = 0; i < indices->shape[0] * cols; i++) {
        const int64_t at = i / cols * stride + i % cols;
        const bool is_short = indices->dtype.bits == 32;
        const int64_t value = is_short ? ((const int32_t *)data)[at] : ((const int64_t *)data)[at];
        if (value < n) continue;
        if (count++ == 0) first = value, row = i / cols, col = i % cols;
    }
    if (count > 0)
        tgl_log(TGL_LOG_CALL, "%s: %lld of %lld indices are passed over; [%lld, %lld] is %lld, want < %lld",
                name, (long long)count, (long long)(indices->shape[0] * cols), (long long)row,
                (long long)col, (long long)first, (long long)n);
}
