/* SPDX-License-Identifier: MIT
 * tgl_engram_gate_fwd, on every device of the tests. Written from the specification: two RMS norms, their dot product,
 * a signed square root with a floor, a sigmoid, and what it lets in of the value. */
#include "gate_support.h"

TESTS_OF_TABLE("engram_gate_fwd")

/* ---- calls on arrays ---- */

typedef struct {
    int64_t tokens, streams, hidden;
    float x[MAX], k[MAX], v[MAX], wh[MAX], we[MAX];
    bool mask[8];
    bool has_mask, is_fused, is_f32, is_in_place;
    tgl_engram_gate_params params;
} call;
typedef struct {
    uint16_t out[MAX];
    float dot[64], gate[64], rstd_x[64], rstd_k[64];
} answer;

static void gate(const backend *b, const call *c, answer *a)
{
    const int64_t t = c->tokens, h = c->streams, d = c->hidden;
    tensor x, k, v, wh, we, mask, out, saved[4];
    float *const to[] = { a->dot, a->gate, a->rstd_x, a->rstd_k };
    put(b, &x, TGL_BF16, 3, SHAPE(t, h, d), c->x);
    put(b, &k, TGL_BF16, 3, SHAPE(t, h, d), c->k);
    put(b, &v, TGL_BF16, 2, SHAPE(t, d), c->v);
    put(b, &wh, c->is_fused || c->is_f32 ? TGL_F32 : TGL_BF16, 2, SHAPE(h, d), c->wh);
    put(b, &we, c->is_f32 ? TGL_F32 : TGL_BF16, 2, SHAPE(h, d), c->we);
    place(b, &mask, TGL_BOOL, 1, SHAPE(t), c->mask);
    place(b, &out, TGL_BF16, 3, SHAPE(t, h, d), NULL);
    for (int i = 0; i < 4; i++) place(b, &saved[i], TGL_F32, 2, SHAPE(t, h), NULL);
    DLTensor *const none = NULL, *s[4];
    for (int i = 0; i < 4; i++) s[i] = c->is_in_place ? none : &saved[i].t;
    CHECK_OK(tgl_engram_gate_fwd(&x.t, &k.t, &v.t, &wh.t, c->is_fused ? NULL : &we.t, c->has_mask ? &mask.t : NULL,
                                 c->is_in_place ? &x.t : &out.t, s[0], s[1], s[2], s[3], &c->params, b->stream));
    fetch(b, c->is_in_place ? &x : &out, a->out);
    discard(b, c->is_in_place ? &out : &x);
    for (int i = 0; i < 4; i++) fetch(b, &saved[i], to[i]);
    discard(b, &k), discard(b, &v), discard(b, &wh), discard(b, &we), discard(b, &mask);
}

static void check_outputs(const backend *b, const answer *a, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        CHECK_THAT(a->out[i] == bf16(want[i]), "%s: output %d is %g, want %g", b->name, (int)i,
                   (double)value(a->out[i]), (double)want[i]);
}

/* ---- examples ---- */

TEST(worked_example)
{
    /* doc: gate_fwd */
    static call c = {
        .tokens = 1,
        .streams = 1,
        .hidden = 4,
        .x = { 1, 2, -1, 0.5f },
        .k = { 0.5f, 1, 1, -2 },
        .v = { 2, -1, 0.5f, 4 },
        .wh = { 1, 1, 2, 1 },
        .we = { 1, 0.5f, 1, 2 },
        .params = { .eps = 1e-20f, .clamp_value = 1e-6f },
        /* sums of squares 6.25, dot -2.5, rstd 0.8, s = -0.8, u = -0.894427191, gate 0.290197056 */
    };
    const float want[] = { 1.578125f, 1.7109375f, -0.85546875f, 1.6640625f };
    const float without_residual[] = { 0.58203125f, -0.291015625f, 0.1455078125f, 1.1640625f };
    /* end */
    FOR_BACKENDS(b) {
        static answer a;
        c.params.no_residual = false;
        gate(b, &c, &a);
        check_outputs(b, &a, want, 4);
        CHECK(a.dot[0] == -2.5f && a.rstd_x[0] == 0.8f && a.rstd_k[0] == 0.8f);
        CHECK(fabs((double)a.gate[0] - 0.290197056) < 3e-8);
        c.params.no_residual = true;
        gate(b, &c, &a);
        check_outputs(b, &a, without_residual, 4);
    }
}

