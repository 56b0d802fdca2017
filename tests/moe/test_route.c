/* SPDX-License-Identifier: MIT
 * tgl_moe_route, on every device of the tests. Written from the specification: all outputs have the bits that
 * tgl_moe_top2_sum_gate and tgl_moe_get_fused_mapping of its topk_idx give, however many tokens there are. */
#include "gates.h"

TESTS_OF_TABLE("moe_route")

/* ---- calls on data of the host ---- */

typedef struct { gate gate; int64_t num_mapped_experts, alignment, num_positions; } routing;

enum { MAX_POSITIONS = 65536, MAX_MAPPED = 4096, NUM_MAPS = 9 };
static const char *const map_names[NUM_MAPS] = {
    "pos_to_expert", "pos_to_token",          "pos_to_token_topk", "token_topk_to_pos", "expert_start",
    "expert_end",    "num_tokens_per_expert", "count",             "psum_end",
};
typedef struct {
    gate_result gate;
    int32_t maps[NUM_MAPS][MAX_POSITIONS], host[MAX_MAPPED];
} route_result;

/* All tensors of a call on a device, and a workspace of zeros. */
typedef struct {
    const backend *b;
    const routing *r;
    int64_t n, slots, map_sizes[NUM_MAPS];
    tensor logits, bias, mask, fix, map, count, unmapped, idx, weights, maps[NUM_MAPS], host;
    bool has_bias, has_mask, has_fix, has_map, has_unmapped;
    tgl_moe_mapping mapping;
    void *workspace;
    size_t workspace_bytes;
} instance;

/* Memory that the host reads and a kernel writes. */
static void *alloc_host(const backend *b, size_t bytes)
{
    void *memory_of_host = NULL;
    if (backend_is_cpu(b)) return calloc(bytes, 1);
    const tgl_driver_table *cu;
    tgl_context_guard guard;
    CHECK_OK(tgl_driver(&cu));
    CHECK_OK(tgl_context_enter(b->device.device_id, NULL, &guard));
    CHECK_OK(tgl_driver_check(cu->MemHostAlloc(&memory_of_host, bytes, 0), "cuMemHostAlloc"));
    tgl_context_leave(&guard);
    memset(memory_of_host, 0x5a, bytes);
    return memory_of_host;
}

static void free_host(const backend *b, void *memory_of_host)
{
    const tgl_driver_table *cu;
    tgl_context_guard guard;
    if (backend_is_cpu(b)) {
        free(memory_of_host);
        return;
    }
    CHECK_OK(tgl_driver(&cu));
    CHECK_OK(tgl_context_enter(b->device.device_id, NULL, &guard));
    CHECK_OK(tgl_driver_check(cu->MemFreeHost(memory_of_host), "cuMemFreeHost"));
    tgl_context_leave(&guard);
}

static void *zeros_on(const backend *b, size_t bytes)
{
    void *memory_of_device = NULL, *zeros = calloc(bytes + 1, 1);
    CHECK_OK(backend_alloc(b, bytes + 256, &memory_of_device));
    CHECK_OK(backend_upload(b, memory_of_device, zeros, bytes));
    free(zeros);
    return memory_of_device;
}

static const DLTensor *arg(const tensor *t, bool is_given) { return is_given ? &t->t : NULL; }

