/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/quant/common/swiglu.h"
#include "core/status.h"

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

/* Casts one block of a row of weighted activations, or only tries it. Returns a column that the bounds do not
 * decide, or -1. */
static int64_t cast_block(const case_problem *c, const near *v, int64_t row, int64_t k, bool is_trial)
{
    const tgl_quant_params *p = quant_params_in(c);
    const int64_t num_cols = c->tensors[X].shape[1] / 2;
    const int64_t width = quant_or_all(p->num_per_channels, num_cols);
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

static void decide_rows(void *context, int64_t begin, int64_t end)
{
    const drawing *d = context;
    const int64_t num_cols = d->t->shape[1] / 2;
    near *v = case_memory(num_cols, sizeof *v);
    for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < 2 * num_cols; j++) swiglu_put_drawn(d, i, j, num_cols, 0);
        if (is_skipped(d->c, i)) continue;
        for (int64_t j = 0; j < num_cols; j++) v[j] = weighted(d->c, i, j, num_cols);
        for (int64_t k = 0; k < swiglu_num_blocks(d->c, num_cols); k++)
            for (int attempt = 1; attempt < SWIGLU_MAX_ATTEMPTS; attempt++) {
                const int64_t j = cast_block(d->c, v, i, k, true);
                if (j < 0) break;
                swiglu_put_drawn(d, i, j, num_cols, attempt);
                swiglu_put_drawn(d, i, num_cols + j, num_cols, attempt);
                v[j] = weighted(d->c, i, j, num_cols);
            }
    }
    free(v);
}

static void fill_x(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed); /* gaps */
    case_parallel(t->shape[0], 128 * t->shape[1], decide_rows, &(drawing){ c, t, seed, case_is(c, "values", "mixed") });
}

/* Slots of weights; one in eight is out of range, and one in five far out. */
static void fill_pos(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const double n = (double)(c->tensors[WEIGHTS].shape[0] * c->tensors[WEIGHTS].shape[1]);
    t->low = -n / 16 - 1, t->high = n + n / 16 + 1;
    case_fill_uniform(c, t, seed);
    for (int64_t i = 4; i < t->shape[0]; i += 5) ((int32_t *)t->data)[i] = i % 2 ? INT32_MIN : INT32_MAX;
}

/* Every `skip`-th row has no expert; its x has any bits. */
static void fill_expert(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t skip = strtoll(case_text(c, "skip"), NULL, 10);
    for (int64_t i = 0; i < t->shape[0]; i++)
        ((int32_t *)t->data)[i] = i % skip == skip - 1 ? (i % 3 == 2 ? INT32_MIN : -1 - (int32_t)(i % 3))
                                                       : (int32_t)(case_random(seed, i) & (i % 4 ? 7 : INT32_MAX));
}

static void fill_count(const case_problem *c, case_tensor *t, uint64_t seed)
{
    for (int i = 0; i < 3; i++) ((int64_t *)t->data)[i] = (int64_t)(case_random(seed, i) >> 20);
}

static tgl_status setup(case_problem *c)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols"), topk = case_int(c, "weights");
    const int64_t skip = case_int(c, "skip");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_channels = case_int(c, "num_per_channels"),
                             .round_sf = case_int(c, "round") != 0 };
    TGL_TRY(swiglu_check_values(c));
    TGL_TRY(quant_format_named(case_text(c, "format"), &p->format));
    TGL_TRY(swiglu_read_number(c, "clamp", &p->has_swiglu_clamp_value, &p->swiglu_clamp_value));
    TGL_TRY(swiglu_read_number(c, "sf_min", &p->has_sf_clamp_min, &p->sf_clamp_min));
    if (topk) {
        case_add(c, POS, "pos_to_token_topk", CASE_IN, TGL_I32, 1, (int64_t[]){ rows })->fill = fill_pos;
        case_add(c, WEIGHTS, "topk_weights", CASE_IN, TGL_F32, 2, (int64_t[]){ rows / topk + 1, topk })->fill =
            case_fill_normal;
    }
    if (skip) case_add(c, EXPERT, "pos_to_expert", CASE_IN, TGL_I32, 1, (int64_t[]){ rows })->fill = fill_expert;
    if (case_int(c, "count"))
        case_add(c, COUNT, "clamped_count", CASE_INOUT, TGL_I64, 1, (int64_t[]){ 3 })->fill = fill_count;
    case_tensor *x = case_add(c, X, "x", CASE_IN, case_dtype(c, "dtype"), 2, (int64_t[]){ rows, 2 * cols });
    x->offset = case_int(c, "offset");
    x->fill = fill_x;
    TGL_TRY(quant_lay_out(case_text(c, "layout"), 2 * cols, x->strides));
    /* skipped rows stay as they are, so outputs have initial contents */
    const case_role role = skip ? CASE_INOUT : CASE_OUT;
    case_tensor *out = case_add(c, OUT, "out", role, quant_data_dtype(p->format, TGL_E2M1X2), 2,
                                (int64_t[]){ rows, quant_data_cols(p->format, cols) });
    out->offset = case_int(c, "out_offset");
    TGL_TRY(quant_add_sf(c, SF, "out_sf", role, case_text(c, "sf"), rows, swiglu_num_blocks(c, cols), &sf));
    sf->fill = case_fill_bits;
    if (!p->round_sf) sf->compare = (case_compare){ .mode = CASE_CLOSE, .rtol = FORWARD_BOUND };
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_swiglu_forward_and_per_token_cast(a->arg[X], a->arg[POS], a->arg[WEIGHTS], a->arg[EXPERT],
                                                       a->arg[COUNT], a->arg[OUT], a->arg[SF],
                                                       quant_params_in(a->problem), a->stream);
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *sf = &c->tensors[SF];
    const int64_t num_cols = c->tensors[X].shape[1] / 2;
    near *v = case_memory(num_cols, sizeof *v);
    for (int64_t i = begin; i < end; i++) {
        if (is_skipped(c, i)) continue;
        for (int64_t j = 0; j < num_cols; j++) v[j] = weighted(c, i, j, num_cols);
        for (int64_t k = 0; k < swiglu_num_blocks(c, num_cols); k++) {
            /* codes past the last factor of a word become 0 */
            if (sf->dtype == TGL_I32 && k % 4 == 0) *(int32_t *)case_element(sf, (int64_t[]){ i, k / 4 }) = 0;
            cast_block(c, v, i, k, false);
        }
    }
    free(v);
}

