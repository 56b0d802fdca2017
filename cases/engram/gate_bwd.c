/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "cases/engram/common/gate_cases.h"
#include "core/status.h"

enum { GRAD_OUT = GATE_NUM_INPUTS, DOT, GATE, RSTD_X, RSTD_K, GRAD_X, GRAD_K, GRAD_V, GRAD_W };

/* ---- what the forward saved, in double; of masked tokens NaN, which must not matter ---- */

typedef struct {
    const case_problem *c;
    case_tensor *t;
} filling;

static void fill_tokens(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    const case_problem *c = f->c;
    const case_tensor *x = &c->tensors[GATE_X], *k = &c->tensors[GATE_K];
    /* long rows of large cases are like their first columns, nearly */
    const int64_t hidden = x->shape[2], elements = x->shape[0] * x->shape[1] * hidden;
    const int64_t count = elements > 1 << 22 && hidden > 64 ? 64 : hidden;
    const double eps = 1e-20, more = (double)hidden / (double)count;
    const int64_t n = f->t - c->tensors;
    for (int64_t token = begin; token < end; token++)
        for (int64_t h = 0; h < x->shape[1]; h++) {
            double dot = 0, squares_x = 0, squares_k = 0;
            for (int64_t i = 0; i < count; i++) {
                const double xi = gate_at(x, token, h, i), ki = gate_at(k, token, h, i);
                dot += xi * ki * gate_weight_of(c, h, i) * more, squares_x += xi * xi, squares_k += ki * ki;
            }
            const double rstd_x = 1 / sqrt(squares_x / (double)count + eps);
            const double rstd_k = 1 / sqrt(squares_k / (double)count + eps);
            const double s = dot * rstd_x * rstd_k / sqrt((double)hidden);
            const double magnitude = fmax(fabs(s), (double)gate_clamp(c));
            const double u = s == 0 ? 0 : copysign(sqrt(magnitude), s), gate = 1 / (1 + exp(-u));
            gate_put(f->t, (int64_t[]){ token, h },
                     gate_is_masked(c, token) ? NAN
                     : n == DOT               ? dot
                     : n == GATE              ? gate
                     : n == RSTD_X            ? rstd_x
                                              : rstd_k);
        }
}

static void fill_saved(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_parallel(t->shape[0], 64 * t->shape[1] * c->tensors[GATE_X].shape[2], fill_tokens, &(filling){ c, t });
}

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gate_add_inputs(c, "image_token_mask"));
    const int64_t t = case_int(c, "num_tokens"), h = case_int(c, "num_streams"), d = case_int(c, "hidden");
    const char *const wanted = case_text(c, "wanted"), *const saved[] = { "dot", "gate_score", "rstd_x", "rstd_k" };
    const tgl_engram_gate_params params = { .clamp_value = gate_clamp(c),
                                            .no_residual = !case_int(c, "residual"),
                                            .zero_centered = case_int(c, "zero_centered") != 0 };
    memcpy(c->scalars, &params, sizeof params);
    gate_add_rows(c, GRAD_OUT, "grad_out", CASE_IN, true);
    for (int i = 0; i < 4; i++)
        case_add(c, DOT + i, saved[i], CASE_IN, TGL_F32, 2, (int64_t[]){ t, h })->fill = fill_saved;
    if (strchr(wanted, 'x')) gate_add_rows(c, GRAD_X, "grad_hidden_states", CASE_OUT, true);
    if (strchr(wanted, 'k')) gate_add_rows(c, GRAD_K, "grad_k", CASE_OUT, true);
    if (strchr(wanted, 'v')) gate_add_rows(c, GRAD_V, "grad_v", CASE_OUT, false);
    if (!strchr(wanted, 'w')) return TGL_OK;
    const int64_t given = case_int(c, "num_partials"), fast = tgl_engram_gate_num_partials(d);
    case_add(c, GRAD_W, "grad_w_partial", CASE_OUT, TGL_F32, 3, (int64_t[]){ given ? given : fast, h, d });
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    DLTensor *const *t = a->arg;
    return tgl_engram_gate_bwd(t[GRAD_OUT], t[GATE_X], t[GATE_K], t[GATE_V], t[GATE_WEIGHT_HIDDEN],
                               t[GATE_WEIGHT_EMBED], t[GATE_MASK], t[DOT], t[GATE], t[RSTD_X], t[RSTD_K], t[GRAD_X],
                               t[GRAD_K], t[GRAD_V], t[GRAD_W], (const void *)a->problem->scalars, a->stream);
}

