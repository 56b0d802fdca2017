/* SPDX-License-Identifier: MIT
 * short_conv_bwd_cluster.cu - the gradients of the short convolution: the blocks of a cluster split the columns; sm_90
 * and up.
 *   computes  as short_conv_bwd.cu
 *   launch    grid num_partials * num_streams * cluster_blocks, cluster cluster_blocks, block of a thread per vector (4
 *             columns), dynamic shared memory of CONV_CLUSTER_ROWS rows of x and of grad_out, and 4 + CONV_CLUSTER_TAPS
 *             floats per column
 *   moves     2 bytes per element of x, grad_out and grad_x, once each, and of x and grad_out of the tokens that taps
 *             of a tile reach; partials once
 *   macros    KERNEL_SIZE 1..CONV_CLUSTER_TAPS
 *
 * A thread has the same columns of all tokens, and takes every dilation-th: all that taps reach is then its own, the last
 * KERNEL_SIZE values of a chain of tokens in registers, as are conv_weight and the sums of its gradients, and as many gradients
 * of z in shared memory. Rows come ahead, by copies of the thread's own columns. Position s of a chain is `at`; the gradient
 * of what is convolved is complete for the token LAST positions before. Its row's sum is the one thing that blocks tell each other: every
 * warp stores that of its group in all blocks of the cluster, which count the bytes, and it is read a position later.
 * Sums have four buffers: a warp that stores those of a row has seen those of two rows before from all warps, which
 * then had read those of four rows before. */
#include "device/reduce.cuh"
#include "engram/common/short_conv.cuh"
#include "engram/short_conv_bwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_NONE
#define PAST_BYTES 0
#include "engram/common/requests.cuh"

static_assert(KERNEL_SIZE >= 1 && KERNEL_SIZE <= CONV_CLUSTER_TAPS, "KERNEL_SIZE is 1..CONV_CLUSTER_TAPS");

#if __CUDA_ARCH__ >= 900
enum {
    LAST = KERNEL_SIZE - 1,
    VECTOR = CONV_BWD_VECTOR,
    ROWS = CONV_CLUSTER_ROWS,
    AHEAD = CONV_CLUSTER_ROWS - CONV_CLUSTER_TAPS - 1, /* the row before those of the taps is read late */
    TOKENS = CONV_BWD_TILE + 2 * CONV_CLUSTER_REACH,
    BUFFERS = 4,
    GROUPS = CONV_CLUSTER_BLOCKS * CONV_CLUSTER_THREADS / CONV_GROUP
};

DEV float tree(float v) { return lanes_sum_by_halves<CONV_GROUP>(v); } /* of a group, in all lanes */

/* What a block knows of a token. */
struct token {
    i32 request;
    float rstd;
}; /* request -1: it takes no part */

struct place {
    const token *tokens; /* of the tile and what it reaches, from token `base` on */
    i64 base;
    u32 h, first;  /* stream, first column */
    u32 x, floats; /* shared memory, at this thread's columns: rows; see norm_at() */
    u32 pitch, sums, bars, group;
    bool has_columns;
};
DEV u32 x_at(const place &k, u32 s) { return k.x + s % ROWS * k.pitch; }
DEV u32 grad_out_at(const place &k, u32 s) { return x_at(k, s) + ROWS * k.pitch; }

/* Behind them, a float for each column: norm_weight as it counts, the sums of its gradient and of bias's, and the
 * `scaled` of the row whose sum has been sent last, the gradients of z of the last positions. Registers are short. */
DEV u32 norm_at(const place &k) { return k.floats; }
DEV u32 grad_norm_at(const place &k) { return k.floats + 2 * k.pitch; }
DEV u32 grad_bias_at(const place &k) { return k.floats + 4 * k.pitch; }
DEV u32 scaled_at(const place &k) { return k.floats + 6 * k.pitch; }
DEV u32 grad_z_at(const place &k, u32 s) { return k.floats + (8 + 2 * (s % CONV_CLUSTER_TAPS)) * k.pitch; }

static_assert(VECTOR == 4, "a thread's columns are 8 bytes of bf16, 16 of floats");
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

struct weights { float conv[VECTOR][KERNEL_SIZE]; };
struct gradients { float conv[VECTOR][KERNEL_SIZE]; };

