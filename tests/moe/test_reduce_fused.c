/* SPDX-License-Identifier: MIT
 * tgl_moe_reduce_fused, on every device of the tests. Written from the specification: from 0, slot by slot,
 * one fused multiply-add with a factor rounded before; then the scale, rounded again; then the conversion. */
#include <math.h>

#include "mapping.h"

TESTS_OF_TABLE("moe_reduce_fused")

/* ---- examples ---- */

/* The mapping of get_fused_mapping's example: four tokens of two slots, six positions. */
static const int32_t example[] = { 0, 4, /**/ 5, 1, /**/ 2, -1, /**/ -1, -1 };

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        tensor tx, tsf, tweights, tpos, tout;
        float poison[8];
        memset(poison, 0xa5, sizeof poison);
        place(b, &tpos, TGL_I32, 2, SHAPE(4, 2), example);
        /* doc: reduce_fused */
        const float x[] = { 1, 2, /**/ 3, 4, /**/ 5, 6, /**/ 0, 0, /**/ 7, 8, /**/ 9, 10 };
        const float topk_weights[] = { 0.5f, 0.25f, /**/ 1, 2, /**/ 0.5f, 9, /**/ 1, 1 };
        const float out[] = { 2.25f, 3, /**/ 15, 18, /**/ 2.5f, 3, /**/ 0, 0 };
        const float x_sf[] = { 1, 2, 1, 5, 1, 0.5f };
        const float out_with_x_sf[] = { 2.25f, 3, /**/ 16.5f, 21, /**/ 2.5f, 3, /**/ 0, 0 };
        /* end */
        place(b, &tx, TGL_F32, 2, SHAPE(6, 2), x);
        place(b, &tsf, TGL_F32, 1, SHAPE(6), x_sf);
        place(b, &tweights, TGL_F32, 2, SHAPE(4, 2), topk_weights);
        place(b, &tout, TGL_F32, 2, SHAPE(4, 2), poison);
        CHECK_OK(tgl_moe_reduce_fused(&tx.t, NULL, &tweights.t, &tpos.t, NULL, &tout.t, b->stream));
        check_contents(b, &tout, out, "out");
        place(b, &tout, TGL_F32, 2, SHAPE(4, 2), poison);
        CHECK_OK(tgl_moe_reduce_fused(&tx.t, &tsf.t, &tweights.t, &tpos.t, NULL, &tout.t, b->stream));
        check_contents(b, &tout, out_with_x_sf, "out with x_sf");
        place(b, &tout, TGL_F32, 2, SHAPE(4, 2), poison);
        CHECK_OK(tgl_moe_reduce_fused(&tx.t, NULL, NULL, &tpos.t, NULL, &tout.t, b->stream));
        check_contents(b, &tout, ((const float[]){ 8, 10, 12, 14, 5, 6, 0, 0 }), "out without weights");
        discard(b, &tx), discard(b, &tsf), discard(b, &tweights), discard(b, &tpos);
    }
}

/* ---- one token, one column: a sum of up to eight ---- */

enum { MAX_SLOTS = 8 };
typedef struct {
    float x[MAX_SLOTS], weight[MAX_SLOTS], x_sf[MAX_SLOTS]; /* x and x_sf by position, weight by slot */
    int32_t pos[MAX_SLOTS];
    int count;
} sum;

static void check_sum(const sum *s, const float *scale, tgl_dtype dtype, const void *want, const char *name)
{
    FOR_BACKENDS(b) {
        tensor x, x_sf, weights, pos, sf, out;
        float poison[2];
        memset(poison, 0xa5, sizeof poison);
        place(b, &x, TGL_F32, 2, SHAPE(MAX_SLOTS, 1), s->x);
        place(b, &x_sf, TGL_F32, 1, SHAPE(MAX_SLOTS), s->x_sf);
        place(b, &weights, TGL_F32, 2, SHAPE(1, s->count), s->weight);
        place(b, &pos, TGL_I32, 2, SHAPE(1, s->count), s->pos);
        place(b, &sf, TGL_F32, 1, SHAPE(1), scale ? scale : poison);
        place(b, &out, dtype, 2, SHAPE(1, 1), poison);
        CHECK_OK(tgl_moe_reduce_fused(&x.t, &x_sf.t, &weights.t, &pos.t, scale ? &sf.t : NULL, &out.t, b->stream));
        check_contents(b, &out, want, name);
        discard(b, &x), discard(b, &x_sf), discard(b, &weights), discard(b, &pos), discard(b, &sf);
    }
}

