/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "cases/mhc/common/rows_cases.h"

enum { X, FN, WEIGHT, MIXES, OUT_MUL, SQRSUM };

/* x of 1 and 3 with either sign, fn in steps of 1/512: all sums are exact. */
static void fill_exact(const case_problem *c, case_tensor *t, uint64_t seed)
{
    for (int64_t i = 0; i < t->slots; i++) {
        const double steps = (double)case_random_below(seed, i, 23) - 11;
        const double sign = case_random_below(seed + 1, i, 2) ? 1 : -1;
        const double odd = (double)(2 * case_random_below(seed, i, 2) + 1) * sign;
        case_encode(t->dtype, t->dtype == TGL_BF16 ? odd : steps / 512, t->storage + i * t->element_bytes);
    }
}

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "num_streams"), columns = n * case_int(c, "hidden");
    const int64_t given = case_int(c, "num_rows"), rows = given ? given : n * (n + 2);
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = (float)mhc_number(c, "eps") };
    memcpy(c->scalars, &params, sizeof params);
    const bool is_filled = case_is(c, "sums", "exact"), is_exact = is_filled && !case_int(c, "weight");
    const bool is_wanted = case_int(c, "saved");
    rows_add(c, X, "residual", CASE_IN, true);
    case_tensor *fn = case_add(c, FN, "fn", CASE_IN, TGL_F32, 2, (int64_t[]){ rows, columns });
    fn->fill = case_fill_normal;
    fn->offset = case_int(c, "offset");
    if (case_int(c, "weight"))
        case_add(c, WEIGHT, "norm_weight", CASE_IN, TGL_F32, 1, &columns)->fill = case_fill_normal;
    case_tensor *mixes = case_add(c, MIXES, "mixes", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, rows });
    if (is_filled) c->tensors[X].fill = fn->fill = fill_exact;
    if (!is_exact) mixes->compare = (case_compare){ CASE_CLOSE, .rtol = 1e-5, .atol = 2e-6 * sqrt((double)columns) };
    if (is_wanted) {
        case_add(c, OUT_MUL, "out_mul", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, rows })->compare = mixes->compare;
        if (!is_exact) c->tensors[OUT_MUL].compare.atol *= sqrt((double)columns) / 10;
        case_add(c, SQRSUM, "sqrsum", CASE_OUT, TGL_F32, 1, &t);
    }
    TGL_TRY(case_check_word(c, "sums", "normal exact"));
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_norm_fn_fwd(a->arg[X], a->arg[FN], a->arg[WEIGHT], a->arg[MIXES], a->arg[OUT_MUL], a->arg[SQRSUM],
                               (const void *)a->problem->scalars, a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a) { return tgl_mhc_norm_fn_fwd_workspace_size(a->arg[X], a->arg[FN]); }

/* Squares in their order: those of column k go to chunk, quad and parity. */
static float squares_of(const case_tensor *x, int64_t token)
{
    const int64_t n = x->shape[1], hidden = x->shape[2], units = (hidden + 63) / 64;
    int64_t segments = 16;
    while (units % segments) segments /= 2;
    const int64_t half = units / segments * 32, chunks = 2 * n * segments;
    float *sums = case_memory(chunks * 8, sizeof *sums), *of_chunk = case_memory(chunks, sizeof *of_chunk);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < hidden; k++) {
            float *sum = &sums[((k / half / 2 * n + i) * 2 + k / half % 2) * 8 + k % 32 / 8 * 2 + k % 2];
            *sum = fmaf(rows_at(x, token, i, k), rows_at(x, token, i, k), *sum);
        }
    for (int64_t c = 0; c < chunks; c++) of_chunk[c] = mhc_sum_as_tree(sums + 8 * c, 8, 1);
    const float sum = mhc_sum_as_tree(of_chunk, chunks, 1);
    free(sums), free(of_chunk);
    return sum;
}

static double tf32(double x)        /* to nearest, ties away from zero, of a float */
{
    int exponent;
    if (x == 0 || !isfinite(x)) return x;
    frexp(x, &exponent);
    const double step = ldexp(1, exponent - 11);
    return copysign(floor(fabs(x) / step + 0.5) * step, x);
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    case_tensor *t = c->tensors;
    const tgl_mhc_params *params = (const void *)c->scalars;
    const int64_t n = t[X].shape[1], hidden = t[X].shape[2];
    for (int64_t token = begin; token < end; token++) {
        const float squares = squares_of(&t[X], token), mean = squares / (float)(n * hidden);
        if (!(mean > 1e-3f)) __atomic_store_n(&c->is_undecided, true, __ATOMIC_RELAXED);
        const double r = (double)(float)(1 / sqrtl((long double)(mean + params->rms_eps)));
        if (t[SQRSUM].name) mhc_put(&t[SQRSUM], &token, squares);
        for (int64_t j = 0; j < t[FN].shape[0]; j++) {
            double sum = 0;
            for (int64_t k = 0; k < n * hidden; k++) {
                float fn = mhc_at(&t[FN], (int64_t[]){ j, k });
                if (t[WEIGHT].name) fn = fn * mhc_at(&t[WEIGHT], &k);
                sum += (double)rows_at(&t[X], token, k / hidden, k % hidden) * tf32((double)fn);
            }
            if (t[OUT_MUL].name) mhc_put(&t[OUT_MUL], (int64_t[]){ token, j }, sum);
            mhc_put(&t[MIXES], (int64_t[]){ token, j }, (double)(float)sum * r);
        }
    }
}

static void oracle(case_problem *c)
{
    c->is_undecided = rows_is_wild(&c->tensors[X], 50) || rows_is_wild(&c->tensors[FN], 50) ||
                      rows_is_wild(&c->tensors[WEIGHT], 50);
    case_parallel(c->tensors[X].shape[0], 500 * c->tensors[FN].shape[0] * case_int(c, "hidden"), oracle_tokens, c);
}

const case_op norm_fn_fwd_cases = {     /* num_rows=0: n (n + 2) */
    "mhc_norm_fn_fwd", ROWS_CASE " num_rows=0 weight=0 eps=1e-6 saved=1 sums=normal", setup, run, oracle,
    case_all_bytes, workspace,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=3 num_streams=1,2,3,4,5,6,7,8 hidden=64,100 sums=exact eps=0",
        "num_tokens=0,1,63,64,65,130 hidden=128 num_rows=1,4,24 sums=exact,normal",
        "num_tokens=2 hidden=1,8,256,512,1024,2048,4160 sums=exact", "num_tokens=2 hidden=320,2048 weight=0,1",
        "num_tokens=3 num_streams=3 hidden=128,72,65 layout=gaps,outside,same gap=8 offset=0,1 weight=1 saved=0,1"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=300 hidden=1280,2560,4096,5120,6144,7168 weight=0,1 sums=normal,exact"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=1,128,4096,8192 hidden=7168", "num_tokens=4096 hidden=5120,4096,2560"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=64",
                                      "num_tokens=64 hidden=7168,2560,1280,128,65 weight=0,1",
                                      "num_tokens=64 hidden=128 num_rows=1,4"),
};
