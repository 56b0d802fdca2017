/* SPDX-License-Identifier: MIT
 * Rows that are more than 2^32 elements apart: every op that takes a row stride gives the bits that it gives
 * of packed rows. Between the rows there is no memory: on the CPU and the emulated device they are two pages
 * of a range that is only mapped. */
#include <sys/mman.h>

#include "mapping.h"

enum { ROWS = 2 };
static const int64_t far = ((int64_t)1 << 32) + 8; /* elements of 4 bytes, from row to row */

static size_t far_bytes(int64_t cols) { return (size_t)(far + cols) * 4; }

static void adopt(const backend *b, void *p, size_t bytes)
{
    const tgl_driver_table *cu;
    emuAdopt_function f;
    if (!b->is_emulated) return;
    REQUIRE(CHECK_OK(tgl_driver(&cu)));
    *(void **)&f = dlsym(cu->handle, "emuAdopt");
    CHECK(f(p, bytes));
}

/* False, and the test skips, where a GPU has too little memory. */
static bool place_far(const backend *b, tensor *t, tgl_dtype dtype, int64_t cols, const void *contents)
{
    make(t, NULL, b->device, dtype, 2, SHAPE(ROWS, cols));
    t->strides[0] = far;
    if (backend_is_cpu(b) || b->is_emulated) {
        t->t.data = mmap(NULL, far_bytes(cols), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!CHECK(t->t.data != MAP_FAILED)) return false;
        adopt(b, t->t.data, far_bytes(cols));
    } else if (backend_alloc(b, far_bytes(cols), &t->t.data) != TGL_OK) {
        test_skip("%s: %s", b->name, tgl_last_error());
        return false;
    }
    for (int64_t r = 0; r < ROWS; r++)
        CHECK_OK(backend_upload(b, (char *)t->t.data + 4 * r * far, (const char *)contents + 4 * r * cols,
                                (size_t)cols * 4));
    return true;
}

static void discard_far(const backend *b, tensor *t)
{
    CHECK_OK(backend_wait(b, b->stream));
    if (!backend_is_cpu(b) && !b->is_emulated) {
        backend_free(b, t->t.data);
        return;
    }
    adopt(b, t->t.data, 0);
    munmap(t->t.data, far_bytes(t->shape[1]));
}

/* What an op makes of `in`: `words` words of 32 bits. */
typedef void (*op_function)(const backend *b, DLTensor *in, uint32_t *out);

static void check_far(tgl_dtype dtype, int64_t cols, const void *contents, op_function op, int64_t words)
{
    uint32_t *near_out = calloc((size_t)words + 1, 4), *far_out = calloc((size_t)words + 1, 4);
    REQUIRE(near_out && far_out);
    FOR_BACKENDS(b)
    {
        tensor near_in, far_in;
        if (!place_far(b, &far_in, dtype, cols, contents)) continue;
        place(b, &near_in, dtype, 2, SHAPE(ROWS, cols), contents);
        op(b, &near_in.t, near_out);
        op(b, &far_in.t, far_out);
        for (int64_t i = 0; i < words; i++)
            CHECK_THAT(near_out[i] == far_out[i], "%s: word %" PRId64 " of the result is %08x, want %08x",
                       b->name, i, far_out[i], near_out[i]);
        discard(b, &near_in);
        discard_far(b, &far_in);
    }
    free(near_out), free(far_out);
}

/* ---- counts and the mapping ---- */

enum { MANY_COLS = 2100, MANY_GROUPS = 9000 };
static int32_t indices[ROWS * MANY_COLS];

static void fill_indices(const char *name, int64_t cols, int64_t n)
{
    test_random r = test_seed(name);
    for (int64_t i = 0; i < ROWS * cols; i++) indices[i] = (int32_t)test_below(&r, n + 2) - 1;
}

static void count_groups(const backend *b, DLTensor *in, uint32_t *out, int64_t num_groups)
{
    tensor counts;
    place(b, &counts, TGL_I32, 1, &num_groups, NULL);
    const scratch s = make_scratch(b, tgl_moe_group_count_workspace_size(in, &counts.t));
    CHECK_OK(tgl_moe_group_count(in, &counts.t, s.data, s.bytes, b->stream));
    fetch(b, &counts, out);
    backend_free(b, s.data);
}
static void count_few(const backend *b, DLTensor *in, uint32_t *out) { count_groups(b, in, out, 9); }
static void count_many(const backend *b, DLTensor *in, uint32_t *out)
{
    count_groups(b, in, out, MANY_GROUPS);
}

TEST(group_count) /* by elements, by vectors, by several blocks; in shared memory and in the workspace */
{
    static const int64_t cols[] = { 7, 8, 5000 / ROWS };
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
        static int32_t wide[5000];
        test_random r = test_seed("group_count");
        for (int64_t k = 0; k < ROWS * cols[i]; k++) wide[k] = (int32_t)test_below(&r, 11) - 1;
        check_far(TGL_I32, cols[i], wide, count_few, 9);
        check_far(TGL_I32, cols[i], wide, count_many, MANY_GROUPS);
    }
}

static void mask(const backend *b, DLTensor *in, uint32_t *out)
{
    const tgl_moe_mask_indices_by_tp_params p = { 72, 8, 2, 1, { 0 } };
    tensor masked;
    place(b, &masked, TGL_I32, 2, in->shape, NULL);
    CHECK_OK(tgl_moe_mask_indices_by_tp(in, &masked.t, &p, b->stream));
    fetch(b, &masked, out);
}

TEST(mask_indices_by_tp)
{
    for (int64_t cols = 7; cols <= 8; cols++) {
        fill_indices("mask", cols, 72);
        check_far(TGL_I32, cols, indices, mask, ROWS * cols);
    }
}

