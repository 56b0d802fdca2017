/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "cases/engram/common/conv_cases.h"
#include "core/status.h"

enum { RESIDUAL = CONV_NUM_INPUTS, OUT, RSTD };

typedef struct {
    tgl_engram_batch batch;
    tgl_engram_short_conv_params params;
} settings;
_Static_assert(sizeof(settings) <= CASE_SCALARS, "settings are too large");

static settings settings_of(const case_problem *c)
{
    settings s;
    memcpy(&s, c->scalars, sizeof s);
    return s;
}

static tgl_status setup(case_problem *c)
{
    TGL_TRY(conv_add_inputs(c));
    TGL_TRY(conv_add_ring(c, CONV_START, CONV_SLOTS, CONV_RING));
    TGL_TRY(case_check_word(c, "residual", "none given same"));
    settings s = { .batch = { .has_null_slot = case_is(c, "slots", "wild"), .null_slot = ENGRAM_NULL_SLOT },
                   .params = conv_params(c) };
    s.params.round_each = case_int(c, "round_each") != 0, s.params.keep_ring = case_int(c, "keep_ring") != 0;
    memcpy(c->scalars, &s, sizeof s);
    const bool is_same = case_is(c, "residual", "same");
    if (!case_is(c, "residual", "none")) conv_add_rows(c, RESIDUAL, "residual", is_same ? CASE_INOUT : CASE_IN);
    if (!is_same) conv_add_rows(c, OUT, "out", CASE_OUT);
    if (case_int(c, "save"))
        case_add(c, RSTD, "rstd", CASE_OUT, TGL_F32, 2,
                 (int64_t[]){ case_int(c, "num_tokens"), case_int(c, "num_streams") });
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    settings s = settings_of(a->problem);
    s.batch.cu_seqlens = a->arg[CONV_CU], s.batch.start_pos = a->arg[CONV_START], s.batch.slots = a->arg[CONV_SLOTS];
    const bool has_batch = a->arg[CONV_CU] || a->arg[CONV_START] || a->arg[CONV_SLOTS] || s.batch.has_null_slot;
    const bool is_in_place = a->problem->tensors[RESIDUAL].role == CASE_INOUT;
    return tgl_engram_short_conv_fwd(a->arg[CONV_X], a->arg[CONV_NORM], a->arg[CONV_WEIGHT], a->arg[CONV_BIAS],
                                     a->arg[RESIDUAL], a->arg[CONV_MASK], a->arg[CONV_RING],
                                     is_in_place ? a->arg[RESIDUAL] : a->arg[OUT], a->arg[RSTD],
                                     has_batch ? &s.batch : NULL, &s.params, a->stream);
}

/* ---- oracle: the specification, position by position ---- */

static conv_request request_at(const case_problem *c, int64_t token)
{
    return conv_request_of(c, CONV_CU, c->tensors[CONV_X].shape[0], token);
}

/* A stream of a token as it is convolved; p is its number in the chunk, below 0 before it. rstd has those of x. */
static void normed(const case_problem *c, const conv_request *q, const float *rstd, int64_t p, int64_t h, float *a)
{
    const case_tensor *x = &c->tensors[CONV_X];
    const int64_t hidden = x->shape[2], token = q->r.first + p;
    if (p < 0 && conv_row_before(c, CONV_CU, q, -p, h, a)) return;
    memset(a, 0, (size_t)hidden * sizeof *a);
    if (p < 0 || conv_is_masked(c, token)) return;
    for (int64_t i = 0; i < hidden; i++) {
        const float scaled = conv_at(x, token, h, i) * rstd[token * x->shape[1] + h];
        a[i] = conv_bf16(scaled * conv_norm_of(c, h, i));
    }
}

typedef struct {
    case_problem *c;
    tgl_engram_short_conv_params params;
    float *rstd;
} work;

static void find_rstd(void *context, int64_t begin, int64_t end)
{
    const work *k = context;
    const int64_t streams = k->c->tensors[CONV_X].shape[1];
    for (int64_t row = begin; row < end; row++) k->rstd[row] = conv_rstd_of(k->c, row / streams, row % streams);
}

static void put_row(const work *k, const conv_request *q, int64_t t, int64_t h, float *z, float *a)
{
    case_problem *c = k->c;
    const tgl_engram_short_conv_params *s = &k->params;
    const case_tensor *x = &c->tensors[CONV_X], *residual = &c->tensors[RESIDUAL];
    case_tensor *out = c->tensors[OUT].name ? &c->tensors[OUT] : &c->tensors[RESIDUAL];
    const int64_t hidden = x->shape[2], taps = c->tensors[CONV_WEIGHT].shape[1], dilation = conv_dilation(c);
    for (int64_t i = 0; i < hidden; i++) z[i] = conv_bias_of(c, h, i);
    for (int64_t j = 0; j < taps; j++) {
        normed(c, q, k->rstd, t - q->r.first - (taps - 1 - j) * dilation, h, a);
        for (int64_t i = 0; i < hidden; i++) z[i] = fmaf(conv_tap_of(c, h, i, j), a[i], z[i]);
    }
    for (int64_t i = 0; i < hidden; i++) {
        float added[2];
        int count = 0;
        if (s->add_input) added[count++] = conv_at(x, t, h, i);
        if (residual->name) added[count++] = conv_at(residual, t, h, i);
        conv_put(out, (int64_t[]){ t, h, i }, conv_result_of(z[i], !s->no_activation, s->round_each, added, count));
    }
}

