/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "cases/engram/common/conv_cases.h"
#include "cases/engram/common/gate_cases.h"
#include "core/status.h"

enum { CU = GATE_NUM_INPUTS, START, SLOTS, RING, NORM, WEIGHT, BIAS, OUT };

typedef struct {
    tgl_engram_batch batch;
    tgl_engram_gate_conv_params params;
} settings;
_Static_assert(sizeof(settings) <= CASE_SCALARS, "settings are too large");

static settings settings_of(const case_problem *c)
{
    settings s;
    memcpy(&s, c->scalars, sizeof s);
    return s;
}

static void add_weights(case_problem *c)
{
    const int64_t h = case_int(c, "num_streams"), d = case_int(c, "hidden"), k = case_int(c, "kernel_size");
    case_tensor *norm = case_add(c, NORM, "norm_weight", CASE_IN, case_dtype(c, "norm"), 2, (int64_t[]){ h, d });
    case_tensor *conv = case_add(c, WEIGHT, "conv_weight", CASE_IN, case_dtype(c, "conv"), 2, (int64_t[]){ h * d, k });
    norm->fill = conv->fill = case_fill_normal;
    norm->offset = conv->offset = case_int(c, "offset");
    if (case_is(c, "layout", "gaps")) norm->strides[0] += case_int(c, "gap");
    if (case_is(c, "bias", "none")) return;
    case_tensor *bias = case_add(c, BIAS, "bias", CASE_IN, case_dtype(c, "bias"), 1, (int64_t[]){ h * d });
    bias->fill = case_fill_normal, bias->offset = case_int(c, "offset");
}

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gate_add_inputs(c, "mask"));
    TGL_TRY(case_check_word(c, "sign", "zero bit"));
    TGL_TRY(case_check_word(c, "eps", "tiny small zero"));
    TGL_TRY(case_check_word(c, "norm_eps", "default half zero"));
    TGL_TRY(engram_add_cu_seqlens(c, CU));
    TGL_TRY(conv_add_ring(c, START, SLOTS, RING));
    add_weights(c);
    const settings s = { .batch = { .has_null_slot = case_is(c, "slots", "wild"), .null_slot = ENGRAM_NULL_SLOT },
                         .params = { .eps = case_is(c, "eps", "tiny")    ? 1e-20f
                                            : case_is(c, "eps", "small") ? 1e-6f
                                                                         : 0,
                                     .clamp_value = gate_clamp(c),
                                     .no_residual = !case_int(c, "residual"),
                                     .zero_centered = case_int(c, "zero_centered") != 0,
                                     .sign = case_is(c, "sign", "bit") ? TGL_ENGRAM_SIGN_BIT : TGL_ENGRAM_SIGN_ZERO,
                                     .dilation = case_int(c, "dilation"),
                                     .has_norm_eps = !case_is(c, "norm_eps", "default"),
                                     .norm_eps = case_is(c, "norm_eps", "half") ? 0.5f : 0,
                                     .no_activation = !case_int(c, "activation"),
                                     .norm_zero_centered = case_int(c, "norm_centered") != 0,
                                     .round_each = case_int(c, "round_each") != 0,
                                     .keep_ring = case_int(c, "keep_ring") != 0 } };
    memcpy(c->scalars, &s, sizeof s);
    /* A gate that differs in its last bit makes a gated value that rounds to the next bf16 now and then, which up to
     * kernel_size results show. */
    const case_compare close = { .mode = CASE_BF16, .ulp = 1, .atol = 0.25 + gate_scale(c) / 32, .mismatch = 5e-3 };
    gate_add_rows(c, OUT, "out", CASE_OUT, true)->compare = close;
    if (c->tensors[RING].name) c->tensors[RING].compare = close;
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    settings s = settings_of(a->problem);
    s.batch.cu_seqlens = a->arg[CU], s.batch.start_pos = a->arg[START], s.batch.slots = a->arg[SLOTS];
    const bool has_batch = a->arg[CU] || a->arg[START] || a->arg[SLOTS] || s.batch.has_null_slot;
    return tgl_engram_gate_conv_fwd(a->arg[GATE_X], a->arg[GATE_K], a->arg[GATE_V], a->arg[GATE_WEIGHT_HIDDEN],
                                    a->arg[GATE_WEIGHT_EMBED], a->arg[NORM], a->arg[WEIGHT], a->arg[BIAS],
                                    a->arg[GATE_MASK], a->arg[RING], a->arg[OUT], has_batch ? &s.batch : NULL,
                                    &s.params, a->stream);
}

