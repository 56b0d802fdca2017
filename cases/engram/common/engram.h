/* SPDX-License-Identifier: MIT
 * engram.h - what the cases of the ops that make rows of ids share: fills, and rows of a window. */
#ifndef TEGULA_CASES_ENGRAM_H
#define TEGULA_CASES_ENGRAM_H

#include "cases/case.h"
#include "tegula/engram.h"

/* Parameters of the constants, with defaults, and their tensors from number `first` on: multipliers, vocab_sizes,
 * offsets. Then `out`, [num_layers, num_tokens, columns], under a name of its own.
 *   multipliers  small     below 100000
 *                model     odd, up to 2^63 / 100000: products of ids stay below 2^63
 *                bits      any: products wrap
 *   moduli       thousands 100000 .. 999999
 *                millions  around 16 and 20 million
 *                edges     1, 2, powers of two and their neighbours, the largest of the dtype
 *                any       1 .. the largest of the dtype
 *                bits      0 and negative ones too
 *   offsets      sums      of the moduli before
 *                bits      any: the sum wraps */
#define ENGRAM_COLUMNS                                                                                       \
    "max_ngram=3 num_layers=2 num_heads=8 vocab_dtype=i32 offset_dtype=i32 out_dtype=i32 multipliers=model " \
    "moduli=millions offsets=sums"
enum { ENGRAM_MULTIPLIERS, ENGRAM_VOCAB_SIZES, ENGRAM_OFFSETS, ENGRAM_OUT, ENGRAM_NUM_COLUMN_TENSORS };
tgl_status engram_add_columns(case_problem *c, int first, const char *out_name);

/* Writes a token's rows in all layers; window NULL: -1. */
void engram_put_rows(const case_problem *c, int first, int64_t token, const int64_t *window);

/* Ids, as `kind` says: valid (below 100000), small (-3 .. 8), bits. */
tgl_status engram_choose_ids(case_problem *c, case_tensor *t, const char *param);

/* An element of integers or flags, at this index. */
int64_t engram_integer(const case_tensor *t, const int64_t *index);

/* Flags, as parameter `mask` says: none (no tensor), no, all, some (a tenth). */
void engram_add_mask(case_problem *c, int index, const char *name, int64_t num_tokens);

#endif
