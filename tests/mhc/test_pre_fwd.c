/* SPDX-License-Identifier: MIT
 * tgl_mhc_pre_fwd, on every device of the tests. */
#include "mhc_support.h"
#include "wrapped_launch.h"

TESTS_OF_TABLE("mhc_pre_fwd")

/* ---- calls ---- */

enum { PRE, POST, COMB, OUT, RAW, RSTD, OUT_MUL, SQRSUM, NUM_OUTPUTS };
typedef struct {
    int64_t tokens, n, hidden, groups;
    const uint16_t *residual;                               /* bf16 */
    const float *fn, *weight, *scale, *base, *input_weight; /* the weights may be NULL */
    tgl_mhc_params params;
} call;
typedef struct {
    void *out[NUM_OUTPUTS];
    size_t bytes[NUM_OUTPUTS];
} results;

static int64_t rows_of(const call *c) { return c->groups == 3 ? c->n * (c->n + 2) : c->groups * c->n; }

/* For outputs. What a call does not write has bytes of 0xa5. */
static results new_results(const call *c)
{
    const int64_t t = c->tokens, bytes[] = { 4 * t * c->n,      4 * t * c->n, 4 * t * c->n * c->n, 2 * t * c->hidden,
                                             2 * t * c->hidden, 4 * t,        4 * t * rows_of(c),  4 * t };
    results r;
    for (int i = 0; i < NUM_OUTPUTS; i++) {
        r.bytes[i] = (size_t)bytes[i];
        r.out[i] = memset(case_memory(bytes[i] + 1, 1), 0xa5, r.bytes[i]);
    }
    return r;
}
static void discard_results(results *r)
{
    for (int i = 0; i < NUM_OUTPUTS; i++) free(r->out[i]);
}

#define OF_RESIDUAL IN(TGL_BF16, c->residual, c->tokens, c->n, c->hidden)
#define OF_FN F32(c->fn, rows_of(c), c->n * c->hidden)
#define OF_WEIGHT IN(c->weight ? TGL_F32 : 0, c->weight, c->n * c->hidden)
#define OF_SCALE F32(c->scale, c->groups)
#define OF_BASE F32(c->base, rows_of(c))
#define OF_INPUT_WEIGHT IN(c->input_weight ? TGL_F32 : 0, c->input_weight, c->hidden)
#define GET_IF(wanted, dtype, which, ...) GET((wanted) ? (dtype) : 0, r.out[which], c->tokens, __VA_ARGS__)
#define GET_EACH(wanted, which) { .dtype = (wanted) ? TGL_F32 : 0, .to = r.out[which], SIZES(c->tokens) }

static results fused(const backend *b, const call *c)
{
    const results r = new_results(c);
    CALL(mhc_pre_fwd, b, &c->params, OF_RESIDUAL, OF_FN, OF_WEIGHT, OF_SCALE, OF_BASE, OF_INPUT_WEIGHT,
         GET_IF(true, TGL_F32, PRE, c->n), GET_IF(c->groups > 1, TGL_F32, POST, c->n),
         GET_IF(c->groups > 2, TGL_F32, COMB, c->n, c->n), GET_IF(true, TGL_BF16, OUT, c->hidden),
         GET_IF(true, TGL_BF16, RAW, c->hidden), GET_EACH(c->params.norm, RSTD),
         GET_IF(true, TGL_F32, OUT_MUL, rows_of(c)), GET_EACH(true, SQRSUM));
    return r;
}

