/* SPDX-License-Identifier: MIT
 * gate_conv_fwd.c - tgl_engram_gate_conv_fwd: the gate, and the short convolution of what it lets in. */
#include "engram/gate_conv_fwd.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "engram/common/gate_host.h"
#include "engram/common/short_conv_cpu.h"
#include "engram/common/short_conv_host.h"
#include "engram/common/windows_host.h"

typedef gate_conv_args problem;

/* ---- CPU ---- */

typedef conv_tap tap; /* x: of v */

/* The numbers of the last rows of a stream, each of which several results need. */
enum { MEMORY = 64 };
typedef struct {
    int64_t token[MEMORY];
    float gate[MEMORY], rstd[MEMORY];
} memory;

static float rstd_of(const problem *p, const uint16_t *v, float gate)
{
    enum { GROUP = CONV_GROUP * CONV_VECTOR };
    float total = 0;
    for (int64_t first = 0; first < p->hidden; first += GROUP) {
        uint16_t row[GROUP];
        const int64_t count = tgl_min(GROUP, p->hidden - first);
        tgl_gate_results(NULL, v + first, gate, false, count, row);
        total += tgl_conv_sum_of_squares(row, count);
    }
    return conv_rstd(&p->numbers, total);
}

static void find_numbers(const problem *p, memory *m, int64_t token, int64_t h)
{
    const int at = (int)(token % MEMORY);
    if (m->token[at] == token) return;
    const uint16_t *x = p->x.data + token * p->x.token + h * p->x.stream;
    const uint16_t *k = p->k.data + token * p->k.token + h * p->k.stream, *v = p->v.data + token * p->v.token;
    const gate_sums s = tgl_gate_sums(&p->weights, p->hidden, h, x, k);
    const float rstd_x = gate_rstd(&p->gate, s.squares_x), rstd_k = gate_rstd(&p->gate, s.squares_k);
    m->token[at] = token;
    m->gate[at] = gate_score_of(&p->gate, gate_scaled(&p->gate, s.dot, rstd_x, rstd_k));
    m->rstd[at] = rstd_of(p, v, m->gate[at]);
}

static tap tap_at(const problem *p, memory *m, const tgl_request *r, int64_t token, int64_t h)
{
    tap made = { NULL, NULL, 0, 0 };
    const tgl_windows *w = &p->requests;
    const int64_t before = r->place.begin - token;
    if (before > r->reach || (before <= 0 && w->image_token_mask && w->image_token_mask[token])) return made;
    if (before > 0) {
        const int64_t entry = r->start - before < 0 ? r->start - before + w->ring_size : r->start - before;
        made.ring = p->ring + gate_conv_ring_row(p, r->slot, entry, h);
    } else {
        find_numbers(p, m, token, h);
        made.x = p->v.data + token * p->v.token;
        made.gate = m->gate[token % MEMORY], made.rstd = m->rstd[token % MEMORY];
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
                       .has_gate = true,
                       .rounds_each = p->rounds_each };
}

static void run_row(const problem *p, memory *m, const tgl_request *r, int64_t t, int64_t h)
{
    tap taps[CONV_MAX_TAPS];
    const int32_t last = p->kernel_size - 1;
    for (int64_t j = 0; j <= last; j++) taps[j] = tap_at(p, m, r, t - (last - j) * p->dilation, h);
    conv_row row = row_of(p, h);
    row.residual = p->has_residual ? p->x.data + t * p->x.token + h * p->x.stream : NULL;
    row.out = p->out.data + t * p->out.token + h * p->out.stream;
    tgl_conv_results(&row, taps);
}

/* A token that is masked or in no request. */
static void run_dead_row(const problem *p, int64_t t, int64_t h)
{
    const uint16_t *x = p->x.data + t * p->x.token + h * p->x.stream;
    uint16_t *out = p->out.data + t * p->out.token + h * p->out.stream;
    for (int64_t i = 0; i < p->hidden; i++) out[i] = p->has_residual ? x[i] : 0;
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const tgl_windows *w = &p->requests;
    for (int64_t h = 0; h < p->num_streams; h++) {
        memory m;
        for (int i = 0; i < MEMORY; i++) m.token[i] = -1;
        tgl_span span = tgl_first_span(w);
        for (int64_t t = begin; t < end; t++) {
            while (t >= span.end) span = tgl_next_span(w, span);
            if (!tgl_is_request(w, &span) || (w->image_token_mask && w->image_token_mask[t])) {
                run_dead_row(p, t, h);
                continue;
            }
            const tgl_request r = tgl_request_at(w, span.place);
            run_row(p, &m, &r, t, h);
        }
    }
}

