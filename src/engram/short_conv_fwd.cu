/* SPDX-License-Identifier: MIT
 * short_conv_fwd.cu - the short convolution of many rows: blocks that walk over chains of tokens, one stream; sm_90 and
 * up.
 *   computes  as tegula/engram.h says, sums in the order of common/short_conv.h
 *   launch    grid tiles * chains * num_streams * splits, block CONV_THREADS, dynamic shared memory of `stages` rows of
 *             x and, if there is a residual, of the block's columns of it
 *   moves     2 bytes per element of x, residual and out, once each from memory; x again from L2 for every split, and
 *             of KERNEL_SIZE - 1 tokens before each chain
 *   macros    KERNEL_SIZE 1..CONV_WALK_TAPS; CONSUMERS threads that have columns; NORM_WARPS, at most; ROUND_EACH 0, 1
 *
 * A chain is every dilation-th token of a tile: what its taps reach is in the chain. A thread keeps, for its columns,
 * the sums that the next KERNEL_SIZE - 1 results have so far, in the order of taps; a row adds to all of them.
 *
 * Some warps serve the others, which need no barrier among themselves. One says which rows come and has them copied to
 * the stages (bulk copies); norm_warps add the squares of whole rows, in turn. A row has an mbarrier for each step: it
 * is `loaded`, `ready` (its rstd is there) and `done` (all warps have it in registers).
 *
 * Instructions, and how long each takes, are the limit as much as memory: an element takes about 34, of which the
 * sigmoid has 16 (H200, 2026-11: 91 % of the copy rate for 2560 columns).
 *
 * The ring. A token writes its own entry as soon as it is normed, if no other block reads that entry. In chunks that
 * are longer the first tokens read entries that the last ones write. Those first tokens are then all in the block that
 * has the first one (tiles shift their ends, and a block walks over all chains of its tile), and after them it takes
 * the last tokens once more, for the ring alone: a thread writes columns that it has read before. */
#include "engram/short_conv_fwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_RING
#define PAST_BYTES 4
#include "engram/common/requests.cuh"
#include "engram/common/short_conv.cuh"

static_assert(KERNEL_SIZE >= 1 && KERNEL_SIZE <= CONV_WALK_TAPS, "KERNEL_SIZE is 1..CONV_WALK_TAPS");
static_assert(CONSUMERS == CONV_FEW_CONSUMERS || CONSUMERS == CONV_MANY_CONSUMERS, "CONSUMERS is one of two");
static_assert(NORM_WARPS == CONV_FEW_NORM_WARPS || NORM_WARPS == CONV_MANY_NORM_WARPS, "NORM_WARPS is one of two");
static_assert(ROUND_EACH == 0 || ROUND_EACH == 1, "ROUND_EACH is 0 or 1");

enum { THREADS = CONV_THREADS(CONSUMERS, NORM_WARPS) };

#if __CUDA_ARCH__ >= 900
enum { LAST = KERNEL_SIZE - 1, WARPS = CONSUMERS / 32, COLUMNS = CONV_COLUMNS };

/* What is done with a row. END: there are no more. STARTS: rows before it come from the ring. PLAIN: alive, with a
 * result, and nothing else to do; there is an activation and no bias. */
enum { ALIVE = 1, HAS_OUT = 2, STARTS = 4, WRITES = 8, END = 16, PLAIN = 32 };
struct item {
    u32 state;
    float rstd;
    u16 *out;                /* of the block's first column */
    i64 token, slot;         /* slot: of its request the row of the ring, with ... */
    i32 start, reach, depth; /* ... its first entry, tokens before the chunk; if it STARTS, tokens of the chunk */
    i32 entry;               /* that it writes */
};

/* What a block does: tokens begin .. end - 1; requests that begin in tile_begin .. tile_end - 1. */
struct task {
    tgl_span head;
    i64 begin, end, tile_begin, tile_end, h;
    i32 chain, chain_end;
};

struct pipe {
    u32 stages, loaded, ready, done, headers, row_bytes, stage_bytes;
    item *items;
};

