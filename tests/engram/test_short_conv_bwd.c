/* SPDX-License-Identifier: MIT
 * tgl_engram_short_conv_bwd, on every device of the tests. */
#include "gate_support.h"

TESTS_OF_TABLE("engram_short_conv_bwd")

/* ---- calls on tensors written by hand: forward, then backward ---- */

enum { MOST = 512 };
typedef struct {
    int64_t tokens, streams, hidden, taps;
    float x[MOST], go[MOST], norm[64], conv[256], bias[64];
    tgl_engram_short_conv_params params;
} call;
typedef struct {
    uint16_t grad_x[MOST];
    float norm[64], conv[256], bias[64];
} answer;

static void gradients(const backend *b, const call *c, answer *a)
{
    const int64_t *rows = SHAPE(c->tokens, c->streams, c->hidden), channels = c->streams * c->hidden;
    tensor x, go, norm, conv, bias, out, rstd, grad_x, grad_norm, grad_conv, grad_bias;
    put(b, &x, TGL_BF16, 3, rows, c->x), put(b, &go, TGL_BF16, 3, rows, c->go);
    put(b, &norm, TGL_F32, 2, rows + 1, c->norm), put(b, &conv, TGL_F32, 2, SHAPE(channels, c->taps), c->conv);
    put(b, &bias, TGL_F32, 1, SHAPE(channels), c->bias);
    place(b, &out, TGL_BF16, 3, rows, NULL), place(b, &rstd, TGL_F32, 2, rows, NULL);
    CHECK_OK(tgl_engram_short_conv_fwd(&x.t, &norm.t, &conv.t, &bias.t, NULL, NULL, NULL, &out.t, &rstd.t, NULL,
                                       &c->params, b->stream));
    CHECK_OK(tgl_engram_short_conv_bwd(&x.t, &norm.t, &conv.t, &bias.t, &rstd.t, &go.t, NULL,
                                       place(b, &grad_x, TGL_BF16, 3, rows, NULL),
                                       place(b, &grad_norm, TGL_F32, 3, SHAPE(1, c->streams, c->hidden), NULL),
                                       place(b, &grad_conv, TGL_F32, 3, SHAPE(1, channels, c->taps), NULL),
                                       place(b, &grad_bias, TGL_F32, 2, SHAPE(1, channels), NULL), NULL, &c->params,
                                       b->stream));
    fetch(b, &grad_x, a->grad_x), fetch(b, &grad_norm, a->norm), fetch(b, &grad_conv, a->conv);
    fetch(b, &grad_bias, a->bias);
    tensor *const rest[] = { &x, &go, &norm, &conv, &bias, &out, &rstd };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) discard(b, rest[i]);
}

/* ---- finite differences ---- */

typedef struct { double x[MOST], norm[64], conv[256], bias[64]; } inputs;

static double norm_of(const call *c, const inputs *in, int64_t n) { return in->norm[n] + c->params.zero_centered; }

/* x normed, which the forward rounds to bf16 */
static void norm_rows(const call *c, const inputs *in, double *rstd, double *a)
{
    const int64_t d = c->hidden;
    for (int64_t row = 0; row < c->tokens * c->streams; row++) {
        double squares = 0;
        for (int64_t i = 0; i < d; i++) squares += in->x[row * d + i] * in->x[row * d + i];
        rstd[row] = 1 / sqrt(squares / (double)d + 1e-5);
        for (int64_t i = 0; i < d; i++)
            a[row * d + i] = in->x[row * d + i] * rstd[row] * norm_of(c, in, row % c->streams * d + i);
    }
}

/* What rounding adds to it. Gradients pass a rounding as if it were none, so it is a constant of the loss. */
static void find_roundings(const call *c, const inputs *in, double *rounding)
{
    static double rstd[MOST];
    norm_rows(c, in, rstd, rounding);
    for (int64_t i = 0; i < c->tokens * c->streams * c->hidden; i++)
        rounding[i] = (double)value(bf16((float)rounding[i])) - rounding[i];
}

