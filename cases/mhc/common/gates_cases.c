/* SPDX-License-Identifier: MIT */
#include "gates_cases.h"

#include <math.h>

typedef struct { int64_t n, groups, columns; } sizes;
static sizes sizes_of(const case_problem *c)
{
    const int64_t groups = c->tensors[GATES_SCALE].shape[0], columns = c->tensors[GATES_BASE].shape[0];
    int64_t n = columns / groups;
    if (groups == 3)
        for (n = 0; n * (n + 2) < columns;) n++;
    return (sizes){ n, groups, columns };
}

tgl_status gates_add_inputs(case_problem *c, bool is_head)
{
    const int64_t n = case_int(c, "num_streams"), groups = is_head ? 1 : case_int(c, "comb") ? 3 : 2;
    const int64_t columns = groups == 3 ? n * (n + 2) : groups * n;
    tgl_mhc_params params = { 0 };
    if (!is_head) params.has_post_mult = true, params.post_mult = (float)mhc_number(c, "post_mult");
    memcpy(c->scalars, &params, sizeof params);
    case_tensor *mixes =
        case_add(c, GATES_MIXES, "mixes", CASE_IN, TGL_F32, 2, (int64_t[]){ case_int(c, "num_tokens"), columns });
    mixes->strides[0] += case_int(c, "gap");
    mixes->offset = case_int(c, "offset");
    mixes->fill = mhc_fill_values;
    case_add(c, GATES_SCALE, "scale", CASE_IN, TGL_F32, 1, &groups)->fill = case_fill_normal;
    case_add(c, GATES_BASE, "base", CASE_IN, TGL_F32, 1, &columns)->fill = case_fill_normal;
    return case_check_word(c, "values", MHC_VALUES);
}

static void add(case_problem *c, int index, const char *name, case_role role, int group)
{
    const sizes s = sizes_of(c);
    case_add(c, index, name, role, TGL_F32, group == 2 ? 3 : 2,
             (int64_t[]){ c->tensors[GATES_MIXES].shape[0], s.n, s.n })
        ->fill = case_fill_normal;
}

tgl_status gates_add_outputs(case_problem *c, const char *wanted)
{
    static const char *const names[] = { "pre_mix", "post_mix", "comb" };
    static const char *const grads[] = { "grad_pre_mix", "grad_post_mix", "grad_comb" };
    for (int group = 0; group < sizes_of(c).groups; group++) {
        if (!wanted) add(c, GATES_FIRST_OUTPUT + group, names[group], CASE_OUT, group);
        else if (strchr(wanted, "abc"[group])) add(c, GATES_GRAD_PRE + group, grads[group], CASE_IN, group);
    }
    return TGL_OK;
}

tgl_status gates_add_grads(case_problem *c)
{
    const sizes s = sizes_of(c);
    case_add(c, GATES_GRAD_MIXES, "grad_mixes", CASE_OUT, TGL_F32, 2,
             (int64_t[]){ c->tensors[GATES_MIXES].shape[0], s.columns });
    case_add(c, GATES_GRAD_SCALE, "grad_scale", CASE_OUT, TGL_F32, 1, &s.groups);
    case_add(c, GATES_GRAD_BASE, "grad_base", CASE_OUT, TGL_F32, 1, &s.columns);
    return TGL_OK;
}

/* ---- oracles ---- */

static int group_of(const sizes *s, int64_t j) { return (int)(j / s->n < 2 ? j / s->n : 2); }

static float logit(const case_problem *c, const sizes *s, int64_t t, int64_t j)
{
    return fmaf(mhc_at(&c->tensors[GATES_MIXES], (int64_t[]){ t, j }),
                mhc_at(&c->tensors[GATES_SCALE], (int64_t[]){ group_of(s, j) }), mhc_at(&c->tensors[GATES_BASE], &j));
}

float gates_logit(const case_problem *c, int64_t t, int64_t j)
{
    const sizes s = sizes_of(c);
    return logit(c, &s, t, j);
}

/* Where column j of token t is in the tensor of its group. */
static void find(const sizes *s, int64_t t, int64_t j, int64_t at[3])
{
    const int64_t k = j - group_of(s, j) * s->n;
    at[0] = t, at[1] = group_of(s, j) == 2 ? k / s->n : k, at[2] = k % s->n;
}

void gates_oracle_fwd(case_problem *c)
{
    const tgl_mhc_params *p = (const void *)c->scalars;
    const sizes s = sizes_of(c);
    const float pre_eps = p->has_pre_eps ? p->pre_eps : 1e-6f;
    for (int64_t t = 0; t < c->tensors[GATES_MIXES].shape[0]; t++)
        for (int64_t j = 0; j < s.columns; j++) {
            const int group = group_of(&s, j);
            const float z = logit(c, &s, t, j);
            int64_t at[3];
            find(&s, t, j, at);
            const float post = mhc_sigmoid_of(z) * p->post_mult;
            mhc_put(&c->tensors[GATES_FIRST_OUTPUT + group], at,
                    group == 0   ? mhc_sigmoid_of(z) + pre_eps
                    : group == 1 ? (p->post_eps != 0 ? post + p->post_eps : post)
                                 : z);
        }
}

void gates_oracle_bwd(case_problem *c)
{
    const tgl_mhc_params *p = (const void *)c->scalars;
    const sizes s = sizes_of(c);
    const int64_t tokens = c->tensors[GATES_MIXES].shape[0];
    double of_scale[3] = { 0, 0, 0 };
    for (int64_t j = 0; j < s.columns; j++) {
        const int group = group_of(&s, j);
        const case_tensor *grad = &c->tensors[GATES_GRAD_PRE + group];
        double totals[2][8] = { { 0 } }; /* chunks of 64 tokens in turn */
        float sums[2][16] = { { 0 } };   /* tokens of a chunk in turn */
        for (int64_t t = 0; t < tokens; t++) {
            int64_t at[3];
            find(&s, t, j, at);
            float g = grad->name ? mhc_at(grad, at) : 0;
            const float gate = mhc_sigmoid_of(logit(c, &s, t, j));
            if (group == 1) g = g * p->post_mult;
            if (group < 2) g = g * gate * (1 - gate);
            mhc_put(&c->tensors[GATES_GRAD_MIXES], (int64_t[]){ t, j },
                    g * mhc_at(&c->tensors[GATES_SCALE], (int64_t[]){ group }));
            sums[0][t % 16] = sums[0][t % 16] + g;
            sums[1][t % 16] = fmaf(g, mhc_at(&c->tensors[GATES_MIXES], (int64_t[]){ t, j }), sums[1][t % 16]);
            if (t % 64 < 63 && t + 1 < tokens) continue;
            for (int i = 0; i < 2; i++) totals[i][t / 64 % 8] += (double)mhc_sum_as_tree(sums[i], 16, 1);
            memset(sums, 0, sizeof sums);
        }
        for (int i = 0; i < 2; i++)
            for (int64_t span = 1; span < 8; span *= 2)
                for (int64_t k = 0; k < 8; k += 2 * span) totals[i][k] += totals[i][k + span];
        mhc_put(&c->tensors[GATES_GRAD_BASE], &j, totals[0][0]);
        of_scale[group] += totals[1][0];
    }
    for (int64_t i = 0; i < s.groups; i++) mhc_put(&c->tensors[GATES_GRAD_SCALE], &i, of_scale[i]);
}