/* ---- oracle: the specification, position by position ---- */

static conv_request request_at(const case_problem *c, int64_t token)
{
    return conv_request_of(c, CU, c->tensors[GATE_X].shape[0], token);
}

static float weight_at(const case_tensor *t, const int64_t *index)
{
    return (float)case_decode(t->dtype, case_element(t, index));
}

static float norm_of(const case_problem *c, int64_t h, int64_t i)
{
    const float w = weight_at(&c->tensors[NORM], (int64_t[]){ h, i });
    return case_is(c, "norm_centered", "0") ? w : 1 + w;
}

static float rstd_of(const case_problem *c, const float *row, int64_t count)
{
    enum { VECTOR = 8, GROUP = 32 };
    float total = 0;
    for (int64_t group = 0; group < count; group += GROUP * VECTOR) {
        float sums[GROUP] = { 0 };
        for (int64_t i = group; i < group + GROUP * VECTOR && i < count; i++)
            sums[(i - group) / VECTOR] = fmaf(row[i], row[i], sums[(i - group) / VECTOR]);
        total += conv_tree(sums, GROUP, 1);
    }
    const float eps = case_is(c, "norm_eps", "default") ? 1e-5f : case_is(c, "norm_eps", "half") ? 0.5f : 0;
    return (float)(1 / sqrtl((long double)(total / (float)count + eps)));
}

/* For all rows: what the gate lets in, and that normed. */
typedef struct {
    case_problem *c;
    tgl_engram_gate_conv_params params;
    float *gated, *normed;
} work;

static void find_rows(void *context, int64_t begin, int64_t end)
{
    const work *k = context;
    const case_problem *c = k->c;
    const tgl_engram_gate_params gate = { .eps = k->params.eps,
                                          .clamp_value = k->params.clamp_value,
                                          .zero_centered = k->params.zero_centered,
                                          .sign = k->params.sign };
    const int64_t streams = c->tensors[GATE_X].shape[1], hidden = c->tensors[GATE_X].shape[2];
    for (int64_t row = begin; row < end; row++) {
        const int64_t t = row / streams, h = row % streams;
        float *gv = k->gated + row * hidden, *a = k->normed + row * hidden;
        if (gate_is_masked(c, t)) {
            memset(gv, 0, (size_t)hidden * sizeof *gv), memset(a, 0, (size_t)hidden * sizeof *a);
            continue;
        }
        const float g = (float)gate_find_numbers(c, &gate, t, h).gate;
        for (int64_t i = 0; i < hidden; i++) gv[i] = conv_bf16(g * (float)gate_at(&c->tensors[GATE_V], t, h, i));
        const float rstd = rstd_of(c, gv, hidden);
        for (int64_t i = 0; i < hidden; i++) {
            const float scaled = gv[i] * rstd;
            a[i] = conv_bf16(scaled * norm_of(c, h, i));
        }
    }
}

/* What position p of the chunk is convolved as, below 0 before it; NULL: zeros. */
static const float *position(const work *k, const conv_request *q, int64_t p, int64_t h, float *buffer)
{
    const case_tensor *x = &k->c->tensors[GATE_X];
    if (p >= 0) return k->normed + ((q->r.first + p) * x->shape[1] + h) * x->shape[2];
    return conv_row_before(k->c, CU, q, -p, h, buffer) ? buffer : NULL;
}

