/* SPDX-License-Identifier: MIT
 * The scoring functions of the gates, on every device of the tests. A hash_gate without renormalisation
 * returns plain scores; those of top2_sum_gate are the same (test_hash_gate.c). */
#include "gates.h"

enum { PER_TOKEN = 32 };

/* The scores of up to MAX_SLOTS logits, PER_TOKEN per token: the row of a softmax. */
static const float *scores_of(const backend *b, int scoring, const float *logits, int64_t count)
{
    static gate_result r;
    static float padded[MAX_SLOTS];
    static int64_t ids[MAX_SLOTS / PER_TOKEN], table[PER_TOKEN];
    memset(padded, 0, sizeof padded);
    memcpy(padded, logits, (size_t)count * 4);
    for (int i = 0; i < PER_TOKEN; i++) table[i] = i;
    gate g = { .num_tokens = (count + PER_TOKEN - 1) / PER_TOKEN,
               .num_experts = PER_TOKEN,
               .num_topk = PER_TOKEN,
               .logits = padded,
               .vocabulary = 1,
               .input_ids = ids,
               .tid2eid = table };
    g.params = (tgl_moe_gate_params){ .scoring = (tgl_moe_scoring)scoring, .no_renormalize = true };
    CHECK_OK(call_gate(b, TGL_I64, &g, &r));
    return r.weights;
}

static void check_scores(int scoring, const float *logits, const float *want, int64_t count, float tolerance)
{
    FOR_BACKENDS(b) check_weights(b, scores_of(b, scoring, logits, count), want, count, tolerance);
}
#define LOGITS(...) ((const float[]){ __VA_ARGS__ })

TEST(examples)
{
    /* doc: scores */
    check_scores(TGL_MOE_SIGMOID, LOGITS(0, 2, -1, 1), WEIGHTS(0.5f, 0.880797f, 0.268941f, 0.731059f), 4, 5e-7f);
    check_scores(TGL_MOE_SQRTSOFTPLUS, LOGITS(0, 2, -1, 1), WEIGHTS(0.832555f, 1.458399f, 0.559698f, 1.145976f), 4,
                 5e-7f);
    check_scores(TGL_MOE_SIGMOID, LOGITS(-100, 100), WEIGHTS(0, 1), 2, 0);
    check_scores(TGL_MOE_SQRTSOFTPLUS, LOGITS(-200, 25, 100), WEIGHTS(0, 5, 10), 3, 0);
    /* end */
    float row[PER_TOKEN] = { 0, 2, -1, 1 };
    const float want[PER_TOKEN] = { 0.087144f, 0.643914f, 0.032059f, 0.236883f };
    for (int i = 4; i < PER_TOKEN; i++) row[i] = -INFINITY;
    check_scores(TGL_MOE_SOFTMAX, row, want, PER_TOKEN, 5e-7f);
}

TEST(what_needs_no_rounding)
{
    const float tiny = 1e-45f;
    check_scores(TGL_MOE_SIGMOID, LOGITS(0, -0.0f, tiny, -tiny, 20, 1e30f, INFINITY, -INFINITY, -1e30f, NAN),
                 WEIGHTS(0.5f, 0.5f, 0.5f, 0.5f, 1, 1, 1, 0, 0, 0), 10, 0);
    check_scores(TGL_MOE_SQRTSOFTPLUS, LOGITS(25, 36, 20.25f, 1e30f, INFINITY, -INFINITY, -105, NAN, -NAN),
                 WEIGHTS(5, 6, 4.5f, 1e15f, INFINITY, 0, 0, 0, 0), 9, 0);
    check_scores(TGL_MOE_IDENTITY, LOGITS(0, -3, 1e-45f, 3e38f, INFINITY, -INFINITY, NAN),
                 WEIGHTS(0, -3, 1e-45f, 3e38f, INFINITY, -INFINITY, 0), 7, 0);
}

/* Steps between two floats. */
static int64_t steps(float a, float b)
{
    int32_t x, y;
    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    return x > y ? (int64_t)x - y : (int64_t)y - x;
}

/* Every step of the formula rounded to a float. */
static float sigmoid(float x) { return (float)(1 / (double)(float)(1 + (double)(float)exp(-(double)x))); }
static float sqrtsoftplus(float x)
{
    return (float)sqrt(x > 20 ? (double)x : (double)(float)log1p((double)(float)exp((double)x)));
}

/* With exp within two steps of the true value, 1 + exp is off by at most one and a half steps beyond its own
 * rounding, and the division adds a half; an error of two steps in log1p is halved by the root. So four steps
 * are a bound for both, without subnormals. */
