/* SPDX-License-Identifier: MIT
 * driver.c - loads libcuda on the first CUDA tensor.
 *
 * A forked child cannot use a driver that its parent initialised, and must not find a lock held by a
 * thread that it does not have. No lock is taken before a fork, because libcuda itself forks (cuInit may
 * start nvidia-modprobe, with our lock held); the child initialises the lock again. What the lock protects
 * is published by single stores, so that a fork never leaves it half written. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/cancel.h"

enum { API_VERSION = 12000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tgl_driver_table table;
static _Atomic(const tgl_driver_table *) ready; /* &table once cuInit succeeded */
static atomic_bool init_called, opened, forked;
static bool failed; /* in cuInit or open_library(), with this message: */
static char failure[512];

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    if (atomic_load(&init_called) && !failed) atomic_store(&forked, true);
    atomic_store(&ready, NULL);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static bool fail_for_good(const char *format, const char *a, const char *b)
{
    snprintf(failure, sizeof failure, format, a, b);
    failed = true;
    return false;
}

/* With the lock held. dlopen, the version, the entry points: all that needs no cuInit. */
static bool open_library(void)
{
    if (atomic_load(&opened)) return true;
    if (failed) return false;
    const char *named = tgl_environment_get()->libcuda, *file = named[0] ? named : "libcuda.so.1";
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return fail_for_good("no CUDA driver: %s%s", dlerror(),
                             named[0] ? " (TEGULA_LIBCUDA names this file)"
                                      : "; install NVIDIA's driver, or use CPU tensors");

    tgl_cu_result (*get_version)(int *), (*get)(const char *, void **, int, uint64_t, int *);
    *(void **)&get_version = dlsym(handle, "cuDriverGetVersion");
    *(void **)&get = dlsym(handle, "cuGetProcAddress_v2");
    int version = 0;
    if (get_version && get_version(&version)) version = 0;
    char text[32];
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    if (!get || version < API_VERSION)
        return fail_for_good("%s: this driver is of CUDA %s, want 12.0 or newer; update NVIDIA's driver", file,
                             version ? text : "(unknown version)");

    table.handle = handle;
    table.version = version;
    Dl_info info;
    snprintf(table.path, sizeof table.path, "%s",
             dladdr(*(void **)&get_version, &info) && info.dli_fname ? info.dli_fname : file);
#define FIND(name, parameters) \
    if (get("cu" #name, (void **)&table.name, API_VERSION, 0, NULL)) table.name = NULL;
#define NEED(name, parameters) \
    FIND(name, parameters)     \
    if (!table.name) return fail_for_good("%s: has no %s; update NVIDIA's driver", file, "cu" #name);
    TGL_DRIVER_NEEDED(NEED)
    TGL_DRIVER_MORE(FIND)
    if (get("cuKernelGetParamInfo", (void **)&table.KernelGetParamInfo, 12040, 0, NULL))
        table.KernelGetParamInfo = NULL;
    atomic_store(&opened, true);
    return true;
}

/* With the lock held, after open_library(). */
static bool init(void)
{
    atomic_store(&init_called, true); /* before: a child forked during cuInit cannot use it */
    const tgl_cu_result result = table.Init(0);
    if (!result) return true;
    const char *name = NULL, *what = "";
    table.GetErrorName(result, &name);
    if (result == TGL_CU_NO_DEVICE) what = ": no GPU is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES";
    else if (result == TGL_CU_NOT_INITIALIZED)
        what = ": this process was probably forked from one that used CUDA; start it with exec (Python: "
               "multiprocessing's spawn)";
    else table.GetErrorString(result, &what);
    char text[256];
    snprintf(text, sizeof text, "%s%s%s", name ? name : "unknown error", what[0] == ':' ? "" : ": ", what);
    return fail_for_good("cuInit: %s%s", text, "");
}

tgl_status tgl_driver(const tgl_driver_table **out)
{
    *out = atomic_load_explicit(&ready, memory_order_acquire);
    if (*out) return TGL_OK;
    if (atomic_load(&forked))
        return tgl_fail(TGL_ERR_DEVICE,
                        "CUDA was in use before this process was forked, and a forked process cannot use "
                        "it; start processes with exec (Python: multiprocessing's spawn)");
    const int cancelling = tgl_cancel_hold();
    pthread_mutex_lock(&lock);
    const bool ok = atomic_load(&ready) || (!failed && open_library() && init());
    if (ok) atomic_store_explicit(&ready, &table, memory_order_release);
    pthread_mutex_unlock(&lock);
    tgl_cancel_restore(cancelling);
    *out = ok ? &table : NULL;
    return ok ? TGL_OK : tgl_fail(TGL_ERR_DEVICE, "%s", failure); /* written once, under the lock */
}

int tgl_driver_version(void)
{
    if (!atomic_load(&opened)) {
        const int cancelling = tgl_cancel_hold();
        pthread_mutex_lock(&lock);
        open_library();
        pthread_mutex_unlock(&lock);
        tgl_cancel_restore(cancelling);
    }
    return atomic_load(&opened) ? table.version : 0;
}

bool tgl_driver_is_sticky(tgl_cu_result result)
{
    return result == 700 || result == 702 || result == 710 || (result >= 714 && result <= 719);
}

tgl_status tgl_driver_check(tgl_cu_result result, const char *call)
{
    if (!result) return TGL_OK;
    const char *name = NULL, *text = NULL;
    if (atomic_load(&opened)) {
        table.GetErrorName(result, &name);
        table.GetErrorString(result, &text);
    }
    return tgl_fail(result == TGL_CU_OUT_OF_MEMORY ? TGL_ERR_MEMORY : TGL_ERR_CUDA, "%s: %s (%s)%s", call,
                    name ? name : "unknown error", text ? text : "no description",
                    tgl_driver_is_sticky(result) ? "; an earlier kernel in this context failed" : "");
}
