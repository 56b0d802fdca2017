/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "cases/quant/common/swiglu.h"
#include "core/status.h"

enum { POS, SLOTS, WEIGHT, X, X_SF, GRAD, OUT, FP8, SF, X_GRAD, WEIGHT_GRAD };

/* num_picks of num_rows rows, evenly spread, have a slot of [num_tokens, num_topk] each; the others are
 * padding. */
static int64_t pick_of_row(const case_problem *c, int64_t row)
{
    const int64_t rows = c->tensors[POS].shape[0];
    const int64_t picks = strtoll(case_text(c, "num_picks"), NULL, 10);
    const int64_t before = row * picks / rows;
    return (row + 1) * picks / rows > before ? before : -1;
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

static int64_t slot_of_pick(const case_problem *c, int64_t pick)
{
    const int64_t slots = c->tensors[SLOTS].shape[0] * c->tensors[SLOTS].shape[1];
    int64_t step = slots * 5 / 8 + 1; /* coprime with slots: every slot once */
    while (common_divisor(step, slots) != 1) step++;
    return pick * step % slots;
}

static void fill_pos(const case_problem *c, case_tensor *t, uint64_t seed)
{
    for (int64_t i = 0; i < t->shape[0]; i++) {
        const int64_t pick = pick_of_row(c, i);
        const int32_t none = (int32_t[]){ -1, -2, INT32_MIN, INT32_MAX }[i % 4];
        ((int32_t *)t->data)[i] = pick < 0 ? none : (int32_t)slot_of_pick(c, pick);
    }
}

static void fill_slots(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t rows = c->tensors[POS].shape[0];
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++)
        ((int32_t *)t->data)[i] = (int32_t[]){ -1, INT32_MIN, INT32_MAX, (int32_t)rows }[i % 4];
    for (int64_t i = 0; i < rows; i++) {
        const int64_t pick = pick_of_row(c, i);
        if (pick >= 0) ((int32_t *)t->data)[slot_of_pick(c, pick)] = (int32_t)i;
    }
}

/* Everything of one element. */
typedef struct {
    near out, gate_grad, up_grad;
    double term;
} element;
static element element_at(const case_problem *c, int64_t row, int64_t col)
{
    const case_tensor *x = &c->tensors[X], *x_sf = &c->tensors[X_SF];
    const tgl_quant_params *p = quant_params_in(c);
    const clamping k = clamping_of(p);
    const int64_t num_cols = x->shape[1] / 2, width = quant_or_all(p->num_per_channels, num_cols);
    const int64_t blocks = quant_ceil_div(num_cols, width), slot = ((const int32_t *)c->tensors[POS].data)[row];
    const float given_a =
        quant_decode(TGL_QUANT_E4M3, quant_code_at(x, TGL_QUANT_E4M3, row, col)) * quant_sf_at(x_sf, row, col / width);
    const float given_b = quant_decode(TGL_QUANT_E4M3, quant_code_at(x, TGL_QUANT_E4M3, row, num_cols + col)) *
                          quant_sf_at(x_sf, row, blocks + col / width);
    const float a = gate(k, given_a), b = up(k, given_b), g = quant_float_at(&c->tensors[GRAD], row, col);
    const bool has_weight = slot >= 0 && slot < c->tensors[WEIGHT].shape[0] * c->tensors[WEIGHT].shape[1];
    const float w = has_weight ? ((const float *)c->tensors[WEIGHT].data)[slot] : 0;
    const near d = one_plus(exp_of_minus(a)), s = over(exactly(1), d);
    const near act = times(over(exactly(a), d), exactly(b));
    const near ws = times(exactly(g * w), s);
    const near rest = rounded(1 - s.value, s.bound);
    near slope = rounded(a * rest.value + 1, fabsf(a) * rest.bound);
    if (slope.bound >= fabs(slope.value)) slope.bound = INFINITY; /* its sign is not decided */
    element e = { times(act, exactly(w)), times(times(ws, exactly(b)), slope), times(ws, exactly(a)), g * act.value };
    if (a != given_a) e.gate_grad = exactly(0);
    if (b != given_b) e.up_grad = exactly(0);
    return e;
}

