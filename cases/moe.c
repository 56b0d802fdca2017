/* SPDX-License-Identifier: MIT
 * moe.c - the cases of the ops that choose experts from scores and rewrite choices. Oracles sort where the
 * ops select, and compute in double or in 128 bits where the ops do not. Scores in groups have one more
 * layout than moe_common.h says:
 *   interleaved a group of every token in turn, as x.permute(1, 0, 2) gives it */
#include "tegula/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "moe_common.h"

/* Strides of [num_tokens, num_groups, experts_per_group]. */
static tgl_status lay_out_groups(const char *layout, const int64_t shape[3], int64_t strides[3])
{
    strides[2] = 1;
    if (!strcmp(layout, "interleaved")) {
        strides[0] = shape[2], strides[1] = shape[0] * shape[2];
    } else {
        TGL_TRY(moe_lay_out(layout, shape[2], strides + 1));
        strides[0] = shape[1] * strides[1] + (!strcmp(layout, "gap") ? 5 : 0);
    }
    return TGL_OK;
}

/* ---- topk_gate ---- */

enum { SCORES, IDX };

static tgl_status setup_topk_gate(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), e = case_int(c, "num_experts"), k = case_int(c, "num_topk");
    case_tensor *scores = case_add(c, SCORES, "scores", CASE_IN, TGL_F32, 2, (int64_t[]){ t, e });
    case_tensor *idx = case_add(c, IDX, "topk_idx", CASE_OUT, case_dtype(c, "dtype"), 2, (int64_t[]){ t, k });
    scores->offset = case_int(c, "offset");
    idx->offset = case_int(c, "out_offset");
    TGL_TRY(moe_choose_fill(c, scores));
    return moe_lay_out(case_text(c, "layout"), e, scores->strides);
}

static tgl_status run_topk_gate(const case_arguments *a)
{
    return tgl_moe_topk_gate(a->arg[SCORES], a->arg[IDX], a->stream);
}

static void topk_gate_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *scores = &c->tensors[SCORES], *idx = &c->tensors[IDX];
    const int64_t e = scores->shape[1], k = idx->shape[1];
    moe_candidate *row = malloc((size_t)e * sizeof *row);
    for (int64_t t = begin; t < end && row; t++) {
        for (int64_t i = 0; i < e; i++)
            row[i] = (moe_candidate){ moe_ranked(*(float *)case_element(scores, (int64_t[]){ t, i })), i };
        qsort(row, (size_t)e, sizeof *row, moe_better_first);
        for (int64_t i = 0; i < k; i++) moe_put_index(idx, t, i, row[i].index);
    }
    free(row);
}

static void oracle_topk_gate(case_problem *c)
{
    if (c->tensors[IDX].shape[1] == 0) return;
    case_parallel(c->tensors[IDX].shape[0], 64 * c->tensors[SCORES].shape[1], topk_gate_rows, c);
}

static int64_t bytes_of_two(const case_problem *c)
{
    return case_tensor_bytes(&c->tensors[0]) + case_tensor_bytes(&c->tensors[1]);
}

/* ---- topk_sum_and_topk_group_idx ---- */

static tgl_status setup_group_idx(case_problem *c)
{
    const int64_t shape[3] = { case_int(c, "num_tokens"), case_int(c, "num_groups"),
                               case_int(c, "experts_per_group") };
    const int64_t idx_shape[2] = { shape[0], case_int(c, "num_topk_groups") };
    const int64_t sum = case_int(c, "num_topk_sum");
    case_tensor *scores = case_add(c, SCORES, "scores", CASE_IN, TGL_F32, 3, shape);
    case_tensor *idx = case_add(c, IDX, "group_idx", CASE_OUT, case_dtype(c, "dtype"), 2, idx_shape);
    scores->offset = case_int(c, "offset");
    idx->offset = case_int(c, "out_offset");
    memcpy(c->scalars, &sum, sizeof sum);
    TGL_TRY(moe_choose_fill(c, scores));
    return lay_out_groups(case_text(c, "layout"), shape, scores->strides);
}

