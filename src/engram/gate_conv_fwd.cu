/* SPDX-License-Identifier: MIT
 * gate_conv_fwd.cu - gate and short convolution of chains of tokens; sm_90 and up. A chain is every dilation-th token:
 * what a tap reaches back to is in the same chain.
 *   computes  as tegula/engram.h says, sums in the orders of common/gate.h and common/short_conv.h
 *   launch    grid tiles of tile_rows * dilation tokens * chains * num_streams * PARTS (block b: part b % PARTS of a
 *             cluster, whose stream is the next digit), block GATE_CONV_THREADS(CONV_THREADS, COLUMNS), dynamic shared
 *             memory of the part's weights of the gate (f32), some of the others (KEEPS_SOME), and `stages` rows of x,
 *             k and v
 *   moves     6 bytes per element of x, 2 of v, once each from memory, and x, k and v of the rows that a tile reaches
 *             back to; from L2 v again for every stream
 *   macros    CONV_THREADS that convolve: GATE_CONV_FEW, _MANY, _HALF, _WIDE; COLUMNS of each; PARTS 1, 2, 4 of a row
 *
 * Three kinds of warps pass rows on. One warp has copies bring x, k and v of a token into a stage. Of others each
 * takes a row: it adds up its sums, replaces v by the gated value, and finds its rstd; a row's numbers are computed
 * once, not by every thread. The CONV_THREADS others have the same COLUMNS of all tokens: weights
 * stay in registers, and so do the sums that later tokens of the chain begin with. With rows a of the chain,
 *     z = fma(w[3], a, s[0]);  s[0] = fma(w[2], a, s[1]);  s[1] = fma(w[1], a, s[2]);  s[2] = fma(w[0], a, bias)
 * adds the taps of every token in ascending order, and nothing has to be kept or unpacked again. None of these threads
 * waits for another but for stages.
 *
 * A row with more columns than CONV_THREADS have is shared by the blocks of a cluster. Each adds up the gate's sums and
 * the norm's over its columns, and tells all of them the sums of its groups, which each adds in order: same bits.
 *
 * The ring. A token writes its own entry as soon as it is normed, if no other block reads that entry. In chunks that
 * are longer the first tokens read entries that the last ones write. What the first rows of a chain read of the ring,
 * one block reads (tiles shift their ends), and each of its threads writes these entries after it has read them: the
 * last tokens of such chunks follow the tile's as rows that have no result. */
#include "device/integer.cuh"
#include "device/reduce.cuh"
#include "engram/gate_conv_fwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_RING
#define PAST_BYTES 4
#include "engram/common/requests.cuh"
#include "engram/common/short_conv.cuh"

static_assert(CONV_THREADS == GATE_CONV_FEW || CONV_THREADS == GATE_CONV_MANY || CONV_THREADS == GATE_CONV_HALF ||
                  CONV_THREADS == GATE_CONV_WIDE,
              "CONV_THREADS is one of four");
static_assert(COLUMNS == CONV_VECTOR || (COLUMNS == GATE_CONV_MORE_COLUMNS && CONV_THREADS == GATE_CONV_MANY),
              "COLUMNS is 8, or 10");
static_assert(PARTS == 1 || PARTS == 2 || PARTS == 4, "PARTS is 1, 2 or 4");

#if __CUDA_ARCH__ >= 900
enum {
    GATE_WARPS = GATE_CONV_WARPS(CONV_THREADS, COLUMNS),
    CONV_WARPS = CONV_THREADS / 32,
    ALL_GROUPS = GATE_CONV_GROUPS,
    GROUPS = ALL_GROUPS / PARTS,
    SLOTS = GATE_SLOTS / PARTS, /* of the gate's sums */
    KEEPS_SOME = GATE_CONV_KEEPS_SOME(CONV_THREADS, COLUMNS),
    MORE = COLUMNS - CONV_VECTOR,            /* columns of a thread besides its vector: 2, or none */
    MORE_FIRST = CONV_THREADS * CONV_VECTOR, /* of the part's columns the first that is not in a vector */
    SPAN = GATE_CONV_SPAN / PARTS,           /* vectors of a part that follow each other */
    FIRST_CONV = 32 * (GATE_WARPS + 1),      /* warps: those that find gates, the one that loads, those that convolve */
    TAPS = GATE_CONV_TAPS,
    PAST_ROWS = TAPS - 1,
    TOKENS = GATE_CONV_ROWS + 2 * PAST_ROWS
};
static_assert(GATE_GROUP == CONV_GROUP && GATE_VECTOR == CONV_VECTOR, "a warp has a group at a time");
static_assert(GATE_CONV_COLUMNS <= 32 * CONV_GROUP * CONV_VECTOR, "a lane has a group");
static_assert(GATE_CONV_LINE == CONV_GROUP * 4 + 16, "a line is the sums of a group, and more");

/* ---- tokens ---- */

/* What a block knows of a token. PLAIN: see convolve_rows(). */
enum { ALIVE = 1, WRITES = 2, WRITES_LATER = 4, PLAIN = 8, LATE = 16 };
struct token {
    i64 slot, end;           /* of its request: row of the ring, behind its last token */
    i32 depth, reach, start; /* tokens of the chunk before it, tokens before the chunk, the chunk's first entry */
    u32 state;
};

DEV token token_at(const tgl_windows &w, const tgl_place &place, i64 t, i32 dilation)
{
    token made = {};
    if (t < 0 || t >= w.num_tokens || !is_in_request(w, place)) return made;
    const tgl_request r = tgl_request_at(&w, place);
    made.slot = r.slot;
    made.end = tgl_end_of(&w, &place);
    made.depth = (i32)min(t - place.begin, (i64)0x7fffffff);
    made.reach = r.reach;
    made.start = (i32)r.start;
    if (!(w.image_token_mask && w.image_token_mask[t])) made.state |= ALIVE;
    if (r.slot >= 0 && w.writes_ring)
        made.state |= tgl_writes_apart(&w, made.end - place.begin) ? WRITES : WRITES_LATER;
    if ((made.state & ALIVE) && !(made.state & WRITES) && made.depth >= dilation) made.state |= PLAIN;
    return made;
}