DEV void load_weights(const short_conv_bwd_args &a, const place &k, weights &w)
{
    const i64 h = k.h;
    float norm[VECTOR];
    load_norm(a.norm, a.numbers, h, k.first, norm);
    store_floats(norm_at(k), norm);
#pragma unroll
    for (int v = 0; v < KERNEL_SIZE; v++) {
        float some[VECTOR];
        load_vector(a.conv, (h * a.hidden + k.first) * KERNEL_SIZE + v * VECTOR, some);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const int n = v * VECTOR + i;
            w.conv[n / KERNEL_SIZE][n % KERNEL_SIZE] = some[i];
        }
    }
}

/* x, grad_out and grad_x at this thread's columns: of a token; and elements from one to the next of a chain. Adding takes
 * fewer instructions than multiplying for every token. */
struct pointers {
    const u16 *x, *grad_out;
    u16 *grad_x;
};
struct steps { i64 x, grad_out, grad_x; };

DEV steps steps_of(const short_conv_bwd_args &a, i64 tokens)
{
    return { tokens * a.x.token, tokens * a.grad_out.token, tokens * a.grad_x.token };
}
DEV pointers pointers_to(const short_conv_bwd_args &a, i64 token, i64 h, i64 first)
{
    const steps before = steps_of(a, token);
    return { a.x.data + before.x + h * a.x.stream + first,
             a.grad_out.data + before.grad_out + h * a.grad_out.stream + first,
             a.grad_x.data + before.grad_x + h * a.grad_x.stream + first };
}

/* Begins to load position s of a chain, token number n of the tile. */
DEV void load_rows(const place &k, i32 s, i32 end, i32 n, pointers &next, const steps &step)
{
    if (s < end && k.has_columns && k.tokens[n].request >= 0) {
        copy_async_8(x_at(k, (u32)s), next.x);
        if (s >= LAST) copy_async_8(grad_out_at(k, (u32)s), next.grad_out);
    }
    copy_async_commit();
    next.x += step.x, next.grad_out += step.grad_out;
}

/* The rows of a thread without columns: zeros, so that only send_sum() and stores have to tell it apart. */
DEV void fill_rows(const place &k)
{
#pragma unroll 1
    for (u32 s = 0; s < ROWS; s++) {
        shared_store_u32x2(x_at(k, s), make_uint2(0, 0));
        shared_store_u32x2(grad_out_at(k, s), make_uint2(0, 0));
    }
}

/* The last positions of a chain; of the newest index LAST. */
struct window {
    i32 request[KERNEL_SIZE];
    uint2 normed[KERNEL_SIZE];
};

DEV void shift(window &w) /* the newest is nothing yet */
{
#pragma unroll
    for (int j = 0; j < LAST; j++) {
        w.request[j] = w.request[j + 1];
        w.normed[j] = w.normed[j + 1];
    }
    w.request[LAST] = -1;
    w.normed[LAST] = make_uint2(0, 0);
}

/* The gradient of z of the newest position, which takes part; if it is one of the tile, what it adds to partials. */
DEV void find_grad_z(const short_conv_bwd_args &a, const place &k, const weights &w, const window &of, u32 s,
                     bool is_mine, gradients &sums)
{
    const uint2 grad_out = shared_load_u32x2(grad_out_at(k, s));
    float z[VECTOR] = {}, grad_z[VECTOR];
    if (a.bias.data) /* no model has one: it is read for every token */
        if (k.has_columns) load_vector(a.bias, k.h * a.hidden + k.first, z);
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++) {
        const uint2 tap = of.request[j] == of.request[LAST] ? of.normed[j] : make_uint2(0, 0);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) z[i] = fmaf(w.conv[i][j], column(tap, i), z[i]);
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        grad_z[i] = conv_grad_z(&a.numbers, column(grad_out, i), z[i], reciprocal(conv_sigmoid_divisor(z[i])));
    store_floats(grad_z_at(k, s), grad_z);
    if (!is_mine) return;
    if (a.grad_bias) {
        float bias[VECTOR];
        load_floats(grad_bias_at(k), bias);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) bias[i] += grad_z[i];
        store_floats(grad_bias_at(k), bias);
    }
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++)
        if (of.request[j] == of.request[LAST])
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                sums.conv[i][j] = fmaf(grad_z[i], column(of.normed[j], i), sums.conv[i][j]);
}

/* The gradient of what is convolved, times norm_weight; what it adds to that of norm_weight. */
DEV void scale(const place &k, const float (&grad)[VECTOR], const uint2 &x, float rstd, float (&scaled)[VECTOR])
{
    float norm[VECTOR], sum[VECTOR];
    load_floats(norm_at(k), norm);
    load_floats(grad_norm_at(k), sum);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        sum[i] = conv_grad_norm(grad[i], column(x, i), rstd, sum[i]);
        scaled[i] = norm[i] * grad[i];
    }
    store_floats(grad_norm_at(k), sum);
    store_floats(scaled_at(k), scaled);
}

