/* SPDX-License-Identifier: MIT
 * quant_swiglu.c - the cases of SwiGLU fused with casts.
 *
 * exp is not the same to the last bit everywhere, so oracles compute in double, with a bound on what f32 may
 * make of each number: every operation rounds once and exp is off by at most 2 units in the last place.
 * Inputs are drawn again until no code, no bf16 number and no power of two lies within its bound of another
 * one: outputs are then compared bit by bit. What is left to compare within a tolerance are factors that are
 * not rounded (an activation is within 4 units of the last place, its quotient within 4.5: relative 10 *
 * 2^-24) and sums.
 *
 * Values, parameter `values`:
 *   normal     mean 0, deviation 1
 *   mixed      a kind per row: normal, gates of up to +-120, below the floor, zeros of both signs, numbers at
 *              and beside the clamp value */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "quant_common.h"

/* ---- numbers with a bound ---- */

/* A float computed in any allowed way is at most `bound` away from `value`, and of its sign. */
typedef struct { double value, bound; } near;

static near exactly(double value) { return (near){ value, 0 }; }

static near rounded(double value, double bound)
{
    if (value == 0 && bound == 0) return exactly(value);
    return (near){ value, bound + (fabs(value) + bound) * 0x1p-24 + 0x1p-150 };
}

static near times(near a, near b)
{
    return rounded(a.value * b.value, fabs(a.value) * b.bound + fabs(b.value) * a.bound + a.bound * b.bound);
}

static near over(near a, near b)
{
    if (isinf(b.value)) return exactly(a.value / b.value);
    const double quotient = a.value / b.value;
    return rounded(quotient, (a.bound + fabs(quotient) * b.bound) / (fabs(b.value) - b.bound));
}

/* exp(-x), infinite where that is no float. */
static near exp_of_minus(float x)
{
    const double e = exp(-(double)x);
    if (e > (double)FLT_MAX * 1.0001) return exactly(INFINITY);
    if (e > (double)FLT_MAX * 0.9999) return (near){ e, INFINITY };
    return (near){ e, e * 0x1p-22 + 0x1p-149 };
}

static near one_plus(near e)
{
    return isinf(e.value) ? e : rounded(1 + e.value, e.bound);
}

/* The sizes that a float may have. */
static double least(near n) { return fabs(n.value) > n.bound ? fabs(n.value) - n.bound : 0; }
static double most(near n) { return fabs(n.value) + n.bound; }

static bool bf16_of(near n, uint16_t *code)
{
    uint16_t low, high;
    case_encode(TGL_BF16, copysign(least(n), n.value), &low);
    case_encode(TGL_BF16, copysign(most(n), n.value), &high);
    case_encode(TGL_BF16, n.value, code);
    return low == high;
}

static bool code_of(tgl_quant_format format, near n, unsigned *code)
{
    *code = quant_encode(format, (float)copysign(most(n), n.value));
    return *code == quant_encode(format, (float)copysign(least(n), n.value));
}

static near larger(near a, near b)
{
    const double low = fmax(least(a), least(b)), high = fmax(most(a), most(b));
    return (near){ (low + high) / 2, (high - low) / 2 };
}

/* The factor of a block and its inverse. False where a power of two is not decided. */
typedef struct { near sf, inv; } near_scale;
static bool scale_of(near amax, float largest, float floor, bool round, near_scale *scale)
{
    const near a = larger(amax, exactly(floor));
    if (a.bound == 0) {         /* the floor, say: nothing is left open */
        const quant_scale known = quant_scale_of((float)a.value, largest, 0, round);
        *scale = (near_scale){ exactly(known.sf), exactly(known.inv) };
        return true;
    }
    scale->sf = over(a, exactly(largest));
    scale->inv = over(exactly(largest), a);
    if (!round) return true;
    const float low = quant_round_up_to_power((float)least(scale->sf));
    const float high = quant_round_up_to_power((float)most(scale->sf));
    *scale = (near_scale){ exactly(high), exactly(high == 0x1p127f ? 0 : 1 / high) };
    return low == high;
}

/* ---- the activation ---- */

typedef struct { bool is_clamped; float c; } clamping;
static clamping clamping_of(const tgl_quant_params *p)
{
    return (clamping){ p->has_swiglu_clamp_value, p->swiglu_clamp_value };
}

static float gate(clamping k, float l) { return k.is_clamped && l > k.c ? k.c : l; }
static float up(clamping k, float r)
{
    if (k.is_clamped && r > k.c) return k.c;
    return k.is_clamped && r < -k.c ? -k.c : r;
}

static near activation(clamping k, float l, float r)
{
    l = gate(k, l);
    return times(over(exactly(l), one_plus(exp_of_minus(l))), exactly(up(k, r)));
}

/* ---- inputs ---- */

static tgl_status parse_number(const char *name, const char *text, bool *has, float *number)
{
    char *end;
    *has = strcmp(text, "none") != 0;
    *number = *has ? strtof(text, &end) : 0;
    return *has && *end ? tgl_fail(TGL_ERR_ARGUMENT, "%s: is \"%s\", want a number or none", name, text)
                        : TGL_OK;
}

static double unit(uint64_t bits) { return (double)(bits & 0xffffff) * 0x1p-24; }

static bool is_mixed(const case_problem *c) { return !strcmp(case_text(c, "values"), "mixed"); }

typedef struct { const case_problem *c; case_tensor *t; uint64_t seed; bool is_mixed; } drawing;

/* The number at a place, at the n-th attempt. */
static double draw(const drawing *d, uint64_t seed, int64_t row, int64_t col, bool is_gate, int attempt)
{
    const uint64_t r = case_random(case_random(seed + (uint64_t)attempt, row), col);
    const double normal = sqrt(-2 * log(1 - unit(r))) * cos(6.283185307179586 * unit(r >> 24));
    const float clamp = quant_params_in(d->c)->swiglu_clamp_value;
    if (!d->is_mixed) return normal;
    switch (case_random(seed, row) % 8) {
    case 0: return is_gate ? 240 * unit(r) - 120 : normal;
    case 1: return 1e-3 * normal;
    case 2: return r >> 60 & 1 ? -0.0 : 0.0;
    case 3:
        if (r >> 60 >= 8) return normal;
        return (r >> 57 & 1 ? -1 : 1) *
               (double)(r >> 60 < 4 ? nextafterf(clamp, r >> 58 & 1 ? 0 : 9) : clamp);
    case 4: return 30 * normal;
    default: return normal;
    }
}