/* Rows of a block: from `first` on, with results from `begin` on, up to `end`. */
struct extent { i32 first, begin, end; };

/* Rows are those of the block's chain, counted from PAST_ROWS before its tile's; row n is token base + n * dilation. */
struct walk {
    const gate_conv_args &a;
    const token *tokens;
    const i64 &num_items; /* in shared memory, as tokens are */
    /* There, too, if threads are GATE_CONV_WIDE; in registers otherwise: 8192 x 5120 took 586 us, not 533 (H200,
     * 2026-11). */
    const extent &rows;
    i64 base;
    i32 h, dilation;
    i32 tile_end;               /* the tile's own rows are PAST_ROWS .. tile_end - 1 */
    u32 weights, stages, marks; /* shared memory */
    u32 part, count;            /* of the row, and its vectors */
    u32 pitch;                  /* bytes of the part, where there is room for more */
};

/* The vector of the row that is number i of the part; the group of the row (of CONV_GROUP vectors) that is number i. */
DEV u32 vector_at(const walk &k, u32 i)
{
    return PARTS == 1 ? i : i / SPAN * GATE_CONV_SPAN + k.part * SPAN + i % SPAN;
}
DEV u32 group_at(const walk &k, u32 i) { return vector_at(k, i * CONV_GROUP) / CONV_GROUP; }

/* Rows of the chain before row n in its chunk, up to PAST_ROWS. */
DEV i32 rows_before(const walk &k, i32 n) { return min(k.tokens[n].depth / k.dilation, (i32)PAST_ROWS); }

/* Rows of the chunk that one block has: the first ones, which read the ring that the last ones write. */
DEV i32 rows_together(const walk &k, i32 n)
{
    const token &t = k.tokens[n];
    const i64 left = t.end - (k.base + (i64)n * k.dilation);
    return t.state & WRITES_LATER
               ? min(rows_before(k, n) + (i32)min((left - 1) / k.dilation + 1, (i64)PAST_ROWS), (i32)PAST_ROWS)
               : 0;
}

/* Is it the first row of a chunk whose last ones follow the tile? */
DEV bool is_late_head(const walk &k, i32 n)
{
    return (k.tokens[n].state & WRITES_LATER) && k.tokens[n].depth < k.dilation;
}

/* What is known of a stage: mbarriers of its being loaded, having its gate, and being free again; rstd; mbarriers of
 * what all parts have told of the sums of the gate, and of the norm. */
enum { LOADED = 0, GATED = 8, FREED = 16, RSTD = 24, SUMMED = 32, SQUARED = 40, MARK_BYTES = PARTS > 1 ? 48 : 32 };
DEV u32 mark_at(const walk &k, int stage) { return k.marks + (u32)stage * MARK_BYTES; }

DEV void store_floats(u32 to, float a, float b, float c, float d)
{
    shared_store_u32x4(to, make_uint4(__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)));
}

/* ---- rows, in the order in which they pass ---- */

struct item {
    i64 t;
    u32 state;
    i32 n;
}; /* token; its state; its row, or of LATE ones that of its chunk */
struct cursor {
    i64 begin, count, first;
    i32 head;
}; /* the late rows of a chunk */

DEV cursor first_cursor(const walk &k) { return { k.rows.end - k.rows.first, 0, 0, PAST_ROWS - 1 }; }

DEV i64 chunk_of(const walk &k, i32 n) { return k.base + (i64)n * k.dilation - k.tokens[n].depth; }
DEV i64 late_count(const walk &k, i32 head)
{
    return min(k.tokens[head].end - chunk_of(k, head), (i64)k.a.requests.ring_size);
}

/* The depth of the token of the chunk, less than dilation, that reads the entry which token i of the chunk writes; of
 * an entry that no token reads, that of any. The entry is that of the token `before` the chunk. */
DEV i32 reader_of(const walk &k, i64 i, i64 count)
{
    const i64 before = k.a.requests.ring_size - tgl_ring_entry(&k.a.requests, i);
    const i32 rest = (i32)(before % k.dilation), depth = rest ? k.dilation - rest : 0;
    return depth < count ? depth : 0;
}

DEV item late_item(const walk &k, i64 i, cursor &c)
{
#pragma unroll 1
    while (i - c.begin >= c.count) {
        c.begin += c.count;
        do c.head++;
        while (!is_late_head(k, c.head));
        c.count = late_count(k, c.head);
        c.first = k.tokens[c.head].end - c.count;
    }
    const i64 t = c.first + (i - c.begin), chunk = chunk_of(k, c.head);
    const u8 *const mask = k.a.requests.image_token_mask;
    if (reader_of(k, t - chunk, k.tokens[c.head].end - chunk) != k.tokens[c.head].depth) return { t, LATE, c.head };
    return { t, LATE | WRITES | (mask && mask[t] ? 0u : (u32)ALIVE), c.head };
}

/* The i-th row of a walk; i ascends from call to call. */
DEV item item_at(const walk &k, i64 i, cursor &c)
{
    if (i >= k.rows.end - k.rows.first) return late_item(k, i, c);
    const i32 n = k.rows.first + (i32)i;
    return { k.base + (i64)n * k.dilation, k.tokens[n].state, n };
}

DEV bool has_result(const walk &k, const item &of) { return !(of.state & LATE) && of.n >= k.rows.begin; }