static int64_t num_topk_sum(const case_problem *c)
{
    int64_t sum;
    memcpy(&sum, c->scalars, sizeof sum);
    return sum;
}

static tgl_status run_group_idx(const case_arguments *a)
{
    return tgl_moe_topk_sum_and_topk_group_idx(a->arg[SCORES], a->arg[IDX], num_topk_sum(a->problem),
                                               a->stream);
}

/* The sum of the best scores, in descending order; each addition in double and then rounded, which gives what
 * one in float gives: 53 bits are more than twice 24 and 2. */
static float worth(moe_candidate *sorted, int64_t count)
{
    float sum = sorted[0].score;
    for (int64_t i = 1; i < count; i++) sum = (float)((double)sum + (double)sorted[i].score);
    return moe_ranked(sum);
}

static void group_idx_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *scores = &c->tensors[SCORES], *idx = &c->tensors[IDX];
    const int64_t g = scores->shape[1], p = scores->shape[2];
    moe_candidate *experts = malloc((size_t)p * sizeof *experts);
    moe_candidate *groups = malloc((size_t)g * sizeof *groups);
    for (int64_t t = begin; t < end && experts && groups; t++) {
        for (int64_t j = 0; j < g; j++) {
            for (int64_t i = 0; i < p; i++) {
                const float *score = case_element(scores, (int64_t[]){ t, j, i });
                experts[i] = (moe_candidate){ moe_ranked(*score), i };
            }
            qsort(experts, (size_t)p, sizeof *experts, moe_better_first);
            groups[j] = (moe_candidate){ worth(experts, num_topk_sum(c)), j };
        }
        qsort(groups, (size_t)g, sizeof *groups, moe_better_first);
        for (int64_t i = 0; i < idx->shape[1]; i++) moe_put_index(idx, t, i, groups[i].index);
    }
    free(experts);
    free(groups);
}

static void oracle_group_idx(case_problem *c)
{
    const case_tensor *scores = &c->tensors[SCORES];
    if (c->tensors[IDX].shape[1] == 0) return;
    case_parallel(scores->shape[0], 64 * scores->shape[1] * scores->shape[2], group_idx_rows, c);
}

/* ---- mask_indices_by_tp ---- */

enum { INDICES, MASKED };

static tgl_status setup_mask(case_problem *c)
{
    const int64_t shape[2] = { case_int(c, "num_tokens"), case_int(c, "num_topk") };
    const tgl_moe_mask_indices_by_tp_params params = {
        .num_experts = case_int(c, "num_experts"), .num_ep_ranks = case_int(c, "num_ep_ranks"),
        .num_tp_ranks = case_int(c, "num_tp_ranks"), .tp_rank = case_int(c, "tp_rank"),
    };
    const bool in_place = case_int(c, "in_place") != 0;
    const tgl_dtype dtype = case_dtype(c, "dtype");
    memcpy(c->scalars, &params, sizeof params);
    case_tensor *indices = case_add(c, INDICES, in_place ? "out" : "indices", in_place ? CASE_INOUT : CASE_IN,
                                    dtype, 2, shape);
    indices->offset = case_int(c, "offset");
    if (!in_place) case_add(c, MASKED, "out", CASE_OUT, dtype, 2, shape)->offset = case_int(c, "out_offset");
    TGL_TRY(moe_choose_index_fill(c, indices, params.num_experts));
    return moe_lay_out(case_text(c, "layout"), shape[1], indices->strides);
}

static tgl_status run_mask(const case_arguments *a)
{
    return tgl_moe_mask_indices_by_tp(a->arg[INDICES], a->arg[a->arg[MASKED] ? MASKED : INDICES],
                                      (const void *)a->problem->scalars, a->stream);
}