/* A span and, if it is one, its request. */
struct request {
    tgl_span span;
    tgl_request r;
};

DEV request request_in(const tgl_windows &w, const tgl_span &span)
{
    request made = { span, { span.place, -1, 0, 0 } };
    if (tgl_is_request(&w, &span)) made.r = tgl_request_at(&w, span.place);
    return made;
}
DEV request request_at(const tgl_windows &w, const tgl_place &place)
{
    const bool has_end = place.number < 0 || is_in_request(w, place);
    return request_in(w, { place, has_end ? tgl_end_of(&w, &place) : NO_END });
}

DEV bool writes_apart(const tgl_windows &w, const request &q)
{
    return tgl_writes_apart(&w, q.span.end - q.span.place.begin);
}
DEV bool writes_later(const tgl_windows &w, const request &q)
{
    return w.writes_ring && q.r.slot >= 0 && !writes_apart(w, q);
}
/* Tokens of the chunk that one block has: the first ones, which read the ring that the last ones write. */
DEV i64 tokens_together(const tgl_windows &w, const request &q)
{
    return writes_later(w, q) ? min(q.span.end - q.span.place.begin, (i64)w.max_ngram - 1) : 0;
}

/* ---- warps that serve the others ---- */

/* Where it is. Past the last chain it goes from request to request, for the ring. */
struct cursor {
    request q;
    i64 token, out_from; /* token -1: the request has not been looked at */
    i32 chain;
    bool is_past_chains;
};

DEV void begin_chain(const short_conv_args &a, const task &k, cursor &c)
{
    tgl_span span = k.head;
    c.token = c.out_from = k.begin + c.chain;
#pragma unroll 1
    while (c.token >= span.end) span = tgl_next_span(&a.requests, span);
    c.q = request_in(a.requests, span);
    i64 depth = tgl_is_request(&a.requests, &span) && c.token < k.end ? c.token - span.place.begin : 0;
#pragma unroll
    for (int j = 0; j < LAST; j++) {
        if (depth < a.dilation) continue;
        c.token -= a.dilation;
        depth -= a.dilation;
    }
}

/* The next of the tokens that are taken once more, for the ring. */
DEV item stored_item(const short_conv_args &a, const task &k, cursor &c)
{
    const tgl_windows &w = a.requests;
    item made = {};
    made.state = END;
    if (!w.writes_ring) return made;
    tgl_span span = c.token < 0 ? k.head : c.q.span;
#pragma unroll 1
    while (c.token < 0 || c.token >= span.end) {
        if (c.token >= 0) {
            if (span.end >= k.tile_end) return made; /* of the last span, too: it has no end */
            span = tgl_next_span(&w, span);
        }
        c.q = request_in(w, span);
        const bool has_any = span.place.begin >= k.tile_begin && writes_later(w, c.q);
        c.token = has_any ? max(span.place.begin, span.end - w.ring_size) : span.end;
    }
    made.token = c.token++;
    made.state = WRITES | (w.image_token_mask && w.image_token_mask[made.token] ? 0 : ALIVE);
    made.slot = c.q.r.slot;
    made.entry = (i32)tgl_ring_entry(&w, c.q.r.start + (made.token - span.place.begin));
    return made;
}

