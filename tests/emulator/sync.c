/* SPDX-License-Identifier: MIT
 * sync.c - what kernels call: warp collectives, barriers, mbarrier waits, polling, shared memory. */
#include "scheduler.h"

#include <string.h>

#include "fill.h"

static int coin(void) { return emu_rt.seed && (emu_random() & 1); }
static void step_aside(fiber *f) /* the last to come need not be the first to go */
{
    emu_make_ready(f);
    emu_leave(f);
}

/* ---- warp collectives; complete is NULL for __syncwarp, the only one that orders memory and forgives
 * ended lanes ---- */
static void finish_collective(fiber *self, warp *w, int i)
{
    const open_collective o = w->open[i];
    w->open[i] = w->open[--w->num_open];
    emu_group.progress = 1;
    if (o.complete) o.complete(w->args, o.mask);
    const emu_u32 first = self->tid & ~31u;
    for (emu_u32 m = o.arrived; m; m &= m - 1) {
        fiber *f = self->block->thread[first + (emu_u32)__builtin_ctz(m)];
        if (f != self) emu_make_ready(f);
    }
}
static void collective(emu_u32 mask, emu_complete complete, void *arg, const char *what, emu_site site)
{
    fiber *f = emu_running;
    const emu_u32 bit = 1u << f->lane;
    warp *w = &f->block->warps[f->tid >> 5];
    if (!(mask & bit)) emu_fault(site, "%s: the mask %08x does not name the calling lane %u", what, mask, f->lane);
    if (complete && (mask & w->exited))
        emu_fault(site, "%s: the mask %08x names lanes %08x that have ended or do not exist", what, mask,
                  mask & w->exited);
    int i = 0;
    while (i < w->num_open && w->open[i].mask != mask) i++;
    if (i == w->num_open) {
        if (i == MAX_OPEN) emu_fault(site, "%s: too many different masks in one warp", what);
        w->open[w->num_open++] = (open_collective){ mask, 0, complete, what, site };
    }
    open_collective *o = &w->open[i];
    if (o->complete != complete)
        emu_fault(site, "warp diverged: this lane calls %s, others of the mask %08x wait in %s at %s:%d", what, mask,
                  o->what, emu_base_name(o->site.file), o->site.line);
    w->args[f->lane] = arg;
    o->arrived |= bit;
    if (!complete) {
        emu_release(&w->args[0]);
        w->synced++;
    }
    if (((o->arrived | (complete ? 0 : w->exited)) & mask) == mask) {
        finish_collective(f, w, i);
        if (coin()) step_aside(f);
    } else {
        emu_wait_in(f, COLLECTIVE, NULL, what, site);
    }
    if (!complete) emu_acquire(&w->args[0]);
}

/* ---- barriers of a block; count 0 means all threads that have not ended (__syncthreads) ---- */
static void open_barrier(block *b, barrier *r, fiber *self)
{
    fiber *list = r->waiters;
    for (fiber *f = list; f; f = f->next) f->result = r->sum;
    if (self) self->result = r->sum;
    r->waiters = NULL;
    r->arrived = r->sum = 0;
    r->in_use = 0;
    r->phase++;
    emu_group.progress = emu_group.milestone = 1;
    const int id = (int)(r - b->bar);
    for (emu_u32 w = 0; w < (b->num_threads + 31) / 32; w++) b->warps[w].at[id].file = NULL;
    emu_ready_list(list);
}
static emu_u32 barrier_come(int id, emu_u32 count, int wait, int predicate, const char *what, emu_site site)
{
    fiber *f = emu_running;
    block *b = f->block;
    if (id < 0 || id > 15) emu_fault(site, "%s: there is no barrier %d", what, id);
    if (count % 32) emu_fault(site, "%s (barrier %d): the count %u is not a multiple of 32", what, id, count);
    barrier *r = &b->bar[id];
    if (r->in_use && r->count != count)
        emu_fault(site, "%s (barrier %d): count %u, but others came with %u", what, id, count, r->count);
    emu_site *at = &b->warps[f->tid >> 5].at[id];
    /* a kernel has one copy of a name, as a rule: strcmp at each barrier took a tenth of the time under ASan */
    if (at->file && (at->line != site.line || (at->file != site.file && strcmp(at->file, site.file))))
        emu_fault(site, "%s (barrier %d) in divergent code: other threads of this warp came to it at %s:%d", what, id,
                  emu_base_name(at->file), at->line);
    *at = site;
    b->warps[f->tid >> 5].met++;
    r->count = count;
    r->in_use = 1;
    r->arrived++;
    r->sum += predicate != 0;
    char *sync = &r->sync[r->phase & 1];
    emu_release(sync);
    const emu_u32 expected = count ? count : b->alive;
    if (r->arrived > expected)
        emu_fault(site, "%s (barrier %d): %u threads came, %u expected", what, id, r->arrived, expected);
    if (r->arrived == expected) {
        open_barrier(b, r, f);
        if (coin()) step_aside(f);
    } else if (wait) {
        emu_wait_in(f, BARRIER, &r->waiters, what, site);
    } else if (coin()) {
        step_aside(f);
    }
    if (wait) emu_acquire(sync);
    return f->result;
}

