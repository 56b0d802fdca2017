/* SPDX-License-Identifier: MIT
 * short_conv_bwd_fast.c - the loop of short_conv_bwd_cpu.h in steps over groups of columns, which compilers vectorise.
 *
 * A row needs the tokens t + (n - last) * dilation, n = 0 .. 2 * last, where last = kernel_size - 1: those up to t for its
 * own z, those from t on for the z that it is part of. A group loads each of them once. */
#include "core/math.h"
#include "engram/common/short_conv_cpu.h"
#include "engram/short_conv_bwd_cpu.h"

enum {
    GROUP = CONV_GROUP * CONV_BWD_VECTOR, /* columns */
    ALL_TAPS = 2 * CONV_FAST_TAPS - 1,
    KEPT = 8192, /* columns whose scaled gradients are kept until the slope of the row is known */
    NO_PARTIAL = -1
};

typedef struct {
    const short_conv_bwd_args *p;
    int64_t t, h;
    float rstd[ALL_TAPS];
    bool is_part[ALL_TAPS];
} row;

/* Of the columns of a group. */
typedef struct {
    float norm[GROUP], bias[GROUP], taps[CONV_FAST_TAPS][GROUP];
    float normed[ALL_TAPS][GROUP]; /* what is convolved, 0 where the token is no part */
    float x[GROUP], grad_z[GROUP]; /* of token t */
    float grad[GROUP];             /* of what is convolved */
} group;

TGL_ALWAYS_INLINE const uint16_t *row_of(gate_in rows, int64_t t, int64_t h)
{
    return rows.data + t * rows.token + h * rows.stream;
}

static void load_weights(const short_conv_bwd_args *p, int64_t h, int64_t first, int64_t count, group *g)
{
    const int64_t channel = h * p->hidden + first;
    conv_load_steps(&p->norm, h * p->norm.stride + first, 1, count, g->norm);
    if (p->numbers.is_zero_centered)
        for (int64_t i = 0; i < count; i++) g->norm[i] = 1.0f + g->norm[i];
    if (p->bias.data) conv_load_steps(&p->bias, channel, 1, count, g->bias);
    else
        for (int64_t i = 0; i < count; i++) g->bias[i] = 0;
    for (int64_t j = 0; j < p->kernel_size; j++)
        if (p->kernel_size == 4) conv_load_steps(&p->conv, channel * 4 + j, 4, count, g->taps[j]);
        else conv_load_steps(&p->conv, channel * p->kernel_size + j, p->kernel_size, count, g->taps[j]);
}

TGL_ALWAYS_INLINE void load_normed(const row *r, int64_t n, int64_t first, int64_t count, group *g)
{
    float *restrict const to = g->normed[n];
    if (!r->is_part[n]) {
        for (int64_t i = 0; i < count; i++) to[i] = 0;
        return;
    }
    const int64_t t = r->t + (n - (r->p->kernel_size - 1)) * r->p->dilation;
    const uint16_t *x = row_of(r->p->x, t, r->h) + first;
    const float rstd = r->rstd[n];
    for (int64_t i = 0; i < count; i++) to[i] = conv_rounded(conv_normed(tgl_bf16_to_f32(x[i]), rstd, g->norm[i]));
}

/* The gradient of z of token n. */
TGL_ALWAYS_INLINE void find_grad_z(const row *r, int64_t n, int64_t first, int64_t count, group *g)
{
    const conv_numbers numbers = r->p->numbers;
    const int64_t last = r->p->kernel_size - 1;
    float z[GROUP], *restrict const to = g->grad_z;
    conv_widen(row_of(r->p->grad_out, r->t + (n - last) * r->p->dilation, r->h) + first, count, to);
    if (!numbers.has_activation) return;
    for (int64_t i = 0; i < count; i++) z[i] = g->bias[i];
    for (int64_t j = 0; j <= last; j++) {
        const float *tap = g->taps[j], *normed = g->normed[n - last + j];
        for (int64_t i = 0; i < count; i++) z[i] = fmaf(tap[i], normed[i], z[i]);
    }
    for (int64_t i = 0; i < count; i++) to[i] = conv_grad_z(&numbers, to[i], z[i], 1.0f / conv_sigmoid_divisor(z[i]));
}

/* All of a group; the last grad_z is that of token t. */
TGL_ALWAYS_INLINE void find_gradients(const row *r, int64_t first, int64_t count, group *g)
{
    const int64_t last = r->p->kernel_size - 1;
    load_weights(r->p, r->h, first, count, g);
    conv_widen(row_of(r->p->x, r->t, r->h) + first, count, g->x);
    for (int64_t n = 0; n <= 2 * last; n++) load_normed(r, n, first, count, g);
    for (int64_t i = 0; i < count; i++) g->grad[i] = 0;
    for (int64_t j = 0; j <= last; j++) {
        if (!r->is_part[2 * last - j]) continue;
        find_grad_z(r, 2 * last - j, first, count, g);
        for (int64_t i = 0; i < count; i++) g->grad[i] = fmaf(g->taps[j][i], g->grad_z[i], g->grad[i]);
    }
}

/* The sums of columns first .. of taps, whose tensor has them side by side. */
TGL_ALWAYS_INLINE void add_to_taps(const row *r, const group *g, int64_t taps, int64_t count, float *restrict sums)
{
    for (int64_t j = 0; j < taps; j++)
        if (r->is_part[j])
            for (int64_t i = 0; i < count; i++)
                sums[i * taps + j] = fmaf(g->grad_z[i], g->normed[j][i], sums[i * taps + j]);
}
TGL_ALWAYS_INLINE void add_to_all_taps(const group *g, int64_t taps, int64_t count, float *restrict sums)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < taps; j++) sums[i * taps + j] = fmaf(g->grad_z[i], g->normed[j][i], sums[i * taps + j]);
}

