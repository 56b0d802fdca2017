/* SPDX-License-Identifier: MIT
 * mhc.h - manifold hyper-connections: n residual streams per token, mixed by matrices that depend on the token.
 * docs/mhc.md has formulas, examples and speed. */
#ifndef TEGULA_MHC_H
#define TEGULA_MHC_H

#include "tegula/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the ops of this header share; each says which fields it reads, others are ignored. { 0 } is DeepSeek-V4's
 * setting. */
typedef struct tgl_mhc_params {
    bool has_rms_eps, has_pre_eps, has_sinkhorn_eps, has_norm_eps, has_post_mult; /* which of the next five are given */
    float rms_eps;           /* of the projection's RMSNorm; 1e-6 if not given */
    float pre_eps;           /* added to the pre gate; 1e-6 if not given */
    float sinkhorn_eps;      /* 1e-6 if not given */
    float norm_eps;          /* of the RMSNorm of a sublayer's input; 1e-6 if not given */
    float post_mult;         /* multiplies the post gate; 2 if not given */
    float post_eps;          /* added to the post gate */
    float norm_scale;        /* multiplies the gain of the input's RMSNorm; 0: 1 */
    int64_t sinkhorn_repeat; /* steps over columns; 0: 20 */
    bool norm;               /* pre_fwd: the input is RMS-normalised */
    bool accumulate;         /* norm_fn_bwd: grad_residual is added to */
    uint64_t reserved[8];    /* zero */
} tgl_mhc_params;

/* ---- streams ---- Rows of bf16 tensors are packed, any distance apart; streams of an input may share their
 * memory (stride 0). 1 <= num_streams <= 8. A computed NaN has all bits set except its sign. A sum over columns is
 * in f32, in an order that depends on hidden alone (docs/mhc.md). Exact: CPU and CUDA agree bit for bit. */

/* tgl_mhc_expand_fwd() - copies an embedding to all streams: out[t][i] = x[t], bit for bit. Since 0.1.
 *   x    in   bf16, f16, f32   [num_tokens, hidden]
 *   out  out  as x             [num_tokens, num_streams, hidden] */
TGL_API tgl_status tgl_mhc_expand_fwd(const DLTensor *x, DLTensor *out, tgl_stream stream);

/* tgl_mhc_expand_bwd() - the sum of streams: grad_x[t] = 0 + grad_out[t][0] + grad_out[t][1] ..., in f32, rounded once.
 * Since 0.1.
 *   grad_out  in   bf16, f16, f32   [num_tokens, num_streams, hidden]
 *   grad_x    out  as grad_out      [num_tokens, hidden] */
TGL_API tgl_status tgl_mhc_expand_bwd(const DLTensor *grad_out, DLTensor *grad_x, tgl_stream stream);

/* tgl_mhc_pre_apply_mix_fwd() - the input of a sublayer: out[t] = sum over i of mix[t][i] * x[t][i], from +0 by fma, in
 * order, rounded once. Since 0.1.
 *   x    in   bf16   [num_tokens, num_streams, hidden]
 *   mix  in   f32    [num_tokens, num_streams]           packed
 *   out  out  bf16   [num_tokens, hidden] */
TGL_API tgl_status tgl_mhc_pre_apply_mix_fwd(const DLTensor *x, const DLTensor *mix, DLTensor *out, tgl_stream stream);

/* tgl_mhc_pre_apply_mix_bwd() - its gradients
 *   grad_out  in      bf16   [num_tokens, hidden]
 *   x         in      bf16   [num_tokens, num_streams, hidden]
 *   mix       in      f32    [num_tokens, num_streams]           packed
 *   grad_x    in/out  bf16   [num_tokens, num_streams, hidden]   read only if `accumulate`
 *   grad_mix  out     f32    [num_tokens, num_streams]           packed
 * grad_x[t][i] = mix[t][i] * grad_out[t] + grad_x[t][i] (+0 unless `accumulate`), one fma, rounded once; grad_mix[t][i]
 * = sum of grad_out[t] * x[t][i] over columns. Since 0.1. */