static tgl_status check_values(const case_problem *c)
{
    const char *values = case_text(c, "values");
    if (!strcmp(values, "normal") || is_mixed(c)) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "values: is \"%s\", want normal or mixed", values);
}

enum { MAX_ATTEMPTS = 1000 };   /* one in thousands needs a second one */

static void put_drawn(const drawing *d, int64_t row, int64_t col, int64_t num_cols, int attempt)
{
    case_encode(d->t->dtype, draw(d, d->seed, row, col, col < num_cols, attempt),
                case_element(d->t, (int64_t[]){ row, col }));
}

/* Bounds of factors that are not rounded, relative. A gradient has a factor that may be nearly 0: blocks that
 * hang on such a one are drawn again. */
#define FORWARD_BOUND 0xap-24
#define BACKWARD_BOUND 0x20p-24

static bool is_within(near n, double bound) { return n.bound <= bound * fabs(n.value); }

/* ---- swiglu_forward_and_per_token_cast ---- */

enum { POS, WEIGHTS, EXPERT, COUNT, X, OUT, SF };

static bool is_skipped(const case_problem *c, int64_t row)
{
    return c->tensors[EXPERT].name && ((const int32_t *)c->tensors[EXPERT].data)[row] < 0;
}

static near weighted(const case_problem *c, int64_t row, int64_t col, int64_t num_cols)
{
    const case_tensor *x = &c->tensors[X], *pos = &c->tensors[POS], *weights = &c->tensors[WEIGHTS];
    const near v = activation(clamping_of(quant_params_in(c)), quant_float_at(x, row, col),
                              quant_float_at(x, row, num_cols + col));
    if (!pos->name) return v;
    const int64_t at = ((const int32_t *)pos->data)[row];
    const bool exists = at >= 0 && at < weights->shape[0] * weights->shape[1];
    return times(v, exactly(exists ? (double)((const float *)weights->data)[at] : 0));
}

/* One block of a row whose weighted activations are v: codes and factor, to be written or only tried. Returns
 * the column that is not decided, or -1. */
static int64_t token_block(const case_problem *c, const near *v, int64_t row, int64_t k, bool is_trial)
{
    const tgl_quant_params *p = quant_params_in(c);
    const int64_t num_cols = c->tensors[X].shape[1] / 2;
    const int64_t width = p->num_per_channels ? p->num_per_channels : num_cols;
    const int64_t begin = k * width, end = begin + width < num_cols ? begin + width : num_cols;
    const float floor = p->has_sf_clamp_min ? p->sf_clamp_min : quant_floor(p->format);
    near amax = exactly(0);
    int64_t largest = begin;
    near_scale scale;
    for (int64_t j = begin; j < end; j++) {
        if (fabs(v[j].value) > amax.value) largest = j;
        amax = larger(amax, v[j]);
    }
    const bool is_decided = scale_of(amax, quant_largest(p->format), floor, p->round_sf, &scale) &&
                            (scale.sf.value == 0 || is_within(scale.sf, FORWARD_BOUND));
    if (!is_decided && is_trial) return largest;
    for (int64_t j = begin; j < end; j++) {
        unsigned code;
        if (!code_of(p->format, times(v[j], scale.inv), &code) && is_trial) return j;
        if (!is_trial) quant_put_code(&c->tensors[OUT], p->format, row, j, code);
    }
    if (!is_trial) quant_put_sf(&c->tensors[SF], row, k, (float)scale.sf.value);
    return -1;
}

static int64_t num_token_blocks(const case_problem *c)
{
    const int64_t num_cols = c->tensors[X].shape[1] / 2, width = quant_params_in(c)->num_per_channels;
    return width ? quant_ceil_div(num_cols, width) : num_cols > 0;
}

static void decide_token_rows(void *context, int64_t begin, int64_t end)
{
    const drawing *d = context;
    const int64_t num_cols = d->t->shape[1] / 2;
    near *v = malloc((size_t)(num_cols + 1) * sizeof *v);
    if (!v) abort();
    for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < 2 * num_cols; j++) put_drawn(d, i, j, num_cols, 0);
        if (is_skipped(d->c, i)) continue;
        for (int64_t j = 0; j < num_cols; j++) v[j] = weighted(d->c, i, j, num_cols);
        for (int64_t k = 0; k < num_token_blocks(d->c); k++)
            for (int attempt = 1; attempt < MAX_ATTEMPTS; attempt++) {
                const int64_t j = token_block(d->c, v, i, k, true);
                if (j < 0) break;
                put_drawn(d, i, j, num_cols, attempt);
                put_drawn(d, i, num_cols + j, num_cols, attempt);
                v[j] = weighted(d->c, i, j, num_cols);
            }
    }
    free(v);
}

static void fill_token_x(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed);         /* gaps */
    case_parallel(t->shape[0], 128 * t->shape[1], decide_token_rows, &(drawing){ c, t, seed, is_mixed(c) });
}

/* Indices of weights; one in eight is out of range, on either side, and one in five as far as it gets. */
static void fill_pos(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const double n = (double)(c->tensors[WEIGHTS].shape[0] * c->tensors[WEIGHTS].shape[1]);
    t->low = -n / 16 - 1, t->high = n + n / 16 + 1;
    case_fill_uniform(c, t, seed);
    for (int64_t i = 4; i < t->shape[0]; i += 5) ((int32_t *)t->data)[i] = i % 2 ? INT32_MIN : INT32_MAX;
}

/* Every `skip`-th row has no expert; its x has any bits (fill_token_x). */
static void fill_expert(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t skip = strtoll(case_text(c, "skip"), NULL, 10);
    for (int64_t i = 0; i < t->shape[0]; i++)
        ((int32_t *)t->data)[i] =
            i % skip == skip - 1 ? (i % 3 == 2 ? INT32_MIN : -1 - (int32_t)(i % 3))
                                 : (int32_t)(case_random(seed, i) & (i % 4 ? 7 : INT32_MAX));
}

