/* SPDX-License-Identifier: MIT
 * multilayer_recompute.cu - consecutive layers of pre_apply_mix_fwd and post_fwd; a thread keeps its columns of all
 * streams in registers, as bf16, from layer to layer.
 *   computes  of every layer: layer_input[t] = sum over i of pre_mix[t][i] * X[t][i]; X[t][o] = post_mix[t][o] * x[t] +
 *             sum over i of comb_mix[t][i][o] * X[t][i], rounded, which is new_residual
 *   launch    grid (blocks of columns, at most 65535 tokens, over which blocks stride), block up to
 *             RECOMPUTE_THREADS, a unit of 8 columns per thread
 *   moves     2 * STREAMS bytes per column; of every layer 2 * (2 + STREAMS) per column, 4 * (2 * STREAMS + STREAMS^2)
 *             per token
 *   macros    STREAMS 1..8; HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/multilayer_recompute.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");
static_assert(sizeof(multilayer_recompute_args) <= 4096, "a kernel's arguments");

/* What a layer reads, loaded a layer ahead, since nothing of it depends on the layer before. */
struct layer_inputs {
    uint4 x;
    float pre[STREAMS], post[STREAMS], comb[STREAMS * STREAMS];
};

DEV void load_layer(const multilayer_recompute_args &a, int layer, i64 t, i64 first, layer_inputs &to)
{
    const recompute_layer &l = a.layers[layer];
    load_numbers(l.pre_mix + t * STREAMS, a.has_mix_vectors, to.pre);
    if (layer < a.num_posts) {
        to.x = load_unit(l.x + t * a.hidden, first, a.hidden);
        load_numbers(l.post_mix + t * STREAMS, a.has_mix_vectors, to.post);
        load_numbers(l.comb_mix + t * (STREAMS * STREAMS), a.has_mix_vectors, to.comb);
    }
}

/* Column c of all streams. */
DEV void columns_of(const uint4 (&x)[STREAMS], int c, float (&to)[STREAMS])
{
#pragma unroll
    for (int i = 0; i < STREAMS; i++) to[i] = column(x[i], c);
}

extern "C" __global__ void __launch_bounds__(RECOMPUTE_THREADS)
    multilayer_recompute(const __grid_constant__ multilayer_recompute_args a)
{
    const i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * ROWS_UNIT;
    pdl_wait();
    if (first < a.hidden)
#pragma unroll 1
        for (i64 t = blockIdx.y; t < a.num_tokens; t += gridDim.y) {
            uint4 x[STREAMS];
            layer_inputs now;
#pragma unroll
            for (int i = 0; i < STREAMS; i++) /* before new_residual is written, which may be it */
                x[i] = load_own_unit(a.residual.data + t * a.residual.token + i * a.residual.stream, first, a.hidden);
            load_layer(a, 0, t, first, now);
#pragma unroll 1
            for (int layer = 0; layer < a.num_layers; layer++) {
                layer_inputs next;
                const bool has_next = layer + 1 < a.num_layers;
                if (STREAMS <= 4 && has_next) load_layer(a, layer + 1, t, first, next);
                float made[8];
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    float in[STREAMS];
                    columns_of(x, c, in);
                    made[c] = rows_apply(now.pre, in, STREAMS);
                }
                store_unit(a.layers[layer].layer_input + t * a.hidden, first, a.hidden, pack(made));
                if (layer < a.num_posts) {
                    uint4 mixed[STREAMS];
#pragma unroll
                    for (int o = 0; o < STREAMS; o++) {
#pragma unroll
                        for (int c = 0; c < 8; c++) {
                            float in[STREAMS];
                            columns_of(x, c, in);
                            made[c] = rows_post(now.post[o], column(now.x, c), now.comb, in, STREAMS, o);
                        }
                        mixed[o] = pack(made);
                        store_unit(a.layers[layer].new_residual + (t * STREAMS + o) * a.hidden, first, a.hidden,
                                   mixed[o]);
                    }
#pragma unroll
                    for (int o = 0; o < STREAMS; o++) x[o] = mixed[o];
                }
                if (STREAMS <= 4) now = next; /* more do not fit in registers twice */
                else if (has_next) load_layer(a, layer + 1, t, first, now);
            }
        }
    pdl_trigger();
}
