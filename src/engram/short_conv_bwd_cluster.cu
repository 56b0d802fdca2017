/* SPDX-License-Identifier: MIT
 * short_conv_bwd_cluster.cu - the gradients of the short convolution: the blocks of a cluster split the columns; sm_90
 * and up.
 *   computes  as short_conv_bwd.cu
 *   launch    grid num_partials * num_streams * cluster_blocks, cluster cluster_blocks, block of a thread per vector (4
 *             columns), dynamic shared memory of CONV_CLUSTER_ROW_BYTES and CONV_CLUSTER_FLOAT_BYTES per thread
 *   moves     2 bytes per element of x, grad_out and grad_x, once each, and of x and grad_out of the tokens that taps
 *             of a tile reach; partials once
 *   macros    KERNEL_SIZE 1..CONV_CLUSTER_TAPS, HAS_BIAS 0, 1 (a bias, or its gradient is wanted), MAX_THREADS
 *             CONV_CLUSTER_MIN_THREADS..CONV_CLUSTER_MAX_THREADS
 *
 * A thread has the same columns of all tokens, and takes every dilation-th, a chain: all that taps reach is then its
 * own. In registers are conv_weight, the sums of its gradients, and of the last KERNEL_SIZE tokens what is convolved
 * and the gradients of z. With the newest of these, the gradient of what is convolved is complete for the oldest one.
 * Blocks exchange only the sum over that token's row, for a turn of 4 tokens at once: every warp stores the sums of its
 * group in all blocks of the cluster, whose mbarriers count the bytes, and reads those of all groups in the next turn.
 * Rows come a turn ahead, by copies of the thread's own columns; they stay for three turns, until their results are
 * stored. Two buffers of sums are enough: before a warp stores the sums of turn n, it has received those of turn n - 1
 * from all warps, and each of them had read turn n - 2, from the same buffer, before.
 *
 * Positions of a chain are counted so that turns with results begin at 2 * TURN. If all that a turn reaches is in one
 * request, it is steady: no token is looked at, and the unrolled loop moves nothing in the window. */
#include "device/integer.cuh"
#include "device/reduce.cuh"
#include "engram/common/short_conv.cuh"
#include "engram/short_conv_bwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_NONE
#define PAST_BYTES 0
#include "engram/common/requests.cuh"

static_assert(KERNEL_SIZE >= 1 && KERNEL_SIZE <= CONV_CLUSTER_TAPS, "KERNEL_SIZE is 1..CONV_CLUSTER_TAPS");
static_assert(HAS_BIAS == 0 || HAS_BIAS == 1, "HAS_BIAS is 0 or 1");
static_assert(MAX_THREADS >= CONV_CLUSTER_MIN_THREADS && MAX_THREADS <= CONV_CLUSTER_MAX_THREADS, "MAX_THREADS");

#if __CUDA_ARCH__ >= 900
enum {
    LAST = KERNEL_SIZE - 1,
    VECTOR = CONV_BWD_VECTOR,
    TURN = CONV_CLUSTER_TURN,
    FIRST = 2 * TURN - 2 * LAST, /* position of a chain: results begin at 2 * TURN */
    TOKENS = CONV_BWD_TILE + 2 * CONV_CLUSTER_REACH,
    POSITIONS = CONV_BWD_TILE + 4 * TURN,
    BUFFERS = 2,
    GROUPS = CONV_CLUSTER_BLOCKS * MAX_THREADS / CONV_GROUP
};
static_assert(VECTOR == 4, "a thread's columns are 8 bytes of bf16, 16 of floats");
static_assert(TURN == 4, "sums of a turn are a float4");
static_assert(LAST < TURN, "taps reach from a turn to the one before");

/* What a block knows of a token. */
struct token {
    i32 request; /* -1: it takes no part */
    float rstd;
};

/* What it knows of a position, in a word. Bit j: tap j of z is in the request of this position. Bit REACHED + j: the
 * position j before is in the request of the oldest one. A token that takes no part is in no request. */