TGL_API tgl_status tgl_mhc_pre_apply_mix_bwd(const DLTensor *grad_out, const DLTensor *x, const DLTensor *mix,
                                             DLTensor *grad_x, DLTensor *grad_mix, bool accumulate, tgl_stream stream);

/* tgl_mhc_post_fwd() - mixes the residual and adds the output of a sublayer
 *   x         in   bf16   [num_tokens, hidden]
 *   residual  in   bf16   [num_tokens, num_streams, hidden]
 *   post_mix  in   f32    [num_tokens, num_streams]                packed
 *   comb_mix  in   f32    [num_tokens, num_streams, num_streams]   packed, [input, output stream]; NULL: not mixed
 *   out       out  bf16   [num_tokens, num_streams, hidden]        may be residual
 * out[t][o] = post_mix[t][o] * x[t], then + comb_mix[t][i][o] * residual[t][i] by fma for i in order, rounded once; without
 * comb_mix post_mix[t][o] * x[t] + residual[t][o], in f32, rounded to bf16 once. Since 0.1. */
TGL_API tgl_status tgl_mhc_post_fwd(const DLTensor *x, const DLTensor *residual, const DLTensor *post_mix,
                                    const DLTensor *comb_mix, DLTensor *out, tgl_stream stream);

/* tgl_mhc_post_bwd() - its gradients
 *   grad_out       in   bf16   [num_tokens, num_streams, hidden]
 *   x, residual, post_mix, comb_mix   in   as above
 *   grad_x, grad_residual, grad_post_mix, grad_comb_mix   out   as x, residual, post_mix, comb_mix
 * grad_x[t] = sum over o of post_mix[t][o] * grad_out[t][o], grad_residual[t][i] = sum over o of comb_mix[t][i][o] *
 * grad_out[t][o], from +0 by fma, in order, rounded once; grad_post_mix[t][o] and grad_comb_mix[t][i][o] = sums of x[t]
 * * grad_out[t][o] and residual[t][i] * grad_out[t][o] over columns. Without comb_mix residual, grad_residual and
 * grad_comb_mix are NULL, too: the gradient of residual is grad_out. Since 0.1. */
TGL_API tgl_status tgl_mhc_post_bwd(const DLTensor *grad_out, const DLTensor *x, const DLTensor *residual,
                                    const DLTensor *post_mix, const DLTensor *comb_mix, DLTensor *grad_x,
                                    DLTensor *grad_residual, DLTensor *grad_post_mix, DLTensor *grad_comb_mix,
                                    tgl_stream stream);

/* tgl_mhc_multilayer_recompute() - recomputes the inputs of consecutive sublayers and the residuals after them
 *   residual     in   bf16   [num_tokens, num_streams, hidden]   before the first
 * for every layer:
 *   pre_mix      in   f32    [num_tokens, num_streams]                packed
 *   x            in   bf16   [num_tokens, hidden]                     packed; the sublayer's output
 *   post_mix     in   f32    [num_tokens, num_streams]                packed
 *   comb_mix     in   f32    [num_tokens, num_streams, num_streams]   packed
 *   layer_input  out  bf16   [num_tokens, hidden]                     packed
 *   new_residual out  bf16   [num_tokens, num_streams, hidden]        packed; may be that of the layer before, for the
 *                            first layer `residual`
 * layer_input is tgl_mhc_pre_apply_mix_fwd() of the residual with pre_mix, new_residual tgl_mhc_post_fwd() of x,
 * the residual, post_mix and comb_mix: the same bits. It is the residual of the next layer. In the last layer x,
 * post_mix, comb_mix and new_residual may all be NULL. No other output may overlap anything; this is checked within a
 * layer only. num_layers >= 1; one launch for 64 layers, in which a residual is written and not read again.
 * Since 0.1. */
