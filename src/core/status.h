/* SPDX-License-Identifier: MIT
 * status.h - how functions of the library fail: with a status, and a message for this thread. */
#ifndef TEGULA_STATUS_H
#define TEGULA_STATUS_H

#include "tegula/core.h"

/* Returns the status of a call that failed to the caller's caller. */
#define TGL_TRY(call)                                        \
    do {                                                     \
        const tgl_status tgl_try_status = (call);            \
        if (tgl_try_status != TGL_OK) return tgl_try_status; \
    } while (0)

/* The value of a macro as text: "num_rows in 1.." TGL_TEXT(MAX_ROWS). */
#define TGL_TEXT_OF(name) #name
#define TGL_TEXT(macro) TGL_TEXT_OF(macro)

/* Sets this thread's message (truncated to TGL_MESSAGE_BYTES) and returns `status`:
 *     return tgl_fail(TGL_ERR_ARGUMENT, "num_topk: is %d, want 1..%d", k, n); */
enum { TGL_MESSAGE_BYTES = 1024 };
tgl_status tgl_fail(tgl_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

#endif