/* Casts one block of a half of a row, or only tries it. Returns a column that the bounds do not decide, or
 * -1. */
static int64_t cast_block(const case_problem *c, const element *e, int64_t row, int64_t k, bool is_up, bool is_trial)
{
    const tgl_quant_params *p = quant_params_in(c);
    const int64_t num_cols = c->tensors[X].shape[1] / 2;
    const int64_t width = quant_or_all(p->num_per_channels, num_cols);
    const int64_t begin = k * width, end = begin + width < num_cols ? begin + width : num_cols;
    const int64_t blocks = quant_ceil_div(num_cols, width), shift = is_up ? num_cols : 0;
    near amax = exactly(0);
    int64_t largest = begin;
    near_scale scale;
    for (int64_t j = begin; j < end; j++) {
        const near grad = is_up ? e[j].up_grad : e[j].gate_grad;
        uint16_t code;
        if (!bf16_of(grad, &code) && is_trial) return j;
        if (!is_trial) memcpy(case_element(&c->tensors[X_GRAD], (int64_t[]){ row, shift + j }), &code, 2);
        if (!is_up && !bf16_of(e[j].out, &code) && is_trial) return j;
        if (!is_up && !is_trial) memcpy(case_element(&c->tensors[OUT], (int64_t[]){ row, j }), &code, 2);
        if (fabs(grad.value) > amax.value) largest = j;
        amax = larger(amax, grad);
    }
    const bool is_decided = scale_of(amax, 448, 1e-4f, p->round_sf, &scale) && is_within(scale.sf, BACKWARD_BOUND);
    if (!is_decided && is_trial) return largest;
    for (int64_t j = begin; j < end; j++) {
        const near grad = is_up ? e[j].up_grad : e[j].gate_grad;
        unsigned code;
        if (!code_of(TGL_QUANT_E4M3, times(grad, scale.inv), &code) && is_trial) return j;
        if (!is_trial) quant_put_code(&c->tensors[FP8], TGL_QUANT_E4M3, row, shift + j, code);
    }
    if (!is_trial) quant_put_sf(&c->tensors[SF], row, (is_up ? blocks : 0) + k, (float)scale.sf.value);
    return -1;
}

/* An element of x and of grad_out. With mixed values, which are large, no term of weight_grad is negative: if
 * terms cancelled, the relative error would mean nothing. */
static void put_inputs(const drawing *d, int64_t row, int64_t col, int attempt)
{
    const case_tensor *x = &d->c->tensors[X];
    const int64_t num_cols = x->shape[1] / 2;
    double drawn[2], grad = swiglu_draw(d, d->seed + 2000003, row, col, false, attempt);
    for (int half = 0; half < 2; half++) {
        drawn[half] = 16 * swiglu_draw(d, d->seed + 1000003, row, half * num_cols + col, half == 0, attempt);
        case_encode(TGL_E4M3, drawn[half], case_element(x, (int64_t[]){ row, half * num_cols + col }));
    }
    if (d->is_mixed) grad = copysign(grad, drawn[0] * drawn[1]);
    case_encode(TGL_BF16, grad, case_element(d->t, (int64_t[]){ row, col }));
}

static void decide_rows(void *context, int64_t begin, int64_t end)
{
    const drawing *d = context;
    const int64_t num_cols = d->t->shape[1];
    element *e = case_memory(num_cols, sizeof *e);
    for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < num_cols; j++) {
            put_inputs(d, i, j, 0);
            e[j] = element_at(d->c, i, j);
        }
        for (int64_t k = 0; k < swiglu_num_blocks(d->c, num_cols); k++)
            for (int attempt = 1; attempt < SWIGLU_MAX_ATTEMPTS; attempt++) {
                int64_t j = cast_block(d->c, e, i, k, false, true);
                if (j < 0) j = cast_block(d->c, e, i, k, true, true);
                if (j < 0) break;
                put_inputs(d, i, j, attempt);
                e[j] = element_at(d->c, i, j);
            }
    }
    free(e);
}

/* The last input: draws x again, too. */
static void fill_grad(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed); /* gaps */
    case_parallel(t->shape[0], 512 * t->shape[1], decide_rows, &(drawing){ c, t, seed, case_is(c, "values", "mixed") });
}

