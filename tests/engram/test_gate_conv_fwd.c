/* SPDX-License-Identifier: MIT
 * tgl_engram_gate_conv_fwd, on every device of the tests: what the gate and the short convolution give one after the
 * other, to the bit, rings included. */
#include "gate_support.h"

TESTS_OF_TABLE("engram_gate_conv_fwd")

/* ---- calls on tensors written by hand ---- */

enum { MOST = 4096 };
typedef struct {
    int64_t tokens, streams, hidden, taps, requests, num_slots, ring_size;
    float x[MOST], k[MOST], v[MOST], weight[256], norm[256], conv[1024];
    bool has_mask, mask[64];
    const int32_t *cu_seqlens, *start_pos, *slots;
    uint16_t *ring; /* gets what the call makes of it; NULL: none */
    tgl_engram_gate_conv_params params;
} call;

static DLTensor *place_given(const backend *b, tensor *t, tgl_dtype dtype, int64_t count, const void *contents)
{
    t->t.data = NULL;
    return contents ? place(b, t, dtype, 1, SHAPE(count), contents) : NULL;
}

typedef struct {
    tensor x, k, v, weight, norm, conv, mask, ring, cu, start, slots, gated, out;
    DLTensor ring_tensor;
    int64_t ring_shape[4];
    tgl_engram_batch batch;
} placed;

static void place_all(const backend *b, const call *c, placed *p)
{
    const int64_t *rows = SHAPE(c->tokens, c->streams, c->hidden);
    memcpy(p->ring_shape, (int64_t[]){ c->num_slots, c->ring_size, c->streams, c->hidden }, sizeof p->ring_shape);
    p->batch = (tgl_engram_batch){ .cu_seqlens = place_given(b, &p->cu, TGL_I32, c->requests + 1, c->cu_seqlens),
                                   .start_pos = place_given(b, &p->start, TGL_I32, c->requests, c->start_pos),
                                   .slots = place_given(b, &p->slots, TGL_I32, c->requests, c->slots) };
    place_given(b, &p->ring, TGL_BF16, c->num_slots * c->ring_size * c->streams * c->hidden, c->ring);
    p->ring_tensor = p->ring.t, p->ring_tensor.ndim = 4, p->ring_tensor.shape = p->ring_shape;
    p->ring_tensor.strides = NULL;
    place_given(b, &p->mask, TGL_BOOL, c->tokens, c->has_mask ? c->mask : NULL);
    put(b, &p->x, TGL_BF16, 3, rows, c->x), put(b, &p->k, TGL_BF16, 3, rows, c->k);
    put(b, &p->v, TGL_BF16, 2, SHAPE(c->tokens, c->hidden), c->v);
    put(b, &p->weight, TGL_F32, 2, rows + 1, c->weight), put(b, &p->norm, TGL_F32, 2, rows + 1, c->norm);
    put(b, &p->conv, TGL_BF16, 2, SHAPE(c->streams * c->hidden, c->taps), c->conv);
    place(b, &p->gated, TGL_BF16, 3, rows, NULL), place(b, &p->out, TGL_BF16, 3, rows, NULL);
}

static void fetch_all(const backend *b, const call *c, placed *p, uint16_t *out)
{
    fetch(b, &p->out, out);
    if (c->ring) fetch(b, &p->ring, c->ring);
    tensor *const rest[] = { &p->x,    &p->k,  &p->v,     &p->weight, &p->norm, &p->conv,
                             &p->mask, &p->cu, &p->start, &p->slots,  &p->gated };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (rest[i]->t.data) discard(b, rest[i]);
}

static void call_fused(const backend *b, const call *c, uint16_t *out)
{
    placed p;
    place_all(b, c, &p);
    CHECK_OK(tgl_engram_gate_conv_fwd(&p.x.t, &p.k.t, &p.v.t, &p.weight.t, NULL, &p.norm.t, &p.conv.t, NULL,
                                      c->has_mask ? &p.mask.t : NULL, c->ring ? &p.ring_tensor : NULL, &p.out.t,
                                      &p.batch, &c->params, b->stream));
    fetch_all(b, c, &p, out);
}

