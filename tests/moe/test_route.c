/* SPDX-License-Identifier: MIT
 * tgl_moe_route, on every device of the tests. Written from the specification: all outputs have the bits that
 * tgl_moe_top2_sum_gate and tgl_moe_get_fused_mapping of its topk_idx give, whatever the number of tokens. */
#include "cases/moe/common/route.h"
#include "gates.h"

TESTS_OF_TABLE("moe_route")

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        static gate_result r;
        /* doc: route */
        const float logits[] = { 2, 0, 1, /**/ 1, 0, 2, /**/ 2, 1, 0 }; /* experts 0 2, 2 0, 0 1 */
        const int32_t pos_to_expert[] = { 0, 0, 0, -1, 1, -1, 2, 2 };
        const int32_t pos_to_token[] = { 0, 1, 2, -1, 2, -1, 0, 1 };
        const int32_t pos_to_token_topk[] = { 0, 3, 4, -1, 5, -1, 1, 2 };
        const int32_t token_topk_to_pos[] = { 0, 6, /**/ 7, 1, /**/ 2, 4 };
        const int32_t start[] = { 0, 4, 6 }, end[] = { 4, 6, 8 }, length[] = { 4, 2, 2 };
        mapped m = { .num_tokens = 3, .num_topk = 2, .num_experts = 3, .alignment = 2, .num_positions = 8 };
        gate g = { .num_tokens = 3, .num_experts = 3, .num_topk = 2, .logits = logits, .mapping = &m };
        /* end */
        const int32_t count[] = { 3, 1, 2 }, psum_end[] = { 3, 5, 8 };
        const int32_t *const want[NUM_ARRAYS] = {
            pos_to_expert, pos_to_token, pos_to_token_topk, token_topk_to_pos, start, end, length, count,
            psum_end,      length
        };
        CHECK_OK(call_gate(b, TGL_I64, &g, &r));
        check_indices(b, "topk_idx", r.idx, ROW(0, 2, 2, 0, 0, 1), 6);
        check_weights(b, r.weights, WEIGHTS(0.546449f, 0.453551f, 0.546449f, 0.453551f, 0.546449f, 0.453551f), 6,
                      6e-7f);
        for (int i = 0; i < NUM_ARRAYS; i++) check_array(b, &m, i, want[i]);
        free_mapped(&m);
    }
}

/* ---- the two ops ---- */

#define EVERYTHING                                                                                         \
    " mask=some fix=some unmapped=packed fixed=beyond num_shared_experts=1 replicas=3 map=wild ep_rank=2 " \
    "num_ep_ranks=2 num_tp_ranks=2 tp_rank=1 num_mapped_experts=37 counts=1"

TEST(as_two_ops) /* the same bits from one call as from two */
{
    static const char *const lines[] = {
        "num_tokens=1,7,64,128,129,255,256,257,300 num_experts=72 num_topk=6 alignment=16 "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=1,7,64,128,129,255,256,257,300 num_experts=72 num_topk=6 alignment=16 num_groups=8 "
        "num_topk_groups=3 scoring=sigmoid,sqrtsoftplus,softmax,identity dtype=i32" EVERYTHING,
        NULL
    };
    const case_op *op = case_find("moe_route");
    FOR_BACKENDS(b)
        for (int64_t i = 0; i < case_count(lines); i += b->is_emulated && !test_slow() ? 5 : 1) {
            case_params params;
            case_instance *k;
            uint64_t hash[2];
            REQUIRE(CHECK_OK(case_at(op, lines, i, &params)));
            REQUIRE(CHECK_OK(case_open(op, &params, b, &k)));
            for (int is_apart = 0; is_apart < 2; is_apart++) {
                route_scalars_of(&k->problem)->is_apart = is_apart;
                CHECK_OK(case_poison(k, 0));
                CHECK_OK(case_call(k));
                hash[is_apart] = verify(k, 0, is_apart ? "two ops" : "one op");
            }
            CHECK_THAT(hash[0] == hash[1], "%s: %s: other bits than those of the two ops", b->name, k->problem.label);
            case_close(k);
        }
}