enum {
    REACHED = 8,
    IS_THERE = 1 << LAST, /* the position itself takes part */
    IS_OLDEST_THERE = 1 << (REACHED + LAST),
    HAS_ROW = 1 << 16,    /* the oldest position is of the tile: it has results */
    IS_MINE = 1 << 17,    /* the position itself is: it adds to partials */
    HAS_GRAD_Z = 1 << 18, /* it takes part, and its gradient of z is needed */
    ALL_TAPS = (1 << KERNEL_SIZE) - 1,
    STEADY = ALL_TAPS | ALL_TAPS << REACHED | HAS_ROW | HAS_GRAD_Z
};

struct place {
    u32 h;            /* stream */
    u32 words, rstds; /* addresses in shared memory: of positions */
    u32 rows, floats; /* of this thread's columns */
    u32 sums, bars;
    bool has_columns;
};

/* This thread's vector of the row, and first column; a thread without columns does what the first one does. Computed
 * when needed: registers are short. */
DEV u32 own_vector(void) { return cluster_rank() * blockDim.x + kept_u32(threadIdx.x); }
DEV bool has_columns(const short_conv_bwd_args &a) { return own_vector() * VECTOR < (u32)a.hidden; }
DEV i64 first_column(const short_conv_bwd_args &a) { return has_columns(a) ? own_vector() * VECTOR : 0; }

/* Rows of x of a turn, then of grad_out. */
enum { ROW = 2 * VECTOR, GRAD_OUT = TURN * ROW, TURN_BYTES = 2 * TURN * ROW };
DEV u32 row_at(const place &k, i32 p)
{
    return k.rows + (u32)p / TURN % CONV_CLUSTER_TURNS * TURN_BYTES + (u32)p % TURN * ROW;
}
DEV u32 scaled_at(const place &k, u32 i) { return k.floats + 4 * VECTOR * i; }
DEV u32 bias_at(const place &k) { return scaled_at(k, TURN); }
DEV u32 grad_bias_at(const place &k) { return scaled_at(k, TURN + 1); }
DEV u32 word_at(const place &k, i32 p) { return shared_load_u32(k.words + 4 * (u32)p); }
DEV float rstd_at(const place &k, i32 p) { return shared_load_f32(k.rstds + 4 * (u32)p); }

DEV void load_floats(u32 at, float (&to)[VECTOR])
{
    const float4 v = shared_load_f32x4(at);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
DEV void store_floats(u32 at, const float (&v)[VECTOR])
{
    shared_store_u32x4(at, make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                                      __float_as_uint(v[3])));
}

struct weights { float conv[VECTOR][KERNEL_SIZE], norm[VECTOR]; };
struct gradients { float conv[VECTOR][KERNEL_SIZE], norm[VECTOR]; };

DEV void load_weights(const short_conv_bwd_args &a, const place &k, weights &w)
{
    const i64 h = k.h, first = first_column(a);
    load_norm(a.norm, a.numbers, h, first, w.norm);
    if (HAS_BIAS && a.bias.data) {
        float bias[VECTOR];
        load_vector(a.bias, h * a.hidden + first, bias);
        store_floats(bias_at(k), bias);
    }
#pragma unroll
    for (int v = 0; v < KERNEL_SIZE; v++) {
        float some[VECTOR];
        load_vector(a.conv, (h * a.hidden + first) * KERNEL_SIZE + v * VECTOR, some);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const int n = v * VECTOR + i;
            w.conv[n / KERNEL_SIZE][n % KERNEL_SIZE] = some[i];
        }
    }
}

/* Where a chain is. */
struct walk {
    const u8 *x, *grad_out;   /* the next row to load */
    u8 *grad_x;               /* the next one to store */
    u32 turn, before, oldest; /* rows in shared memory: of this turn, of the one before, of that before it */
    u32 number;               /* of turns whose sums have been sent, by this block */
};

/* What has been convolved, and gradients of z, of the last positions; of the newest index LAST. */
struct window { float normed[KERNEL_SIZE][VECTOR], grad_z[KERNEL_SIZE][VECTOR]; };

DEV void shift(window &of) /* the newest is still that of before */
{
#pragma unroll
    for (int j = 0; j < LAST; j++)
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            of.normed[j][i] = of.normed[j + 1][i];
            of.grad_z[j][i] = of.grad_z[j + 1][i];
        }
}

/* Begins to load a position's rows. */
DEV void load_rows(const short_conv_bwd_args &a, walk &c, u32 to, bool has_x, bool has_grad_out)
{
    if (has_x) copy_async_8(to, c.x);
    if (has_grad_out) copy_async_8(to + GRAD_OUT, c.grad_out);
    c.x += a.step.x, c.grad_out += a.step.grad_out;
}

