/* SPDX-License-Identifier: MIT
 * engram.c - tegula.engram: a row of text per op (parse.c has the grammar) and a thunk into the C API. */
#include "glue.h"
#include "row_args.h"
#include "tegula/engram.h"

THUNK(engram_hash)
{
    return tgl_engram_hash(a->ngram_token_ids, a->multipliers, a->vocab_sizes, a->offsets, a->image_token_mask,
                           a->out, a->stream);
}

static op_row rows[] = {
    { .text = "engram_hash(ngram_token_ids[T, N], multipliers[L, N], vocab_sizes[L, M, J], offsets[L, C], "
              "image_token_mask[T]?) -> out: offsets[L, T, C]",
      .doc = "Table rows of windows of token ids, for all layers: of each order 2 .. N the hash of its ids modulo each "
             "vocab_size, plus the offset, in offsets' dtype. Rows of masked tokens are -1.",
      .call = call_engram_hash },
};
DOMAIN(engram);