/* first: column of the block */
DEV item next_item(const short_conv_args &a, const task &k, i64 first, cursor &c)
{
    const tgl_windows &w = a.requests;
#pragma unroll 1
    while (!c.is_past_chains && c.token >= k.end) {
        c.is_past_chains = ++c.chain >= k.chain_end;
        if (c.is_past_chains) c.token = -1;
        else begin_chain(a, k, c);
    }
    if (c.is_past_chains) return stored_item(a, k, c);
    if (c.token >= c.q.span.end) {
        tgl_span span = c.q.span;
#pragma unroll 1
        while (c.token >= span.end) span = tgl_next_span(&w, span);
        c.q = request_in(w, span);
    }
    item made = { c.token >= c.out_from ? HAS_OUT : 0u,
                  0,
                  a.out.data + c.token * a.out.token + k.h * a.out.stream + first,
                  c.token,
                  c.q.r.slot,
                  (i32)c.q.r.start,
                  c.q.r.reach,
                  0,
                  0 };
    if (tgl_is_request(&w, &c.q.span)) {
        const i64 depth = c.token - c.q.span.place.begin;
        if (!(w.image_token_mask && w.image_token_mask[c.token])) made.state |= ALIVE;
        if (depth < a.dilation) made.state |= STARTS, made.depth = (i32)depth;
        /* if no result of the block reaches beyond the chunk's first token: other blocks may write the ring by now */
        if (c.out_from - c.q.span.place.begin >= (i64)LAST * a.dilation) made.reach = 0;
        if (made.state & HAS_OUT && w.writes_ring && c.q.r.slot >= 0 && writes_apart(w, c.q)) {
            made.state |= WRITES;
            made.entry = (i32)tgl_ring_entry(&w, c.q.r.start + depth);
        }
    }
    c.token += a.dilation;
    if (made.state == (ALIVE | HAS_OUT) && a.numbers.has_activation && !a.bias.data) made.state |= PLAIN;
    return made;
}

/* Where the rows of an item are. */
struct source { const u16 *x, *residual; };

DEV source source_of(const short_conv_args &a, i64 h, i64 first, i64 token)
{
    const gate_in &r = a.residual.data ? a.residual : a.x; /* no arithmetic with NULL */
    return { a.x.data + token * a.x.token + h * a.x.stream, r.data + token * r.token + h * r.stream + first };
}

/* Has the rows of an item copied to its stage, by one thread. */
DEV void copy_rows(const pipe &p, const source &from, u32 residual_bytes, int stage)
{
    const u32 bar = p.loaded + 8 * stage, to = p.stages + stage * p.stage_bytes;
    mbar_expect(bar, p.row_bytes + residual_bytes);
    bulk_load(to, from.x, p.row_bytes, bar);
    if (residual_bytes) bulk_load(to + p.row_bytes, from.residual, residual_bytes, bar);
}

DEV void load_rows(const short_conv_args &a, const task &k, const pipe &p, u32 num_columns, i64 first)
{
    const bool is_first = threadIdx.x % 32 == 0;
    cursor c = {};
    c.chain = k.chain - 1, c.token = k.end; /* the first chain is next */
    int stage = 0, ends = 0;                /* an end for every warp of add_squares() */
    u32 parity = 1;                         /* stages without a row are done */
#pragma unroll 1
    while (ends < a.norm_warps) {
        item made = next_item(a, k, first, c);
        const bool is_end = made.state & END;
        const u32 residual_bytes = a.residual.data && made.state & HAS_OUT ? num_columns * 2 : 0;
        source from = source_of(a, k.h, first, made.token);
        /* The rows that follow in the request, if all that differs is the token: most, and these take few steps. */
        i64 count = 1;
        if ((made.state & ~(u32)PLAIN) == (ALIVE | HAS_OUT) && !a.requests.image_token_mask)
            count += (min(k.end, c.q.span.end) - 1 - made.token) / a.dilation;
        c.token += (count - 1) * a.dilation;
        const i64 x_step = a.x.token * a.dilation, residual_step = a.residual.data ? a.residual.token * a.dilation : 0;
#pragma unroll 1
        for (; count > 0; count--) {
            if (is_first) { /* others could miss a phase of `done` */
                mbar_wait(p.done + 8 * stage, parity);
                p.items[stage] = made;
                if (is_end) mbar_arrive(p.loaded + 8 * stage);
                else copy_rows(p, from, residual_bytes, stage);
            }
            __syncwarp();
            made.token += a.dilation;
            made.out += a.out.token * a.dilation;
            from.x += x_step, from.residual += residual_step;
            stage = stage + 1 < a.stages ? stage + 1 : 0;
            if (stage == 0) parity ^= 1;
        }
        ends += is_end;
    }
}