TGL_ALWAYS_INLINE void add_to_partials(const row *r, int64_t partial, int64_t first, int64_t count, const group *g)
{
    const short_conv_bwd_args *p = r->p;
    const int64_t channel = (partial * p->num_streams + r->h) * p->hidden + first, last = p->kernel_size - 1;
    const float rstd = r->rstd[last];
    if (p->grad_norm) {
        float *restrict const sums = p->grad_norm + channel;
        for (int64_t i = 0; i < count; i++) sums[i] = conv_grad_norm(g->grad[i], g->x[i], rstd, sums[i]);
    }
    if (p->grad_bias) {
        float *restrict const sums = p->grad_bias + channel;
        for (int64_t i = 0; i < count; i++) sums[i] += g->grad_z[i];
    }
    if (!p->grad_conv) return;
    float *const sums = p->grad_conv + channel * p->kernel_size;
    bool are_all_part = true;
    for (int64_t j = 0; j <= last; j++) are_all_part &= r->is_part[j];
    if (are_all_part && last == 3) add_to_all_taps(g, 4, count, sums);
    else if (last == 3) add_to_taps(r, g, 4, count, sums);
    else add_to_taps(r, g, last + 1, count, sums);
}

static float tree(float *v)
{
    for (int half = CONV_GROUP / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}

/* scaled: norm_weight * grad. Returns the sum of scaled * x: column c of a vector after column c - 1. */
TGL_ALWAYS_INLINE float sum_of_group(const group *g, int64_t count, float *restrict scaled)
{
    float sums[CONV_GROUP] = { 0 };
    for (int64_t i = 0; i < count; i++) scaled[i] = g->norm[i] * g->grad[i];
    if (count == GROUP)
        for (int c = 0; c < CONV_BWD_VECTOR; c++)
            for (int v = 0; v < CONV_GROUP; v++)
                sums[v] = fmaf(scaled[v * CONV_BWD_VECTOR + c], g->x[v * CONV_BWD_VECTOR + c], sums[v]);
    else
        for (int64_t i = 0; i < count; i++)
            sums[i / CONV_BWD_VECTOR] = fmaf(scaled[i], g->x[i], sums[i / CONV_BWD_VECTOR]);
    return tree(sums);
}

TGL_ALWAYS_INLINE float run_columns(const row *r, int64_t partial, int64_t first, int64_t count, group *g,
                                    float *restrict scaled)
{
    find_gradients(r, first, count, g);
    if (partial != NO_PARTIAL) add_to_partials(r, partial, first, count, g);
    return sum_of_group(g, count, scaled);
}
static float run_group(const row *r, int64_t partial, int64_t first, float *scaled)
{
    const int64_t count = tgl_min(GROUP, r->p->hidden - first);
    group g;
    return count == GROUP ? run_columns(r, partial, first, GROUP, &g, scaled)
                          : run_columns(r, partial, first, count, &g, scaled);
}

static void put_grad_x(const row *r, float slope, int64_t first, int64_t count, const float *scaled)
{
    const short_conv_bwd_args *p = r->p;
    const conv_numbers numbers = p->numbers;
    const float rstd = r->rstd[p->kernel_size - 1];
    const uint16_t *x = row_of(p->x, r->t, r->h) + first, *grad_out = row_of(p->grad_out, r->t, r->h) + first;
    uint16_t *restrict const to = p->grad_x.data + r->t * p->grad_x.token + r->h * p->grad_x.stream + first;
    for (int64_t i = 0; i < count; i++)
        to[i] = tgl_bf16_from_f32(conv_grad_x(&numbers, tgl_bf16_to_f32(x[i]), rstd, slope, scaled[i],
                                              tgl_bf16_to_f32(grad_out[i])));
}

void TGL_FAST(tgl_conv_gradients)(const short_conv_bwd_args *p, int64_t partial, conv_chunk of, int64_t t, int64_t h)
{
    const int64_t last = p->kernel_size - 1;
    row r = { .p = p, .t = t, .h = h };
    for (int64_t n = 0; n <= 2 * last; n++) {
        const int64_t token = t + (n - last) * p->dilation;
        r.is_part[n] = conv_is_part(p, of, token);
        if (r.is_part[n]) r.rstd[n] = p->rstd[token * p->num_streams + h];
    }
    const bool is_kept = p->hidden <= KEPT;
    float scaled[KEPT], total = 0;
    for (int64_t first = 0; first < p->hidden; first += CONV_GROUP * GROUP) {
        float sums[CONV_GROUP] = { 0 };
        for (int64_t i = first; i < tgl_min(p->hidden, first + CONV_GROUP * GROUP); i += GROUP)
            sums[(i - first) / GROUP] = run_group(&r, partial, i, scaled + (is_kept ? i : 0));
        total += tree(sums);
    }
    if (!p->grad_x.data) return;
    const float slope = conv_slope(&p->numbers, total, r.rstd[last]);
    if (is_kept) put_grad_x(&r, slope, 0, p->hidden, scaled);
    for (int64_t i = 0; !is_kept && i < p->hidden; i += GROUP) {
        run_group(&r, NO_PARTIAL, i, scaled);
        put_grad_x(&r, slope, i, tgl_min(GROUP, p->hidden - i), scaled);
    }
}