static void fill_count(const case_problem *c, case_tensor *t, uint64_t seed)
{
    (void)c;
    for (int i = 0; i < 3; i++) ((int64_t *)t->data)[i] = (int64_t)(case_random(seed, i) >> 20);
}

static tgl_status setup_token(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols"),
                  topk = case_int(c, "weights");
    const int64_t skip = case_int(c, "skip");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_channels = case_int(c, "num_per_channels"),
                             .round_sf = case_int(c, "round") != 0 };
    TGL_TRY(check_values(c));
    TGL_TRY(quant_format_named(case_text(c, "format"), &p->format));
    TGL_TRY(parse_number("clamp", case_text(c, "clamp"), &p->has_swiglu_clamp_value, &p->swiglu_clamp_value));
    TGL_TRY(parse_number("sf_min", case_text(c, "sf_min"), &p->has_sf_clamp_min, &p->sf_clamp_min));
    if (topk) {
        case_add(c, POS, "pos_to_token_topk", CASE_IN, TGL_I32, 1, (int64_t[]){ rows })->fill = fill_pos;
        case_add(c, WEIGHTS, "topk_weights", CASE_IN, TGL_F32, 2, (int64_t[]){ rows / topk + 1, topk })
            ->fill = case_fill_normal;
    }
    if (skip)
        case_add(c, EXPERT, "pos_to_expert", CASE_IN, TGL_I32, 1, (int64_t[]){ rows })->fill = fill_expert;
    if (case_int(c, "count"))
        case_add(c, COUNT, "clamped_count", CASE_INOUT, TGL_I64, 1, (int64_t[]){ 3 })->fill = fill_count;
    case_tensor *x = case_add(c, X, "x", CASE_IN, case_dtype(c, "dtype"), 2, (int64_t[]){ rows, 2 * cols });
    x->offset = case_int(c, "offset");
    x->fill = fill_token_x;
    TGL_TRY(quant_lay_out(case_text(c, "layout"), 2 * cols, x->strides));
    /* rows that are skipped stay as they are: outputs have contents before */
    const case_role role = skip ? CASE_INOUT : CASE_OUT;
    case_tensor *out = case_add(c, OUT, "out", role, quant_data_dtype(p->format, TGL_E2M1X2), 2,
                                (int64_t[]){ rows, quant_data_cols(p->format, cols) });
    out->offset = case_int(c, "out_offset");
    TGL_TRY(quant_add_sf(c, SF, "out_sf", role, case_text(c, "sf"), rows, num_token_blocks(c), &sf));
    sf->fill = case_fill_bits;
    if (!p->round_sf) sf->compare = (case_compare){ .mode = CASE_CLOSE, .rtol = FORWARD_BOUND };
    return TGL_OK;
}

static tgl_status run_token(const case_arguments *a)
{
    return tgl_quant_swiglu_forward_and_per_token_cast(a->arg[X], a->arg[POS], a->arg[WEIGHTS],
                                                       a->arg[EXPERT], a->arg[COUNT], a->arg[OUT], a->arg[SF],
                                                       quant_params_in(a->problem), a->stream);
}

static void token_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *sf = &c->tensors[SF];
    const int64_t num_cols = c->tensors[X].shape[1] / 2;
    near *v = malloc((size_t)(num_cols + 1) * sizeof *v);
    if (!v) abort();
    for (int64_t i = begin; i < end; i++) {
        if (is_skipped(c, i)) continue;
        for (int64_t j = 0; j < num_cols; j++) v[j] = weighted(c, i, j, num_cols);
        for (int64_t k = 0; k < num_token_blocks(c); k++) {
            /* words of packed factors hold zeros past the last: what was there before goes */
            if (sf->dtype == TGL_I32 && k % 4 == 0)
                *(int32_t *)case_element(sf, (int64_t[]){ i, k / 4 }) = 0;
            token_block(c, v, i, k, false);
        }
    }
    free(v);
}

static void oracle_token(case_problem *c)
{
    const case_tensor *x = &c->tensors[X], *count = &c->tensors[COUNT];
    const int64_t num_cols = x->shape[1] / 2;
    const float clamp = quant_params_in(c)->swiglu_clamp_value;
    case_parallel(x->shape[0], 64 * x->shape[1], token_rows, c);
    for (int64_t i = 0; count->name && i < x->shape[0]; i++)
        for (int64_t j = 0; j < num_cols && !is_skipped(c, i); j++) {
            const float l = quant_float_at(x, i, j), r = quant_float_at(x, i, num_cols + j);
            ((int64_t *)count->data)[0] += l > clamp;
            ((int64_t *)count->data)[1] += r > clamp;
            ((int64_t *)count->data)[2] += r < -clamp;
        }
}

/* Rows without an expert are neither read nor written. */
static int64_t bytes_token(const case_problem *c)
{
    const int64_t skip = strtoll(case_text(c, "skip"), NULL, 10), rows = c->tensors[X].shape[0];
    const int64_t skipped = skip ? rows / skip : 0;
    const int64_t of_rows = case_tensor_bytes(&c->tensors[X]) + case_tensor_bytes(&c->tensors[OUT]) +
                            case_tensor_bytes(&c->tensors[SF]);
    return quant_bytes(c) - (rows ? of_rows / rows * skipped : 0);
}

/* ---- swiglu_forward_and_per_channel_cast_and_transpose ---- */

static near activation_at(const case_problem *c, int64_t row, int64_t col)
{
    const case_tensor *x = &c->tensors[X];
    return activation(clamping_of(quant_params_in(c)), quant_float_at(x, row, col),
                      quant_float_at(x, row, x->shape[1] / 2 + col));
}

static void decide_channel_rows(void *context, int64_t begin, int64_t end)
{
    const drawing *d = context;
    const int64_t num_cols = d->t->shape[1] / 2;
    uint16_t code;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < num_cols; j++)
            for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
                put_drawn(d, i, j, num_cols, attempt);
                put_drawn(d, i, num_cols + j, num_cols, attempt);
                if (bf16_of(activation_at(d->c, i, j), &code)) break;
            }
}

