/* SPDX-License-Identifier: MIT */
#include "gate_cases.h"

#include <float.h>
#include <math.h>

#include "core/status.h"

/* ---- inputs ---- */

enum { NORMAL, ZEROS, SPECIAL, LARGE, TINY };
static int values_of(const case_problem *c) { return case_word(c, "values", "normal zeros special large tiny"); }

double gate_scale(const case_problem *c)
{
    const int values = values_of(c);
    return values == LARGE ? 1e4 : values == TINY ? 1e-15 : 1;
}

float gate_clamp(const case_problem *c)
{
    return case_is(c, "clamp", "half") ? 0.5f : case_is(c, "clamp", "zero") ? 0 : 1e-6f;
}

bool gate_is_masked(const case_problem *c, int64_t token)
{
    return c->tensors[GATE_MASK].name && engram_integer(&c->tensors[GATE_MASK], &token);
}

typedef struct {
    const case_problem *c;
    case_tensor *t;
    uint64_t seed;
} filling;

/* Rows of zeros, special and scaled values over normal ones. Of masked tokens keys and values are full of NaN, and
 * every second row of the others: those between would show a NaN that gets through. */
static void change_rows(void *context, int64_t begin, int64_t end)
{
    static const double special[] = { INFINITY, -INFINITY, NAN, 0, -0.0 };
    const filling *f = context;
    case_tensor *t = f->t;
    const int64_t streams = t->ndim > 2 ? t->shape[1] : 1, hidden = t->shape[t->ndim - 1];
    const int values = values_of(f->c), which = (int)(t - f->c->tensors);
    const double scale = gate_scale(f->c);
    for (int64_t row = begin; row < end; row++) {
        const int64_t token = row / streams, h = row % streams;
        const bool is_nan = gate_is_masked(f->c, token) && (which == GATE_K || which == GATE_V || row % 2);
        const bool is_zero =
            values == ZEROS && ((which == GATE_X && row % 3 == 0) || (which == GATE_K && row % 2 == 0));
        if (values == NORMAL && !is_nan) continue;
        for (int64_t i = 0; i < hidden; i++) {
            void *at = case_element(t, t->ndim > 2 ? (int64_t[]){ token, h, i } : (int64_t[]){ token, i });
            const int64_t n = row * hidden + i;
            const bool is_special = values == SPECIAL && case_random_below(f->seed + 1, n, 500) == 0;
            if (is_nan) *(uint16_t *)at = (uint16_t)(0x7f81 + case_random_below(f->seed, n, 100));
            else
                case_encode(t->dtype,
                            is_zero      ? 0
                            : is_special ? special[case_random_below(f->seed + 2, n, 5)]
                                         : case_decode(t->dtype, at) * scale,
                            at);
        }
    }
}

void gate_fill_rows(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_normal(c, t, seed);
    const int64_t rows = t->shape[0] * (t->ndim > 2 ? t->shape[1] : 1);
    case_parallel(rows, 32 * t->shape[t->ndim - 1], change_rows, &(filling){ c, t, seed });
}

case_tensor *gate_add_rows(case_problem *c, int index, const char *name, case_role role, bool has_streams)
{
    const int64_t t = case_int(c, "num_tokens"), h = case_int(c, "num_streams"), d = case_int(c, "hidden");
    const int layout = case_word(c, "layout", "packed kv gaps outside");
    const int64_t row = d + (layout == 2 ? case_int(c, "gap") : 0);
    const bool is_of_kv =
        layout == 1 && (!strncmp(name, "k", 1) || !strncmp(name, "v", 1) || strstr(name, "_k") || strstr(name, "_v"));
    case_tensor *made = has_streams ? case_add(c, index, name, role, TGL_BF16, 3, (int64_t[]){ t, h, d })
                                    : case_add(c, index, name, role, TGL_BF16, 2, (int64_t[]){ t, d });
    made->offset = case_int(c, "offset");
    made->strides[0] = is_of_kv ? (h + 1) * d : has_streams ? (layout == 3 ? row : h * row) : row;
    if (has_streams) made->strides[1] = layout == 3 ? t * row : row;
    if (layout == 2 && has_streams) made->strides[0] += case_int(c, "gap");
    made->fill = gate_fill_rows;
    made->low = -1, made->high = 1;
    return made;
}

tgl_status gate_add_inputs(case_problem *c, const char *mask_name)
{
    TGL_TRY(case_check_word(c, "weights", "fused bf16 f32"));
    TGL_TRY(case_check_word(c, "values", "normal zeros special large tiny"));
    TGL_TRY(case_check_word(c, "layout", "packed kv gaps outside"));
    TGL_TRY(case_check_word(c, "clamp", "small half zero"));
    TGL_TRY(case_check_word(c, "mask", "none no all some"));
    const int64_t shape[] = { case_int(c, "num_streams"), case_int(c, "hidden") };
    engram_add_mask(c, GATE_MASK, mask_name, case_int(c, "num_tokens"));
    gate_add_rows(c, GATE_X, "hidden_states", CASE_IN, true);
    gate_add_rows(c, GATE_K, "k", CASE_IN, true);
    gate_add_rows(c, GATE_V, "v", CASE_IN, false);
    const bool is_fused = case_is(c, "weights", "fused");
    const tgl_dtype dtype = case_is(c, "weights", "bf16") ? TGL_BF16 : TGL_F32;
    for (int i = GATE_WEIGHT_HIDDEN; i <= (is_fused ? GATE_WEIGHT_HIDDEN : GATE_WEIGHT_EMBED); i++) {
        const char *name = i == GATE_WEIGHT_HIDDEN ? "weight_hidden" : "weight_embed";
        case_tensor *w = case_add(c, i, name, CASE_IN, dtype, 2, shape);
        w->fill = case_fill_normal;
        w->offset = case_int(c, "offset");
        if (case_is(c, "layout", "gaps")) w->strides[0] += case_int(c, "gap");
    }
    return TGL_OK;
}