/* Those of the turn at position p. */
DEV void load_turn(const short_conv_bwd_args &a, const place &k, walk &c, u32 to, i32 p)
{
    const uint4 words = shared_load_u32x4(k.words + 4 * (u32)p);
    const u32 word[TURN] = { words.x, words.y, words.z, words.w };
#pragma unroll
    for (u32 i = 0; i < TURN; i++) load_rows(a, c, to + i * ROW, word[i] & HAS_GRAD_Z, word[i] & HAS_GRAD_Z);
    copy_async_commit();
}

DEV void find_normed(const weights &w, u32 row, float rstd, window &of)
{
    find_normed(shared_load_u32x2(row), rstd, w.norm, of.normed[LAST]);
}

DEV void find_grad_z(const place &k, const conv_numbers &numbers, const weights &w, u32 row, u32 taps, window &of)
{
    float z[VECTOR] = {};
    if (HAS_BIAS) load_floats(bias_at(k), z);
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++)
#pragma unroll
        for (int i = 0; i < VECTOR; i++) z[i] = fmaf(w.conv[i][j], taps >> j & 1 ? of.normed[j][i] : 0.0f, z[i]);
    const uint2 grad_out = shared_load_u32x2(row + GRAD_OUT);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        of.grad_z[LAST][i] = conv_grad_z(&numbers, column(grad_out, i), z[i], reciprocal(conv_sigmoid_divisor(z[i])));
}

/* What the newest position adds to partials. */
DEV void add_newest(const place &k, u32 taps, const window &of, gradients &sums)
{
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++)
        if (taps >> j & 1)
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                sums.conv[i][j] = fmaf(of.grad_z[LAST][i], of.normed[j][i], sums.conv[i][j]);
    if (!HAS_BIAS) return;
    float bias[VECTOR];
    load_floats(grad_bias_at(k), bias);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) bias[i] += of.grad_z[LAST][i];
    store_floats(grad_bias_at(k), bias);
}

/* The gradient of what is convolved, of the oldest position, and what it adds to that of norm_weight; times norm_weight
 * it is kept for the row of results. */
DEV void find_scaled(const weights &w, u32 reached, const window &of, const uint2 &x, float rstd, u32 to,
                     float (&scaled)[VECTOR], gradients &sums)
{
    float grad[VECTOR] = {};
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++)
        if (reached >> j & 1)
#pragma unroll
            for (int i = 0; i < VECTOR; i++) grad[i] = fmaf(w.conv[i][j], of.grad_z[LAST - j][i], grad[i]);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        sums.norm[i] = conv_grad_norm(grad[i], column(x, i), rstd, sums.norm[i]);
        scaled[i] = w.norm[i] * grad[i];
    }
    store_floats(to, scaled);
}

DEV float product_sum(const place &k, const float (&scaled)[VECTOR], const uint2 &x)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum = fmaf(scaled[i], column(x, i), sum);
    return k.has_columns ? sum : 0;
}

/* Trees over the lanes for the rows of a turn, of which the first step has been done for two and two: a lane has the
 * sum of row_of_lane(). */
DEV float trees(float first_two, float last_two) { return lanes_sum_by_halves<8>(add_halves(first_two, last_two, 8)); }
DEV u32 row_of_lane(void) { return (threadIdx.x >> 4 & 1) + (threadIdx.x >> 2 & 2); }
DEV float of_row(float v, int row) { return __shfl_sync(FULL, v, row % 2 * 16 + row / 2 * 8); }

/* The sums of a turn, of the warp's group, to all blocks. */
DEV void send_sums(const short_conv_bwd_args &a, const place &k, u32 number, float first_two, float last_two)
{
    const u32 buffer = number % BUFFERS, bar = k.bars + 8 * buffer, block = threadIdx.x % 32;
    const float sum = trees(first_two, last_two);
    const float4 all = make_float4(of_row(sum, 0), of_row(sum, 1), of_row(sum, 2), of_row(sum, 3));
    const u32 to = k.sums + (buffer * GROUPS + own_vector() / 32) * 16;
    if (a.cluster_blocks == 1) { /* counts warps */
        __syncwarp();            /* all lanes have read the sums of the turn before */
        if (block == 0) {
            shared_store_u32x4(to, make_uint4(__float_as_uint(all.x), __float_as_uint(all.y), __float_as_uint(all.z),
                                              __float_as_uint(all.w)));
            mbar_arrive(bar);
        }
        return;
    }
    if (threadIdx.x == 0) mbar_expect(bar, blockDim.x / 32 * (u32)a.cluster_blocks * 16);
    if (block < (u32)a.cluster_blocks) cluster_store_async(cluster_map(to, block), all, cluster_map(bar, block));
}

