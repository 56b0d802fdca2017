/* SPDX-License-Identifier: MIT
 * short_conv_bwd_cluster.cu - the gradients of the short convolution: the blocks of a cluster split the columns; sm_90
 * and up.
 *   computes  as short_conv_bwd.cu
 *   launch    grid num_partials * num_streams * cluster_blocks, cluster cluster_blocks, block of a thread per vector (8
 *             columns), dynamic shared memory of CONV_CLUSTER_ROWS rows of x and of grad_out,
 *             and two floats per column
 *   moves     2 bytes per element of x, grad_out and grad_x, once each, and of x and grad_out of the tokens that taps
 *             of a tile reach; partials once
 *   macros    KERNEL_SIZE 1..CONV_CLUSTER_TAPS
 *
 * A thread has the same columns of all tokens, and takes every dilation-th: all that taps reach is then in registers,
 * the last KERNEL_SIZE values and gradients of a chain of tokens, as are weights and the sums of their gradients. Rows
 * come ahead, by copies of the thread's own columns. Position s of a chain is `at`; the gradient of what is convolved
 * is complete for the token LAST positions before. Its row's sum is the one thing that blocks tell each other: every
 * warp stores that of its group in all blocks of the cluster, which count the bytes, and it is read a position later.
 * Sums have four buffers: a warp that stores those of a row has seen those of two rows before from all warps, which
 * then had read those of four rows before. */
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
    LAST = KERNEL_SIZE - 1, VECTOR = CONV_BWD_VECTOR, ROWS = CONV_CLUSTER_ROWS,
    AHEAD = CONV_CLUSTER_ROWS - CONV_CLUSTER_TAPS - 1,      /* the row before those of the taps is read late */
    TOKENS = CONV_BWD_TILE + 2 * CONV_CLUSTER_REACH, BUFFERS = 4,
    GROUPS = CONV_CLUSTER_BLOCKS * CONV_CLUSTER_THREADS / CONV_GROUP
};

DEV float tree(float v)                         /* of a group, in all lanes */
{
#pragma unroll
    for (int half = CONV_GROUP / 2; half > 0; half /= 2) v += __shfl_xor_sync(FULL, v, half);
    return v;
}

/* What a block knows of a token. */
struct token { i32 request; float rstd; };      /* request -1: it takes no part */

struct place {
    const token *tokens;                        /* of the tile and what it reaches, from token `base` on */
    i64 base;
    u32 h, first;                               /* stream, first column */
    u32 x;                                      /* rows of shared memory, at this thread's columns */
    u32 pitch, sums, bars, group, num_groups, num_warps;
    bool has_columns;
};
DEV u32 x_at(const place &k, u32 s) { return k.x + s % ROWS * k.pitch; }
DEV u32 grad_out_at(const place &k, u32 s) { return x_at(k, s) + ROWS * k.pitch; }

/* Behind them: norm_weight as it counts, and the sums of bias's gradient. Registers are short. */
DEV u32 norm_at(const place &k, int i) { return k.x + (2 * ROWS + i / 4) * k.pitch + i % 4 * 4; }
DEV u32 bias_at(const place &k, int i) { return norm_at(k, i) + VECTOR / 4 * k.pitch; }

DEV void norm_of(const place &k, float (&norm)[VECTOR])
{
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4) {
        const float4 v = shared_load_f32x4(norm_at(k, i));
        norm[i] = v.x, norm[i + 1] = v.y, norm[i + 2] = v.z, norm[i + 3] = v.w;
    }
}

struct weights { float conv[VECTOR][KERNEL_SIZE]; };
struct gradients { float norm[VECTOR], conv[VECTOR][KERNEL_SIZE]; };

DEV void load_weights(const short_conv_bwd_args &a, const place &k, weights &w)
{
    const i64 h = k.h;
    float norm[VECTOR];
    load_vector(a.norm, h * a.norm.stride + k.first, norm);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) shared_store_f32(norm_at(k, i), conv_norm_weight(&a.numbers, norm[i]));
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

/* Elements of x, grad_out and grad_x from their first ones, at this thread's columns: of a token, or from one to the
 * next of a chain. Adding takes fewer instructions than multiplying for every token. */
struct offsets { i64 x, grad_out, grad_x; };

DEV offsets offsets_of(const short_conv_bwd_args &a, i64 tokens, i64 h, i64 first)
{
    return { tokens * a.x.token + h * a.x.stream + first, tokens * a.grad_out.token + h * a.grad_out.stream + first,
             tokens * a.grad_x.token + h * a.grad_x.stream + first };
}

/* Begins to load position s of a chain, token number n of the tile. */
DEV void load_rows(const short_conv_bwd_args &a, const place &k, i32 s, i32 end, i32 n, offsets &next,
                   const offsets &step)
{
    if (s < end && k.has_columns && k.tokens[n].request >= 0) {
        copy_async_16(x_at(k, (u32)s), a.x.data + next.x);
        if (s >= LAST) copy_async_16(grad_out_at(k, (u32)s), a.grad_out.data + next.grad_out);
    }
    copy_async_commit();
    next.x += step.x, next.grad_out += step.grad_out;
}

