/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "cases/engram/common/conv_cases.h"
#include "core/status.h"

enum { GRAD_OUT = CONV_NUM_INPUTS, RSTD, GRAD_X, GRAD_NORM, GRAD_CONV, GRAD_BIAS };

/* What the forward saved; NaN of masked tokens, which must not matter. */
static void fill_rstd(const case_problem *c, case_tensor *t, uint64_t seed)
{
    for (int64_t token = 0; token < t->shape[0]; token++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            conv_put(t, (int64_t[]){ token, h }, conv_is_masked(c, token) ? NAN : conv_rstd_of(c, token, h));
}

static tgl_status setup(case_problem *c)
{
    TGL_TRY(conv_add_inputs(c));
    const int64_t t = case_int(c, "num_tokens"), h = case_int(c, "num_streams"), d = case_int(c, "hidden");
    const int64_t given = case_int(c, "num_partials"), p = given ? given : tgl_engram_short_conv_num_partials(h, d);
    const char *const wanted = case_text(c, "wanted");
    const tgl_engram_short_conv_params params = conv_params(c);
    memcpy(c->scalars, &params, sizeof params);
    conv_add_rows(c, GRAD_OUT, "grad_out", CASE_IN);
    case_add(c, RSTD, "rstd", CASE_IN, TGL_F32, 2, (int64_t[]){ t, h })->fill = fill_rstd;
    if (strchr(wanted, 'x')) conv_add_rows(c, GRAD_X, "grad_x", CASE_OUT);
    if (strchr(wanted, 'n')) case_add(c, GRAD_NORM, "grad_norm_partial", CASE_OUT, TGL_F32, 3, (int64_t[]){ p, h, d });
    if (strchr(wanted, 'w'))
        case_add(c, GRAD_CONV, "grad_conv_partial", CASE_OUT, TGL_F32, 3,
                 (int64_t[]){ p, h * d, case_int(c, "kernel_size") });
    if (strchr(wanted, 'b')) case_add(c, GRAD_BIAS, "grad_bias_partial", CASE_OUT, TGL_F32, 2, (int64_t[]){ p, h * d });
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    DLTensor *const *t = a->arg;
    const tgl_engram_batch batch = { .cu_seqlens = t[CONV_CU] };
    return tgl_engram_short_conv_bwd(t[CONV_X], t[CONV_NORM], t[CONV_WEIGHT], t[CONV_BIAS], t[RSTD], t[GRAD_OUT],
                                     t[CONV_MASK], t[GRAD_X], t[GRAD_NORM], t[GRAD_CONV], t[GRAD_BIAS],
                                     t[CONV_CU] ? &batch : NULL, (const void *)a->problem->scalars, a->stream);
}

/* ---- oracle: stream by stream, with the roundings that docs/engram.md says: first gradients of z for all tokens, then
 * those of what was convolved, then sums ---- */

typedef struct {
    case_problem *c;
    int64_t h, *first, *end;       /* of each token: its request; first -1: it takes no part */
    float *normed, *grad_z, *grad; /* [tokens, hidden]: what is convolved; gradients */
} work;

static float rstd_at(const work *k, int64_t t)
{
    return (float)case_decode(TGL_F32, case_element(&k->c->tensors[RSTD], (int64_t[]){ t, k->h }));
}

/* The token `lag` before or behind token t, -1: none takes part. */
static int64_t neighbour(const work *k, int64_t t, int64_t lag)
{
    return t + lag >= k->first[t] && t + lag < k->end[t] && k->first[t + lag] >= 0 ? t + lag : -1;
}
static int64_t lag_of(const work *k, int64_t j)
{
    return (k->c->tensors[CONV_WEIGHT].shape[1] - 1 - j) * conv_dilation(k->c);
}

static void find_gradients(const work *k)
{
    case_problem *c = k->c;
    const tgl_engram_short_conv_params *p = (const void *)c->scalars;
    const case_tensor *x = &c->tensors[CONV_X];
    const int64_t tokens = x->shape[0], hidden = x->shape[2], taps = c->tensors[CONV_WEIGHT].shape[1];
    for (int64_t n = 0; n < tokens * hidden; n++) {
        const int64_t t = n / hidden, i = n % hidden;
        if (k->first[t] >= 0)
            k->normed[n] = conv_bf16(conv_at(x, t, k->h, i) * rstd_at(k, t) * conv_norm_of(c, k->h, i));
    }
    for (int64_t n = 0; n < tokens * hidden; n++) {
        const int64_t t = n / hidden, i = n % hidden;
        if (k->first[t] < 0) continue;
        float z = conv_bias_of(c, k->h, i);
        for (int64_t j = 0; j < taps; j++) {
            const int64_t from = neighbour(k, t, -lag_of(k, j));
            z = fmaf(conv_tap_of(c, k->h, i, j), from < 0 ? 0 : k->normed[from * hidden + i], z);
        }
        const float go = conv_at(&c->tensors[GRAD_OUT], t, k->h, i), sigmoid = conv_sigmoid_of(z);
        k->grad_z[n] = p->no_activation ? go : go * (sigmoid * fmaf(z < -80 ? -80 : z, 1 - sigmoid, 1));
    }
    for (int64_t n = 0; n < tokens * hidden; n++) {
        const int64_t t = n / hidden, i = n % hidden;
        k->grad[n] = 0;
        for (int64_t j = 0; j < taps && k->first[t] >= 0; j++) {
            const int64_t to = neighbour(k, t, lag_of(k, j));
            if (to >= 0) k->grad[n] = fmaf(conv_tap_of(c, k->h, i, j), k->grad_z[to * hidden + i], k->grad[n]);
        }
    }
}

static void put_grad_x(const work *k, int64_t t)
{
    enum { VECTOR = 4, GROUP = 32 };
    case_problem *c = k->c;
    const tgl_engram_short_conv_params *p = (const void *)c->scalars;
    const int64_t hidden = c->tensors[CONV_X].shape[2];
    const float rstd = rstd_at(k, t), *grad = k->grad + t * hidden;
    float total = 0;
    for (int64_t many = 0; many < hidden; many += GROUP * GROUP * VECTOR) {
        float groups[GROUP] = { 0 };
        for (int g = 0; g < GROUP; g++) {
            float sums[GROUP] = { 0 };
            for (int64_t n = 0; n < GROUP * VECTOR; n++) {
                const int64_t i = many + g * GROUP * VECTOR + n;
                if (i < hidden)
                    sums[n / VECTOR] = fmaf(conv_norm_of(c, k->h, i) * grad[i],
                                            conv_at(&c->tensors[CONV_X], t, k->h, i), sums[n / VECTOR]);
            }
            groups[g] = conv_tree(sums, GROUP, 1);
        }
        total += conv_tree(groups, GROUP, 1);
    }
    const float slope = total * (rstd * rstd) / (float)hidden;
    for (int64_t i = 0; i < hidden; i++) {
        const float inner = fmaf(-conv_at(&c->tensors[CONV_X], t, k->h, i), slope, conv_norm_of(c, k->h, i) * grad[i]);
        const float go = conv_at(&c->tensors[GRAD_OUT], t, k->h, i);
        conv_put(&c->tensors[GRAD_X], (int64_t[]){ t, k->h, i },
                 k->first[t] < 0 ? 0
                 : p->add_input  ? fmaf(rstd, inner, go)
                                 : rstd * inner);
    }
}

/* The tokens of a partial in the order in which they are added: 256 at a time, of those every dilation-th. */
static int64_t tokens_in_order(const work *k, int64_t begin, int64_t end, int64_t *order)
{
    int64_t n = 0;
    for (int64_t tile = begin; tile < end; tile += 256)
        for (int64_t rest = 0; rest < 256 && rest < conv_dilation(k->c); rest++)
            for (int64_t t = tile; t < end && t < tile + 256; t++)
                if ((t - tile) % conv_dilation(k->c) == rest && k->first[t] >= 0) order[n++] = t;
    return n;
}

/* The sums of column i over these tokens. */
static void put_partials(const work *k, int64_t p, int64_t i, const int64_t *order, int64_t count)
{
    case_problem *c = k->c;
    case_tensor *norm = &c->tensors[GRAD_NORM], *conv = &c->tensors[GRAD_CONV], *bias = &c->tensors[GRAD_BIAS];
    const int64_t hidden = c->tensors[CONV_X].shape[2], taps = c->tensors[CONV_WEIGHT].shape[1];
    float of_norm = 0, of_bias = 0;
    for (int64_t n = 0; n < count; n++) {
        const int64_t t = order[n];
        of_norm = fmaf(k->grad[t * hidden + i], conv_at(&c->tensors[CONV_X], t, k->h, i) * rstd_at(k, t), of_norm);
        of_bias += k->grad_z[t * hidden + i];
    }
    if (norm->name) conv_put(norm, (int64_t[]){ p, k->h, i }, of_norm);
    if (bias->name) conv_put(bias, (int64_t[]){ p, k->h * hidden + i }, of_bias);
    for (int64_t j = 0; j < taps && conv->name; j++) {
        float sum = 0;
        for (int64_t n = 0; n < count; n++) {
            const int64_t t = order[n], from = neighbour(k, t, -lag_of(k, j));
            if (from >= 0) sum = fmaf(k->grad_z[t * hidden + i], k->normed[from * hidden + i], sum);
        }
        conv_put(conv, (int64_t[]){ p, k->h * hidden + i, j }, sum);
    }
}

static void oracle(case_problem *c)
{
    const case_tensor *x = &c->tensors[CONV_X], *t = c->tensors;
    const int64_t tokens = x->shape[0], hidden = x->shape[2], size = tokens * hidden;
    const case_tensor *some = t[GRAD_NORM].name ? &t[GRAD_NORM] : t[GRAD_CONV].name ? &t[GRAD_CONV] : &t[GRAD_BIAS];
    const int64_t partials = some->name ? some->shape[0] : 1, n = partials ? (tokens + partials - 1) / partials : 0;
    work k = { c,
               0,
               case_memory(tokens, sizeof(int64_t)),
               case_memory(tokens, sizeof(int64_t)),
               case_memory(size, sizeof(float)),
               case_memory(size, sizeof(float)),
               case_memory(size, sizeof(float)) };
    int64_t *const order = case_memory(tokens, sizeof *order);
    for (int64_t i = 0; i < tokens; i++) {
        const engram_request r = engram_request_of(&c->tensors[CONV_CU], tokens, i);
        k.first[i] = r.number < 0 || conv_is_masked(c, i) ? -1 : r.first;
        k.end[i] = r.last + 1;
    }
    for (k.h = 0; k.h < x->shape[1]; k.h++) {
        find_gradients(&k);
        for (int64_t p = 0; p < partials; p++) {
            const int64_t begin = p * n < tokens ? p * n : tokens, end = begin + n < tokens ? begin + n : tokens;
            const int64_t count = tokens_in_order(&k, begin, end, order);
            for (int64_t i = 0; i < hidden; i++) put_partials(&k, p, i, order, count);
        }
        for (int64_t i = 0; i < tokens && c->tensors[GRAD_X].name; i++) put_grad_x(&k, i);
    }
    free(k.first), free(k.end), free(k.normed), free(k.grad_z), free(k.grad), free(order);
}

// clang-format off: lines of cases
const case_op short_conv_bwd_cases = {
    "engram_short_conv_bwd", CONV_CASE " wanted=xnwb num_partials=0", setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,14 num_streams=1,2 hidden=1,7,8,9,100,264 num_partials=1,3",
        "num_tokens=12 num_streams=0,1,3 hidden=24 kernel_size=1,2,3,4,8 dilation=0,1,5 requests=4 num_partials=2",
        "num_tokens=30 num_streams=1 hidden=9 kernel_size=9 dilation=1 num_partials=1",
        "num_tokens=9 num_streams=2 hidden=41,40 activation=0,1 add_input=0,1 mask=none,no,all,some num_partials=2",
        "num_tokens=5 num_streams=2 hidden=40 norm=bf16,f32 conv=bf16,f32 bias=none,bf16,f32 zero_centered=0,1 "
        "num_partials=1",
        "num_tokens=12 num_streams=2 hidden=33,40 wanted=x,n,w,b,nw,xb mask=some num_partials=2",
        "num_tokens=9 num_streams=3 hidden=33,40 values=special,large eps=default,half mask=some num_partials=2",
        "num_tokens=7 num_streams=3 hidden=33,40 layout=packed,gaps,outside gap=1,8 offset=0,1 requests=2 num_partials=3",
        "num_tokens=40,300 num_streams=1 hidden=8 requests=none,3,200 cu=whole,padded,wild mask=some num_partials=1,5",
        "num_tokens=6 num_streams=1 hidden=2560 num_partials=2",
        "num_tokens=40 num_streams=1 hidden=520,1536,2048,4096 requests=none,2 activation=0,1 num_partials=1",
        "num_tokens=14 num_streams=1 hidden=2696,5144 kernel_size=3 dilation=2 requests=2 mask=some num_partials=1,2",
        "num_tokens=9 num_streams=1 hidden=5120,7168 requests=2 mask=some num_partials=2",
        "num_tokens=5 num_streams=1 hidden=10248 num_partials=1",
        "num_tokens=75,300 num_streams=1 hidden=40 kernel_size=4,2 dilation=1,3 wanted=xnw,xnwb num_partials=1,2",
        "num_tokens=75 num_streams=1 hidden=40 kernel_size=1,3 requests=none,2 num_partials=1",
        "num_tokens=75 num_streams=1 hidden=1032 bias=none,f32 add_input=0,1 num_partials=1",
        "num_tokens=70 num_streams=3 hidden=16"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=2000 hidden=2560,5120,1024 requests=none,7 mask=some"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=4096 hidden=1024,2560,5120,7168 wanted=xnw",
                                    "num_tokens=8192 hidden=2560 wanted=xnw,xnwb"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 hidden=2560 kernel_size=4,3,2,1 wanted=xnw,xnwb",
                                      "num_tokens=64 hidden=7168,10240 wanted=xnw"),
    .models = CASE_LINES("num_tokens=64 num_streams={engram_streams} hidden={hidden}"),
};
// clang-format on