/* By whole warps. */
DEV i64 count_late(const walk &k)
{
    i64 sum = 0;
#pragma unroll 1
    for (i32 n = PAST_ROWS + threadIdx.x % 32; n < k.tile_end; n += 32)
        if (is_late_head(k, n)) sum += late_count(k, n);
    return lanes_sum_by_halves<32>(sum);
}

/* x, k, v and what the parts tell each other. */
DEV u32 stage_bytes(const walk &k) { return 3 * k.pitch + GATE_CONV_TOLD(PARTS); }
DEV u32 stage_at(const walk &k, int stage) { return k.stages + (u32)stage * stage_bytes(k); }

/* The row of the ring that is `before` tokens before the chunk. */
DEV const u16 *past_row(const walk &k, const token &t, i32 before)
{
    const i32 entry = t.start - before;
    return k.a.ring + gate_conv_ring_row(&k.a, t.slot, entry < 0 ? entry + k.a.requests.ring_size : entry, k.h);
}

/* ---- the warp that loads ---- */

DEV void prefetch_past(const walk &k, const token &t)
{
#pragma unroll 1
    for (int j = 0; j < TAPS - 1; j++) {
        const i32 before = (TAPS - 1 - j) * k.dilation - t.depth;
        if (before > t.reach) continue;
        const u16 *const row = past_row(k, t, before);
#pragma unroll 1
        for (u32 i = threadIdx.x % 32 * 8; i < k.count; i += 32 * 8) prefetch_l2(row + vector_at(k, i) * CONV_VECTOR);
    }
}

/* What is loaded of a row: x alone, if only its residual counts. */
struct sources {
    const u16 *x, *k, *v;
    bool is_alive, has_x;
};

DEV sources sources_of(const walk &k, const item &of)
{
    const gate_conv_args &a = k.a;
    const bool is_alive = of.state & ALIVE;
    return { a.x.data + of.t * a.x.token + k.h * a.x.stream, a.k.data + of.t * a.k.token + k.h * a.k.stream,
             a.v.data + of.t * a.v.token, is_alive, is_alive || (has_result(k, of) && a.has_residual) };
}

/* By bulk copies, which count their bytes; lane i has what follows each other from vector i * SPAN of the part on. */
DEV void load_pieces(const walk &k, const sources &from, u32 to, u32 bar)
{
    const u32 lane = threadIdx.x % 32, first = PARTS == 1 ? 0 : lane * SPAN;
    if (lane == 0) {
        if (from.has_x) mbar_expect(bar, (from.is_alive ? 3 : 1) * 16 * k.count);
        else mbar_arrive(bar);
    }
    if (!from.has_x || (PARTS == 1 ? lane > 0 : first >= k.count)) return;
    const u32 column = vector_at(k, first) * CONV_VECTOR, at = to + 16 * first;
    const u32 bytes = 16 * (PARTS == 1 ? k.count : min(k.count - first, (u32)SPAN));
    bulk_load(at, from.x + column, bytes, bar);
    if (!from.is_alive) return;
    bulk_load(at + k.pitch, from.k + column, bytes, bar);
    bulk_load(at + 2 * k.pitch, from.v + column, bytes, bar);
}

/* By copies of 16 bytes. */
DEV void load_vectors(const walk &k, const sources &from, u32 to)
{
#pragma unroll 2
    for (u32 i = threadIdx.x % 32; i < k.count && from.has_x; i += 32) {
        const u32 column = vector_at(k, i) * CONV_VECTOR;
        copy_async_16(to + 16 * i, from.x + column);
        if (!from.is_alive) continue;
        copy_async_16(to + k.pitch + 16 * i, from.k + column);
        copy_async_16(to + 2 * k.pitch + 16 * i, from.v + column);
    }
}

/* Parts are not in one piece. On an H200 (2026-11) 8192 rows of 5120 columns take 593 us with bulk copies, 643 with
 * others, which are slower for large pieces; 4096 of 7168 columns in four parts, whose pieces are small, 905 and 747,
 * with clusters that did not all fit at once. Without bulk copies AHEAD rows are prefetched. */
enum { HAS_BULK = PARTS <= 2, AHEAD = HAS_BULK ? 0 : GATE_CONV_AHEAD };

DEV void load_rows(const walk &k)
{
    const gate_conv_args &a = k.a;
    int stage = 0, arrived = 0;
    u32 parity = 0;
    bool is_full = false; /* all stages have been filled once */
    cursor late = first_cursor(k);
#pragma unroll 1
    for (i64 i = 0; i < k.num_items + AHEAD; i++) {
        if (i < k.num_items) {
            const item of = item_at(k, i, late);
            const sources from = sources_of(k, of);
            if (is_full) mbar_wait(mark_at(k, stage) + FREED, parity ^ 1);
            if (HAS_BULK) load_pieces(k, from, stage_at(k, stage), mark_at(k, stage) + LOADED);
            else load_vectors(k, from, stage_at(k, stage));
            if (!(of.state & LATE) && from.is_alive && k.tokens[of.n].depth < k.dilation)
                prefetch_past(k, k.tokens[of.n]);
            __syncwarp();
            stage = stage + 1 < a.stages ? stage + 1 : 0;
            if (stage == 0) parity ^= 1, is_full = true;
        }
        if (HAS_BULK) continue;
        copy_async_commit();
        copy_async_wait<AHEAD>();
        if (i < AHEAD) continue;
        mbar_arrive(mark_at(k, arrived) + LOADED); /* every lane for what it has copied */
        arrived = arrived + 1 < a.stages ? arrived + 1 : 0;
    }
}

/* ---- the warps that find gates ---- */

/* The sums of N values over all lanes, each a tree: of lane i and i ^ 16, then i ^ 8, 4, 2, 1. Lane i ends with that of
 * value i / (32 / N), in v[0]. */
