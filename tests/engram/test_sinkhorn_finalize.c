/* SPDX-License-Identifier: MIT
 * tgl_engram_sinkhorn_finalize, on every device of the tests. Written from the specification. */
#include <math.h>

#include "calls.h"
#include "replay.h"
#include "tegula/engram.h"

TESTS_OF_TABLE("engram_sinkhorn_finalize")

TEST(worked_example) /* x is (3, 4), (12, 5), 0: norms 5, 13, 0 */
{
    const float matrix[] = { 3, 2, 24, 5, 0, 0 }, rows[] = { 1, 0.5f, 7 }, cols[] = { 1, 2 };
    const float fifth = 10.0f / 5, part = 10.0f / 13;
    const float want[] = { 3 * fifth, 4 * fifth, 12 * part, 5 * part, 0, 0 };
    FOR_BACKENDS(b) {
        tensor m, r, c, out;
        place(b, &m, TGL_F32, 2, SHAPE(3, 2), matrix);
        place(b, &r, TGL_F32, 1, SHAPE(3), rows);
        place(b, &c, TGL_F32, 1, SHAPE(2), cols);
        place(b, &out, TGL_F32, 2, SHAPE(3, 2), NULL);
        CHECK_OK(tgl_engram_sinkhorn_finalize(&m.t, &r.t, &c.t, &out.t, 1e-20f, 10, b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &m), discard(b, &r), discard(b, &c);
    }
}

/* Scales that are infinite or NaN stay in their row or column; columns past the end, which a GPU's vectors have, add
 * nothing. */
TEST(special_scales)
{
    const float inf = INFINITY, matrix[] = { 1, 0, 3, /**/ 1, 2, 2, /**/ 1, 2, 2 }, cols[] = { 1, 1, 1 };
    const float rows[] = { 0, 1, inf };
    float want[9] = { 0, 0, 0, 1, 2, 2 };
    const uint32_t nan = 0x7fffffff;
    for (int i = 6; i < 9; i++) memcpy(&want[i], &nan, sizeof nan); /* inf * (3 / inf) */
    FOR_BACKENDS(b) {
        tensor m, r, c, out;
        place(b, &m, TGL_F32, 2, SHAPE(3, 3), matrix);
        place(b, &r, TGL_F32, 1, SHAPE(3), rows);
        place(b, &c, TGL_F32, 1, SHAPE(3), cols);
        place(b, &out, TGL_F32, 2, SHAPE(3, 3), NULL);
        CHECK_OK(tgl_engram_sinkhorn_finalize(&m.t, &r.t, &c.t, &out.t, 1e-20f, 3, b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &m), discard(b, &r), discard(b, &c);
    }
}

TEST(graph)
{
    check_replayed("engram_sinkhorn_finalize", "num_rows=70 dim=256", 1);
    check_replayed("engram_sinkhorn_finalize", "num_rows=7 dim=8200", 1);
}

TEST(num_sms)
{
    check_num_sms("engram_sinkhorn_finalize",
                  CASE_LINES("num_rows=100 dim=256", "num_rows=40 dim=1500", "num_rows=9 dim=8200"));
}

TEST(empty) /* no data and no driver */
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 2; i++) {
            const int64_t n = i ? 0 : 5, dim = i ? 7 : 0;
            tensor m, r, c, out;
            make(&m, NULL, devices[d], TGL_F32, 2, SHAPE(n, dim));
            make(&r, memory, devices[d], TGL_F32, 1, SHAPE(n));
            make(&c, memory, devices[d], TGL_F32, 1, SHAPE(dim));
            make(&out, NULL, devices[d], TGL_F32, 2, SHAPE(n, dim));
            CHECK_OK(tgl_engram_sinkhorn_finalize(&m.t, &r.t, &c.t, &out.t, 0, 1, NULL));
        }
}

OP(engram_sinkhorn_finalize, t[0], t[1], t[2], t[3], 1e-20f, 1)
#define GOOD_CALL CALL_OF(engram_sinkhorn_finalize, "num_rows=3 dim=5")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype.bits = 64, "matrix: dtype is f64, want f32");
    CHECK_ERROR(x[1].shape[0] = 4, "row_scale: shape is [4], want [3]");
    CHECK_ERROR(x[2].shape[0] = 3, "col_scale: shape is [3], want [5]");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
