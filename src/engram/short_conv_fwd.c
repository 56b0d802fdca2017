/* SPDX-License-Identifier: MIT
 * short_conv_fwd.c - tgl_engram_short_conv_fwd: RMSNorm, a causal depthwise convolution over tokens, SiLU. */
#include "engram/short_conv_fwd.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "engram/common/gate_host.h"
#include "engram/common/short_conv_cpu.h"
#include "engram/common/short_conv_host.h"
#include "engram/common/windows_host.h"

typedef short_conv_args problem;

/* ---- CPU ---- */

typedef conv_tap tap;

static tap tap_at(const problem *p, const tgl_request *r, int64_t token, int64_t h)
{
    tap made = { NULL, NULL, 0, 0 };
    const tgl_windows *w = &p->requests;
    const int64_t before = r->place.begin - token;
    if (before > r->reach || (before <= 0 && w->image_token_mask && w->image_token_mask[token])) return made;
    if (before > 0) {
        const int64_t entry = r->start - before < 0 ? r->start - before + w->ring_size : r->start - before;
        made.ring = p->ring + conv_ring_row(p, r->slot, entry, h);
    } else {
        made.x = p->x.data + token * p->x.token + h * p->x.stream;
        made.rstd = conv_rstd(&p->numbers, tgl_conv_sum_of_squares(made.x, p->hidden));
    }
    return made;
}

static conv_row row_of(const problem *p, int64_t h)
{
    return (conv_row){ .numbers = &p->numbers,
                       .norm = &p->norm,
                       .conv = &p->conv,
                       .bias = &p->bias,
                       .h = h,
                       .hidden = p->hidden,
                       .kernel_size = p->kernel_size,
                       .rounds_each = p->rounds_each };
}

static void run_row(const problem *p, const tgl_request *r, int64_t t, int64_t h)
{
    tap taps[CONV_MAX_TAPS];
    const int32_t last = p->kernel_size - 1;
    for (int64_t j = 0; j <= last; j++) taps[j] = tap_at(p, r, t - (last - j) * p->dilation, h);
    if (p->rstd) p->rstd[t * p->num_streams + h] = tgl_one_nan(taps[last].rstd);
    conv_row row = row_of(p, h);
    row.residual = p->residual.data ? p->residual.data + t * p->residual.token + h * p->residual.stream : NULL;
    row.out = p->out.data + t * p->out.token + h * p->out.stream;
    tgl_conv_results(&row, taps);
}

/* A token that is masked or in no request. */
static void run_dead_row(const problem *p, int64_t t, int64_t h)
{
    if (p->rstd) p->rstd[t * p->num_streams + h] = 0;
    uint16_t *out = p->out.data + t * p->out.token + h * p->out.stream;
    for (int64_t i = 0; i < p->hidden; i++)
        out[i] = p->residual.data ? p->residual.data[t * p->residual.token + h * p->residual.stream + i] : 0;
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const tgl_windows *w = &p->requests;
    tgl_span span = tgl_first_span(w);
    for (int64_t t = begin; t < end; t++) {
        while (t >= span.end) span = tgl_next_span(w, span);
        const bool is_alive = tgl_is_request(w, &span) && !(w->image_token_mask && w->image_token_mask[t]);
        for (int64_t h = 0; h < p->num_streams; h++) {
            if (!is_alive) {
                run_dead_row(p, t, h);
                continue;
            }
            const tgl_request r = tgl_request_at(w, span.place);
            run_row(p, &r, t, h);
        }
    }
}

static void write_ring(const void *context, const tgl_request *r, int64_t q)
{
    const problem *p = context;
    const tgl_windows *w = &p->requests;
    for (int64_t i = q < w->ring_size ? 0 : q - w->ring_size; i < q; i++)
        for (int64_t h = 0; h < p->num_streams; h++) {
            const tap of = tap_at(p, r, r->place.begin + i, h);
            const conv_row row = row_of(p, h);
            uint16_t *to = p->ring + conv_ring_row(p, r->slot, (r->start + i) % w->ring_size, h);
            for (int64_t c = 0; c < p->hidden; c++) to[c] = tgl_bf16_from_f32(conv_value_at(&row, &of, c));
        }
}

