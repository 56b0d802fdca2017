/* SPDX-License-Identifier: MIT
 * tgl_engram_lookup_bwd, on every device of the tests. Written from the specification: gradients of a row are added in
 * chunks of 32, in the order of their positions, then the chunks are. */
#include "calls.h"
#include "replay.h"
#include "tegula/engram.h"

TESTS_OF_TABLE("engram_lookup_bwd")

/* ---- examples ---- */

typedef struct {
    tensor grad, indices, table, unique, rows, count;
    void *workspace;
    size_t workspace_bytes;
} call;

static tgl_status run(const backend *b, call *c, bool has_table, const tgl_engram_lookup_params *params)
{
    c->workspace_bytes = tgl_engram_lookup_bwd_workspace_size(&c->grad.t, &c->indices.t, params);
    CHECK_OK(backend_alloc(b, c->workspace_bytes, &c->workspace));
    if (backend_is_cpu(b)) memset(c->workspace, 0, c->workspace_bytes);
    else CHECK_OK(tgl_workspace_init(c->workspace, c->workspace_bytes, b->stream));
    const tgl_status status =
        tgl_engram_lookup_bwd(&c->grad.t, &c->indices.t, has_table ? &c->table.t : NULL, &c->unique.t, &c->rows.t,
                              &c->count.t, params, c->workspace, c->workspace_bytes, b->stream);
    CHECK_OK(backend_wait(b, b->stream));
    backend_free(b, c->workspace);
    return status;
}

TEST(worked_example)
{
    /* doc: lookup_bwd */
    const int32_t indices[] = { 7, 3, -1, 7, 9, 3, 7, 12 };
    const float gradients[][2] = { { 1, 2 }, { .5f, -1 },    { 9, 9 },  { -2, 4 },
                                   { 1, 1 }, { .25f, .25f }, { 3, -8 }, { 5, 5 } };
    const tgl_engram_lookup_params params = { .row_begin = 4, .num_rows = 6 }; /* rows 4 .. 9 are owned */
    const int32_t unique_rows[] = { 7, 9, -1, -1, -1, -1, -1, -1 }, num_unique = 2;
    const float grad_rows[][2] = { { 2, -2 }, { 1, 1 } };
    /* end */
    float want[8][2], seen[8][2];
    memset(want, 0xa5, sizeof want); /* what is not written */
    memcpy(want, grad_rows, sizeof grad_rows);
    FOR_BACKENDS(b) {
        call c;
        place(b, &c.grad, TGL_F32, 3, SHAPE(4, 2, 2), gradients);
        place(b, &c.indices, TGL_I32, 2, SHAPE(4, 2), indices);
        place(b, &c.unique, TGL_I32, 1, SHAPE(8), NULL);
        place(b, &c.rows, TGL_F32, 2, SHAPE(8, 2), NULL);
        place(b, &c.count, TGL_I32, 1, SHAPE(1), NULL);
        CHECK_OK(run(b, &c, false, &params));
        check_contents(b, &c.unique, unique_rows, "unique_rows");
        check_contents(b, &c.count, &num_unique, "num_unique");
        fetch(b, &c.rows, seen);
        CHECK(!memcmp(seen, want, sizeof want));
        discard(b, &c.grad), discard(b, &c.indices);
    }
}