/* Subtracts the experts of the ranks in between, which belong to others, instead of counting ours. */
static void mask_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    tgl_moe_mask_indices_by_tp_params p;
    memcpy(&p, c->scalars, sizeof p);
    const case_tensor *indices = &c->tensors[INDICES];
    const case_tensor *out = c->num_tensors > MASKED ? &c->tensors[MASKED] : indices;
    const int64_t ep = p.num_ep_ranks ? p.num_ep_ranks : 1, tp = p.num_tp_ranks ? p.num_tp_ranks : 1;
    const __int128 mine = p.num_experts / ep, round = mine * tp;
    for (int64_t t = begin; t < end; t++)
        for (int64_t k = 0; k < out->shape[1]; k++) {
            const __int128 v = moe_index_at(indices, t, k), shifted = v - p.tp_rank * mine;
            const bool is_mine = v >= 0 && shifted >= 0 && shifted % round < mine;
            moe_put_index(out, t, k, is_mine ? (int64_t)(shifted - shifted / round * (round - mine)) : -1);
        }
}

static void oracle_mask(case_problem *c)
{
    case_parallel(c->tensors[INDICES].shape[0], 64 * c->tensors[INDICES].shape[1], mask_rows, c);
}

static int64_t bytes_mask(const case_problem *c)
{
    return c->num_tensors > MASKED ? bytes_of_two(c) : 2 * case_tensor_bytes(&c->tensors[INDICES]);
}

/* ---- normalize_weight ---- */

enum { WEIGHTS, DENOMINATOR, NORMALIZED };

static tgl_status setup_normalize(case_problem *c)
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

static tgl_status run_normalize(const case_arguments *a)
{
    return tgl_moe_normalize_weight(a->arg[WEIGHTS], a->arg[DENOMINATOR],
                                    a->arg[a->arg[NORMALIZED] ? NORMALIZED : WEIGHTS], a->stream);
}

/* An f32; one NaN stands for all. */
static void put_f32(double value, void *element)
{
    static const uint32_t nan = 0x7fffffff;
    if (isnan(value)) memcpy(element, &nan, sizeof nan);
    else case_encode(TGL_F32, value, element);
}

/* In double, rounded after every step: as worth(), and so for a quotient. */
static void normalize_rows(void *context, int64_t begin, int64_t end)
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

static void oracle_normalize(case_problem *c)
{
    case_parallel(c->tensors[WEIGHTS].shape[0], 64 * c->tensors[WEIGHTS].shape[1], normalize_rows, c);
}

static int64_t bytes_normalize(const case_problem *c)
{
    const case_tensor *out = &c->tensors[c->num_tensors > NORMALIZED ? NORMALIZED : WEIGHTS];
    return bytes_of_two(c) + case_tensor_bytes(out);
}

/* ---- inplace_unique_group_indices ---- */

static tgl_status setup_unique(case_problem *c)
{
    const int64_t shape[2] = { case_int(c, "num_tokens"), case_int(c, "num_topk") };
    const int64_t num_groups = case_int(c, "num_groups");
    case_tensor *groups = case_add(c, 0, "group_indices", CASE_INOUT, case_dtype(c, "dtype"), 2, shape);
    groups->offset = case_int(c, "offset");
    memcpy(c->scalars, &num_groups, sizeof num_groups);
    TGL_TRY(moe_choose_index_fill(c, groups, num_groups));
    return moe_lay_out(case_text(c, "layout"), shape[1], groups->strides);
}

static tgl_status run_unique(const case_arguments *a)
{
    int64_t num_groups;
    memcpy(&num_groups, a->problem->scalars, sizeof num_groups);
    return tgl_moe_inplace_unique_group_indices(a->arg[0], num_groups, a->stream);
}

typedef struct { int64_t group, place; } occurrence;

static int by_group_and_place(const void *a, const void *b)
{
    const occurrence *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Sorts a row: all but the first of equal groups go. */
static void unique_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *groups = &c->tensors[0];
    const int64_t k = groups->shape[1];
    occurrence *row = malloc((size_t)k * sizeof *row);
    for (int64_t t = begin; t < end && row; t++) {
        for (int64_t i = 0; i < k; i++) row[i] = (occurrence){ moe_index_at(groups, t, i), i };
        qsort(row, (size_t)k, sizeof *row, by_group_and_place);
        for (int64_t i = 1; i < k; i++)
            if (row[i].group >= 0 && row[i].group == row[i - 1].group)
                moe_put_index(groups, t, row[i].place, -1);
    }
    free(row);
}