static void write_rings(const void *context, int64_t begin, int64_t end)
{
    tgl_write_rings(&((const problem *)context)->requests, begin, end, write_ring, context);
}

/* The ring behind all results: they read it. */
static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const tgl_windows *w = &p->requests;
    const int64_t row_bytes = tgl_saturating_product(p->num_streams * (2 * p->kernel_size + 4), p->hidden);
    TGL_TRY(tgl_parallel_rows(p->num_tokens, row_bytes, run_tokens, p));
    if (!w->writes_ring) return TGL_OK;
    return tgl_parallel_rows(w->cu_seqlens ? w->num_requests : 1, row_bytes, write_rings, p);
}

#define FIELD(name) TGL_FIELD(tgl_engram_short_conv_params, name)
static const tgl_field FIELDS[] = { FIELD(dilation),  FIELD(has_eps),       FIELD(eps),        FIELD(no_activation),
                                    FIELD(add_input), FIELD(zero_centered), FIELD(round_each), FIELD(keep_ring) };
static const tgl_params PARAMS = TGL_PARAMS(tgl_engram_short_conv_params, FIELDS);
TGL_SIZES(sizes, num_tokens, num_streams, hidden, kernel_size, num_slots, ring_size, num_requests);
tgl_signature tgl_engram_short_conv_fwd_signature =
    TGL_SIGNATURE("engram_short_conv_fwd(x: " GATE_ROWS " rows, norm_weight: bf16|f32[num_streams, hidden] rows,"
                  " conv_weight: bf16|f32[num_streams * hidden, kernel_size], bias: bf16|f32[num_streams * hidden]?,"
                  " residual: " GATE_ROWS "? rows, mask: bool[num_tokens]?,"
                  " ring: bf16[num_slots, ring_size, num_streams, hidden]?!,"
                  " batch{cu_seqlens: i32|i64[num_requests + 1]?, start_pos: i32|i64[num_requests]?,"
                  " slots: i32|i64[num_requests]?}, " CONV_DILATION_TEXT
                  ", has_eps: bool, eps: float >= 0 with has_eps,"
                  " no_activation: bool, add_input: bool, zero_centered: bool, round_each: bool, keep_ring: bool)"
                  " -> out: " GATE_ROWS " strided, rstd: f32[num_tokens, num_streams]?"
                  " where hidden in 1..2147483647, num_streams < 2^31, " CONV_RULES ","
                  " ring_size < 2^31, ring needs start_pos, slots needs ring, out may be residual",
                  &PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* CHAIN has blocks that walk over tokens of a stream; ROW has a block for every row or two; ANY one for every row,
 * of any number of columns at any address. */
enum { CHAIN, ROW, ANY, NUM_KERNELS };

static int64_t vectors_of(const problem *p) { return tgl_ceil_div(p->hidden, CONV_VECTOR); }
static int consumers_of(const problem *p)
{
    return p->hidden <= CONV_FEW_CONSUMERS * CONV_COLUMNS ? CONV_FEW_CONSUMERS : CONV_MANY_CONSUMERS;
}
static int64_t splits_of(const problem *p) { return tgl_ceil_div(p->hidden, consumers_of(p) * CONV_COLUMNS); }
static int max_norm_warps(const problem *p) { return splits_of(p) > 1 ? CONV_MANY_NORM_WARPS : CONV_FEW_NORM_WARPS; }
static int threads_of(const problem *p)
{
    return vectors_of(p) <= CONV_FEW_THREADS ? CONV_FEW_THREADS : CONV_MANY_THREADS;
}

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro rounds = { "ROUND_EACH", p->rounds_each }, taps = { "KERNEL_SIZE", p->kernel_size };
    const bool has_vectors = p->hidden % CONV_VECTOR == 0 && p->kernel_size <= CONV_WALK_TAPS;
    const bool has_row = has_vectors && p->hidden <= CONV_MANY_THREADS * CONV_VECTOR;
    kernels[CHAIN] =
        (tgl_kernel){ has_vectors ? "engram/short_conv_fwd" : NULL,
                      { taps, { "CONSUMERS", consumers_of(p) }, { "NORM_WARPS", max_norm_warps(p) }, rounds } };
    kernels[ROW] = (tgl_kernel){ has_row ? "engram/short_conv_fwd_row" : NULL,
                                 { taps, { "BLOCK_THREADS", threads_of(p) }, rounds } };
    kernels[ANY] = (tgl_kernel){ "engram/short_conv_fwd_any", { rounds } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return tgl_gate_has_vectors(p->x) && tgl_gate_has_vectors(p->residual) && tgl_gate_out_has_vectors(p->out) &&
           tgl_conv_has_vectors(&p->norm) && tgl_conv_has_vectors(&p->conv) && tgl_conv_has_vectors(&p->bias) &&
           (uintptr_t)p->ring % 16 == 0;
}

static int64_t split_vectors(const problem *p) { return tgl_ceil_div(vectors_of(p), splits_of(p)); }
static int64_t stage_bytes(const problem *p)
{
    return 2 * p->hidden + (p->residual.data ? 2 * CONV_VECTOR * split_vectors(p) : 0);
}
static int64_t norm_warps(const problem *p, int64_t stages)
{
    return tgl_min(max_norm_warps(p), tgl_max(1, stages / 2)); /* others are on their way */
}
static int64_t stages_of(const problem *p, const tgl_target *target)
{
    const int64_t room = target->max_smem_per_block / CONV_SM_BLOCKS(consumers_of(p)) - CONV_FIXED_BYTES;
    const int64_t max_stages = tgl_min(room / stage_bytes(p), CONV_STAGES);
    return max_stages - max_stages % tgl_max(1, norm_warps(p, max_stages));
}

static bool can_chain(const void *context, const tgl_target *target)
{
    return target->architecture >= 90 && has_vectors(context, target) && stages_of(context, target) > 0;
}
static bool chain_pays(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const int64_t few = (p->requests.writes_ring ? CONV_ROW_RING_ROWS : CONV_ROW_ROWS) * CONV_ROW_TOKENS(threads_of(p));
    return tgl_saturating_product(p->num_tokens, p->num_streams) > few * target->num_sms;
}

static tgl_shape chain_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t resident = CONV_SM_BLOCKS(consumers_of(p)) * (int64_t)target->num_sms;
    p->splits = (int32_t)splits_of(p), p->split_vectors = (int32_t)split_vectors(p);
    p->stages = (int32_t)stages_of(p, target), p->norm_warps = (int32_t)norm_warps(p, p->stages);
    p->chains = p->requests.writes_ring ? 1 : (int32_t)tgl_min(p->dilation, p->num_tokens);
    const int64_t of_tile = tgl_saturating_product(p->num_streams * p->chains, p->splits);
    const int64_t tiles = tgl_max(1, resident / tgl_max(1, of_tile));
    p->tile_tokens = tgl_ceil_div(p->num_tokens, tiles);
    const int64_t blocks = tgl_ceil_div(p->num_tokens, p->tile_tokens) * of_tile;
    tgl_shape made = tgl_shape_of_blocks(blocks, CONV_THREADS(consumers_of(p), max_norm_warps(p)));
    made.shared_bytes = p->stages * stage_bytes(p);
    return tgl_shape_with(made, p, sizeof *p);
}