static void open_instance(instance *k, const backend *b, tgl_dtype dtype, const routing *r)
{
    static int64_t poison[MAX_POSITIONS];
    const gate *g = &r->gate;
    const int64_t n = g->num_tokens, s = g->params.num_shared_experts, width = g->num_topk + s;
    const int64_t rows = g->num_experts + s, e = r->num_mapped_experts;
    *k = (instance){ .b = b, .r = r, .n = n, .slots = n * width };
    memset(poison, 0x5a, sizeof poison);
    place_floats(b, &k->logits, n, g->num_experts, g->logits);
    k->has_bias = place_floats(b, &k->bias, g->num_experts, 0, g->bias) != NULL;
    k->has_mask = place_flags(b, &k->mask, n, g->mask) != NULL;
    k->has_fix = place_flags(b, &k->fix, n, g->fix_routing_mask) != NULL;
    k->has_map = g->replicas > 0;
    if (k->has_map) {
        place(b, &k->map, TGL_I32, 2, SHAPE(rows, g->replicas), g->to_physical_map);
        place(b, &k->count, TGL_I32, 1, &rows, g->logical_count);
    }
    k->has_unmapped = place_indices(b, &k->unmapped, dtype, n, g->num_topk, g->unmapped_topk_idx) != NULL;
    place_indices(b, &k->idx, dtype, n, width, poison);
    place_floats(b, &k->weights, n, width, (const float *)poison);
    for (int i = 0; i < NUM_MAPS; i++) {
        const int64_t size = i < 3 ? r->num_positions : i == 3 ? k->slots : e;
        k->map_sizes[i] = size;
        if (i == 3) place(b, &k->maps[i], TGL_I32, 2, SHAPE(n, width), poison);
        else place(b, &k->maps[i], TGL_I32, 1, &size, poison);
    }
    const DLDevice host = { (DLDeviceType)(backend_is_cpu(b) ? TGL_DL_CPU : TGL_DL_CUDA_HOST), 0 };
    make(&k->host, alloc_host(b, (size_t)e * 4 + 4), host, TGL_I32, 1, &e);
    k->mapping = (tgl_moe_mapping){
        &k->maps[0].t, &k->maps[1].t, &k->maps[2].t, &k->maps[3].t, &k->maps[4].t, &k->maps[5].t,
        &k->maps[6].t, &k->maps[7].t, &k->maps[8].t, &k->host.t,    { 0 },
    };
    const size_t one = tgl_moe_route_workspace_size(&k->logits.t, &k->idx.t, &k->mapping);
    const size_t two = tgl_moe_get_fused_mapping_workspace_size(&k->idx.t, &k->mapping);
    k->workspace_bytes = one > two ? one : two;
    if (k->workspace_bytes) k->workspace = zeros_on(b, k->workspace_bytes);
}

static void close_instance(instance *k)
{
    tensor *const all[] = { &k->logits, &k->idx, &k->weights };
    for (int i = 0; i < 3; i++) discard(k->b, all[i]);
    for (int i = 0; i < NUM_MAPS; i++) discard(k->b, &k->maps[i]);
    if (k->has_bias) discard(k->b, &k->bias);
    if (k->has_mask) discard(k->b, &k->mask);
    if (k->has_fix) discard(k->b, &k->fix);
    if (k->has_map) discard(k->b, &k->map), discard(k->b, &k->count);
    if (k->has_unmapped) discard(k->b, &k->unmapped);
    free_host(k->b, k->host.t.data);
    if (k->workspace) backend_free(k->b, k->workspace);
}

static tgl_status call_one(instance *k, void *workspace, size_t workspace_bytes)
{
    return tgl_moe_route(&k->logits.t, arg(&k->bias, k->has_bias), arg(&k->mask, k->has_mask),
                         arg(&k->fix, k->has_fix), arg(&k->map, k->has_map), arg(&k->count, k->has_map),
                         k->has_unmapped ? &k->unmapped.t : NULL, &k->idx.t, &k->weights.t, &k->mapping,
                         k->r->alignment, &k->r->gate.params, workspace, workspace_bytes, k->b->stream);
}

static tgl_status call_two(instance *k)
{
    const tgl_status status =
        tgl_moe_top2_sum_gate(&k->logits.t, arg(&k->bias, k->has_bias), arg(&k->mask, k->has_mask),
                              arg(&k->fix, k->has_fix), arg(&k->map, k->has_map), arg(&k->count, k->has_map),
                              k->has_unmapped ? &k->unmapped.t : NULL, &k->idx.t, &k->weights.t,
                              &k->r->gate.params, k->b->stream);
    if (status != TGL_OK) return status;
    return tgl_moe_get_fused_mapping(&k->idx.t, &k->mapping, k->r->alignment, k->workspace,
                                     k->workspace_bytes, k->b->stream);
}

/* Reads the outputs, all bits of them. */
static void take(instance *k, route_result *to)
{
    const int64_t size = k->idx.t.dtype.bits / 8;
    memset(to, 0, sizeof *to);
    CHECK_OK(backend_wait(k->b, k->b->stream));
    CHECK_OK(backend_download(k->b, to->gate.idx, k->idx.t.data, (size_t)(k->slots * size)));
    CHECK_OK(backend_download(k->b, to->gate.weights, k->weights.t.data, (size_t)k->slots * 4));
    if (k->has_unmapped)
        CHECK_OK(backend_download(k->b, to->gate.unmapped, k->unmapped.t.data,
                                  (size_t)(k->n * k->r->gate.num_topk * size)));
    for (int i = 0; i < NUM_MAPS; i++)
        CHECK_OK(backend_download(k->b, to->maps[i], k->maps[i].t.data, (size_t)k->map_sizes[i] * 4));
    memcpy(to->host, k->host.t.data, (size_t)k->r->num_mapped_experts * 4);
}