/* ---- the cluster's barrier ---- */
static void check_cluster(cluster *c)
{
    if (c->arrived != c->alive || c->alive == 0) return;
    fiber *list = c->waiters;
    c->waiters = NULL;
    c->arrived = 0;
    c->phase++;
    emu_group.progress = 1;
    emu_ready_list(list);
}
static int cluster_pending(const fiber *f) { return (int)(f->block->cl->phase - f->cluster_target) < 0; }
static void cluster_arrive(int releases, emu_site site)
{
    fiber *f = emu_running;
    cluster *c = f->block->cl;
    if (f->cluster_arrived) emu_fault(site, "cluster_arrive twice without cluster_wait");
    f->cluster_arrived = 1;
    f->cluster_target = c->phase + 1;
    if (releases) emu_release(&c->sync[f->cluster_target & 1]);
    c->arrived++;
    check_cluster(c);
    if (coin()) step_aside(f); /* what it does next may come long after the others' wait */
}
static void cluster_wait(emu_site site)
{
    fiber *f = emu_running;
    cluster *c = f->block->cl;
    if (!f->cluster_arrived) emu_fault(site, "cluster_wait without cluster_arrive");
    if (cluster_pending(f)) emu_wait_in(f, CLUSTER, &c->waiters, "cluster barrier", site);
    f->cluster_arrived = 0;
    emu_acquire(&c->sync[f->cluster_target & 1]);
}
static void remote(emu_u32 rank, const char *what, emu_site site)
{
    const block *b = emu_running->block;
    if ((b + rank - b->rank)->alive == 0)
        emu_fault(site, "%s: block %u of the cluster has ended, its shared memory is gone", what, rank);
}

/* ---- waiting for memory ---- */
static void poll(const char *what, emu_site site)
{
    fiber *f = emu_running;
    emu_wait_in(f, POLL, &f->block->polling, what, site);
}
static void maybe_yield(const char *what, emu_site site)
{
    if (!emu_rt.seed || (emu_random() & 15)) return;
    fiber *f = emu_running;
    f->what = what;
    f->site = site;
    step_aside(f);
}
static fiber **bucket(const void *address) { return &emu_group.bucket[((uintptr_t)address >> 3) % BUCKETS]; }
static void wait_address(const void *address, const char *what, emu_site site)
{
    fiber *f = emu_running;
    f->address = address;
    emu_wait_in(f, ADDRESS, bucket(address), what, site);
    emu_acquire(address);
}
static void wake(const void *address)
{
    emu_group.progress = 1;
    for (fiber **p = bucket(address); *p;) {
        fiber *f = *p;
        if (f->address == address) {
            *p = f->next;
            emu_make_ready(f);
        } else {
            p = &f->next;
        }
    }
}

static void meets(void) { emu_running->block->warps[emu_running->tid >> 5].met++; }

/* ---- programmatic launch: nothing overlaps here, but every thread must wait, and touch no global memory before. It shows
 * where kernels report their accesses (EMU_WEAK), and under ASan, which finds device memory closed in some launches until
 * nobody can go on but those that wait here: the kernel before has ended. ---- */