/* sum of go * out, as the forward defines it, without any other rounding */
static double loss(const call *c, const inputs *in, const double *rounding)
{
    static double a[MOST], rstd[MOST];
    const int64_t channels = c->streams * c->hidden;
    double total = 0;
    norm_rows(c, in, rstd, a);
    for (int64_t i = 0; i < c->tokens * channels; i++) a[i] += rounding[i];
    for (int64_t t = 0; t < c->tokens; t++)
        for (int64_t n = 0; n < channels; n++) {
            double z = in->bias[n];
            for (int64_t j = 0; j < c->taps; j++) {
                const int64_t from = t - (c->taps - 1 - j) * c->params.dilation;
                if (from >= 0) z += in->conv[n * c->taps + j] * a[from * channels + n];
            }
            const double y = c->params.no_activation ? z : z / (1 + exp(-z));
            total += (double)c->go[t * channels + n] * (y + (c->params.add_input ? in->x[t * channels + n] : 0));
        }
    return total;
}

static double slope(const call *c, inputs *in, const double *rounding, double *at)
{
    const double was = *at, step = 1e-5;
    *at = was + step;
    const double above = loss(c, in, rounding);
    *at = was - step;
    const double below = loss(c, in, rounding);
    *at = was;
    return (above - below) / (2 * step);
}

/* The sums of gradients, with the magnitudes of their terms. The slope of SiLU is at most 1.1, and that of its slope 1/2, so
 * an error of z is one of no more than that in units of z's magnitude. */
static void find_magnitudes(const call *c, const inputs *in, inputs *of)
{
    static double a[MOST], rstd[MOST], of_z[MOST], of_a[MOST];
    const int64_t d = c->hidden, channels = c->streams * d, taps = c->taps;
    *of = (inputs){ 0 };
    norm_rows(c, in, rstd, a);
    memset(of_a, 0, sizeof of_a);
    for (int64_t n = 0; n < c->tokens * channels; n++) {
        double z = fabs(in->bias[n % channels]);
        for (int64_t j = 0; j < taps; j++) {
            const int64_t from = n - (taps - 1 - j) * c->params.dilation * channels;
            if (from >= 0) z += fabs(in->conv[n % channels * taps + j] * a[from]);
        }
        of_z[n] = fabs((double)c->go[n]) * (c->params.no_activation ? 1 : 1.1 + z / 2);
        of->bias[n % channels] += of_z[n];
        for (int64_t j = 0; j < taps; j++) {
            const int64_t from = n - (taps - 1 - j) * c->params.dilation * channels, at = n % channels * taps + j;
            if (from < 0) continue;
            of->conv[at] += of_z[n] * fabs(a[from]);
            of_a[from] += of_z[n] * fabs(in->conv[at]);
        }
    }
    for (int64_t row = 0; row < c->tokens * c->streams; row++) {
        double sum = 0;
        for (int64_t i = row * d; i < (row + 1) * d; i++) {
            of->norm[i % channels] += of_a[i] * fabs(in->x[i]) * rstd[row];
            sum += of_a[i] * fabs(norm_of(c, in, i % channels) * in->x[i]);
        }
        for (int64_t i = row * d; i < (row + 1) * d; i++)
            of->x[i] = rstd[row] * (of_a[i] * fabs(norm_of(c, in, i % channels)) +
                                    fabs(in->x[i]) * sum * rstd[row] * rstd[row] / (double)d) +
                       (c->params.add_input ? fabs((double)c->go[i]) : 0);
    }
}

/* A number goes through at most 60 roundings to f32, of 2^-24 each: the sigmoid's 2^-21 count as 8, 3 times rstd as 24, sums over
 * taps of z and of the gradient of a have 9, one over tokens or columns 9 more, products between them 10. (Seen: fewer than 2.)
 * A gradient of x is rounded to bf16, too. Steps of 1e-5 and sums of doubles make less than 1e-7. */
