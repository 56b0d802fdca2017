/* SPDX-License-Identifier: MIT
 * environment.h - every TEGULA_* variable: read here only, once, at the first use of any. In a setuid program
 * they are ignored. docs/environment.md describes them. What calls can change is in settings.h.
 *
 * Each uses those before it: environment, log, status, settings. */
#ifndef TEGULA_ENVIRONMENT_H
#define TEGULA_ENVIRONMENT_H

#include <stdbool.h>

enum { TGL_PATH_BYTES = 4096, TGL_MAX_THREADS = 1024 };

/* Texts are "" if not set. Strings live as long as the process. */
typedef struct {
    int log_level;            /* TEGULA_LOG: the word's place in tgl_log_words */
    int cpu_level;            /* TEGULA_CPU: the same of tgl_cpu_words */
    int jit_mode;             /* TEGULA_JIT: the same of tgl_jit_words */
    int num_threads, num_sms; /* TEGULA_NUM_THREADS, TEGULA_NUM_SMS */
    bool pdl;                 /* TEGULA_PDL */
    bool cache_dir_is_set;    /* TEGULA_CACHE_DIR; set and empty: no disk cache */
    const char *cache_dir;
    const char *libcuda;        /* TEGULA_LIBCUDA */
    const char *libnvrtc;       /* TEGULA_LIBNVRTC */
    const char *cache_readonly; /* TEGULA_CACHE_READONLY */
    const char *home, *xdg_cache_home;
    char complaints[512]; /* of bad values, which fail no call: the default is used. log.c says them */
} tgl_environment;

const tgl_environment *tgl_environment_get(void);

extern const char *const tgl_log_words[4], *const tgl_cpu_words[5], *const tgl_jit_words[2];

/* Its text now; NULL if it is not set. */
const char *tgl_environment_variable(const char *name);

#endif