/* The slope of row_of_lane() of the turn whose sums have been sent last; its first row is position q. */
DEV float find_slope(const short_conv_bwd_args &a, const place &k, u32 number, i32 q)
{
    const u32 buffer = number % BUFFERS, lane = threadIdx.x % 32;
    const u32 num_groups = ((u32)a.hidden + CONV_GROUP * VECTOR - 1) / (CONV_GROUP * VECTOR);
    mbar_wait_cluster(k.bars + 8 * buffer, number / BUFFERS % 2);
    float total = 0;
#pragma unroll 1
    for (u32 first = 0; first < num_groups; first += CONV_GROUP) {
        float v[TURN] = {};
        if (first + lane < num_groups) load_floats(k.sums + (buffer * GROUPS + first + lane) * 16, v);
        total += trees(add_halves(v[0], v[1], 16), add_halves(v[2], v[3], 16));
    }
    return conv_slope(&a.numbers, total, rstd_at(k, q + (i32)row_of_lane()));
}

DEV void store_grad_x(const short_conv_bwd_args &a, const place &k, walk &c, u32 row, u32 i, float rstd, float slope)
{
    const conv_numbers adding = { 0, 0, 0, 0, 1 };
    const uint2 x = shared_load_u32x2(row), grad_out = shared_load_u32x2(row + GRAD_OUT);
    /* -0 changes no product: fewer instructions than choosing for every column */
    const uint2 added = a.numbers.adds_input ? grad_out : make_uint2(0x80008000u, 0x80008000u);
    float scaled[VECTOR], grad_x[VECTOR];
    load_floats(scaled_at(k, i), scaled);
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        grad_x[j] = conv_grad_x(&adding, column(x, j), rstd, slope, scaled[j], column(added, j));
    if (k.has_columns) *(uint2 *)c.grad_x = pack(grad_x);
    c.grad_x += a.step.grad_x;
}

/* The rows of the turn before the one at position p; all are there. */
DEV void finish_steady(const short_conv_bwd_args &a, const place &k, walk &c, i32 p)
{
    const i32 q = p - TURN - LAST;
    const float slope = find_slope(a, k, c.number - 1, q);
#pragma unroll
    for (int i = 0; i < TURN; i++) {
        const int from = TURN - LAST + i; /* rows after those of the oldest turn */
        store_grad_x(a, k, c, k.rows + (from < TURN ? c.oldest : c.before) + from % TURN * ROW, i, rstd_at(k, q + i),
                     of_row(slope, i));
    }
}

DEV void finish_any(const short_conv_bwd_args &a, const place &k, walk &c, i32 p)
{
    const i32 q = p - TURN - LAST;
    const float slope = find_slope(a, k, c.number - 1, q);
#pragma unroll 1
    for (i32 i = 0; i < TURN; i++) {
        const u32 word = word_at(k, p - TURN + i);
        const float slope_of_row = of_row(slope, i);
        if (!(word & HAS_ROW)) continue;
        if (word & IS_OLDEST_THERE) {
            store_grad_x(a, k, c, row_at(k, q + i), (u32)i, rstd_at(k, q + i), slope_of_row);
            continue;
        }
        if (k.has_columns) *(uint2 *)c.grad_x = make_uint2(0, 0);
        c.grad_x += a.step.grad_x;
    }
}

enum { NONE, ANY, WHOLE }; /* rows whose sums have been sent */

