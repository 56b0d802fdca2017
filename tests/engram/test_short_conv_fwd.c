/* SPDX-License-Identifier: MIT
 * tgl_engram_short_conv_fwd, on every device of the tests. Written from the specification: RMSNorm rounded to bf16,
 * taps that reach back in the request or into the ring by position, SiLU. */
#include "gate_support.h"
#include "src/engram/common/silu.h"

TESTS_OF_TABLE("engram_short_conv_fwd")

/* ---- calls on tensors written by hand; x, residual and out as floats ---- */

enum { MOST = 2048 };
typedef struct {
    int64_t tokens, streams, hidden, taps, requests, num_slots, ring_size;
    float x[MOST], residual[MOST], norm[64], conv[512], bias[64];
    bool has_residual, has_bias, has_mask, mask[256];
    const int32_t *cu_seqlens, *start_pos, *slots;
    uint16_t *ring; /* gets what the call makes of it; NULL: none */
    tgl_engram_short_conv_params params;
} call;

static DLTensor *place_given(const backend *b, tensor *t, tgl_dtype dtype, int64_t count, const void *contents)
{
    t->t.data = NULL;
    return contents ? place(b, t, dtype, 1, SHAPE(count), contents) : NULL;
}

static void call_conv(const backend *b, const call *c, uint16_t *out)
{
    const int64_t *rows = SHAPE(c->tokens, c->streams, c->hidden);
    tensor x, norm, conv, bias, residual, mask, ring, cu, start, slots, made;
    int64_t ring_shape[] = { c->num_slots, c->ring_size, c->streams, c->hidden };
    const tgl_engram_batch batch = {
        .cu_seqlens = place_given(b, &cu, TGL_I32, c->requests + 1, c->cu_seqlens),
        .start_pos = place_given(b, &start, TGL_I32, c->requests, c->start_pos),
        .slots = place_given(b, &slots, TGL_I32, c->requests, c->slots),
    };
    const int64_t ring_elements = c->num_slots * c->ring_size * c->streams * c->hidden;
    DLTensor *given = place_given(b, &ring, TGL_BF16, ring_elements, c->ring), ring_tensor;
    if (given) ring_tensor = *given, ring_tensor.ndim = 4, ring_tensor.shape = ring_shape, ring_tensor.strides = NULL;
    residual.t.data = NULL;
    CHECK_OK(tgl_engram_short_conv_fwd(
        put(b, &x, TGL_BF16, 3, rows, c->x), put(b, &norm, TGL_F32, 2, rows + 1, c->norm),
        put(b, &conv, TGL_BF16, 2, SHAPE(c->streams * c->hidden, c->taps), c->conv),
        place_given(b, &bias, TGL_F32, c->streams * c->hidden, c->has_bias ? c->bias : NULL),
        c->has_residual ? put(b, &residual, TGL_BF16, 3, rows, c->residual) : NULL,
        place_given(b, &mask, TGL_BOOL, c->tokens, c->has_mask ? c->mask : NULL), given ? &ring_tensor : NULL,
        place(b, &made, TGL_BF16, 3, rows, NULL), NULL, &batch, &c->params, b->stream));
    fetch(b, &made, out);
    if (given) fetch(b, &ring, c->ring);
    tensor *const rest[] = { &x, &norm, &conv, &bias, &residual, &mask, &cu, &start, &slots };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (rest[i]->t.data) discard(b, rest[i]);
}
#define INTS(...) ((int32_t[]){ __VA_ARGS__ })

static void check_values(const backend *b, const char *what, const uint16_t *seen, const float *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!CHECK_THAT(value(seen[i]) == want[i], "%s: %s: number %lld is %.9g, want %.9g", b->name, what,
                        (long long)i, (double)value(seen[i]), (double)want[i]))
            return;
}

/* ---- example: a sequence at once, and again by a ring, with a draft token that is rejected ---- */

