/* SPDX-License-Identifier: MIT
 * tgl_mhc_norm_fn_parts_fwd, on every device of the tests: parts by the table of cases; here that they are parts of
 * norm_fn and pre, to the bit. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_norm_fn_parts_fwd")

static void *workspace_of(const backend *b, size_t bytes)
{
    void *zeros = NULL;
    if (!backend_is_cpu(b)) CHECK_OK(tgl_workspace_get(b->device.device_id, bytes, b->stream, &zeros));
    return zeros;
}

enum { MOST = 512 };
typedef struct { float mixes[MOST], out_mul[MOST], sqrsum[MOST]; } results;

/* Of norm_fn_fwd, or from parts. */
static results run(const backend *b, const DLTensor *residual, const DLTensor *fn, const DLTensor *weight,
                   int64_t splits)
{
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = 1e-5f };
    const int64_t tokens = residual->shape[0], rows = fn->shape[0];
    const size_t bytes = tgl_mhc_norm_fn_parts_fwd_workspace_size(residual, fn);
    void *workspace = workspace_of(b, bytes);
    tensor mixes, out_mul, sqrsum, parts, squares;
    results made;
    memset(&made, 0, sizeof made);
    place(b, &mixes, TGL_F32, 2, SHAPE(tokens, rows), NULL);
    place(b, &out_mul, TGL_F32, 2, SHAPE(tokens, rows), NULL);
    place(b, &sqrsum, TGL_F32, 1, SHAPE(tokens), NULL);
    if (splits) {
        place(b, &parts, TGL_F32, 3, SHAPE(splits, tokens, rows), NULL);
        place(b, &squares, TGL_F32, 2, SHAPE(splits, tokens), NULL);
        CHECK_OK(tgl_mhc_norm_fn_parts_fwd(residual, fn, weight, &parts.t, &squares.t, workspace, bytes, b->stream));
        CHECK_OK(tgl_mhc_norm_fn_finish_fwd(&parts.t, &squares.t, &mixes.t, &out_mul.t, &sqrsum.t, fn->shape[1],
                                            &params, b->stream));
    } else
        CHECK_OK(tgl_mhc_norm_fn_fwd(residual, fn, weight, &mixes.t, &out_mul.t, &sqrsum.t, &params, workspace, bytes,
                                     b->stream));
    fetch(b, &mixes, made.mixes), fetch(b, &out_mul, made.out_mul), fetch(b, &sqrsum, made.sqrsum);
    if (splits) discard(b, &parts), discard(b, &squares);
    return made;
}

/* Any number of parts, finished, gives the bits of norm_fn_fwd: of sums that are rounded, so that another order shows. */
static void check_finished(const backend *b, int64_t tokens, int64_t n, int64_t h, int64_t rows, bool has_weight)
{
    const int64_t columns = n * h;
    uint16_t *x = calloc((size_t)(tokens * columns), sizeof *x);
    float *fn = calloc((size_t)((rows + 1) * columns), sizeof *fn);
    REQUIRE(x && fn);
    for (int64_t i = 0; i < tokens * columns; i++) case_encode(TGL_BF16, normal(8, i), &x[i]);
    for (int64_t i = 0; i < (rows + 1) * columns; i++) fn[i] = (float)normal(9, i);
    tensor residual, f, weight;
    place(b, &residual, TGL_BF16, 3, SHAPE(tokens, n, h), x);
    place(b, &f, TGL_F32, 2, SHAPE(rows, columns), fn);
    place(b, &weight, TGL_F32, 1, SHAPE(columns), fn + rows * columns);
    const results want = run(b, &residual.t, &f.t, has_weight ? &weight.t : NULL, 0);
    for (int splits = 1; splits <= 16; splits *= 2) {
        const results seen = run(b, &residual.t, &f.t, has_weight ? &weight.t : NULL, splits);
        CHECK_THAT(!memcmp(&seen, &want, sizeof seen), "%s: %d tokens, n %d, h %d, %d splits", b->name, (int)tokens,
                   (int)n, (int)h, splits);
    }
    discard(b, &residual), discard(b, &f), discard(b, &weight);
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
    const float x[] = { 1, -2, 0.5f, 3, /**/ 2, 1, -1, 0.25f };
    const float want[] = { -0.359375f, 0.09375f, -0.109375f, 0.234375f, 0.90625f, -0.9375f, 0.171875f, -0.359375f };
    float fn[64], seen[16];
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < 8; k++) fn[8 * j + k] = (float)((3 * j + 5 * k) % 7 - 3) / 16;
    FOR_BACKENDS(b) {
        tensor residual, f, parts, squares;
        put(b, &residual, 3, SHAPE(1, 2, 4), x);
        place(b, &f, TGL_F32, 2, SHAPE(8, 8), fn);
        place(b, &parts, TGL_F32, 3, SHAPE(2, 1, 8), NULL);
        place(b, &squares, TGL_F32, 2, SHAPE(2, 1), NULL);
        const size_t bytes = tgl_mhc_norm_fn_parts_fwd_workspace_size(&residual.t, &f.t);
        CHECK_OK(tgl_mhc_norm_fn_parts_fwd(&residual.t, &f.t, NULL, &parts.t, &squares.t, workspace_of(b, bytes), bytes,
                                           b->stream));
        fetch(b, &parts, seen);
        for (int j = 0; j < 8; j++) CHECK(seen[j] == want[j] && seen[8 + j] == 0);
        fetch(b, &squares, seen);
        CHECK(seen[0] == 20.3125f && seen[1] == 0);
        discard(b, &residual), discard(b, &f);
    }
}

TEST(graph) { check_replayed("mhc_norm_fn_parts_fwd", "num_tokens=70 hidden=128", 1); }

extern tgl_signature tgl_mhc_norm_fn_parts_fwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    static _Alignas(256) char workspace[8192];
    return tgl_mhc_norm_fn_parts_fwd(t[0], t[1], t[2], t[3], t[4], workspace, sizeof workspace, NULL);
}
#define SIZES "num_streams=2 hidden=5 num_rows=4 num_splits=2"
#define GOOD_CALL &tgl_mhc_norm_fn_parts_fwd_signature, "num_tokens=3 " SIZES, invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].shape[1] = 9; x[1].strides = NULL, "fn: shape is [4, 9], want [1..80, 10]");
    CHECK_ERROR(x[4].shape[0] = 4; x[4].strides = NULL, "sqrsum_parts: shape is [4, 3], want [2, 3]");
    CHECK_ERROR(x[3].shape[0] = x[4].shape[0] = 3;
                x[3].strides = x[4].strides = NULL, "num_splits: is 3, want 1, 2, 4, 8 or 16");
}

TEST(empty) { check_empty(&tgl_mhc_norm_fn_parts_fwd_signature, invoke, "num_tokens=0 " SIZES); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
