/* SPDX-License-Identifier: MIT
 * scheduler.h - the state of the blocks that run now; shared by schedule.c (who runs next), sync.c (what
 * kernels call), report.c and grid.c (a grid from begin to end).
 *
 * Blocks that may wait for each other are alive together, a "group": one block, a cluster, or the whole
 * grid of a cooperative launch; with a seed a few more, since blocks of a plain launch may overlap too.
 * Groups run one after another. A thread runs until it waits: barrier, warp collective, mbarrier, a load
 * that polls. Then another one of the same block goes on; other blocks when that block can do nothing. With
 * a seed the choice is random, as is the order of groups, and asynchronous copies land at a random time.
 * When nobody can run, whoever still waits is a deadlock and is reported by name and line. */
#ifndef EMU_SCHEDULER_H
#define EMU_SCHEDULER_H

#include "fiber.h"
#include "grid.h"

enum {
    STATIC_RESERVE = 64 << 10, /* of each block's shared memory: static arrays and the gaps between them */
    GAP = 1024,                /* nobody's, at both ends of a block's shared memory; address 0 is in one */
    MAX_ARRAYS = 64,           /* static shared arrays of a kernel */
    MAX_OPEN = 16,             /* collectives of different masks that a warp can be in */
    BUCKETS = 64,
    ASYNC_BYTES = 192, /* of a copy's argument */
    MAX_ASYNC = 1 << 16,
    QUIET_LIMIT = 2000, /* rounds in which everyone only polled: nobody will answer */
};

enum thread_state { READY, COLLECTIVE, BARRIER, CLUSTER, ADDRESS, POLL, DONE };

/* IN_ORDER: first come, first run. ANYONE: all equally likely, so all warps get on at the same pace. DEEP:
 * whoever came last, so that one warp runs as far ahead as it can. MIXED: mostly DEEP. STARVE: DEEP, and
 * some warps run only when the others cannot. A barrier that is missing shows under one order or another;
 * ANYONE alone finds a third less. */
enum order { IN_ORDER, ANYONE, DEEP, MIXED, STARVE, NUM_ORDERS };

typedef struct {
    emu_u32 mask, arrived;
    emu_complete complete;
    const char *what;
    emu_site site;
} open_collective;
typedef struct {
    void *args[32];
    open_collective open[MAX_OPEN];
    int num_open;
    emu_u32 exited;      /* lanes that have ended or never were */
    emu_site at[16];     /* where this warp came to each barrier of the block */
    emu_u32 synced, met; /* how often it came to __syncwarp; to a barrier of more */
} warp;
typedef struct {
    fiber *waiters;
    emu_u32 count, arrived, sum;
    unsigned phase;
    char sync[2];
    int in_use;
} barrier;
typedef struct {
    fiber *waiters;
    emu_u32 alive, arrived, phase;
    char sync[2];
    unsigned char *window;
} cluster;
typedef struct block {
    emu_dim index;
    emu_u32 num_threads, alive;
    emu_u32 head, count, ring, in_ready; /* queue[(head + i) % ring], i < count, can run */
    fiber **queue, *polling, *held;      /* held: starved */
    fiber **thread;
    warp *warps;
    barrier bar[16];
    cluster *cl;
    emu_u32 rank, static_used;
    struct {
        const void *key;
        emu_u32 offset;
    } array[MAX_ARRAYS];
    int num_arrays;
} block;

/* A copy under way; `last` ones land only when nobody can run. No heap and no memcpy here, which TSan would
 * watch. */
typedef struct {
    void (*run)(void *);
    int last;
    char arg[ASYNC_BYTES] __attribute__((aligned(16)));
} async_op;

typedef struct {
    const emu_launch *launch;
    block *blocks, **ready;
    emu_u32 num_blocks, num_ready, current; /* current: of ready */
    fiber *bucket[BUCKETS];                 /* waiting for an address */
    int num_async;
    int failed;
    int progress; /* something other than polling happened since the last round of polls */
    int quiet_rounds;
    int milestone; /* a barrier opened or a thread ended */
    unsigned rounds;
    double last_milestone;
    emu_u64 rng, next_random;
    enum order order;
    int is_next_deep; /* whoever came last is taken next, not whom next_random says */
    emu_u32 starved;  /* a mask of warps */
    int is_closed;    /* device memory, until emu_kernel_before_ends() */
    fiber *at_pdl_wait;
} group;
extern group emu_group;

/* schedule.c */
emu_u64 emu_random(void);
double emu_now(void);
void emu_make_ready(fiber *f);
void emu_ready_list(fiber *list);
fiber *emu_pick(void);    /* who runs next; the caller's stack if nobody can */
void emu_leave(fiber *f); /* let whoever is next run */
void emu_wait_in(fiber *f, enum thread_state state, fiber **list, const char *what, emu_site site);
void emu_later(void (*run)(void *), const void *arg, emu_u32 bytes);

/* sync.c */
void emu_thread_ends(fiber *f);
void emu_kernel_before_ends(void);

/* weak.c: stores that other blocks do not see yet */
void emu_weak_begin(void); /* of a group of blocks; and its end */
void emu_weak_end(void);
void emu_weak_enter(block *b); /* before a thread of b runs */
void emu_weak_store(void *p, emu_u64 bytes);
void emu_weak_reduce(void *p, emu_u32 bytes, void (*apply)(void *, const void *), const void *operand);
void emu_weak_at_once(const void *p, emu_u64 bytes);
void emu_weak_fence(void);

/* report.c */
const char *emu_base_name(const char *path);
/* returns only on the caller's stack */
void emu_fault(emu_site site, const char *format, ...) __attribute__((format(printf, 2, 3)));
void emu_report_deadlock(void);
void emu_report_copies(void); /* under way when everyone had ended */
void emu_explain_asan(void);  /* its next report, where that can be done */

#endif