/* norm_weight times the gradient of what is convolved, of the oldest position; s is the newest. */
DEV void find_scaled(const place &k, const weights &w, const window &of, u32 s, const uint2 &x, float rstd,
                     float (&scaled)[VECTOR])
{
    float grad[VECTOR] = {};
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++) {
        if (of.request[LAST - j] != of.request[0]) continue;
        float grad_z[VECTOR];
        load_floats(grad_z_at(k, s - j), grad_z);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) grad[i] = fmaf(w.conv[i][j], grad_z[i], grad[i]);
    }
    scale(k, grad, x, rstd, scaled);
}

/* Sum number `number` of the warp's group, to all blocks. */
DEV void send_sum(const short_conv_bwd_args &a, const place &k, u32 number, const float (&scaled)[VECTOR],
                  const uint2 &x)
{
    const u32 buffer = number % BUFFERS, bar = k.bars + 8 * buffer, block = threadIdx.x % 32;
    if (threadIdx.x == 0) mbar_expect(bar, blockDim.x / 32 * (u32)a.cluster_blocks * 16);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum = fmaf(scaled[i], column(x, i), sum);
    sum = tree(k.has_columns ? sum : 0); /* 0 times an infinite rstd is NaN */
    const u32 to = k.sums + (buffer * GROUPS + k.group) * 16;
    if (block < (u32)a.cluster_blocks)
        cluster_store_async(cluster_map(to, block), make_float4(sum, 0, 0, 0), cluster_map(bar, block));
}

/* A row whose sum, number `number`, has been sent; position s. Its gradient goes to `to`. */
DEV void finish_row(const short_conv_bwd_args &a, const place &k, u32 s, float rstd, u32 number, u16 *to)
{
    const u32 buffer = number % BUFFERS, lane = threadIdx.x % 32;
    const u32 num_groups = ((u32)a.hidden + CONV_GROUP * VECTOR - 1) / (CONV_GROUP * VECTOR);
    mbar_wait_cluster(k.bars + 8 * buffer, number / BUFFERS % 2);
    float total = 0;
#pragma unroll 1
    for (u32 first = 0; first < num_groups; first += CONV_GROUP)
        total +=
            tree(first + lane < num_groups ? shared_load_f32(k.sums + (buffer * GROUPS + first + lane) * 16) : 0.0f);
    const float slope = conv_slope(&a.numbers, total, rstd);
    const uint2 x = shared_load_u32x2(x_at(k, s)), go = shared_load_u32x2(grad_out_at(k, s));
    float scaled[VECTOR], grad_x[VECTOR];
    load_floats(scaled_at(k), scaled);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        grad_x[i] = conv_grad_x(&a.numbers, column(x, i), rstd, slope, scaled[i], column(go, i));
    if (k.has_columns) *(uint2 *)to = pack(grad_x);
}

/* Where a chain is. */
struct walk {
    i32 begin, count, end; /* its first token; tokens with results; positions */
    pointers at;           /* x, grad_out: of the next row to load; grad_x: of the oldest position */
    steps step;
    u32 number;   /* of rows whose sums have been sent, by this block */
    bool is_sent; /* the sum of the row before the oldest position */
};

/* Is all that the next KERNEL_SIZE positions reach in one request, and are they all the tile's own? */
DEV bool is_steady(const short_conv_bwd_args &a, const place &k, const walk &c, const window &of, i32 s)
{
    if (s < 2 * LAST || s >= c.count || of.request[LAST] < 0) return false;
    bool is_one = true;
#pragma unroll
    for (int j = 0; j < LAST; j++) is_one = is_one && of.request[j] == of.request[LAST];
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++)
        is_one = is_one && k.tokens[c.begin + (s + j) * a.dilation].request == of.request[LAST];
    return is_one;
}

/* The next KERNEL_SIZE positions, which are steady; gradients of x are wanted, there is SiLU and no bias. The newest position
 * replaces the oldest one in the window: after so many, that is in order again, and nothing has been moved. */
