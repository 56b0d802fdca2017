/* SPDX-License-Identifier: MIT
 * grid.c - a grid from begin to end: the groups in turn, the threads of a group, the verdict. */
#include "grid.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fill.h"
#include "scheduler.h"

_Static_assert(sizeof(fiber) % 8 == 0 && sizeof(emu_thread) % 8 == 0, "make_thread() clears words");
struct emu_stats emu_stats;
uint64_t emu_launches_of_seed;

void emu_set_seed(uint64_t seed)
{
    emu_rt.seed = seed;
    emu_launches_of_seed = emu_num_fills = 0;
}
uint32_t emu_starve;
static char launch_sync, end_sync; /* TSan: what happens before all threads, and after */

static struct { /* grows to the largest group seen */
    fiber **threads, **queues;
    warp *warps;
    block *blocks, **ready;
    cluster *clusters;
    size_t num_threads, num_blocks, num_warps;
    unsigned char *window; /* shared memory of all blocks */
    size_t window_bytes;
} pool;

static void thread_main(void)
{
    fiber *f = emu_running;
    emu_fiber_entered();
    emu_acquire(&launch_sync);
    emu_group.launch->entry->call(emu_group.launch->args);
    emu_release(&end_sync);
    emu_thread_ends(f);
    emu_fiber_switch(f, emu_pick(), 1);
    __builtin_unreachable();
}

