/* SPDX-License-Identifier: MIT */
#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/environment.h"

enum { LINE_BYTES = 2048 };

bool tgl_log_wants(tgl_log_level level) { return (int)level <= tgl_environment_get()->log_level; }

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
