/* SPDX-License-Identifier: MIT
 * tgl_moe_get_fused_mapping, on every device of the tests. Written from the specification: pairs (token,
 * slot) in ascending order within their expert, experts in order, each segment padded to a multiple of the
 * alignment. */
#include "mapping.h"

TESTS_OF_TABLE("moe_get_fused_mapping")

/* ---- examples ---- */

#define ENTRIES(...) ((const int32_t[]){ __VA_ARGS__ })

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        /* doc: get_fused_mapping */
        const int64_t topk_idx[] = { 0, 2, /**/ 2, 0, /**/ 0, -1, /**/ -1, -1 }; /* four tokens of two */
        mapped m = { .num_tokens = 4, .num_topk = 2, .num_experts = 3, .alignment = 2, .num_positions = 6 };
        map_tokens(b, topk_idx, &m);
        check_array(b, &m, POS_TO_EXPERT, ENTRIES(0, 0, 0, -1, 2, 2));
        check_array(b, &m, POS_TO_TOKEN, ENTRIES(0, 1, 2, -1, 0, 1));
        check_array(b, &m, POS_TO_TOKEN_TOPK, ENTRIES(0, 3, 4, -1, 1, 2));
        check_array(b, &m, TOKEN_TOPK_TO_POS, ENTRIES(0, 4, /**/ 5, 1, /**/ 2, -1, /**/ -1, -1));
        check_array(b, &m, EXPERT_START, ENTRIES(0, 4, 4));
        check_array(b, &m, EXPERT_END, ENTRIES(4, 4, 6));
        check_array(b, &m, LENGTH, ENTRIES(4, 0, 2));
        check_array(b, &m, COUNT, ENTRIES(3, 0, 2));
        check_array(b, &m, PSUM_END, ENTRIES(3, 4, 6));
        /* end */
        check_array(b, &m, LENGTH_ON_HOST, ENTRIES(4, 0, 2));
        free_mapped(&m);

        m.num_positions = 10; /* four more than needed */
        map_tokens(b, topk_idx, &m);
        check_array(b, &m, POS_TO_EXPERT, ENTRIES(0, 0, 0, -1, 2, 2, -1, -1, -1, -1));
        check_array(b, &m, POS_TO_TOKEN, ENTRIES(0, 1, 2, -1, 0, 1, -1, -1, -1, -1));
        check_array(b, &m, POS_TO_TOKEN_TOPK, ENTRIES(0, 3, 4, -1, 1, 2, -1, -1, -1, -1));
        check_array(b, &m, TOKEN_TOPK_TO_POS, ENTRIES(0, 4, 5, 1, 2, -1, -1, -1));
        free_mapped(&m);

        m.num_positions = 5; /* one less: a pair has no position, the arrays by expert are the same */
        map_tokens(b, topk_idx, &m);
        check_array(b, &m, POS_TO_EXPERT, ENTRIES(0, 0, 0, -1, 2));
        check_array(b, &m, TOKEN_TOPK_TO_POS, ENTRIES(0, 4, -1, 1, 2, -1, -1, -1));
        check_array(b, &m, EXPERT_END, ENTRIES(4, 4, 6));
        check_array(b, &m, PSUM_END, ENTRIES(3, 4, 6));
        check_array(b, &m, LENGTH_ON_HOST, ENTRIES(4, 0, 2));
        free_mapped(&m);
    }
}

TEST(layouts_of_grouped_gemms) /* 3, 0, 130 and 5 tokens, segments of 128 rows */
{
    FOR_BACKENDS(b) {
        int64_t topk_idx[138];
        int32_t layout[512];
        for (int t = 0; t < 138; t++) topk_idx[t] = t % 46 == 7 ? 0 : t % 30 == 1 ? 3 : 2;
        mapped m = { 138, 1, 4, 128, 512, { 0 } };
        map_tokens(b, topk_idx, &m);
        /* doc: layouts */
        check_array(b, &m, COUNT, ENTRIES(3, 0, 130, 5));
        check_array(b, &m, EXPERT_START, ENTRIES(0, 128, 128, 384));
        check_array(b, &m, PSUM_END, ENTRIES(3, 128, 258, 389)); /* where an expert's rows end, unpadded */
        for (int p = 0; p < 512; p++) layout[p] = p < 3 ? 0 : p >= 128 && p < 258 ? 2 : p >= 384 && p < 389 ? 3 : -1;
        check_array(b, &m, POS_TO_EXPERT, layout);
        /* end */
        check_array(b, &m, EXPERT_END, ENTRIES(128, 128, 384, 512));
        check_array(b, &m, LENGTH, ENTRIES(128, 0, 256, 128));
        free_mapped(&m);
    }
}

