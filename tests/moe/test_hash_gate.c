/* SPDX-License-Identifier: MIT
 * tgl_moe_hash_gate, on every device of the tests. Written from the specification: a token's experts are the
 * table's entries of its id, in order; weights come from scores as in top2_sum_gate. */
#include "gates.h"

TESTS_OF_TABLE("moe_hash_gate")

/* ---- examples ---- */

static const float logits[] = { 0, 2, -1, 1, 0, 2, -1, 1, 0, 2, -1, 1, 0, 2, -1, 1 }; /* four tokens */

TEST(worked_example)
{
    /* doc: hash_gate */
    const int64_t tid2eid[] = { 0, 1, /**/ 3, 2, /**/ 1, 3 }, input_ids[] = { 2, 0, 2, 1 };
    const bool mask[] = { true, true, false, true };
    gate g = { .num_tokens = 4,
               .num_experts = 4,
               .num_topk = 2,
               .logits = logits,
               .mask = mask,
               .vocabulary = 3,
               .input_ids = input_ids,
               .tid2eid = tid2eid };
    g.params = (tgl_moe_gate_params){ .scoring = TGL_MOE_SQRTSOFTPLUS,
                                      .has_routed_scaling_factor = true,
                                      .routed_scaling_factor = 1.5f };
    check_gate(g, ROW(1, 3, /**/ 0, 1, /**/ -1, -1, /**/ 3, 2),
               WEIGHTS(0.839971f, 0.660029f, 0.545114f, 0.954886f, 0, 0, 1.007792f, 0.492208f));
    /* end */
}

TEST(ids_that_are_not_in_the_table) /* count as masked */
{
    const int64_t tid2eid[] = { 0, 1, 3, 2, 1, 3 }, ids[] = { -1, 3, INT64_MAX, 2 }, before[8] = { 0 };
    gate g = { .num_tokens = 4,
               .num_experts = 4,
               .num_topk = 2,
               .logits = logits,
               .vocabulary = 3,
               .input_ids = ids,
               .tid2eid = tid2eid,
               .unmapped_topk_idx = before };
    check_gate_all(g, ROW(-1, -1, -1, -1, -1, -1, 1, 3), WEIGHTS(0, 0, 0, 0, 0, 0, 0.546449f, 0.453551f),
                   ROW(-1, -1, -1, -1, -1, -1, 1, 3));
    const int64_t high = (int64_t)1 << 32, far[] = { INT64_MIN, high, high + 2, -high };
    g.input_ids = far;
    check_gate_all(g, ROW(-1, -1, -1, -1, -1, -1, -1, -1), WEIGHTS(0, 0, 0, 0, 0, 0, 0, 0),
                   ROW(-1, -1, -1, -1, -1, -1, -1, -1));
}

TEST(entries_that_are_no_experts) /* are empty slots, even if their lower 32 bits are an expert */
{
    FOR_BACKENDS(b) {
        static gate_result r;
        const int64_t tid2eid[] = { 1, -1, 4, 3, ((int64_t)1 << 32) + 1 }, id = 0, before[5] = { 0 };
        gate g = { .num_experts = 4,
                   .num_topk = 5,
                   .logits = logits,
                   .vocabulary = 1,
                   .input_ids = &id,
                   .tid2eid = tid2eid,
                   .unmapped_topk_idx = before };
        CHECK_OK(call_gate(b, TGL_I64, &g, &r));
        check_indices(b, "topk_idx", r.idx, ROW(1, -1, -1, 3, -1), 5);
        check_weights(b, r.weights, WEIGHTS(0.546449f, 0, 0, 0.453551f, 0), 5, 6e-7f);
        check_indices(b, "unmapped_topk_idx", r.unmapped, tid2eid, 5);
    }
}

