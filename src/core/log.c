/* SPDX-License-Identifier: MIT */
#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/environment.h"

enum { LINE_BYTES = 2048 };

void tgl_log_complaints(void)
{
    static atomic_bool is_said;
    const char *complaints = tgl_environment_get()->complaints;
    if (complaints[0] && !atomic_exchange(&is_said, true)) tgl_log(TGL_LOG_ERROR, "%s", complaints);
}

bool tgl_log_wants(tgl_log_level level)
{
    tgl_log_complaints();
    return (int)level <= tgl_environment_get()->log_level;
}

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
