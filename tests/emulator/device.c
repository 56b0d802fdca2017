/* SPDX-License-Identifier: MIT
 * device.c - the emulated driver's beginning: settings, devices, contexts, errors, entry points by name. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fill.h"

emu_settings emu_config;
emu_live emu_alive;
static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t initialized_in; /* 0: cuInit was not called */
static context primary[EMU_MAX_DEVICES];

enum { STACK_DEPTH = 64 };
static __thread context *stack[STACK_DEPTH]; /* of current contexts; stack[depth - 1] is current */
static __thread int depth;

/* ---- the lock ---- */
static void make_lock(void)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    /* a host function on a stream may ask for an error's name */
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
    pthread_mutexattr_destroy(&a);
}
static void configure(void)
{
    make_lock();
    pthread_atfork(NULL, NULL, make_lock); /* a thread that held it is not in the child */
    emu_config = emu_read_settings();
    emu_set_seed(emu_config.seed);
    emu_starve = emu_config.starve;
    emu_forced_fill = emu_config.fill;
    const char *wrong = emu_fail_set(emu_text_setting("EMU_FAIL", NULL));
    if (wrong) {
        fprintf(stderr, "emulator: EMU_FAIL: cannot read \"%s\"\n", wrong);
        abort();
    }
    for (int i = 0; i < EMU_MAX_DEVICES; i++) {
        primary[i].device = i;
        primary[i].is_primary = 1;
        primary[i].legacy.ctx = &primary[i];
    }
}
int emu_lock(void)
{
    pthread_once(&once, configure);
    pthread_mutex_lock(&lock);
    return 1;
}
void emu_unlock(int *locked) { pthread_mutex_unlock(&lock); }

result emu_begin(const char *entry, int needs_context)
{
    const result injected = emu_fail(entry);
    if (injected) return injected;
    if (!needs_context) return SUCCESS;
    /* a forked child cannot use its parent's driver */
    if (!initialized_in || initialized_in != getpid()) return NOT_INITIALIZED;
    if (!emu_current()) return INVALID_CONTEXT;
    return emu_current()->sticky;
}
static result begin_initialized(const char *entry)
{
    const result r = emu_begin(entry, 0);
    if (r) return r;
    return initialized_in && initialized_in == getpid() ? SUCCESS : NOT_INITIALIZED;
}
#define ENTER_INITIALIZED()                                                \
    __attribute__((cleanup(emu_unlock), unused)) int locked_ = emu_lock(); \
    do {                                                                   \
        const result e_ = begin_initialized(__func__);                     \
        if (e_) return e_;                                                 \
    } while (0)

API result cuInit(unsigned flags)
{
    ENTER_ANY();
    if (flags) return INVALID_VALUE;
    if (emu_config.devices == 0) return 100;
    if (initialized_in && initialized_in != getpid()) return NOT_INITIALIZED;
    initialized_in = getpid();
    return SUCCESS;
}
API void emuInherit(void) { initialized_in = getpid(); } /* control.h */
API result cuDriverGetVersion(int *version)
{
    ENTER_ANY();
    if (!version) return INVALID_VALUE;
    *version = emu_config.driver;
    return SUCCESS;
}

