/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast.c - tgl_quant_swiglu_backward_and_per_token_cast: recomputes the
 * weighted activation, and all gradients. */
#include <math.h>

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "quant/common/params.h"
#include "quant/swiglu_backward_and_per_token_cast_cpu.h"

typedef backward_problem problem;

/* ---- CPU ---- */

/* Activation and gradients of one column. */
static tgl_swiglu_grads grads_at(const problem *p, int64_t row, int64_t col)
{
    const float gate = tgl_decoded(&p->gate, row, col), up = tgl_decoded(&p->up, row, col);
    const float l = tgl_swiglu_gate(gate, p->clamp), r = tgl_swiglu_up(up, p->clamp);
    const float grad = tgl_bf16_to_f32(p->grad_out[row * p->grad_stride + col]);
    tgl_swiglu_grads g = tgl_swiglu_backward(l, r, tgl_swiglu_divisor(l), grad, tgl_backward_weight(p, row));
    if (tgl_swiglu_cuts_gate(gate, p->clamp)) g.gate_grad = 0;
    if (tgl_swiglu_cuts_up(up, p->clamp)) g.up_grad = 0;
    return g;
}

static float grad_of_half(const void *context, int64_t row, int64_t col)
{
    const backward_half *half = context;
    const tgl_swiglu_grads g = grads_at(half->p, row, col);
    return half->is_up ? g.up_grad : g.gate_grad;
}

tgl_cast tgl_backward_cast(const backward_half *half)
{
    const problem *p = half->p;
    return (tgl_cast){ .from = { .value = grad_of_half, .context = half },
                       .num_rows = p->num_rows,
                       .num_cols = p->num_cols,
                       .format = TGL_FORMAT_E4M3,
                       .rule = p->rule,
                       .block_rows = 1,
                       .block_cols = p->blocks.cols,
                       .sf = p->sf,
                       .first_sf = half->is_up ? p->blocks.num_cols : 0,
                       .num_sf = 2 * p->blocks.num_cols,
                       .out = p->x_grad_fp8 + (half->is_up ? p->num_cols : 0),
                       .out_stride = 2 * p->num_cols };
}

void tgl_backward_store_sum(const problem *p, int64_t row, float sums[BACKWARD_SUMS])
{
    const int64_t slot = p->pos_to_token_topk[row];
    for (int half = BACKWARD_SUMS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    if (slot >= 0 && slot < p->num_weights && p->token_topk_to_pos[slot] == row) p->weight_grad[slot] = sums[0];
}

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const backward_half gate = { p, false }, up = { p, true };
    const tgl_cast casts[2] = { tgl_backward_cast(&gate), tgl_backward_cast(&up) };
    for (int64_t row = begin; row < end; row++) {
        float sums[BACKWARD_SUMS] = { 0 };
        const float weight = tgl_backward_weight(p, row);
        for (int64_t col = 0; col < p->num_cols; col++) {
            const tgl_swiglu_grads g = grads_at(p, row, col);
            uint16_t *x_grad = p->x_grad + row * 2 * p->num_cols + col;
            p->out[row * p->num_cols + col] = tgl_bf16_from_f32(g.activation * weight);
            x_grad[0] = tgl_bf16_from_f32(g.gate_grad);
            x_grad[p->num_cols] = tgl_bf16_from_f32(g.up_grad);
            const float grad = tgl_bf16_to_f32(p->grad_out[row * p->grad_stride + col]);
            sums[col % BACKWARD_SUMS] += grad * g.activation;
        }
        for (int64_t k = 0; k < p->blocks.num_cols; k++) {
            tgl_cast_block(&casts[0], row, k);
            tgl_cast_block(&casts[1], row, k);
        }
        tgl_backward_store_sum(p, row, sums);
    }
}

/* Clears slots that no row writes: they have no row, or rows have no columns. */
static void clear_slots(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t slot = begin; slot < end; slot++) {
        const int64_t row = p->token_topk_to_pos[slot];
        const bool has_row = row >= 0 && row < p->num_rows && p->pos_to_token_topk[row] == slot;
        if (!has_row || p->num_cols == 0) p->weight_grad[slot] = 0;
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    if (p->num_cols > 0)
        TGL_TRY(tgl_parallel_rows(p->num_rows, 24 * p->num_cols, TGL_CHOOSE(run_rows, tgl_backward_rows), p));
    return tgl_parallel_rows(p->num_weights, 12, clear_slots, p);
}