/* ---- properties ---- */

/* What users of a mapping rely on, checked without making one. */
static void check_properties(const backend *b, const int64_t *topk_idx, const mapped *m)
{
    const int64_t k = m->num_topk, slots = m->num_tokens * k;
    int64_t running = 0, taken = 0;
    for (int64_t e = 0; e < m->num_experts; e++) {
        int64_t count = 0, seen = 0;
        for (int64_t i = 0; i < slots; i++) count += topk_idx[i] == e;
        REQUIRE(m->at[EXPERT_START][e] == running);
        running += m->at[LENGTH][e];
        REQUIRE(m->at[EXPERT_END][e] == running && m->at[LENGTH_ON_HOST][e] == m->at[LENGTH][e]);
        REQUIRE(m->at[LENGTH][e] % m->alignment == 0 && m->at[LENGTH][e] >= count);
        REQUIRE(m->at[LENGTH][e] - count < m->alignment);
        REQUIRE(m->at[COUNT][e] == count && m->at[PSUM_END][e] == m->at[EXPERT_START][e] + count);
        for (int64_t p = m->at[EXPERT_START][e]; p < running && p < m->num_positions; p++) {
            REQUIRE(m->at[POS_TO_EXPERT][p] == (p < m->at[PSUM_END][e] ? (int32_t)e : -1));
            seen += m->at[POS_TO_EXPERT][p] == e;
        }
        if (running <= m->num_positions) CHECK_INT(seen, count);
    }
    for (int64_t p = 0, last = -1; p < m->num_positions; p++) {
        const int32_t e = m->at[POS_TO_EXPERT][p], flat = m->at[POS_TO_TOKEN_TOPK][p];
        REQUIRE((e < 0) == (flat < 0) && (e < 0) == (m->at[POS_TO_TOKEN][p] < 0));
        if (e < 0) {
            REQUIRE(e == -1 && flat == -1 && m->at[POS_TO_TOKEN][p] == -1);
            continue;
        }
        REQUIRE(flat < slots && m->at[TOKEN_TOPK_TO_POS][flat] == p && topk_idx[flat] == e);
        REQUIRE(flat / k == m->at[POS_TO_TOKEN][p]);
        REQUIRE(p == m->at[EXPERT_START][e] || last < flat); /* ascending within an expert */
        last = flat;
        taken++;
    }
    for (int64_t i = 0; i < slots; i++) {
        const int32_t p = m->at[TOKEN_TOPK_TO_POS][i];
        REQUIRE(p >= -1 && p < m->num_positions);
        taken -= p >= 0;
        const bool is_expert = topk_idx[i] >= 0 && topk_idx[i] < m->num_experts;
        if (!is_expert || running <= m->num_positions) REQUIRE((p >= 0) == is_expert);
    }
    CHECK_THAT(taken == 0, "%s: %d positions have no pair", b->name, (int)taken);
}