/* 100 gradients of a row: 32, 32, 32 and 4 of them, which is not the sum from first to last. */
TEST(order_of_summation)
{
    float gradients[100], in_order = 0, want = 0;
    for (int i = 0; i < 100; i++) gradients[i] = (float)((double)(case_random(5, i) % 2000003) / 1000 - 1000);
    for (int i = 0; i < 100; i++) in_order += gradients[i];
    for (int chunk = 0; chunk < 100; chunk += 32) {
        float sum = 0;
        for (int i = chunk; i < chunk + 32 && i < 100; i++) sum += gradients[i];
        want = chunk ? want + sum : sum;
    }
    CHECK(want != in_order);
    const int64_t indices[100] = { 0 };
    FOR_BACKENDS(b) {
        call c;
        float start = 3, seen = 0;
        place(b, &c.grad, TGL_F32, 3, SHAPE(100, 1, 1), gradients);
        place(b, &c.indices, TGL_I64, 2, SHAPE(100, 1), indices);
        place(b, &c.table, TGL_F32, 2, SHAPE(1, 1), &start);
        place(b, &c.unique, TGL_I64, 1, SHAPE(100), NULL);
        place(b, &c.rows, TGL_F32, 2, SHAPE(100, 1), NULL);
        place(b, &c.count, TGL_I32, 1, SHAPE(1), NULL);
        const tgl_engram_lookup_params params = { 0 };
        CHECK_OK(run(b, &c, true, &params));
        CHECK_OK(run(b, &c, true, &params)); /* it accumulates */
        CHECK_OK(backend_download(b, &seen, c.rows.t.data, 4));
        CHECK(seen == want);
        fetch(b, &c.table, &seen);
        CHECK(seen == 3 + want + want);
        discard(b, &c.grad), discard(b, &c.indices), discard(b, &c.unique), discard(b, &c.rows), discard(b, &c.count);
    }
}

/* The kernel cuts rows into ranges by a sample of positions. If none of these is owned, one range has all rows: more
 * than a block has shared memory for. */
TEST(sample_misses)
{
    enum { N = 16000, SAMPLE = 1024 };
    static int32_t indices[N], unique[N];
    static float gradients[N], want[N], seen[N];
    int32_t count = 0;
    for (int i = 0; i < N; i++) indices[i] = 3 * ((i + N / 2) % N), gradients[i] = (float)i;
    for (uint32_t i = 0; i < SAMPLE; i++) indices[(uint64_t)(i * 0x9e3779b1u) * N >> 32] = -1;
    memset(want, 0xa5, sizeof want); /* what is not written */
    for (int row = 0; row < N; row++) {
        const int at = (row + N / 2) % N;
        if (indices[at] >= 0) unique[count] = 3 * row, want[count++] = gradients[at];
    }
    CHECK(count > 12288);
    for (int i = count; i < N; i++) unique[i] = -1;
    FOR_BACKENDS(b) {
        call c;
        place(b, &c.grad, TGL_F32, 3, SHAPE(N, 1, 1), gradients);
        place(b, &c.indices, TGL_I32, 2, SHAPE(N, 1), indices);
        place(b, &c.unique, TGL_I32, 1, SHAPE(N), NULL);
        place(b, &c.rows, TGL_F32, 2, SHAPE(N, 1), NULL);
        place(b, &c.count, TGL_I32, 1, SHAPE(1), NULL);
        CHECK_OK(run(b, &c, false, &(tgl_engram_lookup_params){ .num_rows = 3 * N }));
        check_contents(b, &c.unique, unique, "unique_rows");
        check_contents(b, &c.count, &count, "num_unique");
        fetch(b, &c.rows, seen);
        CHECK(!memcmp(seen, want, sizeof want));
        discard(b, &c.grad), discard(b, &c.indices);
    }
}

/* The sum of <lookup(E), G> is that of <E, bwd(G)>: exactly, on integers. */
TEST(adjoint)
{
    enum { T = 50, C = 7, N = T * C, R = 30, D = 8 };
    static float table[R * D], grad[N * D], looked_up[N * D], sums[R * D];
    static int32_t rows[N];
    for (int i = 0; i < R * D; i++) table[i] = (float)(case_random(1, i) % 17) - 8;
    for (int i = 0; i < N * D; i++) grad[i] = (float)(case_random(2, i) % 17) - 8;
    for (int i = 0; i < N; i++) rows[i] = (int32_t)case_random_below(3, i, R + 10) - 5;
    FOR_BACKENDS(b) {
        call c;
        tensor e, out;
        const tgl_engram_lookup_params params = { 0 };
        memset(sums, 0, sizeof sums);
        place(b, &e, TGL_F32, 2, SHAPE(R, D), table);
        place(b, &c.grad, TGL_F32, 3, SHAPE(T, C, D), grad);
        place(b, &c.indices, TGL_I32, 2, SHAPE(T, C), rows);
        place(b, &c.table, TGL_F32, 2, SHAPE(R, D), sums);
        place(b, &c.unique, TGL_I32, 1, SHAPE(N), NULL);
        place(b, &c.rows, TGL_F32, 2, SHAPE(N, D), NULL);
        place(b, &c.count, TGL_I32, 1, SHAPE(1), NULL);
        place(b, &out, TGL_F32, 3, SHAPE(T, C, D), NULL);
        CHECK_OK(tgl_engram_lookup(&e.t, NULL, &c.indices.t, &out.t, NULL, &params, b->stream));
        CHECK_OK(run(b, &c, true, &params));
        fetch(b, &out, looked_up);
        fetch(b, &c.table, sums);
        double left = 0, right = 0;
        for (int i = 0; i < N * D; i++) left += (double)looked_up[i] * grad[i];
        for (int i = 0; i < R * D; i++) right += (double)table[i] * sums[i];
        CHECK(left == right);
        discard(b, &e), discard(b, &c.grad), discard(b, &c.indices), discard(b, &c.unique), discard(b, &c.rows);
        discard(b, &c.count);
    }
}

