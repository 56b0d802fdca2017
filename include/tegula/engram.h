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

/* ---- gate ---- */

/* tgl_engram_fused_weight() - the product of the gate's two RMSNorm weights
 *   weight_hidden  in   bf16 or f32     [num_streams, hidden]   rows may be strided
 *   weight_embed   in   weight_hidden's [num_streams, hidden]   rows may be strided
 *   out            out  f32             [num_streams, hidden]   packed
 * out = weight_hidden * weight_embed in f32, which is exact for bf16 unless it over- or underflows. A NaN has all bits
 * set but its sign. Exact. Since 0.1. */
TGL_API tgl_status tgl_engram_fused_weight(const DLTensor *weight_hidden, const DLTensor *weight_embed, DLTensor *out,
                                           tgl_stream stream);

/* What the gate makes of a score of 0, which a row of zeros has. */
typedef enum tgl_engram_sign {
    TGL_ENGRAM_SIGN_ZERO = 0,   /* the sign of 0 is 0: gate 0.5 */
    TGL_ENGRAM_SIGN_BIT = 1     /* its sign bit: sigmoid(+-sqrt(clamp_value)) */
} tgl_engram_sign;

typedef struct tgl_engram_gate_params {
    float eps, clamp_value;     /* >= 0; 0 means 0 */
    bool no_residual;           /* gate * v alone, without hidden_states */
    bool zero_centered;         /* both weights are stored minus 1 */
    bool constant_weights;      /* nothing before this call on the stream writes the weights */
    tgl_engram_sign sign;       /* of the forward */
    uint64_t reserved[8];       /* zero */
} tgl_engram_gate_params;

/* tgl_engram_gate_fwd() - per token and stream, how much of the value is let in, and the result
 *   hidden_states     in   bf16          [num_tokens, num_streams, hidden]   rows packed, any distance apart
 *   k                 in   bf16          [num_tokens, num_streams, hidden]   likewise
 *   v                 in   bf16          [num_tokens, hidden]                likewise; k and v may be two views of one
 *                                                                            tensor [num_tokens, num_streams + 1, hidden]
 *   weight_hidden     in   bf16 or f32   [num_streams, hidden]               rows may be strided
 *   weight_embed      in   as above      [num_streams, hidden]               likewise; NULL: weight_hidden is the fused
 *                                                                            weight, f32
 *   image_token_mask  in   bool          [num_tokens]                        packed; NULL: none is masked
 *   output            out  bf16          [num_tokens, num_streams, hidden]   as hidden_states, which it may be itself
 *                                                                            unless dot is given; NULL: not wanted
 *   dot, gate_score, rstd_x, rstd_k   out   f32   [num_tokens, num_streams]  packed; for the backward, all or none: NULL
 * With x, k, w one row (w = weight_hidden * weight_embed, or (1 + weight_hidden) * (1 + weight_embed)):
 *   dot = sum of (x * w) * k; rstd_x = 1 / sqrt(sum of x * x / hidden + eps), rstd_k alike;
 *   s = dot * rstd_x * rstd_k / sqrt(hidden); u = sign(s) * sqrt(max(|s|, clamp_value));
 *   gate_score = 1 / (1 + e^-u); output = hidden_states + gate_score * v, rounded once to bf16.
 * A masked token: output = hidden_states bit for bit (+0 without residual), the others 0; its k and v do not matter. NaN
 * and infinities in x or k make the whole row NaN, in v its own column; a NaN has all bits set but its sign. Sums are f32,
 * in an order that depends on hidden alone (docs/engram.md). Exact: CPU and CUDA agree bit for bit; a result does not
 * depend on the other tokens. 1 <= hidden < 2^31. Since 0.1. */
TGL_API tgl_status tgl_engram_gate_fwd(const DLTensor *hidden_states, const DLTensor *k, const DLTensor *v,
                                       const DLTensor *weight_hidden, const DLTensor *weight_embed,
                                       const DLTensor *image_token_mask, DLTensor *output, DLTensor *dot,
                                       DLTensor *gate_score, DLTensor *rstd_x, DLTensor *rstd_k,
                                       const tgl_engram_gate_params *params, tgl_stream stream);

#ifdef __cplusplus
}
#endif
#endif
