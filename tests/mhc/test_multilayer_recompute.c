/* SPDX-License-Identifier: MIT
 * tgl_mhc_multilayer_recompute, on every device of the tests. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_multilayer_recompute")

static const float X[] = { 1, -2, 0.5f, 3, /**/ 2, 1, -1, 0.25f }, Y[] = { 0.5f, -1, 2, 0.25f };
static const float PRE[] = { 0.39041978f, 0.45507687f }, NEXT[] = { 0.25f, 0.75f };
static const float POST[] = { 0.9034811f, 1.073411f }, COMB[] = { 0.5762365f, 0.4230120f, 0.4237625f, 0.5769870f };

static void put(const backend *b, tensor *t, call_arg a) { place_arg(b, &a, t); }
#define PUT(t, ...) put(b, t, (call_arg)__VA_ARGS__)
static void check(const backend *b, tensor *t, const char *name, call_arg want) { end_arg(b, &want, t, name); }
#define CHECK_BF16(t, name, want, ...) check(b, t, name, (call_arg)BF16_IS(want, __VA_ARGS__))

/* Two layers, of which the second has no post; new_residual in memory of its own, or that of the first residual. */
static void two_layers(const backend *b, bool in_place)
{
    const float of_first[] = { 1.296875f, -0.326171875f, -0.259765625f, 1.28125f };
    const float between[] = { 1.875f,    -1.6328125f, 1.671875f, 2.0625f, /**/
                              2.109375f, -1.34375f,   1.78125f,  1.6796875f };
    const float of_second[] = { 2.046875f, -1.4140625f, 1.75f, 1.7734375f };
    tensor residual, pre, next, x, post, comb, first, second, new;
    PUT(&residual, BF16(X, 1, 2, 4));
    PUT(&x, BF16(Y, 1, 4));
    place(b, &pre, TGL_F32, 2, SHAPE(1, 2), PRE);
    place(b, &next, TGL_F32, 2, SHAPE(1, 2), NEXT);
    place(b, &post, TGL_F32, 2, SHAPE(1, 2), POST);
    place(b, &comb, TGL_F32, 3, SHAPE(1, 2, 2), COMB);
    place(b, &first, TGL_BF16, 2, SHAPE(1, 4), NULL);
    place(b, &second, TGL_BF16, 2, SHAPE(1, 4), NULL);
    place(b, &new, TGL_BF16, 3, SHAPE(1, 2, 4), NULL);
    tensor *to = in_place ? &residual : &new;
    const tgl_mhc_layer layers[] = { { &pre.t, &x.t, &post.t, &comb.t, &first.t, &to->t },
                                     { .pre_mix = &next.t, .layer_input = &second.t } };
    CHECK_OK(tgl_mhc_multilayer_recompute(&residual.t, layers, 2, b->stream));
    CHECK_BF16(&first, "layer_input 0", of_first, 1, 4);
    CHECK_BF16(&second, "layer_input 1", of_second, 1, 4);
    CHECK_BF16(to, "new_residual", between, 1, 2, 4);
    discard(b, &x), discard(b, &pre), discard(b, &next), discard(b, &post), discard(b, &comb);
    discard(b, in_place ? &new : &residual);
}

TEST(worked_example)
{
    FOR_BACKENDS(b) two_layers(b, false), two_layers(b, true);
}

/* The separate ops, in steps of layers; two launches, since 64 are the most of one. new_residual of every layer is in
 * the same memory. */
