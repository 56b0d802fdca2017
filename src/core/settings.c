/* SPDX-License-Identifier: MIT */
#include "core/settings.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/cpu.h"
#include "core/log.h"
#include "core/status.h"

/* Atomics, but for the cache folder, which is behind a lock. num_sms is -1 for a device where it is not set. */
static atomic_int num_threads, default_num_sms, num_sms[TGL_MAX_DEVICES];
static atomic_bool pdl;
static atomic_int jit_mode;
atomic_int tgl_cpu_known = -1;
static pthread_mutex_t cache_dir_lock = PTHREAD_MUTEX_INITIALIZER;
static char cache_dir[TGL_PATH_BYTES];
static bool cache_dir_is_set;

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

static void take_environment(void)
{
    const tgl_environment *e = tgl_environment_get();
    pthread_atfork(lock_cache_dir, unlock_cache_dir, unlock_cache_dir); /* unlocked in a child */
    set_cpu_level((tgl_cpu_level)e->cpu_level);
    atomic_store(&num_threads, e->num_threads);
    atomic_store(&default_num_sms, e->num_sms);
    for (int i = 0; i < TGL_MAX_DEVICES; i++) atomic_store(&num_sms[i], -1);
    atomic_store(&pdl, e->pdl);
    atomic_store(&jit_mode, e->jit_mode);
    strcpy(cache_dir, e->cache_dir);
    cache_dir_is_set = e->cache_dir_is_set;
}

static void begin(void) /* of every function below */
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static atomic_bool has_begun;
    if (atomic_load_explicit(&has_begun, memory_order_acquire)) return; /* on every launch */
    pthread_once(&once, take_environment);
    tgl_log_complaints();
    atomic_store_explicit(&has_begun, true, memory_order_release);
}

tgl_status tgl_set_num_threads(int n)
{
    if (n < 0 || n > TGL_MAX_THREADS)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_threads: is %d, want 0 (the default) to %d", n, TGL_MAX_THREADS);
    begin();
    atomic_store(&num_threads, n);
    return TGL_OK;
}

int tgl_get_num_threads(void)
{
    begin();
#ifdef _OPENMP
    const int n = atomic_load_explicit(&num_threads, memory_order_relaxed);
    return n > 0 ? n : omp_get_max_threads();
#else
    return 1;
#endif
}

void tgl_cpu_limit(tgl_cpu_level highest)
{
    begin();
    set_cpu_level(highest);
}

tgl_cpu_level tgl_cpu_read(void)
{
    begin();
    return (tgl_cpu_level)atomic_load(&tgl_cpu_known);
}

tgl_status tgl_set_num_sms(int device, int n)
{
    if (device < 0 || device >= TGL_MAX_DEVICES)
        return tgl_fail(TGL_ERR_ARGUMENT, "device: is %d, want 0..%d", device, TGL_MAX_DEVICES - 1);
    if (n < 0) return tgl_fail(TGL_ERR_ARGUMENT, "num_sms: is %d, want 0 (all) or more", n);
    begin();
    atomic_store(&num_sms[device], n);
    return TGL_OK;
}

int tgl_settings_num_sms(int device, int device_num_sms)
{
    begin();
    int n = -1;
    if (device >= 0 && device < TGL_MAX_DEVICES) n = atomic_load_explicit(&num_sms[device], memory_order_relaxed);
    if (n < 0) n = atomic_load_explicit(&default_num_sms, memory_order_relaxed);
    return n == 0 || n > device_num_sms ? device_num_sms : n;
}

tgl_status tgl_set_pdl(bool on)
{
    begin();
    atomic_store(&pdl, on);
    return TGL_OK;
}

bool tgl_get_pdl(void)
{
    begin();
    return atomic_load_explicit(&pdl, memory_order_relaxed);
}

tgl_status tgl_set_jit_mode(tgl_jit_mode mode)
{
    if (mode != TGL_JIT_AUTO && mode != TGL_JIT_NEVER)
        return tgl_fail(TGL_ERR_ARGUMENT, "mode: is %d, want TGL_JIT_AUTO or TGL_JIT_NEVER", (int)mode);
    begin();
    atomic_store(&jit_mode, (int)mode);
    return TGL_OK;
}

tgl_jit_mode tgl_get_jit_mode(void)
{
    begin();
    return (tgl_jit_mode)atomic_load_explicit(&jit_mode, memory_order_relaxed);
}

tgl_status tgl_set_cache_dir(const char *path)
{
    if (path && strlen(path) >= sizeof cache_dir)
        return tgl_fail(TGL_ERR_ARGUMENT, "path: has %zu bytes, want fewer than %zu", strlen(path), sizeof cache_dir);
    begin();
    lock_cache_dir();
    cache_dir_is_set = path != NULL;
    strcpy(cache_dir, path ? path : "");
    unlock_cache_dir();
    return TGL_OK;
}

bool tgl_settings_cache_dir(char path[TGL_PATH_BYTES])
{
    const tgl_environment *e = tgl_environment_get();
    begin();
    lock_cache_dir();
    const bool is_set = cache_dir_is_set;
    strcpy(path, cache_dir);
    unlock_cache_dir();
    if (is_set) return true;
    int n = 0;
    if (e->xdg_cache_home[0] == '/') n = snprintf(path, TGL_PATH_BYTES, "%s/tegula", e->xdg_cache_home);
    else if (e->home[0] == '/') n = snprintf(path, TGL_PATH_BYTES, "%s/.cache/tegula", e->home);
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
    const tgl_environment *e = tgl_environment_get();
    begin();
    row->variable = rows[i].variable;
    row->meaning = rows[i].meaning;
    row->from_environment = tgl_environment_variable(rows[i].variable) != NULL;
    char *value = row->value;
    const size_t bytes = sizeof row->value;
    switch (i) {
    case 0: snprintf(value, bytes, "%s", tgl_log_words[e->log_level]); break;
    case 1: snprintf(value, bytes, "%s", tgl_cpu_words[tgl_cpu()]); break;
    case 2: snprintf(value, bytes, "%d", tgl_get_num_threads()); break;
    case 3: snprintf(value, bytes, "%d", atomic_load(&default_num_sms)); break;
    case 4: snprintf(value, bytes, "%d", tgl_get_pdl()); break;
    case 5: snprintf(value, bytes, "%s", tgl_jit_words[tgl_get_jit_mode()]); break;
    case 6: tgl_settings_cache_dir(value); break;
    case 7: snprintf(value, bytes, "%s", e->cache_readonly); break;
    case 8: snprintf(value, bytes, "%s", e->libcuda); break;
    default: snprintf(value, bytes, "%s", e->libnvrtc); break;
    }
    return true;
}