/* rstd of every norm_warps-th row, from `stage` on: of the same stages every time. */
DEV void add_squares(const short_conv_args &a, i64 h, const pipe &p, i64 first, int stage)
{
    const int lane = threadIdx.x % 32, vectors = (int)(p.row_bytes / 16);
    u32 parity = 0;
#pragma unroll 1
    while (true) {
        item &of = p.items[stage];
        mbar_wait(p.loaded + 8 * stage, parity);
        const u32 state = of.state;
        if (state & END) { /* which the others are to see, too */
            if (lane == 0) mbar_arrive(p.ready + 8 * stage);
            return;
        }
        const float rstd = conv_rstd(&a.numbers, squares_of_row(p.stages + stage * p.stage_bytes, vectors));
        __syncwarp(); /* all lanes have read the state and the row: lane 0 arrives for them */
        if (lane == 0) {
            of.rstd = rstd;
            if (state & HAS_OUT && a.rstd && first == 0)
                a.rstd[of.token * a.num_streams + h] = state & ALIVE ? tgl_one_nan(rstd) : 0;
            mbar_arrive(p.ready + 8 * stage);
        }
        stage += a.norm_warps;
        if (stage >= a.stages) stage -= a.stages, parity ^= 1; /* a multiple of norm_warps */
    }
}

/* ---- warps with columns ---- */

struct weights { float norm[COLUMNS], conv[COLUMNS][KERNEL_SIZE]; };

/* What a thread has: columns of stream h from `first` on; where they are in the first stage. */
struct columns {
    i64 h, first;
    u32 x, residual;
    u32 at; /* the first, counted from the block's */
    bool are_mine;
};

DEV void load_weights(const short_conv_args &a, const columns &k, weights &w)
{
    const i64 channel = k.h * a.hidden + k.first;
    load_norm(a.norm, a.numbers, k.h, k.first, w.norm);
#pragma unroll
    for (int v = 0; v < KERNEL_SIZE; v++) {
        float some[COLUMNS];
        load_vector(a.conv, channel * KERNEL_SIZE + v * COLUMNS, some);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            const int n = v * COLUMNS + i;
            w.conv[n / KERNEL_SIZE][n % KERNEL_SIZE] = some[i];
        }
    }
}

/* Sums of the results of the next tokens of the chain, the next one first: the taps that they have so far. */
struct sums { float of[KERNEL_SIZE][COLUMNS]; }; /* [LAST]: no tap */

/* One more row: the sum of its own result is complete. */
DEV void add_taps(const weights &w, const float (&row)[COLUMNS], sums &s, float (&z)[COLUMNS])
{
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        z[i] = fmaf(w.conv[i][LAST], row[i], s.of[0][i]);
#pragma unroll
        for (int j = 0; j < LAST; j++) s.of[j][i] = fmaf(w.conv[i][LAST - 1 - j], row[i], s.of[j + 1][i]);
    }
}
DEV void add_row(const short_conv_args &a, const columns &k, const weights &w, const uint2 &packed, sums &s,
                 float (&z)[COLUMNS])
{
    float row[COLUMNS];
    unpack(packed, row);
    if (a.bias.data) { /* no model has one: it is read for every token */
        load_vector(a.bias, k.h * a.hidden + k.first, s.of[LAST]);
        add_taps(w, row, s, z);
    } else {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) s.of[LAST][i] = 0;
        add_taps(w, row, s, z);
    }
}

/* Its columns of a row, at the first of them. */
DEV void store(const columns &k, u16 *to, const uint2 &v)
{
    if (k.are_mine) *(uint2 *)to = v;
}

/* The rows before a chunk: of the ring, or nothing. */
DEV void add_past(const short_conv_args &a, const columns &k, const weights &w, const item &of, sums &s)
{
#pragma unroll 1
    for (int lag = LAST; lag > 0; lag--) {
        const i32 before = lag * a.dilation - of.depth, entry = of.start - before;
        const i64 from = conv_ring_row(&a, of.slot, entry < 0 ? entry + a.requests.ring_size : entry, k.h);
        uint2 row = {};
        /* else another thread may write it by now */
        if (before <= of.reach && k.are_mine) row = *(const uint2 *)(a.ring + k.first + from);
        float unused[COLUMNS];
        add_row(a, k, w, row, s, unused);
    }
}

