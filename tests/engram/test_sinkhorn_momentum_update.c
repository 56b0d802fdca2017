/* SPDX-License-Identifier: MIT
 * tgl_engram_sinkhorn_momentum_update, on every device of the tests. Written from the specification. */
#include <math.h>

#include "calls.h"
#include "replay.h"
#include "tegula/engram.h"

TESTS_OF_TABLE("engram_sinkhorn_momentum_update")

static void check_update(float grad, float momentum, double beta1, bool nesterov, float want_momentum, float want_out)
{
    FOR_BACKENDS(b) {
        tensor g, m, out;
        place(b, &g, TGL_F32, 2, SHAPE(1, 1), &grad);
        place(b, &m, TGL_F32, 2, SHAPE(1, 1), &momentum);
        place(b, &out, TGL_F32, 2, SHAPE(1, 1), NULL);
        CHECK_OK(tgl_engram_sinkhorn_momentum_update(&g.t, &m.t, &out.t, beta1, nesterov, b->stream));
        check_contents(b, &m, &want_momentum, "momentum");
        check_contents(b, &out, &want_out, "out");
        discard(b, &g);
    }
}

TEST(worked_example)
{
    check_update(2, 1, 0.95, true, 1.0499999523f, 1.0974999666f);
    check_update(2, 1, 0.95, false, 1.0499999523f, 1.0499999523f);
    check_update(2, 1, 0, true, 2, 2);
    check_update(2, 1, 1, true, 1, 1);
    check_update(2, 1, 0.5, true, 1.5f, 1.75f);
}

/* 1 - beta1 is subtracted in double: of the f32 0.95 it would be 0.0500000119. The second share is 0.05, whose
 * product with 2^24 is 838860.8 or, subtracted in f32, 838861. */
TEST(shares_of_a_double)
{
    check_update(16777216, 0, 0.95, false, 16777216 * 0.05f, 16777216 * 0.05f);
    CHECK((float)(1 - 0.95) == 0.05f && 1 - 0.95f != 0.05f);
}

/* c1 * momentum is not rounded before the sum: (1 - 2^-13) (1 + 2^-13) = 1 - 2^-26 would be 1, and its sum with
 * c2 * grad = 2^-13 * -2^13 = -1 then 0. */
TEST(one_rounding)
{
    const double beta1 = 1 - 0x1p-13;
    check_update(-0x1p13f, 1 + 0x1p-13f, beta1, false, -0x1p-26f, -0x1p-26f);
}

/* out comes from the momentum before its rounding to bf16. */
TEST(out_has_not_the_rounding_of_momentum)
{
    FOR_BACKENDS(b)
        for (int nesterov = 0; nesterov < 2; nesterov++) {
            const float grad = 0x1p-9f, want = nesterov ? 0x1p-10f + 0.5f * (0.5f + 0x1p-10f) : 0.5f + 0x1p-10f;
            const uint16_t one = 0x3f80, half = 0x3f00;
            tensor g, m, out;
            place(b, &g, TGL_F32, 1, SHAPE(1), &grad);
            place(b, &m, TGL_BF16, 1, SHAPE(1), &one);
            place(b, &out, TGL_F32, 1, SHAPE(1), NULL);
            CHECK_OK(tgl_engram_sinkhorn_momentum_update(&g.t, &m.t, &out.t, 0.5, nesterov, b->stream));
            check_contents(b, &m, &half, "momentum");
            check_contents(b, &out, &want, "out");
            discard(b, &g);
        }
}

TEST(any_rank)
{
    float grad[24], momentum[24], want[24];
    for (int i = 0; i < 24; i++)
        grad[i] = (float)(i - 9), momentum[i] = (float)(3 * i), want[i] = (float)(2 * i) - 4.5f;
    FOR_BACKENDS(b)
        for (int ndim = 1; ndim <= 3; ndim++) {
            const int64_t shapes[][3] = { { 24 }, { 4, 6 }, { 2, 3, 4 } };
            tensor g, m, out;
            place(b, &g, TGL_F32, ndim, shapes[ndim - 1], grad);
            place(b, &m, TGL_F32, ndim, shapes[ndim - 1], momentum);
            place(b, &out, TGL_F32, ndim, shapes[ndim - 1], NULL);
            CHECK_OK(tgl_engram_sinkhorn_momentum_update(&g.t, &m.t, &out.t, 0.5, false, b->stream));
            check_contents(b, &out, want, "out");
            check_contents(b, &m, want, "momentum");
            discard(b, &g);
        }
}

TEST(graph) { check_replayed_times("engram_sinkhorn_momentum_update", "num_rows=37 dim=256 grad_dtype=bf16", 1, 1); }

/* ---- errors ---- */

OP(engram_sinkhorn_momentum_update, t[0], t[1], t[2], 0.95, true)
#define GOOD_CALL CALL_OF(engram_sinkhorn_momentum_update, "dim=5 ...=2")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype.bits = 64, "grad: dtype is f64, want bf16 or f32");
    CHECK_ERROR(x[2].dtype.bits = 64, "out: dtype is f64, want f32");
}

TEST(overlaps) /* out may be grad, of the same dtype; no other two may overlap */
{
    static float data[16];
    tensor grad, momentum, out;
    make(&grad, data, cpu, TGL_F32, 2, SHAPE(2, 2));
    make(&out, data, cpu, TGL_F32, 2, SHAPE(2, 2));
    make(&momentum, data + 4, cpu, TGL_F32, 2, SHAPE(2, 2));
    CHECK_OK(tgl_engram_sinkhorn_momentum_update(&grad.t, &momentum.t, &out.t, 0.95, true, NULL));
    make(&out, data + 4, cpu, TGL_F32, 2, SHAPE(2, 2));
    CHECK_FAILS(tgl_engram_sinkhorn_momentum_update(&grad.t, &momentum.t, &out.t, 0.95, true, NULL), TGL_ERR_ARGUMENT,
                NULL);
    make(&out, data, cpu, TGL_F32, 2, SHAPE(2, 2));
    make(&grad, data, cpu, TGL_BF16, 2, SHAPE(2, 2));
    CHECK_FAILS(tgl_engram_sinkhorn_momentum_update(&grad.t, &momentum.t, &out.t, 0.95, true, NULL), TGL_ERR_ARGUMENT,
                NULL);
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