/* For runs with weak memory (tests/run): blocks meet between passes over the workspace. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("engram_lookup_bwd",
                    (const char *const[]){ "num_tokens=300 dim=16 indices=blocks", "num_tokens=40 dim=72 indices=equal",
                                           NULL },
                    b);
}

TEST(graph) { check_replayed("engram_lookup_bwd", "num_tokens=400 outputs=rows indices=blocks", 1); }

TEST(num_sms)
{
    check_num_sms("engram_lookup_bwd",
                  CASE_LINES("num_tokens=3000 num_columns=5 dim=16 indices=blocks,zipf num_rows=20000",
                             /* parts and buckets that have no room in shared memory, also of two blocks */
                             "num_tokens=3000 num_columns=5 dim=4 outputs=rows indices=bits,low num_rows=0 "
                             "index_dtype=i64"));
}

/* ---- errors ---- */

extern tgl_signature tgl_engram_lookup_bwd_signature;
static tgl_status call_with(DLTensor *const *t, const void *params, void *workspace, size_t bytes)
{
    return tgl_engram_lookup_bwd(t[0], t[1], t[2], t[3], t[4], t[5], params, workspace, bytes, NULL);
}
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    static _Alignas(256) unsigned char workspace[1 << 17];
    return call_with(t, params, workspace, sizeof workspace);
}
static size_t workspace_size(DLTensor *const *t) /* of tensors on the CPU, too, where no workspace is used */
{
    return tgl_on_cpu(t[0]) ? 0 : tgl_engram_lookup_bwd_workspace_size(t[0], t[1], NULL);
}
#define SAMPLE "num_tokens=3 num_columns=2 dim=4 table_rows=5"
#define GOOD_CALL &tgl_engram_lookup_bwd_signature, SAMPLE, invoke
#define PARAMS ((tgl_engram_lookup_params *)(void *)c->params)

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(c->tensors[2] = c->tensors[3] = c->tensors[4] = c->tensors[5] = NULL,
                "grad_table: is NULL, want a tensor or unique_rows");
    CHECK_ERROR(c->tensors[4] = NULL, "grad_rows: is NULL, want a tensor with unique_rows");
    CHECK_ERROR(PARAMS->num_rows = 4, "num_rows: is 4, want 0 or 5, as grad_table has");
    CHECK_ERROR(PARAMS->row_begin = -4, "row_begin: is -4, want >= 0");
    CHECK_ERROR(x[1].dtype = tgl_dtype_to_dlpack(TGL_I64); x[3].dtype = tgl_dtype_to_dlpack(TGL_I32);
                c->tensors[2] = NULL;
                PARAMS->row_begin = 1, "unique_rows: dtype is i32, want i64 for rows up to 9223372036854775807");
    CHECK_ERROR(x[3].shape[0] = 5, "unique_rows: shape is [5], want [6]");
}

TEST(errors_of_workspace)
{
    check_workspace_errors(&(workspace_op){ &tgl_engram_lookup_bwd_signature, invoke, call_with, workspace_size },
                           SAMPLE);
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