TEST(properties)
{
    static const struct {
        int64_t num_tokens, num_topk, num_experts, alignment;
    } sizes[] = {
        { 57, 6, 9, 64 },   { 57, 6, 9, 128 }, { 130, 8, 32, 1 },    { 130, 9, 4, 16 }, { 1, 1, 1, 1 },
        { 3, 33, 1024, 3 }, { 40, 2, 385, 7 }, { 700, 8, 256, 128 }, { 9, 4, 3000, 2 },
    };
    FOR_BACKENDS(b)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const int64_t slots = sizes[s].num_tokens * sizes[s].num_topk;
            int64_t *topk_idx = malloc((size_t)slots * sizeof *topk_idx);
            test_random r = test_seed("properties");
            for (int64_t i = 0; i < slots; i++)
                topk_idx[i] = test_below(&r, sizes[s].num_experts + sizes[s].num_experts / 2 + 1) - 1;
            mapped m = { .num_tokens = sizes[s].num_tokens,
                         .num_topk = sizes[s].num_topk,
                         .num_experts = sizes[s].num_experts,
                         .alignment = sizes[s].alignment };
            const int64_t bound = slots + (m.alignment - 1) * m.num_experts;
            const int64_t counts[] = { bound, bound / 3, 1, 0 };
            for (int i = 0; i < 4; i++) {
                m.num_positions = counts[i];
                map_tokens(b, topk_idx, &m);
                check_properties(b, topk_idx, &m);
                free_mapped(&m);
            }
            free(topk_idx);
        }
}

TEST(num_sms)
{
    check_num_sms("moe_get_fused_mapping",
                  (const char *const[]){ "num_tokens=40 num_topk=8 num_experts=9 alignment=16 counts=1 host=1",
                                         "num_tokens=600 num_topk=8 num_experts=256 alignment=128 num_positions=bound",
                                         "num_tokens=1500 num_topk=8 num_experts=72 alignment=16 routing=some_empty",
                                         "num_tokens=1030 num_topk=8 num_experts=2 alignment=16 counts=1 host=1",
                                         "num_tokens=1030 num_topk=8 num_experts=31 alignment=16 counts=1 host=1",
                                         "num_tokens=60 num_topk=6 num_experts=2048 alignment=16 counts=1", NULL });
}

/* All exchanges between blocks, for runs with weak memory (tests/run): all blocks read all counts; through
 * owners; in rounds, which reuse the workspace. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("moe_get_fused_mapping",
                    (const char *const[]){ "num_tokens=1030 num_topk=8 num_experts=31 alignment=16 counts=1 host=1",
                                           "num_tokens=600 num_topk=8 num_experts=72 alignment=16",
                                           "num_tokens=300 num_topk=8 num_experts=8300 alignment=1", NULL },
                    b);
}

/* ---- workspaces ---- */

TEST(one_workspace) /* for ops of all kinds and sizes */
{
    static const case_line cases[] = {
#define MAPPING(tokens, experts)                                                              \
    { "moe_get_fused_mapping", "num_topk=8 alignment=16 num_positions=bound counts=1 host=1 " \
                               "routing=garbage num_tokens=" #tokens " num_experts=" #experts }
#define COUNTS(tokens, groups) { "moe_group_count", "num_topk=8 num_tokens=" #tokens " num_groups=" #groups }
#define SHARES(tokens, experts) { "moe_aux_fi", "num_topk=8 num_tokens=" #tokens " num_experts=" #experts }
        MAPPING(300, 256),  COUNTS(300, 256),    MAPPING(1500, 3000), SHARES(1500, 3000),
        COUNTS(1500, 9000), MAPPING(3, 4),       COUNTS(1500, 4),     MAPPING(1500, 9),
        SHARES(1500, 385),  COUNTS(0, 9),        MAPPING(64, 385),    SHARES(1, 9000),
        MAPPING(600, 1),    COUNTS(1100, 20000), MAPPING(1500, 31),   MAPPING(1, 256),
    };
    check_shared_workspace(cases, sizeof cases / sizeof *cases);
}

TEST(graph)
{
    check_replayed("moe_get_fused_mapping", "num_tokens=300 num_topk=8 num_experts=256 alignment=16 counts=1 host=1",
                   1);
    check_replayed("moe_get_fused_mapping", "num_tokens=3000 num_topk=8 num_experts=256 alignment=16", 1);
    check_replayed("moe_get_fused_mapping", "num_tokens=3000 num_topk=8 num_experts=9 alignment=16", 1);
}

/* ---- errors ---- */

extern tgl_signature tgl_moe_get_fused_mapping_signature;
static tgl_moe_mapping mapping_of(DLTensor *const *t)
{
    return (tgl_moe_mapping){ t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], { 0 } };
}
static tgl_status call(DLTensor *const *t, const void *params, void *workspace, size_t bytes)
{
    const tgl_moe_mapping m = mapping_of(t);
    return tgl_moe_get_fused_mapping(t[0], &m, *(const int64_t *)params, workspace, bytes, NULL);
}
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return call(t, params, memory + 2048, MEMORY_BYTES - 2048);
}
static size_t workspace_size(DLTensor *const *t)
{
    const tgl_moe_mapping m = mapping_of(t);
    return tgl_moe_get_fused_mapping_workspace_size(t[0], &m);
}
static const workspace_op op = { &tgl_moe_get_fused_mapping_signature, invoke, call, workspace_size };
#define GOOD_CALL                                                                                                     \
    &tgl_moe_get_fused_mapping_signature, "num_tokens=3 num_topk=2 num_positions=20 num_local_experts=4 alignment=4", \
        invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[4].strides[0] = 3, "token_topk_to_pos: strides are [3, 1], want [2, 1]");
    CHECK_ERROR(x[10].device = ((DLDevice){ (DLDeviceType)TGL_DL_CUDA, 0 }),
                "num_tokens_per_expert_host: is i32 [4] strides [1] on cuda:0, want host memory");
    CHECK_ERROR(x[9].data = (char *)x[8].data + 12, "psum_end: memory is shared with count, want no overlap");
}

