/* SPDX-License-Identifier: MIT
 * tgl_engram_sinkhorn_step, on every device of the tests. Written from the specification. */
#include <math.h>

#include "errors.h"
#include "moe/support.h"
#include "replay.h"
#include "tegula/engram.h"

TESTS_OF_TABLE("engram_sinkhorn_step")

static tgl_status step(tensor *t, bool is_reduced, float eps, const backend *b)
{
    void *workspace = NULL;
    const size_t bytes = tgl_engram_sinkhorn_step_workspace_size(&t[0].t, is_reduced ? &t[5].t : NULL);
    if (bytes) CHECK_OK(tgl_workspace_get(b->device.device_id, bytes, b->stream, &workspace));
    return tgl_engram_sinkhorn_step(&t[0].t, &t[1].t, &t[2].t, &t[3].t, &t[4].t, is_reduced ? &t[5].t : NULL, eps,
                                    workspace, bytes, b->stream);
}

TEST(worked_example) /* x is (3, 4), (12, 5), 0: norms 5, 13, 0 */
{
    const float matrix[] = { 3, 2, 24, 5, 0, 0 }, cols[] = { 1, 2 };
    const float fifth = 1.0f / 5, part = 1.0f / 13, rows[] = { 1, 0.5f, 0 }, norms[] = { 5, 13, 0 };
    const float want_rows[] = { fifth, 0.5f * part, 0 };
    const float a = 3 * fifth, b_ = 4 * fifth, c_ = 12 * part, d = 5 * part;
    const float want_one[] = { a * a + c_ * c_, b_ * b_ + d * d }; /* one chunk of three rows */
    const float want_two[] = { want_one[0], want_one[1], 0, 0 };   /* chunks of two rows */
    FOR_BACKENDS(b)
        for (int is_reduced = 0; is_reduced < 2; is_reduced++)
            for (int partials = 1; partials <= 2; partials++) {
                tensor t[6];
                place(b, &t[0], TGL_F32, 2, SHAPE(3, 2), matrix);
                place(b, &t[1], TGL_F32, 1, SHAPE(3), rows);
                place(b, &t[2], TGL_F32, 1, SHAPE(2), cols);
                place(b, &t[3], TGL_F32, 1, SHAPE(3), NULL);
                place(b, &t[4], TGL_F32, 2, SHAPE(partials, 2), NULL);
                place(b, &t[5], TGL_F32, 1, SHAPE(2), NULL);
                CHECK_OK(step(t, is_reduced, 1e-20f, b));
                check_contents(b, &t[1], want_rows, "row_scale");
                check_contents(b, &t[3], norms, "row_norm");
                check_contents(b, &t[4], partials == 1 ? want_one : want_two, "col_sumsq_partial");
                if (is_reduced) check_contents(b, &t[5], want_one, "col_sumsq");
                else discard(b, &t[5]);
                discard(b, &t[0]), discard(b, &t[2]);
            }
}

/* A row without values and a scale of 1: its scale becomes 1 / eps, which no other row sees. */
TEST(row_of_zeros)
{
    const float matrix[] = { 0, 0, 0, 1, 2, 2 }, ones[] = { 1, 1, 1 }, norms[] = { 0, 3 };
    const float factor = 1 / (3 + 0x1p-20f), scales[] = { 0x1p20f, factor }, once = factor * factor;
    const float want[] = { once, 4 * once, 4 * once };
    FOR_BACKENDS(b) {
        tensor t[6];
        place(b, &t[0], TGL_F32, 2, SHAPE(2, 3), matrix);
        place(b, &t[1], TGL_F32, 1, SHAPE(2), ones);
        place(b, &t[2], TGL_F32, 1, SHAPE(3), ones);
        place(b, &t[3], TGL_F32, 1, SHAPE(2), NULL);
        place(b, &t[4], TGL_F32, 2, SHAPE(1, 3), NULL);
        place(b, &t[5], TGL_F32, 1, SHAPE(3), NULL);
        CHECK_OK(step(t, true, 0x1p-20f, b));
        check_contents(b, &t[1], scales, "row_scale");
        check_contents(b, &t[3], norms, "row_norm");
        check_contents(b, &t[4], want, "col_sumsq_partial");
        check_contents(b, &t[5], want, "col_sumsq");
        discard(b, &t[0]), discard(b, &t[2]);
    }
}

/* An infinite scale: x is infinite, and so is the norm; columns past the end, which a GPU's vectors have, add nothing,
 * and neither do rows past it, even if eps is 0. */
TEST(infinite_scale)
{
    const float matrix[] = { 1, 2, 2, 1, 2, 2 }, rows[] = { INFINITY, 1 }, ones[] = { 1, 1, 1 };
    const float norms[] = { INFINITY, 3 };
    FOR_BACKENDS(b) {
        tensor t[5];
        float seen[2];
        place(b, &t[0], TGL_F32, 2, SHAPE(2, 3), matrix);
        place(b, &t[1], TGL_F32, 1, SHAPE(2), rows);
        place(b, &t[2], TGL_F32, 1, SHAPE(3), ones);
        place(b, &t[3], TGL_F32, 1, SHAPE(2), NULL);
        place(b, &t[4], TGL_F32, 2, SHAPE(2, 3), NULL);
        CHECK_OK(step(t, false, 0, b));
        check_contents(b, &t[3], norms, "row_norm");
        fetch(b, &t[1], seen);
        CHECK(isnan(seen[0]) && seen[1] == 1.0f / 3);
        float partial[6];
        fetch(b, &t[4], partial);
        for (int j = 0; j < 3; j++) {
            const float normed = matrix[j] * (1.0f / 3);
            CHECK(isnan(partial[j]) && partial[3 + j] == normed * normed);
        }
        discard(b, &t[0]), discard(b, &t[2]);
    }
}