/* The same by the ops that it stands for; out and raw are both before the norm. */
static results separate(const backend *b, const call *c)
{
    const results r = new_results(c);
    float *mixes = case_memory(c->tokens * rows_of(c), sizeof *mixes);
    float *logits = case_memory(c->tokens * c->n * c->n, sizeof *logits);
    CALL(mhc_norm_fn_fwd, b, &c->params, OF_RESIDUAL, OF_FN, OF_WEIGHT, GET(TGL_F32, mixes, c->tokens, rows_of(c)),
         GET_IF(true, TGL_F32, OUT_MUL, rows_of(c)), GET_EACH(true, SQRSUM));
    if (c->groups == 1)
        CALL(mhc_head_compute_mix_fwd, b, &c->params, F32(mixes, c->tokens, rows_of(c)), OF_SCALE, OF_BASE,
             GET_IF(true, TGL_F32, PRE, c->n));
    else
        CALL(mhc_pre_split_mixes_fwd, b, &c->params, F32(mixes, c->tokens, rows_of(c)), OF_SCALE, OF_BASE,
             GET_IF(true, TGL_F32, PRE, c->n), GET_IF(true, TGL_F32, POST, c->n),
             GET(c->groups > 2 ? TGL_F32 : 0, logits, c->tokens, c->n, c->n));
    if (c->groups > 2)
        CALL(mhc_sinkhorn_fwd, b, &c->params, F32(logits, c->tokens, c->n, c->n),
             GET_IF(true, TGL_F32, COMB, c->n, c->n));
    CALL(mhc_pre_apply_mix_fwd, b, NULL, OF_RESIDUAL, F32(r.out[PRE], c->tokens, c->n),
         GET_IF(true, TGL_BF16, OUT, c->hidden));
    memcpy(r.out[RAW], r.out[OUT], r.bytes[OUT]);
    free(mixes), free(logits);
    return r;
}

static void check_same(const backend *b, const char *what, const call *c, const results *seen, const results *want)
{
    static const char *const names[] = { "pre", "post", "comb", "out", "raw", "rstd", "out_mul", "sqrsum" };
    for (int i = 0; i < NUM_OUTPUTS; i++)
        CHECK_THAT((i == OUT && c->params.norm) || !memcmp(seen->out[i], want->out[i], seen->bytes[i]) ||
                       (i == RSTD && c->params.norm),
                   "%s: %s: %s differs: %d tokens, n %d, hidden %d, %d groups", b->name, what, names[i], (int)c->tokens,
                   (int)c->n, (int)c->hidden, (int)c->groups);
}

/* ---- random data ---- */

static void *memory_of(int64_t count, size_t size) { return malloc((size_t)count * size + 1); }

static call random_call(int64_t tokens, int64_t n, int64_t hidden, int64_t groups)
{
    call c = { tokens, n, hidden, groups, .params = { .post_eps = groups == 2 ? 0.25f : 0, .sinkhorn_repeat = 3 } };
    uint16_t *residual = memory_of(tokens * n * hidden, 2);
    float *fn = memory_of(rows_of(&c) * n * hidden, 4), *scale = memory_of(3, 4), *base = memory_of(rows_of(&c), 4);
    for (int64_t i = 0; i < tokens * n * hidden; i++) case_encode(TGL_BF16, normal(1, i), &residual[i]);
    for (int64_t i = 0; i < rows_of(&c) * n * hidden; i++) fn[i] = (float)normal(2, i) / 16;
    for (int64_t i = 0; i < 3; i++) scale[i] = (float)normal(3, i);
    for (int64_t i = 0; i < rows_of(&c); i++) base[i] = (float)normal(4, i);
    c.residual = residual, c.fn = fn, c.scale = scale, c.base = base;
    return c;
}
/* With the input's RMSNorm, and a gain. */
static call random_normed_call(int64_t tokens, int64_t n, int64_t hidden, int64_t groups)
{
    call c = random_call(tokens, n, hidden, groups);
    float *const gain = memory_of(hidden, 4);
    for (int64_t i = 0; i < hidden; i++) gain[i] = (float)normal(5, i);
    c.input_weight = gain;
    c.params.norm = true;
    return c;
}
static void free_call(call *c)
{
    free((void *)c->residual), free((void *)c->fn), free((void *)c->scale), free((void *)c->base);
    free((void *)c->weight), free((void *)c->input_weight);
}

static void check_fused(const backend *b, int64_t tokens, int64_t n, int64_t hidden, int64_t groups)
{
    call c = random_call(tokens, n, hidden, groups);
    results seen = fused(b, &c), want = separate(b, &c);
    check_same(b, "fused", &c, &seen, &want);
    discard_results(&seen), discard_results(&want), free_call(&c);
}

