/* SPDX-License-Identifier: MIT
 * kernels.c - the kernels that this process has loaded.
 *
 * Two levels. `code` is a CUlibrary, one per (kernel, macros, architecture), shared by devices of one
 * kind. tgl_loaded is what a launch needs on one device. Launches read a hash table of the latter without
 * a lock: slots are written once, and a full table is replaced by a larger one but not freed. */
#include "cuda/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cancel.h"
#include "core/log.h"
#include "cuda/jit.h"

typedef struct table {
    size_t num_slots;       /* a power of two, at least twice the entries */
    struct table *previous; /* may still be read */
    _Atomic(tgl_loaded *) slots[];
} table;

typedef enum { BUILDING, READY, FAILED } state;
typedef struct code {
    tgl_kernel kernel;
    char architecture[TGL_ARCHITECTURE_BYTES];
    tgl_cu_library library;
    tgl_cu_kernel handle;
    state state;
    bool may_compile;  /* may its builder compile? */
    tgl_status status; /* of a failure, for the threads that waited */
    char message[TGL_MESSAGE_BYTES];
    int num_waiting;
    struct code *next;
} code;

static _Atomic(table *) current;
static size_t num_loaded; /* the rest is under the lock */
static code *codes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t built = PTHREAD_COND_INITIALIZER;

/* A child forked after the driver was used never gets here: tgl_driver() fails. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&built, NULL);
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

/* ---- keys ---- */

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static uint64_t hash_of(const tgl_kernel *k, int device) /* on every launch: by words, not letters */
{
    uint64_t h = (uint64_t)device, word = 0;
    size_t n = strlen(k->name);
    const char *s = k->name;
    for (; n >= sizeof word; n -= sizeof word, s += sizeof word) {
        memcpy(&word, s, sizeof word);
        h = mix(h, word);
    }
    word = 0;
    memcpy(&word, s, n);
    h = mix(h, word);
    for (int i = 0; i < TGL_MAX_MACROS; i++)
        if (k->macros[i].name) h = mix(h, (uint64_t)k->macros[i].value ^ (uint64_t)i << 56);
    return h;
}

static bool is_same(const tgl_kernel *a, const tgl_kernel *b)
{
    if (strcmp(a->name, b->name)) return false;
    for (int i = 0; i < TGL_MAX_MACROS; i++) {
        const tgl_macro *x = &a->macros[i], *y = &b->macros[i];
        if (!x->name && !y->name) continue;
        if (!x->name || !y->name || x->value != y->value || strcmp(x->name, y->name)) return false;
    }
    return true;
}

static void free_kernel(tgl_kernel *k)
{
    free((char *)k->name);
    for (int i = 0; i < TGL_MAX_MACROS; i++) free((char *)k->macros[i].name);
}

static bool copy_kernel(tgl_kernel *to, const tgl_kernel *from)
{
    *to = (tgl_kernel){ .name = strdup(from->name) };
    bool ok = to->name != NULL;
    for (int i = 0; i < TGL_MAX_MACROS; i++) {
        if (!from->macros[i].name) continue;
        to->macros[i] = (tgl_macro){ strdup(from->macros[i].name), from->macros[i].value };
        ok &= to->macros[i].name != NULL;
    }
    if (!ok) free_kernel(to);
    return ok;
}

/* ---- the table that launches read ---- */

tgl_loaded *tgl_kernels_find(const tgl_kernel *kernel, int device)
{
    const table *t = atomic_load_explicit(&current, memory_order_acquire);
    if (!t) return NULL;
    const uint64_t hash = hash_of(kernel, device);
    for (size_t i = hash & (t->num_slots - 1);; i = (i + 1) & (t->num_slots - 1)) {
        tgl_loaded *e = atomic_load_explicit(&t->slots[i], memory_order_acquire);
        if (!e) return NULL;
        if (e->hash == hash && e->device == device && is_same(&e->kernel, kernel)) return e;
    }
}

