/* SPDX-License-Identifier: MIT
 * child.h - runs a function in a child process, with its own environment, which the library reads once per
 * process, and with its stderr captured. The parent must not have used the library's settings before. */
#ifndef TEGULA_CHILD_H
#define TEGULA_CHILD_H

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

enum { CHILD_TEXT = 8192 };

/* Clears every TEGULA_* variable, HOME and XDG_CACHE_HOME, then sets `environment`: "NAME=value", ..., NULL.
 * `f` returns whether its checks passed. `text` (may be NULL) gets what it wrote to stderr. */
static inline bool in_child(const char *const *environment, bool (*f)(void), char text[CHILD_TEXT])
{
    // clang-format off: columns of names
    static const char *const cleared[] = {
        "TEGULA_LOG",       "TEGULA_NUM_THREADS",    "TEGULA_NUM_SMS", "TEGULA_PDL",      "TEGULA_JIT",
        "TEGULA_CACHE_DIR", "TEGULA_CACHE_READONLY", "TEGULA_LIBCUDA", "TEGULA_LIBNVRTC", "HOME",
        "XDG_CACHE_HOME",   "TEGULA_CPU"
    };
    // clang-format on
    int ends[2], status = -1;
    fflush(stdout);
    if (pipe(ends)) return false;
    const pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < sizeof cleared / sizeof *cleared; i++) unsetenv(cleared[i]);
        for (; environment && *environment; environment++) {
            char name[64] = "";
            const char *equals = strchr(*environment, '=');
            memcpy(name, *environment, (size_t)(equals - *environment));
            setenv(name, equals + 1, 1);
        }
        if (text) dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        alarm(60); /* a child that hangs fails */
        const bool ok = f();
        fflush(stdout);
        _exit(ok ? 0 : 1); /* without the parent's exit handlers */
    }
    close(ends[1]);
    size_t used = 0;
    char byte;
    while (read(ends[0], &byte, 1) == 1)
        if (text && used < CHILD_TEXT - 1) text[used++] = byte;
    if (text) text[used] = 0;
    close(ends[0]);
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

#define ENVIRONMENT(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define NO_ENVIRONMENT ((const char *const *)NULL)

#endif