/* ---- launches ---- */

TEST(num_sms) /* every block alone, both sizes of clusters, and through the workspace */
{
    check_num_sms(
        "moe_route",
        (const char *const[]){
            "num_tokens=3,40,100,200 num_experts=64 num_topk=6 num_shared_experts=1 replicas=5 num_ep_ranks=4 "
            "num_tp_ranks=2 num_mapped_experts=34 alignment=16 mask=some counts=1",
            NULL });
}

/* Exchanges between blocks, for runs with weak memory (tests/run): through the workspace, and within
 * clusters. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("moe_route",
                    (const char *const[]){
                        "num_tokens=40,129 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 alignment=16",
                        NULL },
                    b);
}

/* The last launch on the emulated device; false elsewhere, where it is not known. */
static bool last_launch(const backend *b, emu_last_launch *out)
{
    const tgl_driver_table *cu;
    emuLastLaunch_function last = NULL;
    CHECK_OK(backend_wait(b, b->stream));
    if (tgl_driver(&cu) == TGL_OK) *(void **)&last = dlsym(cu->handle, "emuLastLaunch");
    return last && last(out);
}

TEST(clusters_within_num_sms) /* whole clusters within the bound; if not even one fits, another kernel */
{
    static const struct {
        int bound, tokens, blocks, cluster;
    } cases[] = {
        { 1, 40, 1, 1 },  { 7, 40, 7, 1 },    { 8, 40, 8, 8 },     { 9, 40, 8, 8 },
        { 15, 40, 8, 8 }, { 16, 40, 16, 8 },  { 17, 40, 16, 8 },   { 1, 100, 1, 1 },
        { 9, 100, 9, 1 }, { 15, 100, 15, 1 }, { 16, 100, 16, 16 }, { 17, 100, 16, 16 },
    };
    FOR_BACKENDS(b) {
        int num_sms;
        if (backend_is_cpu(b)) continue;
        CHECK_OK(tgl_get_device_num_sms(b->device.device_id, &num_sms));
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (cases[i].bound > num_sms) continue;
            char line[96];
            emu_last_launch last;
            snprintf(line, sizeof line, "num_tokens=%d num_experts=72 num_topk=6 alignment=16", cases[i].tokens);
            CHECK_OK(tgl_set_num_sms(b->device.device_id, cases[i].bound));
            check_lines("moe_route", (const char *const[]){ line, NULL }, b);
            if (!last_launch(b, &last)) continue;
            CHECK_THAT((int)last.grid[0] == cases[i].blocks && (int)last.cluster[0] == cases[i].cluster,
                       "%s, %d SMs: %d blocks in clusters of %d, want %d of %d", line, cases[i].bound,
                       (int)last.grid[0], (int)last.cluster[0], cases[i].blocks, cases[i].cluster);
        }
        CHECK_OK(tgl_set_num_sms(b->device.device_id, 0));
    }
}