static bool is_close(float seen, double want, double magnitude, bool is_bf16)
{
    return fabs((double)seen - want) <= 0x1p-18 * magnitude + (is_bf16 ? 0x1p-8 * fabs(want) : 0) + 1e-7;
}

static void check_slopes(const backend *b, const char *what, const call *c, inputs *in, const double *rounding,
                         double *at, const double *magnitudes, int64_t count, const float *seen,
                         const uint16_t *seen_bf16)
{
    for (int64_t i = 0; i < count; i++) {
        const double want = slope(c, in, rounding, &at[i]);
        const float s = seen ? seen[i] : value(seen_bf16[i]);
        CHECK_THAT(is_close(s, want, magnitudes[i], !seen), "%s: %s[%lld]: %g, want %g", b->name, what, (long long)i,
                   (double)s, want);
    }
}

/* Taps 2 to 4, with and without SiLU and skip, weights as they are and minus 1; both kernels. */
TEST(finite_differences)
{
    static call c;
    static answer a;
    static inputs in, magnitudes;
    static double rounding[MOST];
    FOR_BACKENDS(b)
        for (int n = 0; n < 16; n++) {
            char name[32];
            snprintf(name, sizeof name, "differences %d", n);
            test_random r = test_seed(name);
            c = (call){
                .tokens = 9,
                .streams = 2,
                .hidden = n < 8 ? 5 : 8,
                .taps = 2 + n % 3,
                .params = { .dilation = 1 + n % 4, .no_activation = n & 1, .add_input = n & 2, .zero_centered = n & 4 }
            };
            float *const all[] = { c.x, c.go, c.norm, c.conv, c.bias };
            const int counts[] = { MOST, MOST, 64, 256, 64 };
            for (int k = 0; k < 5; k++)
                for (int i = 0; i < counts[k]; i++)
                    all[k][i] = value(bf16((float)(test_below(&r, 4001) - 2000) / 1000));
            for (int i = 0; i < MOST; i++) in.x[i] = (double)c.x[i];
            for (int i = 0; i < 64; i++) in.norm[i] = (double)c.norm[i], in.bias[i] = (double)c.bias[i];
            for (int i = 0; i < 256; i++) in.conv[i] = (double)c.conv[i];
            find_roundings(&c, &in, rounding);
            find_magnitudes(&c, &in, &magnitudes);
            gradients(b, &c, &a);
            const int64_t channels = c.streams * c.hidden;
            check_slopes(b, "x", &c, &in, rounding, in.x, magnitudes.x, c.tokens * channels, NULL, a.grad_x);
            check_slopes(b, "norm", &c, &in, rounding, in.norm, magnitudes.norm, channels, a.norm, NULL);
            check_slopes(b, "bias", &c, &in, rounding, in.bias, magnitudes.bias, channels, a.bias, NULL);
            check_slopes(b, "conv", &c, &in, rounding, in.conv, magnitudes.conv, channels * c.taps, a.conv, NULL);
        }
}

/* The first token has an infinite rstd, so z of the second is -inf, and its gradient 0: what it adds to the gradient of x is
 * 0 too, whatever a kernel makes of columns past the last. */
