/* SPDX-License-Identifier: MIT
 * launch.c - launches, and prepare mode, where launches only load. */
#include "cuda/launch.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cancel.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/driver.h"
#include "cuda/jit.h"
#include "cuda/kernels.h"

static _Thread_local struct {
    int device;
    char architecture[TGL_ARCHITECTURE_BYTES]; /* "": for the device */
} preparing;                                   /* while tgl_preparing() */

/* Accepts only what devices look for: with "sm_90" instead of "sm_90a", nothing would find the cached
 * kernels. */
static tgl_status check_architecture(const char *architecture)
{
    const int number = tgl_jit_architecture_number(architecture);
    char wanted[2 * TGL_ARCHITECTURE_BYTES] = "one such as sm_90a", known[TGL_KNOWN_BYTES];
    if (number >= 80) {
        tgl_jit_architecture_given(number / 10, number % 10, NULL, 0, wanted);
        if (!strncmp(architecture, "compute_", 8)) snprintf(wanted, sizeof wanted, "compute_%d", number);
        if (!strcmp(architecture, wanted)) return TGL_OK; /* which a cache may have, even if NVRTC does not know it */
        if (tgl_jit_is_unknown(number, known))
            return tgl_fail(TGL_ERR_ARGUMENT, "architecture: is \"%.32s\", want one that %s", architecture, known);
    }
    return tgl_fail(TGL_ERR_ARGUMENT, "architecture: is \"%.32s\", want %s", architecture, wanted);
}

tgl_status tgl_prepare_begin(int device, const char *architecture)
{
    if (tgl_preparing())
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "tgl_prepare_begin: this thread is preparing already; call tgl_prepare_end first");
    if (architecture) {
        TGL_TRY(check_architecture(architecture));
    } else {
        const tgl_device *d;
        TGL_TRY(tgl_device_get(device, &d));
    }
    tgl_set_preparing(true);
    preparing.device = device;
    strcpy(preparing.architecture, architecture ? architecture : "");
    return TGL_OK;
}

tgl_status tgl_prepare_end(void)
{
    if (!tgl_preparing())
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "tgl_prepare_end: this thread is not preparing; call tgl_prepare_begin before");
    tgl_set_preparing(false);
    return TGL_OK;
}

/* ---- all kernels of a plan ---- */

/* One kernel to build, and what came of it. */
typedef struct {
    const tgl_kernel *kernel;
    tgl_status status;
    char message[TGL_MESSAGE_BYTES];
    tgl_compile_report report;
} piece;

typedef struct {
    piece *pieces;
    int num_pieces, device;
    const char *architecture; /* "": for the device */
    atomic_int first_failed;  /* the lowest that is known; num_pieces: none */
} building;

static tgl_status build_image(const tgl_kernel *kernel, const char *architecture)
{
    tgl_image image;
    const tgl_status status = tgl_jit_image(kernel, architecture, true, &image);
    tgl_image_free(&image);
    return status;
}

static void build_piece(void *context, int i)
{
    building *b = context;
    piece *p = &b->pieces[i];
    if (i > atomic_load(&b->first_failed)) return;
    tgl_jit_keep_report(&p->report);
    p->status = b->architecture[0] ? build_image(p->kernel, b->architecture) : tgl_kernels_build(p->kernel, b->device);
    tgl_jit_keep_report(NULL);
    if (p->status == TGL_OK) return;
    snprintf(p->message, sizeof p->message, "%s", tgl_last_error());
    for (int first = atomic_load(&b->first_failed); i < first;)
        if (atomic_compare_exchange_weak(&b->first_failed, &first, i)) break;
}

/* Builds them at the same time: NVRTC takes 50 to 200 ms for one. Only pieces after one that failed are left out, so the
 * failure does not depend on the threads. */
static tgl_status build_pieces(building *b)
{
    atomic_init(&b->first_failed, b->num_pieces);
    tgl_parallel_each(b->num_pieces, build_piece, b);
    for (int i = 0; i < b->num_pieces; i++) tgl_jit_deliver(&b->pieces[i].report);
    for (int i = 0; i < b->num_pieces; i++)
        if (b->pieces[i].status != TGL_OK) return tgl_fail(b->pieces[i].status, "%s", b->pieces[i].message);
    return TGL_OK;
}

