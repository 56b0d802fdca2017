/* SPDX-License-Identifier: MIT
 * log.h - lines on stderr, if TEGULA_LOG asks for them: off (default), error, info (compilations,
 * cache), call (every op). */
#ifndef TEGULA_LOG_H
#define TEGULA_LOG_H

#include "tegula/core.h"

typedef enum { TGL_LOG_OFF = 0, TGL_LOG_ERROR = 1, TGL_LOG_INFO = 2, TGL_LOG_CALL = 3 } tgl_log_level;

void tgl_log(tgl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says, once, what was wrong with variables of the environment. The first line of any level comes after it. */
void tgl_log_complaints(void);

/* Is a line of this level wanted? A load or two; lets a caller skip the work of making it. */
bool tgl_log_wants(tgl_log_level level);

#endif
