/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "cases/mhc/common/projection_cases.h"

enum {
    X = PROJECTION_X,
    FN = PROJECTION_FN,
    WEIGHT = PROJECTION_WEIGHT,
    SCALE,
    BASE,
    INPUT_WEIGHT,
    PRE,
    POST,
    COMB,
    OUT,
    RAW,
    RSTD,
    OUT_MUL,
    SQRSUM
};

/* Outputs that are wanted, besides out: a pre_mix, b post_mix, c comb_mix, d raw, e rstd, f out_mul, g sqrsum; - none.
 * Outputs that the sizes do not allow are left out. */
static bool is_wanted(const case_problem *c, char which) { return strchr(case_text(c, "wanted"), which) != NULL; }

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "num_streams"), hidden = case_int(c, "hidden");
    const int64_t groups = case_int(c, "groups"), rows = groups == 3 ? n * (n + 2) : groups * n, columns = n * hidden;
    const int norm = case_word(c, "norm", "none plain bf16 f32");
    const tgl_mhc_params params = { .has_rms_eps = true,
                                    .rms_eps = (float)mhc_number(c, "eps"),
                                    .has_pre_eps = true,
                                    .pre_eps = 0.01f,
                                    .has_sinkhorn_eps = true,
                                    .sinkhorn_eps = 1e-4f,
                                    .has_norm_eps = true,
                                    .norm_eps = 1e-3f,
                                    .post_eps = groups == 2 ? 1e-6f : 0,
                                    .norm_scale = norm == 3 ? 0.7f : 0,
                                    .sinkhorn_repeat = case_int(c, "repeat"),
                                    .norm = norm > 0 };
    memcpy(c->scalars, &params, sizeof params);
    projection_add(c, rows);
    case_add(c, SCALE, "scale", CASE_IN, TGL_F32, 1, &groups)->fill = case_fill_normal;
    case_add(c, BASE, "base", CASE_IN, TGL_F32, 1, &rows)->fill = case_fill_normal;
    if (norm > 1)
        case_add(c, INPUT_WEIGHT, "input_weight", CASE_IN, norm == 2 ? TGL_BF16 : TGL_F32, 1, &hidden)->fill =
            case_fill_normal;
    /* Gates of mixes that differ in their last bits. */
    const case_compare close = { CASE_CLOSE, .rtol = 1e-5, .atol = 2e-6 * sqrt((double)columns) };
    const case_compare close_bf16 = { CASE_BF16, .ulp = 1, .atol = 1e-3, .mismatch = 0.02 };
    if (is_wanted(c, 'a')) case_add(c, PRE, "pre_mix", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, n });
    if (is_wanted(c, 'b') && groups > 1) case_add(c, POST, "post_mix", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, n });
    if (is_wanted(c, 'c') && groups > 2) case_add(c, COMB, "comb_mix", CASE_OUT, TGL_F32, 3, (int64_t[]){ t, n, n });
    rows_add(c, OUT, "out", CASE_OUT, false);
    if (is_wanted(c, 'd')) rows_add(c, RAW, "raw", CASE_OUT, false);
    if (is_wanted(c, 'e') && norm) case_add(c, RSTD, "rstd", CASE_OUT, TGL_F32, 1, &t);
    if (is_wanted(c, 'f')) case_add(c, OUT_MUL, "out_mul", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, rows });
    if (is_wanted(c, 'g')) case_add(c, SQRSUM, "sqrsum", CASE_OUT, TGL_F32, 1, &t);
    if (!projection_is_exact(c)) {
        c->tensors[PRE].compare = c->tensors[POST].compare = c->tensors[RSTD].compare = c->tensors[OUT_MUL].compare =
            close;
        c->tensors[OUT].compare = c->tensors[RAW].compare = close_bf16;
        /* One step of the input, of at most 2^-7 of it, is up to two steps of a result that is a little below a power of 2. */
        if (norm) c->tensors[OUT].compare.ulp = 2;
        c->tensors[OUT_MUL].compare.atol *= sqrt((double)columns) / 10;
    }
    c->tensors[COMB].compare = close; /* the oracle divides, in double */
    TGL_TRY(case_check_word(c, "sums", "normal exact"));
    TGL_TRY(case_check_word(c, "norm", "none plain bf16 f32"));
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    DLTensor *const *t = a->arg;
    return tgl_mhc_pre_fwd(t[X], t[FN], t[WEIGHT], t[SCALE], t[BASE], t[INPUT_WEIGHT], t[PRE], t[POST], t[COMB], t[OUT],
                           t[RAW], t[RSTD], t[OUT_MUL], t[SQRSUM], (const void *)a->problem->scalars, a->workspace,
                           a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a) { return tgl_mhc_pre_fwd_workspace_size(a->arg[X], a->arg[FN]); }