/* Builds what is not loaded on `device`, or all for an architecture, beginning with kernel `first`. */
static tgl_status build_plan(const tgl_kernel *plan, int num_kernels, int first, int device, const char *architecture)
{
    const int cancelling = tgl_cancel_hold();
    building b = { .device = device,
                   .architecture = architecture,
                   .pieces = calloc((size_t)num_kernels + 1, sizeof *b.pieces) }; /* + 1: NULL means no memory */
    tgl_status status = b.pieces ? TGL_OK : tgl_fail(TGL_ERR_MEMORY, "no memory to load %d kernels", num_kernels);
    for (int i = 0; i < num_kernels && b.pieces; i++) {
        const tgl_kernel *k = &plan[(first + i) % num_kernels];
        if (k->name && (architecture[0] || !tgl_kernels_find(k, device))) b.pieces[b.num_pieces++].kernel = k;
    }
    if (status == TGL_OK) status = build_pieces(&b);
    free(b.pieces);
    tgl_cancel_restore(cancelling);
    return status;
}

static tgl_status load_plan(const tgl_kernel *plan, int num_kernels, int first, int device, tgl_cu_context context)
{
    TGL_TRY(build_plan(plan, num_kernels, first, device, ""));
    for (int i = 0; i < num_kernels; i++) {
        if (!plan[i].name) continue;
        tgl_loaded *loaded = tgl_kernels_find(&plan[i], device);
        if (!loaded) TGL_TRY(tgl_kernels_load(&plan[i], device, context, true, &loaded));
        else if (atomic_load_explicit(&loaded->context, memory_order_relaxed) != context)
            TGL_TRY(tgl_kernels_enter(loaded, context));
    }
    return TGL_OK;
}

static tgl_status prepare(const tgl_kernel *plan, int num_kernels)
{
    if (preparing.architecture[0]) return build_plan(plan, num_kernels, 0, 0, preparing.architecture);
    tgl_context_guard guard;
    TGL_TRY(tgl_context_enter(preparing.device, NULL, &guard));
    const tgl_status status = load_plan(plan, num_kernels, 0, preparing.device, guard.context);
    tgl_context_leave(&guard);
    return status;
}

/* The largest GPU of each architecture, from NVIDIA's programming guide: plans need a target even without
 * a device. */
static tgl_target target_of_architecture(int number)
{
    static const tgl_target known[] = {
        { 108, 80, 163 << 10 }, { 84, 86, 99 << 10 },    { 16, 87, 163 << 10 },   { 142, 89, 99 << 10 },
        { 132, 90, 227 << 10 }, { 148, 100, 227 << 10 }, { 148, 103, 227 << 10 }, { 20, 110, 227 << 10 },
        { 188, 120, 99 << 10 }, { 48, 121, 99 << 10 },
    };
    tgl_target t = known[0];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].architecture <= number) t = known[i];
    t.architecture = number;
    return t;
}

tgl_status tgl_target_of(const DLTensor *on, tgl_target *target)
{
    if (tgl_preparing() && preparing.architecture[0]) {
        *target = target_of_architecture(tgl_jit_architecture_number(preparing.architecture));
        return TGL_OK;
    }
    const int device = tgl_preparing() ? preparing.device : on->device.device_id;
    const tgl_device *d;
    TGL_TRY(tgl_device_get(device, &d));
    *target =
        (tgl_target){ tgl_settings_num_sms(device, d->num_sms), d->architecture_number, d->max_smem_per_block_optin };
    return TGL_OK;
}

/* During a capture nothing may be compiled. */
static tgl_status may_compile(const tgl_driver_table *cu, tgl_stream stream, bool *may)
{
    int capture = TGL_CU_CAPTURE_NONE;
    const tgl_cu_result result = cu->StreamIsCapturing(stream, &capture);
    if (result == TGL_CU_STREAM_CAPTURE_IMPLICIT)
        capture = TGL_CU_CAPTURE_ACTIVE; /* the default stream, beside a capture */
    else TGL_TRY(tgl_driver_check(result, "stream: cuStreamIsCapturing"));
    *may = capture == TGL_CU_CAPTURE_NONE;
    return TGL_OK;
}

/* Plans may share a kernel, so that one kernel is loaded does not mean that the rest of a plan is.
 * Computed on every launch: it hashes the addresses of names; a name with two addresses only costs a
 * second look-up. */
static uint64_t plan_hash(const tgl_kernel *plan, int num_kernels)
{
    uint64_t h = (uint64_t)num_kernels;
    for (int i = 0; i < num_kernels; i++) {
        if (!plan[i].name) continue;
        const tgl_macro *m = plan[i].macros;
        uint64_t k = (uintptr_t)plan[i].name; /* a chain of its own, in parallel with the others */
        for (const tgl_macro *end = m + TGL_MAX_MACROS; m < end; m++)
            if (m->name) k = k * 0x2545f4914f6cdd1du + (uint64_t)m->value;
        h = (h ^ k ^ k >> 32) * 0x9e3779b97f4a7c15u;
    }
    return h | 1; /* 0 means none */
}

