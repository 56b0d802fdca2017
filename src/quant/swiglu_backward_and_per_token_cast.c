/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast.c - tgl_quant_swiglu_backward_and_per_token_cast: the weighted
 * activation again, and all gradients. */
#include <math.h>
#include <string.h>

#include "core/clones.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "quant/activate.h"
#include "quant/common/params.h"
#include "quant/swiglu_backward_and_per_token_cast.h"
#include "quant/swiglu_lanes.h"

typedef struct {
    int64_t num_rows, num_cols;             /* of out */
    tgl_codes gate, up;                     /* the halves of x */
    const uint16_t *grad_out;               /* bf16 */
    int64_t grad_stride;                    /* elements from a row to the next */
    const float *weight;
    const int32_t *pos_to_token_topk, *token_topk_to_pos;
    int64_t num_weights;
    float clamp;                            /* infinite: none */
    tgl_blocks blocks;                      /* of a half */
    tgl_scale_rule rule;
    tgl_sf sf;                              /* of x_grad_fp8: the gates' columns, then the ups' */
    uint16_t *out, *x_grad;                 /* bf16 */
    uint8_t *x_grad_fp8;
    float *weight_grad;
    backward_args args;
} problem;

/* ---- CPU ---- */

enum {
    PIECE = TGL_MAX_RUN,        /* columns at work */
    LANES = TGL_RUN_SUMS,       /* partial sums of a row */
    WIDE = 64                   /* columns of a block from which on each is taken alone */
};
#define INLINE static inline __attribute__((always_inline))     /* into each clone */

typedef struct {
    const problem *p;
    int64_t row, col, count;                /* what is in the buffers */
    TGL_LINES float gate[PIECE];
    float up[PIECE], grad[PIECE], activation[PIECE], gate_grad[PIECE], up_grad[PIECE];
} piece;

static float weight_of(const problem *p, int64_t row)
{
    const int64_t at = p->pos_to_token_topk[row];
    return at >= 0 && at < p->num_weights ? p->weight[at] : 0.0f;
}

/* Where no gate or up is clamped, and every exp is a normal number. First all of these, in quarters as
 * activate.c does it. */
INLINE void differentiate_small(piece *w, float weight, bool has_fma)
{
    TGL_LINES float divisor[PIECE];
    const int64_t n = w->count / 4;
    for (int64_t j = 0; j < n; j++) {
        divisor[j] = 1.0f + tgl_exp_small(-w->gate[j]);
        divisor[n + j] = 1.0f + tgl_exp_small(-w->gate[n + j]);
        divisor[2 * n + j] = 1.0f + tgl_exp_small(-w->gate[2 * n + j]);
        divisor[3 * n + j] = 1.0f + tgl_exp_small(-w->gate[3 * n + j]);
    }
    for (int64_t j = 4 * n; j < w->count; j++) divisor[j] = 1.0f + tgl_exp_small(-w->gate[j]);
    for (int64_t j = 0; j < w->count; j++) {
        const float gate = w->gate[j], sigmoid = 1.0f / divisor[j], silu = gate / divisor[j];
        const float slope = has_fma ? fmaf(gate, 1.0f - sigmoid, 1.0f) : tgl_fma(gate, 1.0f - sigmoid, 1.0f);
        const tgl_swiglu_grads g = tgl_swiglu_grads_by(gate, w->up[j], sigmoid, silu, slope, w->grad[j],
                                                       weight);
        w->activation[j] = g.activation;
        w->gate_grad[j] = g.gate_grad;
        w->up_grad[j] = g.up_grad;
    }
}

INLINE void differentiate(piece *w, float weight, float clamp)
{
    for (int64_t j = 0; j < w->count; j++) {
        const float gate = w->gate[j], up = w->up[j];
        const float l = tgl_swiglu_gate(gate, clamp), r = tgl_swiglu_up(up, clamp);
        const tgl_swiglu_grads g = tgl_swiglu_backward(l, r, tgl_swiglu_divisor(l), w->grad[j], weight);
        w->activation[j] = g.activation;
        w->gate_grad[j] = tgl_select_f32(tgl_swiglu_cuts_gate(gate, clamp), 0.0f, g.gate_grad);
        w->up_grad[j] = tgl_select_f32(tgl_swiglu_cuts_up(up, clamp), 0.0f, g.up_grad);
    }
}