typedef struct tgl_mhc_layer {
    const DLTensor *pre_mix, *x, *post_mix, *comb_mix;
    DLTensor *layer_input, *new_residual;
} tgl_mhc_layer;
TGL_API tgl_status tgl_mhc_multilayer_recompute(const DLTensor *residual, const tgl_mhc_layer *layers,
                                                int64_t num_layers, tgl_stream stream);

/* ---- projection ---- */

/* tgl_mhc_norm_fn_fwd() - mixes: RMSNorm of all columns of a token, times the rows of fn
 *   residual     in   bf16   [num_tokens, num_streams, hidden]   rows packed, any distance apart
 *   fn           in   f32    [num_rows, num_streams * hidden]    packed
 *   norm_weight  in   f32    [num_streams * hidden]              packed; NULL: no gain
 *   mixes        out  f32    [num_tokens, num_rows]              packed
 *   out_mul      out  f32    [num_tokens, num_rows]              packed; for the backward; NULL: not wanted
 *   sqrsum       out  f32    [num_tokens]                        packed; for the backward; NULL: not wanted
 * sqrsum = sum of x * x over the columns of all streams, out_mul = sum of x * tf32(fn * norm_weight), mixes = out_mul *
 * rsqrt(sqrsum / columns + rms_eps), where tf32 rounds to nearest, ties away from zero, and keeps infinities and NaN.
 * Sums are in f32 in an order that depends on num_streams and hidden alone (docs/mhc.md): no result depends on the
 * other tokens or the kernel. sqrsum is exact: CPU and CUDA agree bit for bit. out_mul differs between a CPU and
 * tensor cores by at most 1e-5 of the sum of |x * fn|. hidden >= 1, 1 <= num_rows <= 80. Since 0.1. */
TGL_API tgl_status tgl_mhc_norm_fn_fwd(const DLTensor *residual, const DLTensor *fn, const DLTensor *norm_weight,
                                       DLTensor *mixes, DLTensor *out_mul, DLTensor *sqrsum,
                                       const tgl_mhc_params *params, void *workspace, size_t workspace_bytes,
                                       tgl_stream stream);
/* 0 on the CPU. */
TGL_API size_t tgl_mhc_norm_fn_fwd_workspace_size(const DLTensor *residual, const DLTensor *fn);

/* tgl_mhc_norm_fn_bwd() - its gradients
 *   grad_mixes        in      f32    [num_tokens, num_rows]              packed
 *   residual, fn, norm_weight, out_mul, sqrsum   in   as above           of the forward
 *   grad_residual     in/out  bf16   [num_tokens, num_streams, hidden]   read only if `accumulate`
 *   grad_fn           out     f32    as fn                               packed
 *   grad_norm_weight  out     f32    as norm_weight                      packed; NULL: not wanted
 * With r = rsqrt(sqrsum / columns + rms_eps): dmul = tf32(grad_mixes * r), slope = -(sum of grad_mixes * out_mul) * r /
 * (sqrsum + rms_eps * columns); grad_residual = [grad_residual] + sum over rows of dmul * tf32(fn * norm_weight) +
 * residual * slope, rounded once. D = sum over tokens of dmul * residual; grad_fn = D, or with a gain D * norm_weight
 * and grad_norm_weight = sum over rows of D * fn. Sums over tokens depend on the shape alone: up to 8 groups of tokens in
 * order, then the groups. CPU and tensor cores differ as in the forward. Reads rms_eps, accumulate. Since 0.1. */
TGL_API tgl_status tgl_mhc_norm_fn_bwd(const DLTensor *grad_mixes, const DLTensor *residual, const DLTensor *fn,
                                       const DLTensor *norm_weight, const DLTensor *out_mul, const DLTensor *sqrsum,
                                       DLTensor *grad_residual, DLTensor *grad_fn, DLTensor *grad_norm_weight,
                                       const tgl_mhc_params *params, void *workspace, size_t workspace_bytes,
                                       tgl_stream stream);
TGL_API size_t tgl_mhc_norm_fn_bwd_workspace_size(const DLTensor *residual, const DLTensor *fn);

