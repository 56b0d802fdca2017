/* SPDX-License-Identifier: MIT
 * launch.c - launches, checked as the driver does, and tensor maps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "library.h"

typedef struct { /* CUlaunchAttribute */
    uint32_t id;
    char pad[4];
    union {
        char bytes[64];
        int32_t value;
        emu_dim dim;
    } value;
} attribute;
enum { ATTRIBUTE_COOPERATIVE = 2, ATTRIBUTE_CLUSTER = 4, ATTRIBUTE_PDL = 6 };
typedef struct { /* CUlaunchConfig */
    uint32_t grid[3], block[3], dynamic_bytes;
    stream *stream;
    const attribute *attributes;
    uint32_t num_attributes;
} launch_config;

static emu_last_launch last;
static int any_launch;

static result check_launch(const kernel *k, const emu_launch *l, int device)
{
    const uint64_t blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z,
                   threads = (uint64_t)l->block.x * l->block.y * l->block.z;
    const uint64_t cluster = (uint64_t)l->cluster.x * l->cluster.y * l->cluster.z;
    const int arch = emu_config.arch[device];
    if (!blocks || !threads || threads > 1024 || l->block.z > 64) return INVALID_VALUE;
    if (l->grid.x > 0x7fffffff || l->grid.y > 65535 || l->grid.z > 65535) return INVALID_VALUE;
    if (emu_kernel_fits(k, device)) return NO_BINARY_FOR_GPU;
    if (threads > k->entry->max_threads) return LAUNCH_OUT_OF_RESOURCES;
    if (l->dynamic_bytes > k->max_dynamic[device]) return INVALID_VALUE;
    if ((l->pdl || l->has_cluster) && arch < 90) return NOT_SUPPORTED;
    if (!cluster || cluster > (k->non_portable_cluster[device] ? 16 : 8)) return INVALID_CLUSTER_SIZE;
    if (cluster > (uint64_t)emu_config.cluster) return INVALID_CLUSTER_SIZE;
    /* along x only */
    if (l->cluster.y != 1 || l->cluster.z != 1 || l->grid.x % l->cluster.x) return INVALID_CLUSTER_SIZE;
    const int fit = emu_blocks_per_sm(k, device, (int)threads, l->dynamic_bytes);
    if (!fit) return LAUNCH_OUT_OF_RESOURCES;
    if (l->cooperative && blocks > (uint64_t)fit * (unsigned)emu_config.sms) return COOPERATIVE_LAUNCH_TOO_LARGE;
    return SUCCESS;
}

/* A pointer must lie in memory of this device or in pinned host memory, or be null. Pointers in structs are
 * ASan's affair. */
static const char *wrong_pointer(deviceptr p, int device, char *text, size_t n)
{
    const allocation *a = emu_find_with_end(p);
    if (!p || (a && (a->host || a->device == device))) return NULL;
    if (a) snprintf(text, n, "(%p) is memory of device %d, the launch is on device %d", (void *)p, a->device, device);
    else snprintf(text, n, "(%p) is not device memory", (void *)p);
    return text;
}