DEV void run_steady(const short_conv_bwd_args &a, const place &k, const weights &w, walk &c, i32 s, window &of,
                    gradients &sums)
{
    const conv_numbers active = { 0, 0, 0, 1, 0 };
#pragma unroll
    for (int newest = 0; newest < KERNEL_SIZE; newest++, s++, c.at.grad_x += c.step.grad_x) {
        s = (i32)kept_u32((u32)s); /* nothing is computed ahead: registers are short */
        const i32 n = c.begin + s * a.dilation;
        load_rows(k, s + AHEAD, c.end, n + AHEAD * a.dilation, c.at, c.step);
        copy_async_wait<AHEAD>();
        float norm[VECTOR], z[VECTOR] = {}, grad_z[VECTOR], grad[VECTOR] = {}, scaled[VECTOR];
        load_floats(norm_at(k), norm);
        of.normed[newest] = normed(shared_load_u32x2(x_at(k, (u32)s)), k.tokens[n].rstd, norm);
#pragma unroll
        for (int j = 0; j < KERNEL_SIZE; j++)
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                z[i] = fmaf(w.conv[i][j], column(of.normed[(newest + 1 + j) % KERNEL_SIZE], i), z[i]);
        const uint2 go = shared_load_u32x2(grad_out_at(k, (u32)s));
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            grad_z[i] = conv_grad_z(&active, column(go, i), z[i], reciprocal(conv_sigmoid_divisor(z[i])));
        store_floats(grad_z_at(k, (u32)s), grad_z);
#pragma unroll
        for (int j = 0; j < KERNEL_SIZE; j++)
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                sums.conv[i][j] =
                    fmaf(grad_z[i], column(of.normed[(newest + 1 + j) % KERNEL_SIZE], i), sums.conv[i][j]);
        if (newest > 0 || c.is_sent)
            finish_row(a, k, (u32)s - 1 - LAST, k.tokens[n - KERNEL_SIZE * a.dilation].rstd, c.number - 1,
                       c.at.grad_x - c.step.grad_x);
#pragma unroll
        for (int j = 0; j < KERNEL_SIZE; j++) {
            if (j > 0) load_floats(grad_z_at(k, (u32)(s - j)), grad_z);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) grad[i] = fmaf(w.conv[i][j], grad_z[i], grad[i]);
        }
        const uint2 x = shared_load_u32x2(x_at(k, (u32)s - LAST));
        scale(k, grad, x, k.tokens[n - LAST * a.dilation].rstd, scaled);
        send_sum(a, k, c.number++, scaled, x);
    }
    c.is_sent = true;
}

/* Tokens LAST * dilation + begin, and every dilation-th from there, `count` of them, counted from `base`. */
DEV void run_chain(const short_conv_bwd_args &a, const place &k, const weights &w, i32 begin, i32 count, u32 &number,
                   gradients &sums)
{
    walk c = { begin,  count, count + 2 * LAST, pointers_to(a, k.base + begin, k.h, k.first), steps_of(a, a.dilation),
               number, false };
    const bool can_be_steady = a.grad_x.data && a.numbers.has_activation && !a.bias.data && !a.grad_bias;
    window of;
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++) shift(of);
    c.at.grad_x -= LAST * c.step.grad_x;
#pragma unroll 1
    for (i32 s = 0; s < AHEAD; s++) load_rows(k, s, c.end, begin + s * a.dilation, c.at, c.step);
    i32 s = 0;
#pragma unroll 1
    while (s < c.end) {
        if (can_be_steady && is_steady(a, k, c, of, s)) {
            run_steady(a, k, w, c, s, of, sums);
            s += KERNEL_SIZE;
            continue;
        }
        const i32 n = begin + s * a.dilation;
        load_rows(k, s + AHEAD, c.end, n + AHEAD * a.dilation, c.at, c.step);
        copy_async_wait<AHEAD>();
        shift(of);
        const token newest = k.tokens[n];
        of.request[LAST] = newest.request;
        if (newest.request >= 0) {
            float norm[VECTOR];
            load_floats(norm_at(k), norm);
            of.normed[LAST] = normed(shared_load_u32x2(x_at(k, (u32)s)), newest.rstd, norm);
            if (s >= LAST) find_grad_z(a, k, w, of, (u32)s, s < LAST + count, sums);
        }
        if (c.is_sent)
            finish_row(a, k, (u32)s - 1 - LAST, k.tokens[n - KERNEL_SIZE * a.dilation].rstd, c.number - 1,
                       c.at.grad_x - c.step.grad_x);
        c.is_sent = false;
        if (s >= 2 * LAST && of.request[0] >= 0) {
            const uint2 x = shared_load_u32x2(x_at(k, (u32)s - LAST));
            float scaled[VECTOR];
            find_scaled(k, w, of, (u32)s, x, k.tokens[n - LAST * a.dilation].rstd, scaled);
            c.is_sent = a.grad_x.data;
            if (c.is_sent) send_sum(a, k, c.number++, scaled, x);
        } else if (s >= 2 * LAST && a.grad_x.data && k.has_columns) {
            *(uint2 *)c.at.grad_x = make_uint2(0, 0);
        }
        s++;
        c.at.grad_x += c.step.grad_x;
    }
    if (c.is_sent)
        finish_row(a, k, (u32)c.end - 1 - LAST, k.tokens[begin + (c.end - KERNEL_SIZE) * a.dilation].rstd, c.number - 1,
                   c.at.grad_x - c.step.grad_x);
    number = c.number;
}