/* ---- oracles ---- */

double gate_at(const case_tensor *t, int64_t token, int64_t stream, int64_t i)
{
    const int64_t in_stream[] = { token, stream, i }, in_token[] = { token, i };
    return case_decode(t->dtype, case_element(t, t->ndim > 2 ? in_stream : in_token));
}

double gate_weight_of(const case_problem *c, int64_t stream, int64_t i)
{
    const case_tensor *hidden = &c->tensors[GATE_WEIGHT_HIDDEN], *embed = &c->tensors[GATE_WEIGHT_EMBED];
    const int64_t index[] = { stream, i };
    const double h = case_decode(hidden->dtype, case_element(hidden, index));
    if (!embed->name) return h;
    const double e = case_decode(embed->dtype, case_element(embed, index));
    if (case_is(c, "zero_centered", "0")) return (float)(h * e); /* of two floats: exact in double */
    return (float)((double)(float)(1 + h) * (double)(float)(1 + e));
}

float gate_tree(const float *values, int count, int step)
{
    if (count == 1) return *values;
    return gate_tree(values, count / 2, 2 * step) + gate_tree(values + step, count / 2, 2 * step);
}

void gate_put(case_tensor *t, const int64_t *index, double value)
{
    unsigned char *to = case_element(t, index);
    case_encode(t->dtype, value, to);
    if (value == value) return;
    memset(to, 0xff, (size_t)t->element_bytes);
    to[t->element_bytes - 1] = 0x7f;
}

/* ---- oracle: sums in the documented order, the rest in double, rounded where the definition rounds: a gate of 1 and
 * one just below differ in every tie ---- */

enum { SQUARES_X, SQUARES_K, PRODUCTS, NUM_SUMS, NUM_SLOTS = 256, WARP = 32 };
typedef struct { float sum[NUM_SUMS]; } row_sums;

static row_sums sums_of(const case_problem *c, int64_t t, int64_t h)
{
    float slots[NUM_SUMS][NUM_SLOTS] = { { 0 } };
    const int64_t hidden = c->tensors[GATE_X].shape[2];
    for (int s = 0; s < NUM_SLOTS; s++)
        for (int64_t first = 8 * s; first < hidden; first += 8 * NUM_SLOTS)
            for (int64_t i = first; i < first + 8 && i < hidden; i++) {
                const float x = (float)gate_at(&c->tensors[GATE_X], t, h, i);
                const float k = (float)gate_at(&c->tensors[GATE_K], t, h, i), w = (float)gate_weight_of(c, h, i);
                slots[SQUARES_X][s] = fmaf(x, x, slots[SQUARES_X][s]);
                slots[SQUARES_K][s] = fmaf(k, k, slots[SQUARES_K][s]);
                slots[PRODUCTS][s] = fmaf(x * w, k, slots[PRODUCTS][s]);
            }
    row_sums made = { { 0 } };
    for (int i = 0; i < NUM_SUMS; i++)
        for (int group = 0; group < NUM_SLOTS; group += WARP) made.sum[i] += gate_tree(slots[i] + group, WARP, 1);
    return made;
}

static double rsqrt_of(double squares, double hidden, double eps)
{
    const float mean = (float)((float)squares / (float)hidden);
    return (float)(1 / sqrtl((long double)(float)(mean + (float)eps)));
}

gate_numbers_of_row gate_find_numbers(const case_problem *c, const tgl_engram_gate_params *p, int64_t t, int64_t h)
{
    const int64_t hidden = c->tensors[GATE_X].shape[2];
    const row_sums s = sums_of(c, t, h);
    const double dot = s.sum[PRODUCTS];
    const double rstd_x = rsqrt_of(s.sum[SQUARES_X], (double)hidden, p->eps);
    const double rstd_k = rsqrt_of(s.sum[SQUARES_K], (double)hidden, p->eps);
    const float score = (float)dot * (float)rstd_x * (float)rstd_k * (float)(1 / sqrt((double)hidden));
    double u = sqrt(fabs((double)score) < (double)p->clamp_value ? (double)p->clamp_value : fabs((double)score));
    if (score < 0 || (score == 0 && signbit(score))) u = -u;
    if (score == 0 && p->sign == TGL_ENGRAM_SIGN_ZERO) u = 0;
    const double e = exp(-(double)(float)u);
    const double gate = e > (double)FLT_MAX ? 0 : (double)(1.0f / (1.0f + (float)e));
    return (gate_numbers_of_row){ dot, gate, rstd_x, rstd_k };
}
