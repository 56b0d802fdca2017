/* SPDX-License-Identifier: MIT
 * tgl_engram_lookup_staged, on every device of the tests. Written from the specification: the bytes of a lookup with
 * packed rows, without a launch; staging is page-locked and large enough. */
#include "errors.h"
#include "replay.h"
#include "tegula/experimental.h"

#include "cuda/on_device.h" /* last: its `cu` would hide those of the others */

TESTS_OF_TABLE("engram_lookup_staged")

static const tgl_engram_lookup_params plain = { 0 };

TEST(no_launch) /* eagerly or in a graph; a replay reads what is there then */
{
    check_replayed("engram_lookup_staged", "num_tokens=40 num_columns=24", 0);
    check_replayed("engram_lookup_staged", "num_tokens=40 index_gap=5 index_dtype=i64", 0);
    check_replayed("engram_lookup_staged", "num_tokens=40 indices_at=host index_layout=ct", 0);
    check_replayed("engram_lookup_staged", "num_tokens=40 indices=none", 0);
}

/* ---- a table by hand ---- */

enum {
    ROWS = 90,
    TOKENS = 21,
    COLUMNS = 5,
    N = TOKENS * COLUMNS,
    DIM = 64,
    GROUPS = DIM / 32,
    BYTES = DIM + GROUPS,
    ROWS_AT = (N * 4 + 255) / 256 * 256,
    STAGING = ROWS_AT + N * BYTES
};

typedef struct {
    const backend *b;
    tensor table, sf, indices, staging, out;
    int32_t rows[N];
} world;

static void put_rows(world *w, uint64_t seed) /* new indices */
{
    for (int i = 0; i < N; i++) w->rows[i] = (int32_t)case_random_below(seed, i, ROWS + 20) - 10;
    CHECK_OK(backend_wait(w->b, w->b->stream));
    CHECK_OK(backend_upload(w->b, w->indices.t.data, w->rows, sizeof w->rows));
}

static void open_world(world *w, const backend *b)
{
    void *memory_of[3];
    const size_t bytes[] = { ROWS * DIM, ROWS * GROUPS, STAGING };
    w->b = b;
    for (int i = 0; i < 3; i++) {
        REQUIRE(CHECK_OK(backend_host_alloc(b, bytes[i], &memory_of[i])));
        for (size_t j = 0; j < bytes[i]; j++)
            ((uint8_t *)memory_of[i])[j] = (uint8_t)case_random((uint64_t)i, (int64_t)j);
    }
    make(&w->table, memory_of[0], backend_host(b), TGL_E4M3, 2, SHAPE(ROWS, DIM));
    make(&w->sf, memory_of[1], backend_host(b), TGL_U8, 2, SHAPE(ROWS, GROUPS));
    make(&w->staging, memory_of[2], backend_host(b), TGL_U8, 1, SHAPE(STAGING));
    place(b, &w->indices, TGL_I32, 2, SHAPE(TOKENS, COLUMNS), NULL);
    place(b, &w->out, TGL_U8, 3, SHAPE(TOKENS, COLUMNS, BYTES), NULL);
    put_rows(w, 1);
}

static void close_world(world *w)
{
    backend_host_free(w->b, w->table.t.data), backend_host_free(w->b, w->sf.t.data);
    backend_host_free(w->b, w->staging.t.data);
    discard(w->b, &w->indices), discard(w->b, &w->out);
}

static tgl_status call(void *context)
{
    world *w = context;
    return tgl_engram_lookup_staged(&w->table.t, &w->sf.t, &w->indices.t, &w->staging.t, &w->out.t, &plain,
                                    w->b->stream);
}

/* Rows by hand. */
static void check_out(const world *w, const char *when)
{
    static uint8_t seen[N * BYTES];
    const uint8_t *codes = w->table.t.data, *factors = w->sf.t.data;
    CHECK_OK(backend_wait(w->b, w->b->stream));
    CHECK_OK(backend_download(w->b, seen, w->out.t.data, sizeof seen));
    for (int i = 0; i < N; i++)
        for (int j = 0; j < BYTES; j++) {
            const int row = w->rows[i];
            int want = 0;
            if (row >= 0 && row < ROWS) want = j < DIM ? codes[row * DIM + j] : factors[row * GROUPS + j - DIM];
            if (!CHECK_THAT(seen[i * BYTES + j] == want, "%s: %s: byte %d of row %d is %d, want %d", w->b->name, when,
                            j, i, seen[i * BYTES + j], want))
                return;
        }
}

TEST(by_hand)
{
    FOR_BACKENDS(b) {
        world w;
        open_world(&w, b);
        CHECK_OK(call(&w));
        check_out(&w, "once");
        close_world(&w);
    }
}

