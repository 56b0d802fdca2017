/* SPDX-License-Identifier: MIT
 * memory.c - device memory comes from the heap, in blocks of exact size, filled (fill.h). Under ASan it is poisoned
 * except while a kernel or copy of its device runs, so that host code, or another device's kernel, that follows a device
 * pointer is reported. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#include "fiber.h"
#include "fill.h"

static allocation *allocations;
static int num_allocations, capacity;
static size_t used[EMU_MAX_DEVICES];

static const allocation *find(deviceptr p, size_t past_end)
{
    for (int i = 0; i < num_allocations; i++) {
        const deviceptr begin = (deviceptr)allocations[i].p;
        if (p >= begin && p < begin + allocations[i].bytes + past_end) return &allocations[i];
    }
    return NULL;
}
const allocation *emu_find(deviceptr p) { return find(p, 0); }
const allocation *emu_find_with_end(deviceptr p)
{
    const allocation *a = find(p, 0);
    return a ? a : find(p, 1);
}
int emu_is_global(const void *p)
{
    static int last; /* most accesses are to the same allocation as the one before */
    const deviceptr q = (deviceptr)p;
    if (last < num_allocations) {
        const deviceptr begin = (deviceptr)allocations[last].p;
        if (q >= begin && q < begin + allocations[last].bytes) return 1;
    }
    const allocation *a = emu_find(q);
    if (a) last = (int)(a - allocations);
    return a != NULL;
}
void emu_open_memory(int device, int open)
{
    if (!emu_has_asan()) return;
    for (int i = 0; i < num_allocations; i++) {
        const allocation *a = &allocations[i];
        if (a->host || a->device != device) continue;
        if (open) emu_unpoison(a->p, a->bytes);
        else emu_poison(a->p, a->bytes);
    }
}

static int remember(allocation a)
{
    if (num_allocations == capacity) {
        allocation *more = realloc(allocations, (size_t)(capacity * 2 + 64) * sizeof *more);
        if (!more) return 0;
        allocations = more;
        capacity = capacity * 2 + 64;
    }
    allocations[num_allocations++] = a;
    return 1;
}
static void forget(const allocation *a) { allocations[a - allocations] = allocations[--num_allocations]; }

/* The caller's own memory becomes page-locked memory; 0 bytes: not any more. */
int emu_adopt(void *p, size_t bytes)
{
    const allocation *a = emu_find((deviceptr)p);
    if (bytes) return !a && remember((allocation){ p, bytes, 1, 0, 1 });
    if (!a || a->p != p || !a->is_adopted) return 0;
    forget(a);
    return 1;
}

static result take(void **out, size_t bytes, int host)
{
    const int device = emu_current()->device;
    const result unsafe = emu_unsafe();
    if (unsafe) return unsafe;
    if (!out || !bytes) return INVALID_VALUE;
    if (!host && bytes > emu_device_facts(device).memory - used[device]) return OUT_OF_MEMORY;
    void *p;
    if (posix_memalign(&p, 256, bytes)) return OUT_OF_MEMORY;
    if (!remember((allocation){ p, bytes, host, device, 0 })) {
        free(p);
        return OUT_OF_MEMORY;
    }
    emu_fill(p, bytes);
    if (!host) emu_poison(p, bytes);
    if (host) emu_alive.host_allocations++;
    else emu_alive.allocations++;
    if (!host) used[device] += bytes;
    *out = p;
    return SUCCESS;
}
static result give(void *p, int host)
{
    const result unsafe = emu_unsafe();
    if (unsafe) return unsafe;
    emu_drain(emu_current());
    if (!p) return SUCCESS;
    const allocation *a = emu_find((deviceptr)p);
    if (!a || a->p != p || a->host != host || a->is_adopted) return INVALID_VALUE;
    emu_unpoison(a->p, a->bytes);
    free(a->p);
    if (host) emu_alive.host_allocations--;
    else emu_alive.allocations--;
    if (!host) used[a->device] -= a->bytes;
    forget(a);
    return SUCCESS;
}
API result cuMemAlloc_v2(deviceptr *p, size_t bytes)
{
    ENTER();
    void *q = NULL;
    const result r = take(&q, bytes, 0);
    if (p) *p = (deviceptr)q;
    return p ? r : INVALID_VALUE;
}
API result cuMemFree_v2(deviceptr p)
{
    ENTER();
    return give((void *)p, 0);
}
API result cuMemAllocManaged(deviceptr *p, size_t bytes, unsigned flags)
{
    ENTER();
    return NOT_SUPPORTED;
}
API result cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    ENTER();
    return take(p, bytes, 1);
}
API result cuMemAllocHost_v2(void **p, size_t bytes)
{
    ENTER();
    return take(p, bytes, 1);
}
API result cuMemFreeHost(void *p)
{
    ENTER();
    return give(p, 1);
}
API result cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
    ENTER();
    const result unsafe = emu_unsafe();
    if (unsafe) return unsafe;
    if (!p || !bytes) return INVALID_VALUE;
    return emu_adopt(p, bytes) ? SUCCESS : HOST_MEMORY_ALREADY_REGISTERED;
}
API result cuMemHostUnregister(void *p)
{
    ENTER();
    const result unsafe = emu_unsafe();
    if (unsafe) return unsafe;
    emu_drain(emu_current());
    return emu_adopt(p, 0) ? SUCCESS : HOST_MEMORY_NOT_REGISTERED;
}
API result cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER();
    const int device = emu_current()->device;
    *total = emu_device_facts(device).memory;
    *free_bytes = *total - used[device];
    return SUCCESS;
}