TEST(equals_separate_ops)
{
    static const int64_t tokens[] = { 0, 1, 2, 7, 8, 16, 17, 33, 64, 65, 97, 129, 300 };
    static const int64_t hidden[] = { 1, 8, 63, 64, 100, 256, 1280, 2560 }, streams[] = { 1, 2, 3, 4, 8 };
    FOR_BACKENDS(b) {
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) check_fused(b, tokens[i], 4, 64, 3);
        for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) check_fused(b, 9, 4, hidden[i], 3);
        for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
            for (int64_t groups = 1; groups <= 3; groups++) check_fused(b, 17, streams[i], 72, groups);
        if (!b->is_emulated) check_fused(b, 129, 4, 4096, 3), check_fused(b, 100, 4, 7168, 3);
    }
}

/* Every kernel that can do a call gives the same bits. -> how many can */
static int check_kernels(const backend *b, const call *c)
{
    test_choice = (test_choices){ 0 };
    results want = fused(b, c);
    const int num_fitting = test_choice.num_fitting;
    for (int k = 0; k < num_fitting; k++) {
        char number[8];
        snprintf(number, sizeof number, "%d", k);
        setenv("TEGULA_TEST_KERNEL", number, 1);
        results seen = fused(b, c);
        unsetenv("TEGULA_TEST_KERNEL");
        for (int o = 0; o < NUM_OUTPUTS; o++)
            CHECK_THAT(!memcmp(seen.out[o], want.out[o], seen.bytes[o]),
                       "%s: kernel %d: output %d differs: %d tokens, hidden %d, norm %d", b->name, k, o, (int)c->tokens,
                       (int)c->hidden, c->params.norm);
        discard_results(&seen);
    }
    discard_results(&want);
    return num_fitting;
}
static int check_random(const backend *b, int64_t tokens, int64_t hidden, int64_t groups, bool is_normed)
{
    call c = is_normed ? random_normed_call(tokens, 4, hidden, groups) : random_call(tokens, 4, hidden, groups);
    const int num_fitting = check_kernels(b, &c);
    free_call(&c);
    return num_fitting;
}
#define FOR_GPUS(b)                                      \
    if (!&test_choice) SKIP("kernels cannot be chosen"); \
    FOR_BACKENDS(b)                                      \
        if (!backend_is_cpu(b))

/* Sizes that kernels for few and for many tokens take. */
TEST(kernels_agree)
{
    static const struct {
        int64_t tokens, hidden, groups;
    } calls[] = { { 1, 1280, 3 }, { 19, 1280, 3 }, { 32, 1280, 1 }, { 33, 1280, 2 } };
    FOR_GPUS(b)
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            for (int is_normed = 0; is_normed < 2; is_normed++)
                check_random(b, calls[i].tokens, calls[i].hidden, calls[i].groups, is_normed);
}

/* All sizes that have such kernels. Emulated: one of each number of segments. */
TEST(tuned_sizes_agree)
{
    static const int64_t hidden[] = { 1280, 2560, 7168, 4096, 5120, 6144 };
    FOR_GPUS(b)
        for (int i = 0; i < (b->is_emulated ? 3 : 6); i++)
            for (int is_normed = 0; is_normed < 2; is_normed++) {
                const int num_fitting = check_random(b, 3, hidden[i], 3, is_normed);
                if (b->is_emulated && !getenv("EMU_ARCH")) CHECK_INT(num_fitting, 4);
                if (!b->is_emulated)
                    check_random(b, 100, hidden[i], 3, is_normed), check_random(b, 1000, hidden[i], 3, is_normed);
            }
}

/* A cluster takes many tiles in turn: every stage and every slot is used again and again. With fewer SMs than a cluster
 * has, another kernel runs. */
TEST(many_trips)
{
    FOR_GPUS(b) {
        for (int is_normed = 0; is_normed < 2; is_normed++) {
            CHECK_OK(tgl_set_num_sms(b->device.device_id, 4));
            const int with_stream = check_random(b, 240, 1280, 3, is_normed);
            check_random(b, 72, 1792, 3, is_normed); /* 7 pieces: an odd number of inputs is kept */
            CHECK_OK(tgl_set_num_sms(b->device.device_id, 3));
            const int without = check_random(b, 9, 1280, 3, is_normed);
            if (b->is_emulated && !getenv("EMU_ARCH")) CHECK_INT(without, with_stream - 1);
            CHECK_OK(tgl_set_num_sms(b->device.device_id, 16));
            if (!b->is_emulated) check_random(b, 4096, 7168, 3, is_normed), check_random(b, 1000, 4096, 1, is_normed);
        }
        CHECK_OK(tgl_set_num_sms(b->device.device_id, 0));
    }
}

