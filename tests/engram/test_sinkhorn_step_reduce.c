/* SPDX-License-Identifier: MIT
 * tgl_engram_sinkhorn_step_reduce, on every device of the tests. Written from the specification. */
#include "calls.h"
#include "replay.h"
#include "tegula/engram.h"

TESTS_OF_TABLE("engram_sinkhorn_step_reduce")

TEST(in_ascending_order) /* in any other order the small ones would not be lost */
{
    const float partial[] = { 0x1p24f, 1, 1, 0x1p24f, 1, 1 }, want[] = { 0x1p24f, 0x1p24f + 2 };
    const float of_columns[][3] = { { 0x1p24f, 1, 1 }, { 1, 1, 0x1p24f } };
    float mixed[6];
    for (int p = 0; p < 3; p++) mixed[2 * p] = of_columns[0][p], mixed[2 * p + 1] = of_columns[1][p];
    CHECK(partial[0] + 1 == partial[0]);
    FOR_BACKENDS(b) {
        tensor in, out;
        place(b, &in, TGL_F32, 2, SHAPE(3, 2), mixed);
        place(b, &out, TGL_F32, 1, SHAPE(2), NULL);
        CHECK_OK(tgl_engram_sinkhorn_step_reduce(&in.t, &out.t, b->stream));
        check_contents(b, &out, want, "col_sumsq");
        discard(b, &in);
    }
}

TEST(graph) { check_replayed("engram_sinkhorn_step_reduce", "num_partials=40 dim=20", 1); }

OP(engram_sinkhorn_step_reduce, t[0], t[1])
#define GOOD_CALL CALL_OF(engram_sinkhorn_step_reduce, "num_partials=3 dim=5")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].shape[0] = 4, "col_sumsq: shape is [4], want [5]");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