TEST(accuracy)
{
    static float logits[MAX_SLOTS];
    const int rounds = test_slow() ? 200 : 1;
    for (int round = 0; round < rounds; round++) {
        char name[32];
        snprintf(name, sizeof name, "accuracy %d", round);
        test_random r = test_seed(name);
        for (int i = 0; i < MAX_SLOTS; i++) {
            const double u = (double)test_below(&r, 1 << 30) / (1 << 30);
            logits[i] = (float)(i % 4 ? i % 4 == 1 ? 40 * u - 20 : 8 * u - 4 : 167 * u - 85);
        }
        FOR_BACKENDS(b)
            for (int scoring = 0; scoring < 2; scoring++) {
                const float *seen = scores_of(b, scoring, logits, MAX_SLOTS);
                int64_t largest = 0, where = 0;
                for (int64_t i = 0; i < MAX_SLOTS; i++) {
                    const float want = scoring ? sqrtsoftplus(logits[i]) : sigmoid(logits[i]);
                    if (steps(seen[i], want) > largest) largest = steps(seen[i], want), where = i;
                }
                CHECK_THAT(largest <= 4, "%s: score %d of %a is %a, %d steps from %a", b->name, scoring,
                           (double)logits[where], (double)seen[where], (int)largest,
                           (double)(scoring ? sqrtsoftplus(logits[where]) : sigmoid(logits[where])));
            }
    }
}

/* Where exp is subnormal, it may be two units of 2^-149 off, and a score's square with it. */
TEST(accuracy_of_subnormals)
{
    static float logits[MAX_SLOTS];
    const double unit = ldexp(1, -149);
    for (int i = 0; i < MAX_SLOTS; i++) logits[i] = -86 - 18 * (float)i / MAX_SLOTS;
    FOR_BACKENDS(b) {
        const float *seen = scores_of(b, TGL_MOE_SQRTSOFTPLUS, logits, MAX_SLOTS);
        for (int i = 0; i < MAX_SLOTS; i++) {
            const double softplus = log1p(exp((double)logits[i])), square = (double)seen[i] * (double)seen[i];
            if (!CHECK_THAT(fabs(square - softplus) <= 2 * unit + softplus * 1e-6, "%s: score of %a is %a", b->name,
                            (double)logits[i], (double)seen[i]))
                break;
        }
    }
}

/* sqrtsoftplus switches formulas at 20, without a jump. */
TEST(the_forms_meet)
{
    float logits[PER_TOKEN];
    float x = 20;
    for (int i = 0; i < PER_TOKEN / 2; i++) x = nextafterf(x, 0);
    for (int i = 0; i < PER_TOKEN; i++) logits[i] = x, x = nextafterf(x, 100);
    FOR_BACKENDS(b) {
        const float *seen = scores_of(b, TGL_MOE_SQRTSOFTPLUS, logits, PER_TOKEN);
        for (int i = 0; i < PER_TOKEN; i++)
            CHECK_THAT(steps(seen[i], (float)sqrt((double)logits[i])) <= (logits[i] > 20 ? 0 : 2),
                       "%s: score of %a is %a", b->name, (double)logits[i], (double)seen[i]);
    }
}

TEST(softmax) /* against double; rows far from 0, rows with few relevant logits */
{
    static float logits[MAX_SLOTS];
    test_random r = test_seed("softmax");
    for (int i = 0; i < MAX_SLOTS; i++) {
        const int kind = i / PER_TOKEN % 5;
        const float x = random_normal(&r);
        logits[i] = kind == 0   ? x
                    : kind == 1 ? 20 * x
                    : kind == 2 ? 1e4f + x
                    : kind == 3 ? -1e30f * fabsf(x)
                    : i % 3     ? -INFINITY
                                : x;
    }
    logits[7] = NAN;
    FOR_BACKENDS(b) {
        const float *seen = scores_of(b, TGL_MOE_SOFTMAX, logits, MAX_SLOTS);
        for (int64_t t = 0; t < MAX_SLOTS / PER_TOKEN; t++) {
            const float *row = logits + t * PER_TOKEN;
            double largest = -INFINITY, sum = 0;
            for (int i = 0; i < PER_TOKEN; i++)
                if ((double)row[i] > largest) largest = (double)row[i];
            for (int i = 0; i < PER_TOKEN; i++)
                if (!isnan(row[i])) sum += exp((double)row[i] - largest);
            for (int i = 0; i < PER_TOKEN; i++) {
                const double want = isnan(row[i]) ? 0 : exp((double)row[i] - largest) / sum;
                const double is = (double)seen[t * PER_TOKEN + i];
                CHECK_THAT(fabs(is - want) <= 1e-8 + 2e-6 * want,
                           "%s: score of expert %d of token %d is %.9g, want %.9g", b->name, i, (int)t, is, want);
            }
        }
    }
}