static bool is_complete(tgl_loaded *loaded, const tgl_kernel *plan, int num_kernels)
{
    if (num_kernels == 1) return true;
    const uint64_t hash = plan_hash(plan, num_kernels);
    for (int i = 0; i < TGL_KNOWN_PLANS; i++)
        if (atomic_load_explicit(&loaded->plans[i], memory_order_relaxed) == hash) return true;
    return false;
}

/* If there is no room, one plan is replaced, and will be looked up again. */
static void note_complete(tgl_loaded *loaded, const tgl_kernel *plan, int num_kernels)
{
    const uint64_t hash = plan_hash(plan, num_kernels);
    int place = 0;
    while (place < TGL_KNOWN_PLANS && atomic_load_explicit(&loaded->plans[place], memory_order_relaxed)) place++;
    if (place == TGL_KNOWN_PLANS) place = (int)((hash >> 32) % TGL_KNOWN_PLANS);
    atomic_store_explicit(&loaded->plans[place], hash, memory_order_relaxed);
}

/* The first launch of a configuration on this device. During a capture only what the launch needs is
 * loaded. */
static tgl_status load(const tgl_driver_table *cu, const tgl_kernel *plan, int num_kernels, int which, int device,
                       tgl_stream stream, tgl_cu_context context, tgl_loaded **loaded)
{
    bool may;
    TGL_TRY(may_compile(cu, stream, &may));
    if (!may) return *loaded ? TGL_OK : tgl_kernels_load(&plan[which], device, context, false, loaded);
    TGL_TRY(load_plan(plan, num_kernels, which, device, context));
    *loaded = tgl_kernels_find(&plan[which], device);
    note_complete(*loaded, plan, num_kernels);
    return TGL_OK;
}

tgl_status tgl_load(const tgl_kernel *plan, int num_kernels, const DLTensor *on, tgl_stream stream)
{
    if (tgl_preparing()) return prepare(plan, num_kernels);
    const int device = on->device.device_id;
    while (num_kernels > 0 && !plan->name) plan++, num_kernels--;
    if (num_kernels == 0) return TGL_OK;
    tgl_loaded *first = tgl_kernels_find(&plan[0], device);
    if (first && is_complete(first, plan, num_kernels)) return TGL_OK;
    const tgl_driver_table *cu;
    tgl_context_guard guard;
    TGL_TRY(tgl_driver(&cu));
    TGL_TRY(tgl_context_enter(device, stream, &guard));
    bool may;
    tgl_status status = may_compile(cu, stream, &may);
    if (status == TGL_OK && may) status = load(cu, plan, num_kernels, 0, device, stream, guard.context, &first);
    tgl_context_leave(&guard);
    return status;
}

int64_t tgl_max_grid_x = INT32_MAX;

tgl_shape tgl_shape_of_blocks(int64_t blocks, int threads)
{
    const int64_t y = tgl_ceil_div(blocks, tgl_max_grid_x);
    return (tgl_shape){ { y > 1 ? tgl_ceil_div(blocks, y) : blocks, y }, .block = threads };
}

static tgl_status check_shape(const tgl_kernel *kernel, const tgl_shape *s)
{
    const bool ok = s->grid[0] >= 0 && s->grid[0] <= INT32_MAX && s->grid[1] >= 0 && s->grid[1] <= 65535 &&
                    s->grid[2] >= 0 && s->grid[2] <= 65535 && s->block >= 1 && s->block <= 1024 &&
                    s->shared_bytes >= 0 && s->cluster >= 0;
    if (ok) return TGL_OK;
    return tgl_fail(TGL_ERR_INTERNAL,
                    "%s: launch shape is grid [%lld, %lld, %lld], block %d, %lld shared bytes, cluster %d, want "
                    "at most [2147483647, 65535, 65535] and 1024; please report this",
                    kernel->name, (long long)s->grid[0], (long long)s->grid[1], (long long)s->grid[2], s->block,
                    (long long)s->shared_bytes, s->cluster);
}

/* How many clusters of `size` blocks fit at once; unknown: INT32_MAX. Queried for the stream, whose green context may have a
 * part of the SMs. Remembered by context, stream and shape; if there is no place left, one is replaced, and queried
 * again. A new stream may have the handle of one that was destroyed, in another green context: to tell them apart takes a call
 * for each launch, and what is remembered decides only time, or that a launch is refused which then another one replaces. */