static void put_tokens(void *context, int64_t begin, int64_t end)
{
    const work *k = context;
    case_problem *c = k->c;
    const case_tensor *x = &c->tensors[CONV_X], *residual = &c->tensors[RESIDUAL];
    case_tensor *out = c->tensors[OUT].name ? &c->tensors[OUT] : &c->tensors[RESIDUAL];
    const int64_t streams = x->shape[1], hidden = x->shape[2];
    float *z = case_memory(2 * hidden, sizeof *z);
    for (int64_t t = begin; t < end; t++) {
        const conv_request q = request_at(c, t);
        const bool is_dead = q.r.number < 0 || conv_is_masked(c, t);
        for (int64_t h = 0; h < streams; h++) {
            if (c->tensors[RSTD].name)
                conv_put(&c->tensors[RSTD], (int64_t[]){ t, h }, is_dead ? 0 : k->rstd[t * streams + h]);
            if (!is_dead) put_row(k, &q, t, h, z, z + hidden);
            for (int64_t i = 0; is_dead && i < hidden; i++) {
                const int64_t at[] = { t, h, i };
                if (residual->name) memmove(case_element(out, at), case_element(residual, at), 2);
                else memset(case_element(out, at), 0, 2);
            }
        }
    }
    free(z);
}

static void oracle(case_problem *c)
{
    const case_tensor *x = &c->tensors[CONV_X];
    const int64_t tokens = x->shape[0], streams = x->shape[1], hidden = x->shape[2];
    case_tensor *ring = &c->tensors[CONV_RING];
    work k = { c, settings_of(c).params, case_memory(tokens * streams, sizeof(float)) };
    float *a = case_memory(hidden, sizeof *a);
    case_parallel(tokens * streams, 32 * hidden, find_rstd, &k);
    case_parallel(tokens, 256 * streams * hidden, put_tokens, &k);
    for (int64_t t = 0; t < tokens && ring->name && ring->shape[1] > 0; t++) { /* in order: the last one stays */
        const conv_request q = request_at(c, t);
        if (q.r.number < 0 || q.slot < 0 || k.params.keep_ring) continue;
        const int64_t entry = conv_entry_of(c, CONV_CU, &q, t);
        for (int64_t h = 0; h < streams; h++) {
            normed(c, &q, k.rstd, t - q.r.first, h, a);
            for (int64_t i = 0; i < hidden; i++) conv_put(ring, (int64_t[]){ q.slot, entry, h, i }, a[i]);
        }
    }
    free(a), free(k.rstd);
}

/* x, residual, out, and the ring. */
static int64_t bytes(const case_problem *c)
{
    const int64_t rows = case_tensor_bytes(&c->tensors[CONV_X]), tokens = c->tensors[CONV_X].shape[0];
    int64_t sum = case_is(c, "residual", "same") ? rows : 0;
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name && i != CONV_RING) sum += case_tensor_bytes(&c->tensors[i]);
    return tokens ? sum + conv_ring_bytes(c, CONV_CU, rows / tokens, tokens, c->tensors[CONV_WEIGHT].shape[1]) : sum;
}

