/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast_fast.c - a piece of a row at a time: gradients are computed into buffers, stored
 * and cast from there. */
#include <math.h>
#include <string.h>

#include "core/math.h"
#include "quant/common/swiglu_lanes.h"
#include "quant/swiglu_backward_and_per_token_cast_cpu.h"

enum {
    PIECE = TGL_MAX_RUN,        /* columns at work */
    SUMS = BACKWARD_SUMS,
    WIDE = 64                   /* columns of a block from which on each is taken alone */
};
_Static_assert(TGL_RUN_SUMS == (int)BACKWARD_SUMS, "one order of sums");

typedef struct {
    const backward_problem *p;
    int64_t row, col, count;                /* what is in the buffers */
    TGL_LINES float gate[PIECE];
    float up[PIECE], grad[PIECE], activation[PIECE], gate_grad[PIECE], up_grad[PIECE];
} piece;

/* Where no gate or up is clamped, and every exp is a normal number. First all of these, in quarters as
 * swiglu_lanes.h does it. */
TGL_ALWAYS_INLINE void differentiate_small(piece *w, float weight)
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
        const tgl_swiglu_grads g = tgl_swiglu_grads_of(gate, w->up[j], sigmoid, silu, w->grad[j], weight);
        w->activation[j] = g.activation;
        w->gate_grad[j] = g.gate_grad;
        w->up_grad[j] = g.up_grad;
    }
}

TGL_ALWAYS_INLINE void differentiate(piece *w, float weight, float clamp)
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

static void compute(piece *w, int64_t row, int64_t col, int64_t count)
{
    const backward_problem *p = w->p;
    const uint16_t *grad_out = p->grad_out + row * p->grad_stride + col;
    const float weight = tgl_backward_weight(p, row);
    w->row = row, w->col = col, w->count = count;
    TGL_FAST(tgl_decode)(&p->gate, row, col, count, w->gate);
    TGL_FAST(tgl_decode)(&p->up, row, col, count, w->up);
    for (int64_t j = 0; j < count; j++) w->grad[j] = tgl_bf16_to_f32(grad_out[j]);
    if (!TGL_FAST(tgl_swiglu_is_small)(w->gate, w->up, count, p->clamp)) differentiate(w, weight, p->clamp);
    else differentiate_small(w, weight);
}

/* A piece's activations and gradients as bf16, and its part of the row's sum: partial sums, so that additions
 * need not wait for each other. */
static void store(const piece *w, float sums[SUMS])
{
    const backward_problem *p = w->p;
    const float weight = tgl_backward_weight(p, w->row);
    uint16_t *gate_grad = p->x_grad + w->row * 2 * p->num_cols + w->col;
    TGL_LINES float weighted[PIECE];
    for (int64_t j = 0; j < w->count; j++) weighted[j] = w->activation[j] * weight;
    TGL_FAST(tgl_round_to_bf16)(weighted, w->count, p->out + w->row * p->num_cols + w->col);
    TGL_FAST(tgl_round_to_bf16)(w->gate_grad, w->count, gate_grad);
    TGL_FAST(tgl_round_to_bf16)(w->up_grad, w->count, gate_grad + p->num_cols);
    int64_t j = 0;
    for (; (w->col + j) % SUMS && j < w->count; j++) sums[(w->col + j) % SUMS] += w->grad[j] * w->activation[j];
    for (; j + SUMS <= w->count; j += SUMS)
        for (int i = 0; i < SUMS; i++) sums[i] += w->grad[j + i] * w->activation[j + i];
    for (; j < w->count; j++) sums[(w->col + j) % SUMS] += w->grad[j] * w->activation[j];
}

/* The gradients of a half, for its cast: as a rule those that have just been computed. */
static const void *read_grads(const void *context, int64_t row, int64_t col, int64_t count, float *to)
{
    const backward_half *h = context;
    piece *w = h->piece;
    for (int64_t done = 0; done < count; done += PIECE) {
        const int64_t from = col + done, n = tgl_min(PIECE, count - done);
        if (row != w->row || from < w->col || from + n > w->col + w->count) compute(w, row, from, n);
        memcpy(to + done, (h->is_up ? w->up_grad : w->gate_grad) + (from - w->col), (size_t)n * sizeof *to);
    }
    return to;
}