TEST(errors_of_the_struct)
{
    errors_call *const c = errors_open(GOOD_CALL, 0);
    REQUIRE(c);
    DLTensor *const topk_idx = c->tensors[0];
    tgl_moe_mapping m = mapping_of(c->tensors);
    CHECK_FAILS(tgl_moe_get_fused_mapping(topk_idx, NULL, 4, NULL, 0, NULL), TGL_ERR_ARGUMENT,
                "mapping: is NULL, want a struct");
    m.reserved[7] = 5;
    CHECK_FAILS(tgl_moe_get_fused_mapping(topk_idx, &m, 4, NULL, 0, NULL), TGL_ERR_ARGUMENT,
                "reserved[7]: is 5, want 0");
    m.reserved[0] = 1;
    CHECK_FAILS(tgl_moe_get_fused_mapping(topk_idx, &m, 4, NULL, 0, NULL), TGL_ERR_ARGUMENT,
                "reserved[0]: is 1, want 0");
}

TEST(errors_of_sizes) /* positions are i32 */
{
    CHECK_ERROR(scalar[0] = INT64_MAX, "alignment: num_tokens * num_topk + (alignment - 1) * num_experts is >= "
                                       "9223372036854775807, want < 2^31");
    CHECK_ERROR(scalar[0] = 536870912,
                "alignment: num_tokens * num_topk + (alignment - 1) * num_experts is 2147483650, want < 2^31");
    CHECK_ERROR(x[0].shape[0] = x[4].shape[0] = (int64_t)1 << 30; x[0].data = (void *)((uintptr_t)1 << 44);
                x[4].data = (void *)((uintptr_t)1 << 45), /* nobody's */
                "alignment: num_tokens * num_topk + (alignment - 1) * num_experts is 2147483660, want < 2^31");
    CHECK_ERROR(x[1].shape[0] = (int64_t)1 << 31, "pos_to_expert: shape is [2147483648], want [0..2147483647]");
}

TEST(errors_of_workspace)
{
    check_workspace_errors(&op, "num_tokens=100000 num_topk=8 num_positions=900000 num_local_experts=256 "
                                "alignment=16 -num_tokens_per_expert_host");
}

TEST(workspace_size_grows)
{
    check_workspace_grows(&op, "num_topk=8 num_positions=9 num_local_experts=1 alignment=1");
    check_workspace_grows(&op, "num_topk=8 num_positions=9 num_local_experts=256 alignment=1");
    check_workspace_grows(&op, "num_topk=8 num_positions=9 num_local_experts=1024 alignment=1");
    check_workspace_grows(&op, "num_topk=8 num_positions=9 num_local_experts=8192 alignment=1");
}

TEST(empty)
{
    check_empty(&tgl_moe_get_fused_mapping_signature,
                "num_tokens=0 num_topk=8 num_positions=0 num_local_experts=0 alignment=128", invoke);
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }
