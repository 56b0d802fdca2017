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