static void fill_channel_x(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed);         /* gaps */
    case_parallel(t->shape[0], 128 * t->shape[1], decide_channel_rows, &(drawing){ c, t, seed, is_mixed(c) });
}

static tgl_status setup_channel(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_tokens = case_int(c, "num_per_tokens"),
                             .round_sf = case_int(c, "round") != 0,
                             .without_transpose = case_int(c, "without_transpose") != 0 };
    TGL_TRY(check_values(c));
    TGL_TRY(parse_number("clamp", case_text(c, "clamp"), &p->has_swiglu_clamp_value, &p->swiglu_clamp_value));
    case_tensor *x = case_add(c, X, "x", CASE_IN, case_dtype(c, "dtype"), 2, (int64_t[]){ rows, 2 * cols });
    x->offset = case_int(c, "offset");
    x->fill = fill_channel_x;
    TGL_TRY(quant_lay_out(case_text(c, "layout"), 2 * cols, x->strides));
    case_tensor *out = case_add(c, OUT, "out", CASE_OUT, TGL_E4M3, 2,
                                p->without_transpose ? (int64_t[]){ rows, cols } : (int64_t[]){ cols, rows });
    out->offset = case_int(c, "out_offset");
    return quant_add_sf(c, SF, "out_sf", CASE_OUT, "row",
                        quant_ceil_div(rows, p->num_per_tokens ? p->num_per_tokens : 1), cols, &sf);
}

static tgl_status run_channel(const case_arguments *a)
{
    return tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(
        a->arg[X], a->arg[OUT], a->arg[SF], quant_params_in(a->problem), a->stream);
}

static float bf16_activation(const case_problem *c, int64_t row, int64_t col)
{
    uint16_t code;
    bf16_of(activation_at(c, row, col), &code);
    return (float)case_decode(TGL_BF16, &code);
}

static void oracle_channel(case_problem *c)
{
    const tgl_quant_params *p = quant_params_in(c);
    const case_tensor *x = &c->tensors[X];
    quant_cast(&(quant_blocks){ .c = c, .value = bf16_activation, .num_rows = x->shape[0],
                                .num_cols = x->shape[1] / 2,
                                .block_rows = p->num_per_tokens ? p->num_per_tokens : 1, .block_cols = 1,
                                .round = p->round_sf, .is_transposed = !p->without_transpose,
                                .sf = &c->tensors[SF], .out = &c->tensors[OUT] });
}

/* ---- swiglu_backward_and_per_token_cast ---- */

enum { B_POS, B_SLOTS, B_WEIGHT, B_X, B_X_SF, B_GRAD, B_OUT, B_FP8, B_SF, B_X_GRAD, B_WEIGHT_GRAD };

/* Of num_rows rows num_picks carry a slot of [num_tokens, num_topk], each a different one; the others are
 * padding. Rows that carry one lie evenly between those that do not. */
static int64_t pick_of_row(const case_problem *c, int64_t row)
{
    const int64_t rows = c->tensors[B_POS].shape[0];
    const int64_t picks = strtoll(case_text(c, "num_picks"), NULL, 10);
    const int64_t before = row * picks / rows;
    return (row + 1) * picks / rows > before ? before : -1;
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

static int64_t slot_of_pick(const case_problem *c, int64_t pick)
{
    const int64_t slots = c->tensors[B_SLOTS].shape[0] * c->tensors[B_SLOTS].shape[1];
    int64_t step = slots * 5 / 8 + 1;           /* with no common divisor every slot comes once */
    while (common_divisor(step, slots) != 1) step++;
    return pick * step % slots;
}

static void fill_backward_pos(const case_problem *c, case_tensor *t, uint64_t seed)
{
    (void)seed;
    for (int64_t i = 0; i < t->shape[0]; i++) {
        const int64_t pick = pick_of_row(c, i);
        const int32_t none = (int32_t[]){ -1, -2, INT32_MIN, INT32_MAX }[i % 4];
        ((int32_t *)t->data)[i] = pick < 0 ? none : (int32_t)slot_of_pick(c, pick);
    }
}

static void fill_slots(const case_problem *c, case_tensor *t, uint64_t seed)
{
    (void)seed;
    const int64_t rows = c->tensors[B_POS].shape[0];
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++)
        ((int32_t *)t->data)[i] = (int32_t[]){ -1, INT32_MIN, INT32_MAX, (int32_t)rows }[i % 4];
    for (int64_t i = 0; i < rows; i++) {
        const int64_t pick = pick_of_row(c, i);
        if (pick >= 0) ((int32_t *)t->data)[slot_of_pick(c, pick)] = (int32_t)i;
    }
}

/* Everything of one element. */
typedef struct { near out, gate_grad, up_grad; double term; } backward_element;
static backward_element backward_at(const case_problem *c, int64_t row, int64_t col)
{
    const case_tensor *x = &c->tensors[B_X], *x_sf = &c->tensors[B_X_SF];
    const tgl_quant_params *p = quant_params_in(c);
    const clamping k = clamping_of(p);
    const int64_t num_cols = x->shape[1] / 2, width = p->num_per_channels ? p->num_per_channels : num_cols;
    const int64_t blocks = quant_ceil_div(num_cols, width),
                  slot = ((const int32_t *)c->tensors[B_POS].data)[row];
    const float given_a = quant_decode(TGL_QUANT_E4M3, quant_code_at(x, TGL_QUANT_E4M3, row, col)) *
                          quant_sf_at(x_sf, row, col / width);
    const float given_b =
        quant_decode(TGL_QUANT_E4M3, quant_code_at(x, TGL_QUANT_E4M3, row, num_cols + col)) *
        quant_sf_at(x_sf, row, blocks + col / width);
    const float a = gate(k, given_a), b = up(k, given_b), g = quant_float_at(&c->tensors[B_GRAD], row, col);
    const bool has_weight = slot >= 0 && slot < c->tensors[B_WEIGHT].shape[0] * c->tensors[B_WEIGHT].shape[1];
    const float w = has_weight ? ((const float *)c->tensors[B_WEIGHT].data)[slot] : 0;
    const near d = one_plus(exp_of_minus(a)), s = over(exactly(1), d);
    const near act = times(over(exactly(a), d), exactly(b));
    const near ws = times(exactly(g * w), s);
    const near rest = rounded(1 - s.value, s.bound);
    near slope = rounded(a * rest.value + 1, fabsf(a) * rest.bound);
    if (slope.bound >= fabs(slope.value)) slope.bound = INFINITY;       /* its sign is not decided */
    backward_element e = { times(act, exactly(w)), times(times(ws, exactly(b)), slope), times(ws, exactly(a)),
                           g * act.value };
    if (a != given_a) e.gate_grad = exactly(0);
    if (b != given_b) e.up_grad = exactly(0);
    return e;
}