static void put(table *t, tgl_loaded *e)
{
    size_t i = e->hash & (t->num_slots - 1);
    while (atomic_load_explicit(&t->slots[i], memory_order_relaxed)) i = (i + 1) & (t->num_slots - 1);
    atomic_store_explicit(&t->slots[i], e, memory_order_release);
}

static bool insert(tgl_loaded *e) /* with the lock held */
{
    table *t = atomic_load(&current);
    if (!t || 2 * (num_loaded + 1) > t->num_slots) {
        const size_t n = t ? 2 * t->num_slots : 256;
        table *bigger = calloc(1, sizeof *bigger + n * sizeof bigger->slots[0]);
        if (!bigger) return false;
        bigger->num_slots = n;
        bigger->previous = t;
        for (size_t i = 0; t && i < t->num_slots; i++)
            if (atomic_load(&t->slots[i])) put(bigger, atomic_load(&t->slots[i]));
        atomic_store_explicit(&current, bigger, memory_order_release);
        t = bigger;
    }
    put(t, e);
    num_loaded++;
    return true;
}

/* ---- loading ---- */

static tgl_status check(tgl_cu_result result, const tgl_kernel *kernel, const char *call)
{
    if (!result) return TGL_OK;
    char text[160];
    snprintf(text, sizeof text, "%.100s: %s", kernel->name, call);
    return tgl_driver_check(result, text);
}

/* The driver's error, followed by what was done about it. */
static tgl_status check_with(tgl_cu_result result, const code *c, const char *call, const char *more, const char *why)
{
    char text[TGL_MESSAGE_BYTES / 2];
    const tgl_status status = check(result, &c->kernel, call);
    snprintf(text, sizeof text, "%s", tgl_last_error());
    return tgl_fail(status, "%s; %s%s", text, more, why);
}

/* A driver that loads lazily reads the image only when the kernel is asked for (seen with 580.159 on an
 * H200). `call` is the call that failed. */
static tgl_cu_result load_image(const tgl_driver_table *cu, code *c, const tgl_image *image, const char **call)
{
    const char *slash = strrchr(c->kernel.name, '/');
    const int mode = tgl_capture_relax(cu);
    *call = "cuLibraryLoadData";
    tgl_cu_result result = cu->LibraryLoadData(&c->library, image->image, NULL, NULL, 0, NULL, NULL, 0);
    if (!result) {
        *call = "cuLibraryGetKernel";
        result = cu->LibraryGetKernel(&c->handle, c->library, slash ? slash + 1 : c->kernel.name);
        if (result) cu->LibraryUnload(c->library);
    }
    tgl_capture_restore(cu, mode);
    return result;
}

/* The driver rejected an image from the disk cache. The file may be good (a limit of the driver, an old
 * driver, a temporary fault), so it is kept until the kernel has been compiled again. */
static tgl_status rebuild(const tgl_driver_table *cu, code *c, tgl_cu_result refusal, const char *refused_call)
{
    tgl_image image;
    const char *call;
    tgl_log(TGL_LOG_INFO, "%s: the driver rejects the cached image (error %d); compiling it again", c->kernel.name,
            refusal);
    if (tgl_jit_rebuild(&c->kernel, c->architecture, true, &image) == TGL_OK) {
        const tgl_cu_result result = load_image(cu, c, &image, &call);
        tgl_image_free(&image);
        return check(result, &c->kernel, call);
    }
    char why[TGL_MESSAGE_BYTES / 2];
    snprintf(why, sizeof why, "%s", tgl_last_error());
    return check_with(refusal, c, refused_call, "the image is from the cache, and it cannot be compiled again: ", why);
}

