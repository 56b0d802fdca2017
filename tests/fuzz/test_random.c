/* SPDX-License-Identifier: MIT
 * test_random.c - random cases of every op (cases/random.c) against their oracles, as in `tegula check
 * --random`. The emulated device, where kernels are slow to compile, uses those that the listed cases left in
 * the cache. */
#include "test.h"

#include "cases/random.h"
#include "cases.h"

enum { DRAWS_PER_CALL = 50 };

typedef struct {
    int64_t passed, passed_over;
    uint64_t may_compile;
} counts;

static void try_draw(const case_op *op, uint64_t seed, int64_t i, const backend *b, counts *n)
{
    char text[CASE_LABEL];
    case_params params;
    case_report report;
    case_redraws redraws = { 0 };
    const int64_t max_elements = b->is_emulated ? 1 << 12 : 1 << 14;
    REQUIRE(case_draw_legal(op, seed, i, max_elements, &params, &redraws));
    case_params_text(op, &params, text, sizeof text);
    const bool may_compile = tgl_compile_count() < n->may_compile;
    tgl_set_jit_mode(may_compile ? TGL_JIT_AUTO : TGL_JIT_NEVER);
    const case_result result = case_check(op, &params, b, &report);
    const bool is_refused = report.status == TGL_ERR_ARGUMENT && !case_is_legal_with_data(op, &params);
    const bool is_compiled = may_compile || report.status != TGL_ERR_COMPILE;
    if (result == CASE_PASSED) n->passed++;
    else if (result != CASE_UNDECIDED && !is_refused && is_compiled)
        CHECK_THAT(false, "%s: tegula check %s %s: %s", b->name, op->name, text, report.text);
    else n->passed_over++;
}

TEST(random_cases)
{
    const case_op *op;
    const char *seed = getenv("EMU_SEED");
    FOR_BACKENDS(b) {
        const int64_t calls = b->is_emulated ? (test_slow() ? 1000 : 6) : (test_slow() ? 10000 : 200);
        counts all = { 0 };
        for (int o = 0; (op = case_op_at(o)); o++) {
            counts n = { .may_compile = tgl_compile_count() + (b->is_emulated && !test_slow() ? 0 : 12) };
            for (int64_t i = 0; i < DRAWS_PER_CALL * calls && n.passed < calls; i++)
                try_draw(op, seed ? strtoull(seed, NULL, 10) : 0, i, b, &n);
            CHECK_THAT(n.passed == calls || !backend_is_cpu(b), "%s: too few cases could be tried", op->name);
            printf("  %s: %s: %" PRId64 " passed, %" PRId64 " passed over\n", b->name, op->name, n.passed,
                   n.passed_over);
            all.passed += n.passed;
        }
        tgl_set_jit_mode(TGL_JIT_AUTO);
        CHECK(all.passed > 0 || b->is_emulated); /* run alone, nobody has compiled anything there */
    }
}

/* ---- how cases are drawn ---- */

static const char *value_of(const case_params *params, const char *name)
{
    for (int p = 0; p < params->count; p++)
        if (!strcmp(params->item[p].name, name)) return params->item[p].value;
    return "";
}

TEST(draws_depend_on_seed_and_number_alone)
{
    const case_op *op = case_find("moe_top2_sum_gate");
    case_params a, b;
    case_redraws redraws = { 0 };
    int64_t differ = 0;
    for (int64_t i = 0; i < 20; i++) {
        REQUIRE(case_draw_legal(op, 7, i, 1 << 12, &a, &redraws));
        REQUIRE(case_draw_legal(op, 7, i, 1 << 12, &b, &redraws));
        CHECK(!memcmp(&a, &b, sizeof a));
        REQUIRE(case_draw_legal(op, 8, i, 1 << 12, &b, &redraws));
        differ += memcmp(&a, &b, sizeof a) != 0;
    }
    CHECK(differ > 10);
}

/* Each threshold of an op, one less and one more, is drawn sooner or later. */
TEST(thresholds_are_drawn)
{
    for (const case_threshold *t = case_thresholds; t->op; t++) {
        const case_op *op = case_find(t->op);
        case_params params;
        CHECK_THAT(op != NULL, "%s is no op", t->op);
        REQUIRE(op && case_at(op, op->lists[CASE_CHECK], 0, &params) == TGL_OK);
        CHECK_THAT(*value_of(&params, t->param), "%s has no parameter %s", t->op, t->param);
    }
    const case_op *op = case_find("moe_route");
    bool is_seen[3] = { false };
    case_redraws redraws = { 0 };
    for (int64_t i = 0; i < 3000; i++) {
        case_params params;
        REQUIRE(case_draw_legal(op, 1, i, 1 << 18, &params, &redraws));
        for (int k = 0; k < 3; k++) is_seen[k] |= atoi(value_of(&params, "num_tokens")) == 255 + k;
    }
    CHECK(is_seen[0] && is_seen[1] && is_seen[2]);
}

TEST(cases_are_as_small_as_wanted)
{
    const case_op *op = case_find("transpose");
    case_params params;
    case_redraws redraws = { 0 };
    for (int64_t i = 0; i < 200; i++) {
        REQUIRE(case_draw_legal(op, 1, i, 4096, &params, &redraws));
        CHECK(atoll(value_of(&params, "num_rows")) * atoll(value_of(&params, "num_cols")) <= 2048);
    }
    REQUIRE(case_at(op, CASE_LINES("num_rows=65 num_cols=63 dtype=u8"), 0, &params) == TGL_OK);
    CHECK(case_is_small(op, &params, 3 * 65 * 63) && !case_is_small(op, &params, 2 * 65 * 63 - 1));
}

TEST(what_an_op_refuses_is_not_legal)
{
    const case_op *op = case_find("moe_topk_gate");
    case_params params;
    REQUIRE(case_at(op, CASE_LINES("num_tokens=2 num_experts=4 num_topk=5"), 0, &params) == TGL_OK);
    CHECK(!case_is_legal(op, &params) && !case_is_legal_with_data(op, &params));
    REQUIRE(case_at(op, CASE_LINES("num_tokens=2 num_experts=4 num_topk=4"), 0, &params) == TGL_OK);
    CHECK(case_is_legal(op, &params) && case_is_legal_with_data(op, &params));
}