static void check_float(const sum *s, const float *scale, float want, const char *name)
{
    check_sum(s, scale, TGL_F32, &want, name);
}

TEST(slots_are_added_in_order)
{
    const sum up = { { 16777216, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 0, 1, 2 }, 3 };
    const sum down = { { 16777216, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 2, 0 }, 3 };
    check_float(&up, NULL, 16777216, "large first");
    check_float(&down, NULL, 16777218, "large last");
}

TEST(product_and_sum_are_rounded_once)
{
    /* (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: all of it survives the subtraction of 1 + 2^-11 */
    const float a = 1 + 0x1p-12f;
    const sum fused = { { 1, a }, { -(1 + 0x1p-11f), a }, { 1, 1 }, { 0, 1 }, 2 };
    check_float(&fused, NULL, 0x1p-24f, "fused");
    /* a tie of sums that only the last bit of the product breaks */
    const sum tie = { { 0x1p24f, 1 + 0x1p-23f }, { 1, 1 + 0x1p-23f }, { 1, 1 }, { 0, 1 }, 2 };
    check_float(&tie, NULL, 0x1p24f + 2, "above a tie");
    const sum below_tie = { { 0x1p24f, 1 - 0x1p-24f }, { 1, 1 + 0x1p-23f }, { 1, 1 - 0x1p-24f }, { 0, 1 }, 2 };
    check_float(&below_tie, NULL, 0x1p24f, "at or below a tie");
    /* a product too small for f32, which still affects a subnormal sum */
    const sum tiny = { { 0x1p-149f, 0x1p-80f }, { 1, 0x1p-70f }, { 1, 1 }, { 0, 1 }, 2 };
    check_float(&tiny, NULL, 0x1p-148f, "half a step up, to even");
}

TEST(factor_is_rounded_before)
{
    /* weight * x_sf = 1 + 2^-11 + 2^-24 rounds to 1 + 2^-11, and x = 2^24 does not bring it back */
    const float a = 1 + 0x1p-12f;
    const sum s = { { 0x1p24f }, { a }, { a }, { 0 }, 1 };
    check_float(&s, NULL, 0x1p24f + 0x1p13f, "factor");
    const sum underflow = { { 0x1p100f }, { 0x1p-80f }, { 0x1p-80f }, { 0 }, 1 };
    check_float(&underflow, NULL, 0, "a factor below the smallest is 0");
    const sum subnormal = { { 0x1p100f }, { 0x1p-70f }, { 0x1.8p-79f }, { 0 }, 1 };
    check_float(&subnormal, NULL, 0x1p-48f, "a subnormal factor, rounded to even");
}

TEST(empty_slots_are_not_read)
{
    const sum s = { { 3, NAN, NAN }, { NAN, 2, INFINITY, NAN }, { 1, NAN, NAN }, { -1, 0, 8, INT32_MAX }, 4 };
    check_float(&s, NULL, 6, "NaN in empty slots");
    const sum none = { { NAN }, { NAN, NAN }, { NAN }, { -1, -5 }, 2 };
    check_float(&none, NULL, 0, "no slot");
    check_float(&none, &(const float){ -3 }, -0.0f, "no slot, and a negative scale");
}

TEST(zeros_and_their_signs)
{
    const sum negative = { { -0.0f }, { 1 }, { 1 }, { 0 }, 1 };
    check_float(&negative, NULL, 0, "0 + -0");
    check_float(&negative, &(const float){ -1 }, -0.0f, "0 * -1");
    const sum cancelled = { { 5, -5 }, { 1, 1 }, { 1, 1 }, { 0, 1 }, 2 };
    check_float(&cancelled, NULL, 0, "5 - 5");
}

TEST(scale_comes_last)
{
    const sum s = { { 0x1p127f, 0x1p127f }, { 1, 1 }, { 1, 1 }, { 0, 1 }, 2 };
    check_float(&s, &(const float){ 0.25f }, INFINITY, "the sum overflows before the scale");
    const sum third = { { 1 }, { 1.0f / 3 }, { 1 }, { 0 }, 1 };
    check_float(&third, &(const float){ 3 }, 1, "1 / 3 * 3");
    check_float(&third, &(const float){ 0 }, 0, "times 0");
}

