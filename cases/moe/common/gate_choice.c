/* SPDX-License-Identifier: MIT */
#include "gate.h"

#include <math.h>
#include <stdlib.h>

/* ---- scores and keys ---- */

float gate_score(tgl_moe_scoring scoring, float logit)
{
    const double x = (double)logit;
    if (isnan(logit)) return 0;
    switch (scoring) {
    case TGL_MOE_SIGMOID: return (float)(1 / (double)(float)(1 + (double)(float)exp(-x)));
    case TGL_MOE_SQRTSOFTPLUS: return (float)sqrt(x > 20 ? x : (double)(float)log1p((double)(float)exp(x)));
    default: return logit;
    }
}

/* Is the score independent of the accuracy of exp and log1p? */
static bool is_exact(tgl_moe_scoring scoring, float x)
{
    switch (scoring) {
    case TGL_MOE_SIGMOID: return isnan(x) || x >= 17.5f || x < -89 || fabsf(x) < 1e-30f;
    case TGL_MOE_SQRTSOFTPLUS: return isnan(x) || x > 20 || x < -104;
    default: return true;
    }
}

static gate_rank rank_of(tgl_moe_scoring scoring, float logit, float bias)
{
    const double score = (double)gate_score(scoring, logit);
    const double slack = is_exact(scoring, logit) ? 0 : ldexp(1, -20);
    gate_rank r = { (float)(score + (double)bias), (float)(score * (1 - slack) + (double)bias),
                    (float)(score * (1 + slack) + (double)bias), logit, bias };
    if (isnan(logit)) r.key = r.low = r.high = -INFINITY;
    r.key = moe_ranked(r.key), r.low = moe_ranked(r.low), r.high = moe_ranked(r.high);
    return r;
}

/* Are two keys equal in every library, computed from the same numbers? */
static bool is_same(const gate_rank *a, const gate_rank *b)
{
    const bool same_logit = a->logit == b->logit || (isnan(a->logit) && isnan(b->logit)) ||
                            (fabsf(a->logit) < 1e-30f && fabsf(b->logit) < 1e-30f);
    return same_logit && (a->bias == b->bias || (isnan(a->bias) && isnan(b->bias)));
}

/* a ranks before b here; does it in every library? */
static bool is_apart(float a_low, float a_high, float b_low, float b_high)
{
    return a_low > b_high || (a_low == a_high && b_low == b_high);
}
static bool is_before(const gate_rank *a, const gate_rank *b)
{
    return is_same(a, b) || is_apart(a->low, a->high, b->low, b->high);
}

/* ---- the choice of experts ---- */

gate_chooser gate_open_chooser(const case_problem *c)
{
    const int64_t n = c->tensors[LOGITS].shape[1];
    return (gate_chooser){ c,
                           case_memory(n, sizeof(gate_rank)),
                           case_memory(n, sizeof(moe_candidate)),
                           case_memory(n, sizeof(moe_candidate)),
                           case_memory(n, sizeof(float)),
                           case_memory(n, sizeof(float)),
                           case_memory(2 * n, sizeof(int64_t)),
                           case_memory(n, sizeof(bool)) };
}

void gate_close_chooser(gate_chooser *h)
{
    free(h->keys), free(h->sorted), free(h->groups), free(h->low), free(h->high), free(h->best);
    free(h->is_kept);
}

static int higher_first(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

static float sum_of_two(float a, float b) { return moe_ranked((float)((double)a + (double)b)); }

/* The sum of the two best keys of group j, which has p experts, and its bounds. */
static void weigh_group(gate_chooser *h, int64_t j, int64_t p)
{
    moe_candidate *experts = h->sorted;
    float *lows = case_memory(p, sizeof *lows), *highs = case_memory(p, sizeof *highs);
    for (int64_t i = 0; i < p; i++) {
        const gate_rank *r = &h->keys[j * p + i];
        experts[i] = (moe_candidate){ r->key, j * p + i };
        lows[i] = r->low, highs[i] = r->high;
    }
    qsort(experts, (size_t)p, sizeof *experts, moe_better_first);
    qsort(lows, (size_t)p, 4, higher_first);
    qsort(highs, (size_t)p, 4, higher_first);
    h->best[2 * j] = experts[0].index, h->best[2 * j + 1] = experts[p > 1].index;
    h->groups[j] = (moe_candidate){ p > 1 ? sum_of_two(experts[0].score, experts[1].score) : experts[0].score, j };
    h->low[j] = p > 1 ? sum_of_two(lows[0], lows[1]) : lows[0];
    h->high[j] = p > 1 ? sum_of_two(highs[0], highs[1]) : highs[0];
    free(lows), free(highs);
}

/* Marks the experts of the groups that stay. True if that is decided. */
static bool keep_groups(gate_chooser *h, int64_t num_experts)
{
    const int64_t n = gate_params_of(h->c)->num_groups, kept = gate_params_of(h->c)->num_topk_groups;
    bool is_decided = true;
    for (int64_t e = 0; e < num_experts; e++) h->is_kept[e] = n == kept;
    if (n == kept || num_experts == 0) return true;
    const int64_t p = num_experts / n;
    for (int64_t j = 0; j < n; j++) weigh_group(h, j, p);
    qsort(h->groups, (size_t)n, sizeof *h->groups, moe_better_first);
    for (int64_t i = 0; i < kept; i++) {
        const int64_t in = h->groups[i].index;
        for (int64_t e = 0; e < p; e++) h->is_kept[in * p + e] = true;
        for (int64_t o = kept; o < n; o++) {
            const int64_t out = h->groups[o].index;
            const bool is_same_worth = is_same(&h->keys[h->best[2 * in]], &h->keys[h->best[2 * out]]) &&
                                       is_same(&h->keys[h->best[2 * in + 1]], &h->keys[h->best[2 * out + 1]]);
            is_decided &= is_same_worth || is_apart(h->low[in], h->high[in], h->low[out], h->high[out]);
        }
    }
    return is_decided;
}

bool gate_choose(gate_chooser *h, int64_t row)
{
    const float *bias = (const float *)h->c->tensors[BIAS].data;
    const int64_t num_experts = h->c->tensors[LOGITS].shape[1], num_topk = gate_num_topk(h->c);
    const tgl_moe_scoring scoring = gate_params_of(h->c)->scoring;
    for (int64_t e = 0; e < num_experts; e++)
        h->keys[e] = rank_of(scoring, gate_logit(h->c, row, e), gate_is_given(h->c, BIAS) ? bias[e] : 0);
    bool is_decided = keep_groups(h, num_experts);
    int64_t n = 0;
    for (int64_t e = 0; e < num_experts; e++)
        if (h->is_kept[e]) h->sorted[n++] = (moe_candidate){ h->keys[e].key, e };
    qsort(h->sorted, (size_t)n, sizeof *h->sorted, moe_better_first);
    for (int64_t k = 1; k < num_topk; k++)
        is_decided &= is_before(&h->keys[h->sorted[k - 1].index], &h->keys[h->sorted[k].index]);
    for (int64_t k = num_topk; num_topk > 0 && k < n; k++)
        is_decided &= is_before(&h->keys[h->sorted[num_topk - 1].index], &h->keys[h->sorted[k].index]);
    return is_decided;
}
