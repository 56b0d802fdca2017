/* SPDX-License-Identifier: MIT
 * weak.c - weak memory between blocks: a block's store reaches other blocks late, and not in program order, unless a
 * fence or a release orders it. Kernels compiled with EMU_WEAK report every store (device.hpp); with seed 0, or a
 * single block alive, nothing is late.
 *
 * A block has a list of its late stores, oldest first. While it runs they are in memory, so it sees what it
 * wrote; `old` is what they covered. When another block runs they are taken out, newest first, and `value`
 * is kept. A store that all may see from now on simply leaves the list: right away while its block runs,
 * written to memory when another one does. Stores to the same bytes leave in their order (coherence).
 *
 * An atomic whose result is used acts on memory at once. One whose result is not used is a reduction, which
 * the device does not wait for either: it is late, too, and applied anew whenever its block's list goes in.
 *
 * How late: most stores become visible soon; some stay for a while, so that later ones overtake them; and a block's
 * stores to some cache lines stay until no thread makes progress without them. So one block can be far ahead of another.
 *
 * A fence covers the stores of its thread, those of its warp before a __syncwarp and those of its block before a barrier
 * (a fence after a barrier orders the whole block's stores, as on a device). Whether this thread came to that barrier
 * itself is not checked. Loads are never early: a missing acquire does not show if the release is there. */
#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LATE = 256, PIECE = 16, STUCK_ROUNDS = 1000 /* half of QUIET_LIMIT */ };
typedef struct {
    unsigned char *to, old[PIECE], value[PIECE]; /* value: of a reduction, its operand */
    void (*apply)(void *, const void *);         /* a reduction; NULL: a store */
    emu_u32 bytes, tid, synced, met;             /* synced, met: of its warp, then */
    enum speed { FAST, SLOW, HELD } speed;
} late_store;
typedef struct {
    late_store store[MAX_LATE];
    int n;
} late_list;

static late_list *lists; /* of the group's blocks */
static emu_u32 num_lists;
static block *in;                         /* whose late stores are in memory */
static emu_u64 salt;                      /* of the group: which lines are held */
static emu_u32 one_line_in, one_store_in; /* so many are held; are slow */

static late_list *list_of(const block *b) { return &lists[b - emu_group.blocks]; }
static int overlap(const late_store *s, const void *p, emu_u64 bytes)
{
    return s->to < (const unsigned char *)p + bytes && (const unsigned char *)p < s->to + s->bytes;
}
/* Is an older store to the same bytes still late? */
static int must_wait(const late_list *l, int i)
{
    for (int k = 0; k < i; k++)
        if (overlap(&l->store[k], l->store[i].to, l->store[i].bytes)) return 1;
    return 0;
}
static void drop(late_list *l, int i)
{
    memmove(&l->store[i], &l->store[i + 1], (size_t)(--l->n - i) * sizeof *l->store);
    emu_group.progress = 1;
}
static void put_in(late_store *s)
{
    memcpy(s->old, s->to, s->bytes);
    if (s->apply) s->apply(s->to, s->value);
    else memcpy(s->to, s->value, s->bytes);
}
static void take_out(late_store *s)
{
    if (!s->apply) memcpy(s->value, s->to, s->bytes);
    memcpy(s->to, s->old, s->bytes);
}
static void show_some(late_list *l, int is_in) /* to all blocks, by chance */
{
    for (int i = 0; i < l->n;) {
        const enum speed speed = emu_group.quiet_rounds > 4 ? FAST : l->store[i].speed;
        if (emu_random() % (speed == FAST ? 2 : speed == SLOW ? 64 : 4096) || must_wait(l, i)) {
            i++;
            continue;
        }
        if (!is_in) put_in(&l->store[i]);
        drop(l, i);
    }
}

