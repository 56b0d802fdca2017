/* SPDX-License-Identifier: MIT
 * multilayer_recompute.c - tgl_mhc_multilayer_recompute: pre_apply_mix_fwd and post_fwd of consecutive layers. */
#include "mhc/multilayer_recompute.h"

#include "core/status.h"
#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef multilayer_recompute_args problem;

/* ---- CPU ---- */

static void run_column(const problem *p, const recompute_layer *l, rows_in residual, int64_t t, int64_t c)
{
    const int n = (int)p->num_streams;
    float x[MHC_MAX_STREAMS];
    for (int i = 0; i < n; i++) x[i] = tgl_bf16_to_f32(residual.data[t * residual.token + i * residual.stream + c]);
    l->layer_input[t * p->hidden + c] = tgl_bf16_from_f32(rows_apply(l->pre_mix + t * n, x, n));
    if (!l->new_residual) return;
    const float y = tgl_bf16_to_f32(l->x[t * p->hidden + c]);
    for (int o = 0; o < n; o++)
        l->new_residual[(t * n + o) * p->hidden + c] =
            tgl_bf16_from_f32(rows_post(l->post_mix[t * n + o], y, l->comb_mix + t * n * n, x, n, o));
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        rows_in residual = p->residual;
        for (int i = 0; i < p->num_layers; i++) {
            const recompute_layer *l = &p->layers[i];
            for (int64_t c = 0; c < p->hidden; c++) run_column(p, l, residual, t, c);
            residual = (rows_in){ l->new_residual, p->num_streams * p->hidden, p->hidden };
        }
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t bytes = tgl_saturating_product(8 * (1 + p->num_streams) * p->num_layers, p->hidden);
    return tgl_parallel_rows(p->num_tokens, bytes, run_tokens, p);
}

/* What one layer takes. */
TGL_SIZES(sizes, num_tokens, num_streams, hidden);
tgl_signature tgl_mhc_multilayer_recompute_signature =
    TGL_SIGNATURE("mhc_multilayer_recompute(residual: " ROWS_STREAMS " rows, pre_mix: f32[num_tokens, num_streams],"
                  " x: bf16[num_tokens, hidden]?, post_mix: f32[num_tokens, num_streams]?, comb_mix: " MHC_SQUARE "?)"
                  " -> layer_input: bf16[num_tokens, hidden], new_residual: " ROWS_STREAMS "?"
                  " where " MHC_RULES ", x needs post_mix, x needs comb_mix, x needs new_residual, post_mix needs x,"
                  " comb_mix needs x, new_residual needs x, new_residual may be residual",
                  NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro streams = { "STREAMS", p->num_streams };
    kernels[VECTORS] =
        (tgl_kernel){ p->hidden % ROWS_UNIT ? NULL : "mhc/multilayer_recompute", { streams, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/multilayer_recompute", { streams, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    uintptr_t bits = 0;
    for (int i = 0; i < p->num_layers; i++) {
        const recompute_layer *l = &p->layers[i];
        bits |= (uintptr_t)l->x | (uintptr_t)l->layer_input | (uintptr_t)l->new_residual;
    }
    return bits % 16 == 0 && tgl_rows_have_vectors(p->residual);
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_rows_shape_of(p->num_tokens, p->hidden, RECOMPUTE_THREADS), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } } };

static void tensors_of(const DLTensor *residual, const tgl_mhc_layer *l, const DLTensor *to[7])
{
    const DLTensor *tensors[] = {
        residual, l->pre_mix, l->x, l->post_mix, l->comb_mix, l->layer_input, l->new_residual
    };
    for (int i = 0; i < 7; i++) to[i] = tensors[i];
}

tgl_status tgl_mhc_multilayer_recompute(const DLTensor *residual, const tgl_mhc_layer *layers, int64_t num_layers,
                                        tgl_stream stream)
{
    const DLTensor *tensors[7], *before = residual;
    sizes n;
    if (num_layers < 1) return tgl_fail(TGL_ERR_ARGUMENT, "num_layers: is %lld, want >= 1", (long long)num_layers);
    if (!layers) return tgl_fail(TGL_ERR_ARGUMENT, "layers: is NULL, want an array of structs");
    for (int64_t i = 0; i < num_layers; i++) { /* all, before anything is written */
        tensors_of(before, &layers[i], tensors);
        if (i == 0) TGL_TRY(tgl_take(&tgl_mhc_multilayer_recompute_signature, tensors, NULL, &n.num_tokens));
        else TGL_TRY(tgl_check(&tgl_mhc_multilayer_recompute_signature, tensors, NULL, NULL));
        before = layers[i].new_residual;
        if (!before && i + 1 < num_layers)
            return tgl_fail(TGL_ERR_ARGUMENT, "new_residual: is NULL in layer %lld, want a tensor in all but the last",
                            (long long)i);
    }
    before = residual;
    for (int64_t first = 0; first < num_layers; first += RECOMPUTE_LAYERS) {
        problem p = { tgl_rows_in(before), n.num_tokens, n.num_streams, n.hidden,
                      .num_layers = (int32_t)tgl_min(num_layers - first, RECOMPUTE_LAYERS) };
        uintptr_t mixes = 0;
        tensors_of(before, &layers[first], tensors);
        for (int32_t i = 0; i < p.num_layers; i++) {
            const tgl_mhc_layer *l = &layers[first + i];
            p.layers[i] = (recompute_layer){ tgl_data(l->pre_mix),          tgl_data_or_null(l->post_mix),
                                             tgl_data_or_null(l->comb_mix), tgl_data_or_null(l->x),
                                             tgl_data(l->layer_input),      tgl_data_or_null(l->new_residual) };
            p.num_posts += l->x != NULL;
            mixes |= (uintptr_t)p.layers[i].pre_mix | (uintptr_t)p.layers[i].post_mix | (uintptr_t)p.layers[i].comb_mix;
            before = l->new_residual;
        }
        p.has_mix_vectors = mixes % 16 == 0;
        TGL_TRY(tgl_run(&tgl_mhc_multilayer_recompute_signature, &OP, tensors, &p, stream));
    }
    return TGL_OK;
}
