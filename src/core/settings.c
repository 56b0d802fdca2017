/* SPDX-License-Identifier: MIT */
#include "core/settings.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/cpu.h"
#include "core/log.h"
#include "core/status.h"

/* Settings that calls can change are atomics, the cache folder is behind a lock; the rest is constant once
 * read. num_sms is -1 for a device where it is not set. */
static tgl_settings settings;
static atomic_int num_threads, default_num_sms, num_sms[TGL_MAX_DEVICES];
static atomic_bool pdl;
static atomic_int jit_mode;
atomic_int tgl_cpu_known = -1;
static pthread_mutex_t cache_dir_lock = PTHREAD_MUTEX_INITIALIZER;
static char cache_dir[TGL_PATH_BYTES];
static bool cache_dir_is_set;

static const char *const log_words[] = { "off", "error", "info", "call" };
static const char *const jit_words[] = { "auto", "never" };
static const char *const cpu_words[] = { "plain", "base", "avx2", "avx512", "auto" };
static const char *const switch_words[] = { "0", "1" };

/* ---- reading the environment ---- */

/* A bad value fails no call: it is logged once, and the default is used. */
static char complaints[512];
static void complain(const char *variable, const char *value, const char *want)
{
    const size_t n = strlen(complaints);
    snprintf(complaints + n, sizeof complaints - n, "%s%s: is \"%.60s\", want %s", n ? "; " : "", variable, value,
             want);
}

/* A program with more rights than its caller (setuid, file capabilities) must not load a library or write
 * to a folder of the caller's choice: there, no variable counts as set. */
static const char *variable_of(const char *name)
{
#ifdef __linux__
    return secure_getenv(name);
#else
    return getuid() == geteuid() && getgid() == getegid() ? getenv(name) : NULL;
#endif
}

static const char *text(const char *variable)
{
    const char *value = variable_of(variable);
    char *copy = value && *value ? strdup(value) : NULL; /* setenv may invalidate it */
    return copy ? copy : "";
}

static int number(const char *variable, int highest) /* 0 is the default of all of them */
{
    const char *value = variable_of(variable);
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
    const char *value = variable_of(variable);
    if (!value || !*value) return fallback;
    for (int i = 0; i < count; i++)
        if (!strcmp(value, words[i])) return i;
    complain(variable, value, want);
    return fallback;
}

static tgl_cpu_level supported_cpu_level(void)
{
#ifdef __x86_64__ /* the options of CMakeLists.txt */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return TGL_CPU_BASE;
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl");
    return has_avx512 ? TGL_CPU_AVX512 : TGL_CPU_AVX2;
#else
    return TGL_CPU_BASE;
#endif
}

static void set_cpu_level(tgl_cpu_level highest)
{
    const tgl_cpu_level supported = supported_cpu_level();
    atomic_store(&tgl_cpu_known, (int)(highest < supported ? highest : supported));
}

static void lock_cache_dir(void) { pthread_mutex_lock(&cache_dir_lock); }
static void unlock_cache_dir(void) { pthread_mutex_unlock(&cache_dir_lock); }

