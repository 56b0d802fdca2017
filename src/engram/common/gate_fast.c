/* SPDX-License-Identifier: MIT
 * gate_fast.c - the loops of gate_cpu.h, written so that compilers vectorise them.
 *
 * A vector's columns are added one after the other, so lanes have the same column of neighbouring vectors: groups of 32
 * vectors are transposed. What is behind the last whole group is added as the plain loops do it. Loops without sums go
 * over pieces of a row, by way of buffers, since outputs may be inputs. */
#include <math.h>

#include "core/math.h"
#include "engram/common/gate_cpu.h"
#include "transpose/square.h"

enum { PIECE = GATE_GROUP * GATE_VECTOR };    /* columns of a group, too */
typedef float group[GATE_VECTOR][GATE_GROUP]; /* column i of vector j is at [i][j] */

TGL_ALWAYS_INLINE void load_bf16(const uint16_t *from, group to)
{
    uint16_t codes[GATE_VECTOR][GATE_GROUP];
    for (int j = 0; j < GATE_GROUP; j += 8)
        tgl_square((const char *)(from + j * GATE_VECTOR), 2 * GATE_VECTOR, (char *)&codes[0][j], sizeof codes[0], 2);
    for (int i = 0; i < GATE_VECTOR; i++)
        for (int j = 0; j < GATE_GROUP; j++) to[i][j] = tgl_bf16_to_f32(codes[i][j]);
}
TGL_ALWAYS_INLINE void load_f32(const float *from, group to)
{
    for (int j = 0; j < GATE_GROUP; j += 4)
        for (int i = 0; i < GATE_VECTOR; i += 4)
            tgl_square((const char *)(from + j * GATE_VECTOR + i), 4 * GATE_VECTOR, (char *)&to[i][j], sizeof to[0], 4);
}