/* Tokens `first` .. of a call by themselves have the bits that they have among all. */
static void check_slice(const backend *b, const call *c, const results *all, int64_t first, int64_t count,
                        const char *when)
{
    call some = *c;
    some.tokens = count;
    some.residual = c->residual + first * c->n * c->hidden;
    results seen = fused(b, &some);
    for (int i = 0; i < NUM_OUTPUTS; i++)
        CHECK_THAT(!memcmp(seen.out[i], (char *)all->out[i] + first * (int64_t)(all->bytes[i] / (size_t)c->tokens),
                           seen.bytes[i]),
                   "%s: %s: output %d of %d tokens from %d on, hidden %d", b->name, when, i, (int)count, (int)first,
                   (int)c->hidden);
    discard_results(&seen);
}

/* A token's bits do not depend on the number of SMs (with few no cluster fits, with more no cooperative launch), on PDL, on the
 * number of tokens or on its place among them. */
TEST(only_inputs_matter)
{
    static const int64_t hidden[] = { 1280, 2560, 7168, 4096, 5120, 6144 }, sms[] = { 0, 3, 16, 40 };
    const bool had_pdl = tgl_get_pdl();
    FOR_GPUS(b)
        for (int i = 0; i < (b->is_emulated ? 3 : 6); i++) {
            const int64_t tokens = b->is_emulated ? 11 : 300;
            call c = random_normed_call(tokens, 4, hidden[i], 3);
            results all = fused(b, &c);
            for (int s = 0; s < 4; s++)
                for (int has_pdl = 0; has_pdl < 2; has_pdl++) {
                    if (b->is_emulated && has_pdl != (s + i) % 2) continue; /* there it costs seconds */
                    char when[64];
                    snprintf(when, sizeof when, "%d SMs, PDL %d", (int)sms[s], has_pdl);
                    CHECK_OK(tgl_set_num_sms(b->device.device_id, (int)sms[s]));
                    CHECK_OK(tgl_set_pdl(has_pdl));
                    check_slice(b, &c, &all, 0, tokens, when);
                    check_slice(b, &c, &all, 1, 1, when);
                    check_slice(b, &c, &all, tokens - 9, 9, when);
                    if (!b->is_emulated) check_slice(b, &c, &all, 100, 97, when), check_slice(b, &c, &all, 3, 64, when);
                }
            CHECK_OK(tgl_set_num_sms(b->device.device_id, 0));
            CHECK_OK(tgl_set_pdl(had_pdl));
            discard_results(&all), free_call(&c);
        }
}

/* Each call reads what the one before it has written: a layer that repeats, from an embedding on. -> the last input */
static void run_layers(const backend *b, const call *c, uint16_t *to)
{
    const call_arg given[] = { OF_RESIDUAL, OF_FN, OF_SCALE, OF_BASE, OF_INPUT_WEIGHT };
    tensor x, in[5];
    for (int i = 0; i < 5; i++) place_arg(b, &given[i], &in[i]);
    const size_t bytes = tgl_mhc_pre_fwd_workspace_size(&in[0].t, &in[1].t);
    void *const workspace = call_workspace(b, bytes);
    place(b, &x, TGL_BF16, 2, SHAPE(c->tokens, c->hidden), c->residual);
    for (int layer = 0; layer < 6; layer++) {
        CHECK_OK(tgl_mhc_expand_fwd(&x.t, &in[0].t, b->stream));
        CHECK_OK(tgl_mhc_pre_fwd(&in[0].t, &in[1].t, NULL, &in[2].t, &in[3].t, &in[4].t, NULL, NULL, NULL, &x.t, NULL,
                                 NULL, NULL, NULL, &c->params, workspace, bytes, b->stream));
    }
    fetch(b, &x, to);
    for (int i = 0; i < 5; i++) discard(b, &in[i]);
}
TEST(calls_in_a_row)
{
    static const int64_t hidden[] = { 1280, 2560, 7168, 4096, 5120, 6144 }, tokens[] = { 1, 40, 300 };
    const bool had_pdl = tgl_get_pdl();
    FOR_GPUS(b)
        for (int i = 0; i < (b->is_emulated ? 1 : 6); i++)
            for (int k = 0; k < (b->is_emulated ? 2 : 3); k++) {
                call c = random_normed_call(tokens[k], 4, hidden[i], 3);
                uint16_t *const made[] = { memory_of(tokens[k] * hidden[i], 2), memory_of(tokens[k] * hidden[i], 2) };
                for (int has_pdl = 0; has_pdl < 2; has_pdl++) {
                    CHECK_OK(tgl_set_pdl(has_pdl));
                    run_layers(b, &c, made[has_pdl]);
                }
                CHECK_OK(tgl_set_pdl(had_pdl));
                CHECK_THAT(!memcmp(made[0], made[1], (size_t)(2 * tokens[k] * hidden[i])), "%s: %d tokens, hidden %d",
                           b->name, (int)tokens[k], (int)hidden[i]);
                free(made[0]), free(made[1]), free_call(&c);
            }
}