/* Codes have a deviation of 16, so that of values is 0.5 to 1; mixed ones are up to 8 times as large. */
static void fill_sf(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const unsigned range = case_is(c, "values", "mixed") ? 4 : 1;
    for (int64_t i = 0; i < t->slots; i++) {
        const uint64_t r = case_random(seed, i);
        const int exponent = -5 + (int)((r >> 40) % range);
        if (t->dtype == TGL_F32) ((float *)t->storage)[i] = (float)ldexp(1 + swiglu_unit(r), exponent);
        else
            for (int b = 0; b < 4; b++) t->storage[4 * i + b] = (char)(122 + (r >> 8 * b) % (range + 1));
    }
}

static tgl_status setup(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols"), topk = case_int(c, "num_topk");
    const int64_t tokens = case_int(c, "num_tokens"), picks = case_int(c, "num_picks");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_channels = case_int(c, "num_per_channels"),
                             .round_sf = case_int(c, "round") != 0 };
    TGL_TRY(swiglu_check_values(c));
    TGL_TRY(swiglu_read_number(c, "clamp", &p->has_swiglu_clamp_value, &p->swiglu_clamp_value));
    if (picks > rows || picks > tokens * topk)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_picks: is %lld, want at most num_rows and num_tokens * num_topk",
                        (long long)picks);
    case_add(c, POS, "pos_to_token_topk", CASE_IN, TGL_I32, 1, (int64_t[]){ rows })->fill = fill_pos;
    case_add(c, SLOTS, "token_topk_to_pos", CASE_IN, TGL_I32, 2, (int64_t[]){ tokens, topk })->fill = fill_slots;
    case_tensor *weight = case_add(c, WEIGHT, "weight", CASE_IN, TGL_F32, 2, (int64_t[]){ tokens, topk });
    weight->fill = case_fill_uniform, weight->high = 1;
    case_tensor *x = case_add(c, X, "x", CASE_IN, TGL_E4M3, 2, (int64_t[]){ rows, 2 * cols });
    TGL_TRY(quant_lay_out(case_text(c, "layout"), 2 * cols, x->strides));
    case_tensor *grad = case_add(c, GRAD, "grad_out", CASE_IN, TGL_BF16, 2, (int64_t[]){ rows, cols });
    grad->fill = fill_grad;
    TGL_TRY(quant_lay_out(case_text(c, "layout"), cols, grad->strides));
    x->offset = grad->offset = case_int(c, "offset");
    const int64_t blocks = 2 * swiglu_num_blocks(c, cols), out_offset = case_int(c, "out_offset");
    TGL_TRY(quant_add_sf(c, X_SF, "x_sf", CASE_IN, case_text(c, "x_sf"), rows, blocks, &sf));
    sf->fill = fill_sf;
    case_add(c, OUT, "out", CASE_OUT, TGL_BF16, 2, (int64_t[]){ rows, cols })->offset = out_offset;
    case_add(c, FP8, "x_grad_fp8", CASE_OUT, TGL_E4M3, 2, (int64_t[]){ rows, 2 * cols })->offset = out_offset;
    TGL_TRY(quant_add_sf(c, SF, "x_grad_sf", CASE_OUT, case_text(c, "sf"), rows, blocks, &sf));
    if (!p->round_sf) sf->compare = (case_compare){ .mode = CASE_CLOSE, .rtol = BACKWARD_BOUND };
    case_add(c, X_GRAD, "x_grad", CASE_OUT, TGL_BF16, 2, (int64_t[]){ rows, 2 * cols })->offset = out_offset;
    case_add(c, WEIGHT_GRAD, "weight_grad", CASE_OUT, TGL_F32, 2, (int64_t[]){ tokens, topk })->compare =
        (case_compare){ .mode = CASE_CLOSE, .atol = 1e-4, .rtol = 1e-4 };
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_swiglu_backward_and_per_token_cast(a->arg[X], a->arg[X_SF], a->arg[GRAD], a->arg[WEIGHT],
                                                        a->arg[POS], a->arg[SLOTS], a->arg[OUT], a->arg[FP8],
                                                        a->arg[SF], a->arg[X_GRAD], a->arg[WEIGHT_GRAD],
                                                        quant_params_in(a->problem), a->stream);
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const int64_t num_cols = c->tensors[X].shape[1] / 2;
    element *e = case_memory(num_cols, sizeof *e);
    for (int64_t i = begin; i < end; i++) {
        const int64_t slot = ((const int32_t *)c->tensors[POS].data)[i];
        double sum = 0;
        for (int64_t j = 0; j < num_cols; j++) {
            e[j] = element_at(c, i, j);
            sum += e[j].term;
        }
        for (int64_t k = 0; k < swiglu_num_blocks(c, num_cols); k++)
            for (int is_up = 0; is_up < 2; is_up++) cast_block(c, e, i, k, is_up, false);
        if (pick_of_row(c, i) >= 0) ((float *)c->tensors[WEIGHT_GRAD].data)[slot] = (float)sum;
    }
    free(e);
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[X].shape[0], 512 * c->tensors[X].shape[1], oracle_rows, c);
}

