/* SPDX-License-Identifier: MIT
 * emulator.h - what the emulated driver and an emulated kernel agree on. Read as C by the driver, as C++ by
 * kernels.
 *
 * A CUDA thread is a fiber on a stack of EMU_STACK bytes, aligned to its size; an emu_thread lies near its
 * high end. So a thread finds itself from its stack pointer: no thread-local variable, and nothing to save
 * at a switch. */
#ifndef EMULATOR_H
#define EMULATOR_H

typedef unsigned int emu_u32;
typedef unsigned long long emu_u64;
typedef struct { emu_u32 x, y, z; } emu_dim;
typedef struct {
    const char *file;
    int line;
} emu_site; /* a place in the kernel source, for reports */

#define EMU_STACK_BITS 16
#define EMU_STACK (1ul << EMU_STACK_BITS)
#define EMU_THREAD_BYTES 320
/* Times 0 .. 63, so that neighbours' stacks lie in different cache sets: a switch among 256 threads took 35
 * ns, 46 without. */
#define EMU_COLOUR 320
#define EMU_MAX_FRESH 32
#define EMU_VERSION 7

typedef struct emu_thread {
    emu_dim thread, block, block_dim, grid_dim;
    /* number in the block; in the warp; of the block in its cluster */
    emu_u32 tid, lane, rank, cluster_size;
    emu_u32 in_cluster;                      /* the launch has the attribute, even for one block */
    emu_u32 dynamic, shared_bytes;           /* offset of the dynamic shared memory, and its size */
    emu_u64 stride;                          /* from one block's shared memory to the next block's of the cluster */
    unsigned char *window;                   /* shared memory of the cluster's block 0: shared address 0 */
    void *copies;                            /* this thread's copies not yet done (ptx.hpp) */
    emu_u32 is_early;                        /* launched to overlap the kernel before, and not yet at pdl_wait */
    emu_u32 reads_constants;                 /* what it reads until then is constant */
    emu_u32 num_fresh, fresh[EMU_MAX_FRESH]; /* mbarriers that it has initialised since its last mbar_init_fence */
    emu_u64 canary;                          /* its address, unless a neighbour's stack overflowed */
} emu_thread;

/* The last thread to arrive runs it for all: args[lane] is what the lane gave, NULL for lanes not in the
 * mask. */
typedef void (*emu_complete)(void **args, emu_u32 mask);

typedef struct emu_runtime { /* what a kernel asks of the driver */
    void (*collective)(emu_u32 mask, emu_complete complete, void *arg, const char *what, emu_site site);
    /* -> the number of true predicates among those who came */
    emu_u32 (*barrier)(int id, emu_u32 count, int wait, int predicate, const char *what, emu_site site);
    void (*cluster_arrive)(int releases, emu_site site);
    void (*cluster_wait)(emu_site site);
    void (*poll)(const char *what, emu_site site);        /* let the others run */
    void (*maybe_yield)(const char *what, emu_site site); /* the same, now and then, if the seed wants it */
    void (*wait)(const void *address, const char *what, emu_site site); /* until wake(address) */
    void (*wake)(const void *address);
    /* an asynchronous copy: at some later time */
    void (*later)(void (*run)(void *arg), const void *arg, emu_u32 bytes);
    void (*pdl_wait)(void);
    void (*pdl_reads_constants)(void);
    void (*early)(const void *p); /* an access before pdl_wait (EMU_WEAK) */
    /* before an access to that block's memory */
    void (*remote)(emu_u32 rank, const char *what, emu_site site);
    /* static shared memory, one piece a declaration */
    void *(*shared)(const void *key, emu_u64 bytes, emu_u64 align);
    /* weak memory (EMU_WEAK): before a store; an atomic without a result; before memory is changed at once;
     * a fence; an arrival at an mbarrier */
    void (*store)(void *p, emu_u64 bytes);
    void (*reduce)(void *p, emu_u32 bytes, void (*apply)(void *p, const void *operand), const void *operand);
    void (*at_once)(const void *p, emu_u64 bytes);
    void (*fence)(void);
    void (*meets)(void);
    /* ends the launch */
    void (*fault)(emu_site site, const char *format, ...) __attribute__((format(printf, 2, 3)));
    emu_u32 num_early; /* threads that are */
    emu_u64 seed;      /* 0: threads in order, exact approximations */
} emu_runtime;

typedef struct emu_entry { /* a kernel of a loaded object, as emu_entry_<name> */
    int version;
    const char *name;
    void (*call)(void **args);
    emu_u32 num_params, max_threads;
    const emu_u32 *param_bytes;
    const unsigned char *param_is_pointer;
    const emu_runtime **runtime; /* set by the driver after loading */
} emu_entry;

/* What stands before the shared object in an emulated cubin. Two sums, so that the size can be trusted
 * before the rest is read. */
typedef struct {
    char magic[8];
    emu_u32 version, arch;          /* 90 */
    emu_u32 exact;                  /* sm_90a: for that architecture only */
    emu_u32 portable;               /* asked for as PTX: for that architecture and all later ones */
    emu_u64 bytes, sum, header_sum; /* of the object; FNV-1a of the object; of the fields before */
} emu_image;
#define EMU_IMAGE_MAGIC "EMUCUBIN"

static inline emu_u64 emu_sum(const void *p, emu_u64 bytes)
{
    const unsigned char *s = (const unsigned char *)p;
    emu_u64 h = 14695981039346656037u;
    for (emu_u64 i = 0; i < bytes; i++) h = (h ^ s[i]) * 1099511628211u;
    return h;
}

typedef struct { /* what cuTensorMapEncodeTiled leaves in the 128 bytes */
    emu_u64 magic;
    unsigned char *base;
    emu_u64 stride[4]; /* bytes, of dimensions 1.. */
    emu_u32 dim[5], box[5];
    unsigned char rank, element_bytes, swizzle, nan_fill; /* swizzle 0, 32, 64 or 128 bytes */
} emu_tensor_map;
#define EMU_TENSOR_MAGIC 0x70616d5f75736e65ull

static inline emu_thread *emu_thread_on(emu_u64 stack) /* any address on it */
{
    const emu_u64 end = (stack | (EMU_STACK - 1)) + 1;
    return (emu_thread *)(end - EMU_THREAD_BYTES - (stack >> EMU_STACK_BITS & 63) * EMU_COLOUR);
}
static inline emu_thread *emu_self(void) { return emu_thread_on((emu_u64)__builtin_frame_address(0)); }

#endif