// clang-format off: lines of cases
const case_op short_conv_fwd_cases = {
    "engram_short_conv_fwd",
    CONV_CASE " residual=given save=1 round_each=0 past=none start=none slots=none batch_dtype=i32 more_slots=0 "
    "drafts=2 keep_ring=0",
    setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        /* tiles that begin a few tokens behind the first of a request */
        "num_tokens=300 num_streams=1 hidden=8 requests=60 past=ring start=large batch_dtype=i64 drafts=40",
        "num_tokens=0,1,14 num_streams=1,2 hidden=1,7,8,9,100,264 save=0,1",
        "num_tokens=12 num_streams=0,1,3 hidden=24 kernel_size=1,2,3,4,8 dilation=0,1,5 requests=4",
        "num_tokens=9 num_streams=2 hidden=40,41 residual=none,given,same activation=0,1 add_input=0,1 round_each=0,1 "
        "mask=some",
        "num_tokens=5 num_streams=2 hidden=40,41 norm=bf16,f32 conv=bf16,f32 bias=none,bf16,f32 zero_centered=0,1",
        "num_tokens=9 num_streams=1 hidden=264,41 kernel_size=2,3 conv=bf16,f32 bias=f32 round_each=1",
        "num_tokens=9 num_streams=3 hidden=40,33 values=special,large eps=default,half,zero mask=none,some",
        "num_tokens=3 num_streams=2 hidden=40,33 mask=no,all",
        "num_tokens=7 num_streams=3 hidden=40,33 layout=packed,gaps,outside gap=1,8 offset=0,1,8 requests=2 mask=some",
        /* tiles that begin in the middle of requests, behind them, and more of them than blocks */
        "num_tokens=150 num_streams=1 hidden=8 requests=none,0,3,200 cu=whole,padded,wild mask=some",
        "num_tokens=1000 num_streams=1 hidden=8 requests=3,200 cu=wild mask=some",
        "num_tokens=40 num_streams=1 hidden=16 requests=600 cu=whole,wild cu_dtype=i64 mask=some",
        "num_tokens=0 num_streams=1 hidden=8,9,2560 requests=none,3 past=ring start=small",
        /* chunks shorter and longer than the ring, in one tile or over many */
        "num_tokens=60,200 num_streams=1 hidden=8 requests=1,3,20,100 past=ring start=small drafts=0,2,6 mask=some",
        "num_tokens=60 num_streams=1 hidden=9 requests=3,20 past=ring start=small drafts=0,2 mask=some",
        /* as many requests as a warp takes entries of cu_seqlens at a time: the last one is the first of the next turn */
        "num_tokens=16 num_streams=1 hidden=2568 requests=64 cu=even past=ring start=small",
        "num_tokens=16 num_streams=1 hidden=16 requests=160 cu=even past=ring start=small",
        "num_tokens=16 num_streams=1 hidden=16 requests=3 cu=padded past=ring start=small", /* tokens of no request */
        "num_tokens=60 num_streams=2 hidden=16 kernel_size=1,2,4,5 dilation=1,4,10 requests=20 past=ring start=small "
        "drafts=0,1,5",
        "num_tokens=12 num_streams=1 hidden=16 requests=3,12 cu=even past=ring start=small drafts=0,4",
        "num_tokens=30 num_streams=2 hidden=16,15 requests=20 past=ring start=small,bits slots=none,shuffled,wild "
        "more_slots=0,3 keep_ring=0,1 batch_dtype=i64",
        "num_tokens=30 num_streams=2 hidden=16,15 requests=none,5 past=ring start=zero,large batch_dtype=i64 "
        "drafts=0,3 round_each=0,1",
        "num_tokens=12 num_streams=1 hidden=24 kernel_size=1,2,3 dilation=2 round_each=0,1 requests=4 past=ring "
        "start=small mask=some",
        /* blocks of more threads, more columns than any has; rows in several blocks */
        "num_tokens=11 num_streams=1 hidden=1024,1032,2560,2568,5120,5128 requests=2 past=ring start=small",
        /* the most columns that short_conv_fwd_row takes, and more */
        "num_tokens=5 num_streams=1 hidden=7168,7176 requests=2 past=ring start=small mask=some",
        "num_tokens=40 num_streams=1 hidden=1032,2056,2560,5128 requests=3 mask=some",
        "num_tokens=20 num_streams=1 hidden=2056 kernel_size=1,3,4 norm=bf16,f32 conv=bf16,f32 bias=f32 zero_centered=1",
        "num_tokens=40 num_streams=1 hidden=2568,5104 requests=3 past=ring start=small round_each=1 drafts=0,4",
        "num_tokens=170 num_streams=1 hidden=2056 residual=same requests=3 mask=some"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=8192 hidden=2560 requests=none,7,300 mask=none,some",
        "num_tokens=2000 hidden=1024,5120,7168,2563 requests=5 past=ring start=small,large batch_dtype=i64 drafts=0,4",
        "num_tokens=4001 num_streams=3 hidden=256 kernel_size=2,3,4,8 dilation=1,3,11 requests=40 past=ring "
        "start=small"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=4096,8192 hidden=2560 save=0", "num_tokens=8192 hidden=2560 save=0 residual=none",
        "num_tokens=8192 hidden=2560 save=0 residual=same zero_centered=1 requests=16 past=ring start=zero drafts=4",
        "num_tokens=8192 hidden=5120 save=0", "num_tokens=4096 hidden=7168,1024 save=0",
        "num_tokens=1,16,128 hidden=2560 save=0",
        "num_tokens=128 hidden=2560 save=0 requests=128 cu=even past=ring start=large batch_dtype=i64 slots=shuffled "
        "residual=same drafts=0,4"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 hidden=1024,2560,5120,7168 kernel_size=1,2,3,4 round_each=0,1"),
    .models = CASE_LINES("num_tokens=64 num_streams={engram_streams} hidden={hidden}"),
};
// clang-format on
