/* SPDX-License-Identifier: MIT
 * tgl_engram_gate_bwd and tgl_engram_grad_w_reduce behind it, on every device of the tests. Written from the
 * specification; gradients are those that finite differences of the formulas of the forward give, in double. */
#include "gate_support.h"

TESTS_OF_TABLE("engram_gate_bwd")

/* ---- calls on arrays: forward, backward, and gradients of both weights ---- */

typedef struct {
    int64_t tokens, streams, hidden, partials;
    float go[MAX], x[MAX], k[MAX], v[MAX], wh[MAX], we[MAX];
    bool mask[8], has_mask, is_joined; /* grad_k and grad_v are views of one tensor */
    tgl_engram_gate_params params;
} call;
typedef struct {
    uint16_t grad_x[MAX], grad_k[MAX], grad_v[MAX];
    float grad_w[4 * MAX], grad_wh[MAX], grad_we[MAX], dot[64], gate[64], rstd_x[64], rstd_k[64];
} answer;

static void gradients(const backend *b, const call *c, answer *a)
{
    const int64_t t = c->tokens, h = c->streams, d = c->hidden;
    static const float zeros[MAX];
    tensor go, x, k, v, wh, we, mask, out, saved[4], grad_x, grad_k, grad_v, grad_w, grad_wh, grad_we;
    float *const to[] = { a->dot, a->gate, a->rstd_x, a->rstd_k };
    put(b, &go, TGL_BF16, 3, SHAPE(t, h, d), c->go);
    put(b, &x, TGL_BF16, 3, SHAPE(t, h, d), c->x);
    put(b, &k, TGL_BF16, 3, SHAPE(t, h, d), c->k);
    put(b, &v, TGL_BF16, 2, SHAPE(t, d), c->v);
    put(b, &wh, TGL_BF16, 2, SHAPE(h, d), c->wh);
    put(b, &we, TGL_BF16, 2, SHAPE(h, d), c->we);
    place(b, &mask, TGL_BOOL, 1, SHAPE(t), c->mask);
    place(b, &out, TGL_BF16, 3, SHAPE(t, h, d), NULL);
    for (int i = 0; i < 4; i++) place(b, &saved[i], TGL_F32, 2, SHAPE(t, h), NULL);
    place(b, &grad_x, TGL_BF16, 3, SHAPE(t, h, d), NULL);
    place(b, &grad_k, TGL_BF16, 3, SHAPE(t, h + c->is_joined, d), NULL);
    if (c->is_joined) {
        grad_k.shape[1] = h;
        grad_v = grad_k;
        grad_v.t.shape = grad_v.shape, grad_v.t.strides = grad_v.strides, grad_v.t.ndim = 2;
        grad_v.t.byte_offset = (uint64_t)(2 * h * d);
        grad_v.shape[1] = d, grad_v.strides[1] = 1;
    } else place(b, &grad_v, TGL_BF16, 2, SHAPE(t, d), NULL);
    place(b, &grad_w, TGL_F32, 3, SHAPE(c->partials, h, d), NULL);
    place(b, &grad_wh, TGL_F32, 2, SHAPE(h, d), zeros);
    place(b, &grad_we, TGL_F32, 2, SHAPE(h, d), zeros);
    DLTensor *const m = c->has_mask ? &mask.t : NULL;
    CHECK_OK(tgl_engram_gate_fwd(&x.t, &k.t, &v.t, &wh.t, &we.t, m, &out.t, &saved[0].t, &saved[1].t, &saved[2].t,
                                 &saved[3].t, &c->params, b->stream));
    CHECK_OK(tgl_engram_gate_bwd(&go.t, &x.t, &k.t, &v.t, &wh.t, &we.t, m, &saved[0].t, &saved[1].t, &saved[2].t,
                                 &saved[3].t, &grad_x.t, &grad_k.t, &grad_v.t, &grad_w.t, &c->params, b->stream));
    CHECK_OK(tgl_engram_grad_w_reduce(&grad_w.t, &wh.t, &we.t, &grad_wh.t, &grad_we.t, c->params.zero_centered,
                                      b->stream));
    fetch(b, &grad_x, a->grad_x), fetch(b, &grad_w, a->grad_w);
    fetch(b, &grad_wh, a->grad_wh), fetch(b, &grad_we, a->grad_we);
    if (c->is_joined) {
        static uint16_t both[MAX];
        grad_k.shape[1] = h + 1;
        fetch(b, &grad_k, both);
        for (int64_t i = 0; i < t; i++) {
            memcpy(a->grad_k + i * h * d, both + i * (h + 1) * d, (size_t)(h * d * 2));
            memcpy(a->grad_v + i * d, both + i * (h + 1) * d + h * d, (size_t)(d * 2));
        }
    } else fetch(b, &grad_k, a->grad_k), fetch(b, &grad_v, a->grad_v);
    for (int i = 0; i < 4; i++) fetch(b, &saved[i], to[i]);
    discard(b, &go), discard(b, &x), discard(b, &k), discard(b, &v), discard(b, &wh), discard(b, &we);
    discard(b, &mask), discard(b, &out);
}