static bool check_results(const instance *k, const char *what, const route_result *seen,
                          const route_result *want)
{
    const char *name = k->b->name;
    bool ok = CHECK_THAT(!memcmp(seen->gate.idx, want->gate.idx, sizeof seen->gate.idx),
                         "%s: %s: topk_idx differs", name, what);
    ok &= CHECK_THAT(!memcmp(seen->gate.weights, want->gate.weights, sizeof seen->gate.weights),
                     "%s: %s: topk_weights differs", name, what);
    ok &= CHECK_THAT(!memcmp(seen->gate.unmapped, want->gate.unmapped, sizeof seen->gate.unmapped),
                     "%s: %s: unmapped_topk_idx differs", name, what);
    for (int m = 0; m < NUM_MAPS; m++)
        for (int64_t i = 0; i < k->map_sizes[m]; i++)
            if (seen->maps[m][i] != want->maps[m][i]) {
                ok = CHECK_THAT(false, "%s: %s: %s[%d] is %d, want %d", name, what, map_names[m], (int)i,
                                (int)seen->maps[m][i], (int)want->maps[m][i]);
                break;
            }
    return ok & CHECK_THAT(!memcmp(seen->host, want->host, sizeof seen->host),
                           "%s: %s: lengths on the host differ", name, what);
}

static void check_workspace_is_zero(const instance *k)
{
    unsigned char *seen = calloc(k->workspace_bytes + 1, 1);
    if (k->workspace) CHECK_OK(backend_download(k->b, seen, k->workspace, k->workspace_bytes));
    for (size_t i = 0; i < k->workspace_bytes; i++)
        if (!CHECK_THAT(seen[i] == 0, "%s: byte %d of the workspace is %d", k->b->name, (int)i, seen[i]))
            break;
    free(seen);
}

/* ---- data ---- */

enum { TOKENS = 300, EXPERTS = 72 };
static float random_logits[TOKENS * EXPERTS], random_bias[EXPERTS];
static int32_t replicas[(EXPERTS + 1) * 3], replica_counts[EXPERTS + 1];
static bool random_mask[TOKENS], random_fix[TOKENS];
static int64_t random_unmapped[TOKENS * 8];
static route_result one, two;

static routing random_routing(const char *name, int64_t num_tokens, int64_t alignment)
{
    test_random r = test_seed(name);
    random_floats(&r, random_logits, TOKENS * EXPERTS);
    random_floats(&r, random_bias, EXPERTS);
    for (int i = 0; i < (EXPERTS + 1) * 3; i++) replicas[i] = (int32_t)test_below(&r, EXPERTS + 3) - 1;
    for (int i = 0; i <= EXPERTS; i++) replica_counts[i] = 1 + (int32_t)test_below(&r, 3);
    for (int i = 0; i < TOKENS; i++)
        random_mask[i] = test_below(&r, 4) != 0, random_fix[i] = test_below(&r, 3) == 0;
    for (int i = 0; i < TOKENS * 8; i++) random_unmapped[i] = test_below(&r, EXPERTS + 4) - 2;
    routing x = { .num_mapped_experts = EXPERTS, .alignment = alignment };
    x.gate = (gate){ .num_tokens = num_tokens, .num_experts = EXPERTS, .num_topk = 6, .logits = random_logits,
                     .bias = random_bias };
    x.num_positions = num_tokens * 6 + (alignment - 1) * EXPERTS;
    return x;
}

/* Everything that a gate may have. */
static void add_all(routing *x)
{
    gate *g = &x->gate;
    g->mask = random_mask, g->fix_routing_mask = random_fix, g->unmapped_topk_idx = random_unmapped;
    g->replicas = 3, g->to_physical_map = replicas, g->logical_count = replica_counts;
    g->params.num_shared_experts = 1, g->params.ep_rank = 2;
    g->params.num_ep_ranks = 2, g->params.num_tp_ranks = 2, g->params.tp_rank = 1;
    g->params.num_groups = 8, g->params.num_topk_groups = 3;
    x->num_mapped_experts = 37;
    x->num_positions = g->num_tokens * 7 + (x->alignment - 1) * 37;
}