/* A turn in which all that taps reach is in one request. There is SiLU. */
DEV void run_steady(const short_conv_bwd_args &a, const place &k, const weights &w, walk &c, i32 p, i32 mine_end,
                    int sent, window &of, gradients &sums)
{
    const conv_numbers active = { 0, 0, 0, 1, 0 };
    float sum[TURN];
#pragma unroll
    for (int i = 0; i < TURN; i++) {
        shift(of);
        const u32 row = k.rows + c.turn + (u32)i * ROW;
        find_normed(w, row, rstd_at(k, p + i), of);
        find_grad_z(k, active, w, row, ALL_TAPS, of);
        if (p + i < mine_end) add_newest(k, ALL_TAPS, of, sums);
        if (i == 0) {
            if (sent == WHOLE) finish_steady(a, k, c, p);
            else if (sent == ANY) finish_any(a, k, c, p);
            load_turn(a, k, c, k.rows + c.oldest, p + TURN);
        }
        const uint2 x = shared_load_u32x2(k.rows + (i < LAST ? c.before + (u32)(TURN - LAST + i) * ROW
                                                             : c.turn + (u32)(i - LAST) * ROW));
        float scaled[VECTOR];
        find_scaled(w, ALL_TAPS, of, x, rstd_at(k, p + i - LAST), scaled_at(k, (u32)i), scaled, sums);
        sum[i] = product_sum(k, scaled, x);
        if (i % 2) sum[i] = add_halves(sum[i - 1], sum[i], 16);
    }
    if (a.grad_x.data) send_sums(a, k, c.number, sum[1], sum[3]);
}

/* Position p, whatever it is. */
DEV void run_position(const short_conv_bwd_args &a, const place &k, const weights &w, i32 p, window &of,
                      gradients &sums)
{
    const u32 word = word_at(k, p), row = row_at(k, p);
    shift(of);
    if (word & IS_THERE) find_normed(w, row, rstd_at(k, p), of);
    if (word & HAS_GRAD_Z) {
        find_grad_z(k, a.numbers, w, row, word, of);
        if (word & IS_MINE) add_newest(k, word, of, sums);
    }
    if ((word & (HAS_ROW | IS_OLDEST_THERE)) == (HAS_ROW | IS_OLDEST_THERE)) {
        float scaled[VECTOR];
        find_scaled(w, word >> REACHED, of, shared_load_u32x2(row_at(k, p - LAST)), rstd_at(k, p - LAST),
                    scaled_at(k, (u32)p % TURN), scaled, sums);
    }
}

DEV void run_any(const short_conv_bwd_args &a, const place &k, const weights &w, walk &c, i32 p, i32 end, int sent,
                 window &of, gradients &sums)
{
    if (sent != NONE) finish_any(a, k, c, p);
    load_turn(a, k, c, k.rows + c.oldest, p + TURN);
#pragma unroll 1
    for (i32 i = p; i < min(p + TURN, end); i++) run_position(a, k, w, i, of, sums);
    if (!a.grad_x.data) return;
    float sum[TURN];
#pragma unroll
    for (int i = 0; i < TURN; i++) {
        const u32 word = word_at(k, p + i);
        sum[i] = 0;
        if ((word & (HAS_ROW | IS_OLDEST_THERE)) != (HAS_ROW | IS_OLDEST_THERE)) continue;
        float scaled[VECTOR];
        load_floats(scaled_at(k, (u32)i), scaled);
        sum[i] = product_sum(k, scaled, shared_load_u32x2(row_at(k, p + i - LAST)));
    }
    send_sums(a, k, c.number, add_halves(sum[0], sum[1], 16), add_halves(sum[2], sum[3], 16));
}

DEV i32 request_at(const token *chain, i32 p, i32 end, i32 dilation)
{
    return p >= FIRST && p < end ? chain[(p - FIRST) * dilation].request : -1;
}

/* What the block knows of the positions of a chain, whose first token is given: those of all turns, and of one more. */
DEV void find_positions(const token *chain, i32 count, i32 dilation, u32 *words, float *rstds)
{
    const i32 end = 2 * TURN + count;
#pragma unroll 1
    for (i32 p = (i32)threadIdx.x; p < end + 2 * TURN; p += (i32)blockDim.x) {
        const i32 newest = request_at(chain, p, end, dilation), oldest = request_at(chain, p - LAST, end, dilation);
        u32 word = 0;
#pragma unroll
        for (int j = 0; j < KERNEL_SIZE; j++) {
            const bool is_tap = newest >= 0 && request_at(chain, p - LAST + j, end, dilation) == newest;
            const bool is_reached = oldest >= 0 && request_at(chain, p - j, end, dilation) == oldest;
            word |= (is_tap ? 1u : 0u) << j | (is_reached ? 1u : 0u) << (REACHED + j);
        }
        if (p >= FIRST + LAST && newest >= 0) word |= HAS_GRAD_Z;
        if (p >= FIRST + LAST && p < end - LAST) word |= IS_MINE;
        if (p >= 2 * TURN && p < end) word |= HAS_ROW;
        words[p] = word;
        rstds[p] = newest >= 0 ? chain[(p - FIRST) * dilation].rstd : 0.0f;
    }
}