static void put_row(const work *k, const conv_request *q, int64_t t, int64_t h, float *z, float *buffer)
{
    case_problem *c = k->c;
    const tgl_engram_gate_conv_params *p = &k->params;
    const case_tensor *x = &c->tensors[GATE_X], *bias = &c->tensors[BIAS], *weight = &c->tensors[WEIGHT];
    const int64_t hidden = x->shape[2], taps = weight->shape[1], dilation = conv_dilation(c);
    for (int64_t i = 0; i < hidden; i++) z[i] = bias->name ? weight_at(bias, (int64_t[]){ h * hidden + i }) : 0;
    for (int64_t j = 0; j < taps; j++) {
        const float *a = position(k, q, t - q->r.first - (taps - 1 - j) * dilation, h, buffer);
        for (int64_t i = 0; i < hidden; i++)
            z[i] = fmaf(weight_at(weight, (int64_t[]){ h * hidden + i, j }), a ? a[i] : 0, z[i]);
    }
    for (int64_t i = 0; i < hidden; i++) {
        const float added[] = { k->gated[(t * x->shape[1] + h) * hidden + i], (float)gate_at(x, t, h, i) };
        conv_put(&c->tensors[OUT], (int64_t[]){ t, h, i },
                 conv_result_of(z[i], !p->no_activation, p->round_each, added, p->no_residual ? 1 : 2));
    }
}

static void put_tokens(void *context, int64_t begin, int64_t end)
{
    const work *k = context;
    case_problem *c = k->c;
    const case_tensor *x = &c->tensors[GATE_X];
    const int64_t streams = x->shape[1], hidden = x->shape[2];
    float *z = case_memory(2 * hidden, sizeof *z);
    for (int64_t t = begin; t < end; t++) {
        const conv_request q = request_at(c, t);
        const bool is_dead = q.r.number < 0 || gate_is_masked(c, t);
        for (int64_t h = 0; h < streams; h++) {
            if (!is_dead) put_row(k, &q, t, h, z, z + hidden);
            for (int64_t i = 0; is_dead && i < hidden; i++) {
                const int64_t at[] = { t, h, i };
                if (k->params.no_residual) memset(case_element(&c->tensors[OUT], at), 0, 2);
                else memmove(case_element(&c->tensors[OUT], at), case_element(x, at), 2);
            }
        }
    }
    free(z);
}

static void oracle(case_problem *c)
{
    const case_tensor *x = &c->tensors[GATE_X];
    const int64_t tokens = x->shape[0], streams = x->shape[1], hidden = x->shape[2];
    case_tensor *ring = &c->tensors[RING];
    work k = { c, settings_of(c).params, case_memory(tokens * streams * hidden, sizeof(float)),
               case_memory(tokens * streams * hidden, sizeof(float)) };
    case_parallel(tokens * streams, 96 * hidden, find_rows, &k);
    case_parallel(tokens, 256 * streams * hidden, put_tokens, &k);
    for (int64_t t = 0; t < tokens && ring->name && ring->shape[1] > 0; t++) { /* in order: the last one stays */
        const conv_request q = request_at(c, t);
        if (q.r.number < 0 || q.slot < 0 || k.params.keep_ring) continue;
        const int64_t entry = conv_entry_of(c, CU, &q, t);
        for (int64_t h = 0; h < streams; h++)
            for (int64_t i = 0; i < hidden; i++)
                conv_put(ring, (int64_t[]){ q.slot, entry, h, i }, k.normed[(t * streams + h) * hidden + i]);
    }
    free(k.gated), free(k.normed);
}

/* hidden_states, k, v, out, and the ring. */
static int64_t bytes(const case_problem *c)
{
    const int64_t rows = case_tensor_bytes(&c->tensors[GATE_X]), tokens = c->tensors[GATE_X].shape[0];
    int64_t sum = 0;
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name && i != RING) sum += case_tensor_bytes(&c->tensors[i]);
    return tokens ? sum + conv_ring_bytes(c, CU, rows / tokens, tokens, c->tensors[WEIGHT].shape[1]) : sum;
}