TEST(entries_may_repeat) /* and each counts */
{
    const int64_t tid2eid[] = { 1, 1, 3 }, id = 0;
    gate g = {
        .num_experts = 4, .num_topk = 3, .logits = logits, .vocabulary = 1, .input_ids = &id, .tid2eid = tid2eid
    };
    check_gate(g, ROW(1, 1, 3), WEIGHTS(0.3533573f, 0.3533573f, 0.2932854f));
    g.params.no_renormalize = true;
    check_gate(g, ROW(1, 1, 3), WEIGHTS(0.880797f, 0.880797f, 0.731059f));
}

TEST(shared_slots_of_another_convention) /* the layer scales its output later: 1 / factor */
{
    const int32_t map[] = { 0, 0, 1, 1, 2, 2, 3, 3, 4, 4 }, count[] = { 1, 1, 1, 1, 1 };
    const int64_t tid2eid[] = { 1, 3 }, id = 0;
    gate g = { .num_experts = 4,
               .num_topk = 2,
               .logits = logits,
               .vocabulary = 1,
               .input_ids = &id,
               .tid2eid = tid2eid,
               .replicas = 2,
               .to_physical_map = map,
               .logical_count = count };
    g.params = (tgl_moe_gate_params){ .num_shared_experts = 1, .has_shared_weight = true, .shared_weight = 0.4f };
    check_gate(g, ROW(1, 3, 4), WEIGHTS(0.546449f, 0.453551f, 0.4f));
    g.params.shared_weight = 0;
    check_gate(g, ROW(1, 3, 4), WEIGHTS(0.546449f, 0.453551f, 0));
}

TEST(nan_has_score_0)
{
    const float row[] = { NAN, 2, -NAN, 1 };
    const int64_t tid2eid[] = { 0, 1, 2, 3 }, id = 0;
    gate g = { .num_experts = 4, .num_topk = 4, .logits = row, .vocabulary = 1, .input_ids = &id, .tid2eid = tid2eid };
    check_gate(g, ROW(0, 1, 2, 3), WEIGHTS(0, 0.546449f, 0, 0.453551f));
    g.params.scoring = TGL_MOE_SOFTMAX, g.params.no_renormalize = true;
    check_gate(g, ROW(0, 1, 2, 3), WEIGHTS(0, 0.731059f, 0, 0.268941f));
    g.params.scoring = TGL_MOE_IDENTITY;
    check_gate(g, ROW(0, 1, 2, 3), WEIGHTS(0, 2, 0, 1));
}

TEST(softmax_without_renormalisation) /* probabilities over all experts, chosen or not */
{
    const int64_t tid2eid[] = { 3, 0 }, id = 0;
    gate g = {
        .num_experts = 4, .num_topk = 2, .logits = logits, .vocabulary = 1, .input_ids = &id, .tid2eid = tid2eid
    };
    g.params = (tgl_moe_gate_params){ .scoring = TGL_MOE_SOFTMAX,
                                      .no_renormalize = true,
                                      .has_routed_scaling_factor = true,
                                      .routed_scaling_factor = 2 };
    check_gate(g, ROW(3, 0), WEIGHTS(0.473766f, 0.174289f));
}

/* ---- against top2_sum_gate with all tokens fixed ---- */