TEST(masked_and_zero_rows)
{
    static call c = {
        .tokens = 3,
        .streams = 1,
        .hidden = 4,
        .x = { 1, 2, -1, 0.5f, /**/ 3, 0, 0, 0, /**/ 0, 0, 0, 0 },
        .k = { 0.5f, 1, 1, -2, /**/ NAN, NAN, NAN, NAN, /**/ 1, 2, 3, 4 },
        .v = { 2, -1, 0.5f, 4, /**/ NAN, INFINITY, NAN, 1, /**/ 2, -1, 0.5f, 4 },
        .wh = { 1, 1, 2, 1 },
        .we = { 1, 0.5f, 1, 2 },
        .mask = { false, true, false },
        .has_mask = true,
        .params = { .eps = 1e-20f, .clamp_value = 1e-6f },
    };
    const float want[] = { 1.578125f, 1.7109375f, -0.85546875f, 1.6640625f, 3, 0, 0, 0, 1, -0.5f, 0.25f, 2 };
    FOR_BACKENDS(b)
        for (int sign = 0; sign < 2; sign++)
            for (int way = 0; way < 3; way++) { /* as it is, in place, without residual */
                static answer a;
                c.params.sign = sign ? TGL_ENGRAM_SIGN_BIT : TGL_ENGRAM_SIGN_ZERO;
                c.params.no_residual = way == 2, c.is_in_place = way == 1;
                gate(b, &c, &a);
                if (way < 2) check_outputs(b, &a, want, 12);
                else
                    for (int i = 4; i < 8; i++) CHECK_INT(a.out[i], 0);
                if (way == 1) continue;
                CHECK(a.dot[1] == 0 && a.gate[1] == 0 && a.rstd_x[1] == 0 && a.rstd_k[1] == 0);
                CHECK(sign ? fabs((double)a.gate[2] - 0.50025) < 6e-8 : a.gate[2] == 0.5f);
                CHECK(a.rstd_x[2] == 1e10f && a.dot[2] == 0);
            }
}

/* ---- rules, each with a case that shows it ---- */