/* The chain whose first token with results is `first_token`; there are `count` of them. */
DEV void run_chain(const short_conv_bwd_args &a, const place &k, const weights &w, const token *chain, i64 first_token,
                   i32 count, u32 *words, float *rstds, u32 &number, gradients &sums)
{
    const i64 before = (first_token - (i64)LAST * a.dilation), h = k.h, first = first_column(a);
    walk c = { (const u8 *)(a.x.data + before * a.x.token + h * a.x.stream + first),
               (const u8 *)(a.grad_out.data + before * a.grad_out.token + h * a.grad_out.stream + first),
               (u8 *)(a.grad_x.data + first_token * a.grad_x.token + h * a.grad_x.stream + first),
               2 * TURN_BYTES,
               TURN_BYTES,
               0,
               number };
    const i32 end = 2 * TURN + count;
    window of = {};
#pragma unroll 1
    for (i32 p = FIRST; p < 3 * TURN; p++) {
        const bool is_there = request_at(chain, p, end, a.dilation) >= 0;
        load_rows(a, c, row_at(k, p), is_there, is_there && p >= FIRST + LAST);
    }
    copy_async_commit();
    __syncthreads(); /* words and rstds have been read */
    find_positions(chain, count, a.dilation, words, rstds);
    __syncthreads();
    copy_async_wait<0>();
#pragma unroll 1
    for (i32 p = FIRST; p < 2 * TURN; p++) run_position(a, k, w, p, of, sums);
    int sent = NONE;
#pragma unroll 1
    for (i32 p = 2 * TURN; p < end; p += TURN) {
        copy_async_wait<0>();
        const uint4 words = shared_load_u32x4(k.words + 4 * (u32)p);
        const bool is_steady = (words.x & words.y & words.z & words.w & STEADY) == STEADY && a.numbers.has_activation;
        if (is_steady) run_steady(a, k, w, c, p, end - LAST, sent, of, sums);
        else run_any(a, k, w, c, p, end, sent, of, sums);
        if (a.grad_x.data) sent = is_steady ? WHOLE : ANY, c.number++;
        const u32 free = c.oldest;
        c.oldest = c.before, c.before = c.turn, c.turn = free;
    }
    if (sent != NONE) finish_any(a, k, c, 2 * TURN + ceil_div(count, TURN) * TURN);
    number = c.number;
}

/* Requests and rstd of the tile's tokens and of what they reach. */
DEV void find_tokens(const short_conv_bwd_args &a, i64 base, i32 count, i64 h, token *tokens,
                     request_scratch<MAX_THREADS> &scratch)
{
#pragma unroll 1
    for (i32 some = 0; some < count; some += (i32)blockDim.x) {
        const tgl_place place = find_place(a.requests, base + some, scratch);
        const i32 n = some + (i32)threadIdx.x;
        const i64 t = base + n;
        token made = { -1, 0 };
        if (t >= 0 && t < a.num_tokens && is_in_request(a.requests, place) &&
            !(a.requests.image_token_mask && a.requests.image_token_mask[t]))
            made = { (i32)place.number, a.rstd[t * a.num_streams + h] };
        if (n < count) tokens[n] = made;
        __syncthreads();
    }
}

DEV void store_vector(float *to, const float (&v)[VECTOR])
{
    *(float4 *)to = make_float4(tgl_one_nan(v[0]), tgl_one_nan(v[1]), tgl_one_nan(v[2]), tgl_one_nan(v[3]));
}

