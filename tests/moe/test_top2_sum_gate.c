/* SPDX-License-Identifier: MIT
 * tgl_moe_top2_sum_gate, on every device of the tests. Written from the specification: scores of logits, keys
 * that are scores (for softmax logits) plus bias, the best experts of the best groups, weights that are
 * scores over their sum, then shared slots, physical experts and the mask of tensor parallelism. */
#include "gates.h"

TESTS_OF_TABLE("moe_top2_sum_gate")

static gate_result first, second;

/* Padding as in serving: rows of zeros whose experts are not used, with all that follows a choice. With every
 * order of the emulated device, as each leaves other values in uninitialised memory. */
TEST(list_of_padding)
{
    static const char *const lines[] = {
        "num_tokens=1034 num_experts=144 num_topk=6 num_shared_experts=2 replicas=33 mask=tail values=zero "
        "bias=none",
        "num_tokens=600 num_experts=257 num_topk=6 num_shared_experts=2 replicas=5 mask=tail fix=some "
        "unmapped=packed scoring=identity excluded=zeros,nan,inf",
        NULL,
    };
    FOR_BACKENDS(b) check_lines("moe_top2_sum_gate", lines, b);
}

/* top2_sum_gate_many with few tokens, which would take another kernel: of those that fit it is number 0, with
 * a map number 1. */
TEST(kernel_of_many_tokens)
{
    static const char *const plain[] = {
        "num_tokens=37 num_experts=257 num_topk=6 values=ties,equal,few_finite,special bias=none "
        "scoring=identity",
        "num_tokens=37 num_experts=257 num_topk=6 values=near,special bias=none scoring=sigmoid,sqrtsoftplus",
        "num_tokens=37 num_experts=257 num_topk=6 values=exact bias=near scoring=sigmoid,sqrtsoftplus",
        "num_tokens=37 num_experts=257 num_topk=6 layout=gap,repeated offset=0,1 scoring=identity",
        "num_tokens=37 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 dtype=i32 "
        "values=normal,ties bias=none",
        NULL
    };
    static const char *const mapped_lines[] = {
        "num_tokens=37 num_experts=257 num_topk=6 mask=some fix=some unmapped=gap num_shared_experts=2 "
        "replicas=5 map=random,wild bias=disabled scoring=identity excluded=zeros,ties,nan,inf,denormal,wild",
        "num_tokens=37 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some fix=some "
        "unmapped=packed num_shared_experts=1 replicas=3 dtype=i32 excluded=zeros,nan",
        NULL
    };
    FOR_BACKENDS(b)
        for (int has_map = 0; has_map < 2; has_map++) {
            setenv("TEGULA_TEST_KERNEL", has_map ? "1" : "0", 1);
            check_lines("moe_top2_sum_gate", has_map ? mapped_lines : plain, b);
            unsetenv("TEGULA_TEST_KERNEL");
        }
}

/* ---- examples ---- */

static const float logits[] = { 0, 2, -1, 1, 0, 2, -1, 1, 0, 2, -1, 1 }; /* three tokens, four experts */

TEST(worked_examples)
{
    /* doc: top2_sum_gate */
    const float bias[] = { 0, 0, 1, 0 };
    gate g = { .num_experts = 4, .num_topk = 2, .logits = logits, .bias = bias }; /* 0, 2, -1, 1 */
    g.params.has_routed_scaling_factor = true, g.params.routed_scaling_factor = 1.5f;
    check_gate(g, ROW(2, 1), WEIGHTS(0.350873f, 1.149127f)); /* keys 0.5, 0.8808, 1.2689, 0.7311 */
    g.params.scoring = TGL_MOE_SQRTSOFTPLUS;
    check_gate(g, ROW(2, 1), WEIGHTS(0.416009f, 1.083991f)); /* keys 0.8326, 1.4584, 1.5597, 1.1460 */
    g.params.scoring = TGL_MOE_SOFTMAX;
    check_gate(g, ROW(1, 3), WEIGHTS(1.096588f, 0.403412f)); /* keys 0, 2, 0, 1: logits, not scores */
    /* end */
    g.params.scoring = TGL_MOE_IDENTITY;
    check_gate(g, ROW(1, 3), WEIGHTS(1, 0.5f)); /* keys 0, 2, 0, 1 */
}

TEST(worked_example_of_ranks)
{
    /* doc: top2_sum_gate_ranks */
    const float bias[] = { 0, 0, 1, 0 };
    const bool mask[] = { true, false, true }, fix[] = { false, false, true };
    const int64_t before[] = { -9, -9, 0, 1, 3, 3 }, after[] = { 2, 1, -1, -1, 3, 3 };
    gate g = { .num_tokens = 3,
               .num_experts = 4,
               .num_topk = 2,
               .logits = logits,
               .bias = bias,
               .mask = mask,
               .fix_routing_mask = fix,
               .unmapped_topk_idx = before };
    g.params = (tgl_moe_gate_params){ .has_routed_scaling_factor = true,
                                      .routed_scaling_factor = 1.5f,
                                      .num_ep_ranks = 4,
                                      .num_tp_ranks = 2,
                                      .tp_rank = 1 };
    const float weights[] = { 0.350873f, 1.149127f, 0, 0, 0.75f, 0.75f };
    check_gate_all(g, ROW(-1, 0, -1, -1, 1, 1), weights, after);
    g.params.tp_rank = 0;
    check_gate_all(g, ROW(1, -1, -1, -1, -1, -1), weights, after);
    /* end */
}