static call random_call(const char *name, int64_t tokens, int64_t streams, int64_t hidden)
{
    call c = {
        .tokens = tokens, .streams = streams, .hidden = hidden, .params = { .eps = 1e-20f, .clamp_value = 1e-6f }
    };
    test_random r = test_seed(name);
    float *const all[] = { c.x, c.k, c.v, c.wh, c.we };
    for (int j = 0; j < 5; j++)
        for (int64_t i = 0; i < tokens * streams * hidden && i < MAX; i++)
            all[j][i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
    return c;
}

/* Zero keys, with x and v that are not 0: only then the sign of a zero score is seen in the output. */
TEST(sign_of_zero)
{
    static call c;
    c = random_call("sign_of_zero", 1, 2, 1000);
    for (int64_t i = 0; i < 2000; i++) c.k[i] = 0;
    FOR_BACKENDS(b) {
        static answer zero, bit;
        c.params.sign = TGL_ENGRAM_SIGN_ZERO;
        gate(b, &c, &zero);
        c.params.sign = TGL_ENGRAM_SIGN_BIT;
        gate(b, &c, &bit);
        int num_different = 0;
        for (int64_t i = 0; i < 2000; i++) {
            num_different += zero.out[i] != bit.out[i];
            REQUIRE(zero.out[i] == bf16(c.x[i] + 0.5f * c.v[i % 1000]));
        }
        CHECK(zero.gate[1] == 0.5f && num_different > 100);
    }
}

TEST(negative_zero_score) /* -1e-30 * 1e-15 * 1e-15 underflows: below 0.5 by its sign bit */
{
    static call c = { .tokens = 1,
                      .streams = 1,
                      .hidden = 1,
                      .x = { 1e-15f },
                      .k = { -1e-15f },
                      .v = { 1 },
                      .wh = { 1 },
                      .is_fused = true,
                      .params = { .eps = 1e30f, .clamp_value = 1e-6f } };
    FOR_BACKENDS(b)
        for (int sign = 0; sign < 2; sign++) {
            static answer a;
            c.params.sign = sign ? TGL_ENGRAM_SIGN_BIT : TGL_ENGRAM_SIGN_ZERO;
            gate(b, &c, &a);
            CHECK(sign ? fabs((double)a.gate[0] - 0.49975) < 6e-8 : a.gate[0] == 0.5f);
        }
}

TEST(clamp_is_at_its_value) /* s = 0.25, below, at and above a clamp: u = sqrt of the larger one */
{
    static call c = { .tokens = 1,
                      .streams = 1,
                      .hidden = 4,
                      .x = { 2, 2, 2, 2 },
                      .k = { 1, 1, 1, 1 },
                      .v = { 1, 1, 1, 1 },
                      .wh = { 0.125f, 0.125f, 0.125f, 0.125f },
                      .is_fused = true };
    const float clamps[] = { 0, 0.25f - 0x1p-26f, 0.25f, 0.25f + 0x1p-25f, 1, 4 };
    FOR_BACKENDS(b)
        for (int i = 0; i < 6; i++)
            for (int negative = 0; negative < 2; negative++) {
                static answer a;
                for (int j = 0; j < 4; j++) c.k[j] = negative ? -1 : 1;
                c.params.clamp_value = clamps[i];
                gate(b, &c, &a);
                const double u = sqrt(fmax(0.25, (double)clamps[i])) * (negative ? -1 : 1), want = 1 / (1 + exp(-u));
                CHECK_THAT(fabs((double)a.gate[0] - want) <= want * 3 * 0x1p-24, "%s: clamp %g: gate %.9g, want %.9g",
                           b->name, (double)clamps[i], (double)a.gate[0], want);
            }
}

/* The product with the gate is rounded to f32 before the sum. */
TEST(two_roundings_before_the_last)
{
    static call c;
    static answer a;
    FOR_BACKENDS(b) {
        int num_fused = 0;
        for (int round = 0; round < 20; round++) {
            char name[32];
            snprintf(name, sizeof name, "roundings %d", round);
            c = random_call(name, 2, 2, 2000);
            gate(b, &c, &a);
            for (int64_t i = 0; i < 8000; i++) {
                const float g = a.gate[i / 2000], v = c.v[i / 4000 * 2000 + i % 2000], added = g * v;
                REQUIRE(a.out[i] == bf16(c.x[i] + added));
                num_fused += bf16(c.x[i] + added) != bf16(fmaf(g, v, c.x[i]));
            }
        }
        CHECK_THAT(num_fused > 0, "no element tells the two apart");
    }
}

TEST(unfused_weights_are_the_fused_ones)
{
    static call c, fused;
    fused = c = random_call("unfused", 2, 3, 500);
    fused.is_fused = true;
    for (int64_t i = 0; i < 1500; i++) fused.wh[i] = c.wh[i] * c.we[i];
    FOR_BACKENDS(b) {
        static answer a, f;
        gate(b, &fused, &f);
        for (int is_f32 = 0; is_f32 < 2; is_f32++) {
            c.is_f32 = is_f32;
            gate(b, &c, &a);
            CHECK(!memcmp(a.out, f.out, 3000 * 2) && !memcmp(a.dot, f.dot, 24) && !memcmp(a.gate, f.gate, 24));
        }
    }
}

TEST(one_is_added_in_f32) /* 1 + 2^-9 is no bf16 */
{
    static call c = { .tokens = 1,
                      .streams = 1,
                      .hidden = 1,
                      .x = { 1 },
                      .k = { 1 },
                      .v = { 1 },
                      .wh = { 0x1p-9f },
                      .we = { 0x1p-10f },
                      .params = { .zero_centered = true } };
    FOR_BACKENDS(b)
        for (int is_f32 = 0; is_f32 < 2; is_f32++) {
            static answer a;
            c.is_f32 = is_f32;
            gate(b, &c, &a);
            CHECK(a.dot[0] == (1 + 0x1p-9f) * (1 + 0x1p-10f));
        }
}

TEST(in_place_and_kv) /* the same bits as apart */
{
    static call c;
    c = random_call("in_place", 4, 3, 136);
    c.has_mask = true, c.mask[2] = true;
    FOR_BACKENDS(b) {
        static answer apart, same;
        c.is_in_place = false;
        gate(b, &c, &apart);
        c.is_in_place = true;
        gate(b, &c, &same);
        CHECK(!memcmp(apart.out, same.out, 4 * 3 * 136 * 2));
        /* k and v as two views of one tensor */
        static uint16_t kv[4 * 4 * 136];
        for (int64_t t = 0; t < 4; t++)
            for (int64_t i = 0; i < 4 * 136; i++)
                kv[t * 4 * 136 + i] = bf16(i < 3 * 136 ? c.k[t * 3 * 136 + i] : c.v[t * 136 + i - 3 * 136]);
        tensor x, whole, v, wh, we, mask, out;
        put(b, &x, TGL_BF16, 3, SHAPE(4, 3, 136), c.x);
        place(b, &whole, TGL_BF16, 3, SHAPE(4, 4, 136), kv);
        whole.shape[1] = 3;
        v = whole;
        v.t.shape = v.shape, v.t.strides = v.strides, v.t.ndim = 2, v.t.byte_offset = 2 * 3 * 136;
        v.shape[1] = 136, v.strides[1] = 1;
        put(b, &wh, TGL_BF16, 2, SHAPE(3, 136), c.wh);
        put(b, &we, TGL_BF16, 2, SHAPE(3, 136), c.we);
        place(b, &mask, TGL_BOOL, 1, SHAPE(4), c.mask);
        place(b, &out, TGL_BF16, 3, SHAPE(4, 3, 136), NULL);
        CHECK_OK(tgl_engram_gate_fwd(&x.t, &whole.t, &v.t, &wh.t, &we.t, &mask.t, &out.t, NULL, NULL, NULL, NULL,
                                     &c.params, b->stream));
        check_contents(b, &out, apart.out, "output of kv");
        discard(b, &x), discard(b, &whole), discard(b, &wh), discard(b, &we), discard(b, &mask);
    }
}

TEST(nan_and_infinities)
{
    static call c;
    FOR_BACKENDS(b)
        for (int what = 0; what < 4; what++) { /* NaN and Inf in k, NaN and Inf in v */
            static answer a;
            c = random_call("nan", 1, 2, 40);
            (what < 2 ? c.k : c.v)[13] = what % 2 ? INFINITY : NAN;
            gate(b, &c, &a);
            for (int64_t i = 0; i < 40; i++) {
                const bool is_hit = what < 2 || i == 13;
                const uint16_t want = what == 3 ? 0x7f80 : 0x7fff;
                CHECK_THAT(is_hit ? a.out[i] == want : !isnan(value(a.out[i])), "%s: %d: output %d is %04x", b->name,
                           what, (int)i, a.out[i]);
                CHECK((a.out[40 + i] == want) == (what >= 2 && i == 13));
            }
        }
}

TEST(zero_row_without_eps) /* rstd inf, and NaN from there on; it is not guarded */
{
    static call c;
    c = random_call("zero row", 1, 1, 40);
    for (int i = 0; i < 40; i++) c.k[i] = 0;
    c.params.eps = 0;
    FOR_BACKENDS(b) {
        static answer a;
        gate(b, &c, &a);
        CHECK(a.rstd_k[0] == INFINITY && isnan(a.gate[0]) && a.out[7] == 0x7fff);
    }
}

/* ---- one order of sums, on every device, by every kernel ---- */

TEST(devices_agree_to_the_bit)
{
    check_same_bits("engram_gate_fwd",
                    CASE_LINES("num_tokens=3 hidden=2560", "num_tokens=3 hidden=7168 weights=bf16 mask=some",
                               "num_tokens=2 hidden=2055", "num_tokens=80 num_streams=4 hidden=264 values=zeros",
                               "num_tokens=3 hidden=4097 values=special"),
                    5);
}

/* Blocks with more rows than stages, by each kernel that may have them; also without a mask and an output. */
TEST(every_kernel_with_many_trips)
{
    setenv("TEGULA_TEST_GRID", "2", 1);
    check_same_bits("engram_gate_fwd",
                    CASE_LINES("num_tokens=70 num_streams=2 hidden=520 mask=some",
                               "num_tokens=70 num_streams=2 hidden=520 mask=some output=same save=0",
                               "num_tokens=39 num_streams=2 hidden=520 mask=some output=none",
                               "num_tokens=37 num_streams=3 hidden=520 residual=0 layout=kv mask=some constant=1"),
                    5);
    unsetenv("TEGULA_TEST_GRID");
}

TEST(num_sms) { check_num_sms("engram_gate_fwd", CASE_LINES("num_tokens=300 num_streams=2 hidden=64 mask=some")); }

TEST(graph)
{
    check_replayed("engram_gate_fwd", "num_tokens=5 hidden=264 mask=some", 1);
    check_replayed("engram_gate_fwd", "num_tokens=100 hidden=64", 1);
}

/* ---- errors ---- */

OP(engram_gate_fwd, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], params)
#define GOOD_CALL CALL_OF(engram_gate_fwd, "num_tokens=3 num_streams=2 hidden=8")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "hidden_states: dtype is f16, want bf16");
    CHECK_ERROR(x[1].shape[1] = 3; x[1].strides = NULL, "k: shape is [3, 3, 8], want [3, 2, 8]");
    CHECK_ERROR(x[1].strides[2] = 2, "k: strides are [16, 8, 2], want 1 in the last dimension and >= 0 in the others");
    CHECK_ERROR(c->tensors[4] = NULL;
                x[3].dtype = tgl_dtype_to_dlpack(TGL_BF16), "weight_hidden: dtype is bf16, want f32");
    CHECK_ERROR(c->tensors[9] = NULL, "rstd_x: is NULL, want a tensor with gate_score");
    CHECK_ERROR(x[6].strides[2] = 2,
                "output: strides are [16, 8, 2], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(x[6].strides[1] = 7,
                "output: strides are [16, 7, 1], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(x[6].strides[0] = 15,
                "output: strides are [15, 8, 1], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(x[6].strides[0] = -16,
                "output: strides are [-16, 8, 1], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(c->tensors[6] = c->tensors[0],
                "output: is hidden_states, want another tensor with dot (the backward reads hidden_states)");
}

TEST(errors_of_sizes)
{
    CHECK_ERROR(((tgl_engram_gate_params *)c->given)->zero_centered = true; c->tensors[4] = NULL;
                x[3].dtype = tgl_dtype_to_dlpack(TGL_F32), "weight_embed: is NULL, want a tensor with zero_centered");
    CHECK_ERROR(((tgl_engram_gate_params *)c->given)->eps = -1, "eps: is -1, want >= 0");
    CHECK_ERROR(for (int i = 0; i < 7; i++) if (i != 5) x[i].shape[x[i].ndim - 1] = 0,
                "hidden_states: shape is [3, 2, 0], want [3, 0..2147483647, 1..2147483647]");
}

TEST(empty)
{
    check_empty(CALL_OF(engram_gate_fwd, "num_tokens=0 num_streams=2 hidden=8"));
    check_empty(CALL_OF(engram_gate_fwd, "num_tokens=3 num_streams=0 hidden=8"));
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