static void write_ring(const void *context, const tgl_request *r, int64_t q)
{
    const problem *p = context;
    const tgl_windows *w = &p->requests;
    for (int64_t h = 0; h < p->num_streams; h++) {
        memory m;
        for (int i = 0; i < MEMORY; i++) m.token[i] = -1;
        for (int64_t i = q < w->ring_size ? 0 : q - w->ring_size; i < q; i++) {
            const tap of = tap_at(p, &m, r, r->place.begin + i, h);
            const conv_row row = row_of(p, h);
            uint16_t *to = p->ring + gate_conv_ring_row(p, r->slot, (r->start + i) % w->ring_size, h);
            for (int64_t c = 0; c < p->hidden; c++) to[c] = tgl_bf16_from_f32(conv_value_at(&row, &of, c));
        }
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
    const int64_t row_bytes = tgl_saturating_product(p->num_streams * (2 * p->kernel_size + 8), p->hidden);
    TGL_TRY(tgl_parallel_rows(p->num_tokens, row_bytes, run_tokens, p));
    if (!w->writes_ring) return TGL_OK;
    return tgl_parallel_rows(w->cu_seqlens ? w->num_requests : 1, row_bytes, write_rings, p);
}

#define FIELD(name) TGL_FIELD(tgl_engram_gate_conv_params, name)
static const tgl_field FIELDS[] = {
    FIELD(eps),           FIELD(clamp_value),        FIELD(no_residual),  FIELD(zero_centered),
    FIELD(sign),          FIELD(dilation),           FIELD(has_norm_eps), FIELD(norm_eps),
    FIELD(no_activation), FIELD(norm_zero_centered), FIELD(round_each),   FIELD(keep_ring)
};
static const tgl_params PARAMS = TGL_PARAMS(tgl_engram_gate_conv_params, FIELDS);
TGL_SIZES(sizes, num_tokens, num_streams, hidden, kernel_size, num_slots, ring_size, num_requests);
tgl_signature tgl_engram_gate_conv_fwd_signature = TGL_SIGNATURE(
    "engram_gate_conv_fwd(hidden_states: " GATE_ROWS " rows, k: " GATE_ROWS " rows, v: bf16[num_tokens, hidden] rows,"
    " weight_hidden: (bf16|f32 if weight_embed else f32)[num_streams, hidden] rows,"
    " weight_embed: weight_hidden[num_streams, hidden]? rows, norm_weight: bf16|f32[num_streams, hidden] rows,"
    " conv_weight: bf16|f32[num_streams * hidden, kernel_size], bias: bf16|f32[num_streams * hidden]?,"
    " mask: bool[num_tokens]?, ring: bf16[num_slots, ring_size, num_streams, hidden]?!,"
    " batch{cu_seqlens: i32|i64[num_requests + 1]?, start_pos: i32|i64[num_requests]?,"
    " slots: i32|i64[num_requests]?}, eps: float >= 0, clamp_value: float >= 0, no_residual: bool,"
    " zero_centered: bool, sign: {zero|bit}, " CONV_DILATION_TEXT ", has_norm_eps: bool,"
    " norm_eps: float >= 0 with has_norm_eps, no_activation: bool, norm_zero_centered: bool, round_each: bool,"
    " keep_ring: bool) -> out: " GATE_ROWS " strided"
    " where " GATE_RULES ", " CONV_RULES ", ring_size < 2^31,"
    " ring needs start_pos, slots needs ring",
    &PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* CHAIN has a block for a stream of every dilation-th token of a tile, whose sums it keeps in registers; ANY has a
 * block for every row. */
enum { CHAIN, ANY, NUM_KERNELS };

static int parts_of(const problem *p)
{
    if (p->hidden <= GATE_CONV_MANY * GATE_CONV_MORE_COLUMNS) return 1;
    return p->hidden <= 2 * GATE_CONV_WIDE * CONV_VECTOR ? 2 : 4;
}
static int threads_of(const problem *p)
{
    if (p->hidden <= GATE_CONV_FEW * CONV_VECTOR) return GATE_CONV_FEW;
    if (parts_of(p) != 2) return GATE_CONV_MANY;
    return p->hidden <= 2 * GATE_CONV_HALF * CONV_VECTOR ? GATE_CONV_HALF : GATE_CONV_WIDE;
}
static int columns_of(const problem *p)
{
    return threads_of(p) == GATE_CONV_MANY && parts_of(p) == 1 ? GATE_CONV_MORE_COLUMNS : CONV_VECTOR;
}

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const bool has_chain = p->hidden % CONV_VECTOR == 0 && p->hidden <= GATE_CONV_COLUMNS &&
                           p->kernel_size == GATE_CONV_TAPS && p->dilation <= GATE_CONV_DILATION && !p->rounds_each;
    kernels[CHAIN] =
        (tgl_kernel){ has_chain ? "engram/gate_conv_fwd" : NULL,
                      { { "CONV_THREADS", threads_of(p) }, { "COLUMNS", columns_of(p) }, { "PARTS", parts_of(p) } } };
    kernels[ANY] = (tgl_kernel){ "engram/gate_conv_fwd_any", { { "ROUND_EACH", p->rounds_each } } };
    return NUM_KERNELS;
}

static int64_t stage_bytes(const problem *p)
{
    return 3 * gate_conv_pitch(p->hidden, parts_of(p)) + GATE_CONV_TOLD(parts_of(p));
}
static int64_t weight_bytes(const problem *p)
{
    return gate_conv_weight_bytes(p->hidden, threads_of(p), columns_of(p), parts_of(p));
}

/* Rows in flight that there is room for; of these as many find their gates as there are warps for. */
static int64_t room_of(const problem *p, const tgl_target *target)
{
    const int64_t room = target->max_smem_per_block / GATE_CONV_BLOCKS(threads_of(p)) - GATE_CONV_STATIC;
    return tgl_min((room - weight_bytes(p)) / stage_bytes(p), GATE_CONV_STAGES);
}
/* Stages are a multiple of the gate warps, so a row can be prefetched before the first row in flight has arrived. */
_Static_assert(GATE_CONV_WARPS(GATE_CONV_MANY, CONV_VECTOR) > GATE_CONV_AHEAD, "rows in flight");

static bool can_chain(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return target->architecture >= 90 && tgl_gate_has_vectors(p->x) && tgl_gate_has_vectors(p->k) &&
           tgl_gate_has_vectors(p->v) && tgl_gate_out_has_vectors(p->out) &&
           tgl_gate_weights_have_vectors(&p->weights) && tgl_conv_has_vectors(&p->norm) &&
           tgl_conv_has_vectors(&p->conv) && tgl_conv_has_vectors(&p->bias) && (uintptr_t)p->ring % 16 == 0 &&
           room_of(p, target) >= (parts_of(p) > 2 ? GATE_CONV_AHEAD + 1 : 2) &&
           tgl_saturating_product((p->num_tokens + p->dilation) * 4, p->num_streams) <= INT32_MAX;
}

/* As many tiles as fit into the minimum of waves. Clusters of 4 leave SMs of a GPC unused, so fewer fit than the SMs
 * would have: on an H200 (2026-11) 4096 rows of 7168 columns took 748 us with 32 of them, 642 with an eighth fewer than
 * 33. */
static tgl_shape chain_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int threads = threads_of(p), parts = parts_of(p);
    const int64_t clusters = GATE_CONV_BLOCKS(threads) * (int64_t)target->num_sms / parts;
    const int64_t of_tile = tgl_max(1, p->num_streams * p->dilation), rows = tgl_ceil_div(p->num_tokens, p->dilation);
    const int64_t at_once = tgl_max(1, parts > 2 ? clusters - tgl_ceil_div(clusters, 8) : clusters);
    const int64_t waves = tgl_ceil_div(tgl_ceil_div(rows, GATE_CONV_ROWS) * of_tile, at_once);
    p->tile_rows = (int32_t)tgl_ceil_div(rows, tgl_max(1, waves * at_once / of_tile));
    const int64_t room = room_of(p, target), warps = GATE_CONV_WARPS(threads, columns_of(p));
    p->gate_rows = (int32_t)tgl_min(warps, room);
    p->stages = (int32_t)(room - room % p->gate_rows);
    const int64_t blocks = tgl_ceil_div(rows, p->tile_rows) * of_tile * parts;
    tgl_shape made = { { blocks },
                       .cluster = parts > 1 ? parts : 0,
                       .block = GATE_CONV_THREADS(threads, columns_of(p)) };
    made.shared_bytes = weight_bytes(p) + p->stages * stage_bytes(p);
    return tgl_shape_with(made, p, sizeof *p);
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_shape_of_blocks(p->num_tokens * p->num_streams, GATE_CONV_ANY_THREADS), p, sizeof *p);
}