TEST(worked_example_of_replicas)
{
    /* doc: top2_sum_gate_replicas */
    const int32_t map[] = { 0, 0, 0, /**/ 1, 4, 4, /**/ 2, 2, 2, /**/ 3, 3, 3, /**/ 5, 5, 5 };
    const int32_t count[] = { 1, 2, 1, 1, 1 };
    gate g = { .num_tokens = 2,
               .num_experts = 4,
               .num_topk = 2,
               .logits = logits,
               .replicas = 3,
               .to_physical_map = map,
               .logical_count = count };
    g.params = (tgl_moe_gate_params){ .num_shared_experts = 1, .num_ep_ranks = 2 };
    const float weights[] = { 0.546449f, 0.453551f, 1, 0.546449f, 0.453551f, 1 };
    check_gate(g, ROW(1, 3, 5, /**/ 4, 3, 5), weights); /* logical 1, 3, 4; replica t * 23333 mod 2 */
    g.params.num_tp_ranks = 2, g.params.tp_rank = 1;
    check_gate(g, ROW(-1, 0, 2, /**/ 1, 0, 2), weights); /* three experts on a rank */
    /* end */
}

TEST(worked_example_of_groups)
{
    /* doc: top2_sum_gate_groups */
    const float grouped[] = { 0.9f, 0.1f, /**/ 0.8f, 0.7f, /**/ 0.85f, 0, /**/ 0.2f, 0.3f };
    gate g = { .num_experts = 8, .num_topk = 3, .logits = grouped };
    g.params = (tgl_moe_gate_params){ .num_groups = 4, .num_topk_groups = 2, .no_renormalize = true };
    /* group sums 1.2359, 1.3582, 1.2006, 1.1243: expert 4 is out, though second best of all */
    check_gate(g, ROW(0, 2, 3), WEIGHTS(0.710950f, 0.689974f, 0.668188f));
    /* end */
}

/* ---- special values ---- */

#define GATE(logits_of_row, topk) \
    { .num_experts = sizeof(logits_of_row) / sizeof(float), .num_topk = (topk), .logits = (logits_of_row) }

TEST(nan_has_no_score_and_comes_last)
{
    const float some[] = { NAN, 1, -NAN, -200, 0 }, none[] = { NAN, NAN, NAN };
    for (int scoring = 0; scoring < 4; scoring++) {
        gate g = GATE(some, 5);
        g.params.scoring = (tgl_moe_scoring)scoring;
        const float sigmoid[] = { 0.593845f, 0.406155f, 0, 0, 0 };
        const float sqrtsoftplus[] = { 0.579206f, 0.420794f, 0, 0, 0 };
        const float softmax[] = { 0.731059f, 0.268941f, 0, 0, 0 };
        const float identity[] = { -0.00502512563f, 0, 1.00502513f, 0, 0 };
        const float *const weights[] = { sigmoid, sqrtsoftplus, softmax, identity };
        check_gate(g, ROW(1, 4, 3, 0, 2), weights[scoring]);
        gate nothing = GATE(none, 2);
        nothing.params.scoring = (tgl_moe_scoring)scoring;
        check_gate(nothing, ROW(0, 1), WEIGHTS(0, 0));
    }
}

TEST(infinities)
{
    const float both[] = { -INFINITY, 3, INFINITY, -INFINITY }, low[] = { -INFINITY, -INFINITY, -INFINITY };
    gate g = GATE(both, 4);
    check_gate(g, ROW(2, 1, 0, 3), WEIGHTS(0.512144f, 0.487856f, 0, 0));
    g.params.scoring = TGL_MOE_SQRTSOFTPLUS; /* inf / inf */
    check_gate(g, ROW(2, 1, 0, 3), WEIGHTS(NAN, 0, 0, 0));
    g.params.scoring = TGL_MOE_IDENTITY; /* inf - inf */
    check_gate(g, ROW(2, 1, 0, 3), WEIGHTS(NAN, NAN, NAN, NAN));
    for (int scoring = 0; scoring < 3; scoring++) {
        gate all_low = GATE(low, 2);
        all_low.params.scoring = (tgl_moe_scoring)scoring;
        check_gate(all_low, ROW(0, 1), WEIGHTS(0, 0));
    }
    g.params.scoring = TGL_MOE_SOFTMAX; /* a score that would be NaN is 0 */
    check_gate(g, ROW(2, 1, 0, 3), WEIGHTS(0, 0, 0, 0));
}

