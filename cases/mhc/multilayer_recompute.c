/* SPDX-License-Identifier: MIT
 * Tensors of all layers are one, with the layers outside: what a layer gets is cut out of it. */
#include <math.h>

#include "cases/mhc/common/rows_cases.h"

enum { RESIDUAL, PRE, X, POST, COMB, INPUT, NEW, NUM_TENSORS };

static void add_layers(case_problem *c, int index, const char *name, case_role role, int64_t num_layers)
{
    case_tensor *t;
    if (index == PRE || index == POST || index == COMB) t = rows_add_mix(c, index, name, role, index == COMB ? 3 : 2);
    else t = rows_add(c, index, name, role, index == NEW);
    for (int d = t->ndim++; d > 0; d--) t->shape[d] = t->shape[d - 1];
    t->shape[0] = num_layers;
    t->strides[t->ndim - 1] = 1;
    for (int d = t->ndim - 1; d > 0; d--) t->strides[d - 1] = t->strides[d] * (t->shape[d] > 0 ? t->shape[d] : 1);
    if (num_layers == 0) t->name = NULL;
}

static tgl_status setup(case_problem *c)
{
    const int64_t num_layers = case_int(c, "num_layers"), num_posts = num_layers - case_int(c, "ends_before_post");
    rows_add(c, RESIDUAL, "residual", CASE_IN, true);
    add_layers(c, PRE, "pre_mix", CASE_IN, num_layers);
    add_layers(c, X, "x", CASE_IN, num_posts);
    add_layers(c, POST, "post_mix", CASE_IN, num_posts);
    add_layers(c, COMB, "comb_mix", CASE_IN, num_posts);
    add_layers(c, INPUT, "layer_input", CASE_OUT, num_layers);
    add_layers(c, NEW, "new_residual", CASE_OUT, num_posts);
    if (num_layers < 1 || num_layers > 100 || num_posts < num_layers - 1 || num_posts > num_layers)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_layers: is %lld, want 1..100", (long long)num_layers);
    return rows_check(c);
}

/* Layer i of a tensor; NULL if it has fewer. */
static DLTensor *layer_of(const DLTensor *all, int64_t i, DLTensor *to)
{
    if (!all || all->ndim < 1 || i >= all->shape[0]) return NULL;
    *to = *all;
    to->ndim--, to->shape++;
    if (to->strides) to->strides++;
    int64_t step = tgl_dtype_bits(all->dtype) / 8;
    for (int d = 0; d < to->ndim; d++) step *= to->shape[d];
    if (to->data) to->byte_offset += (uint64_t)(i * step);
    return to;
}

static tgl_status run(const case_arguments *a)
{
    enum { MAX_LAYERS = 100 };
    tgl_mhc_layer layers[MAX_LAYERS];
    DLTensor views[MAX_LAYERS][NUM_TENSORS];
    const int64_t num_layers = a->arg[PRE] && a->arg[PRE]->ndim > 0 ? a->arg[PRE]->shape[0] : 0;
    for (int i = PRE; i < NUM_TENSORS; i++) {
        const DLTensor *t = a->arg[i];
        int64_t step = 1;
        for (int d = 1; t && d < t->ndim; d++) step *= t->shape[d];
        if (t && t->ndim > 0 && t->strides && t->shape[0] > 1 && step && t->strides[0] != step)
            return tgl_fail(TGL_ERR_ARGUMENT, "layers: are apart, want packed");
    }
    if (num_layers > MAX_LAYERS) return tgl_fail(TGL_ERR_ARGUMENT, "num_layers: is too large, want <= 100");
    for (int64_t i = 0; i < num_layers; i++) {
        DLTensor *of[NUM_TENSORS];
        for (int k = PRE; k < NUM_TENSORS; k++) of[k] = layer_of(a->arg[k], i, &views[i][k]);
        layers[i] = (tgl_mhc_layer){ of[PRE], of[X], of[POST], of[COMB], of[INPUT], of[NEW] };
    }
    return tgl_mhc_multilayer_recompute(a->arg[RESIDUAL], layers, num_layers, a->stream);
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    case_tensor *t = c->tensors;
    const int64_t n = t[RESIDUAL].shape[1];
    for (int64_t token = begin; token < end; token++)
        for (int64_t k = 0; k < t[RESIDUAL].shape[2]; k++) {
            float x[8], made[8];
            for (int64_t i = 0; i < n; i++) x[i] = rows_at(&t[RESIDUAL], token, i, k);
            for (int64_t l = 0; l < t[PRE].shape[0]; l++) {
                float sum = 0;
                for (int64_t i = 0; i < n; i++) sum = fmaf(mhc_at(&t[PRE], (int64_t[]){ l, token, i }), x[i], sum);
                mhc_put(&t[INPUT], (int64_t[]){ l, token, k }, sum);
                if (l >= t[X].shape[0]) continue;
                for (int64_t o = 0; o < n; o++) {
                    made[o] = mhc_at(&t[POST], (int64_t[]){ l, token, o }) * mhc_at(&t[X], (int64_t[]){ l, token, k });
                    for (int64_t i = 0; i < n; i++)
                        made[o] = fmaf(mhc_at(&t[COMB], (int64_t[]){ l, token, i, o }), x[i], made[o]);
                }
                for (int64_t o = 0; o < n; o++) {
                    mhc_put(&t[NEW], (int64_t[]){ l, token, o, k }, made[o]);
                    x[o] = mhc_at(&t[NEW], (int64_t[]){ l, token, o, k });
                }
            }
        }
}

static void oracle(case_problem *c)
{
    const int64_t columns = case_int(c, "hidden") * case_int(c, "num_layers");
    case_parallel(c->tensors[RESIDUAL].shape[0], 500 * columns, oracle_tokens, c);
}

// clang-format off: lines of cases
const case_op multilayer_recompute_cases = {
    "mhc_multilayer_recompute", ROWS_CASE " num_layers=10 ends_before_post=0", setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=1,3 num_streams=1,2,3,4,5,6,7,8 hidden=8,9 num_layers=1,3",
        "num_tokens=0,2 hidden=0,1,7,64,130 num_layers=2",
        "num_tokens=3 num_streams=3,4,8 hidden=64,65 num_layers=1,2,4 ends_before_post=0,1 offset=0,1,8",
        "num_tokens=2 hidden=2056,4097 num_layers=3 values=special", "num_tokens=2 hidden=64 num_layers=64,65,100",
        "num_tokens=3 num_streams=3,4 hidden=64 layout=gaps,outside,same gap=1,8 num_layers=2"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=501 num_streams=2,4,8 hidden=2560,4096,7168,8192 ends_before_post=0,1",
                                   "num_tokens=70000 hidden=100 num_layers=3",
                                   "num_tokens=80000 hidden=7168 num_layers=2"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=4096 hidden=7168,6144,5120,4096,2560,1280", "num_tokens=8192 hidden=7168",
                                    "num_tokens=128 hidden=7168"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=7168 num_layers=2"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_comb_streams} hidden={hidden}"),
};
// clang-format on