TGL_ALWAYS_INLINE float tree(float *sums)
{
    for (int half = GATE_GROUP / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    return sums[0];
}

/* The weights of a piece of stream h. */
TGL_ALWAYS_INLINE void multiply(const gate_weights *w, int kind, int is_zero_centered, int64_t h, int64_t first,
                                int64_t count, float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = gate_weight_at(w, kind, is_zero_centered, h, first + i);
}
static const float *weights_of(const gate_weights *w, int64_t h, int64_t first, int64_t count, float *buffer)
{
    if (w->kind == GATE_FUSED) return (const float *)w->hidden + h * w->hidden_stride + first;
    if (w->kind == GATE_F32) multiply(w, GATE_F32, w->is_zero_centered, h, first, count, buffer);
    else multiply(w, GATE_BF16, w->is_zero_centered, h, first, count, buffer);
    return buffer;
}

TGL_ALWAYS_INLINE void widen(const uint16_t *from, int64_t count, float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_bf16_to_f32(from[i]);
}
TGL_ALWAYS_INLINE void round_to(uint16_t *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_bf16_from_f32(from[i]);
}

/* ---- gate_fwd ---- */

typedef struct { float squares_x[GATE_SLOTS], squares_k[GATE_SLOTS], dot[GATE_SLOTS]; } slots;

static void add_group(const uint16_t *x, const uint16_t *k, const float *w, slots *s, int64_t slot)
{
    group xs, ks, ws;
    load_bf16(x, xs);
    load_bf16(k, ks);
    load_f32(w, ws);
    float *squares_x = s->squares_x + slot, *squares_k = s->squares_k + slot, *dot = s->dot + slot;
    for (int i = 0; i < GATE_VECTOR; i++)
        for (int j = 0; j < GATE_GROUP; j++) {
            squares_x[j] = fmaf(xs[i][j], xs[i][j], squares_x[j]);
            squares_k[j] = fmaf(ks[i][j], ks[i][j], squares_k[j]);
            dot[j] = fmaf(xs[i][j] * ws[i][j], ks[i][j], dot[j]);
        }
}

gate_sums TGL_FAST(tgl_gate_fast_sums)(const gate_weights *weights, int64_t hidden, int64_t h, const uint16_t *x,
                                       const uint16_t *k)
{
    slots s = { { 0 }, { 0 }, { 0 } };
    float buffer[PIECE];
    for (int64_t first = 0; first < hidden; first += PIECE) {
        const int64_t count = tgl_min(PIECE, hidden - first), slot = first / GATE_VECTOR % GATE_SLOTS;
        const float *w = weights_of(weights, h, first, count, buffer);
        if (count == PIECE) {
            add_group(x + first, k + first, w, &s, slot);
            continue;
        }
        for (int64_t i = 0; i < count; i++) {
            const int64_t to = slot + i / GATE_VECTOR;
            const float xi = tgl_bf16_to_f32(x[first + i]), ki = tgl_bf16_to_f32(k[first + i]);
            s.squares_x[to] = fmaf(xi, xi, s.squares_x[to]);
            s.squares_k[to] = fmaf(ki, ki, s.squares_k[to]);
            s.dot[to] = fmaf(xi * w[i], ki, s.dot[to]);
        }
    }
    gate_sums total = { 0, 0, 0 };
    for (int slot = 0; slot < GATE_SLOTS; slot += GATE_GROUP) {
        total.squares_x += tree(s.squares_x + slot);
        total.squares_k += tree(s.squares_k + slot);
        total.dot += tree(s.dot + slot);
    }
    return total;
}

void TGL_FAST(tgl_gate_fast_results)(const uint16_t *x, const uint16_t *v, float gate, bool has_residual,
                                     int64_t hidden, uint16_t *out)
{
    for (int64_t first = 0; first < hidden; first += PIECE) {
        const int64_t count = tgl_min(PIECE, hidden - first);
        float results[PIECE];
        if (has_residual)
            for (int64_t i = 0; i < count; i++)
                results[i] = gate_result(tgl_bf16_to_f32(x[first + i]), tgl_bf16_to_f32(v[first + i]), gate, 1);
        else
            for (int64_t i = 0; i < count; i++) results[i] = gate_result(0, tgl_bf16_to_f32(v[first + i]), gate, 0);
        round_to(out + first, results, count);
    }
}

/* ---- gate_bwd ---- */

float TGL_FAST(tgl_row_products)(const uint16_t *a, const uint16_t *b, int64_t count)
{
    float total = 0;
    for (int64_t first = 0; first < count; first += PIECE) {
        float sums[GATE_GROUP] = { 0 };
        if (first + PIECE <= count) {
            group as, bs;
            load_bf16(a + first, as);
            load_bf16(b + first, bs);
            for (int i = 0; i < GATE_VECTOR; i++)
                for (int j = 0; j < GATE_GROUP; j++) sums[j] = fmaf(as[i][j], bs[i][j], sums[j]);
        } else {
            for (int64_t i = first; i < count; i++) {
                float *sum = &sums[(i - first) / GATE_VECTOR];
                *sum = fmaf(tgl_bf16_to_f32(a[i]), tgl_bf16_to_f32(b[i]), *sum);
            }
        }
        total += tree(sums);
    }
    return total;
}

void TGL_FAST(tgl_gate_gradients)(const gate_bwd_args *p, int64_t t, int64_t h, const gate_slopes *slopes,
                                  float *grad_w)
{
    const uint16_t *go = gate_row_in(p->grad_out, t, h), *x = gate_row_in(p->x, t, h), *k = gate_row_in(p->k, t, h);
    uint16_t *grad_x = gate_row_out(p->grad_x, t, h), *grad_k = gate_row_out(p->grad_k, t, h);
    const gate_slopes s = *slopes;
    for (int64_t first = 0; first < p->hidden; first += PIECE) {
        const int64_t count = tgl_min(PIECE, p->hidden - first);
        float xs[PIECE], ks[PIECE], gos[PIECE], made[PIECE], buffer[PIECE];
        widen(x + first, count, xs);
        widen(k + first, count, ks);
        const float *w = weights_of(&p->weights, h, first, count, buffer);
        if (grad_x) {
            widen(go + first, count, gos);
            if (p->has_residual)
                for (int64_t i = 0; i < count; i++) made[i] = gate_grad_x(&s, gos[i], xs[i], ks[i], w[i], 1);
            else
                for (int64_t i = 0; i < count; i++) made[i] = gate_grad_x(&s, 0, xs[i], ks[i], w[i], 0);
            round_to(grad_x + first, made, count);
        }
        if (grad_k) {
            for (int64_t i = 0; i < count; i++) made[i] = gate_grad_k(&s, xs[i], ks[i], w[i]);
            round_to(grad_k + first, made, count);
        }
        for (int64_t i = 0; grad_w && i < count; i++)
            grad_w[first + i] = gate_grad_w(&s, xs[i], ks[i], grad_w[first + i]);
    }
}

void TGL_FAST(tgl_gate_grad_v)(const gate_bwd_args *p, int64_t t)
{
    uint16_t *grad_v = gate_row_out(p->grad_v, t, 0);
    for (int64_t first = 0; first < p->hidden; first += PIECE) {
        const int64_t count = tgl_min(PIECE, p->hidden - first);
        float sum[PIECE] = { 0 };
        for (int64_t h = 0; h < p->num_streams; h++) {
            const uint16_t *go = gate_row_in(p->grad_out, t, h) + first;
            const float gate = p->gate_score[t * p->num_streams + h];
            for (int64_t i = 0; i < count; i++) sum[i] = fmaf(tgl_bf16_to_f32(go[i]), gate, sum[i]);
        }
        round_to(grad_v + first, sum, count);
    }
}
