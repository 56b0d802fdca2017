/* SPDX-License-Identifier: MIT
 * nvrtc.c - finds libnvrtc. Locks and forks: as in driver.c. */
#include "cuda/nvrtc.h"

#include <dlfcn.h>
#ifdef __linux__
#include <link.h>
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cancel.h"
#include "core/log.h"
#include "cuda/driver.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tgl_nvrtc_table table;
static _Atomic(const tgl_nvrtc_table *) ready;
static bool failed;
static char failure[512], refusal[256]; /* refusal: why the last candidate was rejected */

static void in_child(void) { pthread_mutex_init(&lock, NULL); }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static int compare_int(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* NVRTC opens libnvrtc-builtins by its bare name when it first compiles. That of a wheel is on no search
 * path (nvidia-cuda-nvrtc 13.0 for aarch64 has no RUNPATH), and the loader might find another toolkit's.
 * Once the file beside libnvrtc is loaded, the bare name means that one. */
static void load_builtins(const tgl_nvrtc_table *t)
{
    const char *slash = strrchr(t->path, '/');
    const int folder_bytes = slash ? (int)(slash + 1 - t->path) : 0;
    char file[TGL_PATH_BYTES];
    const int n =
        snprintf(file, sizeof file, "%.*slibnvrtc-builtins.so.%d.%d", folder_bytes, t->path, t->major, t->minor);
    if (slash && n < (int)sizeof file) dlopen(file, RTLD_LAZY | RTLD_LOCAL); /* or NVRTC searches itself */
}

/* Fills the table from an open library; otherwise says why not in `refusal`. */
static bool accept(void *handle, const char *file, bool is_named)
{
    tgl_nvrtc_table t = { 0 };
#define FIND(name, parameters) *(void **)&t.name = dlsym(handle, "nvrtc" #name);
    TGL_NVRTC_ENTRIES(FIND)
    FIND(GetErrorString, )
    Dl_info info;
    void *symbol = *(void **)&t.Version;
    snprintf(t.path, sizeof t.path, "%s", symbol && dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : file);
    if (!t.Version || !t.GetErrorString || !t.CreateProgram || !t.DestroyProgram || !t.CompileProgram || !t.GetCUBIN ||
        !t.GetCUBINSize || !t.GetProgramLog || !t.GetProgramLogSize || !t.GetNumSupportedArchs ||
        !t.GetSupportedArchs || t.Version(&t.major, &t.minor)) {
        snprintf(refusal, sizeof refusal, "%.160s is no NVRTC 12 or newer", t.path);
        return false;
    }
    const int driver = tgl_driver_version();
    if (!is_named && driver && t.major > driver / 1000) {
        snprintf(refusal, sizeof refusal, "%.120s is of CUDA %d.%d, newer than the driver's %d.%d", t.path, t.major,
                 t.minor, driver / 1000, driver % 1000 / 10);
        return false;
    }
    if (t.GetNumSupportedArchs(&t.num_archs) || t.num_archs > TGL_MAX_KNOWN_ARCHS || t.GetSupportedArchs(t.archs))
        t.num_archs = 0;
    qsort(t.archs, (size_t)t.num_archs, sizeof t.archs[0], compare_int);
    load_builtins(&t);
    table = t;
    return true;
}

static bool try_file(const char *file, int flags, bool is_named)
{
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | flags);
    if (!handle) {
        if (is_named) snprintf(refusal, sizeof refusal, "%.250s", dlerror());
        return false;
    }
    if (accept(handle, file, is_named)) return true;
    tgl_log(TGL_LOG_INFO, "NVRTC: %s", refusal);
    dlclose(handle);
    return false;
}

static bool try_versions(const char *folder, int flags)
{
    char file[TGL_PATH_BYTES];
    for (int major = 13; major >= 12; major--) {
        if (snprintf(file, sizeof file, "%slibnvrtc.so.%d", folder, major) >= (int)sizeof file) continue;
        if (try_file(file, flags, false)) return true;
    }
    return false;
}

/* NVIDIA's wheels install it in site-packages/nvidia/cu13/lib or site-packages/nvidia/cuda_nvrtc/lib.
 * Python programs have loaded some extension from that site-packages: this library, numpy or torch; the
 * tool of a wheel lies in it. This also finds a loaded copy with an unusual name (old torch wheels had
 * libnvrtc-<hash>.so). */
typedef struct {
    char folders[16][TGL_PATH_BYTES];
    char loaded[TGL_PATH_BYTES];
    int count;
} surroundings;