/* The last positions of a chain; of the newest index LAST. */
struct window { i32 request[KERNEL_SIZE]; uint4 normed[KERNEL_SIZE]; float grad_z[KERNEL_SIZE][VECTOR]; };

DEV void shift(window &w)                       /* the newest is nothing yet */
{
#pragma unroll
    for (int j = 0; j < LAST; j++) {
        w.request[j] = w.request[j + 1];
        w.normed[j] = w.normed[j + 1];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) w.grad_z[j][i] = w.grad_z[j + 1][i];
    }
    w.request[LAST] = -1;
    w.normed[LAST] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) w.grad_z[LAST][i] = 0;
}

/* The gradient of z of the newest position, which takes part; if it is one of the tile, what it adds to partials. */
DEV void find_grad_z(const short_conv_bwd_args &a, const place &k, const weights &w, window &of, const uint4 &grad_out,
                     bool is_mine, gradients &sums)
{
    float z[VECTOR] = {};
    if (a.bias.data)                                        /* no model has one: it is read for every token */
        if (k.has_columns) load_vector(a.bias, k.h * a.hidden + k.first, z);
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++) {
        const uint4 tap = of.request[j] == of.request[LAST] ? of.normed[j] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) z[i] = fmaf(w.conv[i][j], column(tap, i), z[i]);
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        of.grad_z[LAST][i] =
            conv_grad_z(&a.numbers, column(grad_out, i), z[i], reciprocal(conv_sigmoid_divisor(z[i])));
    if (a.grad_bias && is_mine)
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            shared_store_f32(bias_at(k, i), shared_load_f32(bias_at(k, i)) + of.grad_z[LAST][i]);
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++)
        if (is_mine && of.request[j] == of.request[LAST])
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                sums.conv[i][j] = fmaf(of.grad_z[LAST][i], column(of.normed[j], i), sums.conv[i][j]);
}

/* norm_weight times the gradient of what is convolved, of the oldest position. */
DEV void find_scaled(const place &k, const weights &w, const window &of, const uint4 &x, float rstd, gradients &sums,
                     float (&scaled)[VECTOR])
{
    float grad[VECTOR] = {}, norm[VECTOR];
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++)
        if (of.request[LAST - j] == of.request[0])
#pragma unroll
            for (int i = 0; i < VECTOR; i++) grad[i] = fmaf(w.conv[i][j], of.grad_z[LAST - j][i], grad[i]);
    norm_of(k, norm);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        sums.norm[i] = conv_grad_norm(grad[i], column(x, i), rstd, sums.norm[i]);
        scaled[i] = norm[i] * grad[i];
    }
}

/* Sum number `number` of the warp's group, to all blocks. */
DEV void send_sum(const short_conv_bwd_args &a, const place &k, u32 number, const float (&scaled)[VECTOR],
                  const uint4 &x)
{
    const u32 buffer = number % BUFFERS, bar = k.bars + 8 * buffer, block = threadIdx.x % 32;
    if (threadIdx.x == 0) mbar_expect(bar, k.num_warps * (u32)a.cluster_blocks * 16);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum = fmaf(scaled[i], column(x, i), sum);
    sum = tree(sum);
    const u32 to = k.sums + (buffer * GROUPS + k.group) * 16;
    if (block < (u32)a.cluster_blocks)
        cluster_store_async(cluster_map(to, block), make_float4(sum, 0, 0, 0), cluster_map(bar, block));
}

