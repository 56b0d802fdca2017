/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "cases/moe/common/moe.h"
#include "core/status.h"

enum { WEIGHTS, DENOMINATOR, NORMALIZED };

static tgl_status setup(case_problem *c)
{
    const int64_t shape[2] = { case_int(c, "num_tokens"), case_int(c, "num_topk") };
    const bool in_place = case_int(c, "in_place") != 0;
    case_tensor *weights = case_add(c, WEIGHTS, in_place ? "normalized_weights" : "topk_weights",
                                    in_place ? CASE_INOUT : CASE_IN, TGL_F32, 2, shape);
    weights->offset = case_int(c, "offset");
    case_add(c, DENOMINATOR, "denominator", CASE_OUT, TGL_F32, 1, shape);
    if (!in_place) {
        case_tensor *normalized = case_add(c, NORMALIZED, "normalized_weights", CASE_OUT, TGL_F32, 2, shape);
        normalized->offset = case_int(c, "out_offset");
    }
    TGL_TRY(moe_choose_fill(c, weights));
    return moe_lay_out(case_text(c, "layout"), shape[1], weights->strides);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_normalize_weight(a->arg[WEIGHTS], a->arg[DENOMINATOR],
                                    a->arg[a->arg[NORMALIZED] ? NORMALIZED : WEIGHTS], a->stream);
}

/* An f32; every NaN becomes the same. */
static void put_f32(double value, void *element)
{
    static const uint32_t nan = 0x7fffffff;
    if (isnan(value)) memcpy(element, &nan, sizeof nan);
    else case_encode(TGL_F32, value, element);
}

/* In double, rounded after every step, which equals a step in float: 53 bits are at least twice 24 plus 2. */
static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *weights = &c->tensors[WEIGHTS], *sums = &c->tensors[DENOMINATOR];
    const case_tensor *out = c->num_tensors > NORMALIZED ? &c->tensors[NORMALIZED] : weights;
    for (int64_t t = begin; t < end; t++) {
        double sum = 1e-20f;
        for (int64_t k = 0; k < out->shape[1]; k++)
            sum = (double)(float)(sum + (double)*(const float *)case_element(weights, (int64_t[]){ t, k }));
        put_f32(sum, case_element(sums, &t));
        for (int64_t k = 0; k < out->shape[1]; k++) {
            const double weight = (double)*(const float *)case_element(weights, (int64_t[]){ t, k });
            put_f32(weight / sum, case_element(out, (int64_t[]){ t, k }));
        }
    }
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[WEIGHTS].shape[0], 64 * c->tensors[WEIGHTS].shape[1], oracle_rows, c);
}

static int64_t bytes(const case_problem *c)
{
    const bool in_place = c->num_tensors <= NORMALIZED; /* the weights are read and written */
    return case_all_bytes(c) + (in_place ? case_tensor_bytes(&c->tensors[WEIGHTS]) : 0);
}

// clang-format off: lines of cases
const case_op normalize_weight_cases = {
    "moe_normalize_weight",
    "num_tokens= num_topk= values=uniform in_place=0 layout=packed offset=0 out_offset=0",
    setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=67 num_topk=0,1,2,3,4,5,6,7,8,9,16,31,32,33,64,65 values=uniform,normal",
        "num_tokens=133 num_topk=6,8,9,33 values=ties,equal,zero,few_finite,special,magnitudes,bits",
        "num_tokens=0,1,2,31,32,33,127,128,129,257 num_topk=6,8",
        "num_tokens=3 num_topk=100,1000,3001 values=uniform,magnitudes",
        "num_tokens=65 num_topk=1,6,7,8,33 layout=half,gap,repeated offset=0,1 out_offset=0,1",
        "num_tokens=65 num_topk=0,1,6,7,8,33,300 in_place=1 offset=0,1,2,3 values=uniform,special",
        "num_tokens=8195 num_topk=4,8,12 in_place=0,1 values=special",
        "num_tokens=65 num_topk=16 layout=gap"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001,30700 num_topk=1,2,6,7,8,9 values=uniform,normal,magnitudes in_place=0,1",
        "num_tokens=100003 num_topk=8 values=bits",
        "num_tokens=32780 num_topk=9 layout=far",
        "num_tokens=268435459 num_topk=8 values=magnitudes in_place=1"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,32768 num_topk=8",
        "num_tokens=8,64 num_topk=8",
        "num_tokens=32768 num_topk=6,9",
        "num_tokens=32768 num_topk=8 in_place=1"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_topk=1,2,6,7,8,9,16,32,33,64,65"),
    .models = CASE_LINES("num_tokens=4096 num_topk={num_topk}"),
};
// clang-format on