/* tgl_mhc_pre_fwd() - the input of a sublayer from the residual, in one launch
 *   residual      in   bf16        [num_tokens, n, hidden]         rows packed, any distance apart; n = num_streams
 *   fn            in   f32         [num_rows, n * hidden]          packed
 *   norm_weight   in   f32         [n * hidden]                    packed; NULL: no gain
 *   scale, base   in   f32         [3, 2 or 1], [num_rows]         packed
 *   input_weight  in   bf16, f32   [hidden]                        packed; NULL: no gain; needs `norm`
 *   pre_mix       out  f32         [num_tokens, n]                 packed; NULL: not wanted
 *   post_mix      out  f32         [num_tokens, n]                 packed; NULL: not wanted; needs 2 or 3 scales
 *   comb_mix      out  f32         [num_tokens, n, n]              packed; NULL: not wanted; needs 3 scales
 *   out           out  bf16        [num_tokens, hidden]            rows packed, any distance apart
 *   raw           out  bf16        [num_tokens, hidden]            as out; before `norm`; NULL: not wanted
 *   rstd          out  f32         [num_tokens]                    packed; NULL: not wanted; needs `norm`
 *   out_mul, sqrsum   out   as tgl_mhc_norm_fn_fwd()'s             packed; NULL: not wanted
 * num_rows is n (n + 2) with 3 scales (pre, post, comb), 2 n with 2 (pre, post), n with 1 (pre: a learned head). Equal,
 * bit for bit, to tgl_mhc_norm_fn_fwd(), _pre_split_mixes_fwd() (or _head_compute_mix_fwd()), _sinkhorn_fwd() and
 * _pre_apply_mix_fwd() one after the other. With `norm` then, of the rounded sum v: rstd = rsqrt((sum of v * v over
 * columns) / hidden + norm_eps), out = v * rstd * (input_weight * norm_scale), each product rounded. No result depends
 * on the other tokens or the kernel; CPU and tensor cores differ as in norm_fn_fwd. Reads rms_eps, pre_eps, post_mult,
 * post_eps, sinkhorn_eps, sinkhorn_repeat, norm, norm_eps, norm_scale. Since 0.1. */
TGL_API tgl_status tgl_mhc_pre_fwd(const DLTensor *residual, const DLTensor *fn, const DLTensor *norm_weight,
                                   const DLTensor *scale, const DLTensor *base, const DLTensor *input_weight,
                                   DLTensor *pre_mix, DLTensor *post_mix, DLTensor *comb_mix, DLTensor *out,
                                   DLTensor *raw, DLTensor *rstd, DLTensor *out_mul, DLTensor *sqrsum,
                                   const tgl_mhc_params *params, void *workspace, size_t workspace_bytes,
                                   tgl_stream stream);
/* 0 on the CPU. */
TGL_API size_t tgl_mhc_pre_fwd_workspace_size(const DLTensor *residual, const DLTensor *fn);

/* ---- parts of a projection ---- What norm_fn_parts_fwd or a GEMM of another library leaves: out_mul and sqrsum of
 * tgl_mhc_norm_fn_fwd() as num_splits parts each. They are added as a tree of neighbours, padded with +0 to a power of
 * two of at least 16. Exact: CPU and CUDA agree bit for bit. */

/* tgl_mhc_norm_fn_parts_fwd() - parts of our own: what tgl_mhc_norm_fn_fwd() sums, before the last additions
 *   residual, fn, norm_weight   in   as tgl_mhc_norm_fn_fwd()'s
 *   out_mul_parts  out  f32   [num_splits, num_tokens, num_rows]   packed; num_splits 1, 2, 4, 8 or 16
 *   sqrsum_parts   out  f32   [num_splits, num_tokens]             packed
 * Parts are subtrees of those sums, in order (docs/mhc.md), so that tgl_mhc_norm_fn_finish_fwd() makes of them, and
 * tgl_mhc_pre_finish_fwd() of them and the residual, the bits of tgl_mhc_norm_fn_fwd() and tgl_mhc_pre_fwd(); one part is
 * out_mul and sqrsum. If a sum has too few terms, the last parts are 0. No workspace on the CPU. Since 0.1. */