void emu_weak_enter(block *b)
{
    const int is_stuck = emu_group.quiet_rounds > STUCK_ROUNDS;
    if (!lists || (b == in && !is_stuck && emu_random() % 16)) return;
    if (in) {
        late_list *l = list_of(in);
        show_some(l, 1);
        for (int i = l->n - 1; i >= 0; i--) take_out(&l->store[i]);
    }
    in = NULL;
    /* Also those of blocks that have ended. If a single thread polls, chance would take too long to find its store. */
    if (!is_stuck) show_some(&lists[emu_random() % emu_group.num_blocks], 0);
    for (emu_u32 i = 0; is_stuck && i < emu_group.num_blocks; i++) show_some(&lists[i], 0);
    late_list *l = list_of(b);
    for (int i = 0; i < l->n; i++) put_in(&l->store[i]);
    in = b;
}
void emu_weak_begin(void)
{
    lists = NULL;
    in = NULL;
    if (!emu_rt.seed || emu_group.num_blocks == 1) return;
    static late_list *pool;
    if (num_lists < emu_group.num_blocks) {
        num_lists = emu_group.num_blocks;
        pool = realloc(pool, num_lists * sizeof *pool);
        if (!pool) abort();
    }
    lists = pool;
    for (emu_u32 i = 0; i < emu_group.num_blocks; i++) lists[i].n = 0;
    salt = emu_random();
    one_line_in = 4u << 2 * (emu_random() % 4); /* 4 .. 256 */
    one_store_in = 4u << 3 * (emu_random() % 4);
}
void emu_weak_end(void) /* of the group: what is late comes now */
{
    if (!lists) return;
    if (in) list_of(in)->n = 0;
    for (emu_u32 i = 0; i < emu_group.num_blocks; i++)
        for (int k = 0; k < lists[i].n; k++) put_in(&lists[i].store[k]);
    lists = NULL;
}

/* ---- what kernels call ---- */
static late_store *add(void *p, emu_u32 bytes)
{
    fiber *f = emu_running;
    late_list *l = list_of(f->block);
    if (l->n == MAX_LATE) {
        int i = (int)(emu_random() % MAX_LATE);
        for (int tries = 0; l->store[i].speed && tries < 8; tries++) i = (int)(emu_random() % MAX_LATE);
        for (int k = i; k-- > 0;)
            if (overlap(&l->store[k], l->store[i].to, l->store[i].bytes)) i = k;
        drop(l, i);
    }
    const warp *w = &f->block->warps[f->tid >> 5];
    late_store *s = &l->store[l->n++];
    s->to = p;
    s->bytes = bytes;
    s->tid = f->tid;
    s->synced = w->synced;
    s->met = w->met;
    const emu_u64 line = ((emu_u64)p >> 9) + (emu_u64)(f->block - emu_group.blocks) * 0x10001;
    s->speed = ((line ^ salt) * 0x9e3779b97f4a7c15ull >> 32) % one_line_in == 0 ? HELD
               : emu_random() % one_store_in == 0                               ? SLOW
                                                                                : FAST;
    memcpy(s->old, p, bytes);
    return s;
}
void emu_weak_store(void *p, emu_u64 bytes)
{
    if (!lists || !in || !emu_is_global(p)) return;
    for (unsigned char *at = p; bytes;) {
        const emu_u32 n = bytes < PIECE ? (emu_u32)bytes : PIECE;
        add(at, n)->apply = NULL;
        at += n;
        bytes -= n;
    }
}
void emu_weak_reduce(void *p, emu_u32 bytes, void (*apply)(void *, const void *), const void *operand)
{
    if (lists && in && emu_is_global(p)) {
        late_store *s = add(p, bytes);
        s->apply = apply;
        memcpy(s->value, operand, bytes);
    }
    apply(p, operand);
}
void emu_weak_at_once(const void *p, emu_u64 bytes)
{
    if (!lists || !in) return;
    late_list *l = list_of(in);
    for (int i = 0; i < l->n;) {
        if (overlap(&l->store[i], p, bytes)) drop(l, i);
        else i++;
    }
}
void emu_weak_fence(void)
{
    if (!lists || !in) return;
    const fiber *f = emu_running;
    late_list *l = list_of(f->block);
    for (int i = l->n - 1; i >= 0; i--) {
        const late_store *s = &l->store[i];
        const warp *w = &f->block->warps[s->tid >> 5];
        const int is_known =
            s->tid == f->tid || w->met != s->met || (s->tid >> 5 == f->tid >> 5 && w->synced != s->synced);
        if (!is_known) continue;
        unsigned char *const to = s->to; /* with all that came to it before */
        const emu_u32 bytes = s->bytes;
        drop(l, i);
        for (int k = i - 1; k >= 0; k--)
            if (overlap(&l->store[k], to, bytes)) {
                drop(l, k);
                i--;
            }
    }
}