TEST(launches) /* one up to 256 tokens if a warp can hold what a token has, else two */
{
    static const struct {
        const char *line;
        int num_launches;
    } cases[] = {
        { "num_tokens=3 num_experts=64 num_topk=6", 1 },
        { "num_tokens=40 num_experts=64 num_topk=6", 1 },
        { "num_tokens=257 num_experts=64 num_topk=6", 2 },
        { "num_tokens=3 num_experts=64 num_topk=33", 2 },
        { "num_tokens=3 num_experts=1025 num_topk=6", 2 },
        { "num_tokens=3 num_experts=66 num_topk=6 num_groups=33 num_topk_groups=5", 2 },
        { "num_tokens=3 num_experts=64 num_topk=6 num_mapped_experts=8193 alignment=1", 2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_replayed("moe_route", cases[i].line, cases[i].num_launches);
}

TEST(captured) /* by clusters, and through the workspace */
{
    check_replayed("moe_route", "num_tokens=128 num_experts=64 num_topk=6" EVERYTHING, 1);
    check_replayed("moe_route", "num_tokens=256 num_experts=64 num_topk=6" EVERYTHING, 1);
}

TEST(calls_share_a_workspace)
{
    static const case_line cases[] = {
        { "moe_route", "num_tokens=130 num_experts=72 num_topk=6" },
        { "moe_route", "num_tokens=250 num_experts=72 num_topk=6 alignment=16 dtype=i32" EVERYTHING },
    };
    check_shared_workspace(cases, 2);
}

/* ---- errors ---- */

extern tgl_signature tgl_moe_route_signature;

static tgl_moe_mapping mapping_of(DLTensor *const *t)
{
    return (tgl_moe_mapping){ t[9], t[10], t[11], t[12], t[13], t[14], t[15], t[16], t[17], t[18], { 0 } };
}
static tgl_status route(DLTensor *const *t, const tgl_moe_mapping *m, int64_t alignment, const void *params,
                        void *workspace, size_t bytes)
{
    return tgl_moe_route(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], m, alignment, params, workspace, bytes,
                         NULL);
}
static tgl_status call(DLTensor *const *t, const void *params, void *workspace, size_t bytes)
{
    const tgl_moe_mapping m = mapping_of(t);
    return route(t, &m, 4, params, workspace, bytes);
}
static tgl_status invoke(DLTensor *const *t, const void *params) { return call(t, params, memory, MEMORY_BYTES); }
static size_t workspace_size(DLTensor *const *t)
{
    const tgl_moe_mapping m = mapping_of(t);
    return tgl_moe_route_workspace_size(t[0], t[7], &m);
}
static const workspace_op op = { &tgl_moe_route_signature, invoke, call, workspace_size };
#define SIZES_OF_CALL " num_groups=4 num_topk_groups=2 num_positions=20 num_local_experts=5"
#define GOOD_CALL &tgl_moe_route_signature, GATE_SAMPLE SIZES_OF_CALL, invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_GATE_ERRORS();
    CHECK_GROUP_ERRORS();
    CHECK_ERROR(x[12].shape[0] = 2, "token_topk_to_pos: shape is [2, 3], want [3, 3]");
    CHECK_ERROR(x[17].data = x[6].data, "psum_end: memory is shared with unmapped_topk_idx, want no overlap");
}

TEST(errors_of_the_struct)
{
    errors_call *const c = errors_open(GOOD_CALL, 0);
    REQUIRE(c);
    tgl_moe_mapping m = mapping_of(c->tensors);
    CHECK_FAILS(route(c->tensors, NULL, 4, PARAMS, NULL, 0), TGL_ERR_ARGUMENT, "mapping: is NULL, want a struct");
    CHECK_FAILS(route(c->tensors, &m, 0, PARAMS, NULL, 0), TGL_ERR_ARGUMENT, "alignment: is 0, want >= 1");
    CHECK_FAILS(route(c->tensors, &m, -4, PARAMS, NULL, 0), TGL_ERR_ARGUMENT, "alignment: is -4, want >= 1");
    CHECK_FAILS(route(c->tensors, &m, 536870912, PARAMS, NULL, 0), TGL_ERR_ARGUMENT,
                "alignment: num_tokens * num_topk + (alignment - 1) * num_experts is 2684354564, want < 2^31");
    m.reserved[2] = 9;
    CHECK_FAILS(route(c->tensors, &m, 4, PARAMS, NULL, 0), TGL_ERR_ARGUMENT, "reserved[2]: is 9, want 0");
}

TEST(errors_of_the_workspace) /* of 16 tokens: up to 4 need none */
{
    check_workspace_errors(&op,
                           "num_tokens=16 num_experts=8 num_topk=2 num_replicas=3 num_shared_experts=1" SIZES_OF_CALL
                           " -num_tokens_per_expert_host");
}

TEST(no_workspace_on_the_cpu)
{
    errors_call *const c = errors_open(GOOD_CALL, 0);
    REQUIRE(c);
    memset(errors_memory, 0, sizeof errors_memory);
    CHECK_OK(call(c->tensors, PARAMS, NULL, 0));
}

TEST(workspace_never_shrinks)
{
    check_workspace_grows(&op, "num_experts=256 num_topk=8 num_replicas=1 num_positions=9 num_local_experts=256");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