/* ---- devices ---- */
static result valid(int device) { return device >= 0 && device < emu_config.devices ? SUCCESS : INVALID_DEVICE; }
device_facts emu_device_facts(int device)
{
    const int arch = emu_config.arch[device];
    device_facts f = { .sms = emu_config.sms, .major = arch / 10, .minor = arch % 10, .memory = (size_t)4 << 30 };
    /* CUDA's table of compute capabilities */
    const size_t kb = arch == 80 || arch == 87                                  ? 164
                      : arch == 90 || arch == 100 || arch == 103 || arch == 110 ? 228
                                                                                : 100;
    f.shared_per_sm = kb << 10;
    f.shared_per_block = (kb - 1) << 10; /* the system keeps 1 KB a block */
    return f;
}
API result cuDeviceGetCount(int *n)
{
    ENTER_INITIALIZED();
    *n = emu_config.devices;
    return SUCCESS;
}
API result cuDeviceGet(int *device, int ordinal)
{
    ENTER_INITIALIZED();
    *device = ordinal;
    return valid(ordinal);
}
API result cuDeviceGetName(char *name, int n, int device)
{
    ENTER_INITIALIZED();
    if (n > 0) snprintf(name, (size_t)n, "Tegula emulated device");
    return valid(device);
}
API result cuDeviceTotalMem_v2(size_t *n, int device)
{
    ENTER_INITIALIZED();
    if (valid(device)) return INVALID_DEVICE;
    *n = emu_device_facts(device).memory;
    return SUCCESS;
}
API result cuDeviceGetAttribute(int *v, int attribute, int device)
{
    ENTER_INITIALIZED();
    if (valid(device)) return INVALID_DEVICE;
    const device_facts f = emu_device_facts(device);
    switch (attribute) {
    case 1: *v = 1024; break; /* threads a block */
    case 2: *v = 1024; break; /* block x, y, z */
    case 3: *v = 1024; break;
    case 4: *v = 64; break;
    case 5: *v = 0x7fffffff; break; /* grid x, y, z */
    case 6: *v = 65535; break;
    case 7: *v = 65535; break;
    case 8: *v = DEFAULT_DYNAMIC; break; /* shared memory a block */
    case 10: *v = 32; break;             /* warp size */
    case 12: *v = 65536; break;          /* registers a block */
    case 13: *v = 1000000; break;        /* clock, kHz: of no meaning, but no division by 0 */
    case 16: *v = f.sms; break;
    case 36: *v = 1000000; break; /* memory clock, kHz */
    case 37: *v = 1024; break;    /* memory bus, bits */
    case 38: *v = 1 << 20; break; /* L2, bytes: small, so that a test's cache flush is */
    case 39: *v = f.shared_per_sm > 100 << 10 ? 2048 : 1536; break; /* threads an SM */
    case 41: *v = 1; break;                                         /* unified addressing */
    case 75: *v = f.major; break;
    case 76: *v = f.minor; break;
    case 81: *v = (int)f.shared_per_sm; break;
    case 82: *v = 65536; break;                   /* registers an SM */
    case 95: *v = 1; break;                       /* cooperative launch */
    case 97: *v = (int)f.shared_per_block; break; /* opt-in */
    case 106: *v = 32; break;                     /* blocks an SM */
    case 111: *v = 1024; break;                   /* shared memory a block that the system keeps */
    case 120: *v = f.major >= 9; break;           /* cluster launch */
    case 127: *v = f.major >= 9; break;           /* tensor maps */
    default: *v = 0;                              /* managed memory, pools and what else this device lacks */
    }
    return SUCCESS;
}