#ifdef __linux__
static int look_around(struct dl_phdr_info *info, size_t bytes, void *context)
{
    surroundings *s = context;
    const char *name = info->dlpi_name;
    char program[TGL_PATH_BYTES];
    if (!name || !name[0]) { /* the program itself, which a wheel may have brought along */
        const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
        if (n <= 0) return 0;
        program[n] = 0;
        name = program;
    }
    if (strlen(name) >= TGL_PATH_BYTES) return 0;
    const char *base = strrchr(name, '/');
    base = base ? base + 1 : name;
    if (!strncmp(base, "libnvrtc", 8) && !strstr(base, "builtins")) strcpy(s->loaded, name);
    const char *end = strstr(name, "/site-packages/");
    size_t n = end ? (size_t)(end - name) + strlen("/site-packages/") : 0;
    if (!end && (end = strstr(name, "/dist-packages/"))) n = (size_t)(end - name) + strlen("/dist-packages/");
    if (!end || s->count == 16) return 0;
    for (int i = 0; i < s->count; i++)
        if (!strncmp(s->folders[i], name, n) && !s->folders[i][n]) return 0;
    memcpy(s->folders[s->count], name, n);
    s->folders[s->count++][n] = 0;
    return 0;
}
#endif

static bool try_wheels(const surroundings *s)
{
    static const char *const places[] = { "nvidia/cu13/lib/", "nvidia/cuda_nvrtc/lib/" };
    for (int i = 0; i < s->count; i++)
        for (int k = 0; k < 2; k++) {
            char folder[TGL_PATH_BYTES];
            if (snprintf(folder, sizeof folder, "%s%s", s->folders[i], places[k]) >= (int)sizeof folder) continue;
            if (try_versions(folder, 0)) return true;
        }
    return false;
}

static bool search(void)
{
    const char *named = tgl_environment_get()->libnvrtc;
    if (named[0]) {
        if (try_file(named, 0, true)) return true;
        snprintf(failure, sizeof failure, "TEGULA_LIBNVRTC: %s", refusal);
        return false;
    }
    surroundings *s = calloc(1, sizeof *s);
#ifdef __linux__
    if (s) dl_iterate_phdr(look_around, s);
#endif
    bool found = try_versions("", RTLD_NOLOAD) || (s && s->loaded[0] && try_file(s->loaded, RTLD_NOLOAD, false)) ||
                 (s && try_wheels(s));
    free(s);
    static const char *const folders[] = { "", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/", "/opt/cuda/lib64/" };
    for (size_t i = 0; !found && i < sizeof folders / sizeof folders[0]; i++) found = try_versions(folders[i], 0);
    if (found) return true;
    const int driver = tgl_driver_version() / 1000;
    snprintf(failure, sizeof failure,
             "no libnvrtc.so.13 or .12 %s%s%s: install it (pip install nvidia-cuda-nvrtc%s, or the CUDA "
             "toolkit), or name the file in TEGULA_LIBNVRTC",
             refusal[0] ? "will do (" : "was found", refusal, refusal[0] ? ")" : "", driver == 12 ? "-cu12" : "");
    return false;
}

const tgl_nvrtc_table *tgl_nvrtc_or_null(void)
{
    const tgl_nvrtc_table *found = atomic_load_explicit(&ready, memory_order_acquire);
    if (found) return found;
    const int cancelling = tgl_cancel_hold();
    pthread_mutex_lock(&lock);
    if (!atomic_load(&ready) && !failed) {
        failed = !search();
        if (!failed) {
            tgl_log(TGL_LOG_INFO, "NVRTC %d.%d: %s", table.major, table.minor, table.path);
            atomic_store_explicit(&ready, &table, memory_order_release);
        }
    }
    found = atomic_load(&ready);
    pthread_mutex_unlock(&lock);
    tgl_cancel_restore(cancelling);
    return found;
}

tgl_status tgl_nvrtc(const tgl_nvrtc_table **out)
{
    *out = tgl_nvrtc_or_null();
    return *out ? TGL_OK : tgl_fail(TGL_ERR_COMPILE, "%s", failure); /* written once, under the lock */
}

tgl_status tgl_nvrtc_version(int *major, int *minor, const char **path)
{
    const tgl_nvrtc_table *nvrtc;
    TGL_TRY(tgl_nvrtc(&nvrtc));
    *major = nvrtc->major;
    *minor = nvrtc->minor;
    *path = nvrtc->path;
    return TGL_OK;
}