TEST(worked_example)
{
    /* doc: short_conv */
    static call c = {
        .tokens = 6,
        .streams = 1,
        .hidden = 2,
        .taps = 2,
        .requests = 1,
        .x = { 3, 4, /**/ 1, -1, /**/ 0, 2, /**/ -2, 2, /**/ 1, 1, /**/ 2, 0 },
        .norm = { 1, 2 },
        .conv = { 0.5f, 1, /**/ -1, 0.25f },
        .params = { .dilation = 3, .add_input = true },
    };
    const float out[] = { 3.59375f,   4.375f,     /**/ 1.734375f, -1.1875f, /**/ 0,         2.46875f,
                          -2.203125f, 1.7421875f, /**/ 2.21875f,  3.3125f,  /**/ 3.140625f, -0.158203125f };
    /* end */
    FOR_BACKENDS(b) {
        static call part;
        uint16_t made[12], ring[10];
        call_conv(b, &c, made);
        check_values(b, "out", made, out, 12);
        memset(ring, 0x7f, sizeof ring); /* of an earlier request: never read */
        part = c, part.ring = ring, part.num_slots = 1, part.ring_size = 5, part.tokens = 3, part.start_pos = INTS(0);
        call_conv(b, &part, made); /* prefill: positions 0, 1, 2 */
        check_values(b, "prefill", made, out, 6);
        memcpy(part.x, (float[]){ -2, 2, 8, -8 }, 16), part.tokens = 2, part.start_pos = INTS(3);
        call_conv(b, &part, made); /* position 3, and a wrong token at 4 */
        check_values(b, "draft", made, out + 6, 2);
        check_values(b, "ring", ring + 8, (float[]){ 1, -2 }, 2);
        memcpy(part.x, c.x + 8, 16), part.start_pos = INTS(4);
        call_conv(b, &part, made);
        check_values(b, "after it", made, out + 8, 4);
        check_values(b, "ring", ring, (float[]){ 1.4140625f, 0, 1, -2, 0, 2.828125f, -1, 2, 1, 2 }, 10);
    }
}

/* ---- invariants ---- */

