/* SPDX-License-Identifier: MIT
 * grad_w_reduce_fast.c - the loop of grad_w_reduce_cpu.h over pieces of a stream, which compilers vectorise. */
#include "core/math.h"
#include "engram/grad_w_reduce_cpu.h"

enum { PIECE = 512, AT_ONCE = 4 }; /* columns; partials of a chain, in order */

/* sums += the chain of partials c, c + GRAD_W_CHAINS, ... */
TGL_ALWAYS_INLINE void add_chain(const grad_w_reduce_args *p, int64_t c, int64_t first, int64_t count,
                                 float *restrict sums)
{
    const int64_t size = p->num_streams * p->hidden, step = GRAD_W_CHAINS * size;
    float chain[PIECE] = { 0 };
    for (; c + (AT_ONCE - 1) * GRAD_W_CHAINS < p->num_partials; c += AT_ONCE * GRAD_W_CHAINS) {
        const float *restrict const a = p->grad_w_partial + c * size + first;
        for (int64_t i = 0; i < count; i++)
            chain[i] = chain[i] + a[i] + a[step + i] + a[2 * step + i] + a[3 * step + i];
    }
    for (; c < p->num_partials; c += GRAD_W_CHAINS)
        for (int64_t i = 0; i < count; i++) chain[i] += p->grad_w_partial[c * size + first + i];
    for (int64_t i = 0; i < count; i++) sums[i] += chain[i];
}

/* to += sums * factor, the factors from weights first, first + 1, ... */
TGL_ALWAYS_INLINE void add_products(const void *weights, int is_bf16, int is_zero_centered, int64_t first,
                                    int64_t count, const float *restrict sums, float *restrict to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = grad_w_added(to[i], sums[i], grad_w_factor(weights, first + i, is_bf16, is_zero_centered));
}
static void add_to(const void *weights, const grad_w_reduce_args *p, int64_t first, int64_t count, const float *sums,
                   float *to)
{
    if (p->is_bf16) add_products(weights, 1, p->is_zero_centered, first, count, sums, to);
    else add_products(weights, 0, p->is_zero_centered, first, count, sums, to);
}

void TGL_FAST(tgl_grad_w_columns)(const grad_w_reduce_args *p, int64_t begin, int64_t end)
{
    for (int64_t n = begin, count; n < end; n += count) {
        const int64_t h = n / p->hidden, first = n % p->hidden;
        float sums[PIECE] = { 0 };
        count = tgl_min(tgl_min(PIECE, p->hidden - first), end - n);
        for (int64_t c = 0; c < GRAD_W_CHAINS; c++) add_chain(p, c, n, count, sums);
        add_to(p->weight_embed, p, h * p->embed_stride + first, count, sums, p->grad_weight_hidden + n);
        add_to(p->weight_hidden, p, h * p->hidden_stride + first, count, sums, p->grad_weight_embed + n);
    }
}