TEST(repeated_indices) /* strides of 0 and below 0, of the device's memory too */
{
    const int64_t strides[][2] = { { 0, 1 }, { 2, 1 }, { 0, 0 }, { 1, 0 }, { -COLUMNS, 1 }, { 3, -1 }, { -1, 2 } };
    FOR_BACKENDS(b)
        for (int i = 0; i < 7; i++) {
            world w;
            int32_t given[N];
            open_world(&w, b);
            memcpy(given, w.rows, sizeof given);
            const int64_t down = strides[i][0], right = strides[i][1];
            const int64_t first = (down < 0 ? -down * (TOKENS - 1) : 0) + (right < 0 ? -right * (COLUMNS - 1) : 0);
            w.indices.strides[0] = down, w.indices.strides[1] = right;
            w.indices.t.byte_offset = (uint64_t)first * 4;
            for (int k = 0; k < N; k++) w.rows[k] = given[first + k / COLUMNS * down + k % COLUMNS * right];
            CHECK_OK(call(&w));
            check_out(&w, "repeated");
            close_world(&w);
        }
}

TEST(pageable_table) /* the CPU reads it: it need not be page-locked */
{
    static uint8_t codes[ROWS * DIM], factors[ROWS * GROUPS];
    FOR_BACKENDS(b) {
        world w;
        open_world(&w, b);
        void *const table = w.table.t.data, *const sf = w.sf.t.data;
        memcpy(codes, table, sizeof codes), memcpy(factors, sf, sizeof factors);
        make(&w.table, codes, cpu, TGL_E4M3, 2, SHAPE(ROWS, DIM));
        make(&w.sf, factors, cpu, TGL_U8, 2, SHAPE(ROWS, GROUPS));
        CHECK_OK(call(&w));
        check_out(&w, "pageable");
        w.table.t.data = table, w.sf.t.data = sf;
        close_world(&w);
    }
}

/* Nothing of the call is needed once it has returned, but memory of tensors; two calls share staging. */
static void check_two_calls(const backend *b)
{
    world w;
    tensor first, second;
    open_world(&w, b);
    place(b, &first, TGL_U8, 3, SHAPE(TOKENS, COLUMNS, BYTES), NULL);
    CHECK_OK(backend_wait(b, b->stream));
    second = w.out;
    second.t.shape = second.shape, second.t.strides = second.strides;
    world *k = malloc(sizeof *k);
    REQUIRE(k);
    for (int i = 0; i < 2; i++) {
        *k = w;
        k->out = i ? second : first;
        tensor *const all[] = { &k->table, &k->sf, &k->indices, &k->staging, &k->out };
        for (int j = 0; j < 5; j++) all[j]->t.shape = all[j]->shape, all[j]->t.strides = all[j]->strides;
        const int64_t half = i ? 0 : ROWS / 2; /* the first sees the second half of the table */
        k->table.shape[0] -= half, k->sf.shape[0] -= half;
        k->table.t.byte_offset = (uint64_t)(half * DIM), k->sf.t.byte_offset = (uint64_t)(half * GROUPS);
        const tgl_engram_lookup_params shard = { .row_begin = half };
        CHECK_OK(tgl_engram_lookup_staged(&k->table.t, &k->sf.t, &k->indices.t, &k->staging.t, &k->out.t, &shard,
                                          b->stream));
        memset(k, 0xa5, sizeof *k);
    }
    free(k);
    check_out(&w, "the second");
    for (int i = 0; i < N; i++)
        if (w.rows[i] < ROWS / 2) w.rows[i] = -1;
    backend_free(b, w.out.t.data);
    w.out.t.data = first.t.data;
    check_out(&w, "the first");
    close_world(&w);
}
TEST(two_calls)
{
    FOR_BACKENDS(b) check_two_calls(b);
}
TEST(two_calls_that_run_later)
{
    NEED_EMULATOR();
    IN_CHILD("EMU_LAZY=1");
    FOR_BACKENDS(b) check_two_calls(b);
}

/* ---- graphs ---- */

TEST(graph_outlives_the_capture) /* and replays read indices of their time */
{
    FOR_BACKENDS(b) {
        if (!backend_has_graphs(b)) continue;
        LOAD_DRIVER();
        world w;
        tgl_cu_graph graph;
        tgl_cu_graph_exec exec = NULL;
        tgl_context_guard guard;
        open_world(&w, b);
        REQUIRE(CHECK_OK(tgl_context_enter(b->device.device_id, b->stream, &guard)));
        CU(StreamBeginCapture(b->stream, TGL_CU_CAPTURE_THREAD_LOCAL));
        CHECK_OK(call(&w));
        graph = end_capture(b->stream);
        CU(GraphInstantiateWithFlags(&exec, graph, 0));
        CU(GraphDestroy(graph)); /* the executable one has what it needs */
        for (uint64_t i = 2; i < 5; i++) {
            put_rows(&w, i);
            CU(GraphLaunch(exec, b->stream));
            check_out(&w, "replayed");
        }
        CU(GraphExecDestroy(exec));
        tgl_context_leave(&guard);
        close_world(&w);
    }
}