// clang-format off: lines of cases
const case_op gate_conv_fwd_cases = {
    "engram_gate_conv_fwd",
    GATE_CASE " sign=zero eps=tiny kernel_size=4 dilation=3 norm=bf16 conv=bf16 bias=none norm_centered=0 "
    "norm_eps=default activation=1 round_each=0 past=none start=none slots=none batch_dtype=i32 more_slots=0 drafts=2 "
    "keep_ring=0 " ENGRAM_REQUESTS,
    setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        /* tiles that begin a few tokens behind the first of a request */
        "num_tokens=300 num_streams=1 hidden=8 requests=60 past=ring start=large batch_dtype=i64 drafts=0,40",
        "num_tokens=0,1,14 num_streams=1,2 hidden=1,8,9,264",
        "num_tokens=12 num_streams=0,3 hidden=24 kernel_size=1,4,8 dilation=0,1,5,17 requests=4",
        "num_tokens=9 num_streams=2 hidden=40,41 residual=0,1 activation=0,1 round_each=0,1 mask=some",
        "num_tokens=5 num_streams=2 hidden=40,41 norm=bf16,f32 conv=bf16,f32 bias=none,f32 norm_centered=0,1",
        "num_tokens=5 num_streams=2 hidden=40,41 weights=fused,bf16,f32 sign=zero,bit values=zeros eps=tiny,small",
        "num_tokens=5 num_streams=2 hidden=40,41 weights=bf16,f32 zero_centered=1",
        "num_tokens=9 num_streams=3 hidden=40,33 values=special,large,tiny norm_eps=default,half,zero mask=none,some",
        "num_tokens=3 num_streams=2 hidden=40,33 mask=no,all residual=0,1",
        "num_tokens=7 num_streams=3 hidden=40,33 layout=kv,gaps,outside gap=1,8 offset=0,1,8 requests=2 "
        "mask=some",
        /* tiles that begin in the middle of requests, behind them, and more of them than blocks */
        "num_tokens=150 num_streams=1 hidden=8 requests=3,200 cu=padded,wild mask=some",
        "num_tokens=1200 num_streams=1 hidden=8 requests=3 cu=wild mask=some",
        /* chunks shorter and longer than the ring, in one tile or over many */
        "num_tokens=60,200 num_streams=1 hidden=8 requests=1,3,20 past=ring start=small drafts=0,1,6 mask=some",
        "num_tokens=5,11 num_streams=1 hidden=8 requests=1,3 dilation=2,5 past=ring start=small drafts=0,1",
        "num_tokens=60 num_streams=1 hidden=9 requests=3,20 past=ring start=small drafts=0,2 mask=some",
        "num_tokens=60 num_streams=2 hidden=16 kernel_size=2,4 dilation=1,10 requests=20 past=ring start=small "
        "drafts=0,5",
        "num_tokens=12 num_streams=1 hidden=16 requests=3,12 cu=even past=ring start=small drafts=0,4",
        "num_tokens=30 num_streams=2 hidden=16,15 requests=20 past=ring start=small,bits slots=shuffled,wild "
        "more_slots=3 keep_ring=0,1 batch_dtype=i64",
        "num_tokens=30 num_streams=2 hidden=16 requests=none,5 past=ring start=zero,large batch_dtype=i64 drafts=0,3",
        /* blocks of more threads, clusters of them, and more columns than any has */
        "num_tokens=11 num_streams=1 hidden=1024,1032,2560,2568,5120,5128,7168,7176,8192,8200 requests=2 past=ring start=small",
        /* rows that are not alive: the blocks of a cluster say nothing of them */
        "num_tokens=20 num_streams=1 hidden=2064 norm=f32 conv=f32 norm_centered=1",
        "num_tokens=20 num_streams=1 hidden=2056,4104,5080 bias=none,f32 requests=3 past=ring start=small mask=some",
        "num_tokens=90 num_streams=1 hidden=3072,5632,7424 requests=5 past=ring start=small drafts=0 mask=some",
        "num_tokens=170 num_streams=1 hidden=2056 requests=3 mask=some"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=8192 hidden=2560 requests=none,7,300 mask=none,some",
        "num_tokens=2000 hidden=1024,5120,7168,2563 requests=5 past=ring start=small,large batch_dtype=i64 drafts=0,4"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=4096,8192 hidden=2560", "num_tokens=8192 hidden=5120", "num_tokens=4096 hidden=7168,1024",
        "num_tokens=8192 hidden=2560 weights=bf16 zero_centered=1 norm_centered=1 requests=16 past=ring start=zero "
        "drafts=4",
        "num_tokens=1,16,128 hidden=2560",
        "num_tokens=128 hidden=2560 requests=128 cu=even past=ring start=large batch_dtype=i64 slots=shuffled "
        "drafts=0,4"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 hidden=1024,2560,5120,7168,8192 round_each=0,1"),
    .models = CASE_LINES("num_tokens=64 num_streams={engram_streams} hidden={hidden} "
        "weights=bf16 zero_centered={engram_centered} residual={engram_residual}"),
};
// clang-format on