TEST(num_partials)
{
    const int64_t counts[][2] = { { -5, 1 },      { 0, 1 },        { 1, 1 },          { 8, 1 },
                                  { 9, 2 },       { 1001, 126 },   { 4224, 528 },     { 4225, 470 },
                                  { 10001, 527 }, { 100001, 527 }, { INT64_MAX, 528 } };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        CHECK_INT(tgl_engram_sinkhorn_num_partials(counts[i][0]), counts[i][1]);
}

/* Against a sum in double: within (dim / 1024 + 12) * 2^-24, as the header says; half of it for the norm, and a
 * rounding of the root. x itself is exact here. */
TEST(accuracy)
{
    enum { ROWS = 12, DIM = 9001 };
    static float matrix[ROWS * DIM], ones[DIM], norms[ROWS];
    test_random r = test_seed("accuracy");
    for (int i = 0; i < ROWS * DIM; i++) matrix[i] = (float)(int64_t)test_below(&r, 1 << 24) - 0x1p23f;
    for (int j = 0; j < DIM; j++) ones[j] = 1;
    FOR_BACKENDS(b)
        for (int64_t dim = 1; dim <= DIM; dim += dim < 2000 ? 499 : 3501) {
            tensor t[5];
            place(b, &t[0], TGL_F32, 2, SHAPE(ROWS, dim), matrix);
            place(b, &t[1], TGL_F32, 1, SHAPE(ROWS), ones);
            place(b, &t[2], TGL_F32, 1, SHAPE(dim), ones);
            place(b, &t[3], TGL_F32, 1, SHAPE(ROWS), NULL);
            place(b, &t[4], TGL_F32, 2, SHAPE(2, dim), NULL);
            CHECK_OK(step(t, false, 1e-20f, b));
            fetch(b, &t[3], norms);
            for (int i = 0; i < ROWS; i++) {
                double sum = 0;
                for (int64_t j = 0; j < dim; j++) sum += (double)matrix[i * dim + j] * (double)matrix[i * dim + j];
                const double bound = ((double)(dim / 1024 + 13) / 2 + 1) * 0x1p-24 * sqrt(sum);
                CHECK_THAT(fabs((double)norms[i] - sqrt(sum)) <= bound, "%s: dim %d: %.9g, want %.9g", b->name,
                           (int)dim, (double)norms[i], sqrt(sum));
            }
            discard(b, &t[0]), discard(b, &t[1]), discard(b, &t[2]), discard(b, &t[4]);
        }
}

/* For runs with weak memory (tests/run): blocks meet before sums are reduced. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("engram_sinkhorn_step",
                    (const char *const[]){ "num_rows=100 dim=128 reduce=1", "num_rows=40 dim=5000 reduce=1", NULL }, b);
}

TEST(graph)
{
    check_replayed_times("engram_sinkhorn_step", "num_rows=70 dim=256 reduce=1", 1, 1);
    check_replayed_times("engram_sinkhorn_step", "num_rows=70 dim=256", 1, 1);
    check_replayed_times("engram_sinkhorn_step", "num_rows=20 dim=8200 reduce=1", 1, 1);
}

TEST(num_sms)
{
    check_num_sms("engram_sinkhorn_step", CASE_LINES("num_rows=400 dim=256 reduce=0,1", "num_rows=60 dim=1500 reduce=1",
                                                     "num_rows=20 dim=8200 reduce=1"));
}

TEST(one_workspace)
{
    static const case_line cases[] = {
        { "engram_sinkhorn_step", "num_rows=100 dim=256 reduce=1" },
        { "moe_group_count", "num_tokens=300 num_topk=8 num_groups=9000" },
        { "engram_sinkhorn_step", "num_rows=20 dim=5000 reduce=1" },
        { "engram_sinkhorn_step", "num_rows=20 dim=9000 reduce=1" },
    };
    check_shared_workspace(cases, sizeof cases / sizeof *cases);
}

/* ---- errors ---- */

extern tgl_signature tgl_engram_sinkhorn_step_signature;
static tgl_status call(DLTensor *const *t, const void *params, void *workspace, size_t bytes)
{
    return tgl_engram_sinkhorn_step(t[0], t[1], t[2], t[3], t[4], t[5], 1e-20f, workspace, bytes, NULL);
}
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return call(t, params, memory + 2048, MEMORY_BYTES - 2048);
}
static size_t workspace_size(DLTensor *const *t) { return tgl_engram_sinkhorn_step_workspace_size(t[0], t[5]); }
static const workspace_op op = { &tgl_engram_sinkhorn_step_signature, invoke, call, workspace_size };
#define GOOD_CALL &tgl_engram_sinkhorn_step_signature, "num_rows=3 dim=5 num_partials=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].shape[0] = 4, "row_scale: shape is [4], want [3]");
    CHECK_ERROR(x[4].shape[0] = 0, "col_sumsq_partial: shape is [0, 5], want [1..2147483647, 5]");
    CHECK_ERROR(x[5].shape[0] = 4, "col_sumsq: shape is [4], want [5]");
}

TEST(errors_of_workspace) { check_workspace_errors(&op, "num_rows=3 dim=5 num_partials=2"); }

TEST(no_driver) { check_no_driver(GOOD_CALL); }