static result launch(const launch_config *c, kernel *k, void **params, void **extra)
{
    if (!c || extra) return INVALID_VALUE;
    if (!k) return INVALID_HANDLE;
    stream *s = emu_stream(c->stream);
    context *ctx = s->ctx;
    if (ctx != emu_current()) return INVALID_HANDLE; /* a stream of another context */
    const emu_entry *e = k->entry;
    emu_launch l = {
        .entry = e,
        .grid = { c->grid[0], c->grid[1], c->grid[2] },
        .block = { c->block[0], c->block[1], c->block[2] },
        .cluster = { 1, 1, 1 },
        .dynamic_bytes = c->dynamic_bytes,
        .device = ctx->device,
    };
    for (uint32_t i = 0; i < c->num_attributes; i++) {
        const attribute *a = &c->attributes[i];
        if (a->id == ATTRIBUTE_COOPERATIVE) l.cooperative = a->value.value;
        if (a->id == ATTRIBUTE_CLUSTER) l.cluster = a->value.dim, l.has_cluster = 1;
        if (a->id == ATTRIBUTE_PDL) l.pdl = a->value.value;
    }
    const result r = check_launch(k, &l, ctx->device);
    if (r) return r;

    size_t bytes = 0;
    for (emu_u32 i = 0; i < e->num_params; i++) bytes += (e->param_bytes[i] + 63u) & ~63u;
    work *w = calloc(1, sizeof *w);
    if (!w) return OUT_OF_MEMORY;
    w->kind = WORK_LAUNCH;
    w->ctx = ctx;
    w->launch = l;
    w->launch.args = calloc(e->num_params + 1, sizeof(void *));
    w->params = aligned_alloc(64, bytes + 64);
    if (!w->launch.args || !w->params) {
        emu_free_work(w);
        return OUT_OF_MEMORY;
    }
    char *p = w->params;
    for (emu_u32 i = 0; i < e->num_params; i++) { /* the driver copies parameters at the launch */
        memcpy(p, params[i], e->param_bytes[i]);
        w->launch.args[i] = p;
        if (e->param_is_pointer[i]) {
            deviceptr value;
            char text[160];
            memcpy(&value, p, sizeof value);
            if (wrong_pointer(value, ctx->device, text, sizeof text)) {
                emu_report_text("fault", e->name, "parameter %u %s", i, text);
                emu_free_work(w);
                ctx->sticky = ILLEGAL_ADDRESS;
                return SUCCESS; /* as on a device, it shows at the next synchronisation */
            }
        }
        p += (e->param_bytes[i] + 63u) & ~63u;
    }
    any_launch = 1;
    last = (emu_last_launch){
        .grid = { l.grid.x, l.grid.y, l.grid.z },
        .block = { l.block.x, l.block.y, l.block.z },
        .cluster = { l.cluster.x, l.cluster.y, l.cluster.z },
        .dynamic_bytes = c->dynamic_bytes,
        .cooperative = l.cooperative,
        .pdl = l.pdl,
        .device = ctx->device,
    };
    snprintf(last.kernel, sizeof last.kernel, "%s", e->name);
    return emu_submit(s, w);
}
API result cuLaunchKernelEx(const launch_config *c, kernel *k, void **params, void **extra)
{
    ENTER();
    return launch(c, k, params, extra);
}
API result cuLaunchKernel(kernel *k, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, stream *s, void **params, void **extra)
{
    ENTER();
    const launch_config c = { { gx, gy, gz }, { bx, by, bz }, shared, s, NULL, 0 };
    return launch(&c, k, params, extra);
}

API result cuOccupancyMaxActiveClusters(int *n, kernel *k, const launch_config *c)
{
    ENTER();
    if (!n || !k || !c || c->num_attributes != 1 || c->attributes->id != ATTRIBUTE_CLUSTER) return INVALID_VALUE;
    const int device = emu_current()->device, threads = (int)(c->block[0] * c->block[1] * c->block[2]);
    const uint32_t size = c->attributes->value.dim.x;
    if (!size || size > (k->non_portable_cluster[device] ? 16 : 8)) return INVALID_CLUSTER_SIZE;
    const int blocks = emu_blocks_per_sm(k, device, threads, c->dynamic_bytes) * emu_config.sms;
    *n = blocks / (int)size;
    if (!*n && blocks) *n = 1; /* as for launches, SMs do not matter */
    if (size > (uint32_t)emu_config.cluster) *n = 0;
    return SUCCESS;
}

/* ---- tensor maps ---- */
API result cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *base, const uint64_t *dims,
                                  const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                  int interleave, int swizzle, int l2, int fill)
{
    ENTER_ANY();
    static const unsigned char size[] = { 1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4 }; /* CUtensorMapDataType */
    if (rank < 1 || rank > 5 || type < 0 || type > 12 || swizzle < 0 || swizzle > 3) return INVALID_VALUE;
    if (interleave) return NOT_SUPPORTED;
    if (!base || (uintptr_t)base % 16 || (uintptr_t)out % 64) return INVALID_VALUE;
    emu_tensor_map m = { .magic = EMU_TENSOR_MAGIC,
                         .base = base,
                         .rank = (unsigned char)rank,
                         .element_bytes = size[type],
                         .swizzle = (unsigned char)(swizzle ? 16 << swizzle : 0),
                         .nan_fill = (unsigned char)fill };
    for (unsigned i = 0; i < rank; i++) {
        if (!dims[i] || dims[i] > 1ull << 32 || !box[i] || box[i] > 256 || element_strides[i] != 1)
            return INVALID_VALUE;
        m.dim[i] = dims[i] == 1ull << 32 ? UINT32_MAX : (uint32_t)dims[i];
        m.box[i] = box[i];
        if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40)) return INVALID_VALUE;
        if (i) m.stride[i - 1] = strides[i - 1];
    }
    const uint32_t row = box[0] * size[type];
    if (row % 16 || (swizzle && row > 16u << swizzle)) return INVALID_VALUE;
    memset(out, 0, 128);
    memcpy(out, &m, sizeof m);
    return SUCCESS;
}

/* ---- for tests: control.h ---- */
API int emuLastLaunch(emu_last_launch *out)
{
    __attribute__((cleanup(emu_unlock), unused)) int locked = emu_lock();
    *out = last;
    return any_launch;
}
