/* SPDX-License-Identifier: MIT
 * tgl_mhc_post_fwd and _bwd, on every device of the tests. */
#include "mhc_support.h"

TESTS_OF_TABLES("mhc_post")

static const float X[] = { 1, -2, 0.5f, 3, /**/ 2, 1, -1, 0.25f }, Y[] = { 0.5f, -1, 2, 0.25f };
static const float POST[] = { 0.9034811f, 1.073411f }, COMB[] = { 0.5762365f, 0.4230120f, 0.4237625f, 0.5769870f };

static void forward(const backend *b, const float *post, const float *comb, bool in_place, const float *want)
{
    tensor x, residual, p, c, out;
    put(b, &x, 2, SHAPE(1, 4), Y);
    put(b, &residual, 3, SHAPE(1, 2, 4), X);
    place(b, &p, TGL_F32, 2, SHAPE(1, 2), post);
    place(b, &c, TGL_F32, 3, SHAPE(1, 2, 2), comb); /* NULL: not given */
    place(b, &out, TGL_BF16, 3, SHAPE(1, 2, 4), NULL);
    CHECK_OK(tgl_mhc_post_fwd(&x.t, &residual.t, &p.t, comb ? &c.t : NULL, in_place ? &residual.t : &out.t, b->stream));
    check_bf16(b, in_place ? &residual : &out, "out", want, 8);
    discard(b, &x), discard(b, in_place ? &out : &residual), discard(b, &p), discard(b, &c);
}

TEST(worked_example)
{
    const float want[] = { 1.875f, -1.6328125f, 1.671875f, 2.0625f, /**/ 2.109375f, -1.34375f, 1.78125f, 1.6796875f };
    FOR_BACKENDS(b) forward(b, POST, COMB, false, want), forward(b, POST, COMB, true, want);
}

TEST(identity) /* and a permutation: comb is [input, output] */
{
    const float none[] = { 0, 0 }, same[] = { 1, 0, 0, 1 }, up[] = { 0, 0, 1, 0 };
    const float first[] = { 2, 1, -1, 0.25f, /**/ 0, 0, 0, 0 };
    FOR_BACKENDS(b) forward(b, none, same, false, X), forward(b, none, up, false, first);
}

TEST(without_comb) /* the worked example; with its identity the same, but for the sign of zero and infinities */
{
    const float want[] = { 1.453125f,     -2.90625f,      2.3125f,    3.21875f,
                           /**/ 2.53125f, -0.0732421875f, 1.1484375f, 0.51953125f };
    const float same[] = { 1, 0, 0, 1 };
    FOR_BACKENDS(b) {
        forward(b, POST, NULL, false, want), forward(b, POST, NULL, true, want);
        forward(b, POST, same, false, want);
    }
}

TEST(worked_example_bwd)
{
    const float grad[] = { 1, 0, -1, 2, /**/ 0.5f, 1, 0, -1 };
    const float of_x[] = { 1.4375f, 1.0703125f, -0.90234375f, 0.734375f };
    const float of_residual[] = { 0.7890625f,      0.423828125f, -0.578125f,    0.73046875f,
                                  /**/ 0.7109375f, 0.578125f,    -0.423828125f, 0.271484375f };
    FOR_BACKENDS(b) {
        tensor d, x, residual, p, c, out[4];
        put(b, &d, 3, SHAPE(1, 2, 4), grad);
        put(b, &x, 2, SHAPE(1, 4), Y);
        put(b, &residual, 3, SHAPE(1, 2, 4), X);
        place(b, &p, TGL_F32, 2, SHAPE(1, 2), POST);
        place(b, &c, TGL_F32, 3, SHAPE(1, 2, 2), COMB);
        place(b, &out[0], TGL_BF16, 2, SHAPE(1, 4), NULL);
        place(b, &out[1], TGL_BF16, 3, SHAPE(1, 2, 4), NULL);
        place(b, &out[2], TGL_F32, 2, SHAPE(1, 2), NULL);
        place(b, &out[3], TGL_F32, 3, SHAPE(1, 2, 2), NULL);
        CHECK_OK(tgl_mhc_post_bwd(&d.t, &x.t, &residual.t, &p.t, &c.t, &out[0].t, &out[1].t, &out[2].t, &out[3].t,
                                  b->stream));
        check_bf16(b, &out[0], "grad_x", of_x, 4);
        place(b, &out[0], TGL_BF16, 2, SHAPE(1, 4), NULL);
        check_bf16(b, &out[1], "grad_residual", of_residual, 8);
        check_f32(b, &out[2], "grad_post_mix", (float[]){ -1, -1 }, 2);
        place(b, &out[2], TGL_F32, 2, SHAPE(1, 2), NULL);
        CHECK_OK(tgl_mhc_post_bwd(&d.t, &x.t, NULL, &p.t, NULL, &out[0].t, NULL, &out[2].t, NULL, b->stream));
        check_bf16(b, &out[0], "grad_x without comb", of_x, 4);
        check_f32(b, &out[2], "grad_post_mix without comb", (float[]){ -1, -1 }, 2);
        check_f32(b, &out[3], "grad_comb_mix", (float[]){ 6.5f, -4.5f, 3.5f, 1.75f }, 4);
        discard(b, &d), discard(b, &x), discard(b, &residual), discard(b, &p), discard(b, &c);
    }
}

TEST(graph)
{
    check_replayed("mhc_post_fwd", "num_tokens=3 hidden=264", 1);
    check_replayed("mhc_post_bwd", "num_tokens=3 hidden=264", 1);
}

extern tgl_signature tgl_mhc_post_fwd_signature, tgl_mhc_post_bwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_mhc_post_fwd(t[0], t[1], t[2], t[3], t[4], NULL);
}
static tgl_status invoke_bwd(DLTensor *const *t, const void *params)
{
    return tgl_mhc_post_bwd(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], NULL);
}
#define GOOD_CALL &tgl_mhc_post_fwd_signature, "num_tokens=3 hidden=5 num_streams=2", invoke
#define GOOD_CALL_BWD &tgl_mhc_post_bwd_signature, "num_tokens=3 hidden=5 num_streams=2", invoke_bwd

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(GOOD_CALL_BWD);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "x: dtype is f16, want bf16");
    CHECK_ERROR(x[3].shape[2] = 3; x[3].strides = NULL, "comb_mix: shape is [3, 2, 3], want [3, 2, 2]");
}

TEST(empty)
{
    check_empty(&tgl_mhc_post_fwd_signature, invoke, "num_tokens=0 hidden=8 num_streams=4");
    check_empty(&tgl_mhc_post_bwd_signature, invoke_bwd, "num_tokens=0 hidden=8 num_streams=4");
}
TEST(no_driver) { check_no_driver(GOOD_CALL), check_no_driver(GOOD_CALL_BWD); }