static void call_both(const backend *b, const call *c, uint16_t *out)
{
    const tgl_engram_gate_params gate = {
        .eps = c->params.eps, .clamp_value = c->params.clamp_value, .no_residual = true, .sign = c->params.sign
    };
    const tgl_engram_short_conv_params conv = { .dilation = c->params.dilation,
                                                .has_eps = c->params.has_norm_eps,
                                                .eps = c->params.norm_eps,
                                                .no_activation = c->params.no_activation,
                                                .add_input = true,
                                                .zero_centered = c->params.norm_zero_centered,
                                                .round_each = c->params.round_each,
                                                .keep_ring = c->params.keep_ring };
    placed p;
    place_all(b, c, &p);
    DLTensor *const mask = c->has_mask ? &p.mask.t : NULL;
    CHECK_OK(tgl_engram_gate_fwd(&p.x.t, &p.k.t, &p.v.t, &p.weight.t, NULL, mask, &p.gated.t, NULL, NULL, NULL, NULL,
                                 &gate, b->stream));
    CHECK_OK(tgl_engram_short_conv_fwd(&p.gated.t, &p.norm.t, &p.conv.t, NULL, c->params.no_residual ? NULL : &p.x.t,
                                       mask, c->ring ? &p.ring_tensor : NULL, &p.out.t, NULL, &p.batch, &conv,
                                       b->stream));
    fetch_all(b, c, &p, out);
}
#define INTS(...) ((int32_t[]){ __VA_ARGS__ })