TGL_API tgl_status tgl_mhc_norm_fn_parts_fwd(const DLTensor *residual, const DLTensor *fn, const DLTensor *norm_weight,
                                             DLTensor *out_mul_parts, DLTensor *sqrsum_parts, void *workspace,
                                             size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_mhc_norm_fn_parts_fwd_workspace_size(const DLTensor *residual, const DLTensor *fn);

/* tgl_mhc_norm_fn_finish_fwd() - mixes from their parts. Since 0.1.
 *   out_mul_parts  in   f32   [num_splits, num_tokens, num_rows]   packed; 1 <= num_splits <= 4096
 *   sqrsum_parts   in   f32   [num_splits, num_tokens]             packed
 *   mixes          out  f32   [num_tokens, num_rows]               packed
 *   out_mul        out  f32   [num_tokens, num_rows]               packed; NULL: not wanted
 *   sqrsum         out  f32   [num_tokens]                         packed; NULL: not wanted
 * mixes = out_mul * rsqrt(sqrsum / num_columns + rms_eps), num_columns being those of a token, num_streams * hidden.
 * 1 <= num_rows <= 80. Reads rms_eps. */
TGL_API tgl_status tgl_mhc_norm_fn_finish_fwd(const DLTensor *out_mul_parts, const DLTensor *sqrsum_parts,
                                              DLTensor *mixes, DLTensor *out_mul, DLTensor *sqrsum, int64_t num_columns,
                                              const tgl_mhc_params *params, tgl_stream stream);

/* tgl_mhc_pre_finish_fwd() - gates, comb and the input of a sublayer from parts of its mixes. Since 0.1.
 *   residual       in   bf16   [num_tokens, n, hidden]                rows packed, any distance apart; n = num_streams
 *   out_mul_parts  in   f32    [num_splits, num_tokens, num_rows]     packed; 1 <= num_splits <= 4096
 *   sqrsum_parts   in   f32    [num_splits, num_tokens]               packed
 *   scale, base    in   f32    [3, 2 or 1], [num_rows]                packed
 *   pre_mix        out  f32    [num_tokens, n]                        packed; NULL: not wanted
 *   post_mix       out  f32    [num_tokens, n]                        packed; NULL: not wanted; needs 2 or 3 scales
 *   comb_mix       out  f32    [num_tokens, n, n]                     packed; NULL: not wanted; needs 3 scales
 *   out            out  bf16   [num_tokens, hidden]                   rows packed, any distance apart
 * num_rows is n (n + 2) with 3 scales (pre, post, comb), 2 n with 2 (pre, post), n with 1 (pre). Equal, bit for bit, to
 * tgl_mhc_norm_fn_finish_fwd(), _pre_split_mixes_fwd() (or _head_compute_mix_fwd()), _sinkhorn_fwd() and
 * _pre_apply_mix_fwd() one after the other. Reads rms_eps, pre_eps, post_mult, post_eps, sinkhorn_eps,
 * sinkhorn_repeat. */
TGL_API tgl_status tgl_mhc_pre_finish_fwd(const DLTensor *residual, const DLTensor *out_mul_parts,
                                          const DLTensor *sqrsum_parts, const DLTensor *scale, const DLTensor *base,
                                          DLTensor *pre_mix, DLTensor *post_mix, DLTensor *comb_mix, DLTensor *out,
                                          const tgl_mhc_params *params, tgl_stream stream);

/* ---- gates ---- */

/* tgl_mhc_pre_split_mixes_fwd() - a token's pre gate, post gate and logits of comb, from its mixes
 *   mixes     in   f32   [num_tokens, n * (n + 2)]   rows may be strided; columns are n of pre, n of post, n * n of
 *                        or [num_tokens, 2 * n]      comb, or without comb; n = num_streams
 *   scale     in   f32   [3], or [2] without comb    packed; of pre, post, comb
 *   base      in   f32   [columns of mixes]          packed
 *   pre_mix   out  f32   [num_tokens, n]             packed
 *   post_mix  out  f32   [num_tokens, n]             packed
 *   comb      out  f32   [num_tokens, n, n]          packed, [input, output stream]; NULL with mixes without comb
 * With z = mixes * scale + base, one fma: pre_mix = sigmoid(z) + pre_eps; post_mix = sigmoid(z) * post_mult [+
 * post_eps, if it is not 0]; comb = z. Reads pre_eps, post_mult, post_eps. A NaN has all bits set but its sign.
 * 1 <= n <= 8. Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_mhc_pre_split_mixes_fwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                               DLTensor *pre_mix, DLTensor *post_mix, DLTensor *comb,
                                               const tgl_mhc_params *params, tgl_stream stream);

/* tgl_mhc_pre_split_mixes_bwd() - its gradients
 *   mixes, scale, base       in   as above
 *   grad_pre_mix             in   f32   [num_tokens, n]      packed; NULL: zero
 *   grad_post_mix            in   f32   [num_tokens, n]      packed; NULL: zero
 *   grad_comb                in   f32   [num_tokens, n, n]   packed; NULL: zero, or mixes without comb
 *   grad_mixes               out  f32   as mixes             packed
 *   grad_scale, grad_base    out  f32   as scale, base       packed
 * With g the gradient of z: grad_mixes = g * scale, grad_base = sum of g over tokens, grad_scale = sum of g * mixes
 * over tokens and the columns of a group; without tokens the sums are 0. Sums are in f32 over 64 tokens at a time, and
 * those in f64, in an order (docs/mhc.md) that depends on num_tokens alone. Reads post_mult. Exact: CPU and CUDA agree
 * bit for bit. Since 0.1. */
TGL_API tgl_status tgl_mhc_pre_split_mixes_bwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                               const DLTensor *grad_pre_mix, const DLTensor *grad_post_mix,
                                               const DLTensor *grad_comb, DLTensor *grad_mixes, DLTensor *grad_scale,
                                               DLTensor *grad_base, const tgl_mhc_params *params, void *workspace,
                                               size_t workspace_bytes, tgl_stream stream);
