/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "cases/mhc/common/projection_cases.h"

enum { GRAD_MIXES, X, FN, WEIGHT, OUT_MUL, SQRSUM, GRAD_X, GRAD_FN, GRAD_WEIGHT };

/* Small whole numbers, with which sums over tokens and rows are exact. */
typedef struct {
    case_tensor *t;
    uint64_t seed;
    char codes[9][4];
} exact_numbers;
static void exact_chunk(void *context, int64_t begin, int64_t end)
{
    const exact_numbers *e = context;
    const size_t bytes = (size_t)e->t->element_bytes;
    for (int64_t i = begin; i < end; i++)
        memcpy(e->t->storage + (size_t)i * bytes, e->codes[case_random_below(e->seed, i, 9)], bytes);
}
static void fill_exact(const case_problem *c, case_tensor *t, uint64_t seed)
{
    exact_numbers e = { .t = t, .seed = seed };
    for (int i = 0; i < 9; i++) case_encode(t->dtype, i - 4, e.codes[i]);
    case_parallel(t->slots, 8, exact_chunk, &e);
}
static void fill_squares(const case_problem *c, case_tensor *t, uint64_t seed) /* of which r is 1/2 */
{
    for (int64_t i = 0; i < t->slots; i++)
        case_encode(t->dtype, 4 * (double)(c->tensors[X].shape[1] * c->tensors[X].shape[2]), t->storage + i * 4);
}

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "num_streams"), columns = n * case_int(c, "hidden");
    const int64_t given = case_int(c, "num_rows"), rows = given ? given : n * (n + 2);
    const tgl_mhc_params params = { .has_rms_eps = true,
                                    .rms_eps = (float)mhc_number(c, "eps"),
                                    .accumulate = case_int(c, "accumulate") != 0 };
    memcpy(c->scalars, &params, sizeof params);
    /* With another eps products of whole numbers nearly cancel, and what is left has few bits. */
    const bool is_exact = case_is(c, "sums", "exact") && params.rms_eps == 0;
    const bool has_weight = case_int(c, "weight");
    const case_fill fill = is_exact ? fill_exact : case_fill_normal;
    case_add(c, GRAD_MIXES, "grad_mixes", CASE_IN, TGL_F32, 2, (int64_t[]){ t, rows })->fill = fill;
    rows_add(c, X, "residual", CASE_IN, true)->fill = fill;
    case_add(c, FN, "fn", CASE_IN, TGL_F32, 2, (int64_t[]){ rows, columns })->fill = fill;
    if (has_weight) case_add(c, WEIGHT, "norm_weight", CASE_IN, TGL_F32, 1, &columns)->fill = fill;
    case_add(c, OUT_MUL, "out_mul", CASE_IN, TGL_F32, 2, (int64_t[]){ t, rows })->fill = fill;
    case_tensor *squares = case_add(c, SQRSUM, "sqrsum", CASE_IN, TGL_F32, 1, &t);
    squares->fill = fill_squares;
    case_tensor *grad_x = rows_add(c, GRAD_X, "grad_residual", CASE_INOUT, true);
    grad_x->fill = fill;
    case_tensor *grad_fn = case_add(c, GRAD_FN, "grad_fn", CASE_OUT, TGL_F32, 2, (int64_t[]){ rows, columns });
    if (has_weight) case_add(c, GRAD_WEIGHT, "grad_norm_weight", CASE_OUT, TGL_F32, 1, &columns);
    grad_x->compare = (case_compare){ CASE_BF16, .ulp = 1, .atol = 1e-5, .mismatch = 0.02 };
    if (!is_exact) {
        grad_fn->compare = (case_compare){ CASE_CLOSE, .rtol = 1e-5, .atol = 4e-6 * sqrt((double)t + 1) };
        if (has_weight)
            c->tensors[GRAD_WEIGHT].compare =
                (case_compare){ CASE_CLOSE, .rtol = 1e-5, .atol = 4e-6 * sqrt((double)(t + 1) * (double)rows) };
    }
    TGL_TRY(case_check_word(c, "sums", "normal exact"));
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_norm_fn_bwd(a->arg[GRAD_MIXES], a->arg[X], a->arg[FN], a->arg[WEIGHT], a->arg[OUT_MUL],
                               a->arg[SQRSUM], a->arg[GRAD_X], a->arg[GRAD_FN], a->arg[GRAD_WEIGHT],
                               (const void *)a->problem->scalars, a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a) { return tgl_mhc_norm_fn_bwd_workspace_size(a->arg[X], a->arg[FN]); }