TGL_CLONES
static void compute(piece *w, int64_t row, int64_t col, int64_t count)
{
    const problem *p = w->p;
    const uint16_t *grad_out = p->grad_out + row * p->grad_stride + col;
    const float weight = weight_of(p, row);
    w->row = row, w->col = col, w->count = count;
    tgl_decode(&p->gate, row, col, count, w->gate);
    tgl_decode(&p->up, row, col, count, w->up);
    for (int64_t j = 0; j < count; j++) w->grad[j] = tgl_bf16_to_f32(grad_out[j]);
    if (!tgl_swiglu_is_small(w->gate, w->up, count, p->clamp)) differentiate(w, weight, p->clamp);
    else if (TGL_HAS_FMA) differentiate_small(w, weight, true);
    else differentiate_small(w, weight, false);
}

/* A piece's activations and gradients as bf16, and its part of the row's sum: partial sums, so that additions
 * need not wait for each other. */
TGL_CLONES
static void store(const piece *w, float lanes[LANES])
{
    const problem *p = w->p;
    const float weight = weight_of(p, w->row);
    uint16_t *gate_grad = p->x_grad + w->row * 2 * p->num_cols + w->col;
    TGL_LINES float weighted[PIECE];
    for (int64_t j = 0; j < w->count; j++) weighted[j] = w->activation[j] * weight;
    tgl_round_to_bf16(weighted, w->count, p->out + w->row * p->num_cols + w->col);
    tgl_round_to_bf16(w->gate_grad, w->count, gate_grad);
    tgl_round_to_bf16(w->up_grad, w->count, gate_grad + p->num_cols);
    const int64_t whole = w->count / LANES * LANES;
    for (int64_t j = 0; j < whole; j += LANES)
        for (int lane = 0; lane < LANES; lane++) lanes[lane] += w->grad[j + lane] * w->activation[j + lane];
    for (int64_t j = whole; j < w->count; j++) lanes[j - whole] += w->grad[j] * w->activation[j];
}