static void read_environment(void)
{
    pthread_atfork(lock_cache_dir, unlock_cache_dir, unlock_cache_dir); /* unlocked in a child */
    settings.log_level = one_of("TEGULA_LOG", log_words, 4, "off, error, info or call", TGL_LOG_OFF);
    settings.libcuda = text("TEGULA_LIBCUDA");
    settings.libnvrtc = text("TEGULA_LIBNVRTC");
    settings.cache_readonly = text("TEGULA_CACHE_READONLY");
    settings.home = text("HOME");
    settings.xdg_cache_home = text("XDG_CACHE_HOME");
    const int auto_level = TGL_CPU_AVX512 + 1;
    const int highest = one_of("TEGULA_CPU", cpu_words, 5, "auto, plain, base, avx2 or avx512", auto_level);
    set_cpu_level((tgl_cpu_level)highest);
    atomic_store(&num_threads, number("TEGULA_NUM_THREADS", TGL_MAX_THREADS));
    atomic_store(&default_num_sms, number("TEGULA_NUM_SMS", INT_MAX));
    for (int i = 0; i < TGL_MAX_DEVICES; i++) atomic_store(&num_sms[i], -1);
    atomic_store(&pdl, one_of("TEGULA_PDL", switch_words, 2, "0 or 1", 1) == 1);
    atomic_store(&jit_mode, one_of("TEGULA_JIT", jit_words, 2, "auto or never", TGL_JIT_AUTO));
    const char *folder = variable_of("TEGULA_CACHE_DIR"); /* set and empty: no disk cache */
    if (folder && strlen(folder) < sizeof cache_dir) {
        strcpy(cache_dir, folder);
        cache_dir_is_set = true;
    } else if (folder) {
        complain("TEGULA_CACHE_DIR", folder, "a shorter path");
    }
}

const tgl_settings *tgl_settings_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static atomic_bool is_read, reported;
    if (atomic_load_explicit(&is_read, memory_order_acquire)) return &settings; /* on every launch */
    pthread_once(&once, read_environment);
    if (complaints[0] && !atomic_exchange(&reported, true)) tgl_log(TGL_LOG_ERROR, "%s", complaints);
    atomic_store_explicit(&is_read, true, memory_order_release);
    return &settings;
}

/* ---- what calls can change ---- */

tgl_status tgl_set_num_threads(int n)
{
    if (n < 0 || n > TGL_MAX_THREADS)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_threads: is %d, want 0 (the default) to %d", n, TGL_MAX_THREADS);
    tgl_settings_get();
    atomic_store(&num_threads, n);
    return TGL_OK;
}

int tgl_get_num_threads(void)
{
    tgl_settings_get();
#ifdef _OPENMP
    const int n = atomic_load_explicit(&num_threads, memory_order_relaxed);
    return n > 0 ? n : omp_get_max_threads();
#else
    return 1;
#endif
}

void tgl_cpu_limit(tgl_cpu_level highest)
{
    tgl_settings_get();
    set_cpu_level(highest);
}

tgl_cpu_level tgl_cpu_read(void)
{
    tgl_settings_get();
    return (tgl_cpu_level)atomic_load(&tgl_cpu_known);
}

tgl_status tgl_set_num_sms(int device, int n)
{
    if (device < 0 || device >= TGL_MAX_DEVICES)
        return tgl_fail(TGL_ERR_ARGUMENT, "device: is %d, want 0..%d", device, TGL_MAX_DEVICES - 1);
    if (n < 0) return tgl_fail(TGL_ERR_ARGUMENT, "num_sms: is %d, want 0 (all) or more", n);
    tgl_settings_get();
    atomic_store(&num_sms[device], n);
    return TGL_OK;
}

int tgl_settings_num_sms(int device, int device_num_sms)
{
    tgl_settings_get();
    int n = -1;
    if (device >= 0 && device < TGL_MAX_DEVICES) n = atomic_load_explicit(&num_sms[device], memory_order_relaxed);
    if (n < 0) n = atomic_load_explicit(&default_num_sms, memory_order_relaxed);
    return n == 0 || n > device_num_sms ? device_num_sms : n;
}

tgl_status tgl_set_pdl(bool on)
{
    tgl_settings_get();
    atomic_store(&pdl, on);
    return TGL_OK;
}

bool tgl_get_pdl(void)
{
    tgl_settings_get();
    return atomic_load_explicit(&pdl, memory_order_relaxed);
}

tgl_status tgl_set_jit_mode(tgl_jit_mode mode)
{
    if (mode != TGL_JIT_AUTO && mode != TGL_JIT_NEVER)
        return tgl_fail(TGL_ERR_ARGUMENT, "mode: is %d, want TGL_JIT_AUTO or TGL_JIT_NEVER", (int)mode);
    tgl_settings_get();
    atomic_store(&jit_mode, (int)mode);
    return TGL_OK;
}

