/* SPDX-License-Identifier: MIT
 * device.c - properties of devices, the context to use, and the public calls about both. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "core/cancel.h"
#include "cuda/driver.h"
#include "cuda/jit.h"

static struct {
    tgl_device facts;
    _Atomic(tgl_cu_context) primary; /* retained on first use, for the life of the process */
    atomic_bool has_architecture;
} devices[TGL_MAX_DEVICES];
static atomic_int num_devices = -1; /* -1: not read yet */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void) { pthread_mutex_init(&lock, NULL); } /* as in driver.c */
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static tgl_status read_device(const tgl_driver_table *cu, int i, tgl_device *d)
{
    size_t memory = 0;
    int smem_sm = 0, smem_block = 0, l2 = 0, clusters = 0, host_pages = 0;
    TGL_TRY(tgl_driver_check(cu->DeviceGet(&d->handle, i), "cuDeviceGet"));
    TGL_TRY(tgl_driver_check(cu->DeviceGetName(d->name, sizeof d->name, d->handle), "cuDeviceGetName"));
    TGL_TRY(tgl_driver_check(cu->DeviceTotalMem(&memory, d->handle), "cuDeviceTotalMem"));
    const struct {
        int attribute, *value;
    } rows[] = {
        { TGL_CU_DEVICE_MAJOR, &d->major },          { TGL_CU_DEVICE_MINOR, &d->minor },
        { TGL_CU_DEVICE_NUM_SMS, &d->num_sms },      { TGL_CU_DEVICE_L2_BYTES, &l2 },
        { TGL_CU_DEVICE_SMEM_PER_SM, &smem_sm },     { TGL_CU_DEVICE_SMEM_PER_BLOCK_OPTIN, &smem_block },
        { TGL_CU_DEVICE_CLUSTER_LAUNCH, &clusters }, { TGL_CU_DEVICE_USES_HOST_PAGE_TABLES, &host_pages },
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        TGL_TRY(tgl_driver_check(cu->DeviceGetAttribute(rows[k].value, rows[k].attribute, d->handle),
                                 "cuDeviceGetAttribute"));
    d->max_smem_per_sm = smem_sm;
    d->max_smem_per_block_optin = smem_block;
    d->total_memory = (int64_t)memory;
    d->l2_bytes = l2;
    d->has_clusters = clusters != 0;
    d->uses_host_page_tables = host_pages != 0;
    d->is_emulated = !strcmp(d->name, "Tegula emulated device");
    return TGL_OK;
}

static tgl_status read_devices(void)
{
    const tgl_driver_table *cu;
    TGL_TRY(tgl_driver(&cu));
    if (atomic_load_explicit(&num_devices, memory_order_acquire) >= 0) return TGL_OK;
    const int cancelling = tgl_cancel_hold();
    pthread_mutex_lock(&lock);
    int n = 0;
    tgl_status status = TGL_OK;
    if (atomic_load(&num_devices) < 0) {
        status = tgl_driver_check(cu->DeviceGetCount(&n), "cuDeviceGetCount");
        if (n > TGL_MAX_DEVICES) n = TGL_MAX_DEVICES;
        for (int i = 0; i < n && status == TGL_OK; i++) status = read_device(cu, i, &devices[i].facts);
        if (status == TGL_OK) atomic_store_explicit(&num_devices, n, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    tgl_cancel_restore(cancelling);
    return status;
}

tgl_status tgl_device_count(int *count)
{
    *count = 0;
    TGL_TRY(read_devices());
    *count = atomic_load(&num_devices);
    return TGL_OK;
}

static tgl_status find(int device)
{
    TGL_TRY(read_devices());
    const int n = atomic_load_explicit(&num_devices, memory_order_relaxed);
    if (device >= 0 && device < n) return TGL_OK;
    return tgl_fail(TGL_ERR_DEVICE, "cuda:%d: no such device, there %s %d", device, n == 1 ? "is" : "are", n);
}

/* Apart from the driver's facts, since it depends on what NVRTC knows. */
static tgl_status find_architecture(int device)
{
    if (atomic_load_explicit(&devices[device].has_architecture, memory_order_acquire)) return TGL_OK;
    tgl_device *d = &devices[device].facts;
    char name[sizeof d->architecture];
    TGL_TRY(tgl_jit_architecture(d->major, d->minor, name));
    pthread_mutex_lock(&lock);
    if (!atomic_load(&devices[device].has_architecture)) {
        memcpy(d->architecture, name, sizeof name);
        d->architecture_number = tgl_jit_architecture_number(name);
        atomic_store_explicit(&devices[device].has_architecture, true, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return TGL_OK;
}

tgl_status tgl_device_get(int device, const tgl_device **out)
{
    TGL_TRY(find(device));
    TGL_TRY(find_architecture(device));
    *out = &devices[device].facts;
    return TGL_OK;
}

/* ---- contexts ---- */

static tgl_status primary_context(const tgl_driver_table *cu, int device, tgl_cu_context *context)
{
    *context = atomic_load_explicit(&devices[device].primary, memory_order_acquire);
    if (*context) return TGL_OK;
    TGL_TRY(tgl_driver_check(cu->DevicePrimaryCtxRetain(context, devices[device].facts.handle),
                             "cuDevicePrimaryCtxRetain"));
    /* two threads may both get here: they retain the same context */
    atomic_store_explicit(&devices[device].primary, *context, memory_order_release);
    return TGL_OK;
}

/* NULL, CU_STREAM_LEGACY (1) and CU_STREAM_PER_THREAD (2) are streams of the current context. */
static bool names_no_context(tgl_stream stream) { return (uintptr_t)stream <= 2; }

static tgl_status push(const tgl_driver_table *cu, tgl_cu_context context, tgl_context_guard *guard)
{
    TGL_TRY(tgl_driver_check(cu->CtxPushCurrent(context), "cuCtxPushCurrent"));
    guard->context = context;
    guard->pushed = true;
    return TGL_OK;
}

/* Without a current context the driver may not even name the stream's; the query is then repeated with the primary
 * one. */
static tgl_status context_of_stream(const tgl_driver_table *cu, int device, tgl_stream stream, tgl_cu_context *context)
{
    tgl_cu_result result = cu->StreamGetCtx(stream, context);
    if (result == TGL_CU_INVALID_CONTEXT) {
        tgl_context_guard guard;
        tgl_cu_context primary;
        TGL_TRY(primary_context(cu, device, &primary));
        TGL_TRY(push(cu, primary, &guard));
        result = cu->StreamGetCtx(stream, context);
        tgl_context_leave(&guard);
    }
    return tgl_driver_check(result, "stream: cuStreamGetCtx");
}

tgl_status tgl_context_enter(int device, tgl_stream stream, tgl_context_guard *guard)
{
    const tgl_driver_table *cu;
    *guard = (tgl_context_guard){ 0 };
    TGL_TRY(tgl_driver(&cu));
    TGL_TRY(find(device));
    const tgl_cu_device want = devices[device].facts.handle;
    tgl_cu_device seen;
    if (!cu->CtxGetCurrent(&guard->context) && guard->context && !cu->CtxGetDevice(&seen) && seen == want)
        return TGL_OK;
    tgl_cu_context context;
    if (names_no_context(stream)) {
        TGL_TRY(primary_context(cu, device, &context));
        return push(cu, context, guard);
    }
    TGL_TRY(context_of_stream(cu, device, stream, &context));
    TGL_TRY(push(cu, context, guard));
    const tgl_cu_result result = cu->CtxGetDevice(&seen);
    if (!result && seen == want) return TGL_OK;
    tgl_context_leave(guard);
    TGL_TRY(tgl_driver_check(result, "cuCtxGetDevice"));
    return tgl_fail(TGL_ERR_ARGUMENT, "stream: belongs to another device, want one of cuda:%d, where the tensors are",
                    device);
}

void tgl_context_leave(tgl_context_guard *guard)
{
    const tgl_driver_table *cu;
    tgl_cu_context context;
    if (guard->pushed && tgl_driver(&cu) == TGL_OK) cu->CtxPopCurrent(&context);
    guard->pushed = false;
}

int tgl_capture_relax(const tgl_driver_table *cu)
{
    int mode = TGL_CU_CAPTURE_RELAXED;
    return cu->ThreadExchangeStreamCaptureMode(&mode) ? TGL_CU_CAPTURE_UNCHANGED : mode;
}

void tgl_capture_restore(const tgl_driver_table *cu, int mode)
{
    if (mode == TGL_CU_CAPTURE_UNCHANGED || !cu->ThreadExchangeStreamCaptureMode(&mode)) return;
    cu->ThreadExchangeStreamCaptureMode(&mode); /* retry: captures of this thread rely on the mode */
}

/* ---- public ---- */

int tgl_get_num_sms(int device)
{
    if (find(device) != TGL_OK) return 0;
    return tgl_settings_num_sms(device, devices[device].facts.num_sms);
}

tgl_status tgl_get_device_num_sms(int device, int *num_sms)
{
    if (!num_sms) return tgl_fail(TGL_ERR_ARGUMENT, "num_sms: is NULL, want a pointer to write the number to");
    TGL_TRY(find(device));
    *num_sms = devices[device].facts.num_sms;
    return TGL_OK;
}

tgl_status tgl_get_max_smem_per_sm(int device, int64_t *bytes)
{
    if (!bytes) return tgl_fail(TGL_ERR_ARGUMENT, "bytes: is NULL, want a pointer to write the number to");
    TGL_TRY(find(device));
    *bytes = devices[device].facts.max_smem_per_sm;
    return TGL_OK;
}

tgl_status tgl_address_on_device(const char *name, int device, tgl_stream stream, const void *host,
                                 tgl_cu_pointer *address)
{
    const tgl_driver_table *cu;
    tgl_context_guard guard;
    TGL_TRY(tgl_driver(&cu));
    TGL_TRY(tgl_context_enter(device, stream, &guard));
    const tgl_cu_pointer from = (tgl_cu_pointer)(uintptr_t)host;
    unsigned type = 0;
    *address = 0;
    tgl_cu_result result = cu->PointerGetAttribute(&type, TGL_CU_POINTER_MEMORY_TYPE, from);
    if (!result && type == TGL_CU_MEMORY_HOST)
        result = cu->PointerGetAttribute(address, TGL_CU_POINTER_ON_DEVICE, from);
    tgl_context_leave(&guard);
    if (result == TGL_CU_INVALID_VALUE) result = 0; /* memory that the driver does not know */
    if (!result && !*address && devices[device].facts.uses_host_page_tables) *address = from;
    TGL_TRY(tgl_driver_check(result, "cuPointerGetAttribute"));
    if (*address) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT,
                    "%s: memory is not page-locked, want page-locked (cuMemHostAlloc, cudaHostRegister, pin_memory)",
                    name);
}
