/* SPDX-License-Identifier: MIT */
#include "cases/mhc/common/projection_cases.h"

enum { X = PROJECTION_X, FN = PROJECTION_FN, WEIGHT = PROJECTION_WEIGHT, OUT_MUL, SQRSUM, MAX_SPLITS = 16 };

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "num_streams"), columns = n * case_int(c, "hidden");
    const int64_t given = case_int(c, "num_rows"), rows = given ? given : n * (n + 2),
                  splits = case_int(c, "num_splits");
    projection_add(c, rows);
    case_tensor *out_mul = case_add(c, OUT_MUL, "out_mul_parts", CASE_OUT, TGL_F32, 3, (int64_t[]){ splits, t, rows });
    if (!projection_is_exact(c))
        out_mul->compare = (case_compare){ CASE_CLOSE, .rtol = 1e-5, .atol = 2e-7 * (double)columns };
    case_add(c, SQRSUM, "sqrsum_parts", CASE_OUT, TGL_F32, 2, (int64_t[]){ splits, t });
    TGL_TRY(case_check_word(c, "sums", "normal exact"));
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_norm_fn_parts_fwd(a->arg[X], a->arg[FN], a->arg[WEIGHT], a->arg[OUT_MUL], a->arg[SQRSUM],
                                     a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a)
{
    return tgl_mhc_norm_fn_parts_fwd_workspace_size(a->arg[X], a->arg[FN]);
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_tensor *t = ((case_problem *)context)->tensors;
    const int64_t splits = t[SQRSUM].shape[0];
    for (int64_t token = begin; token < end; token++) {
        float squares[MAX_SPLITS];
        double products[MAX_SPLITS];
        projection_squares_in_parts(&t[X], token, splits, squares);
        for (int64_t s = 0; s < splits; s++) mhc_put(&t[SQRSUM], (int64_t[]){ s, token }, (double)squares[s]);
        for (int64_t j = 0; j < t[FN].shape[0]; j++) {
            projection_product_in_parts(&t[X], &t[FN], &t[WEIGHT], token, j, splits, products);
            for (int64_t s = 0; s < splits; s++) mhc_put(&t[OUT_MUL], (int64_t[]){ s, token, j }, products[s]);
        }
    }
}

static void oracle(case_problem *c) { projection_oracle(c, WEIGHT + 1, oracle_tokens); }

// clang-format off: lines of cases
const case_op norm_fn_parts_fwd_cases = {       /* num_rows=0: n (n + 2) */
    "mhc_norm_fn_parts_fwd", ROWS_CASE " num_rows=0 weight=0 num_splits=16 sums=normal", setup, run, oracle,
    case_all_bytes, workspace,
    .uses_all_sms = true,
    .has_projection = true,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=3 num_streams=1,2,3,4,5,6,7,8 hidden=100 sums=exact num_splits=1,4,16",
        "num_tokens=3 num_streams=3,6 hidden=1024 sums=exact num_splits=1,2,4,8,16",
        "num_tokens=0,1,31,32,33,70 hidden=128 num_rows=4 sums=exact,normal num_splits=2,8",
        "num_tokens=1,9,40 hidden=1280 num_rows=9 weight=0,1 sums=exact num_splits=1,2,4,8,16",
        "num_tokens=2 hidden=1,8,2560,7168 sums=exact num_splits=1,2,4,8,16",
        "num_tokens=3 num_streams=3 hidden=128,72,65 layout=gaps,outside,same gap=8 offset=0,1 weight=1 num_splits=2"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=300 hidden=1280,2560,4096,5120,6144,7168 num_splits=1,2,4,8,16 sums=exact"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=1,128,4096,8192 hidden=7168", "num_tokens=4096 hidden=7168 num_splits=1"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=64",
                                      "num_tokens=64 hidden=7168,6144,5120,4096,2560,1280,128,65 weight=0,1",
                                      "num_tokens=64 hidden=128,1280 num_rows=1,4,9 weight=0,1"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden} num_rows={mhc_rows}"),
};
// clang-format on