static void *grown(void *p, size_t n, size_t size)
{
    p = realloc(p, n * size);
    if (!p) abort();
    return p;
}
static int reserve(size_t blocks, size_t ring, size_t warps, size_t window_bytes)
{
    if (pool.num_threads < blocks * ring) {
        pool.num_threads = blocks * ring;
        pool.threads = grown(pool.threads, pool.num_threads, sizeof *pool.threads);
        pool.queues = grown(pool.queues, pool.num_threads, sizeof *pool.queues);
    }
    if (pool.num_warps < blocks * warps) {
        pool.num_warps = blocks * warps;
        pool.warps = grown(pool.warps, pool.num_warps, sizeof *pool.warps);
    }
    if (pool.num_blocks < blocks) {
        pool.num_blocks = blocks;
        pool.blocks = grown(pool.blocks, blocks, sizeof *pool.blocks);
        pool.ready = grown(pool.ready, blocks, sizeof *pool.ready);
        pool.clusters = grown(pool.clusters, blocks, sizeof *pool.clusters);
    }
    if (pool.window_bytes < window_bytes) {
        if (pool.window) munmap(pool.window, pool.window_bytes);
        pool.window_bytes = window_bytes;
        pool.window =
            mmap(NULL, window_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (pool.window == MAP_FAILED) {
            pool.window = NULL;
            pool.window_bytes = 0;
            return -1;
        }
    }
    return 0;
}

static void reset_group(const emu_launch *l, emu_u32 num_blocks, emu_u32 num_warps)
{
    group *g = &emu_group;
    const emu_u64 rng = g->rng;
    memset(g, 0, sizeof *g);
    g->rng = rng;
    g->launch = l;
    g->blocks = pool.blocks;
    g->ready = pool.ready;
    g->num_blocks = num_blocks;
    g->last_milestone = emu_now();
    if (!emu_rt.seed) return;
    g->next_random = emu_random();
    if (emu_starve) {
        g->order = STARVE;
        g->starved = emu_starve;
        return;
    }
    g->order = ANYONE + (int)(emu_random() % (NUM_ORDERS - ANYONE));
    if (g->order != STARVE) return;
    if (emu_random() & 1) g->starved = 1u << emu_random() % num_warps;
    else g->starved = (emu_u32)(emu_random() & emu_random()); /* about a quarter */
}

static void start_threads(block *b, emu_u32 num_warps)
{
    emu_u32 first[32], rotate = 0; /* warps in random order, lanes rotated */
    for (emu_u32 w = 0; w < num_warps; w++) first[w] = w;
    if (emu_rt.seed) {
        for (emu_u32 w = num_warps; w > 1; w--) {
            const emu_u32 j = (emu_u32)(emu_random() % w), t = first[j];
            first[j] = first[w - 1];
            first[w - 1] = t;
        }
        rotate = emu_random() & 31;
    }
    for (emu_u32 w = 0; w < num_warps; w++)
        for (emu_u32 k = 0; k < 32; k++) {
            const emu_u32 t = first[w] * 32 + ((k + rotate) & 31);
            if (t < b->num_threads) emu_make_ready(b->thread[t]);
        }
}

static fiber *make_thread(const emu_launch *l, block *b, emu_u32 slot, emu_u32 t, emu_u32 cluster_size, size_t stride)
{
    fiber *f = emu_fiber_slot(slot);
    if (!f) return NULL;
    emu_thread *p = f->thread;
    char *chunk = f->chunk;
    void *tsan = f->tsan; /* TSan's fibers are used again, too */
    /* Words and fields one by one: in a process with ASan, memset and memcpy are functions that look at all of the memory. */
    typedef volatile emu_u64 __attribute__((may_alias)) word;
    for (size_t i = 0; i < sizeof *f / 8; i++) ((word *)f)[i] = 0;
    for (size_t i = 0; i < sizeof *p / 8; i++) ((word *)p)[i] = 0;
    f->chunk = chunk;
    f->thread = p;
    f->tsan = tsan;
    f->block = b;
    f->tid = t;
    f->lane = t & 31;
    p->thread = (emu_dim){ t % l->block.x, t / l->block.x % l->block.y, t / l->block.x / l->block.y };
    p->block = b->index;
    p->block_dim = l->block;
    p->grid_dim = l->grid;
    p->tid = t;
    p->lane = t & 31;
    p->rank = b->rank;
    p->cluster_size = cluster_size;
    p->in_cluster = (emu_u32)l->has_cluster;
    p->dynamic = STATIC_RESERVE;
    p->shared_bytes = (emu_u32)l->dynamic_bytes;
    p->stride = stride;
    p->window = b->cl->window;
    p->is_early = l->pdl != 0;
    emu_fiber_start(f, thread_main);
    return f;
}

/* Runs whole units together: a unit is a cluster (neighbours along x) or a block. */
static int run_group(const emu_launch *l, const emu_u32 *units, emu_u32 num_units, int is_closed)
{
    group *g = &emu_group;
    const emu_u32 threads = l->block.x * l->block.y * l->block.z, num_warps = (threads + 31) / 32;
    const emu_u32 cluster_size = l->cluster.x * l->cluster.y * l->cluster.z, n = num_units * cluster_size;
    const size_t stride = (STATIC_RESERVE + l->dynamic_bytes + GAP + 1023) / 1024 * 1024,
                 window_bytes = stride * n + GAP;
    emu_u32 ring = 32;
    while (ring < threads) ring *= 2;
    if (reserve(n, ring, num_warps, window_bytes)) return -1;
    emu_poison(pool.window, window_bytes);
    reset_group(l, n, num_warps);
    g->is_closed = is_closed;
    if (is_closed) emu_explain_asan();
    memset(pool.warps, 0, (size_t)n * num_warps * sizeof *pool.warps);
    emu_fiber_group();
    for (emu_u32 i = 0; i < n; i++) {
        block *b = &pool.blocks[i];
        memset(b, 0, sizeof *b);
        const emu_u32 at = units[i / cluster_size] * cluster_size + i % cluster_size;
        b->index = (emu_dim){ at % l->grid.x, at / l->grid.x % l->grid.y, at / l->grid.x / l->grid.y };
        b->num_threads = b->alive = threads;
        b->ring = ring;
        b->queue = pool.queues + (size_t)i * ring;
        b->thread = pool.threads + (size_t)i * ring;
        b->warps = pool.warps + (size_t)i * num_warps;
        if (threads % 32) b->warps[num_warps - 1].exited = ~0u << threads % 32;
        b->rank = i % cluster_size;
        b->cl = &pool.clusters[i / cluster_size];
        if (b->rank == 0) *b->cl = (cluster){ .alive = threads * cluster_size, .window = pool.window + stride * i };
        b->static_used = GAP;
        unsigned char *dynamic = b->cl->window + b->rank * stride + STATIC_RESERVE;
        emu_unpoison(dynamic, l->dynamic_bytes);
        emu_fill(dynamic, l->dynamic_bytes);
        for (emu_u32 t = 0; t < threads; t++) {
            b->thread[t] = make_thread(l, b, i * threads + t, t, cluster_size, stride);
            if (!b->thread[t]) return -1;
        }
        start_threads(b, num_warps);
    }
    emu_stats.threads += (uint64_t)n * threads;
    emu_rt.num_early = l->pdl ? n * threads : 0;
    emu_release(&launch_sync);
    emu_weak_begin();
    fiber *to = emu_pick();
    if (to != &emu_main_fiber) emu_fiber_switch(&emu_main_fiber, to, 0);
    emu_acquire(&end_sync);
    emu_weak_end();

    emu_u32 alive = 0;
    for (emu_u32 i = 0; i < n; i++) alive += pool.blocks[i].alive;
    if (!g->failed && alive) {
        emu_report_deadlock();
        g->failed = 1;
    } else if (!g->failed && g->num_async) {
        emu_report_copies();
        g->failed = 1;
    }
    if (g->failed)
        for (emu_u32 i = 0; i < n * threads; i++) emu_fiber_abandon(emu_fiber_slot(i), &end_sync);
    emu_unpoison(pool.window, window_bytes);
    if (g->is_closed) emu_open_memory(l->device, 1); /* nobody has waited */
    return g->failed;
}

int emu_run(const emu_launch *l)
{
    const double start = emu_now();
    const emu_u32 cluster_size = l->cluster.x * l->cluster.y * l->cluster.z;
    const emu_u32 units = l->grid.x * l->grid.y * l->grid.z / cluster_size;
    emu_stats.launches++;
    emu_group.rng = (emu_rt.seed + ++emu_launches_of_seed) * 0x9e3779b97f4a7c15ull | 1;
    emu_u32 *order = grown(NULL, units, sizeof *order);
    for (emu_u32 i = 0; i < units; i++) order[i] = i;
    for (emu_u32 i = units; emu_rt.seed && i > 1; i--) {
        const emu_u32 j = (emu_u32)(emu_random() % i), t = order[j];
        order[j] = order[i - 1];
        order[i - 1] = t;
    }
    int failed = 0;
    emu_pdl_waits = 0;
    /* Not every time: threads that wait for each other at pdl_wait need no barrier there. */
    const int is_closed = l->pdl && emu_has_asan() && emu_rt.seed && (emu_random() & 3) == 0;
    if (!is_closed) emu_open_memory(l->device, 1);
    for (emu_u32 i = 0; i < units && !failed;) {
        /* with a seed a plain launch has 1 to 4 units alive at a time: they race, but cannot rely on it */
        emu_u32 n = l->cooperative ? units : emu_rt.seed ? 1 + (emu_u32)(emu_random() & 3) : 1;
        if (n > units - i) n = units - i;
        failed = run_group(l, order + i, n, is_closed && i == 0);
        i += n;
    }
    const uint64_t blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    const uint64_t threads = blocks * l->block.x * l->block.y * l->block.z;
    if (!failed && l->pdl && emu_pdl_waits < threads) {
        emu_report_text("fault", l->entry->name,
                        "launched to overlap the kernel before it, but not every thread calls pdl_wait");
        failed = 1;
    }
    emu_open_memory(l->device, 0);
    emu_group.launch = NULL;
    free(order);
    emu_stats.seconds += emu_now() - start;
    return failed;
}
