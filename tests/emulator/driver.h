/* SPDX-License-Identifier: MIT
 * driver.h - the emulated libcuda's own types. Its entry points, by what they do: device.c (devices,
 * contexts, errors, names), memory.c, stream.c (streams, events, captures, graphs), library.c (kernels and
 * their attributes), launch.c (launches, tensor maps), control.c (what tests ask beyond CUDA).
 *
 * One lock is held in every entry point: threads of the program may call at the same time, and do the work
 * one after another. */
#ifndef EMU_DRIVER_H
#define EMU_DRIVER_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "grid.h"
#include "settings.h"

#define API __attribute__((visibility("default")))

typedef int result; /* CUresult; the numbers are CUDA's */
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_IMPLICIT = 906,
    CAPTURE_WRONG_THREAD = 908,
    INVALID_CLUSTER_SIZE = 912,
};
typedef uint64_t deviceptr;

/* ---- contexts ---- */
typedef struct stream {
    struct context *ctx;
    struct capture *capture; /* NULL: not capturing */
    unsigned flags;          /* 1: non-blocking, not ordered with the legacy stream */
    uint64_t id;             /* 0: nobody asked for it yet */
} stream;
typedef struct context {
    int device, retained;
    int is_primary;
    result sticky; /* after a fault every call fails with it */
    uint64_t id;   /* as a stream's */
    stream legacy;
} context;

/* ---- work on a stream ---- */
enum work_kind { WORK_LAUNCH, WORK_COPY, WORK_FILL, WORK_HOST };
typedef struct work {
    enum work_kind kind;
    context *ctx;
    struct work *next;
    emu_launch launch;
    void *params; /* copies of the launch's parameters */
    void *to;
    const void *from;
    size_t bytes;          /* of a copy; elements of a fill */
    uint32_t value, width; /* of a fill: 1, 2 or 4 bytes an element */
    void (*host)(void *);
    void *data;
} work;
typedef struct { work *first, *last; } work_list;

/* ---- kernels: a CUkernel may stand for a CUfunction, so there is one type ---- */
typedef struct kernel {
    const emu_entry *entry;
    struct library *library;
    size_t max_dynamic[EMU_MAX_DEVICES];
    int non_portable_cluster[EMU_MAX_DEVICES];
} kernel;
enum { MAX_KERNELS = 64, DEFAULT_DYNAMIC = 48 << 10 };

/* ---- device.c ---- */
extern emu_settings emu_config;
typedef struct {
    int sms, major, minor;
    size_t shared_per_sm, shared_per_block, memory;
} device_facts;
device_facts emu_device_facts(int device);
context *emu_current(void);
void emu_clear_errors(void); /* sticky ones, of the primary contexts */

int emu_lock(void);
void emu_unlock(int *locked);
/* counts the call -> an injected or a standing error */
result emu_begin(const char *entry, int needs_context);
/* At the start of every entry point; the lock is given back wherever it returns. */
#define ENTER_ANY()                                                        \
    __attribute__((cleanup(emu_unlock), unused)) int locked_ = emu_lock(); \
    do {                                                                   \
        const result e_ = emu_begin(__func__, 0);                          \
        if (e_) return e_;                                                 \
    } while (0)
#define ENTER()                                                            \
    __attribute__((cleanup(emu_unlock), unused)) int locked_ = emu_lock(); \
    do {                                                                   \
        const result e_ = emu_begin(__func__, 1);                          \
        if (e_) return e_;                                                 \
    } while (0)

/* ---- memory.c ---- */
typedef struct {
    char *p;
    size_t bytes;
    int host, device, is_adopted; /* is_adopted: of the host, and the caller's own */
} allocation;
const allocation *emu_find(deviceptr p);          /* NULL: no memory of ours */
const allocation *emu_find_with_end(deviceptr p); /* one past the end counts, too */
int emu_adopt(void *p, size_t bytes);             /* control.h, emuAdopt */

/* ---- stream.c ---- */
stream *emu_stream(stream *s);         /* the legacy and the per-thread stream have special handles */
uint64_t emu_id(uint64_t *id);         /* never another stream's or context's */
result emu_submit(stream *s, work *w); /* takes w; runs, queues or captures it */
result emu_drain(context *ctx);        /* runs what waits (EMU_LAZY) -> the context's sticky error */
result emu_unsafe(void);               /* a call that must not be made during captures: spoils them and fails */
void emu_free_work(work *w);

/* ---- what is alive, for leak checks ---- */
typedef struct { int allocations, host_allocations, libraries, streams, events, graphs; } emu_live;
extern emu_live emu_alive;

#endif