static double factor(const case_problem *c, int64_t t)
{
    const case_tensor *x = &c->tensors[X];
    const float mean = mhc_at(&c->tensors[SQRSUM], &t) / (float)(x->shape[1] * x->shape[2]);
    const float eps = ((const tgl_mhc_params *)(const void *)c->scalars)->rms_eps;
    return (double)(float)(1 / sqrtl((long double)(mean + eps)));
}
static double dmul(const case_problem *c, int64_t t, int64_t j)
{
    return projection_tf32((double)(float)((double)mhc_at(&c->tensors[GRAD_MIXES], (int64_t[]){ t, j }) *
                                           factor(c, t)));
}
static double fn_of(const case_problem *c, int64_t j, int64_t k)
{
    const float fn = mhc_at(&c->tensors[FN], (int64_t[]){ j, k });
    return projection_tf32((double)(c->tensors[WEIGHT].name ? fn * mhc_at(&c->tensors[WEIGHT], &k) : fn));
}

/* dmul of all rows and tokens, fn of all rows and columns. */
typedef struct {
    case_problem *c;
    double *dmul, *fn;
} tables;

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    const tables *made = context;
    case_problem *c = made->c;
    case_tensor *t = c->tensors;
    const tgl_mhc_params *params = (const void *)c->scalars;
    const int64_t tokens = t[X].shape[0], hidden = t[X].shape[2], rows = t[FN].shape[0], columns = t[FN].shape[1];
    double *sums = case_memory(columns, sizeof *sums);
    for (int64_t token = begin; token < end; token++) {
        double dr = 0;
        const double s = (double)mhc_at(&t[SQRSUM], &token);
        memset(sums, 0, (size_t)columns * sizeof *sums);
        for (int64_t j = 0; j < rows; j++) {
            const double d = made->dmul[j * tokens + token], *fn = made->fn + j * columns;
            dr += (double)mhc_at(&t[GRAD_MIXES], (int64_t[]){ token, j }) *
                  (double)mhc_at(&t[OUT_MUL], (int64_t[]){ token, j });
            for (int64_t k = 0; k < columns; k++) sums[k] += d * fn[k];
        }
        const double ds = -0.5 * dr * factor(c, token) / (s + (double)params->rms_eps * (double)columns);
        for (int64_t k = 0; k < columns; k++) {
            const int64_t at[] = { token, k / hidden, k % hidden };
            const double old = params->accumulate ? (double)mhc_at(&t[GRAD_X], at) : 0;
            mhc_put(&t[GRAD_X], at, (double)(float)(old + sums[k] + 2 * (double)mhc_at(&t[X], at) * ds));
        }
    }
    free(sums);
}

static void oracle_columns(void *context, int64_t begin, int64_t end)
{
    const tables *made = context;
    case_tensor *t = made->c->tensors;
    const int64_t tokens = t[X].shape[0], hidden = t[X].shape[2], rows = t[FN].shape[0];
    double *x = case_memory(tokens, sizeof *x);
    for (int64_t k = begin; k < end; k++) {
        double of_weight = 0;
        for (int64_t token = 0; token < tokens; token++)
            x[token] = (double)rows_at(&t[X], token, k / hidden, k % hidden);
        for (int64_t j = 0; j < rows; j++) {
            double sum = 0;
            for (int64_t token = 0; token < tokens; token++) sum += made->dmul[j * tokens + token] * x[token];
            of_weight += sum * (double)mhc_at(&t[FN], (int64_t[]){ j, k });
            if (t[WEIGHT].name) sum = sum * (double)mhc_at(&t[WEIGHT], &k);
            mhc_put(&t[GRAD_FN], (int64_t[]){ j, k }, sum);
        }
        if (t[GRAD_WEIGHT].name) mhc_put(&t[GRAD_WEIGHT], &k, of_weight);
    }
    free(x);
}