static tgl_status build(const tgl_driver_table *cu, code *c)
{
    tgl_image image;
    const char *call;
    TGL_TRY(tgl_jit_image(&c->kernel, c->architecture, c->may_compile, &image));
    const tgl_cu_result result = load_image(cu, c, &image, &call);
    const bool was_compiled = image.compiled;
    tgl_image_free(&image);
    if (!result || was_compiled || result == TGL_CU_OUT_OF_MEMORY || tgl_driver_is_sticky(result))
        return check(result, &c->kernel, call);
    if (tgl_get_jit_mode() == TGL_JIT_NEVER)
        return check_with(result, c, call,
                          "the image is from the cache, and TEGULA_JIT=never forbids compiling "
                          "it again",
                          "");
    if (!c->may_compile)
        return check_with(result, c, call,
                          "the image is from the cache, and it cannot be compiled again during a "
                          "stream capture",
                          "");
    return rebuild(cu, c, result, call);
}

static void forget(code *c) /* with the lock held */
{
    for (code **at = &codes; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            return;
        }
}

static void free_code(code *c)
{
    free_kernel(&c->kernel);
    free(c);
}

/* With the lock held, which is released while waiting. `found` is the code if it is READY; NULL if there
 * is none, or if it failed for a reason that does not apply to this thread. Otherwise returns the failure. */
static tgl_status join(const tgl_kernel *kernel, const char *architecture, bool may_compile, code **found)
{
    *found = NULL;
    code *c = codes;
    while (c && (strcmp(c->architecture, architecture) || !is_same(&c->kernel, kernel))) c = c->next;
    if (!c) return TGL_OK;
    c->num_waiting++;
    while (c->state == BUILDING) pthread_cond_wait(&built, &lock);
    c->num_waiting--;
    if (c->state == READY) {
        *found = c;
        return TGL_OK;
    }
    tgl_status status = c->status;
    if (!c->may_compile && may_compile) status = TGL_OK; /* only the builder is capturing */
    else tgl_fail(status, "%s", c->message);
    if (c->num_waiting == 0) free_code(c);
    return status;
}

static tgl_status get_code(const tgl_driver_table *cu, const tgl_kernel *kernel, const char *architecture,
                           bool may_compile, code **out)
{
    pthread_mutex_lock(&lock);
    tgl_status status = join(kernel, architecture, may_compile, out);
    if (status != TGL_OK || *out) {
        pthread_mutex_unlock(&lock);
        return status;
    }
    code *c = calloc(1, sizeof *c);
    if (!c || !copy_kernel(&c->kernel, kernel)) {
        pthread_mutex_unlock(&lock);
        free(c);
        return tgl_fail(TGL_ERR_MEMORY, "%s: no memory to load it", kernel->name);
    }
    strcpy(c->architecture, architecture);
    c->may_compile = may_compile;
    c->next = codes;
    codes = c;
    pthread_mutex_unlock(&lock);

    status = build(cu, c);

    pthread_mutex_lock(&lock);
    if (status == TGL_OK) {
        c->state = READY;
        *out = c;
    } else {
        forget(c);
        c->state = FAILED;
        c->status = status;
        snprintf(c->message, sizeof c->message, "%s", tgl_last_error());
    }
    pthread_cond_broadcast(&built);
    if (status != TGL_OK && c->num_waiting == 0) free_code(c);
    pthread_mutex_unlock(&lock);
    return status;
}

static tgl_status code_for(const tgl_kernel *kernel, const tgl_device *d, bool may_compile, code **out)
{
    const tgl_driver_table *cu;
    TGL_TRY(tgl_driver(&cu));
    do TGL_TRY(get_code(cu, kernel, d->architecture, may_compile, out));
    while (!*out);
    return TGL_OK;
}

tgl_status tgl_kernels_build(const tgl_kernel *kernel, int device)
{
    const tgl_device *d;
    code *c;
    TGL_TRY(tgl_device_get(device, &d));
    const int cancelling = tgl_cancel_hold();
    const tgl_status status = code_for(kernel, d, true, &c);
    tgl_cancel_restore(cancelling);
    return status;
}