template <int N> DEV void add_lanes(float (&v)[N])
{
    const int lane = (int)threadIdx.x % 32;
    int half = 16;
#pragma unroll
    for (int n = N / 2; n > 0; n /= 2, half /= 2) {
        const bool is_upper = lane & half;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float kept = is_upper ? v[i + n] : v[i], sent = is_upper ? v[i] : v[i + n];
            v[i] = kept + __shfl_xor_sync(FULL, sent, half);
        }
    }
    v[0] = lanes_sum_by_halves<32 / N>(v[0]);
}

struct row {
    int lane, count;
    float *sums;
}; /* count of vectors; sums: of one part */

struct row_sums { float squares_x[GROUPS], squares_k[GROUPS], dot[GROUPS]; };

/* A lane's vector, of group g. */
DEV void add_vector(row_sums &s, int g, u32 at, u32 pitch, u32 w, u32 half)
{
    const uint4 x = shared_load_u32x4(at), key = shared_load_u32x4(at + pitch);
    const float4 low = shared_load_f32x4(w), high = shared_load_f32x4(w + half);
    const float weight[] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
#pragma unroll
    for (int i = 0; i < GATE_VECTOR; i++) {
        const float xi = column(x, i), ki = column(key, i);
        s.squares_x[g] = fmaf(xi, xi, s.squares_x[g]);
        s.squares_k[g] = fmaf(ki, ki, s.squares_k[g]);
        s.dot[g] = fmaf(xi * weight[i], ki, s.dot[g]);
    }
}

DEV float sum_of_groups(const float *groups)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < GROUPS; i += 4) {
        const float4 v = *(const float4 *)(groups + i);
        sum += v.x, sum += v.y, sum += v.z, sum += v.w;
    }
    return sum;
}

/* Adds up the part's columns of the row at `from`: then lane i has the sums of group i / (32 / GROUPS) of the part. */
DEV void add_columns(const walk &k, const row &r, u32 from, row_sums &s)
{
    const u32 half = 16 * (u32)r.count; /* between the lower halves of weights and the upper ones */
#pragma unroll 1
    for (int first = 0; first < r.count; first += SLOTS) {
        const int mine = first + r.lane;
        if (first + SLOTS <= r.count) {
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const int c = mine + g * GATE_GROUP;
                add_vector(s, g, from + 16 * c, k.pitch, k.weights + 16 * c, half);
            }
        } else {
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const int c = mine + g * GATE_GROUP;
                if (c < r.count) add_vector(s, g, from + 16 * c, k.pitch, k.weights + 16 * c, half);
            }
        }
    }
    add_lanes(s.squares_x), add_lanes(s.squares_k), add_lanes(s.dot);
}

DEV float gate_of(const walk &k, float rstd_x, float rstd_k, float dot)
{
    return gate_score_of(&k.a.gate, gate_scaled(&k.a.gate, dot, rstd_x, rstd_k));
}

/* The gate of the row at `from`, in all lanes. */
DEV float find_gate(const walk &k, const row &r, u32 from)
{
    row_sums s = {};
    add_columns(k, r, from, s);
    const int group = r.lane / (32 / GROUPS);
    if (r.lane % (32 / GROUPS) == 0) {
        r.sums[group] = s.squares_x[0];
        r.sums[GROUPS + group] = s.squares_k[0];
        r.sums[2 * GROUPS + group] = s.dot[0];
    }
    __syncwarp();
    const float rstd = gate_rstd(&k.a.gate, sum_of_groups(r.sums + r.lane % 2 * GROUPS)); /* of x in even lanes */
    const float rstd_x = __shfl_sync(FULL, rstd, 0), rstd_k = __shfl_sync(FULL, rstd, 1);
    return gate_of(k, rstd_x, rstd_k, sum_of_groups(r.sums + 2 * GROUPS));
}

/* The same for a row in parts, whose blocks send each other the sums of their groups. Nothing is overwritten before
 * all have read it: a part sends the sums of the stage's next row after it has received the squares of all parts, which
 * had read these sums before; and it sends squares after it has received the sums of all, which had read the squares of
 * the row before. */
DEV float find_gate_of_parts(const walk &k, const row &r, u32 from, u32 mark, u32 parity)
{
    row_sums s = {};
    add_columns(k, r, from, s);
    const u32 told = from + 3 * k.pitch, group = (u32)r.lane / (32 / GROUPS), to = (u32)r.lane % (32 / GROUPS);
    if (r.lane == 0) mbar_expect(mark + SUMMED, 16 * ALL_GROUPS);
    if (to < PARTS)
        cluster_store_async(cluster_map(told + 16 * (group_at(k, group) % ALL_GROUPS), to),
                            make_float4(s.squares_x[0], s.squares_k[0], s.dot[0], 0), cluster_map(mark + SUMMED, to));
    mbar_wait_cluster(mark + SUMMED, parity);
    float sum = 0; /* lane 0: of squares of x; 1: of k; 2: of products */
#pragma unroll
    for (int g = 0; g < ALL_GROUPS; g++) sum += shared_load_f32(told + 16 * g + r.lane % 4 * 4);
    const float rstd = gate_rstd(&k.a.gate, sum);
    const float rstd_x = __shfl_sync(FULL, rstd, 0), rstd_k = __shfl_sync(FULL, rstd, 1);
    return gate_of(k, rstd_x, rstd_k, __shfl_sync(FULL, sum, 2));
}

/* Sums of the vectors of a group, a line of shared memory; at this distance lanes that read a line each have different
 * banks. */
enum { LINE_BYTES = GATE_CONV_LINE, LINE_BATCH = 5 }; /* lines that are written, or added, at a time */

/* Line `lane` added up as a tree, of `count`. A lane has a line: all trees at once, where shuffles would wait for each
 * other. */