/* Requests and rstd of the tile's tokens and of what they reach. */
DEV void find_tokens(const short_conv_bwd_args &a, i64 base, i32 count, i64 h, token *tokens,
                     request_scratch<CONV_CLUSTER_THREADS> &scratch)
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
    float sum[VECTOR];
    load_floats(grad_norm_at(k), sum);
    if (a.grad_norm) store_vector(a.grad_norm + channel, sum);
    load_floats(grad_bias_at(k), sum);
    if (a.grad_bias) store_vector(a.grad_bias + channel, sum);
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
    SHARED(u64[BUFFERS], bars);
    SHARED(float4[BUFFERS * GROUPS], buffers);
    SHARED(request_scratch<CONV_CLUSTER_THREADS>, scratch);
    static_assert(sizeof tokens + sizeof bars + sizeof buffers + sizeof scratch <= CONV_CLUSTER_STATIC,
                  "CONV_CLUSTER_STATIC");
    const u32 tid = threadIdx.x, warps = blockDim.x / 32;
    const i64 cluster = blockIdx.x / (u32)a.cluster_blocks, rank = blockIdx.x % (u32)a.cluster_blocks;
    const i64 partial = cluster / a.num_streams;
    const u32 h = (u32)(cluster - partial * a.num_streams), first = ((u32)rank * blockDim.x + tid) * VECTOR;
    const i32 reach = LAST * a.dilation;
    if (tid == 0) {
#pragma unroll
        for (int i = 0; i < BUFFERS; i++) mbar_init(shared_address(bars + i), 1);
        mbar_init_fence();
    }
    __syncthreads();
    cluster_arrive_relaxed();
    cluster_wait(); /* mbarriers of all blocks are initialised */
    pdl_wait();
    place k = { tokens,
                0,
                h,
                first,
                shared_address(memory) + tid * VECTOR * 2,
                shared_address(memory) + (2 * ROWS * blockDim.x + tid * 2) * VECTOR * 2,
                blockDim.x * VECTOR * 2,
                shared_address(buffers),
                shared_address(bars),
                (u32)rank * warps + tid / 32,
                kept_u32(first < a.hidden) != 0 }; /* else compared again for every row */
    weights w = {};
    gradients sums = {};
    const float zeros[VECTOR] = {};
    store_floats(grad_bias_at(k), zeros);
    store_floats(grad_norm_at(k), zeros);
    store_floats(norm_at(k), zeros);
    if (k.has_columns) load_weights(a, k, w);
    else fill_rows(k);
    const i64 begin = partial * a.partial_tokens, end = min(begin + a.partial_tokens, a.num_tokens);
    u32 number = 0;
#pragma unroll 1
    for (i64 tile = begin; tile < end; tile += CONV_BWD_TILE) {
        const i32 count = (i32)min((i64)CONV_BWD_TILE, end - tile);
        k.base = tile - reach;
        __syncthreads(); /* tokens have been read */
        find_tokens(a, k.base, count + 2 * reach, h, tokens, scratch);
#pragma unroll 1
        for (i32 c = 0; c < min(a.dilation, count); c++)
            run_chain(a, k, w, c, (count - c + a.dilation - 1) / a.dilation, number, sums);
    }
    if (k.has_columns) store_partials(a, k, (partial * a.num_streams + h) * a.hidden + first, sums);
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait(); /* no block stores into one that has ended */
}
#endif

extern "C" __global__ void __launch_bounds__(CONV_CLUSTER_THREADS, 1)
    short_conv_bwd_cluster(const __grid_constant__ short_conv_bwd_args a)
{
#if __CUDA_ARCH__ >= 900
    run(a);
    pdl_trigger();
#endif
}
