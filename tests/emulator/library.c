/* SPDX-License-Identifier: MIT
 * library.c - loaded code: what the emulated NVRTC made, its kernels and their attributes. */
#include "driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "library.h"

typedef struct library {
    void *handle;
    int fd;
    emu_image image;
    kernel kernels[MAX_KERNELS];
    int num_kernels;
} library;

static result check_image(const void *code)
{
    emu_image h;
    memcpy(&h, code, sizeof h);
    if (memcmp(h.magic, EMU_IMAGE_MAGIC, sizeof h.magic)) return INVALID_IMAGE;
    if (h.header_sum != emu_sum(&h, offsetof(emu_image, header_sum))) return INVALID_IMAGE;
    if (h.version != EMU_VERSION || h.sum != emu_sum((const char *)code + sizeof h, h.bytes)) return INVALID_IMAGE;
    return SUCCESS;
}
/* A cubin runs on its architecture and on later ones of the same major number, with an "a" on that one
 * alone; PTX on all later. */
static result fits(const emu_image *h, int device)
{
    const emu_u32 arch = (emu_u32)emu_config.arch[device];
    if (h->exact) return h->arch == arch ? SUCCESS : NO_BINARY_FOR_GPU;
    if (h->arch > arch || (!h->portable && h->arch / 10 != arch / 10)) return NO_BINARY_FOR_GPU;
    return SUCCESS;
}
result emu_kernel_fits(const kernel *k, int device) { return fits(&k->library->image, device); }

static int write_all(int fd, const char *p, size_t n)
{
    while (n) {
        const ssize_t k = write(fd, p, n);
        if (k <= 0) return -1;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}
API result cuLibraryLoadData(library **out, const void *code, void *jit_options, void *jit_values, unsigned num_jit,
                             void *options, void *values, unsigned num_options)
{
    ENTER_ANY();
    if (!out || !code) return INVALID_VALUE;
    *out = NULL;
    result r = emu_unsafe(); /* loading may allocate: as the driver, not during a capture */
    if (!r) r = check_image(code);
    if (r) return r;
    library *l = calloc(1, sizeof *l);
    if (!l) return OUT_OF_MEMORY;
    memcpy(&l->image, code, sizeof l->image);
    if (emu_current() && fits(&l->image, emu_current()->device)) {
        free(l);
        return NO_BINARY_FOR_GPU;
    }
    /* stays open: a sanitizer reads line numbers from it */
    l->fd = memfd_create("tegula-kernel", MFD_CLOEXEC);
    if (l->fd < 0 || write_all(l->fd, (const char *)code + sizeof l->image, l->image.bytes)) {
        if (l->fd >= 0) close(l->fd);
        free(l);
        return OUT_OF_MEMORY;
    }
    char path[64];
    /* not self: a symbolizer is another process */
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), l->fd);
    l->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l->handle) {
        fprintf(stderr, "emulator: %s\n", dlerror());
        close(l->fd);
        free(l);
        return INVALID_IMAGE;
    }
    emu_alive.libraries++;
    *out = l;
    return SUCCESS;
}
API result cuLibraryUnload(library *l)
{
    ENTER_ANY();
    if (!l) return INVALID_HANDLE;
    const result r = emu_unsafe();
    if (r) return r;
    if (emu_current()) emu_drain(emu_current());
    dlclose(l->handle);
    close(l->fd);
    free(l);
    emu_alive.libraries--;
    return SUCCESS;
}
API result cuLibraryGetKernel(kernel **out, library *l, const char *name)
{
    ENTER_ANY();
    if (!out || !l || !name) return INVALID_VALUE;
    for (int i = 0; i < l->num_kernels; i++)
        if (!strcmp(l->kernels[i].entry->name, name)) {
            *out = &l->kernels[i];
            return SUCCESS;
        }
    char symbol[256];
    snprintf(symbol, sizeof symbol, "emu_entry_%s", name);
    const emu_entry *e = dlsym(l->handle, symbol);
    if (!e || l->num_kernels == MAX_KERNELS) return NOT_FOUND;
    if (e->version != EMU_VERSION) return INVALID_IMAGE;
    *e->runtime = &emu_rt;
    kernel *k = &l->kernels[l->num_kernels++];
    *k = (kernel){ .entry = e, .library = l };
    for (int d = 0; d < EMU_MAX_DEVICES; d++) k->max_dynamic[d] = DEFAULT_DYNAMIC;
    *out = k;
    return SUCCESS;
}
API result cuKernelGetFunction(kernel **f, kernel *k)
{
    ENTER();
    if (!k) return INVALID_HANDLE;
    *f = k;
    return emu_kernel_fits(k, emu_current()->device);
}