TEST(ends_of_the_functions)
{
    const float low[] = { -100, -101, -200, -100 }; /* sigmoid: exp overflows, all scores are 0 */
    gate g = GATE(low, 3);
    check_gate(g, ROW(0, 1, 2), WEIGHTS(0, 0, 0));
    const float high[] = { 25, 20, 36, 100, 20.25f };
    gate h = GATE(high, 5);
    h.params = (tgl_moe_gate_params){ .scoring = TGL_MOE_SQRTSOFTPLUS, .no_renormalize = true };
    check_gate(h, ROW(3, 2, 0, 4, 1), WEIGHTS(10, 6, 5, 4.5f, 4.4721360f));
    h.params.scoring = TGL_MOE_SIGMOID; /* all 1: the lower index wins */
    check_gate(h, ROW(0, 1, 2, 3, 4), WEIGHTS(1, 1, 1, 1, 1));
    const float tiny[] = { -46, -46, -46 }; /* scores near the divisor's 1e-20 */
    gate t = GATE(tiny, 2);
    const float score = 1.0530617e-20f;
    check_gate(t, ROW(0, 1), WEIGHTS(score / (1e-20f + 2 * score), score / (1e-20f + 2 * score)));
}

TEST(bias_disables_experts)
{
    const float row[] = { 3, 2, 1, 0, -1 }, bias[] = { -INFINITY, 0, -INFINITY, 0, -INFINITY };
    for (int scoring = 0; scoring < 4; scoring++) {
        gate g = GATE(row, 2);
        g.bias = bias, g.params.scoring = (tgl_moe_scoring)scoring;
        check_gate(g, ROW(1, 3), NULL);
        g.num_topk = 5; /* then the disabled ones in order */
        check_gate(g, ROW(1, 3, 0, 2, 4), NULL);
        FOR_BACKENDS(b) {
            CHECK_OK(call_gate(b, TGL_I64, &g, &first));
            CHECK(scoring == TGL_MOE_IDENTITY || first.weights[2] > 0); /* without the bias */
        }
    }
}

TEST(groups_of_one_expert)
{
    const float row[] = { 0, 1, 5, 3, 4, 2 };
    gate g = GATE(row, 2);
    g.params = (tgl_moe_gate_params){
        .scoring = TGL_MOE_IDENTITY, .num_groups = 6, .num_topk_groups = 3, .no_renormalize = true
    };
    check_gate(g, ROW(2, 4), WEIGHTS(5, 4));
}

TEST(ties_between_groups) /* the lower group wins, wherever its best experts are */
{
    const float row[] = { 1, 0, 2, /**/ 2, 1, 0, /**/ 0, 3, 0, /**/ 1.5f, 1.5f, 1.5f };
    gate g = GATE(row, 3);
    g.params = (tgl_moe_gate_params){
        .scoring = TGL_MOE_IDENTITY, .num_groups = 4, .num_topk_groups = 1, .no_renormalize = true
    };
    check_gate(g, ROW(2, 0, 1), WEIGHTS(2, 1, 0));
    g.params.num_topk_groups = 2;
    check_gate(g, ROW(2, 3, 0), WEIGHTS(2, 2, 1));
    g.params.num_topk_groups = 3;
    check_gate(g, ROW(7, 2, 3), WEIGHTS(3, 2, 2));
}

TEST(nan_in_groups) /* counts as -inf in their sums */
{
    /* groups 0 and 1 sum to -inf; the lower one stays, with group 2 */
    const float few[] = { NAN, NAN, /**/ 5, NAN, /**/ 1, 0 };
    /* 5 and 4, 5 and 4.5: not 5 twice, where a NaN was */
    const float some[] = { NAN, 5, 4, /**/ 4.5f, 0, 5 };
    for (int scoring = 0; scoring < 4; scoring++) {
        gate g = GATE(few, 3), h = GATE(some, 3);
        g.params = (tgl_moe_gate_params){ .scoring = (tgl_moe_scoring)scoring, .num_groups = 3, .num_topk_groups = 2 };
        check_gate(g, ROW(4, 5, 0), NULL);
        h.params = (tgl_moe_gate_params){ .scoring = (tgl_moe_scoring)scoring, .num_groups = 2, .num_topk_groups = 1 };
        check_gate(h, ROW(5, 3, 4), NULL);
        FOR_BACKENDS(b) {
            CHECK_OK(call_gate(b, TGL_I64, &g, &first));
            CHECK(first.weights[2] == 0);
        }
    }
}

TEST(fixed_slots_may_be_empty)
{
    const bool fix[] = { true, true };
    const int64_t fixed[] = { 1, -1, 3, 4, /**/ -7, INT32_MAX, INT32_MIN, 100 };
    gate g = { .num_tokens = 2,
               .num_experts = 4,
               .num_topk = 4,
               .logits = logits,
               .fix_routing_mask = fix,
               .unmapped_topk_idx = fixed };
    check_gate_all(g, ROW(1, -1, 3, -1, /**/ -1, -1, -1, -1), WEIGHTS(0.546449f, 0, 0.453551f, 0, 0, 0, 0, 0), fixed);
    g.params.no_renormalize = true;
    check_gate_all(g, ROW(1, -1, 3, -1, /**/ -1, -1, -1, -1), WEIGHTS(0.880797f, 0, 0.731059f, 0, 0, 0, 0, 0), fixed);
}

