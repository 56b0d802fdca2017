/* SPDX-License-Identifier: MIT
 * fiber.h - a CUDA thread as a fiber: its stack, the switch to it, and what sanitizers have to be told. */
#ifndef EMU_FIBER_H
#define EMU_FIBER_H

#include <stddef.h>
#include <stdint.h>

#include "emulator.h"

/* Fibers lie in an array of their own, not on their stacks: those of 16,000 threads are 2 MB, where every look at a stack
 * is a miss of the cache. What every switch needs is in the first 64 bytes. moe/route with 17 x 1024 threads took 48 s of
 * CPU with fibers on stacks of 128 KB and small pages, 35 with stacks of 32 KB on huge pages, and takes 27 (ASan, check_list
 * of test_route, a Xeon with 1 MB of L2, beside other work). EMU_COLOUR's figures are of stacks of 128 KB, too. */
typedef struct fiber {
    void *sp;           /* saved stack pointer */
    char *chunk;        /* of stacks, where its own is; NULL: the caller's stack */
    emu_thread *thread; /* on its stack */
    struct block *block;
    struct fiber *next; /* in the list it waits in */
    void *tsan;         /* TSan's own */
    uint32_t tid, lane; /* those of *thread */
    uint32_t state, result;
    const void *address; /* it waits for */
    const char *what;    /* it does at `site` */
    emu_site site;
    uint32_t cluster_arrived, cluster_target;
    void *fake; /* ASan's own */
} __attribute__((aligned(64))) fiber;
_Static_assert(sizeof(emu_thread) <= EMU_THREAD_BYTES, "EMU_THREAD_BYTES");

extern fiber emu_main_fiber; /* stands for the caller's stack */
extern fiber *emu_running;

fiber *emu_fiber_slot(emu_u32 i); /* the i-th stack's; NULL: no memory */
/* at its first switch it runs entry, which must not return */
void emu_fiber_start(fiber *f, void (*entry)(void));
void emu_fiber_switch(fiber *from, fiber *to, int dying);
void emu_fiber_check(const fiber *f);               /* ends the program if a stack has overflowed into this one */
void emu_fiber_entered(void);                       /* first thing in entry */
void emu_fiber_group(void);                         /* before the first switch away from the caller's stack */
void emu_fiber_abandon(fiber *f, const void *sync); /* its stack will be used again, whatever is on it */

/* Weak, so that one build serves processes with and without a sanitizer. */
int emu_has_asan(void);
void emu_poison(const void *p, size_t n);
void emu_unpoison(const void *p, size_t n);
void emu_acquire(const void *p); /* memory order, for TSan: what was released on p is seen from here on */
void emu_release(const void *p);

#endif