static int64_t row_block(const problem *p) { return tgl_ceil_div(vectors_of(p), 32) * 32; }
static int64_t row_bytes(const problem *p)
{
    return CONV_ROW_BYTES(vectors_of(p), p->norm) + CONV_ROW_BYTES(p->kernel_size * vectors_of(p), p->conv) +
           CONV_ROW_TOKENS(threads_of(p)) * 2 * row_block(p) * 16;
}
static bool can_row(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return has_vectors(p, target) && p->num_tokens <= INT32_MAX && row_bytes(p) <= target->max_smem_per_block - 16384;
}
/* Two tokens share weights, once there are more rows than fit on the SMs one by one. */
static tgl_shape row_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const bool are_many = tgl_saturating_product(p->num_tokens, p->num_streams) > 2 * (int64_t)target->num_sms;
    p->tile_tokens = are_many ? CONV_ROW_TOKENS(threads_of(p)) : 1;
    tgl_shape made =
        tgl_shape_of_blocks(tgl_ceil_div(p->num_tokens, p->tile_tokens) * p->num_streams, (int)row_block(p));
    made.shared_bytes = row_bytes(p);
    return tgl_shape_with(made, p, sizeof *p);
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_shape_of_blocks(p->num_tokens * p->num_streams, CONV_ANY_THREADS), p, sizeof *p);
}