static call random_call(const char *name, int64_t tokens, int64_t streams, int64_t hidden)
{
    call c = { .tokens = tokens,
               .streams = streams,
               .hidden = hidden,
               .partials = 2,
               .params = { .eps = 1e-20f, .clamp_value = 1e-6f } };
    test_random r = test_seed(name);
    float *const all[] = { c.go, c.x, c.k, c.v, c.wh, c.we };
    for (int j = 0; j < 6; j++)
        for (int64_t i = 0; i < tokens * streams * hidden && i < MAX; i++)
            all[j][i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    return c;
}

/* ---- example ---- */

TEST(worked_example)
{
    /* doc: gate_bwd */
    static call c = {
        .tokens = 1,
        .streams = 1,
        .hidden = 4,
        .partials = 1,
        .go = { 1, -1, 2, 0.5f }, /* the rest as in the example of the forward */
        .x = { 1, 2, -1, 0.5f },
        .k = { 0.5f, 1, 1, -2 },
        .v = { 2, -1, 0.5f, 4 },
        .wh = { 1, 1, 2, 1 },
        .we = { 1, 0.5f, 1, 2 },
        .params = { .eps = 1e-20f, .clamp_value = 1e-6f },
        /* A = 6, q = 0.221083860, dot * rstd^2 / hidden = -0.4 */
    };
    const float grad_x[] = { 1.1953125f, -0.7109375f, 2.359375f, -0.33984375f };
    const float grad_k[] = { 0.265625f, 0.30859375f, -0.353515625f, 0.044189453125f };
    const double grad_w[] = { 0.11054193, 0.44216772, -0.22108386, -0.22108386 };
    /* end */
    const double grad_wh[] = { 0.11054193, 0.22108386, -0.22108386, -0.44216772 };
    const double grad_we[] = { 0.11054193, 0.44216772, -0.44216772, -0.22108386 };
    FOR_BACKENDS(b) {
        static answer a;
        gradients(b, &c, &a);
        for (int i = 0; i < 4; i++) {
            CHECK_THAT(value(a.grad_x[i]) == grad_x[i], "%s: grad_x %g", b->name, (double)value(a.grad_x[i]));
            CHECK_THAT(value(a.grad_k[i]) == grad_k[i], "%s: grad_k %g", b->name, (double)value(a.grad_k[i]));
            CHECK(value(a.grad_v[i]) == value(bf16(a.gate[0] * c.go[i])));
            CHECK(fabs((double)a.grad_w[i] - grad_w[i]) < 6e-8);
            CHECK(fabs((double)a.grad_wh[i] - grad_wh[i]) < 6e-8 && fabs((double)a.grad_we[i] - grad_we[i]) < 6e-8);
        }
    }
}

/* ---- finite differences ---- */

enum { TOKENS = 3, STREAMS = 2, COLUMNS = 11, ROWS = TOKENS * STREAMS };
typedef struct {
    double x[ROWS * COLUMNS], k[ROWS * COLUMNS], v[TOKENS * COLUMNS], wh[STREAMS * COLUMNS], we[STREAMS * COLUMNS];
} inputs;

/* sum of go * output over the columns of a token's stream, as the forward defines it */
static double loss_of_row(const call *c, const inputs *in, int t, int h)
{
    const double *x = in->x + (t * STREAMS + h) * COLUMNS, *k = in->k + (t * STREAMS + h) * COLUMNS;
    const double *wh = in->wh + h * COLUMNS, *we = in->we + h * COLUMNS, one = c->params.zero_centered;
    double squares_x = 0, squares_k = 0, dot = 0, total = 0;
    for (int i = 0; i < COLUMNS; i++) {
        squares_x += x[i] * x[i], squares_k += k[i] * k[i];
        dot += x[i] * k[i] * (one + wh[i]) * (one + we[i]);
    }
    const double s = dot / sqrt(squares_x / COLUMNS + (double)c->params.eps) /
                     sqrt(squares_k / COLUMNS + (double)c->params.eps) / sqrt(COLUMNS);
    const double root = sqrt(fmax(fabs(s), (double)c->params.clamp_value));
    const double gate = c->has_mask && c->mask[t] ? 0 : 1 / (1 + exp(s < 0 ? root : -root));
    for (int i = 0; i < COLUMNS; i++)
        total += (double)c->go[(t * STREAMS + h) * COLUMNS + i] *
                 ((c->params.no_residual ? 0 : x[i]) + gate * in->v[t * COLUMNS + i]);
    return total;
}

static double loss(const call *c, const inputs *in)
{
    double total = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < STREAMS; h++) total += loss_of_row(c, in, t, h);
    return total;
}