static void check_routing(const backend *b, tgl_dtype dtype, const routing *x, const char *what)
{
    instance k;
    open_instance(&k, b, dtype, x);
    CHECK_OK(call_two(&k));
    take(&k, &two);
    close_instance(&k);
    open_instance(&k, b, dtype, x);
    CHECK_OK(call_one(&k, k.workspace, k.workspace_bytes));
    take(&k, &one);
    check_results(&k, what, &one, &two);
    check_workspace_is_zero(&k);
    close_instance(&k);
}

/* ---- an example ---- */

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        /* doc: route */
        const float logits[] = { 2, 0, 1, /**/ 1, 0, 2, /**/ 2, 1, 0 }; /* experts 0 2, 2 0, 0 1 */
        const int32_t pos_to_expert[] = { 0, 0, 0, -1, 1, -1, 2, 2 };
        const int32_t pos_to_token[] = { 0, 1, 2, -1, 2, -1, 0, 1 };
        const int32_t pos_to_token_topk[] = { 0, 3, 4, -1, 5, -1, 1, 2 };
        const int32_t token_topk_to_pos[] = { 0, 6, /**/ 7, 1, /**/ 2, 4 };
        const int32_t start[] = { 0, 4, 6 }, end[] = { 4, 6, 8 }, length[] = { 4, 2, 2 };
        routing x = { .num_mapped_experts = 3, .alignment = 2, .num_positions = 8 };
        x.gate = (gate){ .num_tokens = 3, .num_experts = 3, .num_topk = 2, .logits = logits };
        /* end */
        const int32_t count[] = { 3, 1, 2 }, psum_end[] = { 3, 5, 8 };
        const int32_t *const want[NUM_MAPS] = {
            pos_to_expert, pos_to_token, pos_to_token_topk, token_topk_to_pos, start, end,
            length,        count,        psum_end
        };
        instance k;
        open_instance(&k, b, TGL_I64, &x);
        CHECK_OK(call_one(&k, k.workspace, k.workspace_bytes));
        take(&k, &one);
        check_indices(b, "topk_idx", one.gate.idx, ROW(0, 2, 2, 0, 0, 1), 6);
        check_weights(b, one.gate.weights,
                      WEIGHTS(0.546449f, 0.453551f, 0.546449f, 0.453551f, 0.546449f, 0.453551f), 6, 6e-7f);
        for (int m = 0; m < NUM_MAPS; m++)
            for (int64_t i = 0; i < k.map_sizes[m]; i++)
                CHECK_THAT(one.maps[m][i] == want[m][i], "%s: %s[%d] is %d, want %d", b->name, map_names[m],
                           (int)i, (int)one.maps[m][i], (int)want[m][i]);
        for (int e = 0; e < 3; e++) CHECK_INT(one.host[e], length[e]);
        close_instance(&k);
    }
}

/* ---- in other circumstances ---- */

TEST(num_sms)   /* of every block alone, of both sizes of clusters, and through the workspace */
{
    check_num_sms("moe_route", (const char *const[]){
        "num_tokens=3,40,100,200 num_experts=64 num_topk=6 num_shared_experts=1 replicas=5 num_ep_ranks=4 "
        "num_tp_ranks=2 num_mapped_experts=34 alignment=16 mask=some counts=1", NULL });
}

/* Of the emulated device; elsewhere it is not known: false. */
static bool last_launch(const backend *b, emu_last_launch *out)
{
    const tgl_driver_table *cu;
    emuLastLaunch_function last = NULL;
    CHECK_OK(backend_wait(b, b->stream));
    if (tgl_driver(&cu) == TGL_OK) *(void **)&last = dlsym(cu->handle, "emuLastLaunch");
    return last && last(out);
}