/* ---- attributes ---- */
enum {
    MAX_THREADS = 0,
    STATIC_BYTES = 1,
    LOCAL_BYTES = 3,
    NUM_REGS = 4,
    BINARY_VERSION = 6,
    MAX_DYNAMIC = 8,
    CARVEOUT = 9,
    NON_PORTABLE_CLUSTER = 14
};
static result set_attribute(kernel *k, int attribute, int v, int device)
{
    if (!k) return INVALID_HANDLE;
    switch (attribute) {
    case MAX_DYNAMIC:
        if (v < 0 || (size_t)v > emu_device_facts(device).shared_per_block) return INVALID_VALUE;
        k->max_dynamic[device] = (size_t)v;
        return SUCCESS;
    case CARVEOUT: return v >= -1 && v <= 100 ? SUCCESS : INVALID_VALUE;
    case NON_PORTABLE_CLUSTER: k->non_portable_cluster[device] = v; return SUCCESS;
    default: return INVALID_VALUE;
    }
}
static result get_attribute(int *v, const kernel *k, int attribute, int device)
{
    if (!k) return INVALID_HANDLE;
    switch (attribute) {
    case MAX_THREADS: *v = (int)k->entry->max_threads; break;
    case STATIC_BYTES: *v = 0; break; /* not known before it runs */
    case LOCAL_BYTES: *v = 0; break;
    case NUM_REGS: *v = 32; break;
    case BINARY_VERSION: *v = (int)k->library->image.arch; break;
    case MAX_DYNAMIC: *v = (int)k->max_dynamic[device]; break;
    case CARVEOUT: *v = -1; break;
    case NON_PORTABLE_CLUSTER: *v = k->non_portable_cluster[device]; break;
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}
static result on_device(int device) { return device >= 0 && device < emu_config.devices ? SUCCESS : INVALID_DEVICE; }
API result cuFuncSetAttribute(kernel *k, int attribute, int v)
{
    ENTER();
    return set_attribute(k, attribute, v, emu_current()->device);
}
API result cuFuncGetAttribute(int *v, int attribute, kernel *k)
{
    ENTER();
    return get_attribute(v, k, attribute, emu_current()->device);
}
API result cuKernelSetAttribute(int attribute, int v, kernel *k, int device)
{
    ENTER_ANY();
    return on_device(device) ? INVALID_DEVICE : set_attribute(k, attribute, v, device);
}
API result cuKernelGetAttribute(int *v, int attribute, kernel *k, int device)
{
    ENTER_ANY();
    return on_device(device) ? INVALID_DEVICE : get_attribute(v, k, attribute, device);
}
API result cuKernelGetParamInfo(kernel *k, size_t place, size_t *offset, size_t *bytes)
{
    ENTER_ANY();
    if (!k) return INVALID_HANDLE;
    if (place >= k->entry->num_params || !offset) return INVALID_VALUE;
    *offset = 0;
    for (size_t i = 0; i <= place; i++) { /* aligned to its size, as our parameters are, or to 8 */
        const size_t n = k->entry->param_bytes[i], to = n < 8 ? n : 8;
        *offset = (*offset + to - 1) / to * to;
        if (i < place) *offset += n;
        else if (bytes) *bytes = n;
    }
    return SUCCESS;
}

/* ---- how many blocks fit ---- */
int emu_blocks_per_sm(const kernel *k, int device, int threads, size_t dynamic)
{
    const device_facts f = emu_device_facts(device);
    if (threads <= 0 || dynamic > k->max_dynamic[device]) return 0;
    const int by_threads = (f.shared_per_sm > 100 << 10 ? 2048 : 1536) / ((threads + 31) / 32 * 32);
    const int by_shared = (int)(f.shared_per_sm / (dynamic + 1024));
    const int n = by_threads < by_shared ? by_threads : by_shared;
    return n < 32 ? n : 32;
}
API result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, kernel *k, int threads, size_t dynamic)
{
    ENTER();
    if (!k || threads <= 0) return INVALID_VALUE;
    *n = emu_blocks_per_sm(k, emu_current()->device, threads, dynamic);
    return SUCCESS;
}