static const tgl_op OP = { cpu,
                           plan,
                           { [CHAIN] = { can_chain, chain_pays, chain_shape },
                             [ROW] = { can_row, NULL, row_shape },
                             [ANY] = { NULL, NULL, any_shape } } };

tgl_status tgl_engram_short_conv_fwd(const DLTensor *x, const DLTensor *norm_weight, const DLTensor *conv_weight,
                                     const DLTensor *bias, const DLTensor *residual, const DLTensor *mask,
                                     DLTensor *ring, DLTensor *out, DLTensor *rstd, const tgl_engram_batch *batch,
                                     const tgl_engram_short_conv_params *params, tgl_stream stream)
{
    static const tgl_engram_batch one;
    const tgl_engram_batch *b = batch ? batch : &one;
    const DLTensor *tensors[] = { x,    norm_weight,   conv_weight,  bias,     residual, mask,
                                  ring, b->cu_seqlens, b->start_pos, b->slots, out,      rstd };
    sizes n;
    TGL_TRY(tgl_take(&tgl_engram_short_conv_fwd_signature, tensors, params, &n.num_tokens));
    const int64_t dilation = tgl_conv_dilation(params->dilation), reach = (n.kernel_size - 1) * dilation;
    TGL_TRY(tgl_check_batch(batch, ring, n.num_requests, false, reach));
    TGL_TRY(tgl_expect_rows_apart("out", out));
    if (n.num_tokens == 0) return TGL_OK; /* the ring, which is not empty, stays */
    problem p = {
        .requests = tgl_batch_windows(b, mask, ring, params->keep_ring, n.num_tokens, n.num_requests, reach),
        .x = tgl_gate_in(x),
        .residual = residual ? tgl_gate_in(residual) : (gate_in){ 0 },
        .norm = tgl_conv_weights(norm_weight, true),
        .conv = tgl_conv_weights(conv_weight, false),
        .bias = tgl_conv_weights(bias, false),
        .ring = tgl_data_or_null(ring),
        .out = tgl_gate_out(out),
        .rstd = tgl_data_or_null(rstd),
        .numbers = { .hidden = (float)n.hidden,
                     .eps = params->has_eps ? params->eps : CONV_EPS,
                     .is_zero_centered = params->zero_centered,
                     .has_activation = !params->no_activation,
                     .adds_input = params->add_input },
        .num_tokens = n.num_tokens,
        .num_streams = n.num_streams,
        .hidden = n.hidden,
        .kernel_size = (int32_t)n.kernel_size,
        .dilation = (int32_t)dilation,
        .rounds_each = params->round_each,
    };
    return tgl_run(&tgl_engram_short_conv_fwd_signature, &OP, tensors, &p, stream);
}