DEV void release(u32 done) /* the stage, once all lanes have read it */
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbar_arrive(done);
}

DEV void put_result(const columns &k, const uint4 &header, const uint2 &v)
{
    store(k, (u16 *)((u64)header.w << 32 | header.z) + k.at, v);
}

/* A row that is PLAIN. */
template <bool ADDS_INPUT, bool HAS_RESIDUAL>
DEV void convolve_plain(const columns &k, u32 done, const uint4 &header, const uint2 &x, const uint2 &residual,
                        const weights &w, sums &s)
{
    release(done);
    float row[COLUMNS], z[COLUMNS], out[COLUMNS];
    find_normed(x, __uint_as_float(header.y), w.norm, row);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) s.of[LAST][i] = 0;
    add_taps(w, row, s, z);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const float of = ROUND_EACH ? conv_rounded(z[i]) : z[i];
        const conv_numbers n = { 0, 0, 0, true, ADDS_INPUT };
        out[i] = conv_result(&n, of, reciprocal(conv_sigmoid_divisor(of)), column(x, i), HAS_RESIDUAL,
                             column(residual, i), ROUND_EACH);
    }
    put_result(k, header, pack(out));
}

DEV void convolve_any(const short_conv_args &a, const columns &k, u32 done, const uint4 &header, const uint2 &x,
                      const uint2 &loaded, const item &of, const weights &w, sums &s)
{
    const u32 state = header.x;
    const bool has_residual = a.residual.data && state & HAS_OUT;
    uint2 residual = {}, row = {};
    if (has_residual) residual = loaded;
    if (state & STARTS) add_past(a, k, w, of, s);
    if (state & ALIVE) row = normed(x, __uint_as_float(header.y), w.norm);
    if (state & WRITES) store(k, a.ring + k.first + conv_ring_row(&a, of.slot, of.entry, k.h), row);
    release(done);
    float z[COLUMNS];
    add_row(a, k, w, row, s, z);
    if (!(state & HAS_OUT)) return;
    put_result(k, header, state & ALIVE ? result_of(a.numbers, z, x, has_residual, residual, ROUND_EACH) : residual);
}

DEV void convolve(const short_conv_args &a, const pipe &p, const columns &k)
{
    weights w;
    load_weights(a, k, w);
    sums s = {};
#pragma unroll 1
    for (u32 parity = 0;; parity ^= 1) {
#pragma unroll 1
        for (int stage = 0; stage < a.stages; stage++) {
            const u32 offset = stage * p.stage_bytes, done = p.done + 8 * stage;
            mbar_wait(p.ready + 8 * stage, parity);
            const uint4 header = shared_load_u32x4(p.headers + stage * (u32)sizeof(item));
            const uint2 x = shared_load_u32x2(k.x + offset), residual = shared_load_u32x2(k.residual + offset);
            if (header.x & PLAIN) {
                /* A question for a row, not for each of its elements. */
                if (a.numbers.adds_input && a.residual.data)
                    convolve_plain<true, true>(k, done, header, x, residual, w, s);
                else if (a.numbers.adds_input) convolve_plain<true, false>(k, done, header, x, residual, w, s);
                else if (a.residual.data) convolve_plain<false, true>(k, done, header, x, residual, w, s);
                else convolve_plain<false, false>(k, done, header, x, residual, w, s);
            } else {
                if (header.x & END) return;
                convolve_any(a, k, done, header, x, residual, p.items[stage], w, s);
            }
        }
    }
}

static_assert(sizeof(request_scratch<THREADS>) + sizeof(task) + (sizeof(item) + 24) * CONV_STAGES <=
                  CONV_FIXED_BYTES - 256,
              "CONV_FIXED_BYTES is too small");