/* 0 on the CPU. */
TGL_API size_t tgl_mhc_pre_split_mixes_bwd_workspace_size(const DLTensor *mixes);

/* tgl_mhc_head_compute_mix_fwd() - the gate of a head: the pre gate alone, with a scale of its own
 *   mixes    in   f32   [num_tokens, num_streams]   rows may be strided
 *   scale    in   f32   [1]                         packed
 *   base     in   f32   [num_streams]               packed
 *   pre_mix  out  f32   [num_tokens, num_streams]   packed
 * pre_mix = sigmoid(mixes * scale + base) + pre_eps. 1 <= num_streams <= 8. Exact: CPU and CUDA agree bit for bit.
 * Since 0.1. */
TGL_API tgl_status tgl_mhc_head_compute_mix_fwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                                DLTensor *pre_mix, const tgl_mhc_params *params, tgl_stream stream);

/* tgl_mhc_head_compute_mix_bwd() - its gradients, as those of tgl_mhc_pre_split_mixes_fwd()
 *   grad_pre_mix  in   f32   [num_tokens, num_streams]   packed
 * Since 0.1. */
TGL_API tgl_status tgl_mhc_head_compute_mix_bwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                                const DLTensor *grad_pre_mix, DLTensor *grad_mixes,
                                                DLTensor *grad_scale, DLTensor *grad_base, void *workspace,
                                                size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_mhc_head_compute_mix_bwd_workspace_size(const DLTensor *mixes);

/* ---- Sinkhorn ---- */