// clang-format off: lines of cases
const case_op swiglu_backward_and_per_token_cast_cases = {
    "quant_swiglu_backward_and_per_token_cast",
    "num_rows= num_cols= num_tokens= num_topk= num_picks= num_per_channels=128 round=0 sf=row x_sf=row "
    "clamp=none values=normal layout=packed offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .has_swiglu = true,
    .lists[CASE_CHECK] = CASE_LINES(
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
        /* several steps, with and without vectors; more steps than warps; words of factors that both halves
         * share */
        "num_rows=3 num_cols=2304,2306,7176 num_tokens=2 num_topk=2 num_picks=2 num_per_channels=0,8,256 "
        "round=1 sf=packed clamp=0.5 values=mixed",
        "num_rows=70 num_cols=9 num_tokens=35 num_topk=2 num_picks=70 clamp=none,0.5"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=2048 num_cols=2048,2560,3072,4096,6144,7168 num_tokens=300 num_topk=6 num_picks=1800 "
        "num_per_channels=32,128 round=0,1 clamp=none,10,0.5",
        "num_rows=2048 num_cols=2048 num_tokens=300 num_topk=9 num_picks=1800 clamp=none,0.5 values=mixed",
        "num_rows=150000 num_cols=7168 num_tokens=20000 num_topk=8 num_picks=149999",   /* past 2^31 */
        "num_rows=2100 num_cols=512 num_tokens=1000 num_topk=2 num_picks=1500 layout=far"),
    /* 8 ranks with 4096 or 128 tokens each, 8 of 256 experts, 32 of them here, in blocks of 128 rows; and one
     * block */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_rows=128 num_cols=2048 num_tokens=21 num_topk=8 num_picks=32",
        "num_rows=4096 num_cols=2048 num_tokens=672 num_topk=8 num_picks=1024",
        "num_rows=34816 num_cols=2048,4096 num_tokens=21504 num_topk=8 num_picks=32768",
        "num_rows=34816 num_cols=2048 num_tokens=21504 num_topk=8 num_picks=32768 num_per_channels=32",
        "num_rows=34816 num_cols=2048 num_tokens=21504 num_topk=8 num_picks=32768 clamp=10",
        "num_rows=8001 num_cols=7168 num_tokens=5000 num_topk=8 num_picks=8001 round=1"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=64 num_cols=2048 num_tokens=64 num_topk=8 num_picks=64 num_per_channels=32,64,128,0 "
        "round=0,1 clamp=none,10",
        "num_rows=64 num_cols=2048 num_tokens=64 num_topk=8 num_picks=64 round=1 x_sf=col,packed",
        "num_rows=64 num_cols=2048 num_tokens=64 num_topk=8 num_picks=64 round=1 sf=col,packed "
        "x_sf=row,col,packed",
        "num_rows=64 num_cols=100 num_tokens=64 num_topk=8 num_picks=64 num_per_channels=16,100"),
    .models = CASE_LINES("num_rows=4096 num_cols={intermediate} num_tokens=64 num_topk={num_topk} "
        "num_picks=64 round=0,1"),
};
// clang-format on
