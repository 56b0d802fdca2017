/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast_fast.c - a piece of a row at a time: gradients go to buffers, and are
 * stored and cast from there. */
#include "core/math.h"
#include "quant/common/swiglu_lanes.h"
#include "quant/swiglu_backward_and_per_token_cast_cpu.h"

enum {
    PIECE = TGL_MAX_RUN, /* columns at a time */
    SUMS = BACKWARD_SUMS,
    WIDE = 64 /* min columns of a block for swiglu_neon.inc */
};
_Static_assert(TGL_RUN_SUMS == (int)BACKWARD_SUMS, "one order of sums");

typedef struct {
    const backward_problem *p;
    int64_t row, col, count; /* of the buffers */
    TGL_LINES float gate[PIECE];
    float up[PIECE], grad[PIECE], activation[PIECE], gate_grad[PIECE], up_grad[PIECE];
} piece;

/* If nothing is clamped, and every exp is a normal number. First all divisors, in quarters as in
 * swiglu_lanes.h. */
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

/* Stores a piece's activations and gradients as bf16, and adds to the row's sums: several, so that additions
 * do not wait for each other. */
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

/* ---- casts ---- */

enum { INFINITE = 0x7F800000 };

/* Writes the factors of block k of both halves; amax is given as bits. False if one is infinite or NaN: then
 * the plain loop has cast the block. */
static bool write_factors(const tgl_cast casts[2], int64_t row, int64_t k, const int32_t amax[2], float inv[2])
{
    const bool is_finite = amax[0] < INFINITE && amax[1] < INFINITE;
    for (int h = 0; h < 2; h++) {
        const tgl_cast *c = &casts[h];
        const tgl_scale scale = tgl_scale_of(tgl_f32_from_bits((uint32_t)amax[h]), c->rule);
        if (is_finite) tgl_sf_set(&c->sf, row, c->first_sf + k, c->num_sf, scale.sf);
        else tgl_cast_block(c, row, k);
        inv[h] = scale.inv;
    }
    return is_finite;
}

TGL_ALWAYS_INLINE void encode(const tgl_cast casts[2], int64_t row, int64_t col, int64_t count, const float *gate_grads,
                              const float *up_grads, const float inv[2])
{
    const int64_t at = row * casts[0].out_stride + col;
    tgl_run_to_e4m3(gate_grads, false, count, 0, &inv[0], false, casts[0].out + at);
    tgl_run_to_e4m3(up_grads, false, count, 0, &inv[1], false, casts[1].out + at);
}

/* A piece has whole blocks. */
static void cast_piece(const piece *w, const tgl_cast casts[2])
{
    const int64_t width = casts[0].block_cols;
    for (int64_t j = 0; j < w->count; j += width) {
        const int64_t n = tgl_min(width, w->count - j);
        const float *gate_grads = w->gate_grad + j, *up_grads = w->up_grad + j;
        const int32_t amax[2] = { tgl_run_amax(gate_grads, false, n), tgl_run_amax(up_grads, false, n) };
        float inv[2];
        if (write_factors(casts, w->row, (w->col + j) / width, amax, inv))
            encode(casts, w->row, w->col + j, n, gate_grads, up_grads, inv);
    }
}

/* A block larger than a piece: its gradients are computed again for the codes. */
static void run_large(piece *w, const tgl_cast casts[2], int64_t row, int64_t col, int64_t count, float sums[SUMS])
{
    int32_t amax[2] = { 0 };
    float inv[2];
    for (int64_t j = 0; j < count; j += PIECE) {
        const int64_t n = tgl_min(PIECE, count - j);
        compute(w, row, col + j, n);
        store(w, sums);
        const int32_t here[2] = { tgl_run_amax(w->gate_grad, false, n), tgl_run_amax(w->up_grad, false, n) };
        for (int h = 0; h < 2; h++) amax[h] = here[h] > amax[h] ? here[h] : amax[h];
    }
    if (!write_factors(casts, row, col / casts[0].block_cols, amax, inv)) return;
    for (int64_t j = 0; j < count; j += PIECE) {
        compute(w, row, col + j, tgl_min(PIECE, count - j));
        encode(casts, row, col + j, w->count, w->gate_grad, w->up_grad, inv);
    }
}

/* A block by the loops of swiglu_neon.inc, which do nearly all; false if they cannot. */
static bool run_block(piece *w, const tgl_cast casts[2], int64_t row, int64_t col, int64_t count, float sums[SUMS])
{
    const backward_problem *p = w->p;
    const int64_t k = col / p->blocks.cols, at = row * 2 * p->num_cols + col;
    float inv[2];
    tgl_backward_run run = { .gates = p->gate.data + row * p->gate.row_bytes + col,
                             .ups = p->up.data + row * p->up.row_bytes + col,
                             .gate_sf = tgl_sf_get(&p->gate.sf, row, k),
                             .up_sf = tgl_sf_get(&p->up.sf, row, p->up.first_sf + k),
                             .grads = p->grad_out + row * p->grad_stride + col,
                             .weight = tgl_backward_weight(p, row),
                             .clamp = p->clamp,
                             .out = p->out + row * p->num_cols + col,
                             .bf16_gate_grads = p->x_grad + at,
                             .bf16_up_grads = p->x_grad + at + p->num_cols,
                             .gate_grads = w->gate_grad,
                             .up_grads = w->up_grad,
                             .sums = sums };
    if (count % TGL_RUN_STEP || !tgl_run_backward(&run, count)) return false;
    if (write_factors(casts, row, k, run.amax, inv)) encode(casts, row, col, count, w->gate_grad, w->up_grad, inv);
    return true;
}

void TGL_FAST(tgl_backward_rows)(const void *context, int64_t begin, int64_t end)
{
    const backward_problem *p = context;
    const backward_half gate = { p, false }, up = { p, true };
    const tgl_cast casts[2] = { tgl_backward_cast(&gate), tgl_backward_cast(&up) };
    const int64_t width = p->blocks.cols;
    const bool is_large = width > PIECE;
    const bool has_runs = TGL_HAS_NEON && !is_large && width % TGL_RUN_STEP == 0 && width >= WIDE;
    const int64_t step = has_runs || is_large ? width : PIECE / width * width;
    piece w = { .p = p };
    for (int64_t row = begin; row < end; row++) {
        float sums[SUMS] = { 0 };
        for (int64_t col = 0; col < p->num_cols; col += step) {
            const int64_t count = tgl_min(step, p->num_cols - col);
            if (is_large) {
                run_large(&w, casts, row, col, count, sums);
            } else if (!has_runs || !run_block(&w, casts, row, col, count, sums)) {
                compute(&w, row, col, count);
                store(&w, sums);
                cast_piece(&w, casts);
            }
        }
        tgl_backward_store_sum(p, row, sums);
    }
}
