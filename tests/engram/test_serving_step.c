/* SPDX-License-Identifier: MIT
 * A serving step of an Engram layer as a chain of calls without a wait between them, the table in host memory: ids to
 * rows, lookup (by the kernel, or staged and unpacked), gate in place. Chunk after chunk, eagerly and as one graph that
 * is replayed with new ids, it gives the bits of the whole sequences at once on the CPU. */
#include "replay.h"
#include "tegula/experimental.h"

#include "cuda/on_device.h" /* last: its `cu` would hide those of the others */

enum {
    NGRAM = 3,
    HEADS = 4,
    COLUMNS = (NGRAM - 1) * HEADS,
    DIM = 64,
    GROUPS = DIM / 32,
    PACKED = DIM + GROUPS,
    STREAMS = 3,
    HIDDEN = COLUMNS * DIM / (STREAMS + 1),
    VOCABULARY = 50,
    RING = 7,
    STEPS = 4,
    CHUNK_0 = 5,
    CHUNK_1 = 3,
    TOKENS = CHUNK_0 + CHUNK_1,
    ALL = STEPS * TOKENS,
    X_BYTES = STREAMS * HIDDEN * 2,
    STAGING = (ALL * COLUMNS * 4 + 255) / 256 * 256 + ALL * COLUMNS * PACKED
};
static const int32_t sizes[COLUMNS] = { 31, 37, 41, 43, 47, 53, 59, 61 };
enum { ROWS = 31 + 37 + 41 + 43 + 47 + 53 + 59 + 61 };
static const int64_t multipliers[NGRAM] = { 76632096046245, 4839876093313, 35959672319349 };

/* What a step reads: chunk i of both requests. */
typedef struct {
    int32_t ids[ALL], cu[3], start[2];
    bool mask[ALL];
    uint16_t x[ALL][STREAMS * HIDDEN];
} inputs;

static void take_chunk(const inputs *whole, int step, inputs *chunk)
{
    const int begin[] = { step * CHUNK_0, STEPS * CHUNK_0 + step * CHUNK_1 };
    for (int t = 0; t < TOKENS; t++) {
        const int from = t < CHUNK_0 ? begin[0] + t : begin[1] + t - CHUNK_0;
        chunk->ids[t] = whole->ids[from];
        chunk->mask[t] = whole->mask[from];
        memcpy(chunk->x[t], whole->x[from], X_BYTES);
    }
    memcpy(chunk->cu, (int32_t[]){ 0, CHUNK_0, TOKENS }, sizeof chunk->cu);
    memcpy(chunk->start, (int32_t[]){ step * CHUNK_0, step * CHUNK_1 }, sizeof chunk->start);
}

typedef struct {
    const backend *b;
    bool is_staged;
    int64_t num_tokens;
    tensor ids, mask, cu, start, ring, map, multipliers, sizes, offsets, rows, indices, kv, keys, values, x;
    tensor weight_hidden, weight_embed, table, sf, staging, packed, codes_view, sf_view;
} layer;