/* One block of a half of a row whose elements are e, as token_block(). */
static int64_t backward_block(const case_problem *c, const backward_element *e, int64_t row, int64_t k,
                              bool is_up, bool is_trial)
{
    const tgl_quant_params *p = quant_params_in(c);
    const int64_t num_cols = c->tensors[B_X].shape[1] / 2;
    const int64_t width = p->num_per_channels ? p->num_per_channels : num_cols;
    const int64_t begin = k * width, end = begin + width < num_cols ? begin + width : num_cols;
    const int64_t blocks = quant_ceil_div(num_cols, width), shift = is_up ? num_cols : 0;
    near amax = exactly(0);
    int64_t largest = begin;
    near_scale scale;
    for (int64_t j = begin; j < end; j++) {
        const near grad = is_up ? e[j].up_grad : e[j].gate_grad;
        uint16_t code;
        if (!bf16_of(grad, &code) && is_trial) return j;
        if (!is_trial) memcpy(case_element(&c->tensors[B_X_GRAD], (int64_t[]){ row, shift + j }), &code, 2);
        if (!is_up && !bf16_of(e[j].out, &code) && is_trial) return j;
        if (!is_up && !is_trial) memcpy(case_element(&c->tensors[B_OUT], (int64_t[]){ row, j }), &code, 2);
        if (fabs(grad.value) > amax.value) largest = j;
        amax = larger(amax, grad);
    }
    const bool is_decided =
        scale_of(amax, 448, 1e-4f, p->round_sf, &scale) && is_within(scale.sf, BACKWARD_BOUND);
    if (!is_decided && is_trial) return largest;
    for (int64_t j = begin; j < end; j++) {
        const near grad = is_up ? e[j].up_grad : e[j].gate_grad;
        unsigned code;
        if (!code_of(TGL_QUANT_E4M3, times(grad, scale.inv), &code) && is_trial) return j;
        if (!is_trial) quant_put_code(&c->tensors[B_FP8], TGL_QUANT_E4M3, row, shift + j, code);
    }
    if (!is_trial) quant_put_sf(&c->tensors[B_SF], row, (is_up ? blocks : 0) + k, (float)scale.sf.value);
    return -1;
}

static int64_t num_backward_blocks(const case_problem *c)
{
    const int64_t num_cols = c->tensors[B_X].shape[1] / 2, width = quant_params_in(c)->num_per_channels;
    return width ? quant_ceil_div(num_cols, width) : num_cols > 0;
}

/* A place of x and of grad_out. With mixed values, which are large, no term of weight_grad is negative: a sum
 * that cancels would say nothing about a relative error. */
static void put_backward(const drawing *d, int64_t row, int64_t col, int attempt)
{
    const case_tensor *x = &d->c->tensors[B_X];
    const int64_t num_cols = x->shape[1] / 2;
    double drawn[2], grad = draw(d, d->seed + 2000003, row, col, false, attempt);
    for (int half = 0; half < 2; half++) {
        drawn[half] = 16 * draw(d, d->seed + 1000003, row, half * num_cols + col, half == 0, attempt);
        case_encode(TGL_E4M3, drawn[half], case_element(x, (int64_t[]){ row, half * num_cols + col }));
    }
    if (d->is_mixed) grad = copysign(grad, drawn[0] * drawn[1]);
    case_encode(TGL_BF16, grad, case_element(d->t, (int64_t[]){ row, col }));
}

static void decide_backward_rows(void *context, int64_t begin, int64_t end)
{
    const drawing *d = context;
    const int64_t num_cols = d->t->shape[1];
    backward_element *e = malloc((size_t)(num_cols + 1) * sizeof *e);
    if (!e) abort();
    for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < num_cols; j++) {
            put_backward(d, i, j, 0);
            e[j] = backward_at(d->c, i, j);
        }
        for (int64_t k = 0; k < num_backward_blocks(d->c); k++)
            for (int attempt = 1; attempt < MAX_ATTEMPTS; attempt++) {
                int64_t j = backward_block(d->c, e, i, k, false, true);
                if (j < 0) j = backward_block(d->c, e, i, k, true, true);
                if (j < 0) break;
                put_backward(d, i, j, attempt);
                e[j] = backward_at(d->c, i, j);
            }
    }
    free(e);
}

/* The last of the inputs: draws x again, too. */
static void fill_grad(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed);         /* gaps */
    case_parallel(t->shape[0], 512 * t->shape[1], decide_backward_rows,
                  &(drawing){ c, t, seed, is_mixed(c) });
}

/* Values of x are then of deviation 0.5 to 1, as codes are of 16; mixed ones are up to 8 times as large. */
static void fill_backward_sf(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const unsigned range = is_mixed(c) ? 4 : 1;
    for (int64_t i = 0; i < t->slots; i++) {
        const uint64_t r = case_random(seed, i);
        const int exponent = -5 + (int)((r >> 40) % range);
        if (t->dtype == TGL_F32) ((float *)t->storage)[i] = (float)ldexp(1 + unit(r), exponent);
        else for (int b = 0; b < 4; b++) t->storage[4 * i + b] = (char)(122 + (r >> 8 * b) % (range + 1));
    }
}

