/* SPDX-License-Identifier: MIT
 * transpose.c - tegula.transpose: a row of text per op (parse.c has the grammar) and a thunk into the C API. */
#include "glue.h"
#include "row_args.h"
#include "tegula/transpose.h"

/* doc: thunk */
THUNK(transpose) { return tgl_transpose(a->x, a->out, a->stream); }
/* end */
THUNK(batched_transpose) { return tgl_batched_transpose(a->x, a->out, a->stream); }

static op_row rows[] = {
    /* doc: row */
    { .text = "transpose(x[M, N]) -> out: x[N, M]",
      .doc = "out[j, i] = x[i, j], packed. Any dtype of 1, 2, 4, 8 or 16 bytes, any strides; bits are copied.",
      .call = call_transpose },
    /* end */
    { .text = "batched_transpose(x[B, M, N]) -> out: x[B, N, M]",
      .doc = "out[b, j, i] = x[b, i, j], packed, in one launch. Any dtype of 1, 2, 4, 8 or 16 bytes, any "
             "strides.",
      .call = call_batched_transpose },
};
DOMAIN(transpose);
