/* SPDX-License-Identifier: MIT
 * short_conv_bwd.c - tgl_engram_short_conv_bwd: the gradients of the short convolution. */
#include "engram/short_conv_bwd.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "engram/common/gate_host.h"
#include "engram/common/short_conv_host.h"
#include "engram/common/windows_host.h"
#include "engram/short_conv_bwd_cpu.h"

typedef short_conv_bwd_args problem;

/* ---- CPU ---- */

typedef conv_chunk chunk;

static float at(gate_in rows, int64_t t, int64_t h, int64_t i)
{
    return tgl_bf16_to_f32(rows.data[t * rows.token + h * rows.stream + i]);
}
static int64_t lag_of(const problem *p, int64_t j) { return (p->kernel_size - 1 - j) * p->dilation; }
static float norm_at(const problem *p, int64_t h, int64_t i)
{
    return conv_norm_weight(&p->numbers, conv_weight_at(&p->norm, h * p->norm.stride + i));
}
static float tap_at(const problem *p, int64_t h, int64_t i, int64_t j)
{
    return conv_weight_at(&p->conv, (h * p->hidden + i) * p->kernel_size + j);
}

/* What is convolved, of a token that is part of the request. */
static float normed_at(const problem *p, int64_t t, int64_t h, int64_t i)
{
    return conv_rounded(conv_normed(at(p->x, t, h, i), p->rstd[t * p->num_streams + h], norm_at(p, h, i)));
}

static float grad_z_at(const problem *p, chunk of, int64_t t, int64_t h, int64_t i)
{
    float z = p->bias.data ? conv_weight_at(&p->bias, h * p->hidden + i) : 0;
    for (int64_t j = 0; j < p->kernel_size; j++) {
        const int64_t from = t - lag_of(p, j);
        z = fmaf(tap_at(p, h, i, j), conv_is_part(p, of, from) ? normed_at(p, from, h, i) : 0, z);
    }
    return conv_grad_z(&p->numbers, at(p->grad_out, t, h, i), z, 1.0f / conv_sigmoid_divisor(z));
}

static void add_to_partials(const problem *p, int64_t partial, chunk of, int64_t t, int64_t h, int64_t i, float grad)
{
    const int64_t channel = (partial * p->num_streams + h) * p->hidden + i;
    const float rstd = p->rstd[t * p->num_streams + h];
    if (p->grad_norm) p->grad_norm[channel] = conv_grad_norm(grad, at(p->x, t, h, i), rstd, p->grad_norm[channel]);
    if (!p->grad_bias && !p->grad_conv) return;
    const float grad_z = grad_z_at(p, of, t, h, i);
    if (p->grad_bias) p->grad_bias[channel] += grad_z;
    for (int64_t j = 0; p->grad_conv && j < p->kernel_size; j++) {
        const int64_t from = t - lag_of(p, j);
        float *sum = &p->grad_conv[channel * p->kernel_size + j];
        if (conv_is_part(p, of, from)) *sum = fmaf(grad_z, normed_at(p, from, h, i), *sum);
    }
}

/* The gradient of what is convolved. */
static float grad_at(const problem *p, chunk of, int64_t t, int64_t h, int64_t i)
{
    float grad = 0;
    for (int64_t j = 0; j < p->kernel_size; j++) {
        const int64_t to = t + lag_of(p, j);
        if (conv_is_part(p, of, to)) grad = fmaf(tap_at(p, h, i, j), grad_z_at(p, of, to, h, i), grad);
    }
    return grad;
}