TEST(mask_comes_before_fixed_experts)
{
    const bool mask[] = { false, true, false }, fix[] = { true, true, false };
    const int64_t before[] = { 0, 1, 2, 3, 0, 1 };
    gate g = { .num_tokens = 3,
               .num_experts = 4,
               .num_topk = 2,
               .logits = logits,
               .mask = mask,
               .fix_routing_mask = fix,
               .unmapped_topk_idx = before };
    check_gate_all(g, ROW(-1, -1, 2, 3, -1, -1), WEIGHTS(0, 0, 0.268941f, 0.731059f, 0, 0), ROW(-1, -1, 2, 3, -1, -1));
}

TEST(replica_counts_out_of_range) /* clamped to 1 .. the number of replicas */
{
    const float two[] = { 2, 1, 2, 1, 2, 1, 2, 1 };
    const int32_t map[] = { 10, 11, 12, 20, 21, 22 };
    const int32_t counts[][2] = { { 0, -5 }, { 1, 1 }, { 3, 2 }, { 4, INT32_MAX }, { INT32_MIN, 3 } };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t want[8];
        for (int t = 0; t < 4; t++)
            for (int k = 0; k < 2; k++) {
                const int64_t c = counts[i][k] < 1 ? 1 : counts[i][k] > 3 ? 3 : counts[i][k];
                want[2 * t + k] = map[3 * k + (7 + t * 23333) % c];
            }
        gate g = { .num_tokens = 4,
                   .num_experts = 2,
                   .num_topk = 2,
                   .logits = two,
                   .replicas = 3,
                   .to_physical_map = map,
                   .logical_count = counts[i] };
        g.params.ep_rank = 7;
        const float w = 0.546449f;
        check_gate(g, want, WEIGHTS(w, 1 - w, w, 1 - w, w, 1 - w, w, 1 - w));
    }
}

TEST(an_empty_replica_is_an_empty_slot) /* but keeps its weight */
{
    const int32_t map[] = { 0, 1, -1, -3, 4 }, count[] = { 1, 1, 1, 1, 1 };
    const float row[] = { 0, 2, -1, 1, 9 };
    gate g = {
        .num_experts = 5, .num_topk = 3, .logits = row, .replicas = 1, .to_physical_map = map, .logical_count = count
    };
    g.params.scoring = TGL_MOE_IDENTITY;
    check_gate(g, ROW(4, 1, -1), WEIGHTS(0.75f, 0.1666667f, 0.0833333f));
}

/* ---- properties ---- */

enum { TOKENS = 40, EXPERTS = 64, TOPK = 6 };
static float random_logits[TOKENS * EXPERTS], random_bias[EXPERTS];

static gate random_gate(const char *name, int scoring)
{
    test_random r = test_seed(name);
    random_floats(&r, random_logits, TOKENS * EXPERTS);
    random_floats(&r, random_bias, EXPERTS);
    for (int e = 0; e < EXPERTS; e++) random_bias[e] /= 8;
    gate g = {
        .num_tokens = TOKENS, .num_experts = EXPERTS, .num_topk = TOPK, .logits = random_logits, .bias = random_bias
    };
    g.params.scoring = (tgl_moe_scoring)scoring;
    return g;
}

TEST(fixed_to_its_own_choice) /* which changes nothing */
{
    for (int scoring = 0; scoring < 4; scoring++)
        for (int grouped = 0; grouped < 2; grouped++)
            FOR_BACKENDS(b) {
                static int64_t chosen[TOKENS * TOPK];
                bool fix[TOKENS];
                gate g = random_gate("fixed", scoring);
                if (grouped) g.params.num_groups = 8, g.params.num_topk_groups = 3;
                memset(chosen, 0, sizeof chosen);
                memset(fix, 1, sizeof fix);
                g.unmapped_topk_idx = chosen;
                CHECK_OK(call_gate(b, TGL_I64, &g, &first));
                check_indices(b, "unmapped_topk_idx", first.unmapped, first.idx, TOKENS * TOPK);
                memcpy(chosen, first.unmapped, sizeof chosen);
                g.fix_routing_mask = fix;
                g.bias = NULL;
                CHECK_OK(call_gate(b, TGL_I64, &g, &second));
                check_same(b, "fixed", &second, &first, TOKENS * TOPK);
                check_indices(b, "fixed", second.unmapped, chosen, TOKENS * TOPK);
            }
}

TEST(a_token_alone_gets_the_same) /* in any batch, with either dtype of indices */
{
    for (int scoring = 0; scoring < 4; scoring++)
        FOR_BACKENDS(b) {
            gate g = random_gate("alone", scoring);
            g.params.num_groups = 8, g.params.num_topk_groups = 4;
            CHECK_OK(call_gate(b, TGL_I64, &g, &first));
            for (int64_t t = 0; t < TOKENS; t += 3) {
                gate one = g;
                one.num_tokens = 1, one.logits = random_logits + t * EXPERTS;
                CHECK_OK(call_gate(b, b->is_emulated ? TGL_I64 : TGL_I32, &one, &second));
                check_same_from(b, "alone", &second, &first, t * TOPK, TOPK);
            }
        }
}