/* Data between blocks, for runs with weak memory (tests/run): through the workspace, and within clusters. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("moe_route", (const char *const[]){
            "num_tokens=40,129 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 alignment=16", NULL }, b);
}

TEST(clusters_within_num_sms)   /* whole ones within the bound; where not even one is, another kernel */
{
    static const struct { int bound, tokens, blocks, cluster; } cases[] = {
        { 1, 40, 1, 1 },   { 7, 40, 7, 1 },   { 8, 40, 8, 8 },    { 9, 40, 8, 8 },   { 15, 40, 8, 8 },
        { 16, 40, 16, 8 }, { 17, 40, 16, 8 }, { 1, 100, 1, 1 },   { 9, 100, 9, 1 },  { 15, 100, 15, 1 },
        { 16, 100, 16, 16 }, { 17, 100, 16, 16 },
    };
    FOR_BACKENDS(b) {
        int num_sms;
        if (backend_is_cpu(b)) continue;
        CHECK_OK(tgl_get_device_num_sms(b->device.device_id, &num_sms));
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (cases[i].bound > num_sms) continue;
            char what[64];
            emu_last_launch last;
            routing x = random_routing("clusters", cases[i].tokens, 16);
            snprintf(what, sizeof what, "%d tokens, %d SMs", cases[i].tokens, cases[i].bound);
            CHECK_OK(tgl_set_num_sms(b->device.device_id, cases[i].bound));
            check_routing(b, TGL_I64, &x, what);
            if (!last_launch(b, &last)) continue;
            CHECK_THAT((int)last.grid[0] == cases[i].blocks && (int)last.cluster[0] == cases[i].cluster,
                       "%s: %d blocks in clusters of %d, want %d of %d", what, (int)last.grid[0],
                       (int)last.cluster[0], cases[i].blocks, cases[i].cluster);
        }
        CHECK_OK(tgl_set_num_sms(b->device.device_id, 0));
    }
}

TEST(launches)  /* one up to 256 tokens, unless a warp cannot hold what a token has; else two */
{
    static const struct { const char *line; int num_launches; } cases[] = {
        { "num_tokens=3 num_experts=64 num_topk=6", 1 },
        { "num_tokens=40 num_experts=64 num_topk=6", 1 },
        { "num_tokens=100 num_experts=64 num_topk=6", 1 },
        { "num_tokens=256 num_experts=64 num_topk=6", 1 },
        { "num_tokens=257 num_experts=64 num_topk=6", 2 },
        { "num_tokens=3 num_experts=64 num_topk=33", 2 },
        { "num_tokens=3 num_experts=1025 num_topk=6", 2 },
        { "num_tokens=3 num_experts=66 num_topk=6 num_groups=33 num_topk_groups=5", 2 },
        { "num_tokens=3 num_experts=64 num_topk=6 num_mapped_experts=8193 alignment=1", 2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_replayed("moe_route", cases[i].line, cases[i].num_launches);
}

/* ---- the two ops ---- */

TEST(as_two_ops)
{
    static const int64_t tokens[] = { 1, 7, 64, 128, 129, 255, 256, 257, 300 };
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
        for (int scoring = 0; scoring < 4; scoring++)
            for (int all = 0; all < 2; all++) FOR_BACKENDS(b) {
                if (b->is_emulated && !test_slow() && ((int)t + scoring + all) % 3) continue;
                char what[64];
                routing x = random_routing("as two", tokens[t], 16);
                snprintf(what, sizeof what, "%d tokens, scoring %d, %d", (int)tokens[t], scoring, all);
                if (all) add_all(&x);
                x.gate.params.scoring = (tgl_moe_scoring)scoring;
                check_routing(b, all ? TGL_I32 : TGL_I64, &x, what);
            }
}

TEST(too_few_positions)
{
    static const int64_t positions[] = { 1, 2, 63, 64, 65, 500, 767, 768, 769, 1000, 2000 };
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) FOR_BACKENDS(b) {
        if (b->is_emulated && !test_slow() && i % 2) continue;
        routing x = random_routing("too few", 128, i % 3 ? 16 : 1);
        x.num_positions = positions[i];
        check_routing(b, TGL_I64, &x, "too few positions");
    }
}

TEST(experts_of_the_mapping)    /* may be fewer or more than the gate has */
{
    static const int64_t experts[] = { 1, 2, 31, 32, 33, 71, 73, 256, 1024, 1025, 3000 };
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++) FOR_BACKENDS(b) {
        routing x = random_routing("experts", 33, 4);
        x.num_mapped_experts = experts[i];
        x.num_positions = 33 * 6 + 3 * experts[i];
        check_routing(b, TGL_I32, &x, "experts of the mapping");
    }
}

TEST(all_tokens_to_one_expert)
{
    FOR_BACKENDS(b) {
        routing x = random_routing("one expert", 256, 128);
        for (int i = 0; i < TOKENS * EXPERTS; i++) random_logits[i] = i % EXPERTS == 50 ? 1 : 0;
        x.gate.bias = NULL, x.gate.num_topk = 1;
        x.num_positions = 256 + 127 * EXPERTS;
        check_routing(b, TGL_I64, &x, "one expert");
        CHECK_INT(one.maps[6][50], 256);
    }
}

