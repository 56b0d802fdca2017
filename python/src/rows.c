/* SPDX-License-Identifier: MIT
 * rows.c - every op, as Python sees it: a row of text and a thunk into the C API.
 *
 *   x[T, H]                  a tensor; names its dimensions
 *   x[T, H]?                 an optional one: None when absent
 *   x[T, H]!                 one that the op changes in place
 *   group: int = 128         also float and bool; `?` after the kind allows None
 *   fmt: {e4m3|e5m2} = e4m3  one of some words
 *   -> fmt[T, H], f32[T, H / group; 1, T / 4 * 4]
 *                            the outputs: dtype (a word below, a tensor's, or what a word argument says),
 * sizes and, after `;`, strides where they are not packed. Sizes are products of dimension names, int
 * arguments and numbers; `/` rounds up; from left to right.
 *   -> None                  no output: the op works in place
 *
 * Every function with outputs also takes out=, a tensor or a tuple of them. Thunks take arguments in the
 * row's order. */
#include "glue.h"
#include "tegula/moe.h"
#include "tegula/transpose.h"

/* doc: thunk */
static tgl_status call_transpose(const frame *f)
{
    return tgl_transpose(f->arg[0].tensor, f->out[0], f->stream);
}
/* end */
static tgl_status call_batched_transpose(const frame *f)
{
    return tgl_batched_transpose(f->arg[0].tensor, f->out[0], f->stream);
}

static tgl_status call_topk_gate(const frame *f)
{
    return tgl_moe_topk_gate(f->arg[0].tensor, f->out[0], f->stream);
}
static tgl_status call_topk_sum_and_topk_group_idx(const frame *f)
{
    return tgl_moe_topk_sum_and_topk_group_idx(f->arg[0].tensor, f->out[0], f->arg[1].i, f->stream);
}
static tgl_status call_mask_indices_by_tp(const frame *f)
{
    const tgl_moe_mask_indices_by_tp_params params = { .num_experts = f->arg[1].i,
                                                       .num_ep_ranks = f->arg[2].i,
                                                       .num_tp_ranks = f->arg[4].i,
                                                       .tp_rank = f->arg[3].i };
    return tgl_moe_mask_indices_by_tp(f->arg[0].tensor, f->out[0], &params, f->stream);
}
static tgl_status call_normalize_weight(const frame *f)
{
    return tgl_moe_normalize_weight(f->arg[0].tensor, f->out[0], f->out[1], f->stream);
}
static tgl_status call_inplace_unique_group_indices(const frame *f)
{
    DLTensor group_indices = *f->arg[0].tensor;
    return tgl_moe_inplace_unique_group_indices(&group_indices, f->arg[1].i, f->stream);
}

op_row rows[] = {
    /* doc: row */
    { .module = "transpose",
      .text = "transpose(x[M, N]) -> x[N, M]",
      .doc =
          "out[j, i] = x[i, j], packed. Any dtype of 1, 2, 4, 8 or 16 bytes, any strides; bits are copied.",
      .call = call_transpose,
      .is_differentiable = true },
    /* end */
    { .module = "transpose",
      .text = "batched_transpose(x[B, M, N]) -> x[B, N, M]",
      .doc = "out[b, j, i] = x[b, i, j], packed, in one launch. Any dtype of 1, 2, 4, 8 or 16 bytes, any "
             "strides.",
      .call = call_batched_transpose,
      .is_differentiable = true },
    { .module = "moe",
      .text = "topk_gate(scores[T, E], num_topk: int) -> i64[T, num_topk]",
      .doc = "The num_topk best experts of every token, best first. The lower index wins a tie; NaN counts "
             "as -inf.",
      .call = call_topk_gate },
    { .module = "moe",
      .text = "topk_sum_and_topk_group_idx(scores[T, G, P], num_topk_sum: int, num_topk_groups: int) -> "
              "i64[T, num_topk_groups]",
      .doc = "The best groups of experts of every token, best first; a group is worth the sum of its "
             "num_topk_sum best scores.",
      .call = call_topk_sum_and_topk_group_idx },
    { .module = "moe",
      .text = "mask_indices_by_tp(indices[T, K], n: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int) "
              "-> indices[T, K]",
      .doc = "Keeps the experts, of n on num_ep_ranks, whose rank belongs to tp_rank, renumbered; the others "
             "become -1.",
      .call = call_mask_indices_by_tp },
    { .module = "moe",
      .text = "normalize_weight(topk_weights[T, K]) -> f32[T], f32[T, K]",
      .doc = "(denominator, normalized_weights): 1e-20 plus a row's sum, and the row divided by it.",
      .call = call_normalize_weight },
    { .module = "moe",
      .text = "inplace_unique_group_indices(group_indices[T, K]!, num_groups: int) -> None",
      .doc = "Keeps the first occurrence of every group in a row; later ones become -1, in place.",
      .call = call_inplace_unique_group_indices },
};
const int num_rows = sizeof rows / sizeof rows[0];