static double slope(const call *c, inputs *in, double *at)
{
    const double was = *at, step = 1e-5;
    *at = was + step;
    const double above = loss(c, in);
    *at = was - step;
    const double below = loss(c, in);
    *at = was;
    return (above - below) / (2 * step);
}

static bool is_close(float seen, double want, double ulp)
{
    return fabs((double)seen - want) <= ulp * fabs(want) + 2e-6;
}

static void widen(double *to, const float *from, int count)
{
    for (int i = 0; i < count; i++) to[i] = (double)from[i];
}

/* All of a gradient against the slopes at its argument, which is in `in`. */
static void check_slopes(const char *what, const call *c, inputs *in, double *at, int count, const float *seen,
                         const uint16_t *seen_bf16)
{
    for (int i = 0; i < count; i++) {
        const double want = slope(c, in, &at[i]);
        const float s = seen ? seen[i] : value(seen_bf16[i]);
        CHECK_THAT(is_close(s, want, seen ? 1e-5 : 0x1p-8), "%s[%d]: %g, want %g", what, i, (double)s, want);
    }
}

TEST(finite_differences) /* all of residual, stored minus 1, a clamp that cuts, a masked token in the middle */
{
    static call c;
    static answer a;
    FOR_BACKENDS(b)
        for (int n = 0; n < 16; n++)
            for (int sample = 0; sample < 4; sample++) {
                char name[32];
                snprintf(name, sizeof name, "differences %d", sample);
                c = random_call(name, TOKENS, STREAMS, COLUMNS);
                c.params.no_residual = n & 1, c.params.zero_centered = n & 2;
                c.params.clamp_value = n & 4 ? 0.3f : 1e-6f;
                c.has_mask = n & 8, c.mask[1] = true;
                inputs in;
                widen(in.x, c.x, ROWS * COLUMNS), widen(in.k, c.k, ROWS * COLUMNS), widen(in.v, c.v, TOKENS * COLUMNS);
                widen(in.wh, c.wh, STREAMS * COLUMNS), widen(in.we, c.we, STREAMS * COLUMNS);
                gradients(b, &c, &a);
                check_slopes("grad_x", &c, &in, in.x, ROWS * COLUMNS, NULL, a.grad_x);
                check_slopes("grad_k", &c, &in, in.k, ROWS * COLUMNS, NULL, a.grad_k);
                check_slopes("grad_v", &c, &in, in.v, TOKENS * COLUMNS, NULL, a.grad_v);
                check_slopes("grad_weight_hidden", &c, &in, in.wh, STREAMS * COLUMNS, a.grad_wh, NULL);
                check_slopes("grad_weight_embed", &c, &in, in.we, STREAMS * COLUMNS, a.grad_we, NULL);
            }
}

/* ---- rules ---- */