static void oracle(case_problem *c)
{
    static const int all[] = { GRAD_MIXES, X, FN, WEIGHT, OUT_MUL, GRAD_X };
    case_tensor *t = c->tensors;
    const int64_t tokens = t[X].shape[0], rows = t[FN].shape[0], columns = t[FN].shape[1];
    tables made = { c, case_memory(rows * tokens, sizeof(double)), case_memory(rows * columns, sizeof(double)) };
    for (int i = 0; i < 6; i++) c->is_undecided |= rows_is_wild(&t[all[i]], 50);
    for (int64_t token = 0; token < tokens; token++) {
        if (mhc_at(&t[SQRSUM], &token) != 4 * (float)columns) c->is_undecided = true;
        for (int64_t j = 0; j < rows; j++) made.dmul[j * tokens + token] = dmul(c, token, j);
    }
    for (int64_t j = 0; j < rows; j++)
        for (int64_t k = 0; k < columns; k++) made.fn[j * columns + k] = fn_of(c, j, k);
    case_parallel(columns, 8 * rows * tokens, oracle_columns, &made);
    case_parallel(tokens, 8 * rows * columns, oracle_tokens, &made);
    free(made.dmul), free(made.fn);
}

static int64_t bytes(const case_problem *c) /* grad_residual is written, and read to be added to */
{
    const bool is_read = ((const tgl_mhc_params *)(const void *)c->scalars)->accumulate;
    return case_all_bytes(c) + (is_read ? case_tensor_bytes(&c->tensors[GRAD_X]) : 0);
}

// clang-format off: lines of cases
const case_op norm_fn_bwd_cases = {     /* num_rows=0: n (n + 2) */
    "mhc_norm_fn_bwd", ROWS_CASE " num_rows=0 weight=0 eps=0 accumulate=0 sums=exact", setup, run, oracle, bytes,
    workspace,
    .has_projection = true,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=3 num_streams=1,2,3,4,5,6,7,8 hidden=24,9 weight=1 accumulate=1",
        "num_tokens=0,1,15,17,63,64,65,130 hidden=40 num_streams=2",
        "num_tokens=5 hidden=8,128,136,264 num_rows=1,4,24", "num_tokens=3 hidden=65 num_rows=1,4,32 accumulate=1",
        "num_tokens=40 num_streams=2 hidden=130,136 weight=0,1 accumulate=0,1 sums=normal,exact eps=1e-6",
        "num_tokens=3 num_streams=3 hidden=72,65 layout=gaps,outside,same gap=8 offset=0,1 accumulate=1",
        "num_tokens=70 num_streams=2 hidden=264 num_rows=24,32 weight=1 accumulate=0,1",
        "num_tokens=2100 num_streams=1 hidden=16 accumulate=0,1"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=300 hidden=1280 sums=normal,exact accumulate=1 weight=0,1"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=4096,8192 hidden=7168 accumulate=1 weight=0,1",
                                    "num_tokens=4096 hidden=7168", "num_tokens=128 hidden=7168 accumulate=1",
                                    "num_tokens=4096 hidden=6144,5120,4096,2560,1280 accumulate=1",
                                    "num_tokens=8192 hidden=2560 accumulate=1"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=64 accumulate=1",
                                      "num_tokens=64 hidden=7168,65 weight=0,1 accumulate=0,1",
                                      "num_tokens=64 hidden=128 num_rows=1,4,32 accumulate=1"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden} num_rows={mhc_rows} accumulate=0,1"),
};
// clang-format on
