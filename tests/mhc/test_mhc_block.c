/* SPDX-License-Identifier: MIT
 * A block of four streams, forward and backward, op after op, on data from integer formulas. The numbers that it is
 * compared with were computed in double, without roundings between the ops. */
#include "mhc_support.h"

enum { TOKENS = 3, N = 4, HIDDEN = 256, COLUMNS = N * HIDDEN, ROWS = N * (N + 2) };
enum { /* inputs, then what the ops make of them */
       X,
       FN,
       SCALE,
       BASE,
       Y,
       GRAD_NEW,
       GRAD_INPUT,
       GAIN,
       MIXES,
       OUT_MUL,
       SQRSUM,
       PRE,
       POST,
       LOGITS,
       COMB,
       INPUT,
       NEW,
       GRAD_Y,
       GRAD_X,
       GRAD_POST,
       GRAD_COMB,
       GRAD_PRE,
       GRAD_LOGITS,
       GRAD_MIXES,
       GRAD_SCALE,
       GRAD_BASE,
       GRAD_FN,
       NEXT_PRE,
       NEXT_POST,
       NEXT_COMB,
       NEXT_INPUT,
       NEXT_RSTD,
       NEXT_SQRSUM,
       NUM_TENSORS
};

static int mod(int a, int b) { return (a % b + b) % b; }

static double value_of(int which, int i) /* element i of an input */
{
    const int t = i / COLUMNS, stream = i / HIDDEN % N, q = i % HIDDEN, t_of_row = i / HIDDEN;
    switch (which) {
    case X: return (mod(131 * t + 17 * stream + 7 * q, 29) - 14) / 8.0;
    case FN: return (mod(37 * (i / COLUMNS) + 11 * (i % COLUMNS), 23) - 11) / 512.0;
    case SCALE: return (const double[]){ 0.5, -0.25, 1 }[i];
    case BASE: return (mod(5 * i, 7) - 3) / 8.0;
    case Y: return (mod(7 * t_of_row + 3 * q, 13) - 6) / 4.0;
    case GRAD_NEW: return (mod(3 * t + 5 * stream + q, 11) - 5) / 8.0;
    case GRAD_INPUT: return (mod(t_of_row + 5 * q, 9) - 4) / 4.0;
    default: return 1 + (i % 5 - 2) / 8.0;
    }
}

static const struct {
    bool is_bf16;
    int ndim;
    int64_t shape[3];
} SHAPES[] = {
    [X] = { true, 3, { TOKENS, N, HIDDEN } },
    [FN] = { false, 2, { ROWS, COLUMNS } },
    [SCALE] = { false, 1, { 3 } },
    [BASE] = { false, 1, { ROWS } },
    [Y] = { true, 2, { TOKENS, HIDDEN } },
    [GRAD_NEW] = { true, 3, { TOKENS, N, HIDDEN } },
    [GRAD_INPUT] = { true, 2, { TOKENS, HIDDEN } },
    [GAIN] = { true, 1, { HIDDEN } },
    [MIXES] = { false, 2, { TOKENS, ROWS } },
    [OUT_MUL] = { false, 2, { TOKENS, ROWS } },
    [SQRSUM] = { false, 1, { TOKENS } },
    [PRE] = { false, 2, { TOKENS, N } },
    [POST] = { false, 2, { TOKENS, N } },
    [LOGITS] = { false, 3, { TOKENS, N, N } },
    [COMB] = { false, 3, { TOKENS, N, N } },
    [INPUT] = { true, 2, { TOKENS, HIDDEN } },
    [NEW] = { true, 3, { TOKENS, N, HIDDEN } },
    [GRAD_Y] = { true, 2, { TOKENS, HIDDEN } },
    [GRAD_X] = { true, 3, { TOKENS, N, HIDDEN } },
    [GRAD_POST] = { false, 2, { TOKENS, N } },
    [GRAD_COMB] = { false, 3, { TOKENS, N, N } },
    [GRAD_PRE] = { false, 2, { TOKENS, N } },
    [GRAD_LOGITS] = { false, 3, { TOKENS, N, N } },
    [GRAD_MIXES] = { false, 2, { TOKENS, ROWS } },
    [GRAD_SCALE] = { false, 1, { 3 } },
    [GRAD_BASE] = { false, 1, { ROWS } },
    [GRAD_FN] = { false, 2, { ROWS, COLUMNS } },
    [NEXT_PRE] = { false, 2, { TOKENS, N } },
    [NEXT_POST] = { false, 2, { TOKENS, N } },
    [NEXT_COMB] = { false, 3, { TOKENS, N, N } },
    [NEXT_INPUT] = { true, 2, { TOKENS, HIDDEN } },
    [NEXT_RSTD] = { false, 1, { TOKENS } },
    [NEXT_SQRSUM] = { false, 1, { TOKENS } },
};