TEST(equals_separate_ops)
{
    enum { LAYERS = 70, TOKENS = 3, N = 4, H = 40 };
    static float mixes[LAYERS][TOKENS * N * N], values[TOKENS * N * H];
    for (int64_t i = 0; i < TOKENS * N * H; i++) values[i] = (float)normal(1, i);
    for (int l = 0; l < LAYERS; l++)
        for (int64_t i = 0; i < TOKENS * N * N; i++) mixes[l][i] = (float)normal(2 + (uint64_t)l, i) * 0.4f;
    FOR_BACKENDS(b) {
        static tensor mix[LAYERS], comb[LAYERS], input[LAYERS];
        static tgl_mhc_layer layers[LAYERS];
        tensor residual, state, x, want;
        PUT(&residual, BF16(values, TOKENS, N, H));
        PUT(&state, BF16(values, TOKENS, N, H));
        PUT(&x, BF16(values, TOKENS, H));
        for (int l = 0; l < LAYERS; l++) {
            place(b, &mix[l], TGL_F32, 2, SHAPE(TOKENS, N), mixes[l]);
            place(b, &comb[l], TGL_F32, 3, SHAPE(TOKENS, N, N), mixes[l]);
            place(b, &input[l], TGL_BF16, 2, SHAPE(TOKENS, H), NULL);
            layers[l] = (tgl_mhc_layer){ &mix[l].t, &x.t, &mix[l].t, &comb[l].t, &input[l].t, &state.t };
        }
        CHECK_OK(tgl_mhc_multilayer_recompute(&state.t, layers, LAYERS, b->stream));
        for (int l = 0; l < LAYERS; l++) {
            uint16_t is[TOKENS * H], should[TOKENS * H];
            place(b, &want, TGL_BF16, 2, SHAPE(TOKENS, H), NULL);
            CHECK_OK(tgl_mhc_pre_apply_mix_fwd(&residual.t, &mix[l].t, &want.t, b->stream));
            CHECK_OK(tgl_mhc_post_fwd(&x.t, &residual.t, &mix[l].t, &comb[l].t, &residual.t, b->stream));
            fetch(b, &input[l], is), fetch(b, &want, should);
            CHECK_THAT(!memcmp(is, should, sizeof is), "%s: layer_input of layer %d differs", b->name, l);
            discard(b, &mix[l]), discard(b, &comb[l]);
        }
        static uint16_t is[TOKENS * N * H], should[TOKENS * N * H];
        fetch(b, &state, is), fetch(b, &residual, should);
        CHECK_THAT(!memcmp(is, should, sizeof is), "%s: the last residual differs", b->name);
        discard(b, &x);
    }
}

TEST(graph) { check_replayed("mhc_multilayer_recompute", "num_tokens=3 hidden=264 num_layers=3", 1); }

OP(mhc_multilayer_recompute, t[0], (&(tgl_mhc_layer){ t[1], t[2], t[3], t[4], t[5], t[6] }), 1) /* one layer */
#define GOOD_CALL CALL_OF(mhc_multilayer_recompute, "num_tokens=3 hidden=5 num_streams=2")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[3].shape[1] = 3; x[3].strides = NULL, "post_mix: shape is [3, 3], want [3, 2]");
    CHECK_INT(tgl_mhc_multilayer_recompute(NULL, NULL, 0, NULL), TGL_ERR_ARGUMENT);
    CHECK_TEXT(tgl_last_error(), "num_layers: is 0, want >= 1");
    CHECK_INT(tgl_mhc_multilayer_recompute(NULL, NULL, 2, NULL), TGL_ERR_ARGUMENT);
    CHECK_TEXT(tgl_last_error(), "layers: is NULL, want an array of structs");
}

TEST(errors_of_later_layers) /* nothing is written */
{
    uint16_t data[2][2] = { { 0 } }, out[4][2] = { { 1, 1 }, { 1, 1 }, { 1, 1 }, { 1, 1 } };
    float mix[2] = { 1, 1 };
    tensor residual, x, m, comb, input[2], new[2], wide;
    make(&residual, data[0], cpu, TGL_BF16, 3, SHAPE(1, 1, 2));
    make(&x, data[1], cpu, TGL_BF16, 2, SHAPE(1, 2));
    make(&m, &mix[0], cpu, TGL_F32, 2, SHAPE(1, 1));
    make(&comb, &mix[1], cpu, TGL_F32, 3, SHAPE(1, 1, 1));
    make(&wide, out[3], cpu, TGL_BF16, 2, SHAPE(1, 1));
    for (int i = 0; i < 2; i++) {
        make(&input[i], out[i], cpu, TGL_BF16, 2, SHAPE(1, 2));
        make(&new[i], out[2 + i], cpu, TGL_BF16, 3, SHAPE(1, 1, 2));
    }
    tgl_mhc_layer layers[] = { { &m.t, &x.t, &m.t, &comb.t, &input[0].t, &new[0].t },
                               { &m.t, &x.t, &m.t, &comb.t, &wide.t, &new[1].t } };
    CHECK_INT(tgl_mhc_multilayer_recompute(&residual.t, layers, 2, NULL), TGL_ERR_ARGUMENT);
    CHECK_TEXT(tgl_last_error(), "layer_input: shape is [1, 1], want [1, 2]");
    layers[0] = (tgl_mhc_layer){ .pre_mix = &m.t, .layer_input = &input[0].t };
    layers[1].layer_input = &input[1].t;
    CHECK_INT(tgl_mhc_multilayer_recompute(&residual.t, layers, 2, NULL), TGL_ERR_ARGUMENT);
    CHECK_TEXT(tgl_last_error(), "new_residual: is NULL in layer 0, want a tensor in all but the last");
    for (int i = 0; i < 4; i++) CHECK(out[i][0] == 1 && out[i][1] == 1);
}

TEST(empty) { check_empty(CALL_OF(mhc_multilayer_recompute, "num_tokens=0 hidden=8 num_streams=4")); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