static call random_call(const char *name, int64_t tokens, int64_t streams, int64_t hidden, int64_t taps)
{
    call c = { .tokens = tokens,
               .streams = streams,
               .hidden = hidden,
               .taps = taps,
               .requests = 1,
               .params = { .add_input = true } };
    test_random r = test_seed(name);
    for (int i = 0; i < MOST; i++) c.x[i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    for (int i = 0; i < MOST; i++) c.residual[i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    for (int i = 0; i < 64; i++) c.norm[i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    for (int i = 0; i < 512; i++) c.conv[i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    return c;
}

TEST(weights_of_zero) /* leave x and residual, exactly */
{
    static call c;
    static uint16_t out[MOST];
    c = random_call("zero", 20, 2, 24, 4);
    memset(c.conv, 0, sizeof c.conv);
    FOR_BACKENDS(b)
        for (int has_residual = 0; has_residual < 2; has_residual++) {
            c.has_residual = has_residual;
            call_conv(b, &c, out);
            for (int i = 0; i < 20 * 48; i++)
                REQUIRE(value(out[i]) == value(bf16(c.x[i] + (has_residual ? c.residual[i] : 0))));
        }
}

TEST(a_zero_keeps_its_sign) /* with nothing to add: norm and bias -0 make z -0, in kernels for few, many and any rows */
{
    static call c;
    static uint16_t out[MOST];
    FOR_BACKENDS(b)
        for (int i = 0; i < 8; i++) {
            c = (call){ .tokens = i & 1 ? 3 : 200, .streams = 1, .hidden = i & 2 ? 8 : 7, .taps = 1, .requests = 1 };
            c.has_bias = true, c.params.no_activation = i & 4;
            for (int j = 0; j < MOST; j++) c.x[j] = 1;
            for (int j = 0; j < 8; j++) c.norm[j] = c.bias[j] = -0.0f, c.conv[j] = 1;
            call_conv(b, &c, out);
            for (int64_t j = 0; j < c.tokens * c.hidden; j++) REQUIRE(out[j] == 0x8000);
        }
}

TEST(causality) /* a token changes nothing before it, and what it reaches behind it */
{
    static call c, other;
    static uint16_t out[MOST], changed[MOST];
    c = random_call("causality", 30, 1, 16, 4);
    other = c;
    for (int i = 0; i < 16; i++) other.x[12 * 16 + i] += 1;
    FOR_BACKENDS(b) {
        call_conv(b, &c, out);
        call_conv(b, &other, changed);
        for (int t = 0; t < 30; t++) {
            const bool is_reached = t == 12 || t == 15 || t == 18 || t == 21;
            CHECK_THAT((memcmp(out + t * 16, changed + t * 16, 32) != 0) == is_reached, "%s: token %d", b->name, t);
        }
    }
}

TEST(packed_requests_are_separate_ones)
{
    static call c, one;
    static uint16_t all[MOST], alone[MOST];
    static const int32_t cu[] = { 0, 0, 1, 9, 9, 30, 40 };
    c = random_call("packed", 40, 2, 16, 3);
    c.params.dilation = 2, c.requests = 6, c.cu_seqlens = cu;
    FOR_BACKENDS(b) {
        call_conv(b, &c, all);
        for (int i = 0; i < 6; i++) {
            one = c, one.cu_seqlens = NULL, one.requests = 1, one.tokens = cu[i + 1] - cu[i];
            if (one.tokens == 0) continue;
            memcpy(one.x, c.x + cu[i] * 32, (size_t)one.tokens * 128);
            call_conv(b, &one, alone);
            CHECK(!memcmp(alone, all + cu[i] * 32, (size_t)one.tokens * 64));
        }
    }
}

TEST(masked_tokens) /* their x does not matter, not to later tokens and not to the ring */
{
    static call c, zeroed;
    static uint16_t out[MOST], want[MOST], ring[12 * 16], want_ring[12 * 16];
    c = random_call("masked", 20, 1, 16, 4);
    c.has_residual = c.has_mask = true, c.num_slots = 1, c.ring_size = 12, c.start_pos = INTS(0);
    for (int t = 3; t < 20; t += 5) c.mask[t] = true;
    for (int i = 0; i < 16; i++) c.norm[i] = fabsf(c.norm[i]); /* 0 stays +0 */
    zeroed = c, zeroed.has_mask = false, zeroed.ring = want_ring;
    c.ring = ring;
    for (int t = 3; t < 20; t += 5)
        for (int i = t * 16; i < (t + 1) * 16; i++) c.x[i] = NAN, zeroed.x[i] = 0;
    FOR_BACKENDS(b) {
        memset(ring, 1, sizeof ring), memset(want_ring, 1, sizeof want_ring);
        call_conv(b, &c, out);
        call_conv(b, &zeroed, want);
        for (int t = 3; t < 20; t += 5)
            for (int i = t * 16; i < (t + 1) * 16; i++) want[i] = bf16(c.residual[i]);
        CHECK(!memcmp(out, want, 20 * 32) && !memcmp(ring, want_ring, sizeof ring));
    }
}

TEST(weights_stored_minus_one) /* 1 + w is not rounded to bf16 */
{
    static call c, whole;
    static uint16_t out[MOST], want[MOST];
    c = random_call("minus one", 20, 1, 16, 4);
    whole = c;
    for (int i = 0; i < 16; i++) c.norm[i] = 0x1.234p-9f * (float)(i + 1), whole.norm[i] = 1 + c.norm[i];
    c.params.zero_centered = true;
    FOR_BACKENDS(b) {
        call_conv(b, &c, out);
        call_conv(b, &whole, want);
        CHECK(!memcmp(out, want, 20 * 32));
    }
}

TEST(sigmoid) /* within 2^-21 of e's power, everywhere; below -80 as at -80 */
{
    double worst = 0;
    for (float z = -80; z < 95; z += 0x1.3p-8f) {
        const double want = 1 / (1 + exp(-(double)z)), seen = 1 / (double)conv_sigmoid_divisor(z);
        worst = fmax(worst, fabs(seen / want - 1));
    }
    CHECK_THAT(worst < 0x1p-21, "error %g", worst);
    CHECK(conv_sigmoid_divisor(-INFINITY) == conv_sigmoid_divisor(-80) && conv_bounded(-INFINITY) == -80);
    CHECK(conv_sigmoid_divisor(INFINITY) == 1 && isnan(conv_bounded(NAN)));
}

/* ---- state that rolls back by itself ---- */

enum { LONGEST = 40, REQUESTS = 3, MAX_CHUNK = 24, WIDTH = 8 };
typedef struct {
    float x[LONGEST * WIDTH];
    uint16_t out[LONGEST * WIDTH];
    int64_t length, next;
} sequence;

static void start_sequence(const backend *b, test_random *r, sequence *s, const call *c)
{
    static call whole;
    whole = *c;
    s->length = 1 + test_below(r, LONGEST), s->next = 0;
    for (int i = 0; i < LONGEST * WIDTH; i++) s->x[i] = value(bf16((float)(test_below(r, 401) - 200) / 100));
    memcpy(whole.x, s->x, sizeof s->x);
    whole.tokens = s->length, whole.requests = 1;
    whole.ring = NULL, whole.cu_seqlens = whole.start_pos = whole.slots = NULL;
    call_conv(b, &whole, s->out);
}

/* One run of prefills, drafts and roll-backs, with requests that begin again in a slot -> chunks that were wrong. */
static int run_schedule(const backend *b, int number, int64_t taps, int64_t dilation, int64_t max_draft,
                        int64_t ring_size)
{
    char name[64];
    snprintf(name, sizeof name, "schedule %d", number);
    test_random r = test_seed(name);
    static sequence all[REQUESTS];
    static call c;
    static uint16_t ring[REQUESTS * 64 * WIDTH], out[REQUESTS * MAX_CHUNK * WIDTH];
    int32_t slots[REQUESTS], cu[REQUESTS + 1], start[REQUESTS];
    int num_wrong = 0;
    c = random_call(name, 0, 1, WIDTH, taps);
    c.params.dilation = dilation;
    for (int i = 0; i < REQUESTS * 64 * WIDTH; i++) ring[i] = bf16((float)test_below(&r, 9));
    for (int i = 0; i < REQUESTS; i++) slots[i] = (i + number) % REQUESTS, start_sequence(b, &r, &all[i], &c);
    c.cu_seqlens = cu, c.start_pos = start, c.slots = slots, c.requests = REQUESTS;
    c.ring = ring, c.num_slots = REQUESTS, c.ring_size = ring_size;
    for (int step = 0; step < 8; step++) {
        int64_t right[REQUESTS], accepted[REQUESTS];
        cu[0] = 0;
        for (int i = 0; i < REQUESTS; i++) {
            sequence *s = &all[i];
            if (s->next == s->length) start_sequence(b, &r, s, &c);
            const int64_t left = s->length - s->next;
            const bool is_draft = test_below(&r, 3) > 0;
            int64_t q = test_below(&r, (is_draft ? max_draft : MAX_CHUNK) + 1);
            if (!is_draft && q > left) q = left;
            right[i] = q < left ? q : left; /* tokens that are the sequence's */
            if (is_draft && right[i] > 0) right[i] = test_below(&r, right[i] + 1);
            accepted[i] = is_draft ? test_below(&r, right[i] + 1) : q;
            start[i] = (int32_t)s->next, cu[i + 1] = cu[i] + (int32_t)q;
            for (int64_t n = 0; n < q * WIDTH; n++)
                c.x[cu[i] * WIDTH + n] =
                    n < right[i] * WIDTH ? s->x[s->next * WIDTH + n] : (float)test_below(&r, 5) - 2;
        }
        c.tokens = cu[REQUESTS];
        if (c.tokens > 0) call_conv(b, &c, out);
        for (int i = 0; i < REQUESTS; i++) {
            num_wrong += memcmp(out + cu[i] * WIDTH, all[i].out + all[i].next * WIDTH,
                                (size_t)right[i] * WIDTH * sizeof *out) != 0;
            all[i].next += accepted[i];
        }
    }
    return num_wrong;
}

TEST(schedules) /* give the bits of the uncut run, whatever was rejected */
{
    FOR_BACKENDS(b) {
        const int count = b->is_emulated && !test_slow() ? 24 : 200;
        for (int i = 0; i < count; i++) {
            const int64_t taps = 2 + i % 4, dilation = 1 + i / 3 % 3, q = 1 + i % 5;
            CHECK_THAT(run_schedule(b, i, taps, dilation, q, (taps - 1) * dilation + q) == 0, "%s: schedule %d",
                       b->name, i);
        }
    }
}

TEST(a_ring_that_is_too_short_shows) /* so the test above can fail */
{
    const backend *b = backend_of_tests(0);
    const int count = b->is_emulated && !test_slow() ? 24 : 200;
    int num_wrong = 0;
    for (int i = 0; i < count; i++) {
        const int64_t taps = 2 + i % 4, dilation = 1 + i / 3 % 3, q = 2 + i % 5;
        num_wrong += run_schedule(b, i, taps, dilation, q, (taps - 1) * dilation + q - 1) > 0;
    }
    CHECK(num_wrong > 0);
}

/* ---- one launch ---- */

TEST(devices_agree_to_the_bit)
{
    check_same_bits(
        "engram_short_conv_fwd",
        CASE_LINES("num_tokens=20 num_streams=2 hidden=264 requests=3 mask=some",
                   "num_tokens=12 num_streams=1 hidden=2560", "num_tokens=11 num_streams=1 hidden=64 kernel_size=5",
                   "num_tokens=12 num_streams=2 hidden=40 round_each=1",
                   "num_tokens=40 num_streams=2 hidden=40 requests=5 past=ring start=small drafts=0",
                   "num_tokens=40 num_streams=2 hidden=40 requests=30 past=ring start=small values=special"),
        2);
}

TEST(graph)
{
    check_replayed("engram_short_conv_fwd", "num_tokens=20 num_streams=2 hidden=264 requests=3 mask=some", 1);
    check_replayed("engram_short_conv_fwd",
                   "num_tokens=20 num_streams=2 hidden=40 requests=9 past=ring start=small slots=shuffled "
                   "keep_ring=1",
                   1);
}

TEST(num_sms)
{
    check_num_sms(
        "engram_short_conv_fwd",
        CASE_LINES("num_tokens=90 num_streams=2 hidden=16 requests=3,40 past=ring start=small drafts=0,6 mask=some"));
}

/* ---- errors ---- */

extern tgl_signature tgl_engram_short_conv_fwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    const tgl_engram_batch batch = { .cu_seqlens = t[7], .start_pos = t[8], .slots = t[9] };
    return tgl_engram_short_conv_fwd(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[10], t[11], &batch, params, NULL);
}
#define GOOD_CALL                         \
    &tgl_engram_short_conv_fwd_signature, \
        "num_tokens=3 num_streams=2 hidden=8 kernel_size=2 num_slots=2 ring_size=5 num_requests=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "x: dtype is f16, want bf16");
    CHECK_ERROR(x[2].shape[0] = 17; x[2].strides = NULL, "conv_weight: shape is [17, 2], want [16, 1..64]");
    CHECK_ERROR(x[6].shape[1] = 2; x[6].strides = NULL, "ring: shape is [2, 2, ...], want [2, >= 3, ...]");
    CHECK_ERROR(c->tensors[8] = NULL, "start_pos: is NULL, want a tensor with ring");
    CHECK_ERROR(c->tensors[6] = NULL, "ring: is NULL, want a tensor with slots");
    CHECK_ERROR(c->tensors[7] = NULL, "cu_seqlens: is NULL, want a tensor with 2 requests");
    CHECK_ERROR(x[10].strides[1] = 7,
                "out: strides are [16, 7, 1], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(c->tensors[10] = c->tensors[0], "out: memory is shared with x, want no overlap");
}

TEST(empty)
{
    check_empty(&tgl_engram_short_conv_fwd_signature,
                "num_tokens=0 num_streams=2 hidden=8 kernel_size=2 num_slots=2 ring_size=5 num_requests=2", invoke);
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