/* ---- oracle: from what was saved, with the roundings that docs/engram.md says ---- */

enum { VECTOR = 8, GROUP = 32 };
typedef struct { float gate, q, a_x, a_k; } slopes;

static float at(const case_tensor *t, int64_t token, int64_t stream, int64_t i)
{
    return (float)gate_at(t, token, stream, i);
}

static float grad_gate_of(const case_problem *c, int64_t t, int64_t h)
{
    const int64_t count = c->tensors[GATE_X].shape[2];
    float total = 0;
    for (int64_t group = 0; group < count; group += GROUP * VECTOR) {
        float vectors[GROUP] = { 0 };
        for (int v = 0; v < GROUP; v++)
            for (int64_t i = group + v * VECTOR; i < group + (v + 1) * VECTOR && i < count; i++)
                vectors[v] = fmaf(at(&c->tensors[GRAD_OUT], t, h, i), at(&c->tensors[GATE_V], t, h, i), vectors[v]);
        total += gate_tree(vectors, GROUP, 1);
    }
    return total;
}

static slopes slopes_of(const case_problem *c, int64_t t, int64_t h)
{
    const tgl_engram_gate_params *p = (const void *)c->scalars;
    const int64_t index[] = { t, h };
    const float hidden = (float)c->tensors[GATE_X].shape[2];
    const float scale = (float)(1 / sqrt((double)c->tensors[GATE_X].shape[2])), grad_gate = grad_gate_of(c, t, h);
    float saved[4];
    for (int i = 0; i < 4; i++) saved[i] = (float)case_decode(TGL_F32, case_element(&c->tensors[DOT + i], index));
    const float dot = saved[0], gate = saved[1], rstd_x = saved[2], rstd_k = saved[3];
    const float s = ((dot * rstd_x) * rstd_k) * scale, half = 0.5f * ((scale * rstd_x) * rstd_k);
    const float q = ((grad_gate * gate) * (1 - gate)) * (half / sqrtf(fabsf(s)));
    return (slopes){ gate, fabsf(s) < p->clamp_value || s == 0 ? 0 : q, dot * rstd_x * rstd_x / hidden,
                     dot * rstd_k * rstd_k / hidden };
}

static void oracle_token(case_problem *c, int64_t t, float *grad_w)
{
    const tgl_engram_gate_params *p = (const void *)c->scalars;
    case_tensor *tensors = c->tensors;
    const int64_t streams = tensors[GATE_X].shape[1], hidden = tensors[GATE_X].shape[2];
    const bool is_masked = gate_is_masked(c, t);
    float *grad_v = case_memory(hidden, sizeof *grad_v);
    for (int64_t h = 0; h < streams; h++) {
        const slopes s = is_masked ? (slopes){ 0 } : slopes_of(c, t, h);
        for (int64_t i = 0; i < hidden; i++) {
            const int64_t index[] = { t, h, i };
            const float go = at(&tensors[GRAD_OUT], t, h, i), x = at(&tensors[GATE_X], t, h, i);
            const float k = at(&tensors[GATE_K], t, h, i), w = (float)gate_weight_of(c, h, i);
            if (is_masked) {
                if (tensors[GRAD_K].name) memset(case_element(&tensors[GRAD_K], index), 0, 2);
                if (!tensors[GRAD_X].name) continue;
                if (p->no_residual) memset(case_element(&tensors[GRAD_X], index), 0, 2);
                else memcpy(case_element(&tensors[GRAD_X], index), case_element(&tensors[GRAD_OUT], index), 2);
                continue;
            }
            const float of_x = fmaf(-x, s.a_x, k * w), of_k = fmaf(-k, s.a_k, x * w);
            const float grad_x = p->no_residual ? s.q * of_x : fmaf(s.q, of_x, go);
            if (tensors[GRAD_X].name) gate_put(&tensors[GRAD_X], index, grad_x);
            if (tensors[GRAD_K].name) gate_put(&tensors[GRAD_K], index, s.q * of_k);
            if (grad_w) grad_w[h * hidden + i] = fmaf(s.q * x, k, grad_w[h * hidden + i]);
            grad_v[i] = fmaf(go, s.gate, grad_v[i]);
        }
    }
    for (int64_t i = 0; tensors[GRAD_V].name && i < hidden; i++)
        gate_put(&tensors[GRAD_V], (int64_t[]){ t, i }, grad_v[i]);
    free(grad_v);
}