TEST(all_groups_are_no_groups)
{
    for (int scoring = 0; scoring < 4; scoring++)
        FOR_BACKENDS(b) {
            gate g = random_gate("groups", scoring);
            CHECK_OK(call_gate(b, TGL_I64, &g, &first));
            for (int64_t groups = 1; groups <= EXPERTS; groups *= 4) {
                g.params.num_groups = g.params.num_topk_groups = groups;
                CHECK_OK(call_gate(b, TGL_I64, &g, &second));
                check_same(b, "all groups", &second, &first, TOKENS * TOPK);
            }
        }
}

TEST(identity_is_made_of_other_ops) /* topk_sum_and_topk_group_idx, topk_gate, normalize_weight */
{
    FOR_BACKENDS(b) {
        enum { GROUPS = 8, KEPT = 3, SIZE = EXPERTS / GROUPS };
        gate g = random_gate("identity", TGL_MOE_IDENTITY);
        g.bias = NULL, g.params.num_groups = GROUPS, g.params.num_topk_groups = KEPT;
        CHECK_OK(call_gate(b, TGL_I64, &g, &first));

        static float kept[TOKENS * EXPERTS], chosen[TOKENS * TOPK];
        tensor scores, groups, masked, idx, weights, denominator;
        place(b, &scores, TGL_F32, 3, SHAPE(TOKENS, GROUPS, SIZE), random_logits);
        place(b, &groups, TGL_I64, 2, SHAPE(TOKENS, KEPT), random_logits);
        CHECK_OK(tgl_moe_topk_sum_and_topk_group_idx(&scores.t, &groups.t, 2, b->stream));
        take_indices(b, &groups, TOKENS * KEPT, second.idx);
        for (int i = 0; i < TOKENS * EXPERTS; i++) kept[i] = -INFINITY;
        for (int i = 0; i < TOKENS * KEPT; i++)
            for (int e = 0; e < SIZE; e++) {
                const int64_t at = i / KEPT * EXPERTS + second.idx[i] * SIZE + e;
                kept[at] = random_logits[at];
            }
        place(b, &masked, TGL_F32, 2, SHAPE(TOKENS, EXPERTS), kept);
        place(b, &idx, TGL_I64, 2, SHAPE(TOKENS, TOPK), random_logits);
        CHECK_OK(tgl_moe_topk_gate(&masked.t, &idx.t, b->stream));
        take_indices(b, &idx, TOKENS * TOPK, second.idx);
        for (int i = 0; i < TOKENS * TOPK; i++) chosen[i] = random_logits[i / TOPK * EXPERTS + second.idx[i]];
        place(b, &weights, TGL_F32, 2, SHAPE(TOKENS, TOPK), chosen);
        place(b, &denominator, TGL_F32, 1, SHAPE(TOKENS), chosen);
        CHECK_OK(tgl_moe_normalize_weight(&weights.t, &denominator.t, &weights.t, b->stream));
        CHECK_OK(backend_download(b, second.weights, weights.t.data, sizeof chosen));
        check_same(b, "other ops", &first, &second, TOKENS * TOPK);
        discard(b, &scores), discard(b, &masked), discard(b, &weights), discard(b, &denominator);
    }
}

TEST(softmax_ranks_as_identity) /* by logit + bias, also where the bias is large */
{
    FOR_BACKENDS(b) {
        gate g = random_gate("softmax", TGL_MOE_SOFTMAX);
        for (int e = 0; e < EXPERTS; e++) random_bias[e] *= 100;
        CHECK_OK(call_gate(b, TGL_I64, &g, &first));
        g.params.scoring = TGL_MOE_IDENTITY;
        CHECK_OK(call_gate(b, TGL_I64, &g, &second));
        check_indices(b, "topk_idx", first.idx, second.idx, TOKENS * TOPK);
    }
}

TEST(weights_sum_to_the_factor)
{
    for (int scoring = 0; scoring < 3; scoring++)
        FOR_BACKENDS(b) {
            gate g = random_gate("sum", scoring);
            CHECK_OK(call_gate(b, TGL_I64, &g, &first));
            g.params.has_routed_scaling_factor = true, g.params.routed_scaling_factor = 4;
            CHECK_OK(call_gate(b, TGL_I64, &g, &second));
            for (int t = 0; t < TOKENS; t++) {
                double sum = 0;
                for (int k = 0; k < TOPK; k++) {
                    sum += (double)first.weights[t * TOPK + k];
                    CHECK(second.weights[t * TOPK + k] == 4 * first.weights[t * TOPK + k]);
                }
                CHECK_THAT(fabs(sum - 1) < 1e-6, "token %d: weights sum to %.9g", t, sum);
            }
            g.params.routed_scaling_factor = 0; /* given, and 0 */
            CHECK_OK(call_gate(b, TGL_I64, &g, &second));
            for (int i = 0; i < TOKENS * TOPK; i++) CHECK(second.weights[i] == 0);
            check_indices(b, "topk_idx", second.idx, first.idx, TOKENS * TOPK);
        }
}