DEV void store_partials(const short_conv_bwd_args &a, const place &k, i64 channel, const gradients &sums)
{
    if (a.grad_norm) store_vector(a.grad_norm + channel, sums.norm);
    if (a.grad_bias) {
        float sum[VECTOR];
        load_floats(grad_bias_at(k), sum);
        store_vector(a.grad_bias + channel, sum);
    }
    if (!a.grad_conv) return;
#pragma unroll
    for (int v = 0; v < KERNEL_SIZE; v++) {
        float some[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const int number = v * VECTOR + i;
            some[i] = sums.conv[number / KERNEL_SIZE][number % KERNEL_SIZE];
        }
        store_vector(a.grad_conv + channel * KERNEL_SIZE + v * VECTOR, some);
    }
}

DEV void run(const short_conv_bwd_args &a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(token[TOKENS], tokens);
    SHARED(uint4[POSITIONS / TURN], words_of_turns);
    SHARED(float[POSITIONS], rstds);
    SHARED(u64[BUFFERS], bars);
    SHARED(float4[BUFFERS * GROUPS], buffers);
    SHARED(request_scratch<MAX_THREADS>, scratch);
    static_assert(sizeof tokens + sizeof words_of_turns + sizeof rstds + sizeof bars + sizeof buffers +
                          sizeof scratch <=
                      CONV_CLUSTER_STATIC,
                  "CONV_CLUSTER_STATIC");
    u32 *const words = (u32 *)words_of_turns;
    const u32 tid = threadIdx.x;
    const i64 cluster = blockIdx.x / (u32)a.cluster_blocks;
    const i64 partial = cluster / a.num_streams;
    const u32 h = (u32)(cluster - partial * a.num_streams);
    const i32 reach = LAST * a.dilation;
    if (tid == 0) {
#pragma unroll
        for (int i = 0; i < BUFFERS; i++)
            mbar_init(shared_address(bars + i), a.cluster_blocks > 1 ? 1 : blockDim.x / 32);
        mbar_init_fence();
    }
    __syncthreads();
    cluster_arrive_relaxed();
    cluster_wait(); /* mbarriers of all blocks are initialised */
    pdl_wait();
    const place k = { h,
                      shared_address(words),
                      shared_address(rstds),
                      shared_address(memory) + blockDim.x * CONV_CLUSTER_FLOAT_BYTES + tid * CONV_CLUSTER_ROW_BYTES,
                      shared_address(memory) + tid * CONV_CLUSTER_FLOAT_BYTES,
                      shared_address(buffers),
                      shared_address(bars),
                      has_columns(a) };
    weights w = {};
    gradients sums = {};
    const float zeros[VECTOR] = {};
    store_floats(grad_bias_at(k), zeros);
    store_floats(bias_at(k), zeros);
    load_weights(a, k, w);
    u32 number = 0;
#pragma unroll 1
    for (i64 tile = partial * a.partial_tokens;; tile += CONV_BWD_TILE) {
        const i64 end =
            min((i64)(kept_u32((u32)partial) + 1) * a.partial_tokens, a.num_tokens); /* not kept, as above */
        if (tile >= end) break;
        const i32 count = (i32)min((i64)CONV_BWD_TILE, end - tile);
        __syncthreads(); /* tokens have been read */
        find_tokens(a, tile - reach, count + 2 * reach, h, tokens, scratch);
#pragma unroll 1
        for (i32 c = 0; c < min(a.dilation, count); c++) {
            const i32 chain_count = (count - c + a.dilation - 1) / a.dilation;
            run_chain(a, k, w, tokens + c, tile + c, chain_count, words, rstds, number, sums);
        }
    }
    if (k.has_columns) store_partials(a, k, (partial * a.num_streams + h) * a.hidden + first_column(a), sums);
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait(); /* no block stores into one that has ended */
}
#endif

/* Blocks of an SM: on devices after sm_90 fewer, since registers would spill. */
#if __CUDA_ARCH__ < 1000
#define MIN_BLOCKS (CONV_CLUSTER_THREADS / MAX_THREADS)
#else
#define MIN_BLOCKS (CONV_CLUSTER_THREADS * 3 / 4 / MAX_THREADS)
#endif
extern "C" __global__ void __launch_bounds__(MAX_THREADS, MIN_BLOCKS)
    short_conv_bwd_cluster(const __grid_constant__ short_conv_bwd_args a)
{
#if __CUDA_ARCH__ >= 900
    run(a);
    pdl_trigger();
#endif
}