DEV float add_line(u32 lines, int count)
{
    const int lane = threadIdx.x % 32;
    float of_line = 0;
    __syncwarp(); /* lines have been written */
    if (lane < count) {
        float4 v[CONV_GROUP / 4];
#pragma unroll
        for (int i = 0; i < CONV_GROUP / 4; i++) v[i] = shared_load_f32x4(lines + lane * LINE_BYTES + 16 * i);
#pragma unroll
        for (int half = CONV_GROUP / 8; half > 0; half /= 2)
#pragma unroll
            for (int i = 0; i < half; i++)
                v[i].x += v[i + half].x, v[i].y += v[i + half].y, v[i].z += v[i + half].z, v[i].w += v[i + half].w;
        of_line = v[0].x + v[0].z + (v[0].y + v[0].w);
    }
    __syncwarp(); /* and read */
    return of_line;
}

/* That of lane 0 + lane 1 + ... + lane count - 1, in all lanes. */
DEV float add_in_order(float of_line, int count)
{
    float sum = 0;
#pragma unroll 1
    for (int g = 0; g < count; g += LINE_BATCH)
#pragma unroll
        for (int j = 0; j < LINE_BATCH; j++) {
            const float v = __shfl_sync(FULL, of_line, (g + j) % 32);
            if (g + j < count) sum += v;
        }
    return sum;
}

/* The groups of all parts; lane i has that of group i of this one. */
DEV float add_parts(const walk &k, float of_line, int count, u32 told, u32 mark, u32 parity)
{
    const u32 lane = threadIdx.x % 32, groups = ceil_div((u32)k.a.hidden / CONV_VECTOR, CONV_GROUP);
    if (lane == 0) mbar_expect(mark + SQUARED, 16 * groups);
    if ((int)lane < count)
#pragma unroll
        for (u32 to = 0; to < PARTS; to++)
            cluster_store_async(cluster_map(told + 16 * group_at(k, lane), to), make_float4(of_line, 0, 0, 0),
                                cluster_map(mark + SQUARED, to));
    mbar_wait_cluster(mark + SQUARED, parity);
    return add_in_order(lane < groups ? shared_load_f32(told + 16 * lane) : 0, (int)groups);
}

/* Replaces the row of v at `from` by what the gate lets in -> its rstd, in all lanes. A few vectors at a time are
 * loaded before the first is stored; sums go where k was. */
DEV float let_in(const walk &k, const row &r, u32 from, u32 lines, float gate, u32 mark, u32 parity)
{
    const int groups = ceil_div(r.count, CONV_GROUP);
#pragma unroll 1
    for (int g = 0; g < groups; g += LINE_BATCH) {
        const int mine = g * CONV_GROUP + r.lane;
        uint4 v[LINE_BATCH];
#pragma unroll
        for (int j = 0; j < LINE_BATCH; j++)
            v[j] = shared_load_u32x4(from + 16 * min(mine + j * CONV_GROUP, r.count - 1));
        __syncwarp(); /* lanes past the last vector have read that of another */
#pragma unroll
        for (int j = 0; j < LINE_BATCH; j++) {
            const int c = mine + j * CONV_GROUP;
            float product[GATE_VECTOR];
#pragma unroll
            for (int i = 0; i < GATE_VECTOR; i++) product[i] = gate_result(0, column(v[j], i), gate, 0);
            const uint4 gv = pack(product);
            if (c < r.count) shared_store_u32x4(from + 16 * c, gv);
            if (g + j < groups)
                shared_store_f32(lines + (g + j) * LINE_BYTES + r.lane * 4, c < r.count ? squares_of(gv) : 0.0f);
        }
    }
    const float of_line = add_line(lines, groups);
    return conv_rstd(&k.a.numbers, PARTS == 1
                                       ? add_in_order(of_line, groups)
                                       : add_parts(k, of_line, groups, from + k.pitch + 16 * ALL_GROUPS, mark, parity));
}

DEV void find_gates(const walk &k, int number, float *sums)
{
    const row r = { (int)threadIdx.x % 32, (int)k.count, sums + number * 3 * GROUPS };
    const int rows = k.a.gate_rows;
    int stage = number;
    u32 parity = 0, phases = 0; /* phases: of what parts tell, only of rows that are alive */
    cursor late = first_cursor(k);
#pragma unroll 1
    for (i64 i = number; number < rows && i < k.num_items; i += rows) {
        const item of = item_at(k, i, late);
        const u32 from = stage_at(k, stage), mark = mark_at(k, stage);
        mbar_wait(mark + LOADED, parity);
        if (of.state & ALIVE) {
            const u32 told = phases >> stage & 1;
            const float gate = PARTS == 1 ? find_gate(k, r, from) : find_gate_of_parts(k, r, from, mark, told);
            const float rstd = let_in(k, r, from + 2 * k.pitch, from + k.pitch, gate, mark, told);
            if (r.lane == 0) shared_store_f32(mark + RSTD, rstd);
            if (HAS_BULK) bulk_fence(); /* the next row of the stage comes by a bulk copy */
            phases ^= 1u << stage;
        }
        mbar_arrive(mark + GATED); /* every lane for what it has read and written */
        stage += rows;             /* a stage is always of the same warp, which knows its phase */
        if (stage >= k.a.stages) stage -= k.a.stages, parity ^= 1;
    }
}

/* ---- the warps that convolve ---- */

/* The columns of a thread. */
template <int COUNT> struct vector_of { typedef uint4 type; };
template <> struct vector_of<CONV_VECTOR + 2> { typedef vector_and_pair type; };
typedef vector_of<COLUMNS>::type vector;

/* Of those behind its vector the first is `more` columns after the vector's first, and more_bytes in a stage. */
struct columns {
    i32 first, more;
    bool are_there, has_more;
    u32 at, more_bytes, kept; /* shared memory: its vector in the first stage; the weights that are there */
    float norm[COLUMNS], conv[TAPS][COLUMNS], sums[PAST_ROWS][COLUMNS];
};