/* ---- failures of the driver ---- */

TEST(failures) /* say which call it was; ASan says whether something is lost */
{
    static const char *const entries[] = { "cuMemcpyDtoHAsync",      "cuMemcpy2DAsync",        "cuLaunchHostFunc",
                                           "cuMemcpyHtoDAsync",      "cuStreamGetCaptureInfo", "cuUserObjectCreate",
                                           "cuGraphRetainUserObject" };
    NEED_EMULATOR();
    FOR_BACKENDS(b) {
        world w;
        if (backend_is_cpu(b)) continue;
        LOAD_DRIVER();
        open_world(&w, b);
        for (int i = 0; i < 7; i++) {
            const bool in_graph = i >= 5, is_strided = i == 1;
            char rule[64], name[64];
            if (is_strided) w.indices.shape[1] = w.out.shape[1] = 3, w.out.strides[0] = 3 * BYTES;
            snprintf(rule, sizeof rule, "%s=%d", entries[i], 999);
            snprintf(name, sizeof name, "%s: ", entries[i]);
            inject(rule);
            const tgl_status status = in_graph ? backend_replay(b, call, &w, 1) : call(&w);
            inject("");
            CHECK_THAT(status == TGL_ERR_CUDA && strstr(tgl_last_error(), name), "%s: status %d, %s", entries[i],
                       (int)status, tgl_last_error());
            if (is_strided) w.indices.shape[1] = w.out.shape[1] = COLUMNS, w.out.strides[0] = COLUMNS * BYTES;
            CHECK_OK(call(&w));
            check_out(&w, "after a failure");
        }
        close_world(&w);
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_engram_lookup_staged_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_engram_lookup_staged(t[0], t[1], t[2], t[3], t[4], params, NULL);
}
#define GOOD_CALL                        \
    &tgl_engram_lookup_staged_signature, \
        "table_rows=3 dim=64 num_tokens=3 num_columns=2 staging_bytes=652 indices=i32", invoke
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "table: dtype is bf16, want e4m3");
    CHECK_ERROR(c->tensors[1] = NULL, "table_sf: is NULL, want a tensor");
    CHECK_ERROR(x[3].shape[0] = 651, "staging: shape is [651], want [>= 652]");
    CHECK_ERROR(x[4].shape[2] = 64; x[4].strides = NULL, "out: shape is [3, 2, 64], want [3, 2, 66]");
    CHECK_ERROR(((tgl_engram_lookup_params *)(void *)c->params)->row_begin = -1, "row_begin: is -1, want >= 0");
    CHECK_ERROR(c->given = NULL, "params: is NULL, want a struct");
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }

static void expect(const world *w, const tensor *table, const tensor *sf, const tensor *indices, const tensor *staging,
                   const char *message)
{
    tensor out = w->out, at = *staging;
    out.t.shape = out.shape, out.t.strides = out.strides, at.t.shape = at.shape, at.t.strides = at.strides;
    CHECK_FAILS(tgl_engram_lookup_staged(&table->t, &sf->t, &indices->t, &at.t, &out.t, &plain, w->b->stream),
                TGL_ERR_ARGUMENT, message);
}

TEST(errors_of_places)
{
    FOR_BACKENDS(b) {
        const tgl_device *facts;
        char message[128];
        world w;
        tensor t, there;
        if (backend_is_cpu(b)) continue;
        REQUIRE(CHECK_OK(tgl_device_get(b->device.device_id, &facts)));
        open_world(&w, b);
        place(b, &there, TGL_E4M3, 2, SHAPE(ROWS, DIM), NULL);
        snprintf(message, sizeof message, "table: is e4m3 [90, 64] strides [64, 1] on %s, want host memory", b->name);
        expect(&w, &there, &w.sf, &w.indices, &w.staging, message);
        make(&t, there.t.data, b->device, TGL_U8, 2, SHAPE(ROWS, GROUPS));
        snprintf(message, sizeof message, "table_sf: is u8 [90, 2] strides [2, 1] on %s, want host memory", b->name);
        expect(&w, &w.table, &t, &w.indices, &w.staging, message);
        make(&t, (char *)w.staging.t.data + 4, backend_host(b), TGL_U8, 1, SHAPE(STAGING));
        expect(&w, &w.table, &w.sf, &w.indices, &t,
               "staging: address is 4 bytes past a multiple of 8, want a multiple of 8");
        if (!facts->uses_host_page_tables) {
            static _Alignas(8) uint8_t pageable[STAGING];
            make(&t, pageable, cpu, TGL_U8, 1, SHAPE(STAGING));
            expect(&w, &w.table, &w.sf, &w.indices, &t,
                   "staging: memory is not page-locked, want page-locked (cuMemHostAlloc, cudaHostRegister, "
                   "pin_memory)");
        }
        discard(b, &there);
        close_world(&w);
    }
}