DEV void run(const short_conv_args &a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(u64[3 * CONV_STAGES], bars);
    SHARED(item[CONV_STAGES], items);
    SHARED(task, shared_task);
    SHARED(request_scratch<THREADS>, scratch);
    const u32 row_bytes = (u32)a.hidden * 2, split_vectors = (u32)a.split_vectors;
    i64 block = (i64)blockIdx.y * gridDim.x + blockIdx.x;
    const u32 split = (u32)(block % a.splits);
    block /= a.splits;
    const i64 h = block % a.num_streams;
    block /= a.num_streams;
    const i32 chain = (i32)(block % a.chains);
    const i64 tile_begin = block / a.chains * a.tile_tokens, tile_end = min(tile_begin + a.tile_tokens, a.num_tokens);
    const u32 vectors = min(split_vectors, row_bytes / 16 - split * split_vectors);
    const i64 first = (i64)split * split_vectors * CONV_VECTOR;
    const u32 bar = kept_u32(shared_address(bars)); /* else computed again for every row */
    const pipe p = { shared_address(memory),
                     bar,
                     bar + 8 * CONV_STAGES,
                     bar + 16 * CONV_STAGES,
                     kept_u32(shared_address(items)),
                     row_bytes,
                     kept_u32(row_bytes + (a.residual.data ? split_vectors * 16 : 0)),
                     items };
    const u32 num_columns = vectors * CONV_VECTOR, warps = (num_columns + 32 * COLUMNS - 1) / (32 * COLUMNS);
    if (tile_begin >= a.num_tokens) return; /* of all threads */
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < a.stages; i++) {
            mbar_init(p.loaded + 8 * i, 1);
            mbar_init(p.ready + 8 * i, 1);
            mbar_init(p.done + 8 * i, warps);
        }
        mbar_init_fence();
    }
    pdl_wait();
    const tgl_windows &w = a.requests;
    const bool has_all = w.writes_ring; /* chains of the tile */
    task &k = shared_task;
#pragma unroll 1
    for (int i = 0; i < (has_all ? 2 : 1); i++) { /* the first token of the tile, the last one */
        const tgl_place place = find_place(w, i == 0 ? tile_begin : tile_end - 1, scratch);
        if (threadIdx.x == 0) { /* whose place this is */
            const request q = request_at(w, place);
            const i64 together = tokens_together(w, q);
            if (i == 0) {
                const i64 begin = place.begin < tile_begin ? max(tile_begin, place.begin + together) : tile_begin;
                k = { q.span, begin, tile_end, tile_begin, tile_end, h, has_all ? 0 : chain, chain + 1 };
            } else if (place.begin >= tile_begin) {
                k.end = max(tile_end, place.begin + together);
            }
        }
        __syncthreads(); /* scratch has been read */
    }
    if (has_all && threadIdx.x == 0) k.chain_end = (i32)max((i64)0, min((i64)a.dilation, k.end - k.begin));
    __syncthreads(); /* mbarriers are initialised */
    /* The compiler is to know that all lanes have the same role: it sees that from a shuffle and constants. */
    const u32 warp = __shfl_sync(FULL, threadIdx.x / 32, 0);
    if (warp < WARPS) {
        const bool are_mine = threadIdx.x * COLUMNS < num_columns; /* else as the first thread, without results */
        const u32 at = are_mine ? threadIdx.x * COLUMNS : 0;
        const u32 x = p.stages + (u32)(first + at) * 2;
        const columns k = { h, first + at, x, a.residual.data ? p.stages + row_bytes + at * 2 : x, at, are_mine };
        if (warp < warps) convolve(a, p, k); /* else it has no columns */
    } else if (warp == WARPS) {
        load_rows(a, shared_task, p, num_columns, first);
    } else if ((int)warp - WARPS - 1 < a.norm_warps) {
        add_squares(a, h, p, first, (int)warp - WARPS - 1);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, CONV_SM_BLOCKS(CONSUMERS))
    short_conv_fwd(const __grid_constant__ short_conv_args a)
{
#if __CUDA_ARCH__ >= 900
    run(a);
    pdl_trigger();
#endif
}