/* tgl_mhc_sinkhorn_fwd() - a nearly doubly stochastic matrix from its logits
 *   x    in   f32   [num_tokens, num_streams, num_streams]   packed
 *   out  out  f32   as x                                     packed; may be x
 * Softmax of every row, plus sinkhorn_eps; every column divided by its sum plus sinkhorn_eps; then sinkhorn_repeat - 1
 * times rows by their sums plus sinkhorn_eps, and columns again. Computed as E[i][o] * u[i] * v[o] with the reciprocal
 * and in the order of docs/mhc.md: within 3e-7 of the exact result for sinkhorn_eps from 1e-20 on. A NaN or +inf
 * makes the whole matrix NaN, as a row of -inf does; so may a column whose sum is below 2^-126, with
 * sinkhorn_eps 0. 1 <= num_streams <= 8. Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_mhc_sinkhorn_fwd(const DLTensor *x, DLTensor *out, const tgl_mhc_params *params,
                                        tgl_stream stream);

/* tgl_mhc_sinkhorn_bwd() - the gradient of x, through all steps in reverse
 *   grad_out  in   f32   [num_tokens, num_streams, num_streams]   packed; gradient of out
 *   x         in   f32   as grad_out                              packed
 *   grad_x    out  f32   as grad_out                              packed; may be grad_out or x
 * The forward is computed again. Past 32 repeats time grows with their square. Exact: CPU and CUDA agree bit for bit.
 * Since 0.1. */
TGL_API tgl_status tgl_mhc_sinkhorn_bwd(const DLTensor *grad_out, const DLTensor *x, DLTensor *grad_x,
                                        const tgl_mhc_params *params, tgl_stream stream);

/* tgl_mhc_split_sinkhorn_fwd() - gates and comb from mixes, in one launch. Since 0.1.
 *   mixes     in   f32   [num_tokens, n * (n + 2)]   rows may be strided
 *   scale     in   f32   [3]                         packed; of pre, post, comb
 *   base      in   f32   [n * (n + 2)]               packed
 *   pre_mix   out  f32   [num_tokens, n]             packed
 *   post_mix  out  f32   [num_tokens, n]             packed
 *   comb_mix  out  f32   [num_tokens, n, n]          packed, [input, output stream]
 * Equal, bit for bit, to tgl_mhc_pre_split_mixes_fwd() and tgl_mhc_sinkhorn_fwd() of its comb. Reads pre_eps,
 * post_mult, post_eps, sinkhorn_eps, sinkhorn_repeat. 1 <= n <= 8. Exact: CPU and CUDA agree bit for bit. */
TGL_API tgl_status tgl_mhc_split_sinkhorn_fwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                              DLTensor *pre_mix, DLTensor *post_mix, DLTensor *comb_mix,
                                              const tgl_mhc_params *params, tgl_stream stream);

/* tgl_mhc_split_sinkhorn_bwd() - its gradients, in one launch. Since 0.1.
 *   mixes, scale, base   in   as above
 *   grad_pre_mix    in   f32   [num_tokens, n]             packed; NULL: zero
 *   grad_post_mix   in   f32   [num_tokens, n]             packed; NULL: zero
 *   grad_comb_mix   in   f32   [num_tokens, n, n]          packed; NULL: zero
 *   grad_mixes      out  f32   [num_tokens, n * (n + 2)]   packed
 *   grad_scale      out  f32   [3]                         packed
 *   grad_base       out  f32   [n * (n + 2)]               packed
 * Equal, bit for bit, to tgl_mhc_sinkhorn_bwd() of comb's logits and tgl_mhc_pre_split_mixes_bwd() of what it gives. Reads
 * post_mult, sinkhorn_eps, sinkhorn_repeat. Exact: CPU and CUDA agree bit for bit. */
TGL_API tgl_status tgl_mhc_split_sinkhorn_bwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                              const DLTensor *grad_pre_mix, const DLTensor *grad_post_mix,
                                              const DLTensor *grad_comb_mix, DLTensor *grad_mixes, DLTensor *grad_scale,
                                              DLTensor *grad_base, const tgl_mhc_params *params, void *workspace,
                                              size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_mhc_split_sinkhorn_bwd_workspace_size(const DLTensor *mixes);

#ifdef __cplusplus
}
#endif
#endif