static float sum_of(float lanes[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

/* The gradients of a half, for its cast: as a rule those that have just been computed. */
typedef struct { piece *w; bool is_up; } half;
static const void *read_grads(const void *context, int64_t row, int64_t col, int64_t count, float *to)
{
    const half *h = context;
    piece *w = h->w;
    for (int64_t done = 0; done < count; done += PIECE) {
        const int64_t from = col + done, n = tgl_min(PIECE, count - done);
        if (row != w->row || from < w->col || from + n > w->col + w->count) compute(w, row, from, n);
        memcpy(to + done, (h->is_up ? w->up_grad : w->gate_grad) + (from - w->col), (size_t)n * sizeof *to);
    }
    return to;
}

static tgl_cast cast_of(const problem *p, const half *h)
{
    return (tgl_cast){
        .from = { read_grads, h, .is_bf16 = false, .is_buffered = true }, .num_rows = p->num_rows,
        .num_cols = p->num_cols, .format = TGL_FORMAT_E4M3, .rule = p->rule, .block_rows = 1,
        .block_cols = p->blocks.cols, .sf = p->sf, .first_sf = h->is_up ? p->blocks.num_cols : 0,
        .num_sf = 2 * p->blocks.num_cols, .out = p->x_grad_fp8 + (h->is_up ? p->num_cols : 0),
        .out_stride = 2 * p->num_cols
    };
}

/* One half of a block, whose amax is finite: its factor and codes. */
INLINE void cast_half(const problem *p, int64_t row, int64_t k, float amax, const float *grads, int64_t count,
                      uint8_t *to)
{
    const tgl_scale scale = tgl_scale_of(amax, p->rule);
    tgl_sf_set(&p->sf, row, k, 2 * p->blocks.num_cols, scale.sf);
    const int64_t done = TGL_HAS_LANES ? tgl_lanes_to_e4m3(grads, false, count, 0, &scale.inv, false, to) : 0;
    if (done < count) tgl_small_to_e4m3(grads + done, count - done, scale.inv, to + done);
}

INLINE void cast_block(const problem *p, int64_t row, int64_t col, int64_t count, const float amax[2],
                       const float *gate_grads, const float *up_grads)
{
    const int64_t k = col / p->blocks.cols;
    uint8_t *to = p->x_grad_fp8 + row * 2 * p->num_cols + col;
    cast_half(p, row, k, amax[0], gate_grads, count, to);
    cast_half(p, row, p->blocks.num_cols + k, amax[1], up_grads, count, to + p->num_cols);
}

/* Columns of both halves, whatever is in them. */
static __attribute__((noinline)) void cast_columns(const tgl_cast casts[2], int64_t row, int64_t col,
                                                   int64_t count)
{
    TGL_LINES float kept[4 << 10];
    tgl_cast_columns(&casts[0], row, col, count, (tgl_kept){ kept, sizeof kept });
    tgl_cast_columns(&casts[1], row, col, count, (tgl_kept){ kept, sizeof kept });
}

/* The blocks of a piece. */
static void cast_piece(const piece *w, const tgl_cast casts[2])
{
    const int64_t width = w->p->blocks.cols;
    if (width < WIDE) {
        cast_columns(casts, w->row, w->col, w->count);
        return;
    }
    for (int64_t j = 0; j < w->count; j += width) {
        const int64_t n = tgl_min(width, w->count - j);
        const float *gate_grads = w->gate_grad + j, *up_grads = w->up_grad + j;
        float amax[2];
        tgl_amax_of_both(gate_grads, up_grads, n, amax);
        if (amax[0] < INFINITY && amax[1] < INFINITY)
            cast_block(w->p, w->row, w->col + j, n, amax, gate_grads, up_grads);
        else cast_columns(casts, w->row, w->col + j, n);
    }
}

/* A block in the loops of swiglu_lanes.h, which are for nearly all; false where it is none for them. */
static bool run_block(piece *w, int64_t row, int64_t col, int64_t count, float lanes[LANES])
{
    const problem *p = w->p;
    const int64_t k = col / p->blocks.cols, at = row * 2 * p->num_cols + col;
    tgl_backward_run run = {
        .gates = p->gate.data + row * p->gate.row_bytes + col,
        .ups = p->up.data + row * p->up.row_bytes + col, .gate_sf = tgl_sf_get(&p->gate.sf, row, k),
        .up_sf = tgl_sf_get(&p->up.sf, row, p->up.first_sf + k),
        .grads = p->grad_out + row * p->grad_stride + col, .weight = weight_of(p, row), .clamp = p->clamp,
        .out = p->out + row * p->num_cols + col, .bf16_gate_grads = p->x_grad + at,
        .bf16_up_grads = p->x_grad + at + p->num_cols, .gate_grads = w->gate_grad, .up_grads = w->up_grad,
        .sums = lanes
    };
    w->row = -1;                            /* its buffers have no piece */
    if (count % TGL_RUN_STEP || !tgl_lanes_backward(&run, count)) return false;
    const float amax[2] = { tgl_f32_from_bits((uint32_t)run.gate_amax),
                            tgl_f32_from_bits((uint32_t)run.up_amax) };
    cast_block(p, row, col, count, amax, w->gate_grad, w->up_grad);
    return true;
}

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    piece w = { .p = p, .row = -1 };
    const half gate = { &w, false }, up = { &w, true };
    const tgl_cast casts[2] = { cast_of(p, &gate), cast_of(p, &up) };
    /* a piece has whole blocks; of a block that is larger, gradients are computed again for the casts */
    const bool is_whole = p->blocks.cols <= PIECE;
    const bool has_runs = TGL_HAS_LANES && is_whole && p->blocks.cols % TGL_RUN_STEP == 0 &&
                          p->blocks.cols >= WIDE;
    const int64_t step = has_runs ? p->blocks.cols
                                  : is_whole ? PIECE / p->blocks.cols * p->blocks.cols : PIECE;
    for (int64_t row = begin; row < end; row++) {
        float lanes[LANES] = { 0 };
        for (int64_t col = 0; col < p->num_cols; col += step) {
            const int64_t count = tgl_min(step, p->num_cols - col);
            if (has_runs && run_block(&w, row, col, count, lanes)) continue;
            compute(&w, row, col, count);
            store(&w, lanes);
            if (is_whole) cast_piece(&w, casts);
        }
        if (!is_whole) cast_columns(casts, row, 0, p->num_cols);
        const int64_t slot = p->pos_to_token_topk[row];
        if (slot >= 0 && slot < p->num_weights && p->token_topk_to_pos[slot] == row)
            p->weight_grad[slot] = sum_of(lanes);
    }
}

/* Slots that no row writes, because none is theirs or rows have no columns. */
static void clear_slots(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t slot = begin; slot < end; slot++) {
        const int64_t row = p->token_topk_to_pos[slot];
        const bool has_row = row >= 0 && row < p->num_rows && p->pos_to_token_topk[row] == slot;
        if (!has_row || p->num_cols == 0) p->weight_grad[slot] = 0;
    }
}

static tgl_status run_on_cpu(const void *context)
{
    const problem *p = context;
    if (p->num_cols > 0) TGL_TRY(tgl_parallel_rows(p->num_rows, 24 * p->num_cols, run_rows, p));
    return tgl_parallel_rows(p->num_weights, 12, clear_slots, p);
}