/* ---- copies and fills ---- */
static int inside(const void *p, size_t bytes)
{
    const allocation *a = emu_find((deviceptr)p);
    return a && (deviceptr)p + bytes <= (deviceptr)a->p + a->bytes;
}
static int is_pinned(const void *p)
{
    const allocation *a = emu_find((deviceptr)p);
    return a && a->host;
}
/* Device memory is checked; the other side of a copy is the caller's. */
static result copy(void *to, const void *from, size_t bytes, int to_device, int from_device, stream *s, int now)
{
    if (!bytes) return SUCCESS;
    if ((to_device && !inside(to, bytes)) || (from_device && !inside(from, bytes))) return INVALID_VALUE;
    s = emu_stream(s);
    work *w = calloc(1, sizeof *w);
    if (!w) return OUT_OF_MEMORY;
    *w = (work){ .kind = WORK_COPY, .ctx = s->ctx, .to = to, .from = from, .bytes = bytes };
    /* a copy from or to pageable memory is done on return, except in a capture */
    const int pageable = (!to_device && !is_pinned(to)) || (!from_device && !is_pinned(from));
    const result r = emu_submit(s, w);
    if (r || s->capture) return r;
    return now || pageable ? emu_drain(s->ctx) : SUCCESS;
}
API result cuMemcpyHtoD_v2(deviceptr to, const void *from, size_t bytes)
{
    ENTER();
    const result r = emu_unsafe();
    return r ? r : copy((void *)to, from, bytes, 1, 0, NULL, 1);
}
API result cuMemcpyDtoH_v2(void *to, deviceptr from, size_t bytes)
{
    ENTER();
    const result r = emu_unsafe();
    return r ? r : copy(to, (void *)from, bytes, 0, 1, NULL, 1);
}
API result cuMemcpyDtoD_v2(deviceptr to, deviceptr from, size_t bytes)
{
    ENTER();
    const result r = emu_unsafe();
    return r ? r : copy((void *)to, (void *)from, bytes, 1, 1, NULL, 1);
}
API result cuMemcpyHtoDAsync_v2(deviceptr to, const void *from, size_t bytes, stream *s)
{
    ENTER();
    return copy((void *)to, from, bytes, 1, 0, s, 0);
}
API result cuMemcpyDtoHAsync_v2(void *to, deviceptr from, size_t bytes, stream *s)
{
    ENTER();
    return copy(to, (void *)from, bytes, 0, 1, s, 0);
}
API result cuMemcpyDtoDAsync_v2(deviceptr to, deviceptr from, size_t bytes, stream *s)
{
    ENTER();
    return copy((void *)to, (void *)from, bytes, 1, 1, s, 0);
}
/* From the device to the host, as that many copies. */
typedef struct {
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    deviceptr from_device;
    void *from_array;
    size_t from_pitch, to_x, to_y;
    int to_type;
    void *to_host;
    deviceptr to_device;
    void *to_array;
    size_t to_pitch, width, height;
} copy_2d;
API result cuMemcpy2DAsync_v2(const copy_2d *c, stream *s)
{
    ENTER();
    if (!c || c->from_type != 2 || c->to_type != 1) return NOT_SUPPORTED;
    if (c->from_x || c->from_y || c->to_x || c->to_y) return NOT_SUPPORTED;
    if (c->from_pitch < c->width || c->to_pitch < c->width) return INVALID_VALUE;
    if (c->from_pitch > INT32_MAX || c->to_pitch > INT32_MAX) return INVALID_VALUE;
    result r = SUCCESS;
    for (size_t i = 0; i < c->height && r == SUCCESS; i++)
        r = copy((char *)c->to_host + i * c->to_pitch, (char *)c->from_device + i * c->from_pitch, c->width, 0, 1, s,
                 0);
    return r;
}
static result fill(deviceptr p, uint32_t value, uint32_t width, size_t n, stream *s)
{
    if (!n) return SUCCESS;
    if (p % width || !inside((void *)p, n * width)) return INVALID_VALUE;
    s = emu_stream(s);
    work *w = calloc(1, sizeof *w);
    if (!w) return OUT_OF_MEMORY;
    *w = (work){ .kind = WORK_FILL, .ctx = s->ctx, .to = (void *)p, .bytes = n, .value = value, .width = width };
    return emu_submit(s, w);
}
API result cuMemsetD8_v2(deviceptr p, unsigned char v, size_t n)
{
    ENTER();
    return fill(p, v, 1, n, NULL);
}
API result cuMemsetD8Async(deviceptr p, unsigned char v, size_t n, stream *s)
{
    ENTER();
    return fill(p, v, 1, n, s);
}
API result cuMemsetD16_v2(deviceptr p, unsigned short v, size_t n)
{
    ENTER();
    return fill(p, v, 2, n, NULL);
}
API result cuMemsetD16Async(deviceptr p, unsigned short v, size_t n, stream *s)
{
    ENTER();
    return fill(p, v, 2, n, s);
}
API result cuMemsetD32_v2(deviceptr p, unsigned v, size_t n)
{
    ENTER();
    return fill(p, v, 4, n, NULL);
}
API result cuMemsetD32Async(deviceptr p, unsigned v, size_t n, stream *s)
{
    ENTER();
    return fill(p, v, 4, n, s);
}