TEST(e4m3_saturates)
{
    // clang-format off: a table
    static const struct { float x; uint8_t want; } cases[] = {
        { 448, 0x7e }, { 449, 0x7e }, { 464, 0x7e }, { 465, 0x7e }, { 480, 0x7e }, { 1e6f, 0x7e },
        { INFINITY, 0x7e }, { -448, 0xfe }, { -449, 0xfe }, { -464, 0xfe }, { -465, 0xfe }, { -1e30f, 0xfe },
        { -INFINITY, 0xfe }, { 432, 0x7e }, { 431, 0x7d }, { 416, 0x7d }, { 0, 0 }, { -0.0f, 0 },
        /* subnormals are multiples of 2^-9; ties go to the even one */
        { 0x1p-9f, 1 }, { 0x1p-10f, 0 }, { 0x1.000002p-10f, 1 }, { 0x1.8p-9f, 2 }, { 0x1.4p-8f, 2 },
        { 0x1.cp-8f, 4 }, { -0x1p-10f, 0x80 }, { -0x1.8p-9f, 0x82 }, { 0x1.ep-7f, 8 }, { 0x1.dp-7f, 7 },
        /* of 1, steps are 2^-3 */
        { 1, 0x38 }, { 1.0625f, 0x38 }, { 1.0626f, 0x39 }, { 1.1875f, 0x3a }, { 1.1874f, 0x39 },
    };
    // clang-format on
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sum s = { { cases[i].x }, { 1 }, { 1 }, { 0 }, 1 };
        check_sum(&s, NULL, TGL_E4M3, &cases[i].want, "e4m3");
        check_sum(&s, &(const float){ 1 }, TGL_E4M3, &cases[i].want, "e4m3, scale 1");
    }
}

TEST(every_nan_is_the_same) /* all bits but the sign are set, whatever its origin */
{
    static const sum sums[] = {
        { { NAN }, { 1 }, { 1 }, { 0 }, 1 },      { { -NAN }, { 1 }, { 1 }, { 0 }, 1 },
        { { 1 }, { 1 }, { -NAN }, { 0 }, 1 },     { { INFINITY, -INFINITY }, { 1, 1 }, { 1, 1 }, { 0, 1 }, 2 },
        { { INFINITY }, { 0 }, { 1 }, { 0 }, 1 },
    };
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        for (int scaled = 0; scaled < 2; scaled++) {
            const float *scale = scaled ? &(const float){ -1 } : NULL;
            check_sum(&sums[i], scale, TGL_F32, &(const uint32_t){ 0x7fffffff }, "f32");
            check_sum(&sums[i], scale, TGL_BF16, &(const uint16_t){ 0x7fff }, "bf16");
            check_sum(&sums[i], scale, TGL_F16, &(const uint16_t){ 0x7fff }, "f16");
            check_sum(&sums[i], scale, TGL_E4M3, &(const uint8_t){ 0x7f }, "e4m3");
        }
}

TEST(halves_overflow_to_infinity)
{
    // clang-format off: a table
    static const struct { float x; uint16_t f16, bf16; } cases[] = {
        { 65504, 0x7bff, 0x4780 }, { 65519.996f, 0x7bff, 0x4780 }, { 65520, 0x7c00, 0x4780 },
        { 3.3961775e38f, 0x7c00, 0x7f80 }, { 3.3961773e38f, 0x7c00, 0x7f7f }, { -65520, 0xfc00, 0xc780 },
        { 0x1p-25f, 0, 0x3300 }, { 0x1.000002p-25f, 1, 0x3300 }, { 0x1p-133f, 0, 1 }, { 0x1p-134f, 0, 0 },
    };
    // clang-format on
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sum s = { { cases[i].x }, { 1 }, { 1 }, { 0 }, 1 };
        check_sum(&s, NULL, TGL_F16, &cases[i].f16, "f16");
        check_sum(&s, NULL, TGL_BF16, &cases[i].bf16, "bf16");
    }
}

/* ---- properties ---- */