static float tree(float *v)
{
    for (int half = CONV_GROUP / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}

/* The sum of norm_weight * grad * x over a group that begins at column `first`; adds to the partials. */
static float run_group(const problem *p, int64_t partial, chunk of, int64_t t, int64_t h, int64_t first)
{
    float vector[CONV_GROUP] = { 0 };
    for (int64_t i = first; i < tgl_min(p->hidden, first + CONV_GROUP * CONV_BWD_VECTOR); i++) {
        float *sum = &vector[(i - first) / CONV_BWD_VECTOR];
        const float grad = grad_at(p, of, t, h, i);
        *sum = fmaf(norm_at(p, h, i) * grad, at(p->x, t, h, i), *sum);
        add_to_partials(p, partial, of, t, h, i, grad);
    }
    return tree(vector);
}

static void plain_row(const problem *p, int64_t partial, chunk of, int64_t t, int64_t h)
{
    const float rstd = p->rstd[t * p->num_streams + h];
    const int64_t group_columns = CONV_GROUP * CONV_BWD_VECTOR;
    float total = 0;
    for (int64_t first = 0; first < p->hidden; first += CONV_GROUP * group_columns) {
        float group[CONV_GROUP] = { 0 };
        for (int64_t g = 0; g < CONV_GROUP; g++)
            if (first + g * group_columns < p->hidden)
                group[g] = run_group(p, partial, of, t, h, first + g * group_columns);
        total += tree(group);
    }
    const float slope = conv_slope(&p->numbers, total, rstd);
    for (int64_t i = 0; p->grad_x.data && i < p->hidden; i++)
        p->grad_x.data[t * p->grad_x.token + h * p->grad_x.stream + i] =
            tgl_bf16_from_f32(conv_grad_x(&p->numbers, at(p->x, t, h, i), rstd, slope,
                                          norm_at(p, h, i) * grad_at(p, of, t, h, i), at(p->grad_out, t, h, i)));
}

static void run_row(const problem *p, int64_t partial, chunk of, int64_t t, int64_t h)
{
    if (p->kernel_size > CONV_FAST_TAPS) plain_row(p, partial, of, t, h);
    else TGL_CHOOSE(plain_row, tgl_conv_gradients)(p, partial, of, t, h);
}

/* Begins or ends a partial of a tensor with `of_channel` numbers per channel. */
static void set_partial(const problem *p, float *to, int64_t partial, int64_t of_channel, bool is_end)
{
    const int64_t size = p->num_streams * p->hidden * of_channel;
    for (int64_t i = 0; to && i < size; i++) to[partial * size + i] = is_end ? tgl_one_nan(to[partial * size + i]) : 0;
}
static void set_partials(const problem *p, int64_t partial, bool is_end)
{
    set_partial(p, p->grad_norm, partial, 1, is_end);
    set_partial(p, p->grad_bias, partial, 1, is_end);
    set_partial(p, p->grad_conv, partial, p->kernel_size, is_end);
}

/* Tokens begin, begin + dilation, ... of a tile; span: that of its first token. */
static void run_tokens(const problem *p, int64_t partial, tgl_span span, int64_t begin, int64_t end)
{
    const tgl_windows *w = &p->requests;
    for (int64_t t = begin; t < end; t += p->dilation) {
        while (t >= span.end) span = tgl_next_span(w, span);
        const chunk of = { span.place.begin, span.end };
        const bool is_alive = tgl_is_request(w, &span) && conv_is_part(p, of, t);
        for (int64_t h = 0; h < p->num_streams; h++) {
            if (is_alive) run_row(p, partial, of, t, h);
            for (int64_t i = 0; !is_alive && p->grad_x.data && i < p->hidden; i++)
                p->grad_x.data[t * p->grad_x.token + h * p->grad_x.stream + i] = 0;
        }
    }
}

static void run_partials(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const tgl_windows *w = &p->requests;
    tgl_span span = tgl_first_span(w);
    for (int64_t partial = begin; partial < end; partial++) {
        set_partials(p, partial, false);
        const int64_t first = partial * p->partial_tokens, last = tgl_min(first + p->partial_tokens, p->num_tokens);
        for (int64_t tile = first; tile < last; tile += CONV_BWD_TILE) {
            const int64_t tile_end = tgl_min(tile + CONV_BWD_TILE, last);
            while (tile >= span.end) span = tgl_next_span(w, span);
            for (int64_t t = tile; t < tgl_min(tile + p->dilation, tile_end); t++)
                run_tokens(p, partial, span, t, tile_end);
        }
        set_partials(p, partial, true);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t token_bytes =
        tgl_saturating_product(p->num_streams * p->kernel_size * p->kernel_size * 16, p->hidden);
    return tgl_parallel_rows(p->num_partials, tgl_saturating_product(token_bytes, p->partial_tokens + 1), run_partials,
                             p);
}

#define FIELD(name) TGL_FIELD(tgl_engram_short_conv_params, name)
static const tgl_field FIELDS[] = { FIELD(dilation), FIELD(no_activation), FIELD(add_input), FIELD(zero_centered) };
static const tgl_params PARAMS = TGL_PARAMS(tgl_engram_short_conv_params, FIELDS);
TGL_SIZES(sizes, num_tokens, num_streams, hidden, kernel_size, num_requests, num_partials);
tgl_signature tgl_engram_short_conv_bwd_signature =
    TGL_SIGNATURE("engram_short_conv_bwd(x: " GATE_ROWS " rows, norm_weight: bf16|f32[num_streams, hidden] rows,"
                  " conv_weight: bf16|f32[num_streams * hidden, kernel_size], bias: bf16|f32[num_streams * hidden]?,"
                  " rstd: f32[num_tokens, num_streams], grad_out: " GATE_ROWS " rows, mask: bool[num_tokens]?,"
                  " batch{cu_seqlens: i32|i64[num_requests + 1]?}, " CONV_DILATION_TEXT
                  ", no_activation: bool, add_input: bool,"
                  " zero_centered: bool)"
                  " -> grad_x: " GATE_ROWS "? strided, grad_norm_partial: f32[num_partials, num_streams, hidden]?,"
                  " grad_conv_partial: f32[num_partials, num_streams * hidden, kernel_size]?,"
                  " grad_bias_partial: f32[num_partials, num_streams * hidden]?"
                  " where hidden in 1..2147483647, num_streams < 2^31, " CONV_RULES,
                  &PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* CLUSTER has a cluster of blocks for every partial of a stream, which splits the columns; ANY has a block, and reads
 * column by column. */
enum { CLUSTER, ANY, NUM_KERNELS };

static int64_t groups_of(const problem *p) { return tgl_ceil_div(p->hidden, CONV_GROUP * CONV_BWD_VECTOR); }
static int64_t cluster_bytes(int64_t groups)
{
    return (CONV_CLUSTER_ROW_BYTES + CONV_CLUSTER_FLOAT_BYTES) * groups * CONV_GROUP;
}
/* Threads of a block, at most: as few as need no more blocks than a cluster has. */
static int64_t max_threads(const problem *p)
{
    int64_t threads = CONV_CLUSTER_MIN_THREADS;
    while (threads < CONV_CLUSTER_MAX_THREADS && groups_of(p) * CONV_GROUP > CONV_CLUSTER_BLOCKS * threads)
        threads += CONV_CLUSTER_MIN_THREADS;
    return threads;
}
/* Blocks of a cluster, as few as have the threads and the shared memory. */
static int64_t cluster_blocks(const problem *p, const tgl_target *target)
{
    const int64_t room = tgl_max(1, (target->max_smem_per_block - CONV_CLUSTER_STATIC) / cluster_bytes(1));
    return tgl_ceil_div(groups_of(p), tgl_min(room, max_threads(p) / CONV_GROUP));
}

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const bool has_cluster =
        p->hidden % CONV_VECTOR == 0 && groups_of(p) <= CONV_CLUSTER_BLOCKS * CONV_CLUSTER_MAX_THREADS / CONV_GROUP &&
        p->kernel_size <= CONV_CLUSTER_TAPS && (p->kernel_size - 1) * (int64_t)p->dilation <= CONV_CLUSTER_REACH;
    kernels[CLUSTER] = (tgl_kernel){
        has_cluster ? "engram/short_conv_bwd_cluster" : NULL,
        { { "KERNEL_SIZE", p->kernel_size }, { "HAS_BIAS", p->has_bias }, { "MAX_THREADS", max_threads(p) } }
    };
    kernels[ANY] = (tgl_kernel){ "engram/short_conv_bwd", { { 0 } } };
    return NUM_KERNELS;
}

static bool can_cluster(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const uintptr_t partials = (uintptr_t)p->grad_norm | (uintptr_t)p->grad_conv | (uintptr_t)p->grad_bias;
    const int64_t blocks = cluster_blocks(p, target);
    return target->architecture >= 90 && blocks <= CONV_CLUSTER_BLOCKS && tgl_gate_has_vectors(p->x) &&
           tgl_gate_has_vectors(p->grad_out) && tgl_gate_out_has_vectors(p->grad_x) && tgl_conv_has_vectors(&p->norm) &&
           tgl_conv_has_vectors(&p->conv) && tgl_conv_has_vectors(&p->bias) && partials % 16 == 0 &&
           tgl_saturating_product(p->num_partials * blocks, p->num_streams) <= INT32_MAX;
}

static tgl_shape cluster_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    p->cluster_blocks = (int32_t)cluster_blocks(p, target);
    p->step.x = 2 * p->dilation * p->x.token;
    p->step.grad_out = 2 * p->dilation * p->grad_out.token;
    p->step.grad_x = 2 * p->dilation * p->grad_x.token;
    const int64_t groups = tgl_ceil_div(groups_of(p), p->cluster_blocks); /* of each block but the last */
    return (tgl_shape){ { p->num_partials * p->num_streams * p->cluster_blocks },
                        .cluster = p->cluster_blocks,
                        .block = (int)groups * CONV_GROUP,
                        .shared_bytes = cluster_bytes(groups),
                        TGL_ARGS(*p) };
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return (tgl_shape){ { p->num_partials, tgl_strided_grid(p->num_streams, 65535) },
                        .block = CONV_BWD_THREADS,
                        TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu,
                           plan,
                           { [CLUSTER] = { can_cluster, NULL, cluster_shape }, [ANY] = { NULL, NULL, any_shape } } };

int64_t tgl_engram_short_conv_num_partials(int64_t num_streams, int64_t hidden)
{
    const int64_t blocks = tgl_ceil_div(tgl_max(1, hidden), CONV_CLUSTER_MIN_THREADS * CONV_BWD_VECTOR);
    return tgl_max(1, (blocks > 2 ? CONV_BWD_CLUSTERED_BLOCKS : CONV_BWD_BLOCKS) /
                          tgl_saturating_product(tgl_max(1, num_streams), blocks));
}

tgl_status tgl_engram_short_conv_bwd(const DLTensor *x, const DLTensor *norm_weight, const DLTensor *conv_weight,
                                     const DLTensor *bias, const DLTensor *rstd, const DLTensor *grad_out,
                                     const DLTensor *mask, DLTensor *grad_x, DLTensor *grad_norm_partial,
                                     DLTensor *grad_conv_partial, DLTensor *grad_bias_partial,
                                     const tgl_engram_batch *batch, const tgl_engram_short_conv_params *params,
                                     tgl_stream stream)
{
    const DLTensor *cu_seqlens = batch ? batch->cu_seqlens : NULL;
    const DLTensor *tensors[] = { x,
                                  norm_weight,
                                  conv_weight,
                                  bias,
                                  rstd,
                                  grad_out,
                                  mask,
                                  cu_seqlens,
                                  grad_x,
                                  grad_norm_partial,
                                  grad_conv_partial,
                                  grad_bias_partial };
    sizes n;
    TGL_TRY(tgl_take(&tgl_engram_short_conv_bwd_signature, tensors, params, &n.num_tokens));
    if (batch) TGL_TRY(tgl_expect_reserved(batch->reserved));
    TGL_TRY(tgl_expect_rows_apart("grad_x", grad_x));
    const bool has_partials = grad_norm_partial || grad_conv_partial || grad_bias_partial;
    const int64_t num_partials =
        has_partials ? n.num_partials : tgl_engram_short_conv_num_partials(n.num_streams, n.hidden);
    if (num_partials == 0 && n.num_tokens > 0)
        return tgl_fail(TGL_ERR_ARGUMENT, "grad_conv_partial: shape is [0, ...], want [>= 1, ...]");
    const int64_t dilation = tgl_conv_dilation(params->dilation);
    problem p = {
        .requests = { .image_token_mask = tgl_data_or_null(mask),
                      .num_tokens = n.num_tokens,
                      .cu_seqlens = tgl_data_or_null(cu_seqlens),
                      .cu_bytes = tgl_bytes_of(cu_seqlens),
                      .num_requests = n.num_requests,
                      .past = PAST_NONE,
                      .max_ngram = 1 },
        .x = tgl_gate_in(x),
        .grad_out = tgl_gate_in(grad_out),
        .norm = tgl_conv_weights(norm_weight, true),
        .conv = tgl_conv_weights(conv_weight, false),
        .bias = tgl_conv_weights(bias, false),
        .rstd = tgl_data(rstd),
        .grad_x = tgl_gate_out(grad_x),
        .grad_norm = tgl_data_or_null(grad_norm_partial),
        .grad_conv = tgl_data_or_null(grad_conv_partial),
        .grad_bias = tgl_data_or_null(grad_bias_partial),
        .numbers = { .hidden = (float)n.hidden,
                     .is_zero_centered = params->zero_centered,
                     .has_activation = !params->no_activation,
                     .adds_input = params->add_input },
        .num_tokens = n.num_tokens,
        .num_streams = n.num_streams,
        .hidden = n.hidden,
        .num_partials = num_partials,
        .partial_tokens = num_partials ? tgl_ceil_div(n.num_tokens, num_partials) : 0,
        .kernel_size = (int32_t)n.kernel_size,
        .dilation = (int32_t)dilation,
        .has_bias = bias || grad_bias_partial,
    };
    return tgl_run(&tgl_engram_short_conv_bwd_signature, &OP, tensors, &p, stream);
}