static void map(const backend *b, DLTensor *in, uint32_t *out)
{
    const int64_t num_experts = 9, pairs = ROWS * in->shape[1];
    tensor t[7];
    for (int i = 0; i < 3; i++) place(b, &t[i], TGL_I32, 1, &pairs, NULL);
    place(b, &t[3], TGL_I32, 2, in->shape, NULL);
    for (int i = 4; i < 7; i++) place(b, &t[i], TGL_I32, 1, &num_experts, NULL);
    const tgl_moe_mapping m = { &t[0].t, &t[1].t, &t[2].t, &t[3].t, &t[4].t, &t[5].t,
                                &t[6].t, NULL,    NULL,    NULL,    { 0 } };
    const scratch s = make_scratch(b, tgl_moe_get_fused_mapping_workspace_size(in, &m));
    CHECK_OK(tgl_moe_get_fused_mapping(in, &m, 1, s.data, s.bytes, b->stream));
    fetch(b, &t[3], out);
    for (int i = 0; i < 7; i++)
        if (i != 3) discard(b, &t[i]);
    backend_free(b, s.data);
}

TEST(get_fused_mapping) /* of few pairs and of many: one of each kernel */
{
    static const int64_t cols[] = { 6, MANY_COLS };
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
        fill_indices("map", cols[i], 9);
        check_far(TGL_I32, cols[i], indices, map, ROWS * cols[i]);
    }
}

/* ---- scores ---- */

enum { EXPERTS = 72, TOPK = 6 };
static float scores[ROWS * EXPERTS];

static void fill_scores(const char *name)
{
    test_random r = test_seed(name);
    for (int i = 0; i < ROWS * EXPERTS; i++) scores[i] = (float)test_below(&r, 1 << 20) / (1 << 18) - 2;
}

static void topk(const backend *b, DLTensor *in, uint32_t *out)
{
    tensor idx;
    place(b, &idx, TGL_I32, 2, SHAPE(ROWS, TOPK), NULL);
    CHECK_OK(tgl_moe_topk_gate(in, &idx.t, b->stream));
    fetch(b, &idx, out);
}

TEST(topk_gate)
{
    fill_scores("topk");
    check_far(TGL_F32, EXPERTS, scores, topk, ROWS * TOPK);
}

static void gate(const backend *b, DLTensor *in, uint32_t *out)
{
    const tgl_moe_gate_params p = { .scoring = TGL_MOE_SIGMOID };
    tensor idx, weights;
    place(b, &idx, TGL_I32, 2, SHAPE(ROWS, TOPK), NULL);
    place(b, &weights, TGL_F32, 2, SHAPE(ROWS, TOPK), NULL);
    CHECK_OK(
        tgl_moe_top2_sum_gate(in, NULL, NULL, NULL, NULL, NULL, NULL, &idx.t, &weights.t, &p, b->stream));
    fetch(b, &idx, out);
    fetch(b, &weights, out + ROWS * TOPK);
}

TEST(top2_sum_gate)
{
    fill_scores("gate");
    check_far(TGL_F32, EXPERTS, scores, gate, 2 * ROWS * TOPK);
}

static void normalize(const backend *b, DLTensor *in, uint32_t *out)
{
    tensor sums, normalized;
    place(b, &sums, TGL_F32, 1, SHAPE(ROWS), NULL);
    place(b, &normalized, TGL_F32, 2, in->shape, NULL);
    CHECK_OK(tgl_moe_normalize_weight(in, &sums.t, &normalized.t, b->stream));
    fetch(b, &sums, out);
    fetch(b, &normalized, out + ROWS);
}

TEST(normalize_weight) /* a lane per element, by vectors, a warp per row */
{
    static const int64_t cols[] = { 6, 8, 40 };
    fill_scores("normalize");
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        check_far(TGL_F32, cols[i], scores, normalize, ROWS * (1 + cols[i]));
}

/* ---- rows that move ---- */

static void expand(const backend *b, DLTensor *in, uint32_t *out)
{
    const int32_t to_pos[] = { 1, 2, 3, 0 }, to_expert[] = { 0, 0, 1, 1 };
    tensor to, experts, moved;
    place(b, &to, TGL_I32, 2, SHAPE(ROWS, 2), to_pos);
    place(b, &experts, TGL_I32, 1, SHAPE(4), to_expert);
    place(b, &moved, TGL_F32, 2, SHAPE(4, in->shape[1]), NULL);
    CHECK_OK(tgl_moe_expand_to_fused(in, &to.t, &experts.t, &moved.t, b->stream));
    fetch(b, &moved, out);
    discard(b, &to), discard(b, &experts);
}

TEST(expand_to_fused) /* by columns and by bulk stores */
{
    fill_scores("expand");
    for (int64_t cols = 7; cols <= 8; cols++) check_far(TGL_F32, cols, scores, expand, 4 * cols);
}

static void reduce(const backend *b, DLTensor *in, uint32_t *out)
{
    const int32_t to_pos[] = { 1, 0, -1, 1 };
    tensor to, sums;
    place(b, &to, TGL_I32, 2, SHAPE(2, 2), to_pos);
    place(b, &sums, TGL_F32, 2, SHAPE(2, in->shape[1]), NULL);
    CHECK_OK(tgl_moe_reduce_fused(in, NULL, NULL, &to.t, NULL, &sums.t, b->stream));
    fetch(b, &sums, out);
    discard(b, &to);
}

TEST(reduce_fused)
{
    fill_scores("reduce");
    for (int64_t cols = 7; cols <= 8; cols++) check_far(TGL_F32, cols, scores, reduce, 2 * cols);
}
