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
};
const int num_rows = sizeof rows / sizeof rows[0];