static void open_layer(layer *m, const backend *b, int64_t num_tokens, bool is_staged)
{
    int32_t offsets[COLUMNS] = { 0 }, map[VOCABULARY], empty[2][RING];
    uint16_t weights[2][STREAMS * HIDDEN];
    void *memory_of[3];
    const size_t bytes[] = { ROWS * DIM, ROWS * GROUPS, STAGING };
    *m = (layer){ .b = b, .is_staged = is_staged, .num_tokens = num_tokens };
    for (int i = 1; i < COLUMNS; i++) offsets[i] = offsets[i - 1] + sizes[i - 1];
    for (int i = 0; i < VOCABULARY; i++) map[i] = i * 7 % 23;
    for (int i = 0; i < 2 * RING; i++) empty[i / RING][i % RING] = 33; /* stale: of an earlier request */
    for (int i = 0; i < 2 * STREAMS * HIDDEN; i++)
        case_encode(TGL_BF16, (double)case_random_below(5, i, 200) / 100 - 1, &weights[0][0] + i);
    for (int i = 0; i < 3; i++) {
        REQUIRE(CHECK_OK(backend_host_alloc(b, bytes[i], &memory_of[i])));
        for (size_t j = 0; j < bytes[i]; j++) {
            const uint64_t random = case_random((uint64_t)i, (int64_t)j);
            const uint64_t code = random % 2 << 7 | (random >> 8) % 0x50;
            ((uint8_t *)memory_of[i])[j] = (uint8_t)(i == 1 ? 125 + random % 4 : code);
        }
    }
    make(&m->table, memory_of[0], backend_host(b), TGL_E4M3, 2, SHAPE(ROWS, DIM));
    make(&m->sf, memory_of[1], backend_host(b), TGL_U8, 2, SHAPE(ROWS, GROUPS));
    make(&m->staging, memory_of[2], backend_host(b), TGL_U8, 1, SHAPE(STAGING));
    place(b, &m->ids, TGL_I32, 1, SHAPE(num_tokens), NULL);
    place(b, &m->mask, TGL_BOOL, 1, SHAPE(num_tokens), NULL);
    place(b, &m->cu, TGL_I32, 1, SHAPE(3), NULL);
    place(b, &m->start, TGL_I32, 1, SHAPE(2), NULL);
    place(b, &m->ring, TGL_I32, 2, SHAPE(2, RING), empty);
    place(b, &m->map, TGL_I32, 1, SHAPE(VOCABULARY), map);
    place(b, &m->multipliers, TGL_I64, 2, SHAPE(1, NGRAM), multipliers);
    place(b, &m->sizes, TGL_I32, 3, SHAPE(1, NGRAM - 1, HEADS), sizes);
    place(b, &m->offsets, TGL_I32, 2, SHAPE(1, COLUMNS), offsets);
    place(b, &m->rows, TGL_I32, 3, SHAPE(1, num_tokens, COLUMNS), NULL);
    make(&m->indices, m->rows.t.data, b->device, TGL_I32, 2, SHAPE(num_tokens, COLUMNS));
    place(b, &m->kv, TGL_BF16, 3, SHAPE(num_tokens, COLUMNS, DIM), NULL);
    make(&m->keys, m->kv.t.data, b->device, TGL_BF16, 3, SHAPE(num_tokens, STREAMS, HIDDEN));
    make(&m->values, m->kv.t.data, b->device, TGL_BF16, 2, SHAPE(num_tokens, HIDDEN));
    m->keys.strides[0] = m->values.strides[0] = (STREAMS + 1) * HIDDEN;
    m->values.t.byte_offset = X_BYTES;
    place(b, &m->x, TGL_BF16, 3, SHAPE(num_tokens, STREAMS, HIDDEN), NULL);
    place(b, &m->weight_hidden, TGL_BF16, 2, SHAPE(STREAMS, HIDDEN), weights[0]);
    place(b, &m->weight_embed, TGL_BF16, 2, SHAPE(STREAMS, HIDDEN), weights[1]);
    place(b, &m->packed, TGL_U8, 3, SHAPE(num_tokens, COLUMNS, PACKED), NULL);
    make(&m->codes_view, m->packed.t.data, b->device, TGL_E4M3, 2, SHAPE(num_tokens * COLUMNS, DIM));
    make(&m->sf_view, m->packed.t.data, b->device, TGL_U8, 2, SHAPE(num_tokens * COLUMNS, GROUPS));
    m->codes_view.strides[0] = m->sf_view.strides[0] = PACKED;
    m->sf_view.t.byte_offset = DIM;
}

static void close_layer(layer *m)
{
    tensor *const on_device[] = { &m->ids,           &m->mask,         &m->cu,      &m->start, &m->ring, &m->map,
                                  &m->multipliers,   &m->sizes,        &m->offsets, &m->rows,  &m->kv,   &m->x,
                                  &m->weight_hidden, &m->weight_embed, &m->packed };
    tensor *const on_host[] = { &m->table, &m->sf, &m->staging };
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++) discard(m->b, on_device[i]);
    for (size_t i = 0; i < 3; i++) backend_host_free(m->b, on_host[i]->t.data);
}