uint64_t emu_pdl_waits;
static void pdl_wait(void)
{
    fiber *f = emu_running;
    emu_pdl_waits += f->thread->is_early;
    emu_rt.num_early -= f->thread->is_early;
    f->thread->is_early = 0;
    if (emu_group.is_closed) emu_wait_in(f, ADDRESS, &emu_group.at_pdl_wait, "pdl_wait", (emu_site){ "", 0 });
}
void emu_kernel_before_ends(void)
{
    group *g = &emu_group;
    emu_open_memory(g->launch->device, 1);
    g->is_closed = 0;
    emu_ready_list(g->at_pdl_wait);
    g->at_pdl_wait = NULL;
}
static void pdl_reads_constants(void)
{
    emu_running->thread->reads_constants = 1;
    if (emu_group.is_closed)
        emu_kernel_before_ends(); /* memory has no open parts, so that others' reads are not seen */
}
static void early(const void *p)
{
    const emu_thread *t = emu_running->thread;
    if (t->is_early && !t->reads_constants && emu_is_global(p))
        emu_fault((emu_site){ "an access to global memory", 0 },
                  "global memory is accessed before pdl_wait: the kernel before may not have ended");
}

/* ---- static shared memory: an array is placed, and filled, when its first thread comes to the declaration
 * ---- */
static void *shared(const void *key, emu_u64 bytes, emu_u64 align)
{
    const fiber *f = emu_running;
    block *b = f->block;
    unsigned char *base = b->cl->window + b->rank * f->thread->stride;
    for (int i = 0; i < b->num_arrays; i++)
        if (b->array[i].key == key) return base + b->array[i].offset;
    const emu_u32 at = (b->static_used + (emu_u32)align - 1) & ~((emu_u32)align - 1);
    const emu_u32 slack = 64u * (emu_u32)b->num_arrays + GAP; /* the gaps so far are not the kernel's */
    if (b->num_arrays == MAX_ARRAYS || at + bytes > EMU_STATIC_SHARED + slack)
        emu_fault((emu_site){ "static shared memory", 0 },
                  "more than 48 KB of static shared memory, or more than %d arrays", MAX_ARRAYS);
    b->array[b->num_arrays].key = key;
    b->array[b->num_arrays++].offset = at;
    b->static_used = (emu_u32)(at + bytes + 32); /* a gap that ASan guards */
    emu_unpoison(base + at, bytes);
    emu_fill(base + at, bytes);
    return base + at;
}

/* ---- the end of a thread: whoever waits for it need not wait any longer, or waits in vain ---- */
void emu_thread_ends(fiber *f)
{
    block *b = f->block;
    warp *w = &b->warps[f->tid >> 5];
    const emu_u32 bit = 1u << f->lane;
    f->state = DONE;
    emu_fiber_check(f);
    b->alive--;
    emu_group.progress = emu_group.milestone = 1;
    w->exited |= bit;
    for (int i = w->num_open - 1; i >= 0; i--) {
        const open_collective *o = &w->open[i];
        if (!(o->mask & bit)) continue;
        if (o->complete)
            emu_fault(o->site, "%s: the mask %08x names lane %u, which has ended", o->what, o->mask, f->lane);
        if (((o->arrived | w->exited) & o->mask) == o->mask) finish_collective(f, w, i);
    }
    for (int i = 0; i < 16; i++) {
        barrier *r = &b->bar[i];
        if (r->in_use && r->count == 0 && b->alive && r->arrived == b->alive) open_barrier(b, r, NULL);
        if (r->in_use && b->alive == 0)
            emu_fault((emu_site){ "end of the kernel", 0 },
                      "the block ends while %u of %u threads have arrived at barrier %d", r->arrived, r->count, i);
    }
    if (f->cluster_arrived && cluster_pending(f)) b->cl->arrived--;
    b->cl->alive--;
    check_cluster(b->cl);
}

emu_runtime emu_rt = {
    .collective = collective,
    .barrier = barrier_come,
    .cluster_arrive = cluster_arrive,
    .cluster_wait = cluster_wait,
    .poll = poll,
    .maybe_yield = maybe_yield,
    .wait = wait_address,
    .wake = wake,
    .later = emu_later,
    .pdl_wait = pdl_wait,
    .pdl_reads_constants = pdl_reads_constants,
    .early = early,
    .remote = remote,
    .shared = shared,
    .store = emu_weak_store,
    .reduce = emu_weak_reduce,
    .at_once = emu_weak_at_once,
    .fence = emu_weak_fence,
    .meets = meets,
    .fault = emu_fault,
};