static void oracle(case_problem *c)
{
    case_tensor *grad_w = &c->tensors[GRAD_W];
    const int64_t *shape = c->tensors[GATE_X].shape, tokens = shape[0], size = shape[1] * shape[2];
    const int64_t partials = grad_w->name ? grad_w->shape[0] : 1;
    float *sum = case_memory(size, sizeof *sum);
    for (int64_t p = 0; p < partials; p++) {
        memset(sum, 0, (size_t)size * sizeof *sum);
        for (int64_t t = p; t < tokens; t += partials) oracle_token(c, t, sum);
        for (int64_t i = 0; grad_w->name && i < size; i++)
            gate_put(grad_w, (int64_t[]){ p, i / grad_w->shape[2], i % grad_w->shape[2] }, sum[i]);
    }
    free(sum);
}

/* Of a masked token only grad_out is read. Partials do not count: one row of them would do. */
static int64_t bytes(const case_problem *c)
{
    const case_tensor *grad_w = &c->tensors[GRAD_W];
    const int64_t rows = case_tensor_bytes(&c->tensors[GATE_X]);
    const int64_t all = case_all_bytes(c) - (grad_w->name ? case_tensor_bytes(grad_w) : 0);
    const int64_t spared = 2 * rows + case_tensor_bytes(&c->tensors[GATE_V]);
    return case_is(c, "mask", "all") ? all - spared : case_is(c, "mask", "some") ? all - spared / 10 : all;
}

// clang-format off: lines of cases
const case_op gate_bwd_cases = {
    "engram_gate_bwd", GATE_CASE " wanted=xkvw num_partials=0", setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,3 num_streams=1,4 hidden=1,7,8,9,64,100,257 num_partials=1,2,64",
        "num_tokens=5 num_streams=0,1,2,3,4,5,8 hidden=256,264,576 weights=fused,bf16 mask=none,some num_partials=2",
        "num_tokens=7 num_streams=3 hidden=128,130 residual=0,1 mask=none,no,all,some num_partials=1,3,9",
        "num_tokens=4 num_streams=2 hidden=136,97 wanted=x,k,v,w,kw,xv,xkvw mask=some num_partials=2",
        "num_tokens=4 num_streams=3 hidden=128,131 weights=bf16,f32 zero_centered=0,1 mask=some num_partials=2",
        "num_tokens=5 num_streams=3 hidden=136,129 values=special,large,zeros clamp=small,half,zero num_partials=3",
        "num_tokens=4 num_streams=4 hidden=192,97 layout=packed,kv,gaps,outside gap=1,8 offset=0,1,8 "
        "mask=some num_partials=2",
        /* long rows, of whole groups of vectors and not */
        "num_tokens=3 num_streams=4 hidden=2560,3584,3592,5120,7168,7176,14336,14344 num_partials=1",
        "num_tokens=9 num_streams=4 hidden=512 num_partials=1,2 mask=some",
        "num_tokens=5 num_streams=1 hidden=8448,12288 num_partials=2 mask=some",   /* 8448: a block without columns */
        "num_tokens=70 num_streams=2 hidden=1024"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001 hidden=2048,2560,3072,4096,6144,7168 mask=none,some",
        "num_tokens=8001 hidden=2560,5120,7168 weights=bf16 layout=kv",
        "num_tokens=132,133 num_streams=1,2,3,8 hidden=64,100,257,512,576,8192,16384"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=4096,8192 hidden=7168,5120,2560", "num_tokens=128 hidden=7168", "num_tokens=4096 hidden=4096",
        "num_tokens=4096 hidden=7168 mask=some", "num_tokens=4096 hidden=7168 weights=bf16",
        "num_tokens=8192 hidden=5120 layout=kv weights=bf16"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 hidden=2560,7168,14336,100 weights=fused,bf16",
        "num_tokens=64 hidden=2560,7168 weights=bf16,f32 zero_centered=1 num_streams=1,4",
        "num_tokens=64 hidden=5120 num_streams=2,3"),
    .models = CASE_LINES(
        "num_tokens=4096 num_streams={engram_streams} hidden={hidden} weights=bf16 zero_centered={engram_centered} "
        "residual={engram_residual}"),
};
// clang-format on
