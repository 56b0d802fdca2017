/* SPDX-License-Identifier: MIT
 * schedule.c - who runs next. */
#include "scheduler.h"

#include <stdlib.h>
#include <time.h>

group emu_group;
static async_op async_pool[MAX_ASYNC];
static const double timeout_s = 20; /* of polling without a barrier or an exit */

emu_u64 emu_random(void) /* xorshift64* */
{
    group *g = &emu_group;
    g->rng ^= g->rng >> 12;
    g->rng ^= g->rng << 25;
    g->rng ^= g->rng >> 27;
    return g->rng * 0x2545f4914f6cdd1dull >> 16;
}
/* Below n, from a random number; a division would take as long as the rest of a choice. */
static emu_u32 scaled(emu_u64 random, emu_u32 n) { return (emu_u32)((random & 0xffffffff) * n >> 32); }
static emu_u32 below(emu_u32 n) { return scaled(emu_random(), n); }

double emu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void emu_make_ready(fiber *f)
{
    group *g = &emu_group;
    block *b = f->block;
    f->state = READY;
    if (g->starved >> (f->tid >> 5) & 1) {
        f->next = b->held;
        b->held = f;
        return;
    }
    b->queue[(b->head + b->count++) & (b->ring - 1)] = f;
    if (!b->in_ready) {
        b->in_ready = 1;
        g->ready[g->num_ready++] = b;
    }
}
void emu_ready_list(fiber *list)
{
    while (list) {
        fiber *next = list->next;
        emu_make_ready(list);
        list = next;
    }
}

/* ---- asynchronous copies ---- */
static void copy_op(async_op *to, const async_op *from)
{
    to->run = from->run;
    to->last = from->last;
    for (int i = 0; i < ASYNC_BYTES; i++) ((volatile char *)to->arg)[i] = ((const volatile char *)from->arg)[i];
}
static void run_async(int i)
{
    group *g = &emu_group;
    async_op op;
    copy_op(&op, &async_pool[i]);
    copy_op(&async_pool[i], &async_pool[--g->num_async]);
    g->progress = 1;
    op.run(op.arg);
}
void emu_later(void (*run)(void *), const void *arg, emu_u32 bytes)
{
    group *g = &emu_group;
    async_op op = { .run = run, .last = emu_rt.seed ? (int)(emu_random() & 1) : 0 };
    if (bytes > ASYNC_BYTES) abort();
    for (emu_u32 i = 0; i < bytes; i++) ((volatile char *)op.arg)[i] = ((const volatile char *)arg)[i];
    if (!emu_rt.seed) {
        run(op.arg);
        return;
    }
    if (g->num_async == MAX_ASYNC) run_async(0);
    copy_op(&async_pool[g->num_async++], &op);
}

/* ---- the choice ---- */
/* The one that is taken next, if none comes or goes until then. The random number for it is drawn early. */
static emu_u32 next_in(const block *b)
{
    const group *g = &emu_group;
    if (g->order == IN_ORDER) return 0;
    return g->is_next_deep ? b->count - 1 : scaled(g->next_random, b->count);
}
static void draw_next(void)
{
    group *g = &emu_group;
    g->next_random = emu_random();
    g->is_next_deep = g->order != ANYONE && (g->order != MIXED || below(16));
}
/* Of thousands of threads the next one's stack is not in the cache. While the one before runs, the frames come that it
 * returns through. */
static void prefetch_stack(const block *b)
{
    const char *sp = b->queue[(b->head + next_in(b)) & (b->ring - 1)]->sp;
    for (int i = 0; i < 512; i += 64) __builtin_prefetch(sp + i);
}
static fiber *take_from(block *b)
{
    group *g = &emu_group;
    if (g->order != IN_ORDER) { /* bring the chosen one to the head */
        const emu_u32 i = (b->head + next_in(b)) & (b->ring - 1), h = b->head & (b->ring - 1);
        fiber *t = b->queue[i];
        b->queue[i] = b->queue[h];
        b->queue[h] = t;
        draw_next();
    }
    fiber *f = b->queue[b->head++ & (b->ring - 1)];
    if (--b->count) {
        prefetch_stack(b);
    } else {
        b->in_ready = 0;
        g->ready[g->current] = g->ready[--g->num_ready];
        if (emu_rt.seed && g->num_ready) g->current = below(g->num_ready);
    }
    emu_weak_enter(b);
    return f;
}
static void feed_starved(void)
{
    group *g = &emu_group;
    const emu_u32 starved = g->starved;
    g->starved = 0; /* else they would be held again */
    for (emu_u32 i = 0; i < g->num_blocks; i++) {
        fiber *list = g->blocks[i].held;
        g->blocks[i].held = NULL;
        emu_ready_list(list);
    }
    g->starved = starved;
}
/* everyone who polls takes another look; 0: nobody polls, or in vain for too long */
static int look_again(void)
{
    group *g = &emu_group;
    int polling = 0;
    for (emu_u32 i = 0; i < g->num_blocks; i++) {
        fiber *list = g->blocks[i].polling;
        g->blocks[i].polling = NULL;
        polling |= list != NULL;
        emu_ready_list(list);
    }
    if (!polling) return 0;
    g->quiet_rounds = g->progress ? 0 : g->quiet_rounds + 1;
    g->progress = 0;
    if ((++g->rounds & 255) == 0) {
        if (g->milestone) {
            g->milestone = 0;
            g->last_milestone = emu_now();
        } else if (emu_now() - g->last_milestone > timeout_s) {
            g->quiet_rounds = QUIET_LIMIT + 1;
        }
    }
    return g->quiet_rounds <= QUIET_LIMIT;
}

fiber *emu_pick(void)
{
    group *g = &emu_group;
    const int seed = emu_rt.seed != 0;
    for (;;) {
        if (seed && g->num_async && below(8) == 0) {
            const int i = (int)below((emu_u32)g->num_async);
            if (!async_pool[i].last) run_async(i);
        }
        if (g->num_ready) {
            if (g->current >= g->num_ready) g->current = 0;
            if (seed && g->num_ready > 1 && below(64) == 0) g->current = below(g->num_ready);
            return take_from(g->ready[g->current]);
        }
        if (g->num_async) {
            run_async(seed ? (int)below((emu_u32)g->num_async) : 0);
            continue;
        }
        if (g->starved) {
            feed_starved();
            if (g->num_ready) continue;
        }
        if (g->at_pdl_wait) {
            emu_kernel_before_ends();
            continue;
        }
        if (!look_again()) return &emu_main_fiber; /* a deadlock, or all have ended: the caller looks */
    }
}
void emu_leave(fiber *f)
{
    fiber *to = emu_pick();
    if (to == f) return;
    emu_stats.switches++;
    emu_fiber_switch(f, to, 0);
}
void emu_wait_in(fiber *f, enum thread_state state, fiber **list, const char *what, emu_site site)
{
    f->state = state;
    f->what = what;
    f->site = site;
    if (list) {
        f->next = *list;
        *list = f;
    }
    emu_leave(f);
}