/* Those that are there, to or from a row at the first of them. */
DEV void store(const columns &of, u16 *to, const uint4 &v)
{
    if (of.are_there) store_u32x4(to, v);
}
DEV void store(const columns &of, u16 *to, const vector_and_pair &v)
{
    if (of.are_there) store_u32x4(to, v.vector);
    if (of.has_more) *(u32 *)(to + of.more) = v.pair;
}
DEV void load(const columns &of, const u16 *from, uint4 &v)
{
    if (of.are_there) v = *(const uint4 *)from;
}
DEV void load(const columns &of, const u16 *from, vector_and_pair &v)
{
    if (of.are_there) v.vector = *(const uint4 *)from;
    if (of.has_more) v.pair = *(const u32 *)(from + of.more);
}
/* From a stage. */
DEV void load_shared(const columns &, u32 from, uint4 &v) { v = shared_load_u32x4(from); }
DEV void load_shared(const columns &of, u32 from, vector_and_pair &v)
{
    v = { shared_load_u32x4(from), shared_load_u32(from + of.more_bytes) };
}

/* Weights that are in shared memory if it KEEPS_SOME: of the norm, of the first tap. */
enum { NORM, FIRST_TAP };
DEV u32 kept_at(const columns &of, int number) { return of.kept + 4 * COLUMNS * CONV_THREADS * number; }
DEV void keep(const columns &of, int number, const float (&w)[COLUMNS])
{
    const u32 to = kept_at(of, number) + 16 * (threadIdx.x - FIRST_CONV);
    store_floats(to, w[0], w[1], w[2], w[3]);
    store_floats(to + 16 * CONV_THREADS, w[4], w[5], w[6], w[7]);
#pragma unroll
    for (int i = CONV_VECTOR; i < COLUMNS; i++)
        shared_store_f32(kept_at(of, number) + 4 * (i * CONV_THREADS + threadIdx.x - FIRST_CONV), w[i]);
}
DEV void load_kept(const columns &of, int number, const float (&in_registers)[COLUMNS], float (&w)[COLUMNS])
{
    if (KEEPS_SOME) {
        const u32 from = kept_at(of, number) + 16 * (threadIdx.x - FIRST_CONV);
        const float4 low = shared_load_f32x4(from), high = shared_load_f32x4(from + 16 * CONV_THREADS);
        w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w, w[4] = high.x, w[5] = high.y, w[6] = high.z,
        w[7] = high.w;
#pragma unroll
        for (int i = CONV_VECTOR; i < COLUMNS; i++)
            w[i] = shared_load_f32(kept_at(of, number) + 4 * (i * CONV_THREADS + threadIdx.x - FIRST_CONV));
    } else {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) w[i] = in_registers[i];
    }
}

/* Numbers of its columns, the first at `at`. */
DEV void load_numbers(const conv_weights &w, const columns &of, i64 at, float (&to)[COLUMNS])
{
    float own[CONV_VECTOR];
    load_vector(w, at, own);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        to[i] = i < CONV_VECTOR ? own[i] : conv_weight_at(&w, at + of.more + i - CONV_VECTOR);
}

DEV void load_weights(const gate_conv_args &a, i64 h, columns &of)
{
    const i64 channel = h * a.hidden + of.first;
    load_numbers(a.norm, of, h * a.norm.stride + of.first, of.norm);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) of.norm[i] = conv_norm_weight(&a.numbers, of.norm[i]);
#pragma unroll
    for (int v = 0; v < TAPS; v++) {
        float some[CONV_VECTOR];
        load_vector(a.conv, channel * TAPS + v * CONV_VECTOR, some);
#pragma unroll
        for (int i = 0; i < CONV_VECTOR; i++) {
            const int n = v * CONV_VECTOR + i;
            of.conv[n % TAPS][n / TAPS] = some[i];
        }
#pragma unroll
        for (int i = CONV_VECTOR; i < COLUMNS; i++)
            of.conv[v][i] = conv_weight_at(&a.conv, (channel + of.more + i - CONV_VECTOR) * TAPS + v);
    }
}

DEV vector normed(const columns &of, const vector &gv, float rstd)
{
    float norm[COLUMNS];
    load_kept(of, NORM, of.norm, norm);
    return normed(gv, rstd, norm);
}
DEV void find_normed(const columns &of, const vector &gv, float rstd, float (&to)[COLUMNS])
{
    float norm[COLUMNS];
    load_kept(of, NORM, of.norm, norm);
    find_normed(gv, rstd, norm, to);
}

/* The next row of the chain -> what it is convolved to, before SiLU. */
DEV void add_row(columns &of, const float (&row)[COLUMNS], const float (&bias)[COLUMNS], float (&z)[COLUMNS])
{
    float first[COLUMNS];
    load_kept(of, FIRST_TAP, of.conv[0], first);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const float v = row[i];
        z[i] = fmaf(of.conv[TAPS - 1][i], v, of.sums[0][i]);
        of.sums[0][i] = fmaf(of.conv[2][i], v, of.sums[1][i]);
        of.sums[1][i] = fmaf(of.conv[1][i], v, of.sums[2][i]);
        of.sums[2][i] = fmaf(first[i], v, bias[i]);
    }
}
static_assert(TAPS == 4, "add_row() has so many sums");
DEV void add_row(columns &of, const vector &packed, const float (&bias)[COLUMNS], float (&z)[COLUMNS])
{
    float row[COLUMNS];
    unpack(packed, row);
    add_row(of, row, bias, z);
}

DEV void store_ring(const walk &k, const columns &of, const token &t, i64 number, const vector &v) /* in the chunk */
{
    const i64 entry = tgl_ring_entry(&k.a.requests, t.start + number);
    store(of, k.a.ring + gate_conv_ring_row(&k.a, t.slot, entry, k.h) + of.first, v);
}

