/* SPDX-License-Identifier: MIT
 * topk_sum_and_topk_group_idx.c - tgl_moe_topk_sum_and_topk_group_idx: the best groups of every token. */
#include "moe/topk_sum_and_topk_group_idx.h"

#include "core/index.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "moe/common/best.h"
#include "moe/common/shape.h"
#include "tegula/moe.h"

typedef group_idx_args problem;

/* ---- CPU ---- */

static float sum_of_best(const float *scores, int64_t num_scores, int64_t num_topk_sum)
{
    if (num_scores == 1) return scores[0];
    if (num_topk_sum <= 2) {
        tgl_best_two best = TGL_BEST_TWO_NONE;
        tgl_best_two_add(&best, scores, num_scores);
        return num_topk_sum == 1 ? best.first : best.first + best.second;
    }
    float sum = 0;
    uint64_t limit = TGL_ALL_RANKS;
    for (int64_t k = 0; k < num_topk_sum;) {
        tgl_best best;
        const int size = (int)tgl_min(num_topk_sum - k, TGL_BEST_MAX);
        tgl_best_of(&best, size, limit, scores, num_scores);
        for (int i = 0; i < size; i++, k++) sum += tgl_rank_value(best.ranks[i]);
        limit = best.ranks[size - 1];
    }
    return sum;
}

enum { RUN = 256 }; /* groups whose sums are listed together */

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        uint64_t limit = TGL_ALL_RANKS;
        for (int64_t r = 0; r < p->num_topk_groups;) {
            tgl_best best;
            const int size = (int)tgl_min(p->num_topk_groups - r, TGL_BEST_MAX);
            tgl_best_begin(&best, size, limit);
            for (int64_t g = 0; g < p->num_groups; g += RUN) {
                float sums[RUN];
                const int count = (int)tgl_min(p->num_groups - g, RUN);
                for (int i = 0; i < count; i++)
                    sums[i] = sum_of_best(p->scores + t * p->token_stride + (g + i) * p->group_stride,
                                          p->experts_per_group, p->num_topk_sum);
                tgl_best_add(&best, sums, count, (uint32_t)g);
            }
            tgl_best_end(&best);
            for (int i = 0; i < size; i++, r++)
                tgl_index_put(p->group_idx, t * p->num_topk_groups + r, p->index_bytes, tgl_rank_index(best.ranks[i]));
            limit = best.ranks[size - 1];
        }
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t scans = tgl_ceil_div(p->num_topk_groups, TGL_BEST_MAX) * tgl_ceil_div(p->num_topk_sum, TGL_BEST_MAX);
    const int64_t row_bytes = tgl_saturating_product((int64_t)4 * p->num_groups * p->experts_per_group, scans);
    return tgl_parallel_rows(p->num_tokens, row_bytes, run_rows, p);
}

tgl_signature tgl_moe_topk_sum_and_topk_group_idx_signature =
    TGL_SIGNATURE("moe_topk_sum_and_topk_group_idx(scores: f32[num_tokens, num_groups, experts_per_group] rows,"
                  " num_topk_sum: int in 1..experts_per_group)"
                  " -> group_idx: i64|i32[num_tokens, num_topk_groups]"
                  " where num_groups < 2^31, experts_per_group < 2^31, num_topk_groups <= num_groups",
                  NULL);

/* ---- launch ---- */

/* The model decides which. */
enum { WARPS, WIDE, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro index = { "INDEX_BYTES", p->index_bytes };
    if (p->num_topk_groups == 0) return 0;
    if (p->num_groups > GROUP_IDX_MAX_GROUPS || p->num_topk_sum > GROUP_IDX_MAX_TOPK_SUM) {
        kernels[WARPS].name = NULL;
        kernels[WIDE] = (tgl_kernel){ "moe/topk_sum_and_topk_group_idx_wide", { index } };
        return NUM_KERNELS;
    }
    int64_t group_lanes = 32, lane_vectors = 1;
    while (group_lanes * p->num_groups > 32) group_lanes /= 2;
    while (lane_vectors < GROUP_IDX_MAX_VECTORS && 4 * group_lanes * lane_vectors < p->experts_per_group)
        lane_vectors *= 2;
    kernels[WARPS] = (tgl_kernel){
        "moe/topk_sum_and_topk_group_idx",
        { { "GROUP_LANES", group_lanes }, { "LANE_VECTORS", lane_vectors }, { "NUM_TOPK_SUM", p->num_topk_sum }, index }
    };
    return WARPS + 1;
}

TGL_TOKEN_SHAPES(problem, GROUP_IDX_WIDE_THREADS)

static const tgl_op OP = { cpu, plan, { [WARPS] = { .shape = warps_shape }, [WIDE] = { .shape = wide_shape } } };

tgl_status tgl_moe_topk_sum_and_topk_group_idx(const DLTensor *scores, DLTensor *group_idx, int64_t num_topk_sum,
                                               tgl_stream stream)
{
    const DLTensor *tensors[] = { scores, group_idx };
    TGL_TRY(tgl_take(&tgl_moe_topk_sum_and_topk_group_idx_signature, tensors, &num_topk_sum, NULL));
    problem p = { tgl_data(scores),
                  tgl_data(group_idx),
                  scores->shape[0],
                  tgl_stride(scores, 0),
                  tgl_stride(scores, 1),
                  (uint32_t)scores->shape[1],
                  (uint32_t)scores->shape[2],
                  (uint32_t)num_topk_sum,
                  (uint32_t)group_idx->shape[1],
                  tgl_dtype_bits(group_idx->dtype) / 8 };
    return tgl_run(&tgl_moe_topk_sum_and_topk_group_idx_signature, &OP, tensors, &p, stream);
}