static void upload_inputs(layer *m, const inputs *in)
{
    CHECK_OK(backend_upload(m->b, m->ids.t.data, in->ids, (size_t)m->num_tokens * 4));
    CHECK_OK(backend_upload(m->b, m->mask.t.data, in->mask, (size_t)m->num_tokens));
    CHECK_OK(backend_upload(m->b, m->cu.t.data, in->cu, sizeof in->cu));
    CHECK_OK(backend_upload(m->b, m->start.t.data, in->start, sizeof in->start));
    CHECK_OK(backend_upload(m->b, m->x.t.data, in->x, (size_t)m->num_tokens * X_BYTES));
}

/* The chain. */
static tgl_status step(void *context)
{
    layer *m = context;
    const tgl_engram_batch batch = { .cu_seqlens = &m->cu.t, .start_pos = &m->start.t };
    const tgl_engram_ngram ngram = { .token_map = &m->map.t,
                                     .multipliers = &m->multipliers.t,
                                     .vocab_sizes = &m->sizes.t,
                                     .offsets = &m->offsets.t,
                                     .pad_id = 2 };
    const tgl_engram_lookup_params few = { .num_sms = 2, .constant_table = true }, unpack = { 0 };
    const tgl_engram_gate_params gate = { .eps = 1e-20f, .clamp_value = 1e-6f, .sign = TGL_ENGRAM_SIGN_BIT };
    TGL_TRY(tgl_engram_rows(&m->ids.t, &m->mask.t, NULL, &m->ring.t, &m->rows.t, &batch, &ngram, m->b->stream));
    if (m->is_staged) {
        TGL_TRY(tgl_engram_lookup_staged(&m->table.t, &m->sf.t, &m->indices.t, &m->staging.t, &m->packed.t, &few,
                                         m->b->stream));
        TGL_TRY(tgl_engram_lookup(&m->codes_view.t, &m->sf_view.t, NULL, &m->kv.t, NULL, &unpack, m->b->stream));
    } else {
        TGL_TRY(tgl_engram_lookup(&m->table.t, &m->sf.t, &m->indices.t, &m->kv.t, NULL, &few, m->b->stream));
    }
    return tgl_engram_gate_fwd(&m->x.t, &m->keys.t, &m->values.t, &m->weight_hidden.t, &m->weight_embed.t, &m->mask.t,
                               &m->x.t, NULL, NULL, NULL, NULL, &gate, m->b->stream);
}

/* All tokens of both requests at once, on the CPU. */
static void make_whole(inputs *whole, uint16_t (*want)[STREAMS * HIDDEN])
{
    static const backend host = { .name = "cpu", .device = { (DLDeviceType)TGL_DL_CPU, 0 } };
    layer m;
    for (int t = 0; t < ALL; t++) {
        whole->ids[t] = (int32_t)case_random_below(1, t, VOCABULARY);
        whole->mask[t] = case_random_below(2, t, 6) == 0;
        for (int i = 0; i < STREAMS * HIDDEN; i++)
            case_encode(TGL_BF16, (double)case_random_below(3, t * 1000 + i, 400) / 100 - 2, &whole->x[t][i]);
    }
    memcpy(whole->cu, (int32_t[]){ 0, STEPS * CHUNK_0, ALL }, sizeof whole->cu);
    memset(whole->start, 0, sizeof whole->start);
    open_layer(&m, &host, ALL, false);
    upload_inputs(&m, whole);
    CHECK_OK(step(&m));
    memcpy(want, m.x.t.data, sizeof whole->x);
    close_layer(&m);
}

/* A chunk has the rows of x that the whole has, and not those of before. */
static void check_chunk(const layer *m, int i, const inputs *whole, const uint16_t (*want)[STREAMS * HIDDEN])
{
    static inputs chunk, wanted;
    static uint16_t seen[TOKENS][STREAMS * HIDDEN];
    inputs after = *whole;
    memcpy(after.x, want, sizeof after.x);
    take_chunk(whole, i, &chunk), take_chunk(&after, i, &wanted);
    CHECK_OK(backend_wait(m->b, m->b->stream));
    CHECK_OK(backend_download(m->b, seen, m->x.t.data, sizeof seen));
    CHECK(memcmp(wanted.x, chunk.x, sizeof seen) != 0);
    for (int t = 0; t < TOKENS; t++)
        CHECK_THAT(!memcmp(seen[t], wanted.x[t], X_BYTES), "%s: token %d of step %d differs", m->b->name, t, i);
}