TEST(ranks_as_mask_indices_by_tp)
{
    static const struct {
        int64_t ep, tp;
    } ranks[] = {
        { 1, 1 }, { 4, 2 }, { 8, 8 }, { 64, 3 }, { 7, 2 }, { 3, 100 },
    };
    static int32_t map[EXPERTS * 5], count[EXPERTS];
    test_random r = test_seed("ranks");
    for (int i = 0; i < EXPERTS * 5; i++) map[i] = (int32_t)test_below(&r, EXPERTS + 4);
    for (int e = 0; e < EXPERTS; e++) count[e] = 1 + (int32_t)test_below(&r, 5);
    for (int has_map = 0; has_map < 2; has_map++)
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
            for (int64_t tp_rank = 0; tp_rank < ranks[i].tp; tp_rank += 1 + ranks[i].tp / 4)
                FOR_BACKENDS(b) {
                    gate g = random_gate("ranks", TGL_MOE_SIGMOID);
                    if (has_map) g.replicas = 5, g.to_physical_map = map, g.logical_count = count;
                    CHECK_OK(call_gate(b, TGL_I64, &g, &first));
                    tensor idx;
                    const tgl_moe_mask_indices_by_tp_params p = {
                        EXPERTS + (has_map ? 4 : 0), ranks[i].ep, ranks[i].tp, tp_rank, { 0 }
                    };
                    place(b, &idx, TGL_I64, 2, SHAPE(TOKENS, TOPK), first.idx);
                    CHECK_OK(tgl_moe_mask_indices_by_tp(&idx.t, &idx.t, &p, b->stream));
                    take_indices(b, &idx, TOKENS * TOPK, first.idx);
                    g.params.num_ep_ranks = ranks[i].ep, g.params.num_tp_ranks = ranks[i].tp;
                    g.params.tp_rank = tp_rank;
                    CHECK_OK(call_gate(b, TGL_I64, &g, &second));
                    check_same(b, "ranks", &second, &first, TOKENS * TOPK);
                }
}

TEST(replicas_take_turns) /* ep_rank and the token's number choose, shared experts too */
{
    static int32_t map[(EXPERTS + 2) * 3], count[EXPERTS + 2];
    for (int e = 0; e < EXPERTS + 2; e++) {
        count[e] = 1 + e % 3;
        for (int r = 0; r < 3; r++) map[3 * e + r] = 1000 * e + r;
    }
    for (int64_t ep_rank = 0; ep_rank < 7; ep_rank += 2)
        FOR_BACKENDS(b) {
            static int64_t unmapped[TOKENS * TOPK];
            gate g = random_gate("replicas", TGL_MOE_SQRTSOFTPLUS);
            g.replicas = 3, g.to_physical_map = map, g.logical_count = count, g.unmapped_topk_idx = unmapped;
            g.params.num_shared_experts = 2, g.params.ep_rank = ep_rank;
            CHECK_OK(call_gate(b, TGL_I64, &g, &first));
            for (int64_t t = 0; t < TOKENS; t++)
                for (int64_t k = 0; k < TOPK + 2; k++) {
                    const int64_t e = k < TOPK ? first.unmapped[t * TOPK + k] : EXPERTS + k - TOPK;
                    const int64_t want = 1000 * e + (ep_rank + 23333 * t) % (1 + e % 3);
                    CHECK_INT(first.idx[t * (TOPK + 2) + k], want);
                    if (k >= TOPK) CHECK(first.weights[t * (TOPK + 2) + k] == 1);
                }
        }
}

/* Keys one or a few float steps apart, which only exact scores can tell apart. These scores are exact if exp
 * and log1p are accurate to a few steps; equal keys come from different scores. */
typedef struct { float logit, score; } exact;
static const exact exacts[4][4] = {
    { { 0, 0.5f }, { 30, 1 }, { 40, 1 }, { 0, 0.5f } },
    { { 25, 5 }, { 20.25f, 4.5f }, { 30.25f, 5.5f }, { 42.25f, 6.5f } },
    { { 0, 0 }, { 0.25f, 0.25f }, { 0.5f, 0.5f }, { 0.75f, 0.75f } },
    { { 0, 0 }, { 0.25f, 0.25f }, { 0.5f, 0.5f }, { 0.75f, 0.75f } },
};

static float exact_logit(int scoring, int64_t e) { return exacts[scoring][e % 4].logit; }

/* Biases that put an expert with exact_logit() `above` the base; one with a score of 0 is far below.
 *   kind 0 .. 2   by 1, 16, 256 times 2^-21 times its number in a permutation
 *        3        by up to two steps, around a base where the upper bits of keys change
 *        4        the same of small keys: errors of scores count, not of sums
 *        5        by nothing, but every other sum is halfway to the next float and rounded to the base */
enum { KINDS = 6 };
static float exact_bias(int scoring, int kind, int count, float *bias, float *above)
{
    static const float bases[4] = { 1.5f, 6, 1, 1 };
    const float base = kind < 4 ? bases[scoring] : kind < 5 ? 0x1p-10f : 1024 + 0x1p-5f;
    for (int e = 0; e < count; e++) {
        const int n = e * 77 % count;
        above[e] = kind < 3   ? ldexpf((float)n, 4 * kind - 21)
                   : kind < 5 ? ldexpf((float)(n % 5 - 2), scoring == TGL_MOE_SQRTSOFTPLUS ? -21 : -23)
                              : 0;
        bias[e] = base - exacts[scoring][e % 4].score + above[e];
        if (kind == 5) bias[e] -= n % 2 ? 0x1p-14f : 0;
    }
    return base;
}