/* A row that is PLAIN: there is one before it in its chain, SiLU and a residual, and no bias. */
DEV vector convolve_plain(columns &of, u32 from, u32 pitch, float rstd)
{
    vector x, gv;
    load_shared(of, from + 2 * pitch, gv);
    load_shared(of, from, x);
    const conv_numbers n = { 0, 0, 0, 1, 1 };
    const float no_bias[COLUMNS] = {};
    float row[COLUMNS], z[COLUMNS], out[COLUMNS];
    find_normed(of, gv, rstd, row);
    add_row(of, row, no_bias, z);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        out[i] = conv_result(&n, z[i], reciprocal(conv_sigmoid_divisor(z[i])), column(gv, i), 1, column(x, i), 0);
    return pack(out);
}

/* Any row. */
DEV void convolve(const walk &k, columns &of, i32 n, u32 from, float rstd, u16 *out)
{
    const gate_conv_args &a = k.a;
    const token &t = k.tokens[n];
    const bool is_alive = t.state & ALIVE;
    const vector none = {};
    vector gv, own = none;
    load_shared(of, from + 2 * k.pitch, gv);
    if (is_alive) own = normed(of, gv, rstd);
    float bias[COLUMNS] = {}, made[COLUMNS];
    if (a.bias.data && of.are_there) load_numbers(a.bias, of, k.h * a.hidden + of.first, bias);
#pragma unroll 1
    for (int j = 0; j < PAST_ROWS && t.depth < k.dilation; j++) { /* its chunk's first */
        const i32 before = (PAST_ROWS - j) * k.dilation - t.depth;
        vector past = none;
        /* no result of the block reaches further back than PAST_ROWS before it; other blocks may write there by now */
        if (before <= t.reach && k.rows.begin - n < PAST_ROWS) load(of, past_row(k, t, before) + of.first, past);
        add_row(of, past, bias, made);
    }
    add_row(of, own, bias, made);
    if (n < k.rows.begin) return;
    vector x;
    load_shared(of, from, x);
    const vector masked = a.has_residual ? x : none;
    store(of, out, is_alive ? result_of(a.numbers, made, gv, a.has_residual, x, false) : masked);
    if (t.state & WRITES) store_ring(k, of, t, t.depth, own); /* which this row may have read */
}

/* Threads past the last column compute with the values of others, and store nothing. */
DEV void convolve_rows(const walk &k)
{
    const gate_conv_args &a = k.a;
    const u32 bytes = kept_u32(stage_bytes(k)),
              number = threadIdx.x - FIRST_CONV; /* else computed again for every row */
    const u32 more = MORE_FIRST + number * MORE; /* of the part's columns; else those of its vector */
    const bool are_there = number < k.count, has_more = MORE > 0 && more < k.count * CONV_VECTOR;
    const u32 at = k.stages + (are_there ? number * 16 : 0);
    const i32 first = (i32)(vector_at(k, number) * CONV_VECTOR);
    const i32 more_at = (i32)(vector_at(k, more / CONV_VECTOR) * CONV_VECTOR + more % CONV_VECTOR);
    columns of = { first,
                   has_more ? more_at - first : 0,
                   are_there,
                   has_more,
                   CONV_THREADS == GATE_CONV_WIDE ? at : kept_u32(at),
                   has_more ? 2 * (more - number * CONV_VECTOR) : 0,
                   k.weights + 32 * (u32)gate_conv_vectors(a.hidden, PARTS, 0),
                   {},
                   {},
                   {} };
    if (of.are_there) load_weights(a, k.h, of);
    if (KEEPS_SOME) keep(of, NORM, of.norm), keep(of, FIRST_TAP, of.conv[0]);
    u16 *out = a.out.data + (k.base + (i64)k.rows.first * k.dilation) * a.out.token + k.h * a.out.stream + of.first;
    const i64 out_step = k.dilation * a.out.token;
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (i32 n = k.rows.first; n < k.rows.end; n++, out += out_step) {
        const u32 state = k.tokens[n].state, mark = mark_at(k, stage), from = of.at + (u32)stage * bytes;
        mbar_wait(mark + GATED, parity);
        const float rstd = shared_load_f32(mark + RSTD);
        if (state & PLAIN) {
            store(of, out, convolve_plain(of, from, k.pitch, rstd));
        } else {
            convolve(k, of, n, from, rstd, out);
        }
        __syncwarp(); /* all lanes have read the stage */
        if (threadIdx.x % 32 == 0) mbar_arrive(mark + FREED);
        const bool is_last = stage + 1 == a.stages;
        stage = is_last ? 0 : stage + 1;
        parity ^= is_last;
    }
    cursor late = first_cursor(k);
#pragma unroll 1
    for (i64 i = k.rows.end - k.rows.first; i < k.num_items; i++) {
        const item it = late_item(k, i, late);
        const u32 mark = mark_at(k, stage), from = of.at + (u32)stage * bytes;
        mbar_wait(mark + GATED, parity);
        vector gv;
        load_shared(of, from + 2 * k.pitch, gv);
        const float rstd = shared_load_f32(mark + RSTD);
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbar_arrive(mark + FREED);
        if (it.state & WRITES)
            store_ring(k, of, k.tokens[it.n], it.t - chunk_of(k, it.n),
                       it.state & ALIVE ? normed(of, gv, rstd) : vector{});
        stage = stage + 1 < a.stages ? stage + 1 : 0;
        if (stage == 0) parity ^= 1;
    }
}

/* ---- the block ---- */

