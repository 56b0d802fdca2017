/* SPDX-License-Identifier: MIT
 * engram.h - Engram, a memory that a layer looks up by the last few token ids: rows of its table from n-grams of
 * ids. docs/engram.md has formulas, examples and speed. */
#ifndef TEGULA_ENGRAM_H
#define TEGULA_ENGRAM_H

#include "tegula/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ids to rows ---- */

/* tgl_engram_hash() - table rows of windows of token ids, for all layers
 *   ngram_token_ids   in   i32 or i64   [num_tokens, max_ngram]                  rows may be strided; [t][0] is the
 *                                                                                token, [t][i] the one i before it
 *   multipliers       in   i64          [num_layers, max_ngram]                  packed
 *   vocab_sizes       in   i32 or i64   [num_layers, max_ngram - 1, num_heads]   packed
 *   offsets           in   i32 or i64   [num_layers, (max_ngram - 1) * num_heads]   packed
 *   image_token_mask  in   bool         [num_tokens]                             packed; NULL: none is masked
 *   out               out  i32 or i64   [num_layers, num_tokens, (max_ngram - 1) * num_heads]   packed
 * With h[0] = id[0] * multiplier[0] and h[i] = h[i - 1] ^ (id[i] * multiplier[i]), in 64 bits that wrap:
 * out[l][t][(i - 1) * num_heads + j] = h[i] mod vocab_sizes[l][i - 1][j] + offset, the modulo from 0 on for
 * a negative h too, the sum cut to out's bits. A vocab_size below 1 gives -1, and so does a masked token.
 * 1 <= max_ngram <= 4096; fewer than 2^23 vocab_sizes in all. Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_engram_hash(const DLTensor *ngram_token_ids, const DLTensor *multipliers,
                                   const DLTensor *vocab_sizes, const DLTensor *offsets,
                                   const DLTensor *image_token_mask, DLTensor *out, tgl_stream stream);

#ifdef __cplusplus
}
#endif
#endif