TEST(rows_below_the_clamp) /* only the residual passes; at the clamp the gradient does */
{
    static call c = { .tokens = 1,
                      .streams = 1,
                      .hidden = 4,
                      .partials = 1,
                      .go = { 1, -1, 2, 3 },
                      .x = { 2, 2, 2, -2 },
                      .k = { 1, 1, 1, 1 },
                      .v = { 1, 2, 1, 1 },
                      .wh = { 0.125f, 0.125f, 0.125f, 0.125f },
                      .we = { 1, 1, 1, 1 } }; /* dot 0.5, rstd 0.5 and 1: s = 0.125 */
    FOR_BACKENDS(b)
        for (int n = 0; n < 3; n++) {
            static answer a;
            c.params.clamp_value = n == 0 ? 0.125f - 0x1p-27f : n == 1 ? 0.125f : 0.125f + 0x1p-26f;
            gradients(b, &c, &a);
            for (int i = 0; i < 4; i++) {
                CHECK((value(a.grad_k[i]) == 0) == (n == 2) && (a.grad_w[i] == 0) == (n == 2));
                if (n == 2) CHECK(value(a.grad_x[i]) == c.go[i]);
            }
        }
}

TEST(zero_scores) /* with a clamp of 0 the slope is infinite there; the gradient is 0 */
{
    static call c;
    c = random_call("zero scores", 1, 2, 40);
    for (int i = 0; i < 80; i++) c.k[i] = 0;
    c.params.clamp_value = 0;
    FOR_BACKENDS(b) {
        static answer a;
        gradients(b, &c, &a);
        for (int i = 0; i < 80; i++)
            CHECK(value(a.grad_x[i]) == c.go[i] && value(a.grad_k[i]) == 0 && a.grad_w[i] == 0);
    }
}

TEST(small_activations) /* c * rstd_x * rstd_k / |dot| would overflow */
{
    static call c;
    c = random_call("small", 1, 1, 64);
    for (int i = 0; i < 64; i++) c.x[i] *= 1e-12f, c.k[i] *= 1e-12f;
    c.params.eps = 1e-30f;
    FOR_BACKENDS(b) {
        static answer a;
        gradients(b, &c, &a);
        int num_gradients = 0;
        for (int i = 0; i < 64; i++) {
            REQUIRE(isfinite(value(a.grad_x[i])) && isfinite(value(a.grad_k[i])) && isfinite(a.grad_w[i]));
            num_gradients += value(a.grad_k[i]) != 0;
        }
        CHECK(num_gradients > 60);
    }
}

TEST(masked_tokens) /* grad_out bit for bit, even a NaN's; nothing from k, v, or what was saved */
{
    static call c;
    c = random_call("masked", 3, 2, 24);
    c.has_mask = true, c.mask[1] = true;
    for (int i = 48; i < 96; i++) c.go[i] = i % 2 ? NAN : -0.0f, c.x[i] = c.k[i] = NAN;
    for (int i = 24; i < 48; i++) c.v[i] = INFINITY;
    FOR_BACKENDS(b)
        for (int n = 0; n < 4; n++) {
            static answer a;
            c.params.no_residual = n & 1, c.is_joined = n & 2;
            gradients(b, &c, &a);
            for (int i = 48; i < 96; i++) {
                CHECK_INT(a.grad_x[i], c.params.no_residual ? 0 : bf16(c.go[i]));
                CHECK_INT(a.grad_k[i], 0);
            }
            for (int i = 24; i < 48; i++) CHECK_INT(a.grad_v[i], 0);
            for (int i = 0; i < 2 * 48; i++) CHECK(!isnan(a.grad_w[i]));
        }
}

TEST(one_tensor_of_gradients) /* the same bits as two */
{
    static call c;
    c = random_call("joined", 3, 4, 72);
    FOR_BACKENDS(b) {
        static answer apart, joined;
        c.is_joined = false;
        gradients(b, &c, &apart);
        c.is_joined = true;
        gradients(b, &c, &joined);
        CHECK(!memcmp(apart.grad_k, joined.grad_k, 3 * 4 * 72 * 2) && !memcmp(apart.grad_v, joined.grad_v, 3 * 72 * 2));
    }
}

