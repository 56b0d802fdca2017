/* SPDX-License-Identifier: MIT
 * tgl_mhc_norm_fn_parts_fwd, on every device of the tests: parts by the table of cases; here that they are parts of
 * norm_fn and pre, to the bit. */
#include "example.h"

TESTS_OF_TABLE("mhc_norm_fn_parts_fwd")

enum { MOST = 512 };
typedef struct { float mixes[MOST], out_mul[MOST], sqrsum[MOST]; } results;

/* Any number of parts, finished, gives the bits of norm_fn_fwd: of sums that are rounded, so that another order shows. */
static void check_finished(const backend *b, int64_t tokens, int64_t n, int64_t h, int64_t rows, bool has_weight)
{
    static float parts[16 * MOST], squares[16 * MOST];
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = 1e-5f };
    const tgl_dtype given = has_weight ? TGL_F32 : 0;
    results want;
    num_columns = n * h;
    float *x = case_memory(tokens * num_columns, sizeof *x), *fn = case_memory((rows + 1) * num_columns, sizeof *fn);
    const float *weight = fn + rows * num_columns;
    for (int64_t i = 0; i < tokens * num_columns; i++) x[i] = (float)normal(8, i);
    for (int64_t i = 0; i < (rows + 1) * num_columns; i++) fn[i] = (float)normal(9, i);
    CALL(mhc_norm_fn_fwd, b, &params, BF16(x, tokens, n, h), F32(fn, rows, n * h), IN(given, weight, n * h),
         GET(TGL_F32, want.mixes, tokens, rows), GET(TGL_F32, want.out_mul, tokens, rows),
         GET(TGL_F32, want.sqrsum, tokens));
    for (int splits = 1; splits <= 16; splits *= 2) {
        CALL(mhc_norm_fn_parts_fwd, b, NULL, BF16(x, tokens, n, h), F32(fn, rows, n * h), IN(given, weight, n * h),
             GET(TGL_F32, parts, splits, tokens, rows), GET(TGL_F32, squares, splits, tokens));
        CALL(mhc_norm_fn_finish_fwd, b, &params, F32(parts, splits, tokens, rows), F32(squares, splits, tokens),
             OUT(TGL_F32, want.mixes, tokens, rows), OUT(TGL_F32, want.out_mul, tokens, rows),
             OUT(TGL_F32, want.sqrsum, tokens));
    }
    free(x), free(fn);
}

TEST(finished_is_norm_fn)
{
    FOR_BACKENDS(b) {
        for (int n = 1; n <= 8; n++) check_finished(b, 3, n, 100, n * (n + 2), false);
        check_finished(b, 2, 4, 1280, 9, true);
        check_finished(b, 34, 4, 1280, 9, false);
    }
}

TEST(worked_example) /* of docs/mhc.md, whose four columns are one part */
{
    const float squares[] = { 20.3125f, 0 };
    float parts[16] = { 0 };
    memcpy(parts, OUT_MUL, sizeof OUT_MUL);
    FOR_BACKENDS(b)
        CALL(mhc_norm_fn_parts_fwd, b, NULL, BF16(X, 1, 2, 4), F32(fn_of_example(), 8, 8), ABSENT,
             F32_NEAR(parts, 0, 2, 1, 8), F32_NEAR(squares, 0, 2, 1));
}

TEST(graph) { check_replayed("mhc_norm_fn_parts_fwd", "num_tokens=70 hidden=128", 1); }

#define SIZES_OF_CALL "num_streams=2 hidden=5 num_rows=4 num_splits=2"
#define GOOD_CALL CALL_OF(mhc_norm_fn_parts_fwd, "num_tokens=3 " SIZES_OF_CALL)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].shape[1] = 9; x[1].strides = NULL, "fn: shape is [4, 9], want [1..80, 10]");
    CHECK_ERROR(x[4].shape[0] = 4; x[4].strides = NULL, "sqrsum_parts: shape is [4, 3], want [2, 3]");
    CHECK_ERROR(x[3].shape[0] = x[4].shape[0] = 3;
                x[3].strides = x[4].strides = NULL, "num_splits: is 3, want 1, 2, 4, 8 or 16");
}

TEST(errors_of_workspace)
{
    check_workspace_errors(WORKSPACE_OF(mhc_norm_fn_parts_fwd), "num_tokens=3 " SIZES_OF_CALL);
}
TEST(empty) { check_empty(CALL_OF(mhc_norm_fn_parts_fwd, "num_tokens=0 " SIZES_OF_CALL)); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