/* For runs with weak memory (tests/run): blocks send each other sums, gates, and with a norm squares and factors. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("mhc_pre_fwd",
                    (const char *const[]){ "num_tokens=9 hidden=1280 norm=none,bf16 repeat=1 sums=exact",
                                           "num_tokens=40 hidden=1280 norm=none,bf16 repeat=1 sums=exact", NULL },
                    b);
}

/* NaN, infinities and numbers that round to infinity, in fn and in the residual: where they are, and nowhere else. */
TEST(odd_numbers_agree)
{
    enum { TOKENS = 12, N = 4, H = 1280, ODD = 11 };
    static const uint32_t odd[ODD] = { 0x7fffffff, 0x7f800001, 0xffc00000, 0x7f800000, 0xff800000, 0x7f7fffff,
                                       0xff7ff000, 0x7f7fefff, 0x00000001, 0x80001000, 0x007fffff };
    FOR_GPUS(b) {
        call c = random_call(TOKENS, N, H, 3);
        float *const fn = (float *)(uintptr_t)c.fn;
        uint16_t *const x = (uint16_t *)(uintptr_t)c.residual;
        for (int j = 0; j < ODD; j++) memcpy(&fn[j * N * H + 401 * j], &odd[j], 4);
        for (int t = 0; t < TOKENS; t++) /* 0 times infinity is no number, and signs would tell too little */
            for (int j = 0; j < ODD; j++) x[t * N * H + 401 * j] = 0x3f80;
        check_kernels(b, &c);
        results made = fused(b, &c);
        for (int t = 0; t < TOKENS; t++) {
            const float *mul = (const float *)made.out[OUT_MUL] + t * 24;
            for (int j = 0; j < 24; j++)
                CHECK_THAT(j < 3   ? isnan(mul[j])
                           : j < 7 ? isinf(mul[j]) && (mul[j] < 0) == (odd[j] >> 31)
                                   : isfinite(mul[j]),
                           "%s: product %d of token %d is %g", b->name, j, t, (double)mul[j]);
        }
        discard_results(&made);
        for (int j = 0; j < ODD; j++) fn[j * N * H + 401 * j] = 0.5f;
        x[1 * N * H + 5] = 0x7fc1, x[2 * N * H + 700] = 0x7f80, x[9 * N * H + 1300] = 0xff80;
        for (int i = 0; i < N * H; i++) x[4 * N * H + i] = 0x8000;
        check_kernels(b, &c);
        free_call(&c);
    }
}

/* A token's bits do not depend on its batch. */
TEST(batches)
{
    FOR_BACKENDS(b) {
        call c = random_normed_call(37, 4, 256, 3);
        results all = fused(b, &c);
        for (int64_t t = 0; t < c.tokens; t += 12) check_slice(b, &c, &all, t, 1, "alone");
        discard_results(&all), free_call(&c);
    }
}

/* ---- numbers from the specification ---- */