static const tgl_op OP = { cpu,
                           plan,
                           { [CHAIN] = { can_chain, NULL, chain_shape }, [ANY] = { NULL, NULL, any_shape } } };

tgl_status tgl_engram_gate_conv_fwd(const DLTensor *hidden_states, const DLTensor *k, const DLTensor *v,
                                    const DLTensor *weight_hidden, const DLTensor *weight_embed,
                                    const DLTensor *norm_weight, const DLTensor *conv_weight, const DLTensor *bias,
                                    const DLTensor *mask, DLTensor *ring, DLTensor *out, const tgl_engram_batch *batch,
                                    const tgl_engram_gate_conv_params *params, tgl_stream stream)
{
    static const tgl_engram_batch one;
    const tgl_engram_batch *b = batch ? batch : &one;
    const DLTensor *tensors[] = { hidden_states, k,    v,    weight_hidden, weight_embed, norm_weight, conv_weight,
                                  bias,          mask, ring, b->cu_seqlens, b->start_pos, b->slots,    out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_engram_gate_conv_fwd_signature, tensors, params, &n.num_tokens));
    const int64_t dilation = tgl_conv_dilation(params->dilation), reach = (n.kernel_size - 1) * dilation;
    TGL_TRY(tgl_check_batch(batch, ring, n.num_requests, false, reach));
    TGL_TRY(tgl_expect_rows_apart("out", out));
    if (n.num_tokens == 0) return TGL_OK; /* the ring, which is not empty, stays */
    const tgl_engram_gate_params gate = { .eps = params->eps,
                                          .clamp_value = params->clamp_value,
                                          .zero_centered = params->zero_centered,
                                          .sign = params->sign };
    problem p = {
        .requests = tgl_batch_windows(b, mask, ring, params->keep_ring, n.num_tokens, n.num_requests, reach),
        .x = tgl_gate_in(hidden_states),
        .k = tgl_gate_in(k),
        .v = tgl_gate_in(v),
        .weights = tgl_gate_weights(weight_hidden, weight_embed, &gate),
        .gate = tgl_gate_numbers(n.hidden, &gate),
        .norm = tgl_conv_weights(norm_weight, true),
        .conv = tgl_conv_weights(conv_weight, false),
        .bias = tgl_conv_weights(bias, false),
        .numbers = { (float)n.hidden, params->has_norm_eps ? params->norm_eps : CONV_EPS, params->norm_zero_centered,
                     !params->no_activation, true },
        .ring = tgl_data_or_null(ring),
        .out = tgl_gate_out(out),
        .num_tokens = n.num_tokens,
        .num_streams = n.num_streams,
        .hidden = n.hidden,
        .kernel_size = (int32_t)n.kernel_size,
        .dilation = (int32_t)dilation,
        .rounds_each = params->round_each,
        .has_residual = !params->no_residual,
    };
    return tgl_run(&tgl_engram_gate_conv_fwd_signature, &OP, tensors, &p, stream);
}