tgl_jit_mode tgl_get_jit_mode(void)
{
    tgl_settings_get();
    return (tgl_jit_mode)atomic_load_explicit(&jit_mode, memory_order_relaxed);
}

tgl_status tgl_set_cache_dir(const char *path)
{
    if (path && strlen(path) >= sizeof cache_dir)
        return tgl_fail(TGL_ERR_ARGUMENT, "path: has %zu bytes, want fewer than %zu", strlen(path), sizeof cache_dir);
    tgl_settings_get();
    lock_cache_dir();
    cache_dir_is_set = path != NULL;
    strcpy(cache_dir, path ? path : "");
    unlock_cache_dir();
    return TGL_OK;
}

bool tgl_settings_cache_dir(char path[TGL_PATH_BYTES])
{
    const tgl_settings *s = tgl_settings_get();
    lock_cache_dir();
    const bool is_set = cache_dir_is_set;
    strcpy(path, cache_dir);
    unlock_cache_dir();
    if (is_set) return true;
    int n = 0;
    if (s->xdg_cache_home[0] == '/') n = snprintf(path, TGL_PATH_BYTES, "%s/tegula", s->xdg_cache_home);
    else if (s->home[0] == '/') n = snprintf(path, TGL_PATH_BYTES, "%s/.cache/tegula", s->home);
    else path[0] = 0;
    if (n >= TGL_PATH_BYTES) path[0] = 0;
    return false;
}

/* ---- for the tool ---- */

bool tgl_settings_row(int i, tgl_setting_row *row)
{
    static const struct {
        const char *variable, *meaning;
    } rows[] = {
        { "TEGULA_LOG", "lines on stderr: off, error, info or call" },
        { "TEGULA_CPU", "CPU loops: auto, or at most plain, base, avx2 or avx512" },
        { "TEGULA_NUM_THREADS", "CPU threads; 0: what OpenMP would use" },
        { "TEGULA_NUM_SMS", "SMs that persistent kernels may use; 0: all" },
        { "TEGULA_PDL", "programmatic dependent launch: 0 or 1" },
        { "TEGULA_JIT", "auto, or never: an error in place of compiling" },
        { "TEGULA_CACHE_DIR", "folder of compiled kernels; set and empty: none" },
        { "TEGULA_CACHE_READONLY", "a folder of compiled kernels looked up first" },
        { "TEGULA_LIBCUDA", "the driver's library file" },
        { "TEGULA_LIBNVRTC", "the compiler's library file" },
    };
    if (i < 0 || i >= (int)(sizeof rows / sizeof rows[0])) return false;
    const tgl_settings *s = tgl_settings_get();
    row->variable = rows[i].variable;
    row->meaning = rows[i].meaning;
    row->from_environment = variable_of(rows[i].variable) != NULL;
    char *value = row->value;
    const size_t bytes = sizeof row->value;
    switch (i) {
    case 0: snprintf(value, bytes, "%s", log_words[s->log_level]); break;
    case 1: snprintf(value, bytes, "%s", cpu_words[tgl_cpu()]); break;
    case 2: snprintf(value, bytes, "%d", tgl_get_num_threads()); break;
    case 3: snprintf(value, bytes, "%d", atomic_load(&default_num_sms)); break;
    case 4: snprintf(value, bytes, "%d", tgl_get_pdl()); break;
    case 5: snprintf(value, bytes, "%s", jit_words[tgl_get_jit_mode()]); break;
    case 6: tgl_settings_cache_dir(value); break;
    case 7: snprintf(value, bytes, "%s", s->cache_readonly); break;
    case 8: snprintf(value, bytes, "%s", s->libcuda); break;
    default: snprintf(value, bytes, "%s", s->libnvrtc); break;
    }
    return true;
}