static void oracle_unique(case_problem *c)
{
    if (c->tensors[0].shape[1] == 0) return;
    case_parallel(c->tensors[0].shape[0], 64 * c->tensors[0].shape[1], unique_rows, c);
}

static int64_t bytes_unique(const case_problem *c) { return 2 * case_tensor_bytes(&c->tensors[0]); }

/* ---- the table ---- */

const case_op moe_ops[] = {
    {
        "moe_topk_gate",
        "num_tokens= num_experts= num_topk= dtype=i64 values=normal layout=packed offset=0 out_offset=0",
        setup_topk_gate, run_topk_gate, oracle_topk_gate, bytes_of_two, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=37 num_experts=72,32,64,96,16,36,108,128,144 num_topk=6",
            "num_tokens=33 num_experts=256 num_topk=8 values=normal,ties,equal,few_finite,special,bits "
            "dtype=i64,i32",
            "num_tokens=5 num_experts=384 num_topk=6 values=normal,ties,equal,few_finite,special",
            "num_tokens=9 num_experts=1,2,7,8,9,15,16,17,31,32,33,63,64,65 num_topk=1 values=ties,special",
            "num_tokens=3 num_experts=127,129,255,257,383,385,511,512,513,1000,1023,1024,1025 num_topk=8 "
            "values=normal,ties",
            "num_tokens=2 num_experts=1,2,31,32,33,65,256,300 num_topk=1 layout=gap,repeated offset=0,1",
            "num_tokens=37 num_experts=36,256,384,1000 num_topk=6,32 values=close,coarse",
            "num_tokens=1 num_experts=4096,5000 num_topk=8,33 values=normal,few_finite,coarse",
            "num_tokens=7 num_experts=8 num_topk=0,1,2,7,8 values=ties,few_finite",
            "num_tokens=3 num_experts=33 num_topk=31,32,33 values=normal,ties,special",
            "num_tokens=2 num_experts=256 num_topk=32,33,255,256 values=normal,few_finite,special "
            "dtype=i64,i32",
            "num_tokens=1 num_experts=1024 num_topk=1024 values=ties",
            "num_tokens=0,1,2,3,4,5,8,9,31,32,33,65,129 num_experts=64 num_topk=6",
            "num_tokens=9 num_experts=72,256 num_topk=6 layout=half,gap,repeated offset=0,1,2,3 "
            "out_offset=0,1 "
            "dtype=i64,i32",
            "num_tokens=9 num_experts=1 num_topk=0 values=special",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=4001,8001 num_experts=72,32,64,96,16,36,108,128,144 num_topk=6",
            "num_tokens=4001,8001,200000 num_experts=256 num_topk=8 values=normal,close,coarse,ties,special",
            "num_tokens=4001 num_experts=384,512,1000,4096 num_topk=6,8 values=normal,coarse,few_finite "
            "layout=packed,gap",
            "num_tokens=100 num_experts=1000 num_topk=1000 values=normal,ties",
            "num_tokens=3 num_experts=100000 num_topk=8,100 values=normal,ties",
            "num_tokens=32780 num_experts=16 num_topk=6 values=ties "
            "layout=far",    /* scores past 2^31 elements */
            NULL,
        },
        /* sizes that were measured for other libraries, then decoding and other models */
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096,8192,32768 num_experts=256 num_topk=8",
            "num_tokens=1,128,4096,8192 num_experts=384 num_topk=6",
            "num_tokens=8,64 num_experts=256 num_topk=8",
            "num_tokens=4001,8001 num_experts=72 num_topk=6",
            "num_tokens=128,8192 num_experts=512 num_topk=10",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_experts=16,32,36,64,72,96,108,128,144 num_topk=6",
            "num_tokens=64 num_experts=256,384 num_topk=6,8 dtype=i64,i32",
            "num_tokens=64 num_experts=1,8,33,257,512,1000,1024,4096,5000 num_topk=1 dtype=i64,i32",
            "num_tokens=64 num_experts=256 num_topk=32,33,256",
            NULL,
        },
    },
    {
        "moe_topk_sum_and_topk_group_idx",
        "num_tokens= num_groups= experts_per_group= num_topk_sum=2 num_topk_groups= dtype=i64 values=normal "
        "layout=packed offset=0 out_offset=0",
        setup_group_idx, run_group_idx, oracle_group_idx, bytes_of_two, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=19 num_groups=4 experts_per_group=18,64 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=19 num_groups=8 experts_per_group=9,32 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=19 num_groups=12 experts_per_group=6 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=19 num_groups=16 experts_per_group=16 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=17 num_groups=8 experts_per_group=32 num_topk_groups=4 "
            "values=ties,equal,few_finite,special,magnitudes,bits dtype=i64,i32",
            "num_tokens=17 num_groups=8,12 experts_per_group=6,32 num_topk_sum=1,2,3 num_topk_groups=4 "
            "values=close,coarse",
            "num_tokens=5 num_groups=1,3,31,32,33,64,65 experts_per_group=5 num_topk_groups=1 "
            "values=normal,ties",
            "num_tokens=5 num_groups=32,64,100 experts_per_group=7 num_topk_groups=32 values=ties,few_finite",
            "num_tokens=5 num_groups=8,40 experts_per_group=6 num_topk_sum=2,3 num_topk_groups=8 dtype=i32",
            "num_tokens=5 num_groups=7 experts_per_group=1 num_topk_sum=1 num_topk_groups=0,1,7 "
            "values=ties,special",
            "num_tokens=5 num_groups=9 experts_per_group=2 num_topk_sum=1,2 num_topk_groups=3,9 "
            "values=ties,special",
            "num_tokens=5 num_groups=6 experts_per_group=13,31,33,97 num_topk_sum=2,3,5,13 num_topk_groups=3 "
            "values=normal,magnitudes,special",
            "num_tokens=3 num_groups=4 experts_per_group=8 num_topk_sum=1,2,3,4,5,6,7,8 num_topk_groups=4 "
            "values=normal,magnitudes,few_finite",
            "num_tokens=2 num_groups=2 experts_per_group=128,300,1000 num_topk_sum=1,2,40 num_topk_groups=2",
            "num_tokens=0,1,2,3,4,5,8,9,33,65 num_groups=8 experts_per_group=32 num_topk_groups=4",
            "num_tokens=5 num_groups=8 experts_per_group=9,32 num_topk_sum=1,2 num_topk_groups=4 "
            "layout=half,gap,interleaved,repeated offset=0,1,2 out_offset=0,1",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=4001,8001 num_groups=4 experts_per_group=18,64 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=4001,8001 num_groups=8 experts_per_group=9,32 num_topk_sum=1,2 num_topk_groups=2,4 "
            "values=normal,ties,special",
            "num_tokens=4001,8001 num_groups=12 experts_per_group=6 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=4001,8001 num_groups=16 experts_per_group=16 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=200000 num_groups=8 experts_per_group=32 num_topk_groups=4",
            "num_tokens=100 num_groups=1000 experts_per_group=3 num_topk_sum=1,2,3 num_topk_groups=1000 "
            "values=ties",
            "num_tokens=8200 num_groups=4 experts_per_group=8 num_topk_groups=2 values=ties layout=far",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096,32768 num_groups=8 experts_per_group=32 num_topk_groups=4",
            "num_tokens=8,64 num_groups=8 experts_per_group=32 num_topk_groups=4",
            "num_tokens=8001 num_groups=12 experts_per_group=6 num_topk_sum=1,2 num_topk_groups=4",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_groups=4 experts_per_group=18,64 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=64 num_groups=8 experts_per_group=9,32 num_topk_sum=1,2 num_topk_groups=2,4 "
            "dtype=i64,i32",
            "num_tokens=64 num_groups=12 experts_per_group=6 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=64 num_groups=16 experts_per_group=16 num_topk_sum=1,2 num_topk_groups=2,4",
            "num_tokens=64 num_groups=1,33,64 experts_per_group=5,100 num_topk_sum=1,2,5 num_topk_groups=1",
            "num_tokens=64 num_groups=33 experts_per_group=5 num_topk_groups=1 dtype=i32",
            NULL,
        },
    },
    {
        "moe_mask_indices_by_tp",
        "num_tokens= num_topk= num_experts= num_ep_ranks=0 num_tp_ranks=0 tp_rank=0 dtype=i64 "
        "values=some_empty "
        "in_place=0 layout=packed offset=0 out_offset=0",
        setup_mask, run_mask, oracle_mask, bytes_mask, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=37 num_topk=2,6,8,9 num_experts=72,256 num_ep_ranks=8 num_tp_ranks=2,4,8 tp_rank=0,1 "
            "dtype=i64,i32",
            "num_tokens=37 num_topk=8 num_experts=256 num_ep_ranks=64 num_tp_ranks=2,8 tp_rank=1 "
            "values=valid,beyond,bits dtype=i64,i32",
            "num_tokens=40 num_topk=9 num_experts=8 num_ep_ranks=4 num_tp_ranks=2 tp_rank=0,1 "
            "values=some_empty,beyond",
            "num_tokens=40 num_topk=8 num_experts=8 num_ep_ranks=8 num_tp_ranks=4 "
            "tp_rank=0,1,2,3",     /* g = 1 */
            "num_tokens=40 num_topk=8 num_experts=75 num_ep_ranks=8 num_tp_ranks=3,8 tp_rank=2 "
            "values=valid,beyond,bits",
            "num_tokens=40 num_topk=8 num_experts=72 num_ep_ranks=0,1,8 "
            "values=some_empty,beyond,bits",  /* one rank */
            "num_tokens=37 num_topk=7,8 num_experts=72,5000000000 num_ep_ranks=8 num_tp_ranks=2 tp_rank=0,1 "
            "values=wild dtype=i64,i32 in_place=0,1",
            "num_tokens=5 num_topk=7 num_experts=7 num_ep_ranks=3 num_tp_ranks=1000003 "
            "tp_rank=0,1,1000002 values=bits",
            "num_tokens=5 num_topk=7 num_experts=5000000000 num_ep_ranks=3 num_tp_ranks=4 tp_rank=0,3 "
            "values=some_empty,beyond,bits dtype=i64",
            "num_tokens=5 num_topk=7 num_experts=5000000000 num_tp_ranks=4294967296 values=bits "
            "dtype=i64,i32",
            "num_tokens=0,1,2,3,127,128,129,255,257 num_topk=1,8 num_experts=256 num_ep_ranks=8 "
            "num_tp_ranks=2",
            /* threads take a second step */
            "num_tokens=40000 num_topk=7 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 offset=1",
            "num_tokens=9 num_topk=0,1,2,3,5,33 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 "
            "in_place=0,1 dtype=i64,i32",
            "num_tokens=65 num_topk=6,8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 "
            "layout=half,gap,repeated "
            "offset=0,1 out_offset=0,1 dtype=i64,i32",
            "num_tokens=65 num_topk=6,7,8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 offset=0,1,2,3 "
            "in_place=1 "
            "dtype=i64,i32",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=23000 num_topk=2,6,8,9 num_experts=72,256 num_ep_ranks=8 num_tp_ranks=2,4,8 "
            "tp_rank=0,1 "
            "values=some_empty,bits dtype=i64,i32 in_place=0,1",
            "num_tokens=32780 num_topk=9 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 layout=far dtype=i32",
            "num_tokens=268435459 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 in_place=1 "
            "dtype=i32",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096,32768 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2",
            "num_tokens=8,64 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2",
            "num_tokens=32768 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 dtype=i32",
            "num_tokens=32768 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 in_place=1",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 dtype=i64,i32",
            NULL,
        },
    },
    {
        "moe_normalize_weight",
        "num_tokens= num_topk= values=uniform in_place=0 layout=packed offset=0 out_offset=0",
        setup_normalize, run_normalize, oracle_normalize, bytes_normalize, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=67 num_topk=0,1,2,3,4,5,6,7,8,9,16,31,32,33,64,65 values=uniform,normal",
            "num_tokens=133 num_topk=6,8,9,33 values=ties,equal,zero,few_finite,special,magnitudes,bits",
            "num_tokens=0,1,2,31,32,33,127,128,129,257 num_topk=6,8",
            "num_tokens=3 num_topk=100,1000,3001 values=uniform,magnitudes",
            "num_tokens=65 num_topk=1,6,7,8,33 layout=half,gap,repeated offset=0,1 out_offset=0,1",
            "num_tokens=65 num_topk=0,1,6,7,8,33,300 in_place=1 offset=0,1,2,3 values=uniform,special",
            "num_tokens=8195 num_topk=4,8,12 in_place=0,1 values=special",
            "num_tokens=65 num_topk=16 layout=gap",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=4001,30700 num_topk=1,2,6,7,8,9 values=uniform,normal,magnitudes in_place=0,1",
            "num_tokens=100003 num_topk=8 values=bits",
            "num_tokens=32780 num_topk=9 layout=far",
            "num_tokens=268435459 num_topk=8 values=magnitudes in_place=1",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096,32768 num_topk=8",
            "num_tokens=8,64 num_topk=8",
            "num_tokens=32768 num_topk=6,9",
            "num_tokens=32768 num_topk=8 in_place=1",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_topk=1,2,6,7,8,9,16,32,33,64,65",
            NULL,
        },
    },
    {
        "moe_inplace_unique_group_indices",
        "num_tokens= num_topk= num_groups= dtype=i64 values=some_empty layout=packed offset=0",
        setup_unique, run_unique, oracle_unique, bytes_unique, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=67 num_topk=2,6,8,9 num_groups=8,16,72 dtype=i64,i32",
            "num_tokens=67 num_topk=8 num_groups=1,63,64,65,127,128,129,1000 values=valid,some_empty "
            "dtype=i64,i32",
            "num_tokens=35 num_topk=0,1,2,3,4,5,7,8,15,16,17,31,32,33,63,64,65,100 num_groups=40 "
            "values=valid,some_empty",
            "num_tokens=35 num_topk=1,6,8,31,32,33,70 num_groups=128 values=same,distinct dtype=i64,i32",
            "num_tokens=35 num_topk=8,33 num_groups=1099511627776 dtype=i64",
            "num_tokens=35 num_topk=7,8,33 num_groups=9 values=wild dtype=i64,i32",
            "num_tokens=35 num_topk=8,33 num_groups=2147483647 dtype=i32",
            "num_tokens=3 num_topk=300,1025 num_groups=200",
            "num_tokens=0,1,2,3,4,5,31,32,33,127,128,129,257 num_topk=6,8 num_groups=8",
            "num_tokens=65 num_topk=1,6,8,9,33 num_groups=8 layout=half,gap offset=0,1 dtype=i64,i32",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=4001,30700 num_topk=1,2,6,7,8,9,33 num_groups=8,16,72,1000 dtype=i64,i32",
            "num_tokens=32780 num_topk=9 num_groups=8 layout=far dtype=i32",
            "num_tokens=268435459 num_topk=8 num_groups=8 dtype=i32",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096,32768 num_topk=8 num_groups=8",
            "num_tokens=8,64 num_topk=8 num_groups=8",
            "num_tokens=32768 num_topk=6,9 num_groups=8",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_topk=1,2,6,8,9,16,32,33 num_groups=8 dtype=i64,i32",
            NULL,
        },
    },
    { .name = NULL },
};