/* ---- one workspace for many calls ---- */

TEST(calls_share_a_workspace)   /* two different routes in turn, and each gives what it gave */
{
    FOR_BACKENDS(b) {
        static route_result first_of[2], seen;
        instance k[2];
        routing small = random_routing("in turn", 130, 128), large = random_routing("in turn", 250, 16);
        add_all(&large);
        open_instance(&k[0], b, TGL_I64, &small);
        open_instance(&k[1], b, TGL_I32, &large);
        const int bigger = k[1].workspace_bytes > k[0].workspace_bytes;
        for (int i = 0; i < 6; i++) {
            instance *now = &k[i % 2];
            CHECK_OK(call_one(now, k[bigger].workspace, k[bigger].workspace_bytes));
            take(now, i < 2 ? &first_of[i] : &seen);
            if (i >= 2) check_results(now, "in turn", &seen, &first_of[i % 2]);
        }
        for (int i = 0; i < 20; i++)
            CHECK_OK(call_one(&k[i % 2], k[bigger].workspace, k[bigger].workspace_bytes));
        take(&k[1], &seen);
        check_results(&k[1], "without waiting", &seen, &first_of[1]);
        check_workspace_is_zero(&k[bigger]);
        close_instance(&k[0]);
        close_instance(&k[1]);
    }
}

static tgl_status replayed(void *context)
{
    instance *k = context;
    return call_one(k, k->workspace, k->workspace_bytes);
}

TEST(captured)
{
    FOR_BACKENDS(b) {
        if (!backend_has_graphs(b)) continue;
        for (int tokens = 128; tokens <= 200; tokens += 72) {   /* of clusters, and through the workspace */
            routing x = random_routing("captured", tokens, 16);
            add_all(&x);
            instance k;
            open_instance(&k, b, TGL_I64, &x);
            CHECK_OK(call_one(&k, k.workspace, k.workspace_bytes));
            take(&k, &one);
            for (int i = 0; i < NUM_MAPS; i++) CHECK_OK(backend_upload(b, k.maps[i].t.data, one.host, 4));
            CHECK_OK(backend_replay(b, replayed, &k, 3));
            take(&k, &two);
            check_results(&k, "captured", &two, &one);
            check_workspace_is_zero(&k);
            close_instance(&k);
        }
    }
}

TEST(workspace_never_shrinks)
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        size_t last = 0;
        for (int64_t n = 0; n < 3000; n += 1 + n / 8) {
            tensor x, idx, pos[3], slots, e[3];
            tgl_moe_mapping m = { 0 };
            make(&x, NULL, devices[d], TGL_F32, 2, SHAPE(n, 256));
            make(&idx, NULL, devices[d], TGL_I64, 2, SHAPE(n, 8));
            m.pos_to_expert = make(&pos[0], NULL, devices[d], TGL_I32, 1, SHAPE(n * 8 + 127 * 256));
            m.pos_to_token = make(&pos[1], NULL, devices[d], TGL_I32, 1, SHAPE(n * 8 + 127 * 256));
            m.pos_to_token_topk = make(&pos[2], NULL, devices[d], TGL_I32, 1, SHAPE(n * 8 + 127 * 256));
            m.token_topk_to_pos = make(&slots, NULL, devices[d], TGL_I32, 2, SHAPE(n, 8));
            m.expert_start = make(&e[0], NULL, devices[d], TGL_I32, 1, SHAPE(256));
            m.expert_end = make(&e[1], NULL, devices[d], TGL_I32, 1, SHAPE(256));
            m.num_tokens_per_expert = make(&e[2], NULL, devices[d], TGL_I32, 1, SHAPE(256));
            const size_t bytes = tgl_moe_route_workspace_size(&x.t, &idx.t, &m);
            CHECK_THAT(bytes >= last, "%d tokens: %zu bytes, fewer took %zu", (int)n, bytes, last);
            if (d == 0) CHECK_INT(bytes, 0);
            last = bytes;
        }
    }
}

/* ---- nothing to do ---- */

