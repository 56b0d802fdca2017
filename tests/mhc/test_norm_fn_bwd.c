/* SPDX-License-Identifier: MIT
 * tgl_mhc_norm_fn_bwd, on every device of the tests. test_mhc_golden.c has it behind the forward. */
#include "example.h"
#include "wrapped_launch.h"

TESTS_OF_TABLE("mhc_norm_fn_bwd")

static const float GRAD[] = { 0.3830134f, 0.06174586f, -0.4953421f, -0.4973054f,
                              0.8521441f, -0.8521441f, -0.8501027f, 0.8501027f };

static void backward(const backend *b, const float *old, bool accumulate, const float *want, const float *of_fn)
{
    float made[64];
    const float sqrsum[] = { 20.3125f };
    CALL(mhc_norm_fn_bwd, b, PARAMS(.accumulate = accumulate), F32(GRAD, 1, 8), BF16(X, 1, 2, 4),
         F32(fn_of_example(), 8, 8), ABSENT, F32(OUT_MUL, 1, 8), F32(sqrsum, 1),
         { .dtype = TGL_BF16, .floats = old, .near = want, .rtol = 0x1p-8, SIZES(1, 2, 4) }, GET(TGL_F32, made, 8, 8),
         ABSENT);
    check_near(b->name, made, of_fn, 8, 1e-7, 0);
}

TEST(worked_example) /* and onto the gradients of post and pre_apply_mix */
{
    const float alone[] = { -0.1121828f, 0.1212697f,   -0.02678691f, -0.05486743f,
                            0.2193561f,  -0.07951758f, -0.1959150f,  -0.09074216f };
    const float before[] = { 1.1796875f, 0.033447265625f, -0.3828125f,    0.73046875f,
                             1.1640625f, 0.123046875f,    -0.1962890625f, 0.271484375f };
    const float after[] = { 1.070312f, 0.1542969f,  -0.4101562f, 0.6757812f,
                            1.382812f, 0.04345703f, -0.3925781f, 0.1806641f };
    const float of_fn[] = { 0.2403564f, -0.4807129f, 0.1201782f,  0.7210693f,
                            0.4807129f, 0.2403564f,  -0.2403564f, 0.06008911f };
    FOR_BACKENDS(b) {
        backward(b, before, false, alone, of_fn);
        backward(b, before, true, after, of_fn);
    }
}

/* Every kernel that can do a call gives the same bits. */
TEST(kernels_agree)
{
    static const char *const lines[] = {
        "num_tokens=70 num_streams=2 hidden=136 num_rows=4,24 weight=0,1 accumulate=0,1 sums=normal",
        "num_tokens=1,33 num_streams=4 hidden=264 sums=normal", "num_tokens=2100 num_streams=1 hidden=16 sums=normal",
        NULL
    };
    const case_op *op = case_find("mhc_norm_fn_bwd");
    if (!&test_choice) SKIP("kernels cannot be chosen");
    FOR_BACKENDS(b) {
        if (backend_is_cpu(b)) continue;
        for (int64_t i = 0; i < case_count(lines); i++) {
            case_params params;
            case_instance *k;
            uint64_t hash[3];
            REQUIRE(CHECK_OK(case_at(op, lines, i, &params)));
            REQUIRE(CHECK_OK(case_open(op, &params, b, &k)));
            for (int kernel = 0; kernel < 3; kernel++) {
                case_report report = { 0 };
                char number[8];
                snprintf(number, sizeof number, "%d", kernel);
                setenv("TEGULA_TEST_KERNEL", number, 1);
                test_choice = (test_choices){ 0 };
                CHECK_OK(case_poison(k, 0));
                CHECK_OK(case_call(k));
                unsetenv("TEGULA_TEST_KERNEL");
                CHECK_OK(case_verify(k, 0, &report, &hash[kernel]));
                CHECK_INT(test_choice.num_fitting, 3);
                CHECK_THAT(report.result == CASE_PASSED, "%s: %s: %s", b->name, k->problem.label, report.text);
                CHECK_THAT(hash[kernel] == hash[0], "%s: %s: kernel %d gives other bits than the first", b->name,
                           k->problem.label, kernel);
            }
            case_close(k);
        }
    }
}

/* A token's gradient does not depend on its batch. */
TEST(batches)
{
    enum { TOKENS = 37, N = 2, H = 136, ROWS = 8 };
    static float d[TOKENS * ROWS], fn[ROWS * N * H], mul[TOKENS * ROWS], squares[TOKENS];
    static uint16_t x[TOKENS * N * H], all[TOKENS * N * H], alone[N * H];
    for (int i = 0; i < TOKENS * ROWS; i++) d[i] = (float)normal(1, i), mul[i] = (float)normal(2, i);
    for (int i = 0; i < ROWS * N * H; i++) fn[i] = (float)normal(3, i);
    for (int i = 0; i < TOKENS * N * H; i++) case_encode(TGL_BF16, normal(4, i), &x[i]);
    for (int i = 0; i < TOKENS; i++) squares[i] = 200 + (float)i;
    FOR_BACKENDS(b)
        for (int t = -1; t < TOKENS; t = t < 0 ? 0 : t + 12) { /* all, then one at a time */
            const int64_t first = t < 0 ? 0 : t, count = t < 0 ? TOKENS : 1;
            CALL(mhc_norm_fn_bwd, b, PARAMS(0), F32(d + first * ROWS, count, ROWS),
                 IN(TGL_BF16, x + first * N * H, count, N, H), F32(fn, ROWS, N * H), ABSENT,
                 F32(mul + first * ROWS, count, ROWS), F32(squares + first, count),
                 GET(TGL_BF16, t < 0 ? all : alone, count, N, H), OUT(TGL_F32, NULL, ROWS, N * H), ABSENT);
            CHECK_THAT(t < 0 || !memcmp(alone, all + t * N * H, sizeof alone), "%s: token %d", b->name, t);
        }
}

/* For runs with weak memory (tests/run): blocks send each other sums. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("mhc_norm_fn_bwd", (const char *const[]){ "num_tokens=520 num_streams=1 hidden=16,9", NULL }, b);
}

TEST(graph) { check_replayed("mhc_norm_fn_bwd", "num_tokens=20 hidden=136", 1); }

#define SAMPLE "num_tokens=3 num_streams=2 hidden=5 num_rows=4"
#define GOOD_CALL CALL_OF(mhc_norm_fn_bwd, SAMPLE)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].dtype = tgl_dtype_to_dlpack(TGL_F16), "residual: dtype is f16, want bf16");
    CHECK_ERROR(x[6].strides[1] = 4,
                "grad_residual: strides are [10, 4, 1], want 1 in the last dimension, and rows that do not overlap");
}

TEST(errors_of_workspace) { check_workspace_errors(WORKSPACE_OF(mhc_norm_fn_bwd), SAMPLE); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
