/* SPDX-License-Identifier: MIT
 * tgl_mhc_pre_apply_mix_fwd and _bwd, on every device of the tests. */
#include "mhc_support.h"

TESTS_OF_TABLES("mhc_pre_apply_mix")

/* doc: pre_apply_mix */
static const float X[] = { 1, -2, 0.5f, 3, /**/ 2, 1, -1, 0.25f }, PRE[] = { 0.39041978f, 0.45507687f };

TEST(worked_example)
{
    const float want[] = { 1.296875f, -0.326171875f, -0.259765625f, 1.28125f };
    /* end */
    FOR_BACKENDS(b) {
        tensor x, mix, out;
        put(b, &x, 3, SHAPE(1, 2, 4), X);
        place(b, &mix, TGL_F32, 2, SHAPE(1, 2), PRE);
        place(b, &out, TGL_BF16, 2, SHAPE(1, 4), NULL);
        CHECK_OK(tgl_mhc_pre_apply_mix_fwd(&x.t, &mix.t, &out.t, b->stream));
        check_bf16(b, &out, "out", want, 4);
        discard(b, &x), discard(b, &mix);
    }
}

static void backward(const backend *b, const float *old, bool accumulate, const float *want)
{
    const float grad[] = { 1, -1, 0.5f, 0 };
    tensor d, x, mix, grad_x, grad_mix;
    put(b, &d, 2, SHAPE(1, 4), grad);
    put(b, &x, 3, SHAPE(1, 2, 4), X);
    place(b, &mix, TGL_F32, 2, SHAPE(1, 2), PRE);
    put(b, &grad_x, 3, SHAPE(1, 2, 4), old);
    place(b, &grad_mix, TGL_F32, 2, SHAPE(1, 2), NULL);
    CHECK_OK(tgl_mhc_pre_apply_mix_bwd(&d.t, &x.t, &mix.t, &grad_x.t, &grad_mix.t, accumulate, b->stream));
    check_bf16(b, &grad_x, "grad_x", want, 8);
    check_f32(b, &grad_mix, "grad_mix", (float[]){ 3.25f, 0.5f }, 2);
    discard(b, &d), discard(b, &x), discard(b, &mix);
}

TEST(worked_example_bwd) /* from nothing, whatever is there; and onto the gradient of post */
{
    const float old[] = { 0.7890625f,      0.423828125f, -0.578125f,    0.73046875f,
                          /**/ 0.7109375f, 0.578125f,    -0.423828125f, 0.271484375f };
    const float alone[] = { 0.390625f, -0.390625f, 0.1953125f, 0, /**/ 0.455078125f, -0.455078125f, 0.2275390625f, 0 };
    const float added[] = { 1.1796875f,      0.033447265625f, -0.3828125f,    0.73046875f,
                            /**/ 1.1640625f, 0.123046875f,    -0.1962890625f, 0.271484375f };
    const float nan[] = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    FOR_BACKENDS(b) {
        backward(b, old, true, added);
        backward(b, old, false, alone);
        backward(b, nan, false, alone);
        backward(b, nan, true, nan);
    }
}

TEST(nan_times_zero)
{
    const float x[] = { 1, NAN, /**/ 2, 3 }, mix[] = { 0, 0.5f }, want[] = { 1, NAN };
    FOR_BACKENDS(b) {
        tensor in, of, out;
        put(b, &in, 3, SHAPE(1, 2, 2), x);
        place(b, &of, TGL_F32, 2, SHAPE(1, 2), mix);
        place(b, &out, TGL_BF16, 2, SHAPE(1, 2), NULL);
        CHECK_OK(tgl_mhc_pre_apply_mix_fwd(&in.t, &of.t, &out.t, b->stream));
        check_bf16(b, &out, "out", want, 2);
        discard(b, &in), discard(b, &of);
    }
}

TEST(graph)
{
    check_replayed("mhc_pre_apply_mix_fwd", "num_tokens=3 hidden=264", 1);
    check_replayed("mhc_pre_apply_mix_bwd", "num_tokens=3 hidden=264", 1);
}

extern tgl_signature tgl_mhc_pre_apply_mix_fwd_signature, tgl_mhc_pre_apply_mix_bwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_mhc_pre_apply_mix_fwd(t[0], t[1], t[2], NULL);
}
static tgl_status invoke_bwd(DLTensor *const *t, const void *params)
{
    return tgl_mhc_pre_apply_mix_bwd(t[0], t[1], t[2], t[3], t[4], false, NULL);
}
#define GOOD_CALL &tgl_mhc_pre_apply_mix_fwd_signature, "num_tokens=3 hidden=5 num_streams=2", invoke
#define GOOD_CALL_BWD &tgl_mhc_pre_apply_mix_bwd_signature, "num_tokens=3 hidden=5 num_streams=2", invoke_bwd

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(GOOD_CALL_BWD);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "x: dtype is f16, want bf16");
    CHECK_ERROR(x[1].shape[1] = 3; x[1].strides = NULL, "mix: shape is [3, 3], want [3, 2]");
}

TEST(empty)
{
    check_empty(&tgl_mhc_pre_apply_mix_fwd_signature, invoke, "num_tokens=0 hidden=8 num_streams=4");
    check_empty(&tgl_mhc_pre_apply_mix_bwd_signature, invoke_bwd, "num_tokens=0 hidden=8 num_streams=4");
}
TEST(no_driver) { check_no_driver(GOOD_CALL), check_no_driver(GOOD_CALL_BWD); }