static int64_t fitting_clusters(const tgl_driver_table *cu, tgl_loaded *loaded, tgl_cu_context context,
                                tgl_stream stream, int threads, int64_t shared_bytes, int size)
{
    const uint64_t shape = (uint64_t)size << 48 ^ (uint64_t)threads << 32 ^ (uint64_t)shared_bytes;
    const uint64_t where = (uint64_t)(uintptr_t)context * 31 + (uint64_t)(uintptr_t)stream;
    const uint64_t hash = (where ^ shape) * 0x9e3779b97f4a7c15u, key = hash & ~(uint64_t)0xffff;
    int place = (int)(hash >> 32) & (TGL_KNOWN_FITTING - 1);
    for (int i = 0; i < TGL_KNOWN_FITTING; i++) {
        const uint64_t known = atomic_load_explicit(&loaded->fitting[i], memory_order_relaxed);
        if (known && (known & ~(uint64_t)0xffff) == key) return (int64_t)(known & 0xffff) - 1;
        if (!known) {
            place = i;
            break;
        }
    }
    tgl_cu_launch_attribute cluster = { .id = TGL_CU_LAUNCH_CLUSTER, .value.dim = { (uint32_t)size, 1, 1 } };
    const tgl_cu_launch_config config = { (uint32_t)size, 1,        1, (uint32_t)threads, 1, 1, (uint32_t)shared_bytes,
                                          stream,         &cluster, 1 };
    int clusters = 0;
    const int mode = tgl_capture_relax(cu);
    const tgl_cu_result result = cu->OccupancyMaxActiveClusters(&clusters, (tgl_cu_function)loaded->handle, &config);
    tgl_capture_restore(cu, mode);
    if (result == TGL_CU_INVALID_CLUSTER_SIZE) clusters = 0;
    else if (result || clusters < 0) return INT32_MAX;
    clusters = clusters < 0xfffe ? clusters : 0xfffe;
    atomic_store_explicit(&loaded->fitting[place], key | (uint64_t)(clusters + 1), memory_order_relaxed);
    return clusters;
}

/* Do a cluster, or all blocks of a cooperative launch, fit at once? Queried before the launch, because a failed launch
 * invalidates a capture. Few shapes are remembered, so the query is for blocks of the largest size, and for the actual size
 * only if those do not fit. */
static bool fits_at_once(const tgl_driver_table *cu, tgl_loaded *loaded, tgl_cu_context context, tgl_stream stream,
                         const tgl_shape *s)
{
    const int64_t blocks = s->grid[0] * tgl_max(1, s->grid[1]) * tgl_max(1, s->grid[2]);
    const int64_t wanted = s->cooperative ? tgl_ceil_div(blocks, tgl_max(1, s->cluster)) : 1;
    const int size = s->cluster > 1 ? s->cluster : 1;
    return !loaded->has_clusters ||
           wanted <= fitting_clusters(cu, loaded, context, stream, s->block, loaded->max_dynamic_shared, size) ||
           wanted <= fitting_clusters(cu, loaded, context, stream, s->block, s->shared_bytes, size);
}

static tgl_status encode(const tgl_driver_table *cu, const tgl_loaded *loaded, const tgl_copied_tensor *t)
{
    enum { BF16 = 9, SWIZZLE_128 = 3, PROMOTE_128 = 2 };
    static const uint32_t every[5] = { 1, 1, 1, 1, 1 };
    const tgl_cu_result result =
        cu->TensorMapEncodeTiled(t->map, BF16, (uint32_t)t->rank, (void *)(uintptr_t)t->data, t->sizes, t->strides,
                                 t->box, every, 0, SWIZZLE_128, PROMOTE_128, 0);
    if (!result) return TGL_OK;
    char call[160];
    snprintf(call, sizeof call, "%.100s: cuTensorMapEncodeTiled", loaded->kernel.name);
    return tgl_driver_check(result, call);
}

static tgl_status failed_launch(const tgl_loaded *loaded, tgl_cu_result result)
{
    char call[160];
    snprintf(call, sizeof call, "%.100s: cuLaunchKernelEx", loaded->kernel.name);
    return tgl_driver_check(result, call);
}

/* is_refused: a cluster or all blocks were to be resident at once, and the context has fewer SMs than the device. Nothing has
 * run. */
