/* SPDX-License-Identifier: MIT */
#include "core/environment.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const tgl_log_words[] = { "off", "error", "info", "call" };            /* as tgl_log_level */
const char *const tgl_cpu_words[] = { "plain", "base", "avx2", "avx512", "auto" }; /* as tgl_cpu_level; the default */
const char *const tgl_jit_words[] = { "auto", "never" };                           /* as tgl_jit_mode */
static const char *const switch_words[] = { "0", "1" };

static tgl_environment environment;

static void complain(const char *variable, const char *value, const char *want)
{
    char *const all = environment.complaints;
    const size_t n = strlen(all), bytes = sizeof environment.complaints;
    snprintf(all + n, bytes - n, "%s%s: is \"%.60s\", want %s", n ? "; " : "", variable, value, want);
}

/* A program with more rights than its caller (setuid, file capabilities) must not load a library or write
 * to a folder of the caller's choice: there, no variable counts as set. */
const char *tgl_environment_variable(const char *name)
{
#ifdef __linux__
    return secure_getenv(name);
#else
    return getuid() == geteuid() && getgid() == getegid() ? getenv(name) : NULL;
#endif
}

static const char *text(const char *variable)
{
    const char *value = tgl_environment_variable(variable);
    char *copy = value && *value ? strdup(value) : NULL; /* setenv may invalidate it */
    return copy ? copy : "";
}

static int number(const char *variable, int highest) /* 0 is the default of all of them */
{
    const char *value = tgl_environment_variable(variable);
    if (!value || !*value) return 0;
    char *end, want[48];
    const long n = strtol(value, &end, 10);
    if (*end == 0 && n >= 0 && n <= highest) return (int)n;
    snprintf(want, sizeof want, "a number from 0 to %d", highest);
    complain(variable, value, want);
    return 0;
}

static int one_of(const char *variable, const char *const *words, int count, const char *want, int fallback)
{
    const char *value = tgl_environment_variable(variable);
    if (!value || !*value) return fallback;
    for (int i = 0; i < count; i++)
        if (!strcmp(value, words[i])) return i;
    complain(variable, value, want);
    return fallback;
}

static void read_variables(void)
{
    tgl_environment *const e = &environment;
    e->log_level = one_of("TEGULA_LOG", tgl_log_words, 4, "off, error, info or call", 0);
    e->libcuda = text("TEGULA_LIBCUDA");
    e->libnvrtc = text("TEGULA_LIBNVRTC");
    e->cache_readonly = text("TEGULA_CACHE_READONLY");
    e->home = text("HOME");
    e->xdg_cache_home = text("XDG_CACHE_HOME");
    e->cpu_level = one_of("TEGULA_CPU", tgl_cpu_words, 5, "auto, plain, base, avx2 or avx512", 4);
    e->num_threads = number("TEGULA_NUM_THREADS", TGL_MAX_THREADS);
    e->num_sms = number("TEGULA_NUM_SMS", INT_MAX);
    e->pdl = one_of("TEGULA_PDL", switch_words, 2, "0 or 1", 1) == 1;
    e->jit_mode = one_of("TEGULA_JIT", tgl_jit_words, 2, "auto or never", 0);
    const char *folder = tgl_environment_variable("TEGULA_CACHE_DIR");
    const bool fits = folder && strlen(folder) < TGL_PATH_BYTES;
    const char *copy = fits ? strdup(folder) : NULL;
    e->cache_dir_is_set = copy != NULL;
    e->cache_dir = copy ? copy : "";
    if (folder && !fits) complain("TEGULA_CACHE_DIR", folder, "a shorter path");
}

const tgl_environment *tgl_environment_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static atomic_bool is_read;
    if (atomic_load_explicit(&is_read, memory_order_acquire)) return &environment; /* on every call of an op */
    pthread_once(&once, read_variables);
    atomic_store_explicit(&is_read, true, memory_order_release);
    return &environment;
}
