/* SPDX-License-Identifier: MIT
 * inplace_unique_group_indices.c - tgl_moe_inplace_unique_group_indices: the first occurrence of every group
 * in a row stays, later ones become -1. */
#include "moe/inplace_unique_group_indices.h"

#include <inttypes.h>

#include "core/log.h"
#include "core/math.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "tegula/moe.h"

typedef struct {
    void *group_indices;
    int64_t num_tokens, num_topk, row_stride;
    int index_bytes;
} problem;

/* ---- CPU ---- */

/* Groups below SET_GROUPS are remembered in a set of bits; for others the row is searched. Elements that
 * have become -1 do not matter to the search: the first occurrence is still there. */
enum { SET_GROUPS = 256 };

#define INLINE static inline __attribute__((always_inline))   /* so that index_bytes is a constant */

INLINE int64_t get(const void *row, int64_t k, int index_bytes)
{
    return index_bytes == 4 ? ((const int32_t *)row)[k] : ((const int64_t *)row)[k];
}

INLINE void clear(void *row, int64_t k, int index_bytes)
{
    if (index_bytes == 4) ((int32_t *)row)[k] = -1;
    else ((int64_t *)row)[k] = -1;
}

INLINE void unique(void *row, int64_t num_topk, int index_bytes)
{
    uint64_t set[SET_GROUPS / 64] = { 0 };
    for (int64_t k = 0; k < num_topk; k++) {
        const int64_t v = get(row, k, index_bytes);
        if (v < 0) continue;
        bool is_seen = false;
        if (v < SET_GROUPS) {
            const uint64_t bit = (uint64_t)1 << v % 64;
            is_seen = set[v / 64] & bit;
            set[v / 64] |= bit;
        } else {
            for (int64_t j = 0; j < k; j++) is_seen |= get(row, j, index_bytes) == v;
        }
        if (is_seen) clear(row, k, index_bytes);
    }
}

static void cpu(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        void *row = (char *)p->group_indices + t * p->row_stride * p->index_bytes;
        if (p->index_bytes == 4) unique(row, p->num_topk, 4);
        else unique(row, p->num_topk, 8);
    }
}

/* ---- checks ---- */

static tgl_status check(const DLTensor *group_indices, int64_t num_groups)
{
    TGL_TRY(tgl_expect("group_indices", group_indices, TGL_I64 | TGL_I32, 2, TGL_ROWS));
    const int64_t num_tokens = group_indices->shape[0], num_topk = group_indices->shape[1];
    const int64_t row_stride = tgl_stride(group_indices, 0);
    if (num_tokens > 1 && num_topk > 0 && row_stride < num_topk)
        return tgl_fail(TGL_ERR_ARGUMENT, "group_indices: strides are [%" PRId64 ", 1], want >= %" PRId64
                        " between rows", row_stride, num_topk);
    if (num_groups < 0)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_groups: is %" PRId64 ", want >= 0", num_groups);
    return TGL_OK;
}

/* ---- launch ---- */

static bool is_wide(int64_t num_topk) { return num_topk > UNIQUE_MAX_TOPK; }

/* num_topk is fixed by the model, and chooses. */
static tgl_status launch(int64_t num_topk, int index_bytes, const DLTensor *on, const tgl_shape *shape,
                         tgl_stream stream, void **args)
{
    const tgl_macro macro = { "INDEX_BYTES", index_bytes };
    const tgl_kernel wide = { "moe/inplace_unique_group_indices_wide", { macro } };
    const tgl_kernel narrow = { "moe/inplace_unique_group_indices", { { "NUM_TOPK", num_topk }, macro } };
    return tgl_launch(is_wide(num_topk) ? &wide : &narrow, 1, 0, on, shape, stream, args);
}

static tgl_status run_on_cuda(problem *p, const DLTensor *on, tgl_stream stream)
{
    if (is_wide(p->num_topk)) {
        const int64_t blocks = tgl_ceil_div(p->num_tokens, UNIQUE_WIDE_WARPS);
        const tgl_shape shape = { { blocks }, .block = 32 * UNIQUE_WIDE_WARPS };
        void *args[] = { &p->group_indices, &p->num_tokens, &p->num_topk, &p->row_stride };
        return launch(p->num_topk, p->index_bytes, on, &shape, stream, args);
    }
    const int64_t stride_bytes = p->num_tokens > 1 ? p->row_stride * p->index_bytes : 0;
    uint32_t is_aligned = ((uintptr_t)p->group_indices & 15) == 0 && stride_bytes % 16 == 0;
    const tgl_shape shape = { { tgl_ceil_div(p->num_tokens, UNIQUE_ROWS) }, .block = UNIQUE_ROWS };
    void *args[] = { &p->group_indices, &p->num_tokens, &p->row_stride, &is_aligned };
    return launch(p->num_topk, p->index_bytes, on, &shape, stream, args);
}

tgl_status tgl_moe_inplace_unique_group_indices(DLTensor *group_indices, int64_t num_groups,
                                                tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_inplace_unique_group_indices", "group_indices", group_indices, NULL);
    TGL_TRY(check(group_indices, num_groups));
    tgl_log_indices("group_indices", group_indices, num_groups);
    problem p = { tgl_data(group_indices), group_indices->shape[0], group_indices->shape[1],
                  tgl_stride(group_indices, 0), tgl_dtype_bits(group_indices->dtype) / 8 };
    if (p.num_topk == 0) return TGL_OK;                 /* no kernel has no columns */
    if (tgl_preparing() && !tgl_on_cpu(group_indices))
        return launch(p.num_topk, p.index_bytes, group_indices, NULL, stream, NULL);
    if (p.num_tokens == 0) return TGL_OK;               /* data may be NULL */
    if (!tgl_on_cpu(group_indices)) return run_on_cuda(&p, group_indices, stream);
    return tgl_parallel_rows(p.num_tokens, p.num_topk * p.index_bytes, cpu, &p);
}