static void fill_fn(float *fn, int rows)
{
    for (int j = 0; j < rows; j++)
        for (int k = 0; k < 8; k++) fn[8 * j + k] = (float)((3 * j + 5 * k) % 7 - 3) / 16;
}
static void encode(const float *from, uint16_t *to, int count)
{
    for (int i = 0; i < count; i++) case_encode(TGL_BF16, (double)from[i], &to[i]);
}
static void check_codes(const backend *b, const char *name, const uint16_t *seen, const float *want, int count)
{
    for (int i = 0; i < count; i++)
        CHECK_THAT((float)case_decode(TGL_BF16, &seen[i]) == want[i], "%s: %s[%d] is %.9g, want %.9g", b->name, name, i,
                   case_decode(TGL_BF16, &seen[i]), (double)want[i]);
}

static const float X[] = { 1, -2, 0.5f, 3, /**/ 2, 1, -1, 0.25f };
static const float SCALE[] = { 0.5f, 1, 0.75f }, BASE[] = { -0.375f, -0.25f, -0.125f, 0, 0.125f, 0.25f, 0.375f, 0.5f };

TEST(worked_example)
{
    const float pre[] = { 0.3904198f, 0.4550769f }, post[] = { 0.9034811f, 1.073411f };
    const float comb[] = { 0.5762365f, 0.4230120f, 0.4237625f, 0.5769870f };
    const float out[] = { 1.296875f, -0.326171875f, -0.259765625f, 1.28125f };
    const float products[] = { -0.359375f, 0.09375f, -0.109375f, 0.234375f, 0.90625f, -0.9375f, 0.171875f, -0.359375f };
    float fn[64];
    uint16_t x[8];
    fill_fn(fn, 8), encode(X, x, 8);
    const call c = {
        1, 2, 4, 3, x, fn, NULL, SCALE, BASE, NULL, { .has_pre_eps = true, .pre_eps = 0.01f, .sinkhorn_repeat = 2 }
    };
    FOR_BACKENDS(b) {
        results made = fused(b, &c);
        check_near(b->name, made.out[PRE], pre, 2, 2e-7, 0);
        check_near(b->name, made.out[POST], post, 2, 5e-7, 0);
        check_near(b->name, made.out[COMB], comb, 4, 2e-7, 0);
        check_near(b->name, made.out[OUT_MUL], products, 8, 0, 0);
        CHECK(*(float *)made.out[SQRSUM] == 20.3125f);
        check_codes(b, "out", made.out[OUT], out, 4);
        check_codes(b, "raw", made.out[RAW], out, 4);
        discard_results(&made);
    }
}

/* The norm reads the rounded input: with unrounded squares rstd was 0.64584893 and the last element 1.03125. */
TEST(normed_example)
{
    const float z[] = { 1.875f, -1.6328125f, 1.671875f, 2.0625f, /**/ 2.109375f, -1.34375f, 1.78125f, 1.6796875f };
    const float gain[] = { 1, 2, 0.5f, 1 }, rstd = 0.6463841f;
    /* doc: pre */
    const float pre[] = { 0.35636503f, 0.51678854f }, post[] = { 0.96952057f, 0.96881986f };
    const float comb[] = { 0.50753945f, 0.49245852f, 0.49245957f, 0.50754052f };
    const float raw[] = { 1.7578125f, -1.2734375f, 1.515625f, 1.6015625f };
    const float out[] = { 1.1328125f, -1.6484375f, 0.490234375f, 1.0390625f };
    /* end */
    float fn[64];
    uint16_t x[8];
    fill_fn(fn, 8), encode(z, x, 8);
    const call c = { 1,
                     2,
                     4,
                     3,
                     x,
                     fn,
                     NULL,
                     SCALE,
                     BASE,
                     gain,
                     { .has_pre_eps = true, .pre_eps = 0.01f, .sinkhorn_repeat = 2, .norm = true } };
    FOR_BACKENDS(b) {
        results made = fused(b, &c);
        check_near(b->name, made.out[PRE], pre, 2, 2e-7, 0);
        check_near(b->name, made.out[POST], post, 2, 5e-7, 0);
        check_near(b->name, made.out[COMB], comb, 4, 2e-7, 0);
        check_near(b->name, made.out[RSTD], &rstd, 1, 2e-7, 0);
        check_codes(b, "raw", made.out[RAW], raw, 4);
        check_codes(b, "out", made.out[OUT], out, 4);
        discard_results(&made);
    }
}