static void sinkhorn(double *a, int64_t n, int64_t repeat, double eps)
{
    for (int64_t i = 0; i < n; i++) {
        double top = a[i * n], sum = 0;
        for (int64_t o = 0; o < n; o++) top = fmax(top, a[i * n + o]);
        for (int64_t o = 0; o < n; o++) sum += a[i * n + o] = exp(a[i * n + o] - top);
        for (int64_t o = 0; o < n; o++) a[i * n + o] = a[i * n + o] / sum + eps;
    }
    for (int64_t step = 0; step < 2 * repeat - 1; step++)
        for (int64_t k = 0; k < n; k++) {
            const int64_t first = step % 2 ? k * n : k, stride = step % 2 ? 1 : n; /* columns, rows, columns ... */
            double sum = eps;
            for (int64_t l = 0; l < n; l++) sum += a[first + l * stride];
            for (int64_t l = 0; l < n; l++) a[first + l * stride] /= sum;
        }
}

/* The input, and its RMSNorm; v: room for it. */
static void collapse(case_tensor *t, const tgl_mhc_params *p, int64_t token, const float *pre, float *v)
{
    const int64_t n = t[X].shape[1], hidden = t[X].shape[2];
    int64_t units = 1;
    while (8 * units < hidden) units *= 2;
    float *const squares = case_memory(units, sizeof *squares);
    for (int64_t k = 0; k < hidden; k++) {
        float sum = 0;
        for (int64_t i = 0; i < n; i++) sum = fmaf(pre[i], rows_at(&t[X], token, i, k), sum);
        mhc_put(&t[OUT], (int64_t[]){ token, k }, sum);
        if (t[RAW].name) mhc_put(&t[RAW], (int64_t[]){ token, k }, sum);
        v[k] = mhc_at(&t[OUT], (int64_t[]){ token, k });
        squares[k / 8] = fmaf(v[k], v[k], squares[k / 8]);
    }
    const float mean = mhc_sum_as_tree(squares, units, 1) / (float)hidden;
    const float rstd = (float)(1 / sqrtl((long double)(mean + p->norm_eps)));
    free(squares);
    if (!p->norm) return;
    if (t[RSTD].name) mhc_put(&t[RSTD], &token, rstd);
    for (int64_t k = 0; k < hidden; k++) {
        float w = t[INPUT_WEIGHT].name ? mhc_at(&t[INPUT_WEIGHT], &k) : 1;
        if (p->norm_scale != 0) w = w * p->norm_scale;
        const float normed = v[k] * rstd, weighted = normed * w;
        mhc_put(&t[OUT], (int64_t[]){ token, k }, weighted);
    }
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    case_tensor *t = c->tensors;
    const tgl_mhc_params *p = (const void *)c->scalars;
    const int64_t n = t[X].shape[1], hidden = t[X].shape[2], repeat = p->sinkhorn_repeat ? p->sinkhorn_repeat : 20;
    float *const v = case_memory(hidden, sizeof *v);
    for (int64_t token = begin; token < end; token++) {
        const float squares = projection_squares(&t[X], token), r = projection_factor(squares, n * hidden, p->rms_eps);
        if (!(squares / (float)(n * hidden) > 1e-3f)) __atomic_store_n(&c->is_undecided, true, __ATOMIC_RELAXED);
        if (t[SQRSUM].name) mhc_put(&t[SQRSUM], &token, squares);
        float pre[8];
        double comb[64];
        for (int64_t j = 0; j < t[FN].shape[0]; j++) {
            const float sum = (float)projection_product(&t[X], &t[FN], &t[WEIGHT], token, j);
            const int64_t group = j < n ? 0 : j < 2 * n ? 1 : 2, k = j - group * n;
            const float z = fmaf(sum * r, mhc_at(&t[SCALE], &group), mhc_at(&t[BASE], &j));
            const float post = mhc_sigmoid_of(z) * 2;
            if (t[OUT_MUL].name) mhc_put(&t[OUT_MUL], (int64_t[]){ token, j }, sum);
            if (group == 0) pre[k] = mhc_sigmoid_of(z) + p->pre_eps;
            if (group == 0 && t[PRE].name) mhc_put(&t[PRE], (int64_t[]){ token, k }, pre[k]);
            if (group == 1 && t[POST].name)
                mhc_put(&t[POST], (int64_t[]){ token, k }, p->post_eps != 0 ? post + p->post_eps : post);
            if (group == 2) comb[k] = (double)z;
        }
        if (t[COMB].name) {
            sinkhorn(comb, n, repeat, (double)p->sinkhorn_eps);
            for (int64_t k = 0; k < n * n; k++) mhc_put(&t[COMB], (int64_t[]){ token, k / n, k % n }, comb[k]);
        }
        collapse(t, p, token, pre, v);
    }
    free(v);
}