static call random_call(const char *name, int64_t tokens, int64_t streams, int64_t hidden, int64_t taps)
{
    call c = { .tokens = tokens,
               .streams = streams,
               .hidden = hidden,
               .taps = taps,
               .requests = 1,
               .params = { .eps = 1e-6f, .clamp_value = 1e-6f } };
    test_random r = test_seed(name);
    for (int i = 0; i < MOST; i++) c.x[i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    for (int i = 0; i < MOST; i++) c.k[i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    for (int i = 0; i < MOST; i++) c.v[i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    for (int i = 0; i < 256; i++) c.weight[i] = (float)(test_below(&r, 4001) - 2000) / 1000;
    for (int i = 0; i < 256; i++) c.norm[i] = (float)(test_below(&r, 4001) - 2000) / 1000;
    for (int i = 0; i < 1024; i++) c.conv[i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    return c;
}

/* ---- example: the gate's one and that of the short convolution, tokens at once and by a ring ---- */

TEST(worked_example)
{
    /* doc: gate_conv_fwd */
    static call c = {
        .tokens = 2,
        .streams = 1,
        .hidden = 4,
        .taps = 2,
        .requests = 1,
        .x = { 1, 2, -1, 0.5f, /**/ 1, 2, -1, 0.5f },
        .k = { 0.5f, 1, 1, -2, /**/ 0.5f, 1, 1, -2 },
        .v = { 2, -1, 0.5f, 4, /**/ 4, 4, 4, 4 },
        .weight = { 1, 0.5f, 2, 2 },
        .norm = { 1, 1, 1, 2 },
        .conv = { 1, 0, /**/ 1, 0, /**/ 0, 1, /**/ 0, 1 },
        .params = { .eps = 1e-20f, .clamp_value = 1e-6f, .dilation = 1 },
        /* gate 0.290197056 in both: gated values 0.58203125, -0.291015625, 0.145507812, 1.1640625 and 1.1640625 each;
         * normed to 0.8671875, -0.43359375, 0.216796875, 3.46875 and 1, 1, 1, 2 */
    };
    const float out[] = { 1.578125f, 1.7109375f, -0.734375f, 5.03125f, /**/ 2.78125f, 3, 0.89453125f, 3.421875f };
    /* end */
    FOR_BACKENDS(b) {
        static call part;
        uint16_t made[8], ring[8];
        call_fused(b, &c, made);
        for (int i = 0; i < 8; i++)
            CHECK_THAT(value(made[i]) == out[i], "%s: number %d is %.9g, want %.9g", b->name, i, (double)value(made[i]),
                       (double)out[i]);
        memset(ring, 0x7f, sizeof ring); /* of an earlier request: never read */
        part = c, part.ring = ring, part.num_slots = 1, part.ring_size = 2, part.tokens = 1;
        for (int t = 0; t < 2; t++) {
            memcpy(part.v, c.v + 4 * t, 16), part.start_pos = INTS(t);
            call_fused(b, &part, made);
            for (int i = 0; i < 4; i++) CHECK(value(made[i]) == out[4 * t + i]);
        }
        CHECK(value(ring[3]) == 3.46875f && value(ring[4]) == 1 && value(ring[7]) == 2);
    }
}

/* ---- both ops, to the bit ---- */

static void check_both(const char *what, call *c, uint16_t *ring, size_t ring_bytes)
{
    static uint16_t fused[MOST], both[MOST], rings[2][MOST];
    FOR_BACKENDS(b) {
        for (int i = 0; ring && i < 2; i++) memcpy(rings[i], ring, ring_bytes);
        c->ring = ring ? rings[0] : NULL;
        call_fused(b, c, fused);
        c->ring = ring ? rings[1] : NULL;
        call_both(b, c, both);
        CHECK_THAT(!memcmp(fused, both, (size_t)(c->tokens * c->streams * c->hidden) * 2), "%s: %s: results differ",
                   b->name, what);
        if (ring) CHECK_THAT(!memcmp(rings[0], rings[1], ring_bytes), "%s: %s: rings differ", b->name, what);
    }
}

TEST(is_gate_and_short_conv)
{
    static call c;
    static uint16_t ring[3 * 12 * 24];
    const int32_t cu[] = { 0, 1, 21, 40 };
    for (int i = 0; i < (int)(sizeof ring / sizeof *ring); i++) ring[i] = bf16((float)(i % 13) / 4 - 1);
    for (int variant = 0; variant < 12; variant++) {
        char name[32];
        snprintf(name, sizeof name, "variant %d", variant);
        c = random_call(name, 40, 1, variant % 3 == 2 ? 23 : 24, variant % 4 == 3 ? 3 : 4);
        c.params.sign = variant % 2 ? TGL_ENGRAM_SIGN_BIT : TGL_ENGRAM_SIGN_ZERO;
        c.params.no_residual = variant == 4, c.params.no_activation = variant == 5, c.params.round_each = variant == 6;
        c.params.norm_zero_centered = variant == 7, c.params.keep_ring = variant == 8;
        c.params.has_norm_eps = variant == 9, c.params.norm_eps = 0.25f;
        if (variant == 10) memset(c.k, 0, sizeof c.k);
        c.has_mask = variant % 2;
        for (int t = 0; t < 40; t++) c.mask[t] = t % 7 == 3;
        for (int i = 0; c.has_mask && i < 24; i++) c.v[3 * c.hidden + i] = c.k[3 * c.hidden + i] = NAN;
        c.requests = 3, c.cu_seqlens = cu;
        check_both(name, &c, NULL, 0);
        c.start_pos = INTS(7, 0, 30), c.slots = INTS(2, 0, 1), c.num_slots = 3, c.ring_size = 12 - variant % 3;
        check_both(name, &c, ring, sizeof *ring * (size_t)(3 * c.ring_size * c.hidden));
    }
}

/* ---- state that rolls back by itself ---- */

TEST(rejected_tokens) /* whatever was at their positions, the run is the uncut one */
{
    enum { LENGTH = 40, DRAFTS = 5, WIDTH = 16 };
    static call whole, part;
    static uint16_t want[LENGTH * WIDTH], made[LENGTH * WIDTH], ring[(9 + DRAFTS) * WIDTH];
    whole = random_call("rejected", LENGTH, 1, WIDTH, 4);
    FOR_BACKENDS(b) {
        test_random r = test_seed("rejected");
        call_fused(b, &whole, want);
        part = whole, part.ring = ring, part.num_slots = 1, part.ring_size = 9 + DRAFTS;
        memset(ring, 0x7f, sizeof ring);
        for (int next = 0; next < LENGTH;) {
            const int left = LENGTH - next, q = 1 + (int)test_below(&r, left < DRAFTS ? left : DRAFTS);
            const int accepted = 1 + (int)test_below(&r, q);
            part.tokens = q, part.start_pos = INTS(next);
            memcpy(part.x, whole.x + next * WIDTH, (size_t)q * WIDTH * 4);
            memcpy(part.k, whole.k + next * WIDTH, (size_t)q * WIDTH * 4);
            for (int i = 0; i < q * WIDTH; i++) part.v[i] = i < accepted * WIDTH ? whole.v[next * WIDTH + i] : 3;
            call_fused(b, &part, made);
            CHECK_THAT(!memcmp(made, want + next * WIDTH, (size_t)accepted * WIDTH * 2), "%s: from %d on", b->name,
                       next);
            next += accepted;
        }
    }
}

/* ---- one launch ---- */

TEST(devices_agree_to_the_bit)
{
    check_same_bits(
        "engram_gate_conv_fwd",
        CASE_LINES(
            "num_tokens=20 num_streams=2 hidden=264 requests=3 mask=some", "num_tokens=12 num_streams=1 hidden=2560",
            "num_tokens=12 num_streams=1 hidden=5120", "num_tokens=12 num_streams=2 hidden=40 round_each=1",
            "num_tokens=24 num_streams=1 hidden=7168 requests=3 past=ring start=small drafts=0 mask=some values=special",
            "num_tokens=40 num_streams=2 hidden=40 requests=5 past=ring start=small drafts=0 weights=bf16",
            "num_tokens=40 num_streams=2 hidden=40 requests=30 past=ring start=small values=special"),
        2);
}

TEST(graph)
{
    check_replayed("engram_gate_conv_fwd", "num_tokens=20 num_streams=2 hidden=264 requests=3 mask=some", 1);
    check_replayed("engram_gate_conv_fwd",
                   "num_tokens=20 num_streams=2 hidden=40 requests=9 past=ring start=small slots=shuffled "
                   "keep_ring=1",
                   1);
}

TEST(num_sms)
{
    check_num_sms(
        "engram_gate_conv_fwd",
        CASE_LINES("num_tokens=90 num_streams=2 hidden=16 requests=3,40 past=ring start=small drafts=0,6 mask=some"));
}

/* ---- errors ---- */

extern tgl_signature tgl_engram_gate_conv_fwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    const tgl_engram_batch batch = { .cu_seqlens = t[10], .start_pos = t[11], .slots = t[12] };
    return tgl_engram_gate_conv_fwd(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[13], &batch, params,
                                    NULL);
}
#define GOOD_CALL                        \
    &tgl_engram_gate_conv_fwd_signature, \
        "num_tokens=3 num_streams=2 hidden=8 kernel_size=2 num_slots=2 ring_size=5 num_requests=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "hidden_states: dtype is f16, want bf16");
    CHECK_ERROR(x[6].shape[0] = 17; x[6].strides = NULL, "conv_weight: shape is [17, 2], want [16, 1..64]");
    CHECK_ERROR(x[9].shape[1] = 2; x[9].strides = NULL, "ring: shape is [2, 2, ...], want [2, >= 3, ...]");
    CHECK_ERROR(c->tensors[11] = NULL, "start_pos: is NULL, want a tensor with ring");
    CHECK_ERROR(c->tensors[9] = NULL, "ring: is NULL, want a tensor with slots");
    CHECK_ERROR(c->tensors[10] = NULL, "cu_seqlens: is NULL, want a tensor with 2 requests");
    CHECK_ERROR(x[13].strides[1] = 7,
                "out: strides are [16, 7, 1], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(c->tensors[13] = c->tensors[0], "out: memory is shared with hidden_states, want no overlap");
}

TEST(empty)
{
    check_empty(&tgl_engram_gate_conv_fwd_signature,
                "num_tokens=0 num_streams=2 hidden=8 kernel_size=2 num_slots=2 ring_size=5 num_requests=2", invoke);
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