/* A row whose sum, number `number`, has been sent; position s. Its gradient goes to `to`. */
DEV void finish_row(const short_conv_bwd_args &a, const place &k, const float (&scaled)[VECTOR], u32 s, float rstd,
                    u32 number, i64 to)
{
    const u32 buffer = number % BUFFERS, lane = threadIdx.x % 32;
    mbar_wait_cluster(k.bars + 8 * buffer, number / BUFFERS % 2);
    float total = 0;
#pragma unroll 1
    for (u32 first = 0; first < k.num_groups; first += CONV_GROUP)
        total += tree(first + lane < k.num_groups
                          ? shared_load_f32(k.sums + (buffer * GROUPS + first + lane) * 16) : 0.0f);
    if (!k.has_columns) return;
    const float slope = conv_slope(&a.numbers, total, rstd);
    const uint4 x = shared_load_u32x4(x_at(k, s)), go = shared_load_u32x4(grad_out_at(k, s));
    float grad_x[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        grad_x[i] = conv_grad_x(&a.numbers, column(x, i), rstd, slope, scaled[i], column(go, i));
    store_u32x4(a.grad_x.data + to, pack(grad_x));
}

/* Tokens LAST * dilation + begin, and every dilation-th from there, `count` of them, counted from `base`. */
DEV void run_chain(const short_conv_bwd_args &a, const place &k, const weights &w, i32 begin, i32 count, u32 &number,
                   gradients &sums)
{
    const i32 end = count + 2 * LAST;
    const uint4 none = make_uint4(0, 0, 0, 0);
    const offsets step = offsets_of(a, a.dilation, 0, 0);
    offsets at = offsets_of(a, k.base + begin, k.h, k.first);   /* x, grad_out: of the next row to load */
    window of;
    float scaled[VECTOR] = {};                                  /* of the row whose sum has been sent last */
    bool is_sent = false;
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++) shift(of);
    at.grad_x -= LAST * step.grad_x;                            /* of the oldest position */
#pragma unroll 1
    for (i32 s = 0; s < AHEAD; s++) load_rows(a, k, s, end, begin + s * a.dilation, at, step);
#pragma unroll 1
    for (i32 s = 0; s < end; s++, at.grad_x += step.grad_x) {
        const i32 n = begin + s * a.dilation;
        load_rows(a, k, s + AHEAD, end, n + AHEAD * a.dilation, at, step);
        copy_async_wait<AHEAD>();
        shift(of);
        const token newest = k.tokens[n];
        of.request[LAST] = newest.request;
        if (newest.request >= 0) {
            const uint4 x = k.has_columns ? shared_load_u32x4(x_at(k, (u32)s)) : none;
            float norm[VECTOR];
            norm_of(k, norm);
            of.normed[LAST] = normed(x, newest.rstd, norm);
            if (s >= LAST)
                find_grad_z(a, k, w, of, k.has_columns ? shared_load_u32x4(grad_out_at(k, (u32)s)) : none,
                            s < LAST + count, sums);
        }
        if (is_sent)
            finish_row(a, k, scaled, (u32)s - 1 - LAST, k.tokens[n - KERNEL_SIZE * a.dilation].rstd, number - 1,
                       at.grad_x - step.grad_x);
        is_sent = false;
        if (s < 2 * LAST) continue;
        if (of.request[0] >= 0) {
            const uint4 x = k.has_columns ? shared_load_u32x4(x_at(k, (u32)s - LAST)) : none;
            find_scaled(k, w, of, x, k.tokens[n - LAST * a.dilation].rstd, sums, scaled);
            if (!a.grad_x.data) continue;
            send_sum(a, k, number, scaled, x);
            is_sent = true;
            number++;
        } else if (a.grad_x.data && k.has_columns) {
            store_u32x4(a.grad_x.data + at.grad_x, none);
        }
    }
    if (is_sent)
        finish_row(a, k, scaled, (u32)end - 1 - LAST, k.tokens[begin + (end - KERNEL_SIZE) * a.dilation].rstd,
                   number - 1, at.grad_x - step.grad_x);
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
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4)
        *(float4 *)(to + i) =
            make_float4(tgl_one_nan(v[i]), tgl_one_nan(v[i + 1]), tgl_one_nan(v[i + 2]), tgl_one_nan(v[i + 3]));
}

DEV void store_partials(const short_conv_bwd_args &a, const place &k, i64 channel, const gradients &sums)
{
    if (a.grad_norm) store_vector(a.grad_norm + channel, sums.norm);
    if (a.grad_bias) {
        float some[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) some[i] = shared_load_f32(bias_at(k, i));
        store_vector(a.grad_bias + channel, some);
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
    SHARED(u64[BUFFERS], bars);
    SHARED(float4[BUFFERS * GROUPS], buffers);
    SHARED(request_scratch<CONV_CLUSTER_THREADS>, scratch);
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
    cluster_wait();                                         /* mbarriers of all blocks are initialised */
    pdl_wait();
    place k = { tokens, 0, h, first, shared_address(memory) + tid * VECTOR * 2, blockDim.x * VECTOR * 2,
                shared_address(buffers), shared_address(bars), (u32)rank * warps + tid / 32,
                (u32)((a.hidden + CONV_GROUP * VECTOR - 1) / (CONV_GROUP * VECTOR)), warps,
                kept_u32(first < a.hidden) != 0 };          /* else compared again for every row */
    weights w = {};
    gradients sums = {};
#pragma unroll
    for (int i = 0; i < VECTOR; i++) shared_store_f32(bias_at(k, i), 0);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) shared_store_f32(norm_at(k, i), 0);
    if (k.has_columns) load_weights(a, k, w);
    const i64 begin = partial * a.partial_tokens, end = min(begin + a.partial_tokens, a.num_tokens);
    u32 number = 0;
#pragma unroll 1
    for (i64 tile = begin; tile < end; tile += CONV_BWD_TILE) {
        const i32 count = (i32)min((i64)CONV_BWD_TILE, end - tile);
        k.base = tile - reach;
        __syncthreads();                                    /* tokens have been read */
        find_tokens(a, k.base, count + 2 * reach, h, tokens, scratch);
#pragma unroll 1
        for (i32 c = 0; c < min(a.dilation, count); c++)
            run_chain(a, k, w, c, (count - c + a.dilation - 1) / a.dilation, number, sums);
    }
    if (k.has_columns) store_partials(a, k, (partial * a.num_streams + h) * a.hidden + first, sums);
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();                                         /* no block stores into one that has ended */
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