/* The gate's weights of the part, as f32: first the lower halves of all vectors, then the upper ones. */
DEV void fill_weights(const walk &k)
{
    const u32 count = k.count, thread = threadIdx.x;
#pragma unroll 1
    for (u32 c = thread; c < 2 * count; c += GATE_CONV_THREADS(CONV_THREADS, COLUMNS)) {
        const u32 vector = c < count ? c : c - count;
        const i64 at = (i64)vector_at(k, vector) * GATE_VECTOR + (c < count ? 0 : 4);
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = gate_weight_at(&k.a.weights, k.a.weights.kind, k.a.weights.is_zero_centered, k.h, at + i);
        store_floats(k.weights + 16 * c, w[0], w[1], w[2], w[3]);
    }
}

typedef request_scratch<GATE_CONV_THREADS(CONV_THREADS, COLUMNS)> place_scratch;
static_assert(TOKENS * sizeof(token) + GATE_CONV_STAGES * MARK_BYTES + GATE_WARPS * 3 * GROUPS * 4 +
                      sizeof(place_scratch) + sizeof(i64) + sizeof(extent) + 6 * 16 <=
                  GATE_CONV_STATIC,
              "shared memory of run(), each to a multiple of 16");

DEV void run(const gate_conv_args &a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(token[TOKENS], tokens);
    SHARED(u64[GATE_CONV_STAGES * MARK_BYTES / 8], marks);
    SHARED(float[GATE_WARPS * 3 * GROUPS], sums);
    SHARED(place_scratch, scratch);
    SHARED(i64, num_items);
    SHARED(extent, shared_rows);
    extent rows = {};
    const int tid = (int)threadIdx.x, threads = GATE_CONV_THREADS(CONV_THREADS, COLUMNS);
    const i64 cluster = blockIdx.x / PARTS, of_stream = cluster / a.num_streams, tile = of_stream / a.dilation;
    const i64 chain = of_stream - tile * a.dilation;
    const i64 tile_begin = (tile * a.tile_rows) * a.dilation + chain;
    if (tile_begin >= a.num_tokens) {
        pdl_wait();
        return;
    }
    const u32 from = shared_address(memory), part = blockIdx.x % PARTS;
    const i32 tile_rows = (i32)min((i64)a.tile_rows, (a.num_tokens - tile_begin - 1) / a.dilation + 1);
    const walk k = { a,
                     tokens,
                     num_items,
                     CONV_THREADS == GATE_CONV_WIDE ? shared_rows : rows,
                     tile_begin - PAST_ROWS * (i64)a.dilation,
                     (i32)(cluster - of_stream * a.num_streams),
                     a.dilation,
                     PAST_ROWS + tile_rows,
                     from,
                     from + (u32)gate_conv_weight_bytes(a.hidden, CONV_THREADS, COLUMNS, PARTS),
                     kept_u32(shared_address(marks)),
                     part,
                     (u32)gate_conv_vectors(a.hidden, PARTS, (int)part),
                     (u32)gate_conv_pitch(a.hidden, PARTS) };
    if (tid == 0) {
#pragma unroll 1
        for (int i = 0; i < a.stages; i++) {
            mbar_init(mark_at(k, i) + LOADED, HAS_BULK ? 1 : 32);
            mbar_init(mark_at(k, i) + GATED, 32);
            mbar_init(mark_at(k, i) + FREED, CONV_WARPS);
            if (PARTS > 1) mbar_init(mark_at(k, i) + SUMMED, 1), mbar_init(mark_at(k, i) + SQUARED, 1);
        }
        mbar_init_fence();
    }
    __syncwarp();
    if (PARTS > 1) cluster_arrive_relaxed();
    pdl_wait();
    fill_weights(k);
    const i32 known = tile_rows + 2 * PAST_ROWS; /* rows */
#pragma unroll 1
    for (i32 first = 0; first < known * a.dilation; first += threads) {
        const tgl_place place = find_place(a.requests, k.base + first, scratch);
        const i32 n = (first + tid) / a.dilation;
        if (n * a.dilation == first + tid && n < known)
            tokens[n] = token_at(a.requests, place, k.base + first + tid, a.dilation);
        __syncthreads();
    }
    const i32 head = PAST_ROWS, tail = k.tile_end - 1, together = rows_together(k, head);
    i32 begin = PAST_ROWS, end = k.tile_end;
    if (rows_before(k, head) > 0 && rows_before(k, head) < together) begin += together - rows_before(k, head);
    if (rows_before(k, tail) < tile_rows) end = max(end, tail - rows_before(k, tail) + rows_together(k, tail));
    begin = min(begin, end);
    rows = { begin < end ? begin - rows_before(k, begin) : end, begin, end };
    const i64 num_late = count_late(k);
    if (tid == 0) num_items = end - rows.first + num_late, shared_rows = rows;
    __syncthreads(); /* states have been read */
    const bool can_be_plain = a.numbers.has_activation && a.has_residual && !a.bias.data;
    if (!can_be_plain || tid < begin)
#pragma unroll 1
        for (i32 n = tid; n < (can_be_plain ? begin : known); n += threads) tokens[n].state &= ~(u32)PLAIN;
    __syncthreads();
    if (PARTS > 1) cluster_wait();                   /* mbarriers of all parts are initialised */
    const int warp = __shfl_sync(FULL, tid / 32, 0); /* so that the compiler knows: all lanes have the same role */
    if (warp < GATE_WARPS) find_gates(k, warp, sums);
    else if (warp == GATE_WARPS) load_rows(k);
    else convolve_rows(k);
    if (PARTS > 1) {
        __syncwarp();
        cluster_arrive_relaxed();
        cluster_wait(); /* no part tells one that has ended */
    }
}
#endif

extern "C" __global__ void __launch_bounds__(GATE_CONV_THREADS(CONV_THREADS, COLUMNS), GATE_CONV_BLOCKS(CONV_THREADS))
    gate_conv_fwd(const __grid_constant__ gate_conv_args a)
{
#if __CUDA_ARCH__ >= 900
    run(a);
    pdl_trigger();
#endif
}