TEST(head_example)
{
    const float scale[] = { 1.5f }, base[] = { 0.1f, -0.2f }, pre[] = { 0.4507053f, 0.4820921f };
    const float out[] = { 1.4140625f, -0.419921875f, -0.255859375f, 1.46875f };
    float fn[16];
    uint16_t x[8];
    fill_fn(fn, 2), encode(X, x, 8);
    const call c = { 1, 2, 4, 1, x, fn, NULL, scale, base, NULL, { .has_pre_eps = true, .pre_eps = 0.01f } };
    FOR_BACKENDS(b) {
        results made = fused(b, &c);
        check_near(b->name, made.out[PRE], pre, 2, 2e-7, 0);
        check_codes(b, "out", made.out[OUT], out, 4);
        discard_results(&made);
    }
}

/* Zero rows; epsilons of 0 and 1e-20 are no defaults; a NaN stays in its token. */
TEST(special_values)
{
    const float rows[] = { 0, 0,   0,  0,     0,      0,  0,    0, /**/ 1, -2, 0.5f, 3,
                           2, NAN, -1, 0.25f, /**/ 1, -2, 0.5f, 3, 2,      1,  -1,   0 };
    float fn[64];
    uint16_t x[24];
    fill_fn(fn, 8), encode(rows, x, 24);
    call c = { 3,
               2,
               4,
               3,
               x,
               fn,
               NULL,
               SCALE,
               BASE,
               NULL,
               { .has_rms_eps = true, .rms_eps = 1e-20f, .has_norm_eps = true, .norm_eps = 1e-20f, .norm = true } };
    FOR_BACKENDS(b) {
        for (int is_zero = 0; is_zero < 2; is_zero++) {
            c.params.rms_eps = c.params.norm_eps = is_zero ? 0 : 1e-20f;
            results made = fused(b, &c);
            const float *pre = made.out[PRE], *comb = made.out[COMB], *rstd = made.out[RSTD];
            const uint16_t *out = made.out[OUT];
            CHECK((isnan(pre[0]) != 0) == is_zero && (isnan(comb[0]) != 0) == is_zero);
            CHECK(is_zero ? isnan(rstd[0]) : rstd[0] == 1e10f);
            CHECK(is_zero || (out[0] == 0 && out[3] == 0));
            CHECK(isnan(pre[2]) && isnan(comb[4]) && isnan(rstd[1]) && out[4] == 0x7fff);
            CHECK(!isnan(pre[4]) && !isnan(comb[8]) && !isnan(rstd[2]) && out[8] != 0x7fff);
            discard_results(&made);
        }
    }
}

TEST(graph)
{
    check_replayed("mhc_pre_fwd", "num_tokens=70 hidden=128 norm=bf16 wanted=abcdefg repeat=2", 1);
    check_replayed("mhc_pre_fwd", "num_tokens=9 hidden=1280 norm=bf16 wanted=abcdefg repeat=2", 1); /* split */
    check_replayed("mhc_pre_fwd", "num_tokens=40 hidden=1280 wanted=abcdfg repeat=2", 1);           /* stream */
    check_replayed("mhc_pre_fwd", "num_tokens=40 hidden=1280 norm=bf16 wanted=abcdefg repeat=2 sums=exact", 1);
}

/* ---- errors ---- */

#define SIZES_OF_CALL "num_streams=2 hidden=5 num_groups=3 norm=1"
#define GOOD_CALL CALL_OF(mhc_pre_fwd, "num_tokens=3 " SIZES_OF_CALL)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "residual: dtype is f16, want bf16");
    CHECK_ERROR(x[1].shape[0] = 7, "fn: shape is [7, 10], want [8, 10]");
    CHECK_ERROR(x[3].shape[0] = 2; x[1].shape[0] = x[4].shape[0] = x[12].shape[1] = 4;
                x[12].strides = NULL, "scale: shape is [2], want [3] with comb_mix");
}

TEST(errors_of_workspace) { check_workspace_errors(WORKSPACE_OF(mhc_pre_fwd), "num_tokens=3 " SIZES_OF_CALL); }
TEST(empty) { check_empty(CALL_OF(mhc_pre_fwd, "num_tokens=0 " SIZES_OF_CALL)); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