/* One half of a block, whose amax is finite: its factor and codes. */
TGL_ALWAYS_INLINE void cast_half(const backward_problem *p, int64_t row, int64_t k, float amax, const float *grads, int64_t count,
                      uint8_t *to)
{
    const tgl_scale scale = tgl_scale_of(amax, p->rule);
    tgl_sf_set(&p->sf, row, k, 2 * p->blocks.num_cols, scale.sf);
    tgl_run_to_e4m3(grads, false, count, 0, &scale.inv, false, to);
}

TGL_ALWAYS_INLINE void cast_block(const backward_problem *p, int64_t row, int64_t col, int64_t count, const float amax[2],
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
    TGL_FAST(tgl_cast_columns)(&casts[0], row, col, count, (tgl_kept){ kept, sizeof kept });
    TGL_FAST(tgl_cast_columns)(&casts[1], row, col, count, (tgl_kept){ kept, sizeof kept });
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
        TGL_FAST(tgl_amax_of_both)(gate_grads, up_grads, n, amax);
        if (amax[0] < INFINITY && amax[1] < INFINITY)
            cast_block(w->p, w->row, w->col + j, n, amax, gate_grads, up_grads);
        else cast_columns(casts, w->row, w->col + j, n);
    }
}

/* A block in the loops of swiglu_neon.h, which are for nearly all; false where it is none for them. */
static bool run_block(piece *w, int64_t row, int64_t col, int64_t count, float sums[SUMS])
{
    const backward_problem *p = w->p;
    const int64_t k = col / p->blocks.cols, at = row * 2 * p->num_cols + col;
    tgl_backward_run run = {
        .gates = p->gate.data + row * p->gate.row_bytes + col,
        .ups = p->up.data + row * p->up.row_bytes + col, .gate_sf = tgl_sf_get(&p->gate.sf, row, k),
        .up_sf = tgl_sf_get(&p->up.sf, row, p->up.first_sf + k),
        .grads = p->grad_out + row * p->grad_stride + col, .weight = tgl_backward_weight(p, row), .clamp = p->clamp,
        .out = p->out + row * p->num_cols + col, .bf16_gate_grads = p->x_grad + at,
        .bf16_up_grads = p->x_grad + at + p->num_cols, .gate_grads = w->gate_grad, .up_grads = w->up_grad,
        .sums = sums
    };
    w->row = -1;                            /* its buffers have no piece */
    if (count % TGL_RUN_STEP || !tgl_run_backward(&run, count)) return false;
    const float amax[2] = { tgl_f32_from_bits((uint32_t)run.gate_amax),
                            tgl_f32_from_bits((uint32_t)run.up_amax) };
    cast_block(p, row, col, count, amax, w->gate_grad, w->up_grad);
    return true;
}

void TGL_FAST(tgl_backward_rows)(const void *context, int64_t begin, int64_t end)
{
    const backward_problem *p = context;
    piece w = { .p = p, .row = -1 };
    const backward_half gate = { p, false, &w }, up = { p, true, &w };
    tgl_cast casts[2] = { tgl_backward_cast(&gate), tgl_backward_cast(&up) };
    casts[0].from.read = casts[1].from.read = read_grads;
    /* a piece has whole blocks; of a block that is larger, gradients are computed again for the casts */
    const bool is_whole = p->blocks.cols <= PIECE;
    const bool has_runs = TGL_HAS_NEON && is_whole && p->blocks.cols % TGL_RUN_STEP == 0 &&
                          p->blocks.cols >= WIDE;
    const int64_t step = has_runs ? p->blocks.cols
                                  : is_whole ? PIECE / p->blocks.cols * p->blocks.cols : PIECE;
    for (int64_t row = begin; row < end; row++) {
        float sums[SUMS] = { 0 };
        for (int64_t col = 0; col < p->num_cols; col += step) {
            const int64_t count = tgl_min(step, p->num_cols - col);
            if (has_runs && run_block(&w, row, col, count, sums)) continue;
            compute(&w, row, col, count);
            store(&w, sums);
            if (is_whole) cast_piece(&w, casts);
        }
        if (!is_whole) cast_columns(casts, row, 0, p->num_cols);
        tgl_backward_store_sum(p, row, sums);
    }
}