static void check_steps(const backend *b, bool is_staged, bool in_graph)
{
    static inputs whole, chunk;
    static uint16_t want[ALL][STREAMS * HIDDEN];
    tgl_cu_graph_exec exec = NULL;
    tgl_context_guard guard;
    layer m;
    make_whole(&whole, want);
    open_layer(&m, b, TOKENS, is_staged);
    if (in_graph) {
        tgl_cu_graph graph = NULL;
        LOAD_DRIVER();
        take_chunk(&whole, 0, &chunk);
        upload_inputs(&m, &chunk);
        CHECK_OK(step(&m)); /* loads the kernels; step 0 comes again below */
        CHECK_OK(backend_wait(b, b->stream));
        REQUIRE(CHECK_OK(tgl_context_enter(b->device.device_id, b->stream, &guard)));
        CU(StreamBeginCapture(b->stream, TGL_CU_CAPTURE_THREAD_LOCAL));
        CHECK_OK(step(&m));
        graph = end_capture(b->stream);
        CU(GraphInstantiateWithFlags(&exec, graph, 0));
        CU(GraphDestroy(graph));
    }
    for (int i = 0; i < STEPS; i++) {
        take_chunk(&whole, i, &chunk);
        upload_inputs(&m, &chunk);
        const int64_t before = backend_is_cpu(b) ? 0 : launches_until_now(b);
        if (in_graph) CU(GraphLaunch(exec, b->stream));
        else CHECK_OK(step(&m));
        check_chunk(&m, i, &whole, want);
        if (b->is_emulated) CHECK_INT(launches_until_now(b) - before, 3);
    }
    if (in_graph) {
        CU(GraphExecDestroy(exec));
        tgl_context_leave(&guard);
    }
    close_layer(&m);
}

TEST(chain)
{
    FOR_BACKENDS(b) check_steps(b, false, false);
}
TEST(chain_with_staging)
{
    FOR_BACKENDS(b) check_steps(b, true, false);
}
TEST(graph)
{
    FOR_BACKENDS(b)
        if (backend_has_graphs(b)) check_steps(b, false, true);
}
TEST(graph_with_staging)
{
    FOR_BACKENDS(b)
        if (backend_has_graphs(b)) check_steps(b, true, true);
}

TEST(chain_that_runs_later) /* all of a step is enqueued before any of it runs */
{
    NEED_EMULATOR();
    IN_CHILD("EMU_LAZY=1");
    FOR_BACKENDS(b) check_steps(b, false, false);
}
TEST(chain_with_staging_that_runs_later)
{
    NEED_EMULATOR();
    IN_CHILD("EMU_LAZY=1");
    FOR_BACKENDS(b) check_steps(b, true, false);
}

TEST(programmatic) /* every launch of the chain may begin before the one before has ended */
{
    NEED_EMULATOR();
    FOR_BACKENDS(b) {
        static inputs whole, chunk;
        static uint16_t want[ALL][STREAMS * HIDDEN];
        emuLastLaunch_function last_launch;
        emu_last_launch last = { .pdl = 0 };
        layer m;
        if (backend_is_cpu(b)) continue;
        LOAD_DRIVER();
        *(void **)&last_launch = dlsym(cu->handle, "emuLastLaunch");
        make_whole(&whole, want);
        open_layer(&m, b, TOKENS, false);
        take_chunk(&whole, 0, &chunk);
        upload_inputs(&m, &chunk);
        CHECK_OK(step(&m));
        CHECK(last_launch(&last) && last.pdl && strstr(last.kernel, "gate_fwd"));
        const tgl_engram_lookup_params few = { .num_sms = 2 };
        CHECK_OK(tgl_engram_lookup(&m.table.t, &m.sf.t, &m.indices.t, &m.kv.t, NULL, &few, b->stream));
        CHECK(last_launch(&last) && last.pdl && !strcmp(last.kernel, "lookup") && last.grid[0] <= 2);
        CHECK_OK(backend_wait(b, b->stream));
        close_layer(&m);
    }
}