TEST(an_infinite_rstd)
{
    enum { HIDDEN = 8, TAPS = 4 };
    float ones[2 * HIDDEN], minus[HIDDEN * TAPS];
    for (int i = 0; i < 2 * HIDDEN; i++) ones[i] = 1;
    for (int i = 0; i < HIDDEN * TAPS; i++) minus[i] = -1;
    const float rstds[2] = { INFINITY, 1 };
    const tgl_engram_short_conv_params params = { .dilation = 1, .add_input = true };
    FOR_BACKENDS(b) {
        const int64_t *rows = SHAPE(2, 1, HIDDEN);
        tensor x, go, norm, conv, rstd, grad_x;
        uint16_t seen[2 * HIDDEN];
        put(b, &x, TGL_BF16, 3, rows, ones), put(b, &go, TGL_BF16, 3, rows, ones);
        put(b, &norm, TGL_F32, 2, rows + 1, ones), put(b, &conv, TGL_F32, 2, SHAPE(HIDDEN, TAPS), minus);
        put(b, &rstd, TGL_F32, 2, rows, rstds);
        CHECK_OK(tgl_engram_short_conv_bwd(&x.t, &norm.t, &conv.t, NULL, &rstd.t, &go.t, NULL,
                                           place(b, &grad_x, TGL_BF16, 3, rows, NULL), NULL, NULL, NULL, NULL, &params,
                                           b->stream));
        fetch(b, &grad_x, seen);
        for (int i = 0; i < HIDDEN; i++)
            CHECK_THAT(value(seen[HIDDEN + i]) == 1, "%s: column %d: %g", b->name, i, (double)value(seen[HIDDEN + i]));
        tensor *const rest[] = { &x, &go, &norm, &conv, &rstd };
        for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) discard(b, rest[i]);
    }
}

TEST(devices_agree_to_the_bit)
{
    check_same_bits("engram_short_conv_bwd",
                    CASE_LINES("num_tokens=20 num_streams=2 hidden=264 requests=3 mask=some num_partials=3",
                               "num_tokens=12 num_streams=1 hidden=2560 num_partials=1",
                               "num_tokens=11 num_streams=1 hidden=64 kernel_size=5 num_partials=2"),
                    1);
}

TEST(graph)
{
    check_replayed("engram_short_conv_bwd", "num_tokens=20 num_streams=2 hidden=64 mask=some num_partials=2", 1);
}

TEST(num_sms)
{
    check_num_sms("engram_short_conv_bwd",
                  CASE_LINES("num_tokens=40 num_streams=2 hidden=16 mask=some num_partials=5"));
}

TEST(fast_number_of_partials)
{
    CHECK_INT(tgl_engram_short_conv_num_partials(4, 1024), 66);
    CHECK_INT(tgl_engram_short_conv_num_partials(4, 2560), 23);
    CHECK_INT(tgl_engram_short_conv_num_partials(4, 2561), 19);
    CHECK_INT(tgl_engram_short_conv_num_partials(4, 7168), 8);
    CHECK_INT(tgl_engram_short_conv_num_partials(0, 0), 528);
    CHECK_INT(tgl_engram_short_conv_num_partials(1, 512), 528);
    CHECK_INT(tgl_engram_short_conv_num_partials(1000, 8), 1);
    CHECK_INT(tgl_engram_short_conv_num_partials(INT64_MAX, INT64_MAX), 1);
}

/* ---- errors ---- */

extern tgl_signature tgl_engram_short_conv_bwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    const tgl_engram_batch batch = { .cu_seqlens = t[7] };
    return tgl_engram_short_conv_bwd(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[8], t[9], t[10], t[11], &batch, params,
                                     NULL);
}
#define GOOD_CALL                         \
    &tgl_engram_short_conv_bwd_signature, \
        "num_tokens=3 num_streams=2 hidden=8 kernel_size=2 num_requests=2 num_partials=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[4].dtype = tgl_dtype_to_dlpack(TGL_F16), "rstd: dtype is f16, want f32");
    CHECK_ERROR(x[8].strides[1] = 7,
                "grad_x: strides are [16, 7, 1], want 1 in the last dimension, and rows that do not overlap");
    CHECK_ERROR(c->tensors[8] = c->tensors[5], "grad_x: memory is shared with grad_out, want no overlap");
    CHECK_ERROR(x[9].shape[0] = x[10].shape[0] = x[11].shape[0] = 0,
                "grad_conv_partial: shape is [0, ...], want [>= 1, ...]");
}

TEST(empty)
{
    check_empty(&tgl_engram_short_conv_bwd_signature,
                "num_tokens=0 num_streams=2 hidden=8 kernel_size=2 num_requests=2 num_partials=0", invoke);
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
