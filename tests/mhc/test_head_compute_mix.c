/* SPDX-License-Identifier: MIT
 * tgl_mhc_head_compute_mix_fwd and _bwd, on every device of the tests. */
#include "mhc_support.h"

TESTS_OF_TABLES("mhc_head_compute_mix")

TEST(worked_example)
{
    const float mixes[] = { -0.2255335f, 0.05883483f }, scale[] = { 1.5f }, base[] = { 0.1f, -0.2f };
    const float grad[] = { 1, -2 };
    FOR_BACKENDS(b) {
        tensor m, s, of, d, pre, out[3];
        float seen[2];
        place(b, &m, TGL_F32, 2, SHAPE(1, 2), mixes);
        place(b, &s, TGL_F32, 1, SHAPE(1), scale);
        place(b, &of, TGL_F32, 1, SHAPE(2), base);
        place(b, &d, TGL_F32, 2, SHAPE(1, 2), grad);
        place(b, &pre, TGL_F32, 2, SHAPE(1, 2), NULL);
        place(b, &out[0], TGL_F32, 2, SHAPE(1, 2), NULL);
        place(b, &out[1], TGL_F32, 1, SHAPE(1), NULL);
        place(b, &out[2], TGL_F32, 1, SHAPE(2), NULL);
        const tgl_mhc_params params = { .has_pre_eps = true, .pre_eps = 0.01f };
        const size_t bytes = tgl_mhc_head_compute_mix_bwd_workspace_size(&m.t);
        void *workspace = NULL;
        if (!backend_is_cpu(b)) CHECK_OK(tgl_workspace_get(b->device.device_id, bytes, b->stream, &workspace));
        CHECK_OK(tgl_mhc_head_compute_mix_fwd(&m.t, &s.t, &of.t, &pre.t, &params, b->stream));
        CHECK_OK(tgl_mhc_head_compute_mix_bwd(&m.t, &s.t, &of.t, &d.t, &out[0].t, &out[1].t, &out[2].t, workspace,
                                              bytes, b->stream));
        fetch(b, &pre, seen);
        check_near(b->name, seen, (float[]){ 0.4507053f, 0.4820921f }, 2, 1e-7, 0);
        fetch(b, &out[0], seen);
        check_near(b->name, seen, (float[]){ 0.3697262f, -0.7476634f }, 2, 1e-7, 0);
        fetch(b, &out[1], seen);
        check_near(b->name, seen, (float[]){ -0.0849162f }, 1, 1e-7, 0);
        fetch(b, &out[2], seen);
        check_near(b->name, seen, (float[]){ 0.2464841f, -0.4984423f }, 2, 1e-7, 0);
        discard(b, &m), discard(b, &s), discard(b, &of), discard(b, &d);
    }
}

TEST(graph)
{
    check_replayed("mhc_head_compute_mix_fwd", "num_tokens=70", 1);
    check_replayed("mhc_head_compute_mix_bwd", "num_tokens=200", 1);
}

extern tgl_signature tgl_mhc_head_compute_mix_fwd_signature, tgl_mhc_head_compute_mix_bwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_mhc_head_compute_mix_fwd(t[0], t[1], t[2], t[3], params, NULL);
}
static tgl_status invoke_bwd(DLTensor *const *t, const void *params)
{
    static _Alignas(256) char workspace[4096];
    return tgl_mhc_head_compute_mix_bwd(t[0], t[1], t[2], t[3], t[4], t[5], t[6], workspace, sizeof workspace, NULL);
}
#define GOOD_CALL &tgl_mhc_head_compute_mix_fwd_signature, "num_tokens=3 num_streams=4", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(&tgl_mhc_head_compute_mix_bwd_signature, "num_tokens=3 num_streams=4", invoke_bwd);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[1].shape[0] = 2, "scale: shape is [2], want [1]");
}

TEST(empty) { check_empty(&tgl_mhc_head_compute_mix_fwd_signature, invoke, "num_tokens=0 num_streams=4"); }
TEST(no_driver)
{
    check_no_driver(GOOD_CALL);
    check_no_driver(&tgl_mhc_head_compute_mix_bwd_signature, "num_tokens=3 num_streams=4", invoke_bwd);
}