static void oracle(case_problem *c)
{
    const case_tensor *x = &c->tensors[X], *count = &c->tensors[COUNT];
    const int64_t num_cols = x->shape[1] / 2;
    const float clamp = quant_params_in(c)->swiglu_clamp_value;
    case_parallel(x->shape[0], 64 * x->shape[1], oracle_rows, c);
    for (int64_t i = 0; count->name && i < x->shape[0]; i++)
        for (int64_t j = 0; j < num_cols && !is_skipped(c, i); j++) {
            const float l = quant_float_at(x, i, j), r = quant_float_at(x, i, num_cols + j);
            ((int64_t *)count->data)[0] += l > clamp;
            ((int64_t *)count->data)[1] += r > clamp;
            ((int64_t *)count->data)[2] += r < -clamp;
        }
}

/* Rows without an expert are neither read nor written. */
static int64_t bytes(const case_problem *c)
{
    const int64_t skip = strtoll(case_text(c, "skip"), NULL, 10), rows = c->tensors[X].shape[0];
    const int64_t skipped = skip ? rows / skip : 0;
    const int64_t of_rows =
        case_tensor_bytes(&c->tensors[X]) + case_tensor_bytes(&c->tensors[OUT]) + case_tensor_bytes(&c->tensors[SF]);
    return case_all_bytes(c) - (rows ? of_rows / rows * skipped : 0);
}

// clang-format off: lines of cases
const case_op swiglu_forward_and_per_token_cast_cases = {
    "quant_swiglu_forward_and_per_token_cast",
    "num_rows= num_cols= dtype=bf16 format=e4m3 num_per_channels=128 round=0 sf=row weights=0 skip=0 "
    "clamp=none count=0 sf_min=none values=normal layout=packed offset=0 out_offset=0",
    setup, run, oracle, bytes, NULL,
    .has_swiglu = true,
    .lists[CASE_CHECK] = CASE_LINES(
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
        "num_rows=130 num_cols=2312 round=1 sf=packed skip=7",      /* many rows, for few SMs and for 140 */
        "num_rows=375 num_cols=1288 num_per_channels=32 weights=2 skip=0,7",
        "num_rows=4500 num_cols=264 num_per_channels=8 weights=2 skip=7",
        /* rows of one factor, with one to eight vectors a thread, and with none; odd blocks of pairs */
        "num_rows=3 num_cols=1096,2050,2056,4104 num_per_channels=0 dtype=bf16,f32 clamp=0.5 count=1 "
        "skip=2 values=mixed",
        "num_rows=3 num_cols=130,1096 format=e2m1 num_per_channels=0,7,16 dtype=bf16,f32 offset=0,1",
        "num_rows=2 num_cols=384 num_per_channels=0 clamp=0.5"),    /* a size of its own: in every choice of pairs */
    .lists[CASE_SLOW] = CASE_LINES(
        "num_rows=4000 num_cols=1024,1280,1536,2048,3072,3584 weights=0,6 skip=0,5 "
        "num_per_channels=128,0 round=1 clamp=none,10,0.5",
        "num_rows=4000 num_cols=1024,1280,1536,2048,3072,3584 weights=0,6 skip=0,5 round=1 sf=packed "
        "clamp=10,0.5 count=1 values=mixed",
        "num_rows=4000 num_cols=2048 dtype=f32 round=0,1 clamp=none,0.3 values=mixed",
        "num_rows=150000 num_cols=7168",
        "num_rows=2100 num_cols=512 layout=far"),
    /* sizes that were measured for other libraries: 8 of 256 experts, 32 of them here, in blocks of 16
     * rows */
    .lists[CASE_BENCH] = CASE_LINES(
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
        "num_rows=8001 num_cols=7168 round=1 sf=packed clamp=10 count=1"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_rows=64 num_cols=2048 dtype=bf16,f32 format=e4m3,e2m1 num_per_channels=32,64,128,0 round=0,1",
        "num_rows=64 num_cols=2048 dtype=bf16,f32 format=e4m3,e2m1 skip=0,2 round=1 sf=col,packed",
        "num_rows=64 num_cols=2048 dtype=bf16,f32 format=e4m3,e2m1 weights=8 skip=0,2 round=1 "
        "sf=row,col,packed",
        "num_rows=64 num_cols=2048 dtype=bf16,f32 format=e4m3,e2m1 weights=0,8 clamp=10 count=0,1 "
        "round=1 sf=row,packed",
        "num_rows=64 num_cols=2048 dtype=bf16,f32 num_per_channels=128,0 sf_min=0.01 clamp=none,10",
        "num_rows=64 num_cols=100 dtype=bf16,f32 num_per_channels=100,7"),
    .models = CASE_LINES("num_rows=4096 num_cols={intermediate} round=1 sf=packed clamp=none,10"),
};
// clang-format on