/* Sets the maximum of what launches may need, once. */
static tgl_status set_attributes(const tgl_driver_table *cu, const tgl_device *d, tgl_loaded *e)
{
    int shared = 0;
    TGL_TRY(check(cu->KernelGetAttribute(&shared, TGL_CU_KERNEL_STATIC_SHARED_BYTES, e->handle, d->handle), &e->kernel,
                  "cuKernelGetAttribute"));
    e->max_dynamic_shared = d->max_smem_per_block_optin - shared;
    TGL_TRY(check(cu->KernelSetAttribute(TGL_CU_KERNEL_MAX_DYNAMIC_SHARED_BYTES, (int)e->max_dynamic_shared, e->handle,
                                         d->handle),
                  &e->kernel, "cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)"));
    if (d->has_clusters) /* up to 16 blocks */
        TGL_TRY(check(cu->KernelSetAttribute(TGL_CU_KERNEL_NON_PORTABLE_CLUSTER, 1, e->handle, d->handle), &e->kernel,
                      "cuKernelSetAttribute(NON_PORTABLE_CLUSTER_SIZE_ALLOWED)"));
    e->has_clusters = d->has_clusters;
    e->has_pdl = d->major >= 9;
    size_t offset, bytes; /* NULL before CUDA 12.4 */
    if (cu->KernelGetParamInfo && !cu->KernelGetParamInfo(e->handle, 0, &offset, &bytes)) e->args_bytes = bytes;
    return TGL_OK;
}

tgl_status tgl_kernels_enter(tgl_loaded *loaded, tgl_cu_context context)
{
    const tgl_driver_table *cu;
    TGL_TRY(tgl_driver(&cu));
    const int mode = tgl_capture_relax(cu);
    tgl_cu_function function;
    const tgl_cu_result result = cu->KernelGetFunction(&function, loaded->handle);
    tgl_capture_restore(cu, mode);
    TGL_TRY(check(result, &loaded->kernel, "cuKernelGetFunction"));
    atomic_store_explicit(&loaded->context, context, memory_order_relaxed);
    return TGL_OK;
}

static tgl_status load(const tgl_kernel *kernel, int device, tgl_cu_context context, bool may_compile, tgl_loaded **out)
{
    const tgl_driver_table *cu;
    const tgl_device *d;
    code *c;
    TGL_TRY(tgl_driver(&cu));
    TGL_TRY(tgl_device_get(device, &d));
    TGL_TRY(code_for(kernel, d, may_compile, &c));

    tgl_loaded *e = calloc(1, sizeof *e);
    if (!e || !copy_kernel(&e->kernel, kernel)) {
        free(e);
        return tgl_fail(TGL_ERR_MEMORY, "%s: no memory to load it", kernel->name);
    }
    e->hash = hash_of(kernel, device);
    e->device = device;
    e->handle = c->handle;
    const int mode = tgl_capture_relax(cu); /* with lazy loading, reading an attribute may load */
    tgl_status status = set_attributes(cu, d, e);
    tgl_capture_restore(cu, mode);
    if (status == TGL_OK) status = tgl_kernels_enter(e, context);
    pthread_mutex_lock(&lock);
    *out = tgl_kernels_find(kernel, device); /* another thread may have been faster */
    const bool keep = status == TGL_OK && !*out;
    if (keep && !insert(e)) status = tgl_fail(TGL_ERR_MEMORY, "%s: no memory to load it", kernel->name);
    pthread_mutex_unlock(&lock);
    if (keep && status == TGL_OK) {
        *out = e;
        return TGL_OK;
    }
    free_kernel(&e->kernel);
    free(e);
    return status;
}

tgl_status tgl_kernels_load(const tgl_kernel *kernel, int device, tgl_cu_context context, bool may_compile,
                            tgl_loaded **out)
{
    const int cancelling = tgl_cancel_hold(); /* others may wait for it */
    const tgl_status status = load(kernel, device, context, may_compile, out);
    tgl_cancel_restore(cancelling);
    return status;
}