/* ---- what a pointer is ---- */
enum {
    POINTER_CONTEXT = 1,
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE = 3,
    POINTER_HOST = 4,
    POINTER_MANAGED = 8,
    POINTER_ORDINAL = 9,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12
};
static result pointer_attribute(void *out, int what, const allocation *a, deviceptr p)
{
    switch (what) {
    case POINTER_MEMORY_TYPE: *(unsigned *)out = !a ? 0 : a->host ? 1 : 2; break;
    case POINTER_DEVICE: *(deviceptr *)out = a ? p : 0; break;
    case POINTER_HOST: *(void **)out = a && a->host ? (void *)p : NULL; break;
    case POINTER_MANAGED: *(unsigned char *)out = 0; break;
    case POINTER_ORDINAL: *(int *)out = a ? a->device : -2; break;
    case POINTER_RANGE_START: *(deviceptr *)out = a ? (deviceptr)a->p : 0; break;
    case POINTER_RANGE_SIZE: *(size_t *)out = a ? a->bytes : 0; break;
    default: return NOT_SUPPORTED;
    }
    return SUCCESS;
}
API result cuPointerGetAttribute(void *out, int what, deviceptr p)
{
    ENTER();
    const allocation *a = emu_find(p);
    return a ? pointer_attribute(out, what, a, p) : INVALID_VALUE;
}
API result cuPointerGetAttributes(unsigned n, const int *what, void **out, deviceptr p) /* of any pointer */
{
    ENTER();
    const allocation *a = emu_find(p);
    result r = SUCCESS;
    for (unsigned i = 0; i < n && r == SUCCESS; i++) r = pointer_attribute(out[i], what[i], a, p);
    return r;
}