/* Sorts experts by their height above the base, best first; equal ones by number. */
static void sort_experts(int64_t *experts, int count, const float *above)
{
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0; j--) {
            const int64_t one = experts[j - 1], other = experts[j];
            if (above[one] > above[other] || (above[one] == above[other] && one < other)) break;
            experts[j] = one, experts[j - 1] = other;
        }
}

TEST(last_place_by_one_step) /* seven experts of a token compete for six places */
{
    enum { ROWS = 128, WIDTH = 144, RIVALS = TOPK + 1 };
    static float rows[ROWS * WIDTH], bias[WIDTH], above[WIDTH];
    static int64_t want[ROWS * TOPK];
    for (int scoring = 0; scoring < 4; scoring++)
        for (int kind = 0; kind < KINDS; kind++) {
            exact_bias(scoring, kind, WIDTH, bias, above);
            for (int i = 0; i < ROWS * WIDTH; i++) rows[i] = -200;
            for (int t = 0; t < ROWS; t++) {
                int64_t rivals[RIVALS];
                for (int i = 0; i < RIVALS; i++) {
                    rivals[i] = (t + i * (1 + t % 20)) % WIDTH;
                    rows[t * WIDTH + rivals[i]] = exact_logit(scoring, rivals[i]);
                }
                sort_experts(rivals, RIVALS, above);
                memcpy(want + t * TOPK, rivals, TOPK * sizeof *rivals);
            }
            gate g = { .num_tokens = ROWS, .num_experts = WIDTH, .num_topk = TOPK, .logits = rows, .bias = bias };
            g.params.scoring = (tgl_moe_scoring)scoring;
            check_gate(g, want, NULL);
        }
}

TEST(many_compete_for_all_places) /* more than a lane each */
{
    enum { WIDTH = 144 };
    float row[WIDTH], bias[WIDTH], above[WIDTH];
    int64_t experts[WIDTH];
    for (int scoring = 0; scoring < 4; scoring++) {
        exact_bias(scoring, 0, WIDTH, bias, above);
        for (int e = 0; e < WIDTH; e++) row[e] = exact_logit(scoring, e), experts[e] = e;
        sort_experts(experts, WIDTH, above);
        gate g = { .num_experts = WIDTH, .num_topk = TOPK, .logits = row, .bias = bias };
        g.params.scoring = (tgl_moe_scoring)scoring;
        check_gate(g, experts, NULL);
    }
}

TEST(last_group_by_one_step) /* four of eight, ranked by the two best of their three keys */
{
    enum { ROWS = 128, GROUPS = 8, SIZE = EXPERTS / GROUPS, KEPT = 4, SHOWN = 3 };
    static float rows[ROWS * EXPERTS], bias[EXPERTS], above[EXPERTS];
    static int64_t want[ROWS * TOPK];
    for (int scoring = 0; scoring < 4; scoring++)
        for (int kind = 3; kind < KINDS; kind++) {
            const float base = exact_bias(scoring, kind, EXPERTS, bias, above);
            for (int i = 0; i < ROWS * EXPERTS; i++) rows[i] = -200;
            for (int t = 0; t < ROWS; t++) {
                int64_t experts[GROUPS * SHOWN];
                float worth[GROUPS];
                int kept = 0;
                for (int g = 0; g < GROUPS; g++) {
                    int64_t *const of_group = experts + g * SHOWN;
                    for (int i = 0; i < SHOWN; i++) {
                        of_group[i] = g * SIZE + (t * (g + 3) + i * (1 + t % 2)) % SIZE;
                        rows[t * EXPERTS + of_group[i]] = exact_logit(scoring, of_group[i]);
                    }
                    sort_experts(of_group, SHOWN, above);
                    worth[g] = (base + above[of_group[0]]) + (base + above[of_group[1]]);
                }
                for (int g = 0; g < GROUPS; g++) { /* with fewer than KEPT before it */
                    int before = 0;
                    for (int h = 0; h < GROUPS; h++) before += worth[h] > worth[g] || (worth[h] == worth[g] && h < g);
                    for (int i = 0; i < SHOWN && before < KEPT; i++) experts[kept++] = experts[g * SHOWN + i];
                }
                sort_experts(experts, kept, above);
                memcpy(want + t * TOPK, experts, TOPK * sizeof *experts);
            }
            gate g = { .num_tokens = ROWS, .num_experts = EXPERTS, .num_topk = TOPK, .logits = rows, .bias = bias };
            g.params.scoring = (tgl_moe_scoring)scoring;
            g.params.num_groups = GROUPS, g.params.num_topk_groups = KEPT;
            check_gate(g, want, NULL);
        }
}