TEST(no_tokens)     /* no expert has a pair */
{
    FOR_BACKENDS(b) {
        static const int32_t zero[4] = { 0 }, none[6] = { -1, -1, -1, -1, -1, -1 };
        tensor x, idx, weights, pos[3], slots, e[3];
        tgl_moe_mapping m = { 0 };
        make(&x, NULL, b->device, TGL_F32, 2, SHAPE(0, 8));
        make(&idx, NULL, b->device, TGL_I64, 2, SHAPE(0, 2));
        make(&weights, NULL, b->device, TGL_F32, 2, SHAPE(0, 2));
        m.pos_to_expert = place(b, &pos[0], TGL_I32, 1, SHAPE(6), memory);
        m.pos_to_token = place(b, &pos[1], TGL_I32, 1, SHAPE(6), memory);
        m.pos_to_token_topk = place(b, &pos[2], TGL_I32, 1, SHAPE(6), memory);
        m.token_topk_to_pos = make(&slots, NULL, b->device, TGL_I32, 2, SHAPE(0, 2));
        m.expert_start = place(b, &e[0], TGL_I32, 1, SHAPE(4), none);
        m.expert_end = place(b, &e[1], TGL_I32, 1, SHAPE(4), none);
        m.num_tokens_per_expert = place(b, &e[2], TGL_I32, 1, SHAPE(4), none);
        const size_t bytes = tgl_moe_route_workspace_size(&x.t, &idx.t, &m);
        void *workspace = bytes ? zeros_on(b, bytes) : NULL;
        const tgl_moe_gate_params params = { 0 };
        CHECK_OK(tgl_moe_route(&x.t, NULL, NULL, NULL, NULL, NULL, NULL, &idx.t, &weights.t, &m, 4, &params,
                               workspace, bytes, b->stream));
        for (int i = 0; i < 3; i++) check_contents(b, &pos[i], none, map_names[i]);
        for (int i = 0; i < 3; i++) check_contents(b, &e[i], zero, map_names[4 + i]);
        if (workspace) backend_free(b, workspace);
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_moe_route_signature;
static _Alignas(256) unsigned char scratch[1 << 16];

static tgl_moe_mapping mapping_of(DLTensor *const *t)
{
    return (tgl_moe_mapping){ t[9], t[10], t[11], t[12], t[13], t[14], t[15], t[16], t[17], t[18], { 0 } };
}
static tgl_status route(DLTensor *const *t, const tgl_moe_mapping *m, int64_t alignment, const void *params,
                        void *workspace, size_t workspace_bytes)
{
    return tgl_moe_route(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], m, alignment, params, workspace,
                         workspace_bytes, NULL);
}
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    const tgl_moe_mapping m = mapping_of(t);
    return route(t, &m, 4, params, scratch, sizeof scratch);
}
#define SIZES " num_groups=4 num_topk_groups=2 num_positions=20 num_local_experts=5"
#define GOOD_CALL &tgl_moe_route_signature, GATE_SAMPLE SIZES, invoke

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

/* Of CUDA tensors, the CPU wants none; of 16 tokens, as up to 4 no block has to tell another one anything. */
TEST(errors_of_the_workspace)
{
    errors_call *c = errors_open(&tgl_moe_route_signature,
                                 "num_tokens=16 num_experts=8 num_topk=2 num_replicas=3 num_shared_experts=1" SIZES,
                                 invoke, 1);
    REQUIRE(c);
    char want[128];
    tgl_moe_mapping m = mapping_of(c->tensors);
    const size_t bytes = tgl_moe_route_workspace_size(c->tensors[0], c->tensors[7], &m);
    CHECK(bytes > 0);
    snprintf(want, sizeof want, "workspace: is NULL, want %zu bytes of device memory", bytes);
    CHECK_FAILS(route(c->tensors, &m, 4, PARAMS, NULL, bytes), TGL_ERR_WORKSPACE, want);
    snprintf(want, sizeof want, "workspace_bytes: is %zu, want >= %zu", bytes - 1, bytes);
    CHECK_FAILS(route(c->tensors, &m, 4, PARAMS, scratch, bytes - 1), TGL_ERR_WORKSPACE, want);
    snprintf(want, sizeof want, "workspace: address is %p, want a multiple of 256", (void *)(scratch + 128));
    CHECK_FAILS(route(c->tensors, &m, 4, PARAMS, scratch + 128, bytes), TGL_ERR_WORKSPACE, want);
    c = errors_open(GOOD_CALL, 0);
    REQUIRE(c);
    m = mapping_of(c->tensors);
    memset(errors_memory, 0, sizeof errors_memory);
    CHECK_OK(route(c->tensors, &m, 4, PARAMS, NULL, 0));
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