TGL_SIZES(sizes, num_rows, num_cols, num_tokens, num_topk);
tgl_signature tgl_quant_swiglu_backward_and_per_token_cast_signature = TGL_SIGNATURE(
    "quant_swiglu_backward_and_per_token_cast(x: e4m3[num_rows, 2 * num_cols (gates, ups)] rows,"
    " x_sf: sf[num_rows, 2 * (num_cols / num_per_channels)], grad_out: bf16[num_rows, num_cols] rows,"
    " weight: f32[num_tokens, num_topk], pos_to_token_topk: i32[num_rows],"
    " token_topk_to_pos: i32[num_tokens, num_topk], num_per_channels: int = num_cols, round_sf: bool,"
    " " TGL_SWIGLU_CLAMP ")"
    " -> out: bf16[num_rows, num_cols], x_grad_fp8: e4m3[num_rows, 2 * num_cols],"
    " x_grad_sf: sf[num_rows, 2 * (num_cols / num_per_channels)], x_grad: bf16[num_rows, 2 * num_cols],"
    " weight_grad: f32[num_tokens, num_topk] where num_cols < 2^59, x_grad_sf of i32 needs round_sf",
    &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* Columns of a factor in the kernel for aligned vectors; 0: it does not have such blocks. */
static int64_t block_of_kernel(const problem *p)
{
    if (p->num_cols == 0 || p->num_cols % BACKWARD_VECTOR || p->num_cols > INT32_MAX / 2) return 0;
    int64_t width = BACKWARD_VECTOR;                    /* of a single block it may be more than it has */
    while (width < p->blocks.cols) width *= 2;
    const bool is_power = width == p->blocks.cols || p->blocks.num_cols == 1;
    return is_power && width <= BACKWARD_MAX_BLOCK ? width : 0;
}

/* Those of aligned vectors have a warp for each step of a row if rows are few, else warps that loop. */
enum { WHOLE, LOOPS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro is_rounded = { "IS_ROUNDED", p->rule.is_rounded };
    const tgl_macro has_clamp = { "HAS_CLAMP", !isinf(p->clamp) };
    const int64_t block_cols = block_of_kernel(p);
    const char *name = block_cols ? "quant/swiglu_backward_and_per_token_cast" : NULL;
    const tgl_macro width = { "BLOCK_COLS", block_cols };
    const tgl_macro x_sf_kind = { "X_SF_KIND", p->gate.sf.kind }, sf_kind = { "SF_KIND", p->sf.kind };
    kernels[WHOLE] = (tgl_kernel){ name, { is_rounded, has_clamp, width, x_sf_kind, sf_kind, { "IS_WHOLE", 1 } } };
    kernels[LOOPS] = (tgl_kernel){ name, { is_rounded, has_clamp, width, x_sf_kind, sf_kind, { "IS_WHOLE", 0 } } };
    kernels[ANY] = (tgl_kernel){ "quant/swiglu_backward_and_per_token_cast_any", { is_rounded, has_clamp } };
    return NUM_KERNELS;
}

static int64_t num_steps(const problem *p) { return tgl_ceil_div(p->num_cols, BACKWARD_STEP); }
static int64_t clearing_blocks(const problem *p) { return tgl_ceil_div(p->num_weights, BACKWARD_SLOTS); }

static bool fits_loops(const void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    const int64_t x_row = p->num_rows > 1 ? p->gate.row_bytes : 0;
    const int64_t grad_row = p->num_rows > 1 ? 2 * p->grad_stride : 0;
    const uintptr_t codes = (uintptr_t)p->gate.data | (uintptr_t)p->x_grad_fp8 | (uintptr_t)x_row;
    const uintptr_t values = (uintptr_t)p->grad_out | (uintptr_t)grad_row | (uintptr_t)p->out | (uintptr_t)p->x_grad;
    return codes % BACKWARD_VECTOR == 0 && values % (2 * BACKWARD_VECTOR) == 0 &&
           clearing_blocks(p) + p->num_rows <= INT32_MAX;
}

static bool fits_whole(const void *p, const tgl_target *target)
{
    return num_steps(p) <= BACKWARD_MAX_STEPS && fits_loops(p, target);
}

static bool pays_whole(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->num_rows * num_steps(p) <= BACKWARD_FEW * target->num_sms;
}

/* Warps share a row evenly; their number has a part in the order of its sum. */
static int64_t sum_warps(const problem *p)
{
    const int64_t steps = num_steps(p), rounds = tgl_max(tgl_ceil_div(steps, BACKWARD_WARPS), BACKWARD_ROUNDS);
    return steps > 0 ? tgl_ceil_div(steps, rounds) : BACKWARD_WARPS;
}

static tgl_shape shape(problem *p, int64_t blocks, int64_t warps)
{
    p->args = (backward_args){
        .x = p->gate.data, .x_row_bytes = p->gate.row_bytes, .x_sf = p->gate.sf, .grad_out = p->grad_out,
        .grad_stride = p->grad_stride, .weight = p->weight, .pos_to_token_topk = p->pos_to_token_topk,
        .token_topk_to_pos = p->token_topk_to_pos, .num_weights = p->num_weights,
        .clearing_blocks = clearing_blocks(p), .sum_warps = sum_warps(p), .clamp = p->clamp, .out = p->out,
        .x_grad = p->x_grad, .x_grad_fp8 = p->x_grad_fp8, .sf = p->sf, .weight_grad = p->weight_grad,
        .num_rows = p->num_rows, .num_cols = p->num_cols, .block_cols = p->blocks.cols,
        .num_blocks = p->blocks.num_cols
    };
    return (tgl_shape){ { p->args.clearing_blocks + blocks }, .block = (int)(32 * warps), TGL_ARGS(p->args) };
}

static tgl_shape shape_whole(void *context, const tgl_target *target)
{
    (void)target;
    problem *p = context;
    return shape(p, p->num_rows, num_steps(p) + 1);
}

static tgl_shape shape_loops(void *context, const tgl_target *target)
{
    (void)target;
    problem *p = context;
    return shape(p, p->num_rows, sum_warps(p));
}

static tgl_shape shape_any(void *context, const tgl_target *target)
{
    problem *p = context;
    return shape(p, tgl_strided_grid(p->num_rows, BACKWARD_ANY_BLOCKS * target->num_sms), sum_warps(p));
}

static const tgl_op OP = {
    run_on_cpu, plan,
    {
        [WHOLE] = { fits_whole, pays_whole, shape_whole },
        [LOOPS] = { fits_loops, NULL, shape_loops },
        [ANY] = { .shape = shape_any },
    }
};

/* The halves of x. */
static tgl_codes half_of(const DLTensor *x, const DLTensor *x_sf, const tgl_blocks *blocks, int64_t first_col,
                         int64_t first_sf)
{
    tgl_codes codes = tgl_codes_of(x, TGL_FORMAT_E4M3, tgl_sf_of(x_sf), *blocks);
    if (codes.data) codes.data += first_col;
    codes.first_sf = first_sf;
    return codes;
}

tgl_status tgl_quant_swiglu_backward_and_per_token_cast(
    const DLTensor *x, const DLTensor *x_sf, const DLTensor *grad_out, const DLTensor *weight,
    const DLTensor *pos_to_token_topk, const DLTensor *token_topk_to_pos, DLTensor *out, DLTensor *x_grad_fp8,
    DLTensor *x_grad_sf, DLTensor *x_grad, DLTensor *weight_grad, const tgl_quant_params *params,
    tgl_stream stream)
{
    const DLTensor *tensors[] = { x, x_sf, grad_out, weight, pos_to_token_topk, token_topk_to_pos, out, x_grad_fp8,
                                  x_grad_sf, x_grad, weight_grad };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_swiglu_backward_and_per_token_cast_signature, tensors, params, &n.num_rows));
    const tgl_blocks blocks = tgl_blocks_of(n.num_rows, n.num_cols, 1, params->num_per_channels);
    problem p = {
        .num_rows = n.num_rows, .num_cols = n.num_cols, .gate = half_of(x, x_sf, &blocks, 0, 0),
        .up = half_of(x, x_sf, &blocks, n.num_cols, blocks.num_cols), .grad_out = tgl_data(grad_out),
        .grad_stride = n.num_rows > 1 && n.num_cols > 0 ? tgl_stride(grad_out, 0) : 0, .weight = tgl_data(weight),
        .pos_to_token_topk = tgl_data(pos_to_token_topk), .token_topk_to_pos = tgl_data(token_topk_to_pos),
        .num_weights = n.num_tokens * n.num_topk,
        .clamp = params->has_swiglu_clamp_value ? params->swiglu_clamp_value : INFINITY, .blocks = blocks,
        .rule = tgl_scale_rule_of(TGL_FORMAT_E4M3, params->round_sf), .sf = tgl_sf_of(x_grad_sf),
        .out = tgl_data(out), .x_grad = tgl_data(x_grad), .x_grad_fp8 = tgl_data(x_grad_fp8),
        .weight_grad = tgl_data(weight_grad)
    };
    return tgl_run(&tgl_quant_swiglu_backward_and_per_token_cast_signature, &OP, tensors, &p, stream);
}