static tgl_status setup_backward(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols"),
                  topk = case_int(c, "num_topk");
    const int64_t tokens = case_int(c, "num_tokens"), picks = case_int(c, "num_picks");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_channels = case_int(c, "num_per_channels"),
                             .round_sf = case_int(c, "round") != 0 };
    TGL_TRY(check_values(c));
    TGL_TRY(parse_number("clamp", case_text(c, "clamp"), &p->has_swiglu_clamp_value, &p->swiglu_clamp_value));
    if (picks > rows || picks > tokens * topk)
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "num_picks: is %lld, want at most num_rows and num_tokens * num_topk",
                        (long long)picks);
    case_add(c, B_POS, "pos_to_token_topk", CASE_IN, TGL_I32, 1, (int64_t[]){ rows })->fill =
        fill_backward_pos;
    case_add(c, B_SLOTS, "token_topk_to_pos", CASE_IN, TGL_I32, 2, (int64_t[]){ tokens, topk })->fill =
        fill_slots;
    case_tensor *weight = case_add(c, B_WEIGHT, "weight", CASE_IN, TGL_F32, 2, (int64_t[]){ tokens, topk });
    weight->fill = case_fill_uniform, weight->high = 1;
    case_tensor *x = case_add(c, B_X, "x", CASE_IN, TGL_E4M3, 2, (int64_t[]){ rows, 2 * cols });
    TGL_TRY(quant_lay_out(case_text(c, "layout"), 2 * cols, x->strides));
    case_tensor *grad = case_add(c, B_GRAD, "grad_out", CASE_IN, TGL_BF16, 2, (int64_t[]){ rows, cols });
    grad->fill = fill_grad;
    TGL_TRY(quant_lay_out(case_text(c, "layout"), cols, grad->strides));
    x->offset = grad->offset = case_int(c, "offset");
    const int64_t blocks = 2 * num_backward_blocks(c), out_offset = case_int(c, "out_offset");
    TGL_TRY(quant_add_sf(c, B_X_SF, "x_sf", CASE_IN, case_text(c, "x_sf"), rows, blocks, &sf));
    sf->fill = fill_backward_sf;
    case_add(c, B_OUT, "out", CASE_OUT, TGL_BF16, 2, (int64_t[]){ rows, cols })->offset = out_offset;
    case_add(c, B_FP8, "x_grad_fp8", CASE_OUT, TGL_E4M3, 2, (int64_t[]){ rows, 2 * cols })->offset =
        out_offset;
    TGL_TRY(quant_add_sf(c, B_SF, "x_grad_sf", CASE_OUT, case_text(c, "sf"), rows, blocks, &sf));
    if (!p->round_sf) sf->compare = (case_compare){ .mode = CASE_CLOSE, .rtol = BACKWARD_BOUND };
    case_add(c, B_X_GRAD, "x_grad", CASE_OUT, TGL_BF16, 2, (int64_t[]){ rows, 2 * cols })->offset =
        out_offset;
    case_add(c, B_WEIGHT_GRAD, "weight_grad", CASE_OUT, TGL_F32, 2, (int64_t[]){ tokens, topk })->compare =
        (case_compare){ .mode = CASE_CLOSE, .atol = 1e-4, .rtol = 1e-4 };
    return TGL_OK;
}

static tgl_status run_backward(const case_arguments *a)
{
    return tgl_quant_swiglu_backward_and_per_token_cast(
        a->arg[B_X], a->arg[B_X_SF], a->arg[B_GRAD], a->arg[B_WEIGHT], a->arg[B_POS], a->arg[B_SLOTS],
        a->arg[B_OUT], a->arg[B_FP8], a->arg[B_SF], a->arg[B_X_GRAD], a->arg[B_WEIGHT_GRAD],
        quant_params_in(a->problem), a->stream);
}

static void backward_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const int64_t num_cols = c->tensors[B_X].shape[1] / 2;
    backward_element *e = malloc((size_t)(num_cols + 1) * sizeof *e);
    if (!e) abort();
    for (int64_t i = begin; i < end; i++) {
        const int64_t slot = ((const int32_t *)c->tensors[B_POS].data)[i];
        double sum = 0;
        for (int64_t j = 0; j < num_cols; j++) {
            e[j] = backward_at(c, i, j);
            sum += e[j].term;
        }
        for (int64_t k = 0; k < num_backward_blocks(c); k++)
            for (int is_up = 0; is_up < 2; is_up++) backward_block(c, e, i, k, is_up, false);
        if (pick_of_row(c, i) >= 0) ((float *)c->tensors[B_WEIGHT_GRAD].data)[slot] = (float)sum;
    }
    free(e);
}

static void oracle_backward(case_problem *c)
{
    case_parallel(c->tensors[B_X].shape[0], 512 * c->tensors[B_X].shape[1], backward_rows, c);
}

/* ---- the table ---- */

#define HIDDEN_SIZES "num_cols=576,2048,2560,3072,4096,6144,7168 "