TEST(partials) /* row p has tokens p, p + 4, ...; a row without tokens is 0 */
{
    static call c;
    static answer all, one;
    c = random_call("partials", 5, 2, 16);
    c.partials = 4;
    FOR_BACKENDS(b)
        for (c.tokens = 5; c.tokens >= 3; c.tokens -= 2) {
            gradients(b, &c, &all);
            for (int64_t t = 0; t < c.tokens; t++) {
                static call alone;
                alone = c;
                alone.tokens = 1, alone.partials = 1;
                memcpy(alone.go, c.go + t * 32, 128), memcpy(alone.x, c.x + t * 32, 128);
                memcpy(alone.k, c.k + t * 32, 128), memcpy(alone.v, c.v + t * 16, 64);
                gradients(b, &alone, &one);
                for (int i = 0; i < 32; i++) all.grad_w[t % 4 * 32 + i] -= one.grad_w[i];
                CHECK(!memcmp(one.grad_x, all.grad_x + t * 32, 64) && !memcmp(one.grad_v, all.grad_v + t * 16, 32));
            }
            for (int i = 0; i < 4 * 32; i++)
                CHECK(fabsf(all.grad_w[i]) < 2e-6f && (c.tokens == 5 || i < 96 || all.grad_w[i] == 0));
        }
}

TEST(devices_agree_to_the_bit)
{
    check_same_bits("engram_gate_bwd",
                    CASE_LINES("num_tokens=5 hidden=512 num_partials=2 mask=some",
                               "num_tokens=3 num_streams=3 hidden=2055 num_partials=1",
                               "num_tokens=3 hidden=3592 weights=bf16 num_partials=1",
                               "num_tokens=9 num_streams=2 hidden=264 values=zeros",
                               "num_tokens=4 hidden=520 values=special num_partials=1",
                               "num_tokens=2 hidden=7424 num_partials=1"),
                    2);
}

TEST(num_sms)
{
    check_num_sms("engram_gate_bwd", CASE_LINES("num_tokens=40 num_streams=2 hidden=64 mask=some num_partials=5"));
}

TEST(graph)
{
    check_replayed("engram_gate_bwd", "num_tokens=5 hidden=264 mask=some num_partials=2", 1);
    check_replayed("engram_gate_bwd", "num_tokens=5 hidden=3592 num_partials=2", 1);
}

TEST(fast_number_of_partials)
{
    CHECK_INT(tgl_engram_gate_num_partials(7168), 66);
    CHECK_INT(tgl_engram_gate_num_partials(3584), 66);
    CHECK_INT(tgl_engram_gate_num_partials(2560), 132);
    CHECK_INT(tgl_engram_gate_num_partials(512), 462);
    CHECK_INT(tgl_engram_gate_num_partials(448), 528);
    CHECK_INT(tgl_engram_gate_num_partials(1), 528); /* not more: grad_w_reduce reads them all */
    CHECK_INT(tgl_engram_gate_num_partials(0), 528);
}

/* ---- errors ---- */

OP(engram_gate_bwd, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11], t[12], t[13], t[14],
   params)
#define GOOD_CALL CALL_OF(engram_gate_bwd, "num_tokens=3 num_streams=2 hidden=8 num_partials=2")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "grad_out: dtype is f16, want bf16");
    CHECK_ERROR(x[8].shape[1] = 3; x[8].strides = NULL, "gate_score: shape is [3, 3], want [3, 2]");
    CHECK_ERROR(
        x[11].strides[1] = 7,
        "grad_hidden_states: strides are [16, 7, 1], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(x[12].strides[0] = 15,
                "grad_k: strides are [15, 8, 1], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(x[13].strides[0] = 7,
                "grad_v: strides are [7, 1], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(x[14].shape[0] = 0, "grad_w_partial: shape is [0, ...], want [>= 1, ...]");
    CHECK_ERROR(c->tensors[11] = c->tensors[0], "grad_hidden_states: memory is shared with grad_out, want no overlap");
}

TEST(empty) { check_empty(CALL_OF(engram_gate_bwd, "num_tokens=0 num_streams=2 hidden=8 num_partials=0")); }

TEST(no_driver) { check_no_driver(GOOD_CALL); }
