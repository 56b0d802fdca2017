/* SPDX-License-Identifier: MIT */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/log.h"

static _Thread_local char message[TGL_MESSAGE_BYTES];

tgl_status tgl_fail(tgl_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    tgl_log(TGL_LOG_ERROR, "%s: %s", tgl_status_name(status), message);
    return status;
}

const char *tgl_last_error(void) { return message; }

const char *tgl_version(void)
{
    return TGL_TEXT(TGL_VERSION_MAJOR) "." TGL_TEXT(TGL_VERSION_MINOR) "." TGL_TEXT(TGL_VERSION_PATCH);
}

const char *tgl_status_name(tgl_status status)
{
    switch (status) {
    case TGL_OK: return "TGL_OK";
    case TGL_ERR_ARGUMENT: return "TGL_ERR_ARGUMENT";
    case TGL_ERR_WORKSPACE: return "TGL_ERR_WORKSPACE";
    case TGL_ERR_DEVICE: return "TGL_ERR_DEVICE";
    case TGL_ERR_COMPILE: return "TGL_ERR_COMPILE";
    case TGL_ERR_CAPTURE: return "TGL_ERR_CAPTURE";
    case TGL_ERR_MEMORY: return "TGL_ERR_MEMORY";
    case TGL_ERR_CUDA: return "TGL_ERR_CUDA";
    case TGL_ERR_PEER: return "TGL_ERR_PEER";
    case TGL_ERR_INTERNAL: return "TGL_ERR_INTERNAL";
    }
    return NULL;
}