static int size_of(int which)
{
    int size = 1;
    for (int d = 0; d < SHAPES[which].ndim; d++) size *= (int)SHAPES[which].shape[d];
    return size;
}

static void place_all(const backend *b, tensor *t)
{
    for (int i = 0; i < NUM_TENSORS; i++) {
        const tgl_dtype dtype = SHAPES[i].is_bf16 ? TGL_BF16 : TGL_F32;
        float contents[ROWS * COLUMNS];
        for (int k = 0; i <= GAIN && k < size_of(i); k++)
            case_encode(dtype, value_of(i, k), (char *)contents + k * (SHAPES[i].is_bf16 ? 2 : 4));
        place(b, &t[i], dtype, SHAPES[i].ndim, SHAPES[i].shape, i <= GAIN ? contents : NULL);
    }
}

static double *fetch_values(const backend *b, tensor *t, int which)
{
    const tgl_dtype dtype = SHAPES[which].is_bf16 ? TGL_BF16 : TGL_F32;
    char bytes[ROWS * COLUMNS * 4];
    double *made = malloc((size_t)size_of(which) * sizeof *made);
    if (!made) abort();
    fetch(b, &t[which], bytes);
    for (int k = 0; k < size_of(which); k++) made[k] = case_decode(dtype, bytes + k * (SHAPES[which].is_bf16 ? 2 : 4));
    return made;
}

/* ---- the block ---- */

/* otherwise the defaults: epsilons 1e-6, a post gate of 2 sigmoid(z), 20 repeats */
static const tgl_mhc_params PARAMS = { .accumulate = true };

static void forward(const backend *b, tensor *t, void *workspace, size_t bytes)
{
    const tgl_mhc_params normed = { .norm = true };
    CHECK_OK(tgl_mhc_norm_fn_fwd(&t[X].t, &t[FN].t, NULL, &t[MIXES].t, &t[OUT_MUL].t, &t[SQRSUM].t, &PARAMS, workspace,
                                 bytes, b->stream));
    CHECK_OK(tgl_mhc_pre_split_mixes_fwd(&t[MIXES].t, &t[SCALE].t, &t[BASE].t, &t[PRE].t, &t[POST].t, &t[LOGITS].t,
                                         &PARAMS, b->stream));
    CHECK_OK(tgl_mhc_sinkhorn_fwd(&t[LOGITS].t, &t[COMB].t, &PARAMS, b->stream));
    CHECK_OK(tgl_mhc_pre_apply_mix_fwd(&t[X].t, &t[PRE].t, &t[INPUT].t, b->stream));
    CHECK_OK(tgl_mhc_post_fwd(&t[Y].t, &t[X].t, &t[POST].t, &t[COMB].t, &t[NEW].t, b->stream));
    CHECK_OK(tgl_mhc_pre_fwd(&t[NEW].t, &t[FN].t, NULL, &t[SCALE].t, &t[BASE].t, &t[GAIN].t, &t[NEXT_PRE].t,
                             &t[NEXT_POST].t, &t[NEXT_COMB].t, &t[NEXT_INPUT].t, NULL, &t[NEXT_RSTD].t, NULL,
                             &t[NEXT_SQRSUM].t, &normed, workspace, bytes, b->stream));
}