/* Sqrtsoftplus, by the kernel of few tokens and by that of many. */
enum { MANY = 37, WIDTH = 257 };
static void check_few_and_many(const float *rows, const float *bias, const int64_t *want)
{
    gate g = { .num_tokens = MANY, .num_experts = WIDTH, .num_topk = TOPK, .logits = rows, .bias = bias };
    g.params.scoring = TGL_MOE_SQRTSOFTPLUS;
    for (int kernel = 0; kernel < 2; kernel++) {
        setenv("TEGULA_TEST_KERNEL", kernel ? "0" : "1", 1);
        check_gate(g, want, NULL);
        unsetenv("TEGULA_TEST_KERNEL");
    }
}

/* An expert with score 10 and bias -9, which a filter may take for infinite. The keys of the others are their
 * scores, sqrt(x) for x > 20. */
TEST(large_scores_of_small_keys)
{
    enum { LOUD = WIDTH - 1 };
    static float rows[MANY * WIDTH], bias[WIDTH];
    static int64_t want[MANY * TOPK];
    bias[LOUD] = -9;
    for (int t = 0; t < MANY; t++) {
        rows[t * WIDTH + LOUD] = 100;
        for (int i = 0; i < TOPK; i++) {
            const int e = (3 * t + 20 * i) % LOUD;
            rows[t * WIDTH + e] = (8 - 0.5f * (float)i) * (8 - 0.5f * (float)i);
            want[t * TOPK + i] = e;
        }
    }
    check_few_and_many(rows, bias, want);
}

/* softplus(-17) is a third of the step from 1 to the next float: a filter by log(1 + exp(x)) gives 0 instead
 * of its root, 2e-4. With its bias it is still the best, though six others seem better. */
TEST(small_scores_of_small_bias)
{
    enum { QUIET = 150 };
    static float rows[MANY * WIDTH], bias[WIDTH];
    static int64_t want[MANY * TOPK];
    for (int i = 0; i < TOPK; i++) bias[20 * i] = 2e-5f * (float)(TOPK - i);
    bias[QUIET] = 3.3e-4f;
    for (int t = 0; t < MANY; t++) {
        for (int e = 0; e < WIDTH; e++) rows[t * WIDTH + e] = bias[e] > 0 ? -15.9f : -200;
        rows[t * WIDTH + QUIET] = -17;
        for (int i = 0; i < TOPK; i++) want[t * TOPK + i] = i == 0 ? QUIET : 20 * (i - 1);
    }
    check_few_and_many(rows, bias, want);
}

TEST(large_scores_in_groups) /* sums 5 + 4.5 and 5 + 4.25; then 5 + 3.5 and 5 + 4.25 */
{
    const float row[] = { 100, 25, 20.25f, 0, /**/ 25, 20.25f, 0, 0 };
    float bias[] = { -9, 0, 0, 0, /**/ 0, -0.25f, 0, 0 };
    gate g = { .num_experts = 8, .num_topk = 3, .logits = row, .bias = bias };
    g.params = (tgl_moe_gate_params){
        .scoring = TGL_MOE_SQRTSOFTPLUS, .num_groups = 2, .num_topk_groups = 1, .no_renormalize = true
    };
    check_gate(g, ROW(1, 2, 0), WEIGHTS(5, 4.5f, 10));
    bias[2] = -1;
    check_gate(g, ROW(4, 5, 6), WEIGHTS(5, 4.5f, 0.832554611f));
}

TEST(graph) /* a launch a call */
{
    check_replayed("moe_top2_sum_gate", "num_tokens=70 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4", 1);
    check_replayed("moe_top2_sum_gate", "num_tokens=2200 num_experts=64 num_topk=6", 1);
    check_replayed("moe_top2_sum_gate", "num_tokens=9 num_experts=1025 num_topk=6", 1);
}

/* ---- errors ---- */

OP(moe_top2_sum_gate, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], params)
#define GOOD_CALL CALL_OF(moe_top2_sum_gate, GATE_SAMPLE " num_groups=4 num_topk_groups=2")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(moe_top2_sum_gate,
                         "num_tokens=3 num_experts=8 num_topk=2 -bias -mask -fix_routing_mask -to_physical_map "
                         "-logical_count -unmapped_topk_idx"));
    CHECK_GATE_ERRORS();
    CHECK_GROUP_ERRORS();
    CHECK_ERROR(c->tensors[6] = NULL, "unmapped_topk_idx: is NULL, want a tensor with fix_routing_mask");
    CHECK_ERROR(PARAMS->num_groups = PARAMS->num_topk_groups = 0;
                x[7].shape[1] = x[7].strides[0] = 10, "topk_idx: shape is [3, 10], want [3, 1..9]");
    CHECK_ERROR(PARAMS->num_groups = 0, "num_topk_groups: is 2, want 0..0");
    CHECK_ERROR(PARAMS->num_groups = 16, "num_groups: is 16, want a divisor of 8 (num_experts)");
}

TEST(empty)
{
#define GROUPS_OF_EMPTY " num_experts=64 num_replicas=1 num_groups=8 num_topk_groups=4"
    check_empty(CALL_OF(moe_top2_sum_gate, "num_tokens=0 num_topk=6" GROUPS_OF_EMPTY));
    check_empty(CALL_OF(moe_top2_sum_gate, "num_tokens=3 num_topk=0" GROUPS_OF_EMPTY));
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