TEST(undoes_expand) /* with weights that sum to one, and no empty slot */
{
    enum { TOKENS = 33, TOPK = 4, EXPERTS = 6, POSITIONS = TOKENS * TOPK + 7 * EXPERTS, HIDDEN = 72 };
    static uint16_t x[TOKENS * HIDDEN], seen[TOKENS * HIDDEN], zeros[POSITIONS * HIDDEN];
    static const float quarter[TOPK] = { 0.25f, 0.5f, 0.125f, 0.125f };
    int64_t topk_idx[TOKENS * TOPK];
    float weights[TOKENS * TOPK];
    test_random r = test_seed("undoes_expand");
    for (int i = 0; i < TOKENS * TOPK; i++) topk_idx[i] = test_below(&r, EXPERTS), weights[i] = quarter[i % TOPK];
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        x[i] = (uint16_t)test_bits(&r);
        if ((x[i] & 0x7c00) == 0x7c00) x[i] &= 0xbfff; /* no infinities and NaN */
        if ((x[i] & 0x7fff) == 0) x[i] = 0;
    }
    FOR_BACKENDS(b) {
        mapped m = { TOKENS, TOPK, EXPERTS, 8, POSITIONS, { 0 } };
        map_tokens(b, topk_idx, &m);
        tensor tx, tpos, texpert, tmiddle, tweights, tout;
        place(b, &tx, TGL_F16, 2, SHAPE(TOKENS, HIDDEN), x);
        place(b, &tpos, TGL_I32, 2, SHAPE(TOKENS, TOPK), m.at[TOKEN_TOPK_TO_POS]);
        place(b, &texpert, TGL_I32, 1, SHAPE(POSITIONS), m.at[POS_TO_EXPERT]);
        place(b, &tmiddle, TGL_F16, 2, SHAPE(POSITIONS, HIDDEN), zeros);
        place(b, &tweights, TGL_F32, 2, SHAPE(TOKENS, TOPK), weights);
        place(b, &tout, TGL_F16, 2, SHAPE(TOKENS, HIDDEN), zeros);
        CHECK_OK(tgl_moe_expand_to_fused(&tx.t, &tpos.t, &texpert.t, &tmiddle.t, b->stream));
        CHECK_OK(tgl_moe_reduce_fused(&tmiddle.t, NULL, &tweights.t, &tpos.t, NULL, &tout.t, b->stream));
        CHECK_OK(backend_download(b, seen, tout.t.data, sizeof seen));
        for (int i = 0; i < TOKENS * HIDDEN; i++) REQUIRE(seen[i] == x[i]);
        discard(b, &tx), discard(b, &tpos), discard(b, &texpert), discard(b, &tmiddle), discard(b, &tweights);
        discard(b, &tout);
        free_mapped(&m);
    }
}

TEST(num_sms)
{
    check_num_sms("moe_reduce_fused",
                  (const char *const[]){
                      "num_tokens=40 num_topk=8 num_experts=9 hidden=576 alignment=16 x_sf=1 values=order", NULL });
}

TEST(graph)
{
    check_replayed("moe_reduce_fused", "num_tokens=40 num_topk=8 num_experts=9 hidden=576 alignment=16", 1);
    check_replayed("moe_reduce_fused", "num_tokens=3000 num_topk=2 num_experts=40 hidden=144 alignment=16", 1);
}

/* ---- errors ---- */

OP(moe_reduce_fused, t[0], t[1], t[2], t[3], t[4], t[5])
#define GOOD_CALL CALL_OF(moe_reduce_fused, "num_positions=7 hidden=8 num_tokens=3 num_topk=2")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_E5M2), "x: dtype is e5m2, want f16, bf16, f32 or e4m3");
    CHECK_ERROR(x[4].shape[0] = 0, "sf: shape is [0], want [1]");
    CHECK_ERROR(x[5].strides[0] = 7, "out: strides are [7, 1], want >= 8 between rows");
}

TEST(empty)
{
    check_empty(CALL_OF(moe_reduce_fused, "num_positions=6 hidden=64 num_tokens=0 num_topk=2"));
    check_empty(CALL_OF(moe_reduce_fused, "num_positions=6 hidden=0 num_tokens=3 num_topk=2"));
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