static void check_as_fixed(int64_t num_tokens, int64_t num_experts, int64_t num_topk, int64_t shared, int scoring,
                           bool with_mask)
{
    enum { VOCABULARY = 50 };
    static float random_logits[64 * 384];
    static int64_t table[VOCABULARY * 31], ids[64], fixed[64 * 31];
    static int32_t map[390 * 4], count[390];
    static bool mask[64], fix[64];
    static gate_result hashed, wanted;
    test_random r = test_seed("hash");
    REQUIRE(num_tokens <= 64 && num_experts <= 384 && num_topk <= 31 && shared <= 3);
    random_floats(&r, random_logits, num_tokens * num_experts);
    for (int64_t i = 0; i < VOCABULARY * num_topk; i++) table[i] = test_below(&r, num_experts + 4) - 2;
    for (int64_t i = 0; i < 390 * 4; i++) map[i] = (int32_t)test_below(&r, num_experts);
    for (int64_t i = 0; i < 390; i++) count[i] = 1 + (int32_t)test_below(&r, 4);
    for (int64_t t = 0; t < num_tokens; t++) {
        ids[t] = test_below(&r, VOCABULARY);
        mask[t] = test_below(&r, 4) != 0, fix[t] = true;
        memcpy(fixed + t * num_topk, table + ids[t] * num_topk, (size_t)num_topk * 8);
    }
    gate g = { .num_tokens = num_tokens,
               .num_experts = num_experts,
               .num_topk = num_topk,
               .logits = random_logits,
               .mask = with_mask ? mask : NULL,
               .unmapped_topk_idx = fixed };
    if (shared) g.replicas = 4, g.to_physical_map = map, g.logical_count = count;
    g.params = (tgl_moe_gate_params){ .scoring = (tgl_moe_scoring)scoring,
                                      .num_shared_experts = shared,
                                      .has_routed_scaling_factor = true,
                                      .routed_scaling_factor = 2.5f,
                                      .ep_rank = 3,
                                      .num_ep_ranks = 8,
                                      .num_tp_ranks = 2,
                                      .tp_rank = 1 };
    gate h = g;
    h.vocabulary = VOCABULARY, h.input_ids = ids, h.tid2eid = table;
    g.fix_routing_mask = fix;
    const int64_t slots = num_tokens * (num_topk + shared);
    FOR_BACKENDS(b) {
        const tgl_dtype dtype = with_mask ? TGL_I32 : TGL_I64;
        CHECK_OK(call_gate(b, dtype, &g, &wanted));
        CHECK_OK(call_gate(b, dtype, &h, &hashed));
        check_same(b, "as fixed", &hashed, &wanted, slots);
        check_indices(b, "unmapped_topk_idx", hashed.unmapped, wanted.unmapped, num_tokens * num_topk);
    }
}

TEST(as_fixed_experts_of_top2_sum_gate)
{
    static const int64_t tokens[] = { 1, 7, 64 }, experts[] = { 256, 384 }, topk[] = { 6, 8, 1, 31 };
    for (int t = 0; t < 3; t++)
        for (int e = 0; e < 2; e++)
            for (int k = 0; k < 4; k++)
                for (int64_t shared = 0; shared < 2; shared++)
                    for (int scoring = 0; scoring < 4; scoring++)
                        if (test_slow() || (e == 0 ? k == 0 : k == 1 && scoring == 1))
                            check_as_fixed(tokens[t], experts[e], topk[k], shared, scoring, k == 1);
}

TEST(graph) /* a launch a call */
{
    check_replayed("moe_hash_gate", "num_tokens=70 num_experts=256 num_topk=6 vocabulary=300 scoring=sqrtsoftplus", 1);
    check_replayed("moe_hash_gate", "num_tokens=70 num_experts=256 num_topk=6 vocabulary=300 scoring=softmax", 1);
    check_replayed("moe_hash_gate", "num_tokens=9 num_experts=40 num_topk=33 vocabulary=300", 1);
}

/* ---- errors ---- */

OP(moe_hash_gate, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], params)
#define GOOD_CALL CALL_OF(moe_hash_gate, GATE_SAMPLE " vocabulary=5")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_GATE_ERRORS();
    CHECK_ERROR(x[2].shape[1] = x[2].strides[0] = (int64_t)1 << 31,
                "tid2eid: shape is [5, 2147483648], want [5, 0..2147483647]");
    CHECK_ERROR(PARAMS->num_groups = 4, "num_groups: is 4, want 0");
    CHECK_ERROR(PARAMS->num_topk_groups = 4, "num_topk_groups: is 4, want 0");
}

TEST(empty)
{
    check_empty(CALL_OF(moe_hash_gate, "num_tokens=0 num_experts=64 num_topk=6 num_replicas=1 vocabulary=9"));
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