static tgl_status enqueue(const tgl_driver_table *cu, tgl_loaded *loaded, tgl_cu_context context, const tgl_shape *s,
                          tgl_stream stream, bool *is_refused)
{
    if (s->shared_bytes > loaded->max_dynamic_shared || (s->cluster && !loaded->has_clusters))
        return tgl_fail(TGL_ERR_INTERNAL,
                        "%s: wants %lld bytes of shared memory and clusters of %d, cuda:%d has %lld bytes and %s; "
                        "please report this",
                        loaded->kernel.name, (long long)s->shared_bytes, s->cluster, loaded->device,
                        (long long)loaded->max_dynamic_shared, loaded->has_clusters ? "clusters" : "no clusters");
    if (loaded->args_bytes && loaded->args_bytes != s->args_bytes)
        return tgl_fail(TGL_ERR_INTERNAL, "%s: takes %zu bytes of arguments, gets %zu; please report this",
                        loaded->kernel.name, loaded->args_bytes, s->args_bytes);
    if (s->copied) TGL_TRY(encode(cu, loaded, s->copied));
    int64_t blocks = s->grid[0];
    if (s->is_cut)
        blocks = tgl_min(blocks, s->cluster * fitting_clusters(cu, loaded, context, stream, s->block, s->shared_bytes,
                                                               s->cluster));
    *is_refused = blocks == 0 ||
                  ((s->cooperative || (s->cluster > 1 && !s->is_cut)) && !fits_at_once(cu, loaded, context, stream, s));
    if (*is_refused)
        return failed_launch(loaded,
                             s->cluster > 1 ? TGL_CU_INVALID_CLUSTER_SIZE : TGL_CU_COOPERATIVE_LAUNCH_TOO_LARGE);
    void *args[] = { (void *)s->args };
    tgl_cu_launch_attribute attributes[3];
    uint32_t n = 0;
    if (s->cluster) { /* also of one block: st.async is illegal outside a cluster */
        attributes[n].id = TGL_CU_LAUNCH_CLUSTER;
        attributes[n].value.dim.x = (uint32_t)s->cluster;
        attributes[n].value.dim.y = attributes[n].value.dim.z = 1;
        n++;
    }
    if (s->cooperative) {
        attributes[n].id = TGL_CU_LAUNCH_COOPERATIVE;
        attributes[n++].value.value = 1;
    }
    if (loaded->has_pdl && tgl_get_pdl()) {
        attributes[n].id = TGL_CU_LAUNCH_PROGRAMMATIC;
        attributes[n++].value.value = 1;
    }
    const tgl_cu_launch_config config = { (uint32_t)blocks,
                                          s->grid[1] ? (uint32_t)s->grid[1] : 1,
                                          s->grid[2] ? (uint32_t)s->grid[2] : 1,
                                          (uint32_t)s->block,
                                          1,
                                          1,
                                          (uint32_t)s->shared_bytes,
                                          stream,
                                          attributes,
                                          n };
    const tgl_cu_result result = cu->LaunchKernelEx(&config, (tgl_cu_function)loaded->handle, args, NULL);
    *is_refused = result == TGL_CU_COOPERATIVE_LAUNCH_TOO_LARGE || result == TGL_CU_INVALID_CLUSTER_SIZE;
    return result ? failed_launch(loaded, result) : TGL_OK;
}

int64_t tgl_strided_grid(int64_t blocks, int64_t max) { return tgl_min(blocks, max); }

tgl_status tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on, const tgl_shape *shape,
                      tgl_stream stream)
{
    if (tgl_preparing()) return prepare(plan, num_kernels);
    const tgl_kernel *kernel = &plan[which];
    TGL_TRY(check_shape(kernel, shape));
    if (shape->grid[0] == 0) return TGL_OK;
    const int device = on->device.device_id;
    const tgl_driver_table *cu;
    tgl_context_guard guard;
    TGL_TRY(tgl_driver(&cu));
    TGL_TRY(tgl_context_enter(device, stream, &guard));
    tgl_status status = TGL_OK;
    tgl_loaded *loaded = tgl_kernels_find(kernel, device);
    if (!loaded || !is_complete(loaded, plan, num_kernels))
        status = load(cu, plan, num_kernels, which, device, stream, guard.context, &loaded);
    if (status == TGL_OK && atomic_load_explicit(&loaded->context, memory_order_relaxed) != guard.context)
        status = tgl_kernels_enter(loaded, guard.context);
    const tgl_other_launch *other = shape->otherwise;
    bool is_refused = status == TGL_OK && other &&
                      ((shape->cluster > 1 && !loaded->has_clusters) || (shape->copied && !cu->TensorMapEncodeTiled));
    if (status == TGL_OK && !is_refused) status = enqueue(cu, loaded, guard.context, shape, stream, &is_refused);
    tgl_context_leave(&guard);
    if (is_refused && other) {
        tgl_shape next = *other->shape;
        next.is_refused = shape->is_refused;
        return tgl_launch(plan, num_kernels, other->which, on, &next, stream);
    }
    if (shape->is_refused) *shape->is_refused = is_refused;
    return status;
}
