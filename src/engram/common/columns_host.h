/* SPDX-License-Identifier: MIT
 * columns_host.h - hash and rows on the host: the rows of a window, the launch. */
#ifndef TEGULA_ENGRAM_COLUMNS_HOST_H
#define TEGULA_ENGRAM_COLUMNS_HOST_H

#include "cuda/op.h"
#include "engram/common/columns.h"

/* What signatures of ops share. */
#define COLUMN_TENSORS                                             \
    "multipliers: i64[num_layers, max_ngram],"                     \
    " vocab_sizes: i32|i64[num_layers, max_ngram - 1, num_heads]," \
    " offsets: i32|i64[num_layers, (max_ngram - 1) * num_heads]"

#define COLUMN_RULES "max_ngram in 1.." TGL_TEXT(COLUMN_MAX_NGRAM)

/* For tensors that passed the signature; `out` is [num_layers, num_tokens, columns]. */
tgl_status tgl_columns_of(const DLTensor *multipliers, const DLTensor *vocab_sizes, const DLTensor *offsets,
                          const DLTensor *out, tgl_columns *c);

/* The rows of a token in all layers; window NULL: -1. */
void tgl_columns_put(const tgl_columns *c, int64_t token, const int64_t *window);

/* About what a token reads and writes, for tgl_parallel_rows(): a division takes as long as 16 bytes. */
int64_t tgl_columns_token_bytes(const tgl_columns *c);

/* The kernel of this name for these columns, and its launch shape, which completes `c`.
 *     sm_blocks       blocks resident on an SM
 *     window_threads  threads that make one window
 *     more_tokens     of a block beside those of its tile, max
 *     more_bytes      of shared memory behind its windows, at a multiple of 8 */
tgl_kernel tgl_columns_kernel(const tgl_columns *c, const char *name);
tgl_shape tgl_columns_shape(tgl_columns *c, int sm_blocks, int window_threads, int64_t more_tokens, int64_t more_bytes,
                            const tgl_target *target);

#endif