/* Of the first sublayer: NEW and INPUT have a gradient. That of X goes through the three ops that read it. */
static void backward(const backend *b, tensor *t, void *workspace, size_t bytes)
{
    CHECK_OK(tgl_mhc_post_bwd(&t[GRAD_NEW].t, &t[Y].t, &t[X].t, &t[POST].t, &t[COMB].t, &t[GRAD_Y].t, &t[GRAD_X].t,
                              &t[GRAD_POST].t, &t[GRAD_COMB].t, b->stream));
    CHECK_OK(tgl_mhc_pre_apply_mix_bwd(&t[GRAD_INPUT].t, &t[X].t, &t[PRE].t, &t[GRAD_X].t, &t[GRAD_PRE].t, true,
                                       b->stream));
    CHECK_OK(tgl_mhc_sinkhorn_bwd(&t[GRAD_COMB].t, &t[LOGITS].t, &t[GRAD_LOGITS].t, &PARAMS, b->stream));
    CHECK_OK(tgl_mhc_pre_split_mixes_bwd(&t[MIXES].t, &t[SCALE].t, &t[BASE].t, &t[GRAD_PRE].t, &t[GRAD_POST].t,
                                         &t[GRAD_LOGITS].t, &t[GRAD_MIXES].t, &t[GRAD_SCALE].t, &t[GRAD_BASE].t,
                                         &PARAMS, workspace, bytes, b->stream));
    CHECK_OK(tgl_mhc_norm_fn_bwd(&t[GRAD_MIXES].t, &t[X].t, &t[FN].t, NULL, &t[OUT_MUL].t, &t[SQRSUM].t, &t[GRAD_X].t,
                                 &t[GRAD_FN].t, NULL, &PARAMS, workspace, bytes, b->stream));
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static void run(const backend *b, double *made[NUM_TENSORS])
{
    tensor t[NUM_TENSORS];
    void *workspace = NULL;
    place_all(b, t);
    size_t bytes = tgl_mhc_norm_fn_fwd_workspace_size(&t[X].t, &t[FN].t);
    bytes = larger(bytes, tgl_mhc_pre_fwd_workspace_size(&t[X].t, &t[FN].t));
    bytes = larger(bytes, tgl_mhc_norm_fn_bwd_workspace_size(&t[X].t, &t[FN].t));
    bytes = larger(bytes, tgl_mhc_pre_split_mixes_bwd_workspace_size(&t[MIXES].t));
    if (!backend_is_cpu(b)) CHECK_OK(tgl_workspace_get(b->device.device_id, bytes, b->stream, &workspace));
    forward(b, t, workspace, bytes);
    backward(b, t, workspace, bytes);
    for (int i = 0; i < NUM_TENSORS; i++) made[i] = fetch_values(b, t, i);
}

/* ---- its numbers ---- */

/* Of every token, `count` elements from `first` on. */
static const struct {
    const char *name;
    int which, first, count;
    double want[TOKENS][4];
} TABLE[] = {
    { "sqrsum", SQRSUM, 0, 1, { { 1120.140625 }, { 1119.40625 }, { 1119.875 } } },
    { "out_mul",
      OUT_MUL,
      0,
      3,
      { { 0.065186, 0.071289, -0.006836 }, { 0.000244, -0.052246, 0.052490 }, { 0.076904, 0.029541, 0.055176 } } },
    { "mixes",
      MIXES,
      0,
      3,
      { { 0.062325, 0.068161, -0.006536 }, { 0.000234, -0.049970, 0.050204 }, { 0.073539, 0.028248, 0.052761 } } },
    { "pre_mix",
      PRE,
      0,
      4,
      { { 0.414879, 0.570547, 0.499184, 0.452988 },
        { 0.407363, 0.556019, 0.506276, 0.434523 },
        { 0.416240, 0.565651, 0.506596, 0.436101 } } },
    { "post_mix",
      POST,
      0,
      4,
      { { 1.203442, 1.046331, 0.938163, 0.806115 },
        { 1.190092, 1.058871, 0.938279, 0.812976 },
        { 1.187305, 1.055381, 0.934181, 0.808419 } } },
    { "comb_mix[0]",
      COMB,
      0,
      4,
      { { 0.289781, 0.257742, 0.171537, 0.280938 },
        { 0.281935, 0.257549, 0.191580, 0.268934 },
        { 0.288407, 0.268091, 0.175744, 0.267757 } } },
    { "comb_mix[3]",
      COMB,
      12,
      4,
      { { 0.216401, 0.232264, 0.313964, 0.237370 },
        { 0.224388, 0.228224, 0.321536, 0.225851 },
        { 0.220654, 0.210691, 0.333107, 0.235546 } } },
    { "input",
      INPUT,
      0,
      4,
      { { -0.620676, -0.567360, -0.940196, 0.755203 },
        { -0.659790, 1.006367, -0.639416, -0.548403 },
        { -0.409547, -0.306400, -0.672869, 1.011146 } } },
    { "new[0]",
      NEW,
      0,
      3,
      { { -2.258019, -1.264890, -0.438038 },
        { -0.074611, 1.692958, -2.179398 },
        { -1.777254, -0.811646, -0.056919 } } },
    { "new[3]",
      NEW,
      3 * HIDDEN,
      3,
      { { -1.585249, -0.966131, -0.501780 },
        { -0.147481, 1.337250, -1.613416 },
        { -1.247334, -0.619877, -0.177730 } } },
    { "grad_comb[0]",
      GRAD_COMB,
      0,
      4,
      { { 1.015625, -0.625, 2.203125, -0.8125 },
        { -0.765625, 2.484375, -1.140625, -1.671875 },
        { 2.40625, 0.375, -1.484375, 0.78125 } } },
    { "grad_post",
      GRAD_POST,
      0,
      4,
      { { 1.40625, 0, -0.71875, -2.46875 },
        { -0.5625, 0.8125, -2.96875, 0.46875 },
        { 1.1875, -2.21875, 0.90625, -0.4375 } } },
    { "grad_pre",
      GRAD_PRE,
      0,
      4,
      { { 1.46875, 1.15625, 0.84375, -0.375 },
        { -1.84375, 1.78125, -1.84375, 1.78125 },
        { -1.71875, -0.5, -1.09375, 1.03125 } } },
    { "grad_logits[0]",
      GRAD_LOGITS,
      0,
      4,
      { { 0.089435, -0.252610, 0.441488, -0.278314 },
        { -0.304954, 0.712678, -0.178566, -0.229158 },
        { 0.564407, -0.184613, -0.373496, -0.006298 } } },
    { "grad_x[0]",
      GRAD_X,
      0,
      4,
      { { -0.557714, -0.104361, -0.449596, 0.242479 },
        { -0.273414, 0.332483, 0.092924, 0.348471 },
        { -0.157980, 0.124635, -0.177481, 0.461201 } } },
    { "grad_x[3]",
      GRAD_X,
      COLUMNS - 4,
      4,
      { { -0.268190, 0.175636, -0.651447, 0.093950 },
        { -0.487810, 0.206092, -0.120509, 0.554642 },
        { 0.016199, 0.342360, -0.251868, 0.377878 } } },
    /* the next sublayer's, with RMSNorm of its input */
    { "next pre_mix",
      NEXT_PRE,
      0,
      4,
      { { 0.407877, 0.575471, 0.492000, 0.440078 },
        { 0.412642, 0.554573, 0.506654, 0.435500 },
        { 0.409908, 0.568036, 0.503923, 0.448430 } } },
    { "next post_mix",
      NEXT_POST,
      0,
      4,
      { { 1.198486, 1.061654, 0.935656, 0.827410 },
        { 1.189721, 1.060839, 0.931535, 0.818812 },
        { 1.202550, 1.053467, 0.942422, 0.809936 } } },
    { "next comb_mix[0]",
      NEXT_COMB,
      0,
      4,
      { { 0.270688, 0.269792, 0.174624, 0.284895 },
        { 0.291046, 0.255475, 0.188152, 0.265325 },
        { 0.264200, 0.266725, 0.178140, 0.290934 } } },
    { "next sqrsum", NEXT_SQRSUM, 0, 1, { { 1054.2043 }, { 1059.0989 }, { 1058.9513 } } },
    { "next rstd", NEXT_RSTD, 0, 1, { { 0.522191 }, { 0.521812 }, { 0.516815 } } },
    { "next input",
      NEXT_INPUT,
      0,
      4,
      { { -1.398438, -1.007812, -0.439453, 1.328125 },
        { -0.044434, 1.359375, -1.867188, -1.304688 },
        { -1.117188, -0.683594, -0.060303, 1.75 } } },
};

/* A number of the tables has 6 digits. One bf16 step; the gradient of x is rounded after each of its three ops. */
static double bound_of(int which, double want)
{
    if (which == GRAD_X) return 1.2e-2;
    return SHAPES[which].is_bf16 ? ldexp(1, ilogb(want) - 7) * 1.01 : 2e-5 + 1e-7 * fabs(want);
}

static void check_number(const backend *b, const char *name, int t, int i, double seen, double want, double bound)
{
    CHECK_THAT(fabs(seen - want) <= bound, "%s: %s: number %d of token %d is %.9g, want %.9g", b->name, name, i, t,
               seen, want);
}

static double sum_of_abs(const double *from, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++) sum += fabs(from[i]);
    return sum;
}

