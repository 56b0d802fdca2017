/* SPDX-License-Identifier: MIT
 * mask_indices_by_tp.c - tgl_moe_mask_indices_by_tp: every index through tgl_tp_mask. */
#include "moe/mask_indices_by_tp.h"

#include "core/log_indices.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "tegula/moe.h"

typedef mask_args problem;

/* ---- CPU ---- */

/* In pieces, so that the second pass over the values hits the cache. */
enum { PIECE = 512 };

static void mask_i32(const tgl_tp_mask *mask, const int32_t *indices, int32_t *out, int64_t count)
{
    const tgl_tp_mask m = *mask; /* a copy, which stores to out cannot alias */
    for (int64_t i = 0; i < count; i++) out[i] = (int32_t)tgl_tp_mask_narrow(&m, indices[i]);
}

static void mask_i64(const tgl_tp_mask *mask, const int64_t *indices, int64_t *out, int64_t count)
{
    const tgl_tp_mask m = *mask;
    for (int64_t begin = 0; begin < count; begin += PIECE) {
        const int64_t end = tgl_min(begin + PIECE, count);
        int64_t largest = -1;
        for (int64_t i = begin; i < end; i++) largest = indices[i] > largest ? indices[i] : largest;
        if (largest < TGL_DIVIDE_LIMIT)
            for (int64_t i = begin; i < end; i++) out[i] = tgl_tp_mask_narrow(&m, indices[i]);
        else
            for (int64_t i = begin; i < end; i++) out[i] = tgl_tp_mask_wide(&m, indices[i]);
    }
}

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t rows = p->row_stride == p->num_cols ? end - begin : 1; /* contiguous */
    const int64_t bytes = p->index_bytes, count = rows * p->num_cols;
    for (int64_t row = begin; row < end; row += rows) {
        const char *from = (const char *)p->indices + row * p->row_stride * bytes;
        char *to = (char *)p->out + row * p->num_cols * bytes;
        if (bytes == 4) mask_i32(&p->mask, (const int32_t *)from, (int32_t *)to, count);
        else mask_i64(&p->mask, (const int64_t *)from, (int64_t *)to, count);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_rows, 2 * p->index_bytes * p->num_cols, run_rows, p);
}

#define FIELD(name) TGL_FIELD(tgl_moe_mask_indices_by_tp_params, name)
static const tgl_field FIELDS[] = { FIELD(num_experts), FIELD(num_ep_ranks), FIELD(num_tp_ranks), FIELD(tp_rank) };
static const tgl_params PARAMS = TGL_PARAMS(tgl_moe_mask_indices_by_tp_params, FIELDS);
tgl_signature tgl_moe_mask_indices_by_tp_signature = TGL_SIGNATURE(
    "moe_mask_indices_by_tp(indices: i64|i32[num_tokens, num_topk] rows, num_experts: int >= num_ep_ranks,"
    " num_ep_ranks: int = 1, num_tp_ranks: int = 1, tp_rank: int in 0..num_tp_ranks - 1)"
    " -> out: indices[num_tokens, num_topk] where out may be indices",
    &PARAMS);

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] = (tgl_kernel){ "moe/mask_indices_by_tp", { { "INDEX_BYTES", p->index_bytes } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t bytes = p->index_bytes;
    if (p->row_stride == p->num_cols) {
        p->num_cols *= p->num_rows;
        p->num_rows = 1;
    }
    /* a single row may end inside a vector */
    int64_t bits = (int64_t)((uintptr_t)p->indices | (uintptr_t)p->out);
    if (p->num_rows > 1) bits |= p->num_cols * bytes | p->row_stride * bytes;
    p->unit = bits % 16 == 0 ? (int32_t)(16 / bytes) : 1;
    p->row_units = tgl_ceil_div(p->num_cols, p->unit);
    p->by_row_units = tgl_divisor_of(p->row_units);
    const int64_t blocks = tgl_strided_grid(tgl_ceil_div(p->num_rows * p->row_units, MASK_THREADS), MASK_BLOCKS);
    p->step_rows = blocks * MASK_THREADS / p->row_units;
    p->step_units = blocks * MASK_THREADS % p->row_units;
    return (tgl_shape){ { blocks }, .block = MASK_THREADS, TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_moe_mask_indices_by_tp(const DLTensor *indices, DLTensor *out,
                                      const tgl_moe_mask_indices_by_tp_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { indices, out };
    TGL_TRY(tgl_take(&tgl_moe_mask_indices_by_tp_signature, tensors, params, NULL));
    tgl_log_indices("indices", indices, params->num_experts);
    const int64_t num_ep_ranks = tgl_max(params->num_ep_ranks, 1), num_tp_ranks = tgl_max(params->num_tp_ranks, 1);
    problem p = { tgl_data(indices),
                  tgl_data(out),
                  indices->shape[0],
                  indices->shape[1],
                  tgl_stride(indices, 0),
                  tgl_tp_mask_of(params->num_experts / num_ep_ranks, num_tp_ranks, params->tp_rank),
                  .index_bytes = tgl_dtype_bits(indices->dtype) / 8 };
    return tgl_run(&tgl_moe_mask_indices_by_tp_signature, &OP, tensors, &p, stream);
}