TGL_SIZES(sizes, num_rows, num_cols, num_tokens, num_topk);
tgl_signature tgl_quant_swiglu_backward_and_per_token_cast_signature =
    TGL_SIGNATURE("quant_swiglu_backward_and_per_token_cast(x: e4m3[num_rows, 2 * num_cols (gates, ups)] rows,"
                  " x_sf: sf[num_rows, 2 * (num_cols / num_per_channels)], grad_out: bf16[num_rows, num_cols] rows,"
                  " weight: f32[num_tokens, num_topk], pos_to_token_topk: i32[num_rows],"
                  " token_topk_to_pos: i32[num_tokens, num_topk], num_per_channels: int = num_cols, round_sf: bool,"
                  " " TGL_SWIGLU_CLAMP ")"
                  " -> out: bf16[num_rows, num_cols], x_grad_fp8: e4m3[num_rows, 2 * num_cols],"
                  " x_grad_sf: sf[num_rows, 2 * (num_cols / num_per_channels)], x_grad: bf16[num_rows, 2 * num_cols],"
                  " weight_grad: f32[num_tokens, num_topk] where num_cols < 2^59, x_grad_sf of i32 needs round_sf",
                  &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* BLOCK_COLS of the kernel for aligned vectors; 0: it does not have such blocks. */
static int64_t block_of_kernel(const problem *p)
{
    if (p->num_cols == 0 || p->num_cols % BACKWARD_VECTOR || p->num_cols > INT32_MAX / 2) return 0;
    int64_t width = BACKWARD_VECTOR; /* of a single block it may exceed num_cols */
    while (width < p->blocks.cols) width *= 2;
    const bool is_power = width == p->blocks.cols || p->blocks.num_cols == 1;
    return is_power && width <= BACKWARD_MAX_BLOCK ? width : 0;
}

/* Aligned vectors: a warp for each step of a row if rows are few, else warps that loop. ANY: the rest. */
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

/* Warps share a row evenly. Their number decides the order of its sum. */
static int64_t sum_warps(const problem *p)
{
    const int64_t steps = num_steps(p), rounds = tgl_max(tgl_ceil_div(steps, BACKWARD_WARPS), BACKWARD_ROUNDS);
    return steps > 0 ? tgl_ceil_div(steps, rounds) : BACKWARD_WARPS;
}

static tgl_shape shape(problem *p, int64_t blocks, int64_t warps)
{
    p->args = (backward_args){ .x = p->gate.data,
                               .x_row_bytes = p->gate.row_bytes,
                               .x_sf = p->gate.sf,
                               .grad_out = p->grad_out,
                               .grad_stride = p->grad_stride,
                               .weight = p->weight,
                               .pos_to_token_topk = p->pos_to_token_topk,
                               .token_topk_to_pos = p->token_topk_to_pos,
                               .num_weights = p->num_weights,
                               .clearing_blocks = clearing_blocks(p),
                               .sum_warps = sum_warps(p),
                               .clamp = p->clamp,
                               .out = p->out,
                               .x_grad = p->x_grad,
                               .x_grad_fp8 = p->x_grad_fp8,
                               .sf = p->sf,
                               .weight_grad = p->weight_grad,
                               .num_rows = p->num_rows,
                               .num_cols = p->num_cols,
                               .block_cols = p->blocks.cols,
                               .num_blocks = p->blocks.num_cols };
    return (tgl_shape){ { p->args.clearing_blocks + blocks }, .block = (int)(32 * warps), TGL_ARGS(p->args) };
}

static tgl_shape whole_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return shape(p, p->num_rows, num_steps(p) + 1);
}

static tgl_shape loops_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return shape(p, p->num_rows, sum_warps(p));
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return shape(p, tgl_strided_grid(p->num_rows, BACKWARD_ANY_BLOCKS * target->num_sms), sum_warps(p));
}

static const tgl_op OP = { cpu,
                           plan,
                           {
                               [WHOLE] = { fits_whole, pays_whole, whole_shape },
                               [LOOPS] = { fits_loops, NULL, loops_shape },
                               [ANY] = { .shape = any_shape },
                           } };

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
    DLTensor *x_grad_sf, DLTensor *x_grad, DLTensor *weight_grad, const tgl_quant_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { x,   x_sf,       grad_out,  weight, pos_to_token_topk, token_topk_to_pos,
                                  out, x_grad_fp8, x_grad_sf, x_grad, weight_grad };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_swiglu_backward_and_per_token_cast_signature, tensors, params, &n.num_rows));
    const tgl_blocks blocks = tgl_blocks_of(n.num_rows, n.num_cols, 1, params->num_per_channels);
    problem p = { .num_rows = n.num_rows,
                  .num_cols = n.num_cols,
                  .gate = half_of(x, x_sf, &blocks, 0, 0),
                  .up = half_of(x, x_sf, &blocks, n.num_cols, blocks.num_cols),
                  .grad_out = tgl_data(grad_out),
                  .grad_stride = tgl_step_of(grad_out, 0),
                  .weight = tgl_data(weight),
                  .pos_to_token_topk = tgl_data(pos_to_token_topk),
                  .token_topk_to_pos = tgl_data(token_topk_to_pos),
                  .num_weights = n.num_tokens * n.num_topk,
                  .clamp = params->has_swiglu_clamp_value ? params->swiglu_clamp_value : INFINITY,
                  .blocks = blocks,
                  .rule = tgl_scale_rule_of(TGL_FORMAT_E4M3, params->round_sf),
                  .sf = tgl_sf_of(x_grad_sf),
                  .out = tgl_data(out),
                  .x_grad = tgl_data(x_grad),
                  .x_grad_fp8 = tgl_data(x_grad_fp8),
                  .weight_grad = tgl_data(weight_grad) };
    return tgl_run(&tgl_quant_swiglu_backward_and_per_token_cast_signature, &OP, tensors, &p, stream);
}