const case_op quant_swiglu_ops[] = {
    {
        "quant_swiglu_forward_and_per_token_cast",
        "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_channels=128 round=0 sf=row weights=0 skip=0 "
        "clamp=none count=0 sf_min=none values=normal layout=packed offset=0 out_offset=0",
        setup_token, run_token, oracle_token, bytes_token, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_rows=9 num_cols=128,256,576,1032 dtype=bf16,f32 round=0,1 values=mixed",
            "num_rows=9 num_cols=256 dtype=bf16,f32 round=0,1 weights=2 skip=3 values=mixed",
            "num_rows=9 num_cols=576 sf=col,packed round=1 weights=0,2 skip=0,4 values=mixed",
            "num_rows=9 num_cols=256 dtype=bf16,f32 clamp=10,0.5,0.3,0 count=0,1 round=1 values=mixed",
            "num_rows=9 num_cols=256 clamp=0.5 count=1 weights=1 skip=1,2,5 round=1 sf=packed values=mixed",
            "num_rows=6 num_cols=384 num_per_channels=32,64,0 dtype=bf16,f32 clamp=none,0.5 round=0,1 "
            "values=mixed",
            "num_rows=5 num_cols=8,100,129 num_per_channels=0,16,128 values=mixed",
            "num_rows=5 num_cols=130 num_per_channels=1,7,1000 clamp=2 count=1 values=mixed",
            "num_rows=5 num_cols=256,130 format=e2m1 num_per_channels=32,0 round=0,1 clamp=none,0.5 "
            "values=mixed",
            "num_rows=5 num_cols=256 format=e2m1 num_per_channels=32 round=1 sf=packed weights=1 skip=2",
            "num_rows=9 num_cols=256 sf_min=0,0.01,1000 round=0,1 values=mixed",
            "num_rows=0,1,3,33 num_cols=256 round=1 sf=packed clamp=1 count=1 values=mixed",
            "num_rows=6 num_cols=640 round=1 sf=row_gap,col_gap,col_tight,packed_gap values=mixed",
            "num_rows=6 num_cols=256 dtype=bf16,f32 layout=half,gap offset=0,1 out_offset=0,1",
            "num_rows=3 num_cols=256 offset=4 out_offset=1,2,4",
            "num_rows=130 num_cols=2312 round=1 sf=packed skip=7",      /* many rows: of few SMs, of 140 */
            "num_rows=375 num_cols=1288 num_per_channels=32 weights=2 skip=0,7",
            "num_rows=4500 num_cols=264 num_per_channels=8 weights=2 skip=7",
            /* rows of one factor, of one to eight vectors a thread and of none; odd blocks of pairs */
            "num_rows=3 num_cols=1096,2050,2056,4104 num_per_channels=0 dtype=bf16,f32 clamp=0.5 count=1 "
            "skip=2 values=mixed",
            "num_rows=3 num_cols=130,1096 format=e2m1 num_per_channels=0,7,16 dtype=bf16,f32 offset=0,1",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=4000 num_cols=1024,1280,1536,2048,3072,3584 weights=0,6 skip=0,5 "
            "num_per_channels=128,0 round=1 clamp=none,10,0.5",
            "num_rows=4000 num_cols=1024,1280,1536,2048,3072,3584 weights=0,6 skip=0,5 round=1 sf=packed "
            "clamp=10,0.5 count=1 values=mixed",
            "num_rows=4000 num_cols=2048 dtype=f32 round=0,1 clamp=none,0.3 values=mixed",
            "num_rows=150000 num_cols=7168",
            "num_rows=2100 num_cols=512 layout=far",
            NULL,
        },
        /* sizes that were measured for other libraries: 8 of 256 experts, 32 of them here, in blocks of 16
         * rows */
        .lists[CASE_BENCH] = (const char *const[]){
            "num_rows=128,32768 num_cols=2048",
            "num_rows=128,1024,8192,32768 num_cols=2048 round=1 sf=packed",
            "num_rows=4096,8192 num_cols=4096 round=1 sf=packed",
            "num_rows=1280 num_cols=2048 weights=8 skip=5",
            "num_rows=33024 num_cols=2048 weights=8 skip=129",
            "num_rows=33024 num_cols=2048 round=1 sf=packed skip=129",
            "num_rows=32768 num_cols=2048 round=1 sf=packed clamp=10 count=0,1",
            "num_rows=8001 num_cols=7168 round=1 sf=packed clamp=none,10",
            "num_rows=8001 num_cols=7168 dtype=f32 round=1 sf=packed",
            "num_rows=8001 num_cols=7168 weights=8 skip=129 round=1 sf=packed",
            "num_rows=8001 num_cols=7168 round=1 sf=packed clamp=10 count=1",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=64 num_cols=2048 dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=32,64,128,0 "
            "round=0,1",
            "num_rows=64 num_cols=2048 dtype=bf16,f32 format=e4m3,e2m1 skip=0,2 round=1 sf=col,packed",
            "num_rows=64 num_cols=2048 dtype=bf16,f32 format=e4m3,e2m1 weights=8 skip=0,2 round=1 "
            "sf=row,col,packed",
            "num_rows=64 num_cols=2048 dtype=bf16,f32 format=e4m3,e2m1 weights=0,8 clamp=10 count=0,1 "
            "round=1 sf=row,packed",
            "num_rows=64 num_cols=2048 dtype=bf16,f32 num_per_channels=128,0 sf_min=0.01 clamp=none,10",
            "num_rows=64 num_cols=100 dtype=bf16,f32 num_per_channels=100,7",
            NULL,
        },
    },
    {
        "quant_swiglu_forward_and_per_channel_cast_and_transpose",
        "num_rows= num_cols= dtype=bf16 num_per_tokens=128 round=0 without_transpose=0 clamp=none "
        "values=normal layout=packed offset=0 out_offset=0",
        setup_channel, run_channel, oracle_channel, quant_bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_rows=1,128,257 num_cols=64,136 dtype=bf16,f32 without_transpose=0,1 round=0,1 values=mixed",
            "num_rows=70 num_cols=72 num_per_tokens=1,32,64,100,0 without_transpose=0,1 clamp=none,0.5 "
            "values=mixed",
            "num_rows=128 num_cols=64 dtype=bf16,f32 clamp=10,0.5,0.3,0 round=1 values=mixed",
            "num_rows=0,2,3,4,31,33,127,129,132 num_cols=8 num_per_tokens=32 round=1 without_transpose=0,1 "
            "values=mixed",
            "num_rows=40 num_cols=0,1,2,7,9,65,129 num_per_tokens=32 without_transpose=0,1 values=mixed",
            "num_rows=128,132 num_cols=64 dtype=bf16,f32 layout=half,gap offset=0,1 out_offset=0,1",
            "num_rows=128 num_cols=64 without_transpose=1 layout=gap offset=1 out_offset=1,2,4",
            "num_rows=2 num_cols=6408 dtype=bf16,f32 without_transpose=0,1 values=mixed",
            "num_rows=144 num_cols=3208 num_per_tokens=32",
            "num_rows=131 num_cols=3208 dtype=bf16,f32 values=mixed",       /* whole tiles, cut anywhere */
            "num_rows=131,144 num_cols=3208 num_per_tokens=64 round=1 clamp=none,10 values=mixed",
            "num_rows=259 num_cols=21328 num_per_tokens=64 values=mixed",   /* long ones */
            "num_rows=259 num_cols=21331 round=1 values=mixed",             /* and x is aligned to nothing */
            "num_rows=300 num_cols=24 num_per_tokens=130,1000 without_transpose=0,1",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=4096 " HIDDEN_SIZES "num_per_tokens=32,128 without_transpose=0,1 round=0,1 "
            "clamp=none,10,0.5",
            "num_rows=8064 " HIDDEN_SIZES "num_per_tokens=32,128 without_transpose=0,1 round=1 clamp=0.5",
            "num_rows=4001 num_cols=2048 dtype=bf16,f32 without_transpose=0,1 clamp=0.3 values=mixed",
            "num_rows=4001 num_cols=2048,7168 num_per_tokens=32,128 round=1 clamp=none,10 values=mixed",
            "num_rows=2 num_cols=4194400 round=1",
            "num_rows=150016 num_cols=7168",
            "num_rows=2100 num_cols=512 layout=far",
            "num_rows=65600 num_cols=8 num_per_tokens=1 without_transpose=0,1",     /* slices of rows */
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_rows=128,8192,32768 num_cols=2048",
            "num_rows=8192 num_cols=4096",
            "num_rows=8192 num_cols=2048 without_transpose=1",
            "num_rows=8192 num_cols=2048 clamp=10",
            "num_rows=8001 num_cols=7168 round=1 without_transpose=0,1",
            "num_rows=8064 num_cols=7168 num_per_tokens=32,128 round=1",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=256 num_cols=2048 dtype=bf16,f32 num_per_tokens=32,64,128,100 round=0,1 "
            "without_transpose=0,1 clamp=none,10",
            "num_rows=255 num_cols=100 dtype=bf16,f32 num_per_tokens=32,128 without_transpose=0,1",
            NULL,
        },
    },
    {
        "quant_swiglu_backward_and_per_token_cast",
        "num_rows= num_cols= num_tokens= num_topk= num_picks= num_per_channels=128 round=0 sf=row x_sf=row "
        "clamp=none values=normal layout=packed offset=0 out_offset=0",
        setup_backward, run_backward, oracle_backward, quant_bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_rows=9 num_cols=128,256,576 num_tokens=5 num_topk=2 num_picks=6 num_per_channels=32,128 "
            "round=0,1 values=mixed",
            "num_rows=9 num_cols=256 num_tokens=9 num_topk=1 num_picks=9 clamp=none,10,0.5,0.3 round=0,1 "
            "values=mixed",
            "num_rows=9 num_cols=256 num_tokens=3 num_topk=3 num_picks=0,1,9 round=1 values=mixed",
            "num_rows=0 num_cols=256 num_tokens=5 num_topk=3 num_picks=0",
            "num_rows=6 num_cols=128 num_tokens=0 num_topk=3 num_picks=0",
            "num_rows=7 num_cols=8,100,129,200 num_tokens=9 num_topk=6 num_picks=5 num_per_channels=16,64,0 "
            "clamp=0.5 values=mixed",
            "num_rows=7 num_cols=1032 num_tokens=7 num_topk=2 num_picks=5 num_per_channels=1000 values=mixed",
            "num_rows=7 num_cols=256 num_tokens=7 num_topk=2 num_picks=5 num_per_channels=32 round=1 "
            "sf=col,packed x_sf=col,packed values=mixed",
            "num_rows=7 num_cols=320 num_tokens=7 num_topk=2 num_picks=5 round=1 "
            "sf=row_gap,col_gap,col_tight,packed_gap x_sf=row_gap,packed_gap values=mixed",
            "num_rows=1,3,33 num_cols=128 num_tokens=40 num_topk=8 num_picks=1 round=1",
            "num_rows=6 num_cols=128 num_tokens=6 num_topk=2 num_picks=4 layout=half,gap offset=0,1 "
            "out_offset=0,1",
            /* more than a step, with and without vectors, and more than warps; words of factors that both
             * halves share */
            "num_rows=3 num_cols=2304,2306,7176 num_tokens=2 num_topk=2 num_picks=2 num_per_channels=0,8,256 "
            "round=1 sf=packed clamp=0.5 values=mixed",
            "num_rows=70 num_cols=9 num_tokens=35 num_topk=2 num_picks=70 clamp=none,0.5",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=2048 num_cols=2048,2560,3072,4096,6144,7168 num_tokens=300 num_topk=6 num_picks=1800 "
            "num_per_channels=32,128 round=0,1 clamp=none,10,0.5",
            "num_rows=2048 num_cols=2048 num_tokens=300 num_topk=9 num_picks=1800 clamp=none,0.5 "
            "values=mixed",
            "num_rows=150000 num_cols=7168 num_tokens=20000 num_topk=8 num_picks=149999",   /* past 2^31 */
            "num_rows=2100 num_cols=512 num_tokens=1000 num_topk=2 num_picks=1500 layout=far",
            NULL,
        },
        /* 8 ranks with 4096 or 128 tokens each, 8 of 256 experts, 32 of them here, in blocks of 128 rows; and
         * one such block alone */
        .lists[CASE_BENCH] = (const char *const[]){
            "num_rows=128 num_cols=2048 num_tokens=21 num_topk=8 num_picks=32",
            "num_rows=4096 num_cols=2048 num_tokens=672 num_topk=8 num_picks=1024",
            "num_rows=34816 num_cols=2048,4096 num_tokens=21504 num_topk=8 num_picks=32768",
            "num_rows=34816 num_cols=2048 num_tokens=21504 num_topk=8 num_picks=32768 num_per_channels=32",
            "num_rows=34816 num_cols=2048 num_tokens=21504 num_topk=8 num_picks=32768 clamp=10",
            "num_rows=8001 num_cols=7168 num_tokens=5000 num_topk=8 num_picks=8001 round=1",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=64 num_cols=2048 num_tokens=64 num_topk=8 num_picks=64 num_per_channels=32,64,128,0 "
            "round=0,1 clamp=none,10",
            "num_rows=64 num_cols=2048 num_tokens=64 num_topk=8 num_picks=64 round=1 x_sf=col,packed",
            "num_rows=64 num_cols=2048 num_tokens=64 num_topk=8 num_picks=64 round=1 sf=col,packed "
            "x_sf=row,col,packed",
            "num_rows=64 num_cols=100 num_tokens=64 num_topk=8 num_picks=64 num_per_channels=16,100",
            NULL,
        },
    },
    { .name = NULL },
};