/* ---- contexts ---- */
context *emu_current(void) { return depth ? stack[depth - 1] : NULL; }
void emu_clear_errors(void)
{
    for (int i = 0; i < EMU_MAX_DEVICES; i++) primary[i].sticky = SUCCESS;
}
static result push(context *c)
{
    if (depth == STACK_DEPTH) return INVALID_VALUE;
    stack[depth++] = c;
    return SUCCESS;
}
API result cuDevicePrimaryCtxRetain(context **c, int device)
{
    ENTER_INITIALIZED();
    if (valid(device)) return INVALID_DEVICE;
    primary[device].retained++;
    *c = &primary[device];
    return SUCCESS;
}
API result cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER_INITIALIZED();
    if (valid(device)) return INVALID_DEVICE;
    if (!primary[device].retained) return INVALID_CONTEXT;
    primary[device].retained--;
    return SUCCESS;
}
API result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    ENTER_INITIALIZED();
    if (valid(device)) return INVALID_DEVICE;
    *flags = 0;
    *active = primary[device].retained > 0;
    return SUCCESS;
}
API result cuCtxCreate_v2(context **out, unsigned flags, int device)
{
    ENTER_INITIALIZED();
    if (valid(device)) return INVALID_DEVICE;
    context *c = calloc(1, sizeof *c);
    if (!c) return OUT_OF_MEMORY;
    c->device = device;
    c->legacy.ctx = c;
    *out = c;
    return push(c);
}
API result cuCtxDestroy_v2(context *c)
{
    ENTER_INITIALIZED();
    if (!c || c->is_primary) return INVALID_CONTEXT;
    if (emu_current() == c) depth--;
    free(c);
    return SUCCESS;
}
API result cuCtxSetCurrent(context *c)
{
    ENTER_INITIALIZED();
    if (depth) depth--;
    return c ? push(c) : SUCCESS;
}
API result cuCtxGetCurrent(context **c)
{
    ENTER_INITIALIZED();
    *c = emu_current();
    return SUCCESS;
}
API result cuCtxPushCurrent_v2(context *c)
{
    ENTER_INITIALIZED();
    return c ? push(c) : INVALID_CONTEXT;
}
API result cuCtxPopCurrent_v2(context **c)
{
    ENTER_INITIALIZED();
    if (!depth) return INVALID_CONTEXT;
    depth--;
    if (c) *c = stack[depth];
    return SUCCESS;
}
API result cuCtxGetDevice(int *device)
{
    ENTER_INITIALIZED();
    if (!emu_current()) return INVALID_CONTEXT;
    *device = emu_current()->device;
    return SUCCESS;
}
API result cuCtxGetId(context *c, unsigned long long *id)
{
    ENTER();
    *id = emu_id(c ? &c->id : &emu_current()->id);
    return SUCCESS;
}
API result cuCtxSynchronize(void)
{
    ENTER();
    const result r = emu_unsafe();
    return r ? r : emu_drain(emu_current());
}

/* ---- errors ---- */
API result cuGetErrorName(result r, const char **s)
{
    ENTER_ANY();
    *s = emu_error_name(r);
    return *s ? SUCCESS : INVALID_VALUE;
}
API result cuGetErrorString(result r, const char **s)
{
    ENTER_ANY();
    *s = emu_error_text(r);
    return *s ? SUCCESS : INVALID_VALUE;
}

/* ---- entry points by name ---- */
static int since(const char *name) /* the driver version that brought it, of those we may need */
{
    if (!strncmp(name, "cuLibrary", 9) || !strncmp(name, "cuKernel", 8) || !strncmp(name, "cuTensorMap", 11) ||
        !strcmp(name, "cuStreamGetId") || !strcmp(name, "cuCtxGetId"))
        return 12000;
    return !strcmp(name, "cuLaunchKernelEx") ? 11080 : 0;
}
API result cuGetProcAddress_v2(const char *name, void **p, int version, uint64_t flags, int *status)
{
    ENTER_ANY();
    *p = NULL;
    if (status) *status = 1;       /* no such symbol */
    if (!strncmp(name, "cu", 2)) { /* not the emu functions */
        /* its form from CUDA 12 on */
        if (!strcmp(name, "cuGraphInstantiate")) name = "cuGraphInstantiateWithFlags";
        Dl_info self;
        dladdr((void *)cuGetProcAddress_v2, &self);
        void *h = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        char symbol[128];
        snprintf(symbol, sizeof symbol, "%s_v2", name);
        *p = dlsym(h, symbol);
        if (!*p) *p = dlsym(h, name);
        if (h) dlclose(h);
    }
    if (*p && since(name) > emu_config.driver) {
        *p = NULL;
        if (status) *status = 2; /* the driver is too old for it */
    }
    if (!*p) return NOT_FOUND;
    if (status) *status = 0;
    return SUCCESS;
}