static void oracle(case_problem *c) { projection_oracle(c, INPUT_WEIGHT + 1, oracle_tokens); }

// clang-format off: lines of cases
const case_op pre_fwd_cases = {
    "mhc_pre_fwd", ROWS_CASE " groups=3 weight=0 norm=none repeat=20 eps=1e-6 wanted=abc sums=normal", setup, run, oracle,
    case_all_bytes, workspace,
    .uses_all_sms = true,
    .has_projection = true,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=3 num_streams=1,2,3,4,5,6,7,8 hidden=64,100 sums=exact wanted=abcdefg norm=f32 repeat=3",
        "num_tokens=0,1,31,32,33,70 hidden=128 groups=1,2,3 norm=none,plain sums=exact wanted=abcdefg repeat=2",
        "num_tokens=2 hidden=1,8,63,256,1280,2560 norm=bf16 sums=exact,normal wanted=abcdefg repeat=1",
        "num_tokens=2 hidden=320,2048 weight=1 norm=plain wanted=-,a,b,c,d,e,f,g",
        "num_tokens=1,9,40 hidden=1280 norm=none,bf16 sums=exact wanted=abcdefg repeat=2",
        "num_tokens=2 hidden=2560,4096,5120,6144,7168 sums=exact repeat=1", "num_tokens=2 hidden=7168 weight=1",
        "num_tokens=40 hidden=1280 groups=1,2 sums=exact",
        "num_tokens=65 hidden=4096 norm=bf16 sums=exact repeat=1",      /* two tiles a warp of pre_fwd_split */
        "num_tokens=3 hidden=1280 groups=1,2 weight=1 layout=gaps,outside gap=8 norm=none,f32",
        "num_tokens=9,100 hidden=1792 norm=bf16 sums=exact repeat=1",   /* 7 pieces: an odd number of inputs is kept */
        "num_tokens=100 hidden=1024 groups=1 norm=plain",               /* results two steps off */
        "num_tokens=33 hidden=2560 norm=bf16 sums=exact repeat=1",      /* tells apart one and two roundings of out */
        "num_tokens=1 hidden=16456 num_streams=3 norm=f32 groups=1 sums=exact",
        "num_tokens=3 num_streams=3 hidden=128,72,65 layout=gaps,outside,same gap=8 offset=0,1 norm=none,f32 wanted=abcd"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=300 hidden=1280,2560,4096,5120,6144,7168 norm=none,bf16 sums=normal,exact"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=1,64,128,1024,4096,8192 hidden=7168,5120,4096,2560",
                                    "num_tokens=1,128,4096 hidden=6144,1280",
                                    "num_tokens=1,128,1024,4096,8192 hidden=7168,5120,4096 norm=bf16"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=64",
                                      "num_tokens=64 hidden=7168,2560,1280,128,65 weight=0,1",
                                      "num_tokens=64 hidden=128,1280 groups=1,2 weight=0,1",
                                      "num_tokens=64 hidden=4096,5120,6144 weight=0,1",
                                      "num_tokens=64 hidden=7168,6144,5120,4096,3584,2560,1792,1280 norm=bf16",
                                      "num_tokens=64 hidden=1280 groups=1,2 norm=plain"),
    /* without a norm as well: so TileKernels' mhc_pre_big_fuse calls it */
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden} groups={mhc_scales} norm=bf16",
                         "num_tokens=4096 num_streams={mhc_streams} hidden={hidden} groups={mhc_scales}"),
};
// clang-format on
