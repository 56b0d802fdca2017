/* SPDX-License-Identifier: MIT
 * inplace_unique_group_indices.c - tgl_moe_inplace_unique_group_indices: the first occurrence of every group
 * in a row stays, later ones become -1. */
#include "moe/inplace_unique_group_indices.h"

#include "core/cpu.h"
#include "core/index.h"
#include "core/log_indices.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "tegula/moe.h"

typedef unique_args problem;

/* ---- CPU ---- */

/* Groups below SET_GROUPS are looked up in a bit set; for others the row is searched, which still has every
 * first occurrence. */
enum { SET_GROUPS = 256 };

TGL_ALWAYS_INLINE void unique(void *row, int64_t num_topk, int index_bytes)
{
    uint64_t set[SET_GROUPS / 64] = { 0 };
    for (int64_t k = 0; k < num_topk; k++) {
        const int64_t v = tgl_index_get(row, k, index_bytes);
        if (v < 0) continue;
        bool is_seen = false;
        if (v < SET_GROUPS) {
            const uint64_t bit = (uint64_t)1 << v % 64;
            is_seen = set[v / 64] & bit;
            set[v / 64] |= bit;
        } else {
            for (int64_t j = 0; j < k; j++) is_seen |= tgl_index_get(row, j, index_bytes) == v;
        }
        if (is_seen) tgl_index_put(row, k, index_bytes, -1);
    }
}

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        void *row = (char *)p->group_indices + t * p->row_stride * p->index_bytes;
        if (p->index_bytes == 4) unique(row, p->num_topk, 4);
        else unique(row, p->num_topk, 8);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, p->num_topk * p->index_bytes, run_rows, p);
}

tgl_signature tgl_moe_inplace_unique_group_indices_signature = TGL_SIGNATURE(
    "moe_inplace_unique_group_indices(group_indices: i64|i32[num_tokens, num_topk]! rows, num_groups: int)", NULL);

/* ---- launch ---- */

/* The model decides which. */
enum { ROWS, WIDE, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro index = { "INDEX_BYTES", p->index_bytes };
    if (p->num_topk == 0) return 0;
    if (p->num_topk <= UNIQUE_MAX_TOPK) {
        kernels[ROWS] = (tgl_kernel){ "moe/inplace_unique_group_indices", { { "NUM_TOPK", p->num_topk }, index } };
        return ROWS + 1;
    }
    kernels[ROWS].name = NULL;
    kernels[WIDE] = (tgl_kernel){ "moe/inplace_unique_group_indices_wide", { index } };
    return NUM_KERNELS;
}

static tgl_shape rows_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const uint64_t stride_bytes = p->num_tokens > 1 ? (uint64_t)(p->row_stride * p->index_bytes) : 0;
    p->is_aligned = (((uintptr_t)p->group_indices | stride_bytes) & 15) == 0;
    return (tgl_shape){ { tgl_ceil_div(p->num_tokens, UNIQUE_ROWS) }, .block = UNIQUE_ROWS, TGL_ARGS(*p) };
}

static tgl_shape wide_shape(void *context, const tgl_target *target)
{
    const problem *p = context;
    const int64_t blocks = tgl_ceil_div(p->num_tokens, UNIQUE_WIDE_WARPS);
    return (tgl_shape){ { blocks }, .block = 32 * UNIQUE_WIDE_WARPS, TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan, { [ROWS] = { .shape = rows_shape }, [WIDE] = { .shape = wide_shape } } };

tgl_status tgl_moe_inplace_unique_group_indices(DLTensor *group_indices, int64_t num_groups, tgl_stream stream)
{
    const DLTensor *tensors[] = { group_indices };
    TGL_TRY(tgl_take(&tgl_moe_inplace_unique_group_indices_signature, tensors, &num_groups, NULL));
    tgl_log_indices("group_indices", group_indices, num_groups);
    problem p = { tgl_data(group_indices), group_indices->shape[0], tgl_stride(group_indices, 0),
                  group_indices->shape[1], .index_bytes = tgl_dtype_bits(group_indices->dtype) / 8 };
    return tgl_run(&tgl_moe_inplace_unique_group_indices_signature, &OP, tensors, &p, stream);
}