static void check_sums(const backend *b, double *made[NUM_TENSORS])
{
    const double input[] = { 130.259129, 128.513795, 130.116889 }, grad_x[] = { 299.93213, 297.23992, 298.31624 };
    const double new[] = { 878.62999, 880.30721, 880.71889 }, next_input[] = { 218.53511, 218.03242, 218.26928 };
    for (int t = 0; t < TOKENS; t++) {
        check_number(b, "sum of |input|", t, 0, sum_of_abs(made[INPUT] + t * HIDDEN, HIDDEN), input[t],
                     0x1p-9 * input[t]);
        check_number(b, "sum of |grad_x|", t, 0, sum_of_abs(made[GRAD_X] + t * COLUMNS, COLUMNS), grad_x[t],
                     0x1p-8 * grad_x[t]);
        check_number(b, "sum of |new|", t, 0, sum_of_abs(made[NEW] + t * COLUMNS, COLUMNS), new[t], 0.01);
        check_number(b, "sum of |next input|", t, 0, sum_of_abs(made[NEXT_INPUT] + t * HIDDEN, HIDDEN), next_input[t],
                     0.03);
    }
}

/* What norm_fn_bwd makes of its arguments before it multiplies. */
static void check_gradients_of_sums(const backend *b, double *made[NUM_TENSORS])
{
    const double of_products[TOKENS][3] = { { 0.170450, 0.135439, 0.100841 },
                                            { -0.212862, 0.210283, -0.220394 },
                                            { -0.199676, -0.058734, -0.130713 } };
    const double of_squares[] = { 4.359907e-05, 7.473563e-05, -6.765285e-05 };
    for (int t = 0; t < TOKENS; t++) {
        const double mean = made[SQRSUM][t] / COLUMNS + 1e-6, r = 1 / sqrt(mean);
        double slope = 0;
        for (int j = 0; j < ROWS; j++) slope += made[GRAD_MIXES][t * ROWS + j] * made[OUT_MUL][t * ROWS + j];
        slope *= -0.5 * r / (mean * COLUMNS);
        check_number(b, "gradient of sqrsum", t, 0, slope, of_squares[t], 1e-4 * fabs(of_squares[t]));
        for (int j = 0; j < 3; j++)
            check_number(b, "gradient of out_mul", t, j, made[GRAD_MIXES][t * ROWS + j] * r, of_products[t][j], 2e-5);
    }
}

static void check_parameters(const backend *b, double *made[NUM_TENSORS])
{
    const double scale[] = { -0.080381, -0.220869, -0.128495 };
    const double base[] = { -0.506198, 0.600186, -0.523318, 0.598356, 0.975856, -0.701130 };
    const double first[] = { -0.000423, -0.212249, 0.347549, 0.135722 },
                 last[] = { -0.859221, -0.628811, 0.651151, 0.881561 };
    double largest = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++) largest = fmax(largest, fabs(made[GRAD_FN][i]));
    for (int i = 0; i < 3; i++) check_number(b, "grad_scale", 0, i, made[GRAD_SCALE][i], scale[i], 2e-5);
    for (int i = 0; i < 6; i++) check_number(b, "grad_base", 0, i, made[GRAD_BASE][i], base[i], 2e-5);
    for (int i = 0; i < 4; i++) {
        check_number(b, "grad_fn[0]", 0, i, made[GRAD_FN][i], first[i], 1e-3 * largest);
        check_number(b, "grad_fn[23]", 0, i, made[GRAD_FN][ROWS * COLUMNS - 4 + i], last[i], 1e-3 * largest);
    }
    check_number(b, "sum of |grad_fn|", 0, 0, sum_of_abs(made[GRAD_FN], ROWS * COLUMNS), 11709.67, 1);
}

TEST(block)
{
    FOR_BACKENDS(b) {
        double *made[NUM_TENSORS];
        run(b, made);
        for (size_t k = 0; k < sizeof TABLE / sizeof *TABLE; k++)
            for (int i = 0; i < TOKENS * TABLE[k].count; i++) {
                const int which = TABLE[k].which, t = i / TABLE[k].count, at = i % TABLE[k].count;
                const double want = TABLE[k].want[t][at];
                check_number(b, TABLE[k].name, t, at, made[which][t * (size_of(which) / TOKENS) + TABLE[k].first + at],
                             want, bound_of(which, want));
            }
        check_sums(b, made);
        check_gradients_of_sums(b, made);
        check_parameters(b, made);
        for (int i = 0; i < NUM_TENSORS; i++) free(made[i]);
    }
}
